"""The ring of integers modulo 2^32, in which shares are added."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocols.errors import InvalidVectorError

Words = NDArray[np.unsignedinteger[Any]]
"""Ring elements: an unsigned integer array of the ring's word size, little-endian on the wire."""

_WORD_TYPES: dict[int, np.dtype[Any]] = {
    8: np.dtype("<u1"),
    16: np.dtype("<u2"),
    32: np.dtype("<u4"),
}

_BLOCK_WORDS = 64 * 1024


@dataclass(frozen=True, slots=True)
class Ring:
    """Integers modulo 2^bits; wrap-around is the addition.

    `bits` is 32 in every run; 8 and 16 let tests try every value.
    """

    bits: int = 32

    def __post_init__(self) -> None:
        if self.bits not in _WORD_TYPES:
            raise InvalidVectorError("ring bits must be 8, 16 or 32", self.bits)

    @property
    def word_type(self) -> np.dtype[Any]:
        """Unsigned little-endian integer of the ring's size."""
        return _WORD_TYPES[self.bits]

    @property
    def largest(self) -> int:
        """Largest signed value, 2^(bits-1) - 1."""
        return int(2 ** (self.bits - 1) - 1)

    def size_of(self, words: int) -> int:
        """Return the bytes of so many words."""
        return words * int(self.word_type.itemsize)

    def encode(self, values: NDArray[np.int64], *, out: Words | None = None) -> Words:
        """Map signed integers in [-2^(bits-1), 2^(bits-1)), on one axis, to ring elements.

        Writes to `out`, or to a new array if None. Raises `InvalidVectorError` where they are not
        integers, not on one axis, or out of range; `out` is unspecified then.
        """
        raw = np.asarray(values)
        if raw.ndim != 1 or raw.dtype.kind not in "iu":
            raise InvalidVectorError(
                "a vector must hold integers on one axis", f"{raw.dtype} with {raw.ndim} axes"
            )
        words = np.empty(len(raw), dtype=self.word_type) if out is None else out
        largest = self.largest
        # Block by block, so that a checked block is still in the cache when it is written.
        for start in range(0, len(raw), _BLOCK_WORDS):
            block = raw[start : start + _BLOCK_WORDS]
            # The bare reductions: numpy's `min` and `max` cost as much as a thousand words.
            if np.minimum.reduce(block) < -largest - 1 or np.maximum.reduce(block) > largest:
                raise InvalidVectorError(
                    f"values must lie in [-2^{self.bits - 1}, 2^{self.bits - 1})"
                )
            np.copyto(words[start : start + _BLOCK_WORDS], block, casting="unsafe")
        return words

    def decode(self, words: Words) -> NDArray[np.int64]:
        """Map ring elements back to signed integers; the inverse of `encode`."""
        values = words.astype(np.int64)
        values[values > self.largest] -= 1 << self.bits  # in place: no other copy of a sum is made
        return values

    def add(self, total: Words, words: Words) -> None:
        """Add words to a total, in place. They may be unaligned, for example inside a frame."""
        if words.flags.aligned:
            np.add(total, words, out=total)
            return
        # Adding from unaligned words takes three times as long as copying.
        straight = np.empty(min(len(words), _BLOCK_WORDS), dtype=self.word_type)
        for start in range(0, len(words), _BLOCK_WORDS):
            block = total[start : start + _BLOCK_WORDS]
            part = straight[: len(block)]
            np.copyto(part, words[start : start + _BLOCK_WORDS])
            np.add(block, part, out=block)

    def words_in(self, buffer: memoryview) -> Words:
        """View a writeable buffer of whole words as words, sharing its memory."""
        return np.frombuffer(buffer, dtype=self.word_type)

    def from_bytes(self, body: bytes | memoryview) -> Words:
        """View little-endian bytes of whole words as words, without a copy."""
        if len(body) % self.word_type.itemsize:
            raise InvalidVectorError(
                f"bytes must come in words of {self.word_type.itemsize}", len(body)
            )
        return np.frombuffer(body, dtype=self.word_type)
