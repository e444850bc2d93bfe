"""Runs by name: what was asked for, where each stands, and who may write it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from coordinator.database.engine import Database
from coordinator.database.schema import RunRow
from coordinator.errors import RunDamagedError, RunLockedError, RunNameError

_LONGEST_NAME = 64


class RunState(StrEnum):
    """Where a run stands."""

    QUEUED = "queued"
    RUNNING = "running"
    WAITING = "waiting"  # for a party, or for a person: `reason` says for what
    PAUSED = "paused"
    STOPPING = "stopping"
    DONE = "done"
    FAILED = "failed"
    STOPPED = "stopped"

    @property
    def is_over(self) -> bool:
        """Whether nothing more will happen."""
        return self in _OVER


_OVER = (RunState.DONE, RunState.FAILED, RunState.STOPPED)


@dataclass(frozen=True, slots=True)
class RunInfo:
    """A run as its operator sees it.

    Attributes:
        name: What people call it.
        state: Where it stands.
        reason: Why it waits, stopped or failed; may be empty.
        settings: What was asked for.
        run_id: Which run it is to the parties; empty before it was set up.
        created_at: When it was asked for, UTC.
        updated_at: When its state changed last, UTC.
    """

    name: str
    state: RunState
    reason: str
    settings: Mapping[str, Any]
    run_id: bytes
    created_at: datetime
    updated_at: datetime


class RunRecords:
    """All runs of a coordinator.

    Args:
        database: The coordinator's.
        clock: The time, with its zone.
    """

    def __init__(self, database: Database, *, clock: Callable[[], datetime]) -> None:
        self._database = database
        self._clock = clock

    def add(self, name: str, settings: Mapping[str, Any]) -> RunInfo:
        """Queue a run.

        Args:
            name: What people call it; new, and at most 64 characters.
            settings: What is asked for, as JSON keeps it.

        Raises:
            RunNameError: there is one of this name, or it is no name.
            DatabaseError: it could not be stored.
        """
        if not 0 < len(name) <= _LONGEST_NAME or not name.isprintable():
            raise RunNameError(f"a run must have a name of 1 to {_LONGEST_NAME} characters", "none")
        now = self._clock()
        with self._database.transaction() as session:
            if session.scalar(select(RunRow.number).where(RunRow.name == name)) is not None:
                raise RunNameError("a run must have a name of its own", "one that is taken")
            row = RunRow(
                name=name,
                state=RunState.QUEUED.value,
                reason="",
                settings=json.dumps(dict(settings), sort_keys=True),
                fence=0,
                run_id=b"",
                created_at=now,
                updated_at=now,
            )
            session.add(row)
        return _info(row)

    def get(self, name: str) -> RunInfo:
        """Return a run.

        Raises:
            RunNameError: there is none of this name.
        """
        with self._database.transaction() as session:
            return _info(_row(session, name))

    def all(self, *states: RunState) -> tuple[RunInfo, ...]:
        """Return all runs, or those in some states, oldest first."""
        wanted = select(RunRow).order_by(RunRow.number)
        if states:
            wanted = wanted.where(RunRow.state.in_([state.value for state in states]))
        with self._database.transaction() as session:
            return tuple(_info(row) for row in session.scalars(wanted))

    def move(
        self, name: str, state: RunState, *, reason: str = "", only_from: tuple[RunState, ...] = ()
    ) -> RunInfo:
        """Say where a run stands now. What is over stays over.

        Args:
            name: The run.
            state: Where it stands.
            reason: Why, in words for the operator; holds no secret.
            only_from: States that it may be in; none: in any that is not over.

        Raises:
            RunNameError: there is none of this name, or it is in another state.
            DatabaseError: it could not be stored.
        """
        with self._database.transaction() as session:
            row = _row(session, name)
            found = RunState(row.state)
            allowed = found in only_from if only_from else not found.is_over
            if not allowed:
                raise RunNameError(f"run {name} must be one that can be {state.value}", found.value)
            row.state, row.reason, row.updated_at = state.value, reason, self._clock()
            return _info(row)

    def open(self, name: str) -> OpenRun:
        """Become the one who works on a run. Whoever opened it before can write no more.

        Raises:
            RunNameError: there is none of this name.
            DatabaseError: it could not be stored.
        """
        with self._database.transaction() as session:
            row = _row(session, name)
            row.fence += 1
            return OpenRun(self._database, row.number, row.fence)


@dataclass(frozen=True, slots=True)
class OpenRun:
    """A run that this process works on.

    Two processes that hold one run for their own cannot both store: the later one counts, and the
    earlier one fails at its next step, before anything of it leaves.

    Attributes:
        database: Where it is.
        number: `RunRow.number`.
        fence: What the run's fence was when it was opened.
    """

    database: Database
    number: int
    fence: int

    @contextmanager
    def transaction(self) -> Iterator[tuple[Session, RunRow]]:
        """Run what follows as a whole, if the run is still this one's.

        Raises:
            RunLockedError: another one opened it meanwhile. Nothing is stored.
            DatabaseError: it could not be stored: nothing was.
        """
        with self.database.transaction() as session:
            row = session.get(RunRow, self.number, with_for_update=True)
            if row is None:
                raise RunDamagedError("a run must be in the database", "none")
            if row.fence != self.fence:
                raise RunLockedError("a run must be worked on by one process", "another took over")
            yield session, row


def _row(session: Session, name: str) -> RunRow:
    wanted = select(RunRow).where(RunRow.name == name).with_for_update()
    row = session.scalar(wanted)
    if row is None:
        raise RunNameError("a run of this name must be there", "none")
    return row


def _info(row: RunRow) -> RunInfo:
    return RunInfo(
        name=row.name,
        state=RunState(row.state),
        reason=row.reason,
        settings=json.loads(row.settings),
        run_id=row.run_id,
        created_at=_utc(row.created_at),
        updated_at=_utc(row.updated_at),
    )


def _utc(moment: datetime) -> datetime:
    # SQLite keeps no zone: what was written was UTC.
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
