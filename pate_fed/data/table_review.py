"""One look at a table for its owner, before anything is trained: the same at every place.

A simulation, a hospital and an operator give the same sentences about the same table. None shows a
cell, and none a count below a floor.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np

from pate_fed.cells import MISSING_NUMBERS, folded, parse_number
from pate_fed.data.cell_forms import FLOOR, counted, is_typical
from pate_fed.data.csv_file import CsvTable

_MANY_COLUMNS = 200
_MANY_CLASSES = 20
_MOST_ALIKE = 0.02
"""Share of equal rows up to which they may be patients under two ids: elsewhere patients look
alike.
"""


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
    about_file = (*_spoiled_letters(text), *text.asked)
    if not is_private:
        return TableReview(about_file, text.notes)
    asked = (*_ids_asked(text, patient, floor), *_labels_asked(text, labels), *about_file)
    units = text.unit_ids(patient)
    about_rows = (
        *_one_class(text, labels),
        *_too_many_columns(len(features), len(set(units))),
        *_rows_again(text, [*labels, *features], units, floor),
        *(["Each row counts as a patient of its own: no column says whose it is."] * (not patient)),
    )
    return TableReview(asked, (*about_rows, *text.notes))


def _labels_asked(text: CsvTable, labels: Collection[str]) -> Iterator[str]:
    """Ask about classes that stand for "not known", and about numbers beside words."""
    for name in labels:
        classes = sorted(set(text.column(name)))
        numbers = [one for one in classes if math.isfinite(parse_number(one))]
        words = [one for one in classes if one not in numbers]
        unknown = [one for one in words if one.lower() in MISSING_NUMBERS]
        if len(numbers) > 2 and not words:
            unknown = [one for one in numbers if _is_outside(one, numbers)]
        if unknown:
            asked = " ".join(f"--missing '{name}={one}'" for one in unknown)
            yield (
                f"Label {name!r} has the class {', '.join(map(repr, unknown))}: if it stands for "
                f"“not known”, give {asked} --drop-unlabeled"
            )
        if numbers and set(words) - set(unknown):
            yield (
                f"Label {name!r} has numbers and words as classes: if some of them are one class, "
                "give --map OLD=NEW for each."
            )
        if len(numbers) > _MANY_CLASSES and not words:
            yield (
                f"Label {name!r} has {len(numbers)} numbers as classes: if it is a measurement, "
                "make it two classes, such as above and below a limit."
            )


def _spoiled_letters(text: CsvTable) -> Iterator[str]:
    """Ask about UTF-8 that some program took for Latin-1: its words are nobody else's."""
    spoiled = [
        name
        for name, cells in zip(text.header, text.columns, strict=True)
        if any(map(_is_spoiled, (name, *set(cells))))
    ]
    if spoiled:
        yield (
            f"Letters in {', '.join(map(repr, spoiled))} look spoiled: a program took UTF-8 for "
            "another encoding. Export the table again, as CSV UTF-8."
        )


def _is_spoiled(word: str) -> bool:
    """Tell whether a word's bytes in Windows-1252 are UTF-8: hardly ever by chance."""
    if word.isascii():
        return False
    try:
        word.encode("cp1252").decode("utf-8")
    except UnicodeError:
        return "\ufffd" in word
    return True


def _is_outside(name: str, numbers: Collection[str]) -> bool:
    """Tell whether a class is a number that people write for "not known", such as 9 beside 0, 1."""
    value, others = parse_number(name), [abs(parse_number(one)) for one in numbers if one != name]
    return is_typical(value) or (value in (7, 8, 9) and sorted(others)[len(others) // 2] < 4)


def _ids_asked(text: CsvTable, patient: str | None, floor: int) -> Iterator[str]:
    """Ask about ids that a program wrote in two ways: one patient would have two."""
    if patient is None:
        return
    spelled = Counter(
        folded(one).removesuffix(".0").lstrip("0") for one in set(text.column(patient))
    )
    alike = sum(number for number in spelled.values() if number > 1)
    if alike:
        yield (
            f"Ids in {patient!r} that differ only in capitals, zeros before them or .0 after them: "
            f"{counted(alike, floor).replace('cells', 'ids')}. Write each patient's id one way: "
            "epsilon counts a patient with two ids as two."
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
