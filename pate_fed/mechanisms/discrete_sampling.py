"""Whole-number Gaussian noise from random bytes, exact to 2^-128.

A draw is the inverse of the distribution function, held as a table of thresholds
c_k = floor(2^128 Pr[X <= k]), at a uniform number u of 128 bits: the smallest k with u < c_k. The
first 64 bits of u decide unless they equal those of a threshold, which happens with a chance of
about (2 T + 1) 2^-64; only then are 64 more drawn. So the speed is that of a 64-bit table, the
law that of a 128-bit one.

How far a draw is from the ideal law: every threshold is rounded down by less than 2^-128, and
values beyond the last one, T, have a chance below 2^-128. So the total variation distance is at
most (2 T + 2) 2^-128, `discrete_variation_bound`, below 1e-32 a draw.

The time of a draw depends a little on its value (cache misses, ties): noise is not drawn in
constant time.

Source:
    Canonne, Kamath, Steinke 2020, The discrete Gaussian for differential privacy.
    https://arxiv.org/abs/2004.00010
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import ROUND_FLOOR, Context, Decimal
from functools import lru_cache
from itertools import accumulate
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pate_fed.accounting.ranges import positive
from pate_fed.errors import InvalidParameterError
from pate_fed.mechanisms.sampling import RandomBytes, exactly

LARGEST_VALUE: Final = 1 << 19
"""Most values on one side of a table: sigma up to about 37,000."""

_BITS: Final = 128
_WORD_BITS: Final = 64
_WORD_BYTES: Final = 8
_GUARD_BITS: Final = 384
"""Weights are whole multiples of 2^-384: their error stays far below 2^-128."""

_GUIDE_BITS: Final = 16
_DIGITS: Final = 130
_BLOCK: Final = 1 << 15
"""Draws at a time: the memory needed beside the result stays in the cache and below 1 MiB."""


def sample_discrete_gaussian(
    shape: int | tuple[int, ...], *, sigma: float, random_bytes: RandomBytes
) -> NDArray[np.int64]:
    """Draw independent whole numbers k with chances proportional to exp(-k^2 / (2 sigma^2)).

    For sigma of at least 1 it is the standard deviation but for 1e-7. The source gives 8 bytes
    per draw, and 8 more for each of the rare ties, at most 256 KiB at a time.
    """
    return _draw(_table(positive("sigma", sigma)), shape, random_bytes)


def largest_draw(sigma: float) -> int:
    """Return the largest value that a draw can have, on either side of 0."""
    return _largest(positive("sigma", sigma))


def discrete_variation_bound(sigma: float) -> float:
    """Bound the total variation distance between a draw and its ideal law."""
    return (2 * _largest(positive("sigma", sigma)) + 2) * 2.0**-_BITS


@dataclass(frozen=True, slots=True, eq=False)
class _DrawTable:
    """A law as thresholds.

    Attributes:
        thresholds: c_k for k = -T .. T - 1, 128 bits each, ascending.
        words: Their first 64 bits; uint64, shape (2 T,).
        guide: For every value of the first 16 bits of a draw the value drawn, or `_UNDECIDED`
            where that does not follow from them.
    """

    largest: int
    thresholds: tuple[int, ...]
    words: NDArray[np.uint64]
    guide: NDArray[np.int32]


_UNDECIDED: Final = LARGEST_VALUE + 1


def _draw(
    table: _DrawTable, shape: int | tuple[int, ...], random_bytes: RandomBytes
) -> NDArray[np.int64]:
    noise = np.empty(shape, dtype=np.int64)
    flat = noise.reshape(-1)
    for start in range(0, len(flat), _BLOCK):
        _draw_block(table, flat[start : start + _BLOCK], random_bytes)
    return noise


def _draw_block(table: _DrawTable, noise: NDArray[np.int64], random_bytes: RandomBytes) -> None:
    """Fill `noise`."""
    words = np.frombuffer(exactly(random_bytes, noise.size * _WORD_BYTES), dtype="<u8")
    noise[:] = table.guide[words >> np.uint64(_WORD_BITS - _GUIDE_BITS)]
    open_draws = np.flatnonzero(noise == _UNDECIDED)
    undecided = words[open_draws]
    found = np.searchsorted(table.words, undecided, side="right")
    noise[open_draws] = found - table.largest
    tied = open_draws[(found > 0) & (table.words[found - 1] == undecided)]
    if len(tied):
        more = np.frombuffer(exactly(random_bytes, len(tied) * _WORD_BYTES), dtype="<u8")
        for draw, low in zip(tied, more, strict=True):
            number = (int(words[draw]) << _WORD_BITS) | int(low)
            noise[draw] = bisect_right(table.thresholds, number) - table.largest


def _largest(sigma: float) -> int:
    # Beyond T lies less than 2^-128: a tail is below 2^-140 times T, and T is below 2^20.
    nats = 140 * math.log(2)
    largest = math.ceil(sigma * math.sqrt(2 * nats)) + 1
    if largest > LARGEST_VALUE:
        raise InvalidParameterError(f"noise must stay within {LARGEST_VALUE} votes", sigma)
    return largest


@lru_cache(maxsize=4)  # up to 60 megabytes each; a run has one sigma
def _table(sigma: float) -> _DrawTable:
    largest = _largest(sigma)
    weights = list(_weights(sigma, largest))
    total = 2 * sum(weights) - weights[0]
    ascending = [*weights[:0:-1], *weights[:-1]]
    # At small scales the last weights vanish, and the sum is reached before the end.
    most = (1 << _BITS) - 1
    thresholds = tuple(min((part << _BITS) // total, most) for part in accumulate(ascending))
    words = np.array([threshold >> _WORD_BITS for threshold in thresholds], dtype=np.uint64)
    return _DrawTable(largest, thresholds, words, _guide(words, largest))


def _weights(sigma: float, largest: int) -> Iterator[int]:
    """Yield the weights of 0, 1, ..., T, relative to that of 0, as multiples of 2^-384."""
    weight = 1 << _GUARD_BITS
    # e^(-(k+1)^2 / 2s^2) = e^(-k^2 / 2s^2) e^(-1 / 2s^2) (e^(-1 / s^2))^k
    squared = _context().multiply(Decimal(sigma), Decimal(sigma))  # exact
    factor, shrink = _fixed_exp(squared, 2), _fixed_exp(squared, 1)
    yield weight
    for _ in range(largest):
        weight = (weight * factor) >> _GUARD_BITS
        factor = (factor * shrink) >> _GUARD_BITS
        yield weight


def _fixed_exp(divisor: Decimal, halves: int) -> int:
    """Return e^(-1 / (halves divisor)) as a multiple of 2^-384."""
    context = _context()
    exponent = context.divide(Decimal(-1), context.multiply(Decimal(halves), divisor))
    scaled = context.multiply(exponent.exp(context), Decimal(1 << _GUARD_BITS))
    return int(scaled.to_integral_value(rounding=ROUND_FLOOR))


def _context() -> Context:
    return Context(prec=_DIGITS, rounding=ROUND_FLOOR)


def _guide(words: NDArray[np.uint64], largest: int) -> NDArray[np.int32]:
    shift = _WORD_BITS - _GUIDE_BITS
    firsts = np.arange(1 << _GUIDE_BITS, dtype=np.uint64) << np.uint64(shift)
    lasts = firsts | np.uint64((1 << shift) - 1)
    # No threshold begins in a cell where both agree, so none can tie there either.
    before = np.searchsorted(words, firsts, side="left")
    after = np.searchsorted(words, lasts, side="right")
    return np.where(before == after, before - largest, _UNDECIDED).astype(np.int32)
