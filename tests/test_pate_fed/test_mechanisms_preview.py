"""Previews: made of public numbers alone, and right about what the mechanism then does."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import beta as beta_law

from pate_fed.lab.mechanisms import ConfidentGaussianMax
from pate_fed.mechanisms import GaussianMax, Mechanism, ThresholdMax
from pate_fed.mechanisms.preview import (
    ASSUMED_ACCURACY,
    SIMULATED_QUERIES,
    Preview,
    preview,
    simulated_votes,
)
from pate_fed.rule import Rule
from tests.support.exact_argmax import confident_law
from tests.support.threshold_law import threshold_log_law


class TestSimulatedVotes:
    @settings(max_examples=20, deadline=None)
    @given(
        votes=st.integers(1, 500), classes=st.integers(2, 12), accuracy=st.sampled_from([0.3, 0.9])
    )
    def test_every_row_holds_every_vote(self, votes: int, classes: int, accuracy: float) -> None:
        counts = simulated_votes(votes=votes, classes=classes, teacher_accuracy=accuracy)
        assert counts.shape == (SIMULATED_QUERIES, classes)
        assert counts.dtype == np.int64
        assert (counts >= 0).all()
        assert (counts.sum(axis=1) == votes).all()

    def test_the_same_numbers_give_the_same_votes(self) -> None:
        first, second = (simulated_votes(votes=250, classes=10) for _ in range(2))
        assert np.array_equal(first, second)

    @pytest.mark.parametrize("accuracy", [0.3, 0.7, 0.95])
    @pytest.mark.parametrize("classes", [2, 10])
    def test_the_first_class_is_right_as_often_as_teachers_are(
        self, accuracy: float, classes: int
    ) -> None:
        counts = simulated_votes(votes=1000, classes=classes, teacher_accuracy=accuracy)
        share = counts[:, 0] / 1000
        # Of the mean of 400 draws, five standard deviations.
        spread = float(beta_law(4 * accuracy, 4 * (1 - accuracy)).std())
        assert abs(share.mean() - accuracy) < 5 * spread / math.sqrt(SIMULATED_QUERIES)
        assert share.std() == pytest.approx(spread, rel=0.15)

    def test_mistakes_are_spread_over_all_other_classes(self) -> None:
        counts = simulated_votes(votes=1000, classes=5)
        wrong = counts[:, 1:].mean(axis=0) / 1000
        assert wrong == pytest.approx([(1 - ASSUMED_ACCURACY) / 4] * 4, rel=0.25)


def laws_of(mechanism: Mechanism, counts: np.ndarray) -> np.ndarray:
    """Chances of the labels, then of "no answer", of each row; exact."""
    match mechanism:
        case ConfidentGaussianMax(Rule("confident", threshold, sigma1, sigma2)):
            laws = [
                confident_law(row, vote_threshold=threshold, sigma1=sigma1, sigma2=sigma2)
                for row in counts
            ]
        case ThresholdMax(vote_threshold=threshold, sigma=sigma):
            laws = [
                np.exp(threshold_log_law(row, vote_threshold=threshold, sigma=sigma))
                for row in counts
            ]
    return np.array(laws)


class TestPreview:
    @pytest.mark.parametrize(
        "mechanism",
        [
            pytest.param(ThresholdMax(50.0, vote_threshold=150.0), id="threshold"),
            pytest.param(ThresholdMax(50.0, vote_threshold=60.5), id="low threshold"),
            pytest.param(
                ConfidentGaussianMax(Rule("confident", 150.0, 40.0, 30.0)), id="confident"
            ),
        ],
    )
    def test_it_says_what_the_mechanism_does(self, mechanism: Mechanism) -> None:
        counts = simulated_votes(votes=250, classes=4)
        laws, found = laws_of(mechanism, counts), preview(mechanism, counts)
        rate, right = 1 - laws[:, -1].mean(), laws[:, 0].mean()
        # 8,000 draws: five standard deviations of a share are at most 0.028.
        assert found.answer_rate == pytest.approx(rate, abs=0.028)
        assert found.right_rate == pytest.approx(right, abs=0.028)
        assert found.accuracy == pytest.approx(right / rate, abs=0.028 / rate)

    def test_exact_votes_are_answered_or_refused_by_the_threshold(self) -> None:
        counts = np.array([[90, 10], [40, 60], [100, 0], [55, 45]])
        found = preview(ThresholdMax(1e-3, vote_threshold=80), counts)
        assert found == Preview(answer_rate=0.5, accuracy=1.0)
        every = preview(ThresholdMax(1e-3, vote_threshold=-1e6), counts)
        assert every == preview(GaussianMax(1e-3), counts) == Preview(1.0, accuracy=0.75)

    def test_nothing_answered_is_nothing_right(self) -> None:
        found = preview(ThresholdMax(1.0, vote_threshold=1e6), np.array([[90, 10]]))
        assert found == Preview(answer_rate=0.0, accuracy=0.0)
        assert found.right_rate == 0

    @settings(max_examples=20, deadline=None)
    @given(st.floats(-50, 350), st.floats(-50, 350))
    def test_a_higher_threshold_never_answers_more(self, one: float, other: float) -> None:
        """Two thresholds are tried on the same draws, so that no chance comes between."""
        counts = simulated_votes(votes=250, classes=3)[:50]
        low, high = (
            preview(ThresholdMax(30.0, vote_threshold=threshold), counts)
            for threshold in sorted((one, other))
        )
        assert low.answer_rate >= high.answer_rate

    def test_the_same_arguments_give_the_same_preview(self) -> None:
        counts, rule = simulated_votes(votes=50, classes=3), ThresholdMax(9.0, vote_threshold=25.0)
        assert preview(rule, counts) == preview(rule, counts)
