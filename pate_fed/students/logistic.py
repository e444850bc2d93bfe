"""A student for tables: logistic regression, as cautious as the labels are noisy."""

from __future__ import annotations

from typing import ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from pate_fed.class_shares import share_offsets
from pate_fed.inputs import covariance_power
from pate_fed.one_thread import one_thread
from pate_fed.students.facts import LabelFacts
from pate_fed.students.model import Model, SklearnModel
from pate_fed.students.student import Lesson, Student

_POWER: Final = 0.75
"""Of the pool's covariance: directions in which rows differ more are trusted more."""

_STRENGTHS: Final = np.geomspace(1e-4, 1e2, 25)
"""Values of C that are tried, for rows of mean squared length 1."""


class LogisticStudent(Student):
    """Logistic regression on the labeled inputs, with classes weighed alike.

    Teachers vote by the direction of a row from the pool's middle, however far it lies. So rows
    are scaled to one length before it learns. Labels that are mostly noise say little about
    directions in which rows hardly differ: its coefficients have a normal prior whose covariance is
    C^(3/2), for the pool's covariance C. How wide that is follows from the labels
    (`_log_evidence`), and from the votes behind them where they are known.

    It then shifts the classes' chances, such that each is decided for its share of the pool
    (`LabelFacts.decided_shares`).
    """

    name: ClassVar[str] = "logistic"

    def _learn(self, lesson: Lesson, *, rng: np.random.Generator) -> Model:
        from sklearn.linear_model import LogisticRegression  # noqa: PLC0415 - takes a second

        with one_thread():
            middle = lesson.pool.features.mean(axis=0)
            away = lesson.labeled.features - middle
            lengths = np.linalg.norm(away, axis=1, keepdims=True)
            usual = float(lengths.mean()) or 1.0
            basis = covariance_power(lesson.pool.features, _POWER)
            rows = (away / np.where(lengths > 0, lengths, 1.0)) @ basis
            size = float(np.sqrt((rows**2).sum(axis=1).mean())) or 1.0
            rows /= size
            estimator = LogisticRegression(
                C=_strength(rows, lesson.labels, lesson.facts),
                class_weight="balanced",
                max_iter=5000,
                random_state=int(rng.integers(2**31)),
            )
            estimator.fit(rows, lesson.labels)
            # The same model of features as they are: what it says of a row of usual length.
            estimator.coef_ = estimator.coef_ @ basis / (size * usual)
            estimator.intercept_ = estimator.intercept_ - estimator.coef_ @ middle
            estimator.n_features_in_ = len(middle)
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


def _strength(rows: NDArray[np.float64], labels: NDArray[np.int64], facts: LabelFacts) -> float:
    """Return the likeliest C of `_STRENGTHS`.

    Where N votes and noise of sigma are known, log C is normal about log N^2 / (40 sigma^2) before
    anything is learned, with a standard deviation of 1: so few labels, or unclear ones, do not
    decide alone.
    """
    likely = _log_evidence(rows, labels)
    if facts.votes and facts.sigma:
        expected = np.clip(facts.votes**2 / (40 * facts.sigma**2), _STRENGTHS[0], _STRENGTHS[-1])
        likely = likely - 0.5 * np.log(_STRENGTHS / expected) ** 2
    return float(_STRENGTHS[likely.argmax()])


def _log_evidence(rows: NDArray[np.float64], labels: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return how well each of `_STRENGTHS` explains the labels; shape as those, up to a constant.

    The logarithm of the marginal likelihood of a linear model of the classes' indicators, whose
    penalty 4 / C is that of a logistic one where chances are about even; its noise is estimated.

    Source:
        MacKay 1992, Bayesian interpolation. https://doi.org/10.1162/neco.1992.4.3.415
    """
    present = np.unique(labels)
    targets = (labels[:, np.newaxis] == present).astype(np.float64)
    targets -= targets.mean(axis=0)
    axes, sizes, _ = np.linalg.svd(rows - rows.mean(axis=0), full_matrices=False)
    spread = 1 + _STRENGTHS[:, np.newaxis] / 4 * sizes**2
    free = max(len(labels) - 1, 1)
    found = np.zeros(len(_STRENGTHS))
    for target in targets.T:
        along = (axes.T @ target) ** 2
        beside = max(float(target @ target - along.sum()), 0.0)
        found -= 0.5 * (
            np.log(spread).sum(axis=1) + free * np.log((along / spread).sum(axis=1) + beside)
        )
    return found * (len(present) - 1) / len(present)  # indicators sum to 1
