"""Where each hospital stands toward a run: one record, at every door the same."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from coordinator import operator
from coordinator.cli.following import follow
from coordinator.federation.enrollment import EnrolledParty
from coordinator.operator import Coordinator
from coordinator.people.people import Role
from coordinator.runs.queue import RunState
from coordinator.runs.run_hospitals import HospitalAnswer, HospitalState
from coordinator.runs.stages import BatchStage
from coordinator.runs.standings import BACK_AFTER, QUIET, HospitalStanding, standings_of
from party.decision.guard import Consent, Guard
from party.site.people_decisions import Approval, ApprovalState, PeopleDecisions, Subject
from party.site.site import Site
from protocols import wire
from protocols.errors import UnexpectedMessageError
from protocols.identity import SigningIdentity
from protocols.messages import RunReadiness
from tests.support.command import Command, pate_fed
from tests.support.console import (
    HOSTILE,
    add_hospitals,
    add_runs,
    browser,
    opened,
)
from tests.support.deployed import Hospital
from tests.support.process_federation import ProcessFederation, process_federation
from tests.support.worked import Worked

__all__ = ["pate_fed"]
NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
EARLIER = NOW - timedelta(minutes=13)


@pytest.fixture
def coordinator(tmp_path: Path) -> Iterator[Coordinator]:
    with opened(tmp_path / "federation") as made:
        yield made


def party(name: str, **changed: Any) -> EnrolledParty:
    identity = SigningIdentity.generate().public
    made = EnrolledParty(name, identity, "member", 1, EARLIER, 10, NOW)
    return replace(made, **changed)


def standing(one: EnrolledParty, answer: HospitalAnswer | None, **more: Any) -> HospitalStanding:
    fingerprint = one.identity.fingerprint
    [found] = standings_of(
        {fingerprint: one.name},
        parties=[one],
        answers={} if answer is None else {fingerprint: answer},
        now=NOW,
        **{"is_ended": False, "votes": {fingerprint: 10}, **more},
    )
    return found


# One record ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "changed", "state", "since"),
    [
        pytest.param(None, {}, "not asked", None, id="nobody asked it"),
        pytest.param(("PF-322", EARLIER), {}, "undecided", EARLIER, id="run undecided"),
        pytest.param(("PF-314", EARLIER), {}, "undecided", EARLIER, id="pool undecided"),
        pytest.param(("PF-328", EARLIER), {}, "rejected", EARLIER, id="rejected"),
        pytest.param(("", EARLIER), {}, "approved", EARLIER, id="approved"),
        pytest.param(("PF-323", None), {}, "refuses", None, id="paused"),
        pytest.param(None, {"node_id": None}, "not let in", None, id="no node"),
        pytest.param(("", EARLIER), {"state": "suspended"}, "suspended", None, id="suspended"),
        pytest.param(("", EARLIER), {"state": "revoked"}, "revoked", None, id="revoked"),
        pytest.param(
            ("", EARLIER), {"seen_at": NOW - 2 * QUIET}, "offline", NOW - 2 * QUIET, id="quiet"
        ),
        pytest.param(
            ("", EARLIER),
            {"away_since": EARLIER, "away_at": NOW},
            "offline",
            EARLIER,
            id="its node does not answer",
        ),
        pytest.param(
            ("", EARLIER),
            {"away_since": EARLIER, "away_at": NOW - 2 * BACK_AFTER},
            "approved",
            EARLIER,
            id="back since a run looked",
        ),
        pytest.param(
            ("PF-328", EARLIER),
            {"seen_at": NOW - 2 * QUIET},
            "rejected",
            EARLIER,
            id="rejected, then offline",
        ),
    ],
)
def test_a_standing_says_what_a_run_has_of_a_hospital(
    answer: tuple[str, datetime | None] | None,
    changed: dict[str, Any],
    state: str,
    since: datetime | None,
) -> None:
    said = None if answer is None else HospitalAnswer(*answer)
    found = standing(party("North", **changed), said)
    assert (found.state.value, found.since) == (state, since)


def test_who_went_offline_after_a_decision_has_both() -> None:
    away = party("North", seen_at=NOW - 2 * QUIET)
    found = standing(away, HospitalAnswer("", EARLIER))
    said = found.answer
    assert said is not None
    assert (found.state, said.decision, said.decided_at) == (
        HospitalState.OFFLINE,
        HospitalState.APPROVED,
        EARLIER,
    )
    assert {f"{moment:%Y-%m-%d %H:%M}" for moment in (NOW - 2 * QUIET, EARLIER)} <= set(
        re.findall(r"\d{4}-\d\d-\d\d \d\d:\d\d", found.said)
    )


def test_a_hospital_with_other_votes_than_the_run_has_is_told_of() -> None:
    """A run keeps the number that it was asked with, and such a hospital refuses it."""
    more = party("North", votes=900)
    found = standing(more, HospitalAnswer("PF-316"))
    assert re.findall(r"\d+", found.votes_words) == ["10", "900"]
    assert found.votes_words in found.said
    assert found.as_table()["votes"] == [10, 900]
    for same in (party("North"), party("North", votes=0)):
        assert standing(same, None).votes is None
    evaluation = standing(more, None, votes={})
    ended = standing(more, HospitalAnswer("PF-316"), is_ended=True)
    assert (evaluation.votes, ended.votes) == (None, None)


def test_an_ended_run_keeps_what_each_said_last() -> None:
    away = party("North", seen_at=NOW - 2 * QUIET, state="suspended")
    found = standing(away, HospitalAnswer("PF-328", EARLIER), is_ended=True)
    assert (found.state, found.since) == (HospitalState.REJECTED, EARLIER)


def test_a_name_that_is_part_of_another_is_another_hospital(coordinator: Coordinator) -> None:
    add_hospitals(coordinator, "Ost", "Nordost", "Nord")
    add_runs(
        coordinator,
        "first",
        hospitals=("Ost", "Nordost", "Nord"),
        state=RunState.WAITING,
        reason="waits for the people of Nordost [PF-322]",
    )
    by_name = {one.name: one.identity.fingerprint for one in coordinator.enrollment.parties()}
    answers = {by_name["Nordost"]: HospitalAnswer("PF-322"), by_name["Ost"]: HospitalAnswer()}
    coordinator.queue.hospitals.note_answers("first", answers)
    run = coordinator.queue.find("first")
    found = {
        one.hospital: one.state.value for one in operator.standings(coordinator, [run])["first"]
    }
    assert found == {"Nord": "not asked", "Nordost": "undecided", "Ost": "approved"}


def test_a_hospital_that_came_again_under_its_name_has_a_standing_of_its_own(
    coordinator: Coordinator,
) -> None:
    add_hospitals(coordinator, "North")
    add_runs(coordinator, "first", hospitals=("North",), state=RunState.WAITING)
    [old] = coordinator.enrollment.parties()
    coordinator.queue.hospitals.note_answers("first", {old.identity.fingerprint: HospitalAnswer()})
    coordinator.revoke("North")
    add_hospitals(coordinator, "North")
    [found] = operator.standings(coordinator, [coordinator.queue.find("first")])["first"]
    assert found.state is HospitalState.REVOKED
    page = browser(coordinator, Role.OPERATOR).get("/hospitals").text
    assert "/runs/first" not in page  # the new one is not in that run


# Every door ---------------------------------------------------------------------------------------


def cells_of(page: str, hospital: str) -> str:
    """The row of a hospital in a table, without marks."""
    [row] = re.findall(rf'<tr>\s*<th scope="row">{hospital}</th>(.*?)</tr>', page, re.DOTALL)
    return " ".join(re.sub(r"<[^>]*>", " ", row).split())


def test_all_doors_show_the_same_of_every_hospital_at_once(
    coordinator: Coordinator, pate_fed: Command
) -> None:
    names = ("East", "North", "South", "West")
    add_hospitals(coordinator, *names)
    add_runs(coordinator, "first", hospitals=names, state=RunState.WAITING)
    party = {one.name: one.identity.fingerprint for one in coordinator.enrollment.parties()}
    coordinator.queue.hospitals.note_answers(
        "first",
        {
            party["East"]: HospitalAnswer("", EARLIER),
            party["North"]: HospitalAnswer("PF-322", EARLIER),
            party["West"]: HospitalAnswer("PF-328", EARLIER, HOSTILE),
        },
    )
    long_ago = datetime.now(UTC) - timedelta(hours=2)
    coordinator.queue.hospitals.note_presence(there=(), away=[party["South"]], now=long_ago)
    coordinator.queue.hospitals.note_presence(
        there=(), away=[party["South"]], now=datetime.now(UTC)
    )
    at = f"{EARLIER:%Y-%m-%d %H:%M} UTC"
    away = f"{long_ago:%Y-%m-%d %H:%M} UTC"
    expected = {
        "East": ("approved", at),
        "North": ("undecided", at),
        "South": ("offline", away),
        "West": ("rejected", at),
    }
    home = ("--home", coordinator.home.folder)
    told = pate_fed("status", *home, "--format", "json").json["runs"][0]["hospitals"]
    assert [one["hospital"] for one in told] == list(names)
    assert {one["hospital"]: one["state"] for one in told} == {
        name: state for name, (state, _) in expected.items()
    }
    assert told[3]["code"] == "PF-328"
    assert told[3]["words"] == HOSTILE
    text = pate_fed("status", *home).out
    viewer = browser(coordinator, Role.OPERATOR)
    pages = [viewer.get("/runs/first").text, viewer.get("/hospitals").text]
    for name, (state, when) in expected.items():
        [line] = [line for line in text.splitlines() if f" {name}: " in line]
        assert state in line
        assert when in line
        for page in pages:
            cells = cells_of(page, name)
            assert re.search(rf"\b{state}\b", cells)
            assert when in cells
    assert not any("<script>alert" in page for page in pages)
    assert not any(" ready" in cells_of(pages[0], name) for name in names)


def test_following_a_run_tells_each_hospital_that_moves_once(coordinator: Coordinator) -> None:
    add_hospitals(coordinator, "North", "South")
    add_runs(coordinator, "first", hospitals=("North", "South"), state=RunState.WAITING)
    party = {one.name: one.identity.fingerprint for one in coordinator.enrollment.parties()}
    steps: list[Callable[[], object]] = [
        lambda: coordinator.queue.hospitals.note_answers(
            "first", {party["North"]: HospitalAnswer("PF-322", EARLIER)}
        ),
        lambda: None,
        lambda: coordinator.queue.hospitals.note_answers(
            "first", {party["North"]: HospitalAnswer("PF-328", NOW)}
        ),
        lambda: coordinator.queue.enter("first", RunState.DONE),
    ]
    told: list[tuple[str, str]] = []
    follow(
        coordinator.queue,
        "first",
        tell=lambda run: None,
        look=lambda run: operator.standings(coordinator, [run])["first"],
        tell_of=lambda one: told.append((one.hospital, one.state.value)),
        sleep=lambda _: steps.pop(0)(),
    )
    assert told == [("North", "undecided"), ("North", "rejected")]


# What hospitals say -------------------------------------------------------------------------------


def test_a_hospital_that_is_found_away_is_offline_until_it_is_found_there(tmp_path: Path) -> None:
    federation = Worked(tmp_path)
    federation.ask()
    federation.away.add(1)
    federation.work()
    assert state_of(federation.coordinator, "South") is HospitalState.OFFLINE
    since = standing_of(federation.coordinator, "South").since
    federation.work()
    assert standing_of(federation.coordinator, "South").since == since
    federation.away.clear()
    federation.work()
    assert state_of(federation.coordinator, "South") is HospitalState.APPROVED
    federation.coordinator.close()


def standing_of(coordinator: Coordinator, name: str) -> HospitalStanding:
    run = coordinator.queue.find("first")
    [found] = [
        one for one in operator.standings(coordinator, [run])["first"] if one.hospital == name
    ]
    return found


def state_of(coordinator: Coordinator, name: str) -> HospitalState:
    return standing_of(coordinator, name).state


def test_a_time_or_a_code_that_a_hospital_makes_up_is_not_believed(tmp_path: Path) -> None:
    """A decision in the year 36812, and a text in place of a code."""
    federation = Worked(tmp_path)
    federation.ask()
    liar = federation.hospitals[1]
    answer = liar.receive

    def lie(packet: bytes) -> bytes:
        [frame] = wire.unpack(answer(packet), max_bytes=2**20)
        said = wire.expect(wire.decode(frame), RunReadiness)
        made_up = replace(said, at=2**40, reason="call 0900-1234")
        return wire.pack([wire.sign(made_up, liar.site.identity).frame])

    liar.receive = lie  # type: ignore[method-assign]
    run = federation.work()
    found = standing_of(federation.coordinator, "South")
    assert run.state is RunState.WAITING
    assert (found.state, found.code) == (HospitalState.REFUSES, UnexpectedMessageError.code)
    assert found.since is not None
    assert found.since.timestamp() <= federation.now
    assert "0900" not in run.reason
    federation.coordinator.close()


def test_a_run_that_has_begun_waits_for_a_hospital_that_rejects_it_and_says_so(
    tmp_path: Path,
) -> None:
    federation = Worked(tmp_path)
    federation.ask()
    west = federation.hospitals[2]
    assert west.node is not None
    open_guard = west.node._guard
    decision: list[Approval] = []
    west.node._faults.decided = lambda scope: next(iter(decision), None)

    def reject(stage: BatchStage) -> None:
        if stage is BatchStage.STORED and not decision:
            decision.append(rejection("no longer"))
            adopt(west, replace(open_guard, consent=Consent(frozenset())))

    seen: list[HospitalStanding] = []

    def approve_again(seconds: float) -> None:
        seen.append(standing_of(federation.coordinator, "West"))
        decision[:] = [replace(rejection(""), state=ApprovalState.APPROVED)]
        adopt(west, open_guard)

    federation.on_stage, federation.on_wait = reject, approve_again
    run = federation.work()
    assert (run.state, run.progress.void) == (RunState.DONE, 0), run.reason
    assert (seen[0].state, seen[0].code) == (HospitalState.REJECTED, "PF-328")
    assert (seen[0].since, seen[0].answer.words) == (EARLIER, "no longer")
    federation.coordinator.close()


def rejection(words: str) -> Approval:
    return Approval(
        Subject.RUN,
        bytes(32),
        bytes(32),
        ApprovalState.REJECTED,
        EARLIER.timestamp(),
        b"",
        (),
        "",
        "",
        tally=b"",
        decided_at=EARLIER.timestamp(),
        words=words,
    )


def adopt(hospital: Hospital, guard: Guard) -> None:
    node = hospital.node
    assert node is not None
    node.adopt(guard=guard, known_peers=node._known_peers, tasks=node._tasks)


# Real processes -----------------------------------------------------------------------------------


def decide(site: Site, *, approves: bool, words: str = "") -> None:
    """A person of a hospital decides on the run that waits, as a command does beside the node."""
    with site.open_database() as database:
        records = PeopleDecisions(database, clock=time.time)
        [run] = [one for one in records.approvals() if one.subject is Subject.RUN]
        key = run.subject, run.digest
        if approves:
            records.approve(*key, coordinator=run.coordinator, by="M. Curie")
        else:
            records.reject(
                *key, coordinator=run.coordinator, by="M. Curie", reason="secret", words=words
            )


def wait_for(federation: ProcessFederation, **expected: str) -> dict[str, HospitalStanding]:
    """Wait until hospitals stand so; return where all stand."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        run = federation.run("first")
        found = {
            one.hospital: one for one in operator.standings(federation.coordinator, [run])["first"]
        }
        if {name: found[name].state.value for name in expected} == expected:
            return found
        time.sleep(0.05)
    raise AssertionError({name: one.said for name, one in found.items()})


@pytest.mark.slow
def test_hospitals_decide_in_parallel_while_one_is_off_and_it_is_asked_once_it_is_back(
    tmp_path: Path,
) -> None:
    with process_federation(tmp_path, "additive", wait_s=0.01) as federation:
        sites = federation.hospitals.sites
        for place, site in enumerate(sites):
            sites[place] = site.save(replace(site.settings, approval="each run"))
        federation.make_task("first", seed=3)
        federation.ask("first")
        federation.start_hospital(0)
        federation.start_hospital(2)
        federation.start_coordinator()
        wait_for(federation, North="undecided", South="offline", West="undecided")
        decide(sites[0], approves=True)
        decide(sites[2], approves=False, words="Ethikkommission")
        began = time.time()
        found = wait_for(federation, North="approved", South="offline", West="rejected")
        west = found["West"]
        assert (west.code, west.answer.words) == ("PF-328", "Ethikkommission")
        assert west.since is not None
        assert abs(west.since.timestamp() - began) < 60
        assert "secret" not in json.dumps([one.as_table() for one in found.values()])
        federation.start_hospital(1)
        wait_for(federation, North="approved", South="undecided", West="rejected")
        assert federation.run("first").state in (RunState.WAITING, RunState.RUNNING)
        decide(sites[1], approves=True)
        decide(sites[2], approves=True)
        federation.bury_coordinator()
        run = federation.run("first")
        assert (run.state, run.progress.void) == (RunState.DONE, 0), run.reason
        assert {one.state for one in wait_for(federation).values()} == {HospitalState.APPROVED}
