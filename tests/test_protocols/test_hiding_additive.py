"""What the coordinator and any n - 2 parties see of the last two: nothing beyond their sum.

Real parties make the keys and the y's, n = 5; the colluders' own roots say which streams come off.
What is left of two honest y's is held against their votes by chi-square, in the 8-bit ring (and in
the 16-bit one, by its bytes), over 2^16 words of one run for each of the ten pairs, and over many
runs with fresh keys. Each test has a false-alarm rate of 10^-6. One colluder more, and streams that
are broken on purpose, must be caught by the same tests.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from itertools import combinations

import numpy as np
import pytest
from numpy.typing import NDArray

from protocols import wire
from protocols.additive import AdditiveSum
from protocols.messages import MaskedVector
from protocols.prg import Keystream, ctr_keystream, expand
from protocols.ring import Ring, Words
from tests.support.broken_streams import seven_bits, sometimes_clear
from tests.support.chi_square import FALSE_ALARMS, independence, uniformity
from tests.support.markers import more, sampled
from tests.support.rounds import MemoryRun

N, RUNS = 5, 2**16
PAIRS = list(combinations(range(N), 2))
pairs = pytest.mark.parametrize("honest", PAIRS, ids=str)
Votes = NDArray[np.int64]


def votes(seat: int) -> Votes:
    """Counts as votes are: small and skewed, so that a mask that leaks shows."""
    return np.random.default_rng(seat).binomial(100, 0.2, size=RUNS).astype(np.int64)


class Seen:
    """One run of 2^16 words, and what colluders can take off its y's."""

    def __init__(self, *, bits: int = 8, keystream: Keystream = ctr_keystream) -> None:
        self.run = MemoryRun(N, form=lambda: AdditiveSum(Ring(bits), keystream=keystream))
        self.run.set_up()
        plan = self.run.open_plan(RUNS)
        self._digest = wire.decode(plan).digest
        self._seats = self.run.coordinator.seats
        self.ys: list[Words] = []
        for seat, party in enumerate(self._seats):
            self.run.to_party("plan", party, plan)
            (frame,) = self.run.parties[party].contribute(votes(seat))
            body = wire.expect(wire.decode(frame), MaskedVector).body
            self.ys.append(self.run.form.ring.from_bytes(body))

    def left(self, seat: int, colluders: Collection[int]) -> Words:
        """A seat's y without the streams that it shares with colluders."""
        y = self.ys[seat].copy()
        for peer in colluders:
            roots = self.run.parties[self._seats[peer]].roots
            key = roots.keys_for(self._digest)[self._seats[seat]]
            form = self.run.form
            stream = expand(key, RUNS, ring=form.ring, keystream=form.keystream)
            y = y - stream if peer > seat else y + stream
        return y


def p_values(left: Words, first: Votes, second: Votes) -> dict[str, float]:
    """Of what is left of one of two y's, by its highest and lowest byte."""
    upper = (left >> (8 * (left.itemsize - 1))).astype(np.uint8)
    lower = (left & 0xFF).astype(np.uint8)
    found = {"it is uniform": uniformity(upper)}
    for name, known in (("own votes", first), ("the other's", second), ("sum", first + second)):
        found[f"it is independent of: {name}"] = independence(known.astype(np.uint8), upper)
        found[f"its lower byte is independent of: {name}"] = independence(
            known.astype(np.uint8), lower
        )
    found["it is independent of itself a block before"] = independence(upper[:-16] >> 5, upper[16:])
    return found


def others(honest: Collection[int]) -> list[int]:
    return [seat for seat in range(N) if seat not in honest]


@pytest.fixture(scope="module", params=[8, 16], ids=["8 bits", "16 bits"])
def seen(request: pytest.FixtureRequest) -> Seen:
    return Seen(bits=request.param)


@sampled("honest", "seen", cases=2)
@pairs
def test_coordinator_and_any_three_of_five_see_nothing_but_the_sum_of_two(
    honest: tuple[int, int], seen: Seen
) -> None:
    first, second = honest
    left = [seen.left(seat, others(honest)) for seat in honest]
    for words, own, other in zip(left, honest, reversed(honest), strict=True):
        for claim, p_value in p_values(words, votes(own), votes(other)).items():
            assert p_value > FALSE_ALARMS, claim
    opened = (left[0] + left[1]).astype(np.uint8)
    assert np.array_equal(opened, (votes(first) + votes(second)).astype(np.uint8))


@sampled("alone")
@pytest.mark.parametrize("alone", range(N))
def test_with_one_colluder_more_the_last_party_is_read(alone: int) -> None:
    """n - 1 that collude: no sum protects the last one, and the tests see it."""
    seen = Seen()
    left = seen.left(alone, others([alone]))
    assert np.array_equal(left, votes(alone).astype(np.uint8))
    assert min(p_values(left, votes(alone), votes(alone)).values()) < FALSE_ALARMS


# Many runs with fresh keys -----------------------------------------------------------------------


def over_runs(number: int, *, keystream: Keystream = ctr_keystream) -> tuple[Words, Votes]:
    """What is left of seat 1's one word in each of many runs, and how a sum of 40 was split.

    Seats 1 and 3 are honest; whose streams come off again is what three colluders know.
    """
    form = AdditiveSum(Ring(8), keystream=keystream)
    split = np.random.default_rng(9).choice([0, 20, 40], size=number).astype(np.int64)
    left = np.empty(number, dtype=form.ring.word_type)
    for run in range(number):
        keys = {
            peer: hashlib.sha256(b"%d %d" % (run, peer)).digest() for peer in range(N) if peer != 1
        }
        y = form.shard(split[run : run + 1], seat=1, pair_keys=keys)
        for peer in (0, 2, 4):
            stream = expand(keys[peer], 1, ring=form.ring, keystream=keystream)
            y = y - stream if peer > 1 else y + stream
        left[run] = y[0]
    return left, split


@pytest.mark.slow
@pytest.mark.parametrize("number", [2**14, more(2**16)])
def test_over_many_runs_no_split_of_a_sum_is_told_from_another(number: int) -> None:
    """Found 99 times of 100: a byte with w = 0.11, or one that follows the split with w = 0.13.

    Cohen's w is the root of the mean squared relative distance of the chances from what they ought
    to be. With four times as many runs it is half.
    """
    left, split = over_runs(number)
    for claim, p_value in p_values(left, split, 40 - split).items():
        assert p_value > FALSE_ALARMS, claim


# Broken streams are caught by the same tests -----------------------------------------------------


@sampled("honest")
@pytest.mark.parametrize("keystream", [seven_bits, sometimes_clear])
@pytest.mark.parametrize("honest", [(0, 1), (1, 3), (3, 4)], ids=str)
def test_a_broken_stream_is_caught_in_one_run(
    keystream: Keystream, honest: tuple[int, int]
) -> None:
    seen = Seen(keystream=keystream)
    left = seen.left(honest[0], others(honest))
    assert min(p_values(left, votes(honest[0]), votes(honest[1])).values()) < FALSE_ALARMS


@pytest.mark.slow
def test_a_broken_stream_is_caught_over_many_runs() -> None:
    """Its w is near 1: half of all bytes never come. 2^12 runs find 0.26 as surely."""
    left, split = over_runs(2**12, keystream=seven_bits)
    assert min(p_values(left, split, 40 - split).values()) < FALSE_ALARMS
