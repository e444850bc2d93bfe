"""One look at a table for its owner, before anything is trained: the same at every place.

A simulation, a hospital and an operator give the same sentences about the same table. None shows a
cell, and none a count below a floor.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np

from pate_fed.cells import is_missing
from pate_fed.data.cell_forms import FLOOR, counted
from pate_fed.data.csv_file import CsvTable

_MANY_COLUMNS = 200
_MOST_ALIKE = 0.02
"""Share of equal rows up to which they may be patients under two ids: elsewhere patients look
alike.
"""

_DECIMAL_COMMA = re.compile(r"\s*[+-]?\d+,\d+\s*")


@dataclass(frozen=True, slots=True)
class TableReview:
    """Sentences about a table: questions, which an option answers, and notes."""

    asked: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def sentences(self) -> tuple[str, ...]:
        """All, the questions first."""
        return (*self.asked, *self.notes)


def review(
    text: CsvTable,
    *,
    labels: Collection[str],
    patient: str | None,
    apart: Collection[str] = (),
    is_private: bool = True,
    floor: int = FLOOR,
) -> TableReview:
    """Look at a table whose columns are in the form that everybody reads.

    Args:
        labels: Columns of the label; none of a table of public inputs.
        patient: Column that names the patient; None: each row is a patient of its own.
        apart: Further columns that are no features.
        is_private: Whether its rows are patients'; of public inputs nobody asks whose they are.
        floor: Smallest count that a sentence shows.
    """
    skipped = {*labels, *apart, *([] if patient is None else [patient])}
    features = [name for name in text.header if name not in skipped]
    asked = (*text.asked, *_decimal_commas(text, features))
    if not is_private:
        return TableReview(asked, text.notes)
    units = text.unit_ids(patient)
    about_rows = (
        *_one_class(text, labels),
        *_too_many_columns(len(features), len(set(units))),
        *_rows_again(text, [*labels, *features], units, floor),
        *(["Each row counts as a patient of its own: no column says whose it is."] * (not patient)),
    )
    return TableReview(asked, (*about_rows, *text.notes))


def _decimal_commas(text: CsvTable, features: Collection[str]) -> Iterator[str]:
    for name in features:
        known = [cell for cell in set(text.column(name)) if not is_missing(cell)]
        if known and all(map(_DECIMAL_COMMA.fullmatch, known)):
            yield (
                f"Column {name!r} is read as text: are these decimal commas? Then give --decimal ,"
            )


def _one_class(text: CsvTable, labels: Collection[str]) -> Iterator[str]:
    if labels and all(len(set(text.column(name))) == 1 for name in labels):
        yield "All rows are of one class: teachers here know no other."


def _too_many_columns(columns: int, patients: int) -> Iterator[str]:
    if columns > max(patients, _MANY_COLUMNS):
        yield (
            f"{columns} columns for {patients} patients: teachers learn chance from so many. Leave "
            "out those that do not matter (--ignore-file)."
        )


def _rows_again(
    text: CsvTable, names: Collection[str], units: tuple[str, ...], floor: int
) -> Iterator[str]:
    """Note records that a patient has twice, and rows that are alike but for the patient."""
    columns = [text.column(name) for name in names]
    # Equal hashes are rare, and equal rows have them: few rows are held in memory.
    hashes = np.fromiter(map(hash, zip(*columns, strict=True)), np.int64, len(text.lines))
    _, group, sizes = np.unique(hashes, return_inverse=True, return_counts=True)
    seen = dict[tuple[str, ...], set[str]]()
    again, alike, first = 0, 0, 0
    for row in np.flatnonzero(sizes[group] > 1).tolist():
        patients = seen.setdefault(tuple(cells[row] for cells in columns), set())
        if units[row] in patients:
            again += 1
            first = first or text.lines[row]
        else:
            alike += bool(patients)
        patients.add(units[row])
    if again:
        yield (
            f"Records of one patient that are there twice, in {_rows(again, floor)}, count twice: "
            f"the first in line {first}."
        )
    # Where many rows coincide, as in a table of yes and no, that says nothing about ids.
    if 0 < alike <= max(1, _MOST_ALIKE * len(text.lines)):
        yield (
            f"Rows that equal another patient's in every column: {_rows(alike, floor)}. If a "
            "patient is there under two ids, the guarantee covers each of them only by itself."
        )


def _rows(number: int, floor: int) -> str:
    return counted(number, floor).replace("cells", "rows")
