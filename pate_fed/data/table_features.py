"""Turn the columns of a table into numbers, with statistics of the public pool only."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from pate_fed.cells import Cell, folded, is_missing, text_of
from pate_fed.errors import InvalidDataError

MOST_DEVIATIONS = 8.0
_MOST_CATEGORIES = 50
_RAREST_CATEGORY = 2
_ID_LIKE_SHARE = 0.5
_ID_NAME = re.compile(
    r"(^|[^a-z])(p?id(no|nr|num)|id|ids|no|nr|nbr|num|number|index|key|uuid|mrn)$|id$"
    r"|^column \d+$|^unnamed: ?\d+$",  # without a name: the row numbers of R and of pandas
    re.I,
)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Column:
    """One column of a table before preprocessing.

    Attributes:
        numbers: Each cell as a number, NaN where it is none; float64, shape (rows,).
        texts: Each cell as text, numbers as `text_of` writes them; or None where the source has
            numbers only.
        unit: Unit of its numbers, such as mg/dl, without capitals; empty if they have none.
    """

    name: str
    numbers: NDArray[np.float64]
    texts: tuple[str, ...] | None = None
    unit: str = ""

    def __repr__(self) -> str:
        return f"Column({self.name!r}, rows={len(self.numbers)})"

    def missing(self) -> NDArray[np.bool_]:
        """Tell which cells are not known; bool, shape (rows,)."""
        if self.texts is None:
            return np.isnan(self.numbers)
        unknown = {text for text in set(self.texts) if is_missing(text)}
        return np.fromiter(map(unknown.__contains__, self.texts), np.bool_, len(self.texts))


@dataclass(frozen=True, slots=True)
class NumberEncoder:
    """Standardize a numeric column; a missing value becomes the pool's median.

    Attributes:
        median: Of the pool's known cells.
        mean: Of the pool, after the median filled its gaps.
    """

    position: int
    median: float
    mean: float
    deviation: float
    unit: str = ""

    @property
    def width(self) -> int:
        """Number of features."""
        return 1

    def apply(self, column: Column, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """Encode some rows; shape (rows, 1)."""
        values = column.numbers[rows]
        filled = np.where(np.isnan(values), self.median, values)
        scaled = (filled - self.mean) / self.deviation
        # A bound independent of the data keeps one odd cell from drowning all others.
        return np.clip(scaled, -MOST_DEVIATIONS, MOST_DEVIATIONS)[:, None]


@dataclass(frozen=True, slots=True)
class CategoryEncoder:
    """Turn a text column into one 0/1 feature per category of the pool.

    Texts that differ in capitals or blanks only are one category.

    Attributes:
        categories: Those of the pool, sorted, each in its most frequent spelling; all other cells
            become zeros.
    """

    position: int
    categories: tuple[str, ...]

    @property
    def width(self) -> int:
        """Number of features."""
        return len(self.categories)

    def apply(self, column: Column, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """Encode some rows; shape (rows, categories)."""
        assert column.texts is not None, "a category encoder is fitted on text"
        places = {folded(category): place for place, category in enumerate(self.categories)}
        place_of = {text: places.get(folded(text), -1) for text in set(column.texts)}
        found = np.fromiter(map(place_of.__getitem__, column.texts), np.int64, len(column.texts))
        return np.asarray(found[rows][:, None] == np.arange(len(self.categories)), dtype=np.float64)


@dataclass(frozen=True, slots=True)
class TableEncoder:
    """All that was learned from the pool about a table's columns.

    Attributes:
        encoders: One per column that is used, in the table's order.
        left_out: Why each other column is not used, by its name.
    """

    encoders: tuple[NumberEncoder | CategoryEncoder, ...]
    left_out: Mapping[str, str] = field(default_factory=dict)

    @property
    def features(self) -> int:
        """Length of an input."""
        return sum(one.width for one in self.encoders)

    def apply(self, columns: tuple[Column, ...], rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """Encode rows of the table that it was fitted for; float64, (rows, features), finite."""
        features, place = np.empty((len(rows), self.features)), 0
        for encoder in self.encoders:
            features[:, place : place + encoder.width] = encoder.apply(
                columns[encoder.position], rows
            )
            place += encoder.width
        return features


def fit_table_encoder(columns: tuple[Column, ...], pool: NDArray[np.int64]) -> TableEncoder:
    """Learn from public rows how to encode a table.

    A column is numeric when all known cells of the pool are numbers. Columns that say nothing
    about a new patient are left out: constant in the pool, unknown throughout, or ids.
    """
    fitted = [fit_column(position, column, pool) for position, column in enumerate(columns)]
    used = tuple(encoder for encoder in fitted if not isinstance(encoder, str))
    left_out = {
        column.name: why
        for column, why in zip(columns, fitted, strict=True)
        if isinstance(why, str)
    }
    if not used:
        raise InvalidDataError(
            "a table must have a column, beside label and ids, that varies",
            f"{len(columns)} others",
        )
    return TableEncoder(used, left_out)


def column_of(name: str, cells: Sequence[Cell], *, unit: str = "") -> Column:
    """Return a column of cells, whose numbers have this unit."""
    different = set(cells)
    numbers = {cell: cell if isinstance(cell, float) else math.nan for cell in different}
    texts = {cell: text_of(cell) for cell in different}
    return Column(
        name,
        np.fromiter(map(numbers.__getitem__, cells), np.float64, len(cells)),
        tuple(map(texts.__getitem__, cells)),
        unit,
    )


def fit_column(
    position: int, column: Column, pool: NDArray[np.int64]
) -> NumberEncoder | CategoryEncoder | str:
    """Learn how to encode a column, or say why it is left out; see `fit_table_encoder`."""
    known = pool[~column.missing()[pool]]
    if not len(known):
        return "empty"
    if column.texts is None or np.isfinite(column.numbers[known]).all():
        return _fit_numbers(position, column, pool, known)
    return _fit_categories(position, column, known)


def _fit_numbers(
    position: int, column: Column, pool: NDArray[np.int64], known: NDArray[np.int64]
) -> NumberEncoder | str:
    values = column.numbers[known]
    median = float(np.median(values))
    filled = [*values.tolist(), *[median] * (len(pool) - len(known))]
    # Exact sums: their order and the machine do not matter, so every reader gets these numbers.
    mean = math.fsum(filled) / len(filled)
    deviation = math.sqrt(math.fsum((one - mean) ** 2 for one in filled) / len(filled))
    if deviation <= 1e-12 * max(1.0, abs(median)):
        return "one value"
    if _is_row_id(column.name, values):
        return "an id: another number in each row"
    return NumberEncoder(position, median, mean, deviation, column.unit)


def _is_row_id(name: str, values: NDArray[np.float64]) -> bool:
    whole = bool((values == np.floor(values)).all())
    return whole and len(set(values.tolist())) == len(values) and bool(_ID_NAME.search(name))


def _fit_categories(
    position: int, column: Column, known: NDArray[np.int64]
) -> CategoryEncoder | str:
    assert column.texts is not None, "a column without text is numeric"
    spellings: dict[str, Counter[str]] = {}
    for text, count in Counter(column.texts[row] for row in known).items():
        spellings.setdefault(folded(text), Counter())[text] = count
    if len(spellings) == 1:
        return "one value"
    if len(spellings) > max(2.0, _ID_LIKE_SHARE * len(known)):
        return f"an id or free text: {len(spellings)} different texts in {len(known)} rows"
    counts = {
        min(found, key=lambda text: (-found[text], text)): found.total()
        for found in spellings.values()
    }
    frequent = [text for text, count in counts.items() if count >= _RAREST_CATEGORY]
    kept = sorted(frequent, key=lambda text: (-counts[text], text))[:_MOST_CATEGORIES]
    return CategoryEncoder(position, tuple(sorted(kept))) if kept else "every text once"
