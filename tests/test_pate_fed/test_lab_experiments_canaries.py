"""Trained canaries: one teacher changes, and no bound exceeds a true claim."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pate_fed.data import DataSource, load_dataset
from pate_fed.lab.experiments.canaries import bound_of, canaries, trained_worlds
from pate_fed.mechanisms import GaussianMax


def test_a_wrong_label_changes_one_teacher_and_moves_one_vote() -> None:
    data = load_dataset(DataSource("digits"), rng=np.random.default_rng(3))
    worlds = trained_worlds(data, rng=np.random.default_rng(3), teachers=9)
    assert worlds.changed_teachers == 1
    moved = np.abs(worlds.with_canary - worlds.without).sum(axis=1)
    assert set(moved.tolist()) <= {0, 2}
    assert moved.any()
    few, many = (bound_of(GaussianMax(1.0), worlds, seed=1, trials=n) for n in (200, 2000))
    assert many > few >= 0


@pytest.mark.exhaustive
def test_trained_canaries_stay_below_true_claims_and_refute_the_false_one() -> None:
    found = list(canaries(Path(), range(5), lambda _: None))
    bounds = {one.row.protocol.rpartition("queries, ")[2]: one for one in found[1:]}
    assert len(bounds) == 6
    for name, one in bounds.items():
        is_false = name.startswith("NZC")
        assert (max(one.values) > one.row.epsilon) is is_false, name
    right, weak = (bounds[f"GNMax, {noise}"] for noise in ("sigma 3", "noise 30 % too small"))
    assert min(np.array(weak.values) - np.array(right.values)) > 0
