"""A hospital's `party.toml`: what its owner mistyped is named, with the key and what came."""

from __future__ import annotations

import re
import tomllib
from dataclasses import fields, replace
from pathlib import Path

import pytest
import tomli_w

from party.errors import SiteError
from party.site.folder import SETTINGS_FILE, DataSettings, Site, SiteSettings
from party.site.policy import Rules
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


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return make_site(tmp_path / "site")


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
    ("keys", "value", "named", "got"),
    [
        pytest.param(
            (*LUNG, "node_port"),
            "9094",
            "[memberships.lung-study] node_port",
            "'9094'",
            id="port as text",
        ),
        pytest.param(
            (*LUNG, "node_port"),
            0,
            "[memberships.lung-study] node_port",
            "0",
            id="no port",
        ),
        pytest.param(
            (*LUNG, "coordinator_key"),
            "00ff",
            "[memberships.lung-study] coordinator_key",
            "another text",
            id="half a key",
        ),
        pytest.param(
            (*LUNG, "address"),
            "coordinator.example.org",
            "[memberships.lung-study] address",
            "'coordinator.example.org'",
            id="no port of the coordinator",
        ),
        pytest.param(
            (*LUNG, "address"),
            "coordinator..example.org:8443",
            "[memberships.lung-study] address",
            "'coordinator..example.org:8443'",
            id="a host that no machine can have",
        ),
        pytest.param(
            (*LUNG, "colour"),
            "red",
            "[memberships.lung-study] every key",
            "colour",
            id="a key of a membership that nobody knows",
        ),
        pytest.param(
            ("memberships", "heart"),
            {"federation": "heart study"},
            "[memberships.heart] party",
            "none",
            id="half a membership",
        ),
        pytest.param(
            ("memberships", "heart"),
            "heart study",
            "[memberships.heart]",
            "'heart study'",
            id="a membership that is a text",
        ),
        pytest.param(("memberships",), [], "[memberships]", "[]", id="a list"),
        pytest.param(
            ("memberships", "../elsewhere"),
            ENTRY,
            "every name in [memberships]",
            "'../elsewhere'",
            id="a name that leads elsewhere",
        ),
        pytest.param(
            ("memberships", "heart"),
            ENTRY,
            "node_port",
            "9094 twice",
            id="one port for two",
        ),
        pytest.param(("teachers",), 2.5, "teachers", "2.5", id="half a teacher"),
        pytest.param(("teachers",), 0, "teachers", "0", id="no teacher"),
        pytest.param(
            ("lifetime_epsilon",),
            "5",
            "lifetime_epsilon",
            "'5'",
            id="budget as text",
        ),
        pytest.param(
            ("lifetime_epsilon",),
            float("inf"),
            "lifetime_epsilon",
            "inf",
            id="no budget",
        ),
        pytest.param(("lifetime_epsilon",), -1, "lifetime_epsilon", "-1", id="below 0"),
        pytest.param(("delta",), 1, "delta", "1", id="delta of 1"),
        pytest.param(("approval",), "never", "approval", "'never'", id="word"),
        pytest.param(("data", "rows"), "40", "[data] rows", "'40'", id="data"),
        pytest.param(("data", "floor"), -1, "[data] floor", "-1", id="floor below 0"),
        pytest.param(("policy",), ["x"], "[policy]", "['x']", id="policy as list"),
        pytest.param(
            ("policy", "least_parties"),
            "3",
            "[policy] least_parties",
            "'3'",
            id="rule",
        ),
        pytest.param(
            ("policy", "most_epsilon"),
            float("nan"),
            "[policy] most_epsilon",
            "nan",
            id="a rule that no charge breaks",
        ),
        pytest.param(
            ("policy", "forms"),
            "masked",
            "[policy] forms",
            "'masked'",
            id="letters for a list",
        ),
        pytest.param(
            ("policy", "noise_places"),
            ["nowhere"],
            "[policy] noise_places[0]",
            "'nowhere'",
            id="another place",
        ),
        pytest.param(
            ("policy", "simulated"),
            True,
            "[policy] every key",
            "simulated",
            id="a rule that is not for a file",
        ),
    ],
)
def test_a_setting_that_cannot_be_is_named_with_its_key(
    site: Site, keys: tuple[str, ...], value: object, named: str, got: str
) -> None:
    rewrite(site, *keys, value=value)
    with pytest.raises(SiteError) as caught:
        Site.open(site.folder)
    error = caught.value
    assert (error.code, error.got) == ("PF-340", got)
    assert error.must.startswith(f"party.toml: {named} ")


def test_whole_numbers_and_lists_are_what_the_policy_takes(site: Site) -> None:
    rewrite(site, "policy", value={"most_epsilon": 3, "forms": ["masked"], "most_near_queries": 2})
    policy = Site.open(site.folder).settings.policy_for(frozenset())
    assert (policy.most_epsilon, policy.forms) == (3.0, frozenset({"masked"}))
    assert policy.most_near_queries == 2


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
    keys.remove("data")  # too close to the one variable: refused
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
    saved = site.save(replace(site.settings, teachers=4))
    assert Site.open(saved.folder).settings.data.file == "a.csv"


@pytest.mark.parametrize("name", ["DATA_DIGEST", "DATA_ROWS", "DATA_FLOOR", "DATA_LABEL", "DATA"])
def test_a_variable_of_another_key_of_the_table_is_refused(
    site: Site, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(f"PATE_PARTY_{name}", "7")
    with pytest.raises(SiteError, match=f"PATE_PARTY_{name} "):
        _ = site.data
