"""What the coordinator must not lose, in every kind of database."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pytest

from coordinator.database import Database, RunStore
from coordinator.database.run_store import BatchState, StoredBatch
from coordinator.runs.queue import RunQueue
from pate_fed.accounting import Outcomes
from pate_fed.charges import RunLedger
from pate_fed.queries import QueryPool
from pate_fed.releases import NoisyRelease, Outcome
from protocols import wire
from protocols.identity import SigningIdentity
from protocols.messages import HeadStatement, Ready
from tests.support import postgres
from tests.support.federation import Federation
from tests.support.markers import sampled

ONE = Outcomes(1, 1)
POOL = QueryPool(np.arange(40.0).reshape(20, 2))
Reopen: TypeAlias = Callable[[], RunStore]


def empty_ledger() -> RunLedger:
    return RunLedger.of(Federation().run.terms)


EMPTY = empty_ledger()


def release(label: int) -> NoisyRelease:
    return NoisyRelease(np.array([label]), np.array([Outcome.ANSWERED], dtype=np.int8))


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
def reopen(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    open_database: Callable[..., Database],
) -> Reopen:
    """Opens the store, as another process would where that can be."""
    if request.param == "memory":
        database = Database.in_memory()
    elif request.param == "sqlite":
        url = f"sqlite:///{tmp_path / 'coordinator.db'}"
        database = open_database(url, is_new=True)
    else:
        cluster: postgres.Cluster = request.getfixturevalue("cluster")
        url = cluster.new_schema()
        database = open_database(url, is_new=True)
    RunQueue(database, clock=lambda: datetime.now(UTC)).add("run", "{}")

    def opened() -> RunStore:
        again = database if request.param == "memory" else open_database(url)
        run = RunQueue(again, clock=lambda: datetime.now(UTC)).take_up("run")
        return RunStore(run, EMPTY, pool=POOL, task_digest=b"t" * 32, members=[b"a" * 32])

    return opened


@pytest.fixture
def store(reopen: Reopen) -> RunStore:
    return reopen()


def test_releases_come_back_in_the_order_of_their_batches(store: RunStore, reopen: Reopen) -> None:
    for batch in (2, 0, 1):
        asked = StoredBatch(batch, (batch,), store.ledger().left)
        store.save_asked(store.ledger(), asked)
        store.save_release(store.ledger(), batch=batch, release=release(batch))
    for each in (store, reopen()):
        assert list(each.releases()) == [0, 1, 2]
        assert [int(kept.labels[0]) for _, kept in each.releases().values()] == [0, 1, 2]


def test_release_and_its_charge_are_stored_in_one_step(store: RunStore, reopen: Reopen) -> None:
    reserved = store.ledger().reserve("batch 0", ONE)
    store.save_asked(reserved, StoredBatch(0, (4,), store.ledger().left))
    committed = reserved.commit("batch 0", Outcomes(1, 1), release(1).digest)
    store.save_release(committed, batch=0, release=release(1))
    for each in (store, reopen()):
        assert each.ledger() == committed
        [(indices, kept)] = each.releases().values()
        assert (indices, kept.digest) == ((4,), release(1).digest)


@sampled()
def test_a_batch_and_what_it_holds_are_stored_in_one_step(store: RunStore, reopen: Reopen) -> None:
    for number in range(2):
        ledger = store.ledger()
        believed = np.full((1, 3), 1 / 3)
        asked = StoredBatch(number, (number,), ledger.left, believed)
        store.save_asked(ledger.reserve(asked.entry_id, ONE), asked)
        for each in (store, reopen()):
            kept = each.asked()[number]
            assert (kept.state, kept.indices, kept.left) == (BatchState.OPEN, (number,), asked.left)
            assert np.array_equal(kept.predictions, believed)  # type: ignore[arg-type]
            assert each.ledger().states[-1].value == "reserved"
        store = reopen()
        settle = store.ledger().cancel if number else store.ledger().forfeit
        store.save_void(settle(asked.entry_id), batch=number, is_freed=bool(number))
        for each in (store, reopen()):
            kept = each.asked()[number]
            ended = BatchState.FREED if number else BatchState.VOID
            assert (kept.state, kept.predictions) == (ended, None)
            assert each.ledger().states[-1].value == ("cancelled" if number else "forfeited")
        store = reopen()
    assert store.releases() == {}


def test_a_release_keeps_the_predictions_that_its_batch_was_asked_with(
    store: RunStore, reopen: Reopen
) -> None:
    """A student's own labels follow from both, after any restart."""
    believed = np.array([[0.1, 0.2, 0.7]])
    asked = StoredBatch(0, (4,), store.ledger().left, believed)
    reserved = store.ledger().reserve("batch 0", ONE)
    store.save_asked(reserved, asked)
    committed = reserved.commit("batch 0", Outcomes(1, 1), release(1).digest)
    store.save_release(committed, batch=0, release=release(1))
    for each in (store, reopen()):
        kept = each.asked()[0]
        assert kept.state is BatchState.RELEASED
        assert np.array_equal(kept.predictions, believed)  # type: ignore[arg-type]


def test_what_is_written_together_is_there_together(store: RunStore, reopen: Reopen) -> None:
    reserved = store.ledger().reserve("batch 0", ONE)
    with store.together():
        store.save_asked(reserved, StoredBatch(0, (4,), store.ledger().left))
        store.save_run_id(b"r" * 32)
        with store.together():  # a part of the first
            store.statements.save({b"a" * 32: b"one"})
    for each in (store, reopen()):
        assert each.ledger() == reserved
        assert (list(each.asked()), each.run_id()) == ([0], b"r" * 32)
        assert each.statements.frames() == {b"a" * 32: b"one"}


def test_a_run_keeps_its_name_among_parties_and_what_they_signed(
    store: RunStore, reopen: Reopen
) -> None:
    assert (store.run_id(), store.statements.frames()) == (b"", {})
    store.save_run_id(b"r" * 32)
    store.statements.save({b"a" * 32: b"one", b"b" * 32: b"two"})
    store.statements.save({b"b" * 32: b"three"})
    for each in (store, reopen()):
        assert each.run_id() == b"r" * 32
        assert each.statements.frames() == {b"a" * 32: b"one", b"b" * 32: b"three"}


def test_a_run_that_is_taken_up_late_brings_back_no_older_counter(
    store: RunStore, reopen: Reopen
) -> None:
    """Rule R4: a hospital's journal that was put back is found out by what it signed last."""
    party = SigningIdentity.generate()

    def head(counter: int) -> bytes:
        statement = HeadStatement(b"r" * 32, party.fingerprint, b"h" * 32, 1, counter)
        return wire.sign(statement, party).frame

    def ready(counter: int) -> bytes:
        statement = Ready(b"r" * 32, party.fingerprint, "setup", b"h" * 32, counter)
        return wire.sign(statement, party).frame

    for newest in (head(60), ready(70), head(80)):
        for frame in (head(10), newest, ready(20), head(10)):
            store.statements.save({party.fingerprint: frame})
        assert store.statements.frames() == {party.fingerprint: newest}
        store = reopen()
        assert store.statements.frames() == {party.fingerprint: newest}


def test_what_a_caller_does_to_its_copy_changes_nothing(store: RunStore) -> None:
    store.save_asked(store.ledger(), StoredBatch(0, (4,), store.ledger().left))
    store.save_release(store.ledger(), batch=0, release=release(1))
    store.releases().clear()
    store.statements.frames()[b"x"] = b"y"
    assert list(store.releases()) == [0]
    assert store.statements.frames() == {}
