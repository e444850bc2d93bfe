"""Students of images: their common training."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from pate_fed.errors import InvalidParameterError
from pate_fed.inputs import Inputs
from pate_fed.networks import one_thread, usable_device
from pate_fed.students.convolution import (
    ConvModel,
    ConvNet,
    RandomView,
    as_tensor,
    seen_from,
    trained,
)
from pate_fed.students.model import Model
from pate_fed.students.student import Lesson, Student

_WIDTH = 16
_BATCH = 64


class Pictures(NamedTuple):
    """A lesson as a network takes it, on the device where it learns.

    Attributes:
        chance: Draws weights, batches and views, on the processor.
    """

    chance: torch.Generator
    pool: Tensor
    known: Tensor
    labels: Tensor


class ImageStudent(Student):
    """A student that looks at images, and becomes a convolutional network."""

    model_class: ClassVar[type[Model]] = ConvModel

    def require(self, pool: Inputs) -> None:
        """See `Student.require`: it learns from images of 8 x 8 pixels or more."""
        images = pool.images
        if images is None or min(images.shape[1:3]) < 8:
            raise InvalidParameterError(
                f"the student {self.name} must learn from images of at least 8 x 8",
                "a table" if images is None else f"{images.shape[1]} x {images.shape[2]}",
            )
        usable_device(self.device)

    def pictures_of(self, lesson: Lesson, rng: np.random.Generator) -> Pictures:
        """Return a lesson's images and labels, and a generator that follows from `rng`."""
        self.require(lesson.pool)
        images = lesson.pool.images
        assert images is not None
        chance = torch.Generator().manual_seed(int(rng.integers(2**63)))
        device = usable_device(self.device)
        pool = as_tensor(images).to(device)
        rows, labels = (torch.from_numpy(each.copy()) for each in (lesson.indices, lesson.labels))
        return Pictures(chance, pool, pool[rows], labels.to(device))


class TwoBatchStudent(ImageStudent):
    """A student that learns from two batches at each step: labeled images, and any public ones.

    A form supplies the lesson of public images. The labeled ones teach by cross-entropy.

    Attributes:
        smoothing: Share of each label that is spread over all classes.
    """

    steps: ClassVar[int]
    view: ClassVar[RandomView]
    smoothing: ClassVar[float] = 0.0
    pool_batch: ClassVar[int]

    def _learn(self, lesson: Lesson, *, rng: np.random.Generator) -> Model:
        generator, pool, known, labels = self.pictures_of(lesson, rng)
        with one_thread():
            net = ConvNet(pool.shape[1], lesson.classes, _WIDTH, generator).to(pool.device)

            def loss(net: ConvNet, step: int) -> Tensor:
                rows = torch.randint(len(labels), (_BATCH,), generator=generator)
                scores = net(seen_from(known[rows], self.view, generator))
                own = functional.cross_entropy(scores, labels[rows], label_smoothing=self.smoothing)
                others = pool[torch.randint(len(pool), (self.pool_batch,), generator=generator)]
                return own + self._loss_of_pool(net, others, step, generator)

            return ConvModel(trained(net, loss, steps=self.steps).cpu(), _WIDTH)

    @abstractmethod
    def _loss_of_pool(
        self, net: ConvNet, images: Tensor, step: int, generator: torch.Generator
    ) -> Tensor:
        """Return the loss of some public images at a step; a scalar."""
