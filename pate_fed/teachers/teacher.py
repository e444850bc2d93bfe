"""The contract of a party's teachers: each learns its own shard, each votes one class."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pate_fed.data.dataset import Records
from pate_fed.errors import InvalidDataError, InvalidParameterError


class TeacherEnsemble(ABC):
    """All teachers of one party.

    A form supplies `_learn` and `_predict` for one teacher. A teacher whose shard holds a single
    class votes for it always.

    Guarantee: teacher i depends on shard i and the generator only, never on another shard's
    records, so that one privacy unit reaches one vote.
    """

    def __init__(self) -> None:
        self._voters: list[object] = []

    @property
    def teachers(self) -> int:
        """Number of teachers; 0 before `fit`."""
        return len(self._voters)

    def fit(
        self, records_per_teacher: Sequence[Records], *, classes: int, rng: np.random.Generator
    ) -> None:
        """Train one teacher per shard; earlier teachers are forgotten.

        Args:
            records_per_teacher: One shard per teacher, none empty.
            classes: Number of classes of the whole federation.
            rng: Seeds every teacher; the same generator and shards give the same votes.

        Raises:
            InvalidParameterError: no teacher, or fewer than 2 classes.
            InvalidDataError: an empty shard, or a label that is no class.
        """
        if not records_per_teacher or classes < 2:
            raise InvalidParameterError(
                "there must be 1 or more teachers and 2 or more classes",
                f"{len(records_per_teacher)} and {classes}",
            )
        for shard in records_per_teacher:
            if not len(shard) or shard.labels.max() >= classes:
                raise InvalidDataError(
                    f"a shard must be non-empty, with labels of {classes} classes",
                    f"a shard of {len(shard)} records",
                )
        # A seed of its own for each: what one shard holds must not shift another's randomness.
        seeds = rng.spawn(len(records_per_teacher))
        self._voters = [
            self._fit_one(shard, classes=classes, rng=seed)
            for shard, seed in zip(records_per_teacher, seeds, strict=True)
        ]

    def vote(self, inputs: NDArray[np.float64]) -> NDArray[np.int64]:
        """Let every teacher vote on every input.

        Args:
            inputs: Public inputs; float64, shape (queries, features).

        Returns:
            Class voted for; int64, shape (teachers, queries).

        Raises:
            InvalidParameterError: called before `fit`.
        """
        if not self._voters:
            raise InvalidParameterError("teachers must be trained before they vote", "none trained")
        return np.stack([self._vote_one(voter, inputs) for voter in self._voters])

    @abstractmethod
    def _learn(self, shard: Records, *, classes: int, rng: np.random.Generator) -> object:
        """Train a model on a shard with two or more classes."""

    @abstractmethod
    def _predict(self, model: object, inputs: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return the class that a model of `_learn` picks for each input."""

    def _fit_one(self, shard: Records, *, classes: int, rng: np.random.Generator) -> object:
        present = np.unique(shard.labels)
        if len(present) == 1:
            return int(present[0])
        return self._learn(shard, classes=classes, rng=rng)

    def _vote_one(self, voter: object, inputs: NDArray[np.float64]) -> NDArray[np.int64]:
        if isinstance(voter, int):
            return np.full(len(inputs), voter, dtype=np.int64)
        return self._predict(voter, inputs).astype(np.int64, copy=False)
