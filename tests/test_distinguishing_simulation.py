"""`simulate` from end to end on two neighboring archives: labels tell no more than the run claims.

21 images teach 21 teachers, one each, so that a teacher always votes for its image's label. The
archives differ in one label: 11 against 10 votes, or 10 against 11. Every query is voted on
alike, so the labels of one large run are as many runs of one query. The claim is the one that a
simulated run of one query writes into `privacy.json`. Seeds are fixed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coordinator.simulation import simulate
from pate_fed.data import DataSource
from pate_fed.lab.canary import epsilon_lower_bound
from pate_fed.mechanisms import sampling
from pate_fed.planning import RunSettings
from protocols.suites import DEFAULT_SUITE
from tests.support.command import labels_in
from tests.support.rules import run_settings

pytestmark = pytest.mark.exhaustive

QUERIES, TEACHERS, SEED = 2000, 21, 3
SIGMA, DELTA = 1.0, 0.3
SURE = 0.9999


def write_images(path: Path, *, first: int) -> Path:
    """Write noise as images, for hospitals, pool and test; `first` of the 21 private are ones."""
    rng = np.random.default_rng(1)
    private = (np.arange(TEACHERS) < first).astype(np.int64)
    arrays: dict[str, Any] = {}
    for name, count in (("train", TEACHERS), ("val", QUERIES), ("test", 100)):
        arrays[f"{name}_images"] = rng.integers(0, 256, size=(count, 8, 8), dtype=np.uint8)
        arrays[f"{name}_labels"] = private if name == "train" else np.arange(count) % 2
    np.savez(path, **arrays)
    return path


def settings(images: Path, **changed: Any) -> RunSettings:
    given: dict[str, Any] = {
        **{"parties": 3, "teachers": 7, "partition": "iid", "select": "random"},
        **{"mechanism": "gnmax", "sigma2": SIGMA, "delta": DELTA, "epsilon": 1e6},
        **{"class_balance": "natural", "queries": QUERIES, "seed": SEED},
    }
    source = DataSource("images", data_file=images)
    return run_settings(source, DEFAULT_SUITE, **{**given, **changed})


def be_silent(*_: object) -> None:
    """Keep the progress to itself."""


@pytest.mark.parametrize("factor", [1.0, 0.7], ids=["the declared noise", "30 % too small"])
def test_labels_of_neighboring_runs_tell_no_more_than_the_run_claims(
    tmp_path: Path, factor: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    worlds = [write_images(tmp_path / f"{first}.npz", first=first) for first in (11, 10)]
    simulate(settings(worlds[0], queries=1), tmp_path / "one", progress=be_silent)
    privacy = json.loads((tmp_path / "one" / "privacy.json").read_text("utf-8"))
    claim = privacy["views"]["public"]["epsilon"]

    drawn = sampling.split_gaussian

    def weaker(shape: Any, *, sigma: float, random_bytes: Any) -> Any:
        return drawn(shape, sigma=factor * sigma, random_bytes=random_bytes)

    monkeypatch.setattr("pate_fed.mechanisms.coordinator_noise.split_gaussian", weaker)
    found = []
    for place, images in enumerate(worlds):
        run = tmp_path / str(place)
        simulate(settings(images), run, progress=be_silent)
        labels = list(labels_in(run).values())
        assert len(labels) == QUERIES
        found.append(labels.count("1"))
    bound = epsilon_lower_bound(*found, QUERIES, delta=DELTA, confidence=SURE)
    print(f"claim {claim:.3f}, bound {bound:.3f}, {found}")
    assert (bound > claim) is (factor < 1)
