"""A run's ledger, batches and releases in the database.

The charge and what it is charged for are one transaction: a release is never there without its
charge, and nothing is shown that is not there. A change writes the rows that it changes.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
from sqlalchemy import insert, select
from sqlalchemy.orm import Session

from coordinator.database.answers import members_digest
from coordinator.database.run_attempt import RunAttempt
from coordinator.database.schema import (
    AnswerRow,
    RunBatchRow,
    RunBudgetRow,
    RunEntryRow,
    SkippedRow,
    StatementRow,
)
from coordinator.database.store import AskedBatch, BatchState, MemoryStore, newer_statements
from coordinator.errors import RunDamagedError
from pate_fed.accounting import OutcomeLedger, Outcomes, PrivacyLedger
from pate_fed.charging import RunLedger
from pate_fed.errors import PateFedError
from pate_fed.mechanisms import FirstPhase
from pate_fed.queries import QueryPool
from pate_fed.releases import NoisyRelease, Outcome

_OUTCOMES_PART = -1
_Part: TypeAlias = PrivacyLedger | OutcomeLedger


class SqlRunStore(MemoryStore):
    """A run in the database, over all its attempts. What it returns is what is stored.

    Args:
        run: The run.
        ledger: The run's, empty: what is stored has to be of the same budgets and caps.
        pool: The public queries.
        task_digest: What is learned, 32 bytes.
        members: Fingerprints of all parties of the run.

    Raises:
        RunLockedError: another process works on it.
        RunDamagedError: what is stored does not fit itself, or is of other terms.
        DatabaseError: it cannot be read or stored.
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
        self._skipped: dict[int, tuple[str, ...]] = {}
        self._pool = pool
        self._task_digest = task_digest
        self._members_digest = members_digest(members)
        with run.transaction() as (session, attempt):
            known = {each.party: each.frame for each in session.scalars(select(StatementRow))}
            super().__init__(ledger, statements=known)
            self._run_id = attempt.run_id
            try:
                self._load(session)
            except (LookupError, TypeError, ValueError, PateFedError) as error:
                raise RunDamagedError("a run's results must be readable", "others") from error

    @contextmanager
    def together(self) -> Iterator[None]:
        """See `RunStore.together`."""
        with self._run.transaction():
            yield

    def save_ledger(self, ledger: RunLedger) -> None:
        """See `RunStore.save_ledger`."""
        with self._run.transaction() as (session, _):
            self._write_ledger(session, ledger)
        super().save_ledger(ledger)

    def save_asked(self, ledger: RunLedger, asked: AskedBatch) -> None:
        """See `RunStore.save_asked`."""
        with self._run.transaction() as (session, _):
            self._write_ledger(session, ledger)
            session.merge(
                RunBatchRow(
                    run=self._run.run,
                    number=asked.number,
                    attempt=self._run.attempt,
                    state=asked.state.value,
                    record=_batch_record(asked),
                )
            )
        self._asked[asked.number] = asked
        super().save_ledger(ledger)

    def save_first_phase(self, batch: int, first: FirstPhase) -> None:
        """See `RunStore.save_first_phase`."""
        with self._run.transaction() as (session, _):
            self._batch(session, batch).first_phase = json.dumps(first.as_record())
        super().save_first_phase(batch, first)

    def save_release(
        self, ledger: RunLedger, *, batch: int, indices: tuple[int, ...], release: NoisyRelease
    ) -> None:
        """See `RunStore.save_release`."""
        with self._run.transaction() as (session, _):
            self._write_ledger(session, ledger)
            self._end_batch(session, batch, BatchState.RELEASED, indices=indices, release=release)
            # Past the object mapper: thousands of queries come at once.
            rows = list(self._answers(batch, indices, release))
            session.connection().execute(insert(AnswerRow), rows)
        super().save_release(ledger, batch=batch, indices=indices, release=release)

    def save_void(self, ledger: RunLedger, *, batch: int, is_freed: bool) -> None:
        """See `RunStore.save_void`."""
        state = BatchState.FREED if is_freed else BatchState.VOID
        with self._run.transaction() as (session, _):
            self._write_ledger(session, ledger)
            self._end_batch(session, batch, state)
        super().save_void(ledger, batch=batch, is_freed=is_freed)

    def save_skipped(self, skipped: Mapping[int, Sequence[str]]) -> None:
        """Note that queries are not asked in this run.

        Args:
            skipped: By position in the pool, names of the parties that would refuse it.
        """
        with self._run.transaction() as (session, _):
            for index, names in skipped.items():
                row = SkippedRow(run=self._run.run, place=index, parties=json.dumps(list(names)))
                session.merge(row)
        self._skipped.update({index: tuple(names) for index, names in skipped.items()})

    def skipped(self) -> dict[int, tuple[str, ...]]:
        """Return what is not asked in this run, as `save_skipped` takes it."""
        return dict(self._skipped)

    def save_run_id(self, run_id: bytes) -> None:
        """See `RunStore.save_run_id`."""
        with self._run.transaction() as (_, attempt):
            attempt.run_id = run_id
        super().save_run_id(run_id)

    def save_statements(self, statements: Mapping[bytes, bytes]) -> None:
        """See `RunStore.save_statements`."""
        with self._run.transaction() as (session, _):
            known = {each.party: each.frame for each in session.scalars(select(StatementRow))}
            newer = newer_statements(known, statements)
            for party, frame in newer.items():
                session.merge(StatementRow(party=party, frame=frame))
        super().save_statements({**known, **newer})

    def __repr__(self) -> str:
        return f"SqlRunStore(batches={len(self._asked)})"

    # Writing ----------------------------------------------------------------------------------

    def _write_ledger(self, session: Session, ledger: RunLedger) -> None:
        """Write the entries that differ from those that are stored."""
        before = dict(_parts(self._ledger))
        for part, after in _parts(ledger):
            for place, record in _changed_entries(before[part], after):
                session.merge(
                    RunEntryRow(run=self._run.run, part=part, number=place, record=record)
                )

    def _batch(self, session: Session, number: int) -> RunBatchRow:
        row = session.get(RunBatchRow, (self._run.run, number))
        if row is None:
            row = RunBatchRow(
                run=self._run.run, number=number, attempt=self._run.attempt, state="", record=""
            )
            session.add(row)
        return row

    def _end_batch(
        self,
        session: Session,
        number: int,
        state: BatchState,
        *,
        indices: tuple[int, ...] = (),
        release: NoisyRelease | None = None,
    ) -> None:
        row, asked = self._batch(session, number), self._asked.get(number)
        if asked is None:  # a release alone, of a batch that was never noted as asked
            asked = AskedBatch(number, indices, Outcomes(0, 0, 0))
        row.state = state.value
        row.record = _batch_record(replace(asked, predictions=None))
        row.release = None if release is None else json.dumps(release.as_record())

    def _answers(
        self, batch: int, indices: tuple[int, ...], release: NoisyRelease
    ) -> Iterator[dict[str, Any]]:
        """Columns of `AnswerRow`, for thousands of queries at once."""
        digests = self._pool.ask(indices).digests
        of_all = {
            "run": self._run.run,
            "batch": batch,
            "pool_digest": self._pool.digest,
            "task_digest": self._task_digest,
            "members_digest": self._members_digest,
        }
        for place, (query, outcome) in enumerate(zip(digests, release.outcomes, strict=True)):
            is_answered = outcome == Outcome.ANSWERED
            yield {
                **of_all,
                "place": place,
                "query_digest": query,
                "label": int(release.labels[place]) if is_answered else None,
                "was_looked_at": bool(outcome != Outcome.NOT_ASKED),
            }

    # Reading ----------------------------------------------------------------------------------

    def _load(self, session: Session) -> None:
        run = self._run.run
        budgets = {part: _budget_of(each) for part, each in _parts(self._ledger)}
        of_run = select(RunBudgetRow).where(RunBudgetRow.run == run)
        stored = {row.part: row.record for row in session.scalars(of_run)}
        if not stored:
            for part, record in budgets.items():
                session.add(RunBudgetRow(run=run, part=part, record=record))
        elif stored != budgets:
            raise RunDamagedError("a run's results must be of its terms", "others")
        self._load_ledger(session)
        batches = select(RunBatchRow).where(RunBatchRow.run == run).order_by(RunBatchRow.number)
        for row in session.scalars(batches):
            self._load_batch(row)
        for each in session.scalars(select(SkippedRow).where(SkippedRow.run == run)):
            self._skipped[each.place] = tuple(json.loads(each.parties))

    def _load_ledger(self, session: Session) -> None:
        entries: dict[int, list[Any]] = {part: [] for part, _ in _parts(self._ledger)}
        wanted = (
            select(RunEntryRow)
            .where(RunEntryRow.run == self._run.run)
            .order_by(RunEntryRow.part, RunEntryRow.number)
        )
        for row in session.scalars(wanted):
            if row.number != len(entries[row.part]):
                raise RunDamagedError("a ledger must have all its entries", "a gap")
            entries[row.part].append(json.loads(row.record))
        ledger = self._ledger
        self._ledger = replace(
            ledger,
            costs=tuple(
                PrivacyLedger.from_record({**cost.to_record(), "entries": entries[part]})
                for part, cost in enumerate(ledger.costs)
            ),
            outcomes=OutcomeLedger.from_record(
                {**ledger.outcomes.to_record(), "entries": entries[_OUTCOMES_PART]}
            ),
        )

    def _load_batch(self, row: RunBatchRow) -> None:
        record = json.loads(row.record)
        indices, predictions = tuple(record["indices"]), record["predictions"]
        self._asked[row.number] = AskedBatch(
            row.number,
            indices,
            Outcomes(*record["left"]),
            None if predictions is None else np.array(predictions, dtype=np.float64),
            BatchState(row.state),
        )
        if row.first_phase is not None:
            self._first_phases[row.number] = FirstPhase.from_record(json.loads(row.first_phase))
        if row.release is not None:
            release = NoisyRelease.from_record(json.loads(row.release))
            self._releases[row.number] = indices, release


def _parts(ledger: RunLedger) -> Iterable[tuple[int, _Part]]:
    yield from enumerate(ledger.costs)
    yield _OUTCOMES_PART, ledger.outcomes


def _budget_of(part: _Part) -> str:
    return json.dumps({**part.to_record(), "entries": []}, sort_keys=True)


def _changed_entries(before: _Part, after: _Part) -> Iterator[tuple[int, str]]:
    """Return place and record of each entry that is new or was settled."""
    if len(after.entries) < len(before.entries):
        raise RunDamagedError("a ledger must keep every entry", "fewer")
    # What is unchanged is the same object, so this compares few.
    places = [
        place
        for place, entry in enumerate(after.entries)
        if place >= len(before.entries) or entry != before.entries[place]
    ]
    if not places:
        return
    entries: Any = tuple(after.entries[place] for place in places)
    records = replace(after, entries=entries).to_record()["entries"]
    assert isinstance(records, list)
    for place, record in zip(places, records, strict=True):
        yield place, json.dumps(record, sort_keys=True)


def _batch_record(asked: AskedBatch) -> str:
    left, predictions = asked.left, asked.predictions
    return json.dumps(
        {
            "indices": list(asked.indices),
            "left": [left.refusals, left.answers, left.asks],
            "predictions": None if predictions is None else predictions.tolist(),
        }
    )
