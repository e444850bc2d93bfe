"""The sanitized release: its price by quadrature, its parameters, what it says of itself."""

from __future__ import annotations

import math
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pate_fed.accounting.conversion import convert_at_orders
from pate_fed.errors import InvalidParameterError, InvalidVotesError
from pate_fed.lab.pate_bounds import threshold_rdp
from pate_fed.lab.sanitized import (
    InstanceCost,
    SanitizingPlan,
    choose_plan,
    expected_epsilon,
    gnss_rdp,
    instance_cost,
)
from pate_fed.lab.smooth_conditions import SmoothSetting
from pate_fed.lab.smooth_sensitivity import (
    smooth_sensitivity,
    total_gnmax_local_sensitivities,
    two_class_label_costs,
)
from tests.support.exact_argmax import histograms
from tests.support.local_sensitivity import Votes, definition
from tests.support.markers import sampled
from tests.support.pate_vectors import SETS
from tests.support.query_costs import gnmax_rdp
from tests.support.smooth_vectors import smooth_vectors

SETTING = SmoothSetting(40.0, 3, 8.0, 250)
COUNTS = [[240, 10, 0], [100, 80, 70], [230, 20, 0], [90, 80, 80]]
PLAN = SanitizingPlan(order=8.0, beta=0.02, sigma_ss=5.0, chosen_from="simulated")


@pytest.mark.parametrize("which", SETS)
def test_the_price_is_the_exact_supremum(which: str) -> None:
    for case in smooth_vectors(which)["gnss"]:
        price = gnss_rdp(case["order"], beta=case["beta"], sigma_ss=case["sigma_ss"])
        assert price == pytest.approx(float(case["rdp_exact_sup"]), rel=1e-9)


def gaussian_divergence(
    order: float, mean: mpmath.mpf, sigma: mpmath.mpf, other: mpmath.mpf
) -> mpmath.mpf:
    """Renyi divergence of N(mean, sigma^2) from N(0, other^2), by quadrature."""

    def density(x: mpmath.mpf, center: mpmath.mpf, scale: mpmath.mpf) -> mpmath.mpf:
        return mpmath.npdf(x, center, scale)

    # The trapezoid rule: the integrand is e^(quadratic) of a width between 0.8 and 1.5 sigma, in
    # the settings below, around a place within 7 sigma. Beyond 25 sigma lies less than 1e-30 of
    # it, and a step of a third of sigma leaves an error below e^(-2 (0.8 pi 3)^2) < 1e-30.
    step = min(sigma, other) / 3
    moment = step * mpmath.fsum(
        density(step * index, mean, sigma) ** order * density(step * index, 0, other) ** (1 - order)
        for index in range(-80, 81)
    )
    return mpmath.log(moment) / (order - 1)


@sampled("order", "beta", "sigma_ss")
@pytest.mark.parametrize("margin", [0.0, 2.0])
@pytest.mark.parametrize(
    ("order", "beta", "sigma_ss"), [(3.0, 0.05, 2.0), (6.0, 0.03, 4.0), (14.0, 0.02, 6.0)]
)
def test_the_price_covers_every_pair_that_smooth_sensitivity_allows(
    order: float, beta: float, sigma_ss: float, margin: float
) -> None:
    """f moves by at most the smaller S; S by a factor of at most e^beta; 40-digit integrals."""
    price = gnss_rdp(order, beta=beta, sigma_ss=sigma_ss, margin=margin)
    found = []
    with mpmath.workdps(30):
        for growth in (-1.0, -0.5, 0.0, 0.5, 1.0):
            smooth, other = mpmath.mpf(1), mpmath.exp(beta * growth)
            for direction in (-1, 1):
                moved = direction * min(smooth, other) + margin * sigma_ss * (smooth - other)
                found.append(
                    float(gaussian_divergence(order, moved, sigma_ss * smooth, sigma_ss * other))
                )
    assert max(found) <= price * (1 + 1e-9)
    assert max(found) >= 0.9 * price
    if margin == 0:
        assert max(found) == pytest.approx(price, rel=1e-9)


@given(
    order=st.floats(1.1, 30),
    product=st.floats(0.01, 0.45),
    sigma_ss=st.floats(0.5, 50),
    margin=st.floats(0, 3),
)
def test_more_noise_and_less_margin_never_cost_more(
    order: float, product: float, sigma_ss: float, margin: float
) -> None:
    beta = product / order
    price = gnss_rdp(order, beta=beta, sigma_ss=sigma_ss, margin=margin)
    assert price > 0
    assert gnss_rdp(order, beta=beta, sigma_ss=2 * sigma_ss, margin=margin) <= price
    assert gnss_rdp(order, beta=beta, sigma_ss=sigma_ss, margin=margin + 1) > price


def test_the_cost_of_a_run_is_that_of_its_checks_and_labels() -> None:
    answered = [1, 0, 1, 0]
    cost = instance_cost(COUNTS, SETTING, answered=answered, check=(200.0, 150.0))
    checks = threshold_rdp([240, 100, 230, 90], [8.0], vote_threshold=200.0, sigma=150.0)
    labels = gnmax_rdp([COUNTS[0], COUNTS[2]], [8.0], sigma=40.0)
    assert cost.rdp == pytest.approx(float(checks.sum() + labels.sum()), rel=1e-9)
    labels_only = instance_cost(COUNTS, SETTING, answered=answered)
    listed = total_gnmax_local_sensitivities([COUNTS[0], COUNTS[2]], SETTING)
    assert labels_only.local_sensitivities == pytest.approx(listed, rel=1e-14)
    # These checks cost the same whatever the votes: they add no sensitivity.
    assert cost.local_sensitivities == pytest.approx(listed, rel=1e-12, abs=1e-18)


def test_two_classes_need_no_condition() -> None:
    setting = SmoothSetting(20.0, 2, 25.0, 250)
    table = two_class_label_costs(sigma=20.0, order=25.0, teachers=250)
    cost = instance_cost([[200, 50], [130, 120]], setting, answered=[1, 0])
    assert cost.rdp == pytest.approx(float(table[200]), rel=1e-12)
    checked = instance_cost([[200, 50], [130, 120]], setting, answered=[1, 0], check=(150.0, 30.0))
    checks = threshold_rdp([200, 130], [25.0], vote_threshold=150.0, sigma=30.0)
    assert checked.rdp == pytest.approx(float(table[200] + checks.sum()), rel=1e-12)
    assert checked.local_sensitivities.max() > cost.local_sensitivities.max()


def test_the_expected_release_is_cost_and_margin_with_its_price_added() -> None:
    cost = instance_cost(COUNTS, SETTING, answered=[1, 0, 1, 0])
    smooth = smooth_sensitivity(cost.local_sensitivities, beta=0.02)
    total = cost.rdp + 5.0 * smooth * 2.0 + gnss_rdp(8.0, beta=0.02, sigma_ss=5.0, margin=2.0)
    epsilon = convert_at_orders([total], [8.0], delta=1e-5, method="cks").epsilon
    assert expected_epsilon(cost, PLAN, delta=1e-5) == pytest.approx(epsilon, rel=1e-12)


def test_a_cost_shows_no_number() -> None:
    cost = instance_cost(COUNTS, SETTING, answered=[1, 0, 1, 0])
    assert str(cost.rdp) not in repr(cost)


def test_a_plan_is_the_best_of_its_grid_and_says_where_it_comes_from() -> None:
    costs = [
        instance_cost(COUNTS * 50, SmoothSetting(40.0, 3, order, 250), answered=[1] * 200)
        for order in (6.0, 8.0)
    ]
    plan = choose_plan(costs, delta=1e-5, chosen_from="simulated")
    assert plan.chosen_from == "simulated"
    best = min(
        expected_epsilon(cost, plan, delta=1e-5) for cost in costs if cost.order == plan.order
    )
    for cost in costs:
        for beta in (0.01, 0.03):
            other = SanitizingPlan(cost.order, beta, 4.0, "simulated")
            # The grid is 19 % wide: a plan between its points may be slightly better.
            assert best <= expected_epsilon(cost, other, delta=1e-5) * 1.05


@pytest.mark.parametrize(
    ("order", "beta", "sigma_ss", "margin"),
    [
        pytest.param(1.0, 0.01, 5.0, 2.0, id="order 1"),
        pytest.param(8.0, 0.0, 5.0, 2.0, id="beta 0"),
        pytest.param(8.0, 0.2, 5.0, 2.0, id="beyond a finite divergence"),
        pytest.param(8.0, 0.01, 0.0, 2.0, id="no noise"),
        pytest.param(8.0, 0.01, 5.0, -1.0, id="negative margin"),
        pytest.param(8.0, 0.01, 5.0, math.nan, id="margin is no number"),
    ],
)
def test_plans_out_of_range_are_refused(
    order: float, beta: float, sigma_ss: float, margin: float
) -> None:
    with pytest.raises(InvalidParameterError):
        SanitizingPlan(order, beta, sigma_ss, "public", margin)


def test_other_arguments_out_of_range_are_refused() -> None:
    with pytest.raises(InvalidParameterError):
        SanitizingPlan(8.0, 0.01, 5.0, "the run's own votes")  # type: ignore[arg-type]
    cost = InstanceCost(8.0, 1.0, np.zeros(3))
    for delta in (1.0, 0.0):
        with pytest.raises(InvalidParameterError):
            expected_epsilon(cost, PLAN, delta=delta)
    with pytest.raises(InvalidParameterError, match="order"):
        expected_epsilon(InstanceCost(9.0, 1.0, np.zeros(3)), PLAN, delta=1e-5)
    with pytest.raises(InvalidParameterError):
        choose_plan([], delta=1e-5, chosen_from="public")
    with pytest.raises(InvalidParameterError):
        instance_cost(COUNTS, SETTING, answered=[1, 0, 1])
    with pytest.raises(InvalidVotesError):
        instance_cost([[3, 2, 1]], SETTING, answered=[1])


@pytest.mark.parametrize("offsets", [[4, 2], [0, 6], [7, 0]])
def test_two_classes_against_a_student_are_the_definition(offsets: list[int]) -> None:
    """Brute force over all votes of 6 teachers, with a student's share taken off for the check."""
    setting = SmoothSetting(1.5, 2, 3.0, 6)
    labels = two_class_label_costs(sigma=1.5, order=3.0, teachers=6)

    def cost(row: Votes) -> float:
        top = max(count - offset for count, offset in zip(row, offsets, strict=True))
        check = threshold_rdp([top], [3.0], vote_threshold=2.0, sigma=1.0)[0, 0]
        return float(check + 0.5 * labels[row[0]])

    for class0 in range(7):
        votes = (class0, 6 - class0)
        found = instance_cost([votes], setting, answered=[0.5], check=(2.0, 1.0), offsets=[offsets])
        assert found.rdp == pytest.approx(cost(votes), rel=1e-12)
        listed = np.maximum.accumulate(found.local_sensitivities)
        expected = definition(votes, cost, most=len(listed) - 1, weight=1)
        assert listed == pytest.approx(expected, rel=1e-12)


@sampled("offsets")
@pytest.mark.parametrize("offsets", [[3, 2, 1], [0, 0, 6], [6, 1, 1]])
def test_lists_of_checks_against_a_student_cover_the_definition(offsets: list[int]) -> None:
    setting = SmoothSetting(1.2, 3, 1.6, 6)

    def cost(row: Votes) -> float:
        top = max(count - offset for count, offset in zip(row, offsets, strict=True))
        return float(threshold_rdp([top], [1.6], vote_threshold=1.0, sigma=1.0)[0, 0])

    for row in histograms(votes=6, classes=3):
        start = tuple(int(count) for count in row)
        found = instance_cost([row], setting, answered=[0], check=(1.0, 1.0), offsets=[offsets])
        assert found.rdp == pytest.approx(cost(start), rel=1e-12)
        listed = np.maximum.accumulate(found.local_sensitivities)
        exact = np.array(definition(start, cost, most=len(listed) - 1, weight=1))
        assert (listed >= exact * (1 - 1e-12)).all()


def test_several_students_opinions_add_up() -> None:
    setting = SmoothSetting(1.5, 2, 3.0, 6)
    check = (2.0, 1.0)
    votes, offsets = [[4, 2], [4, 2], [6, 0]], [[6, 0], [0, 6], [6, 0]]
    together = instance_cost(votes, setting, answered=[1, 0, 1], offsets=offsets, check=check)
    alone = [
        instance_cost([row], setting, answered=[share], offsets=[off], check=check)
        for row, share, off in zip(votes, [1, 0, 1], offsets, strict=True)
    ]
    assert together.rdp == pytest.approx(sum(cost.rdp for cost in alone), rel=1e-12)
    listed = sum(cost.local_sensitivities for cost in alone)
    assert together.local_sensitivities == pytest.approx(listed, rel=1e-12)


@pytest.mark.parametrize(
    "offsets",
    [
        pytest.param([[1, 1, 1]], id="another shape"),
        pytest.param([[0.5, 0.5]], id="not integers"),
    ],
)
@pytest.mark.parametrize("classes", [2, 3])
def test_offsets_that_do_not_fit_are_refused(offsets: Any, classes: int) -> None:
    votes = np.full((2, classes), 6 // classes)
    with pytest.raises(InvalidParameterError):
        instance_cost(
            votes,
            SmoothSetting(1.2, classes, 1.6, 6),
            answered=[0, 0],
            check=(1.0, 1.0),
            offsets=offsets,
        )
