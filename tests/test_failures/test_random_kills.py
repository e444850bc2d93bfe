"""Processes of a federation are killed at random moments, hundreds of times, and nothing is lost.

A schedule is drawn from a seed: who dies, at which moment or after how long, and when it is started
again. What the machine makes of it differs from time to time; what must hold does not.
"""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from coordinator.runs.queue import ENDED, RunState
from coordinator.runs.stages import BatchStage
from protocols.forms import Verified
from tests.support.invariants import require_sound
from tests.support.markers import more
from tests.support.mortal_hospital import Fate, Moment
from tests.support.process_federation import DiesAt, ProcessFederation, never, process_federation
from tests.support.worked_tally import require_one_charge

KILLS = 26
"""In each schedule."""

MOST_KILLS_OF_A_RUN = 9
LONGEST_RUN_S = 600.0

pytestmark = pytest.mark.slow


class Schedule:
    """Kills drawn from a seed."""

    def __init__(self, federation: ProcessFederation, seed: str) -> None:
        self._federation = federation
        self._chance = random.Random(seed)  # noqa: S311 - picks who dies
        self._revivals: dict[int, float] = {}
        self.told = [f"seed {seed!r}"]

    def live_through(self, name: str) -> None:
        """Ask a run, and kill whom chance picks until it has ended."""
        federation, before = self._federation, self._federation.kills
        patience_s = self._chance.choice((0.2, 3600.0))
        federation.ask(name, patience_s=patience_s)
        self.told.append(f"{name}, patience {patience_s:g} s")
        deadline = time.monotonic() + LONGEST_RUN_S
        while (run := federation.run(name)).state not in ENDED:
            assert time.monotonic() < deadline, self.told
            if run.state is RunState.PAUSED:  # its patience is over: the operator lets it go on
                self.told.append(f"resumed: {run.reason}")
                federation.coordinator.queue.resume(name)
            self._live_once(kills=federation.kills - before)
        self.told.append(f"{run.state.value}: {run.reason}")

    def _live_once(self, *, kills: int) -> None:
        """Let one coordinator live, and hospitals die beside it.

        Args:
            kills: In this run so far: with each of them lives grow longer, so that a slow machine
                gets to its end, too.
        """
        federation, chance = self._federation, self._chance
        is_calm = kills >= MOST_KILLS_OF_A_RUN
        dies = never if is_calm or chance.random() < 0.4 else self._stage()
        federation.start_coordinator(dies)
        self.told.append(f"a coordinator that dies at {dies}")
        rate = 3.0 / 1.3**kills
        kill_at = time.monotonic() + chance.expovariate(rate)
        while federation.is_working:
            self._revive(is_calm=is_calm)
            if not is_calm and time.monotonic() >= kill_at:
                self._kill()
                kill_at = time.monotonic() + chance.expovariate(rate)
            time.sleep(0.005)
        federation.bury_coordinator()

    def _stage(self) -> DiesAt:
        if self._chance.random() < 0.5:
            return DiesAt(None, self._chance.randrange(1, 40))
        return DiesAt(self._chance.choice(list(BatchStage)), self._chance.randrange(1, 4))

    def _fate(self) -> Fate:
        if self._chance.random() < 0.7:
            return Fate()
        return Fate(self._chance.choice(list(Moment)), self._chance.randrange(1, 5))

    def _kill(self) -> None:
        federation = self._federation
        if federation.tally_life is not None and self._chance.random() < 0.3:
            self.told.append("kill the tally")
            federation.tally_life.kill()
            return
        if self._chance.random() < 0.6:
            self.told.append("kill the coordinator")
            federation.kill_coordinator()
            return
        place = self._chance.choice(sorted(federation.lives))
        self.told.append(f"kill hospital {place}")
        federation.lives[place].kill()

    def _revive(self, *, is_calm: bool) -> None:
        """Start dead hospitals again, after a while, and a dead tally."""
        now = time.monotonic()
        if self._federation.tally_life is not None and not self._federation.is_tallying:
            self._federation.bury_tally()
            self._federation.start_tally()
        for place in self._federation.dead_hospitals():
            due = self._revivals.setdefault(place, now + self._chance.choice((0.0, 0.3)))
            if now >= due or is_calm:
                del self._revivals[place]
                fate = Fate() if is_calm else self._fate()
                self.told.append(f"hospital {place} dies at {fate.number} x {fate.moment}")
                self._federation.bury_hospital(place)
                self._federation.start_hospital(place, fate)


@pytest.mark.parametrize(
    ("form", "seed"),
    [
        ("additive", 0),
        *(more("additive", seed) for seed in range(1, 4)),
        *(more("masked", seed) for seed in range(4)),
        more(Verified.name, 0),
    ],
)
def test_killed_at_random_nothing_is_lost_doubled_or_answered_twice(
    tmp_path: Path, form: str, seed: int
) -> None:
    with process_federation(tmp_path, form) as federation:
        schedule = Schedule(federation, f"{form} {seed}")
        number = 0
        while federation.kills < KILLS:
            name = f"run-{number}"
            federation.make_task(name, seed=1000 * seed + number)
            federation.start_hospitals()
            if federation.tally is not None:
                federation.start_tally()
            schedule.live_through(name)
            seen = federation.look()
            require_sound(seen, note="\n".join(schedule.told))
            federation.require_true_labels(seen)
            if federation.tally is not None:
                require_one_charge(federation.coordinator, federation.tally)
            number += 1
        assert federation.kills >= KILLS
