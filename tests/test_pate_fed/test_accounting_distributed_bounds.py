"""The label under summed discrete noise: against every small vote, and a full enumeration."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from pate_fed.accounting import lattice_maximum
from pate_fed.accounting.curves import event_charged_rdp, event_label_rdp, event_rdp
from pate_fed.accounting.distributed_bounds import distributed_label_rdp
from pate_fed.accounting.distributed_law import distributed_row_rdp
from pate_fed.accounting.events import DistributedGaussianMaxEvent
from pate_fed.accounting.label_bounds import label_rdp
from pate_fed.errors import InvalidParameterError
from tests.support.exact_argmax import histograms, one_vote_neighbors
from tests.support.markers import sampled
from tests.support.summed_noise import (
    label_law,
    moment_divergence,
    moves,
    summed_mass,
)

ORDERS = np.array([1.2, 2.0, 5.0, 12.0])
SETTINGS = [
    pytest.param(2.0, 4, id="four shares of 1"),
    pytest.param(1.5, 1, id="one share"),
    pytest.param(4.0, 10, id="ten of 1.6"),
]


@sampled("classes", "sigma", "shares")
@pytest.mark.parametrize(("sigma", "shares"), SETTINGS)
@pytest.mark.parametrize("classes", [2, 3, 4])
def test_no_votes_make_the_label_cost_more(sigma: float, shares: int, classes: int) -> None:
    mass = summed_mass(sigma, shares)
    bound = distributed_label_rdp(ORDERS, sigma=sigma, shares=shares)
    most = np.zeros(len(ORDERS))
    votes = {2: 30, 3: 12, 4: 7}[classes]
    for counts in histograms(votes, classes):
        law = label_law(counts, mass)
        for other in one_vote_neighbors(counts):
            changed = label_law(other, mass)
            found = [moment_divergence(law, changed, order) for order in ORDERS]
            most = np.maximum(most, found)
    assert (most <= bound * (1 + 1e-9)).all()
    assert (most >= 0.9 * bound)[:2].all()


def enumerated_moment(sigma: float, shares: int, order: float, *, moved: int, window: int) -> float:
    """Largest E over all |A|, |B| <= window and all ties, from the laws written out."""
    mass = summed_mass(sigma, shares)
    n = len(mass) // 2
    padded = np.concatenate([[0.0], np.cumsum(mass)])

    def below(y: NDArray[np.int64]) -> NDArray[np.float64]:
        return padded[np.clip(y + n + 1, 0, len(mass))]

    x = np.arange(0, window + n + moved + 1)
    side = np.arange(-window - moved, window + moved + 1)
    p = np.where(np.abs(x - side[:, None]) <= n, mass[np.clip(x - side[:, None] + n, 0, 2 * n)], 0)
    largest = 0.0
    for first, i_ties, j_ties in ((1, 1, 1), (0, 1, 1), (1, 1, 0), (0, 0, 1)):
        f_i, f_j = below(x - side[:, None] - 1 + first), below(x - side[:, None] - first)
        i_wins = (p * (x >= 1 - i_ties)) @ f_i.T
        j_wins = f_j @ (p * (x >= 1 - j_ties)).T
        neither = below(-i_ties - side)[:, None] * below(-j_ties - side)
        law = np.stack([i_wins, j_wins, neither])
        inner = slice(moved, -moved)
        here, there = law[:, inner, inner], law[:, : -2 * moved, 2 * moved :]
        with np.errstate(all="ignore"):
            ratio = np.log(here / there)
            terms = np.where(
                here > 1e-200,
                here * (np.expm1((order - 1) * ratio) + (order - 1) * np.expm1(-ratio)),
                0,
            )
        total = terms.sum(axis=0)
        largest = max(largest, float(total[np.isfinite(total)].max()))
    return largest


@sampled("order", "sigma", "moved", cases=7)
@pytest.mark.parametrize(
    ("sigma", "shares", "moved"),
    [(2.0, 4, 1), (3.0, 2, 1), (5.0, 10, 1), (5.0, 10, 2), (4.0, 3, 3)],
)
@pytest.mark.parametrize("order", [1.3, 2.0, 4.0, 8.0])
def test_the_certified_label_is_the_maximum_of_a_full_enumeration(
    sigma: float, shares: int, moved: int, order: float
) -> None:
    bound = distributed_label_rdp([order], sigma=sigma, shares=shares, weight=moved)[0]
    cap = distributed_row_rdp([order], sigma=sigma, shares=shares, weight=moved)[0]
    window = math.ceil(6 * sigma + (order - 1) * moved)
    moment = enumerated_moment(sigma, shares, order, moved=moved, window=window)
    found = min(math.log1p(moment) / (order - 1), cap)
    assert found <= bound * (1 + 1e-9)
    assert bound <= found * (1 + 2 * lattice_maximum.TOLERANCE)


@sampled("classes")
@pytest.mark.parametrize("classes", [3, 4])
def test_no_move_of_several_votes_over_several_classes_makes_the_label_cost_more(
    classes: int,
) -> None:
    sigma, shares, weight = 2.5, 4, 2
    mass = summed_mass(sigma, shares)
    bound = distributed_label_rdp(ORDERS, sigma=sigma, shares=shares, weight=weight)
    numbers = np.random.default_rng(5)
    for _ in range(40):
        counts = numbers.integers(0, 9, classes)
        law = label_law(counts, mass)
        for move in moves(classes, weight):
            changed = label_law(counts + move, mass)
            found = [moment_divergence(law, changed, order) for order in ORDERS]
            assert (found <= bound * (1 + 1e-9)).all()


def test_for_much_noise_the_prices_are_those_of_gaussian_noise() -> None:
    orders = np.array([1.5, 4.0, 16.0])
    label = distributed_label_rdp(orders, sigma=24.0, shares=30)
    assert label == pytest.approx(label_rdp(orders, sigma=24.0), rel=1e-3)


def test_where_nothing_is_certified_the_price_of_the_row_holds() -> None:
    large = distributed_label_rdp([4.0], sigma=400.0, shares=30)
    assert large == pytest.approx(distributed_row_rdp([4.0], sigma=400.0, shares=30))
    steep = distributed_label_rdp([200.0], sigma=4.0, shares=4)
    assert steep == pytest.approx(distributed_row_rdp([200.0], sigma=4.0, shares=4))


def test_a_proof_that_fails_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(orders: NDArray[np.float64], *args: object, **kwargs: object) -> NDArray[np.float64]:
        return np.full(len(orders), np.inf)

    module = "pate_fed.accounting.distributed_bounds"
    monkeypatch.setattr(f"{module}.largest_label_moments", fails)
    price = distributed_label_rdp([3.25], sigma=6.5, shares=7)
    assert price == pytest.approx(distributed_row_rdp([3.25], sigma=6.5, shares=7))


def test_events_cost_each_row_to_its_reader_and_each_label_to_the_public() -> None:
    orders = np.array([2.0, 8.0])
    event = DistributedGaussianMaxEvent(3, 5.0, 4, 2)
    row = distributed_row_rdp(orders, sigma=5.0, shares=4, weight=2)
    label = distributed_label_rdp(orders, sigma=5.0, shares=4, weight=2)
    assert event_rdp(event, orders) == pytest.approx(3 * row, rel=1e-14)
    assert event_label_rdp(event, orders) == pytest.approx(3 * label, rel=1e-14)
    assert (event_label_rdp(event, orders) < event_rdp(event, orders)).all()
    # A ledger charges what whoever opens the rows sees (rule R13).
    assert event_charged_rdp(event, orders) == pytest.approx(event_rdp(event, orders))


@pytest.mark.parametrize(
    ("sigma", "shares", "weight"), [(1.9, 4, 1), (0.0, 1, 1), (4.0, 4, 0), (4.0, 0, 1)]
)
def test_prices_out_of_range_are_refused(sigma: float, shares: int, weight: int) -> None:
    with pytest.raises(InvalidParameterError):
        distributed_label_rdp([2.0], sigma=sigma, shares=shares, weight=weight)
    with pytest.raises(InvalidParameterError):
        distributed_label_rdp([1.0], sigma=4.0, shares=4)
