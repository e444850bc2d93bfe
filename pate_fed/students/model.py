"""Trained models that a student may be, and their files: JSON, safetensors, skops, no pickle."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from pate_fed.errors import RunDirectoryError

DESCRIPTION_FILE = "student.json"
SKOPS_FILE = "model.skops"
TENSORS_FILE = "model.safetensors"

SCHEMA_VERSION = 1

TRUSTED_TYPES: tuple[str, ...] = ()
"""Types that a saved scikit-learn model may hold beyond those that skops trusts by itself.

The students' own models (support vector machine, logistic regression, gradient boosting) need none.
A file that asks for more is refused, for loading it would run code of its choice.
"""


class Model(ABC):
    """Something that picks a class, and can be written to a folder."""

    form: ClassVar[str]

    @abstractmethod
    def predict(self, inputs: NDArray[np.float64]) -> NDArray[np.int64]:
        """Pick a class for each input; shape (n, features) to int64 (n,)."""

    @abstractmethod
    def write(self, directory: Path) -> dict[str, object]:
        """Write the model's files; return the facts for its description, beside its form."""


@dataclass(frozen=True, slots=True)
class ConstantModel(Model):
    """Always the same class: all that labels of one class can teach.

    Attributes:
        label: That class.
    """

    form: ClassVar[str] = "constant"

    label: int

    def predict(self, inputs: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return the one class for each input."""
        return np.full(len(inputs), self.label, dtype=np.int64)

    def write(self, directory: Path) -> dict[str, object]:  # noqa: ARG002 - it has no file
        """Return the class; there is no file."""
        return {"label": self.label}

    @classmethod
    def read(cls, described: dict[str, Any]) -> ConstantModel:
        """Read it from its description.

        Raises:
            RunDirectoryError: it names no class.
        """
        label = described.get("label")
        if not isinstance(label, int) or label < 0:
            raise RunDirectoryError(f"{DESCRIPTION_FILE} must name a class", "none")
        return cls(label)


@dataclass(frozen=True, slots=True, eq=False)
class SklearnModel(Model):
    """A trained scikit-learn classifier.

    Attributes:
        classifier: Has `predict`, and saw global class indices as labels.
    """

    form: ClassVar[str] = "sklearn"

    classifier: Any

    def predict(self, inputs: NDArray[np.float64]) -> NDArray[np.int64]:
        """Ask the classifier."""
        return np.asarray(self.classifier.predict(inputs), dtype=np.int64)

    def write(self, directory: Path) -> dict[str, object]:
        """Write the classifier with skops."""
        import skops.io  # noqa: PLC0415 - brings PyTorch along, which takes seconds

        skops.io.dump(self.classifier, directory / SKOPS_FILE)
        return {}


def read_sklearn(directory: Path, described: dict[str, Any]) -> SklearnModel:
    """Read a classifier that holds trusted types only.

    Args:
        directory: The student's folder.
        described: Its description.

    Raises:
        RunDirectoryError: the description is of another model; the file is missing, damaged, or
            holds another type.
    """
    require_form(described, SklearnModel.form)
    import skops.io  # noqa: PLC0415 - brings PyTorch along, which takes seconds

    path = directory / SKOPS_FILE
    try:
        foreign = set(skops.io.get_untrusted_types(file=path)) - set(TRUSTED_TYPES)
        if foreign:
            raise RunDirectoryError(
                f"{SKOPS_FILE} must hold trusted types only", f"{len(foreign)} others"
            )
        return SklearnModel(skops.io.load(path, trusted=list(TRUSTED_TYPES)))
    except (OSError, BadZipFile, KeyError, ValueError, TypeError, AttributeError) as error:
        raise RunDirectoryError(
            f"{SKOPS_FILE} must be a readable skops file", type(error).__name__
        ) from error


def require_form(described: dict[str, Any], form: str) -> None:
    """Refuse a description of a model of another form.

    Raises:
        RunDirectoryError: it is.
    """
    if described.get("form") != form:
        raise RunDirectoryError(f"{DESCRIPTION_FILE} must describe a model", "another form")


def read_description(directory: Path) -> dict[str, Any]:
    """Read a student's description.

    Raises:
        RunDirectoryError: it is missing, no JSON object, or of another version.
    """
    try:
        described = json.loads((directory / DESCRIPTION_FILE).read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise RunDirectoryError(
            f"a student's folder must hold a readable {DESCRIPTION_FILE}", type(error).__name__
        ) from error
    if not isinstance(described, dict) or described.get("schema_version") != SCHEMA_VERSION:
        raise RunDirectoryError(
            f"{DESCRIPTION_FILE} must be an object of schema version {SCHEMA_VERSION}", "another"
        )
    return described
