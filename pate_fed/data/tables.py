"""From a table to a data set: labels, privacy units, a split by unit, features."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pate_fed.cells import cell_of, is_missing, parse_number, text_of
from pate_fed.data.csv_file import CsvTable, read_csv
from pate_fed.data.dataset import Dataset, Records
from pate_fed.data.table_features import (
    Column,
    column_of,
    fit_table_encoder,
)
from pate_fed.errors import (
    InvalidCellError,
    InvalidDataError,
    InvalidParameterError,
    MissingColumnError,
    RareClassError,
    TooFewRecordsError,
)

FEWEST_UNITS = 20
"""Fewest patients (or records) that can be split three ways."""

FEWEST_OF_A_CLASS = 3
"""Fewest records of a class: one each for hospitals, pool and test."""

MOST_CLASSES = 100
"""A label with more values is a measurement or a text, not a class."""

_DECIMAL_COMMA = re.compile(r"\s*[+-]?\d+,\d+\s*")
_PRIVATE_SHARE = 0.60
_PRIVATE_AND_POOL_SHARE = 0.85


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Table:
    """A table whose columns have found their roles.

    Attributes:
        columns: Those that may be features.
        labels: Class of each row; int64, shape (rows,).
        class_names: Names of the classes.
        unit_ids: Privacy unit of each row.
        hospitals: Hospital of each row, or None.
    """

    columns: tuple[Column, ...]
    labels: NDArray[np.int64]
    class_names: tuple[str, ...]
    unit_ids: tuple[str, ...]
    hospitals: tuple[str, ...] | None

    def __repr__(self) -> str:
        return f"Table(rows={len(self.labels)}, columns={len(self.columns)})"


def load_csv(
    path: Path,
    *,
    label_column: str,
    patient_column: str | None,
    hospital_column: str | None,
    rng: np.random.Generator,
) -> Dataset:
    """Load a CSV file, split 60/25/15 by privacy unit.

    Args:
        path: The file, plain or gzipped.
        label_column: Column with the class, text or number.
        patient_column: Column that names the patient; None: each row is a patient of its own.
        hospital_column: Column that names the hospital, or None.
        rng: Shuffles the units before they are split.

    Raises:
        UnreadableFileError: the file is no CSV file that can be read.
        MissingColumnError: a named column is absent.
        InvalidCellError: a label, patient or hospital is missing, or a number out of range.
        TooFewRecordsError: fewer than `FEWEST_UNITS` patients.
        RareClassError: a class with fewer than `FEWEST_OF_A_CLASS` records or patients.
        InvalidDataError: one class only, or more than `MOST_CLASSES`, or no feature of use.
        InvalidParameterError: one column in two roles.
    """
    text = read_csv(path)
    table = find_roles(
        text,
        label_column=label_column,
        patient_column=patient_column,
        hospital_column=hospital_column,
    )
    return table_dataset(path.name, table, rng=rng)


def find_roles(
    text: CsvTable,
    *,
    label_column: str,
    patient_column: str | None,
    hospital_column: str | None,
) -> Table:
    """Give each column its role, and check the cells that roles need. Errors as in `load_csv`."""
    roles = [name for name in (label_column, patient_column, hospital_column) if name is not None]
    for name in roles:
        if name not in text.header:
            others = len(text.header)
            hint = "1 column: are the columns separated by commas?" if others == 1 else ""
            raise MissingColumnError(
                f"{text.file_name} must have a column {name!r}",
                hint or f"{others} columns of other names in the first row",
            )
    if len(set(roles)) != len(roles):
        raise InvalidParameterError("label, patient and hospital must be different columns", "one")
    unit_ids = (
        tuple(f"row-{line}" for line in text.lines)
        if patient_column is None
        else known_cells(text, patient_column)
    )
    if len(set(unit_ids)) < FEWEST_UNITS:
        raise TooFewRecordsError(
            f"{text.file_name} must have at least {FEWEST_UNITS} "
            f"{'rows' if patient_column is None else 'patients'}",
            len(set(unit_ids)),
        )
    labels, class_names = _classes(text, label_column)
    features = tuple(read_column(text, name) for name in text.header if name not in roles)
    return Table(
        columns=features,
        labels=labels,
        class_names=class_names,
        unit_ids=unit_ids,
        hospitals=None if hospital_column is None else known_cells(text, hospital_column),
    )


def table_dataset(name: str, table: Table, *, rng: np.random.Generator) -> Dataset:
    """Split a table by privacy unit and encode it with statistics of its pool.

    Raises:
        RareClassError: a class with fewer than `FEWEST_OF_A_CLASS` privacy units.
        InvalidDataError: no feature of use.
    """
    parts = split_by_unit(table.labels, table.unit_ids, rng=rng)
    encoder = fit_table_encoder(table.columns, parts[1])
    private, pool, test = (
        Records(
            features=encoder.apply(table.columns, rows),
            labels=table.labels[rows],
            unit_ids=tuple(table.unit_ids[row] for row in rows),
            hospitals=None
            if table.hospitals is None
            else tuple(table.hospitals[row] for row in rows),
        )
        for rows in parts
    )
    notes = (*_column_notes(table.columns), *_hospital_notes(table.hospitals, private.hospitals))
    return Dataset(name, "table", table.class_names, private, pool, test, notes)


def _column_notes(columns: tuple[Column, ...]) -> Iterator[str]:
    """Note columns that look like numbers and are read as text."""
    for column in columns:
        known = [cell for cell in column.texts or () if not is_missing(cell)]
        numbers = int(np.isfinite(column.numbers).sum())
        if known and len(known) / 2 < numbers < len(known):
            yield (
                f"Column {column.name!r}: {numbers} of {len(known)} cells are numbers, "
                f"{len(known) - numbers} are not."
            )
        elif known and all(_DECIMAL_COMMA.fullmatch(cell) for cell in known):
            yield f"Column {column.name!r} is read as text: are these decimal commas?"


def _hospital_notes(
    hospitals: tuple[str, ...] | None, private: tuple[str, ...] | None
) -> Iterator[str]:
    """Note hospitals without a private record after the split, or with two spellings."""
    if hospitals is None or private is None:
        return
    names, left = set(hospitals), set(hospitals) - set(private)
    if left:
        yield (
            f"{len(left)} of {len(names)} hospitals take no part: all their records fell into "
            "the public pool or the test set."
        )
    spellings = len({" ".join(name.split()).casefold() for name in names})
    if spellings < len(names):
        yield f"{len(names)} hospital names differ in case or spaces only: {spellings} remain."


def split_by_unit(
    labels: NDArray[np.int64], unit_ids: Sequence[str], *, rng: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Split rows 60/25/15; all rows of one unit fall on one side.

    Units are stratified by the rarest class among their rows, so that a rare class reaches all
    three sides.

    Args:
        labels: Class of each row.
        unit_ids: Unit of each row.
        rng: Shuffles the units of each class.

    Returns:
        Shuffled row positions of the private part, the pool and the test.

    Raises:
        RareClassError: a class with fewer than `FEWEST_OF_A_CLASS` units.
    """
    rows_of: dict[str, list[int]] = {}
    for row, unit in enumerate(unit_ids):
        rows_of.setdefault(unit, []).append(row)
    strata = _strata(labels, rows_of)
    sides: tuple[list[str], list[str], list[str]] = ([], [], [])
    for stratum in sorted(strata):
        units = strata[stratum]
        shuffled = [units[place] for place in rng.permutation(len(units))]
        first, second = _cuts(len(shuffled))
        sides[0].extend(shuffled[:first])
        sides[1].extend(shuffled[first:second])
        sides[2].extend(shuffled[second:])
    private, pool, test = (
        rng.permutation(np.array([row for unit in side for row in rows_of[unit]], dtype=np.int64))
        for side in sides
    )
    return private, pool, test


def _strata(labels: NDArray[np.int64], rows_of: dict[str, list[int]]) -> dict[int, list[str]]:
    classes_of = {unit: {int(labels[row]) for row in rows} for unit, rows in rows_of.items()}
    units_of_class = Counter(label for found in classes_of.values() for label in found)
    rarest = min(units_of_class.values())
    if rarest < FEWEST_OF_A_CLASS:
        raise RareClassError(
            f"every class must have records of at least {FEWEST_OF_A_CLASS} patients",
            f"a class with {rarest}",
        )
    strata: dict[int, list[str]] = {}
    for unit, found in classes_of.items():
        stratum = min(found, key=lambda label: (units_of_class[label], label))
        strata.setdefault(stratum, []).append(unit)
    return strata


def _cuts(count: int) -> tuple[int, int]:
    """Choose where to cut `count` units so that each side gets one where there are three."""
    first = max(1, min(round(_PRIVATE_SHARE * count), count - 2))
    second = max(first + 1, min(round(_PRIVATE_AND_POOL_SHARE * count), count - 1))
    return first, min(second, count)


def known_cells(text: CsvTable, name: str) -> tuple[str, ...]:
    """Return the cells of a column without gaps.

    Raises:
        InvalidCellError: one is.
    """
    cells = text.column(name)
    for line, cell in zip(text.lines, cells, strict=True):
        if is_missing(cell):
            raise InvalidCellError(
                f"column {name!r} of {text.file_name} must be filled in every row",
                f"an empty cell in line {line}",
            )
    return cells


def _classes(text: CsvTable, name: str) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    cells = canonical_cells(known_cells(text, name))
    counts = Counter(cells)
    if len(counts) < 2 or len(counts) > MOST_CLASSES:
        raise InvalidDataError(
            f"column {name!r} of {text.file_name} must hold between 2 and {MOST_CLASSES} classes",
            len(counts),
        )
    rarest = min(counts.values())
    if rarest < FEWEST_OF_A_CLASS:
        line = next(
            line for line, cell in zip(text.lines, cells, strict=True) if counts[cell] == rarest
        )
        raise RareClassError(
            f"every class in column {name!r} of {text.file_name} must have at least "
            f"{FEWEST_OF_A_CLASS} records",
            f"a class with {rarest}, first in line {line}",
        )
    names = sorted_names(counts)
    places = {class_name: place for place, class_name in enumerate(names)}
    return np.array([places[cell] for cell in cells], dtype=np.int64), names


def canonical_cells(cells: tuple[str, ...]) -> tuple[str, ...]:
    """Write equal numbers alike (0, 0.0, 00), if all cells are numbers."""
    numbers = {cell: parse_number(cell) for cell in set(cells)}
    if not np.isfinite(list(numbers.values())).all():
        return cells
    written = {cell: text_of(cell_of(cell)) for cell in numbers}
    return tuple(written[cell] for cell in cells)


def sorted_names(names: Iterable[str]) -> tuple[str, ...]:
    """Sort names, by value if all are numbers."""
    listed = sorted(names)
    numbers = {name: parse_number(name) for name in listed}
    if np.isfinite(list(numbers.values())).all():
        listed.sort(key=lambda name: numbers[name])
    return tuple(listed)


def read_column(text: CsvTable, name: str) -> Column:
    """Read a column that may be a feature.

    Raises:
        InvalidCellError: a number that is out of range, in a column of numbers.
    """
    cells = text.column(name)
    parsed = {cell: parse_number(cell) for cell in set(cells)}
    is_numeric = all(is_missing(cell) or not np.isnan(value) for cell, value in parsed.items())
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
    return column_of(name, [read[cell] for cell in cells])
