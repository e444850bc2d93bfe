"""A form of the secure sum that the product does not have: all that a new one needs."""

from __future__ import annotations

from collections.abc import Mapping

from protocols.prg import add_streams
from protocols.ring import Words
from protocols.secure_sum import SecureSum


class CircleSum(SecureSum):
    """Streams with the two neighbors in a circle alone: cheap, and two neighbors open a vector."""

    name = "circle"
    smallest = 3

    @classmethod
    def most_colluders(cls, parties: int) -> int:
        """One: the second may be the other neighbor."""
        return 1

    def hide(
        self,
        words: Words,
        *,
        seat: int,
        pair_keys: Mapping[int, bytes],
        self_key: bytes = b"",
    ) -> None:
        """Add the next one's stream, take off the one before's."""
        parties = len(pair_keys) + 1
        self.require_enough(parties)
        signed = [(1, pair_keys[(seat + 1) % parties]), (-1, pair_keys[(seat - 1) % parties])]
        add_streams(words, signed, ring=self.ring, keystream=self.keystream)
