"""Watching a run from the command line, until it ends or rests."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

from coordinator.runs.queue import Run, RunQueue, RunState
from coordinator.runs.run_hospitals import HospitalState
from coordinator.runs.standings import HospitalStanding

_POLL_S: Final = 0.5


def follow(
    queue: RunQueue,
    name: str,
    *,
    tell: Callable[[Run], None],
    look: Callable[[Run], Sequence[HospitalStanding]] = lambda _: (),
    tell_of: Callable[[HospitalStanding], None] = lambda _: None,
    sleep: Callable[[float], None] = time.sleep,
) -> Run:
    """Watch a run until it ends or rests; tell every change of it and of its hospitals' standings.

    A waiting run is offered again and again, and runs for that moment: this is no change.
    """
    last: Run | None = None
    told: dict[str, HospitalStanding] = {}
    while True:
        run = queue.find(name)
        for one in look(run):
            is_news = one.state is not HospitalState.NOT_ASKED or one.hospital in told
            if is_news and told.get(one.hospital) != one:
                tell_of(one)
                told[one.hospital] = one
        if last is None or _has_changed(last, run):
            tell(run)
            last = run
        if run.is_ended or run.state is RunState.PAUSED:
            return run
        sleep(_POLL_S)


def _has_changed(last: Run, now: Run) -> bool:
    if last.progress != now.progress:
        return True
    is_offer = (last.state, now.state) == (RunState.WAITING, RunState.RUNNING)
    return not is_offer and (last.state, last.reason) != (now.state, now.reason)
