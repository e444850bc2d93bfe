"""What students of images have in common."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pate_fed.errors import InvalidParameterError
from pate_fed.students.convolution import as_tensor, read_convolution
from pate_fed.students.model import Model
from pate_fed.students.student import Lesson, Student


class Pictures(NamedTuple):
    """A lesson as a network takes it.

    Attributes:
        chance: Draws weights, batches and views.
        pool: All public images; shape (inputs, channels, height, width).
        rows: Positions of the labeled ones.
        known: The labeled ones.
        labels: Their labels; shape (labels,).
    """

    chance: torch.Generator
    pool: Tensor
    rows: Tensor
    known: Tensor
    labels: Tensor


class ImageStudent(Student):
    """A student that looks at images, and becomes a convolutional network."""

    def read_model(self, directory: Path, described: dict[str, Any]) -> Model:
        """See `Student.read_model`."""
        return read_convolution(directory, described)

    def pictures_of(self, lesson: Lesson, rng: np.random.Generator) -> Pictures:
        """Return a lesson's images and labels, and a generator that follows from `rng`.

        Raises:
            InvalidParameterError: the pool is a table, or its images are too small.
        """
        images = lesson.pool.images
        if images is None or min(images.shape[1:3]) < 8:
            raise InvalidParameterError(
                f"the student {self.name} must learn from images of at least 8 x 8",
                "a table" if images is None else f"{images.shape[1]} x {images.shape[2]}",
            )
        chance = torch.Generator().manual_seed(int(rng.integers(2**63)))
        pool, rows = as_tensor(images), torch.from_numpy(lesson.indices.copy())
        return Pictures(chance, pool, rows, pool[rows], torch.from_numpy(lesson.labels.copy()))
