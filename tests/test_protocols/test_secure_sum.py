"""The contract of a secure sum: one class that every form inherits."""

from __future__ import annotations

import hashlib
from itertools import combinations
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from protocols.additive import AdditiveSum
from protocols.errors import InvalidVectorError, TooFewPartiesError, TooFewSharesError
from protocols.forms import FORMS, usual_form
from protocols.masked import MaskedSum
from protocols.plain import PlainSum
from protocols.prg import expand, gcm_keystream
from protocols.ring import Ring, Words
from protocols.secure_sum import SecureSum, run_secure_sum
from tests.support.markers import more, sampled

PARTIES = (3, 4, 10, 31, more(100))
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


def self_key_of(seat: int) -> bytes:
    """A seat's own key."""
    return hashlib.sha256(b"self" + bytes([seat])).digest()


def shard(form: SecureSum, vector: Vector, *, seat: int, parties: int) -> Words:
    """One seat's y."""
    return form.shard(
        vector, seat=seat, pair_keys=keys_of(seat, parties), self_key=self_key_of(seat)
    )


def opened(form: SecureSum, total: Words, survivors: list[int], parties: int) -> Vector:
    """The sum, with whatever is left in the total taken off."""
    keys = {
        (dealer, place): self_key_of(dealer) if dealer == place else keys_of(dealer, parties)[place]
        for dealer, place, _ in form.leftovers(survivors, parties=parties)
    }
    left = form.leftovers(survivors, parties=parties)
    return form.unshard(
        total, streams=[(sign, keys[dealer, place]) for dealer, place, sign in left]
    )


class SecureSumContract:
    """Laws of every form."""

    form: ClassVar[type[SecureSum]]

    def count(self, parties: int) -> int:
        """So many parties, or as few as the form takes."""
        return max(parties, self.form.smallest)

    @sampled("parties", cases=2)
    @pytest.mark.parametrize("parties", PARTIES)
    @settings(max_examples=8)
    @given(data=st.data())
    def test_the_sum_is_exact(self, parties: int, data: st.DataObject) -> None:
        parties = self.count(parties)
        queries, classes = data.draw(st.integers(1, 40)), data.draw(st.integers(2, 12))
        quota = data.draw(st.integers(1, 250))
        numbers = np.random.default_rng(data.draw(st.integers(0, 2**32)))
        shape = (parties, queries)
        votes = numbers.multinomial(quota, np.full(classes, 1 / classes), size=shape)
        vectors = list(votes.reshape(parties, -1).astype(np.int64))
        total = run_secure_sum(self.form(), vectors, seed=b"votes")
        assert np.array_equal(total, np.sum(vectors, axis=0))

    @sampled("parties", cases=2)
    @pytest.mark.parametrize("parties", PARTIES)
    @settings(max_examples=8)
    @given(data=st.data())
    def test_the_sum_wraps_at_the_edges_of_the_ring(
        self, parties: int, data: st.DataObject
    ) -> None:
        parties = self.count(parties)
        cell = EDGES | st.integers(-(2**31), 2**31 - 1)
        row = st.lists(cell, min_size=3, max_size=3)
        rows = data.draw(st.lists(row, min_size=parties, max_size=parties))
        vectors = [np.array(row, dtype=np.int64) for row in rows]
        total = run_secure_sum(self.form(), vectors, seed=b"edges")
        assert np.array_equal(total, wrapped(np.sum(vectors, axis=0)))

    @sampled("bits")
    @pytest.mark.parametrize("bits", [8, 16])
    @settings(max_examples=20)
    @given(data=st.data())
    def test_the_sum_is_exact_in_small_rings(self, bits: int, data: st.DataObject) -> None:
        half = 2 ** (bits - 1)
        row = st.lists(st.integers(-half, half - 1), min_size=5, max_size=5)
        vectors = [np.array(r) for r in data.draw(st.lists(row, min_size=5, max_size=8))]
        total = run_secure_sum(self.form(Ring(bits)), vectors, seed=b"small")
        assert np.array_equal(total, wrapped(np.sum(vectors, axis=0), bits))

    @sampled("parties", cases=3)
    @pytest.mark.parametrize("parties", PARTIES)
    def test_the_sum_is_exact_over_several_blocks(self, parties: int) -> None:
        parties = self.count(parties)
        numbers = np.random.default_rng(parties)
        words = 2**15 + 11 if parties > 10 else 2**17 + 11
        vectors = list(numbers.integers(-(2**31), 2**31, size=(parties, words)))
        total = run_secure_sum(self.form(), vectors, seed=b"long")
        assert np.array_equal(total, wrapped(np.sum(vectors, axis=0)))

    def test_the_order_of_merging_does_not_matter(self) -> None:
        form, numbers = self.form(), np.random.default_rng(5)
        vectors = numbers.integers(-1000, 1000, size=(5, 7))
        masked = [shard(form, v, seat=i, parties=5) for i, v in enumerate(vectors)]
        for _ in range(10):
            total = form.empty_total(7)
            for seat in numbers.permutation(5):
                form.merge(total, masked[seat])
            assert np.array_equal(opened(form, total, list(range(5)), 5), vectors.sum(axis=0))

    def test_the_same_keys_and_vector_give_the_same_bytes(self) -> None:
        vector = np.arange(100)
        once, again = (shard(self.form(), vector, seat=1, parties=5).tobytes() for _ in range(2))
        assert once == again

    def test_sharing_changes_neither_vector_nor_keys(self) -> None:
        vector, keys = np.arange(9), keys_of(2, 5)
        self.form().shard(vector, seat=2, pair_keys=keys, self_key=self_key_of(2))
        assert vector.tolist() == list(range(9))
        assert keys == keys_of(2, 5)

    def test_fewer_parties_than_the_smallest_are_refused(self) -> None:
        too_few = self.form.smallest - 1
        with pytest.raises(TooFewPartiesError) as caught:
            run_secure_sum(self.form(), [np.zeros(1, dtype=np.int64)] * too_few, seed=b"")
        assert (caught.value.received, caught.value.threshold) == (too_few, self.form.smallest)
        with pytest.raises(TooFewPartiesError):
            shard(self.form(), np.zeros(1, dtype=np.int64), seat=0, parties=too_few)

    @pytest.mark.parametrize("value", [2**31, -(2**31) - 1])
    def test_a_value_outside_the_ring_is_refused(self, value: int) -> None:
        with pytest.raises(InvalidVectorError) as caught:
            shard(self.form(), np.array([0, value]), seat=0, parties=5)
        assert str(value) not in str(caught.value)

    @pytest.mark.parametrize("parties", PARTIES)
    def test_fewer_survivors_than_the_threshold_open_nothing(self, parties: int) -> None:
        parties = self.count(parties)
        threshold = self.form.threshold(parties)
        with pytest.raises(TooFewSharesError) as caught:
            run_secure_sum(
                self.form(),
                [np.zeros(1, dtype=np.int64)] * parties,
                seed=b"",
                survivors=range(threshold - 1),
            )
        assert (caught.value.received, caught.value.threshold) == (threshold - 1, threshold)

    @pytest.mark.parametrize("words", [1, 100, 2**15, 2**15 + 1, 100_003])
    def test_both_back_ends_give_the_same_y(self, words: int) -> None:
        vector = np.arange(words) - words // 2
        forms = [self.form(), self.form(keystream=gcm_keystream)]
        ys = [shard(form, vector, seat=1, parties=5).tobytes() for form in forms]
        assert ys[0] == ys[1]


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


class TestMaskedSum(SecureSumContract):
    form = MaskedSum

    def test_it_needs_five_parties(self) -> None:
        # With four, t = 3 and c = 1: the coordinator with two parties would read the others.
        assert MaskedSum.smallest == 5
        assert MaskedSum.most_colluders(4) == 1

    @pytest.mark.parametrize(
        ("parties", "threshold", "colluders"),
        [(5, 4, 2), (6, 5, 3), (7, 5, 2), (10, 7, 3), (30, 21, 11), (31, 21, 10), (100, 67, 33)],
    )
    def test_threshold_and_colluders_are_the_protocols(
        self, parties: int, threshold: int, colluders: int
    ) -> None:
        assert MaskedSum.threshold(parties) == threshold
        assert MaskedSum.most_colluders(parties) == colluders

    @sampled("parties", cases=35)
    @pytest.mark.parametrize("parties", range(5, 200))
    def test_colluders_never_reach_the_threshold_and_one_more_splits_the_holders(
        self, parties: int
    ) -> None:
        threshold = MaskedSum.threshold(parties)
        most = MaskedSum.most_colluders(parties)
        assert 1 <= most < threshold

        def both_sets_open(colluders: int) -> bool:
            return 2 * (threshold - colluders) <= parties - colluders

        assert not both_sets_open(most)
        assert both_sets_open(most + 1)

    @pytest.mark.parametrize("seat", [0, 1, 2, 3, 4])
    def test_y_is_the_additive_one_and_one_more_stream(self, seat: int) -> None:
        vector = np.arange(50)
        additive = AdditiveSum().shard(vector, seat=seat, pair_keys=keys_of(seat, 5))
        expected = additive + expand(self_key_of(seat), 50, ring=Ring())
        assert np.array_equal(shard(MaskedSum(), vector, seat=seat, parties=5), expected)

    @pytest.mark.parametrize("self_key", [b"", b"short", bytes(33)], ids=len)
    def test_no_y_is_made_without_a_self_key(self, self_key: bytes) -> None:
        with pytest.raises(InvalidVectorError):
            MaskedSum().shard(np.arange(3), seat=0, pair_keys=keys_of(0, 5), self_key=self_key)

    @pytest.mark.parametrize("parties", [5, 6, 7])
    def test_every_pattern_of_dropouts_opens_the_survivors_sum(self, parties: int) -> None:
        numbers = np.random.default_rng(parties)
        vectors = list(numbers.integers(-(2**31), 2**31, size=(parties, 9)))
        for lost in range(parties - MaskedSum.threshold(parties) + 1):
            for dropped in combinations(range(parties), lost):
                alive = [seat for seat in range(parties) if seat not in dropped]
                total = run_secure_sum(MaskedSum(), vectors, seed=b"patterns", survivors=alive)
                assert np.array_equal(total, wrapped(np.sum([vectors[s] for s in alive], axis=0)))

    @settings(max_examples=20)
    @given(data=st.data())
    def test_random_patterns_of_thirty_open_the_survivors_sum(self, data: st.DataObject) -> None:
        numbers = np.random.default_rng(data.draw(st.integers(0, 2**32)))
        alive = data.draw(st.sets(st.integers(0, 29), min_size=MaskedSum.threshold(30)))
        vectors = list(numbers.integers(-(2**31), 2**31, size=(30, 5)))
        total = run_secure_sum(MaskedSum(), vectors, seed=b"thirty", survivors=alive)
        assert np.array_equal(total, wrapped(np.sum([vectors[s] for s in alive], axis=0)))

    def test_a_survivor_whose_self_mask_stays_closed_leaves_noise(self) -> None:
        form = MaskedSum()
        total = form.empty_total(64)
        for seat in range(5):
            form.merge(total, shard(form, np.arange(64), seat=seat, parties=5))
        streams = [(1, self_key_of(seat)) for seat in range(4)]
        # 64 words of 32 bits: that even one is right by chance happens once in 2^26.
        assert not (form.unshard(total, streams=streams) == 5 * np.arange(64)).any()


def test_a_deployment_survives_drop_outs_as_soon_as_it_can() -> None:
    forms = [usual_form(parties) for parties in (3, 4, 5, 10, 100)]
    assert forms == ["additive", "additive", "masked", "masked", "masked"]
    for parties, form in zip((3, 4, 5, 10, 100), forms, strict=True):
        FORMS[form].require_enough(parties)
