"""The preview of the two-phase check: what a threshold lets through, against draws."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import ndtr

from pate_fed.errors import InvalidParameterError
from pate_fed.mechanisms.noise_shares import DistributedNoise
from pate_fed.mechanisms.pass_chances import (
    pass_chances,
    preview_two_phases,
    vote_threshold_for,
)
from pate_fed.mechanisms.preview import preview_confident, simulated_votes
from pate_fed.mechanisms.sampling import keyed_stream
from tests.support.summed_noise import fail_chance, summed_mass

FLAT = [25] * 10
NOISE = DistributedNoise(150 * math.sqrt(19 / 20), 20, 1, 0)
"""All 20 parties together: sigma 150."""


def test_the_check_is_biased_upward_by_the_largest_of_ten() -> None:
    """PROTOCOL section 3: a flat 250-vote row with T = 200 passes .73 of the time, not .12."""
    assert NOISE.sum_sigma(20) == pytest.approx(150, rel=1e-12)
    chance = pass_chances([FLAT], vote_threshold=200, noise=NOISE)[0]
    assert round(float(chance), 2) == 0.73
    # Noise on the largest count alone, as with noise at the coordinator.
    assert round(float(ndtr((25 - 200) / 150)), 2) == 0.12
    # Ten independent continuous draws give the same, but for half a vote.
    assert chance == pytest.approx(1 - ndtr((199.5 - 25) / 150) ** 10, abs=1e-5)


def test_the_chance_is_that_of_draws() -> None:
    noise = DistributedNoise(12.0, 5, 1, 0)
    rows = np.array([[40, 5, 5], [20, 15, 15]])
    stream = keyed_stream(b"pass", tag="draws")
    draws = 60_000
    total = sum(noise.draw(draws, 3, random_bytes=stream).counts for _ in range(5))
    for row in rows:
        seen = ((row + total).max(axis=1) >= 35).mean()
        chance = pass_chances([row], vote_threshold=34.5, noise=noise)[0]
        # 4.9 standard errors: false-alarm rate 1e-6; 30 % less noise is off by more.
        assert abs(seen - chance) <= 4.9 * math.sqrt(chance * (1 - chance) / draws)
        narrow = DistributedNoise(8.4, 5, 1, 0)
        off = pass_chances([row], vote_threshold=34.5, noise=narrow)[0]
        assert abs(seen - off) > 4.9 * math.sqrt(off * (1 - off) / draws)


def test_fewer_senders_mean_less_noise_and_the_exact_law() -> None:
    noise = DistributedNoise(3.0, 7, 2, 2)
    for senders in (5, 7):
        mass = summed_mass(noise.sum_sigma(senders), senders)
        chance = pass_chances([[4, 1]], vote_threshold=8, noise=noise, senders=senders)[0]
        assert chance == pytest.approx(1 - fail_chance(np.array([4, 1]), 8, mass), rel=1e-9)
    with pytest.raises(InvalidParameterError):
        pass_chances([[4, 1]], vote_threshold=8, noise=noise, senders=4)


def test_a_threshold_is_the_lowest_that_holds_its_promise() -> None:
    for chance in (0.5, 0.12, 1e-4):
        threshold = vote_threshold_for(FLAT, chance=chance, noise=NOISE)
        at, below = pass_chances([FLAT], vote_threshold=threshold, noise=NOISE)[0], None
        below = pass_chances([FLAT], vote_threshold=threshold - 1, noise=NOISE)[0]
        assert at <= chance < below
    # To refuse as often as with noise at the coordinator takes 361, not 200.
    assert vote_threshold_for(FLAT, chance=0.12, noise=NOISE) == 361


def test_a_preview_of_two_phases_answers_more_than_of_one_check() -> None:
    votes = simulated_votes(votes=200, classes=10)
    first = DistributedNoise(80 * math.sqrt(9 / 10), 10, 1, 0)
    second = DistributedNoise(16 * math.sqrt(9 / 10), 10, 1, 0)
    settings = {"vote_threshold": 120.0}
    two = preview_two_phases(votes, first=first, second=second, **settings)
    one = preview_confident(votes, sigma1=80.0, sigma2=16.0, **settings)
    assert two.answer_rate > one.answer_rate + 0.1
    assert two.accuracy < one.accuracy
    # With hardly any noise both are the same check.
    still = DistributedNoise(3.0, 10, 1, 0)
    two = preview_two_phases(votes, first=still, second=still, **settings)
    one = preview_confident(votes, sigma1=3.2, sigma2=3.2, **settings)
    assert two.answer_rate == pytest.approx(one.answer_rate, abs=0.01)
    assert two.accuracy == pytest.approx(one.accuracy, abs=0.01)


def test_student_offsets_may_make_rows_negative() -> None:
    noise = DistributedNoise(4.0, 5, 1, 0)
    low, high = pass_chances([[-30, -20], [30, -20]], vote_threshold=0, noise=noise)
    assert low < 1e-4
    assert high > 0.999


@pytest.mark.parametrize("counts", [[[0.5, 1.0]], [1, 2], [[]]], ids=str)
def test_rows_that_are_no_counts_are_refused(counts: list[object]) -> None:
    with pytest.raises(InvalidParameterError):
        pass_chances(counts, vote_threshold=3, noise=NOISE)
    for threshold in (math.nan, math.inf):
        with pytest.raises(InvalidParameterError):
            pass_chances([[1, 2]], vote_threshold=threshold, noise=NOISE)
    for chance in (0.0, 1.0):
        with pytest.raises(InvalidParameterError):
            vote_threshold_for(FLAT, chance=chance, noise=NOISE)
