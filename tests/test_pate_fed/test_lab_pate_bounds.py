"""The papers' data-dependent bounds: reference numbers, brute force, laws."""

from __future__ import annotations

import math
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.special import ndtr

from benchmarks.baselines import loop
from pate_fed.accounting.conversion import ConversionMethod, convert_at_orders
from pate_fed.errors import InvalidParameterError
from pate_fed.lab.pate_bounds import (
    gnmax_log_q,
    gnmax_total_rdp,
    rdp_from_log_q,
    threshold_log_q,
    threshold_margin,
    threshold_rdp,
    threshold_total_rdp,
    total_rdp_from_log_q,
)
from tests.support.exact_argmax import (
    argmax_log_law,
    histograms,
    one_vote_neighbors,
    renyi_divergence,
)
from tests.support.markers import sampled
from tests.support.pate_vectors import SETS, composition_counts, load_vectors, number
from tests.support.query_costs import gnmax_rdp

METHODS: tuple[ConversionMethod, ...] = ("mironov", "cks")
ORDERS = np.array([1.25, 2.0, 3.5, 8.0, 14.0, 32.0])


def reference_rdp(case: dict[str, Any]) -> Any:
    return pytest.approx([number(value) for value in case["rdp"]], rel=1e-9, abs=0)


@sampled("which")
@pytest.mark.parametrize("which", SETS)
def test_gnmax_agrees_with_the_reference(which: str) -> None:
    vectors = load_vectors(which)
    for case in vectors["gnmax"]:
        counts = [vectors["histograms"][str(case["h"])]]
        log_q = gnmax_log_q(counts, sigma=case["sigma"])
        assert log_q[0] == pytest.approx(number(case["logq"]), rel=1e-12, abs=0)
        rdp = gnmax_rdp(counts, vectors["orders"], sigma=case["sigma"])
        assert list(rdp[0]) == reference_rdp(case)


@pytest.mark.parametrize("which", SETS)
def test_threshold_agrees_with_the_reference(which: str) -> None:
    vectors = load_vectors(which)
    for case in vectors["threshold"]:
        setting = {"vote_threshold": case["T"], "sigma": case["sigma1"]}
        rdp = threshold_rdp([case["max"]], vectors["orders"], **setting)
        assert list(rdp[0]) == reference_rdp(case)


@pytest.mark.parametrize("which", SETS)
def test_the_bound_from_log_q_agrees_with_the_reference(which: str) -> None:
    vectors = load_vectors(which)
    for case in vectors["rdp_from_logq"]:
        rdp = rdp_from_log_q([number(case["logq"])], vectors["orders"], sigma=case["sigma"])
        assert list(rdp[0]) == reference_rdp(case)


@sampled("which")
@pytest.mark.parametrize("which", SETS)
def test_sums_over_queries_agree_with_the_reference(which: str) -> None:
    vectors = load_vectors(which)
    for case in vectors["composition"]:
        checks, labels = np.zeros(len(case["orders"])), np.zeros(len(case["orders"]))
        counts = composition_counts(vectors, case)
        for row, is_answered in zip(counts, case["answered"], strict=True):
            if case["T"] is not None:  # else plain GNMax, which checks nothing
                setting = {"vote_threshold": case["T"], "sigma": case["sigma1"]}
                checks += threshold_rdp([max(row)], case["orders"], **setting)[0]
            if is_answered:
                labels += gnmax_rdp([row], case["orders"], sigma=case["sigma2"])[0]
        assert list(checks) == pytest.approx(case["rdp_threshold_part"], rel=1e-9)
        assert list(checks + labels) == pytest.approx(case["rdp_total"], rel=1e-9)
        for rdp, key in (
            (checks + labels, "total"),
            (expected_rdp(counts, case), "expected"),
            (np.array(case["rdp_data_independent"]), "data_independent"),
        ):
            assert list(rdp) == pytest.approx(case[f"rdp_{key}"], rel=1e-9)
            for method in METHODS:
                converted = convert_at_orders(
                    rdp, case["orders"], delta=case["delta"], method=method
                )
                assert converted.epsilon == pytest.approx(case[f"eps_{method}_{key}"], rel=1e-9)
                assert converted.order == case[f"order_{method}_{key}"]


def expected_rdp(counts: list[list[int]], case: dict[str, Any]) -> NDArray[np.float64]:
    """Each label with the chance that it is released, as the paper counts."""
    if case["T"] is None:
        return gnmax_total_rdp(counts, case["orders"], sigma=case["sigma2"])
    setting = {"vote_threshold": case["T"], "sigma": case["sigma1"]}
    tops = np.array(counts).max(axis=1)
    chances = ndtr(threshold_margin(tops, **setting))
    assert chances.sum() == pytest.approx(case["E_answered"], rel=1e-12)
    labels = gnmax_total_rdp(counts, case["orders"], sigma=case["sigma2"], shares=chances)
    return labels + threshold_total_rdp(tops, case["orders"], **setting)


@pytest.mark.parametrize(
    ("log_q", "sigma", "order"),
    [
        pytest.param(-20.0, 40.0, 14.0, id="likely winner"),
        pytest.param(-300.0, 5.0, 2.0, id="q below the smallest double"),
        pytest.param(-12.0, 20.0, 40.0, id="high order"),
    ],
)
def test_the_bound_is_theorem_6(log_q: float, sigma: float, order: float) -> None:
    """The formula as it stands in the paper, in 60 digits."""
    with mpmath.workdps(60):
        q = mpmath.exp(log_q)
        mu2 = sigma * mpmath.sqrt(-mpmath.mpf(log_q))
        mu1 = mu2 + 1
        eps1, eps2 = mu1 / sigma**2, mu2 / sigma**2
        limit = mpmath.exp((mu2 - 1) * eps2) / (mu1 / (mu1 - 1) * mu2 / (mu2 - 1)) ** mu2
        assert order <= mu1
        assert mu2 > 1
        assert q <= limit
        assert q * mpmath.exp(eps2) < 1
        a = (1 - q) / (1 - (q * mpmath.exp(eps2)) ** ((mu2 - 1) / mu2))
        b = mpmath.exp(eps1) / q ** (1 / (mu1 - 1))
        exact = mpmath.log((1 - q) * a ** (order - 1) + q * b ** (order - 1)) / (order - 1)
        expected = float(min(exact, order / mpmath.mpf(sigma) ** 2))
    # Absolute slack of 1e-15: the sum of two logs near 0 cancels.
    computed = rdp_from_log_q([log_q], [order], sigma=sigma)[0, 0]
    assert computed == pytest.approx(expected, rel=1e-9, abs=1e-15)


@pytest.mark.parametrize(
    ("log_q", "sigma", "order"),
    [
        pytest.param(-1e-3, 40.0, 14.0, id="q near 1 would leave the increasing range"),
        pytest.param(-20.0, 0.1, 14.0, id="mu2 is not above 1"),
        pytest.param(-0.5, 20.0, 50.0, id="order above mu1"),
        pytest.param(-4.0, 0.4, 1.1, id="q times e^eps2 is not below 1"),
    ],
)
def test_where_a_condition_fails_the_cost_does_not_depend_on_votes(
    log_q: float, sigma: float, order: float
) -> None:
    assert rdp_from_log_q([log_q], [order], sigma=sigma)[0, 0] == order / sigma**2


@sampled("votes", "classes", "sigma", cases=4)
@pytest.mark.parametrize("sigma", [0.7, 1.5, 4.0])
@pytest.mark.parametrize(("votes", "classes"), [(6, 2), (6, 3), (4, 4)])
def test_the_bound_holds_for_every_neighbor(votes: int, classes: int, sigma: float) -> None:
    """Brute force: exact Renyi divergence by quadrature, every histogram, every one-vote move."""
    for counts in histograms(votes, classes):
        bound = gnmax_rdp([counts], ORDERS, sigma=sigma)[0]
        log_law = argmax_log_law(counts, sigma)
        for moved in one_vote_neighbors(counts):
            neighbor = argmax_log_law(moved, sigma)
            exact = [renyi_divergence(log_law, neighbor, order) for order in ORDERS]
            assert (np.array(exact) <= bound * (1 + 1e-9) + 1e-12).all()


@pytest.mark.parametrize("weight", [2, 3])
def test_the_bound_holds_for_a_hospital_of_several_teachers(weight: int) -> None:
    sigma = 3.0
    for counts in histograms(votes=9, classes=2):
        bound = gnmax_rdp([counts], ORDERS, sigma=sigma, weight=weight)[0]
        log_law = argmax_log_law(counts, sigma)
        change = np.array([weight, -weight])
        for moved in (counts - change, counts + change):
            if (moved >= 0).all():
                neighbor = argmax_log_law(moved, sigma)
                exact = [renyi_divergence(log_law, neighbor, order) for order in ORDERS]
                assert (np.array(exact) <= bound * (1 + 1e-9) + 1e-12).all()


@given(
    counts=st.lists(st.integers(0, 300), min_size=2, max_size=12),
    sigma=st.floats(0.5, 200),
    weight=st.floats(1, 10),
)
def test_data_dependent_never_exceeds_data_independent(
    counts: list[int], sigma: float, weight: float
) -> None:
    rdp = gnmax_rdp([counts], ORDERS, sigma=sigma, weight=weight)[0]
    assert (rdp >= 0).all()
    assert (rdp <= ORDERS * (weight / sigma) ** 2 * (1 + 1e-12)).all()
    check = threshold_rdp([max(counts)], ORDERS, vote_threshold=50, sigma=sigma, weight=weight)
    assert (check >= 0).all()
    assert (check <= ORDERS * (weight / sigma) ** 2 / 2 * (1 + 1e-12)).all()


@given(
    log_q=st.floats(-400.0, -1e-6),
    smaller=st.floats(1e-6, 50.0),
    sigma=st.floats(0.5, 200.0),
)
def test_an_upper_bound_on_q_never_makes_the_cost_smaller(
    log_q: float, smaller: float, sigma: float
) -> None:
    """What condition 3 is for: the bound grows with q wherever it is used."""
    low, high = rdp_from_log_q([log_q - smaller, log_q], ORDERS, sigma=sigma)
    # Absolute slack of 1e-15: sums of logs near 0 cancel.
    assert (low <= high * (1 + 1e-9) + 1e-15).all()


def test_q_covers_the_chance_of_another_winner() -> None:
    for counts in histograms(votes=6, classes=3):
        loser = math.log1p(-math.exp(argmax_log_law(counts, 2.0)[counts.argmax()]))
        assert gnmax_log_q([counts], sigma=2.0)[0] >= loser - 1e-12


def test_the_check_looks_at_its_less_likely_outcome() -> None:
    log_q = threshold_log_q([150, 200, 250], vote_threshold=200, sigma=50)
    assert log_q[0] == log_q[2]
    assert log_q[1] == pytest.approx(math.log(0.5), rel=1e-14)


def test_integer_orders_are_not_truncated() -> None:
    assert rdp_from_log_q([-1e-3], [2, 3], sigma=10.0)[0].tolist() == [0.02, 0.03]


def test_extreme_votes_stay_finite() -> None:
    counts = [[0, 2_000_000_000], [1_000_000_000, 1_000_000_000]]
    for sigma in (1e-3, 1.0, 1e6):
        assert np.isfinite(gnmax_rdp(counts, ORDERS, sigma=sigma)).all()


@pytest.mark.parametrize(
    ("orders", "sigma", "weight"),
    [
        pytest.param([1.0], 1.0, 1.0, id="order 1"),
        pytest.param([0.5], 1.0, 1.0, id="order below 1"),
        pytest.param([math.inf], 1.0, 1.0, id="infinite order"),
        pytest.param([2.0], 0.0, 1.0, id="sigma 0"),
        pytest.param([2.0], 1.0, 0.0, id="weight 0"),
    ],
)
def test_parameters_out_of_range_are_refused(
    orders: list[float], sigma: float, weight: float
) -> None:
    with pytest.raises(InvalidParameterError):
        gnmax_total_rdp([[3, 1]], orders, sigma=sigma, weight=weight)
    with pytest.raises(InvalidParameterError):
        threshold_rdp([3], orders, vote_threshold=2, sigma=sigma, weight=weight)


def test_rows_that_a_fold_made_uneven_are_priced_without_an_error() -> None:
    together = gnmax_rdp([[10, 10], [3, 1]], ORDERS, sigma=1.0)
    assert np.array_equal(together[1:], gnmax_rdp([[3, 1]], ORDERS, sigma=1.0))


@given(
    log_q=st.lists(st.sampled_from([-math.inf, -700.0, -80.0, -20.0, -7.0, -1.0, 0.0]), max_size=9),
    sigma=st.sampled_from([0.8, 3.0, 40.0]),
    data=st.data(),
)
def test_totals_are_the_sums_of_single_queries(
    log_q: list[float], sigma: float, data: st.DataObject
) -> None:
    orders = data.draw(st.permutations([*ORDERS, 100.0, 300.0]))
    single = rdp_from_log_q(log_q, orders, sigma=sigma)
    # 1e-12: sums in another order.
    total = total_rdp_from_log_q(log_q, orders, sigma=sigma)
    assert total == pytest.approx(single.sum(axis=0), rel=1e-12, abs=1e-300)
    shares = np.linspace(0, 1, len(log_q))
    shared = total_rdp_from_log_q(log_q, orders, sigma=sigma, shares=shares)
    assert shared == pytest.approx(shares @ single, rel=1e-12, abs=1e-300)


def test_totals_of_votes_are_the_sums_of_single_queries() -> None:
    counts = np.random.default_rng(2).multinomial(100, [0.6, 0.3, 0.1], size=30)
    labels = gnmax_total_rdp(counts, ORDERS, sigma=20.0, weight=2)
    single = gnmax_rdp(counts, ORDERS, sigma=20.0, weight=2)
    assert labels == pytest.approx(single.sum(axis=0), rel=1e-12)
    setting = {"vote_threshold": 60, "sigma": 15.0, "weight": 2}
    checks = threshold_total_rdp(counts.max(axis=1), ORDERS, **setting)
    each = threshold_rdp(counts.max(axis=1), ORDERS, **setting)
    assert checks == pytest.approx(each.sum(axis=0), rel=1e-12)


def test_one_query_costs_the_same_among_many() -> None:
    """Gaps are looked up in a table where there are many, computed where there are few."""
    counts = np.random.default_rng(9).multinomial(300, [0.7, 0.2, 0.1], size=40_000)
    many = gnmax_log_q(counts, sigma=20.0)
    few = np.concatenate([gnmax_log_q(counts[[row]], sigma=20.0) for row in range(0, 400, 20)])
    assert few == pytest.approx(many[:400:20], rel=1e-12, abs=0)


def test_the_loop_that_benchmarks_run_beside_gives_the_same() -> None:
    counts = np.random.default_rng(4).multinomial(60, [0.6, 0.2, 0.1, 0.1], size=50)
    for sigma in (1.5, 6.0, 30.0):
        ours = gnmax_total_rdp(counts, ORDERS, sigma=sigma)
        assert loop.gnmax_rdp(counts, ORDERS, sigma) == pytest.approx(ours, rel=1e-12)


@pytest.mark.parametrize("shares", [[1.0], [1.0, -1.0], [1.0, math.nan]])
def test_shares_that_do_not_fit_are_refused(shares: list[float]) -> None:
    with pytest.raises(InvalidParameterError):
        total_rdp_from_log_q([-1.0, -2.0], ORDERS, sigma=1.0, shares=shares)


def test_log_q_above_zero_is_refused() -> None:
    with pytest.raises(InvalidParameterError):
        rdp_from_log_q([0.1], [2.0], sigma=1.0)
    with pytest.raises(InvalidParameterError):
        rdp_from_log_q([math.nan], [2.0], sigma=1.0)
    with pytest.raises(InvalidParameterError):
        threshold_rdp([3], [2.0], vote_threshold=math.nan, sigma=1.0)
