"""The contract of a party's teachers: each learns its own shard, each votes one class."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from pate_fed.class_shares import ENOUGH_RECORDS, is_any_rare, share_offsets
from pate_fed.data.dataset import Records
from pate_fed.errors import InvalidDataError, InvalidParameterError, UnreadableFileError
from pate_fed.inputs import Inputs
from pate_fed.one_thread import one_thread

INDEX_FILE = "teachers.json"
SCHEMA_VERSION = 1
NEVER = -1e30
"""Bias of a class that a teacher never saw; a network keeps it with its weights."""

Balance = Literal["natural", "equal", "as seen"]
"""How votes are shared out over the classes: as models predict; or over the public pool, equally or
for each class as often as the teacher saw it (`own_shares`).
"""


@dataclass(frozen=True, slots=True, eq=False)
class Voter:
    """One trained teacher.

    Attributes:
        model: A model of the ensemble's form; None for a teacher that saw one class.
        direction: From the public mean to its own; shape (features,). For a teacher that saw one
            class, where votes are shared out.
        offsets: Added to its scores before it votes; shape (classes,). None to vote as it predicts.
    """

    model: object | None = None
    label: int | None = None
    direction: NDArray[np.float64] | None = None
    offsets: NDArray[np.float64] | None = None


def own_shares(labels: NDArray[np.int64], *, classes: int) -> NDArray[np.float64] | None:
    """Return how common each class is among a teacher's records; shape (classes,).

    Returns:
        None if fewer than `ENOUGH_RECORDS` say little about it, or if a class is rare: then votes
        that are as common as it is would hardly ever name it.
    """
    shares = np.bincount(labels, minlength=classes) / len(labels)
    return None if len(labels) < ENOUGH_RECORDS or is_any_rare(shares) else shares


class TeacherEnsemble(ABC):
    """All teachers of one party.

    A form supplies `_learn` and `_scores` for one teacher. A teacher whose shard holds a single
    class votes for it always. Where votes are shared out, it votes for it where an input is most
    like its own records, and for the other classes in turn elsewhere.

    Guarantee: teacher i depends on shard i, public inputs and the generator only, never on another
    shard's records, so that one privacy unit reaches one vote.
    """

    suffix: ClassVar[str]

    def __init__(self, balance: Balance = "natural") -> None:
        self._balance = balance
        self._voters: list[Voter] = []
        self._classes = 0

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
        public: Inputs | None = None,
        on_trained: Callable[[int], None] | None = None,
    ) -> None:
        """Train one teacher per shard; earlier teachers are forgotten.

        Args:
            records_per_teacher: One shard per teacher, none empty.
            rng: Seeds every teacher; the same generator and shards give the same votes.
            public: The public pool; needed unless votes are natural.
        """
        if not records_per_teacher or classes < 2:
            raise InvalidParameterError(
                "there must be 1 or more teachers and 2 or more classes",
                f"{len(records_per_teacher)} and {classes}",
            )
        if self._balance != "natural" and public is None:
            raise InvalidParameterError("votes that are shared out need the public pool")
        for shard in records_per_teacher:
            if not len(shard) or shard.labels.max() >= classes:
                raise InvalidDataError(
                    f"a shard must be non-empty, with labels of {classes} classes",
                    f"a shard of {len(shard)} records",
                )
        # A seed of its own for each: the content of one shard must not shift another's randomness.
        seeds = rng.spawn(len(records_per_teacher))
        voters = []
        with one_thread():
            self._prepare(public)
            for shard, seed in zip(records_per_teacher, seeds, strict=True):
                voters.append(self._fit_one(shard, public, classes=classes, rng=seed))
                if on_trained is not None:
                    on_trained(len(voters))
        self._voters, self._classes = voters, classes

    def retrain(
        self, place: int, shard: Records, *, rng: np.random.Generator, public: Inputs | None = None
    ) -> None:
        """Train one teacher anew on other records; every other teacher stays as it is."""
        with one_thread():
            self._prepare(public)
            self._voters[place] = self._fit_one(shard, public, classes=self._classes, rng=rng)

    def vote(self, inputs: Inputs) -> NDArray[np.int64]:
        """Return each teacher's class for each input; int64, shape (teachers, queries)."""
        if not self._voters:
            raise InvalidParameterError("teachers must be trained before they vote")
        with one_thread():
            return np.stack([self._vote_one(voter, inputs) for voter in self._voters])

    def leads(self, inputs: Inputs) -> NDArray[np.float64]:
        """Return how far each teacher is for class 1 of two; float64, shape (teachers, inputs).

        It votes for it where that is above 0.
        """
        if not self._voters or self._classes != 2:
            raise InvalidParameterError("teachers must be trained on two classes")
        with one_thread():
            scores = np.stack([self._ranked(voter, inputs) for voter in self._voters])
        return np.asarray(scores[..., 1] - scores[..., 0])

    def scores(self, inputs: Inputs) -> Iterator[NDArray[np.float64]]:
        """Yield each teacher's scores before votes are shared out; shape (inputs, classes).

        A class that a teacher never saw has minus infinity. To measure teachers in a simulation.
        """
        for voter in self._voters:
            with one_thread():
                found = self._scores_of(voter, inputs, classes=self._classes)
            yield found

    def dump(self) -> dict[str, bytes]:
        """Return all teachers as files, name to content, without pickle.

        Secret, like the records that they learned.
        """
        if not self._voters:
            raise InvalidParameterError("teachers must be trained before they are kept")
        files: dict[str, bytes] = {}
        listed: list[dict[str, object]] = []
        for place, voter in enumerate(self._voters, start=1):
            entry: dict[str, object] = {}
            if voter.label is not None:
                entry["label"] = voter.label
            else:
                entry["file"] = name = f"teacher-{place:04d}.{self.suffix}"
                files[name] = self._dump(voter.model)
            for name in ("direction", "offsets"):
                values = getattr(voter, name)
                if values is not None:
                    entry[name] = [float(value) for value in values]
            listed.append(entry)
        index = {"schema_version": SCHEMA_VERSION, "teachers": listed}
        files[INDEX_FILE] = (json.dumps(index, indent=2, allow_nan=False) + "\n").encode()
        return files

    def restore(self, files: Mapping[str, bytes], *, classes: int) -> None:
        """Take the teachers that `dump` returned; earlier ones are forgotten."""
        self._voters = [self._restore_one(one, files, classes) for one in _index(files)]
        self._classes = classes

    def _restore_one(self, listed: Any, files: Mapping[str, bytes], classes: int) -> Voter:
        match listed:
            case {"label": int(label), **rest} if 0 <= label < classes:
                direction = rest.pop("direction", None)
                offsets = _numbers(rest.pop("offsets", None), length=classes)
                if not rest and (direction is None) == (offsets is None):
                    return Voter(label=int(label), direction=_numbers(direction), offsets=offsets)
            case {"file": str(name), **rest} if name in files:
                offsets = _numbers(rest.pop("offsets", None), length=classes)
                if not rest:
                    return Voter(self._restore(files[name]), offsets=offsets)
        raise UnreadableFileError(f"{INDEX_FILE} must list files that are there, and classes")

    def _prepare(self, public: Inputs | None) -> None:  # noqa: B027 - most need nothing
        """Look at the public pool, before teachers learn beside it."""

    def _toward(self, away: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the direction of a single class whose mean lies so far from the pool's."""
        return away

    def _ranks(self, model: object) -> bool:  # noqa: ARG002 - most models do
        """Tell whether a model says how likely classes are, and not the likeliest alone."""
        return True

    @abstractmethod
    def _learn(self, shard: Records, *, classes: int, rng: np.random.Generator) -> object:
        """Train a model on a shard with two or more classes."""

    @abstractmethod
    def _scores(self, model: object, inputs: Inputs, *, classes: int) -> NDArray[np.float64]:
        """Return a model's scores; shape (inputs, classes).

        Minus infinity for unseen classes, finite for all others.
        """

    @abstractmethod
    def _dump(self, model: object) -> bytes:
        """Return a model of `_learn` as a file."""

    @abstractmethod
    def _restore(self, content: bytes) -> object:
        """Return the model of a file; raise `UnreadableFileError` if it is none."""

    def _fit_one(
        self, shard: Records, public: Inputs | None, *, classes: int, rng: np.random.Generator
    ) -> Voter:
        present = np.unique(shard.labels)
        if len(present) > 1:
            voter = Voter(self._learn(shard, classes=classes, rng=rng))
        elif public is None or self._balance == "natural":
            return Voter(label=int(present[0]))
        else:
            away = shard.features.mean(axis=0) - public.features.mean(axis=0)
            voter = Voter(label=int(present[0]), direction=self._toward(away))
        if public is None or self._balance == "natural":
            return voter
        if voter.label is None and not self._ranks(voter.model):
            return voter
        seen = own_shares(shard.labels, classes=classes) if self._balance == "as seen" else None
        offsets = share_offsets(self._scores_of(voter, public, classes=classes), seen)
        return Voter(voter.model, voter.label, voter.direction, offsets)

    def _scores_of(self, voter: Voter, inputs: Inputs, *, classes: int) -> NDArray[np.float64]:
        if voter.label is None:
            return self._scores(voter.model, inputs, classes=classes)
        if voter.direction is None:
            scores = np.full((len(inputs), classes), -np.inf)
            scores[:, voter.label] = 0.0
            return scores
        # The other classes are alike to this teacher: fixed directions, which no record decides,
        # share the other inputs out among them.
        others = np.random.default_rng(0).normal(size=(len(voter.direction), classes))
        others *= np.linalg.norm(voter.direction) / np.linalg.norm(others, axis=0)
        others[:, voter.label] = voter.direction
        if classes == 2:
            others[:, 1 - voter.label] = 0.0
        scored: NDArray[np.float64] = inputs.features @ others
        return scored

    def _vote_one(self, voter: Voter, inputs: Inputs) -> NDArray[np.int64]:
        return np.asarray(self._ranked(voter, inputs).argmax(axis=1), dtype=np.int64)

    def _ranked(self, voter: Voter, inputs: Inputs) -> NDArray[np.float64]:
        """Return a teacher's scores, of which the largest is its vote; shape (inputs, classes)."""
        scores = self._scores_of(voter, inputs, classes=self._classes)
        return scores if voter.offsets is None else scores + voter.offsets


def _numbers(values: Any, *, length: int | None = None) -> NDArray[np.float64] | None:
    if values is None:
        return None
    if type(values) is not list or not all(type(one) is float for one in values):
        raise UnreadableFileError(f"{INDEX_FILE} must hold lists of numbers")
    if not values or (length is not None and len(values) != length):
        raise UnreadableFileError(f"{INDEX_FILE} must hold a number for each class", len(values))
    return np.array(values, dtype=np.float64)


def _index(files: Mapping[str, bytes]) -> list[Any]:
    try:
        index = json.loads(files[INDEX_FILE])
        listed = index["teachers"]
        good = index["schema_version"] == SCHEMA_VERSION and type(listed) is list and listed
    except (LookupError, ValueError, TypeError, RecursionError) as error:
        raise UnreadableFileError(f"{INDEX_FILE} must be readable", type(error).__name__) from error
    if not good:
        raise UnreadableFileError(
            f"{INDEX_FILE} must list teachers, in schema version {SCHEMA_VERSION}"
        )
    return list(listed)
