"""A student for tables: logistic regression, as cautious as the labels are noisy."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from pate_fed.students.facts import LabelFacts
from pate_fed.students.model import Model, SklearnModel, read_sklearn
from pate_fed.students.student import Lesson, Student

_USUAL = 0.3
_LEAST, _MOST = 1e-5, 1.0
_STEPS = 60


class LogisticStudent(Student):
    """Logistic regression on the labeled inputs, with classes weighed alike.

    The penalty follows from public numbers: C = N^2 / (20 d sigma^2), for N votes, noise of sigma
    votes and d features. It then shifts the classes' chances, such that each is decided for its
    share of the pool (`LabelFacts.decided_shares`).
    """

    name: ClassVar[str] = "logistic"

    def read_model(self, directory: Path, described: dict[str, Any]) -> Model:
        """See `Student.read_model`."""
        return read_sklearn(directory, described)

    def _learn(self, lesson: Lesson, *, rng: np.random.Generator) -> Model:
        from sklearn.linear_model import LogisticRegression  # noqa: PLC0415 - takes a second

        strength = _strength(lesson.facts, features=lesson.pool.features.shape[1])
        estimator = LogisticRegression(
            C=strength,
            class_weight="balanced",
            max_iter=5000,
            random_state=int(rng.integers(2**31)),
        )
        with threadpool_limits(1):
            estimator.fit(lesson.labeled.features, lesson.labels)
        return deciding(SklearnModel(estimator, lesson.classes), lesson)


def deciding(model: SklearnModel, lesson: Lesson) -> SklearnModel:
    """Shift a model's chances, such that each class is decided for its share of the pool."""
    wanted = lesson.facts.decided_shares(lesson.classes)
    if wanted is None:
        return model
    scores = np.log(model.chances(lesson.pool))
    offsets = share_offsets(scores, wanted)
    return SklearnModel(model.estimator, model.classes, offsets)


def share_offsets(scores: NDArray[np.float64], shares: NDArray[np.float64]) -> NDArray[np.float64]:
    """Find what to add to log chances, such that each class is the likeliest for its share.

    Args:
        scores: Logarithms of chances; shape (inputs, classes).
        shares: Wanted shares; shape (classes,).

    Returns:
        float64, shape (classes,), with mean 0.
    """
    classes = scores.shape[1]
    if classes == 2:
        lead = np.quantile(scores[:, 1] - scores[:, 0], shares[0])
        return np.array([lead / 2, -lead / 2])
    offsets = np.zeros(classes)
    spread = float(scores.std()) or 1.0
    for step in range(_STEPS):
        won = np.bincount((scores + offsets).argmax(axis=1), minlength=classes) / len(scores)
        offsets -= 2 * spread * (won - shares) / (1 + step) ** 0.5
    return np.asarray(offsets - offsets.mean())


def _strength(facts: LabelFacts, *, features: int) -> float:
    if not facts.votes or not facts.sigma:
        return _USUAL
    return float(np.clip(facts.votes**2 / (20 * features * facts.sigma**2), _LEAST, _MOST))
