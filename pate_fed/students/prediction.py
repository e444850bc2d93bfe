"""A student's labels for a file of raw rows or images."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pate_fed.cells import csv_line
from pate_fed.data.images import read_images
from pate_fed.data.sources import read_table
from pate_fed.data.stored_preprocessing import ImagePreprocessing
from pate_fed.students.trained import load_student


@dataclass(frozen=True, slots=True)
class PredictedLabels:
    """Labels of rows.

    Attributes:
        names: Of each row: its line in the file, or an image's name.
    """

    names: tuple[str, ...]
    class_names: tuple[str, ...]
    chances: NDArray[np.float64]

    @property
    def labels(self) -> tuple[str, ...]:
        """The likeliest class of each row."""
        return tuple(self.class_names[place] for place in self.chances.argmax(axis=1))

    def as_csv(self) -> str:
        """Return a table with "row", "label" and a chance for each class."""
        rows = [("row", "label", *(f"chance of {name}" for name in self.class_names))]
        for name, label, chances in zip(self.names, self.labels, self.chances, strict=True):
            rows.append((name, label, *(f"{chance:.4f}" for chance in chances)))
        return "".join(map(csv_line, rows))

    def as_json(self) -> dict[str, object]:
        """Return the same as plain data."""
        return {
            "class_names": list(self.class_names),
            "rows": [
                {"row": name, "label": label, "chances": [float(one) for one in chances]}
                for name, label, chances in zip(self.names, self.labels, self.chances, strict=True)
            ],
        }


def predict_file(
    directory: Path, rows: Path, *, separator: str = ",", decimal: str = "."
) -> PredictedLabels:
    """Let a student label a file.

    Rows are a CSV or Parquet file; for images a file, a folder or a .npz archive.
    """
    student = load_student(directory)
    if isinstance(student.preprocessing, ImagePreprocessing):
        names, images = read_images(rows, student.preprocessing.encoder.shape)
        return PredictedLabels(names, student.class_names, student.predict_proba(images))
    table = read_table(rows, separator, decimal)
    lines = tuple(str(line) for line in table.lines)
    return PredictedLabels(lines, student.class_names, student.predict_proba(table))
