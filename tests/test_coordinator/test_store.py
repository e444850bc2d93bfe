"""What the coordinator must not lose."""

from __future__ import annotations

import numpy as np

from coordinator.store import MemoryStore
from pate_fed.accounting import Outcomes
from pate_fed.charging import RunLedger
from pate_fed.releases import NoisyRelease, Outcome
from tests.support.federation import Federation

ONE = Outcomes(1, 1, 1)


def empty_ledger() -> RunLedger:
    return RunLedger.of(Federation().run.terms)


def release(label: int) -> NoisyRelease:
    return NoisyRelease(np.array([label]), np.array([Outcome.ANSWERED], dtype=np.int8))


def test_releases_come_back_in_the_order_of_their_batches() -> None:
    store = MemoryStore(empty_ledger())
    for batch in (2, 0, 1):
        store.save_release(store.ledger(), batch=batch, indices=(batch,), release=release(batch))
    assert list(store.releases()) == [0, 1, 2]
    assert [int(kept.labels[0]) for _, kept in store.releases().values()] == [0, 1, 2]


def test_release_and_its_charge_are_stored_in_one_step() -> None:
    store = MemoryStore(empty_ledger())
    reserved = store.ledger().reserve("batch 0", ONE)
    store.save_ledger(reserved)
    committed = reserved.commit("batch 0", Outcomes(0, 1), release(1).digest)
    store.save_release(committed, batch=0, indices=(4,), release=release(1))
    assert store.ledger() == committed
    [(indices, kept)] = store.releases().values()
    assert (indices, kept.digest) == ((4,), release(1).digest)


def test_what_a_caller_does_to_its_copy_changes_nothing() -> None:
    store = MemoryStore(empty_ledger())
    store.save_release(store.ledger(), batch=0, indices=(4,), release=release(1))
    store.releases().clear()
    assert list(store.releases()) == [0]
