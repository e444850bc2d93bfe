"""A run's ledger, batches and releases in the database.

A charge and its release are one transaction: a release is never there without its charge, and
nothing is shown that is not there. A change writes the rows that it changes. The round's own steps
are in a `CoordinatorJournal`.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, Row, bindparam, insert, select, update

from coordinator.database.answers import members_digest
from coordinator.database.federation_schema import AnswerRow, RunBatchRow, SkippedRow
from coordinator.database.ledger_rows import read_ledger, write_ledger
from coordinator.database.run_attempt import RunAttempt
from coordinator.database.statements import Statements
from coordinator.errors import RunDamagedError
from pate_fed.accounting import Outcomes
from pate_fed.charges import RunLedger
from pate_fed.errors import PateFedError
from pate_fed.nodes.database import put
from pate_fed.queries import QueryPool
from pate_fed.releases import NoisyRelease, Outcome

_CHANGE_BATCH = update(RunBatchRow).where(
    RunBatchRow.run == bindparam("of"), RunBatchRow.number == bindparam("batch")
)
_BATCHES = (
    select(RunBatchRow).where(RunBatchRow.run == bindparam("run")).order_by(RunBatchRow.number)
)
_SKIPPED = select(SkippedRow).where(SkippedRow.run == bindparam("run"))
_NEW_ANSWER = insert(AnswerRow)


class BatchState(StrEnum):
    """The state of a batch that was asked."""

    OPEN = "open"
    RELEASED = "released"
    VOID = "void"
    FREED = "freed"  # void, and its queries may be asked again: its sum never opens


@dataclass(frozen=True, slots=True, eq=False)
class StoredBatch:
    """A batch as it was asked.

    Attributes:
        left: Outcomes that the caps still allowed before it was reserved.
        predictions: The student's predictions, if it was asked with them; float64, shape (queries,
            classes). Public.
    """

    number: int
    indices: tuple[int, ...]
    left: Outcomes
    predictions: NDArray[np.float64] | None = field(default=None, repr=False)
    state: BatchState = BatchState.OPEN

    @property
    def entry_id(self) -> str:
        """Its name in the ledger."""
        return f"batch {self.number}"


class RunStore:
    """A run in the database, over all its attempts. It returns the stored state.

    A call returns when its change is on disk; see `RunAttempt.transaction` for its faults.

    Attributes:
        statements: The last journal counter that each party signed, over all runs.

    Raises:
        RunDamagedError: the stored state does not fit itself, or is of other terms.
    """

    def __init__(
        self,
        run: RunAttempt,
        ledger: RunLedger,
        *,
        pool: QueryPool,
        task_digest: bytes,
        members: Collection[bytes],
    ) -> None:
        self._run = run
        self._ledger = ledger
        self._asked: dict[int, StoredBatch] = {}
        self._releases: dict[int, tuple[tuple[int, ...], NoisyRelease]] = {}
        self._skipped: dict[int, tuple[str, ...]] = {}
        self._pool = pool
        self._task_digest = task_digest
        self._members_digest = members_digest(members)
        with run.transaction() as connection:
            self.statements = Statements(run)
            self._run_id = run.run_id()
            try:
                self._load(connection)
            except (LookupError, TypeError, ValueError, PateFedError) as error:
                raise RunDamagedError("a run's results must be readable") from error

    @contextmanager
    def together(self) -> Iterator[None]:
        """Store all that is written inside, here and in the run's journal, or nothing of it."""
        with self._run.transaction():
            yield

    # Writing ----------------------------------------------------------------------------------

    def save_asked(self, ledger: RunLedger, asked: StoredBatch) -> None:
        """Store a batch together with the ledger that holds its worst case, in one step."""
        with self._run.transaction() as connection:
            write_ledger(connection, self._run.run, before=self._ledger, after=ledger)
            row = {
                "run": self._run.run,
                "number": asked.number,
                "attempt": self._run.attempt,
                "state": asked.state.value,
                "record": _batch_record(asked),
            }
            put(connection, RunBatchRow, row)
        self._asked[asked.number] = asked
        self._ledger = ledger

    def save_release(self, ledger: RunLedger, *, batch: int, release: NoisyRelease) -> None:
        """Store a release together with the ledger that was charged for it, in one step."""
        self._end(ledger, batch, BatchState.RELEASED, release)

    def save_void(self, ledger: RunLedger, *, batch: int, is_freed: bool) -> None:
        """Store that a batch is void, together with its ledger; freed, its queries may be asked."""
        self._end(ledger, batch, BatchState.FREED if is_freed else BatchState.VOID, None)

    def save_skipped(self, skipped: Mapping[int, Sequence[str]]) -> None:
        """Note which queries, by position, this run does not ask, and who would refuse them."""
        with self._run.transaction() as connection:
            rows = (
                {"run": self._run.run, "place": index, "parties": json.dumps(list(names))}
                for index, names in skipped.items()
            )
            put(connection, SkippedRow, *rows)
        self._skipped.update({index: tuple(names) for index, names in skipped.items()})

    def save_run_id(self, run_id: bytes) -> None:
        """Note under which id it is set up this time."""
        self._run.save_run_id(run_id)
        self._run_id = run_id

    # Reading ----------------------------------------------------------------------------------

    def ledger(self) -> RunLedger:
        """Return the newest ledger."""
        return self._ledger

    def asked(self) -> dict[int, StoredBatch]:
        """Return each batch that was asked, by its number, in order."""
        return {batch: self._asked[batch] for batch in sorted(self._asked)}

    def releases(self) -> dict[int, tuple[tuple[int, ...], NoisyRelease]]:
        """Return the indices and release of each released batch, by its number, in order."""
        return {batch: self._releases[batch] for batch in sorted(self._releases)}

    def skipped(self) -> dict[int, tuple[str, ...]]:
        """Return the queries that this run does not ask, as `save_skipped` takes them."""
        return dict(self._skipped)

    def run_id(self) -> bytes:
        """Return the id under which it was set up this time; empty before it was."""
        return self._run_id

    # Rows -------------------------------------------------------------------------------------

    def _end(
        self, ledger: RunLedger, batch: int, state: BatchState, release: NoisyRelease | None
    ) -> None:
        with self._run.transaction() as connection:
            ended = _ended(self._asked[batch], state)
            write_ledger(connection, self._run.run, before=self._ledger, after=ledger)
            columns = {
                "state": ended.state.value,
                "record": _batch_record(ended),
                "release": None if release is None else json.dumps(release.as_record()),
            }
            connection.execute(_CHANGE_BATCH, {"of": self._run.run, "batch": batch, **columns})
            if release is not None:
                connection.execute(_NEW_ANSWER, list(self._answers(ended, release)))
        self._ledger = ledger
        self._asked[batch] = ended
        if release is not None:
            self._releases[batch] = ended.indices, release

    def _answers(self, ended: StoredBatch, release: NoisyRelease) -> Iterator[dict[str, object]]:
        """Columns of `AnswerRow`, for thousands of queries at once."""
        digests = self._pool.ask(ended.indices).digests
        of_all = {
            "run": self._run.run,
            "batch": ended.number,
            "pool_digest": self._pool.digest,
            "task_digest": self._task_digest,
            "members_digest": self._members_digest,
        }
        for place, (query, outcome) in enumerate(zip(digests, release.outcomes, strict=True)):
            if outcome == Outcome.NOT_ASKED:  # a simulation's cap on answers
                continue
            is_answered = outcome == Outcome.ANSWERED and release.tallies is None
            yield {
                **of_all,
                "place": place,
                "query_digest": query,
                "label": int(release.labels[place]) if is_answered else None,
            }

    def _load(self, connection: Connection) -> None:
        run = self._run.run
        self._ledger = read_ledger(connection, run, empty=self._ledger)
        for row in connection.execute(_BATCHES, {"run": run}):
            self._load_batch(row)
        for each in connection.execute(_SKIPPED, {"run": run}):
            self._skipped[each.place] = tuple(json.loads(each.parties))

    def _load_batch(self, row: Row[Any]) -> None:
        record = json.loads(row.record)
        indices, predictions = tuple(record["indices"]), record["predictions"]
        self._asked[row.number] = StoredBatch(
            row.number,
            indices,
            Outcomes(*record["left"]),
            None if predictions is None else np.array(predictions, dtype=np.float64),
            BatchState(row.state),
        )
        if row.release is not None:
            release = NoisyRelease.from_record(json.loads(row.release))
            self._releases[row.number] = indices, release


def _ended(asked: StoredBatch, state: BatchState) -> StoredBatch:
    """Return a batch in its last state. Reinforced labels follow from a release's predictions."""
    kept = asked.predictions if state is BatchState.RELEASED else None
    return replace(asked, state=state, predictions=kept)


def _batch_record(asked: StoredBatch) -> str:
    left, predictions = asked.left, asked.predictions
    return json.dumps(
        {
            "indices": list(asked.indices),
            "left": [left.asks, left.answers],
            "predictions": None if predictions is None else predictions.tolist(),
        }
    )
