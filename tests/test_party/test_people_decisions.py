"""What the site's people decided: pins, approvals, a pause, each with its audit record."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from party.errors import (
    ApprovalError,
    PinError,
    StorageDamagedError,
    StorageError,
    TooManyPendingError,
)
from party.site.peers import Pin
from party.site.people_decisions import MOST_PENDING, ApprovalState, PeopleDecisions, Subject
from party.storage import PartyDatabase, SiteAuditLog
from party.storage.site_audit_log import SiteAct
from pate_fed.terms import RunTerms
from pate_fed.votes import TeacherWeights
from protocols.identity import SigningIdentity
from protocols.membership_messages import MOST_OPEN_RUNS
from protocols.values import encode_value
from tests.support.rules import run_terms

PEER, OTHER = SigningIdentity.generate().public, SigningIdentity.generate().public
POOL, RUN = b"p" * 32, b"r" * 32
ASKING, ANOTHER = b"c" * 32, b"d" * 32
FIRST, SECOND = b"1" * 32, b"2" * 32
TERMS, SEATS = b"terms", (bytes([1]) * 32, bytes([2]) * 32)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[PartyDatabase]:
    with PartyDatabase.create(tmp_path / "party.db") as opened:
        yield opened


@pytest.fixture
def decisions(database: PartyDatabase) -> PeopleDecisions:
    ticks = count(1_000)
    return PeopleDecisions(database, clock=lambda: float(next(ticks)))


def logged(database: PartyDatabase) -> list[tuple[SiteAct, dict[str, Any]]]:
    log = SiteAuditLog(database)
    log.verify()
    return [(record.act, dict(record.facts)) for record in log.entries()]


def tampered(database: PartyDatabase, statement: str) -> None:
    """SiteAct as somebody who can write the file."""
    with closing(sqlite3.connect(database.path)) as file:
        file.execute(statement)
        file.commit()


class TestPins:
    def test_a_pin_says_who_was_checked_how_and_by_whom(
        self, decisions: PeopleDecisions, database: PartyDatabase
    ) -> None:
        assert decisions.pins() == ()
        pin = decisions.add_pin("north", PEER, body="Trust", how="telephone", by="A. Meyer")
        assert pin == Pin("north", "Trust", PEER, "telephone", "A. Meyer", 1000.0)
        assert decisions.pins() == decisions.decided().pins == (pin,)
        [(kind, detail)] = logged(database)
        assert kind is SiteAct.PIN_ADDED
        assert detail == {
            "name": "north",
            "body": "Trust",
            "fingerprint": PEER.fingerprint,
            "how": "telephone",
            "by": "A. Meyer",
            "from": "command line",
        }

    def test_whoever_is_of_no_other_body_is_of_its_own(self, decisions: PeopleDecisions) -> None:
        assert decisions.add_pin("north", PEER, how="in person", by="A. Meyer").body == "north"

    def test_a_pin_that_nobody_checked_is_none(
        self, decisions: PeopleDecisions, database: PartyDatabase
    ) -> None:
        for how, by in (("", "A. Meyer"), ("in person", " ")):
            with pytest.raises(PinError):
                decisions.add_pin("north", PEER, how=how, by=by)
        assert (decisions.pins(), logged(database)) == ((), [])

    @pytest.mark.parametrize(
        ("name", "identity"),
        [
            pytest.param("north", OTHER, id="name"),
            pytest.param("south", PEER, id="identity"),
            pytest.param("north", PEER, id="both"),
        ],
    )
    def test_a_name_and_an_identity_are_pinned_once(
        self, decisions: PeopleDecisions, database: PartyDatabase, name: str, identity: Any
    ) -> None:
        decisions.add_pin("north", PEER, how="in person", by="A. Meyer")
        before = logged(database)
        with pytest.raises(PinError):
            decisions.add_pin(name, identity, how="by mail", by="M. Allory")
        assert [pin.how for pin in decisions.pins()] == ["in person"]
        assert logged(database) == before

    def test_a_pin_is_replaced_only_after_it_was_removed(
        self, decisions: PeopleDecisions, database: PartyDatabase
    ) -> None:
        decisions.add_pin("north", PEER, how="in person", by="A. Meyer")
        decisions.remove_pin("north", by="A. Meyer")
        assert decisions.pins() == ()
        decisions.add_pin("north", OTHER, how="in person", by="A. Meyer")
        assert [pin.identity for pin in decisions.pins()] == [OTHER]
        kinds = [kind for kind, _ in logged(database)]
        assert kinds == [SiteAct.PIN_ADDED, SiteAct.PIN_REMOVED, SiteAct.PIN_ADDED]
        with pytest.raises(PinError):
            decisions.remove_pin("south", by="A. Meyer")


class TestApprovals:
    def test_what_is_asked_waits_with_terms_and_parties_and_is_noted_once(
        self, decisions: PeopleDecisions, database: PartyDatabase
    ) -> None:
        first = decisions.ask(
            Subject.RUN, RUN, terms=TERMS, seats=SEATS, tally=b"", coordinator=ASKING
        )
        assert first.state is ApprovalState.PENDING
        assert (first.terms, first.seats, first.asked_at) == (TERMS, SEATS, 1000.0)
        # Asked again, even with other terms, it is what it was.
        assert (
            decisions.ask(Subject.RUN, RUN, terms=b"others", tally=b"", coordinator=ASKING) == first
        )
        assert decisions.approvals(ApprovalState.PENDING) == (first,)
        assert decisions.decided().waiting == 1
        assert len(logged(database)) == 1

    def test_a_person_decides_and_may_think_again(
        self, decisions: PeopleDecisions, database: PartyDatabase
    ) -> None:
        decisions.ask(Subject.RUN, RUN, terms=TERMS, seats=SEATS, tally=b"", coordinator=ASKING)
        approved = decisions.approve(Subject.RUN, RUN, by="A. Meyer", coordinator=ASKING)
        assert (approved.state, approved.decided_by) == (ApprovalState.APPROVED, "A. Meyer")
        assert (approved.terms, approved.seats) == (TERMS, SEATS)
        assert decisions.decided().approved_runs == {RUN}
        # Asked again it stands as it was decided: a message changes nothing.
        assert decisions.ask(Subject.RUN, RUN, tally=b"", coordinator=ASKING) == approved
        rejected = decisions.reject(
            Subject.RUN, RUN, by="B. Ito", coordinator=ASKING, reason="too many"
        )
        assert rejected.reason == "too many"
        for reason in ("two\nlines", "\x1b[2J", "x" * 501):
            with pytest.raises(ApprovalError):
                decisions.approve(Subject.RUN, RUN, by="B. Ito", coordinator=ASKING, reason=reason)
        assert decisions.decided().approved_runs == frozenset()
        kinds = [kind for kind, _ in logged(database)]
        assert kinds == [SiteAct.ASKED, SiteAct.APPROVED, SiteAct.REJECTED]
        names = ("before", "after", "by", "from", "reason")
        assert [[detail[name] for name in names] for _, detail in logged(database)[1:]] == [
            ["pending", "approved", "A. Meyer", "command line", ""],
            ["approved", "rejected", "B. Ito", "command line", "too many"],
        ]

    def test_each_answer_under_an_approval_is_put_on_record(
        self, decisions: PeopleDecisions, database: PartyDatabase
    ) -> None:
        decisions.ask(Subject.RUN, RUN, terms=TERMS, seats=SEATS, tally=b"", coordinator=ASKING)
        decisions.approve(Subject.RUN, RUN, by="A. Meyer", coordinator=ASKING)
        for run in (FIRST, SECOND):  # the same run, set up twice
            self.use(decisions, run)
        assert decisions.decided().approved_runs == {RUN}
        assert [kind for kind, _ in logged(database)][2:] == [SiteAct.BATCH_ANSWERED] * 2
        assert (
            decisions.ask(Subject.RUN, RUN, tally=b"", coordinator=ASKING).state
            is ApprovalState.APPROVED
        )

    def use(self, decisions: PeopleDecisions, run: bytes) -> None:
        decisions.use(RUN, kind=SiteAct.BATCH_ANSWERED, detail={"run": run}, coordinator=ASKING)

    def test_nothing_is_used_that_is_not_approved_or_cannot_be_put_on_record(
        self, decisions: PeopleDecisions, database: PartyDatabase
    ) -> None:
        with pytest.raises(ApprovalError):
            self.use(decisions, FIRST)
        decisions.ask(Subject.RUN, RUN, tally=b"", coordinator=ASKING)
        with pytest.raises(ApprovalError):
            self.use(decisions, FIRST)
        decisions.reject(Subject.RUN, RUN, by="A. Meyer", coordinator=ASKING)
        with pytest.raises(ApprovalError):
            self.use(decisions, FIRST)
        decisions.approve(Subject.RUN, RUN, by="A. Meyer", coordinator=ASKING)
        tampered(database, "ALTER TABLE audit RENAME TO gone")
        with pytest.raises(StorageError):
            self.use(decisions, FIRST)
        tampered(database, "ALTER TABLE gone RENAME TO audit")
        assert decisions.decided().approved_runs == {RUN}

    def test_nothing_is_approved_that_was_not_asked(
        self, decisions: PeopleDecisions, database: PartyDatabase
    ) -> None:
        for decide in (decisions.approve, decisions.reject):
            with pytest.raises(ApprovalError):
                decide(Subject.POOL, POOL, coordinator=ASKING, by="A. Meyer")
        assert logged(database) == []

    @pytest.mark.parametrize("by", ["", " ", "two\nlines"])
    def test_a_decision_is_somebodys(
        self, decisions: PeopleDecisions, database: PartyDatabase, by: str
    ) -> None:
        decisions.ask(Subject.POOL, POOL, tally=b"", coordinator=ASKING)
        decisions.add_pin("north", PEER, how="in person", by="A. Meyer")
        before = logged(database)
        for decide in (
            lambda: decisions.approve(Subject.POOL, POOL, by=by, coordinator=ASKING),
            lambda: decisions.remove_pin("north", by=by),
            lambda: decisions.state.pause(by=by),
            lambda: decisions.state.resume(by=by),
        ):
            with pytest.raises(ApprovalError):
                decide()
        assert logged(database) == before

    def test_a_pool_is_not_approved_as_a_run(self, decisions: PeopleDecisions) -> None:
        decisions.ask(Subject.RUN, POOL, tally=b"", coordinator=ASKING)
        decisions.approve(Subject.RUN, POOL, by="A. Meyer", coordinator=ASKING)
        assert decisions.decided().approved_pools == {}

    def test_the_guard_gets_approved_pools_and_no_others(self, decisions: PeopleDecisions) -> None:
        for pool in (POOL, RUN, b"q" * 32):
            decisions.ask(Subject.POOL, pool, tally=b"", coordinator=ASKING)
        decisions.approve(Subject.POOL, POOL, by="A. Meyer", coordinator=ASKING)
        decisions.reject(Subject.POOL, RUN, by="A. Meyer", coordinator=ASKING)
        assert decisions.decided().approved_pools == {ASKING: {POOL}}

    def test_few_digits_mean_nothing_and_many_one_thing(self, decisions: PeopleDecisions) -> None:
        one = decisions.ask(Subject.RUN, RUN, tally=b"", coordinator=ASKING)
        assert decisions.find(one.digest.hex()[:8]) == one
        assert decisions.find(one.digest.hex().upper()) == one
        for digits in ("", one.digest.hex()[:7], "ffffffff"):
            with pytest.raises(ApprovalError):
                decisions.find(digits)

    def test_what_waits_is_never_pushed_out_and_does_not_fill_the_disk(
        self, database: PartyDatabase
    ) -> None:
        ticks = count(10_000, -1)  # a clock that runs backward
        decisions = PeopleDecisions(database, clock=lambda: float(next(ticks)))
        decisions.ask(Subject.POOL, POOL, tally=b"", coordinator=ASKING)
        decisions.approve(Subject.POOL, POOL, by="A. Meyer", coordinator=ASKING)
        offers = [number.to_bytes(32, "big") for number in range(3 * MOST_PENDING)]
        for digest in offers[:MOST_PENDING]:
            decisions.ask(Subject.RUN, digest, tally=b"", coordinator=ASKING)
        before = decisions.approvals()
        written = SiteAuditLog(database).end
        for digest in offers[MOST_PENDING:]:
            with pytest.raises(TooManyPendingError):
                decisions.ask(Subject.RUN, digest, tally=b"", coordinator=ASKING)
        for digest in offers[:MOST_PENDING]:  # what waits may be offered again
            decisions.ask(Subject.RUN, digest, tally=b"", coordinator=ASKING)
        assert decisions.approvals() == before
        assert SiteAuditLog(database).end == written
        assert decisions.decided().approved_pools == {ASKING: {POOL}}

    @pytest.mark.parametrize("says_yes", [True, False])
    def test_a_decision_makes_room_for_another_question(
        self, decisions: PeopleDecisions, says_yes: bool
    ) -> None:
        for number in range(MOST_PENDING):
            decisions.ask(Subject.POOL, number.to_bytes(32, "big"), tally=b"", coordinator=ASKING)
        with pytest.raises(TooManyPendingError):
            decisions.ask(Subject.POOL, POOL, tally=b"", coordinator=ASKING)
        decide = decisions.approve if says_yes else decisions.reject
        decide(Subject.POOL, bytes(32), coordinator=ASKING, by="A. Meyer")
        assert (
            decisions.ask(Subject.POOL, POOL, tally=b"", coordinator=ASKING).state
            is ApprovalState.PENDING
        )

    def test_runs_that_wait_leave_room_for_pools(self, decisions: PeopleDecisions) -> None:
        for number in range(MOST_PENDING):
            decisions.ask(Subject.RUN, number.to_bytes(32, "big"), tally=b"", coordinator=ASKING)
        assert (
            decisions.ask(Subject.POOL, POOL, tally=b"", coordinator=ASKING).state
            is ApprovalState.PENDING
        )

    def test_node_and_people_write_at_once_and_nothing_is_lost(
        self, decisions: PeopleDecisions, database: PartyDatabase
    ) -> None:
        digests = [number.to_bytes(32, "big") for number in range(20)]
        for digest in digests[:10]:
            decisions.ask(Subject.RUN, digest, tally=b"", coordinator=ASKING)

        def people() -> None:
            with PartyDatabase.at(database.path) as own:
                mine = PeopleDecisions(own, clock=lambda: 1.0)
                for digest in digests[:10]:
                    mine.approve(Subject.RUN, digest, coordinator=ASKING, by="M. Curie")

        thread = threading.Thread(target=people)
        thread.start()
        for digest in digests[10:]:
            decisions.ask(Subject.RUN, digest, tally=b"", coordinator=ASKING)
        thread.join()
        decided = decisions.decided()
        assert (len(decided.approved_runs), decided.waiting) == (10, 10)
        assert SiteAuditLog(database).verify() == 30

    @pytest.mark.parametrize(
        "spoil",
        [
            pytest.param("UPDATE approvals SET state = 'yes'", id="state"),
            pytest.param("UPDATE approvals SET kind = 'all'", id="subject"),
            pytest.param("UPDATE approvals SET seats = x'ff'", id="parties"),
            pytest.param("DROP TABLE approvals", id="all"),
        ],
    )
    def test_what_cannot_be_read_approves_nothing(
        self, decisions: PeopleDecisions, database: PartyDatabase, spoil: str
    ) -> None:
        decisions.ask(Subject.RUN, RUN, tally=b"", coordinator=ASKING)
        tampered(database, spoil)
        with pytest.raises(StorageError) as caught:
            decisions.decided()
        assert isinstance(caught.value, StorageDamagedError) or "DROP" in spoil


class TestFederations:
    """What one coordinator asks, and is allowed, is nothing to another."""

    def test_an_approval_holds_for_the_coordinator_that_asked(
        self, decisions: PeopleDecisions
    ) -> None:
        decisions.ask(Subject.POOL, POOL, tally=b"", coordinator=ASKING)
        with pytest.raises(ApprovalError):
            decisions.approve(Subject.POOL, POOL, coordinator=ANOTHER, by="A. Meyer")
        asked = decisions.ask(Subject.POOL, POOL, tally=b"", coordinator=ANOTHER)
        decisions.approve(Subject.POOL, POOL, coordinator=ASKING, by="A. Meyer")
        assert decisions.decided().approved_pools == {ASKING: {POOL}}
        assert decisions.approvals(ApprovalState.PENDING) == (asked,)
        decisions.approve(Subject.POOL, POOL, coordinator=ANOTHER, by="A. Meyer")
        assert decisions.decided().pools == {POOL}

    def test_a_run_is_used_by_the_coordinator_that_asked(self, decisions: PeopleDecisions) -> None:
        decisions.ask(Subject.RUN, RUN, tally=b"", coordinator=ASKING)
        decisions.approve(Subject.RUN, RUN, coordinator=ASKING, by="A. Meyer")
        for coordinator in (ANOTHER, b""):
            with pytest.raises(ApprovalError):
                decisions.use(
                    RUN,
                    coordinator=coordinator,
                    kind=SiteAct.BATCH_ANSWERED,
                    detail={},
                )

    def test_one_that_fills_its_list_leaves_room_to_others(
        self, decisions: PeopleDecisions
    ) -> None:
        for number in range(MOST_PENDING):
            decisions.ask(Subject.RUN, number.to_bytes(32, "big"), tally=b"", coordinator=ASKING)
        with pytest.raises(TooManyPendingError):
            decisions.ask(Subject.RUN, RUN, tally=b"", coordinator=ASKING)
        assert (
            decisions.ask(Subject.RUN, RUN, tally=b"", coordinator=ANOTHER).coordinator == ANOTHER
        )

    def test_the_same_digits_of_two_are_told_apart(self, decisions: PeopleDecisions) -> None:
        for coordinator in (ASKING, ANOTHER):
            decisions.ask(Subject.POOL, POOL, tally=b"", coordinator=coordinator)
        with pytest.raises(ApprovalError, match="--federation"):
            decisions.find(POOL.hex())
        assert decisions.find(POOL.hex(), coordinator=ANOTHER).coordinator == ANOTHER

    def test_joining_and_leaving_are_on_record_for_each(
        self, decisions: PeopleDecisions, database: PartyDatabase
    ) -> None:
        for name in ("lung-study", "heart-study", "lung-study"):
            decisions.state.note_joined(name, federation=POOL, identity=PEER)
        decisions.state.note_left("lung-study", by="A. Meyer")
        decisions.state.note_joined("lung-study", federation=POOL, identity=PEER)
        assert [(kind, detail["membership"]) for kind, detail in logged(database)] == [
            (SiteAct.JOINED, "lung-study"),
            (SiteAct.JOINED, "heart-study"),
            (SiteAct.LEFT, "lung-study"),
            (SiteAct.JOINED, "lung-study"),
        ]


class TestPause:
    def test_it_lasts_until_somebody_ends_it(
        self, decisions: PeopleDecisions, database: PartyDatabase
    ) -> None:
        assert not decisions.decided().is_paused
        for _ in range(2):
            decisions.state.pause(by="A. Meyer")
        with PartyDatabase.at(database.path) as again:
            assert PeopleDecisions(again, clock=lambda: 1.0).decided().is_paused
        decisions.state.resume(by="B. Ito")
        assert not decisions.decided().is_paused
        place = {"from": "command line"}
        assert logged(database) == [
            (SiteAct.PAUSED, {"by": "A. Meyer", "before": "", "after": "paused", **place}),
            (SiteAct.RESUMED, {"by": "B. Ito", "before": "paused", "after": "resumed", **place}),
        ]

    def test_one_that_says_something_else_is_a_pause(
        self, decisions: PeopleDecisions, database: PartyDatabase
    ) -> None:
        decisions.state.pause(by="A. Meyer")
        tampered(database, "UPDATE standing SET value = ''")
        assert decisions.decided().is_paused


class TestSettings:
    def test_what_holds_is_on_record_when_it_changes(
        self, decisions: PeopleDecisions, database: PartyDatabase
    ) -> None:
        for file, table in ((POOL, ""), (POOL, ""), (POOL, "ab" * 32), (RUN, "ab" * 32)):
            decisions.state.note_settings(file=file)
            decisions.state.note_table(table)
        assert [(kind, detail["digest"]) for kind, detail in logged(database)] == [
            (SiteAct.SETTINGS_CHANGED, POOL),
            (SiteAct.DATA_CHANGED, bytes.fromhex("ab" * 32)),
            (SiteAct.SETTINGS_CHANGED, RUN),
        ]
        changes = [(detail["before"], detail["after"]) for _, detail in logged(database)]
        assert changes == [("", POOL.hex()), ("", "ab" * 32), (POOL.hex(), RUN.hex())]


def test_a_decision_whose_record_cannot_be_stored_is_none(
    decisions: PeopleDecisions, database: PartyDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    decisions.ask(Subject.POOL, POOL, tally=b"", coordinator=ASKING)

    def fail(*_: object, **__: object) -> None:
        raise StorageError("the log must be writable", "a full disk")

    monkeypatch.setattr(SiteAuditLog, "append", fail)
    for decide in (
        lambda: decisions.approve(Subject.POOL, POOL, by="A. Meyer", coordinator=ASKING),
        lambda: decisions.add_pin("north", PEER, how="in person", by="A. Meyer"),
        lambda: decisions.state.pause(by="A. Meyer"),
    ):
        with pytest.raises(StorageError):
            decide()
    monkeypatch.undo()
    decided = decisions.decided()
    assert (decided.pins, decided.approved_pools, decided.is_paused) == ((), {}, False)


class TestWithdrawn:
    """What an ended run asked waits for nobody any more."""

    def terms(self, name: str) -> bytes:
        return encode_value(terms_of(name).as_record())

    def test_what_waits_for_a_run_that_ended_is_forgotten_and_on_record(
        self, decisions: PeopleDecisions, database: PartyDatabase
    ) -> None:
        for place, name in enumerate(("first", "second")):
            digest = bytes([place]) * 32
            decisions.ask(
                Subject.RUN, digest, terms=self.terms(name), tally=b"", coordinator=ASKING
            )
        decisions.ask(Subject.POOL, POOL, terms=self.terms("first"), tally=b"", coordinator=ASKING)
        decisions.ask(Subject.RUN, RUN, terms=self.terms("first"), tally=b"", coordinator=ANOTHER)
        decisions.ask(Subject.RUN, RUN, terms=b"unreadable", tally=b"", coordinator=ASKING)
        decisions.withdraw(coordinator=ASKING, open_runs=("second",))
        left = [(one.digest, one.coordinator) for one in decisions.approvals()]
        assert left == [(bytes([1]) * 32, ASKING), (RUN, ANOTHER), (RUN, ASKING)]
        assert [kind for kind, _ in logged(database)][-2:] == [SiteAct.WITHDRAWN] * 2
        # Asked again, it waits again.
        decisions.ask(Subject.POOL, POOL, terms=self.terms("second"), tally=b"", coordinator=ASKING)
        decisions.withdraw(coordinator=ASKING, open_runs=("second",))
        assert POOL in [one.digest for one in decisions.approvals()]

    def test_nothing_is_forgotten_where_the_names_of_open_runs_may_be_cut_off(
        self, decisions: PeopleDecisions
    ) -> None:
        """Its run would ask again, and each time the audit log would grow."""
        decisions.ask(Subject.RUN, RUN, terms=self.terms("last"), tally=b"", coordinator=ASKING)
        names = tuple(f"run {number}" for number in range(MOST_OPEN_RUNS))
        decisions.withdraw(coordinator=ASKING, open_runs=names)
        assert [one.digest for one in decisions.approvals()] == [RUN]
        decisions.withdraw(coordinator=ASKING, open_runs=names[1:])
        assert decisions.approvals() == ()

    def test_what_people_decided_stays(self, decisions: PeopleDecisions) -> None:
        for digest, decide in ((RUN, decisions.approve), (POOL, decisions.reject)):
            decisions.ask(
                Subject.RUN, digest, terms=self.terms("first"), tally=b"", coordinator=ASKING
            )
            decide(Subject.RUN, digest, coordinator=ASKING, by="A. Meyer")
        before = decisions.approvals()
        decisions.withdraw(coordinator=ASKING, open_runs=())
        assert decisions.approvals() == before


def terms_of(name: str) -> RunTerms:
    return run_terms(
        name=name, pool_digest=POOL, task_digest=bytes(32), classes=2,
        weights=(TeacherWeights.equal(10),) * 3, mechanism="gnmax", sigma2=4.0,
        unit="record", max_asks=12, max_answers=12,
        budgets=(5.0,) * 3, delta=1e-5,
    )  # fmt: skip
