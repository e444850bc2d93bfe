"""Virtual adversarial training: a student that changes its mind nowhere near a public image.

Source:
    Miyato et al. 2018, Virtual adversarial training. https://arxiv.org/abs/1704.03976
    Papernot et al. 2018, Scalable private learning with PATE, section 5.1 (its student for images).
    https://arxiv.org/abs/1802.08908
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
    ConvModel,
    ConvNet,
    seen_from,
    trained,
)
from pate_fed.students.image_student import ImageStudent
from pate_fed.students.model import Model
from pate_fed.students.student import Lesson

_SMALL = 0.1
_DISTANCE = 3.0
_WIDTH = 16
_STEPS = 600
_BATCH = 64
_POOL_BATCH = 128
_SURENESS = 0.3


class AdversarialStudent(ImageStudent):
    """A convolutional network on the labels, smooth around every public image."""

    name: ClassVar[str] = "vat"

    def _learn(self, lesson: Lesson, *, rng: np.random.Generator) -> Model:
        generator, pool, _, known, labels = self.pictures_of(lesson, rng)
        with one_thread():
            net = ConvNet(pool.shape[1], lesson.classes, _WIDTH, generator)

            def loss(net: ConvNet, step: int) -> Tensor:
                rows = torch.randint(len(labels), (_BATCH,), generator=generator)
                seen = seen_from(known[rows], STRONG, generator)
                own = functional.cross_entropy(net(seen), labels[rows], label_smoothing=0.03)
                others = pool[torch.randint(len(pool), (_POOL_BATCH,), generator=generator)]
                grown = min(1.0, step / 200)
                return own + grown * smoothness(net, others, generator)

            return ConvModel(trained(net, loss, steps=_STEPS), _WIDTH)


def smoothness(net: ConvNet, images: Tensor, generator: torch.Generator) -> Tensor:
    """Return how far chances can change nearby, and how unsure they are.

    Args:
        net: The network.
        images: Public images; shape (n, channels, height, width).
        generator: Draws the first direction.

    Returns:
        The divergence at the worst direction that one step of power iteration finds, plus 0.3
        times the mean entropy; a scalar.
    """
    scores = net(images)
    chances = functional.softmax(scores, dim=1)
    fixed = chances.detach()
    direction = _unit(torch.randn(images.shape, generator=generator)).requires_grad_()
    nearby = functional.log_softmax(net(images + _SMALL * direction), dim=1)
    (slope,) = torch.autograd.grad(
        functional.kl_div(nearby, fixed, reduction="batchmean"), direction
    )
    worst = functional.log_softmax(net(images + _DISTANCE * _unit(slope.detach())), dim=1)
    entropy = -(chances * functional.log_softmax(scores, dim=1)).sum(dim=1).mean()
    change: Tensor = functional.kl_div(worst, fixed, reduction="batchmean")
    return change + _SURENESS * entropy


def _unit(images: Tensor) -> Tensor:
    lengths = images.flatten(1).norm(dim=1).clamp_min(1e-12)
    unit: Tensor = images / lengths.reshape(-1, 1, 1, 1)
    return unit
