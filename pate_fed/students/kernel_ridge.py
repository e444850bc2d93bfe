"""Kernel ridge regression: for images with some hundred labels or more, or for noisy counts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from pate_fed.students.logistic import deciding
from pate_fed.students.model import Model, SklearnModel, read_sklearn
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

    def read_model(self, directory: Path, described: dict[str, Any]) -> Model:
        """See `Student.read_model`."""
        return read_sklearn(directory, described)

    def _learn(
        self,
        lesson: Lesson,
        *,
        rng: np.random.Generator,  # noqa: ARG002 - nothing is drawn
    ) -> Model:
        from sklearn.kernel_ridge import KernelRidge  # noqa: PLC0415 - takes a second
        from sklearn.metrics.pairwise import rbf_kernel  # noqa: PLC0415

        features = lesson.labeled.features
        gamma = 1.0 / (features.shape[1] * max(float(features.var()), 1e-12))
        targets = lesson.shares
        among = PENALTIES if lesson.counts is None else PENALTIES_OF_COUNTS
        with threadpool_limits(1):
            penalty = _best_penalty(rbf_kernel(features, gamma=gamma), targets, among)
            model = KernelRidge(alpha=penalty, kernel="rbf", gamma=gamma)
            model.fit(features, targets)
        found = SklearnModel(model, lesson.classes)
        return found if lesson.counts is None else deciding(found, lesson)


def _best_penalty(
    kernel: NDArray[np.float64], targets: NDArray[np.float64], among: Sequence[float]
) -> float:
    """Return the penalty with the smallest squared error on labels that were left out."""
    values, vectors = np.linalg.eigh(kernel)
    rotated = vectors.T @ targets
    errors = []
    for penalty in among:
        shrunk = 1.0 / (np.maximum(values, 0.0) + penalty)
        weights = vectors @ (shrunk[:, None] * rotated)
        own = (vectors**2) @ shrunk
        errors.append(float(((weights / own[:, None]) ** 2).mean()))
    return among[int(np.argmin(errors))]
