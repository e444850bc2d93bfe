"""FixMatch: learn from an image's distorted view what the plain view says surely.

Source:
    Sohn et al. 2020, FixMatch. https://arxiv.org/abs/2001.07685
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from pate_fed.networks import one_thread
from pate_fed.students.convolution import (
    STRONG,
    WEAK,
    ConvModel,
    ConvNet,
    seen_from,
    trained,
)
from pate_fed.students.image_student import ImageStudent
from pate_fed.students.model import Model
from pate_fed.students.student import Lesson

_WIDTH = 16
_STEPS = 800
_BATCH = 64
_POOL_BATCH = 192
_SURE = 0.9


class FixMatchStudent(ImageStudent):
    """A convolutional network on the labels, and on its own sure labels of distorted views."""

    name: ClassVar[str] = "fixmatch"

    def _learn(self, lesson: Lesson, *, rng: np.random.Generator) -> Model:
        generator, pool, _, known, labels = self.pictures_of(lesson, rng)
        with one_thread():
            net = ConvNet(pool.shape[1], lesson.classes, _WIDTH, generator)

            def loss(net: ConvNet, step: int) -> Tensor:  # noqa: ARG001 - alike at every step
                rows = torch.randint(len(labels), (_BATCH,), generator=generator)
                own = functional.cross_entropy(
                    net(seen_from(known[rows], WEAK, generator)), labels[rows]
                )
                others = pool[torch.randint(len(pool), (_POOL_BATCH,), generator=generator)]
                with torch.no_grad():
                    said = functional.softmax(net(seen_from(others, WEAK, generator)), dim=1)
                sureness, targets = said.max(dim=1)
                losses = functional.cross_entropy(
                    net(seen_from(others, STRONG, generator)), targets, reduction="none"
                )
                return own + (losses * (sureness >= _SURE)).mean()

            return ConvModel(trained(net, loss, steps=_STEPS), _WIDTH)
