"""Teachers for tables with a handful of records each: a direction from class to class.

A regression on five records learns mostly chance. What they say well is where the mean of a class
lies; the public pool says how features vary together, and no private record is spent on that.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray
from safetensors import SafetensorError

from pate_fed.data.dataset import Records
from pate_fed.errors import InvalidParameterError, UnreadableFileError
from pate_fed.inputs import Inputs, covariance_power
from pate_fed.teachers.teacher import Balance, TeacherEnsemble

_TENSOR = "direction"


class DirectionEnsemble(TeacherEnsemble):
    """Teachers that score class c by (mean of c - pool's mean) C^(-1/2) x.

    C is the pool's covariance, shrunk by a tenth. C^(-1), of linear discriminants, would double
    the chance in directions in which rows hardly differ; C^0 leaves out what the pool knows.
    """

    suffix: ClassVar[str] = "safetensors"

    def __init__(self, balance: Balance = "equal") -> None:
        if balance == "natural":
            raise InvalidParameterError(
                "--teacher direction must share votes out: it says no class's chance", balance
            )
        super().__init__(balance)
        self._middle: NDArray[np.float64] = np.empty(0)
        self._whitening: NDArray[np.float64] = np.empty((0, 0))

    def _prepare(self, public: Inputs | None) -> None:
        assert public is not None, "votes are shared out"
        self._middle = public.features.mean(axis=0)
        self._whitening = covariance_power(public.features, -0.5)

    def _learn(
        self,
        shard: Records,
        *,
        classes: int,
        rng: np.random.Generator,  # noqa: ARG002 - draws nothing
    ) -> object:
        found = np.full((len(self._middle), classes), np.nan)  # of a class that it never saw
        for label in np.unique(shard.labels):
            away = shard.features[shard.labels == label].mean(axis=0) - self._middle
            found[:, label] = self._toward(away)
        return found

    def _toward(self, away: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(self._whitening @ away)

    def _scores(self, model: object, inputs: Inputs, *, classes: int) -> NDArray[np.float64]:
        assert isinstance(model, np.ndarray)
        if model.shape != (inputs.features.shape[1], classes):
            raise UnreadableFileError(
                "a teacher's file must have a number for each feature and class", str(model.shape)
            )
        scored = np.asarray(inputs.features @ model, dtype=np.float64)
        return np.where(np.isnan(model).any(axis=0), -np.inf, scored)

    def _dump(self, model: object) -> bytes:
        assert isinstance(model, np.ndarray)
        return bytes(safetensors.numpy.save({_TENSOR: model}))

    def _restore(self, content: bytes) -> object:
        try:
            arrays = safetensors.numpy.load(content)
        except (SafetensorError, ValueError, KeyError) as error:
            raise UnreadableFileError("a teacher's file must hold a direction") from error
        found = arrays.get(_TENSOR)
        is_one = list(arrays) == [_TENSOR] and found is not None and found.dtype == np.float64
        if not is_one or found.ndim != 2 or np.isinf(found).any():
            raise UnreadableFileError("a teacher's file must hold a direction for each class")
        return found
