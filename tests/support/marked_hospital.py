"""A hospital's service whose teachers vote histograms, as a process of its own.

Arguments: the site's folder, a folder for what its witness writes down (every packet that enters or
leaves it in the clear), at which of its shares it dies (0 for never) before that is sent, and rows
of votes, such as 3,4,5: a query has the one of its place, from the first again after the last. It
ends when its standard input does.
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
from party.site.party_task import Vote
from party.site.site import Site
from pate_fed.data.task import LearningTask
from pate_fed.queries import QueryBatch
from tests.support.mortal_hospital import VOTED, Fate, Moment, MortalHospital


class MarkedHospital(MortalHospital):
    """A hospital whose histograms are given."""

    def __init__(self, site: Site, *, witness: Path, fate: Fate, rows: NDArray[np.int64]) -> None:
        self._rows = rows
        super().__init__(site, witness=witness, fate=fate)

    def _teachers(self, site: Site, task: LearningTask) -> Vote:
        assert self._rows.shape[1] <= task.classes
        votes = [np.repeat(np.arange(len(row)), row) for row in self._rows]

        def vote(batch: QueryBatch) -> NDArray[np.int64]:
            self._witness.note(VOTED, self._plan)
            return np.stack([votes[place % len(votes)] for place in batch.indices], axis=1)

        return vote


def main(folder: Path, witness: Path, fate: Fate, rows: NDArray[np.int64]) -> None:
    logging.basicConfig(level=logging.DEBUG)
    os.umask(0o077)
    site = Site.open(folder)
    stopped = threading.Event()

    def follow_parent() -> None:
        while sys.stdin.buffer.read(1):
            pass
        stopped.set()

    threading.Thread(target=follow_parent, daemon=True).start()
    serve(MarkedHospital(site, witness=witness, fate=fate, rows=rows), site, stopped=stopped)


if __name__ == "__main__":
    main(
        Path(sys.argv[1]),
        Path(sys.argv[2]),
        Fate(Moment.SHARED, int(sys.argv[3])),
        np.array([row.split(",") for row in sys.argv[4:]], dtype=np.int64),
    )
