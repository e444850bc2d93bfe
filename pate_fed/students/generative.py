"""The students of 2017 and 2021: a network that also tells real images from generated ones.

With a generator that is to match the features of real images, a network of K classes learns from
unlabeled images, too: that they are real.

Source:
    Salimans et al. 2016, Improved techniques for training GANs. https://arxiv.org/abs/1606.03498
    Papernot et al. 2017, Semi-supervised knowledge transfer for deep learning from private training
    data. https://arxiv.org/abs/1610.05755
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from pate_fed.networks import one_thread
from pate_fed.students.convolution import (
    WEAK,
    ConvModel,
    ConvNet,
    draw_weights,
    seen_from,
    settled,
    trained,
)
from pate_fed.students.image_student import ImageStudent
from pate_fed.students.model import Model
from pate_fed.students.student import Lesson

_NOISE = 64
_WIDTH = 16
_STEPS = 600
_BATCH = 64
_BATCH_OF_RIVALS = 32
_RATE = 3e-4


class Generator(nn.Module):
    """Makes images from noise."""

    def __init__(self, shape: tuple[int, int, int], chance: torch.Generator) -> None:
        super().__init__()
        channels, height, width = shape
        self._shape = shape
        self.layers = nn.Sequential(
            nn.Linear(_NOISE, 256),
            nn.BatchNorm1d(256),
            nn.ReLU(),
            nn.Linear(256, 512),
            nn.BatchNorm1d(512),
            nn.ReLU(),
            nn.Linear(512, channels * height * width),
            nn.Sigmoid(),
        )
        draw_weights(self, chance)

    def forward(self, noise: Tensor) -> Tensor:
        """Return images; shape (n, noise) to (n, channels, height, width)."""
        images: Tensor = self.layers(noise).reshape(-1, *self._shape)
        return images


@dataclass(frozen=True, slots=True)
class Rivals:
    """A generator, and the pool that it imitates."""

    generator: Generator
    optimizer: torch.optim.Optimizer
    pool: Tensor
    chance: torch.Generator

    @classmethod
    def make(cls, pool: Tensor, chance: torch.Generator) -> Rivals:
        """Make an untrained generator of images like the pool's."""
        channels, height, width = pool.shape[1:]
        generator = Generator((channels, height, width), chance).to(pool.device)
        return cls(
            generator, torch.optim.Adam(generator.parameters(), _RATE, (0.5, 0.999)), pool, chance
        )

    def real_or_not(self, net: ConvNet) -> Tensor:
        """Return the loss of telling real images from generated ones, and train the generator."""
        real = self.pool[torch.randint(len(self.pool), (_BATCH_OF_RIVALS,), generator=self.chance)]
        noise = torch.randn(_BATCH_OF_RIVALS, _NOISE, generator=self.chance)
        made = self.generator(noise.to(real.device))
        shown = made.detach().requires_grad_()
        features = net.features(real), net.features(shown)
        apart = features[0].mean(dim=0).detach() - features[1].mean(dim=0)
        (slope,) = torch.autograd.grad(apart.abs().mean(), shown, retain_graph=True)
        # "Real" has the score log(sum of exp) of all classes, "made" has 0.
        seen_real, seen_made = (torch.logsumexp(net.score(each), dim=1) for each in features)
        loss = functional.softplus(-seen_real).mean() + functional.softplus(seen_made).mean()
        self.optimizer.zero_grad()
        made.backward(slope)
        self.optimizer.step()
        return loss


class GenerativeStudent(ImageStudent):
    """Semi-supervised GAN with feature matching: the student of the 2017 paper."""

    name: ClassVar[str] = "gan"

    def _learn(self, lesson: Lesson, *, rng: np.random.Generator) -> Model:
        chance, pool, known, labels = self.pictures_of(lesson, rng)
        with one_thread():
            net = ConvNet(pool.shape[1], lesson.classes, _WIDTH, chance).to(pool.device)
            rivals = Rivals.make(pool, chance)

            def loss(net: ConvNet, step: int) -> Tensor:  # noqa: ARG001 - alike at every step
                rows = torch.randint(len(labels), (_BATCH,), generator=chance)
                own = functional.cross_entropy(
                    net(seen_from(known[rows], WEAK, chance)), labels[rows]
                )
                return own + 0.5 * rivals.real_or_not(net)

            return ConvModel(settled(trained(net, loss, steps=_STEPS), pool).cpu(), _WIDTH)
