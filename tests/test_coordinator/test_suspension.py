"""A suspended hospital: it is asked nothing, its late answers are dropped, and runs wait for it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator import operator
from coordinator.database import FederationAct
from coordinator.errors import EnrollmentError
from coordinator.operator import Coordinator
from coordinator.runs.queue import RunState
from pate_fed.accounting import EntryState
from protocols.errors import TooFewPartiesError
from tests.support.command import Command, pate_fed
from tests.support.console import Role, add_hospitals, browser, form_token, newest_acts, opened
from tests.support.deployed import NAMES
from tests.support.hospital_site import tell_votes
from tests.support.worked import Worked

__all__ = ["pate_fed"]
ONE = NAMES[1]


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Coordinator]:
    with opened(tmp_path / "federation") as coordinator:
        add_hospitals(coordinator, "North", "South", "West")
        yield coordinator


def is_suspended(federation: Worked) -> bool:
    return any(one.state == "suspended" for one in federation.coordinator.enrollment.parties())


def states(federation: Worked) -> set[EntryState]:
    """What became of all charges at all hospitals."""
    ledgers = [one.ledger.load() for one in federation.hospitals.values()]
    return {entry.state for ledger in ledgers for entry in ledger.entries}


@pytest.mark.slow
def test_a_run_waits_uncharged_until_its_hospital_is_reinstated(federation: Worked) -> None:
    federation.ask()
    operator.suspend(federation.coordinator, ONE)
    run = federation.work()
    assert run.state is RunState.WAITING
    assert re.fullmatch(f"PF-436: .*, got {ONE}", run.reason)
    assert not states(federation)
    asked = [bool(one.exchanges) for one in federation.hospitals.values()]
    assert asked == [True, False, True]  # the others' people decide meanwhile
    operator.reinstate(federation.coordinator, ONE)
    assert federation.work().state is RunState.DONE
    assert federation.coordinator.enrollment.is_settled()


@pytest.mark.slow
def test_a_hospital_that_states_other_votes_than_it_has_refuses_uncharged(
    federation: Worked,
) -> None:
    """As one whose table was changed by others, or who lies to rule the sum: all see it."""
    liar = federation.hospitals[1].site
    tell_votes(federation.coordinator.enrollment, liar, votes=900, after_s=1)
    asked = federation.ask()
    assert [one.teachers for one in federation.request().parties] == [10, 900, 10]
    run = federation.work()
    assert run.state is RunState.FAILED
    assert ONE in run.reason
    assert "PF-316" in run.reason
    assert not states(federation)
    tell_votes(federation.coordinator.enrollment, liar, after_s=2)
    assert [one["subject"] for one in newest_acts(federation.coordinator, most=2)] == [
        ONE,
        asked.name,
    ]
    federation.ask("second")
    assert federation.work("second").state is RunState.DONE


@pytest.mark.slow
def test_a_run_keeps_the_votes_that_it_was_asked_with(federation: Worked) -> None:
    federation.ask()
    other = federation.hospitals[1].site
    tell_votes(federation.coordinator.enrollment, other, votes=900, after_s=1)
    [run] = federation.coordinator.queue.all()
    found = operator.standings(federation.coordinator, [run])[run.name]
    assert [one.votes for one in found if one.votes] == [(10, 900)]
    assert federation.work().state is RunState.DONE  # its node has as many as before


@pytest.mark.slow
def test_shares_that_a_suspended_node_sends_open_nothing(federation: Worked) -> None:
    """It is suspended while a batch is under way, and answers as if nothing had happened."""
    federation.ask()
    culprit, answers = federation.hospitals[1], list[bytes]()
    receive = culprit.receive

    def suspended_meanwhile(packet: bytes) -> bytes:
        answers.append(receive(packet))
        if culprit.asked and not is_suspended(federation):  # it has voted: a batch is under way
            operator.suspend(federation.coordinator, ONE)
        return answers[-1]  # with its shares: the batch could go on

    culprit.receive = suspended_meanwhile  # type: ignore[method-assign]
    federation.work()
    assert is_suspended(federation)
    asked = len(answers)
    run = federation.work()
    assert (run.state, run.reason[:6]) == (RunState.WAITING, "PF-436")
    assert run.progress.answered == 0
    assert len(answers) == asked  # not asked again
    culprit.receive = receive  # type: ignore[method-assign]
    operator.reinstate(federation.coordinator, ONE)
    run = federation.work()
    assert (run.state, run.progress.void) == (RunState.DONE, 0), run.reason
    assert states(federation) == {EntryState.COMMITTED}


@pytest.mark.slow
def test_a_run_can_be_stopped_while_its_hospital_is_suspended(federation: Worked) -> None:
    federation.ask()

    def suspend(number: int) -> None:
        if number == 6:
            operator.suspend(federation.coordinator, ONE)
            federation.coordinator.stop("first")

    federation.on_exchange = suspend
    for _ in range(4):
        run = federation.work()
        if run.is_ended:
            break
    assert run.state is RunState.STOPPED, run


@pytest.mark.slow
def test_a_new_run_does_without_a_suspended_hospital(federation: Worked) -> None:
    operator.suspend(federation.coordinator, ONE)
    with pytest.raises(TooFewPartiesError):
        federation.ask()
    assert federation.coordinator.queue.all() == []


@pytest.mark.parametrize(
    ("name", "act"),
    [("Nobody", "suspend"), ("North", "reinstate"), ("East", "suspend"), ("Gone", "reinstate")],
)
def test_only_members_are_suspended_and_only_suspended_ones_return(
    fresh: Coordinator, name: str, act: str
) -> None:
    add_hospitals(fresh, "East", state="requested")
    add_hospitals(fresh, "Gone", state="revoked")
    before = fresh.audit_log.end
    with pytest.raises(EnrollmentError):
        getattr(operator, act)(fresh, name)
    assert fresh.audit_log.end == before


def test_it_is_suspended_and_reinstated_in_the_console_and_at_the_command_line(
    fresh: Coordinator, pate_fed: Command
) -> None:
    officer, runner = browser(fresh, Role.PRIVACY_OFFICER), browser(fresh, Role.OPERATOR)
    token = form_token(officer, "/hospitals")
    sent = {"form_token": token, "hospital": "North"}
    assert officer.post("/hospitals/suspend", data=sent).status_code == 303
    assert ">suspended<" in officer.get("/hospitals").text
    assert officer.post("/hospitals/reinstate", data=sent).status_code == 403
    sent["form_token"] = form_token(runner, "/hospitals")
    assert runner.post("/hospitals/reinstate", data=sent).status_code == 303
    home = ("--home", fresh.home.folder)
    assert pate_fed("suspend", "South", *home).code == 0
    assert "suspended, 10 votes" in pate_fed("members", *home).out
    assert pate_fed("suspend", "South", *home).error_code == "PF-433"
    assert pate_fed("reinstate", "South", *home, "--format", "json").json["state"] == "member"
    acts = [(one["act"], one["before"]["state"]) for one in reversed(newest_acts(fresh, most=4))]
    assert (
        acts == [(FederationAct.SUSPENDED, "member"), (FederationAct.REINSTATED, "suspended")] * 2
    )
    operator.suspend(fresh, "West")
    assert fresh.revoke("West").state == "revoked"  # type: ignore[union-attr]
