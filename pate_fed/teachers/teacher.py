"""The contract of a party's teachers: each learns its own shard, each votes one class."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from pate_fed.data.dataset import Records
from pate_fed.errors import InvalidDataError, InvalidParameterError, UnreadableFileError

INDEX_FILE = "teachers.json"
SCHEMA_VERSION = 1


class TeacherEnsemble(ABC):
    """All teachers of one party.

    A form supplies `_learn` and `_predict` for one teacher. A teacher whose shard holds a single
    class votes for it always.

    Guarantee: teacher i depends on shard i and the generator only, never on another shard's
    records, so that one privacy unit reaches one vote.

    Attributes:
        suffix: How the files of its models end.
    """

    suffix: ClassVar[str]

    def __init__(self) -> None:
        self._voters: list[object] = []

    @property
    def teachers(self) -> int:
        """Number of teachers; 0 before `fit`."""
        return len(self._voters)

    def fit(
        self,
        records_per_teacher: Sequence[Records],
        *,
        classes: int,
        rng: np.random.Generator,
        on_trained: Callable[[int], None] | None = None,
    ) -> None:
        """Train one teacher per shard; earlier teachers are forgotten.

        Args:
            records_per_teacher: One shard per teacher, none empty.
            classes: Number of classes of the whole federation.
            rng: Seeds every teacher; the same generator and shards give the same votes.
            on_trained: Told after each teacher how many are trained.

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
        # A seed of its own for each: the content of one shard must not shift another's randomness.
        seeds = rng.spawn(len(records_per_teacher))
        voters = []
        for shard, seed in zip(records_per_teacher, seeds, strict=True):
            voters.append(self._fit_one(shard, classes=classes, rng=seed))
            if on_trained is not None:
                on_trained(len(voters))
        self._voters = voters

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

    def dump(self) -> dict[str, bytes]:
        """Return all teachers as files, name to content, without pickle.

        Secret, like the records that they learned.

        Raises:
            InvalidParameterError: called before `fit`.
        """
        if not self._voters:
            raise InvalidParameterError("teachers must be trained before they are kept", "none")
        files: dict[str, bytes] = {}
        listed: list[dict[str, Any]] = []
        for place, voter in enumerate(self._voters, start=1):
            if isinstance(voter, int):
                listed.append({"label": voter})
                continue
            name = f"teacher-{place:04d}.{self.suffix}"
            files[name] = self._dump(voter)
            listed.append({"file": name})
        index = {"schema_version": SCHEMA_VERSION, "teachers": listed}
        files[INDEX_FILE] = (json.dumps(index, indent=2) + "\n").encode()
        return files

    def restore(self, files: Mapping[str, bytes], *, classes: int) -> None:
        """Take the teachers that `dump` returned; earlier ones are forgotten.

        Args:
            files: Name to content.
            classes: Number of classes of the whole federation.

        Raises:
            UnreadableFileError: a file is missing, damaged, or has content that no teacher needs.
        """
        self._voters = [self._restore_one(one, files, classes) for one in _index(files)]

    def _restore_one(self, listed: Any, files: Mapping[str, bytes], classes: int) -> object:
        match listed:
            case {"label": int(label), **rest} if not rest and 0 <= label < classes:
                return int(label)
            case {"file": str(name), **rest} if not rest and name in files:
                return self._restore(files[name])
        raise UnreadableFileError(
            f"{INDEX_FILE} must list files that are there, and classes", "another entry"
        )

    @abstractmethod
    def _learn(self, shard: Records, *, classes: int, rng: np.random.Generator) -> object:
        """Train a model on a shard with two or more classes."""

    @abstractmethod
    def _predict(self, model: object, inputs: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return the class that a model of `_learn` picks for each input."""

    @abstractmethod
    def _dump(self, model: object) -> bytes:
        """Return a model of `_learn` as a file."""

    @abstractmethod
    def _restore(self, content: bytes) -> object:
        """Return the model of a file; raise `UnreadableFileError` if it is none."""

    def _fit_one(self, shard: Records, *, classes: int, rng: np.random.Generator) -> object:
        present = np.unique(shard.labels)
        if len(present) == 1:
            return int(present[0])
        return self._learn(shard, classes=classes, rng=rng)

    def _vote_one(self, voter: object, inputs: NDArray[np.float64]) -> NDArray[np.int64]:
        if isinstance(voter, int):
            return np.full(len(inputs), voter, dtype=np.int64)
        return self._predict(voter, inputs).astype(np.int64, copy=False)


def _index(files: Mapping[str, bytes]) -> list[Any]:
    try:
        index = json.loads(files[INDEX_FILE])
        listed = index["teachers"]
        good = index["schema_version"] == SCHEMA_VERSION and type(listed) is list and listed
    except (LookupError, ValueError, TypeError, RecursionError) as error:
        raise UnreadableFileError(f"{INDEX_FILE} must be readable", type(error).__name__) from error
    if not good:
        raise UnreadableFileError(
            f"{INDEX_FILE} must list teachers, in schema version {SCHEMA_VERSION}", "another"
        )
    return list(listed)
