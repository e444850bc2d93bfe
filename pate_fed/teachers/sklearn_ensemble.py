"""Teachers from scikit-learn, or with its interface."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import ExtraTreesClassifier, HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.svm import SVC

from pate_fed.data.dataset import Records
from pate_fed.errors import InvalidDataError, UnreadableFileError
from pate_fed.inputs import Inputs
from pate_fed.stored_models import restored, stored
from pate_fed.teachers.teacher import Balance, TeacherEnsemble, own_shares

_NEIGHBORS = (
    "sklearn.metrics._dist_metrics.EuclideanDistance64",
    "sklearn.neighbors._kd_tree.KDTree",
)
"""Types of a stored teacher that no student holds: a student's file comes from somebody else."""

_LEAST_CHANCE = 1e-9
_FEW_RECORDS = 60


@dataclass(frozen=True, slots=True)
class ShardSize:
    """How much one teacher has to learn from.

    Attributes:
        is_ample: Whether they are many, and no class is rare among them (`own_shares`).
    """

    records: int
    features: int
    is_ample: bool = False


ModelFactory = Callable[[ShardSize, int], Any]
"""Makes an untrained classifier for a shard, from a seed."""


class SklearnEnsemble(TeacherEnsemble):
    """Teachers with scikit-learn's interface, one per shard.

    For equal shares a model needs `predict_proba` or `decision_function`. `trusted` are further
    types that a stored teacher may hold: those of the hospital's own code.
    """

    suffix: ClassVar[str] = "skops"

    def __init__(
        self,
        make_model: ModelFactory,
        *,
        balance: Balance = "natural",
        trusted: Callable[[str], bool] = lambda _: False,
    ) -> None:
        super().__init__(balance)
        self._make_model = make_model
        self._trusted = trusted

    def _learn(
        self,
        shard: Records,
        *,
        classes: int,
        rng: np.random.Generator,
    ) -> object:
        is_ample = own_shares(shard.labels, classes=classes) is not None
        size = ShardSize(len(shard), shard.features.shape[1], is_ample)
        model = self._make_model(size, int(rng.integers(2**31)))
        model.fit(_seen(model, shard.inputs), shard.labels)
        return model

    def _scores(self, model: Any, inputs: Inputs, *, classes: int) -> NDArray[np.float64]:
        seen = _seen(model, inputs)
        if hasattr(model, "predict_proba"):
            found = np.log(np.maximum(model.predict_proba(seen), _LEAST_CHANCE))
        elif hasattr(model, "decision_function"):
            found = np.asarray(model.decision_function(seen), dtype=np.float64)
        else:
            said = np.asarray(model.predict(seen))
            return np.where(said[:, None] == np.arange(classes), 0.0, -np.inf)
        if found.ndim == 1:
            found = np.stack([np.zeros_like(found), found], axis=1)
        scores = np.full((len(inputs), classes), -np.inf)
        scores[:, np.asarray(model.classes_, dtype=np.int64)] = found
        return scores

    def _ranks(self, model: Any) -> bool:
        return hasattr(model, "predict_proba") or hasattr(model, "decision_function")

    def _dump(self, model: Any) -> bytes:
        return stored(model)

    def _restore(self, content: bytes) -> object:
        model = restored(content, trusted=lambda one: one in _NEIGHBORS or self._trusted(one))
        if not hasattr(model, "predict"):
            raise UnreadableFileError("a teacher's file must hold a classifier")
        return model


def _seen(model: Any, inputs: Inputs) -> NDArray[Any]:
    """Return what a model learns from: features, or the images if it takes them."""
    if not getattr(model, "takes_images", False):
        return inputs.features
    if inputs.images is None:
        raise InvalidDataError("teachers that take images must learn from images", "a table")
    return inputs.images


def similar_images(size: ShardSize, seed: int) -> Any:
    """Make the best teacher for images: the nearest record if there are few, else an SVM.

    On 20 digits of 10 classes the nearest record is right 7 times in 100 more often than an SVM,
    whose pairs of classes then have two or three records each. On 240 the SVM is better.
    """
    return nearest(size, seed) if size.records < _FEW_RECORDS else support_vectors(size, seed)


def of_table(size: ShardSize, seed: int) -> Any:
    """Make the best teacher for a table: boosted trees if records are ample, else a line.

    With 650 records of Adult each, boosted trees agree on more right labels. Where a class is rare,
    or records are few, logistic regression ranks patients better.
    """
    return boosting(size, seed) if size.is_ample else logistic(size, seed)


def nearest(size: ShardSize, seed: int) -> KNeighborsClassifier:  # noqa: ARG001 - draws nothing
    """Make a teacher that gives the class of its most similar record."""
    return KNeighborsClassifier(n_neighbors=1, n_jobs=1)


def support_vectors(size: ShardSize, seed: int) -> SVC:  # noqa: ARG001 - fits any number
    """Make a teacher for images: an RBF kernel on their features, C = 5."""
    return SVC(C=5.0, gamma="scale", random_state=seed)


def forest(size: ShardSize, seed: int) -> ExtraTreesClassifier:  # noqa: ARG001 - fits any number
    """Make a teacher for tables with interactions: 100 randomized trees."""
    return ExtraTreesClassifier(n_estimators=100, min_samples_leaf=2, random_state=seed, n_jobs=1)


def boosting(size: ShardSize, seed: int) -> HistGradientBoostingClassifier:
    """Make a teacher for tables with interactions and 100 records or more: small boosted trees."""
    return HistGradientBoostingClassifier(
        max_iter=30,
        max_leaf_nodes=6,
        min_samples_leaf=max(2, min(20, size.records // 10)),
        early_stopping=False,
        random_state=seed,
    )


def logistic(size: ShardSize, seed: int) -> LogisticRegression:
    """Make a teacher for tables with few records: logistic regression, classes weighed alike.

    Its penalty grows with the number of features: C = records / (20 * features).
    """
    penalty = size.records / (20 * size.features)
    return LogisticRegression(
        C=min(max(penalty, 1e-4), 1.0), class_weight="balanced", max_iter=5000, random_state=seed
    )


def require_estimator(model: object, name: str) -> None:
    """Refuse an object without `fit` or `predict`, as an InvalidDataError."""
    missing = [one for one in ("fit", "predict") if not callable(getattr(model, one, None))]
    if missing:
        raise InvalidDataError(
            f"{name} must make an object with fit and predict, as scikit-learn's",
            f"no {missing[0]}",
        )
