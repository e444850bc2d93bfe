"""The hospital's command line in two federations, against two coordinators on loopback."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from party.site.site import IDENTITY_KEY, Site
from party.site.status_file import Status, write_status
from party.storage.site_audit_log import SiteAct
from protocols.fingerprint_words import spoken
from tests.support.command import Ended
from tests.support.hospital_services import audit_of, decide_budget
from tests.support.hospital_site import key_files
from tests.support.markers import sampled
from tests.support.served_federation import ServedFederation, served_federation
from tests.test_party.test_cli import (
    PateParty,
    error_code,
    federation,
    name,
    pate_party,
)

__all__ = ["federation", "name", "pate_party"]

FIRST, SECOND = "lung-study", "lung-study-2"


@pytest.fixture(scope="module")
def anew(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedFederation]:
    """A federation of the same name with another coordinator: one that was made anew."""
    with served_federation(tmp_path_factory.mktemp("anew") / "federation") as served:
        yield served


def join(
    pate_party: PateParty, to: ServedFederation, invite: Path, folder: Path, *more: str
) -> Ended:
    compared = ("--compared", spoken(to.home.fingerprint))
    return pate_party("join", invite, "--site", folder, *compared, *more)


@pytest.fixture
def both(
    federation: ServedFederation,
    anew: ServedFederation,
    pate_party: PateParty,
    tmp_path: Path,
    name: str,
) -> Path:
    """A hospital that asked to join both, and was let in by the first."""
    folder = tmp_path / "site"
    for place, to in enumerate((federation, anew)):
        (tmp_path / str(place)).mkdir()
        invite = to.invite(tmp_path / str(place), name)
        ended = join(pate_party, to, invite, folder)
        assert ended.code == 0, ended.err
    federation.approve(name, Site.open(folder).identity.public.fingerprint)
    return folder


class TestJoin:
    def test_both_know_one_identity(
        self, federation: ServedFederation, anew: ServedFederation, both: Path, name: str
    ) -> None:
        site = Site.open(both)
        for to in (federation, anew):
            (known,) = [one for one in to.enrollment.parties() if one.name == name]
            assert known.identity == site.identity.public
        assert [one.name for one in site.memberships] == [FIRST, SECOND]
        joined = [one for one in audit_of(site) if one.act is SiteAct.JOINED]
        assert [one.facts["membership"] for one in joined] == [FIRST, SECOND]

    def test_a_node_that_runs_has_to_be_restarted(
        self,
        anew: ServedFederation,
        federation: ServedFederation,
        pate_party: PateParty,
        tmp_path: Path,
        name: str,
    ) -> None:
        folder = tmp_path / "site"
        ended = join(pate_party, federation, federation.invite(tmp_path, name), folder)
        assert "restart" not in ended.err
        write_status(folder / "status.json", Status("running", time.time(), 7))
        ended = join(pate_party, anew, anew.invite(tmp_path, name), folder)
        assert ended.code == 0
        assert "restart it" in ended.err

    def test_the_same_coordinator_is_joined_once(
        self, federation: ServedFederation, pate_party: PateParty, tmp_path: Path, both: Path
    ) -> None:
        before = Site.open(both).settings
        ended = join(pate_party, federation, federation.invite(tmp_path, "Other"), both)
        assert (ended.code, error_code(ended)) == (2, "PF-375")
        assert f"leave --federation {FIRST}" in ended.err
        assert Site.open(both).settings == before


class TestNaming:
    @sampled()
    @pytest.mark.parametrize(
        "command",
        [
            pytest.param(("renew",), id="renew"),
            pytest.param(("leave", "--yes"), id="leave"),
            pytest.param(("peers", "list"), id="peers list"),
            pytest.param(
                ("peers", "add", "X", "--compared", "zoo", "--how", "by hand", "--by", "A"),
                id="peers add",
            ),
            pytest.param(("policy", "set", "node_port", "9999"), id="a port"),
            pytest.param(("policy", "set", "operator_body", "South"), id="an operator"),
        ],
    )
    @pytest.mark.parametrize("named", [(), ("--federation", "heart-study")], ids=["none", "other"])
    def test_what_concerns_one_has_to_name_it(
        self, pate_party: PateParty, both: Path, command: tuple[str, ...], named: tuple[str, ...]
    ) -> None:
        ended = pate_party(*command, *named, "--site", both)
        assert (ended.code, error_code(ended)) == (2, "PF-375")
        assert "lung-study (lung study), lung-study-2 (lung study)" in ended.err

    def test_a_rule_of_all_names_none(self, pate_party: PateParty, both: Path) -> None:
        line = ("policy", "set", "records_per_teacher", "12", "--federation", FIRST, "--site", both)
        assert error_code(pate_party(*line)) == "PF-302"
        assert Site.open(both).settings.records_per_teacher == 8

    def test_a_port_is_set_for_one(self, pate_party: PateParty, both: Path) -> None:
        line = ("policy", "set", "node_port")
        ended = pate_party(*line, "9300", "--federation", SECOND, "--site", both)
        assert ended.code == 0
        shown = pate_party("policy", "show", "--site", both, "--format", "json").json
        assert shown["node_port"] == {FIRST: 9094, SECOND: 9300}
        ended = pate_party(*line, "9300", "--federation", FIRST, "--site", both)
        assert (ended.code, error_code(ended)) == (5, "PF-340")

    def test_so_is_the_owner_of_a_coordinator(self, pate_party: PateParty, both: Path) -> None:
        line = ("policy", "set", "operator_body", "South", "--federation", SECOND)
        assert pate_party(*line, "--site", both).code == 0
        shown = pate_party("policy", "show", "--site", both, "--format", "json").json
        assert shown["operator_body"] == {FIRST: "", SECOND: "South"}


class TestStanding:
    def test_status_shows_each(self, pate_party: PateParty, both: Path) -> None:
        shown = pate_party("status", "--site", both, "--format", "json").json
        states = {one["name"]: one["state"] for one in shown["federations"]}
        assert states == {FIRST: "member", SECOND: "requested"}
        out = pate_party("status", "--site", both).out
        assert f"here called {FIRST}" in out
        assert f"here called {SECOND}" in out
        assert f"Trouble         {SECOND}, membership: " in out

    def test_the_doctor_looks_at_each(self, pate_party: PateParty, both: Path) -> None:
        checks = pate_party("doctor", "--site", both, "--format", "json").json["checks"]
        memberships = {
            one["federation"]: one["state"] for one in checks if one["name"] == "membership"
        }
        assert memberships == {FIRST: "ok", SECOND: "warn"}
        assert {one["federation"] for one in checks if one["name"] == "data"} == {""}
        assert f"{SECOND}: " in pate_party("doctor", "--site", both).out

    def test_renew_and_peers_ask_the_one_that_is_named(
        self, pate_party: PateParty, both: Path
    ) -> None:
        for asked, state, code in ((FIRST, "member", 0), (SECOND, "requested", 1)):
            line = ("--federation", asked, "--site", both, "--format", "json")
            ended = pate_party("renew", *line)
            assert (ended.code, ended.json["state"]) == (code, state)
            assert pate_party("peers", "list", *line).json["asked"]

    def test_the_log_is_held_to_what_each_coordinator_has(
        self, pate_party: PateParty, both: Path
    ) -> None:
        shown = pate_party("audit", "verify", "--site", both, "--format", "json").json
        assert shown["witnessed"] == {FIRST: None, SECOND: None}


class TestLeaving:
    def test_one_is_left_and_then_the_last(self, pate_party: PateParty, both: Path) -> None:
        ended = pate_party("leave", "--federation", FIRST, "--site", both, typed="y\n")
        assert ended.code == 0
        assert "last" not in ended.err
        assert (both / IDENTITY_KEY).exists()
        shown = pate_party("status", "--site", both, "--format", "json").json
        reasons = {one["name"]: one["reason"] for one in shown["federations"]}
        assert (reasons[FIRST].partition(":")[0], reasons[SECOND]) == ("left", "")
        checks = pate_party("doctor", "--site", both, "--format", "json").json["checks"]
        [said] = [one for one in checks if one["federation"] == FIRST]
        assert (said["name"], said["state"]) == ("membership", "ok")
        # There is but one left: nobody has to name it.
        ended = pate_party("leave", "--site", both, typed="y\n")
        assert ended.code == 0
        assert "last" in ended.err
        assert not any(path.exists() for path in key_files(Site.open(both)))
        kinds = [one.act for one in audit_of(Site.open(both))]
        assert kinds == [SiteAct.JOINED] * 2 + [SiteAct.LEFT] * 2

    def test_an_identity_that_left_is_not_taken_back(
        self, federation: ServedFederation, pate_party: PateParty, both: Path, name: str
    ) -> None:
        assert pate_party("leave", "--federation", FIRST, "--site", both, "--yes").code == 0
        federation.enrollment.revoke(name)
        invite = federation.invite(both.parent, name)
        ended = join(pate_party, federation, invite, both)
        assert (ended.code, error_code(ended)) == (4, "PF-341")
        site = Site.open(both)
        assert [one.name for one in site.current] == [SECOND]
        assert site.has_keys

    def test_who_left_all_comes_back_in_the_same_site(
        self,
        federation: ServedFederation,
        pate_party: PateParty,
        both: Path,
        name: str,
    ) -> None:
        for federation_name in (FIRST, SECOND):
            line = ("leave", "--federation", federation_name, "--site", both, "--yes")
            assert pate_party(*line).code == 0
        federation.enrollment.revoke(name)
        records = len(audit_of(Site.open(both)))
        invite = federation.invite(both.parent, name)
        assert join(pate_party, federation, invite, both).code == 0
        assert len(audit_of(Site.open(both))) == records + 1
        assert [one.name for one in Site.open(both).current] == [FIRST]


class TestStart:
    def checks(self, *failing: tuple[str, str]) -> object:
        from party.doctor import Check  # noqa: PLC0415

        found = [Check(name, "fail", "It fails.", "Mend it.", of) for name, of in failing]
        return lambda site, around: iter(found)

    @sampled()
    @pytest.mark.parametrize(
        ("failing", "served"),
        [
            pytest.param([("connection", FIRST)], [FIRST, SECOND], id="a coordinator is away"),
            pytest.param([("port", FIRST)], [SECOND], id="a port is taken"),
            pytest.param([("data", "")], None, id="the table is gone"),
            pytest.param([("tls", FIRST), ("CA", SECOND)], None, id="both fail"),
        ],
    )
    def test_one_federation_that_fails_keeps_no_other_waiting(
        self,
        pate_party: PateParty,
        both: Path,
        failing: list[tuple[str, str]],
        served: list[str] | None,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        seen: list[list[str]] = []

        def serve(service: object, site: Site, *, stopped: object, memberships: object) -> None:
            seen.append([one.name for one in memberships])  # type: ignore[attr-defined]
            service.close()  # type: ignore[attr-defined]

        monkeypatch.setattr("party.doctor.examine", self.checks(*failing))
        monkeypatch.setattr("party.flower.serving.serve", serve)
        monkeypatch.setattr("signal.signal", lambda *_: None)
        monkeypatch.setattr("os.umask", lambda _: 0)
        monkeypatch.setattr("party.cli.node._quieten", lambda _: None)
        decide_budget(Site.open(both))
        ended = pate_party("start", "--site", both)
        if served is None:
            assert (ended.code, error_code(ended), seen) == (4, "PF-374", [])
        else:
            assert (ended.code, seen) == (0, [served])


def test_a_membership_by_hand_that_cannot_be_is_one_line(pate_party: PateParty, both: Path) -> None:
    site = Site.open(both)
    path = site.path("party.toml")
    path.write_text(
        path.read_text("utf-8").replace(f"[memberships.{SECOND}]", '[memberships."../x"]'),
        encoding="utf-8",
    )
    ended = pate_party("status", "--site", both)
    assert (ended.code, error_code(ended)) == (5, "PF-340")
    assert "'../x'" in ended.err
    site.save(replace(site.settings))
    assert pate_party("status", "--site", both).code == 0
