"""The certified maximum: its integrals, its enclosures, what it leaves outside."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest

from pate_fed.accounting.moment_maximum import (
    LARGEST_THREE_WAY,
    TOLERANCE,
    Choice,
    Floats,
    ThreeWay,
    TwoWay,
    _censored,
    _enclose,
    _values,
    largest_three_way,
    largest_two_way,
)
from tests.support.markers import sampled

SHIFTS = [
    pytest.param(0.005, id="sigma 280"),
    pytest.param(0.05, id="sigma 28"),
    pytest.param(0.5, id="sigma 2.8"),
    pytest.param(2.0, id="several votes of noise 1.4"),
]


def choices(shift: float) -> list[Choice]:
    unused = np.zeros(1)
    return [TwoWay(shift), ThreeWay(shift, two_way=unused, one_sided=unused)]


def largest_order(shift: float) -> float:
    """The largest order that is worked with."""
    return (1 + math.sqrt(1 + 4 * LARGEST_THREE_WAY / shift**2)) / 2


@pytest.mark.slow
def test_three_way_chances_agree_with_20_digit_integrals() -> None:
    numbers = np.random.default_rng(3)
    states = np.concatenate([numbers.uniform(-r, r, size=(2, 2)) for r in (2, 5, 10)])
    law = choices(0.05)[1].law(states)
    for (u, t), chances, log_ratios in zip(states, law.chances, law.log_ratios, strict=True):
        exact = [reference_law(u, t - moved) for moved in (0.0, 0.05)]
        for k in range(3):
            # 1e-12: the stated error of 2e-13, and that of mpmath's own quadrature.
            assert chances[k] == pytest.approx(float(exact[0][k]), rel=1e-12, abs=0)
            ratio = float(mpmath.log(exact[0][k] / exact[1][k]))
            assert log_ratios[k] == pytest.approx(ratio, rel=0, abs=4e-13)


def reference_law(u: float, t: float) -> list[mpmath.mpf]:
    with mpmath.workdps(20):
        a, b = (u + t) / mpmath.sqrt(2), (u - t) / mpmath.sqrt(2)
        return [first_wins(u, t), first_wins(u, -t), mpmath.ncdf(-a) * mpmath.ncdf(-b)]


def first_wins(u: float, t: float) -> mpmath.mpf:
    mode = max(0.0, t, (t - u) / 2)
    ends = [0, mode / 2, mode, mode + 2, mode + 5, mode + 12, mode + 30]
    return mpmath.quad(lambda v: mpmath.npdf(v - t) * mpmath.ncdf(v + u), sorted(set(ends)))


@pytest.mark.parametrize("shift", SHIFTS)
def test_slopes_are_the_derivatives_of_the_chances(shift: float) -> None:
    numbers = np.random.default_rng(4)
    step = 1e-4
    for choice in choices(shift):
        states = numbers.uniform(-3, 3, size=(50, choice.axes))
        law = choice.law(states)
        for axis in range(choice.axes):
            change = step * np.eye(choice.axes)[axis]
            above, below = choice.law(states + change), choice.law(states - change)
            by_chance = (np.log(above.chances) - np.log(below.chances)) / (2 * step)
            by_ratio = (above.log_ratios - below.log_ratios) / (2 * step)
            # Third derivatives are at most 2 (and 2 shift): errors below step^2, plus rounding.
            assert law.slopes[:, :, axis] == pytest.approx(by_chance, rel=0, abs=1e-8)
            assert law.ratio_slopes[:, :, axis] == pytest.approx(by_ratio, rel=0, abs=1e-8)


@sampled("half_width", "shift", cases=3)
@pytest.mark.parametrize("shift", SHIFTS)
@pytest.mark.parametrize("half_width", [0.5, 0.1, 0.01])
def test_no_point_of_a_box_exceeds_its_bound(shift: float, half_width: float) -> None:
    """10,000 random points per case, in random boxes at random orders, one and two axes."""
    numbers = np.random.default_rng(5)
    for choice in choices(shift):
        boxes = 500
        centers = numbers.uniform(-7, 5, size=(boxes, choice.axes))
        orders = 1 + (largest_order(shift) - 1) * numbers.uniform(0, 1, boxes) ** 3 + 1e-6
        value, bound = _enclose(choice.law(centers), orders, shift, half_width)
        assert value == pytest.approx(_values(choice.law(centers), orders), rel=1e-9)
        for _ in range(20):
            # Corners as often as inner points: there the bound is closest.
            offsets = numbers.uniform(-1, 1, size=centers.shape)
            offsets = np.where(
                numbers.random(boxes)[:, np.newaxis] < 0.5, offsets, np.sign(offsets)
            )
            met = _values(choice.law(centers + half_width * offsets), orders)
            assert (met <= bound * (1 + 1e-9)).all()


@sampled("shift")
@pytest.mark.parametrize("shift", SHIFTS)
def test_nothing_outside_the_half_spaces_exceeds_the_target(shift: float) -> None:
    numbers = np.random.default_rng(6)
    orders = 1 + (largest_order(shift) - 1) * np.array([0.01, 0.1, 0.4, 0.99])
    two_way = largest_two_way(orders, shift)
    one_sided = largest_two_way(orders, shift / math.sqrt(2))
    three_way = largest_three_way(orders, shift)
    cases: list[tuple[Choice, Floats]] = [
        (TwoWay(shift), two_way.upper),
        (
            ThreeWay(shift, two_way=two_way.upper, one_sided=one_sided.upper),
            three_way.upper,
        ),
    ]
    for choice, targets in cases:
        normals, cuts = choice.outside(orders, targets)
        assert np.isfinite(cuts).all()
        for normal, cut in zip(normals, cuts, strict=True):
            for order, target, edge in zip(orders, targets, cut, strict=True):
                states = numbers.uniform(-9, 9, size=(400, choice.axes))
                beyond = edge + numbers.exponential(1.0, 400)
                states += np.outer(beyond - states @ normal, normal)
                states = states[(np.abs(states) < 20).all(axis=1)]
                met = _values(choice.law(states), np.full(len(states), order))
                assert (met <= target).all()


def test_hiding_more_costs_less() -> None:
    """What the half-spaces rest on: the censored moment falls with the cut (data processing)."""
    for sign in (+1, -1):
        moment = _censored(np.array([1.5, 4.0, 20.0]), 0.2, sign=sign)
        assert (np.diff(moment, axis=1) <= 1e-13).all()


def test_the_maximum_lies_within_the_tolerance_of_a_value_met() -> None:
    orders = np.array([1.05, 2.0, 10.0, 60.0])
    for maximum in (largest_two_way(orders, 0.05), largest_three_way(orders, 0.05)):
        divergence = np.log1p(maximum.upper) / np.log1p(maximum.lower)
        assert (divergence > 1).all()
        assert (divergence < 1 + TOLERANCE + 1e-6).all()


def test_no_random_state_exceeds_the_maximum() -> None:
    numbers = np.random.default_rng(7)
    for shift in (0.03, 0.35, 1.4):
        orders = 1 + (largest_order(shift) - 1) * np.array([0.02, 0.2, 0.6])
        for choice, maximum in zip(
            choices(shift),
            (largest_two_way(orders, shift), largest_three_way(orders, shift)),
            strict=True,
        ):
            states = numbers.normal(0, 3, size=(20_000, choice.axes))
            law = choice.law(states)
            for order, upper in zip(orders, maximum.upper, strict=True):
                assert _values(law, np.full(1, order)).max() <= upper
