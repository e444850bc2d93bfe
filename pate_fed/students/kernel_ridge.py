"""Kernel ridge regression: for images with some hundred labels or more, or for noisy counts."""

from __future__ import annotations

from typing import ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from pate_fed.one_thread import one_thread
from pate_fed.students.logistic import deciding
from pate_fed.students.model import Model, SklearnModel
from pate_fed.students.student import Lesson, Student

PENALTIES: Final = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
"""Penalties to choose from."""

PENALTIES_OF_COUNTS: Final = (*PENALTIES, 30.0, 100.0)
"""The same where noisy counts are learned: their noise has no bound."""


class KernelRidgeStudent(Student):
    """Ridge regression of each class on a Gaussian kernel of the features.

    It learns shares of the votes where noisy counts were released, and labels otherwise.

    The penalty is the one that predicts left-out labels best: it sees released labels only, so that
    the choice costs no privacy.

    Source:
        Leave-one-out residuals of ridge regression: Allen 1974, The relationship between variable
        selection and data augmentation and a method for prediction.
        https://doi.org/10.1080/00401706.1974.10489157
    """

    name: ClassVar[str] = "kernel-ridge"

    def _learn(
        self,
        lesson: Lesson,
        *,
        rng: np.random.Generator,  # noqa: ARG002 - nothing is drawn
    ) -> Model:
        from sklearn.kernel_ridge import KernelRidge  # noqa: PLC0415 - takes a second

        features, targets = lesson.labeled.features, lesson.shares
        with one_thread():
            gamma, penalty, _ = _chosen(lesson)
            model = KernelRidge(alpha=penalty, kernel="rbf", gamma=gamma)
            model.fit(features, targets)
        found = SklearnModel(model, lesson.classes)
        return found if lesson.counts is None else deciding(found, lesson)


def left_out_labels(lesson: Lesson) -> NDArray[np.int64]:
    """Predict each label from the others; shape (labels,)."""
    with one_thread():
        _, _, residuals = _chosen(lesson)
    return np.asarray((lesson.shares - residuals).argmax(axis=1), dtype=np.int64)


def _chosen(lesson: Lesson) -> tuple[float, float, NDArray[np.float64]]:
    """Return the kernel's gamma, the penalty with the smallest errors, and these errors.

    Errors are of each label, predicted from the others; shape (labels, classes).
    """
    from sklearn.metrics.pairwise import rbf_kernel  # noqa: PLC0415 - takes a second

    features, targets = lesson.labeled.features, lesson.shares
    gamma = 1.0 / (features.shape[1] * max(float(features.var()), 1e-12))
    values, vectors = np.linalg.eigh(rbf_kernel(features, gamma=gamma))
    rotated = vectors.T @ targets
    errors = {}
    for penalty in PENALTIES if lesson.counts is None else PENALTIES_OF_COUNTS:
        shrunk = 1.0 / (np.maximum(values, 0.0) + penalty)
        weights = vectors @ (shrunk[:, None] * rotated)
        own = (vectors**2) @ shrunk
        errors[penalty] = weights / own[:, None]
    best = min(errors, key=lambda penalty: float((errors[penalty] ** 2).mean()))
    return gamma, best, errors[best]
