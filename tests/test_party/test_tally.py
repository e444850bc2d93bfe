"""A federation's tally at a hospital: its people compare it, nobody changes it silently."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from coordinator.federation.home import FederationHome
from party.errors import SiteError
from party.site.membership import MembershipSettings
from party.site.peers import FEDERATION, OWN
from party.site.peers import TALLY as FOR_TALLY
from party.site.policy import Aggregators
from party.site.site import Site
from party.site.tally_standing import TallyStanding
from party.storage.site_audit_log import SiteAct
from protocols.errors import InvitationError, MalformedMessageError
from protocols.fingerprint_words import spoken
from protocols.identity import SigningIdentity
from protocols.invitation import Invitation
from protocols.membership_messages import NamedTally
from tests.support.hospital_services import audit_of
from tests.support.hospital_site import invitation_of, membership_of
from tests.support.served_federation import ServedFederation, served_federation
from tests.test_party.test_cli import Newcomer, PateParty, error_code, name, pate_party, the_only

__all__ = ["name", "pate_party"]

OPERATOR, OWNER = "South university", "North university"


def named(called: str = "Notary") -> NamedTally:
    return NamedTally(called, SigningIdentity.generate().public)


TALLY, OTHER = named(), named()
WORDS = spoken(TALLY.identity.fingerprint)


class Served:
    """A federation whose tally a test says."""

    def __init__(self, federation: ServedFederation, patch: pytest.MonkeyPatch) -> None:
        self.federation, self._patch = federation, patch

    def has(self, tally: NamedTally | None) -> None:
        self._patch.setattr(FederationHome, "tally", property(lambda _: tally))


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedFederation]:
    with served_federation(tmp_path_factory.mktemp("coordinator") / "federation") as served:
        yield served


@pytest.fixture
def newcomer(
    federation: ServedFederation, pate_party: PateParty, tmp_path: Path, name: str
) -> Newcomer:
    return Newcomer(federation, pate_party, tmp_path, name)


@pytest.fixture
def served(federation: ServedFederation, monkeypatch: pytest.MonkeyPatch) -> Served:
    found = Served(federation, monkeypatch)
    found.has(TALLY)
    return found


def joined(one: Newcomer, *more: str, **typed: Any) -> Any:
    return one.run("join", one.invitation(), "--site", one.site, *one.compared, *more, **typed)


@pytest.fixture
def member(served: Served, newcomer: Newcomer) -> Newcomer:
    """A hospital that joined before there was a tally."""
    served.has(None)
    assert joined(newcomer).code == 0
    fingerprint = Site.open(newcomer.site).identity.public.fingerprint
    served.federation.approve(newcomer.name, fingerprint)
    served.has(TALLY)
    return newcomer


def settings_of(one: Newcomer) -> MembershipSettings:
    return Site.open(one.site).membership().settings


def pin(one: Newcomer, *more: str, words: str = WORDS, body: str = OWNER, **typed: Any) -> Any:
    line = ("tally", "--compared", words, "--body", body, "--by", "M. Curie")
    return one.run(*line, "--site", one.site, *more, **typed)


def check(one: Newcomer) -> dict[str, str]:
    ended = one.run("doctor", "--site", one.site, "--format", "json")
    [found] = [each for each in ended.json["checks"] if each["name"] == "tally"]
    return dict(found)


class TestInvitation:
    def test_it_carries_the_tally(self) -> None:
        made = invitation_of(SigningIdentity.generate().public, tally=TALLY)
        assert Invitation.from_json(made.to_json()).tally == TALLY

    def test_it_may_have_none(self) -> None:
        made = invitation_of(SigningIdentity.generate().public)
        assert Invitation.from_json(made.to_json()).tally is None

    @pytest.mark.parametrize(
        "change",
        [
            pytest.param({"tally_key": ""}, id="a name alone"),
            pytest.param({"tally_name": ""}, id="a key alone"),
            pytest.param({"tally_name": "No\u202etary"}, id="a mark that turns text"),
            pytest.param({"tally_name": 7}, id="a number as a name"),
            pytest.param({"tally_key": "ab"}, id="a short key"),
            pytest.param({"tally_key": None}, id="no key"),
        ],
    )
    def test_a_spoiled_one_is_refused(self, change: dict[str, object]) -> None:
        made = json.loads(invitation_of(SigningIdentity.generate().public, tally=TALLY).to_json())
        with pytest.raises(InvitationError):
            Invitation.from_json(json.dumps({**made, **change}))

    def test_the_coordinator_is_no_tally(self) -> None:
        coordinator = SigningIdentity.generate().public
        made = invitation_of(coordinator, tally=NamedTally("Notary", coordinator))
        with pytest.raises(InvitationError):
            Invitation.from_json(made.to_json())


class TestAnswer:
    @pytest.mark.parametrize(
        "fields", [("Notary", b""), ("", bytes(32)), ("Notary", bytes(31)), ("Notary", bytes(33))]
    )
    def test_half_a_tally_is_refused(self, fields: tuple[str, bytes]) -> None:
        with pytest.raises(MalformedMessageError):
            _ = membership_of(bytes(32), tally_name=fields[0], tally_key=fields[1]).tally

    def test_the_coordinator_is_no_tally(self, served: Served, member: Newcomer) -> None:
        served.has(NamedTally("Notary", served.federation.home.identity.public))
        ended = member.run("tally", "--site", member.site)
        assert (ended.code, error_code(ended)) == (4, "PF-341")


class TestJoin:
    def test_compared_words_pin_it(self, served: Served, newcomer: Newcomer) -> None:
        ended = joined(newcomer, "--compared-tally", WORDS, "--tally-body", OWNER)
        assert ended.code == 0, ended.err
        assert settings_of(newcomer).tally == TALLY
        assert settings_of(newcomer).tally_body == OWNER

    def test_a_person_compares_it_with_its_own_people(
        self, served: Served, newcomer: Newcomer
    ) -> None:
        ended = joined(newcomer, typed=f"\nyes\n\n{OWNER}\n", at_terminal=True)
        assert ended.code == 0, ended.err
        assert (settings_of(newcomer).tally, settings_of(newcomer).tally_body) == (TALLY, OWNER)
        assert WORDS in ended.err

    @pytest.mark.parametrize(
        "typed", [{}, {"typed": "yes\n" * 9}, {"typed": "\nlater\n", "at_terminal": True}]
    )
    def test_it_may_wait(self, served: Served, newcomer: Newcomer, typed: dict[str, Any]) -> None:
        assert joined(newcomer, **typed).code == 0
        assert settings_of(newcomer).tally is None

    @pytest.mark.parametrize(
        ("more", "typed", "code"),
        [
            pytest.param(
                ("--compared-tally", "zoo " * 12, "--tally-body", OWNER),
                {},
                "PF-342",
                id="other words",
            ),
            pytest.param(("--compared-tally", WORDS), {}, "PF-302", id="no owner"),
            pytest.param(
                ("--compared-tally", WORDS, "--tally-body", "a\nb"), {}, "PF-302", id="two lines"
            ),
            pytest.param(("--tally-body", OWNER), {}, "PF-302", id="no words"),
            pytest.param((), {"typed": "\nno\n", "at_terminal": True}, "PF-342", id="no"),
            pytest.param(("--operator-body", " "), {}, "PF-302", id="a blank operator"),
        ],
    )
    def test_what_differs_makes_nothing(
        self,
        served: Served,
        newcomer: Newcomer,
        more: tuple[str, ...],
        typed: dict[str, Any],
        code: str,
    ) -> None:
        assert f": {code}: " in joined(newcomer, *more, **typed).err
        assert not newcomer.site.exists()

    def test_the_tallys_words_are_no_words_of_the_federation(
        self, served: Served, newcomer: Newcomer
    ) -> None:
        invite = newcomer.invitation()
        ended = newcomer.run("join", invite, "--site", newcomer.site, "--compared", WORDS)
        assert error_code(ended) == "PF-342"
        assert FOR_TALLY in ended.err

    @pytest.mark.parametrize("is_member", [False, True], ids=["a newcomer", "a second join"])
    def test_an_invitation_that_names_no_tally_takes_none(
        self, served: Served, newcomer: Newcomer, is_member: bool
    ) -> None:
        served.has(None)
        invite = newcomer.invitation()
        served.has(TALLY)
        line = ("join", invite, "--site", newcomer.site, *newcomer.compared)
        if is_member:
            assert newcomer.run(*line).code == 0
        ended = newcomer.run(*line, "--compared-tally", WORDS, "--tally-body", OWNER)
        assert error_code(ended) == "PF-302"
        assert "pate-party tally" in ended.err
        assert newcomer.site.exists() is is_member

    def test_a_second_join_with_the_words_pins_it(self, served: Served, newcomer: Newcomer) -> None:
        line = ("join", newcomer.invitation(), "--site", newcomer.site, *newcomer.compared)
        assert newcomer.run(*line).code == 0
        assert settings_of(newcomer).tally is None
        ended = newcomer.run(*line, "--compared-tally", WORDS, "--tally-body", OWNER)
        assert ended.code == 0, ended.err
        assert settings_of(newcomer).tally == TALLY

    def test_without_a_tally_nothing_is_asked(self, served: Served, newcomer: Newcomer) -> None:
        served.has(None)
        assert joined(newcomer, "--operator-body", OPERATOR, at_terminal=True).code == 0
        assert settings_of(newcomer).tally is None

    @pytest.mark.parametrize(
        ("more", "typed", "known"),
        [
            pytest.param(("--operator-body", OPERATOR), {}, OPERATOR, id="an option"),
            pytest.param(
                (), {"typed": f"{OPERATOR}\n", "at_terminal": True}, OPERATOR, id="a person"
            ),
            pytest.param((), {"typed": "\n", "at_terminal": True}, "", id="nobody said"),
            pytest.param((), {"typed": f"{OPERATOR}\n"}, "", id="no terminal"),
        ],
    )
    def test_people_say_who_owns_the_coordinator(
        self,
        served: Served,
        newcomer: Newcomer,
        more: tuple[str, ...],
        typed: dict[str, Any],
        known: str,
    ) -> None:
        served.has(None)
        assert joined(newcomer, *more, **typed).code == 0
        assert settings_of(newcomer).operator_body == known
        rules = [each.facts.get("rule") for each in audit_of(Site.open(newcomer.site))]
        assert ("operator_body" in rules) is bool(known)

    def test_both_owners_are_kept(self, served: Served, newcomer: Newcomer) -> None:
        more = ("--operator-body", OPERATOR, "--compared-tally", WORDS, "--tally-body", OWNER)
        assert joined(newcomer, *more).code == 0
        found = settings_of(newcomer).aggregators
        assert found == Aggregators(OPERATOR, TALLY.identity, OWNER)


class TestPin:
    def test_who_joined_before_pins_it(self, member: Newcomer) -> None:
        ended = pin(member)
        assert ended.code == 0, ended.err
        assert settings_of(member).tally == TALLY

    def test_it_is_on_record(self, member: Newcomer) -> None:
        pin(member)
        last = audit_of(Site.open(member.site))[-1]
        assert last.act is SiteAct.SETTINGS_CHANGED
        assert (last.facts["rule"], last.facts["by"]) == ("tally", "M. Curie")
        assert TALLY.identity.fingerprint.hex() in str(last.facts["after"])

    def test_a_person_at_a_terminal_pins_it(self, member: Newcomer) -> None:
        line = ("tally", "--site", member.site)
        ended = member.run(*line, typed=f"yes\n{OWNER}\n", at_terminal=True)
        assert ended.code == 0, ended.err
        assert settings_of(member).tally == TALLY
        assert member.run(*line).code == 0  # nothing is left to compare

    @pytest.mark.parametrize(
        ("change", "code"),
        [
            pytest.param({"words": "zoo " * 12}, "PF-342", id="other words"),
            pytest.param(
                {"words": spoken(OTHER.identity.fingerprint)}, "PF-342", id="another tally's words"
            ),
            pytest.param({"body": " "}, "PF-302", id="no owner"),
        ],
    )
    def test_what_differs_pins_nothing(
        self, member: Newcomer, change: dict[str, str], code: str
    ) -> None:
        assert error_code(pin(member, **change)) == code
        assert settings_of(member).tally is None

    @pytest.mark.parametrize(
        ("typed", "code"),
        [
            ({}, "PF-348"),
            ({"typed": "yes\n" * 9}, "PF-348"),
            ({"typed": "later\n", "at_terminal": True}, "PF-348"),
            ({"typed": "no\n", "at_terminal": True}, "PF-342"),
        ],
    )
    def test_without_a_comparison_nothing_is_pinned(
        self, member: Newcomer, typed: dict[str, Any], code: str
    ) -> None:
        assert f": {code}: " in member.run("tally", "--site", member.site, **typed).err
        assert settings_of(member).tally is None

    def test_there_may_be_none_to_pin(self, served: Served, member: Newcomer) -> None:
        served.has(None)
        assert error_code(pin(member)) == "PF-343"

    @pytest.mark.parametrize("more", [("--compared", WORDS), ("--body", OWNER)])
    def test_words_and_owner_come_together(self, member: Newcomer, more: tuple[str, str]) -> None:
        ended = member.run("tally", *more, "--site", member.site, typed="yes\n", at_terminal=True)
        assert ended.code == 2
        assert "PF-302" in ended.err
        assert settings_of(member).tally is None

    def test_the_owner_of_a_pinned_one_is_mended_without_its_words(self, member: Newcomer) -> None:
        pin(member, body="Sout university")
        ended = member.run("tally", "--body", OWNER, "--site", member.site)
        assert ended.code == 0, ended.err
        assert (settings_of(member).tally, settings_of(member).tally_body) == (TALLY, OWNER)

    def test_other_words_of_the_federation_are_named(self, member: Newcomer) -> None:
        own = spoken(Site.open(member.site).identity.public.fingerprint)
        for words, whose in ((member.compared[1], FEDERATION), (own, OWN)):
            ended = pin(member, words=words)
            assert error_code(ended) == "PF-342"
            assert whose in ended.err
            assert FOR_TALLY in ended.err


class TestAnotherKey:
    @pytest.fixture
    def pinned(self, served: Served, member: Newcomer) -> Newcomer:
        assert pin(member).code == 0
        served.has(OTHER)
        return member

    def test_it_is_never_taken_silently(self, pinned: Newcomer) -> None:
        for line in (("status",), ("renew",), ("tally",), ("doctor",), ("peers", "list")):
            pinned.run(*line, "--site", pinned.site, typed="yes\n" * 9)
        assert settings_of(pinned).tally == TALLY

    def test_all_say_so(self, pinned: Newcomer) -> None:
        said = the_only(pinned.run, pinned.site)["tally"]
        assert "ANOTHER KEY" in said
        renewed = pinned.run("renew", "--site", pinned.site, "--format", "json").json
        assert renewed["tally"] == said
        assert check(pinned)["state"] == "warn"

    def test_its_words_are_compared_anew(self, pinned: Newcomer) -> None:
        assert error_code(pin(pinned)) == "PF-342"
        assert settings_of(pinned).tally == TALLY
        assert pin(pinned, words=spoken(OTHER.identity.fingerprint)).code == 0
        assert settings_of(pinned).tally == OTHER
        before = str(audit_of(Site.open(pinned.site))[-1].facts["before"])
        assert TALLY.identity.fingerprint.hex() in before

    def test_another_name_of_the_same_key_waits_for_nobody(
        self, served: Served, pinned: Newcomer
    ) -> None:
        served.has(replace(TALLY, name="Registry"))
        assert check(pinned)["said"].count("Notary")

    def test_a_tally_that_went_away_stays_pinned(self, served: Served, pinned: Newcomer) -> None:
        served.has(None)
        assert settings_of(pinned).tally == TALLY
        assert "ANOTHER KEY" not in the_only(pinned.run, pinned.site)["tally"]


class TestDoctor:
    @pytest.mark.parametrize("operator", [OPERATOR, OWNER])
    def test_with_a_tally_peers_need_not_be_checked(self, member: Newcomer, operator: str) -> None:
        member.run("policy", "set", "operator_body", operator, "--site", member.site)
        pin(member)
        ended = member.run("doctor", "--site", member.site, "--format", "json")
        [found] = [each for each in ended.json["checks"] if each["name"] == "peers"]
        assert found["state"] == ("ok" if operator == OPERATOR else "warn")

    def test_one_that_waits_is_a_warning(self, member: Newcomer) -> None:
        found = check(member)
        assert found["state"] == "warn"
        assert "PF-329" in found["advice"]

    def test_no_tally_is_well(self, served: Served, member: Newcomer) -> None:
        served.has(None)
        assert check(member)["state"] == "ok"

    @pytest.mark.parametrize(
        ("operator", "state"),
        [
            pytest.param("South university", "ok", id="two owners"),
            pytest.param("", "warn", id="nobody said who runs the coordinator"),
            pytest.param("north  University", "warn", id="one owner"),
        ],
    )
    def test_two_owners_are_needed(self, member: Newcomer, operator: str, state: str) -> None:
        if operator:
            member.run("policy", "set", "operator_body", operator, "--site", member.site)
        pin(member)
        assert check(member)["state"] == state


class TestSettings:
    FIELDS: dict[str, Any] = {  # noqa: RUF012
        "federation": "lung study",
        "party": "North",
        "address": "127.0.0.1:1",
        "coordinator_key": "00" * 32,
        "tally_name": "Notary",
        "tally_key": TALLY.identity.key.hex(),
        "tally_body": OWNER,
    }

    @pytest.mark.parametrize(
        "change",
        [
            {"tally_name": ""},
            {"tally_key": ""},
            {"tally_key": "zz"},
            {"tally_body": " "},
            {"tally_name": "", "tally_key": ""},
        ],
    )
    def test_half_a_pin_is_refused(self, change: dict[str, str]) -> None:
        MembershipSettings(**self.FIELDS)
        with pytest.raises(SiteError):
            MembershipSettings(**{**self.FIELDS, **change})

    def test_without_an_answer_the_pin_is_all(self) -> None:
        standing = TallyStanding.of(MembershipSettings(**self.FIELDS), None)
        assert (standing.pinned, standing.named, standing.waiting) == (TALLY, None, None)


class TestSetup:
    def answered(self, one: Newcomer, **answers: object) -> Any:
        path = one.folder / "answers.toml"
        path.write_text(tomli_w.dumps({"schema_version": 1, "by": "M. Curie", **answers}), "utf-8")
        return one.run("setup", "--answers", path, "--site", one.site)

    def test_it_is_a_step_of_a_member(self, member: Newcomer) -> None:
        assert "pate-party tally" in self.answered(member).err
        assert settings_of(member).tally is None
        self.answered(member, compared_tally=WORDS, tally_body=OWNER)
        assert settings_of(member).tally == TALLY

    def test_a_newcomer_pins_it_on_the_first_day(self, served: Served, newcomer: Newcomer) -> None:
        self.answered(
            newcomer,
            invitation=str(newcomer.invitation()),
            compared=newcomer.compared[1],
            operator_body=OPERATOR,
            compared_tally=WORDS,
            tally_body=OWNER,
        )
        found = settings_of(newcomer).aggregators
        assert found == Aggregators(OPERATOR, TALLY.identity, OWNER)
