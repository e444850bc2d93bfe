"""How a run waits: for its hospitals, for its operator, or not at all."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from datetime import UTC, datetime
from typing import Final

from coordinator.errors import RunRequestError, SuspendedError
from coordinator.federation.enrollment import INSIDE, EnrolledParty
from coordinator.runs.labeling import Member
from coordinator.runs.open_run import OpenRun
from coordinator.runs.queue import PAUSE, RunQueue, RunState
from coordinator.runs.request import RunRequest
from coordinator.runs.worker_resources import WorkerResources

_LOOK_S: Final = 1.0
"""While waiting, how often to look whether the operator wants something else."""

_log = logging.getLogger(__name__)


class RunWaits:
    """The states of runs in the queue while they wait, and the end of the waiting.

    Where the operator wants a run paused or stopped, waiting ends by a `HaltedError`.
    """

    class HaltedError(Exception):
        """A run rests or is taken up to end: by the operator's wish, or a member was revoked."""

    def __init__(
        self,
        queue: RunQueue,
        *,
        parties: Callable[[], list[EnrolledParty]],
        resources: WorkerResources,
    ) -> None:
        self._queue = queue
        self._parties = parties
        self._with = resources

    def enter(self, name: str, state: RunState, reason: str = "") -> None:
        """Say where a run stands."""
        if self._queue.enter(name, state, reason).state is RunState.PAUSED:
            raise self.HaltedError

    def wait(self, name: str, reason: str, seconds: float) -> None:
        """Let a run wait, and say why."""
        _log.info("run %s waits: %s", name, reason)
        self.enter(name, RunState.WAITING, reason)
        self.sleep_of(name, stopping=False)(seconds)

    def sleep_of(self, name: str, *, stopping: bool) -> Callable[[float], None]:
        """Return how a run waits: the operator may call it off."""

        def sleep(seconds: float) -> None:
            left = seconds
            while left > 0:
                self._with.wait(min(left, _LOOK_S))
                left -= _LOOK_S
                if not stopping and self.rest_if_wanted(name) is RunState.STOPPING:
                    raise self.HaltedError

        return sleep

    def sleep_for_silent(self, run: OpenRun, *, stopping: bool) -> Callable[[float], None]:
        """Return how a batch waits for hospitals that are silent: it says for whom."""
        sleep = self.sleep_of(run.request.name, stopping=stopping)

        def sleep_and_say(seconds: float) -> None:
            self.require_members(run.request)
            self.require_asked(run.members)
            self.note_presence(run.members, away=run.silent)
            names = ", ".join(one.name for one in run.silent) or "hospitals that do not answer"
            self.enter(run.request.name, RunState.WAITING, f"waits for {names}")
            sleep(seconds)

        return sleep_and_say

    def note_presence(self, members: Iterable[Member], *, away: Collection[Member]) -> None:
        """Note which hospitals of a run are there now, and which are away."""
        missing = {one.identity.fingerprint for one in away}
        there = {one.identity.fingerprint for one in members} - missing
        now = datetime.fromtimestamp(self._with.clock(), UTC)
        self._queue.hospitals.note_presence(there=there, away=missing, now=now)

    def rest_if_wanted(self, name: str) -> RunState:
        """Rest where the operator wants a pause; else return where the run stands."""
        run = self._queue.find(name)
        if run.wanted == PAUSE:
            if self._queue.rest(name):
                raise self.HaltedError
            run = self._queue.find(name)  # the operator said otherwise just now
        return run.state

    def begun_and_paused(self) -> str:
        """Return the name of a run that rests with its hospitals in it; "" if there is none.

        A hospital is in one run at a time: it would leave that one for another, for good.
        """
        runs = self._queue.all()
        rests = (one.name for one in runs if one.is_begun and one.state is RunState.PAUSED)
        return next(rests, "")

    def members(self, request: RunRequest) -> tuple[list[Member], RunRequestError | None]:
        """Return the run's hospitals, and the fault where one of them is put out since."""
        known = {one.identity.fingerprint: one for one in self._parties()}
        members, gone = [], None
        for party in request.parties:
            found = known.get(party.fingerprint)
            if found is None:
                raise RunRequestError(f"{party.name} must be a member")
            if found.state not in INSIDE:
                gone = RunRequestError(f"{party.name} must be a member", found.state)
            node = found.node_id if found.state == "member" else None
            members.append(Member(party.name, found.identity, node=node))
        return members, gone

    def suspended_among(self, members: Iterable[Member]) -> set[bytes]:
        """Return the fingerprints of the hospitals of a run that are suspended."""
        found = {one.identity.fingerprint for one in self._parties() if one.state == "suspended"}
        return found.intersection(one.identity.fingerprint for one in members)

    def suspended(self, members: Iterable[Member]) -> SuspendedError | None:
        """Return the fault where a hospital of a run is suspended."""
        members = list(members)
        found = self.suspended_among(members)
        names = [one.name for one in members if one.identity.fingerprint in found]
        if not names:
            return None
        return SuspendedError("hospitals of a run must not be suspended", ", ".join(names))

    def require_asked(self, members: Iterable[Member]) -> None:
        """Rest where a hospital that is asked was suspended since: taken up again, the run waits.

        Answers that have just come are dropped unread; they are asked for again later.
        """
        if self.suspended(one for one in members if one.node is not None) is not None:
            raise self.HaltedError

    def require_members(self, request: RunRequest) -> None:
        """Rest where a hospital was put out since: taken up again, the run ends."""
        _, gone = self.members(request)
        if gone is not None:
            raise self.HaltedError
