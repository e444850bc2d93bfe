"""Laws that all bounds obey together, and inputs that every function of votes takes or refuses.

The order of things, for one query, at every Renyi order, for all neighbors that one vote makes:

    divergence <= exact <= papers' bound <= order / sigma^2
                  exact <= label level   <= order / sigma^2
    label or "no answer" of a threshold on the same noise <= label level
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import ArrayLike, DTypeLike, NDArray

from pate_fed.accounting import (
    ConfidentGaussianMaxEvent,
    GaussianMaxEvent,
    LaplaceMaxEvent,
    PrivacyEvent,
    RenyiAccountant,
    StableGaussianMaxEvent,
    StableLaplaceMaxEvent,
    convert_curve,
    event_approximate_rdp,
    event_label_rdp,
    gdp_epsilon,
    gdp_mu_squared,
    label_level_epsilon,
    label_rdp,
    threshold_bit_rdp,
)
from pate_fed.accounting.formal_cost import gdp_cost, labels_cost
from pate_fed.accounting.pure_bounds import pure_dp_rdp
from pate_fed.accounting.ranges import RANGES
from pate_fed.errors import InvalidParameterError, InvalidVotesError, PateFedError
from pate_fed.lab.exact import exact_epsilon, exact_threshold_rdp
from pate_fed.lab.laplace_bounds import laplace_log_q, laplace_rdp
from pate_fed.lab.pate_bounds import (
    gnmax_log_q,
    gnmax_total_rdp,
    threshold_log_q,
    threshold_rdp,
    threshold_total_rdp,
)
from pate_fed.lab.per_instance import PerInstanceMeter
from pate_fed.lab.sanitized import instance_cost
from pate_fed.lab.smooth_conditions import SmoothSetting
from pate_fed.lab.smooth_sensitivity import (
    gnmax_local_sensitivities,
    threshold_local_sensitivities,
    total_gnmax_local_sensitivities,
    two_class_local_sensitivities,
)
from pate_fed.mechanisms import GaussianMax, StableGaussianMax
from pate_fed.releases import NoisyRelease
from tests.support import exact_argmax
from tests.support.exact_argmax import histograms, laplace_argmax_log_law, one_vote_neighbors
from tests.support.markers import sampled
from tests.support.query_costs import exact_label_rdp, gnmax_rdp
from tests.support.threshold_law import threshold_log_law

ORDERS = np.array([1.25, 2.0, 3.5, 8.0, 14.0, 32.0])
Row = tuple[int, ...]


def as_row(counts: NDArray[np.int64]) -> Row:
    return tuple(int(count) for count in counts)


@cache
def largest_divergences(
    votes: int, classes: int, scale: float, is_laplace: bool
) -> tuple[tuple[Row, NDArray[np.float64]], ...]:
    """Return each histogram with the largest divergence over its neighbors, per order."""
    law = laplace_argmax_log_law if is_laplace else exact_argmax.argmax_log_law
    laws = {as_row(counts): law(counts, scale) for counts in histograms(votes, classes)}
    orders = ORDERS[:, np.newaxis]
    return tuple(
        (
            row,
            np.max(
                [
                    np.logaddexp.reduce(orders * here - (orders - 1) * laws[as_row(moved)], axis=1)
                    / (ORDERS - 1)
                    for moved in one_vote_neighbors(np.array(row))
                ],
                axis=0,
            ),
        )
        for row, here in laws.items()
    )


class TestBruteForce:
    """Every histogram of up to 6 votes on up to 4 classes, every neighbor, by quadrature."""

    @sampled("votes", "classes", "sigma", cases=9)
    @pytest.mark.parametrize("sigma", [0.7, 1.5, 4.0])
    @pytest.mark.parametrize("classes", [2, 3, 4])
    @pytest.mark.parametrize("votes", [1, 2, 3, 4, 5, 6])
    def test_gaussian_bounds_are_in_order(self, votes: int, classes: int, sigma: float) -> None:
        found = largest_divergences(votes, classes, sigma, is_laplace=False)
        rows = [row for row, _ in found]
        divergence = np.array([largest for _, largest in found])
        exact = exact_label_rdp(rows, ORDERS, sigma=sigma)
        paper = gnmax_rdp(rows, ORDERS, sigma=sigma)
        label = label_rdp(ORDERS, sigma=sigma)
        # 1e-12 absolute: the brute force cancels where a divergence is tiny.
        assert exact == pytest.approx(np.maximum(divergence, 0), rel=1e-9, abs=1e-12)
        assert (exact <= paper * (1 + 1e-9) + 1e-12).all()
        assert (exact <= label * (1 + 1e-9)).all()
        assert (paper <= ORDERS / sigma**2 * (1 + 1e-12)).all()
        assert (label <= ORDERS / sigma**2 * (1 + 1e-12)).all()

    @sampled("votes", "gamma", cases=5)
    @pytest.mark.parametrize("gamma", [0.2, 1.0, 2.5])
    @pytest.mark.parametrize(("votes", "classes"), [(3, 3), (6, 2), (6, 3), (4, 4)])
    def test_laplace_bounds_are_in_order(self, votes: int, classes: int, gamma: float) -> None:
        found = largest_divergences(votes, classes, gamma, is_laplace=True)
        bound = laplace_rdp([row for row, _ in found], ORDERS, gamma=gamma)
        # The law is good to 1e-11.
        assert (np.array([largest for _, largest in found]) <= bound * (1 + 1e-9) + 1e-9).all()
        assert (bound <= pure_dp_rdp(ORDERS, epsilon=2 * gamma) * (1 + 1e-12)).all()

    @sampled("votes", "classes", cases=3)
    @pytest.mark.parametrize(("votes", "classes"), [(6, 2), (6, 3), (6, 4)])
    @pytest.mark.parametrize("vote_threshold", [2.0, 4.5])
    def test_check_and_label_together_are_within_every_sum(
        self, votes: int, classes: int, vote_threshold: float
    ) -> None:
        """The law of one whole ask, refusal included, against what is charged for it."""
        sigma1, sigma2 = 1.2, 1.5
        check: dict[str, float] = {"vote_threshold": vote_threshold, "sigma": sigma1}
        laws = {
            as_row(counts): np.log(
                exact_argmax.confident_law(
                    counts, vote_threshold=vote_threshold, sigma1=sigma1, sigma2=sigma2
                )
            )
            for counts in histograms(votes, classes)
        }
        label = label_rdp(ORDERS, sigma=sigma2) + threshold_bit_rdp(ORDERS, sigma=sigma1)
        for row, here in laws.items():
            most = exact_threshold_rdp([max(row)], ORDERS, **check)[0]
            most = most + exact_label_rdp([row], ORDERS, sigma=sigma2)[0]
            for moved in one_vote_neighbors(np.array(row)):
                there = laws[as_row(moved)]
                exact = [exact_argmax.renyi_divergence(here, there, order) for order in ORDERS]
                assert (np.array(exact) <= label * (1 + 1e-9) + 1e-12).all()
                # A label that is charged always, not only where one is released.
                assert (np.array(exact) <= most * (1 + 1e-9) + 1e-12).all()

    @sampled("votes", "classes", "sigma", "vote_threshold", cases=6)
    @pytest.mark.parametrize(("votes", "classes"), [(6, 2), (6, 3), (4, 4)])
    @pytest.mark.parametrize("vote_threshold", [-1.0, 2.0, 4.5, 9.0])
    @pytest.mark.parametrize("sigma", [0.7, 4.0])
    def test_bounds_of_a_threshold_on_the_same_noise_are_in_order(
        self, votes: int, classes: int, vote_threshold: float, sigma: float
    ) -> None:
        rows = [as_row(counts) for counts in histograms(votes, classes)]
        laws = {
            row: threshold_log_law(row, vote_threshold=vote_threshold, sigma=sigma) for row in rows
        }
        exact = exact_label_rdp(rows, ORDERS, sigma=sigma, vote_threshold=vote_threshold)
        label = label_rdp(ORDERS, sigma=sigma)
        for row, found in zip(rows, exact, strict=True):
            divergence = [
                max(
                    exact_argmax.renyi_divergence(laws[row], laws[as_row(moved)], order)
                    for moved in one_vote_neighbors(np.array(row))
                )
                for order in ORDERS
            ]
            assert found == pytest.approx(np.maximum(divergence, 0), rel=1e-8, abs=1e-12)
            paper = gnmax_total_rdp([row], ORDERS, sigma=sigma, vote_threshold=vote_threshold)
            assert (found <= paper * (1 + 1e-9) + 1e-12).all()
        assert (exact <= label * (1 + 1e-9)).all()


HISTOGRAM = st.lists(st.integers(0, 120), min_size=2, max_size=8).filter(any)


class TestHypothesis:
    @given(counts=HISTOGRAM, sigma=st.sampled_from([1.5, 12.0, 40.0]))
    def test_all_label_bounds_are_in_order_for_random_votes(
        self, counts: list[int], sigma: float
    ) -> None:
        exact = exact_label_rdp([counts], ORDERS, sigma=sigma)[0]
        paper = gnmax_rdp([counts], ORDERS, sigma=sigma)[0]
        label = label_rdp(ORDERS, sigma=sigma)
        assert (exact <= paper * (1 + 1e-9) + 1e-13).all()
        assert (exact <= label * (1 + 1e-9)).all()
        assert (np.maximum(paper, label) <= ORDERS / sigma**2 * (1 + 1e-12)).all()

    @pytest.mark.exhaustive
    @given(
        rows=st.lists(st.lists(st.integers(0, 60), min_size=3, max_size=3), min_size=2, max_size=6),
        sigma=st.floats(1.0, 60.0),
        vote_threshold=st.floats(-20, 90),
    )
    def test_one_more_query_never_costs_less_on_any_votes(
        self, rows: list[list[int]], sigma: float, vote_threshold: float
    ) -> None:
        check: dict[str, float] = {"vote_threshold": vote_threshold, "sigma": sigma}
        totals: list[Callable[[list[list[int]]], NDArray[np.float64]]] = [
            lambda votes: gnmax_total_rdp(votes, ORDERS, sigma=sigma),
            lambda votes: laplace_rdp(votes, ORDERS, gamma=1 / sigma).sum(axis=0),
            lambda votes: exact_label_rdp(votes, ORDERS, sigma=sigma).sum(axis=0),
            lambda votes: threshold_total_rdp(np.array(votes).max(axis=1), ORDERS, **check),
            lambda votes: exact_threshold_rdp(np.array(votes).max(axis=1), ORDERS, **check).sum(
                axis=0
            ),
        ]
        event = ConfidentGaussianMaxEvent(1, 1, sigma, sigma)
        for total in totals:
            assert (total(rows) >= total(rows[:-1]) * (1 - 1e-12)).all()
        costs = [
            exact_epsilon(votes, event, delta=1e-5, vote_threshold=vote_threshold).epsilon
            for votes in (rows[:-1], rows)
        ]
        assert costs[1] >= costs[0] * (1 - 1e-5)  # the search for an order stops there

    @given(
        event=st.one_of(
            st.builds(GaussianMaxEvent, st.integers(1, 50), st.floats(1, 90), st.floats(1, 5)),
            st.builds(
                ConfidentGaussianMaxEvent,
                st.just(60),
                st.integers(0, 60),
                st.floats(1, 90),
                st.floats(1, 90),
                st.floats(1, 5),
            ),
            st.builds(LaplaceMaxEvent, st.integers(1, 50), st.floats(0.01, 3), st.floats(1, 5)),
            st.builds(StableGaussianMaxEvent, st.integers(1, 50), st.floats(1, 90), st.just(1e-9)),
            st.builds(StableLaplaceMaxEvent, st.integers(1, 50), st.floats(0.01, 3), st.just(1e-9)),
        ),
        factor=st.floats(1.0, 4.0),
    )
    def test_more_noise_never_costs_more_whatever_the_votes(
        self, event: PrivacyEvent, factor: float
    ) -> None:
        calmer = with_more_noise(event, factor)
        costs = []
        for one in (event, calmer):
            accountant = RenyiAccountant()
            accountant.compose(one)
            costs.append(accountant.get_converted(1e-5).epsilon)
        assert costs[1] <= costs[0] * (1 + 1e-12)
        rdp = [event_approximate_rdp(one, ORDERS) for one in (event, calmer)]
        assert (rdp[1] <= rdp[0] * (1 + 1e-12)).all()

    @given(
        answers=st.integers(0, 400),
        refusals=st.integers(0, 400),
        sigmas=st.sampled_from([(20.0, 8.0), (150.0, 40.0)]),
    )
    @settings(max_examples=15)
    def test_one_more_ask_or_answer_never_costs_less_at_label_level(
        self, answers: int, refusals: int, sigmas: tuple[float, float]
    ) -> None:
        sigma1, sigma2 = sigmas
        asks = answers + refusals

        def rdp(asks: int, answers: int) -> NDArray[np.float64]:
            event = ConfidentGaussianMaxEvent(asks, answers, sigma1, sigma2)
            return event_label_rdp(event, ORDERS)

        assert (rdp(asks + 1, answers) >= rdp(asks, answers)).all()
        assert (rdp(asks + 1, answers + 1) >= rdp(asks + 1, answers)).all()

    @given(counts=HISTOGRAM, order=st.randoms(use_true_random=False))
    def test_permuting_classes_changes_no_price_of_a_query(
        self, counts: list[int], order: Any
    ) -> None:
        shuffled = list(counts)
        order.shuffle(shuffled)
        prices: list[Callable[[list[int]], NDArray[np.float64]]] = [
            lambda row: exact_label_rdp([row], ORDERS, sigma=20.0),
            lambda row: gnmax_rdp([row], ORDERS, sigma=20.0),
            lambda row: laplace_rdp([row], ORDERS, gamma=0.1),
        ]
        for price in prices:
            assert price(shuffled) == pytest.approx(price(counts), rel=1e-9, abs=1e-15)

    @given(
        rows=st.lists(st.permutations([40, 8, 2]), min_size=1, max_size=5),
        orders=st.lists(st.permutations([0, 1, 2]), min_size=5, max_size=5),
    )
    @settings(max_examples=30)
    def test_permuting_the_classes_of_each_query_changes_no_cost_of_a_run(
        self, rows: list[list[int]], orders: list[list[int]]
    ) -> None:
        shuffled = [[row[k] for k in order] for row, order in zip(rows, orders, strict=False)]
        setting = SmoothSetting(9.0, 3, 4.0, 50)
        event = ConfidentGaussianMaxEvent(1, 1, 12.0, 9.0)
        before, after = (
            instance_cost(votes, setting, answered=[1] * len(rows), check=(30.0, 12.0))
            for votes in (rows, shuffled)
        )
        assert after.rdp == pytest.approx(before.rdp, rel=1e-12)
        assert after.local_sensitivities == pytest.approx(before.local_sensitivities, rel=1e-12)
        assert laplace_rdp(shuffled, ORDERS, gamma=0.1) == pytest.approx(
            laplace_rdp(rows, ORDERS, gamma=0.1), rel=1e-12
        )
        epsilons = [
            exact_epsilon(votes, event, delta=1e-5, vote_threshold=30.0).epsilon
            for votes in (rows, shuffled)
        ]
        assert epsilons[1] == pytest.approx(epsilons[0], rel=1e-12)


def with_more_noise(event: PrivacyEvent, factor: float) -> PrivacyEvent:
    record = event.as_record()
    for name in ("sigma", "sigma1", "sigma2"):
        if name in record:
            record[name] = float(record[name]) * factor
    for name in ("gamma", "test_epsilon"):
        if name in record:
            record[name] = float(record[name]) / factor
    return type(event)(**{name: value for name, value in record.items() if name != "event"})


class TestWhereAPlainWordingFails:
    """Laws that are often said without their condition; here is what is true of them."""

    def test_more_noise_may_cost_more_on_given_votes(self) -> None:
        """A unanimous vote beside little noise tells nothing; beside more it tells something.

        What falls with the noise is the largest cost over all votes, the data-independent one.
        """
        costs = [exact_label_rdp([[250, 0]], [8.0], sigma=sigma)[0, 0] for sigma in (10, 40, 120)]
        assert costs[0] < 1e-30 < costs[1] < costs[2] / 100
        papers = [gnmax_rdp([[250, 0]], [8.0], sigma=sigma)[0, 0] for sigma in (10, 40, 70)]
        assert papers[0] < papers[1] < papers[2]
        formal = [label_rdp([8.0], sigma=sigma)[0] for sigma in (10, 40, 120)]
        assert formal[0] > formal[1] > formal[2]

    def test_papers_epsilon_of_given_votes_may_exceed_the_formal_one(self) -> None:
        """The data-dependent RDP is below the data-independent one, at every order; epsilon need
        not be, where the papers' looser conversion or orders meet an exact composition."""
        votes = [[60, 50]] * 20
        rdp = gnmax_total_rdp(votes, ORDERS, sigma=20.0)
        assert (rdp <= event_approximate_rdp(GaussianMaxEvent(20, 20.0), ORDERS)).all()

        def curve(orders: NDArray[np.float64]) -> NDArray[np.float64]:
            return event_approximate_rdp(GaussianMaxEvent(20, 20.0), orders)

        most = convert_curve(curve, delta=1e-5, method="mironov").epsilon
        meter = PerInstanceMeter(GaussianMax(20.0), delta=1e-5)
        meter.add(votes, NoisyRelease(np.zeros(20, np.int64), np.zeros(20, np.int8)))
        exact = gdp_epsilon(math.sqrt(gdp_mu_squared(GaussianMaxEvent(20, 20.0))), 1e-5)
        assert exact < meter.cost.epsilon <= most * (1 + 1e-3)


COUNTS = np.array([[20, 8, 2], [12, 11, 7], [30, 0, 0]])
SETTING = SmoothSetting(5.0, 3, 3.0, 30)
TWO = np.array([[20, 10], [15, 15], [30, 0]])


def metered(counts: ArrayLike) -> float:
    meter = PerInstanceMeter(GaussianMax(5.0), delta=1e-5)
    meter.add(counts, NoisyRelease(np.zeros(3, np.int64), np.zeros(3, np.int8)))
    return meter.cost.epsilon


OF_COUNTS: dict[str, Callable[[ArrayLike], Any]] = {
    "gnmax_log_q": lambda counts: gnmax_log_q(counts, sigma=5.0),
    "gnmax_rdp": lambda counts: gnmax_rdp(counts, ORDERS, sigma=5.0),
    "gnmax_total_rdp": lambda counts: gnmax_total_rdp(counts, ORDERS, sigma=5.0),
    "laplace_log_q": lambda counts: laplace_log_q(counts, gamma=0.2),
    "laplace_rdp": lambda counts: laplace_rdp(counts, ORDERS, gamma=0.2),
    "exact_label_rdp": lambda counts: exact_label_rdp(counts, ORDERS, sigma=5.0),
    "exact_label_rdp of a threshold": lambda counts: exact_label_rdp(
        counts, ORDERS, sigma=5.0, vote_threshold=15.0
    ),
    "gnmax_total_rdp of a threshold": lambda counts: gnmax_total_rdp(
        counts, ORDERS, sigma=5.0, vote_threshold=15.0
    ),
    "exact_epsilon": lambda counts: (
        exact_epsilon(
            counts, ConfidentGaussianMaxEvent(1, 1, 6.0, 5.0), delta=1e-5, vote_threshold=15.0
        ).epsilon
    ),
    "gnmax_local_sensitivities": lambda counts: gnmax_local_sensitivities(counts, SETTING),
    "total_gnmax_local_sensitivities": lambda counts: total_gnmax_local_sensitivities(
        counts, SETTING
    ),
    "instance_cost": lambda counts: (
        instance_cost(counts, SETTING, answered=[1, 0, 1], check=(15.0, 6.0)).local_sensitivities
    ),
    "PerInstanceMeter.add": metered,
    "StableMax.answer_chances": lambda counts: StableGaussianMax(1e-6, 2.0).answer_chances(counts),
}

OF_TOPS: dict[str, Callable[[ArrayLike], Any]] = {
    "threshold_log_q": lambda tops: threshold_log_q(tops, vote_threshold=15, sigma=6),
    "threshold_rdp": lambda tops: threshold_rdp(tops, ORDERS, vote_threshold=15, sigma=6),
    "threshold_total_rdp": lambda tops: threshold_total_rdp(
        tops, ORDERS, vote_threshold=15, sigma=6
    ),
    "exact_threshold_rdp": lambda tops: exact_threshold_rdp(
        tops, ORDERS, vote_threshold=15, sigma=6
    ),
    "threshold_local_sensitivities": lambda tops: threshold_local_sensitivities(
        tops, vote_threshold=15, sigma=6, order=3.0, teachers=30
    ),
}


BAD_COUNTS = {
    "negative": [[20, -1, 2], [12, 11, 7], [30, 0, 0]],
    "not whole": [[20.5, 7.5, 2], [12, 11, 7], [30, 0, 0]],
    "not a number": [[math.nan, 8, 2], [12, 11, 7], [30, 0, 0]],
    "infinite": [[math.inf, 8, 2], [12, 11, 7], [30, 0, 0]],
    "one class": [[30], [30], [30]],
    "one axis": [20, 8, 2],
    "three axes": [[[20, 8, 2]]],
    "too many": [[2**31, 0, 0], [12, 11, 7], [30, 0, 0]],
    "beyond all integers": [[2**70, 0, 0], [12, 11, 7], [30, 0, 0]],
    "text": [["20", "8", "2"]],
    "complex": [[20 + 0j, 8, 2]],
    "nothing": None,
    "objects": [[object(), 8, 2]],
    "ragged": [[20, 8, 2], [12, 11]],
}


@sampled()
@pytest.mark.parametrize("name", OF_COUNTS)
@pytest.mark.parametrize("bad", BAD_COUNTS)
def test_counts_that_are_no_votes_are_refused_everywhere(name: str, bad: str) -> None:
    with pytest.raises(InvalidVotesError):
        OF_COUNTS[name](BAD_COUNTS[bad])  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["gnmax_local_sensitivities", "instance_cost"])
def test_rows_that_do_not_sum_to_the_teachers_are_refused_where_teachers_are_named(
    name: str,
) -> None:
    """Elsewhere they are priced: the fold of a sum makes them, and an error would tell of votes."""
    with pytest.raises(InvalidVotesError):
        OF_COUNTS[name]([[20, 8, 1], [12, 11, 7], [30, 0, 0]])
    with pytest.raises(InvalidVotesError):
        two_class_local_sensitivities([[20, 9]], cost_of_class0=np.zeros(31))


@pytest.mark.parametrize("name", OF_TOPS)
@pytest.mark.parametrize(
    "bad",
    [
        pytest.param([20.5], id="not whole"),
        pytest.param([math.nan], id="not a number"),
        pytest.param([math.inf], id="infinite"),
        pytest.param([[20]], id="two axes"),
        pytest.param(20, id="no axis"),
        pytest.param(["20"], id="text"),
        pytest.param([2**40], id="too many"),
        pytest.param([-(2**63)], id="far below 0"),
        pytest.param(None, id="nothing"),
    ],
)
def test_top_counts_that_are_no_votes_are_refused_everywhere(name: str, bad: Any) -> None:
    with pytest.raises(InvalidVotesError):
        OF_TOPS[name](bad)


NUMBER_TYPES = ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "g", "O", ">i4"]


@sampled(cases=25)
@pytest.mark.parametrize("dtype", NUMBER_TYPES)
@pytest.mark.parametrize("name", OF_COUNTS)
def test_counts_of_every_number_type_give_the_same_result(name: str, dtype: DTypeLike) -> None:
    expected = OF_COUNTS[name](COUNTS)
    assert np.array_equal(OF_COUNTS[name](COUNTS.astype(dtype)), expected)
    assert np.array_equal(OF_COUNTS[name](COUNTS.tolist()), expected)
    assert np.array_equal(OF_COUNTS[name](np.asfortranarray(COUNTS)[:, ::1]), expected)


@sampled(cases=23)
@pytest.mark.parametrize("dtype", NUMBER_TYPES)
@pytest.mark.parametrize("name", OF_TOPS)
def test_top_counts_of_every_number_type_give_the_same_result(name: str, dtype: DTypeLike) -> None:
    tops = COUNTS.max(axis=1)
    assert np.array_equal(OF_TOPS[name](tops.astype(dtype)), OF_TOPS[name](tops))


@pytest.mark.parametrize("dtype", NUMBER_TYPES)
def test_two_class_lists_of_every_number_type_are_the_same(dtype: DTypeLike) -> None:
    table = np.linspace(0, 1, 31) ** 2
    expected = two_class_local_sensitivities(TWO, cost_of_class0=table)
    computed = two_class_local_sensitivities(TWO.astype(dtype), cost_of_class0=table)
    assert np.array_equal(computed, expected)


@pytest.mark.parametrize("orders", [[1], [1.0, 2.0], [0.5], [math.nan], [math.inf], [], ["2"]])
def test_orders_that_are_not_above_1_are_refused_everywhere(orders: Any) -> None:
    curves: list[Callable[[Any], object]] = [
        lambda orders: gnmax_rdp(COUNTS, orders, sigma=5.0),
        lambda orders: gnmax_total_rdp(COUNTS, orders, sigma=5.0),
        lambda orders: laplace_rdp(COUNTS, orders, gamma=0.2),
        lambda orders: exact_label_rdp(COUNTS, orders, sigma=5.0),
        lambda orders: threshold_rdp([20], orders, vote_threshold=15, sigma=6),
        lambda orders: exact_threshold_rdp([20], orders, vote_threshold=15, sigma=6),
        lambda orders: pure_dp_rdp(orders, epsilon=1.0),
        lambda orders: label_rdp(orders, sigma=5.0),
        lambda orders: threshold_bit_rdp(orders, sigma=5.0),
        lambda orders: event_approximate_rdp(GaussianMaxEvent(1, 5.0), orders),
    ]
    for curve in curves:
        with pytest.raises(InvalidParameterError):
            curve(orders)


@pytest.mark.parametrize("sigma", [0, 0.0, -1.0, math.nan, math.inf])
def test_noise_that_is_none_is_refused_everywhere(sigma: float) -> None:
    check: dict[str, Any] = {"vote_threshold": 15.0, "sigma": sigma}
    calls: list[Callable[[], object]] = [
        lambda: gnmax_log_q(COUNTS, sigma=sigma),
        lambda: gnmax_rdp(COUNTS, ORDERS, sigma=sigma),
        lambda: gnmax_total_rdp(COUNTS, ORDERS, sigma=sigma),
        lambda: exact_label_rdp(COUNTS, ORDERS, sigma=sigma),
        lambda: ConfidentGaussianMaxEvent(1, 1, 5.0, sigma),
        lambda: ConfidentGaussianMaxEvent(1, 1, sigma, 5.0),
        lambda: laplace_rdp(COUNTS, ORDERS, gamma=sigma),
        lambda: threshold_rdp([20], ORDERS, **check),
        lambda: exact_threshold_rdp([20], ORDERS, **check),
        lambda: label_rdp(ORDERS, sigma=sigma),
        lambda: threshold_bit_rdp(ORDERS, sigma=sigma),
        lambda: GaussianMaxEvent(1, sigma),
        lambda: SmoothSetting(sigma, 3, 3.0, 30),
        lambda: threshold_local_sensitivities([20], order=3.0, teachers=30, **check),
    ]
    for call in calls:
        with pytest.raises(InvalidParameterError):
            call()


@pytest.mark.parametrize("noise", [1e-300, 1e-160, 1e160, 1e300])
def test_absurd_noise_has_a_price_that_is_a_number_or_infinite(noise: float) -> None:
    """Squares of such numbers leave the range of doubles; no error may come of that."""
    check: dict[str, Any] = {"vote_threshold": 15.0, "sigma": noise}
    prices = [
        gnmax_rdp(COUNTS, ORDERS, sigma=noise),
        gnmax_total_rdp(COUNTS, ORDERS, sigma=noise),
        laplace_rdp(COUNTS, ORDERS, gamma=1 / noise),
        laplace_rdp(COUNTS, ORDERS, gamma=1 / noise, pure_bound="paper"),
        threshold_rdp([20], ORDERS, **check),
        exact_threshold_rdp([20], ORDERS, **check),
        exact_threshold_rdp([20], ORDERS, vote_threshold=1e300, sigma=3.0),
    ]
    assert all((rdp >= 0).all() for rdp in prices)  # false for NaN


def test_events_of_the_least_and_the_most_noise_have_a_price() -> None:
    for noise in (RANGES["sigma"].least, RANGES["sigma"].most):
        prices = [
            event_approximate_rdp(GaussianMaxEvent(3, noise), ORDERS),
            event_approximate_rdp(StableGaussianMaxEvent(3, noise, 1e-9), ORDERS),
            event_approximate_rdp(StableLaplaceMaxEvent(3, 1 / noise, 1e-9), ORDERS),
        ]
        assert all((rdp >= 0).all() for rdp in prices)  # false for NaN


@pytest.mark.parametrize("delta", [0, 1, -1e-5, 1.5, math.nan])
def test_a_delta_that_is_no_chance_is_refused_everywhere(delta: float) -> None:
    calls: list[Callable[[], object]] = [
        lambda: exact_epsilon(COUNTS, GaussianMaxEvent(1, 5.0), delta=delta),
        lambda: label_level_epsilon(ConfidentGaussianMaxEvent(1, 1, 5.0, 5.0), delta=delta),
        lambda: gdp_epsilon(1.0, delta),
        lambda: RenyiAccountant().get_converted(delta).epsilon,
        lambda: PerInstanceMeter(GaussianMax(5.0), delta=delta),
        lambda: labels_cost(GaussianMaxEvent(1, 5.0), options=3, delta=delta),
        lambda: gdp_cost(GaussianMaxEvent(1, 5.0), delta=delta),
    ]
    for call in calls:
        with pytest.raises(PateFedError):
            call()
