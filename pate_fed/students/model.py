"""Trained models that a student may be, and their files: JSON, safetensors, skops, no pickle."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from pate_fed.array_models import DESCRIPTION_FILE, SCHEMA_VERSION
from pate_fed.errors import RunDirectoryError, UnreadableFileError
from pate_fed.inputs import Inputs
from pate_fed.one_thread import one_thread
from pate_fed.regular_files import read_regular
from pate_fed.stored_models import SKOPS_FILE, restored, stored


class Model(ABC):
    """Something that knows how likely each class is, and can be written to a folder."""

    form: ClassVar[str]

    @abstractmethod
    def chances(self, inputs: Inputs) -> NDArray[np.float64]:
        """Return the chance of each class; float64, shape (n, classes), rows sum to 1."""

    @abstractmethod
    def write(self, directory: Path) -> dict[str, object]:
        """Write the model's files; return the facts for its description, beside its form."""

    @classmethod
    @abstractmethod
    def read(cls, directory: Path, described: dict[str, object]) -> Model:
        """Read what `write` wrote, and run nothing; anything else is a RunDirectoryError."""


@dataclass(frozen=True, slots=True)
class ConstantModel(Model):
    """Always the same class: all that labels of one class can teach."""

    form: ClassVar[str] = "constant"

    label: int
    classes: int

    def chances(self, inputs: Inputs) -> NDArray[np.float64]:
        """Return chance 1 for the one class."""
        chances = np.zeros((len(inputs), self.classes))
        chances[:, self.label] = 1.0
        return chances

    def write(self, directory: Path) -> dict[str, object]:  # noqa: ARG002 - it has no file
        """Return the class; there is no file."""
        return {"label": self.label}

    @classmethod
    def read(cls, directory: Path, described: dict[str, object]) -> ConstantModel:  # noqa: ARG003
        """See `Model.read`."""
        label, classes = described.get("label"), described.get("classes")
        if not isinstance(label, int) or not isinstance(classes, int) or not 0 <= label < classes:
            raise RunDirectoryError(f"{DESCRIPTION_FILE} must name a class")
        return cls(label, classes)


@dataclass(frozen=True, slots=True, eq=False)
class SklearnModel(Model):
    """A trained scikit-learn model on features.

    Attributes:
        estimator: A classifier that saw global class indices as labels, or a regression of 0/1
            columns, one for each class.
        offsets: Added to the logarithm of each class's chance; float64, shape (classes,).
    """

    form: ClassVar[str] = "sklearn"

    estimator: Any
    classes: int
    offsets: NDArray[np.float64] | None = field(default=None)

    def chances(self, inputs: Inputs) -> NDArray[np.float64]:
        """Ask the estimator."""
        with one_thread():
            found = self._asked(inputs.features)
        if self.offsets is not None:
            found = found * np.exp(self.offsets)
        return np.asarray(found / found.sum(axis=1, keepdims=True))

    def _asked(self, features: NDArray[np.float64]) -> NDArray[np.float64]:
        if not hasattr(self.estimator, "classes_"):
            return np.asarray(np.clip(self.estimator.predict(features), 1e-3, None))
        chances = np.full((len(features), self.classes), 1e-9)
        if hasattr(self.estimator, "predict_proba"):
            found = self.estimator.predict_proba(features)
        else:
            scores = np.asarray(self.estimator.decision_function(features))
            if scores.ndim == 1:
                scores = np.stack([-scores / 2, scores / 2], axis=1)
            found = np.exp(scores - scores.max(axis=1, keepdims=True))
            found = found / found.sum(axis=1, keepdims=True)
        places = np.asarray(self.estimator.classes_, dtype=np.int64)
        chances[:, places] = np.maximum(found, 1e-9)
        return chances

    def write(self, directory: Path) -> dict[str, object]:
        """Write the estimator with skops."""
        (directory / SKOPS_FILE).write_bytes(stored(self.estimator))
        offsets = None if self.offsets is None else [float(one) for one in self.offsets]
        return {"offsets": offsets}

    @classmethod
    def read(cls, directory: Path, described: dict[str, object]) -> SklearnModel:
        """See `Model.read`: it holds trusted types only."""
        classes, offsets = described.get("classes"), described.get("offsets")
        if not isinstance(classes, int) or classes < 2 or not _are_offsets(offsets, classes):
            raise RunDirectoryError(f"{DESCRIPTION_FILE} must say how many classes there are")
        try:
            estimator = restored(read_regular(directory / SKOPS_FILE))
        except OSError as error:
            raise RunDirectoryError(
                f"{SKOPS_FILE} must be readable", type(error).__name__
            ) from error
        except UnreadableFileError as error:
            raise RunDirectoryError(f"{SKOPS_FILE}: {error.must}", error.got) from error
        return cls(estimator, classes, None if offsets is None else np.array(offsets))


def _are_offsets(offsets: Any, classes: int) -> bool:
    return offsets is None or (
        type(offsets) is list
        and len(offsets) == classes
        and all(type(one) is float for one in offsets)
    )


def read_description(directory: Path) -> dict[str, object]:
    """Read a student's description; anything else is a RunDirectoryError."""
    if not directory.is_dir():
        raise RunDirectoryError(
            "a student must be given by its folder (a run without an answer has none)",
            "no folder there",
        )
    try:
        described = json.loads(read_regular(directory / DESCRIPTION_FILE))
    except (OSError, ValueError, RecursionError) as error:
        raise RunDirectoryError(
            f"a student's folder must hold a readable {DESCRIPTION_FILE}", type(error).__name__
        ) from error
    if not isinstance(described, dict) or described.get("schema_version") != SCHEMA_VERSION:
        raise RunDirectoryError(
            f"{DESCRIPTION_FILE} must be an object of schema version {SCHEMA_VERSION}"
        )
    return described
