"""A student for tables: logistic regression, as cautious as the labels are noisy."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from pate_fed.class_shares import share_offsets
from pate_fed.one_thread import one_thread
from pate_fed.students.facts import LabelFacts
from pate_fed.students.model import Model, SklearnModel
from pate_fed.students.student import Lesson, Student

_USUAL = 0.3
_LEAST, _MOST = 1e-5, 1.0


class LogisticStudent(Student):
    """Logistic regression on the labeled inputs, with classes weighed alike.

    The penalty follows from public numbers: C = N^2 / (20 d sigma^2), for N votes, noise of sigma
    votes and d features. It then shifts the classes' chances, such that each is decided for its
    share of the pool (`LabelFacts.decided_shares`).
    """

    name: ClassVar[str] = "logistic"

    def _learn(self, lesson: Lesson, *, rng: np.random.Generator) -> Model:
        from sklearn.linear_model import LogisticRegression  # noqa: PLC0415 - takes a second

        strength = _strength(lesson.facts, features=lesson.pool.features.shape[1])
        estimator = LogisticRegression(
            C=strength,
            class_weight="balanced",
            max_iter=5000,
            random_state=int(rng.integers(2**31)),
        )
        with one_thread():
            estimator.fit(lesson.labeled.features, lesson.labels)
        return deciding(SklearnModel(estimator, lesson.classes), lesson)


def deciding(model: SklearnModel, lesson: Lesson) -> SklearnModel:
    """Shift a model's chances, such that each class is decided for its share of the pool."""
    wanted = lesson.facts.decided_shares(lesson.classes, lesson.labels)
    if wanted is None:
        return model
    scores = np.log(model.chances(lesson.pool))
    scores[:, np.setdiff1d(np.arange(lesson.classes), lesson.labels)] = -np.inf  # never learned
    offsets = share_offsets(scores, wanted)
    return SklearnModel(model.estimator, model.classes, offsets)


def _strength(facts: LabelFacts, *, features: int) -> float:
    if not facts.votes or not facts.sigma:
        return _USUAL
    return float(np.clip(facts.votes**2 / (20 * features * facts.sigma**2), _LEAST, _MOST))
