"""Composed noisy rows: against laws that are convolved here, and against who attacks best."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.signal import fftconvolve

from pate_fed.accounting.costs import ROWS_METHOD, ROWS_RDP_METHOD
from pate_fed.accounting.counts_composition import rows_epsilon
from pate_fed.accounting.distributed_costs import charged_rows_cost, rows_cost
from pate_fed.accounting.events import DistributedCountsEvent, DistributedGaussianMaxEvent
from pate_fed.accounting.gaussian_dp import gdp_epsilon
from pate_fed.errors import InvalidParameterError

DELTA = 1e-5
LawOfLoss = tuple[float, NDArray[np.float64]]
"""Least loss, and the chances of it and of what lies one, two, ... steps above."""


def noise_law(sigma: float, shares: int) -> NDArray[np.float64]:
    """Convolve the law of all shares, on whole numbers around 0."""
    reach = math.ceil(9 * sigma / math.sqrt(shares)) + 2
    one = np.exp(-(np.arange(-reach, reach + 1.0) ** 2) * shares / (2 * sigma**2))
    total = np.ones(1)
    for _ in range(shares):
        total = np.convolve(total, one / one.sum())
    return np.asarray(total)


def loss_of_count(
    sigma: float, shares: int, moved: int, step: float, rounded: Callable[..., NDArray[np.float64]]
) -> LawOfLoss:
    """Return the law of ln p(X) / p(X - moved), each loss rounded to a multiple of the step."""
    law = noise_law(sigma, shares)
    here, there = law[moved:], law[:-moved]
    seen = here > 1e-25
    losses = rounded(np.log(here[seen] / there[seen]) / step)
    first = losses.min()
    return first * step, np.bincount((losses - first).astype(np.int64), weights=here[seen])


def loss_of_move(sigma: float, shares: int, move: tuple[int, ...], step: float) -> LawOfLoss:
    """Return the law of a row's loss, never more than it is, where its counts move by `move`."""
    least, chances = 0.0, np.ones(1)
    for moved in move:
        low, count = loss_of_count(sigma, shares, moved, step, np.floor)
        least, chances = least + low, fftconvolve(chances, count)
    return least, chances


def gain(law: LawOfLoss, step: float, epsilon: float) -> float:
    """Return the mean of (1 - e^(epsilon - loss))+."""
    least, chances = law
    first = max(0, math.ceil((epsilon - least) / step))
    losses = least + step * np.arange(first, len(chances))
    return float(chances[first:] @ -np.expm1(np.minimum(epsilon - losses, 0)))


def least_epsilon(delta_at: Callable[[float], float]) -> float:
    low, high = 0.0, 200.0
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (low, middle) if delta_at(middle) <= DELTA else (middle, high)
    return low


def composed(law: LawOfLoss, counts: int) -> LawOfLoss:
    least, chances = law
    size = 1 << (counts * len(chances)).bit_length()
    return counts * least, np.fft.irfft(np.fft.rfft(chances, size) ** counts, size)


def partitions(total: int, most: int) -> Iterator[tuple[int, ...]]:
    """Yield the ways to write a number as a sum, largest first."""
    if total == 0:
        yield ()
    for first in range(min(total, most), 0, -1):
        for rest in partitions(total - first, first):
            yield (first, *rest)


def moves(votes: int) -> list[tuple[int, ...]]:
    """List by how much counts move if at most so many votes do; the noise is symmetric."""
    return sorted(
        {
            tuple(sorted(up + down))
            for moved in range(1, votes + 1)
            for up in partitions(moved, moved)
            for down in partitions(moved, moved)
        }
    )


def best_attack(sigma: float, shares: int, *, votes: int, step: float = 5e-4) -> float:
    """Return the epsilon that two rows need against whoever chooses both moves best.

    The move of the second row may depend on all that the first row showed.
    """
    laws = [loss_of_move(sigma, shares, move, step) for move in moves(votes)]
    # What the second row gains at most, at multiples of the step.
    reach = max(len(chances) for _, chances in laws)
    places = np.arange(-reach, reach)
    gains = np.max([gains_at(law, step, places) for law in laws], axis=0)

    def delta_at(epsilon: float) -> float:
        found = []
        for least, chances in laws:
            # Rounded up: the gain falls.
            at = math.ceil(epsilon / step) - round(least / step) - np.arange(len(chances)) + reach
            found.append(float(chances[at < 2 * reach] @ gains[np.maximum(at[at < 2 * reach], 0)]))
        return max(found)

    return least_epsilon(delta_at)


def gains_at(law: LawOfLoss, step: float, places: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return `gain` at these multiples of the step, which are in order."""
    least, chances = law
    losses = least + step * np.arange(len(chances))
    kept = np.append(np.cumsum(chances[::-1])[::-1], 0)
    weighed = np.append(np.cumsum((chances * np.exp(-losses))[::-1])[::-1], 0)
    first = np.clip(places - round(least / step), 0, len(chances))
    return np.maximum(kept[first] - np.exp(np.minimum(step * places, 60)) * weighed[first], 0)


@pytest.mark.parametrize(
    ("sigma", "shares", "rows", "slack"),
    [
        pytest.param(1.0, 1, 1, 1e-3, id="one narrow share"),
        pytest.param(2.0, 4, 1, 3e-3, id="narrow shares"),
        pytest.param(3.0, 9, 4, 3e-3, id="more narrow shares"),
        pytest.param(7.4, 9, 10, 1e-3, id="wider shares"),
    ],
)
def test_epsilon_is_hardly_above_that_of_the_convolved_loss(
    sigma: float, shares: int, rows: int, slack: float
) -> None:
    found = rows_epsilon(sigma, shares, rows=rows, delta=DELTA)
    step = 1e-3 / rows
    below, above = (
        composed(loss_of_count(sigma, shares, 1, step, rounded), 2 * rows)
        for rounded in (np.floor, np.ceil)
    )
    least, most = (least_epsilon(lambda at, law=law: gain(law, step, at)) for law in (below, above))
    assert least <= found <= most * (1 + slack)
    assert most - least < 3e-3


@pytest.mark.parametrize("moved", [1, 2])
@pytest.mark.parametrize("shares", [2, 4, 9])
def test_the_shape_of_a_sum_of_narrow_shares_is_paid_for(shares: int, moved: int) -> None:
    """One row, with no loss rounded; without the price of the shape epsilon would be too small."""
    sigma = math.sqrt(shares) * (1 + 1e-15)
    law = noise_law(sigma, shares)
    here, there = law[moved:], law[:-moved]
    seen = here > 1e-18
    chances, ratios = here[seen], np.log(here[seen] / there[seen])
    both, losses = np.outer(chances, chances), np.add.outer(ratios, ratios)
    exact = least_epsilon(lambda at: float(np.sum(both * -np.expm1(np.minimum(at - losses, 0)))))
    found = rows_epsilon(sigma, shares, rows=1, delta=DELTA, weight=moved)
    assert exact <= found < exact + 2e-3


@pytest.mark.parametrize("weight", [1, 3])
@pytest.mark.parametrize("rows", [30, 500])
@pytest.mark.parametrize("sigma", [7.4, 20.0, 60.0, 900.0])
def test_wide_noise_costs_what_gaussian_noise_costs(sigma: float, rows: int, weight: int) -> None:
    found = rows_epsilon(sigma, 9, rows=rows, delta=DELTA, weight=weight)
    gaussian = gdp_epsilon(math.sqrt(2 * rows) * weight / sigma, DELTA)
    assert found == pytest.approx(gaussian, rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sigma", "shares", "votes"),
    [
        pytest.param(2.0, 2, 1, id="one vote"),
        pytest.param(2.0, 4, 2, id="two votes, narrow shares"),
        pytest.param(3.0, 3, 3, id="three votes"),
    ],
)
def test_nobody_who_chooses_every_rows_move_does_better(
    sigma: float, shares: int, votes: int
) -> None:
    found = rows_epsilon(sigma, shares, rows=2, delta=DELTA, weight=votes)
    attacked = best_attack(sigma, shares, votes=votes)
    assert 0.998 * found < attacked <= found
    # Noise that is too small by a fifth does not keep the promise.
    assert best_attack(0.8 * sigma, 1, votes=votes) > 1.1 * found


def test_epsilon_rises_with_rows_and_votes_and_falls_with_noise_and_delta() -> None:
    def epsilon(sigma: float = 9.0, rows: int = 40, delta: float = DELTA, weight: int = 1) -> float:
        return rows_epsilon(sigma, 9, rows=rows, delta=delta, weight=weight)

    assert epsilon(rows=0) == 0
    for rising in (
        [epsilon(rows=rows) for rows in (1, 2, 3, 39, 40, 41, 1000, 100_000)],
        [epsilon(weight=weight) for weight in (1, 2, 3, 10, 20)],
        [epsilon(sigma=sigma) for sigma in (200.0, 20.0, 9.01, 9.0, 3.3, 3.0)],
        [epsilon(delta=delta) for delta in (0.5, 1e-2, 1e-5, 1e-5 / 2, 1e-100, 1e-250)],
    ):
        assert all(less < more for less, more in pairwise(rising)), rising


def test_what_has_no_bound_is_infinite_and_what_is_senseless_refused() -> None:
    assert rows_epsilon(3.0, 9, rows=5, delta=DELTA, weight=40) == math.inf
    assert rows_epsilon(3.0, 9, rows=5, delta=1e-300) == math.inf
    assert rows_epsilon(2.0**28, 2048, rows=1, delta=0.9) == 0
    for wrong in (
        {"rows": -1},
        {"weight": 0},
        {"weight": 1.5},
        {"delta": 0.0},
        {"sigma": 2.9},
        {"sigma": math.nan},
        {"shares": 0},
    ):
        given = {"sigma": 3.0, "shares": 9, "rows": 5, "delta": DELTA, "weight": 1} | wrong
        with pytest.raises(InvalidParameterError):
            rows_epsilon(**given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "event",
    [
        pytest.param(DistributedGaussianMaxEvent(30, 7.4, 9), id="labels"),
        pytest.param(DistributedCountsEvent(3, 12.0, 9, 2), id="an evaluation"),
    ],
)
def test_rows_are_stated_by_their_composition_and_charged_by_divergence(
    event: DistributedGaussianMaxEvent | DistributedCountsEvent,
) -> None:
    stated, charged = (price(event, delta=DELTA) for price in (rows_cost, charged_rows_cost))
    assert stated.epsilon < 0.94 * charged.epsilon
    assert (stated.method, charged.method) == (ROWS_METHOD, ROWS_RDP_METHOD)
    assert stated.order is None
    assert charged.order is not None
    assert stated.holds_for == charged.holds_for


def test_a_hospital_that_outweighs_the_noise_pays_by_divergence() -> None:
    event = DistributedGaussianMaxEvent(5, 3.0, 9, 40)
    assert rows_cost(event, delta=DELTA) == charged_rows_cost(event, delta=DELTA)
