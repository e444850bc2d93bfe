"""A student with a small torch network, trained on propagated labels."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from pate_fed.array_models import TENSORS_FILE
from pate_fed.errors import RunDirectoryError
from pate_fed.inputs import Inputs
from pate_fed.networks import Network, train_network
from pate_fed.students.model import Model
from pate_fed.students.propagation import propagate_labels
from pate_fed.students.student import Lesson, Student


@dataclass(frozen=True, slots=True, eq=False)
class NetworkModel(Model):
    """A trained network."""

    form: ClassVar[str] = "network"

    network: Network

    def chances(self, inputs: Inputs) -> NDArray[np.float64]:
        """Return the softmax of the scores."""
        scores = self.network.scores(inputs.features)
        chances = np.exp(scores - scores.max(axis=1, keepdims=True))
        return np.asarray(chances / chances.sum(axis=1, keepdims=True))

    def write(self, directory: Path) -> dict[str, object]:
        """Write the parameters with safetensors."""
        save_file(self.network.tensors, directory / TENSORS_FILE)
        return {}

    @classmethod
    def read(cls, directory: Path, described: dict[str, object]) -> NetworkModel:  # noqa: ARG003
        """See `Model.read`."""
        try:
            return cls(Network(load_file(directory / TENSORS_FILE)))
        except (OSError, SafetensorError, ValueError) as error:
            raise RunDirectoryError(
                f"{TENSORS_FILE} must be a readable safetensors file", type(error).__name__
            ) from error


class NetworkStudent(Student):
    """Label propagation, then a network with one hidden layer on the whole pool."""

    name: ClassVar[str] = "network"

    model_class: ClassVar[type[Model]] = NetworkModel

    def _learn(self, lesson: Lesson, *, rng: np.random.Generator) -> Model:
        inputs, spread = lesson.pool.features, propagate_labels(lesson)
        return NetworkModel(train_network(inputs, spread.labels, classes=lesson.classes, rng=rng))
