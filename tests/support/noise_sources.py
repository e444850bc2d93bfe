"""Byte sources for noise that tests can see through."""

from __future__ import annotations

import numpy as np
from scipy.special import ndtr

from pate_fed.mechanisms.sampling import RandomBytes


def scripted(*draws: list[float]) -> RandomBytes:
    """Return a source whose n-th call gives the words of the n-th list of draws, in sigmas."""
    remaining = list(draws)

    def next_bytes(count: int) -> bytes:
        words = b"".join(_word(draw) for draw in remaining.pop(0))
        assert len(words) == count
        return words

    return next_bytes


def _word(draw: float) -> bytes:
    # The inverse of the sampler's map, up to the rounding of doubles.
    mantissa = min(int(float(ndtr(-abs(draw))) * 2.0**64), 2**63 - 1)
    sign = int(draw > 0) << 63
    return int(np.uint64(sign | mantissa)).to_bytes(8, "little")


class CountingSource:
    """Passes a source through and keeps how many bytes each call took."""

    def __init__(self, source: RandomBytes) -> None:
        self._source = source
        self.calls: list[int] = []

    def __call__(self, count: int) -> bytes:
        self.calls.append(count)
        return self._source(count)
