"""The one door from an exact sum to a noisy one."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest
from numpy.typing import NDArray

from pate_fed.mechanisms.coordinator_noise import CoordinatorNoise
from pate_fed.mechanisms.mechanism import noisy_winners
from pate_fed.mechanisms.sampling import keyed_stream, sample_gaussian
from pate_fed.votes import SummedHistogram
from tests.support.noise_sources import scripted

SUMMED = SummedHistogram(np.array([[7, 3], [5, 5], [0, 10]]), total_votes=10)


def test_every_count_gets_noise_of_its_own() -> None:
    noisy = CoordinatorNoise().perturb(SUMMED, sigma=4.0, random_bytes=keyed_stream(b"n", tag="t"))
    expected = sample_gaussian((3, 2), sigma=4.0, random_bytes=keyed_stream(b"n", tag="t"))
    assert np.array_equal(noisy.counts, SUMMED.counts + expected)
    assert len(np.unique(expected)) == expected.size
    assert noisy.sigma == 4.0


def test_the_top_count_gets_one_draw_per_query() -> None:
    for threshold, expected in ((8.9, [1, 0, 1]), (9.1, [0, 0, 1]), (2.9, [1, 1, 1])):
        source = scripted([1.0, -1.0, 0.0])
        passed = CoordinatorNoise().passes(
            SUMMED, vote_threshold=threshold, sigma=2.0, random_bytes=source
        )
        assert passed.tolist() == expected


WORDS = np.random.default_rng(3).integers(0, 2**64, (3000, 3), dtype=np.uint64)


def exact_noise(words: NDArray[np.uint64], *, sigma: float) -> NDArray[np.float64]:
    """The draws of words before rounding, by another inverse, of the standard library."""
    normal, half = NormalDist(), 2**63
    draws = [
        math.copysign(-normal.inv_cdf((int(word) % half + 0.5) / 2**64), int(word) - half)
        for word in words.ravel()
    ]
    return np.array(draws).reshape(words.shape) * sigma


@pytest.mark.parametrize("sigma", [0.005, 0.02, 0.3])
def test_a_label_is_that_of_the_noise_before_rounding(sigma: float) -> None:
    """At sigmas about the grid most rounded counts tie; the lowest class would win them all."""
    counts = np.tile([[5, 5, 5], [5, 4, 5], [4, 5, 5]], (1000, 1))
    noisy = CoordinatorNoise().perturb(
        SummedHistogram(counts, total_votes=15),
        sigma=sigma,
        random_bytes=lambda count: WORDS.astype("<u8").tobytes()[:count],
    )
    expected = (counts + exact_noise(WORDS, sigma=sigma)).argmax(axis=1)
    assert np.array_equal(noisy_winners(noisy), expected)
    rounded = noisy.counts.argmax(axis=1)
    assert (rounded != expected).any()


@pytest.mark.parametrize("sigma", [0.005, 0.02, 0.3])
@pytest.mark.parametrize("threshold", [7.0, 7 - 1 / 64, 7 + 1 / 128, 7 + 1 / 300, 6.99])
def test_a_check_is_that_of_the_noise_before_rounding(sigma: float, threshold: float) -> None:
    """Rounded noise passes as if the threshold were up to 1/128 vote lower, or higher."""
    words = WORDS.ravel()
    counts = np.tile([7, 2], (words.size, 1))
    passed = CoordinatorNoise().passes(
        SummedHistogram(counts, total_votes=9),
        vote_threshold=threshold,
        sigma=sigma,
        random_bytes=lambda count: words.astype("<u8").tobytes()[:count],
    )
    noise = exact_noise(words, sigma=sigma)
    assert np.array_equal(passed, 7 + noise >= threshold)
    rounded = 7 + np.rint(noise * 64) / 64 >= threshold
    if threshold in {7.0, 7 - 1 / 64}:
        assert (rounded != passed).any()


def test_an_exact_sum_shows_no_counts() -> None:
    assert "7" not in repr(SUMMED)
