"""The joint price for any votes: above the law of every pair, valid votes or not."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import log_ndtr, logsumexp

from pate_fed.accounting.any_votes import (
    HAZARD_BEND,
    AnyVotesSetting,
    any_votes_kinds,
    check_price,
    label_price,
)
from pate_fed.accounting.curves import event_rdp
from pate_fed.accounting.events import AnyVotesEvent
from pate_fed.accounting.joint_price import flat_prices, price_of_any_votes, price_pairs
from pate_fed.accounting.label_bounds import label_level_epsilon
from tests.support.exact_argmax import argmax_log_law
from tests.support.markers import sampled

Counts = NDArray[np.int64]

SETTINGS = [
    pytest.param(AnyVotesSetting(2, 3.0, 2.0), id="2 classes"),
    pytest.param(AnyVotesSetting(2, 1.0, 4.0), id="2 classes, little noise in the check"),
    pytest.param(AnyVotesSetting(3, 4.0, 3.0), id="3 classes"),
    pytest.param(AnyVotesSetting(4, 10.0, 7.95), id="4 classes, the noise of the default run"),
    pytest.param(AnyVotesSetting(3, 9.0, 6.0, weight=3), id="3 votes of one unit"),
]
CAPS = [((30.0, 0.0), (0.0, 30.0)), ((3.0, 40.0),), ((40.0, 3.0),)]
ORDERS = (1.5, 4.0, 12.0)


def moments(
    here: Counts, there: Counts, setting: AnyVotesSetting, order: float, bars: Counts
) -> tuple[float, float]:
    """ln of both summands of a pair; `bars` is the threshold plus the student's votes."""
    laws = [argmax_log_law(counts, setting.sigma2) for counts in (here, there)]
    t, s = (float((counts - bars).max()) / setting.sigma1 for counts in (here, there))
    label = float(logsumexp(order * laws[0] - (order - 1) * laws[1]))
    return (
        order * log_ndtr(-t) - (order - 1) * log_ndtr(-s),
        order * log_ndtr(t) - (order - 1) * log_ndtr(s) + label,
    )


def pairs(setting: AnyVotesSetting, number: int) -> list[tuple[Counts, Counts, Counts]]:
    """Votes that nobody can have cast among them: negative ones, too many, close at the top."""
    numbers = np.random.default_rng(setting.classes * 10 + setting.weight)
    found = []
    for _ in range(number):
        scale = 2 * max(setting.sigma1, setting.sigma2)
        center = numbers.normal(0, scale)
        spread = numbers.choice([0.5, 3.0, 10.0]) * setting.weight
        here = np.rint(numbers.normal(center, spread, setting.classes)).astype(np.int64)
        # Thresholds and the student's shares: the check compares the largest difference.
        bars = np.rint(numbers.normal(0, numbers.choice([0.0, 4.0]), setting.classes))
        moved = int(numbers.integers(1, setting.weight + 1))
        there = here.copy()
        for _ in range(moved):
            i, j = numbers.permutation(setting.classes)[:2]
            there[i] -= 1
            there[j] += 1
        found += [(here, there, bars.astype(np.int64)), (there, here, bars.astype(np.int64))]
    return found


@pytest.mark.slow
@sampled(1)
@pytest.mark.parametrize("setting", SETTINGS)
def test_no_votes_exceed_any_price(setting: AnyVotesSetting) -> None:
    """Condition (V) for votes of any sign and sum, with and without a student to compare with."""
    prices = {
        order: [pair for caps in CAPS for pair in price_pairs(setting, [order], caps)]
        for order in ORDERS
    }
    nearest = -math.inf
    for here, there, bars in pairs(setting, 150):
        for order, found in prices.items():
            refusal, answer = moments(here, there, setting, order, bars)
            for pair in found:
                left = logsumexp(
                    [
                        refusal - (order - 1) * pair.refusal,
                        answer - (order - 1) * pair.answer,
                    ]
                )
                nearest = max(nearest, float(left))
    assert -0.02 < nearest <= 1e-10  # it is nearly reached


@pytest.mark.slow
def test_a_price_that_is_a_little_smaller_is_exceeded() -> None:
    """The brute force notices a price that is 3 % too small."""
    setting, order = AnyVotesSetting(2, 3.0, 2.0), 4.0
    [flat] = flat_prices(setting, [order])
    worst = -math.inf
    for gap, bar in itertools.product(range(-9, 10), np.arange(-9, 9, 0.25)):
        for moved in ((1, -1), (-1, 1)):
            # The student is sure of the second class: the check compares the first one's votes.
            votes, bars = np.array([gap, 0]), np.array([bar, 100])
            refusal, answer = moments(votes, votes + np.array(moved), setting, order, bars)
            worst = max(worst, float(logsumexp([refusal, answer])) / (order - 1))
    assert 0.97 * flat < worst <= flat


@sampled(1)
@pytest.mark.parametrize("order", [1.2, 3.0, 9.0, 30.0])
@pytest.mark.parametrize(("sigma1", "sigma2"), [(10.0, 7.95), (75.0, 40.0), (3.0, 8.0), (1.0, 2.0)])
def test_cells_are_above_the_largest_sum_and_hardly_above_it(
    sigma1: float, sigma2: float, order: float
) -> None:
    """Against a fine grid of t, both directions, with prices of a refusal between the extremes."""
    setting = AnyVotesSetting(3, sigma1, sigma2)
    kinds = any_votes_kinds(setting, order)
    if kinds is None:
        assert order * (order - 1) * max(1 / sigma1, 1 / sigma2) ** 2 > 10
        return
    shift, label = 1 / sigma1, (order - 1) * label_price(setting, order)
    t = np.arange(-12 - order * shift, 12 + order * shift, shift / 300)
    for discount in (0.0, 0.5 * label, label, 3 * label):
        sums = [
            np.exp(order * log_ndtr(-t) - (order - 1) * log_ndtr(-(t + d)))
            * math.exp(min(discount, 20.0))
            + np.exp(label + order * log_ndtr(t) - (order - 1) * log_ndtr(t + d))
            for d in (shift, -shift)
        ]
        exact = float(np.max(sums)) - 1
        bound = float(
            np.exp(kinds.log_refusal + min(discount, 20.0)).__add__(np.exp(kinds.log_answer)).max()
        )
        assert bound - 1 >= exact
        assert bound - 1 <= exact * 1.005 + 1e-12
        if not discount:
            assert exact <= kinds.excess <= exact * 1.005 + 1e-12


def test_the_hazard_bends_less_than_claimed() -> None:
    x = np.arange(-12, 40, 1e-3)
    hazard = np.exp(-(x**2) / 2 - log_ndtr(-x)) / math.sqrt(2 * math.pi)
    bend = np.gradient(np.gradient(hazard, x), x)[2:-2]
    assert 0.29 < bend.max() < HAZARD_BEND - 0.003
    assert bend.min() > -1e-6  # it is convex (Sampford), which the proof needs


@sampled(2)
@pytest.mark.parametrize("setting", SETTINGS)
def test_no_adaptive_choice_of_votes_exceeds_the_caps(setting: AnyVotesSetting) -> None:
    """The largest moment over all strategies of up to 4 asks, from the pairs above."""
    order, refusals, answers = 4.0, 2, 2
    states = [
        tuple(map(math.exp, moments(*pair[:2], setting, order, pair[2])))
        for pair in pairs(setting, 60)
    ]
    largest = np.ones((refusals + 1, answers + 1))
    for r, a in itertools.product(range(1, refusals + 1), range(1, answers + 1)):
        largest[r, a] = max(x * largest[r - 1, a] + y * largest[r, a - 1] for x, y in states)
    [pair] = price_pairs(setting, [order], ((float(refusals), float(answers)),))
    reached = math.log(largest[refusals, answers]) / (order - 1)
    assert 0 < reached <= pair.total


@sampled(1)
@pytest.mark.parametrize(
    ("setting", "caps", "expected"),
    [
        pytest.param((10, 10.0, 7.95), (30, 30, 30), 3.8372, id="the default run, 4.19 apart"),
        pytest.param((10, 50.0, 40.0), (30, 270, 300), 2.2193, id="300 asks, 2.365 apart"),
        pytest.param((2, 50.0, 40.0), (30, 270, 300), 2.2138, id="300 asks of 2 classes"),
    ],
)
def test_known_prices(
    setting: tuple[int, float, float], caps: tuple[int, int, int], expected: float
) -> None:
    found = price_of_any_votes(
        AnyVotesSetting(*setting),
        max_refusals=caps[0],
        max_answers=caps[1],
        max_asks=caps[2],
        delta=1e-5,
    )
    assert expected - 2e-3 < found.epsilon <= expected


@sampled(2)
@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("sigma1", "sigma2", "weight"), [(20.0, 8.0, 1), (150.0, 40.0, 1), (25.0, 25.0, 10), (9, 6, 3)]
)
def test_it_is_never_above_check_and_label_charged_apart(
    sigma1: float, sigma2: float, weight: int
) -> None:
    setting = AnyVotesSetting(3, sigma1, sigma2, weight)
    for refusals, answers in ((1, 1), (100, 5), (5, 100)):
        apart = label_level_epsilon(
            refusals + answers,
            answers,
            sigma1=sigma1,
            sigma2=sigma2,
            weight=float(weight),
            delta=1e-5,
        )
        found = price_of_any_votes(setting, max_refusals=refusals, max_answers=answers, delta=1e-5)
        # `label_level_epsilon` looks at orders between those of the grid.
        assert found.epsilon <= apart.epsilon * (1 + 2e-3)


def test_its_event_is_charged_by_outcome() -> None:
    setting = AnyVotesSetting(3, 10.0, 8.0)
    run: dict[str, Any] = {"classes": 3, "sigma1": 10.0, "sigma2": 8.0}
    whole = AnyVotesEvent(5, 20, **run)
    [pair] = price_pairs(setting, [6.0], ((5.0, 20.0),))
    assert event_rdp(whole, [6.0]) == pytest.approx([pair.total], rel=1e-12)
    part = AnyVotesEvent(1, 2, **run, max_refusals=5, max_answers=20)
    assert event_rdp(part, [6.0]) == pytest.approx([pair.refusal + 2 * pair.answer], rel=1e-6)
    assert part.is_covered_by(whole)
    assert not whole.is_covered_by(part)
    assert pair.refusal >= 0
    assert check_price(setting, 6.0) > 0
