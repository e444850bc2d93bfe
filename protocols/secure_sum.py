"""The contract of a secure sum, and a reference run of one in a single place.

Party i holds a secret vector x_i. It sends one vector y_i that tells nothing alone; adding all y_i
opens the sum of all x_i, and nothing else. The forms differ in how y hides x.
"""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from protocols.forms import Form, Verified
from protocols.prg import Keystream, add_streams, ctr_keystream, expand
from protocols.ring import Ring, Words

SignedKey = tuple[int, bytes]


class SecureSum(Form):
    """The sum of a form, in a ring; every `keystream` gives the same bytes."""

    def __init__(self, ring: Ring | None = None, *, keystream: Keystream = ctr_keystream) -> None:
        self.ring = ring if ring is not None else Ring()
        self.keystream = keystream

    @property
    def ring_bits(self) -> int:
        """Bits of a word of its ring."""
        return self.ring.bits

    def shard(
        self,
        vector: NDArray[np.int64],
        *,
        seat: int,
        pair_keys: Mapping[int, bytes],
        self_key: bytes = b"",
    ) -> Words:
        """Turn a party's vector into y, the one vector that it publishes.

        Args:
            vector: x, signed integers within the ring; shape (words,). Secret.
            seat: This party's place in the order of fingerprints.
            pair_keys: Key of this attempt with each other seat; 32 bytes each. Used for this
                vector and for no other, ever.
            self_key: b, this party's own fresh key, 32 bytes, where the form survives drop-outs.

        Returns:
            y, ring elements; shape (words,).

        Raises:
            InvalidVectorError: the ring cannot hold a value.
            TooFewPartiesError: fewer parties than `smallest`.
        """
        words = self.ring.encode(vector)
        self.hide(words, seat=seat, pair_keys=pair_keys, self_key=self_key)
        return words

    @abstractmethod
    def hide(
        self,
        words: Words,
        *,
        seat: int,
        pair_keys: Mapping[int, bytes],
        self_key: bytes = b"",
    ) -> None:
        """Turn an encoded vector, x, into y in place; see `shard`. Secret until this returns.

        Where it raises, nothing was hidden.
        """

    def merge(self, total: Words, masked: Words) -> None:
        """Add one party's y to the running total, in place."""
        self.ring.add(total, masked)

    def leftovers(
        self, survivors: Collection[int], *, parties: int
    ) -> Iterator[tuple[int, int, int]]:
        """Name the streams still in the total of the y's of these seats, enough to open it.

        Yields:
            Dealer's seat, seat that its key is with (its own for the self mask), sign.
        """
        self.require_survivors(len(survivors), parties=parties)
        yield from ()

    def unshard(self, total: Words, *, streams: Sequence[SignedKey] = ()) -> NDArray[np.int64]:
        """Open a total of y's, which changes: the sum of their vectors, as signed integers.

        `streams` are those of `leftovers`, to be subtracted.
        """
        add_streams(
            total,
            [(-sign, key) for sign, key in streams],
            ring=self.ring,
            keystream=self.keystream,
        )
        return self.ring.decode(total)

    def row_sum(self, key: bytes, row: int, *, row_words: int) -> int:
        """Add the words of a stream over one row of a plan, modulo the ring."""
        end = (row + 1) * row_words
        words = expand(key, end, ring=self.ring, keystream=self.keystream)[end - row_words :]
        return int(words.sum(dtype=np.uint64)) % (1 << self.ring.bits)

    def empty_total(self, words: int) -> Words:
        """Return the total before any party's y."""
        return np.zeros(words, dtype=self.ring.word_type)


RoundForm: TypeAlias = SecureSum | Verified
"""A form that parties and their coordinator run message by message."""


def run_secure_sum(
    form: SecureSum,
    vectors: Sequence[NDArray[np.int64]],
    *,
    seed: bytes,
    survivors: Collection[int] | None = None,
) -> NDArray[np.int64]:
    """Run a whole sum in one place, to show how a form is used.

    Args:
        form: Which form.
        vectors: One secret vector per party, equally long; shape (words,) each.
        seed: Seed of the keys; the same seed gives the same bytes.
        survivors: Seats whose y's arrive; None for all.

    Returns:
        The sum of the survivors' vectors, wrapped into the ring's signed range; shape (words,).
    """
    parties = len(vectors)
    form.require_enough(parties)
    alive = range(parties) if survivors is None else survivors
    total = form.empty_total(len(vectors[0]))
    for seat in alive:
        keys = {peer: _reference_key(seed, seat, peer) for peer in range(parties) if peer != seat}
        own_key = _reference_key(seed, seat, seat)
        form.merge(total, form.shard(vectors[seat], seat=seat, pair_keys=keys, self_key=own_key))
    left = form.leftovers(alive, parties=parties)
    streams = [(sign, _reference_key(seed, dealer, place)) for dealer, place, sign in left]
    return form.unshard(total, streams=streams)


def _reference_key(seed: bytes, one: int, other: int) -> bytes:
    lower, higher = min(one, other), max(one, other)
    label = b"pate-fed/1/reference sum\0" + lower.to_bytes(4, "big") + higher.to_bytes(4, "big")
    return hashlib.sha256(label + seed).digest()
