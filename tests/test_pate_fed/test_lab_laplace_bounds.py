"""LNMax: reference numbers, brute force, 60-digit checks, laws."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pate_fed.accounting.pure_bounds import pure_dp_rdp
from pate_fed.errors import InvalidParameterError
from pate_fed.lab.laplace_bounds import laplace_log_q, laplace_rdp
from tests.support.exact_argmax import (
    histograms,
    laplace_argmax_log_law,
)
from tests.support.markers import sampled
from tests.support.pate_vectors import SETS, number
from tests.support.smooth_vectors import smooth_vectors

ORDERS = np.array([1.25, 2.0, 3.5, 8.0, 14.0, 32.0])


@pytest.mark.parametrize("which", SETS)
def test_bounds_agree_with_the_reference(which: str) -> None:
    vectors = smooth_vectors(which)
    for case in vectors["laplace"]:
        log_q = laplace_log_q([case["counts"]], gamma=case["gamma"])[0]
        assert log_q == pytest.approx(number(case["logq"]), rel=1e-12, abs=0)
        expected = [number(value) for value in case["rdp_2018_pure_eps"]]
        paper = laplace_rdp(
            [case["counts"]], vectors["orders"], gamma=case["gamma"], pure_bound="paper"
        )[0]
        assert list(paper) == pytest.approx(expected, rel=1e-9, abs=0)
        sharp = laplace_rdp([case["counts"]], vectors["orders"], gamma=case["gamma"])[0]
        assert (sharp <= paper * (1 + 1e-12)).all()


def test_moments_are_those_of_the_2017_code_but_for_its_wrong_condition() -> None:
    """Its log moment l is l times our RDP at order l + 1, wherever q is below 1 / (e^eps + 1).

    Between that and 1/2 the code uses a bound that does not hold there; ours is larger.
    """
    compared = differ = 0
    for case in smooth_vectors("full")["laplace"]:
        if case["logmgf_2017_l1to8"] is None:  # its exponentials overflowed
            continue
        orders = np.arange(2.0, 10.0)
        rdp = laplace_rdp([case["counts"]], orders, gamma=case["gamma"], pure_bound="paper")[0]
        moments = (orders - 1) * rdp
        theirs = np.array(case["logmgf_2017_l1to8"])
        q, epsilon = math.exp(number(case["logq"])), case["pure_eps"]
        if 1 / (math.exp(epsilon) + 1) < q < 0.5:
            assert (moments >= theirs * (1 - 1e-9)).all()
            differ += 1
        else:
            # It computes q, 1 - q and their powers directly: 1e-12 absolute is what is left.
            assert moments == pytest.approx(theirs, rel=1e-9, abs=1e-12)
            compared += 1
    assert (compared, differ) == (192, 6)


@sampled("votes", "classes", "gamma", cases=3)
@pytest.mark.parametrize("gamma", [0.2, 1.0, 2.5])
@pytest.mark.parametrize(("votes", "classes"), [(6, 2), (5, 3)])
def test_q_covers_the_chance_of_another_winner(votes: int, classes: int, gamma: float) -> None:
    for counts in histograms(votes, classes):
        log_law = laplace_argmax_log_law(counts, gamma)
        assert np.exp(log_law).sum() == pytest.approx(1, abs=1e-11)
        loser = math.log(max(-math.expm1(log_law[counts.argmax()]), 1e-300))
        assert laplace_log_q([counts], gamma=gamma)[0] >= loser - 1e-8


@pytest.mark.parametrize(("epsilon", "order"), [(0.1, 2.0), (1e-6, 5.0), (3.0, 40.0), (800.0, 1.5)])
def test_the_sharp_bound_is_that_of_randomized_response(epsilon: float, order: float) -> None:
    with mpmath.workdps(60):
        keep = mpmath.exp(epsilon) / (1 + mpmath.exp(epsilon))
        flip = 1 / (1 + mpmath.exp(epsilon))
        power = mpmath.mpf(order)
        moment = keep**power * flip ** (1 - power) + flip**power * keep ** (1 - power)
        exact = float(mpmath.log(moment) / (power - 1))
    assert pure_dp_rdp([order], epsilon=epsilon)[0] == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize(
    ("counts", "gamma", "order"),
    [([40, 5, 5], 0.3, 8.0), ([200, 30, 20], 0.05, 3.5), ([400, 0], 2.0, 2.0)],
)
def test_the_bound_is_theorem_3(counts: list[int], gamma: float, order: float) -> None:
    with mpmath.workdps(80):
        gaps = [mpmath.mpf(gamma) * (counts[0] - other) for other in counts[1:]]
        q = sum((2 + gap) / (4 * mpmath.exp(gap)) for gap in gaps)
        epsilon = 2 * mpmath.mpf(gamma)
        assert q <= 1 / (mpmath.exp(epsilon) + 1)
        moment = (1 - q) * ((1 - q) / (1 - mpmath.exp(epsilon) * q)) ** (order - 1)
        moment += q * mpmath.exp(epsilon * (order - 1))
        exact = float(mpmath.log(moment) / (order - 1))
    least = min(exact, float(pure_dp_rdp([order], epsilon=2 * gamma)[0]))
    assert laplace_rdp([counts], [order], gamma=gamma)[0, 0] == pytest.approx(least, rel=1e-9)


def test_between_the_right_condition_and_the_wrong_one_the_cost_is_the_pure_one() -> None:
    """q below 1/2 but above 1 / (e^epsilon + 1): the 2017 code would use its bound."""
    counts, gamma = [[8, 6]], 0.5
    q = math.exp(laplace_log_q(counts, gamma=gamma)[0])
    assert 1 / (math.exp(2 * gamma) + 1) < q < 0.5
    pure = pure_dp_rdp(ORDERS, epsilon=2 * gamma)
    assert np.array_equal(laplace_rdp(counts, ORDERS, gamma=gamma)[0], pure)


@given(
    counts=st.lists(st.integers(0, 300), min_size=2, max_size=12),
    gamma=st.floats(0.001, 20),
    weight=st.floats(1, 10),
)
def test_data_dependent_never_exceeds_data_independent(
    counts: list[int], gamma: float, weight: float
) -> None:
    rdp = laplace_rdp([counts], ORDERS, gamma=gamma, weight=weight)[0]
    pure = pure_dp_rdp(ORDERS, epsilon=2 * gamma * weight)
    assert (rdp >= 0).all()
    assert (rdp <= pure).all()
    assert (pure <= 2 * gamma * weight * (1 + 1e-12)).all()
    assert (
        pure <= pure_dp_rdp(ORDERS, epsilon=2 * gamma * weight, bound="paper") * (1 + 1e-12)
    ).all()


@given(epsilon=st.floats(1e-6, 100), less=st.floats(0.01, 0.99))
def test_a_smaller_epsilon_never_costs_more(epsilon: float, less: float) -> None:
    smaller = pure_dp_rdp(ORDERS, epsilon=less * epsilon)
    assert (smaller <= pure_dp_rdp(ORDERS, epsilon=epsilon) * (1 + 1e-12)).all()


def test_gaps_that_overflow_an_exponential_are_priced() -> None:
    assert np.isfinite(laplace_rdp([[5000, 0]], ORDERS, gamma=1.0)).all()


def test_parameters_out_of_range_are_refused() -> None:
    for orders, gamma, weight in (([1.0], 1.0, 1.0), ([2.0], 0.0, 1.0), ([2.0], 1.0, 0.0)):
        with pytest.raises(InvalidParameterError):
            laplace_rdp([[3, 1]], orders, gamma=gamma, weight=weight)
    with pytest.raises(InvalidParameterError):
        pure_dp_rdp([2.0], epsilon=0.0)
    with pytest.raises(InvalidParameterError):
        pure_dp_rdp([2.0], epsilon=1.0, bound="loose")  # type: ignore[arg-type]
