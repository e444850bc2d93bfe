"""Previews: made of public numbers alone, and right about what the mechanism then does."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import beta as beta_law

from pate_fed.mechanisms import ConfidentGaussianMax, NoisePlan, keyed_stream
from pate_fed.mechanisms.preview import (
    ASSUMED_ACCURACY,
    SIMULATED_QUERIES,
    Preview,
    preview_confident,
    simulated_votes,
)
from pate_fed.releases import Outcome
from pate_fed.votes import SummedHistogram


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


class TestPreview:
    def test_it_says_what_the_mechanism_does(self) -> None:
        counts = simulated_votes(votes=250, classes=4)
        mechanism = ConfidentGaussianMax(150.0, 40.0, 30.0)
        found = preview_confident(counts, vote_threshold=150.0, sigma1=40.0, sigma2=30.0)
        answered, right, asked = 0, 0, 0
        for repeat in range(10):
            release = mechanism.release(
                SummedHistogram(counts, 250),
                noise=NoisePlan(),
                random_bytes=keyed_stream(bytes(31) + bytes([repeat]), tag="preview"),
                max_answers=10**6,
                max_refusals=10**6,
            )
            answers = release.outcomes == Outcome.ANSWERED
            answered += int(answers.sum())
            right += int((release.labels[answers] == 0).sum())
            asked += len(release)
        # 4000 queries: five standard deviations of a share are at most 0.04.
        assert found.answer_rate == pytest.approx(answered / asked, abs=0.04)
        assert found.accuracy == pytest.approx(right / answered, abs=0.04)

    def test_exact_votes_are_answered_or_refused_by_the_threshold(self) -> None:
        counts = np.array([[90, 10], [40, 60], [100, 0], [55, 45]])
        found = preview_confident(counts, vote_threshold=80, sigma1=1e-3, sigma2=1e-3)
        assert found == Preview(answer_rate=0.5, accuracy=1.0)
        every = preview_confident(counts, vote_threshold=-1e6, sigma1=1.0, sigma2=1e-3)
        assert every == Preview(answer_rate=1.0, accuracy=0.75)

    def test_nothing_answered_is_nothing_right(self) -> None:
        counts = np.array([[90, 10]])
        found = preview_confident(counts, vote_threshold=1e6, sigma1=1.0, sigma2=1.0)
        assert found == Preview(answer_rate=0.0, accuracy=0.0)

    @given(st.floats(-50, 350), st.floats(-50, 350))
    def test_a_higher_threshold_never_answers_more(self, one: float, other: float) -> None:
        counts = simulated_votes(votes=250, classes=3)[:50]
        low, high = (
            preview_confident(counts, vote_threshold=threshold, sigma1=40.0, sigma2=30.0)
            for threshold in sorted((one, other))
        )
        assert low.answer_rate >= high.answer_rate

    @given(queries=st.integers(1, 10_000), rate=st.floats(0, 1))
    def test_a_cap_on_refusals_fits_the_queries(self, queries: int, rate: float) -> None:
        cap = Preview(rate, 1.0).refusals(queries)
        assert 1 <= cap <= queries
        expected = queries * (1 - rate)
        assert cap == queries or cap >= expected
        # No more than three standard deviations and rounding above what is expected.
        assert cap <= max(1, math.ceil(expected + 3 * math.sqrt(queries * rate * (1 - rate))))

    def test_a_cap_on_refusals_is_hardly_reached(self) -> None:
        rng = np.random.default_rng(5)
        for rate in (0.2, 0.5, 0.9):
            cap = Preview(rate, 1.0).refusals(500)
            refused = rng.binomial(500, 1 - rate, size=20_000)
            assert (refused > cap).mean() < 0.003
