"""Votes rebuilt from repeated answers: chances, their slopes, the search, and its errors."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.integrate import quad
from scipy.stats import laplace, norm

from pate_fed.audit import (
    Answers,
    Noise,
    Target,
    ThresholdCheck,
    chances_and_slopes,
    normalized_error,
    rebuild_votes,
    win_chances,
)
from pate_fed.audit.win_chances import log_outcomes
from pate_fed.errors import InvalidAnswersError, InvalidParameterError, PateFedError
from pate_fed.lab.gradient_descent import descend
from pate_fed.lab.mechanisms import ConfidentGaussianMax
from pate_fed.mechanisms import CoordinatorNoise, Mechanism, ThresholdMax, keyed_stream
from pate_fed.rule import Rule
from pate_fed.votes import SummedHistogram
from tests.support.markers import sampled
from tests.support.real_data import real_data

TOPS = np.array([90, 78, 31, 19, 10, 7, 7, 4, 3, 1])


def published(name: str) -> list[NDArray[np.int64]]:
    """The 15 histograms of the paper."""
    stored = np.load(real_data("data/pate_votes") / "mnist_svhn_15_queries_250_teachers.npz")
    return [np.bincount(row.astype(np.int64), minlength=10) for row in stored[name]]


class TestChances:
    @sampled("votes")
    @pytest.mark.parametrize("law", ["gaussian", "laplace"])
    @pytest.mark.parametrize("votes", [(150, 100), (90, 80, 80), (200, 50, 0, 0), (250, 0)])
    def test_agree_with_adaptive_quadrature(self, law: str, votes: tuple[int, ...]) -> None:
        one = norm(0, 40) if law == "gaussian" else laplace(0, 40 / math.sqrt(2))

        def winning(place: float, k: int) -> float:
            others = [one.cdf(place - votes[i]) for i in range(len(votes)) if i != k]
            return float(one.pdf(place - votes[k]) * np.prod(others))

        expected = [
            quad(winning, -500, 900, args=(k,), limit=500, points=sorted({*votes}), epsabs=1e-13)[0]
            for k in range(len(votes))
        ]
        found = win_chances(np.array(votes), Noise(40.0, law))  # type: ignore[arg-type]
        # 5e-10: the trapezoid rule's step, far below what a million answers show.
        np.testing.assert_allclose(found, expected, rtol=0, atol=5e-10)

    @pytest.mark.parametrize("law", ["gaussian", "laplace"])
    def test_slopes_are_the_derivatives(self, law: str) -> None:
        noise, step = Noise(40.0, law), 1e-3  # type: ignore[arg-type]
        _, slopes = chances_and_slopes(TOPS, noise)
        for place in range(len(TOPS)):
            moved = step * (np.arange(len(TOPS)) == place)
            rise = win_chances(TOPS + moved, noise) - win_chances(TOPS - moved, noise)
            np.testing.assert_allclose(slopes[:, place], rise / (2 * step), atol=1e-9)

    @settings(max_examples=30, deadline=None)
    @given(
        votes=st.lists(st.integers(0, 300), min_size=2, max_size=6),
        shift=st.floats(-200, 200),
        law=st.sampled_from(["gaussian", "laplace"]),
    )
    def test_a_shift_of_all_counts_changes_nothing(
        self, votes: list[int], shift: float, law: str
    ) -> None:
        noise = Noise(30.0, law)  # type: ignore[arg-type]
        here, there = (win_chances(np.array(votes) + by, noise) for by in (0.0, shift))
        np.testing.assert_allclose(here, there, atol=1e-9)

    def test_hopeless_classes_have_finite_slopes(self) -> None:
        chances, slopes = chances_and_slopes(np.array([1e5, 0.0, 10.0]), Noise(1.0))
        assert np.isfinite(slopes).all()
        np.testing.assert_allclose(chances, [1.0, 0.0, 0.0], atol=1e-12)

    @pytest.mark.parametrize("law", ["gaussian", "laplace"])
    @pytest.mark.parametrize("threshold", [-100.0, 60.0, 100.3, 180.0, 400.0])
    def test_a_threshold_on_the_same_noise_agrees_with_adaptive_quadrature(
        self, law: str, threshold: float
    ) -> None:
        votes = np.array([90, 78, 31, 7])
        one = norm(0, 40) if law == "gaussian" else laplace(0, 40 / math.sqrt(2))
        low, high = max(threshold, -400), max(threshold, 100) + 800

        def winning(place: float, k: int) -> float:
            others = [one.cdf(place - votes[i]) for i in range(len(votes)) if i != k]
            return float(one.pdf(place - votes[k]) * np.prod(others))

        kinks = sorted({float(top) for top in votes if low < top < high}) or None
        expected = [
            quad(winning, low, high, args=(k,), limit=500, points=kinks, epsabs=0, epsrel=1e-11)[0]
            for k in range(len(votes))
        ]
        expected.append(np.prod(one.cdf(threshold - votes)))
        noise, step = Noise(40.0, law), 1e-3  # type: ignore[arg-type]
        logs, slopes = log_outcomes(votes, noise, threshold)
        # Rare outcomes count by what they are, not by how small: the logs are compared.
        np.testing.assert_allclose(logs, np.log(expected), rtol=0, atol=1e-9)
        for place in (0, 3):
            moved = step * (np.arange(len(votes)) == place)
            ends = [log_outcomes(votes + by, noise, threshold)[0] for by in (moved, -moved)]
            np.testing.assert_allclose(
                slopes[:, place], (ends[0] - ends[1]) / (2 * step), atol=1e-8
            )

    @pytest.mark.parametrize(
        ("rule", "check"),
        [
            pytest.param(
                ConfidentGaussianMax(Rule("confident", 80.0, 30.0, 40.0)),
                ThresholdCheck(80.0, 30.0),
                id="confident",
            ),
            pytest.param(
                ThresholdMax(40.0, vote_threshold=80.0), ThresholdCheck(80.0), id="threshold"
            ),
        ],
    )
    def test_agree_with_what_the_mechanism_releases(
        self, rule: Mechanism, check: ThresholdCheck
    ) -> None:
        """100,000 rows of the real mechanism; each count is within 5 standard errors."""
        rows = 100_000
        release = rule.release(
            SummedHistogram(np.tile(TOPS, (rows, 1)), total_votes=250),
            noise=CoordinatorNoise(),
            random_bytes=keyed_stream(b"audit", tag="audit"),
            max_answers=rows,
        )
        seen = Answers.of(release.labels, classes=10)
        expected = np.exp(check.log_outcomes(TOPS, Noise(40.0))[0])
        counts = np.append(seen.labels, seen.refusals)
        error = np.sqrt(rows * expected * (1 - expected)) + 1
        assert (np.abs(counts - rows * expected) < 5 * error).all()


class TestRebuilding:
    @pytest.mark.parametrize("law", ["gaussian", "laplace"])
    def test_exact_frequencies_give_the_votes(self, law: str) -> None:
        noise = Noise(60.0, law)  # type: ignore[arg-type]
        answers = Answers(np.rint(1e12 * win_chances(TOPS, noise)).astype(np.int64))
        found = rebuild_votes(answers, noise, teachers=250)
        assert found.converged
        np.testing.assert_allclose(found.votes, TOPS, atol=0.01)

    @pytest.mark.parametrize("sigma1", [40.0, None])
    def test_refusals_tell_the_shift_that_labels_do_not(self, sigma1: float | None) -> None:
        noise, check = Noise(60.0), ThresholdCheck(100.0, sigma1)
        seen = np.rint(1e12 * np.exp(check.log_outcomes(TOPS, noise)[0])).astype(np.int64)
        answers = Answers(seen[:-1], int(seen[-1]))
        found = rebuild_votes(answers, noise, check=check)
        assert found.settled_by == "refusals"
        np.testing.assert_allclose(found.votes, TOPS, atol=0.02)

    @pytest.mark.parametrize(
        ("check", "teachers"),
        [(None, 250), (ThresholdCheck(130.0), 250), (ThresholdCheck(130.0), None)],
    )
    def test_standard_errors_are_those_of_many_attacks(
        self, check: ThresholdCheck | None, teachers: int | None
    ) -> None:
        """300 attacks: a standard deviation is then known to 4 %; 20 % is allowed."""
        noise, rng = Noise(60.0), np.random.default_rng(3)
        votes, target = np.array([100, 80, 70]), Target(Noise(60.0), check)
        found = [
            rebuild_votes(
                target.ask(votes, asks=5_000, rng=rng), noise, teachers=teachers, check=check
            )
            for _ in range(300)
        ]
        spread = np.std([one.votes for one in found], axis=0)
        np.testing.assert_allclose(found[0].standard_errors, spread, rtol=0.2)

    @pytest.mark.parametrize("sigma1", [60.0, None])
    def test_both_channels_are_at_least_as_exact_as_the_labels(self, sigma1: float | None) -> None:
        noise, check, rng = Noise(40.0), ThresholdCheck(100.0, sigma1), np.random.default_rng(5)
        target, errors = Target(noise, check), np.zeros(2)
        for _ in range(30):
            answers = target.ask(TOPS, asks=3_000, rng=rng)
            both = rebuild_votes(answers, noise, teachers=250, check=check)
            # Labels of a threshold alone follow no law of their own; the attacker ignores it.
            labels = rebuild_votes(Answers(answers.labels), noise, teachers=250)
            errors += normalized_error(both.votes, TOPS), normalized_error(labels.votes, TOPS)
        assert errors[0] < errors[1]

    def test_an_unanimous_query_is_rebuilt_exactly(self) -> None:
        found = rebuild_votes(Answers(np.array([0, 0, 10_000])), Noise(40.0), teachers=250)
        np.testing.assert_allclose(found.votes, [0, 0, 250], atol=1e-6)

    @settings(max_examples=40, deadline=None)
    @given(
        labels=st.lists(st.integers(0, 5_000), min_size=2, max_size=12),
        sigma=st.floats(0.5, 500),
        law=st.sampled_from(["gaussian", "laplace"]),
        teachers=st.integers(1, 1_000),
    )
    def test_any_answers_give_votes_that_teachers_can_have_cast(
        self, labels: list[int], sigma: float, law: str, teachers: int
    ) -> None:
        labels[0] += len(labels)
        noise = Noise(sigma, law)  # type: ignore[arg-type]
        found = rebuild_votes(Answers(np.array(labels)), noise, teachers=teachers)
        assert found.votes.sum() == pytest.approx(teachers)
        assert (found.votes >= 0).all()
        assert not np.isnan(found.standard_errors).any()

    @settings(max_examples=60, deadline=None)
    @given(
        labels=st.lists(st.integers(0, 2_000), min_size=2, max_size=8),
        refusals=st.sampled_from([0, 1, 1_000, 10**6]),
        threshold=st.sampled_from([-1e4, 0.0, 100.0, 1e4]),
        sigma1=st.sampled_from([0.5, 10.0, 150.0, None]),
        sigma=st.sampled_from([0.3, 40.0, 1e4]),
        teachers=st.sampled_from([None, 1, 250]),
    )
    @example(  # every count would be negative, and none is left to have the one vote
        labels=[0, 244],
        refusals=10**6,
        threshold=-1e4,
        sigma1=None,
        sigma=0.3,
        teachers=1,
    )
    def test_answers_that_contradict_the_check_give_votes_nevertheless(
        self,
        *,
        labels: list[int],
        refusals: int,
        threshold: float,
        sigma1: float | None,
        sigma: float,
        teachers: int | None,
    ) -> None:
        labels[0] += len(labels)
        check = ThresholdCheck(threshold, sigma1)
        with np.errstate(all="raise", under="ignore"):
            found = rebuild_votes(
                Answers(np.array(labels), refusals), Noise(sigma), teachers=teachers, check=check
            )
        assert np.isfinite(found.votes).all()
        assert (found.votes >= 0).all()
        assert not np.isnan(found.standard_errors).any()
        assert teachers is None or found.votes.sum() == pytest.approx(teachers)

    def test_the_papers_search_comes_to_about_the_same_votes(self) -> None:
        noise = Noise(60.0)
        answers = Target(noise).ask(TOPS, asks=10_000, rng=np.random.default_rng(6))
        theirs = descend(answers, noise, teachers=250)
        assert theirs.sum() == pytest.approx(250)
        assert normalized_error(theirs, TOPS) < 0.08

    def test_the_papers_search_stops_where_a_count_would_be_negative(self) -> None:
        found = descend(Answers(np.array([1000, 0, 0]), 0), Noise(60.0), teachers=250)
        assert (found.argmax(), found.sum()) == (0, pytest.approx(250))
        assert (found >= 0).all()

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("name", "sigma", "bar"),
        [("mnist", 40, 0.07), ("svhn", 40, 0.045), ("svhn", 60, 0.022)],
    )
    def test_the_papers_histograms_are_rebuilt(self, name: str, sigma: float, bar: float) -> None:
        noise, rng = Noise(float(sigma)), np.random.default_rng(7)
        errors = []
        for votes in published(name) * 5:
            answers = Target(noise).ask(votes, asks=10_000, rng=rng)
            found = rebuild_votes(answers, noise, teachers=250)
            errors.append(normalized_error(found.votes, votes))
        assert np.mean(errors) <= bar


class TestRefusals:
    @pytest.mark.parametrize(
        ("call", "kind"),
        [
            pytest.param(lambda: Noise(0.0), InvalidParameterError, id="sigma 0"),
            pytest.param(lambda: Noise(math.nan), InvalidParameterError, id="no number"),
            pytest.param(lambda: Noise(1.0, "cauchy"), InvalidParameterError, id="another law"),  # type: ignore[arg-type]
            pytest.param(lambda: ThresholdCheck(10.0, 0.0), InvalidParameterError, id="sigma1 0"),
            pytest.param(
                lambda: ThresholdCheck(math.inf, 1.0), InvalidParameterError, id="no threshold"
            ),
            pytest.param(
                lambda: Answers.of([0, 1, 10], classes=10), InvalidAnswersError, id="no class"
            ),
            pytest.param(
                lambda: Answers.of([0, -2], classes=10), InvalidAnswersError, id="below all classes"
            ),
            pytest.param(lambda: Answers.of([], classes=10), InvalidAnswersError, id="nothing"),
            pytest.param(
                lambda: Answers.of([0.5], classes=2), InvalidAnswersError, id="a broken label"
            ),
            pytest.param(
                lambda: Answers(np.array([3, -1])), InvalidAnswersError, id="a negative count"
            ),
            pytest.param(
                lambda: rebuild_votes(Answers(np.array([1, 0, 1])), Noise(1.0), teachers=3),
                InvalidAnswersError,
                id="fewer answers than classes",
            ),
            pytest.param(
                lambda: rebuild_votes(Answers(np.array([9, 1]), 3), Noise(1.0), teachers=3),
                InvalidAnswersError,
                id="refusals without a check",
            ),
            pytest.param(
                lambda: rebuild_votes(Answers(np.array([9, 1])), Noise(1.0)),
                InvalidParameterError,
                id="nothing settles the shift",
            ),
            pytest.param(
                lambda: rebuild_votes(Answers(np.array([9, 1])), Noise(1.0), teachers=0),
                InvalidParameterError,
                id="no teachers",
            ),
            pytest.param(
                lambda: normalized_error([1, 2], [1, 2, 3]), InvalidParameterError, id="shapes"
            ),
        ],
    )
    def test_bad_input_is_a_coded_error(self, call: object, kind: type[PateFedError]) -> None:
        with pytest.raises(kind) as raised:
            call()  # type: ignore[operator]
        assert raised.value.code in ("PF-101", "PF-108")
