"""Processes that come to grief with a coordinator's database: killed, or out of disk.

Each writes what it was told was done to ``acknowledged`` in its folder, a line for each step.
"""

from __future__ import annotations

import resource
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

import numpy as np

from coordinator.database import Database, RunAttempt, RunStore
from coordinator.database.run_store import StoredBatch
from coordinator.errors import DatabaseError
from coordinator.runs.queue import RunQueue
from pate_fed.accounting import Outcomes
from pate_fed.charges import RunLedger
from pate_fed.queries import QueryPool
from pate_fed.releases import NoisyRelease, Outcome
from tests.support.federation import Federation
from tests.support.storage_victim import acknowledging, give_up_rights

MEMBERS = (b"a" * 32, b"b" * 32)
TASK = b"t" * 32
POOL = QueryPool(np.arange(40_000.0).reshape(-1, 2))
CAPS = {"max_asks": 10_000, "max_answers": 10_000}
TERMS = {**CAPS, "mechanism": "gnmax", "sigma2": 4e4}
FILE_LIMIT = 400_000
ONE = Outcomes(1, 1)


def empty_ledger() -> RunLedger:
    return RunLedger.of(Federation(terms=TERMS).run.terms)


def label_of(number: int) -> int:
    return number % 3


def release_of(number: int) -> NoisyRelease:
    return NoisyRelease(np.array([label_of(number)]), np.array([Outcome.ANSWERED], dtype=np.int8))


def opened(database: Database) -> RunStore:
    runs = RunQueue(database, clock=lambda: datetime.now(UTC))
    return store_of(runs.take_up("run"))


def store_of(run: RunAttempt) -> RunStore:
    return RunStore(run, empty_ledger(), pool=POOL, task_digest=TASK, members=MEMBERS)


def release_next(store: RunStore, number: int) -> None:
    """Reserve, charge and release one query."""
    ledger = store.ledger()
    asked = StoredBatch(number, (number,), ledger.left)
    store.save_asked(ledger.reserve(asked.entry_id, ONE), asked)
    release = release_of(number)
    charged = store.ledger().commit(asked.entry_id, ONE, release.digest)
    store.save_release(charged, batch=number, release=release)


def release_for_ever(url: str, folder: Path) -> None:
    """Answer one query after the other until somebody stops it."""
    say = acknowledging(folder / "acknowledged")
    store = opened(Database(url))
    for number in count():
        release_next(store, number)
        say(f"released {number}")


def run_out_of_disk(url: str, folder: Path) -> None:
    """Answer queries until a file may not grow any more, then with room again."""
    say = acknowledging(folder / "acknowledged")
    store = opened(Database(url))
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_LIMIT, hard))
    for number in count():
        try:
            release_next(store, number)
            say(f"released {number}")
        except DatabaseError as error:
            say(f"failed {error.code}")
            break
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    store.save_run_id(b"there is room again")


def open_without_rights(url: str) -> None:
    """Open a database that may be read only; whoever may everything gives that up first."""
    give_up_rights()
    try:
        Database(url)
    except DatabaseError as error:
        print(f"{error.code} {error}")
