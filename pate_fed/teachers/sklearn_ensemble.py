"""Teachers from scikit-learn: a support vector machine, a forest or a logistic regression."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import ExtraTreesClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.svm import SVC

from pate_fed.data.dataset import Records
from pate_fed.errors import UnreadableFileError
from pate_fed.teachers.teacher import TeacherEnsemble

ModelFactory = Callable[[int, int], Any]
"""Makes an untrained classifier for a number of records, from a seed."""

TRUSTED_TYPES = (
    "sklearn.metrics._dist_metrics.EuclideanDistance64",
    "sklearn.neighbors._kd_tree.KDTree",
    "sklearn.tree._tree.Tree",
)
"""Types that a stored teacher may hold beyond the trusted ones of skops: plain arrays wrapped by
Cython. A file that asks for more is refused, for loading it would run code of its choice.
"""

KINDS = (ExtraTreesClassifier, KNeighborsClassifier, LogisticRegression, SVC)
"""Classifiers that a teacher may be."""

_FEW_RECORDS = 60


class SklearnEnsemble(TeacherEnsemble):
    """Teachers that are scikit-learn classifiers, one per shard.

    Args:
        make_model: Makes one untrained classifier.
    """

    suffix: ClassVar[str] = "skops"

    def __init__(self, make_model: ModelFactory) -> None:
        super().__init__()
        self._make_model = make_model

    def _learn(
        self,
        shard: Records,
        *,
        classes: int,  # noqa: ARG002 - a classifier keeps the classes it saw
        rng: np.random.Generator,
    ) -> object:
        model = self._make_model(len(shard), int(rng.integers(2**31)))
        model.fit(shard.features, shard.labels)
        return model

    def _predict(self, model: Any, inputs: NDArray[np.float64]) -> NDArray[np.int64]:
        votes: NDArray[np.int64] = model.predict(inputs)
        return votes

    def _dump(self, model: Any) -> bytes:
        import skops.io  # noqa: PLC0415 - brings PyTorch along, which takes seconds

        content: bytes = skops.io.dumps(model)
        return content

    def _restore(self, content: bytes) -> object:
        import skops.io  # noqa: PLC0415 - brings PyTorch along, which takes seconds

        try:
            foreign = set(skops.io.get_untrusted_types(data=content)) - set(TRUSTED_TYPES)
            model: Any = None if foreign else skops.io.loads(content, trusted=list(TRUSTED_TYPES))
        except (OSError, BadZipFile, LookupError, ValueError, TypeError, AttributeError) as error:
            raise UnreadableFileError(
                "a teacher's file must be a readable skops file", type(error).__name__
            ) from error
        if not isinstance(model, KINDS):
            raise UnreadableFileError(
                "a teacher's file must hold a classifier and trusted types only", "others"
            )
        return model


def similar_images(records: int, seed: int) -> Any:
    """Make the best teacher for images: the nearest record if there are few, else an SVM.

    On 20 digits of 10 classes the nearest record is right 7 times in 100 more often than an SVM,
    whose pairs of classes then have two or three records each. On 240 the SVM is better.
    """
    return nearest(records, seed) if records < _FEW_RECORDS else support_vectors(records, seed)


def nearest(records: int, seed: int) -> KNeighborsClassifier:  # noqa: ARG001 - draws nothing
    """Make a teacher that gives the class of its most similar record."""
    return KNeighborsClassifier(n_neighbors=1, n_jobs=1)


def support_vectors(records: int, seed: int) -> SVC:  # noqa: ARG001 - fits any number
    """Make a teacher for images on principal components: an RBF kernel, C = 5."""
    return SVC(C=5.0, gamma="scale", random_state=seed)


def forest(records: int, seed: int) -> ExtraTreesClassifier:  # noqa: ARG001 - fits any number
    """Make a teacher for tables with interactions: 100 randomized trees."""
    return ExtraTreesClassifier(n_estimators=100, min_samples_leaf=2, random_state=seed, n_jobs=1)


def logistic(records: int, seed: int) -> LogisticRegression:  # noqa: ARG001 - fits any number
    """Make a teacher for tables with few records: logistic regression."""
    return LogisticRegression(C=1.0, max_iter=5000, random_state=seed)
