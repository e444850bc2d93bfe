"""One attempt at a run: only the process that took it up last may write."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import date, datetime

from sqlalchemy import Connection, bindparam, func, select, update
from sqlalchemy.orm import Session

from coordinator.database.federation_database import Database
from coordinator.database.federation_schema import AttemptRow, RunBatchRow, RunRow, RunStepRow
from coordinator.errors import RunDamagedError, RunLockedError

_WAS_SET_UP = select(RunStepRow.attempt).where(RunStepRow.attempt == AttemptRow.number).exists()
"""The first step of a journal is the end of the setup."""

_FENCE = (
    select(RunRow.fence)
    .join(AttemptRow, AttemptRow.number == bindparam("attempt"))
    .where(RunRow.number == bindparam("run"))
    .with_for_update(of=RunRow)
)
_RUN_ID = select(AttemptRow.run_id).where(AttemptRow.number == bindparam("attempt"))
_BEGUN = select(AttemptRow.begun_at).where(AttemptRow.number == bindparam("attempt"))
_CHANGE = update(AttemptRow).where(AttemptRow.number == bindparam("attempt"))
_EARLIER = (
    select(AttemptRow.number, AttemptRow.given_up)
    .where(AttemptRow.run == bindparam("run"), AttemptRow.number < bindparam("attempt"))
    .where(_WAS_SET_UP)
    .order_by(AttemptRow.number)
)
_NEWEST = func.max(AttemptRow.number)
_LAST_SETUPS = (
    select(_NEWEST)
    .where(_WAS_SET_UP, AttemptRow.number != bindparam("attempt"))
    .group_by(AttemptRow.run)
    .order_by(_NEWEST)
)
_LAST_RELEASED = (
    select(func.coalesce(func.max(RunBatchRow.attempt), 0))
    .where(RunBatchRow.run == bindparam("run"), RunBatchRow.release.is_not(None))
    .scalar_subquery()
)
_COUNT = select(func.count()).select_from(AttemptRow).where(AttemptRow.run == bindparam("run"))
_FRUITLESS = _COUNT.where(AttemptRow.number > _LAST_RELEASED, _WAS_SET_UP)
_TRIES = _COUNT.where(AttemptRow.number > _LAST_RELEASED)
_LOST_BY = _COUNT.where(
    AttemptRow.number >= _LAST_RELEASED, AttemptRow.lost_by == bindparam("party")
)


@dataclass(frozen=True, slots=True)
class RunAttempt:
    """The newest attempt of a run, taken up by this process.

    Two processes that hold one run for their own cannot both store: the later one counts, and the
    earlier one fails at its next step, before anything of it leaves.
    """

    database: Database
    run: int
    attempt: int
    fence: int
    _open: list[Connection] = field(default_factory=list, init=False, repr=False, compare=False)

    @classmethod
    def take_up(
        cls, database: Database, row: RunRow, session: Session, *, now: datetime
    ) -> RunAttempt:
        """Become the one who works on a run. An earlier worker of the run can write no more.

        The session must have locked the run. Returns its newest attempt; a fresh one if there is
        none, or that one was given up.
        """
        row.fence += 1
        newest = select(AttemptRow).where(AttemptRow.run == row.number)
        attempt = session.scalar(newest.order_by(AttemptRow.number.desc()).limit(1))
        if attempt is None or attempt.given_up is not None:
            attempt = AttemptRow(run=row.number, run_id=b"", given_up=None, begun_at=now)
            session.add(attempt)
            session.flush()
        return cls(database, row.number, attempt.number, row.fence)

    def earlier(self) -> list[tuple[RunAttempt, str]]:
        """Return the attempts before this one that were set up, oldest first, with their ends."""
        with self.transaction() as connection:
            found = connection.execute(_EARLIER, {"run": self.run, "attempt": self.attempt})
            return [(replace(self, attempt=row.number), row.given_up or "") for row in found]

    def last_setups(self) -> list[RunAttempt]:
        """Return the last attempt of each run that was set up, oldest first, for reading.

        This attempt is left out: of its run the one before is returned.
        """
        with self.transaction() as connection:
            found = connection.scalars(_LAST_SETUPS, {"attempt": self.attempt})
            return [replace(self, attempt=number) for number in found]

    def request_of(self, name: str) -> str:
        """Return the request of any run, canonical JSON."""
        with self.transaction() as connection:
            found = connection.scalar(select(RunRow.request).where(RunRow.name == name))
        if found is None:
            raise RunDamagedError("a run that drew answers must be in the database")
        return found

    def fruitless(self) -> int:
        """Return how often the run was set up since a batch was last released, this time too."""
        with self.transaction() as connection:
            return connection.scalars(_FRUITLESS, {"run": self.run}).one()

    def tries(self) -> int:
        """Return how often the run was offered since a batch was last released, this time too."""
        with self.transaction() as connection:
            return connection.scalars(_TRIES, {"run": self.run}).one()

    def lost_by(self, fingerprint: bytes) -> int:
        """Return how often a hospital lost the run since a batch was last released."""
        with self.transaction() as connection:
            values = {"run": self.run, "party": fingerprint}
            return connection.scalars(_LOST_BY, values).one()

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Run the body as a whole, if the run is still this one's.

        A transaction inside another one is a part of it.

        Raises:
            RunLockedError: another one took it up meanwhile. Nothing is stored.
            RunDamagedError: it is not there any more.
            DatabaseError: it could not be stored: nothing was.
        """
        if self._open:
            yield self._open[-1]
            return
        with self.database.transaction() as connection:
            fence = connection.scalar(_FENCE, {"run": self.run, "attempt": self.attempt})
            if fence is None:
                raise RunDamagedError("a run must be in the database")
            if fence != self.fence:
                raise RunLockedError("a run must be worked on by one process", "another took over")
            self._open.append(connection)
            try:
                yield connection
            finally:
                self._open.pop()

    def begun_on(self) -> date:
        """Return the day, in UTC, on which it was made."""
        with self.transaction() as connection:
            return connection.scalars(_BEGUN, {"attempt": self.attempt}).one().date()

    def run_id(self) -> bytes:
        """Return the id under which it was set up; empty before it was."""
        with self.transaction() as connection:
            return connection.scalars(_RUN_ID, {"attempt": self.attempt}).one()

    def save_run_id(self, run_id: bytes) -> None:
        """Note under which id it is set up."""
        with self.transaction() as connection:
            connection.execute(_CHANGE, {"attempt": self.attempt, "run_id": run_id})

    def give_up(self, reason: str, *, lost_by: bytes = b"") -> None:
        """Note that this attempt came to nothing: who takes the run up next begins another."""
        with self.transaction() as connection:
            values = {"given_up": reason, "lost_by": lost_by}
            connection.execute(_CHANGE, {"attempt": self.attempt, **values})
