"""A federation whose coordinator is killed at chosen points and comes back from its database."""

from __future__ import annotations

import json
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import event, select
from sqlalchemy.exc import OperationalError

from coordinator.database import Database, RunAttempt, RunStore, SqlCoordinatorJournal
from coordinator.database.federation_schema import RunRow
from coordinator.runs.labeling import LabelingJob, LabelingRun
from coordinator.runs.queue import RunQueue
from coordinator.runs.stages import BatchStage
from pate_fed.charges import RunLedger
from pate_fed.mechanisms import keyed_stream
from pate_fed.queries import QueryBatch
from pate_fed.releases import NoisyRelease
from protocols import wire
from protocols.messages import MaskedVector, Settlement
from protocols.values import decode_value
from tests.support.federation import (
    SIGMA,
    TEACHERS,
    Federation,
    expected_class,
    messages,
)

PARTIES = 5
TASK = b"t" * 32
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
BATCHES = ((0, 1, 4), (3, 5), (2, 6))
"""Even queries are agreed on, odd ones are not: of the second batch nothing passes a check."""

THRESHOLD = 750.0
AT_PARTIES = {"noise_place": "parties", "sigma2": SIGMA}
KINDS: dict[str, dict[str, Any]] = {
    "noise at the coordinator": {"vote_threshold": THRESHOLD},
    "noise at the parties": AT_PARTIES,
}


class KilledError(BaseException):
    """The coordinator's process ends here."""


@contextmanager
def failing_commits(database: Database) -> Iterator[None]:
    """Let no transaction be stored: each fails with the last thing that it does."""

    def fail(*_: object) -> None:
        raise OperationalError("COMMIT", {}, OSError("no space left on device"))

    event.listen(database._engine, "commit", fail)
    try:
        yield
    finally:
        event.remove(database._engine, "commit", fail)


def votes_at(place: int) -> Callable[[QueryBatch], NDArray[np.int64]]:
    def vote(batch: QueryBatch) -> NDArray[np.int64]:
        row = [expected_class(index + (place if index % 2 else 0)) for index in batch.indices]
        return np.tile(np.array(row), (TEACHERS, 1))

    return vote


class MortalFederation(Federation):
    """A federation whose coordinator keeps its run in a database.

    Attributes:
        url: Of its database, if there is one; else it makes one in its folder.
        passed: Every stage that any life of the coordinator passed.
        is_fatal: Given the number of stages passed since the last start and the stage, tells
            whether the coordinator dies there.
    """

    def __init__(
        self,
        folder: Path,
        *,
        kind: str,
        form: str,
        opens: bool = True,
        url: str = "",
        **changed: Any,
    ) -> None:
        terms = {**KINDS[kind], **changed.pop("terms", {})}
        named: dict[str, Any] = {
            "parties": PARTIES,
            "votes": {place: votes_at(place) for place in range(PARTIES)},
            "noises": {
                place: keyed_stream(bytes([place] * 32), tag="mortal") for place in range(PARTIES)
            },
        }
        super().__init__(form=form, terms=terms, **{**named, **changed})
        self.folder = folder
        self.url = url or f"sqlite:///{folder / 'coordinator.db'}"
        self._is_new = not url
        self.passed: list[BatchStage] = []
        self.lives = 1
        self.is_fatal: Callable[[int, BatchStage], bool] = lambda number, stage: False
        self._since = 0
        self._noise = keyed_stream(bytes(32), tag="mortal coordinator")
        if opens:
            self.open()

    def open(self) -> None:
        self._connect(is_new=self._is_new).add("run", "{}")
        self._take_up()
        self.run = LabelingRun(self._job)

    @property
    def _job(self) -> LabelingJob:
        return self.job(
            store=self._open_results,
            noise_bytes=self._noise,
            journal=self.journal,
            on_stage=self._note,
        )

    def _connect(self, *, is_new: bool = False) -> RunQueue:
        """Open the database as a process does that starts."""
        self.database = Database(self.url, is_new=is_new)
        weakref.finalize(self, self.database.close)
        self.runs = RunQueue(self.database, clock=lambda: NOON)
        return self.runs

    def _take_up(self) -> None:
        self._attempt = self.runs.take_up("run")
        self.journal = SqlCoordinatorJournal(self._attempt)

    def _disconnect(self) -> None:
        self.database.close()

    def _open_results(self, ledger: RunLedger) -> RunStore:
        self.store: Any = self._store_of(self._attempt, ledger)
        return self.store

    def _store_of(self, attempt: RunAttempt, ledger: RunLedger) -> RunStore:
        members = [each.fingerprint for each in self.identities]
        return RunStore(attempt, ledger, pool=self.pool, task_digest=TASK, members=members)

    def stored(self, ledger: RunLedger) -> RunStore:
        """Read the results as they are in the database; whoever works on the run may go on."""
        with closing(Database(self.url)) as database:
            with database.session() as session:
                [run] = session.scalars(select(RunRow)).all()
                attempt = RunAttempt(database, run.number, self._attempt.attempt, run.fence)
            return self._store_of(attempt, ledger)

    def _note(self, stage: BatchStage) -> None:
        self.passed.append(stage)
        self._since += 1
        if self.is_fatal(self._since, stage):
            raise KilledError

    def bury(self) -> None:
        """Drop all that the dead process had in memory."""
        self._disconnect()
        del self.run, self.store

    def resume(self) -> None:
        """Start a new process of the coordinator."""
        self.lives += 1
        self._since = 0
        self._connect()
        self._take_up()
        try:
            self.run = LabelingRun.resume(self._job)
        except BaseException:
            self._disconnect()
            raise

    def work(self, batches: Sequence[tuple[int, ...]] = BATCHES) -> None:
        """Do what is left of a run; after a restart as its operator would."""
        if self.lives > 1:
            self.run.finish()
        for indices in batches:
            if indices not in self.released:
                self.run.ask(indices)
        self.run.close()

    def live(self, batches: Sequence[tuple[int, ...]] = BATCHES) -> None:
        """Work, die and come back until the run is done."""
        is_dead = False
        while True:
            try:
                if is_dead:
                    self.resume()
                self.work(batches)
            except KilledError:
                if hasattr(self, "run"):
                    self.bury()
                is_dead = True
            else:
                return

    @property
    def released(self) -> dict[tuple[int, ...], NoisyRelease]:
        return dict(self.store.releases().values())

    # What has to be true at the end -----------------------------------------------------------

    @property
    def transcript(self) -> str:
        lines = self.run.round.closing.signed_transcript()
        return "".join(json.dumps(line, sort_keys=True) + "\n" for line in lines)

    def charged(self, place: int) -> list[tuple[Any, ...]]:
        """What a party's ledgers say, without the names of plans, which are each run's own."""
        run = self.run_ledger(place)
        ledgers = [self.nodes[place].ledger, run.own, run.outcomes]
        return [
            (number, each.state, each.reserved, each.spent)
            for number, ledger in enumerate(ledgers)
            for each in ledger.entries
        ]

    def counted(self) -> list[tuple[Any, ...]]:
        """The same of the coordinator's, but for batches that never left it."""
        return [
            (each.state, each.reserved, each.spent)
            for each in self.store.ledger().outcomes.entries
            if each.state.value != "cancelled"
        ]

    def votes_of(self, place: int) -> int:
        """How often a party's teachers were asked."""
        return self.steps[place].count("vote")

    def settlements(self) -> dict[bytes, set[bytes]]:
        """Every settlement that any party was shown, by its plan."""
        found = defaultdict(set)
        for packet in self.transport.packets:
            for message in messages(packet):
                if isinstance(message, Settlement):
                    found[message.plan_digest].add(wire.digest_of(message))
        return found

    def results(self) -> list[Any]:
        """What parties were told was released, in order, each once."""
        found: dict[bytes, Any] = {}
        for packet in self.transport.packets:
            for message in messages(packet):
                if isinstance(message, Settlement) and message.state == "released":
                    found[message.plan_digest] = decode_value(message.result)
        return list(found.values())

    def ys(self) -> dict[tuple[bytes, bytes], set[bytes]]:
        """Every y that any party sent, by its plan and sender."""
        found = defaultdict(set)
        for packet in self.transport.packets:
            for message in messages(packet):
                if isinstance(message, MaskedVector):
                    found[message.plan_digest, message.sender].add(message.body)
        return found
