"""Columns of a table, whosever it is: filled, of equal numbers written alike, of one unit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np

from pate_fed.cells import cell_of, is_missing, measurement, parse_number, text_of
from pate_fed.data.csv_file import CsvTable
from pate_fed.data.table_features import Column, column_of
from pate_fed.errors import InvalidCellError, InvalidDataError

MOST_CLASSES = 100
"""A label with more values is a measurement or a text, not a class."""

_MOSTLY = 0.6


def canonical_cells(cells: tuple[str, ...]) -> tuple[str, ...]:
    """Write equal numbers alike (0, 0.0, 00), if all cells are numbers."""
    numbers = {cell: parse_number(cell) for cell in set(cells)}
    if not np.isfinite(list(numbers.values())).all():
        return cells
    written = {cell: text_of(number + 0.0) for cell, number in numbers.items()}
    return tuple(written[cell] for cell in cells)


def sorted_names(names: Iterable[str]) -> tuple[str, ...]:
    """Sort names, by value if all are numbers."""
    listed = sorted(names)
    numbers = {name: parse_number(name) for name in listed}
    if np.isfinite(list(numbers.values())).all():
        listed.sort(key=lambda name: numbers[name])
    return tuple(listed)


def read_column(text: CsvTable, name: str) -> Column:
    """Read a column that may be a feature."""
    unit, numbers = _measured(text, name)
    cells = text.column(name)
    if numbers:
        cells = tuple(numbers.get(cell, cell) for cell in cells)
    parsed = {cell: parse_number(cell) for cell in set(cells)}
    is_numeric = all(not np.isnan(value) or is_missing(cell) for cell, value in parsed.items())
    if is_numeric and float("inf") in parsed.values():
        line = next(
            line
            for line, cell in zip(text.lines, cells, strict=True)
            if parsed[cell] == float("inf")
        )
        raise InvalidCellError(
            f"numbers in column {name!r} of {text.file_name} must be finite and below 1e100",
            f"another in line {line}",
        )
    read = {cell: cell_of(cell) for cell in parsed}  # in a column of mixed text "inf" is text
    return column_of(name, list(map(read.__getitem__, cells)), unit=unit)


def _measured(text: CsvTable, name: str) -> tuple[str, dict[str, str]]:
    """Return the unit of a column of measurements, and each number; "" and none for others."""
    counted = Counter(text.column(name))
    found = {cell: measurement(cell) for cell in counted if not is_missing(cell)}
    known = {cell: one for cell, one in found.items() if one is not None}
    counts = Counter[str]()
    for cell, (_, its_unit) in known.items():
        counts[its_unit] += counted[cell]
    if len(known) < len(found) or not any(counts):
        return "", {}
    unit, most = counts.most_common(1)[0]
    if len(counts) > 1 and most < _MOSTLY * counts.total():
        return "", {}  # categories that begin with a number
    if len(counts) > 1:
        raise InvalidDataError(
            f"numbers in column {name!r} of {text.file_name} must have one unit; convert them, or "
            "leave the column out with --ignore",
            f"{len(counts)} units",
        )
    return unit, {cell: number for cell, (number, _) in known.items()}
