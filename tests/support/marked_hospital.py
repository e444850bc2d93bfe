"""A hospital's service whose teachers vote a histogram, as a process of its own.

Arguments: the site's folder, a file for every packet that enters or leaves it in the clear, and
the votes of each class on every query. It ends when its standard input does.
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
from party.site.folder import Site
from party.site.tasks import Vote
from pate_fed.data.task import LearningTask
from pate_fed.queries import QueryBatch


class RecordedService(PartyService):
    """A hospital's node, and a file of what passes its door."""

    packets: Path

    def receive(self, packet: bytes, federation: str | None = None) -> bytes:
        """See `PartyService.receive`."""
        answer = super().receive(packet, federation)
        with self.packets.open("ab") as file:
            for one in (packet, answer):
                file.write(len(one).to_bytes(8, "big") + one)
        return answer


def votes_of(counts: tuple[int, ...]) -> Vote:
    """Teachers whose histogram is the same for every query."""
    column = np.repeat(np.arange(len(counts)), counts)

    def vote(batch: QueryBatch) -> NDArray[np.int64]:
        return np.repeat(column[:, None], len(batch), axis=1)

    return vote


def main(folder: Path, packets: Path, counts: tuple[int, ...]) -> None:
    logging.basicConfig(level=logging.DEBUG)
    os.umask(0o077)
    site = Site.open(folder)
    stopped = threading.Event()

    def follow_parent() -> None:
        while sys.stdin.buffer.read(1):
            pass
        stopped.set()

    threading.Thread(target=follow_parent, daemon=True).start()

    def vote_of(_: Site, task: LearningTask) -> Vote:
        assert len(counts) == task.classes
        return votes_of(counts)

    service = RecordedService(site, vote_of=vote_of)
    service.packets = packets
    serve(service, site, stopped=stopped)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), tuple(map(int, sys.argv[3:])))
