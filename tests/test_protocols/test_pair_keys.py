from __future__ import annotations

import itertools

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from hypothesis import assume, given
from hypothesis import strategies as st

from protocols import pair_keys
from protocols.errors import KeyReuseError
from protocols.pair_keys import (
    MAX_SKIPPED_EPOCHS,
    PairRoots,
    confirmation,
    make_root,
)
from tests.support.vectors import read_vectors

VECTORS = read_vectors("pair_keys")
RUN, PLAN = bytes.fromhex(VECTORS["run_id"]), bytes.fromhex(VECTORS["plan_digest"])
LOWER, HIGHER = bytes.fromhex(VECTORS["lower"]), bytes.fromhex(VECTORS["higher"])
HALVES = bytes.fromhex(VECTORS["lower_half"]), bytes.fromhex(VECTORS["higher_half"])
PAIR = LOWER, HIGHER
ROOTS = [bytes.fromhex(root) for root in VECTORS["roots_by_epoch"]]


def key_of(root: bytes, *, plan_digest: bytes = PLAN, pair: tuple[bytes, bytes] = PAIR) -> bytes:
    one, other = pair
    return PairRoots(one, {other: root}).keys_for(plan_digest)[other]


def root() -> bytes:
    return make_root(dict(zip(PAIR, HALVES, strict=True)), run_id=RUN)


def test_the_root_is_known() -> None:
    assert root() == ROOTS[0]


@pytest.mark.parametrize("epoch", [1, 2, 3])
def test_keys_of_an_epoch_are_known(epoch: int) -> None:
    roots = PairRoots(LOWER, {HIGHER: root()})
    roots.advance(epoch)
    assert roots.keys_for(PLAN)[HIGHER].hex() == VECTORS["stream_keys_by_epoch"][epoch]
    assert roots.keys_for(PLAN)[HIGHER] == key_of(ROOTS[epoch])


def test_confirmations_are_known_and_differ_by_direction() -> None:
    one_way = confirmation(root(), run_id=RUN, sender=LOWER, receiver=HIGHER).hex()
    other_way = confirmation(root(), run_id=RUN, sender=HIGHER, receiver=LOWER).hex()
    assert one_way == VECTORS["confirmation_lower_to_higher"]
    assert other_way == VECTORS["confirmation_higher_to_lower"]
    assert one_way != other_way  # else a MAC could be sent back to who made it


def test_both_ends_derive_the_same_keys() -> None:
    ends = PairRoots(LOWER, {HIGHER: root()}), PairRoots(HIGHER, {LOWER: root()})
    for end in ends:
        end.advance(5)
    assert ends[0].keys_for(PLAN)[HIGHER] == ends[1].keys_for(PLAN)[LOWER]


def test_skipping_epochs_arrives_where_single_steps_do() -> None:
    steps, leap = PairRoots(LOWER, {HIGHER: root()}), PairRoots(LOWER, {HIGHER: root()})
    for epoch in range(1, 8):
        steps.advance(epoch)
    leap.advance(7)
    assert steps.keys_for(PLAN) == leap.keys_for(PLAN)


@pytest.mark.parametrize(
    "epoch",
    [
        pytest.param(10, id="the same again"),
        pytest.param(9, id="back by one"),
        pytest.param(0, id="the beginning"),
        pytest.param(-1, id="before the beginning"),
        pytest.param(10 + MAX_SKIPPED_EPOCHS + 1, id="too far ahead"),
        pytest.param(2**32 - 1, id="the end of time"),
    ],
)
def test_roots_move_forward_only_and_not_too_far(epoch: int) -> None:
    roots = PairRoots(LOWER, {HIGHER: root()})
    roots.advance(10)
    before = roots.keys_for(PLAN)
    with pytest.raises(KeyReuseError):
        roots.advance(epoch)
    assert roots.epoch == 10
    assert roots.keys_for(PLAN) == before


def test_the_farthest_step_is_allowed() -> None:
    roots = PairRoots(LOWER, {HIGHER: root()})
    roots.advance(MAX_SKIPPED_EPOCHS)
    assert roots.epoch == MAX_SKIPPED_EPOCHS


def test_erased_roots_give_no_keys() -> None:
    roots = PairRoots(LOWER, {HIGHER: root()})
    roots.erase()
    assert roots.keys_for(PLAN) == {}


def test_roots_do_not_follow_changes_of_what_they_were_made_from() -> None:
    given_roots = {HIGHER: root()}
    roots = PairRoots(LOWER, given_roots)
    given_roots.clear()
    assert roots.keys_for(PLAN)


_digest = st.binary(min_size=32, max_size=32)


@given(st.lists(st.tuples(_digest, _digest, _digest, _digest), min_size=2, max_size=2, unique=True))
def test_roots_differ_when_anything_differs(cases: list[tuple[bytes, ...]]) -> None:
    made = [
        make_root({LOWER: lower_half, third: other_half}, run_id=run)
        for run, third, lower_half, other_half in cases
    ]
    assert made[0] != made[1]


def test_keys_differ_by_plan_pair_epoch_and_purpose() -> None:
    third = bytes(32)
    values = [
        *ROOTS,
        *(key_of(value) for value in ROOTS),
        key_of(ROOTS[0], plan_digest=RUN),
        key_of(ROOTS[0], pair=(LOWER, third)),
        key_of(ROOTS[0], pair=(HIGHER, third)),
        confirmation(ROOTS[0], run_id=RUN, sender=LOWER, receiver=HIGHER),
        confirmation(ROOTS[0], run_id=PLAN, sender=LOWER, receiver=HIGHER),
        confirmation(ROOTS[1], run_id=RUN, sender=LOWER, receiver=HIGHER),
    ]
    assert len(set(values)) == len(values)


def test_swapped_halves_make_another_root() -> None:
    swapped = make_root(dict(zip(PAIR, HALVES[::-1], strict=True)), run_id=RUN)
    assert swapped != root()


@given(_digest, _digest)
def test_both_ends_order_a_pair_alike(one: bytes, other: bytes) -> None:
    assume(one != other)
    halves = {one: HALVES[0], other: HALVES[1]}
    again = dict(reversed(halves.items()))
    assert make_root(halves, run_id=RUN) == make_root(again, run_id=RUN)
    assert key_of(ROOTS[0], pair=(one, other)) == key_of(ROOTS[0], pair=(other, one))


def test_a_hundred_parties_have_as_many_keys_as_pairs() -> None:
    parties = [bytes([i]) * 32 for i in range(100)]
    pairs = itertools.combinations(parties, 2)
    keys = {key_of(ROOTS[0], pair=pair) for pair in pairs}
    assert len(keys) == 4950


def test_roots_show_no_key() -> None:
    roots = PairRoots(LOWER, {HIGHER: root()})
    assert repr(roots) == "PairRoots(peers=1, epoch=0)"


@given(
    st.binary(min_size=1, max_size=100), st.binary(max_size=64), st.binary(min_size=1, max_size=200)
)
def test_the_derivation_is_the_hkdf_of_the_library(
    secret: bytes, salt: bytes, label: bytes
) -> None:
    expected = HKDF(hashes.SHA256(), 32, salt, pair_keys._DOMAIN + label).derive(secret)
    assert pair_keys._Extractor(salt).derive(secret, label) == expected


def test_one_extractor_serves_many_secrets_and_keeps_nothing_of_them() -> None:
    extractor = pair_keys._Extractor(PLAN)
    first = extractor.derive(b"one" * 11, b"label")
    assert extractor.derive(b"other" * 7, b"label") != first
    assert extractor.derive(b"one" * 11, b"label") == first
