"""A student's labels for a file of raw rows or images."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from pate_fed.cells import csv_line
from pate_fed.data.csv_file import CsvTable
from pate_fed.data.images import read_images
from pate_fed.data.reading import USUAL, Reading, read_table
from pate_fed.data.stored_preprocessing import ImagePreprocessing
from pate_fed.errors import InvalidDataError
from pate_fed.students.trained import TrainedStudent, load_student
from pate_fed.students.trained_for_labels import labels_in, load_students
from pate_fed.wording import sets_promise

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class PredictedLabels:
    """Labels of rows.

    Attributes:
        names: Of each row: its line in the file, or an image's name.
        in_set: Which classes are in the set of each row, of a student with sets; shape as
            `chances`.
        kept: Cells of columns that go along, by the column's name.
        notes: What a reader of the labels must know of the rows.
    """

    names: tuple[str, ...]
    class_names: tuple[str, ...]
    chances: NDArray[np.float64]
    in_set: NDArray[np.bool_] | None = None
    kept: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def labels(self) -> tuple[str, ...]:
        """The likeliest class of each row."""
        return tuple(self.class_names[place] for place in self.chances.argmax(axis=1))

    def set_of(self, place: int) -> tuple[str, ...]:
        """Return the set of one row, of a student with sets."""
        assert self.in_set is not None
        return tuple(compress(self.class_names, self.in_set[place]))

    def as_csv(self) -> str:
        """Return a table: "row", the kept columns, "label", the set and a chance for each class."""
        sets = () if self.in_set is None else ("set",)
        chance_names = (f"chance of {one}" for one in self.class_names)
        rows = [("row", *self.kept, "label", *sets, *chance_names)]
        for place, (name, label) in enumerate(zip(self.names, self.labels, strict=True)):
            cells = (column[place] for column in self.kept.values())
            chances = (f"{chance:.4f}" for chance in self.chances[place])
            held = (" or ".join(self.set_of(place)) for _ in sets)  # a | would be escaped
            rows.append((name, *cells, label, *held, *chances))
        return "".join(map(csv_line, rows))

    def as_json(self) -> dict[str, object]:
        """Return the same as plain data."""
        return {
            "class_names": list(self.class_names),
            "notes": list(self.notes),
            "rows": [
                {
                    "row": name,
                    "kept": {one: column[place] for one, column in self.kept.items()},
                    "label": label,
                    **({} if self.in_set is None else {"set": list(self.set_of(place))}),
                    "chances": self.chances[place].tolist(),
                }
                for place, (name, label) in enumerate(zip(self.names, self.labels, strict=True))
            ],
        }


@dataclass(frozen=True, slots=True)
class PredictedAnswers:
    """Several labels of rows: those of each, by its name."""

    by_label: Mapping[str, PredictedLabels]

    @property
    def _first(self) -> PredictedLabels:
        return next(iter(self.by_label.values()))

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the labels must know of the rows."""
        return self._first.notes

    def as_csv(self) -> str:
        """Return a table: "row", the kept columns, each label's class and chance of yes."""
        first = self._first
        yes = first.class_names[1]
        heads = (head for name in self.by_label for head in (name, f"chance of {name} {yes}"))
        rows: list[tuple[str, ...]] = [("row", *first.kept, *heads)]
        for place, name in enumerate(first.names):
            cells = (column[place] for column in first.kept.values())
            said = (
                text
                for one in self.by_label.values()
                for text in (one.labels[place], f"{one.chances[place, 1]:.4f}")
            )
            rows.append((name, *cells, *said))
        return "".join(map(csv_line, rows))

    def as_json(self) -> dict[str, object]:
        """Return the same as plain data."""
        return {"labels": {name: one.as_json() for name, one in self.by_label.items()}}


def predict_file(
    directory: Path,
    rows: Path,
    *,
    reading: Reading = USUAL,
    keep: Sequence[str] = (),
) -> PredictedLabels | PredictedAnswers:
    """Let a student label a file.

    Rows are a CSV or Parquet file; for images a file, a folder or a .npz archive. `keep` names
    columns of a table that go along, such as a patient's id.
    """
    if not labels_in(directory):
        student = load_student(directory)
        read = _read(student, rows, reading, keep)
        return _predicted(student, read, *_noting(student.predict_proba, read.raw))
    students = load_students(directory)
    read = _read(students.by_label[students.labels[0]], rows, reading, keep)
    chances, notes = _noting(students.predict_proba, read.raw)
    each = zip(students.by_label.items(), chances, strict=True)
    return PredictedAnswers(
        {label: _predicted(student, read, found, notes) for (label, student), found in each}
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Rows:
    """Rows of a file, as a student takes them, with their names and the columns that go along."""

    names: tuple[str, ...]
    raw: CsvTable | NDArray[np.uint8]
    kept: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def _read(student: TrainedStudent, rows: Path, reading: Reading, keep: Sequence[str]) -> _Rows:
    if isinstance(student.preprocessing, ImagePreprocessing):
        if keep:
            raise InvalidDataError("--keep must be for a student of tables", "images")
        return _Rows(*read_images(rows, student.preprocessing.reading))
    table = read_table(rows, reading)
    kept = {name: table.column(name) for name in keep}
    return _Rows(tuple(str(line) for line in table.lines), table, kept)


def _noting(predict: Callable[[Any], Found], raw: Any) -> tuple[Found, tuple[str, ...]]:
    """Return what is predicted, and what it warned of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = predict(raw)
    return found, tuple(str(one.message) for one in caught)


def _predicted(
    student: TrainedStudent, rows: _Rows, chances: NDArray[np.float64], notes: tuple[str, ...]
) -> PredictedLabels:
    sets = student.student.sets
    if sets is not None:
        promise = sets_promise(sets.coverage, labels=sets.labels, labels_needed=sets.labels_needed)
        notes = (*notes, f"Sets: {promise}.")
    return PredictedLabels(
        names=rows.names,
        class_names=student.class_names,
        chances=chances,
        in_set=student.student.sets_from(chances),
        kept=rows.kept,
        notes=notes,
    )
