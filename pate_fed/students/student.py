"""The contract of a student: it learns from released labels and public inputs, nothing else."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from pate_fed.errors import InvalidParameterError
from pate_fed.students.model import DESCRIPTION_FILE, SCHEMA_VERSION, ConstantModel, Model


class Student(ABC):
    """A model of released labels.

    Guarantee: a student is post-processing. It sees public inputs and released labels only, so
    that it costs no privacy beyond theirs and may be published.
    """

    name: ClassVar[str]

    def __init__(self) -> None:
        self._model: Model | None = None
        self._features = 0

    @property
    def model(self) -> Model:
        """The trained model.

        Raises:
            InvalidParameterError: before `fit`.
        """
        if self._model is None:
            raise InvalidParameterError("a student must be trained first", "an untrained one")
        return self._model

    def adopt(self, model: Model, *, features: int) -> None:
        """Take over a saved model.

        Args:
            model: The model.
            features: Length of its inputs.
        """
        self._model = model
        self._features = features

    def fit(
        self,
        pool_inputs: NDArray[np.float64],
        indices: NDArray[np.int64],
        labels: NDArray[np.int64],
        *,
        classes: int,
        rng: np.random.Generator,
    ) -> None:
        """Learn from labels of some public inputs.

        Labels of one class make a student that always says it.

        Args:
            pool_inputs: The whole public pool; float64, shape (inputs, features).
            indices: Positions of the labeled inputs, none twice; shape (labels,).
            labels: Released class of each; no `ABSTAIN`; shape (labels,).
            classes: Number of classes.
            rng: Seeds the training.

        Raises:
            InvalidParameterError: no label at all, a label that is no class, an index outside
                the pool or twice, or shapes that do not match.
        """
        places = np.asarray(indices, dtype=np.int64)
        known = np.asarray(labels, dtype=np.int64)
        _check_labels(places, known, inputs=len(pool_inputs), classes=classes)
        present = np.unique(known)
        model: Model = (
            ConstantModel(int(present[0]))
            if len(present) == 1
            else self._learn(pool_inputs, places, known, classes=classes, rng=rng)
        )
        self.adopt(model, features=pool_inputs.shape[1])

    def predict(self, inputs: NDArray[np.float64]) -> NDArray[np.int64]:
        """Pick a class for each input.

        Args:
            inputs: float64, shape (n, features).

        Returns:
            int64, shape (n,).

        Raises:
            InvalidParameterError: before `fit`, or the number of features differs.
        """
        model = self.model
        if inputs.ndim != 2 or inputs.shape[1] != self._features:
            raise InvalidParameterError(
                f"inputs must have {self._features} features", f"shape {inputs.shape}"
            )
        return model.predict(inputs)

    def save(self, directory: Path) -> None:
        """Write the trained model to a folder, without pickle.

        Args:
            directory: Made if absent.

        Raises:
            InvalidParameterError: before `fit`.
        """
        model = self.model
        directory.mkdir(parents=True, exist_ok=True)
        description = {
            "schema_version": SCHEMA_VERSION,
            "student": self.name,
            "form": model.form,
            "features": self._features,
            **model.write(directory),
        }
        text = json.dumps(description, indent=2, sort_keys=True) + "\n"
        (directory / DESCRIPTION_FILE).write_text(text, "utf-8")

    @abstractmethod
    def read_model(self, directory: Path, described: dict[str, Any]) -> Model:
        """Read a model that one of its kind saved.

        Args:
            directory: The folder.
            described: Its description, as `save` wrote it.

        Raises:
            RunDirectoryError: a file is missing or damaged, or the model is of another form.
        """

    @abstractmethod
    def _learn(
        self,
        pool_inputs: NDArray[np.float64],
        indices: NDArray[np.int64],
        labels: NDArray[np.int64],
        *,
        classes: int,
        rng: np.random.Generator,
    ) -> Model:
        """Train on labels of two or more classes."""


def _check_labels(
    indices: NDArray[np.int64], labels: NDArray[np.int64], *, inputs: int, classes: int
) -> None:
    if indices.ndim != 1 or indices.shape != labels.shape:
        raise InvalidParameterError(
            "there must be one label per index", f"{labels.shape} and {indices.shape}"
        )
    if not len(labels):
        raise InvalidParameterError("a student needs at least one label", 0)
    if labels.min() < 0 or labels.max() >= classes:
        raise InvalidParameterError(f"labels must be classes in 0..{classes - 1}", "another")
    if indices.min() < 0 or indices.max() >= inputs or len(set(indices.tolist())) != len(indices):
        raise InvalidParameterError(
            f"labeled inputs must be distinct indices in 0..{inputs - 1}", "others"
        )
