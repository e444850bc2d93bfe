"""The joint price: above the law of every pair of neighbors, and hardly above it."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.special import log_ndtr

from pate_fed.accounting import joint_price, label_divergence, vote_pairs
from pate_fed.accounting.accountant import RenyiAccountant
from pate_fed.accounting.conversion import convert_at_orders
from pate_fed.accounting.curves import event_rdp
from pate_fed.accounting.discrete_law import discrete_gap_law, discrete_pass_law
from pate_fed.accounting.events import ConfidentGaussianMaxEvent, JointPriceEvent
from pate_fed.accounting.formal import RunCaps, formal_costs
from pate_fed.accounting.gaussian_dp import gdp_epsilon, gdp_mu_squared
from pate_fed.accounting.joint_price import JointPrice, flat_prices, price, price_pairs
from pate_fed.accounting.label_bounds import label_level_epsilon
from pate_fed.accounting.label_divergence import (
    bernoulli_divergence,
    gaussian_cap,
    many_class_divergence,
    two_class_divergence,
    weighted_spread,
)
from pate_fed.accounting.vote_pairs import JointSetting
from pate_fed.errors import InvalidParameterError
from tests.support.exact_argmax import argmax_log_law, histograms, one_vote_neighbors
from tests.support.markers import more, sampled

Counts = NDArray[np.int64]
Table = NDArray[np.float64]

VECTORS: dict[str, Any] = json.loads(
    (Path(__file__).parents[1] / "vectors" / "joint_price.json").read_text()
)
MNIST = JointSetting(250, 10, 200, 150, 40)
ADULT = JointSetting(250, 2, 300, 200, 40)
HOSPITAL = JointSetting(250, 2, 150, 50, 40)

# Quadrature of the law is good to 1e-14 in each log; an RDP of 1e-4 then to 1e-10 of itself.
QUADRATURE_ERROR = 1e-9


def least_answer_price(setting: JointSetting, order: float, refusal_price: float) -> float:
    """The least price of a label that is valid beside this price of a refusal."""
    scaled = np.array([(order - 1) * refusal_price])
    states = joint_price._states(setting, order)
    return float(joint_price._least_answer(states, scaled)[0]) / (order - 1)


def setting_of(case: dict[str, Any]) -> JointSetting:
    return JointSetting(case["n"], case["C"], case["T"], case["sigma1"], case["sigma2"])


def priced(setting: JointSetting, refusals: float, answers: float, **more: Any) -> JointPrice:
    return price(
        teachers=setting.teachers,
        classes=setting.classes,
        vote_threshold=setting.vote_threshold,
        sigma1=setting.sigma1,
        sigma2=setting.sigma2,
        weight=setting.weight,
        may_abstain=setting.may_abstain,
        noise=setting.noise,
        max_refusals=refusals,
        max_answers=answers,
        **{"delta": 1e-5, **more},
    )


def joint_log_law(counts: Counts, setting: JointSetting) -> Table:
    """Return the logs of the chances of each label, then of a refusal."""
    margin = (counts.max() - setting.vote_threshold) / setting.sigma1
    labels = log_ndtr(margin) + argmax_log_law(counts, setting.sigma2)
    return np.append(labels, log_ndtr(-margin))


def log_left_side(here: Table, there: Table, order: float, refusal: float, answer: float) -> float:
    """Return the log of what must not exceed 1 for prices to be valid."""
    charges = np.append(np.full(len(here) - 1, answer), refusal)
    return float(np.logaddexp.reduce(order * here - (order - 1) * (there + charges)))


def some_pairs(setting: JointSetting, order: float) -> list[tuple[float, float]]:
    """Return the flat price and the cheapest pairs for few and for many answers."""
    flat = flat_prices(setting, [order])[0]
    caps = [((9.0, 1.0),), ((1.0, 1.0),), ((1.0, 9.0),)]
    pairs = [price_pairs(setting, [order], corner)[0] for corner in caps]
    return [(flat, flat), *((pair.refusal, pair.answer) for pair in pairs)]


CASES = [
    (more if index % 6 else pytest.param)(
        case, id=f"{case['setting']} {index} order {case['order']}"
    )
    for index, case in enumerate(VECTORS["vectors"])
]


class TestVectors:
    @sampled(3)
    @pytest.mark.parametrize("case", CASES)
    def test_every_flat_price_lies_between_truth_and_the_reference(
        self, case: dict[str, Any]
    ) -> None:
        (flat,) = flat_prices(setting_of(case), [case["order"]])
        # The reference is an upper bound too, of another grid: 0.3 % is what may lie between.
        assert case["J_lower"] <= flat <= case["J_upper"] * 1.003

    @sampled(3)
    @pytest.mark.parametrize("case", CASES)
    def test_every_pair_of_the_reference_is_valid(self, case: dict[str, Any]) -> None:
        setting, order = setting_of(case), case["order"]
        counts = np.array(case["lower_at"])
        for pair in case["two_price"]:
            answer = least_answer_price(setting, order, pair["c0"])
            # Ours must be no larger, but for the width of cells (0.5 % of the flat price) ...
            assert answer <= pair["c1"] + 0.005 * case["J_upper"]
            # ... and both must hold at the histogram that costs most.
            for moved in one_vote_neighbors(counts):
                here, there = joint_log_law(counts, setting), joint_log_law(moved, setting)
                for charges in ((pair["c0"], pair["c1"]), (pair["c0"], answer)):
                    for p, q in ((here, there), (there, here)):
                        left = log_left_side(p, q, order, *charges)
                        assert left <= 1e-12  # quadrature

    @sampled(1)
    @pytest.mark.parametrize(
        "case",
        [
            (more if index % 2 else pytest.param)(case, id=f"{case['name']} K={case['K']}")
            for index, case in enumerate(VECTORS["totals"])
        ],
    )
    def test_totals_agree_within_half_a_percent(self, case: dict[str, Any]) -> None:
        setting, refusals = setting_of(case), case["Q"] - case["K"]
        real: dict[str, Any] = {"delta": case["delta"], "real_caps": True}
        both = priced(setting, refusals, case["K"], **real)
        assert both.epsilon == pytest.approx(case["two_filter"]["eps"], rel=0.005)
        assert both.flat_epsilon == pytest.approx(case["flat"]["eps"], rel=0.005)
        asks = priced(setting, case["Q"], case["K"], max_asks=case["Q"], **real)
        assert asks.epsilon == pytest.approx(case["two_caps"]["eps"], rel=0.005)
        assert both.epsilon <= asks.epsilon

    def test_the_papers_settings_cost_what_we_promise(self) -> None:
        mnist = priced(MNIST, 357.28, 282.72, real_caps=True)
        assert 1.70 < mnist.epsilon <= 1.715
        assert mnist.flat_epsilon == pytest.approx(1.845, rel=0.005)
        adult = priced(ADULT, 962, 538)
        assert adult.epsilon == pytest.approx(1.9928, rel=0.005)

    @pytest.mark.exhaustive
    @sampled(1)
    @pytest.mark.parametrize(("classes", "epsilon"), [(2, 0.9974), (5, 0.9996), (10, 1.0030)])
    def test_a_run_that_mostly_agrees_costs_less_than_half(
        self, classes: int, epsilon: float
    ) -> None:
        joint = priced(replace(HOSPITAL, classes=classes), 30, 270)
        assert joint.epsilon == pytest.approx(epsilon, rel=0.002)
        apart = ConfidentGaussianMaxEvent(asks=299, answers=270, sigma1=50, sigma2=40)
        assert joint.epsilon < 0.45 * gdp_epsilon(math.sqrt(gdp_mu_squared(apart)), 1e-5)


SMALL = [
    pytest.param(JointSetting(votes, classes, threshold, sigma1, sigma2), id=name)
    for votes, classes, threshold, sigma1, sigma2, name in [
        (6, 4, 3.5, 1.5, 1.2, "6 votes, 4 classes"),
        (6, 3, 4.0, 1.5, 1.0, "6 votes, 3 classes"),
        (6, 3, 6.5, 3.0, 2.0, "6 votes, high threshold"),
        (6, 3, 1.0, 0.7, 3.0, "6 votes, low threshold"),
        (5, 3, 3.3, 2.0, 0.6, "5 votes, little noise"),
        (4, 3, 3.0, 1.0, 1.2, "4 votes"),
        (3, 3, 2.0, 1.0, 1.0, "3 votes"),
        (2, 3, 2.0, 1.0, 1.0, "2 votes"),
        (1, 3, 1.0, 1.0, 2.0, "1 vote, 3 classes"),
        (6, 2, 4.0, 1.5, 1.0, "6 votes, 2 classes"),
        (5, 2, 7.0, 4.0, 2.0, "5 votes, 2 classes"),
        (1, 2, 1.0, 1.0, 2.0, "1 vote, 2 classes"),
    ]
]
ORDERS = [1.3, 2.0, 4.5, 12.0]


def all_histograms(setting: JointSetting) -> list[Counts]:
    """Return every histogram of at most so many votes."""
    return [
        counts
        for votes in range(setting.teachers + 1)
        for counts in histograms(votes, setting.classes)
    ]


def worst(setting: JointSetting, pairs: list[tuple[Counts, Counts]]) -> None:
    """Assert that no ordered pair exceeds any price, at any order."""
    laws = {tuple(row): joint_log_law(row, setting) for pair in pairs for row in pair}
    for order in ORDERS:
        charges = some_pairs(setting, order)
        for before, after in pairs:
            here, there = laws[tuple(before)], laws[tuple(after)]
            for refusal, answer in charges:
                left = log_left_side(here, there, order, refusal, answer)
                assert left <= 1e-11 * order, (order, before, after)  # quadrature


class TestBruteForce:
    @sampled(1)
    @pytest.mark.parametrize("setting", SMALL)
    def test_no_neighbors_exceed_any_price(self, setting: JointSetting) -> None:
        # A neighbor of a neighbor's move is itself listed: both directions are checked.
        worst(
            setting,
            [
                (counts, moved)
                for counts in all_histograms(setting)
                for moved in one_vote_neighbors(counts)
            ],
        )

    @pytest.mark.parametrize("setting", SMALL[-3:])
    def test_two_classes_are_priced_exactly(self, setting: JointSetting) -> None:
        for order in ORDERS:
            truth = max(
                log_left_side(
                    joint_log_law(counts, setting), joint_log_law(moved, setting), order, 0.0, 0.0
                )
                for counts in all_histograms(setting)
                for moved in one_vote_neighbors(counts)
            )
            (flat,) = flat_prices(setting, [order])
            assert flat * (order - 1) == pytest.approx(truth, rel=1e-8)

    @sampled(1)
    @pytest.mark.parametrize("setting", SMALL[3:9])
    def test_votes_may_be_withheld_where_that_is_allowed(self, setting: JointSetting) -> None:
        setting = replace(setting, may_abstain=True)
        pairs = []
        for counts in all_histograms(setting):
            for place in range(setting.classes):
                if counts[place]:
                    less = counts - np.eye(setting.classes, dtype=np.int64)[place]
                    pairs += [(counts, less), (less, counts)]
            pairs += [(counts, moved) for moved in one_vote_neighbors(counts)]
        worst(setting, pairs)

    @sampled(1)
    @pytest.mark.parametrize(
        "setting",
        [
            JointSetting(5, 3, 3.5, 2.0, 1.5, weight=2),
            JointSetting(4, 3, 3.0, 1.0, 2.5, weight=3),
            JointSetting(6, 2, 4.0, 1.5, 1.5, weight=2),
            JointSetting(5, 2, 5.5, 3.0, 1.0, weight=3),
            JointSetting(5, 2, 5.5, 3.0, 1.0, weight=2, may_abstain=True),
            JointSetting(4, 3, 3.0, 2.0, 2.0, weight=2, may_abstain=True),
        ],
        ids=lambda setting: f"{setting.classes} classes, {setting.weight} votes",
    )
    def test_a_hospital_may_move_all_its_votes(self, setting: JointSetting) -> None:
        worst(setting, hospital_pairs(setting))

    @sampled(1)
    @pytest.mark.parametrize("weight", [1, 2])
    @pytest.mark.parametrize(("threshold", "sigma1", "sigma2"), [(3, 1.5, 1.0), (4.5, 0.8, 2.0)])
    def test_discrete_noise_of_two_classes(
        self, threshold: float, sigma1: float, sigma2: float, weight: int
    ) -> None:
        setting = JointSetting(
            5, 2, threshold, sigma1, sigma2, weight=weight, noise="discrete-gaussian"
        )
        laws = {tuple(row): discrete_joint_law(row, setting) for row in all_histograms(setting)}
        for order in ORDERS:
            truth = -math.inf
            for before, after in hospital_pairs(setting):
                here, there = laws[tuple(before)], laws[tuple(after)]
                truth = max(truth, log_left_side(here, there, order, 0.0, 0.0))
                for refusal, answer in some_pairs(setting, order):
                    assert log_left_side(here, there, order, refusal, answer) <= 1e-11
            (flat,) = flat_prices(setting, [order])
            assert flat * (order - 1) == pytest.approx(truth, rel=1e-7)


def hospital_pairs(setting: JointSetting) -> list[tuple[Counts, Counts]]:
    """Return every pair in which a hospital's votes go elsewhere, or nowhere if they may."""
    pairs = []
    for before, after in itertools.product(all_histograms(setting), repeat=2):
        less = int(np.maximum(before - after, 0).sum())
        more = int(np.maximum(after - before, 0).sum())
        if max(less, more) <= setting.weight and (setting.may_abstain or less == more) and more:
            pairs.append((before, after))
            pairs.append((after, before))
    return pairs


def discrete_joint_law(counts: Counts, setting: JointSetting) -> Table:
    """Add up the joint law over all pairs of noises, independently of the price's own sums."""
    noise = np.arange(-60, 61)

    def mass(sigma: float) -> Table:
        weights = np.exp(-(noise**2) / (2 * sigma**2))
        return np.asarray(weights / weights.sum())

    passes = mass(setting.sigma1)[counts.max() + noise >= setting.vote_threshold].sum()
    both = np.outer(mass(setting.sigma2), mass(setting.sigma2))
    lower = both[counts[0] + noise[:, np.newaxis] >= counts[1] + noise].sum()
    return np.log([passes * lower, passes * (1 - lower), 1 - passes])


CAPS = [(2, 2, 4), (2, 2, 3), (1, 3, 4), (3, 1, 3), (2, 3, 4)]
"""Caps on refusals, answers and asks of runs of up to four asks."""


def charge_at(
    setting: JointSetting, order: float, outcomes: tuple[int, ...], caps: tuple[int, ...] = ()
) -> float:
    """Return what an event of a run with these caps is charged; without caps: a run of its own."""
    run = dict(zip(("max_refusals", "max_answers", "max_asks"), caps, strict=False))
    event = JointPriceEvent(
        outcomes[0],
        outcomes[1],
        setting.teachers,
        setting.classes,
        setting.vote_threshold,
        setting.sigma1,
        setting.sigma2,
        setting.weight,
        sum(outcomes),
        **run,
    )
    return float(event_rdp(event, [order])[0])


def moments(setting: JointSetting, order: float, pairs: list[tuple[Counts, Counts]]) -> Table:
    """Return p^l q^(1-l) of a refusal and, summed, of all labels, for each pair; shape (2, n)."""
    found = []
    for before, after in pairs:
        here, there = joint_log_law(before, setting), joint_log_law(after, setting)
        each = np.exp(order * here - (order - 1) * there)
        found.append((each[-1], each[:-1].sum()))
    return np.array(found).T


def largest_moment(refusal: Table, answer: Table, caps: tuple[int, int, int], final: Any) -> float:
    """Maximize E_Q[(P/Q)^l final] over every adaptive strategy, by backward induction.

    Before each ask the adversary sees all outcomes, and chooses any pair of neighbors or stops.
    """
    most_refusals, most_answers, most_asks = caps

    @lru_cache
    def best(refused: int, answered: int) -> float:
        stopped = float(final(refused, answered))
        over = refused + answered == most_asks
        if over or refused == most_refusals or answered == most_answers:
            return stopped
        ahead = refusal * best(refused + 1, answered) + answer * best(refused, answered + 1)
        return max(stopped, float(ahead.max()))

    return best(0, 0)


ADAPTIVE = [
    pytest.param(JointSetting(5, 2, 4.0, 1.5, 1.0), id="5 votes, 2 classes"),
    pytest.param(JointSetting(4, 2, 6.0, 3.0, 2.0), id="4 votes, 2 classes, mostly refused"),
    pytest.param(JointSetting(4, 3, 3.0, 1.0, 1.2), id="4 votes, 3 classes"),
    pytest.param(JointSetting(5, 3, 2.0, 2.0, 0.8), id="5 votes, 3 classes, mostly answered"),
    pytest.param(JointSetting(5, 2, 4.0, 2.5, 2.0, weight=2), id="5 votes, 2 moved"),
    pytest.param(JointSetting(4, 3, 3.0, 2.0, 2.5, weight=2), id="4 votes, 3 classes, 2 moved"),
]


class TestAdaptiveRuns:
    """Theorem C, by trying every strategy: the charges of a path pay for what it reveals."""

    def pairs(self, setting: JointSetting) -> list[tuple[Counts, Counts]]:
        if setting.weight > 1:
            return hospital_pairs(setting)
        return [
            (counts, moved)
            for counts in all_histograms(setting)
            for moved in one_vote_neighbors(counts)
        ]

    @sampled(3)
    @pytest.mark.parametrize("setting", ADAPTIVE)
    @pytest.mark.parametrize("order", [1.5, 3.0, 8.0])
    def test_no_strategy_reveals_more_than_its_path_is_charged(
        self, setting: JointSetting, order: float
    ) -> None:
        refusal, answer = moments(setting, order, self.pairs(setting))
        for caps in CAPS:

            def refund(refused: int, answered: int, caps: tuple[int, int, int] = caps) -> float:
                charge = charge_at(setting, order, (refused, answered), caps)
                return math.exp(-(order - 1) * charge)

            paid = largest_moment(refusal, answer, caps, refund)
            assert paid <= 1 + 1e-10 * order, caps  # quadrature
            assert paid == pytest.approx(1)  # stopping at once reveals nothing: exactly 1
            # Nor does any reveal more than the whole run costs.
            revealed = largest_moment(refusal, answer, caps, lambda refused, answered: 1.0)
            whole = charge_at(setting, order, caps[:2], caps) if sum(caps[:2]) == caps[2] else None
            if whole is not None:
                assert math.log(revealed) <= (order - 1) * whole + 1e-10 * order
                assert math.log(revealed) >= 0.4 * (order - 1) * whole  # and not far below

    @sampled(2)
    @pytest.mark.parametrize("setting", ADAPTIVE)
    def test_prices_chosen_for_each_batch_after_it_would_undercount(
        self, setting: JointSetting
    ) -> None:
        # Why an event names its run's caps: a refusal priced as if nothing else could happen, and
        # a label likewise, together charge less than a strategy reveals.
        order = 1.5
        refusal, answer = moments(setting, order, self.pairs(setting))
        alone = charge_at(setting, order, (1, 0)), charge_at(setting, order, (0, 1))
        caps = (4, 4, 4)

        def refund(refused: int, answered: int) -> float:
            return math.exp(-(order - 1) * (refused * alone[0] + answered * alone[1]))

        assert largest_moment(refusal, answer, caps, refund) > 1.02
        # It breaks the guarantee itself, not its proof alone: on every path the charges stay
        # below what was revealed.
        revealed = largest_moment(refusal, answer, caps, lambda refused, answered: 1.0)
        assert math.log(revealed) > (order - 1) * 4 * max(alone) * 1.02


class TestRandomVotes:
    @pytest.mark.slow
    @settings(max_examples=30, deadline=None)
    @given(data=st.data())
    def test_no_histogram_of_many_votes_exceeds_the_price(self, data: st.DataObject) -> None:
        setting, order = data.draw(
            st.sampled_from([(MNIST, 8.0), (replace(HOSPITAL, classes=5), 10.0)])
        )
        top = data.draw(st.integers(1, setting.teachers))
        counts = np.zeros(setting.classes, dtype=np.int64)
        counts[0] = top
        left = setting.teachers - top
        for place in range(1, setting.classes):
            counts[place] = data.draw(st.integers(0, min(left, top)))
            left -= int(counts[place])
        charges = some_pairs(setting, order)
        here = joint_log_law(counts, setting)
        for moved in one_vote_neighbors(counts):
            there = joint_log_law(moved, setting)
            for refusal, answer in charges:
                assert log_left_side(here, there, order, refusal, answer) <= 1e-12
                assert log_left_side(there, here, order, refusal, answer) <= 1e-12


SETTINGS = st.builds(
    JointSetting,
    teachers=st.integers(2, 60),
    classes=st.just(2),
    vote_threshold=st.floats(-5, 80),
    sigma1=st.floats(1, 60),
    sigma2=st.floats(1, 60),
)


class TestLaws:
    @pytest.mark.exhaustive
    @settings(max_examples=6, deadline=None)
    @given(setting=SETTINGS, refusals=st.integers(1, 300), answers=st.integers(1, 300))
    def test_more_of_anything_never_costs_less(
        self, setting: JointSetting, refusals: int, answers: int
    ) -> None:
        base = priced(setting, refusals, answers)
        # The search for prices and the order grid are deterministic, but stop at a finite width.
        least = base.epsilon * (1 - 1e-6) - 1e-9
        more_teachers = replace(setting, teachers=setting.teachers + 1)
        assert priced(setting, refusals + 1, answers).epsilon >= least
        assert priced(setting, refusals, answers + 1).epsilon >= least
        assert priced(more_teachers, refusals, answers).epsilon >= least
        assert priced(replace(setting, weight=2), refusals, answers).epsilon >= least
        assert priced(replace(setting, may_abstain=True), refusals, answers).epsilon >= least
        assert priced(setting, refusals, answers, delta=5e-6).epsilon >= least
        assert base.epsilon <= base.flat_epsilon

    def test_more_classes_never_cost_less(self) -> None:
        costs = [
            priced(JointSetting(30, classes, 20, 8, 5), 50, 50).epsilon
            for classes in (2, 3, 4, 10, 150)
        ]
        assert costs == sorted(costs)

    def test_more_teachers_never_cost_less_with_three_classes(self) -> None:
        costs = [
            priced(JointSetting(teachers, 3, 20, 8, 5), 50, 50).epsilon
            for teachers in (20, 24, 25, 30)
        ]
        assert all(
            # Cells of u begin elsewhere for other numbers of teachers.
            more >= less * (1 - 1e-6)
            for less, more in itertools.pairwise(costs)
        )

    @settings(max_examples=60, deadline=None)
    @given(setting=SETTINGS, order=st.floats(1.1, 30))
    def test_check_and_label_charged_apart_are_one_of_the_valid_pairs(
        self, setting: JointSetting, order: float
    ) -> None:
        check, label = order / (2 * setting.sigma1**2), order / setting.sigma2**2
        # Beyond, e^((order-1) D) overflows and the price is infinite: an order of no use.
        assume((order - 1) * (check + label) < 600)
        assert least_answer_price(setting, order, check) <= (check + label) * (1 + 1e-9)
        apart = 10 * (2 * check + label)
        joint = price_pairs(setting, [order], ((10.0, 10.0),))[0]
        assert joint.total <= apart * (1 + 1e-9)

    @pytest.mark.exhaustive
    def test_the_joint_price_is_never_above_separate_charges(self) -> None:
        for case in VECTORS["totals"]:
            joint = priced(
                setting_of(case),
                case["Q"] - case["K"],
                case["K"],
                delta=case["delta"],
                real_caps=True,
            )
            assert joint.epsilon <= case["separate"]["eps"]

    @sampled(1)
    @pytest.mark.parametrize(
        ("setting", "refusals", "answers"),
        [
            pytest.param(JointSetting(50, 2, 0, 20, 8), 100, 100, id="ties pass"),
            pytest.param(JointSetting(50, 10, 0, 20, 8), 100, 100, id="ties pass, 10 classes"),
            pytest.param(JointSetting(20, 3, 5, 3, 4), 50, 50, id="little noise"),
            pytest.param(JointSetting(20, 3, 14, 6, 4), 50, 50, id="high threshold"),
            pytest.param(JointSetting(250, 10, 100, 40, 40), 100, 300, id="250 teachers"),
            pytest.param(HOSPITAL, 100, 900, id="hospital"),
        ],
    )
    def test_the_joint_price_is_never_above_label_level_charges(
        self, setting: JointSetting, refusals: int, answers: int
    ) -> None:
        apart = label_level_epsilon(
            refusals + answers, answers, sigma1=setting.sigma1, sigma2=setting.sigma2, delta=1e-5
        )
        assert priced(setting, refusals, answers).epsilon <= apart.epsilon

    def test_many_classes_charged_apart_are_a_valid_pair_too(self) -> None:
        setting, order = JointSetting(50, 10, 40, 10, 8), 5.0
        check, label = order / (2 * 10**2), order / 8**2
        assert least_answer_price(setting, order, check) <= check + label

    def test_the_cap_on_asks_is_used(self) -> None:
        free = priced(HOSPITAL, 900, 100)
        capped = priced(HOSPITAL, 900, 100, max_asks=500)
        assert capped.epsilon < free.epsilon
        assert priced(HOSPITAL, 900, 100, max_asks=1000) == free
        assert priced(HOSPITAL, 900, 100, max_asks=5000).epsilon == free.epsilon

    def test_the_flat_price_needs_the_asks_only(self) -> None:
        one = priced(HOSPITAL, 100, 900)
        other = priced(HOSPITAL, 500, 500)
        # 100 + 900 and 500 + 500 prices round differently.
        assert one.flat_epsilon == pytest.approx(other.flat_epsilon, rel=1e-14)
        assert one.flat_price == other.flat_price

    def test_a_threshold_that_nobody_reaches_costs_almost_nothing(self) -> None:
        assert priced(JointSetting(20, 2, 500, 5, 5), 100, 1).epsilon < 1e-3

    def test_more_label_noise_may_cost_more(self) -> None:
        # No mistake: votes that are clear beside little noise are less so beside more.
        sharp, blurred = (JointSetting(250, 2, 200, 20, sigma2) for sigma2 in (10, 60))
        assert priced(sharp, 30, 3000).epsilon < priced(blurred, 30, 3000).epsilon

    def test_the_result_is_reproducible(self) -> None:
        assert priced(ADULT, 962, 538) == priced(ADULT, 962, 538)

    def test_epsilon_is_the_conversion_of_the_prices(self) -> None:
        joint = priced(HOSPITAL, 30, 270)
        total = 30 * joint.refusal_price + 270 * joint.answer_price
        converted = convert_at_orders([total], [joint.order], delta=1e-5, method="cks")
        assert joint.epsilon == pytest.approx(converted.epsilon, rel=1e-8)
        answer = least_answer_price(HOSPITAL, joint.order, joint.refusal_price)
        assert joint.answer_price == pytest.approx(answer, rel=1e-5)
        assert not joint.is_at_edge

    def test_a_hopeless_setting_costs_an_infinite_or_huge_epsilon(self) -> None:
        assert priced(JointSetting(3, 2, 2, 0.01, 0.01), 5, 5).epsilon > 1e4

    @pytest.mark.slow
    @sampled(1)
    @pytest.mark.parametrize(
        ("teachers", "sigma2", "classes", "expected"),
        [(250, 10.0, 2, 1.091), (250, 10.0, 10, 1.091), (100, 6.0, 2, 1.936)],
    )
    def test_outcomes_that_cannot_occur_cost_nothing_whatever_their_price(
        self, teachers: int, sigma2: float, classes: int, expected: float
    ) -> None:
        """10 asks may all be refused: 0 answers at an infinite price, at high orders, are no NaN.

        A second reader computed the expected numbers; the price apart would be 1.546 and 2.745.
        """
        setting = JointSetting(teachers, classes, 0.6 * teachers, 0.3 * teachers, sigma2)
        found = priced(setting, 10, 10, max_asks=10)
        assert found.epsilon == pytest.approx(expected, rel=5e-3)
        caps = RunCaps(
            teachers,
            classes,
            setting.vote_threshold,
            setting.sigma1,
            sigma2,
            asks=10,
            answers=10,
            refusals=10,
            weight=1,
            delta=1e-5,
        )
        costs = formal_costs(caps, votes_are_valid=True)
        assert costs.smallest is costs.joint

    @pytest.mark.slow
    def test_a_limit_that_keeps_it_from_being_computed_is_named(self) -> None:
        caps = RunCaps(2000, 3, 1200, 600, 320, 90, 50, 40, 1, 1e-5)
        costs = formal_costs(caps, votes_are_valid=True)
        assert costs.joint is not None
        assert math.isinf(costs.joint.epsilon)
        assert "at most 1000 teachers, got 2000" in costs.joint.method
        assert costs.smallest is costs.label

    def test_no_other_fault_of_it_is_swallowed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Where it broke, a dearer price was charged and nobody was told."""

        def broken(*args: object, **kwargs: object) -> None:
            raise InvalidParameterError("rdp must be at least 0", "nan")

        monkeypatch.setattr("pate_fed.accounting.formal.price", broken)
        with pytest.raises(InvalidParameterError, match="rdp must be"):
            formal_costs(RunCaps(20, 3, 12, 6, 4, 90, 50, 40, 1, 1e-5), votes_are_valid=True)

    def test_an_optimum_at_the_edge_of_the_orders_is_reported(self) -> None:
        assert priced(JointSetting(3, 3, 2, 0.2, 0.2), 50, 50).is_at_edge

    @pytest.mark.slow
    def test_known_prices_of_hospitals(self) -> None:
        # JointSetting with several votes: moved votes and moved top go together for two classes,
        # and cost less than if they need not; three classes give the simple bound.
        simple = {2: 2.41, 5: 6.92}
        for weight, epsilon in simple.items():
            setting = replace(HOSPITAL, weight=weight, may_abstain=True)
            assert priced(setting, 30, 270).epsilon == pytest.approx(epsilon, rel=0.005)
            together = priced(replace(HOSPITAL, weight=weight), 30, 270)
            assert together.epsilon < 0.95 * epsilon
        three = priced(replace(HOSPITAL, classes=3, weight=2), 30, 270)
        assert three.epsilon == pytest.approx(2.41, rel=0.005)


class TestDivergence:
    @pytest.mark.parametrize("order", [1.1, 2.0, 7.5, 30.0])
    @pytest.mark.parametrize("sigma", [5.0, 40.0, 900.0])
    def test_two_classes_agree_with_forty_digits(self, sigma: float, order: float) -> None:
        gaps = np.array([-60, -13, -1, 0, 1, 2, 25, 90])
        ours = two_class_divergence(gaps, sigma=sigma, moved=1, order=order)
        with mpmath.workdps(60):
            for gap, bound in zip(gaps, ours, strict=True):
                before = int(gap) / (mpmath.sqrt(2) * sigma)
                after = (int(gap) - 2) / (mpmath.sqrt(2) * sigma)
                exact = (
                    sum(
                        mpmath.ncdf(sign * before) ** order
                        * mpmath.ncdf(sign * after) ** (1 - mpmath.mpf(order))
                        for sign in (1, -1)
                    )
                    - 1
                )
                # Rounded up, by the safety factor and by the error of logs and differences,
                # which is all there is where gaps are wide.
                assert exact <= bound <= exact * (1 + 1e-7) + 1e-25

    @pytest.mark.slow
    @pytest.mark.parametrize("gap", [more(-20), 0, more(2), more(30)])
    def test_cells_enclose_the_three_way_law_of_thirty_digits(self, gap: int) -> None:
        sigma, teachers, orders = 12.0, 40, (1.5, 9.0)
        left = label_divergence.left_end(teachers, sigma, 1, max(orders))
        law = label_divergence.three_way_law(teachers, sigma, 1, left)
        edges = law.edges
        for cell in (0, *np.searchsorted(edges, [-3.0, -0.2, 1.5, 6.0])):
            u = edges[cell] + 0.37 * (edges[cell + 1] - edges[cell])
            for order, exact in zip(
                orders, three_way_divergences(u, gap, sigma, orders), strict=True
            ):
                bound = label_divergence._cell_bounds(law, np.array([gap]), order)[0, cell + 1]
                assert exact <= bound
                if u > -6:  # a cell is narrow: the bound is not far off
                    assert bound <= exact * (1.06 if u < 4.5 else 1.5) + 1e-12

    @pytest.mark.parametrize("teachers", [2, 6, 7])
    def test_kinds_of_pairs_are_those_of_all_histograms(self, teachers: int) -> None:
        """By tables of random numbers, of which no two are equal: each limit of a gap shows."""
        pairs = set()
        for votes in range(teachers + 1):
            for counts in histograms(votes, 4):
                for moved in one_vote_neighbors(counts):
                    change, top = moved - counts, int(counts.max())
                    n_i, n_j = int(counts[np.argmin(change)]), int(counts[np.argmax(change)])
                    is_touching = top in (n_i, n_j)
                    pairs.add((int(moved.max()) - top + 1, top, n_i, n_j, is_touching))
        for seed in range(12):
            rng = np.random.default_rng(seed)
            touching, apart = rng.random((teachers + 1, 2 * teachers + 1)), rng.random(teachers + 1)
            gaps = vote_pairs._ManyClassGaps(touching, apart)
            _, found = vote_pairs._one_vote_kinds(gaps, teachers, may_abstain=False)
            wanted = np.full((3, teachers + 1), -1.0)
            for kind, top, n_i, n_j, is_touching in pairs:
                label = touching[n_i + n_j, n_i - n_j + teachers] if is_touching else apart[top]
                wanted[kind, top] = max(wanted[kind, top], label)
            assert found[:, 2:].tolist() == wanted[:, 2:].tolist()
            assert (found[:, :2] >= wanted[:, :2]).all()

    @pytest.mark.exhaustive
    def test_log_chances_have_the_claimed_error(self) -> None:
        law = label_divergence.three_way_law(
            250, 40.0, 1, label_divergence.left_end(250, 40.0, 1, 10.0)
        )
        rng = np.random.default_rng(7)
        for gap, edge in zip(
            rng.integers(-252, 253, 12), rng.integers(0, len(law.edges), 12), strict=True
        ):
            with mpmath.workdps(40):
                t = mpmath.mpf(int(gap)) / (mpmath.sqrt(2) * 40)
                exact = mpmath.log(orthant(mpmath.mpf(float(law.edges[edge])), t))
                ours = mpmath.mpf(float(law.log_wins[gap + law.margin, edge]))
                assert abs(ours - exact) < label_divergence.LOG_P_ERROR

    @settings(max_examples=30, deadline=None)
    @given(votes=st.lists(st.integers(0, 12), min_size=3, max_size=5), data=st.data())
    def test_tables_bound_the_label_of_any_votes(
        self, votes: list[int], data: st.DataObject
    ) -> None:
        counts = np.array(votes, dtype=np.int64)
        teachers = int(counts.sum()) + data.draw(st.integers(0, 3))
        giver = data.draw(st.integers(0, len(votes) - 1))
        taker = data.draw(st.integers(0, len(votes) - 1).filter(lambda place: place != giver))
        if not counts[giver]:
            return
        moved = counts.copy()
        moved[giver] -= 1
        moved[taker] += 1
        order, sigma = data.draw(st.sampled_from([(1.5, 6.0), (5.0, 3.0), (12.0, 10.0)]))
        tables = tables_of(max(teachers, 1), len(votes), sigma, order)
        here, there = argmax_log_law(counts, sigma), argmax_log_law(moved, sigma)
        exact = float(weighted_spread(here, here - there, order).sum())
        n_i, n_j, top = int(counts[giver]), int(counts[taker]), int(counts.max())
        if top in (n_i, n_j):
            bound = tables.touching[n_i + n_j, n_i - n_j + max(teachers, 1)]
        else:
            bound = tables.apart[top]
        assert exact <= bound * (1 + QUADRATURE_ERROR)

    def test_noisy_counts_cost_at_least_as_much_as_labels(self) -> None:
        tables = many_class_divergence(teachers=9, classes=4, sigma=0.5, moved=1, order=3.0)
        assert tables.touching.max() <= gaussian_cap(3.0, 2.0)
        high = many_class_divergence(teachers=9, classes=4, sigma=0.5, moved=1, order=9.0)
        assert (high.touching == gaussian_cap(9.0, 2.0)).all()
        assert gaussian_cap(100.0, 3.0) == math.inf


@lru_cache(maxsize=64)
def tables_of(
    teachers: int, classes: int, sigma: float, order: float
) -> label_divergence.ManyClassDivergence:
    return many_class_divergence(
        teachers=teachers, classes=classes, sigma=sigma, moved=1, order=order
    )


def orthant(u: Any, t: Any) -> Any:
    """Return P_i(u, t) by quadrature of its definition."""
    middle = max(t, mpmath.mpf(0)) + 1
    return mpmath.quad(
        lambda v: mpmath.npdf(v - t) * mpmath.ncdf(v + u),
        [0, middle, middle + 5, max(middle, -u) + 25],
    )


def three_way_divergences(
    u: float, gap: int, sigma: float, orders: tuple[float, ...]
) -> list[float]:
    with mpmath.workdps(30):
        root, high = mpmath.sqrt(2), mpmath.mpf(u)
        t = gap / (root * sigma)

        def law(at: Any) -> list[Any]:
            neither = mpmath.ncdf(-(high + at) / root) * mpmath.ncdf(-(high - at) / root)
            return [orthant(high, at), orthant(high, -at), neither]

        pairs = list(zip(law(t), law(t - root / sigma), strict=True))
        return [
            float(sum(p**order * q ** (1 - mpmath.mpf(order)) for p, q in pairs) - 1)
            for order in orders
        ]


class TestDiscreteLaw:
    def test_far_tails_keep_their_relative_precision(self) -> None:
        sigma = 2.0
        passes, _ = discrete_pass_law(np.array([0]), vote_threshold=70, sigma=sigma)
        with mpmath.workdps(40):
            mass = [mpmath.exp(-(mpmath.mpf(y) ** 2) / 8) for y in range(-200, 201)]
            exact = mpmath.log(sum(mass[270:]) / sum(mass))
        assert float(passes[0]) == pytest.approx(float(exact), rel=1e-13)

    def test_gaps_agree_with_the_convolution(self) -> None:
        sigma, reach = 1.7, 60
        noise = np.arange(-reach, reach + 1)
        mass = np.exp(-(noise**2) / (2 * sigma**2))
        mass /= mass.sum()
        both = np.convolve(mass, mass)
        gaps = np.array([-9, -4, -1, 0, 1, 2, 7])
        wins, loses = discrete_gap_law(gaps, sigma=sigma)
        exact = [both[: gap + 2 * reach + 1].sum() for gap in gaps]
        np.testing.assert_allclose(np.exp(wins), exact, rtol=1e-11)
        np.testing.assert_allclose(np.exp(wins) + np.exp(loses), 1, rtol=1e-11)

    def test_much_discrete_noise_costs_about_what_continuous_noise_does(self) -> None:
        # {count + noise >= T} acts like T - 1/2 on the whole numbers, and ties like half a vote:
        # with sigmas of 40 and 50 votes that is below 1 %.
        discrete = priced(replace(HOSPITAL, noise="discrete-gaussian"), 30, 270)
        assert discrete.epsilon == pytest.approx(priced(HOSPITAL, 30, 270).epsilon, rel=0.01)

    def test_bernoulli_of_equal_laws_is_nearly_0(self) -> None:
        law = (np.log([0.25]), np.log([0.75]))
        assert 0 <= bernoulli_divergence(law, law, 3.0)[0] < 1e-25


class TestEvent:
    EVENT = JointPriceEvent(30, 270, 250, 2, 150.0, 50.0, 40.0)

    @pytest.mark.exhaustive
    def test_its_curve_is_the_joint_price(self) -> None:
        joint = priced(HOSPITAL, 30, 270)
        (rdp,) = event_rdp(self.EVENT, [joint.order])
        total = 30 * joint.refusal_price + 270 * joint.answer_price
        assert rdp == pytest.approx(total, rel=1e-8)
        accountant = RenyiAccountant()
        accountant.compose(self.EVENT)
        assert accountant.get_converted(1e-5).epsilon == pytest.approx(joint.epsilon, rel=1e-3)
        assert accountant.get_converted(1e-5).epsilon <= joint.epsilon

    def test_nothing_asked_costs_nothing(self) -> None:
        assert event_rdp(replace(self.EVENT, refusals=0, answers=0), [2.0, 8.0]).tolist() == [0, 0]

    def test_one_sided_caps_have_a_cost(self) -> None:
        few = event_rdp(replace(self.EVENT, refusals=0), [8.0])
        all_of_it = event_rdp(self.EVENT, [8.0])
        assert 0 <= few[0] <= all_of_it[0]


BAD = [
    pytest.param({"teachers": 0}, id="no teachers"),
    pytest.param({"teachers": 2.5}, id="teachers not whole"),
    pytest.param({"teachers": True}, id="teachers yes"),
    pytest.param({"classes": 1}, id="one class"),
    pytest.param({"classes": 0}, id="no class"),
    pytest.param({"vote_threshold": math.nan}, id="threshold is no number"),
    pytest.param({"vote_threshold": math.inf}, id="infinite threshold"),
    pytest.param({"vote_threshold": 1e15}, id="threshold out of reach"),
    pytest.param({"sigma1": 0.0}, id="sigma1 0"),
    pytest.param({"sigma2": 0.0}, id="sigma2 0"),
    pytest.param({"sigma2": -1.0}, id="negative sigma2"),
    pytest.param({"sigma1": math.nan}, id="sigma1 is no number"),
    pytest.param({"sigma1": 1e-9}, id="sigma1 too small to compute"),
    pytest.param({"sigma2": 1e12}, id="sigma2 too large to compute"),
    pytest.param({"delta": 0.0}, id="delta 0"),
    pytest.param({"delta": 1.0}, id="delta 1"),
    pytest.param({"delta": math.nan}, id="delta is no number"),
    pytest.param({"max_refusals": 0}, id="no refusals"),
    pytest.param({"max_answers": 0}, id="no answers"),
    pytest.param({"max_answers": 2.5}, id="real answers, not asked for"),
    pytest.param({"max_answers": -1.0, "real_caps": True}, id="negative real answers"),
    pytest.param({"max_refusals": math.inf, "real_caps": True}, id="infinite refusals"),
    pytest.param({"max_asks": 0}, id="no asks"),
    pytest.param({"weight": 0}, id="weight 0"),
    pytest.param({"weight": 1.5}, id="weight not whole"),
    pytest.param({"weight": 31}, id="weight above the teachers"),
    pytest.param({"noise": "laplace"}, id="unknown noise"),
    pytest.param({"noise": "discrete-gaussian", "classes": 3}, id="discrete noise, 3 classes"),
    pytest.param({"noise": "discrete-gaussian", "sigma2": 1e6}, id="discrete noise, too large"),
    pytest.param({"teachers": 5000, "classes": 3}, id="too many teachers for 3 classes"),
    pytest.param({"sigma2": 0.1, "classes": 3}, id="too little noise for 3 classes"),
]


@sampled(4)
@pytest.mark.parametrize("changed", BAD)
def test_bad_input_is_refused(changed: dict[str, Any]) -> None:
    good: dict[str, Any] = {
        "teachers": 30,
        "classes": 2,
        "vote_threshold": 20.0,
        "sigma1": 8.0,
        "sigma2": 5.0,
        "max_refusals": 10,
        "max_answers": 10,
        "delta": 1e-5,
    }
    assert price(**good).epsilon > 0
    with pytest.raises(InvalidParameterError) as caught:
        price(**{**good, **changed})
    assert caught.value.code == "PF-101"


def test_a_refusal_that_is_too_cheap_has_no_partner() -> None:
    sharp = JointSetting(50, 2, 40, 2, 8)
    assert least_answer_price(sharp, 5.0, 0.0) == math.inf
    assert least_answer_price(sharp, 5.0, 5.0 / (2 * 2**2)) < math.inf
