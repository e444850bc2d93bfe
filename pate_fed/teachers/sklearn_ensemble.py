"""Teachers from scikit-learn, or with its interface."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import ExtraTreesClassifier, HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.svm import SVC

from pate_fed.data.dataset import Records
from pate_fed.errors import InvalidDataError, InvalidParameterError, UnreadableFileError
from pate_fed.inputs import DatasetKind, Inputs
from pate_fed.stored_models import restored, stored
from pate_fed.teachers.teacher import Balance, TeacherEnsemble, own_shares

_NEIGHBORS = (
    "sklearn.metrics._dist_metrics.EuclideanDistance64",
    "sklearn.neighbors._kd_tree.KDTree",
)
"""Types of a stored teacher that no student holds: a student's file comes from somebody else."""

_TAKES_IMAGES = "teachers that take images must learn from images"
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

    For equal shares a model needs `predict_proba` or `decision_function`.
    """

    suffix: ClassVar[str] = "skops"

    def __init__(self, make_model: ModelFactory, *, balance: Balance = "natural") -> None:
        super().__init__(balance)
        self._make_model = make_model

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
        scores = np.full((len(found), classes), -np.inf)
        scores[:, np.asarray(model.classes_, dtype=np.int64)] = found
        return scores

    def _ranks(self, model: Any) -> bool:
        return hasattr(model, "predict_proba") or hasattr(model, "decision_function")

    def _dump(self, model: Any) -> bytes:
        return stored(model)

    def _restore(self, content: bytes) -> object:
        model = restored(content, trusted=self._trusts)
        if not hasattr(model, "predict"):
            raise UnreadableFileError("a teacher's file must hold a classifier")
        return model

    def _trusts(self, kept: str) -> bool:
        """Tell whether a stored teacher may hold a type."""
        return kept in _NEIGHBORS


class OwnEnsemble(SklearnEnsemble):
    """Teachers of a hospital's own code, whose faults are found before a teacher is kept.

    Each votes on the pool, as it will after a restart. A fault is told by its type alone: its text
    may hold records.

    Args:
        make: Makes an untrained estimator.
        name: MODULE:FUNCTION.
        package: A stored teacher may hold its types.
    """

    def __init__(
        self, make: Callable[[], Any], *, name: str, package: str, balance: Balance = "natural"
    ) -> None:
        super().__init__(lambda _size, _seed: make(), balance=balance)
        self._name, self._package = name, package
        self._public: Inputs | None = None

    def _prepare(self, public: Inputs | None) -> None:
        self._public = public

    def _learn(self, shard: Records, *, classes: int, rng: np.random.Generator) -> object:
        with self._told("learn from your records"):
            learned = super()._learn(shard, classes=classes, rng=rng)
        with self._told("have attributes that skops can store, such as numbers and arrays"):
            model = self._restore(self._dump(learned))
        if self._public is not None:
            self._scores(model, self._public, classes=classes)
        return model

    def _scores(self, model: Any, inputs: Inputs, *, classes: int) -> NDArray[np.float64]:
        with self._told("give a class that it learned for each record"):
            found = super()._scores(model, inputs, classes=classes)
            if found.shape != (len(inputs), classes) or not np.isfinite(found.max(axis=1)).all():
                raise ValueError
        return found

    def _trusts(self, kept: str) -> bool:
        return super()._trusts(kept) or kept.split(".", 1)[0] == self._package

    @contextmanager
    def _told(self, must: str) -> Iterator[None]:
        try:
            yield
        except (Exception, SystemExit) as error:
            must = f"a teacher of {self._name} must {must}"
            raise InvalidParameterError(must, type(error).__name__) from None


def _seen(model: Any, inputs: Inputs) -> NDArray[Any]:
    """Return what a model learns from: features, or the images if it takes them."""
    if not getattr(model, "takes_images", False):
        return inputs.features
    if inputs.images is None:
        raise InvalidParameterError(_TAKES_IMAGES, "a table")
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


def require_estimator(model: object, name: str, kind: DatasetKind) -> None:
    """Refuse an object without `fit` or `predict`, or one for images where there are none."""
    missing = [one for one in ("fit", "predict") if not callable(getattr(model, one, None))]
    if missing:
        raise InvalidDataError(
            f"{name} must make an object with fit and predict, as scikit-learn's",
            f"no {missing[0]}",
        )
    if kind == "table" and getattr(model, "takes_images", False):
        raise InvalidParameterError(_TAKES_IMAGES, "a table")
