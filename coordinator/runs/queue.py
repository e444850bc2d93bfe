"""The runs of a federation: their requests, their progress, and the operator's orders.

The command line and the service meet only here, in the database: either may be away.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Final

from sqlalchemy import Select, func, select
from sqlalchemy.orm import Session, defer

from coordinator.database import Database, RunAttempt
from coordinator.database.federation_schema import ENDED, AttemptRow, RunRow, RunState, RunStepRow
from coordinator.errors import RunQueueError, RunRequestError
from coordinator.runs.run_hospitals import RunHospitals
from coordinator.runs.tally_presence import TallyPresence
from pate_fed.nodes import facts

__all__ = ["ENDED", "PAUSE", "Run", "RunQueue", "RunState"]

PAUSE: Final = "pause"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is: counts and released values alone; `queries` is 0 before it is first noted.

    `coordinator.monitoring` tells each number.
    """

    queries: int = 0
    asked: int = 0
    answered: int = 0
    refused: int = 0
    from_store: int = 0
    batches: int = 0
    void: int = 0
    exchanges: int = 0
    epsilon: float = 0.0
    share: float = 0.0
    tests_delta: float = 0.0


@dataclass(frozen=True, slots=True)
class Run:
    """A run as the database knows it.

    Attributes:
        wanted: "pause" if it is to be paused after the current exchange; otherwise "".
        is_begun: Whether hospitals may be in it: its newest offer was not given up.
    """

    number: int
    name: str
    state: RunState
    wanted: str
    reason: str
    is_begun: bool
    progress: Progress
    created_at: datetime
    updated_at: datetime

    @property
    def is_ended(self) -> bool:
        """Whether nobody works on it any more."""
        return self.state in ENDED

    @property
    def has_failed(self) -> bool:
        """Whether it ended before its last query, and not by the operator's word."""
        return self.state in (RunState.FAILED, RunState.INCOMPLETE)

    def as_table(self) -> dict[str, object]:
        """Return the values that `status` shows."""
        return {
            "name": self.name,
            "state": self.state.value,
            "wanted": self.wanted,
            "reason": self.reason,
            "progress": asdict(self.progress),
            "created_at": self.created_at.isoformat(timespec="seconds"),
            "updated_at": self.updated_at.isoformat(timespec="seconds"),
        }


class RunQueue:
    """All runs of a federation.

    A name that no run has, or an order that its state does not allow, is a `RunQueueError`.
    """

    def __init__(self, database: Database, *, clock: Callable[[], datetime]) -> None:
        self._database = database
        self._clock = clock
        self.hospitals = RunHospitals(database)
        self.tally = TallyPresence(database)

    # Anybody ----------------------------------------------------------------------------------

    def all(self) -> list[Run]:
        """Return all runs, oldest first."""
        with self._database.session() as session:
            return _runs(session, _SHOWN.order_by(RunRow.number))

    def page(
        self,
        *,
        states: Collection[RunState] = (),
        name: str = "",
        before: int | None = None,
        most: int = 50,
    ) -> list[Run]:
        """Return some runs, newest first: in one of these states, or in any; of smaller numbers.

        `name` is a part of their names.
        """
        found = _SHOWN.order_by(RunRow.number.desc()).limit(most)
        if states:
            found = found.where(RunRow.state.in_([one.value for one in states]))
        if name:
            found = found.where(RunRow.name.contains(name, autoescape=True))
        if before is not None:
            found = found.where(RunRow.number < before)
        with self._database.session() as session:
            return _runs(session, found)

    def counts(self) -> dict[RunState, int]:
        """Return the number of runs in each state."""
        counted = select(RunRow.state, func.count()).group_by(RunRow.state)
        with self._database.session() as session:
            known = {row[0]: int(row[1]) for row in session.execute(counted)}
        return {state: known.get(state.value, 0) for state in RunState}

    def shares(self) -> dict[int, float]:
        """Return the share of its epsilon that each run has charged or holds, oldest first."""
        found = select(RunRow.number, RunRow.progress).order_by(RunRow.number)
        with self._database.session() as session:
            rows = session.execute(found).all()
        return {row.number: _progress(row.progress).share for row in rows}

    def moments(self) -> dict[int, datetime]:
        """Return when each run was asked for, oldest first."""
        found = select(RunRow.number, RunRow.created_at).order_by(RunRow.number)
        with self._database.session() as session:
            return {row.number: row.created_at for row in session.execute(found)}

    def open_numbers(self) -> set[int]:
        """Return the numbers of the runs that have not ended."""
        with self._database.session() as session:
            return set(session.scalars(select(RunRow.number).where(RunRow.state.not_in(ENDED))))

    def requests(self, *, after: int = 0) -> Iterator[tuple[int, str]]:
        """Return number and request of every run with a larger number; none of them changes."""
        found = select(RunRow.number, RunRow.request).where(RunRow.number > after)
        with self._database.session() as session:
            rows = session.execute(found.order_by(RunRow.number)).all()
        return ((row.number, row.request) for row in rows)

    def find(self, name: str) -> Run:
        """Return a run."""
        with self._database.session() as session:
            return _shown(session, name)

    def request(self, name: str) -> str:
        """Return the request of a run, canonical JSON: its length grows with its queries."""
        with self._database.session() as session:
            found = session.scalar(select(RunRow.request).where(RunRow.name == name))
        if found is None:
            raise _unknown(name)
        return found

    # The operator -----------------------------------------------------------------------------

    def add(self, name: str, request: str) -> Run:
        """Queue a run.

        Raises:
            RunRequestError: the name is taken.
        """
        now = self._clock()
        with self._database.session() as session:
            if session.scalar(select(RunRow.number).where(RunRow.name == name)) is not None:
                raise RunRequestError("a run must have a name of its own", f"{name} again")
            row = RunRow(
                name=name,
                state=RunState.QUEUED.value,
                wanted="",
                reason="",
                request=request,
                progress="{}",
                fence=0,
                waiting_since=None,
                turn=_last_turn(session),
                created_at=now,
                updated_at=now,
            )
            session.add(row)
            session.flush()
            return _shown(session, name)

    def pause(self, name: str) -> Run:
        """Ask that a run rests: now if nobody works on it, or after the current exchange."""

        def change(row: RunRow) -> None:
            match RunState(row.state):
                case RunState.QUEUED:
                    row.state, row.reason = RunState.PAUSED.value, _BY_OPERATOR
                case RunState.RUNNING | RunState.WAITING:
                    row.wanted = PAUSE
                case RunState.PAUSED:
                    pass
                case state:
                    raise RunQueueError("a run that is paused must be open", state.value)

        return self._change(name, change)

    def resume(self, name: str) -> Run:
        """Let a paused run go on."""

        def change(row: RunRow) -> None:
            row.waiting_since = None  # its patience begins anew
            if row.wanted == PAUSE:
                row.wanted = ""
            elif row.state == RunState.PAUSED.value:
                row.state, row.reason = RunState.QUEUED.value, ""
            else:
                raise RunQueueError("a run that is resumed must be paused", row.state)

        return self._change(name, change)

    def stop(self, name: str) -> Run:
        """Ask that a run ends; its releases are kept."""

        def change(row: RunRow) -> None:
            if RunState(row.state) in ENDED:
                raise RunQueueError("a run that is stopped must be open", row.state)
            row.state, row.wanted, row.reason = RunState.STOPPING.value, "", _BY_OPERATOR

        return self._change(name, change)

    # The service ------------------------------------------------------------------------------

    def next(self) -> Run | None:
        """Return the run to work on: first one that ends, then one that has begun, then a new one.

        New runs take turns: one that waits for its hospitals keeps no other back. A run that has
        begun is worked on until it is over, or rests, before any other.
        """
        with self._database.session() as session:
            found = _runs(session, _SHOWN.where(RunRow.state.in_(_OPEN)).order_by(RunRow.turn))
        return min(found, key=_rank, default=None)

    def take_up(self, name: str) -> RunAttempt:
        """Take over the work on a run. An earlier worker of the run can store nothing more."""
        with self._database.session() as session:
            row = _row(session, name)
            row.turn = _last_turn(session)
            return RunAttempt.take_up(self._database, row, session, now=self._clock())

    def enter(self, name: str, state: RunState, reason: str = "") -> Run:
        """Store a run's state; a run that the operator stops meanwhile stays so."""
        before = ""

        def change(row: RunRow) -> None:
            nonlocal before
            before = row.state
            # The operator's order of the meantime holds.
            if row.state in (RunState.STOPPING.value, RunState.PAUSED.value) and state not in ENDED:
                row.reason = reason or row.reason
                return
            row.state, row.reason = state.value, reason
            if state in ENDED or state is RunState.PAUSED:
                row.wanted, row.waiting_since = "", None

        run = self._change(name, change)
        if run.state.value != before:
            _tell_of_state(run, before=RunState(before))
        return run

    def rest(self, name: str) -> bool:
        """Pause a run if that is still wanted; return whether it rests.

        Decided in one transaction: the operator may have resumed it meanwhile.
        """

        def change(row: RunRow) -> None:
            if row.wanted == PAUSE:
                row.state, row.reason = RunState.PAUSED.value, _BY_OPERATOR
                row.wanted, row.waiting_since = "", None

        return self._change(name, change).state is RunState.PAUSED

    def wait_since(self, name: str, *, now: datetime) -> datetime:
        """Note that a run waits for its hospitals; return since when it does, over all restarts."""
        with self._database.session() as session:
            row = _row(session, name)
            if row.waiting_since is None:
                row.waiting_since = now
            return row.waiting_since

    def end_wait(self, name: str) -> None:
        """Note that a run waits for nobody any more."""

        def change(row: RunRow) -> None:
            row.waiting_since = None

        self._change(name, change)

    def note(self, name: str, progress: Progress) -> None:
        """Note a run's progress."""
        before = Progress()

        def change(row: RunRow) -> None:
            nonlocal before
            before = _progress(row.progress)
            row.progress = json.dumps(asdict(progress), sort_keys=True, allow_nan=False)

        self._change(name, change)
        _tell_of_batches(name, before, progress)

    def _change(self, name: str, change: Callable[[RunRow], None]) -> Run:
        with self._database.session() as session:
            row = _row(session, name)
            change(row)
            row.updated_at = self._clock()
            session.flush()
            return _shown(session, name)


def _tell_of_state(run: Run, *, before: RunState) -> None:
    """Log that a run began or ended; the worker logs waits and retries."""
    if run.is_ended:
        known = {"state": run.state.value, "reason": run.reason}
        why = f": {run.reason}" if run.reason else ""
        extra = facts("run done", run=run.name, **known)
        _log.info("run %s is %s%s", run.name, run.state.value, why, extra=extra)
    elif (before, run.state) == (RunState.QUEUED, RunState.RUNNING):
        _log.info("run %s is taken up", run.name, extra=facts("run started", run=run.name))


def _tell_of_batches(name: str, before: Progress, now: Progress) -> None:
    """Log batches that ended since: counts alone."""
    counts = {key: value for key, value in asdict(now).items() if key not in _NOT_LOGGED}
    if now.asked - now.from_store > before.asked - before.from_store:
        extra = facts("batch done", run=name, **counts)
        words = "run %s: a batch is done; %s answered, %s refused of %s so far"
        _log.info(words, name, now.answered, now.refused, now.queries, extra=extra)
    if now.void > before.void:
        extra = facts("batch void", run=name, **counts)
        _log.warning("run %s: a batch is void, %s in all", name, now.void, extra=extra)


_NOT_LOGGED: Final = ("from_store", "exchanges")
_BY_OPERATOR: Final = "by the operator"


_OPEN: Final = (RunState.STOPPING, RunState.RUNNING, RunState.WAITING, RunState.QUEUED)
"""States of the runs that a service works on."""


def _rank(run: Run) -> tuple[int, int]:
    """Order runs that are open; those of one rank stay in the order of their turns."""
    if run.state is RunState.STOPPING:
        return 0, 0
    if run.is_begun:  # hospitals leave it where they are offered another one
        return (2 if run.state is RunState.QUEUED else 1), run.number
    return 3, 0


def _last_turn(session: Session) -> int:
    return (session.scalar(select(func.max(RunRow.turn))) or 0) + 1


_IS_BEGUN: Final = (
    select(RunStepRow.attempt)
    .join(AttemptRow, AttemptRow.number == RunStepRow.attempt)
    .where(AttemptRow.run == RunRow.number, AttemptRow.given_up.is_(None))
    .exists()
)
_SHOWN: Final = select(
    RunRow.number,
    RunRow.name,
    RunRow.state,
    RunRow.wanted,
    RunRow.reason,
    _IS_BEGUN.label("is_begun"),
    RunRow.progress,
    RunRow.created_at,
    RunRow.updated_at,
)
"""Read several times a second, so without the request."""


def _row(session: Session, name: str) -> RunRow:
    # Locked: the row read is the row changed, on a server, too.
    found = select(RunRow).where(RunRow.name == name).options(defer(RunRow.request))
    row = session.scalar(found.with_for_update())
    if row is None:
        raise _unknown(name)
    return row


def _shown(session: Session, name: str) -> Run:
    found = _runs(session, _SHOWN.where(RunRow.name == name))
    if not found:
        raise _unknown(name)
    return found[0]


def _unknown(name: str) -> RunQueueError:
    return RunQueueError("a run must be of this name", f"none called {name}")


def _runs(session: Session, found: Select[*tuple[Any, ...]]) -> list[Run]:
    return [
        Run(**{**row._mapping, "state": RunState(row.state), "progress": _progress(row.progress)})
        for row in session.execute(found)
    ]


def _progress(text: str) -> Progress:
    return Progress(**json.loads(text))
