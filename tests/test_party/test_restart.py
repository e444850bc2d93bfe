"""A party that comes back: with its journal, with an older one, with none (rule R4)."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coordinator.errors import VoidBatchError
from party.storage import Journal, PartyDatabase
from protocols import wire
from protocols.errors import (
    BadSignatureError,
    HistoryError,
    KeyReuseError,
    RestoredJournalError,
    UnexpectedMessageError,
)
from protocols.messages import Plan, Ready, Refusal
from protocols.rounds import PartyState
from tests.support.federation import ready_federation
from tests.support.rounds import EXPIRES_AT, NOW, MemoryRun
from tests.support.stores import plans_in
from tests.support.walk import altered

WORDS = 5
ONES = np.ones(WORDS, dtype=np.int64)


def run_on_disk(folder: Path) -> MemoryRun:
    run = MemoryRun(3, journal=lambda place: opened(folder / f"{place}.db"))
    run.set_up()
    return run


def asked_on_disk(folder: Path) -> tuple[MemoryRun, bytes, bytes]:
    """A run, its first party, and a plan that this one heard."""
    run = run_on_disk(folder)
    me, plan = run.coordinator.seats[0], run.open_plan(WORDS)
    run.to_party("plan", me, plan)
    return run, me, plan


def opened(path: Path) -> Journal:
    """A journal in a database of its own, closed once nobody has it any more."""
    database = PartyDatabase.at(path) if path.exists() else PartyDatabase.create(path)
    journal = Journal(database)
    weakref.finalize(journal, database.close)
    return journal


def closed(journal: Journal) -> Path:
    """End the process that has a journal; return where it is."""
    journal._database.close()
    return journal._database.path


def serve(run: MemoryRun, batch: int) -> None:
    assert np.array_equal(run.sum([ONES] * 3, batch=batch), 3 * ONES)
    run.settle()


def reopened(run: MemoryRun, party: bytes) -> Journal:
    return opened(closed(run.journals[party]))


def gone(run: Any, party: bytes) -> Refusal:
    """What a restarted party says where it can promise nothing about a plan."""
    return Refusal(run.coordinator.run_id, party, "PF-242")


class TestRestarted:
    def test_a_restarted_party_sends_the_very_same_bytes_again(self, tmp_path: Path) -> None:
        run, me, plan = asked_on_disk(tmp_path)
        (sent,) = run.parties[me].contribute(ONES)
        for _ in range(3):
            party = run.restart(me, reopened(run, me))
            assert party.receive(plan, now=NOW).replies == (sent,)
            assert party.receive(plan, now=NOW).event is None  # nothing to vote on again
        run.to_coordinator("y", me, [sent])
        for seat in run.coordinator.seats[1:]:
            run.to_party("plan", seat, plan)
            run.to_coordinator("y", seat, list(run.parties[seat].contribute(ONES)))
        assert np.array_equal(run.coordinator.batch.open_total(), 3 * ONES)

    def test_once_it_is_settled_the_y_is_gone(self, tmp_path: Path) -> None:
        run = run_on_disk(tmp_path)
        me = run.coordinator.seats[0]
        plan = run.open_plan(WORDS)
        for seat, party in run.parties.items():
            run.to_party("plan", seat, plan)
            run.to_coordinator("y", seat, list(party.contribute(ONES)))
        run.coordinator.batch.open_total()
        settlement = run.coordinator.batch.settle(released=True, result=b"")
        party = run.restart(me, reopened(run, me))
        assert party.receive(settlement, now=NOW).replies == ()
        assert run.journals[me].find(wire.decode(plan).digest) is None
        # It sent once, so it cannot promise that it never will: it refuses the run, not the plan.
        for frame in (plan, settlement, plan):
            replies = party.receive(frame, now=NOW).replies
            assert [wire.decode(reply).message for reply in replies] == (
                [] if frame is settlement else [gone(run, me)]
            )
        assert party.state is PartyState.NEW

    def test_an_expired_plan_is_not_answered_again(self, tmp_path: Path) -> None:
        run, me, plan = asked_on_disk(tmp_path)
        run.parties[me].contribute(ONES)
        party = run.restart(me, reopened(run, me))
        with pytest.raises(UnexpectedMessageError):
            party.receive(plan, now=EXPIRES_AT)
        assert run.journals[me].find(wire.decode(plan).digest) is None  # and it is gone
        [reply] = party.receive(plan, now=NOW).replies
        assert wire.decode(reply).message == gone(run, me)  # no promise, but no silence

    def test_who_died_between_begin_and_keep_promises_never_to_send(self, tmp_path: Path) -> None:
        run = run_on_disk(tmp_path)
        me = run.coordinator.seats[0]
        plan = run.open_plan(WORDS)
        digest = wire.decode(plan).digest
        run.journals[me].begin(run_id=run.coordinator.run_id, epoch=1, plan_digest=digest)
        party = run.restart(me, reopened(run, me))
        for _ in range(2):
            (frame,) = party.receive(plan, now=NOW).replies
            refusal = wire.expect(wire.decode(frame), Refusal)
            assert (refusal.subject, refusal.sender, refusal.reason) == (digest, me, "PF-242")
        with pytest.raises(KeyReuseError):
            run.journals[me].keep(digest, (b"y",), expires_at=EXPIRES_AT)
        with pytest.raises(KeyReuseError):
            run.journals[me].begin(run_id=run.coordinator.run_id, epoch=2, plan_digest=digest)

    def test_a_plan_that_nobody_signed_gets_no_stored_y(self, tmp_path: Path) -> None:
        run, me, plan = asked_on_disk(tmp_path)
        run.parties[me].contribute(ONES)
        party = run.restart(me, reopened(run, me))
        with pytest.raises(BadSignatureError):
            party.receive(altered(plan, run.identities[me]), now=NOW)
        other = altered(plan, run.coordinator_identity, terms=b"another")
        (frame,) = party.receive(other, now=NOW).replies
        assert wire.expect(wire.decode(frame), Refusal).subject == wire.decode(other).digest
        assert wire.expect(wire.decode(plan), Plan).words == WORDS

    def test_a_run_goes_on_with_a_party_that_starts_anew_with_new_roots(
        self, tmp_path: Path
    ) -> None:
        run = run_on_disk(tmp_path)
        serve(run, 0)
        run.close()
        for party in list(run.parties):
            run.journals[party] = reopened(run, party)
        run.new_run()
        run.set_up()
        serve(run, 0)
        run.close()
        assert {party.state for party in run.parties.values()} == {PartyState.DONE}


class TestRestartedNode:
    """The whole party: guard, ledger, teachers; what must not happen is a second vote."""

    def test_a_y_that_was_lost_on_the_way_is_kept_and_its_plan_never_begun_again(self) -> None:
        federation = ready_federation()
        federation.on_vectors_of(0, lambda answer: None)
        with pytest.raises(VoidBatchError):
            federation.ask(0, 1)
        old = federation.nodes[0]
        (plan,) = plans_in(old._journal)
        assert old._journal.find(plan) is not None  # it was sent, and lost on the way
        with pytest.raises(KeyReuseError):
            old._journal.begin(run_id=bytes(32), epoch=9, plan_digest=plan)


class TestRestored:
    """Somebody puts a backup of the journal in its place: it would answer everything again."""

    @pytest.fixture
    def run(self, tmp_path: Path) -> MemoryRun:
        run = run_on_disk(tmp_path)
        serve(run, 0)
        run.close()
        return run

    def restored(self, run: MemoryRun, tmp_path: Path) -> Journal:
        """A journal as it was before the run; `run` goes on with it."""
        me = run.coordinator.seats[0]
        closed(run.journals[me]).unlink()
        return opened(tmp_path / "restored.db")

    def test_its_own_signed_counter_stops_it(self, run: MemoryRun, tmp_path: Path) -> None:
        me = run.coordinator.seats[0]
        shown = run.coordinator.statements[me]
        journal = self.restored(run, tmp_path)
        party = run.restart(me, journal)
        with pytest.raises(RestoredJournalError) as caught:
            party.receive(shown, now=NOW)
        assert caught.value.code == "PF-214"
        assert caught.value.shown > caught.value.counter
        assert party.state is PartyState.STOPPED
        # For good: also a new process, in a new run, begins nothing.
        journal = opened(closed(journal))
        with pytest.raises(RestoredJournalError):
            journal.begin(run_id=bytes(32), epoch=1, plan_digest=bytes(32))

    def test_the_true_journal_is_not_stopped(self, run: MemoryRun) -> None:
        me = run.coordinator.seats[0]
        party = run.restart(me, reopened(run, me))
        for _ in range(2):
            assert party.receive(run.coordinator.statements[me], now=NOW).replies == ()
        assert party.state is PartyState.NEW
        run.new_run()
        run.set_up()
        serve(run, 1)

    def test_nobody_can_stop_it_with_a_counter_that_it_did_not_sign(self, run: MemoryRun) -> None:
        me, peer = run.coordinator.seats[:2]
        party = run.restart(me, reopened(run, me))
        true = run.coordinator.statements[me]
        for frame in (
            altered(true, run.coordinator_identity, journal_counter=10**6),
            altered(true, run.identities[peer], journal_counter=10**6),
            altered(true, run.identities[peer], sender=peer, journal_counter=10**6),
        ):
            with pytest.raises((BadSignatureError, UnexpectedMessageError)):
                party.receive(frame, now=NOW)
        assert party.state is PartyState.NEW
        run.journals[me].require_whole()

    def test_its_peers_remember_its_counter(self, run: MemoryRun, tmp_path: Path) -> None:
        """Also where the coordinator would rather have forgotten."""
        me = run.coordinator.seats[0]
        counter = run.journals[me].counter
        run.journals[me] = self.restored(run, tmp_path)
        for peer in run.coordinator.seats[1:]:
            assert 0 < run.journals[peer].witnessed()[me] <= counter
        run.new_run()
        run.coordinator = run.new_coordinator({})
        run.broadcast("offer", run.coordinator.setup.offer.frame)
        record = run.coordinator.setup.make_record(terms=b"", colluders=1, dropouts=0)
        for peer in run.coordinator.seats[1:]:
            with pytest.raises(HistoryError) as caught:
                run.parties[peer].receive(record, now=NOW)
            # The coordinator may have held a newer statement back: it may be at fault as well.
            assert caught.value.pair == (me.hex(), "coordinator")
            assert not caught.value.peer

    def test_an_honest_coordinator_remembers_too(self, run: MemoryRun, tmp_path: Path) -> None:
        me = run.coordinator.seats[0]
        run.journals[me] = self.restored(run, tmp_path)
        run.new_run()
        with pytest.raises(HistoryError) as caught:
            run.broadcast("offer", run.coordinator.setup.offer.frame)
        assert caught.value.peer == me.hex()
        assert me in run.coordinator.missing

    def test_a_lie_about_the_counter_is_seen_at_the_end_by_who_looks(self, run: MemoryRun) -> None:
        """Each statement of a run carries the counter, and none goes back."""
        run.new_run()
        run.set_up()
        serve(run, 1)
        run.close()
        for seat in run.coordinator.seats:
            last = wire.decode(run.coordinator.statements[seat]).message
            assert isinstance(last, Ready)
            assert last.journal_counter <= run.journals[seat].counter
            assert last.journal_counter >= run.journals[seat].counter - 1
