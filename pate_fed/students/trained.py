"""A trained student that takes raw rows and says class names.

student = load_student("runs/demo/student")
student.predict(frame)          # classes
student.predict_proba(frame)    # chances, in the order of student.classes_
student.score(frame, diagnoses)
student.predict_set(frame)      # which classes it cannot exclude, of a run with --coverage
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate_fed.data.preprocessing import Preprocessing, TablePreprocessing, table_of
from pate_fed.data.stored_preprocessing import read_preprocessing
from pate_fed.errors import InvalidParameterError, RunDirectoryError
from pate_fed.inputs import DatasetKind, Inputs
from pate_fed.students.student import Student
from pate_fed.students.student_choice import read_student

_IS_WHOLE = re.compile(r"0|-?[1-9][0-9]{0,17}").fullmatch


@dataclass(frozen=True, slots=True)
class TrainedStudent:
    """A student with the way from raw rows to its inputs, used as scikit-learn's classifiers are.

    It is trained, so it has no `fit`.
    """

    student: Student
    preprocessing: Preprocessing
    class_names: tuple[str, ...]

    @property
    def kind(self) -> DatasetKind:
        """Kind of the records that it takes: "image" or "table"."""
        return self.preprocessing.kind

    @property
    def classes_(self) -> NDArray[Any]:
        """The classes; whole numbers if all of them are, as labels of 0 and 1, else names."""
        if all(_IS_WHOLE(name) for name in self.class_names):
            return np.array([int(name) for name in self.class_names], dtype=np.int64)
        return np.array(self.class_names)

    @property
    def feature_names_in_(self) -> NDArray[Any]:
        """The columns that it reads; of a student of tables."""
        if not isinstance(self.preprocessing, TablePreprocessing):
            raise AttributeError("a student of images reads no columns")  # noqa: TRY004 - hasattr
        return np.array(self.preprocessing.columns, dtype=object)

    def predict_proba(self, rows: Any) -> NDArray[np.float64]:
        """Return the chance of each class.

        Args:
            rows: Raw rows: a data frame or lists by column name; for images bytes of shape
                (n, height, width) or (n, height, width, channels).

        Returns:
            float64, shape (n, classes), in the order of `classes_`.

        Warns:
            UserWarning: cells of a category that the public pool did not have.
        """
        return self.student.chances(self.inputs_of(rows))

    def inputs_of(self, rows: Any) -> Inputs:
        """Return raw rows as the student's inputs; rows and warnings as in `predict_proba`."""
        if isinstance(self.preprocessing, TablePreprocessing):
            rows = table_of(rows)
            for said in self.preprocessing.unseen(rows):
                warnings.warn(said, stacklevel=3)
        return self.preprocessing.inputs_of(rows)

    def predict(self, rows: Any) -> NDArray[Any]:
        """Return the likeliest of `classes_` for each row; errors as in `predict_proba`."""
        return np.asarray(self.classes_[self.predict_proba(rows).argmax(axis=1)])

    def predict_set(self, rows: Any) -> NDArray[np.bool_]:
        """Tell which classes are in the set of each row; see `LabelSets` for its coverage.

        Returns:
            bool, shape (n, classes), in the order of `classes_`; no row is without a class.

        Raises:
            InvalidParameterError: its run was without --coverage.
            Others as in `predict_proba`.
        """
        if self.student.sets is None:
            raise InvalidParameterError(
                "sets need a student whose run held labels out for them: --coverage", "none held"
            )
        return self.student.sets.of(self.predict_proba(rows))

    def score(self, rows: Any, labels: Any) -> float:
        """Return how often the likeliest class is the label.

        Raises:
            InvalidParameterError: not a label for each row, or none that is one of `classes_`.
            Others as in `predict_proba`.
        """
        found = self.predict(rows)
        return float(np.mean(found == labels_like(found, labels, [self.classes_])))

    def __sklearn_tags__(self) -> Any:
        """Say that it is a classifier, for scikit-learn's scorers and displays."""
        from sklearn.utils import ClassifierTags, Tags, TargetTags  # noqa: PLC0415 - takes a second

        return Tags(
            estimator_type="classifier",
            target_tags=TargetTags(required=True),
            classifier_tags=ClassifierTags(multi_class=len(self.class_names) > 2),
        )


def labels_like(found: NDArray[Any], labels: Any, classes: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Return labels to compare with those that were found; a column for each of several labels.

    Refuses, as an InvalidParameterError, another shape, and columns without a label of its
    classes: 0 and 1 beside names, for example, of which every one would count as wrong.
    """
    given = np.asarray(labels)
    if given.shape != found.shape:
        raise InvalidParameterError(
            f"labels must be of shape {found.shape}, one for each that is predicted",
            str(given.shape),
        )
    columns = given.T if given.ndim > 1 else [given]
    for column, known in zip(columns, classes, strict=True):
        if len(column) and not set(column.tolist()) & set(known.tolist()):
            raise InvalidParameterError(
                f"labels must be some of {', '.join(map(repr, known.tolist()))}", "none of them"
            )
    return given


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
