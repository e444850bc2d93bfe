"""The model that a federation could have trained privately without votes, to compare with.

Logistic regression by noisy gradients: in each of some steps every privacy unit's gradient is cut
to length 1, all are summed, as a secure sum can, and Gaussian noise is added to the sum. It has
the privacy unit, epsilon and delta of the run beside which it is shown. PATE buys other things: any
kind of teacher, a hospital as unit, and labels that anybody may use for any model.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pate_fed.accounting.gaussian_dp import gdp_mu
from pate_fed.errors import InvalidParameterError

STEPS: Final = 30
RATE: Final = 4.0
"""Steps and their size, chosen on BRFSS, Adult and diabetes130; the last half is averaged."""


class PrivateBaseline:
    """Softmax regression, trained by noisy gradients.

    Args:
        scale: Features are divided by this public length.
        weights: Shape (features + 1, classes).
    """

    def __init__(self, scale: float, weights: NDArray[np.float64]) -> None:
        self._scale, self._weights = scale, weights

    def scores(self, features: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return a score of each class, higher for likelier ones; shape (inputs, classes)."""
        scored: NDArray[np.float64] = _with_one(features / self._scale) @ self._weights
        return scored


def noise_of_steps(*, epsilon: float, delta: float) -> float:
    """Return the standard deviation of the noise on each coordinate of each step's sum.

    Another unit's records move a sum of gradients by at most 2. Gaussian mechanisms compose
    exactly: `STEPS` of them with noise s are mu-GDP for mu = 2 sqrt(STEPS) / s.

    Source:
        Dong, Roth, Su 2022, Gaussian differential privacy. https://arxiv.org/abs/1905.02383
    """
    return 2.0 * math.sqrt(STEPS) / gdp_mu(epsilon, delta)


def train_private_baseline(
    features: NDArray[np.float64],
    labels: NDArray[np.int64],
    units: NDArray[np.int64],
    *,
    classes: int,
    pool: NDArray[np.float64],
    epsilon: float,
    delta: float,
    rng: np.random.Generator,
) -> PrivateBaseline:
    """Train it on records of all hospitals.

    Guarantee: (epsilon, delta) for one unit whose records are replaced by any others, against
    whoever sees all noisy sums, given that noise is drawn from `rng` and real numbers are exact: a
    simulation compares accuracies by it, and releases nothing.

    Args:
        features: Of the records; shape (records, features).
        labels: Their classes; shape (records,).
        units: Number of each record's privacy unit, from 0; shape (records,).
        classes: Number of classes.
        pool: Public inputs, whose mean length scales features; shape (inputs, features).
        epsilon: Above 0.
        delta: Between 0 and 1.
        rng: Draws the noise.

    Source:
        Abadi et al. 2016, Deep learning with differential privacy. https://arxiv.org/abs/1607.00133
    """
    if not len(features) == len(labels) == len(units) > 0:
        raise InvalidParameterError(
            "features, labels and units must be equally many, and some", len(features)
        )
    scale = float(np.sqrt((pool**2).sum(axis=1).mean())) or 1.0
    inputs, truth = _with_one(features / scale), np.eye(classes)[labels]
    sizes = np.bincount(units)[units].astype(np.float64)
    noise = noise_of_steps(epsilon=epsilon, delta=delta)
    weights = np.zeros((inputs.shape[1], classes))
    later = np.zeros_like(weights)
    for step in range(STEPS):
        errors = (_chances(inputs @ weights) - truth) / sizes[:, np.newaxis]
        gradient = _clipped_sum(inputs, errors, units) + rng.normal(0, noise, weights.shape)
        weights = weights - RATE * gradient / (units.max() + 1)
        if step >= STEPS // 2:
            later += weights
    return PrivateBaseline(scale, later / (STEPS - STEPS // 2))


def _clipped_sum(
    inputs: NDArray[np.float64], errors: NDArray[np.float64], units: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Sum the units' gradients, each at most 1 long: the outer products of inputs and errors."""
    total = np.zeros((inputs.shape[1], errors.shape[1]))
    if len(np.unique(units)) == len(units):  # one record each: no gradient need be built
        lengths = np.linalg.norm(inputs, axis=1) * np.linalg.norm(errors, axis=1)
        kept = errors / np.maximum(lengths, 1.0)[:, np.newaxis]
        return np.asarray(total + inputs.T @ kept)
    order = np.argsort(units, kind="stable")
    starts = np.flatnonzero(np.diff(units[order], prepend=-1))
    for rows in np.split(order, starts[1:]):
        gradient = inputs[rows].T @ errors[rows]
        total += gradient / max(float(np.linalg.norm(gradient)), 1.0)
    return total


def _with_one(features: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.column_stack([features, np.ones(len(features))])


def _chances(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))
