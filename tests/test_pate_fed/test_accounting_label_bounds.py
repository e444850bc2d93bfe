"""The label-level bound: the certified table, brute force over neighbors, laws, totals."""

from __future__ import annotations

import math
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import log_ndtr

from pate_fed.accounting import (
    ConfidentGaussianMaxEvent,
    GaussianMaxEvent,
    event_label_rdp,
    event_rdp,
    gdp_epsilon,
    gdp_mu_squared,
)
from pate_fed.accounting.label_bounds import label_level_epsilon, label_rdp, threshold_bit_rdp
from pate_fed.errors import InvalidParameterError
from pate_fed.lab.exact import exact_threshold_rdp
from tests.support.exact_argmax import (
    argmax_log_law,
    histograms,
    renyi_divergence,
)
from tests.support.markers import sampled
from tests.support.query_costs import exact_label_rdp
from tests.support.vectors import read_vectors

ORDERS = np.array([1.1, 1.5, 2.0, 4.0, 8.0, 14.0, 32.0])
# Hypothesis draws from these only, so that each is certified once.
SIGMAS = (0.7, 1.5, 4.0, 12.0, 40.0, 150.0)


def by_sigma() -> dict[float, list[dict[str, Any]]]:
    table: dict[float, list[dict[str, Any]]] = {}
    for value in read_vectors("label_level")["values"]:
        table.setdefault(value["sigma"], []).append(value)
    return table


@sampled("sigma")
@pytest.mark.parametrize("sigma", sorted(by_sigma()))
def test_bounds_agree_with_the_certified_table(sigma: float) -> None:
    rows = by_sigma()[sigma]
    orders = [row["order"] for row in rows]
    label = label_rdp(orders, sigma=sigma)
    bit = threshold_bit_rdp(orders, sigma=sigma)
    for row, s, b in zip(rows, label, bit, strict=True):
        # The table was certified with tolerance 1e-3, this with 3e-4: it must lie below, or
        # equal the Gaussian bound, where the table searched no further, but never below the
        # value that its search met. The bit's table has a tolerance of 2e-5, ours one of 6e-5.
        assert (row["S_lower"] or 0.0) * (1 - 1e-12) <= s <= row["S_upper"] * (1 + 1e-12)
        assert row["threshold_bit_upper"] * (1 - 1e-4) <= b
        assert b <= row["threshold_bit_upper"] * (1 + 1e-4)


@pytest.mark.parametrize("weight", [2, 3])
def test_label_bound_holds_for_a_hospital_that_moves_several_votes_anywhere(weight: int) -> None:
    sigma = 2.0
    bound = label_rdp(ORDERS, sigma=sigma, weight=weight)
    laws = {tuple(counts): argmax_log_law(counts, sigma) for counts in histograms(6, 3)}
    for counts, log_law in laws.items():
        for moved, neighbor in laws.items():
            if np.abs(np.subtract(counts, moved)).sum() <= 2 * weight:
                exact = [renyi_divergence(log_law, neighbor, order) for order in ORDERS]
                assert (np.array(exact) <= bound).all()


def test_label_bound_holds_where_a_vote_appears_or_vanishes() -> None:
    sigma = 1.5
    bound = label_rdp(ORDERS, sigma=sigma)
    for counts in histograms(5, 3):
        log_law = argmax_log_law(counts, sigma)
        for gained in np.eye(3, dtype=np.int64):
            neighbor = argmax_log_law(counts + gained, sigma)
            for pair in ((log_law, neighbor), (neighbor, log_law)):
                exact = [renyi_divergence(*pair, order) for order in ORDERS]
                assert (np.array(exact) <= bound).all()


@given(
    counts=st.lists(st.integers(0, 120), min_size=2, max_size=8).filter(any),
    sigma=st.sampled_from(SIGMAS),
    vote_threshold=st.integers(0, 200),
)
def test_label_level_is_at_least_exact(
    counts: list[int], sigma: float, vote_threshold: int
) -> None:
    label = exact_label_rdp([counts], ORDERS, sigma=sigma)[0]
    assert (label <= label_rdp(ORDERS, sigma=sigma)).all()
    setting = {"vote_threshold": vote_threshold, "sigma": sigma}
    bit = exact_threshold_rdp([max(counts)], ORDERS, **setting)[0]
    assert (bit <= threshold_bit_rdp(ORDERS, sigma=sigma)).all()


def test_label_bound_is_nearly_reached() -> None:
    """Two classes that nearly tie: what can happen lies one percent below."""
    tie = exact_label_rdp([[100, 101]], [2.0, 4.0], sigma=15.0)[0]
    assert (tie >= 0.99 * label_rdp([2.0, 4.0], sigma=15.0)).all()
    far = exact_label_rdp([[86, 100], [72, 100]], [16.0], sigma=4.0).max()
    assert far >= 0.99 * label_rdp([16.0], sigma=4.0)[0]


@pytest.mark.exhaustive
@settings(max_examples=20)
@given(
    sigma=st.floats(0.3, 500.0),
    factor=st.floats(1.001, 3.0),
    order=st.floats(1.01, 200.0),
    weight=st.sampled_from([1.0, 2.0, 5.0]),
)
def test_more_noise_never_costs_more(
    sigma: float, factor: float, order: float, weight: float
) -> None:
    for bound in (
        lambda sigma: label_rdp([order], sigma=sigma, weight=weight)[0],
        lambda sigma: threshold_bit_rdp([order], sigma=sigma, weight=weight)[0],
    ):
        assert bound(sigma * factor) <= bound(sigma)


@settings(max_examples=20)
@given(sigma=st.floats(1e-3, 1e7), order=st.floats(1.001, 1e4))
def test_label_level_never_exceeds_the_noisy_counts(sigma: float, order: float) -> None:
    label = label_rdp([order], sigma=sigma)[0]
    bit = threshold_bit_rdp([order], sigma=sigma)[0]
    # 1e-15: order (1/sigma)^2 and order / sigma^2 round differently.
    assert 0 < label <= order / sigma**2 * (1 + 1e-15)
    assert 0 < bit <= order / sigma**2 / 2 * (1 + 1e-15)


@pytest.mark.exhaustive
def test_a_higher_order_never_costs_less() -> None:
    orders = np.linspace(1.05, 40.0, 60)
    for values in (label_rdp(orders, sigma=6.0), threshold_bit_rdp(orders, sigma=6.0)):
        # A Renyi divergence rises with its order; 1e-6 for how far a search may stop short.
        assert (np.diff(values) >= -1e-6 * values[1:]).all()


def test_weight_stands_for_less_noise() -> None:
    assert label_rdp(ORDERS, sigma=40.0, weight=5).tolist() == label_rdp(ORDERS, sigma=8.0).tolist()
    weighted = threshold_bit_rdp(ORDERS, sigma=40.0, weight=5)
    assert weighted.tolist() == threshold_bit_rdp(ORDERS, sigma=8.0).tolist()


@pytest.mark.parametrize("order", [1.5, 10.0, 30.0])
def test_the_bit_is_its_supremum_in_40_digits(order: float) -> None:
    h = 1 / 20
    t = np.linspace(-6, 6, 120_001)
    logs = [[log_ndtr(side * x) for side in (1, -1)] for x in (t, t + h)]
    moment = sum(np.exp(order * p - (order - 1) * q) for p, q in zip(*logs, strict=True))
    with mpmath.workdps(40):
        best = mpmath.mpf(float(t[moment.argmax()]))
        p, q = mpmath.ncdf(best), mpmath.ncdf(best + h)
        total = p**order * q ** (1 - order) + (1 - p) ** order * (1 - q) ** (1 - order)
        supremum = float(mpmath.log(total) / (order - 1))
    bound = threshold_bit_rdp([order], sigma=20.0)[0]
    assert supremum <= bound <= supremum * (1 + 1e-4)


def test_as_noise_grows_the_bit_tends_to_two_thirds_by_pi() -> None:
    ratio = threshold_bit_rdp([2.0], sigma=5000.0)[0] * 5000.0**2
    assert ratio == pytest.approx(2 / math.pi, rel=1e-4)


@sampled("asks", cases=2)
@pytest.mark.parametrize(
    ("asks", "answers", "sigma1", "sigma2", "delta", "certified"),
    [
        pytest.param(640, 282.721, 150, 40, 1e-5, 2.1416, id="MNIST"),
        pytest.param(1500, 538, 200, 40, 1e-5, 3.0257, id="Adult"),
        pytest.param(12000, 10762, 500, 100, 1e-8, 7.3721, id="Glyph"),
        pytest.param(200, 100, 20, 8, 1e-5, 7.7548, id="50 teachers"),
        pytest.param(100, 50, 10, 4, 1e-5, 11.8431, id="20 teachers"),
    ],
)
def test_totals_agree_with_the_reference(
    *, asks: float, answers: float, sigma1: float, sigma2: float, delta: float, certified: float
) -> None:
    event = ConfidentGaussianMaxEvent(1, 1, sigma1, sigma2)
    total = label_level_epsilon(event, delta=delta, expected=(asks, answers))
    # The reference's tolerance is 1e-3 at few orders; this one's 3e-4 at the best order.
    assert certified * (1 - 2e-3) <= total.epsilon <= certified
    assert not total.is_at_edge


def test_labels_alone_cost_less_than_noisy_counts() -> None:
    event = ConfidentGaussianMaxEvent(asks=640, answers=300, sigma1=150.0, sigma2=40.0)
    labels = label_level_epsilon(event, delta=1e-5).epsilon
    assert labels < gdp_epsilon(math.sqrt(gdp_mu_squared(event)), 1e-5)


def test_plain_gnmax_has_no_checks_to_pay_for() -> None:
    plain = label_level_epsilon(GaussianMaxEvent(100, 40.0), delta=1e-5)
    checked = label_level_epsilon(ConfidentGaussianMaxEvent(100, 100, 40.0, 40.0), delta=1e-5)
    assert plain.epsilon < checked.epsilon


def test_events_have_the_label_level_curve() -> None:
    labels = GaussianMaxEvent(asks=7, sigma=20.0, weight=2.0)
    curve = event_label_rdp(labels, ORDERS)
    assert curve.tolist() == (7 * label_rdp(ORDERS, sigma=20.0, weight=2.0)).tolist()
    both = ConfidentGaussianMaxEvent(asks=9, answers=7, sigma1=30.0, sigma2=20.0, weight=2.0)
    checks = 9 * threshold_bit_rdp(ORDERS, sigma=30.0, weight=2.0)
    assert event_label_rdp(both, ORDERS).tolist() == (checks + curve).tolist()
    assert (event_label_rdp(both, ORDERS) < event_rdp(both, ORDERS)).all()


def test_expected_numbers_stand_for_those_of_the_event() -> None:
    event = ConfidentGaussianMaxEvent(640, 300, 150.0, 40.0)
    caps = label_level_epsilon(event, delta=1e-5)
    assert label_level_epsilon(event, delta=1e-5, expected=(640.0, 300.0)) == caps
    assert label_level_epsilon(event, delta=1e-5, expected=(640.0, 282.7)).epsilon < caps.epsilon


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param({"delta": 1.0}, id="delta 1"),
        pytest.param({"expected": (-1, 0)}, id="asks below 0"),
        pytest.param({"expected": (10, math.nan)}, id="answers no number"),
    ],
)
def test_parameters_out_of_range_are_refused(changed: dict[str, Any]) -> None:
    event = ConfidentGaussianMaxEvent(10, 5, 15.0, 8.0)
    with pytest.raises(InvalidParameterError):
        label_level_epsilon(event, **({"delta": 1e-5} | changed))
