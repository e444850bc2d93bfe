"""The coordinator's end of verified votes in its database: a key for each attempt, and steps.

They are kept for an audit after their run has ended, and then erased. Releases and charges stay.
"""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import bindparam, delete, insert, select, update

from coordinator.database.check_rows import SqlCheckJournal, steps_in
from coordinator.database.federation_database import Database
from coordinator.database.federation_schema import (
    ENDED,
    AttemptRow,
    CheckStepRow,
    RunRow,
    SealingKeyRow,
)
from coordinator.database.run_attempt import RunAttempt
from coordinator.errors import RunDamagedError
from protocols.envelope import SealingKey
from protocols.errors import SuiteError
from protocols.verified import CheckStep

_KEY = select(SealingKeyRow.suite, SealingKeyRow.key).where(
    SealingKeyRow.attempt == bindparam("attempt")
)


def sealing_key_of(run: RunAttempt, suite: str) -> SealingKey:
    """Return the key of an attempt for sealed votes; a fresh one is on disk before it is returned.

    Raises:
        RunDamagedError: its key was erased, is of another suite, or cannot be read.
    """
    with run.transaction() as connection:
        known = connection.execute(_KEY, {"attempt": run.attempt}).one_or_none()
        if known is None:
            key = SealingKey(suite)
            row = {"attempt": run.attempt, "suite": suite, "key": key.private_bytes}
            connection.execute(insert(SealingKeyRow), row)
            return key
    if known.key is None or known.suite != suite:
        raise RunDamagedError("the key of a run's votes must be there, of its suite")
    try:
        return SealingKey.from_private_bytes(suite, known.key)
    except SuiteError as error:
        raise RunDamagedError("the key of a run's votes must be readable") from error


def check_journal_of(run: RunAttempt, plan_digest: bytes) -> SqlCheckJournal:
    """Return the steps of a plan of an attempt. The run's ledger has reserved the batch before."""
    more = {"attempt": run.attempt}
    return SqlCheckJournal(run.transaction, CheckStepRow, plan_digest, more=more)


def check_steps_of(database: Database, plan_digest: bytes) -> tuple[CheckStep, ...]:
    """Return the steps of a plan, for a reader beside its run; none where they are erased."""
    with database.transaction() as connection:
        return steps_in(connection, CheckStepRow, plan_digest)


def erase_ended_checks(database: Database, *, ended_before: datetime) -> int:
    """Erase keys and steps of all runs that ended before a moment; return the number of keys."""
    ended = (
        select(AttemptRow.number)
        .join(RunRow, RunRow.number == AttemptRow.run)
        .where(RunRow.state.in_(ENDED), RunRow.updated_at < ended_before)
    )
    with database.transaction() as connection:
        connection.execute(delete(CheckStepRow).where(CheckStepRow.attempt.in_(ended)))
        erased = connection.execute(
            update(SealingKeyRow)
            .where(SealingKeyRow.attempt.in_(ended), SealingKeyRow.key.is_not(None))
            .values(key=None)
        ).rowcount
    if erased:
        database.forget_erased()
    return erased
