"""Shamir's sharing: what joins, what does not, and that too few shares tell nothing at all."""

from __future__ import annotations

import hashlib
from itertools import combinations, permutations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocols.errors import InvalidSharingError, TooFewSharesError, WrongShareError
from protocols.masked import MaskedSum
from protocols.shamir import (
    PRIME,
    SHARE_BYTES,
    Elements,
    Shamir,
    elements_to_secrets,
    secrets_to_elements,
    split_shares,
    write_shares,
)


class Bytes:
    """Random bytes that a seed fixes."""

    def __init__(self, seed: bytes = b"") -> None:
        self._seed, self._calls = seed, 0
        self.drawn = 0

    def __call__(self, size: int) -> bytes:
        self._calls += 1
        self.drawn += size
        return hashlib.shake_256(self._seed + self._calls.to_bytes(4, "big")).digest(size)


def bytes_of(shares: Elements) -> bytes:
    words = np.empty((len(shares), SHARE_BYTES // 2), dtype="<u2")
    write_shares(shares, out=words)
    return words.tobytes()


def chosen(*values: int):  # type: ignore[no-untyped-def]
    """Random bytes that draw these field elements."""
    return lambda size: np.array(values, dtype="<u4").tobytes()[:size]


def by_hand(coefficients: list[int], x: int, prime: int) -> int:
    """Value of a polynomial, constant first: a second implementation."""
    return sum(c * x**degree for degree, c in enumerate(coefficients)) % prime


def split(threshold: int, parties: int, secrets: list[bytes], seed: bytes = b"") -> Elements:
    return Shamir(threshold, parties).split(secrets_to_elements(secrets), random_bytes=Bytes(seed))


def secret(label: str) -> bytes:
    return hashlib.sha256(label.encode()).digest()


# Joining ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("parties", range(1, 8))
def test_every_threshold_of_holders_joins_the_secret_in_any_order(parties: int) -> None:
    secrets = [secret("one"), secret("two"), bytes(32), b"\xff" * 32]
    for threshold in range(1, parties + 1):
        shares = split(threshold, parties, secrets)
        shamir = Shamir(threshold, parties)
        for subset in combinations(range(parties), threshold):
            for holders in (subset, subset[::-1]):
                joined = shamir.join(shares[list(holders)], holders=holders)
                assert elements_to_secrets(joined) == secrets


@pytest.mark.parametrize("parties", [5, 10, 31, 100])
def test_random_holders_of_a_real_run_join_the_secrets(parties: int) -> None:
    threshold = MaskedSum.threshold(parties)
    secrets = [secret(f"{parties} {place}") for place in range(parties)]
    shares = split(threshold, parties, secrets)
    numbers = np.random.default_rng(parties)
    for _ in range(10):
        holders = [int(h) for h in numbers.permutation(parties)[:threshold]]
        joined = Shamir(threshold, parties).join(shares[holders], holders=holders)
        assert elements_to_secrets(joined) == secrets


def test_shares_are_values_of_a_polynomial_whose_constant_is_the_secret() -> None:
    shamir = Shamir(3, 6)
    # Two secrets of one word: the coefficients of x for both, then those of x^2.
    values = np.array([[7], [65535]])
    shares = shamir.split(values, random_bytes=chosen(65536, 2, 3, 4))
    for holder in range(6):
        assert shares[holder, 0, 0] == by_hand([7, 65536, 3], holder + 1, PRIME)
        assert shares[holder, 1, 0] == by_hand([65535, 2, 4], holder + 1, PRIME)


@settings(max_examples=50)
@given(data=st.data())
def test_joining_undoes_splitting(data: st.DataObject) -> None:
    parties = data.draw(st.integers(1, 12))
    threshold = data.draw(st.integers(1, parties))
    secrets = data.draw(st.lists(st.binary(min_size=32, max_size=32), min_size=1, max_size=4))
    holders = data.draw(st.permutations(range(parties)))[:threshold]
    shares = split(threshold, parties, secrets, seed=data.draw(st.binary(max_size=4)))
    rows = np.array([split_shares(bytes_of(shares[holder])) for holder in holders])
    joined = Shamir(threshold, parties).join(rows, holders=holders)
    assert elements_to_secrets(joined) == secrets


def test_a_secret_is_shared_anew_each_time() -> None:
    once, again = (split(3, 5, [secret("one")], seed=seed) for seed in (b"1", b"2"))
    assert not (once == again).all()


def test_the_shares_of_two_equal_secrets_differ() -> None:
    shares = split(3, 5, [secret("one")] * 2)
    assert not (shares[:, 0] == shares[:, 1]).any(axis=1).all()


# Hiding ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prime", "threshold", "parties"), [(5, 2, 4), (5, 3, 4), (7, 2, 6), (7, 3, 5), (3, 2, 2)]
)
def test_with_one_share_too_few_every_secret_is_as_likely(
    prime: int, threshold: int, parties: int
) -> None:
    """Every secret with every polynomial, in a field so small that all can be tried."""
    shamir = Shamir(threshold, parties, prime=prime)
    views: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
    for value in range(prime):
        for coefficients in product(range(prime), repeat=threshold - 1):
            shares = shamir.split(np.array([[value]]), random_bytes=chosen(*coefficients))
            views.setdefault((value,), []).append(tuple(int(s) for s in shares[:, 0, 0]))
    for held in combinations(range(parties), threshold - 1):
        seen = [
            sorted(tuple(shares[holder] for holder in held) for shares in views[value,])
            for value in range(prime)
        ]
        # Each set of views comes exactly once per secret: the shares are uniform.
        everything = sorted(product(range(prime), repeat=threshold - 1))
        assert all(view == everything for view in seen)


def test_with_a_whole_threshold_a_secret_is_the_only_one() -> None:
    """So that the test above could fail: one more share, and the views tell secrets apart."""
    shamir = Shamir(2, 4, prime=5)
    views = {
        value: {
            tuple(
                int(s) for s in shamir.split(np.array([[value]]), random_bytes=chosen(c))[:2, 0, 0]
            )
            for c in range(5)
        }
        for value in range(5)
    }
    assert all(not views[one] & views[other] for one, other in permutations(range(5), 2))


def test_a_draw_that_would_favor_some_elements_is_drawn_again() -> None:
    # 2^32 - 1 is the largest multiple of 65537 below 2^32: that one value is refused.
    draws = iter([np.array([2**32 - 1, 5], dtype="<u4"), np.array([9], dtype="<u4")])
    shares = Shamir(3, 3).split(np.array([[1]]), random_bytes=lambda size: next(draws).tobytes())
    assert [int(s) for s in shares[:, 0, 0]] == [by_hand([1, 5, 9], x, PRIME) for x in (1, 2, 3)]
    assert next(draws, None) is None


def test_every_coefficient_is_drawn_from_the_given_randomness() -> None:
    source = Bytes()
    Shamir(4, 5).split(secrets_to_elements([secret("a"), secret("b")]), random_bytes=source)
    assert source.drawn == 4 * 3 * 2 * 16


# Wrong shares ----------------------------------------------------------------------------------


def test_a_wrong_share_joins_to_a_wrong_secret_and_nothing_says_so() -> None:
    """Sharing alone does not catch a lie: that is what commitments are for."""
    shares = split(3, 5, [secret("one")])
    shares[1, 0, 4] = (shares[1, 0, 4] + 1) % (PRIME - 1)
    joined = Shamir(3, 5).join(shares[:3], holders=(0, 1, 2))
    assert not (joined == secrets_to_elements([secret("one")])).all()


def test_shares_that_join_to_no_words_are_wrong() -> None:
    with pytest.raises(WrongShareError):
        elements_to_secrets(np.full((1, 16), 65536))


# Bytes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("element", [0, 1, 255, 256, 65535, 65536])
@pytest.mark.parametrize("place", [0, 7, 8, 15])
def test_every_element_comes_through_its_bytes(element: int, place: int) -> None:
    share = np.zeros((1, 16), dtype=np.int64)
    share[0, place] = element
    encoded = bytes_of(share)
    assert len(encoded) == SHARE_BYTES
    again = split_shares(encoded)
    assert np.array_equal(again, share)
    assert again.dtype == np.int64


def test_a_share_is_its_words_and_the_places_of_65536() -> None:
    share = np.array([[65536, 1, 0x0203, *[0] * 12, 65536]])
    expected = bytes((0, 0, 1, 0, 3, 2)) + bytes(26) + bytes((1, 0x80))
    assert bytes_of(share) == expected


@given(st.binary(min_size=34, max_size=34))
def test_bytes_are_a_share_in_one_way_or_none(data: bytes) -> None:
    try:
        share = split_shares(data)
    except WrongShareError:
        return
    assert bytes_of(share) == data


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(bytes(33), id="33 bytes"),
        pytest.param(bytes(35), id="35 bytes"),
        pytest.param(b"\x01\x00" + bytes(30) + b"\x01\x00", id="a word where 65536 is marked"),
    ],
)
def test_bytes_that_no_share_has_are_wrong(data: bytes) -> None:
    with pytest.raises(WrongShareError):
        split_shares(data)


# Calls that cannot be --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("threshold", "parties", "prime"),
    [(0, 3, PRIME), (4, 3, PRIME), (2, 5, 5), (1, 65537, PRIME), (2, 3, 65539), (-1, 3, PRIME)],
)
def test_a_sharing_that_cannot_be_is_refused(threshold: int, parties: int, prime: int) -> None:
    with pytest.raises(InvalidSharingError):
        Shamir(threshold, parties, prime=prime)


@pytest.mark.parametrize(
    "secrets",
    [[bytes(31)], [bytes(33)], [bytes(31), bytes(33)], [bytes(32), bytes(64)]],
    ids=["short", "long", "whole together", "one of them"],
)
def test_a_secret_of_another_length_is_refused(secrets: list[bytes]) -> None:
    with pytest.raises(InvalidSharingError):
        secrets_to_elements(secrets)


@pytest.mark.parametrize("value", [-1, 5, 65537])
def test_an_element_outside_the_field_is_refused(value: int) -> None:
    with pytest.raises(InvalidSharingError):
        Shamir(2, 3, prime=5).split(np.array([[value]]), random_bytes=Bytes())


def test_fewer_shares_than_the_threshold_are_refused() -> None:
    shares = split(3, 5, [secret("one")])
    with pytest.raises(TooFewSharesError) as caught:
        Shamir(3, 5).join(shares[:2], holders=(0, 1))
    assert (caught.value.received, caught.value.threshold) == (2, 3)


@pytest.mark.parametrize("holders", [(0, 1, 1), (0, 1, 5), (0, 1, -1), (0, 1, 2, 3)], ids=str)
def test_holders_that_are_none_or_come_twice_are_refused(holders: tuple[int, ...]) -> None:
    shares = split(3, 5, [secret("one")])
    with pytest.raises(InvalidSharingError):
        Shamir(3, 5).join(shares[: len(holders)], holders=holders)
