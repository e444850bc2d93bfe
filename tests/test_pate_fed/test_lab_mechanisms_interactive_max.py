"""Interactive-GNMax: the student in the check, whole numbers, reinforcement without votes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pate_fed.accounting.events import ConfidentGaussianMaxEvent
from pate_fed.errors import InvalidParameterError
from pate_fed.lab.mechanisms.confident_max import ConfidentGaussianMax
from pate_fed.lab.mechanisms.interactive_max import InteractiveGaussianMax
from pate_fed.lab.pate_bounds import threshold_rdp
from pate_fed.lab.per_instance import instance_rdp
from pate_fed.mechanisms.sampling import keyed_stream
from pate_fed.releases import ABSTAIN, NoisyRelease, Outcome
from pate_fed.rule import Rule
from tests.support.exact_argmax import one_vote_neighbors
from tests.support.noise_sources import scripted
from tests.support.query_costs import gnmax_rdp
from tests.test_pate_fed.test_mechanisms_contract import released

MECHANISM = InteractiveGaussianMax(Rule("interactive", 4.0, 1.5, 2.0), confidence=0.8)
PREDICTIONS = [[0.9, 0.1], [0.9, 0.1], [0.5, 0.5]]
ASKING = MECHANISM.with_predictions(PREDICTIONS, total_votes=10)


def test_teachers_are_heard_where_they_disagree_with_the_student() -> None:
    """No noise: 9 - 10 * 0.1 = 8 passes 4; 9 - 10 * 0.9 = 0 does not; nor does 6 - 5."""
    outcome = released(ASKING, [[1, 9], [9, 1], [6, 4]], scripted([0.0] * 3, [0.0] * 6))
    assert outcome.outcomes.tolist() == [Outcome.ANSWERED, Outcome.REFUSED, Outcome.REFUSED]
    assert outcome.labels.tolist() == [1, ABSTAIN, ABSTAIN]
    # The confident student's label is kept, that of the unsure one is not.
    assert ASKING.reinforced_labels(outcome).tolist() == [1, 0, ABSTAIN]


def test_reinforcement_looks_at_no_votes_and_changes_no_release() -> None:
    outcomes = np.array([Outcome.REFUSED, Outcome.ANSWERED, Outcome.NOT_ASKED], dtype=np.int8)
    release = NoisyRelease(np.array([ABSTAIN, 1, ABSTAIN]), outcomes)
    digest = release.digest
    # What was not asked stays open; what was answered keeps the teachers' label.
    assert ASKING.reinforced_labels(release).tolist() == [0, 1, ABSTAIN]
    assert release.digest == digest
    assert MECHANISM.reinforced_labels(release).tolist() == release.labels.tolist()


def test_confidence_of_exactly_the_limit_is_kept() -> None:
    asking = MECHANISM.with_predictions([[0.8, 0.2]], total_votes=10)
    release = NoisyRelease(np.array([ABSTAIN]), np.array([Outcome.REFUSED], dtype=np.int8))
    assert asking.reinforced_labels(release).tolist() == [0]


@given(
    counts=st.lists(st.integers(0, 12), min_size=2, max_size=5).filter(any),
    weights=st.lists(st.integers(0, 40), min_size=5, max_size=5),
)
def test_one_vote_moves_what_the_check_looks_at_by_at_most_one(
    counts: list[int], weights: list[int]
) -> None:
    """Rounding the maximum of n - M p half to even would move it by 2."""
    chances = np.array(weights[: len(counts)], dtype=np.float64) + 0.5
    chances /= chances.sum()
    votes = np.array(counts)
    asking = MECHANISM.with_predictions([chances], total_votes=int(votes.sum()))
    assert asking.predictions is not None
    offsets = asking.predictions.votes
    assert np.issubdtype(offsets.dtype, np.integer)
    top = (votes - offsets[0]).max()
    for moved in one_vote_neighbors(votes):
        assert abs((moved - offsets[0]).max() - top) <= 1


def test_halves_are_rounded_up_not_to_even() -> None:
    asking = MECHANISM.with_predictions([[0.05, 0.15, 0.25, 0.55]], total_votes=10)
    assert asking.predictions is not None
    assert asking.predictions.votes.tolist() == [[1, 2, 3, 6]]


def test_without_predictions_it_is_confident_gnmax() -> None:
    confident = ConfidentGaussianMax(Rule("confident", 4.0, 1.5, 2.0))
    rows = [[6, 4], [9, 1], [5, 5]] * 20
    releases = [
        released(mechanism, rows, keyed_stream(b"s", tag="t"))
        for mechanism in (MECHANISM, confident)
    ]
    assert releases[0].digest == releases[1].digest


def test_it_costs_what_confident_gnmax_costs() -> None:
    assert ASKING.event(5, 3, weight=2) == ConfidentGaussianMaxEvent(5, 3, 1.5, 2.0, 2.0)
    outcomes = np.array([Outcome.ANSWERED, Outcome.REFUSED], dtype=np.int8)
    orders = np.array([2.0, 4.0])
    cost = instance_rdp(ASKING, np.array([[1, 9], [9, 1]]), outcomes, orders, weight=1.0)
    checks = threshold_rdp([8, 0], orders, vote_threshold=4.0, sigma=1.5).sum(axis=0)
    label = gnmax_rdp([[1, 9]], orders, sigma=2.0).sum(axis=0)
    assert cost == pytest.approx(checks + label, rel=1e-12)


def test_predictions_must_fit_the_batch() -> None:
    with pytest.raises(InvalidParameterError):
        released(ASKING, [[1, 9]], keyed_stream(b"s", tag="t"))
    with pytest.raises(InvalidParameterError):
        released(ASKING, [[1, 19]] * 3, keyed_stream(b"s", tag="t"))
    release = NoisyRelease(np.array([ABSTAIN]), np.array([Outcome.REFUSED], dtype=np.int8))
    with pytest.raises(InvalidParameterError):
        ASKING.reinforced_labels(release)
    with pytest.raises(InvalidParameterError):
        instance_rdp(
            ASKING,
            np.zeros((4, 2), dtype=np.int64),
            np.zeros(4, dtype=np.int8),
            np.array([2.0]),
            weight=1.0,
        )


@pytest.mark.parametrize(
    ("predictions", "total_votes"),
    [
        pytest.param([0.5, 0.5], 10, id="one axis"),
        pytest.param([[1.0]], 10, id="one class"),
        pytest.param([[0.5, 0.4]], 10, id="does not sum to 1"),
        pytest.param([[1.5, -0.5]], 10, id="negative chance"),
        pytest.param([[float("nan"), 1.0]], 10, id="no number"),
        pytest.param([[0.5, 0.5]], 0, id="no votes"),
    ],
)
def test_predictions_out_of_range_are_refused(
    predictions: list[list[float]], total_votes: int
) -> None:
    with pytest.raises(InvalidParameterError):
        MECHANISM.with_predictions(predictions, total_votes=total_votes)


@pytest.mark.parametrize("confidence", [-0.1, 1.1, float("nan")])
def test_confidence_out_of_range_is_refused(confidence: float) -> None:
    with pytest.raises(InvalidParameterError):
        InteractiveGaussianMax(Rule("interactive", 4.0, 1.5, 2.0), confidence=confidence)
