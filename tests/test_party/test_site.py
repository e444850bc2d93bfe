"""A hospital's `party.toml`: what its owner mistyped is named, with the key and what came."""

from __future__ import annotations

import re
import tomllib
from dataclasses import fields, replace
from pathlib import Path

import pytest
import tomli_w

from party.errors import SiteError
from party.site.policy import Rules
from party.site.site import SETTINGS_FILE, DataSettings, Site, SiteSettings
from protocols.membership_messages import MOST_DATA_SETS
from tests.support.hospital_site import make_site
from tests.support.markers import sampled

LUNG = ("memberships", "lung-study")
ENTRY = {
    "federation": "heart study",
    "party": "North",
    "address": "heart.example.org:8443",
    "coordinator_key": "ab" * 32,
    "node_port": 9094,
}
HALF = {"federation": "heart study"}


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return make_site(tmp_path / "site")


def test_a_site_in_a_log_shows_its_folder_and_no_key(site: Site) -> None:
    assert repr(site) == f"Site({site.folder.name}, {len(site.settings.memberships)} membership(s))"


def rewrite(site: Site, *keys: str, value: object) -> None:
    path = site.path(SETTINGS_FILE)
    table = tomllib.loads(path.read_text("utf-8"))
    *sections, key = keys
    inner = table
    for section in sections:
        inner = inner[section]
    inner[key] = value
    path.write_text(tomli_w.dumps(table), encoding="utf-8")


@sampled()
@pytest.mark.parametrize(
    ("keys", "value", "got"),
    [
        pytest.param((*LUNG, "node_port"), "9094", "'9094'", id="port as text"),
        pytest.param((*LUNG, "node_port"), 0, "0", id="no port"),
        pytest.param((*LUNG, "coordinator_key"), "00ff", "", id="half a key"),
        pytest.param((*LUNG, "address"), "a.org", "'a.org'", id="no port of the coordinator"),
        pytest.param((*LUNG, "address"), "a..b:84", "'a..b:84'", id="a host that cannot be"),
        pytest.param((*LUNG, "colour"), "red", "colour", id="a key that nobody knows"),
        pytest.param(("memberships", "heart"), HALF, "none", id="half a membership"),
        pytest.param(("memberships", "heart"), "text", "'text'", id="a membership that is a text"),
        pytest.param(("memberships",), [], "[]", id="a list"),
        pytest.param(("memberships", "../x"), ENTRY, "'../x'", id="a name that leads elsewhere"),
        pytest.param(("records_per_teacher",), 2.5, "2.5", id="half a patient"),
        pytest.param(("records_per_teacher",), 0, "0", id="a teacher of nobody"),
        pytest.param(("teachers",), 10, "teachers", id="a number that follows from the table"),
        pytest.param(("lifetime_epsilon",), "5", "'5'", id="budget as text"),
        pytest.param(("lifetime_epsilon",), float("inf"), "inf", id="no budget"),
        pytest.param(("lifetime_epsilon",), -1, "-1", id="below 0"),
        pytest.param(("delta",), 1, "1", id="delta of 1"),
        pytest.param(("approval",), "never", "'never'", id="word"),
        pytest.param(("data", "rows"), "40", "'40'", id="data"),
        pytest.param(("data", "floor"), -1, "-1", id="floor below 0"),
        pytest.param(("policy",), ["x"], "['x']", id="policy as list"),
        pytest.param(("policy", "least_parties"), "3", "'3'", id="rule"),
        pytest.param(("policy", "most_epsilon"), float("nan"), "nan", id="a rule that none breaks"),
        pytest.param(("policy", "forms"), "masked", "'masked'", id="letters for a list"),
        pytest.param(("policy", "noise_places"), ["sea"], "'sea'", id="another place"),
        pytest.param(("policy", "noise_places"), ["aggregators"], "'aggregators'", id="nobody's"),
        pytest.param(("policy", "simulated"), True, "simulated", id="a rule of no file"),
    ],
)
def test_a_setting_that_cannot_be_is_named_with_its_key(
    site: Site, keys: tuple[str, ...], value: object, got: str
) -> None:
    rewrite(site, *keys, value=value)
    with pytest.raises(SiteError) as caught:
        Site.open(site.folder)
    error = caught.value
    assert (error.code, error.got) == ("PF-340", got)
    assert error.must.startswith("party.toml: ")
    assert keys[-1] in f"{error.must} {error.got}"


def test_two_memberships_have_two_ports(site: Site) -> None:
    rewrite(site, "memberships", "heart", value=ENTRY)
    with pytest.raises(SiteError) as caught:
        Site.open(site.folder)
    assert (caught.value.code, caught.value.got) == ("PF-340", "9094 twice")


def test_whole_numbers_and_lists_are_what_the_policy_takes(site: Site) -> None:
    rewrite(site, "policy", value={"most_epsilon": 3, "forms": ["masked"], "most_queries": 2})
    policy = Site.open(site.folder).settings.policy_for(frozenset())
    assert (policy.most_epsilon, policy.forms) == (3.0, frozenset({"masked"}))
    assert policy.most_queries == 2


def test_what_was_read_is_written_as_it_was(site: Site) -> None:
    rewrite(site, "policy", value={"most_epsilon": 3, "forms": ["masked"]})
    before = site.path(SETTINGS_FILE).read_text("utf-8")
    opened = Site.open(site.folder)
    opened.save(opened.settings)
    assert site.path(SETTINGS_FILE).read_text("utf-8") == before


def test_a_rule_that_is_misspelled_is_refused_with_the_likely_one(site: Site) -> None:
    rewrite(site, "policy", value={"least_partys": 7})
    with pytest.raises(SiteError) as caught:
        Site.open(site.folder)
    assert re.search(r"\[policy\] .*\(.*least_parties", caught.value.must)


def test_the_environment_changes_no_promise_to_patients_and_no_membership(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file's digest is on record as the owner's word: nothing beside it may count."""
    keys = {one.name for one in fields(SiteSettings)} | {one.name for one in fields(Rules)}
    parts = [f"{table}_{one}" for table in ("policy", "memberships_lung-study") for one in keys]
    texts = ("2", "true", "pool", '{"least_parties": 3}', '["plain"]')
    keys -= {"data", "data_sets"}  # too close to the one variable: refused
    for text in texts:
        for key in (*keys, *parts, *(part.replace("_", "__", 1) for part in parts)):
            monkeypatch.setenv(f"PATE_PARTY_{key.upper()}", text)
        opened = Site.open(site.folder)
        assert opened.settings == site.settings
        assert opened.data == site.settings.data


def test_the_environment_may_say_where_the_table_is_and_no_file_keeps_it(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = site.save(replace(site.settings, data=DataSettings(file="a.csv", digest="00", rows=3)))
    monkeypatch.setenv("PATE_PARTY_DATA_FILE", "/mnt/b.csv")
    assert site.data == replace(site.settings.data, file="/mnt/b.csv")
    saved = site.save(replace(site.settings, records_per_teacher=4))
    assert Site.open(saved.folder).settings.data.file == "a.csv"


@pytest.mark.parametrize("name", ["DATA_DIGEST", "DATA_ROWS", "DATA_FLOOR", "DATA_LABEL", "DATA"])
def test_a_variable_of_another_key_of_the_table_is_refused(
    site: Site, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(f"PATE_PARTY_{name}", "7")
    with pytest.raises(SiteError, match=f"PATE_PARTY_{name} "):
        _ = site.data


def test_no_more_data_sets_have_a_name_than_the_coordinator_can_be_told_of(tmp_path: Path) -> None:
    site = make_site(tmp_path / "site")
    known = {f"set-{number}": DataSettings() for number in range(MOST_DATA_SETS)}
    site = site.save(replace(site.settings, data_sets=known))
    before = (site.folder / SETTINGS_FILE).read_bytes()
    with pytest.raises(SiteError):
        site.save(replace(site.settings, data_sets={**known, "one-more": DataSettings()}))
    assert (site.folder / SETTINGS_FILE).read_bytes() == before
