"""Noise at the parties: what each share holds, what remains without colluders, row sums.

Statistical tests have fixed seeds; false-alarm rates are those of a fresh seed.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import chi2, norm

from pate_fed.accounting.distributed_law import distributed_row_rdp
from pate_fed.errors import InvalidParameterError, RowSumError
from pate_fed.mechanisms.discrete_sampling import largest_draw
from pate_fed.mechanisms.noise_shares import DistributedNoise
from pate_fed.mechanisms.sampling import RandomBytes, keyed_stream
from pate_fed.opened_sums import open_noisy_sum
from pate_fed.votes import VoteHistogram
from tests.support.noise_sources import CountingSource
from tests.support.summed_noise import exact_row_price, summed_mass

FALSE_ALARM = 1e-6
NOISE = DistributedNoise(sigma=6.0, parties=9, colluders=2, dropouts=1)


def source(tag: str) -> RandomBytes:
    return keyed_stream(b"noise shares", tag=tag)


def drawn_shares(
    noise: DistributedNoise, queries: int, classes: int, tag: str
) -> NDArray[np.int64]:
    """The shares of all parties; shape (parties, queries, classes)."""
    stream = source(tag)
    shares = [noise.draw(queries, classes, random_bytes=stream) for _ in range(noise.parties)]
    return np.array([share.counts for share in shares])


def test_each_party_adds_its_part_of_the_variance() -> None:
    assert NOISE.shares == 6
    assert NOISE.share_sigma == pytest.approx(6 / math.sqrt(6), rel=1e-15)
    assert NOISE.sum_sigma(9) == pytest.approx(6 * math.sqrt(9 / 6), rel=1e-15)
    assert NOISE.variation < 1e-35


@pytest.mark.parametrize(
    ("colluders", "dropouts"), [pytest.param(1, 0, id="additive"), pytest.param(3, 2, id="masked")]
)
def test_what_remains_without_colluders_and_the_lost_has_the_promised_variance(
    colluders: int, dropouts: int
) -> None:
    """The worst case: all colluders take their shares off, all that may be lost are lost."""
    noise = DistributedNoise(5.0, 10, colluders, dropouts)
    shares = drawn_shares(noise, 400, 25, f"colluders {colluders}")
    opened = shares[dropouts:].sum(axis=0)
    remaining = opened - shares[dropouts : dropouts + colluders].sum(axis=0)
    squares = float((remaining.astype(np.float64) ** 2).sum())
    draws = remaining.size
    # A chi-squared law but for discreteness; false-alarm rate 1e-6.
    least, most = chi2.ppf([FALSE_ALARM / 2, 1 - FALSE_ALARM / 2], draws)
    assert least <= squares / noise.sigma**2 <= most
    # One more colluder than was allowed for is noticed, and so are shares 30 % too narrow.
    fewer = remaining - shares[-1]
    assert float((fewer.astype(np.float64) ** 2).sum()) / noise.sigma**2 < least
    assert 0.7**2 * most < least


def test_the_accountant_prices_what_is_drawn() -> None:
    """Divergence of order 2, by a histogram of draws, against the accountant's number."""
    noise = DistributedNoise(2.0, 6, 1, 1)
    shares = drawn_shares(noise, 40_000, 12, "empirical")
    remaining = shares[noise.colluders + noise.dropouts :].sum(axis=0).ravel()
    assert noise.shares == 4
    reach = 7
    seen = np.bincount(np.clip(remaining, -reach - 1, reach + 1) + reach + 1) / remaining.size
    law, moved = seen[2:-1], seen[1:-2]
    estimate = math.log((law**2 / moved).sum())
    # The same sum over the exact law: what lies beyond is left out of both.
    mass = summed_mass(2.0, 4)
    middle = len(mass) // 2
    exact = mass[middle - reach - 1 : middle + reach + 2]
    expected = math.log((exact[1:-1] ** 2 / exact[:-2]).sum())
    price = distributed_row_rdp([2.0], sigma=2.0, shares=4)[0] / 2
    assert expected == pytest.approx(price, rel=0.01)
    # 480,000 draws: a standard error of about 1 %.
    assert estimate == pytest.approx(expected, rel=0.05)
    # Noise that is 30 % too narrow costs twice as much, and would be seen.
    assert exact_row_price(1.4, 1, moved=1, order=2.0) / 2 > 1.9 * estimate


def test_shares_are_drawn_afresh_and_fit_the_votes() -> None:
    counting = CountingSource(source("fresh"))
    first = NOISE.draw(4, 3, random_bytes=counting)
    second = NOISE.draw(4, 3, random_bytes=counting)
    assert sum(counting.calls) == 2 * 4 * 3 * 8
    assert not np.array_equal(first.counts, second.counts)
    votes = VoteHistogram(np.full((4, 3), 2))
    assert np.array_equal(first.add_to(votes).counts, 2 + first.counts)


def test_an_honest_round_opens_to_votes_plus_everybodys_noise() -> None:
    """Through the ring: negative entries wrap and come back."""
    stream = source("round")
    votes = [VoteHistogram(np.array([[3, 2], [0, 5]])) for _ in range(NOISE.parties)]
    shares = [NOISE.draw(2, 2, random_bytes=stream) for _ in votes]
    sent = [share.add_to(own).counts for share, own in zip(shares, votes, strict=True)]
    ring = np.sum([counts.astype(np.uint32) for counts in sent], axis=0, dtype=np.uint32)
    opened = open_noisy_sum(
        ring.view(np.int32).astype(np.int64).ravel(),
        queries=2,
        classes=2,
        total_votes=45,
        sigma=NOISE.sum_sigma(9),
        row_sum_bound=NOISE.row_sum_bound(2, 2, senders=9),
    )
    clean = sum(own.counts for own in votes)
    assert np.array_equal(opened.counts - clean, sum(share.counts for share in shares))


# Row sums ---------------------------------------------------------------------------------------


def test_row_sums_raise_no_more_alarms_than_stated() -> None:
    """2,000 batches at a rate of 5 % each, where the bound is not far below its rate."""
    queries, classes, rate, batches = 20, 4, 0.05, 2_000
    noise = DistributedNoise(3.0, 5, 1, 1)
    bound = noise.row_sum_bound(queries, classes, senders=4, false_alarm=rate)
    stream = source("row sums")
    sums = sum(
        noise.draw(batches * queries, classes, random_bytes=stream).counts.sum(axis=1)
        for _ in range(4)
    )
    worst = np.abs(np.reshape(sums, (batches, queries))).max(axis=1)
    alarms = int((worst > bound).sum())
    # Fewer than the rate, as the bound is one of tails; but of its size.
    assert alarms <= rate * batches
    tighter = math.floor(bound * 0.7)
    assert int((worst > tighter).sum()) > rate * batches


@pytest.mark.parametrize(("parties", "queries", "classes"), [(5, 1, 2), (12, 300, 3)])
def test_the_bound_holds_for_the_exact_law_and_is_not_loose(
    parties: int, queries: int, classes: int
) -> None:
    noise = DistributedNoise(math.sqrt(parties - 1) * 1.2, parties, 1, 0)
    bound = noise.row_sum_bound(queries, classes, senders=parties)
    row_sigma = noise.sum_sigma(parties) * math.sqrt(classes)
    mass = summed_mass(row_sigma, parties * classes, reach=14.0)
    beyond = 2 * mass[len(mass) // 2 + bound + 1 :].sum()
    assert queries * beyond <= 1e-9
    assert bound <= 1.15 * row_sigma * norm.isf(1e-9 / queries / 2)


def test_an_accident_voids_the_batch() -> None:
    """A hospital of 40 teachers counted twice, or left out, is beyond all noise."""
    noise = DistributedNoise(4.0, 10, 1, 0)
    settings = {
        "queries": 3,
        "classes": 2,
        "total_votes": 400,
        "sigma": noise.sum_sigma(10),
        "row_sum_bound": noise.row_sum_bound(3, 2, senders=10),
    }
    assert settings["row_sum_bound"] < 45
    honest = np.array([200, 200, 410, -10, 190, 220])
    assert open_noisy_sum(honest, **settings).counts.tolist()[1] == [410, -10]
    for wrong in (60, -60, 2**30):
        with pytest.raises(RowSumError):
            open_noisy_sum(honest + np.array([0, 0, wrong, 0, 0, 0]), **settings)


# Ranges -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changed",
    [
        {"sigma": 0.0},
        {"sigma": math.nan},
        {"sigma": 2.4},
        {"parties": 2},
        {"colluders": 0},
        {"dropouts": -1},
        {"colluders": 6, "dropouts": 3},
        {"colluders": 1.0},
        {"parties": True},
    ],
    ids=str,
)
def test_noise_out_of_range_is_refused(changed: dict[str, float]) -> None:
    good = {"sigma": 2.5, "parties": 9, "colluders": 2, "dropouts": 1}
    assert DistributedNoise(**good).shares == 6
    with pytest.raises(InvalidParameterError):
        DistributedNoise(**{**good, **changed})


def test_a_share_narrower_than_one_vote_names_the_sigma_it_needs() -> None:
    with pytest.raises(InvalidParameterError, match=r"9\.9499"):
        DistributedNoise(9.0, 100, 1, 0)


@given(senders=st.integers(0, 12))
def test_only_so_many_can_have_sent(senders: int) -> None:
    if 8 <= senders <= 9:
        assert NOISE.sum_sigma(senders) > NOISE.sigma
        return
    with pytest.raises(InvalidParameterError):
        NOISE.sum_sigma(senders)
    with pytest.raises(InvalidParameterError):
        NOISE.row_sum_bound(1, 2, senders=senders)


def test_no_sum_can_leave_the_ring() -> None:
    NOISE.require_room(2**30)
    most = 9 * largest_draw(NOISE.share_sigma)
    NOISE.require_room(2**31 - 1 - most)
    with pytest.raises(InvalidParameterError):
        NOISE.require_room(2**31 - most)


@pytest.mark.parametrize(("queries", "classes"), [(0, 2), (2, 0), (-1, 2)])
def test_an_empty_batch_has_no_row_sum_bound(queries: int, classes: int) -> None:
    with pytest.raises(InvalidParameterError):
        NOISE.row_sum_bound(queries, classes, senders=9)
