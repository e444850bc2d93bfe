"""The contract of a student: it learns from released labels and public inputs, nothing else."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from pate_fed.array_models import DESCRIPTION_FILE, SCHEMA_VERSION
from pate_fed.errors import InvalidParameterError, NoLabelError
from pate_fed.inputs import DatasetKind, Inputs
from pate_fed.queries import QueryPool
from pate_fed.students.facts import LabelFacts
from pate_fed.students.label_sets import LabelSets, calibrating_rows
from pate_fed.students.model import ConstantModel, Model, SklearnModel


@dataclass(frozen=True, slots=True, eq=False)
class HeldOut:
    """Released labels that no student learns, to calibrate its sets.

    Attributes:
        coverage: Of the sets.
    """

    inputs: Inputs
    labels: NDArray[np.int64]
    coverage: float


@dataclass(frozen=True, slots=True, eq=False)
class Lesson:
    """All that a student learns from; every part of it is public.

    Attributes:
        indices: Positions of the labeled inputs, none twice; int64, shape (labels,).
        counts: Noisy votes for each class of the labeled inputs, where they were released and paid
            for; float64, shape (labels, classes). `kernel-ridge` learns them, others the labels.
        held: Labels that are held out to calibrate sets; no part of the pool.
    """

    pool: Inputs
    indices: NDArray[np.int64]
    labels: NDArray[np.int64]
    classes: int
    facts: LabelFacts = field(default_factory=LabelFacts)
    counts: NDArray[np.float64] | None = None
    held: HeldOut | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "indices", np.asarray(self.indices, dtype=np.int64))
        object.__setattr__(self, "labels", np.asarray(self.labels, dtype=np.int64))
        _check_labels(self.indices, self.labels, inputs=len(self.pool), classes=self.classes)
        if self.counts is not None and (
            self.counts.shape != (len(self.labels), self.classes) or self.facts.votes < 1
        ):
            raise InvalidParameterError(
                "noisy counts must be one for each label and class, of a known number of votes",
                str(self.counts.shape),
            )

    @classmethod
    def of(
        cls,
        pool: QueryPool,
        known: Mapping[int, int],
        *,
        classes: int,
        facts: LabelFacts,
        counts: Mapping[int, NDArray[np.float64]] | None = None,
        coverage: float | None = None,
    ) -> Lesson:
        """Return all that a run's student learns from.

        With a coverage the rows that only calibrate (`calibrating_rows`) teach nothing.

        Args:
            pool: The public pool.
            known: Labels by position in it.
            classes: Number of classes.
            facts: About the labels.
            counts: Noisy votes by position, where they were released.
            coverage: Of the student's sets; None for a student without sets.
        """
        views = pool.views
        rows, held = np.arange(len(pool)), None
        if coverage is not None:
            drawn = [row for row in calibrating_rows(pool) if row in known]
            held = HeldOut(views.select(drawn), _labels_of(known, drawn), coverage)
            rows = np.setdiff1d(rows, drawn)
            views = views.select(rows)
        kept = set(rows.tolist())
        taught = [row for row in known if row in kept]
        return cls(
            pool=views,
            indices=np.searchsorted(rows, taught),
            labels=_labels_of(known, taught),
            classes=classes,
            facts=facts,
            counts=np.stack([counts[row] for row in taught]) if counts and taught else None,
            held=held,
        )

    @property
    def shares(self) -> NDArray[np.float64]:
        """Share of the votes for each class, noisy, of the labeled inputs; shape as `counts`.

        Where no counts were released, all votes are taken to be for the label.
        """
        if self.counts is None:
            return np.asarray(np.eye(self.classes)[self.labels])
        return self.counts / self.facts.votes

    @property
    def labeled(self) -> Inputs:
        """The labeled inputs, in the order of the labels."""
        return self.pool.select(self.indices)


class Student(ABC):
    """A model of released labels.

    Guarantee: a student is post-processing. It sees public inputs and released labels only, so
    that it costs no privacy beyond theirs and may be published.

    Attributes:
        reason: Why it was chosen; empty if it was asked for by name.
        sets: Its rule for sets of classes, if labels were held out for one.
        device: torch's name of the device where a student of images learns, such as "cuda"; others
            learn on the processor. The trained model predicts there, always.
        model_class: What it becomes, unless all its labels are of one class.
    """

    name: ClassVar[str]
    model_class: ClassVar[type[Model]] = SklearnModel

    def __init__(self, kind: DatasetKind) -> None:
        self.kind = kind
        self.reason = ""
        self.device = "cpu"
        self.sets: LabelSets | None = None
        self.features = 0
        self.classes = 0
        self._model: Model | None = None

    @property
    def model(self) -> Model:
        """The trained model; before `fit` an InvalidParameterError."""
        if self._model is None:
            raise InvalidParameterError("a student must be trained first", "an untrained one")
        return self._model

    def require(self, pool: Inputs) -> None:  # noqa: B027 - most students learn from any pool
        """Refuse a pool that it could not learn from, whatever the labels; nothing is trained."""

    def adopt(self, model: Model, *, features: int, classes: int) -> None:
        """Take over a saved model, of inputs with this many features."""
        self._model, self.features, self.classes = model, features, classes

    def fit(self, lesson: Lesson, *, rng: np.random.Generator) -> None:
        """Learn. Labels of one class make a student that always says it.

        Where the lesson holds labels out, they calibrate the student's sets.
        """
        present = np.unique(lesson.labels)
        model: Model = (
            ConstantModel(int(present[0]), lesson.classes)
            if len(present) == 1
            else self._learn(lesson, rng=rng)
        )
        self.adopt(model, features=lesson.pool.features.shape[1], classes=lesson.classes)
        if (held := lesson.held) is not None:
            chances = self.chances(held.inputs)
            self.sets = LabelSets.calibrated(chances, held.labels, coverage=held.coverage)

    def chances(self, inputs: Inputs) -> NDArray[np.float64]:
        """Return the chance of each class; float64, shape (n, classes), rows sum to 1."""
        model = self.model
        if inputs.features.shape[1] != self.features:
            raise InvalidParameterError(
                f"inputs must have {self.features} features", inputs.features.shape[1]
            )
        return model.chances(inputs) if len(inputs) else np.zeros((0, self.classes))

    def sets_from(self, chances: NDArray[np.float64]) -> NDArray[np.bool_] | None:
        """Tell which classes are in the set of each input; None for a student without sets."""
        return None if self.sets is None else self.sets.of(chances)

    def predict(self, inputs: Inputs) -> NDArray[np.int64]:
        """Pick the likeliest class for each input; int64, shape (n,). Errors as in `chances`."""
        return np.asarray(self.chances(inputs).argmax(axis=1), dtype=np.int64)

    def save(self, directory: Path) -> None:
        """Write the trained model to a folder, without pickle."""
        model = self.model
        directory.mkdir(parents=True, exist_ok=True)
        description = {
            "schema_version": SCHEMA_VERSION,
            "student": self.name,
            "form": model.form,
            "features": self.features,
            "classes": self.classes,
            **({} if self.sets is None else {"sets": asdict(self.sets)}),
            **model.write(directory),
        }
        text = json.dumps(description, indent=2, sort_keys=True) + "\n"
        (directory / DESCRIPTION_FILE).write_text(text, "utf-8")

    def folders(self, directory: Path) -> list[Path]:
        """Return where `save` puts a student that reads raw rows: there, but for several labels."""
        return [directory]

    @abstractmethod
    def _learn(self, lesson: Lesson, *, rng: np.random.Generator) -> Model:
        """Train on labels of two or more classes."""


def _labels_of(known: Mapping[int, int], rows: list[int]) -> NDArray[np.int64]:
    return np.array([known[row] for row in rows], dtype=np.int64)


def _check_labels(
    indices: NDArray[np.int64], labels: NDArray[np.int64], *, inputs: int, classes: int
) -> None:
    if indices.ndim != 1 or indices.shape != labels.shape:
        raise InvalidParameterError(
            "there must be one label per index", f"{labels.shape} and {indices.shape}"
        )
    if not len(labels):
        raise NoLabelError
    if labels.min() < 0 or labels.max() >= classes:
        raise InvalidParameterError(f"labels must be classes in 0..{classes - 1}")
    if indices.min() < 0 or indices.max() >= inputs or len(set(indices.tolist())) != len(indices):
        raise InvalidParameterError(f"labeled inputs must be distinct indices in 0..{inputs - 1}")
