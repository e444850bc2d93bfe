"""`pate-party` with a witness at its node's door: ``-m tests.support.witnessed_hospital``.

Arguments: the folder of what the witness writes down, then those of `pate-party`. Its teachers are
its own, trained on its own table.
"""

from __future__ import annotations

import sys
from collections import deque
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from party import service
from party.cli import main
from party.site.tasks import PartyTask
from pate_fed.data.task import LearningTask
from pate_fed.queries import QueryBatch
from protocols import wire
from protocols.messages import Plan
from tests.support.invariants import messages_in
from tests.support.mortal_hospital import RECEIVED, SENT, VOTED, Witness


class PatientWitness(Witness):
    """A witness that keeps in mind what it finds no room for, until there is some."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._unwritten: deque[tuple[bytes, bytes]] = deque()

    def note(self, kind: bytes, body: bytes) -> None:
        """See `Witness.note`."""
        self._unwritten.append((kind, body))
        with suppress(OSError):
            while self._unwritten:
                super().note(*self._unwritten[0])
                self._unwritten.popleft()


def witnessed(folder: Path) -> type[service.PartyService]:
    """Return the service with a witness of what goes through its door."""

    class WitnessedService(service.PartyService):
        def __init__(self, *given: Any, **named: Any) -> None:
            self._witness, self._plan = PatientWitness(folder), b""
            super().__init__(*given, **named)

        def receive(self, packet: bytes, federation: str | None = None) -> bytes:
            self._witness.note(RECEIVED, packet)
            for message in messages_in(packet):
                if isinstance(message, Plan):
                    self._plan = wire.digest_of(message)
            answer = super().receive(packet, federation)
            self._witness.note(SENT, answer)
            return answer

        def _party_task(self, task: LearningTask, *, train: bool) -> PartyTask:
            made = super()._party_task(task, train=train)
            ask = made.vote

            def vote(batch: QueryBatch) -> NDArray[np.int64]:
                self._witness.note(VOTED, self._plan)
                return ask(batch)

            return replace(made, vote=vote)

    return WitnessedService


if __name__ == "__main__":
    service.PartyService = witnessed(Path(sys.argv.pop(1)))  # type: ignore[misc]
    main()
