"""A batch as large as one can be, over real processes and TLS on loopback.

That labels are those of votes and noise is shown for a small one in `test_same_labels`.
"""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from party.site.party_task import Vote
from pate_fed.mechanisms.sampling import split_gaussian
from pate_fed.queries import QueryBatch
from pate_fed.terms import MOST_ASKED
from tests.support.asking import asked_run
from tests.support.deployed import TEACHERS, deployed
from tests.support.seeded_service import noise_of

pytestmark = pytest.mark.exhaustive

QUERIES, SIGMA, KEY = MOST_ASKED, 40.0, bytes(range(32))
CLASSES = tuple(f"class {place}" for place in range(10))


def votes_of(place: int) -> NDArray[np.int64]:
    """What a hospital's teachers say to every query of the pool."""
    rng = np.random.default_rng(place)
    return rng.integers(0, len(CLASSES), size=(TEACHERS, QUERIES), dtype=np.int64)


def teachers_of(place: int) -> Vote:
    votes = votes_of(place)

    def vote(batch: QueryBatch) -> NDArray[np.int64]:
        return votes[:, list(batch.indices)]

    return vote


def test_labels_are_those_of_the_votes_and_of_the_noise(tmp_path: Path) -> None:
    with deployed(tmp_path, rows=QUERIES, measures=10, classes=CLASSES) as federation:
        federation.serve_with_noise(KEY)
        federation.wait_until_served()
        federation.enroll()
        for place, hospital in enumerate(federation.hospitals):
            hospital.teachers = teachers_of(place)
        coordinator = federation.coordinator
        chosen = {"queries": QUERIES, "batch_size": QUERIES, "sigma2": SIGMA, "epsilon": 500.0}
        asked_run(coordinator, "large", federation.task, select="all", **chosen)
        run = federation.wait_for_run("large", states=("done", "failed", "paused"))
        assert (run.state.value, run.reason, run.progress.batches) == ("done", "", 1)
        coordinator.export("large", tmp_path / "out", private=True)
        coordinator.close()
        asked = federation.hospitals[0].asked
        assert all(hospital.asked == asked for hospital in federation.hospitals)

    counts = np.zeros((QUERIES, len(CLASSES)), dtype=np.int64)
    for place in range(len(federation.hospitals)):
        for votes in votes_of(place):
            np.add.at(counts, (np.arange(QUERIES), votes), 1)
    noise, rest = split_gaussian(counts.shape, sigma=SIGMA, random_bytes=noise_of(KEY))
    labels = (counts[asked] + noise + rest).argmax(axis=1)
    with (tmp_path / "out" / "labels.csv").open() as file:
        released = {int(row["query_id"]): row["label"] for row in csv.DictReader(file)}
    assert released == {
        query: CLASSES[label] for query, label in zip(asked, labels.tolist(), strict=True)
    }
    # The noise decides most: votes alone would say otherwise.
    assert np.mean(labels == counts[asked].argmax(axis=1)) < 0.5
