"""Logistic regression by noisy gradients: its noise, its sensitivity, what it learns."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm
from sklearn.metrics import roc_auc_score

from pate_fed.errors import InvalidParameterError
from pate_fed.private_baseline import (
    STEPS,
    _clipped_sum,
    noise_of_steps,
    train_private_baseline,
)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.3, 1e-5), (1.0, 1e-5), (3.0, 1e-6)])
def test_the_noise_of_all_steps_is_exactly_what_the_budget_needs(
    epsilon: float, delta: float
) -> None:
    """Against the closed form of one Gaussian mechanism: a sum of all steps' noisy sums is one."""
    noise = noise_of_steps(epsilon=epsilon, delta=delta)
    # All steps together: one vector that another unit's records move by at most 2 sqrt(STEPS).
    moved = 2 * math.sqrt(STEPS) / noise
    reached = norm.cdf(moved / 2 - epsilon / moved) - math.exp(epsilon) * norm.cdf(
        -moved / 2 - epsilon / moved
    )
    assert reached == pytest.approx(delta, rel=1e-6)
    less = moved * 1.05
    assert (
        norm.cdf(less / 2 - epsilon / less)
        - math.exp(epsilon) * norm.cdf(-less / 2 - epsilon / less)
        > 1.05 * delta
    )


def gradients(inputs: np.ndarray, errors: np.ndarray, units: np.ndarray) -> dict[int, np.ndarray]:
    """Each unit's gradient, record by record."""
    found: dict[int, np.ndarray] = {}
    for one, error, unit in zip(inputs, errors, units.tolist(), strict=True):
        found[unit] = found.get(unit, 0) + np.outer(one, error)
    return found


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    records=st.integers(1, 12),
    alone=st.booleans(),
    size=st.sampled_from([1e-3, 1.0, 1e3]),
)
def test_no_unit_moves_a_sum_by_more_than_two(
    seed: int, records: int, alone: bool, size: float
) -> None:
    rng = np.random.default_rng(seed)
    inputs, errors = rng.normal(size=(records, 3)) * size, rng.uniform(-1, 1, size=(records, 2))
    units = rng.permutation(records) if alone else np.sort(rng.integers(0, 3, size=records))
    cut = {
        unit: one / max(1.0, float(np.linalg.norm(one)))
        for unit, one in gradients(inputs, errors, units).items()
    }
    found = _clipped_sum(inputs, errors, units)
    np.testing.assert_allclose(found, sum(cut.values()), atol=1e-9)
    mine = units == units[0]
    other = inputs.copy(), errors.copy()
    other[0][mine], other[1][mine] = 1e6, -1e6
    assert np.linalg.norm(found - _clipped_sum(*other, units)) <= 2 + 1e-9


def made(
    epsilon: float, *, units: np.ndarray | None = None, seed: int = 0, labels: int = 2
) -> float:
    """Train it on a line, and return the area that it lacks beside the true direction."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(3000, 4))
    truth = (features[:, 0] + 0.5 * rng.normal(size=3000) > 0).astype(np.int64)
    model = train_private_baseline(
        features[:2000],
        truth[:2000],
        np.arange(2000) if units is None else units,
        classes=labels,
        pool=features[2000:],
        epsilon=epsilon,
        delta=1e-5,
        rng=np.random.default_rng([seed, 1]),
    )
    scores = model.scores(features[2000:])
    assert scores.shape == (1000, labels)
    best = roc_auc_score(truth[2000:], features[2000:, 0])
    return float(best - roc_auc_score(truth[2000:], scores[:, 1] - scores[:, 0]))


def test_it_learns_and_less_for_less_epsilon() -> None:
    little, much = (
        np.mean([made(epsilon, seed=seed) for seed in range(3)]) for epsilon in (0.01, 1.0)
    )
    assert much < 0.02
    assert little > much + 0.05


def test_a_unit_of_many_records_counts_as_one() -> None:
    """Twenty hospitals as units: noise of the same size beside twenty gradients drowns them."""
    hospitals = np.repeat(np.arange(20), 100)
    assert np.mean([made(1.0, units=hospitals, seed=seed) for seed in range(3)]) > 0.05


def test_records_that_do_not_fit_together_are_refused() -> None:
    with pytest.raises(InvalidParameterError):
        made(1.0, units=np.arange(3))
