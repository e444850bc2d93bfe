"""Short sketches of queries, which tell close queries from others.

A party keeps a sketch of every answered query for ever, and counts later queries close to one
(decision 15). Two queries are close where one of two views says so.

*As a row*: see `row_sketches`.

*As teachers get it*, since the maker of a task chooses how columns become features. The distance of
two inputs is ``|x - x'| / max(|x|, |x'|, 1)``, Euclidean, over features. A common offset far above
the differences of inputs makes all of them close, and so does a unit far above their length. Center
and scale features, as the tables and images of this library are.

Of the second a sketch is 32 projections on signs that follow from a hospital's secret key and the
number of features, and the length of the input. For d the true distance and T the limit, a pair is
called close where the projections are T apart at most, and the lengths, too. The square of the
former is d^2 times about a chi-square of 32 degrees over 32: a pair at T/2 is missed once in 10^12,
one at 2 T called close once in 200,000, one at T half of the time. An attacker who knows the signs,
as everybody does in a simulation, can choose a difference that fits them, and is missed far below
T: so they depend on a key.

Source: Achlioptas 2003, Database-friendly random projections (signs).
https://doi.org/10.1016/S0022-0000(03)00025-4
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate_fed.errors import InvalidParameterError
from pate_fed.public_rows import PublicRows
from pate_fed.row_sketches import MOST_CELLS, near_rows, no_rows, sketch_rows

PROJECTIONS = 32
SKETCH_BYTES = 4 * (PROJECTIONS + 1 + 2 * MOST_CELLS)
"""Bytes of one sketch, single precision: projections, length, and a row's columns and cells."""

LEAST_NEAR_DISTANCE = 0.02
"""Distance up to which two queries count as close for every hospital. A shorter distance would
serve a query whose sum, beside the earlier one, tells an absent hospital's answer.
"""

Sketches = NDArray[np.float32]
"""Sketches of queries, shape (queries, PROJECTIONS + 1 + 2 * MOST_CELLS): the projections of the
input, its length, then the sketch of its row."""

SHORTEST = 1.0
"""Length that a shorter input counts as: the unit of features as teachers get them."""

_LABEL = b"pate-fed/1/query sketch\0"
_INPUT = slice(PROJECTIONS + 1)
_ROW = slice(PROJECTIONS + 1, None)
_LARGEST = 2.0**60
_ROWS, _COLUMNS = 512, 8192
_ROUNDING = 1e-6
"""Room for rounding in single precision."""


def sketch(
    inputs: NDArray[np.float64], rows: PublicRows | None = None, *, key: bytes = b""
) -> Sketches:
    """Sketch queries.

    Args:
        inputs: Finite features; shape (inputs, features). Beyond 2^60 a value counts as 2^60.
        rows: The public row of each; None in a rehearsal.
        key: Secret from which signs and names follow, the same for all sketches that are compared;
            at most 64 bytes. Empty for the published signs.
    """
    values = np.asarray(inputs, dtype=np.float64)
    if values.ndim != 2 or not values.shape[1] or not np.isfinite(values).all():
        raise InvalidParameterError("inputs must be finite, with 2 axes", str(values.shape))
    values = np.clip(values, -_LARGEST, _LARGEST)
    projections = values @ _signs(values.shape[1], key) / np.sqrt(PROJECTIONS)
    lengths = np.sqrt((values**2).sum(axis=1))
    row_sketches = no_rows(len(values)) if rows is None else sketch_rows(rows, key=key)
    return np.column_stack([projections, lengths, row_sketches]).astype(np.float32)


def near_queries(asked: Sketches, known: Sketches, *, distance: float) -> NDArray[np.bool_]:
    """Tell which queries lie close to a known one, or to an earlier one that is asked with them.

    Memory is bounded for any numbers: blocks of 512 x 8,192 pairs, of similar length.
    """
    _require_distance(distance)
    near = _near_inputs(asked[:, _INPUT], known[:, _INPUT], distance)
    for row, places in enumerate(near_rows(asked[:, _ROW], known[:, _ROW], distance=distance)):
        near[row] |= len(places) > 0
    for row, places in enumerate(near_rows(asked[:, _ROW], asked[:, _ROW], distance=distance)):
        near[row] |= (places < row).any()
    return near


def near_known(asked: Sketches, known: Sketches, *, distance: float) -> NDArray[np.bool_]:
    """Tell which known queries lie close to one of a few asked ones; shape (known,)."""
    near = np.zeros(len(known), dtype=np.bool_)
    for places in neighbors(asked, known, distance=distance):
        near[places] = True
    return near


def neighbors(asked: Sketches, known: Sketches, *, distance: float) -> Iterator[NDArray[np.int64]]:
    """Return, for each query that is asked, the positions of known ones that lie close to it.

    Best for few asked ones, since each is compared with all known ones.
    """
    _require_distance(distance)
    as_rows = near_rows(asked[:, _ROW], known[:, _ROW], distance=distance)
    by_length = np.argsort(known[:, PROJECTIONS], kind="stable")
    inputs = known[by_length, _INPUT]
    for one, places in zip(asked[:, _INPUT], as_rows, strict=True):
        is_near = np.zeros(len(known), dtype=np.bool_)
        is_near[places] = True
        for columns in _spans_of_length(inputs, one[-1:], distance):
            is_near[by_length[columns][_is_near(one, inputs[columns], distance)]] = True
        yield np.flatnonzero(is_near)


def to_bytes(sketches: Sketches) -> list[bytes]:
    """Return each sketch as `SKETCH_BYTES` little-endian bytes."""
    return [row.tobytes() for row in sketches.astype("<f4", copy=False)]


def from_bytes(data: bytes) -> Sketches:
    """Read sketches that follow one another; refuse other lengths, and numbers not finite."""
    if len(data) % SKETCH_BYTES:
        raise InvalidParameterError(f"sketches must have {SKETCH_BYTES} bytes each", len(data))
    sketches = np.frombuffer(data, dtype="<f4").reshape(-1, SKETCH_BYTES // 4)
    if not np.isfinite(sketches).all():
        raise InvalidParameterError("sketches must be finite")
    return sketches.astype(np.float32, copy=False)


def _near_inputs(
    asked: NDArray[np.float32], known: NDArray[np.float32], distance: float
) -> NDArray[np.bool_]:
    """Tell which inputs lie close to a known one, or to one before them."""
    near = np.zeros(len(asked), dtype=np.bool_)
    order = np.argsort(asked[:, -1], kind="stable")
    before = np.full(len(known), -1, dtype=np.int64)  # all of them came before the batch
    for unsorted, when in ((known, before), (asked, np.arange(len(asked)))):
        by_length = np.argsort(unsorted[:, -1], kind="stable")
        others, places = unsorted[by_length], when[by_length]
        for rows in _spans(len(asked), _ROWS):
            some = order[rows]
            for columns in _spans_of_length(others, asked[some, -1], distance):
                waiting = some[~near[some]]
                near[waiting] = _has_near(
                    asked[waiting], waiting, others[columns], places[columns], distance
                )
    return near


def _has_near(
    asked: NDArray[np.float32],
    asked_places: NDArray[np.int64],
    others: NDArray[np.float32],
    places: NDArray[np.int64],
    distance: float,
) -> NDArray[np.bool_]:
    """Tell which rows have a close one among others that came earlier."""
    left, right = asked.astype(np.float64), others.astype(np.float64)
    lengths = np.maximum(left[:, -1], SHORTEST)
    # One product gives |l - r|^2 / |l|^2; in a close pair the longer is at most |l| / (1 - T).
    rows = np.column_stack([-2 * left[:, :-1], _squares(left), np.ones(len(left))])
    columns_of = np.column_stack([right[:, :-1], np.ones(len(right)), _squares(right)])
    pairs = (rows / lengths[:, None] ** 2) @ columns_of.T
    candidates = pairs <= (distance / (1 - distance)) ** 2 + _ROUNDING
    found = np.zeros(len(left), dtype=np.bool_)
    for row in np.flatnonzero(candidates.any(axis=1)):
        columns = np.flatnonzero(candidates[row] & (places < asked_places[row]))
        found[row] = _is_near(left[row], right[columns], distance).any()
    return found


def _is_near(
    one: NDArray[np.floating[Any]], others: NDArray[np.floating[Any]], distance: float
) -> NDArray[np.bool_]:
    """Tell which of the others lie close to one sketch."""
    left, right = np.asarray(one, np.float64), np.asarray(others, np.float64)
    off = ((left[:-1] - right[:, :-1]) ** 2).sum(axis=1)
    longer = np.maximum(np.maximum(left[-1], right[:, -1]), SHORTEST)
    stretch = np.abs(left[-1] - right[:, -1])
    limit = distance * (1 + _ROUNDING) * longer
    is_near: NDArray[np.bool_] = (off <= limit**2) & (stretch <= limit)
    return is_near


def _spans_of_length(
    others: NDArray[np.float32], lengths: NDArray[np.float32], distance: float
) -> Iterator[slice]:
    """Return where sketches, sorted by length, are as long as ones close to these lengths."""
    least, most = float(lengths[0]), max(float(lengths[-1]), SHORTEST)
    least -= distance * (1 + _ROUNDING) * max(least, SHORTEST)
    most *= (1 + 2 * _ROUNDING) / (1 - distance)
    first = int(np.searchsorted(others[:, -1], least, side="left"))
    last = int(np.searchsorted(others[:, -1], most, side="right"))
    return _spans(last, _COLUMNS, start=first)


def _require_distance(distance: float) -> None:
    if not 0 <= distance <= 0.5:
        raise InvalidParameterError("a near distance must be in [0, 0.5]", distance)


def _squares(sketches: NDArray[np.float64]) -> NDArray[np.float64]:
    squares: NDArray[np.float64] = (sketches[:, :-1] ** 2).sum(axis=1)
    return squares


def _signs(features: int, key: bytes) -> NDArray[np.float64]:
    """The signs of a key for a number of features; shape (features, PROJECTIONS)."""
    label = _LABEL + features.to_bytes(8, "big") + key
    stream = hashlib.shake_256(label).digest(features * PROJECTIONS // 8)
    bits = np.unpackbits(np.frombuffer(stream, dtype=np.uint8), bitorder="little")
    return 1.0 - 2.0 * bits.reshape(features, PROJECTIONS).astype(np.float64)


def _spans(end: int, step: int, *, start: int = 0) -> Iterator[slice]:
    for first in range(start, end, step):
        yield slice(first, min(first + step, end))
