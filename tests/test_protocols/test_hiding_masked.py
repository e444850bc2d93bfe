"""What a coordinator that cheats sees of one y, with c parties beside it and with one more.

The real parties decide which streams it can take off; what is left of the victim's y is held
against the victim's votes by chi-square, in the 8-bit ring (and in the 16-bit one, by the upper
byte), over 2^16 words of one run and over many runs with fresh keys. Each test has a false-alarm
rate of 10^-6. A stream that is broken on purpose, and one colluder too many, must be caught.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
from numpy.typing import NDArray

from protocols.fields import DIGEST_BYTES
from protocols.masked import MaskedSum
from protocols.prg import Keystream, ctr_keystream, expand
from protocols.ring import Ring, Words
from protocols.secure_sum import SecureSum
from protocols.shamir import Shamir, elements_to_secrets, split_shares
from tests.support.broken_streams import SpoiledStream, seven_bits, sometimes_clear
from tests.support.cheating import Cheat
from tests.support.chi_square import FALSE_ALARMS, independence, uniformity
from tests.support.markers import more, sampled

N, RUNS = 5, 2**16
"""t = 4 and c = 2."""
VICTIM = 2
COLLUDERS = {2: (0, 4), 3: (0, 1, 4)}
Votes = NDArray[np.int64]
STORIES = [
    pytest.param(stories, id="".join("s" if survived else "d" for survived in stories))
    for stories in product((True, False), repeat=3)
]
"""What the three honest parties are told: that the victim survived, or that it dropped out."""
DROPPED = (False, True, False)
"""The two others agree that it dropped out, so that its self mask alone stays closed."""


def votes(seed: int = 1) -> Votes:
    """Counts as votes are: small and skewed, so that a mask that leaks shows."""
    return np.random.default_rng(seed).binomial(100, 0.2, size=RUNS).astype(np.int64)


def form_of(bits: int, keystream: Keystream = ctr_keystream) -> Callable[[], SecureSum]:
    return lambda: MaskedSum(Ring(bits), keystream=keystream)


def told(
    stories: tuple[bool, ...], *, colluders: tuple[int, ...], form: Callable[[], SecureSum]
) -> Cheat:
    """A batch in which honest parties were told two stories."""
    vectors = [votes(seat) for seat in range(N)]
    cheat = Cheat(vectors, form=form, colluders=colluders)
    cheat.tell_two_stories(VICTIM, dict(zip(cheat.honest, stories, strict=True)))
    return cheat


def p_values(residual: Words, secret: Votes) -> dict[str, float]:
    """Of what is left of a y, by its upper byte."""
    upper = (residual >> (8 * (residual.itemsize - 1))).astype(np.uint8)
    lower = (residual & 0xFF).astype(np.uint8)
    small = secret.astype(np.uint8)
    return {
        "it is uniform": uniformity(upper),
        "it is independent of the votes": independence(small, upper),
        "its lower byte is": independence(small, lower),
        "it is independent of itself a block before": independence(upper[:-16] >> 5, upper[16:]),
    }


# One run of 2^16 words, through the real parties ------------------------------------------------


@sampled("stories", "bits", cases=2)
@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("stories", STORIES)
def test_with_c_parties_what_is_left_of_a_y_is_independent_of_its_votes(
    stories: tuple[bool, ...], bits: int
) -> None:
    cheat = told(stories, colluders=COLLUDERS[2], form=form_of(bits))
    assert cheat.closed(VICTIM)
    for claim, p_value in p_values(cheat.residual(VICTIM), votes(VICTIM)).items():
        assert p_value > FALSE_ALARMS, claim


def test_with_c_parties_and_one_story_the_sum_of_the_honest_is_all_that_opens() -> None:
    cheat = told((True,) * 3, colluders=COLLUDERS[2], form=form_of(8))
    residuals = {seat: cheat.residual(seat) for seat in cheat.honest}
    total = np.sum([votes(seat) for seat in cheat.honest], axis=0)
    assert np.array_equal(sum(residuals.values()), total.astype(np.uint8))  # type: ignore[arg-type]
    for seat, residual in residuals.items():
        assert cheat.closed(seat) == set(cheat.honest) - {seat}
        for other in cheat.honest:  # not even two of the three together
            if other != seat:
                both = residual + residuals[other]
                known = votes(seat) + votes(other)
                assert min(p_values(both, known).values()) > FALSE_ALARMS


def test_shares_one_too_few_are_no_help_in_guessing_a_self_mask() -> None:
    """With three shares of four the coordinator makes the fourth up."""
    cheat = told(DROPPED, colluders=COLLUDERS[2], form=form_of(8))
    held = cheat._shares[VICTIM, VICTIM]
    # Of an honest party it can have none: this one is given to it.
    assert set(held) == set(COLLUDERS[2])
    column = cheat.column(cheat.parties[1], VICTIM)
    held[1] = split_shares(column[DIGEST_BYTES:])[VICTIM]
    assert cheat.closed(VICTIM) == {VICTIM}
    assert len(held) == 3
    holders = [*sorted(held), min(set(range(N)) - set(held))]
    for guess in (0, 1, 1000):
        rows = np.array([*(held[holder][None] for holder in sorted(held)), np.full((1, 16), guess)])
        joined = Shamir(4, N).join(rows, holders=holders)
        key = elements_to_secrets(np.minimum(joined, 65535))[0]
        left = cheat.residual(VICTIM) - expand(key, RUNS, ring=Ring(8))
        assert min(p_values(left, votes(VICTIM)).values()) > FALSE_ALARMS


def test_one_party_more_than_c_is_caught_reading_the_votes() -> None:
    cheat = told((True, False), colluders=COLLUDERS[3], form=form_of(8))
    assert not cheat.closed(VICTIM)
    residual = cheat.residual(VICTIM)
    assert np.array_equal(residual, votes(VICTIM).astype(np.uint8))
    assert min(p_values(residual, votes(VICTIM)).values()) < FALSE_ALARMS


# Many runs with fresh keys ---------------------------------------------------------------------


def over_runs(
    closed: set[int], secret: Votes, *, bits: int, keystream: Keystream = ctr_keystream
) -> Words:
    """What is left of the victim's one word in each of many runs with their own keys."""
    form = MaskedSum(Ring(bits), keystream=keystream)
    left = np.empty(len(secret), dtype=form.ring.word_type)
    for run in range(len(secret)):
        keys = {peer: hashlib.sha256(b"%d %d" % (run, peer)).digest() for peer in range(N)}
        pair_keys = {peer: key for peer, key in keys.items() if peer != VICTIM}
        y = form.shard(
            secret[run : run + 1], seat=VICTIM, pair_keys=pair_keys, self_key=keys[VICTIM]
        )
        for peer in set(range(N)) - closed:
            stream = expand(keys[peer], 1, ring=form.ring, keystream=keystream)
            y = y - stream if peer >= VICTIM else y + stream
        left[run] = y[0]
    return left


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stories", "bits", "number"),
    [
        ((True, True, True), 16, 2**14),
        more((True, True, True), 16, 2**16),
        more(DROPPED, 8, 2**16),
    ],
    ids=str,
)
def test_over_many_runs_with_c_parties_a_y_is_independent_of_its_votes(
    stories: tuple[bool, ...], bits: int, number: int
) -> None:
    """Found 99 times of 100: a byte with w = 0.11, or one that follows the votes with w = 0.13.

    Of w see `test_hiding_additive`.
    """
    secret = np.random.default_rng(9).choice([0, 20, 40], size=number).astype(np.int64)
    closed = told(stories, colluders=COLLUDERS[2], form=form_of(8)).closed(VICTIM)
    left = over_runs(closed, secret, bits=bits)
    for claim, p_value in p_values(left, secret).items():
        assert p_value > FALSE_ALARMS, claim


@pytest.mark.exhaustive
def test_over_many_runs_one_party_more_than_c_is_caught() -> None:
    closed = told((True, False), colluders=COLLUDERS[3], form=form_of(8)).closed(VICTIM)
    left = over_runs(closed, votes(VICTIM), bits=8)
    assert min(p_values(left, votes(VICTIM)).values()) < FALSE_ALARMS


# Broken streams are caught by the same tests ----------------------------------------------------


BROKEN = [
    pytest.param(seven_bits, id="seven bits of eight"),
    pytest.param(sometimes_clear, id="one byte of 16 in the clear"),
    pytest.param(lambda key: SpoiledStream(key, np.zeros_like), id="no stream at all"),
    pytest.param(
        lambda key: SpoiledStream(key, lambda s: np.resize(s[:16], len(s))),
        id="one block for ever",
    ),
]


@sampled()
@pytest.mark.parametrize("keystream", BROKEN)
def test_a_broken_stream_is_caught_in_one_run(keystream: Keystream) -> None:
    cheat = told(DROPPED, colluders=COLLUDERS[2], form=form_of(8, keystream))
    assert cheat.closed(VICTIM) == {VICTIM}
    assert min(p_values(cheat.residual(VICTIM), votes(VICTIM)).values()) < FALSE_ALARMS


@pytest.mark.exhaustive
def test_a_broken_stream_is_caught_over_many_runs() -> None:
    left = over_runs({VICTIM}, votes(VICTIM), bits=8, keystream=seven_bits)
    assert min(p_values(left, votes(VICTIM)).values()) < FALSE_ALARMS
