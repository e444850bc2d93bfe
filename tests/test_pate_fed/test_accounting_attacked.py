"""Lies that the fold turns around: one vote that raises two counts tells no more than one moved.

Chances here come from an integral of their own.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy
from numpy.typing import NDArray

from pate_fed.accounting.label_bounds import label_rdp
from pate_fed.opened_sums import fold_counts

Table = NDArray[np.float64]
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(40)


def against_one(a: Table, b: Table) -> Table:
    """Return who wins of N(a, 1), N(b, 1) and 0: what a label and the best other count tell."""
    neither = scipy.special.ndtr(-a) * scipy.special.ndtr(-b)
    high = np.maximum(np.maximum(a, b), 0) + 9

    def first(a: Table, b: Table) -> Table:
        low = np.maximum(a - 9, 0)
        x = low[:, np.newaxis] + (high - low)[:, np.newaxis] * (1 + _NODES) / 2
        inside = np.exp(-((x - a[:, np.newaxis]) ** 2) / 2) * scipy.special.ndtr(
            x - b[:, np.newaxis]
        )
        return np.asarray(inside @ _WEIGHTS * (high - low) / 2 / math.sqrt(2 * math.pi))

    return np.column_stack([first(a, b), first(b, a), neither])


def test_a_lie_makes_one_vote_raise_two_counts() -> None:
    """Why the moves below matter: one honest vote goes from class 0 to class 1."""
    lie = np.array([2**31 - 1 - 6, 3, 2, 2])
    before, after = (
        fold_counts(lie + np.array(vote), total_votes=9) for vote in ([1, 0, 0, 0], [0, 1, 0, 0])
    )
    assert (after - before).tolist() == [1, 1, 0, 0]


# Both counts rise, both fall, one moves alone.
TURNED = [(1, 1), (-1, -1), (1, 0), (-1, 0)]


def places(step: float) -> tuple[Table, Table]:
    grid = np.arange(-4.5, 5, step)
    a, b = np.meshgrid(grid, grid)
    return a.ravel(), b.ravel()


@pytest.mark.parametrize(("sigma", "order"), [(1.0, 5.0), (20.0, 2.5)])
def test_a_label_of_turned_votes_tells_less_at_every_order(sigma: float, order: float) -> None:
    a, b = places(0.3)
    before = against_one(a, b)
    [claimed] = label_rdp([order], sigma=sigma)
    worst = 0.0
    for first, second in TURNED:
        after = against_one(a + first / sigma, b + second / sigma)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            moment = (before**order * after ** (1 - order)).sum(axis=1)
        moment = moment[(before.min(axis=1) > 1e-20) & (after.min(axis=1) > 1e-20)]
        worst = max(worst, float(np.log(moment).max()) / (order - 1))
    assert 0.6 * claimed < worst < 0.96 * claimed


@pytest.mark.parametrize("sigma", [0.7, 4.0])
def test_a_label_of_turned_votes_is_worth_less_to_every_reader(sigma: float) -> None:
    """For any value after it that is convex in the likelihood ratio, moved votes are worth more."""
    a, b = places(0.3)
    before, shift = against_one(a, b), math.sqrt(2) / sigma
    gammas = np.exp(np.linspace(-4, 4, 25) * shift)

    def gains(first: int, second: int) -> Table:
        after = against_one(a + first / sigma, b + second / sigma)
        return np.concatenate(
            [
                np.maximum(p[..., np.newaxis] - gammas * q[..., np.newaxis], 0).sum(axis=1)
                - np.maximum(1 - gammas, 0)
                for p, q in ((before, after), (after, before))
            ]
        )

    moved, turned = gains(-1, 1), np.concatenate([gains(*move) for move in TURNED])
    random = np.random.default_rng(1)
    for _ in range(200):
        weights = np.zeros(len(gammas))
        bends = random.integers(0, len(gammas), 3)
        weights[bends] = random.exponential(size=3) / moved.max(axis=0)[bends]
        assert (turned @ weights).max() < 0.95 * (moved @ weights).max()
