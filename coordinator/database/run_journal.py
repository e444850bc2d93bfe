"""A run's steps in the database: each is on disk before the frame that follows from it leaves."""

from __future__ import annotations

from sqlalchemy import Connection, bindparam, insert, select

from coordinator.database.federation_schema import RunStepRow
from coordinator.database.run_attempt import RunAttempt
from coordinator.errors import RunDamagedError
from protocols.errors import ProtocolError
from protocols.rounds import CoordinatorJournal
from protocols.rounds.coordinator_journal import (
    HeadsCollected,
    Step,
    step_from_record,
    step_to_record,
)
from protocols.values import decode_value, encode_value

_STEPS = (
    select(RunStepRow.number, RunStepRow.body)
    .where(RunStepRow.attempt == bindparam("attempt"))
    .order_by(RunStepRow.number)
)
_LAST_TWO = (
    select(RunStepRow.body)
    .where(RunStepRow.attempt == bindparam("attempt"))
    .order_by(RunStepRow.number.desc())
    .limit(2)
)
_NEW_STEP = insert(RunStepRow)


class SqlCoordinatorJournal(CoordinatorJournal):
    """The steps of one attempt of a run; see `RunAttempt.transaction` for its faults."""

    def __init__(self, run: RunAttempt) -> None:
        self._run = run
        with run.transaction() as connection:
            self._steps = run_steps_in(connection, run.attempt)

    def append(self, step: Step) -> None:
        """See `CoordinatorJournal.append`."""
        body = encode_value(step_to_record(step))
        row = {"attempt": self._run.attempt, "number": len(self._steps), "body": body}
        with self._run.transaction() as connection:
            connection.execute(_NEW_STEP, row)
        self._steps.append(step)

    def steps(self) -> tuple[Step, ...]:
        """See `CoordinatorJournal.steps`."""
        return tuple(self._steps)


def run_steps_in(connection: Connection, attempt: int) -> list[Step]:
    """Return the steps of an attempt; `RunDamagedError` where they are not whole."""
    rows = connection.execute(_STEPS, {"attempt": attempt}).all()
    if [row.number for row in rows] != list(range(len(rows))):
        raise RunDamagedError("a run's steps must all be there")
    return [_step(row.body) for row in rows]


def unclosed_setups(run: RunAttempt) -> list[SqlCoordinatorJournal]:
    """Return the last other setup of each run, oldest first, unless all hospitals closed it."""
    return [SqlCoordinatorJournal(each) for each in run.last_setups() if not _is_closed(each)]


def _is_closed(run: RunAttempt) -> bool:
    """Tell whether the heads of all hospitals were compared: one of the last two steps says so."""
    with run.transaction() as connection:
        steps = [_step(body) for body in connection.scalars(_LAST_TWO, {"attempt": run.attempt})]
    return any(isinstance(step, HeadsCollected) and all(step.heads) for step in steps)


def _step(body: bytes) -> Step:
    try:
        return step_from_record(decode_value(body))
    except ProtocolError as error:
        raise RunDamagedError("a run's steps must be readable") from error
