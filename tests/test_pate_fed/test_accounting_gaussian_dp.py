"""Exact Gaussian accounting, against high precision, an independent library and brute force."""

from __future__ import annotations

import math
from dataclasses import dataclass

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pate_fed.accounting.events import (
    ConfidentGaussianMaxEvent,
    GaussianMaxEvent,
    PrivacyEvent,
)
from pate_fed.accounting.formal_cost import gdp_cost
from pate_fed.accounting.gaussian_dp import (
    LARGEST_MU,
    gdp_epsilon,
    gdp_log_delta,
    gdp_mu,
    gdp_mu_squared,
)
from pate_fed.errors import InvalidParameterError, UnsupportedEventError
from tests.support.exact_argmax import confident_law, histograms, one_vote_neighbors
from tests.support.markers import sampled
from tests.support.pate_vectors import SETS, load_vectors


@dataclass(frozen=True, slots=True)
class UnknownEvent(PrivacyEvent):
    """An event that no accountant has heard of."""


def exact_log_delta(mu: float, epsilon: float) -> float:
    """Compute log delta from its definition, in 400 digits (the difference cancels hundreds)."""
    with mpmath.workdps(400):
        m, e = mpmath.mpf(mu), mpmath.mpf(epsilon)
        below = mpmath.ncdf(-e / m + m / 2)
        return float(mpmath.log(below - mpmath.exp(e) * mpmath.ncdf(-e / m - m / 2)))


@pytest.mark.parametrize(
    ("mu", "epsilon"),
    [
        pytest.param(1e-3, 0.0, id="little privacy loss"),
        pytest.param(1e-3, 0.02, id="deep tail of a small mu"),
        pytest.param(0.61, 2.48, id="MNIST"),
        pytest.param(1.0, 0.0, id="total variation"),
        pytest.param(1.1, 5.0, id="digits"),
        pytest.param(0.5, 12.0, id="delta near 1e-124"),
        pytest.param(5.0, 30.0, id="large loss"),
        pytest.param(12.0, 2.0, id="delta near 1"),
        pytest.param(40.0, 1500.0, id="e to the epsilon overflows"),
        pytest.param(30.0, 0.0, id="delta is 1 but for 1e-50"),
    ],
)
def test_log_delta_is_the_exact_one_rounded_up(mu: float, epsilon: float) -> None:
    exact, computed = exact_log_delta(mu, epsilon), gdp_log_delta(mu, epsilon)
    # Up by the stated error of double arithmetic.
    slack = 1e-14 * (1 + epsilon / mu**2 + 1 / mu + abs(exact) + epsilon + mu * mu)
    assert exact <= computed <= exact + slack
    assert computed <= 0


@pytest.mark.parametrize("which", SETS)
def test_events_and_epsilon_agree_with_the_reference(which: str) -> None:
    for case in load_vectors(which)["gaussian_exact"]:
        event: PrivacyEvent = GaussianMaxEvent(case["n_released"], case["sigma2"])
        if case["n_threshold"]:
            event = ConfidentGaussianMaxEvent(
                case["n_threshold"], case["n_released"], case["sigma1"], case["sigma2"]
            )
        mu = math.sqrt(gdp_mu_squared(event))
        assert mu == pytest.approx(case["mu_gdp"], rel=1e-14)
        for row in case["rows"]:
            epsilon = gdp_epsilon(mu, row["delta"])
            assert epsilon == pytest.approx(row["eps_exact_gdp"], rel=1e-12)
            # An independent library's pessimistic discretization never says less.
            assert epsilon <= row["eps_pld_pessimistic"] * (1 + 1e-12)


@sampled("mu", "delta", cases=5)
@pytest.mark.parametrize("delta", [1e-300, 1e-12, 1e-5, 0.3])
@pytest.mark.parametrize("mu", [1e-5, 1e-3, 0.1, 1.0, 7.0, 50.0])
def test_epsilon_is_the_smallest_up_to_rounding(mu: float, delta: float) -> None:
    epsilon = gdp_epsilon(mu, delta)
    assert exact_log_delta(mu, epsilon) <= math.log(delta) + 1e-15
    if epsilon > 1e-9:
        # Relative slack of 1e-12 of epsilon, and 1e-9 where mu is so small that R cancels.
        below = epsilon * (1 - 1e-9 if mu < 1e-2 else 1 - 1e-12)
        assert exact_log_delta(mu, below) > math.log(delta)


def test_no_release_costs_nothing() -> None:
    assert gdp_mu_squared(GaussianMaxEvent(0, 1e-9)) == 0
    assert gdp_epsilon(0.0, 1e-5) == 0
    assert gdp_log_delta(0.0, 1e-9) == -math.inf


def test_noise_next_to_none_costs_infinitely_much() -> None:
    event = GaussianMaxEvent(1, 1e-9)
    assert gdp_mu_squared(event) > LARGEST_MU**2
    assert gdp_cost(event, delta=0.999).epsilon == math.inf


@given(
    mu=st.floats(1e-4, 30.0),
    delta=st.floats(1e-15, 0.5),
)
def test_mu_inverts_epsilon_and_rounds_down(mu: float, delta: float) -> None:
    epsilon = gdp_epsilon(mu, delta)
    assert gdp_log_delta(mu, epsilon) <= math.log(delta)
    if epsilon > 1e-6:
        back = gdp_mu(epsilon, delta)
        assert back == pytest.approx(mu, rel=1e-9)
        assert gdp_log_delta(back, epsilon) <= math.log(delta)


@given(
    mu=st.floats(1e-3, 30.0),
    factor=st.floats(1.001, 3.0),
    delta=st.floats(1e-15, 0.5),
)
def test_epsilon_grows_with_mu_and_falls_with_delta(mu: float, factor: float, delta: float) -> None:
    epsilon = gdp_epsilon(mu, delta)
    assert gdp_epsilon(mu * factor, delta) >= epsilon
    assert gdp_epsilon(mu, delta / factor) >= epsilon


@given(
    asks=st.integers(0, 10_000),
    answers=st.integers(0, 10_000),
    sigma=st.floats(0.5, 500),
    factor=st.floats(1, 10),
)
def test_larger_sigma_never_costs_more(
    asks: int, answers: int, sigma: float, factor: float
) -> None:
    answers = min(asks, answers)
    cost = gdp_mu_squared(ConfidentGaussianMaxEvent(asks, answers, sigma, sigma))
    for sigma1, sigma2 in ((sigma * factor, sigma), (sigma, sigma * factor)):
        event = ConfidentGaussianMaxEvent(asks, answers, sigma1, sigma2)
        assert gdp_mu_squared(event) <= cost


def test_a_hospital_of_k_teachers_costs_like_noise_divided_by_k() -> None:
    hospital = ConfidentGaussianMaxEvent(30, 20, 15.0, 8.0, weight=5)
    record = ConfidentGaussianMaxEvent(30, 20, 3.0, 1.6)
    assert gdp_mu_squared(hospital) == pytest.approx(gdp_mu_squared(record), rel=1e-14)


def test_a_label_and_its_check_stay_within_their_cost_for_all_neighbors() -> None:
    """Brute force: hockey-stick divergence of exact laws, all histograms of 4 votes."""
    setting = {"vote_threshold": 3.0, "sigma1": 2.0, "sigma2": 1.5}
    mu = math.sqrt(gdp_mu_squared(ConfidentGaussianMaxEvent(1, 1, 2.0, 1.5)))
    compared = 0
    for counts in histograms(votes=4, classes=3):
        law = confident_law(counts, **setting)
        for moved in one_vote_neighbors(counts):
            neighbor_law = confident_law(moved, **setting)
            for epsilon in (0.0, 0.2, 0.5, 1.0, 2.0):
                delta = np.maximum(law - math.exp(epsilon) * neighbor_law, 0).sum()
                assert delta <= math.exp(gdp_log_delta(mu, epsilon)) + 1e-13
                compared += 1
    assert compared == 300


@pytest.mark.parametrize(
    ("mu", "delta"),
    [
        pytest.param(-1.0, 1e-5, id="negative mu"),
        pytest.param(math.nan, 1e-5, id="mu is no number"),
        pytest.param(1e7, 1e-5, id="mu beyond all privacy"),
        pytest.param(1.0, 0.0, id="delta 0"),
        pytest.param(1.0, 1.0, id="delta 1"),
        pytest.param(1.0, math.nan, id="delta is no number"),
    ],
)
def test_arguments_out_of_range_are_refused(mu: float, delta: float) -> None:
    with pytest.raises(InvalidParameterError):
        gdp_epsilon(mu, delta)


@pytest.mark.parametrize("epsilon", [-1.0, math.inf, math.nan])
def test_epsilon_out_of_range_is_refused(epsilon: float) -> None:
    with pytest.raises(InvalidParameterError):
        gdp_mu(epsilon, 1e-5)


def test_an_event_without_gaussian_noise_is_refused() -> None:
    with pytest.raises(UnsupportedEventError):
        gdp_mu_squared(UnknownEvent())
