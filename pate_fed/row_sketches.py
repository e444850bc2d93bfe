"""Short sketches of public rows, which tell close rows from others.

Two rows are close where every text and every missing cell is equal, and every number agrees within
one percent (near zero within a hundredth). Precisely: numbers, written ``asinh(x)``, are T/2 apart
at most. It depends on no pool, no encoder and no record (decision 15).

Only columns that both rows have are compared. Few other columns are allowed: a quarter of the
longer row's, or one added to all of the shorter row's. A column of another name is another one.

Of a row at most 64 cells are kept: those whose columns have the smallest names, where a name is a
number that follows from the hospital's secret key. So all rows are sampled in the same columns, and
nobody else knows which.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from math import asinh

import numpy as np
from numpy.typing import NDArray

from pate_fed.cells import Cell
from pate_fed.public_rows import PublicRows

MOST_CELLS = 64
"""Most cells of a row that are kept."""

RowSketches = NDArray[np.float32]
"""Sketches of rows, shape (rows, 2 * MOST_CELLS): the names of columns, ascending, then their
cells. Names are whole numbers; -1 marks a missing column.
"""

_NO_NAME = -1.0
_MISSING, _FIRST_TEXT, _TEXTS = -1000.0, 1000, 2**23
"""Codes of cells that are no numbers: asinh of the largest number is 231."""

_MOST_OTHER_COLUMNS = 1 / 4
_FEW = 1 / 8
_ROUNDING = 1e-6
"""Room for rounding in single precision."""


def sketch_rows(rows: PublicRows, *, key: bytes) -> RowSketches:
    """Sketch public rows.

    Names follow from a secret key of at most 64 bytes; without one they are published.
    """
    # Of two columns with the same number the one with the first name is kept.
    by_number = {_number(key, b"column", name): name for name in sorted(rows.columns, reverse=True)}
    named = sorted(by_number.items())[:MOST_CELLS]
    places = [rows.columns.index(name) for _, name in named]
    sketches = no_rows(len(rows))
    sketches[:, : len(named)] = [number for number, _ in named]
    for sketch, row in zip(sketches, rows.cells, strict=True):
        cells = [_value(row[place], rows.columns[place], key) for place in places]
        sketch[MOST_CELLS : MOST_CELLS + len(cells)] = cells
    return sketches


def no_rows(count: int) -> RowSketches:
    """Return sketches of queries that have no rows: close to nothing."""
    sketches = np.zeros((count, 2 * MOST_CELLS), dtype=np.float32)
    sketches[:, :MOST_CELLS] = _NO_NAME
    return sketches


def near_rows(
    asked: RowSketches, known: RowSketches, *, distance: float
) -> Iterator[NDArray[np.int64]]:
    """Return, for each row that is asked, the positions of known rows that lie close to it."""
    tables = list(_tables(known))
    apart = distance / 2 + _ROUNDING
    for one in asked:
        found = [table.near(one, apart) for table in tables]
        yield np.concatenate([np.empty(0, dtype=np.int64), *found])


@dataclass(frozen=True, slots=True, eq=False)
class _SketchTable:
    """Known rows of the same columns.

    Attributes:
        places: Where they stand among all known rows; shape (rows,).
    """

    names: NDArray[np.float32]
    cells: NDArray[np.float32]
    places: NDArray[np.int64]

    def near(self, one: NDArray[np.float32], apart: float) -> NDArray[np.int64]:
        """Return the positions of rows of which no cell is further apart than `apart`."""
        names = _names_of(one)
        _, mine, theirs = np.intersect1d(names, self.names, assume_unique=True, return_indices=True)
        shorter, longer = sorted((len(names), len(self.names)))
        is_added = len(mine) == shorter == longer - 1
        has_few_others = longer - len(mine) <= _MOST_OTHER_COLUMNS * longer
        if not len(mine) or not (is_added or has_few_others):
            return np.empty(0, dtype=np.int64)
        pairs = zip(one[MOST_CELLS + mine], theirs, strict=True)
        is_left = np.ones(len(self.places), dtype=np.bool_)
        for cell, column in pairs:  # whole columns are faster than many picked places
            is_left &= np.abs(self.cells[column] - cell) <= apart
            if np.count_nonzero(is_left) <= _FEW * len(is_left):
                break
        left = np.flatnonzero(is_left)
        for cell, column in pairs:
            left = left[np.abs(self.cells[column][left] - cell) <= apart]
        return self.places[left]


def _tables(known: RowSketches) -> Iterator[_SketchTable]:
    """Sort known rows by their columns."""
    places_of: dict[bytes, list[int]] = {}
    for place, names_there in enumerate(known[:, :MOST_CELLS]):
        places_of.setdefault(names_there.tobytes(), []).append(place)
    for listed in places_of.values():
        places = np.array(listed, dtype=np.int64)
        names = _names_of(known[listed[0]])
        cells = np.ascontiguousarray(known[places, MOST_CELLS : MOST_CELLS + len(names)].T)
        yield _SketchTable(names, cells, places)


def _names_of(sketch: NDArray[np.float32]) -> NDArray[np.float32]:
    names: NDArray[np.float32] = sketch[:MOST_CELLS][sketch[:MOST_CELLS] != _NO_NAME]
    return names


def _value(cell: Cell, column: str, key: bytes) -> float:
    if cell is None:
        return _MISSING
    if isinstance(cell, float):
        return asinh(cell)
    return float(_FIRST_TEXT + _number(key, b"text", f"{column}\0{cell}"))


def _number(key: bytes, what: bytes, text: str) -> int:
    """Return a number below 2^23 that nobody without the key can foresee."""
    digest = hashlib.blake2b(text.encode(), key=key, digest_size=8, person=b"pate-fed " + what)
    return int.from_bytes(digest.digest(), "big") % _TEXTS
