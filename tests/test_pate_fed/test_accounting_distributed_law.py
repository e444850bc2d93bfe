"""Sums of discrete Gaussian shares: their exact law and price, against plain convolution."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pate_fed.accounting.distributed_law import (
    MOST_SHARES,
    closeness,
    distributed_row_rdp,
    log_mass_of_sum,
    share_sigma,
)
from pate_fed.errors import InvalidParameterError
from tests.support.markers import sampled
from tests.support.summed_noise import exact_row_price, moves, summed_mass

SETTINGS = [
    pytest.param(1.0, 1, id="one share of variance 1"),
    pytest.param(math.sqrt(2), 2, id="two of 1"),
    pytest.param(2.0, 4, id="four of 1"),
    pytest.param(2.2, 4, id="four of 1.2"),
    pytest.param(3.0, 9, id="nine of 1"),
    pytest.param(3.2, 9, id="nine of 1.1"),
    pytest.param(4.5, 5, id="five of 4"),
]


@sampled("order", "moved", "sigma", cases=13)
@pytest.mark.parametrize(("sigma", "shares"), SETTINGS)
@pytest.mark.parametrize("moved", [1, 2])
@pytest.mark.parametrize("order", [1.1, 2.0, 3.7])
def test_a_row_costs_what_convolution_in_40_digits_gives(
    sigma: float, shares: int, moved: int, order: float
) -> None:
    price = distributed_row_rdp([order], sigma=sigma, shares=shares, weight=moved)[0]
    exact = exact_row_price(sigma, shares, moved=moved, order=order)
    gaussian = order * moved**2 / sigma**2
    assert price >= gaussian
    # Rounded up, to the Gaussian price where that is more; by no more than its stated error.
    assert 0 <= price - max(exact, gaussian) <= 1e-11


@pytest.mark.parametrize(("sigma", "shares"), SETTINGS)
def test_the_law_is_that_of_a_convolution(sigma: float, shares: int) -> None:
    mass = summed_mass(sigma, shares)
    values = np.arange(-len(mass) // 2 + 1, len(mass) // 2 + 1, dtype=np.float64)
    logs = log_mass_of_sum(values, sigma=sigma, shares=shares)
    logs -= np.logaddexp.reduce(logs)
    # The convolution itself lacks what lies beyond 12 sigma of a share.
    near = np.abs(values) <= 5 * sigma
    assert np.exp(logs)[near] == pytest.approx(mass[near], rel=1e-11)


@pytest.mark.parametrize(("sigma", "shares"), SETTINGS)
def test_closeness_bounds_the_ratio_to_one_discrete_gaussian(sigma: float, shares: int) -> None:
    mass = summed_mass(sigma, shares)
    values = np.arange(-len(mass) // 2 + 1, len(mass) // 2 + 1)
    near = np.abs(values) <= 4 * sigma
    log_single = -(values**2) / (2 * sigma**2)
    ratio = np.log(mass[near]) + np.logaddexp.reduce(log_single) - log_single[near]
    assert np.abs(ratio).max() <= closeness(sigma, shares) + 1e-12


@pytest.mark.parametrize(("sigma", "shares"), SETTINGS)
@pytest.mark.parametrize("moved", [1, 3])
def test_the_price_is_at_most_the_published_closed_forms(
    sigma: float, shares: int, moved: int
) -> None:
    """Kairouz, Liu, Steinke 2021, Proposition 14, two coordinates; orders are whole there."""
    orders = np.array([2.0, 3.0, 8.0, 32.0])
    tau = closeness(sigma, shares)
    l1, l2 = 2 * moved / sigma, math.sqrt(2) * moved / sigma
    forms = [
        orders / 2 * l2**2 + 2 * tau,
        orders / 2 * (l2**2 + 2 * l1 * tau + 2 * tau**2),
    ]
    price = distributed_row_rdp(orders, sigma=sigma, shares=shares, weight=moved)
    assert (price <= np.minimum(*forms) + 1e-11).all()


def test_shares_too_narrow_would_be_felt() -> None:
    """What the refusal is for: at a variance of .3 the sum costs visibly more than its sigma."""
    exact = exact_row_price(1.2, 5, moved=1, order=2.0)
    assert exact > 1.005 * 2 / 1.2**2
    with pytest.raises(InvalidParameterError, match="variance"):
        distributed_row_rdp([2.0], sigma=1.2, shares=5)


@pytest.mark.parametrize("order", [1.5, 4.0])
def test_no_move_over_several_classes_costs_more_than_one_between_two(order: float) -> None:
    sigma, shares, votes = 2.0, 4, 3
    single = {
        k: distributed_row_rdp([order], sigma=sigma, shares=shares, weight=k)[0] / 2
        for k in range(1, votes + 1)
    }
    single[0] = 0.0
    most = max(sum(single[abs(int(v))] for v in move) for move in moves(4, votes))
    assert most == pytest.approx(2 * single[votes], rel=1e-12)


@given(
    variance=st.floats(1.0, 6.0),
    shares=st.integers(1, 40),
    moved=st.integers(1, 5),
    order=st.floats(1.05, 60.0),
)
def test_adding_a_share_never_costs_more(
    variance: float, shares: int, moved: int, order: float
) -> None:
    prices = [
        distributed_row_rdp(
            [order], sigma=math.sqrt(m * variance) * (1 + 1e-12), shares=m, weight=moved
        )[0]
        for m in (shares, shares + 1)
    ]
    assert prices[1] <= prices[0] * (1 + 1e-12)


@given(sigma=st.floats(1.0, 1e3), share=st.integers(1, MOST_SHARES))
def test_a_share_has_at_least_its_part_of_the_variance(sigma: float, share: int) -> None:
    if Fraction(sigma) ** 2 < share:
        with pytest.raises(InvalidParameterError):
            share_sigma(sigma, share)
        return
    drawn = Fraction(share_sigma(sigma, share)) ** 2 * share
    assert drawn >= Fraction(sigma) ** 2
    assert drawn <= Fraction(sigma) ** 2 * (1 + Fraction(1, 2**50))


def test_the_narrowest_share_is_allowed_and_the_next_narrower_is_not() -> None:
    assert share_sigma(3.0, 9) == 1.0
    with pytest.raises(InvalidParameterError):
        share_sigma(math.nextafter(3.0, 0.0), 9)


@pytest.mark.parametrize(
    ("sigma", "shares", "weight"),
    [(0.0, 1, 1), (math.nan, 1, 1), (2.0, 0, 1), (2.0, 5000, 1), (2.0, 1, 0), (2.0, 1, 1.5)],
)
def test_prices_out_of_range_are_refused(sigma: float, shares: int, weight: int) -> None:
    with pytest.raises(InvalidParameterError):
        distributed_row_rdp([2.0], sigma=sigma, shares=shares, weight=weight)
