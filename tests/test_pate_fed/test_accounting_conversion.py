"""From RDP to epsilon: reference values, the order's optimum and its edge."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from pate_fed.accounting.conversion import (
    DENSE_ORDERS,
    ConversionMethod,
    convert_at_orders,
    convert_costly_curve,
    convert_curve,
)
from pate_fed.accounting.gaussian_dp import gdp_epsilon
from pate_fed.errors import InvalidParameterError
from tests.support.pate_vectors import SETS, load_vectors


@pytest.mark.parametrize("which", SETS)
@pytest.mark.parametrize("method", ["mironov", "cks"])
def test_conversion_agrees_with_the_reference(which: str, method: ConversionMethod) -> None:
    vectors = load_vectors(which)
    for case in vectors["conversion"]:
        result = convert_at_orders(
            case["rdp"], vectors["orders"], delta=case["delta"], method=method
        )
        assert result.epsilon == pytest.approx(case[f"eps_{method}"], rel=1e-12, abs=1e-300)
        assert result.order == case[f"order_{method}"]


@pytest.mark.parametrize("rho", [1e-4, 0.01, 0.185, 2.0, 40.0])
def test_mironov_on_a_gaussian_curve_reaches_the_closed_form(rho: float) -> None:
    delta = 1e-5
    result = convert_curve(lambda orders: rho * orders, delta=delta, method="mironov")
    closed_form = rho + 2 * math.sqrt(rho * math.log(1 / delta))
    assert result.epsilon == pytest.approx(closed_form, rel=1e-6)
    assert result.epsilon >= closed_form * (1 - 1e-14)
    assert result.order == pytest.approx(1 + math.sqrt(math.log(1 / delta) / rho), rel=1e-2)


@pytest.mark.parametrize("mu", [0.05, 0.6, 1.1, 4.0])
def test_cks_lies_between_the_exact_epsilon_and_mironov(mu: float) -> None:
    def curve(orders: NDArray[np.float64]) -> NDArray[np.float64]:
        return mu**2 / 2 * orders

    cks = convert_curve(curve, delta=1e-5, method="cks").epsilon
    mironov = convert_curve(curve, delta=1e-5, method="mironov").epsilon
    assert gdp_epsilon(mu, 1e-5) <= cks <= mironov


def test_an_optimum_beyond_the_grid_is_reported() -> None:
    assert convert_curve(lambda o: 1e-9 * o, delta=1e-5, method="mironov").is_at_edge
    assert convert_curve(lambda o: 1e6 * o, delta=1e-5, method="mironov").is_at_edge
    assert not convert_curve(lambda o: 0.2 * o, delta=1e-5, method="mironov").is_at_edge


@pytest.mark.parametrize("rho", [1e-3, 0.02, 0.2, 3.0, 40.0])
@pytest.mark.parametrize("method", ["mironov", "cks"])
def test_a_quarter_of_the_values_is_enough(rho: float, method: ConversionMethod) -> None:
    asked = []

    def curve(orders: NDArray[np.float64]) -> NDArray[np.float64]:
        asked.append(len(orders))
        return rho * orders

    costly = convert_costly_curve(curve, delta=1e-5, method=method)
    assert sum(asked) < len(DENSE_ORDERS) / 4
    fine = convert_curve(lambda o: rho * o, delta=1e-5, method=method)
    assert costly.epsilon == pytest.approx(fine.epsilon, rel=1e-6)
    assert costly.is_at_edge == fine.is_at_edge


def test_almost_equal_laws_cost_nothing_at_a_large_delta() -> None:
    result = convert_curve(lambda o: 1e-9 * o, delta=1e-3, method="cks")
    assert result.epsilon == 0
    assert not result.is_at_edge


def test_orders_reach_from_near_one_to_a_thousand() -> None:
    assert DENSE_ORDERS[0] == pytest.approx(1 + 10**-1.3)
    assert DENSE_ORDERS[-1] == pytest.approx(1001)
    assert np.isin([2.0, 14.0, 15.5], DENSE_ORDERS).all()
    assert (np.diff(DENSE_ORDERS) > 0).all()


@pytest.mark.parametrize(
    ("rdp", "orders", "delta", "method"),
    [
        pytest.param([1.0], [1.0], 1e-5, "cks", id="order 1"),
        pytest.param([1.0, 2.0], [2.0], 1e-5, "cks", id="other lengths"),
        pytest.param([-1.0], [2.0], 1e-5, "cks", id="negative rdp"),
        pytest.param([math.nan], [2.0], 1e-5, "cks", id="rdp is no number"),
        pytest.param([1.0], [2.0], 1.0, "cks", id="delta 1"),
        pytest.param([1.0], [2.0], 1e-5, "best", id="unknown method"),
        pytest.param([], [], 1e-5, "cks", id="no order"),
    ],
)
def test_arguments_out_of_range_are_refused(
    rdp: list[float], orders: list[float], delta: float, method: ConversionMethod
) -> None:
    with pytest.raises(InvalidParameterError):
        convert_at_orders(rdp, orders, delta=delta, method=method)
