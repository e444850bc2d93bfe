"""Threshold-GNMax: the threshold's whole range, one price, its number on given votes, a student."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from pate_fed.accounting.curves import event_label_rdp
from pate_fed.accounting.events import GaussianMaxEvent
from pate_fed.errors import InvalidParameterError
from pate_fed.lab.per_instance import instance_rdp
from pate_fed.mechanisms.gaussian_max import GaussianMax
from pate_fed.mechanisms.sampling import keyed_stream
from pate_fed.mechanisms.threshold_max import InteractiveThresholdMax, ThresholdMax
from pate_fed.releases import ABSTAIN, NoisyRelease, Outcome
from tests.support.exact_argmax import renyi_divergence
from tests.support.noise_sources import scripted
from tests.support.threshold_law import threshold_log_law
from tests.test_pate_fed.test_mechanisms_contract import released

MECHANISM = ThresholdMax(2.0, vote_threshold=4.0)
ASKING = InteractiveThresholdMax(2.0, vote_threshold=4.0, confidence=0.8)
PREDICTIONS = [[0.9, 0.1], [0.9, 0.1], [0.5, 0.5]]
ORDERS = np.array([1.5, 4.0, 16.0])
ROWS = np.random.default_rng(1).multinomial(30, [0.5, 0.3, 0.2], size=400)


@pytest.mark.parametrize("sigma", [0.01, 3.0, 1e4])
def test_the_threshold_only_decides_which_of_gnmaxs_labels_are_given(sigma: float) -> None:
    """The same draws: a label is given or not, and is never another one."""
    every = released(GaussianMax(sigma), ROWS, keyed_stream(b"s", tag="t")).labels
    known = None
    for threshold in (-(2.0**29), 0.0, 10.0, 14.999, 15.0, 30.0, 2.0**29):
        rule = ThresholdMax(sigma, vote_threshold=threshold)
        release = released(rule, ROWS, keyed_stream(b"s", tag="t"))
        given_ = release.labels != ABSTAIN
        assert (release.labels[given_] == every[given_]).all()
        assert known is None or (given_ <= known).all(), "a higher threshold answers no more"
        known = given_
        if abs(threshold) > 1e8:
            assert release.answered == len(ROWS) * (threshold < 0)


@pytest.mark.parametrize(
    ("counts", "draws", "label"),
    [
        pytest.param([4, 0], [0.0, 0.0], 0, id="exactly the threshold"),
        pytest.param([4, 0], [-1.0, 0.0], ABSTAIN, id="below by noise"),
        pytest.param([3, 0], [0.5, 0.0], 0, id="exactly by noise"),
        pytest.param([3, 3], [0.5, 1.0], 1, id="one noise decides on both"),
        pytest.param([9, 0], [-3.0, 0.0], ABSTAIN, id="the largest noisy count, not the plurality"),
        pytest.param([9, 0], [-3.0, 2.0], 1, id="another class reaches it"),
        pytest.param([5, 5], [0.0, 0.0], 0, id="a tie"),
    ],
)
def test_label_and_threshold_look_at_the_same_noisy_counts(
    counts: list[int], draws: list[float], label: int
) -> None:
    assert released(MECHANISM, [counts], scripted(draws)).labels.tolist() == [label]


def test_no_answer_costs_what_a_label_costs() -> None:
    assert MECHANISM.event(5, 0) == MECHANISM.event(5, 5) == GaussianMaxEvent(5, 2.0)
    assert MECHANISM.worst_case_event(9, 2, weight=3) == GaussianMaxEvent(9, 2.0, 3.0)
    assert MECHANISM.event(5, 5) == GaussianMax(2.0).event(5, 5)
    counts = np.array([[5, 4, 1], [9, 1, 0]])
    costs = [
        instance_rdp(MECHANISM, counts, np.full(2, outcome, np.int8), ORDERS, weight=1.0)
        for outcome in (Outcome.ANSWERED, Outcome.REFUSED)
    ]
    assert (costs[0] == costs[1]).all()


def worst_over_neighbors(
    counts: NDArray[np.int64],
    *,
    sigma: float,
    threshold: float,
    votes: int = 1,
    off: NDArray[np.int64] | int = 0,
) -> NDArray[np.float64]:
    """The largest divergence from any neighbor that moves so many votes, from the law itself."""
    here = threshold_log_law(counts - off, vote_threshold=threshold, sigma=sigma)
    found = np.zeros(len(ORDERS))
    steps = [range(-votes, votes + 1)] * len(counts)
    for move in (np.array(one) for one in product(*steps)):
        if move.sum() or not 0 < np.abs(move).sum() <= 2 * votes or (counts + move < 0).any():
            continue
        there = threshold_log_law(counts + move - off, vote_threshold=threshold, sigma=sigma)
        found = np.maximum(found, [renyi_divergence(here, there, order) for order in ORDERS])
    return found


@pytest.mark.parametrize("votes", [1, 2])
@pytest.mark.parametrize("threshold", [-3.0, 4.0, 7.5, 11.0, 25.0])
@pytest.mark.parametrize("counts", [[10, 1, 1], [6, 5, 1], [4, 4, 4], [9, 3]], ids=str)
def test_the_number_on_given_votes_is_never_below_what_a_neighbor_tells(
    counts: list[int], threshold: float, votes: int
) -> None:
    rule, row = ThresholdMax(3.0, vote_threshold=threshold), np.array(counts)
    found = instance_rdp(rule, row[None], np.zeros(1, np.int8), ORDERS, weight=votes)
    worst = worst_over_neighbors(row, sigma=3.0, threshold=threshold, votes=votes)
    assert (worst <= found + 1e-12).all()
    assert (found <= ORDERS * (votes / 3.0) ** 2 * (1 + 1e-12)).all()
    # The price for all votes holds for these, too.
    assert (worst <= event_label_rdp(rule.event(1, 0, weight=votes), ORDERS) + 1e-12).all()


def test_votes_far_from_threshold_and_tie_cost_next_to_nothing() -> None:
    def cost(counts: list[int], threshold: float) -> NDArray[np.float64]:
        rule = ThresholdMax(2.0, vote_threshold=threshold)
        return instance_rdp(rule, np.array([counts]), np.zeros(1, np.int8), ORDERS, weight=1.0)

    most = ORDERS / 4
    for counts, threshold in (([40, 0, 0], 14.0), ([2, 0, 0], 30.0)):
        assert (cost(counts, threshold)[:2] < 1e-9).all()
    for counts, threshold in (([40, 0, 0], 40.0), ([20, 20, 0], 6.0)):
        assert (cost(counts, threshold) > 0.5 * most).all()


# A student ------------------------------------------------------------------------------------


def test_teachers_are_heard_where_they_disagree_with_the_student() -> None:
    """No noise: 9 - 10 * 0.1 = 8 reaches 4; 9 - 10 * 0.9 = 0 does not; nor does 6 - 5."""
    asking = ASKING.with_predictions(PREDICTIONS, total_votes=10)
    outcome = released(asking, [[1, 9], [9, 1], [6, 4]], scripted([0.0] * 6))
    assert outcome.labels.tolist() == [1, ABSTAIN, ABSTAIN]
    # The confident student's label is kept, that of the unsure one is not.
    assert asking.reinforced_labels(outcome).tolist() == [1, 0, ABSTAIN]


def test_the_label_is_the_class_favored_beyond_what_the_student_expects() -> None:
    asking = ASKING.with_predictions([[0.6, 0.4]], total_votes=30)
    # 19 of 30 for class 0; of the 12 that the student gives class 1, only 11 came.
    assert released(asking, [[19, 11]], scripted([0.0] * 2)).labels.tolist() == [ABSTAIN]
    # 16 for class 1, where 12 were expected, reaches 4; class 0 has more votes.
    assert released(asking, [[14, 16]], scripted([0.0] * 2)).labels.tolist() == [1]


def test_a_student_takes_the_same_off_in_both_worlds_and_only_whole_votes() -> None:
    asking = ASKING.with_predictions([[0.05, 0.15, 0.25, 0.55]], total_votes=10)
    assert asking.predictions is not None
    off = asking.predictions.votes
    assert off.tolist() == [[1, 2, 3, 6]], "halves are rounded up, not to even"
    assert off.dtype == np.int64
    rows = np.random.default_rng(2).multinomial(10, [0.25] * 4, size=300)
    asking = ASKING.with_predictions(np.tile([0.05, 0.15, 0.25, 0.55], (300, 1)), total_votes=10)
    with_student = released(asking, rows, keyed_stream(b"s", tag="t"))
    # Votes on more than were expected, by the plain rule: lifted to be counts again.
    lifted = ThresholdMax(2.0, vote_threshold=4.0 + 6)
    plain = released(lifted, rows - off + 6, keyed_stream(b"s", tag="t"))
    assert with_student.digest == plain.digest


def test_without_a_student_it_is_the_plain_rule() -> None:
    releases = [released(rule, ROWS, keyed_stream(b"s", tag="t")) for rule in (ASKING, MECHANISM)]
    assert releases[0].digest == releases[1].digest
    assert ASKING.reinforced_labels(releases[0]).tolist() == releases[0].labels.tolist()
    assert ASKING.event(5, 3, weight=2) == MECHANISM.event(5, 3, weight=2)


def test_the_number_on_given_votes_is_that_of_what_a_student_leaves() -> None:
    counts, chances = np.array([[9, 3, 0], [2, 5, 5]]), [[0.5, 0.25, 0.25], [0.25, 0.75, 0.0]]
    asking = ASKING.with_predictions(chances, total_votes=12)
    assert asking.predictions is not None
    off = asking.predictions.votes
    outcomes = np.zeros(2, np.int8)
    cost = instance_rdp(asking, counts, outcomes, ORDERS, weight=1.0)
    lifted = ThresholdMax(2.0, vote_threshold=4.0 + 9)
    plain = [
        instance_rdp(lifted, (row - o + 9)[None], outcomes[:1], ORDERS, weight=1.0)
        for row, o in zip(counts, off, strict=True)
    ]
    assert cost == pytest.approx(np.sum(plain, axis=0), rel=1e-12)
    for row, o, own in zip(counts, off, plain, strict=True):
        worst = worst_over_neighbors(row, sigma=2.0, threshold=4.0, off=o)
        assert (worst <= own + 1e-12).all()
    # The first queries of a batch that ended early.
    first = instance_rdp(asking, counts[:1], outcomes[:1], ORDERS, weight=1.0)
    assert first == pytest.approx(plain[0], rel=1e-12)


@given(
    st.lists(st.integers(0, 2), min_size=1, max_size=20).map(
        lambda outcomes: sorted(outcomes, key=lambda one: one == Outcome.NOT_ASKED)
    )
)
def test_a_kept_label_looks_at_no_votes(outcomes: list[int]) -> None:
    release = NoisyRelease(
        np.where(np.array(outcomes) == Outcome.ANSWERED, 1, ABSTAIN), np.array(outcomes, np.int8)
    )
    chances = np.tile([0.9, 0.1], (len(outcomes), 1))
    kept = ASKING.with_predictions(chances, total_votes=10).reinforced_labels(release)
    expected = {Outcome.ANSWERED: 1, Outcome.REFUSED: 0, Outcome.NOT_ASKED: ABSTAIN}
    assert kept.tolist() == [expected[Outcome(one)] for one in outcomes]


def test_predictions_must_fit_the_batch() -> None:
    asking = ASKING.with_predictions(PREDICTIONS, total_votes=10)
    for rows in ([[1, 9]], [[1, 19]] * 3, [[1, 8, 1]] * 3):
        with pytest.raises(InvalidParameterError):
            released(asking, rows, keyed_stream(b"s", tag="t"))


@pytest.mark.parametrize("threshold", [math.nan, math.inf, -math.inf, 2.0**31])
def test_a_threshold_out_of_range_is_refused(threshold: float) -> None:
    with pytest.raises(InvalidParameterError):
        ThresholdMax(2.0, vote_threshold=threshold)


@pytest.mark.parametrize("confidence", [-0.1, 1.1, math.nan])
def test_a_confidence_out_of_range_is_refused(confidence: float) -> None:
    with pytest.raises(InvalidParameterError):
        InteractiveThresholdMax(2.0, vote_threshold=4.0, confidence=confidence)
