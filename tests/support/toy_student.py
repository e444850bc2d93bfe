"""A student that the product does not have: all that a new one needs stands in this file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from pate_fed.inputs import Inputs
from pate_fed.students.model import Model
from pate_fed.students.student import Lesson, Student


@dataclass(frozen=True, slots=True, eq=False)
class Centers(Model):
    """The class whose mean is nearest.

    Attributes:
        means: Mean of each class present; shape (present, features).
        present: These classes; shape (present,).
        classes: Number of all classes.
    """

    form: ClassVar[str] = "centers"

    means: NDArray[np.float64]
    present: NDArray[np.int64]
    classes: int

    def chances(self, inputs: Inputs) -> NDArray[np.float64]:
        """Be sure of the class with the nearest mean."""
        distances = np.linalg.norm(inputs.features[:, None] - self.means, axis=2)
        return np.eye(self.classes)[self.present[distances.argmin(axis=1)]]

    def write(self, directory: Path) -> dict[str, object]:
        np.save(directory / "means.npy", self.means)
        return {"present": self.present.tolist()}

    @classmethod
    def read(cls, directory: Path, described: dict[str, object]) -> Centers:
        present = np.asarray(described["present"])
        return cls(np.load(directory / "means.npy"), present, described["classes"])


class CentersStudent(Student):
    """Nearest class mean."""

    name: ClassVar[str] = "centers"
    model_class: ClassVar[type[Model]] = Centers

    def _learn(self, lesson: Lesson, *, rng: np.random.Generator) -> Model:
        present, features = np.unique(lesson.labels), lesson.labeled.features
        means = np.stack([features[lesson.labels == each].mean(axis=0) for each in present])
        return Centers(means, present, lesson.classes)
