"""Students of trees, for tables whose columns work together: a forest, and boosted trees."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from pate_fed.one_thread import one_thread
from pate_fed.students.logistic import deciding
from pate_fed.students.model import Model, SklearnModel
from pate_fed.students.student import Lesson, Student

_LEAST_LEAF = 15
_LEAF_SHARE = 0.03


class ForestStudent(Student):
    """A random forest on the labeled inputs, the student of the 2018 paper for tables."""

    name: ClassVar[str] = "forest"

    def _learn(self, lesson: Lesson, *, rng: np.random.Generator) -> Model:
        from sklearn.ensemble import RandomForestClassifier  # noqa: PLC0415 - takes a second

        model = RandomForestClassifier(
            n_estimators=200,
            min_samples_leaf=_leaf(lesson),
            n_jobs=1,
            random_state=int(rng.integers(2**31)),
        )
        model.fit(lesson.labeled.features, lesson.labels)
        return deciding(SklearnModel(model, lesson.classes), lesson)


class BoostingStudent(Student):
    """Small boosted trees on the labeled inputs."""

    name: ClassVar[str] = "boosting"

    def _learn(self, lesson: Lesson, *, rng: np.random.Generator) -> Model:
        from sklearn.ensemble import HistGradientBoostingClassifier  # noqa: PLC0415 - a second

        model = HistGradientBoostingClassifier(
            max_iter=40,
            max_leaf_nodes=4,
            min_samples_leaf=_leaf(lesson),
            early_stopping=False,
            random_state=int(rng.integers(2**31)),
        )
        with one_thread():
            model.fit(lesson.labeled.features, lesson.labels)
        return deciding(SklearnModel(model, lesson.classes), lesson)


def _leaf(lesson: Lesson) -> int:
    """Return the fewest labels of a leaf: with fewer, trees would learn the noise."""
    labels = len(lesson.labels)
    return max(1, min(max(_LEAST_LEAF, int(_LEAF_SHARE * labels)), labels // 4))
