"""A trained student that takes raw rows and says class names.

student = load_student("runs/demo/student")
student.predict(frame)          # names of classes
student.predict_proba(frame)    # chances, in the order of student.class_names
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate_fed.data.preprocessing import Preprocessing
from pate_fed.data.stored_preprocessing import read_preprocessing
from pate_fed.errors import RunDirectoryError
from pate_fed.inputs import DatasetKind
from pate_fed.students.student import Student
from pate_fed.students.student_choice import read_student


@dataclass(frozen=True, slots=True)
class TrainedStudent:
    """A student with the way from raw rows to its inputs."""

    student: Student
    preprocessing: Preprocessing
    class_names: tuple[str, ...]

    @property
    def kind(self) -> DatasetKind:
        """Kind of the records that it takes: "image" or "table"."""
        return self.preprocessing.kind

    def predict_proba(self, rows: Any) -> NDArray[np.float64]:
        """Return the chance of each class.

        Args:
            rows: Raw rows: a data frame or lists by column name; for images bytes of shape
                (n, height, width) or (n, height, width, channels).

        Returns:
            float64, shape (n, classes), in the order of `class_names`.
        """
        return self.student.chances(self.preprocessing.inputs_of(rows))

    def predict(self, rows: Any) -> NDArray[np.str_]:
        """Return the name of the likeliest class for each row; errors as in `predict_proba`."""
        places = self.predict_proba(rows).argmax(axis=1)
        names: NDArray[np.str_] = np.array(self.class_names)[places]
        return names


def load_student(directory: Path | str) -> TrainedStudent:
    """Read a student's folder. No code in it is run, but take it from people you trust.

    Compiled libraries follow the numbers of trees unchecked: a crafted folder can end the program.
    """
    folder = Path(directory)
    student = read_student(folder)
    preprocessing, class_names = read_preprocessing(folder)
    if len(class_names) != student.classes:
        raise RunDirectoryError(
            f"a student's folder must name its {student.classes} classes", len(class_names)
        )
    return TrainedStudent(student, preprocessing, class_names)
