"""From a table to a data set: labels, privacy units, a split by unit, features."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pate_fed.cells import folded, parse_number, plain
from pate_fed.data.column_review import copies_of_label, uses_of
from pate_fed.data.columns import (
    MOST_CLASSES,
    canonical_cells,
    read_column,
    sorted_names,
)
from pate_fed.data.copies import without_copies
from pate_fed.data.csv_file import CsvTable
from pate_fed.data.dataset import ColumnUse, Dataset, Records
from pate_fed.data.label_questions import questions_of
from pate_fed.data.preprocessing import TablePreprocessing
from pate_fed.data.table_features import Column, TableEncoder, fit_table_encoder
from pate_fed.errors import (
    InvalidDataError,
    InvalidParameterError,
    RareClassError,
    TooFewRecordsError,
)

FEWEST_UNITS = 20
"""Fewest patients (or records) that can be split three ways."""

FEWEST_OF_A_CLASS = 3
"""Fewest records of a class: one each for hospitals, pool and test."""

_PRIVATE_SHARE = 0.60
_PRIVATE_AND_POOL_SHARE = 0.85
_POOL_OF_PUBLIC = 0.6


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Table:
    """A table whose columns have found their roles.

    Attributes:
        labels: int64, shape (rows,). With several, bit l is the answer to label l.
        roles: Use of the other columns.
        lines: Line of the file on which each row ends; empty where nobody could look it up.
        notes: Sentences on how its file was read, those that ask for something first.
    """

    columns: tuple[Column, ...]
    labels: NDArray[np.int64]
    class_names: tuple[str, ...]
    unit_ids: tuple[str, ...]
    hospitals: tuple[str, ...] | None
    roles: tuple[ColumnUse, ...] = ()
    lines: tuple[int, ...] = ()
    label_names: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def answers(self) -> NDArray[np.int64]:
        """Each row's label, or answer to each of several; shape (rows, labels)."""
        if not self.label_names:
            return self.labels[:, np.newaxis]
        return self.labels[:, np.newaxis] >> np.arange(len(self.label_names)) & 1

    def __repr__(self) -> str:
        return f"Table(rows={len(self.labels)}, columns={len(self.columns)})"


@dataclass(frozen=True, slots=True)
class Roles:
    """Roles of the columns of a table.

    Attributes:
        label: Column to predict, or several of yes and no.
        patient: Column that names the patient; None: each row is a patient of its own.
        positive: The class that is told from all others; None to keep all classes.
    """

    label: str | tuple[str, ...]
    patient: str | None = None
    hospital: str | None = None
    ignored: tuple[str, ...] = ()
    positive: str | None = None

    @property
    def labels(self) -> tuple[str, ...]:
        """The columns to predict."""
        return (self.label,) if isinstance(self.label, str) else self.label

    @property
    def named(self) -> tuple[str, ...]:
        """Columns with one role of their own."""
        others = (one for one in (self.patient, self.hospital) if one is not None)
        return (*self.labels, *others)


def find_roles(text: CsvTable, roles: Roles) -> Table:
    """Give each column its role, and check the cells that roles need.

    Raises:
        InvalidCellError: a label, patient or hospital is missing, or a number out of range.
        TooFewRecordsError: fewer than `FEWEST_UNITS` patients.
        RareClassError: a class with fewer than `FEWEST_OF_A_CLASS` records.
        InvalidDataError: one class only, more than `MOST_CLASSES`, classes that differ in spelling
            only, or a column with two units; several labels that are not of the same two classes.
    """
    for name in (*roles.named, *roles.ignored):
        text.column(name)
    if len({*roles.named, *roles.ignored}) != len(roles.named) + len(set(roles.ignored)):
        raise InvalidParameterError(
            "labels, patient, hospital and ignored columns must be different"
        )
    unit_ids = text.unit_ids(roles.patient)
    if len(set(unit_ids)) < FEWEST_UNITS:
        raise TooFewRecordsError(
            f"{text.file_name} must have at least {FEWEST_UNITS} "
            f"{'rows' if roles.patient is None else 'patients'}",
            len(set(unit_ids)),
        )
    labels, class_names = _classes_of_all(text, roles)
    skipped = {*roles.named, *roles.ignored}
    return Table(
        columns=tuple(read_column(text, name) for name in text.header if name not in skipped),
        labels=labels,
        class_names=class_names,
        unit_ids=unit_ids,
        hospitals=None if roles.hospital is None else text.known_cells(roles.hospital),
        roles=tuple(_roles_of(roles)),
        label_names=roles.labels if len(roles.labels) > 1 else (),
    )


def _roles_of(roles: Roles) -> Iterator[ColumnUse]:
    for name in roles.labels:
        yield ColumnUse(name, "label")
    if roles.patient is not None:
        yield ColumnUse(roles.patient, "patient")
    if roles.hospital is not None:
        yield ColumnUse(roles.hospital, "hospital")
    for name in dict.fromkeys(roles.ignored):
        yield ColumnUse(name, "left out", "as asked")


def table_dataset(
    name: str,
    table: Table,
    *,
    rng: np.random.Generator,
    is_public: Sequence[bool] = (),
) -> Dataset:
    """Split a table by privacy unit and encode it with statistics of its pool.

    Args:
        rng: Shuffles the units before they are split 60/25/15.
        is_public: Which rows the publisher meant for the test; none to split all rows. Those are
            split into pool and test, and all others are private.
    """
    parts = (
        _published_split(np.asarray(is_public, dtype=np.bool_), rng=rng)
        if any(is_public)
        else _split(table, rng=rng)
    )
    encoder = fit_table_encoder(table.columns, parts[1])
    private, pool, test = (
        Records(
            features=encoder.apply(table.columns, rows),
            labels=table.labels[rows],
            unit_ids=tuple(table.unit_ids[row] for row in rows),
            hospitals=None
            if table.hospitals is None
            else tuple(table.hospitals[row] for row in rows),
            row_names=tuple(str(table.lines[row]) for row in rows) if table.lines else None,
        )
        for rows in parts
    )
    test, copies = without_copies(test, private, pool)
    if table.label_names:
        private, pool, test = (
            questions_of(part, replace(table, labels=part.labels).answers)
            for part in (private, pool, test)
        )
    notes = (
        *table.notes,
        *_hospital_notes(table.hospitals, private.hospitals),
        *_empty_at_hospitals(table, encoder),
        *_copies_of_labels(table, encoder, parts[1]),
        *copies,
    )
    read = tuple(table.columns[one.position].name for one in encoder.encoders)
    moved = tuple(replace(one, position=place) for place, one in enumerate(encoder.encoders))
    return Dataset(
        name,
        "table",
        table.class_names,
        private,
        pool,
        test,
        notes,
        TablePreprocessing(read, TableEncoder(moved)),
        (*table.roles, *uses_of(table.columns, encoder)),
        table.label_names,
    )


def _copies_of_labels(
    table: Table, encoder: TableEncoder, pool: NDArray[np.int64]
) -> Iterator[str]:
    """Warn of columns that are copies of a label, each once."""
    found = (
        note
        for labels in table.answers.T
        for note in copies_of_label(table.columns, labels, encoder, pool)
    )
    yield from dict.fromkeys(found)


def _split(
    table: Table, *, rng: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Split rows by unit; with several labels, so that each answer to each reaches all sides."""
    answers, labels = table.answers, len(table.label_names) or 1
    if labels == 1:
        return split_by_unit(table.labels, table.unit_ids, rng=rng)
    classes = (answers + 2 * np.arange(labels)).ravel()
    units = [unit for unit in table.unit_ids for _ in range(labels)]
    private, pool, test = (
        part[part % labels == 0] // labels for part in split_by_unit(classes, units, rng=rng)
    )
    return private, pool, test


def _published_split(
    is_public: NDArray[np.bool_], *, rng: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Split rows as the publisher did, and the public ones into pool and test."""
    public = rng.permutation(np.flatnonzero(is_public))
    cut = int(len(public) * _POOL_OF_PUBLIC)
    return rng.permutation(np.flatnonzero(~is_public)), public[:cut], public[cut:]


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
    spelled = Counter(folded(name) for name in names)
    alike = sum(spelled[folded(name)] > 1 for name in names)
    if alike:
        yield (
            f"{alike} of {len(names)} hospital names differ from another in case or spaces only, "
            f"and each is a hospital of its own, {len(names)} in all: write a hospital's name one "
            "way."
        )


def _empty_at_hospitals(table: Table, encoder: TableEncoder) -> Iterator[str]:
    """Note columns in use without any value at a hospital."""
    if table.hospitals is None:
        return
    hospitals = np.array(table.hospitals)
    for one in encoder.encoders:
        column = table.columns[one.position]
        without = set(hospitals) - set(hospitals[~column.missing()])
        if without:
            yield (
                f"Column {column.name!r} has no value at {', '.join(sorted(without))}: what is "
                "missing there counts as the pool's median, or as no category."
            )


def split_by_unit(
    labels: NDArray[np.int64], unit_ids: Sequence[str], *, rng: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Split rows into private part, pool and test, 60/25/15; all rows of a unit fall on one side.

    Units are stratified by the rarest class among their rows, so that a rare class reaches all
    three sides.
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


def _classes_of_all(text: CsvTable, roles: Roles) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Return the labels, as `Table` has them, and the names of the classes."""
    first, *others = roles.labels
    labels, names = _classes(text, first, roles.positive)
    if not others:
        return labels, names
    for place, name in enumerate(others, start=1):
        more, known = _classes(text, name, roles.positive)
        if known != names:
            raise InvalidDataError(
                f"columns {first!r} and {name!r} of {text.file_name} must hold the same two values;"
                " --positive names the one for yes",
                f"{', '.join(names)} and {', '.join(known)}" if len(known) == 2 else len(known),
            )
        labels = labels | more << place
    if len(names) != 2:
        raise InvalidDataError(
            f"each of several labels of {text.file_name} must hold two values; --positive names "
            "the one for yes",
            len(names),
        )
    return labels, names


def _classes(
    text: CsvTable, label: str, positive: str | None
) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    cells = canonical_cells(text.known_cells(label))
    if positive is not None:
        return _one_against_all(text, label, cells, positive)
    counts = Counter(cells)
    where = f"column {label!r} of {text.file_name}"
    if len(counts) > MOST_CLASSES:
        numbers = np.isfinite([parse_number(cell) for cell in counts]).all()
        raise InvalidDataError(
            f"{where} must hold between 2 and {MOST_CLASSES} classes",
            f"{len(counts)} different numbers: this is a measurement, and teachers vote on classes;"
            " make it two, such as above and below a limit"
            if numbers
            else len(counts),
        )
    if len(counts) < 2:
        raise InvalidDataError(f"{where} must hold between 2 and {MOST_CLASSES} classes", 1)
    refuse_spellings(where, counts)
    rarest = min(counts.values())
    if rarest < FEWEST_OF_A_CLASS:
        line = next(
            line for line, cell in zip(text.lines, cells, strict=True) if counts[cell] == rarest
        )
        raise RareClassError(
            f"every class in {where} must have at least {FEWEST_OF_A_CLASS} records",
            f"a class with {rarest}, first in line {line}",
        )
    names = sorted_names(counts)
    places = {class_name: place for place, class_name in enumerate(names)}
    return np.array([places[cell] for cell in cells], dtype=np.int64), names


def refuse_spellings(where: str, names: Iterable[str]) -> None:
    """Refuse classes that differ in capitals or blanks only: nobody means two classes."""
    listed = sorted(names)
    spelled = Counter(folded(name) for name in listed)
    alike = [name for name in listed if spelled[folded(name)] > 1]
    if alike:
        raise InvalidDataError(
            f"{where} must spell each class in one way",
            f"{', '.join(repr(name) for name in alike)}; correct the file, give --map OLD=NEW for "
            "each, or name one with --positive",
        )


def _one_against_all(
    text: CsvTable, label: str, cells: tuple[str, ...], positive: str
) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    wanted = folded(canonical_cells((plain(positive),))[0])
    labels = np.array([folded(cell) == wanted for cell in cells], dtype=np.int64)
    fewest = int(min(labels.sum(), len(labels) - labels.sum()))
    if fewest < FEWEST_OF_A_CLASS:
        raise RareClassError(
            f"column {label!r} of {text.file_name} must hold {positive!r} and something else, at "
            f"least {FEWEST_OF_A_CLASS} times each",
            f"one of them {fewest} times",
        )
    return labels, (f"not {plain(positive)}", plain(positive))
