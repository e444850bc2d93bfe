"""The Gaussian sampler: its law, its grid, and noise that is too small is rejected.

Statistical tests have fixed seeds, so they never fail by chance once they pass; the false-alarm
rate is that of a fresh seed.
"""

from __future__ import annotations

import hashlib
import math

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import chi2, kstwo, norm

from pate_fed.errors import InvalidParameterError
from pate_fed.mechanisms.sampling import (
    GRID,
    LARGEST_SIGMA,
    keyed_stream,
    sample_gaussian,
    total_variation_bound,
)

FALSE_ALARM = 1e-6
DRAWS = 20_000


def variance_fits(noise: NDArray[np.float64], sigma: float) -> bool:
    """Test the standard deviation, two-sided, with a false-alarm rate of 1e-6."""
    statistic = float((noise**2).sum()) / sigma**2
    low, high = chi2.ppf([FALSE_ALARM / 2, 1 - FALSE_ALARM / 2], noise.size)
    return bool(low <= statistic <= high)


def shape_fits(noise: NDArray[np.float64], sigma: float) -> bool:
    """Kolmogorov-Smirnov test against N(0, sigma^2), with a false-alarm rate of 1e-6."""
    ordered = norm.cdf(np.sort(noise.ravel()) / sigma)
    steps = np.arange(noise.size + 1) / noise.size
    distance = max((steps[1:] - ordered).max(), (ordered - steps[:-1]).max())
    return bool(kstwo.sf(distance, noise.size) >= FALSE_ALARM)


@pytest.mark.parametrize("sigma", [0.5, 7.2, 40.0, 150.0])
def test_noise_has_its_sigma_and_a_smaller_one_is_noticed(sigma: float) -> None:
    source = keyed_stream(b"variance", tag=f"sigma {sigma}")
    noise = sample_gaussian(DRAWS, sigma=sigma, random_bytes=source)
    assert variance_fits(noise, sigma)
    assert shape_fits(noise, sigma)
    weak = sample_gaussian(DRAWS, sigma=0.7 * sigma, random_bytes=source)
    assert not variance_fits(weak, sigma)
    assert not shape_fits(weak, sigma)
    # 5 % too small would be seen as well: 20,000 draws know sigma to half a percent.
    assert not variance_fits(0.95 * noise, sigma)


def test_draws_are_uncorrelated_with_the_next_ones() -> None:
    source = keyed_stream(b"lag", tag="test")
    noise = sample_gaussian(DRAWS, sigma=1.0, random_bytes=source)
    # Correlations are normal with deviation 1/sqrt(n); 4.9 deviations: false alarms of 1e-6.
    for lag in (1, 2, 10):
        assert abs(np.mean(noise[lag:] * noise[:-lag])) < 4.9 / math.sqrt(DRAWS)


def test_signs_are_fair_and_independent_of_the_magnitude() -> None:
    source = keyed_stream(b"signs", tag="test")
    noise = sample_gaussian(DRAWS, sigma=1.0, random_bytes=source)
    assert abs(np.sign(noise).sum()) < 4.9 * math.sqrt(DRAWS)
    assert abs((np.sign(noise) * (noise**2 - 1)).sum()) < 4.9 * math.sqrt(2 * DRAWS)


@pytest.mark.parametrize("sigma", [0.01, 8.0, 12345.6, LARGEST_SIGMA])
def test_adding_votes_is_exact_and_the_low_bits_say_nothing_about_them(sigma: float) -> None:
    noise = sample_gaussian(500, sigma=sigma, random_bytes=keyed_stream(b"grid", tag="test"))
    assert np.array_equal(noise / GRID, np.rint(noise / GRID))
    for votes in (1, 250, 2**30 - 1):
        # Exact: taking the votes away again gives every bit of the noise back.
        assert np.array_equal((votes + noise) - votes, noise)
        assert np.array_equal(np.mod(votes + noise, 1.0), np.mod(noise, 1.0))


@given(votes=st.integers(0, 2**30), draw=st.floats(-1e4, 1e4))
def test_rounding_noise_is_rounding_the_noisy_count(votes: int, draw: float) -> None:
    with mpmath.workdps(40):
        exact_sum = (votes + mpmath.mpf(draw)) / mpmath.mpf(GRID)
        assert mpmath.nint(exact_sum) * GRID == votes + np.rint(draw / GRID) * GRID


def test_every_word_lands_where_the_exact_inverse_does() -> None:
    """The error that `total_variation_bound` rests on: 1.5e-16 + 9e-16 |z|, in sigmas."""
    generator = np.random.default_rng(5)
    scale = 2.0**27  # so coarse a grid as 1/64 then resolves 2^-33 sigma
    words = generator.integers(0, 2**63, 300, dtype=np.uint64) >> generator.integers(
        0, 63, 300, dtype=np.uint64
    )
    noise = sample_gaussian(
        words.size, sigma=scale, random_bytes=lambda count: words.astype("<u8").tobytes()
    )
    with mpmath.workdps(40):
        for word, drawn in zip(words, noise, strict=True):
            tail = (int(word) + mpmath.mpf(1) / 2) / mpmath.mpf(2) ** 64
            z = mpmath.findroot(
                lambda x, tail=tail: mpmath.log(mpmath.ncdf(x)) - mpmath.log(tail), drawn / scale
            )
            slack = scale * (1.5e-16 + 9e-16 * abs(float(z))) + GRID / 2
            assert abs(drawn - float(z * scale)) <= slack * (1 + 1e-6)


def test_the_distance_to_an_ideal_gaussian_is_small_and_grows_with_sigma() -> None:
    assert total_variation_bound(40.0) < 2.3e-12
    assert 1000 * total_variation_bound(150.0) < 9e-9
    assert total_variation_bound(100.0) < 1e-11  # what the report's list of limits says
    assert total_variation_bound(8.0) < total_variation_bound(9.0)


def test_the_tails_reach_nine_sigma() -> None:
    extremes = b"\x00" * 8 + b"\x00" * 7 + b"\x80"
    low, high = sample_gaussian(2, sigma=1000.0, random_bytes=lambda count: extremes) / 1000
    assert low == -high
    # Pr[|Z| > 9.1] = 9e-20: less than one word in 2^63 lies beyond.
    assert 9.0 < high < 9.3


def test_the_middle_words_give_no_noise() -> None:
    middle = b"\xff" * 7 + b"\x7f" + b"\xff" * 8
    noise = sample_gaussian(2, sigma=1000.0, random_bytes=lambda count: middle)
    assert noise.tolist() == [0.0, 0.0]


def test_the_same_seed_gives_the_same_bytes_for_ever() -> None:
    # Computed with the standard library's HMAC for HKDF, and AES of a big-endian counter.
    digest = "004d0a9cb181d8b41aedd17996c0fda916146e4f62b22d61c761223b7c7df7ee"
    stream = keyed_stream(b"seed", tag="test vector")
    assert hashlib.sha256(stream(1000)).hexdigest() == digest
    noise = sample_gaussian((2, 2), sigma=8.0, random_bytes=keyed_stream(b"seed", tag="noise"))
    assert noise.tolist() == [[3.625, 4.703125], [4.234375, 0.0]]


def test_a_stream_goes_on_and_never_repeats_itself() -> None:
    whole = keyed_stream(b"seed", tag="a")(300)
    pieces = keyed_stream(b"seed", tag="a")
    assert b"".join(pieces(count) for count in (1, 0, 99, 200)) == whole
    blocks = {whole[start : start + 16] for start in range(0, 288, 16)}
    assert len(blocks) == 18


def test_seed_and_tag_each_give_another_stream() -> None:
    streams = {keyed_stream(seed, tag=tag)(32) for seed in (b"a", b"b") for tag in ("x", "y")}
    assert len(streams) == 4


@pytest.mark.parametrize("sigma", [0.0, -1.0, math.inf, math.nan, 2.0**29])
def test_sigma_out_of_range_is_refused(sigma: float) -> None:
    with pytest.raises(InvalidParameterError):
        sample_gaussian(1, sigma=sigma, random_bytes=bytes)


@pytest.mark.parametrize("given_bytes", [b"", bytes(15), bytes(17)])
def test_a_source_that_gives_another_number_of_bytes_is_refused(given_bytes: bytes) -> None:
    with pytest.raises(InvalidParameterError):
        sample_gaussian(2, sigma=1.0, random_bytes=lambda count: given_bytes)


def test_nothing_asked_for_draws_nothing() -> None:
    noise = sample_gaussian((0, 3), sigma=1.0, random_bytes=bytes)
    assert noise.shape == (0, 3)
