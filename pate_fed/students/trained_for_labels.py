"""The trained students of several labels, used as scikit-learn's `MultiOutputClassifier` is.

students = load_students("runs/demo/student")
students.predict(frame)            # a column for each of students.labels
students.predict_proba(frame)      # for each label the chances, in the order of its classes
students.by_label["HighBP"]        # one of them, alone
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate_fed.array_models import DESCRIPTION_FILE
from pate_fed.errors import RunDirectoryError
from pate_fed.students.model import read_description
from pate_fed.students.students_of_labels import ONE_PER_LABEL, folder_of_label
from pate_fed.students.trained import TrainedStudent, labels_like, load_student


@dataclass(frozen=True, slots=True)
class TrainedStudents:
    """A trained student for each of several labels; they read the same raw rows.

    Attributes:
        by_label: The students, by label, in the order of the run's labels.
    """

    by_label: Mapping[str, TrainedStudent]

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the labels."""
        return tuple(self.by_label)

    @property
    def classes_(self) -> list[NDArray[Any]]:
        """The two classes of each label."""
        return [one.classes_ for one in self.by_label.values()]

    @property
    def feature_names_in_(self) -> NDArray[Any]:
        """The columns that they read."""
        return next(iter(self.by_label.values())).feature_names_in_

    def predict_proba(self, rows: Any) -> list[NDArray[np.float64]]:
        """Return the chance of each class, label by label; each float64, shape (n, 2).

        Rows and warnings are as for one student.
        """
        inputs = next(iter(self.by_label.values())).inputs_of(rows)
        return [one.student.chances(inputs) for one in self.by_label.values()]

    def predict(self, rows: Any) -> NDArray[Any]:
        """Return the likelier class of each label; shape (n, labels)."""
        chances = self.predict_proba(rows)
        pairs = zip(self.classes_, chances, strict=True)
        return np.stack([classes[one.argmax(axis=1)] for classes, one in pairs], axis=1)

    def score(self, rows: Any, labels: Any) -> float:
        """Return how often all labels of a row are right; `labels` as `predict` returns them."""
        found = self.predict(rows)
        given = labels_like(found, labels, self.classes_)
        return float(np.mean((found == given).all(axis=1)))


def load_students(directory: Path | str) -> TrainedStudents:
    """Read the folder of a student of several labels; see `load_student`."""
    folder = Path(directory)
    labels = labels_in(folder)
    if not labels:
        raise RunDirectoryError("load_students must read students of several labels", "of one")
    found = [load_student(folder_of_label(folder, place)) for place in range(len(labels))]
    if any(one.preprocessing != found[0].preprocessing for one in found):
        raise RunDirectoryError("the students of several labels must read rows alike")
    return TrainedStudents(dict(zip(labels, found, strict=True)))


def labels_in(folder: Path) -> tuple[str, ...]:
    """Return the labels of a student's folder if they are several; otherwise none."""
    described = read_description(folder)
    if described.get("student") != ONE_PER_LABEL:
        return ()
    labels = described.get("labels")
    if not isinstance(labels, list) or len(labels) < 2 or len(set(map(str, labels))) < len(labels):
        raise RunDirectoryError(f"{DESCRIPTION_FILE} must name its labels, each once")
    return tuple(str(one) for one in labels)
