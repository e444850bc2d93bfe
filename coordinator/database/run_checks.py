"""The coordinator's end of verified votes in its database: a key for each attempt, and steps.

They are kept for an audit after their run has ended, and then erased. Releases and charges stay.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from sqlalchemy import bindparam, delete, insert, select, update

from coordinator.database.check_rows import SqlCheckJournal, steps_in
from coordinator.database.federation_database import Database
from coordinator.database.federation_schema import (
    AttemptRow,
    CheckStepRow,
    SealingKeyRow,
)
from coordinator.database.run_attempt import RunAttempt
from coordinator.database.run_journal import run_steps_in
from coordinator.errors import RunDamagedError, RunQueueError
from protocols import wire
from protocols.envelope import SealingKey
from protocols.errors import SuiteError
from protocols.rounds.coordinator_journal import PlanOpened, SetupFinished
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
    return _key_of(suite, known.key)


def check_journal_of(run: RunAttempt, plan_digest: bytes) -> SqlCheckJournal:
    """Return the steps of a plan of an attempt. The run's ledger has reserved the batch before."""
    more = {"attempt": run.attempt}
    return SqlCheckJournal(run.transaction, CheckStepRow, plan_digest, more=more)


@dataclass(frozen=True, slots=True)
class StoredCheck:
    """A checked plan's frames, this end's key, and steps: all that an audit of this end needs."""

    record: bytes
    plan: bytes
    key: SealingKey = field(repr=False)
    steps: tuple[CheckStep, ...] = field(repr=False)


def stored_check(database: Database, digits: str) -> StoredCheck:
    """Return the check of the plan whose digest begins with these hexadecimal digits.

    Raises:
        RunQueueError: no checked plan or several begin so, or its key was erased.
        RunDamagedError: the run's journal does not have it.
    """
    every = select(CheckStepRow.plan_digest, CheckStepRow.attempt).distinct()
    with database.transaction() as connection:
        found = [
            row
            for row in connection.execute(every)
            if row.plan_digest.hex().startswith(digits.lower())
        ]
        if len(found) != 1:
            must = "the digits must be those of one checked batch whose audit window is open"
            raise RunQueueError(must, f"{len(found)} batches")
        [(plan_digest, attempt)] = found
        known = connection.execute(_KEY, {"attempt": attempt}).one_or_none()
        steps = run_steps_in(connection, attempt)
        checked = steps_in(connection, CheckStepRow, plan_digest)
    if known is None or known.key is None:
        raise RunQueueError("a batch's key must be there", "one that was erased")
    records = [step.record for step in steps if isinstance(step, SetupFinished)]
    plans = [
        step.plan
        for step in steps
        if isinstance(step, PlanOpened) and wire.decode(step.plan).digest == plan_digest
    ]
    if not (records and plans):
        raise RunDamagedError("a run's journal must have its checked plans")
    return StoredCheck(records[0], plans[0], _key_of(known.suite, known.key), checked)


def erase_checks(database: Database, *, begun_before: datetime) -> int:
    """Erase keys and steps of all setups that began before a moment; return the number of keys.

    In one transaction: with a key and no steps, a batch would get a second coin.
    """
    ended = select(AttemptRow.number).where(AttemptRow.begun_at < begun_before)
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


def _key_of(suite: str, private_bytes: bytes) -> SealingKey:
    try:
        return SealingKey.from_private_bytes(suite, private_bytes)
    except SuiteError as error:
        raise RunDamagedError("the key of a run's votes must be readable") from error
