"""The public way from raw records to a model's inputs, fitted once on the public pool.

It travels with a task to every hospital, and with a student to everybody who uses it, so that raw
rows mean the same everywhere.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from pate_fed.cells import Cell, cell_of, folded, is_missing, measurement, number_of, plain
from pate_fed.data.cell_forms import typed
from pate_fed.data.csv_file import CsvTable
from pate_fed.data.table_features import (
    CategoryEncoder,
    NumberEncoder,
    TableEncoder,
    column_of,
)
from pate_fed.errors import (
    InvalidCellError,
    InvalidDataError,
    MissingColumnError,
)
from pate_fed.inputs import DatasetKind, Inputs

_TRUTHS = {"True": 1.0, "False": 0.0}
_UNKNOWN = ("NAType", "NaTType")
"""Types of the cells that stand for "not known" in data frames."""

_SHOWN = 5
"""Most categories that a warning lists."""

ColumnEncoder = NumberEncoder | CategoryEncoder


class Preprocessing(ABC):
    """How raw records become inputs."""

    kind: ClassVar[DatasetKind]

    @abstractmethod
    def inputs_of(self, raw: Any) -> Inputs:
        """Turn raw records into inputs.

        Args:
            raw: For a table a `CsvTable`, a data frame, or lists of cells by column name; for
                images bytes of shape (n, height, width) or (n, height, width, channels).
        """

    @abstractmethod
    def write(self, directory: Path) -> dict[str, object]:
        """Write its arrays, if it has any, to a folder; return the other facts."""


@dataclass(frozen=True, slots=True)
class TablePreprocessing(Preprocessing):
    """The columns of a table, and how each becomes features.

    Attributes:
        columns: Columns that are read; all others are ignored.
    """

    kind: ClassVar[DatasetKind] = "table"

    columns: tuple[str, ...]
    encoder: TableEncoder

    def inputs_of(self, raw: Any) -> Inputs:
        """See `Preprocessing.inputs_of`."""
        text = table_of(raw)
        named = zip(self.columns, self.cells(text), strict=True)
        columns = tuple(column_of(name, cells) for name, cells in named)
        return Inputs(self.encoder.apply(columns, np.arange(len(text.lines), dtype=np.int64)))

    def unseen(self, text: CsvTable) -> list[str]:
        """Say which columns have categories that the public pool did not have."""
        found = []
        for name, encoder in zip(self.columns, self.encoder.encoders, strict=True):
            if isinstance(encoder, CategoryEncoder) and name in text.header:
                known = {folded(one) for one in encoder.categories}
                texts = column_of(name, self.cells_of(text, name)).texts or ()
                others = [one for one in texts if one and folded(one) not in known]
                if others:
                    some = ", ".join(map(repr, sorted(set(others))[:_SHOWN]))
                    found.append(
                        f"column {name!r}: {len(others)} of {len(text.lines)} rows have a category "
                        f"that the public pool did not have, and count as none of them: {some}"
                    )
        return found

    def cells(self, text: CsvTable) -> list[tuple[Cell, ...]]:
        """Return the cells of its columns, each in its one form, without units."""
        missing = [name for name in self.columns if name not in text.header]
        if missing and len(text.header) > 1:
            raise MissingColumnError(
                f"{text.file_name} must have the columns {', '.join(map(repr, self.columns))}",
                f"none called {', '.join(map(repr, missing))}",
            )
        return [
            _cells_for(text, name, encoder)
            for name, encoder in zip(self.columns, self.encoder.encoders, strict=True)
        ]

    def cells_of(self, text: CsvTable, name: str) -> tuple[Cell, ...]:
        """Return the cells of one of its columns; see `cells`."""
        return _cells_for(text, name, self.encoder.encoders[self.columns.index(name)])

    def fields(self) -> list[dict[str, object]]:
        """Return its columns as plain data."""
        return [
            _column_fields(name, encoder)
            for name, encoder in zip(self.columns, self.encoder.encoders, strict=True)
        ]

    def write(self, directory: Path) -> dict[str, object]:  # noqa: ARG002 - it has no arrays
        """See `Preprocessing.write`."""
        return {"columns": self.fields()}

    @classmethod
    def from_fields(cls, fields: list[Any]) -> TablePreprocessing:
        """Restore it from `fields`; anything else is a TypeError or a LookupError."""
        if not fields:
            raise LookupError("columns")
        return cls(
            tuple(exactly(one["name"], str) for one in fields),
            TableEncoder(tuple(_column_encoder(one, place) for place, one in enumerate(fields))),
        )


def table_of(rows: Any) -> CsvTable:
    """Return raw rows as a typed table, from anything with columns of one length by name."""
    if isinstance(rows, CsvTable):
        return typed(rows)
    names = list(rows) if isinstance(rows, Mapping) else list(getattr(rows, "columns", ()))
    if not names or not all(isinstance(name, str) for name in names):
        raise InvalidDataError(
            "rows must have columns by name, as a data frame or a dictionary of lists has",
            type(rows).__name__,
        )
    columns = tuple(tuple(_text(cell) for cell in rows[name]) for name in names)
    if len({len(column) for column in columns}) != 1:
        raise InvalidDataError("all columns must be equally long")
    lines = tuple(range(1, len(columns[0]) + 1))
    return typed(CsvTable("rows", tuple(plain(name) for name in names), columns, lines))


def _text(cell: object) -> str:
    if cell is None or type(cell).__name__ in _UNKNOWN:
        return ""
    if isinstance(cell, float | np.floating) and np.isnan(cell):
        return ""
    return plain(str(cell))


def _cells_for(text: CsvTable, name: str, encoder: ColumnEncoder) -> tuple[Cell, ...]:
    cells = text.column(name)
    if isinstance(encoder, CategoryEncoder):
        read = {cell: cell_of(cell) for cell in set(cells)}
        return tuple(read[cell] for cell in cells)
    numbers = {cell: _number(cell, encoder.unit) for cell in set(cells)}
    for line, cell in zip(text.lines, cells, strict=True):
        # A comma for a point would else become the median without a word.
        if isinstance(numbers[cell], str):
            unit = f" (in {encoder.unit})" if encoder.unit else ""
            raise InvalidCellError(
                f"cells of column {name!r} of {text.file_name} must be numbers below 1e100{unit}, "
                "or empty; --missing VALUE names one that stands for “not known”",
                f"another in line {line}",
            )
    return tuple(numbers[cell] for cell in cells)


def _number(cell: str, unit: str) -> Cell:
    if cell in _TRUTHS:  # of a data frame, where the file had 0 and 1
        return _TRUTHS[cell]
    found = None if is_missing(cell) or not unit else measurement(cell)
    return number_of(found[0] if found is not None and found[1] in ("", unit) else cell)


def _column_fields(name: str, encoder: ColumnEncoder) -> dict[str, object]:
    if isinstance(encoder, CategoryEncoder):
        return {"name": name, "categories": list(encoder.categories)}
    return {
        "name": name,
        "median": float(encoder.median),
        "mean": float(encoder.mean),
        "deviation": float(encoder.deviation),
        "unit": encoder.unit,
    }


def _column_encoder(fields: Any, place: int) -> ColumnEncoder:
    if type(fields) is not dict:
        raise TypeError
    if set(fields) == {"name", "categories"}:
        listed = exactly(fields["categories"], list)
        return CategoryEncoder(place, tuple(exactly(one, str) for one in listed))
    if set(fields) != {"name", "median", "mean", "deviation", "unit"}:
        raise TypeError
    median, mean, deviation = (
        exactly(fields[one], float) for one in ("median", "mean", "deviation")
    )
    return NumberEncoder(place, median, mean, deviation, exactly(fields["unit"], str))


def exactly(value: Any, kind: type) -> Any:
    """Return a value that was read if it is of exactly this type; otherwise a TypeError."""
    if type(value) is not kind:
        raise TypeError
    return value
