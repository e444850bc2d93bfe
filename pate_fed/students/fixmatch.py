"""FixMatch: learn from an image's distorted view what the plain view says surely.

Source:
    Sohn et al. 2020, FixMatch. https://arxiv.org/abs/2001.07685
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from pate_fed.students.convolution import STRONG, WEAK, ConvNet, RandomView, seen_from
from pate_fed.students.image_student import TwoBatchStudent

_SURE = 0.9


class FixMatchStudent(TwoBatchStudent):
    """A convolutional network on the labels, and on its own sure labels of distorted views."""

    name: ClassVar[str] = "fixmatch"
    steps: ClassVar[int] = 800
    view: ClassVar[RandomView] = WEAK
    pool_batch: ClassVar[int] = 192

    def _loss_of_pool(
        self,
        net: ConvNet,
        images: Tensor,
        step: int,  # noqa: ARG002 - alike at every step
        generator: torch.Generator,
    ) -> Tensor:
        with torch.no_grad():
            said = functional.softmax(net(seen_from(images, WEAK, generator)), dim=1)
        sureness, targets = said.max(dim=1)
        distorted = net(seen_from(images, STRONG, generator))
        losses = functional.cross_entropy(distorted, targets, reduction="none")
        return (losses * (sureness >= _SURE)).mean()
