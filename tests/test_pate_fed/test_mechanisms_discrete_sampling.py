"""Whole-number noise: its law to 128 bits, ties, and noise that is 30 % off is rejected.

Statistical tests have fixed seeds, so they never fail by chance once they pass; the false-alarm
rate is that of a fresh seed: 1e-6 each.
"""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import chi2

from pate_fed.errors import InvalidParameterError
from pate_fed.mechanisms import discrete_sampling as module
from pate_fed.mechanisms.discrete_sampling import (
    discrete_variation_bound,
    largest_draw,
    sample_discrete_gaussian,
)
from pate_fed.mechanisms.sampling import (
    GRID,
    keyed_stream,
    laplace_variation_bound,
    sample_laplace,
)
from tests.support.noise_sources import CountingSource

FALSE_ALARM = 1e-6
DRAWS = 40_000


def chances(sigma: float, reach: int) -> NDArray[np.float64]:
    """Pr[X = k] for k = -reach .. reach, normalized far beyond."""
    far = np.arange(-60 * reach, 60 * reach + 1)
    weights = np.exp(-(far**2) / (2 * sigma**2))
    weights /= weights.sum()
    return np.asarray(weights[np.abs(far) <= reach])


def law_fits(noise: NDArray[np.int64], sigma: float) -> bool:
    """Chi-squared over the whole numbers that are expected often enough, and the two tails."""
    reach = math.ceil(6 * sigma) + 2
    expected = chances(sigma, reach) * noise.size
    values = np.arange(-reach, reach + 1)
    inner = values[expected >= 20]
    low, high = inner.min(), inner.max()
    seen = np.bincount(np.clip(noise, low - 1, high + 1) - (low - 1), minlength=len(inner) + 2)
    middle = expected[expected >= 20]
    tail = (noise.size - middle.sum()) / 2
    wanted = np.concatenate([[tail], middle, [tail]])
    statistic = float(((seen - wanted) ** 2 / wanted).sum())
    return statistic <= chi2.isf(FALSE_ALARM, len(wanted) - 1)


@pytest.mark.parametrize("sigma", [1.0, 4.0, 17.3, 40.0, 200.0])
def test_noise_has_its_law_and_30_percent_off_is_noticed(sigma: float) -> None:
    source = keyed_stream(b"chi-squared", tag=f"gaussian {sigma}")
    right, small, large = (
        sample_discrete_gaussian(DRAWS, sigma=factor * sigma, random_bytes=source)
        for factor in (1.0, 0.7, 1.3)
    )
    assert law_fits(right, sigma)
    assert not law_fits(small, sigma)
    assert not law_fits(large, sigma)


@pytest.mark.slow
@pytest.mark.parametrize("sigma", [4.0, 10.0, 40.0, 100.0, 200.0])
def test_five_million_draws_have_their_law(sigma: float) -> None:
    noise = sample_discrete_gaussian(
        5_000_000, sigma=sigma, random_bytes=keyed_stream(b"five million", tag=str(sigma))
    )
    assert law_fits(noise, sigma)
    # So many draws tell a scale that is 1 % off.
    assert not law_fits(noise, 1.01 * sigma)


def test_blocks_join_without_a_seam_and_ask_for_little_at_a_time() -> None:
    draws = 3 * 2**15 + 7
    counting = CountingSource(keyed_stream(b"blocks", tag="t"))
    noise = sample_discrete_gaussian((draws,), sigma=40.0, random_bytes=counting)
    assert max(counting.calls) == 2**18
    assert sum(counting.calls) == 8 * draws
    # No word ties here, so the whole table on the same words gives the same noise.
    words = np.frombuffer(keyed_stream(b"blocks", tag="t")(8 * draws), dtype="<u8")
    table = module._table(40.0)
    expected = np.searchsorted(table.words, words, side="right") - table.largest
    assert np.array_equal(noise, expected)


def test_no_draw_exceeds_the_largest() -> None:
    assert largest_draw(3.0) == module._table(3.0).largest
    source = keyed_stream(b"largest", tag="t")
    noise = sample_discrete_gaussian(DRAWS, sigma=0.2, random_bytes=source)
    assert np.abs(noise).max() <= largest_draw(0.2)
    with pytest.raises(InvalidParameterError):
        largest_draw(0.0)


def test_large_noise_has_its_variance() -> None:
    noise = sample_discrete_gaussian(
        DRAWS, sigma=2000.0, random_bytes=keyed_stream(b"large", tag="t")
    )
    low, high = chi2.ppf([FALSE_ALARM / 2, 1 - FALSE_ALARM / 2], DRAWS)
    assert low <= (noise.astype(np.float64) ** 2).sum() / 2000.0**2 <= high
    assert not low <= (noise.astype(np.float64) ** 2).sum() / 1400.0**2 <= high


@pytest.mark.parametrize("sigma", [0.3, 7.2, 40.0])
def test_thresholds_are_the_distribution_function_to_128_bits(sigma: float) -> None:
    table = module._table(sigma)
    with mpmath.workdps(120):
        reach = 3 * table.largest
        exact = mpmath.mpf(sigma)

        def weight(k: int) -> mpmath.mpf:
            return mpmath.exp(-(mpmath.mpf(k) ** 2) / (2 * exact**2))

        total = mpmath.fsum(weight(k) for k in range(-reach, reach + 1))
        below = mpmath.fsum(weight(k) for k in range(-reach, -table.largest))
        for k, threshold in zip(
            range(-table.largest, table.largest), table.thresholds, strict=True
        ):
            below += weight(k)
            # Rounded down, and what lies beyond the table is below one unit.
            assert abs(below / total * 2**128 - threshold) <= 2
        assert (total - below - weight(table.largest)) / total < mpmath.mpf(2) ** -128


def test_a_word_that_equals_a_threshold_takes_64_bits_more() -> None:
    table = module._table(3.0)
    index = len(table.thresholds) // 2
    first, second = divmod(table.thresholds[index], 2**64)
    for low, more in ((second - 1, 0), (second, 1), (second + 1, 1)):
        replies = [first.to_bytes(8, "little"), low.to_bytes(8, "little")]
        source = CountingSource(lambda count, replies=replies: replies.pop(0))
        drawn = sample_discrete_gaussian(1, sigma=3.0, random_bytes=source)
        # u < c_k gives k, u >= c_k the next.
        assert drawn.tolist() == [index + more - table.largest]
        assert source.calls == [8, 8]


def test_the_extreme_words_give_the_extreme_values() -> None:
    """In the far tail many thresholds share their first 64 bits: all of them are ties."""
    largest = module._table(3.0).largest
    words = b"\x00" * 8 + b"\xff" * 8
    source = CountingSource(lambda count: words if count == 16 else b"\x00" * count)
    drawn = sample_discrete_gaussian(2, sigma=3.0, random_bytes=source)
    table = module._table(3.0)
    assert drawn[0] == next(k for k, c in enumerate(table.thresholds) if c > 0) - largest
    assert drawn[0] <= -39  # 0.5^128 lies at 13.1 sigma
    assert 20 < drawn[1] <= largest  # 0.5^64 lies at 9.2 sigma
    assert source.calls == [16, 16]


def test_the_guide_decides_as_the_whole_table_does() -> None:
    table = module._table(40.0)
    words = np.frombuffer(keyed_stream(b"guide", tag="t")(80_000), dtype="<u8")
    drawn = sample_discrete_gaussian(
        10_000, sigma=40.0, random_bytes=lambda count: words.astype("<u8").tobytes()
    )
    expected = np.searchsorted(table.words, words, side="right") - table.largest
    assert np.array_equal(drawn, expected)


@pytest.mark.slow
def test_the_distance_to_the_ideal_law_is_stated_and_tiny() -> None:
    assert discrete_variation_bound(40.0) < 1e-35
    assert discrete_variation_bound(30_000.0) < 1e-32
    assert discrete_variation_bound(8.0) < discrete_variation_bound(80.0)


def test_the_same_bytes_give_the_same_noise_for_ever() -> None:
    gaussian = sample_discrete_gaussian(
        (2, 3), sigma=8.0, random_bytes=keyed_stream(b"seed", tag="discrete")
    )
    assert gaussian.dtype == np.int64
    assert gaussian.tolist() == [[9, -9, 2], [0, -11, 2]]


def test_scales_and_sources_out_of_range_are_refused() -> None:
    for sigma in (0.0, -1.0, math.inf, math.nan, 1e6):
        with pytest.raises(InvalidParameterError):
            sample_discrete_gaussian(1, sigma=sigma, random_bytes=bytes)
    for given_bytes in (b"", bytes(15), bytes(17)):
        with pytest.raises(InvalidParameterError):
            sample_discrete_gaussian(
                2, sigma=3.0, random_bytes=lambda count, reply=given_bytes: reply
            )
    assert sample_discrete_gaussian((0, 3), sigma=3.0, random_bytes=bytes).shape == (0, 3)


def laplace_shape_fits(noise: NDArray[np.float64], gamma: float) -> bool:
    """Chi-squared over 40 cells of equal chance, false-alarm rate 1e-6."""
    chance = np.where(noise < 0, np.exp(gamma * noise) / 2, 1 - np.exp(-gamma * noise) / 2)
    seen = np.bincount(np.minimum((chance * 40).astype(np.int64), 39), minlength=40)
    expected = noise.size / 40
    return bool(((seen - expected) ** 2 / expected).sum() <= chi2.isf(FALSE_ALARM, 39))


@pytest.mark.parametrize("gamma", [0.02, 0.3])
def test_laplace_noise_has_its_scale_and_30_percent_off_is_noticed(gamma: float) -> None:
    source = keyed_stream(b"laplace", tag=str(gamma))
    noise = sample_laplace(DRAWS, gamma=gamma, random_bytes=source)
    assert laplace_shape_fits(noise, gamma)
    assert not laplace_shape_fits(
        sample_laplace(DRAWS, gamma=gamma / 0.7, random_bytes=source), gamma
    )
    assert not laplace_shape_fits(
        sample_laplace(DRAWS, gamma=gamma / 1.3, random_bytes=source), gamma
    )


def test_laplace_noise_is_on_the_grid_and_close_to_the_exact_inverse() -> None:
    generator = np.random.default_rng(7)
    words = generator.integers(0, 2**64, 300, dtype=np.uint64) >> generator.integers(
        0, 63, 300, dtype=np.uint64
    )
    gamma = 2.0**-27  # so coarse a grid as 1/64 then resolves 2^-33 of the scale
    noise = sample_laplace(
        words.size, gamma=gamma, random_bytes=lambda count: words.astype("<u8").tobytes()
    )
    assert np.array_equal(noise / GRID, np.rint(noise / GRID))
    with mpmath.workdps(40):
        for word, drawn in zip(words, noise, strict=True):
            tail = (int(word) % 2**63 + mpmath.mpf(1) / 2) / mpmath.mpf(2) ** 63
            z = -mpmath.log(tail) * (1 if int(word) >> 63 else -1)
            # The error that `laplace_variation_bound` rests on.
            slack = (1.2e-16 + 4.5e-16 * abs(float(z))) / gamma + GRID / 2
            assert abs(drawn - float(z) / gamma) <= slack * (1 + 1e-6)


def test_the_distance_to_ideal_laplace_noise_is_small() -> None:
    assert laplace_variation_bound(0.05) < 1e-12
    assert laplace_variation_bound(0.05) > laplace_variation_bound(0.5)


@pytest.mark.parametrize("gamma", [0.0, -1.0, math.inf, math.nan, 2.0**-29])
def test_gamma_out_of_range_is_refused(gamma: float) -> None:
    with pytest.raises(InvalidParameterError):
        sample_laplace(1, gamma=gamma, random_bytes=bytes)
