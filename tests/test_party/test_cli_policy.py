"""A hospital's rules at the command line: every one is explained, and set by a person by name."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from party.cli.policy import MEANINGS
from party.site.site import Site
from party.storage import LedgerStore
from party.storage.site_audit_log import SiteAct
from tests.support.hospital_services import audit_of
from tests.support.hospital_site import make_site
from tests.support.markers import sampled
from tests.test_party.test_cli import PateParty, error_code, pate_party

__all__ = ["pate_party"]


@pytest.fixture
def joined(tmp_path: Path) -> Path:
    return make_site(tmp_path / "site").folder


class TestShow:
    def test_every_rule_is_one_line_with_its_meaning(
        self, pate_party: PateParty, joined: Path
    ) -> None:
        lines = pate_party("policy", "show", "--site", joined).out.splitlines()
        found = {line.split()[0]: line for line in lines}
        assert len(found) == len(lines)
        assert set(found) == {*MEANINGS}
        for name, meaning in MEANINGS.items():
            assert meaning
            assert found[name].endswith(f"- {meaning}")

    def test_the_policy_is_shown_with_what_was_set_here(
        self, pate_party: PateParty, joined: Path
    ) -> None:
        site = Site.open(joined)
        site.save(replace(site.settings, policy={"least_parties": 7, "most_epsilon": 2}))
        shown = pate_party("policy", "show", "--site", joined, "--format", "json").json
        assert (shown["policy"]["least_parties"], shown["policy"]["most_epsilon"]) == (7, 2.0)
        assert shown["set_here"] == ["least_parties", "most_epsilon"]
        assert "approved_pools" not in shown["policy"]
        assert "(default)" in pate_party("policy", "show", "--site", joined).out

    @pytest.mark.parametrize(
        "slip",
        [
            pytest.param(b"\n[policy]\nleast_checked_peers = 2\n", id="a section twice"),
            pytest.param(b"least_checked_peers\n", id="no value"),
            pytest.param(b"# \xff\n", id="not UTF-8"),
        ],
    )
    def test_a_slip_in_the_settings_is_named_and_nobody_is_told_to_join_again(
        self, pate_party: PateParty, joined: Path, slip: bytes
    ) -> None:
        site = Site.open(joined)
        site.save(replace(site.settings, policy={"least_parties": 3}))
        path = joined / "party.toml"
        path.write_bytes(path.read_bytes() + slip)
        ended = pate_party("policy", "show", "--site", joined)
        assert (ended.code, error_code(ended)) == (5, "PF-340")
        assert "party.toml" in ended.err
        assert "pate-party join" not in ended.err


class TestSet:
    def test_a_rule_is_set_and_put_on_record_with_who_did(
        self, pate_party: PateParty, joined: Path
    ) -> None:
        ended = pate_party(
            *("policy", "set", "least_checked_peers", "2", "--by", "M. Curie", "--site", joined)
        )
        assert ended.code == 0, ended.err
        site = Site.open(joined)
        assert site.settings.policy_for(frozenset()).least_checked_peers == 2
        last = audit_of(site)[-1]
        assert last.act is SiteAct.SETTINGS_CHANGED
        assert last.facts == {
            "rule": "least_checked_peers",
            "value": "2",
            "by": "M. Curie",
            "from": "command line",
            "before": "4",
            "after": "2",
            "digest": hashlib.sha256(site.path("party.toml").read_bytes()).digest(),
        }

    def test_several_rules_are_set_together_or_not_at_all(
        self, pate_party: PateParty, joined: Path
    ) -> None:
        line = ("policy", "set", "--by", "M. Curie", "--site", joined, "least_sigma2", "2.5")
        before = joined.joinpath("party.toml").read_bytes(), audit_of(Site.open(joined))
        name = "records_per_teacher"
        for more in ([name], [name, "none"], ["least_sigma2", "3"], ["no_rule", "1"]):
            ended = pate_party(*line, *more)
            assert error_code(ended) == "PF-302", ended.err
        assert before == (joined.joinpath("party.toml").read_bytes(), audit_of(Site.open(joined)))
        ended = pate_party(*line, name, "12", "--format", "json")
        assert json.loads(ended.out) == {
            "rules": {"least_sigma2": 2.5, name: 12},
            "by": "M. Curie",
        }
        site = Site.open(joined)
        assert site.settings.records_per_teacher == 12
        assert [one.facts["rule"] for one in audit_of(site)[-2:]] == ["least_sigma2", name]
        digest = hashlib.sha256(site.path("party.toml").read_bytes()).digest()
        assert audit_of(site)[-1].facts["digest"] == digest

    @pytest.mark.parametrize(
        ("name", "text", "value"),
        [
            ("least_sigma2", "2.5", 2.5),
            ("own_body", "University", "University"),
            ("forms", "masked, additive", frozenset({"additive", "masked"})),
            ("forms", "verified", frozenset({"verified"})),
            ("most_queries", "0", 0),
            ("most_epsilon", "2", 2.0),
        ],
    )
    def test_each_kind_of_rule_is_read(
        self, pate_party: PateParty, joined: Path, name: str, text: str, value: object
    ) -> None:
        assert pate_party("policy", "set", name, text, "--site", joined).code == 0
        assert getattr(Site.open(joined).settings.policy_for(frozenset()), name) == value

    @sampled()
    @pytest.mark.parametrize(
        ("name", "text"),
        [
            pytest.param("nothing", "1", id="no rule"),
            pytest.param("simulated", "true", id="not for a file"),
            pytest.param("approved_pools", "00", id="decided elsewhere"),
            pytest.param("party", "South", id="not for the owner"),
            pytest.param("least_parties", "two", id="no number"),
            pytest.param("least_parties", "3.5", id="no whole number"),
            pytest.param("least_parties", "2", id="below what no policy goes below"),
            pytest.param("least_checked_peers", "1", id="fewer than two others"),
            pytest.param("most_forfeited", "1.1", id="more than all"),
            pytest.param("most_epsilon", "nan", id="not a number"),
            pytest.param("most_epsilon", "inf", id="no bound"),
            pytest.param("least_sigma1", "-1", id="negative noise"),
            pytest.param("forms", "plain", id="a sum that hides nothing"),
            pytest.param("mechanisms", "gnmax,gmax", id="a slip in a list"),
            pytest.param("mechanisms", "gnmax,confident", id="a mechanism for simulations"),
            pytest.param("suites", "", id="nothing"),
            pytest.param("approval", "none", id="another approval"),
            pytest.param("operator_body", "a\nb", id="two lines"),
            pytest.param("delta_for_tests", "1e-5", id="all of delta"),
            pytest.param("delta", "2", id="no probability"),
            pytest.param("lifetime_epsilon", "0", id="no budget"),
            pytest.param("node_port", "0", id="no port"),
        ],
    )
    def test_what_cannot_be_meant_changes_nothing(
        self, pate_party: PateParty, joined: Path, name: str, text: str
    ) -> None:
        site = Site.open(joined)
        before = site.path("party.toml").read_bytes(), audit_of(site)
        ended = pate_party("policy", "set", name, "--site", joined, "--", text)
        assert (ended.code, error_code(ended)) == (2, "PF-302")
        assert (site.path("party.toml").read_bytes(), audit_of(site)) == before

    @pytest.mark.parametrize(
        ("name", "first", "later"),
        [
            ("lifetime_epsilon", "3", "9"),
            ("delta_for_tests", "1e-6", "0"),
            ("delta_for_tests", "1e-6", "2e-6"),
        ],
    )
    def test_the_budget_for_life_is_set_before_the_first_start_alone(
        self, pate_party: PateParty, joined: Path, name: str, first: str, later: str
    ) -> None:
        line = ("policy", "set", name, "--site", joined)
        assert pate_party(*line, first).code == 0
        site = Site.open(joined)
        with site.open_database() as database:
            database.become_node()
            LedgerStore(database, budget=site.settings.new_ledger())
        ended = pate_party(*line, later)
        assert (ended.code, error_code(ended)) == (5, "PF-354")
        assert getattr(Site.open(joined).settings, name) == float(first)


def test_the_command_line_is_there_before_anything_that_is_slow_to_load() -> None:
    slow = "{'flwr', 'httpx', 'pydantic', 'scipy.special', 'sklearn', 'sqlalchemy', 'torch'}"
    program = f"import sys, party.cli; print(sorted({slow} & set(sys.modules)))"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert ended.stdout.decode().strip() == "[]"
