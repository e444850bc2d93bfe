"""A student that learns from the labeled inputs alone, and the classifiers of all students."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from pate_fed.inputs import DatasetKind
from pate_fed.students.logistic import deciding
from pate_fed.students.model import Model, SklearnModel
from pate_fed.students.student import Lesson, Student


class SupervisedStudent(Student):
    """A classifier on the labeled inputs: the plain baseline."""

    name: ClassVar[str] = "supervised"

    def _learn(self, lesson: Lesson, *, rng: np.random.Generator) -> Model:
        classifier = make_classifier(self.kind, rng=rng)
        classifier.fit(lesson.labeled.features, lesson.labels)
        return deciding(SklearnModel(classifier, lesson.classes), lesson)


def make_classifier(kind: DatasetKind, *, rng: np.random.Generator) -> Any:
    """Make an untrained scikit-learn classifier that suits the inputs.

    Images get a support vector machine with an RBF kernel, tables a logistic regression: on a
    few dozen noisy labels of a table, a line is safer than a curve.
    """
    from sklearn.linear_model import LogisticRegression  # noqa: PLC0415 - takes a second
    from sklearn.svm import SVC  # noqa: PLC0415

    seed = int(rng.integers(2**31))
    if kind == "image":
        return SVC(C=5.0, gamma="scale", random_state=seed)
    return LogisticRegression(C=0.3, max_iter=5000, random_state=seed)
