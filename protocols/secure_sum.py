"""The contract of a secure sum, and a reference run of one in a single place.

Party i holds a secret vector x_i. It sends one vector y_i that tells nothing alone; adding all
y_i opens the sum of all x_i, and nothing else. How y hides x is what the forms differ in.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from protocols.errors import TooFewPartiesError
from protocols.ring import Ring, Words


class SecureSum(ABC):
    """A form of the secure sum.

    Class attributes:
        name: Name in plans and on the command line.
        smallest: Fewest parties for which the sum does not give one party's vector to another.

    Attributes:
        ring: Where shares are added.
    """

    name: ClassVar[str]
    smallest: ClassVar[int]

    def __init__(self, ring: Ring | None = None) -> None:
        self.ring = ring if ring is not None else Ring()

    @abstractmethod
    def shard(
        self, vector: NDArray[np.int64], *, seat: int, pair_keys: Mapping[int, bytes]
    ) -> Words:
        """Turn a party's vector into y, the one vector that it publishes.

        Args:
            vector: x, signed integers within the ring; shape (words,). Secret.
            seat: This party's place in the order of fingerprints.
            pair_keys: Key of this attempt with each other seat; 32 bytes each. Used for this
                vector and for no other, ever.

        Returns:
            y, ring elements; shape (words,).

        Raises:
            InvalidVectorError: the ring cannot hold a value.
            TooFewPartiesError: fewer parties than `smallest`.
        """

    def merge(self, total: Words, masked: Words) -> None:
        """Add one party's y to the running total, in place."""
        np.add(total, masked, out=total)

    def unshard(self, total: Words) -> NDArray[np.int64]:
        """Open the total of all parties' y: the sum of their vectors, as signed integers."""
        return self.ring.decode(total)

    def empty_total(self, words: int) -> Words:
        """Return the total before any party's y."""
        return np.zeros(words, dtype=self.ring.word_type)

    def require_enough(self, parties: int) -> None:
        """Check the number of parties.

        Raises:
            TooFewPartiesError: fewer than `smallest`.
        """
        if parties < self.smallest:
            raise TooFewPartiesError(received=parties, threshold=self.smallest)


def run_secure_sum(
    form: SecureSum, vectors: Sequence[NDArray[np.int64]], *, seed: bytes
) -> NDArray[np.int64]:
    """Run a whole sum in one place, to show how a form is used.

    Args:
        form: Which form.
        vectors: One secret vector per party, equally long; shape (words,) each.
        seed: Where the pair keys come from; the same seed gives the same bytes.

    Returns:
        The sum of all vectors, wrapped into the ring's signed range; shape (words,).
    """
    parties = len(vectors)
    form.require_enough(parties)
    total = form.empty_total(len(vectors[0]))
    for seat, vector in enumerate(vectors):
        keys = {
            peer: _reference_key(seed, min(seat, peer), max(seat, peer))
            for peer in range(parties)
            if peer != seat
        }
        form.merge(total, form.shard(vector, seat=seat, pair_keys=keys))
    return form.unshard(total)


def _reference_key(seed: bytes, lower: int, higher: int) -> bytes:
    label = b"pate-fed/1/reference sum\0" + lower.to_bytes(4, "big") + higher.to_bytes(4, "big")
    return hashlib.sha256(label + seed).digest()
