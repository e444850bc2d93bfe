"""Virtual adversarial training: a student that changes its mind nowhere near a public image.

Source:
    Miyato et al. 2018, Virtual adversarial training. https://arxiv.org/abs/1704.03976
    Papernot et al. 2018, Scalable private learning with PATE, section 5.1 (its student for images).
    https://arxiv.org/abs/1802.08908
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from pate_fed.students.convolution import STRONG, ConvNet, RandomView
from pate_fed.students.image_student import TwoBatchStudent

_SMALL = 0.1
_DISTANCE = 3.0
_GROWN_AFTER = 200
_SURENESS = 0.3


class AdversarialStudent(TwoBatchStudent):
    """A convolutional network on the labels, smooth around every public image."""

    name: ClassVar[str] = "vat"
    steps: ClassVar[int] = 600
    view: ClassVar[RandomView] = STRONG
    smoothing: ClassVar[float] = 0.03
    pool_batch: ClassVar[int] = 128

    def _loss_of_pool(
        self, net: ConvNet, images: Tensor, step: int, generator: torch.Generator
    ) -> Tensor:
        return min(1.0, step / _GROWN_AFTER) * smoothness(net, images, generator)


def smoothness(net: ConvNet, images: Tensor, generator: torch.Generator) -> Tensor:
    """Return how far chances can change nearby, and how unsure they are.

    Returns:
        The divergence at the worst direction that one step of power iteration finds, plus 0.3
        times the mean entropy; a scalar.
    """
    scores = net(images)
    chances = functional.softmax(scores, dim=1)
    fixed = chances.detach()
    direction = _unit(
        torch.randn(images.shape, generator=generator).to(images.device)
    ).requires_grad_()
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
