"""The noisy sum of verified votes: what opens, and what neither aggregator sees."""

from __future__ import annotations

import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from pate_fed.mechanisms.discrete_sampling import sample_discrete_gaussian
from protocols.errors import InvalidVectorError
from protocols.prg import expand
from protocols.ring import Ring
from protocols.values import digest_of_values
from protocols.verified import (
    VoteLayout,
    VoteShare,
    make_coin,
    noisy_share,
    open_noisy_sum,
    prove,
)
from protocols.verified.vote_sum import MOST_NOISE, noise_bytes

CONTEXT = b"c" * 32
Part = tuple[VoteLayout, VoteShare]


def votes(layout: VoteLayout, rng: np.random.Generator) -> NDArray[np.int64]:
    chances = np.full(layout.columns, 1 / layout.columns)
    return rng.multinomial(layout.votes, chances, size=layout.queries).astype(np.int64)


def shared(layout: VoteLayout, rows: NDArray[np.int64]) -> tuple[Part, Part]:
    sent = prove(layout, rows, context=CONTEXT, random_bytes=os.urandom)
    return (
        (layout, VoteShare.of_coordinator(layout, sent.coordinator, context=CONTEXT)),
        (layout, VoteShare.of_tally(layout, sent.tally, context=CONTEXT)),
    )


def batch_of(
    numbers: list[int], *, queries: int, columns: int, seed: int = 0
) -> tuple[list[Part], list[Part], NDArray[np.int64]]:
    """Shares of some hospitals at both aggregators, and their sum."""
    rng, first, second = np.random.default_rng(seed), [], []
    total = np.zeros((queries, columns), dtype=np.int64)
    for number in numbers:
        layout = VoteLayout.of(queries=queries, columns=columns, votes=number)
        rows = votes(layout, rng)
        total += rows
        for side, part in zip((first, second), shared(layout, rows), strict=True):
            side.append(part)
    return first, second, total


class TestSum:
    @given(
        st.lists(st.integers(1, 1000), min_size=1, max_size=5),
        st.integers(1, 6),
        st.integers(2, 5),
        st.integers(0, 2**32),
    )
    @settings(max_examples=15, deadline=None)
    def test_it_is_the_sum_of_whole_numbers_and_both_noises(
        self, numbers: list[int], queries: int, columns: int, seed: int
    ) -> None:
        first, second, total = batch_of(numbers, queries=queries, columns=columns, seed=seed)
        noises = np.random.default_rng(seed).integers(-5000, 5000, size=(2, queries, columns))
        opened = open_noisy_sum(noisy_share(first, noises[0]), noisy_share(second, noises[1]))
        assert (opened == total + noises.sum(axis=0)).all()

    @pytest.mark.parametrize("sign", [1, -1])
    def test_the_largest_noise_does_not_wrap_around(self, sign: int) -> None:
        first, second, total = batch_of([1000] * 3, queries=2, columns=2)
        noise = np.full((2, 2), sign * (MOST_NOISE - 1))
        opened = open_noisy_sum(noisy_share(first, noise), noisy_share(second, noise))
        assert (opened == total + 2 * noise).all()

    def test_one_share_without_the_other_is_uniform(self) -> None:
        """Each of 16 parts of the field as often, whatever the votes: 15 degrees of freedom."""
        layout = VoteLayout.of(queries=400, columns=2, votes=1)
        for column in range(2):
            rows = np.zeros((400, 2), dtype=np.int64)
            rows[:, column] = 1
            counts = np.zeros(16)
            for _ in range(10):
                first, _ = shared(layout, rows)
                share = noisy_share([first], np.zeros((400, 2), dtype=np.int64))
                counts += np.bincount((share >> np.uint64(27)).ravel().astype(int), minlength=16)
            assert ((counts - 500) ** 2 / 500).sum() < 50  # 1 in 100,000

    @pytest.mark.slow
    def test_each_aggregator_adds_the_whole_noise(self) -> None:
        """What opens varies by sqrt(2) sigma; for an aggregator, which knows its own, by sigma."""
        sigma, shape = 40.0, (20_000, 2)
        layout = VoteLayout.of(queries=shape[0], columns=shape[1], votes=3)
        rows = votes(layout, np.random.default_rng(1))
        first, second = shared(layout, rows)
        own, other = (
            sample_discrete_gaussian(shape, sigma=sigma, random_bytes=os.urandom) for _ in range(2)
        )
        opened = open_noisy_sum(noisy_share([first], own), noisy_share([second], other))
        error = 5 / (2 * opened.size) ** 0.5  # five standard errors of a standard deviation
        assert (opened - rows).std() == pytest.approx(2**0.5 * sigma, rel=error)
        assert (opened - rows - own).std() == pytest.approx(sigma, rel=error)

    @pytest.mark.parametrize(
        "noise",
        [np.zeros((2, 3), int), np.full((2, 2), MOST_NOISE), np.full((2, 2), -MOST_NOISE)],
        ids=["of another shape", "too large", "too small"],
    )
    def test_noise_that_does_not_fit_is_refused(self, noise: NDArray[np.int64]) -> None:
        first, _, _ = batch_of([3], queries=2, columns=2)
        with pytest.raises(InvalidVectorError):
            noisy_share(first, noise)

    def test_the_sum_of_nobody_is_refused(self) -> None:
        with pytest.raises(InvalidVectorError):
            noisy_share([], np.zeros((2, 2), dtype=np.int64))


FACTS = {
    "plan_digest": b"p" * 32,
    "headers": [b"1" * 32, b"2" * 32],
    "coordinator_nonce": b"a" * 32,
    "tally_nonce": b"b" * 32,
}


NOISE = {
    "seed": b"s" * 32,
    "plan_digest": b"p" * 32,
    "aggregator": b"a" * 32,
    "coin": b"c" * 32,
}


class TestNoise:
    @pytest.mark.parametrize("name", NOISE)
    def test_it_follows_from_seed_plan_aggregator_and_coin(self, name: str) -> None:
        drawn = noise_bytes(**NOISE)(4000)
        assert noise_bytes(**NOISE)(4000) == drawn
        assert noise_bytes(**{**NOISE, name: b"x" * 32})(4000) != drawn

    def test_it_is_the_stream_of_the_formula_from_call_to_call(self) -> None:
        values = [NOISE[name] for name in ("plan_digest", "aggregator", "coin", "seed")]
        key = digest_of_values("aggregator's noise", values)
        draw = noise_bytes(**NOISE)
        drawn = b"".join(draw(count) for count in (1, 0, 7, 8000, 16))
        assert drawn == expand(key, 2006, ring=Ring()).astype("<u4").tobytes()


class TestCoin:
    @pytest.mark.parametrize(
        "change",
        [
            {"plan_digest": b"q" * 32},
            {"headers": [b"2" * 32, b"1" * 32]},
            {"headers": [b"1" * 32]},
            {"coordinator_nonce": b"b" * 32},
            {"tally_nonce": b"a" * 32},
            {"coordinator_nonce": b"b" * 32, "tally_nonce": b"a" * 32},
        ],
        ids=str,
    )
    def test_it_depends_on_the_plan_the_list_and_both_nonces(self, change: dict[str, str]) -> None:
        coin = make_coin(**FACTS)  # type: ignore[arg-type]
        assert len(coin) == 32
        assert make_coin(**FACTS) == coin  # type: ignore[arg-type]
        assert make_coin(**{**FACTS, **change}) != coin  # type: ignore[arg-type]

    @pytest.mark.parametrize("name", ["coordinator_nonce", "tally_nonce"])
    def test_a_short_nonce_is_refused(self, name: str) -> None:
        with pytest.raises(InvalidVectorError):
            make_coin(**{**FACTS, name: b"short"})  # type: ignore[arg-type]
