"""A hospital's service whose teachers vote a histogram, as a process of its own.

Arguments: the site's folder, a folder for what its witness writes down (every packet that enters or
leaves it in the clear), and the votes of each class on every query. It ends when its standard input
does.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from party.flower.serving import serve
from party.service import PartyService
from party.site.party_task import Vote
from party.site.site import Site
from pate_fed.data.task import LearningTask
from pate_fed.queries import QueryBatch
from protocols import wire
from protocols.messages import Plan
from tests.support.invariants import messages_in
from tests.support.mortal_hospital import RECEIVED, SENT, VOTED, Witness


class WitnessedService(PartyService):
    """A hospital's node with a witness at its door."""

    def __init__(self, site: Site, *, witness: Witness, counts: tuple[int, ...]) -> None:
        self._witness = witness
        self._plan = b""
        self._column = np.repeat(np.arange(len(counts)), counts)
        super().__init__(site, vote_of=self._teachers)

    def receive(self, packet: bytes, federation: str | None = None) -> bytes:
        self._witness.note(RECEIVED, packet)
        for message in messages_in(packet):
            if isinstance(message, Plan):
                self._plan = wire.digest_of(message)
        answer = super().receive(packet, federation)
        self._witness.note(SENT, answer)
        return answer

    def _teachers(self, _: Site, task: LearningTask) -> Vote:
        """Teachers whose histogram is the same for every query."""
        assert self._column[-1] < task.classes

        def vote(batch: QueryBatch) -> NDArray[np.int64]:
            self._witness.note(VOTED, self._plan)
            return np.repeat(self._column[:, None], len(batch), axis=1)

        return vote


def main(folder: Path, witness: Path, counts: tuple[int, ...]) -> None:
    logging.basicConfig(level=logging.DEBUG)
    os.umask(0o077)
    site = Site.open(folder)
    stopped = threading.Event()

    def follow_parent() -> None:
        while sys.stdin.buffer.read(1):
            pass
        stopped.set()

    threading.Thread(target=follow_parent, daemon=True).start()

    service = WitnessedService(site, witness=Witness(witness), counts=counts)
    serve(service, site, stopped=stopped)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), tuple(map(int, sys.argv[3:])))
