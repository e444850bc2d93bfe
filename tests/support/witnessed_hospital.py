"""`pate-party` with a witness at its node's door: ``-m tests.support.witnessed_hospital``.

Arguments: the folder of what the witness writes down, then those of `pate-party`. Its teachers are
its own, trained on its own table. Where the variable `MARKED_COUNTS` is set, its counts for an
evaluation are `MARKERS` instead of its own. A student predicts at `TRIED` places, not at all.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from party import service
from party.cli import main
from party.site.party_task import PartyTask
from party.site.ready_tasks import ReadyTasks
from party.site.tasks import read_task
from pate_fed.data.task import LearningTask
from pate_fed.evaluation_task import EvaluationTask
from pate_fed.queries import QueryBatch
from protocols import wire
from protocols.messages import Plan
from tests.support.invariants import messages_in
from tests.support.marker import MARKERS
from tests.support.mortal_hospital import RECEIVED, SENT, VOTED, Witness

MARKED = "MARKED_COUNTS"
TRIED = 40


class PatientWitness(Witness):
    """A witness that keeps in mind what it finds no room for, until there is some."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._unwritten: deque[tuple[bytes, bytes]] = deque()
        self.plan = b""

    def note(self, kind: bytes, body: bytes) -> None:
        self._unwritten.append((kind, body))
        with suppress(OSError):
            while self._unwritten:
                super().note(*self._unwritten[0])
                self._unwritten.popleft()


def watch(folder: Path) -> None:
    """Let services have a witness of what goes through their doors, and of each vote."""
    witness = PatientWitness(folder)

    class WitnessedService(service.PartyService):
        def receive(self, packet: bytes, federation: str | None = None) -> bytes:
            witness.note(RECEIVED, packet)
            for message in messages_in(packet):
                if isinstance(message, Plan):
                    witness.plan = wire.digest_of(message)
            answer = super().receive(packet, federation)
            witness.note(SENT, answer)
            return answer

    class WitnessedTasks(ReadyTasks):
        def _with_teachers(self, task: LearningTask, *, train: bool) -> PartyTask:
            made = super()._with_teachers(task, train=train)

            def vote(batch: QueryBatch) -> NDArray[np.int64]:
                witness.note(VOTED, witness.plan)
                return made.vote(batch)

            return replace(made, vote=vote)

        def _predict(self, task: EvaluationTask) -> Future[PartyTask]:
            return super()._predict(replace(task, places=TRIED))

        def _task(self, pool: bytes, *, train: bool) -> PartyTask | None:
            made, asked = super()._task(pool, train=train), read_task(self._site, pool)
            if made is None or made.evaluation is None or not isinstance(asked, EvaluationTask):
                return made
            count, is_marked = made.evaluation.rows, MARKED in os.environ

            def rows() -> NDArray[np.int64]:
                counted = count()
                if is_marked:
                    counted = np.zeros_like(counted)
                    counted[:, : len(MARKERS)] = MARKERS
                counted[:, -1] += asked.places - counted.sum(axis=1)
                return counted

            known = replace(made.evaluation, places=asked.places, rows=rows)
            return replace(made, pool=asked.pool, evaluation=known)

    changed: Any = service
    changed.PartyService, changed.ReadyTasks = WitnessedService, WitnessedTasks


if __name__ == "__main__":
    watch(Path(sys.argv.pop(1)))
    main()
