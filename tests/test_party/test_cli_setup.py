"""A hospital's first day in one command: at a terminal, from answers, stopped, taken up again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import tomli_w

from party.site.site import Site
from party.storage.site_audit_log import SiteAct
from protocols.fingerprint_words import spoken
from tests.support.command import Ended
from tests.support.hospital_services import audit_of, records_of
from tests.support.hospital_site import LABEL, PATIENT, write_own_table
from tests.support.markers import sampled
from tests.support.served_federation import ServedFederation, served_federation
from tests.test_party.test_cli import PateParty, error_code, pate_party

__all__ = ["pate_party"]

BY = "M. Curie"
RULES = "\n\n\n\n2\nCity group\n\n"
"""What a person types to six rules and who votes: Enter for the value that is shown."""


def typed(answers: list[str]) -> str:
    return "".join(f"{answer}\n" for answer in answers)


@dataclass
class FirstDay:
    """A hospital before its first command."""

    federation: ServedFederation
    run: PateParty
    folder: Path

    @property
    def site(self) -> Path:
        return self.folder / "site"

    @property
    def words(self) -> str:
        return spoken(self.federation.home.fingerprint)

    def setup(self, *arguments: object, typed: str = "", at_terminal: bool = True) -> Ended:
        line = ("setup", *arguments, "--site", self.site)
        return self.run(*line, typed=typed, at_terminal=at_terminal)

    def answered(self, **answers: object) -> Ended:
        """Call it as a program does: no terminal, a file of answers."""
        path = self.folder / "answers.toml"
        path.write_text(tomli_w.dumps({"schema_version": 1, "by": BY, **answers}), "utf-8")
        return self.setup("--answers", path, at_terminal=False)

    def invite(self, name: str = "North") -> Path:
        return self.federation.invite(self.folder, name)

    def approve(self) -> None:
        self.federation.approve("North", Site.open(self.site).identity.public.fingerprint)

    def peer(self, name: str) -> str:
        """Bring another hospital in; return its words."""
        site = self.folder / name
        invite = self.federation.invite(self.folder, name)
        assert self.run("join", invite, "--site", site, "--compared", self.words).code == 0
        identity = Site.open(site).identity.public
        self.federation.approve(name, identity.fingerprint)
        return spoken(identity.fingerprint)

    def pinned(self) -> dict[str, tuple[str, str]]:
        with records_of(Site.open(self.site)) as records:
            return {pin.name: (pin.how, pin.by) for pin in records.pins()}


@pytest.fixture
def day(pate_party: PateParty, tmp_path: Path) -> Iterator[FirstDay]:
    with served_federation(tmp_path / "federation") as federation:
        yield FirstDay(federation, pate_party, tmp_path)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return write_own_table(tmp_path / "own.csv")


class TestAtATerminal:
    def test_a_sitting_goes_as_far_as_it_can_and_the_next_asks_for_the_rest_alone(
        self, day: FirstDay, table: Path
    ) -> None:
        answers = f"{BY}\ny\nCity group\n{table}\n{LABEL}\n{PATIENT}\n{RULES}later\n"
        ended = day.setup(day.invite(), typed=answers)
        assert ended.code == 1, ended.err
        site = Site.open(day.site)
        own = spoken(site.identity.public.fingerprint)
        assert day.words in ended.err
        assert own in ended.out
        assert "age, sex" in ended.err
        assert (site.settings.data.label, site.settings.data.rows) == (LABEL, 80)
        assert site.settings.policy["least_checked_peers"] == 2
        assert site.settings.teachers == 5
        assert "5 teachers" in ended.out
        assert "WARN  membership" in ended.out  # the doctor, at the end
        assert f"pate-party start --site {day.site}" in ended.err
        rules = [
            record.facts["rule"]
            for record in audit_of(site)
            if record.act is SiteAct.SETTINGS_CHANGED and record.facts["by"] == BY
        ]
        assert rules == [
            *("lifetime_epsilon", "delta", "delta_for_tests", "most_epsilon"),
            *("least_checked_peers", "own_body", "teacher_model"),
        ]
        assert site.membership().settings.operator_body == "City group"
        assert site.settings.teacher_model == "auto"
        assert site.settings.policy_for(frozenset()).own_body == "City group"

        day.approve()
        words = {name: day.peer(name) for name in ("East", "South")}
        ended = day.setup("--by", BY, typed="yes\ntelephone\n\nyes\n\n\n")
        for one in words.values():
            assert one in ended.err
        assert day.pinned() == {"East": ("telephone", BY), "South": ("telephone", BY)}
        assert "Left " not in ended.err
        assert "Your table" not in ended.err

        ended = day.setup("--by", BY, typed="")
        assert "Stopped" not in ended.err
        assert "?" not in ended.err

    @sampled("answered", cases=3)
    @pytest.mark.parametrize("answered", range(2, 13))
    def test_it_can_be_stopped_at_every_question(
        self, day: FirstDay, table: Path, answered: int
    ) -> None:
        answers = ["y", "", str(table), LABEL, PATIENT, "3", "", "", "", "2", "", ""]
        ended = day.setup(day.invite(), "--by", BY, typed=typed(answers[:answered]))
        assert ended.code == 1
        assert "Stopped." in ended.err
        # A table is asked for as a whole.
        rest = answers[2:] if answered < 5 else answers[answered:]
        ended = day.setup("--by", BY, typed=typed([*rest, "later"]))
        assert "Stopped" not in ended.err
        settings = Site.open(day.site).settings
        assert (settings.data.label, settings.lifetime_epsilon, settings.teachers) == (LABEL, 3, 5)
        assert settings.policy["least_checked_peers"] == 2

    def test_a_wrong_answer_is_said_and_asked_again(self, day: FirstDay, table: Path) -> None:
        missing = day.folder / "none.csv"
        answers = (
            f"{BY}\ny\n\n{missing}\n{table}\nill\n-\n{table}\n{LABEL}\n{PATIENT}\n"
            "much\n5\n\n1\n0.000001\n\n2\n\nneighbours\nneighbors\nlater\n"
        )
        ended = day.setup(day.invite(), typed=answers)
        assert ended.code == 1, ended.err
        for code in ("PF-112", "PF-302", "delta_for_tests"):
            assert code in ended.err
        settings = Site.open(day.site).settings
        assert (settings.data.patient_id, settings.delta_for_tests) == (PATIENT, 1e-6)
        assert settings.do_records_vote

    def test_a_no_joins_nothing(self, day: FirstDay) -> None:
        ended = day.setup(day.invite(), typed=f"{BY}\nn\n")
        assert ended.code == 3
        assert "PF-348" in ended.err
        assert not day.site.exists()

    def test_other_words_pin_nobody_and_are_left_to_do(self, day: FirstDay, table: Path) -> None:
        answered = {"data": {"file": str(table), "label": LABEL}, "compared": day.words}
        day.answered(invitation=str(day.invite()), **answered)
        day.approve()
        day.peer("South")
        ended = day.setup("--by", BY, typed=f"{RULES}no\n")
        assert ended.code == 1
        assert "South" in ended.err
        assert day.pinned() == {}


class TestFromAnswers:
    def test_all_is_done_and_a_second_call_changes_nothing(
        self, day: FirstDay, table: Path
    ) -> None:
        invite = str(day.invite())
        first = {
            "invitation": invite,
            "compared": day.words,
            "data": {"file": str(table), "label": LABEL, "patient_id": PATIENT},
            "policy": {
                **{"lifetime_epsilon": 4, "delta": 1e-5, "delta_for_tests": 1e-6},
                **{"most_epsilon": 1.5, "records_per_teacher": 13},
                **{
                    "own_body": "",
                    "least_checked_peers": 2,
                    "forms": ["additive", "masked"],
                },
            },
        }
        ended = day.answered(**first)
        assert ended.code == 1
        day.approve()
        peers = {
            name: {"compared": day.peer(name), "how": "in person"} for name in ("East", "South")
        }
        ended = day.answered(**first, peers=peers)
        assert "Left " not in ended.err
        settings = Site.open(day.site).settings
        assert (settings.lifetime_epsilon, settings.teachers) == (4.0, 3)
        assert settings.policy["forms"] == ["additive", "masked"]
        assert day.pinned() == {"East": ("in person", BY), "South": ("in person", BY)}
        # What a person changed since stays so, and the invitation is not needed any more.
        Path(invite).unlink()
        assert day.run("policy", "set", "most_epsilon", "1", "--site", day.site).code == 0
        records = len(audit_of(Site.open(day.site)))
        ended = day.answered(**first, peers=peers)
        assert Site.open(day.site).settings.policy["most_epsilon"] == 1.0
        assert len(audit_of(Site.open(day.site))) == records

    def test_without_words_nothing_is_joined_whatever_is_piped_in(self, day: FirstDay) -> None:
        ended = day.setup(day.invite(), typed="y\n" * 50, at_terminal=False)
        assert (ended.code, error_code(ended)) == (3, "PF-348")
        assert not day.site.exists()

    def test_peers_without_words_are_left_whatever_is_piped_in(
        self, day: FirstDay, table: Path
    ) -> None:
        assert day.run("join", day.invite(), "--site", day.site, "--compared", day.words).code == 0
        day.approve()
        day.peer("South")
        ended = day.setup(typed="yes\n" * 50, at_terminal=False)
        assert ended.code == 4  # there is no table
        for left in (*("table", "lifetime_epsilon", "South", "pate-party peers check"),):
            assert left in ended.err
        assert day.pinned() == {}

    @pytest.mark.parametrize(
        ("answers", "code", "exit_code"),
        [
            pytest.param({"compared": "zoo " * 12}, "PF-342", 4, id="other words"),
            pytest.param({"compare": "zoo"}, "PF-302", 2, id="an unknown key"),
            pytest.param({"data": {"file": "x"}}, "PF-302", 2, id="a table without a label"),
            pytest.param(
                {"policy": {"operator_body": "South"}}, "PF-302", 2, id="an operator of them all"
            ),
        ],
    )
    def test_wrong_answers_make_nothing(
        self, day: FirstDay, answers: dict[str, object], code: str, exit_code: int
    ) -> None:
        ended = day.answered(invitation=str(day.invite()), **answers)
        assert (ended.code, error_code(ended)) == (exit_code, code)
        assert not day.site.exists()

    def test_other_words_of_a_peer_pin_nobody(self, day: FirstDay, table: Path) -> None:
        assert day.run("join", day.invite(), "--site", day.site, "--compared", day.words).code == 0
        day.approve()
        day.peer("South")
        other = day.peer("East")
        ended = day.answered(peers={"South": {"compared": other, "how": "telephone"}})
        assert ended.code == 4
        assert "PF-342" in ended.err
        assert day.pinned() == {}

    def test_without_an_invitation_it_says_what_to_type(self, day: FirstDay) -> None:
        ended = day.setup(at_terminal=False)
        assert (ended.code, error_code(ended)) == (2, "PF-302")
        assert "INVITE" in ended.err


class TestPeersCheck:
    @pytest.fixture
    def member(self, day: FirstDay) -> FirstDay:
        assert day.run("join", day.invite(), "--site", day.site, "--compared", day.words).code == 0
        day.approve()
        for name in ("East", "South", "West"):
            day.peer(name)
        return day

    def test_one_sitting_goes_through_all(self, member: FirstDay) -> None:
        line = ("peers", "check", "--by", BY, "--site", member.site)
        said = "yes\n\ntelephone\nUniversity\nlater\nno\n"
        ended = member.run(*line, typed=said, at_terminal=True)
        assert ended.code == 4
        assert "PF-342" in ended.err
        assert "got West" in ended.err
        assert member.pinned() == {"East": ("telephone", BY)}
        with records_of(Site.open(member.site)) as records:
            assert records.pins()[0].body == "University"
        ended = member.run(*line, typed="yes\nby video\n\nyes\n\n\n", at_terminal=True)
        assert ended.code == 0
        assert "East" not in ended.err
        assert "3 peer(s) are pinned" in ended.out

    def test_it_needs_a_person(self, member: FirstDay) -> None:
        ended = member.run("peers", "check", "--site", member.site, typed="yes\n" * 20)
        assert (ended.code, error_code(ended)) == (3, "PF-348")
        assert member.pinned() == {}
