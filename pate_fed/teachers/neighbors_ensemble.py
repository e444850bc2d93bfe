"""Records that vote: each patient for the class of a record close to the query."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray
from safetensors import SafetensorError

from pate_fed.data.dataset import Records
from pate_fed.errors import InvalidParameterError, UnreadableFileError
from pate_fed.inputs import Inputs
from pate_fed.one_thread import one_thread
from pate_fed.teachers.teacher import TeacherEnsemble, Voter
from pate_fed.votes import NEAR_SHARE

_FEATURES, _LABELS = "features", "labels"

_MOST_PUBLIC = 4096
"""Rows of the public pool from which a radius is taken: more would hardly change it."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class _OwnRecords:
    """One patient's records; private."""

    features: NDArray[np.float64]
    labels: NDArray[np.int64]


class NeighborsEnsemble(TeacherEnsemble):
    """One voter for each patient, with the patient's records as its shard.

    Each query has a radius in which `NEAR_SHARE` of the public pool lies. Whoever has a record
    within it votes for the class of the closest, and all others cast no vote. Nothing is trained:
    a new patient votes from the first day, and one who left votes no more.
    """

    suffix: ClassVar[str] = "safetensors"

    def __init__(self) -> None:
        super().__init__("natural")
        self._pool: NDArray[np.float64] = np.empty((0, 0))

    def vote(self, inputs: Inputs) -> NDArray[np.int64]:
        """Return each patient's class for each input, or the number of classes for no vote."""
        if not self._voters or not self._pool.size:
            raise InvalidParameterError("records must be known, and the pool, before they vote")
        with one_thread():
            nearest = -_distances(self._pool, inputs.features)
            radius = np.quantile(nearest, 1 - NEAR_SHARE, axis=0, method="lower")
            return np.stack([self._vote_within(one, inputs, radius) for one in self._voters])

    def _vote_within(
        self, voter: Voter, inputs: Inputs, radius: NDArray[np.float64]
    ) -> NDArray[np.int64]:
        scores = self._scores_of(voter, inputs, classes=self._classes)
        is_near = scores.max(axis=1) >= radius
        return np.where(is_near, scores.argmax(axis=1), self._classes).astype(np.int64)

    def _prepare(self, public: Inputs | None) -> None:
        if public is None:
            raise InvalidParameterError("--teacher neighbors needs the public pool for its radius")
        self._pool = public.features[:: -(-len(public) // _MOST_PUBLIC)]

    def _fit_one(
        self,
        shard: Records,
        public: Inputs | None,  # noqa: ARG002 - the radius has used it
        *,
        classes: int,  # noqa: ARG002 - checked by `fit`
        rng: np.random.Generator,  # noqa: ARG002 - draws nothing
    ) -> Voter:
        return Voter(_OwnRecords(shard.features, shard.labels))

    def _learn(self, shard: Records, *, classes: int, rng: np.random.Generator) -> object:
        return self._fit_one(shard, None, classes=classes, rng=rng).model

    def _scores(self, model: object, inputs: Inputs, *, classes: int) -> NDArray[np.float64]:
        """Return minus the squared distance to the nearest record of each class."""
        assert isinstance(model, _OwnRecords)
        scores = np.full((len(inputs), classes), -np.inf)
        near = -_distances(model.features, inputs.features)
        for label in np.unique(model.labels):
            scores[:, label] = near[model.labels == label].max(axis=0)
        return scores

    def _dump(self, model: object) -> bytes:
        assert isinstance(model, _OwnRecords)
        arrays = {_FEATURES: model.features, _LABELS: model.labels}
        return bytes(safetensors.numpy.save(arrays))

    def _restore(self, content: bytes) -> object:
        try:
            arrays = safetensors.numpy.load(content)
            found = _OwnRecords(arrays[_FEATURES], arrays[_LABELS])
        except (SafetensorError, ValueError, KeyError) as error:
            raise UnreadableFileError("a voter's file must hold its records") from error
        is_good = (
            found.features.dtype == np.float64
            and found.labels.dtype == np.int64
            and found.features.ndim == 2
            and found.labels.shape == found.features.shape[:1]
            and found.labels.size
            and found.labels.min() >= 0
            and np.isfinite(found.features).all()
        )
        if not is_good:
            raise UnreadableFileError("a voter's file must hold features and a class for each")
        return found


def _distances(rows: NDArray[np.float64], queries: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return squared distances; shape (rows, queries)."""
    squares = (rows**2).sum(axis=1)[:, np.newaxis] + (queries**2).sum(axis=1)
    return np.asarray(squares - 2 * rows @ queries.T)
