"""The contract of a secure sum: one class that every form inherits."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from protocols.additive import AdditiveSum
from protocols.errors import InvalidVectorError, TooFewPartiesError
from protocols.plain import PlainSum
from protocols.prg import expand, gcm_keystream
from protocols.ring import Ring
from protocols.secure_sum import SecureSum, run_secure_sum

PARTIES = (3, 4, 10, 31, 100)
EDGES = st.sampled_from([-(2**31), -(2**31) + 1, -1, 0, 1, 2**30, 2**31 - 2, 2**31 - 1])
Vector = NDArray[np.int64]


def wrapped(total: Vector, bits: int = 32) -> Vector:
    """Signed representative of each sum modulo 2^bits."""
    half = 2 ** (bits - 1)
    return (total + half) % 2**bits - half


def keys_of(seat: int, parties: int, seed: bytes = b"") -> dict[int, bytes]:
    """Pair keys of one seat with every other."""
    return {
        peer: hashlib.sha256(seed + bytes(sorted((seat, peer)))).digest()
        for peer in range(parties)
        if peer != seat
    }


class SecureSumContract:
    """Laws of every form."""

    form: ClassVar[type[SecureSum]]

    @pytest.mark.parametrize("parties", PARTIES)
    @settings(max_examples=8)
    @given(data=st.data())
    def test_the_sum_is_exact(self, parties: int, data: st.DataObject) -> None:
        queries, classes = data.draw(st.integers(1, 40)), data.draw(st.integers(2, 12))
        quota = data.draw(st.integers(1, 250))
        numbers = np.random.default_rng(data.draw(st.integers(0, 2**32)))
        shape = (parties, queries)
        votes = numbers.multinomial(quota, np.full(classes, 1 / classes), size=shape)
        vectors = list(votes.reshape(parties, -1).astype(np.int64))
        total = run_secure_sum(self.form(), vectors, seed=b"votes")
        assert np.array_equal(total, np.sum(vectors, axis=0))

    @pytest.mark.parametrize("parties", PARTIES)
    @settings(max_examples=8)
    @given(data=st.data())
    def test_the_sum_wraps_at_the_edges_of_the_ring(
        self, parties: int, data: st.DataObject
    ) -> None:
        cell = EDGES | st.integers(-(2**31), 2**31 - 1)
        row = st.lists(cell, min_size=3, max_size=3)
        rows = data.draw(st.lists(row, min_size=parties, max_size=parties))
        vectors = [np.array(row, dtype=np.int64) for row in rows]
        total = run_secure_sum(self.form(), vectors, seed=b"edges")
        assert np.array_equal(total, wrapped(np.sum(vectors, axis=0)))

    @pytest.mark.parametrize("bits", [8, 16])
    @settings(max_examples=20)
    @given(data=st.data())
    def test_the_sum_is_exact_in_small_rings(self, bits: int, data: st.DataObject) -> None:
        half = 2 ** (bits - 1)
        row = st.lists(st.integers(-half, half - 1), min_size=5, max_size=5)
        vectors = [np.array(r) for r in data.draw(st.lists(row, min_size=3, max_size=6))]
        total = run_secure_sum(self.form(Ring(bits)), vectors, seed=b"small")
        assert np.array_equal(total, wrapped(np.sum(vectors, axis=0), bits))

    @pytest.mark.parametrize("parties", PARTIES)
    def test_the_sum_is_exact_over_several_blocks(self, parties: int) -> None:
        numbers = np.random.default_rng(parties)
        words = 2**15 + 11 if parties > 10 else 2**17 + 11
        vectors = list(numbers.integers(-(2**31), 2**31, size=(parties, words)))
        total = run_secure_sum(self.form(), vectors, seed=b"long")
        assert np.array_equal(total, wrapped(np.sum(vectors, axis=0)))

    def test_the_order_of_merging_does_not_matter(self) -> None:
        form, numbers = self.form(), np.random.default_rng(5)
        vectors = numbers.integers(-1000, 1000, size=(5, 7))
        masked = [form.shard(v, seat=i, pair_keys=keys_of(i, 5)) for i, v in enumerate(vectors)]
        for _ in range(10):
            total = form.empty_total(7)
            for seat in numbers.permutation(5):
                form.merge(total, masked[seat])
            assert np.array_equal(form.unshard(total), vectors.sum(axis=0))

    def test_the_same_keys_and_vector_give_the_same_bytes(self) -> None:
        vector = np.arange(100)
        once, again = (
            self.form().shard(vector, seat=1, pair_keys=keys_of(1, 4)).tobytes() for _ in range(2)
        )
        assert once == again

    def test_sharing_changes_neither_vector_nor_keys(self) -> None:
        vector, keys = np.arange(9), keys_of(2, 4)
        self.form().shard(vector, seat=2, pair_keys=keys)
        assert vector.tolist() == list(range(9))
        assert keys == keys_of(2, 4)

    def test_fewer_parties_than_the_smallest_are_refused(self) -> None:
        too_few = self.form.smallest - 1
        with pytest.raises(TooFewPartiesError) as caught:
            run_secure_sum(self.form(), [np.zeros(1, dtype=np.int64)] * too_few, seed=b"")
        assert (caught.value.received, caught.value.threshold) == (too_few, self.form.smallest)
        with pytest.raises(TooFewPartiesError):
            self.form().shard(np.zeros(1, dtype=np.int64), seat=0, pair_keys=keys_of(0, too_few))

    @pytest.mark.parametrize("value", [2**31, -(2**31) - 1])
    def test_a_value_outside_the_ring_is_refused(self, value: int) -> None:
        with pytest.raises(InvalidVectorError) as caught:
            self.form().shard(np.array([0, value]), seat=0, pair_keys=keys_of(0, 3))
        assert str(value) not in str(caught.value)


class TestPlainSum(SecureSumContract):
    form = PlainSum

    def test_it_hides_nothing(self) -> None:
        masked = PlainSum().shard(np.array([7, -7]), seat=0, pair_keys=keys_of(0, 3))
        assert PlainSum().unshard(masked).tolist() == [7, -7]


class TestAdditiveSum(SecureSumContract):
    form = AdditiveSum

    def test_it_needs_three_parties(self) -> None:
        # With two, each learns the other's vector from the sum.
        assert AdditiveSum.smallest == 3

    @pytest.mark.parametrize("seat", [0, 1, 2, 3])
    def test_a_seat_adds_the_streams_of_higher_seats_and_subtracts_those_of_lower(
        self, seat: int
    ) -> None:
        # y_i = x_i + sum over j > i of PRG(k_ij) - sum over j < i of PRG(k_ij)
        vector, keys = np.arange(50), keys_of(seat, 4)
        expected = AdditiveSum().ring.encode(vector)
        for peer, key in keys.items():
            stream = expand(key, 50, ring=Ring())
            expected = expected + stream if peer > seat else expected - stream
        assert np.array_equal(AdditiveSum().shard(vector, seat=seat, pair_keys=keys), expected)

    def test_one_pair_key_that_differs_spoils_the_sum(self) -> None:
        form, vectors = AdditiveSum(), [np.arange(64)] * 3
        total = form.empty_total(64)
        for seat, vector in enumerate(vectors):
            keys = keys_of(seat, 3)
            if seat == 2:
                keys[0] = b"x" * 32
            form.merge(total, form.shard(vector, seat=seat, pair_keys=keys))
        # 64 words of 32 bits: that even one is right by chance happens once in 2^26.
        assert not (form.unshard(total) == 3 * np.arange(64)).any()

    def test_a_missing_party_leaves_noise(self) -> None:
        form = AdditiveSum()
        total = form.empty_total(64)
        for seat in range(3):
            form.merge(total, form.shard(np.arange(64), seat=seat, pair_keys=keys_of(seat, 4)))
        assert not (form.unshard(total) == 3 * np.arange(64)).any()

    @pytest.mark.parametrize("words", [1, 100, 2**15, 2**15 + 1, 100_003])
    def test_both_back_ends_give_the_same_y(self, words: int) -> None:
        vector = np.arange(words) - words // 2
        forms: list[Callable[[], SecureSum]] = [
            AdditiveSum,
            lambda: AdditiveSum(keystream=gcm_keystream),
        ]
        ys = [f().shard(vector, seat=1, pair_keys=keys_of(1, 4)).tobytes() for f in forms]
        assert ys[0] == ys[1]
