"""A hospital of `benchmarks.deployment`: the real service of a site, its teachers' votes made up.

``python -m benchmarks.deployed_hospital SITE`` serves until its standard input closes.
"""

from __future__ import annotations

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


def votes_of(site: Site, task: LearningTask) -> Vote:
    """Teachers that cost nothing: what is measured is what carries their votes."""
    rng = np.random.default_rng(list(site.membership().settings.party.encode()))

    def vote(batch: QueryBatch) -> NDArray[np.int64]:
        size = (site.settings.teachers, len(batch.indices))
        return rng.integers(0, len(task.class_names), size=size, dtype=np.int64)

    return vote


def main(folder: Path) -> None:
    stopped = threading.Event()

    def follow_parent() -> None:
        while os.read(sys.stdin.fileno(), 1):
            pass
        stopped.set()

    site = Site.open(folder)
    service = PartyService(site, vote_of=votes_of)
    threading.Thread(target=follow_parent, daemon=True).start()
    serve(service, site, stopped=stopped)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
