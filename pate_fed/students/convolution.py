"""A small convolutional network for images, its views of an image, and the loop that trains it.

Students bring their own losses. Everything runs on one thread and repeats from its seed. Random
numbers are drawn on the processor; another device rounds differently.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

from pate_fed.array_models import DESCRIPTION_FILE, TENSORS_FILE
from pate_fed.errors import RunDirectoryError
from pate_fed.inputs import Inputs
from pate_fed.networks import one_thread
from pate_fed.students.model import Model

_LEARNING_RATE = 0.08
_WEIGHT_DECAY = 5e-4
_KEPT = 0.99
_DROPPED = 0.3
_CHUNK = 1024


class ConvNet(nn.Module):
    """Four convolutions, their mean over the image, and a linear layer.

    The generator draws weights and, in training, the features that are left out.
    """

    def __init__(self, channels: int, classes: int, width: int, chance: torch.Generator) -> None:
        super().__init__()
        self._chance = chance
        sizes = [(channels, width, 5, 2), (width, 2 * width, 3, 1)]
        sizes += [(2 * width, 4 * width, 3, 1), (4 * width, 4 * width, 3, 1)]
        layers: list[nn.Module] = []
        for place, (before, after, kernel, stride) in enumerate(sizes):
            layers += [
                nn.Conv2d(before, after, kernel, stride, kernel // 2, bias=False),
                nn.BatchNorm2d(after),
                nn.ReLU(),
            ]
            if place == 1:
                layers.append(nn.MaxPool2d(2, ceil_mode=True))
        self.layers = nn.Sequential(*layers)
        self.last = nn.Linear(4 * width, classes)
        draw_weights(self, chance, gain=2.0)

    def features(self, images: Tensor) -> Tensor:
        """Return its features; shape (n, channels, height, width) to (n, 4 * width)."""
        seen: Tensor = self.layers(images).mean(dim=(2, 3))
        return seen

    def forward(self, images: Tensor) -> Tensor:
        """Return scores; shape (n, channels, height, width) to (n, classes)."""
        return self.score(self.features(images))

    def score(self, features: Tensor) -> Tensor:
        """Return scores; shape (n, 4 * width) to (n, classes)."""
        if self.training:
            kept = (
                torch.rand(features.shape, generator=self._chance).to(features.device) >= _DROPPED
            )
            features = features * kept / (1 - _DROPPED)
        scores: Tensor = self.last(features)
        return scores


def draw_weights(net: nn.Module, chance: torch.Generator, *, gain: float = 1.0) -> None:
    """Draw the weights of all layers anew: torch draws them from a generator that all share.

    `gain` is the variance of a layer's outputs over that of its inputs.
    """
    for layer in net.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            spread = math.sqrt(gain / layer.weight[0].numel())
            layer.weight.data = torch.randn(layer.weight.shape, generator=chance) * spread
            if layer.bias is not None:
                layer.bias.data.zero_()


@dataclass(frozen=True, slots=True)
class RandomView:
    """How far a random view of an image may be from it.

    Attributes:
        turn: Degrees.
        shift: Share of the side.
        scale: Relative.
        shear: Degrees.
        erased: Side of the square that is blanked, as a share of the side.
    """

    turn: float
    shift: float
    scale: float
    shear: float = 0.0
    erased: float = 0.0


WEAK: Final = RandomView(turn=8, shift=0.07, scale=0.08)
STRONG: Final = RandomView(turn=25, shift=0.11, scale=0.2, shear=15, erased=0.28)


def seen_from(images: Tensor, view: RandomView, generator: torch.Generator) -> Tensor:
    """Return each image as a random view shows it; the same shape."""
    count, _, height, width = images.shape

    def drawn(most: float) -> Tensor:
        return (2 * torch.rand(count, generator=generator).to(images.device) - 1) * most

    turn, shear = drawn(math.radians(view.turn)), drawn(math.radians(view.shear))
    scale = torch.exp(drawn(view.scale))
    matrix = torch.stack(
        [
            torch.stack(
                [scale * turn.cos(), scale * (shear - turn).sin(), 2 * drawn(view.shift)], 1
            ),
            torch.stack(
                [scale * turn.sin(), scale * (shear - turn).cos(), 2 * drawn(view.shift)], 1
            ),
        ],
        dim=1,
    )
    grid = functional.affine_grid(matrix, list(images.shape), align_corners=False)
    moved = functional.grid_sample(images, grid, align_corners=False)
    if not view.erased:
        return moved
    tall, wide = max(1, int(view.erased * height)), max(1, int(view.erased * width))
    top = torch.randint(height - tall + 1, (count, 1, 1, 1), generator=generator).to(images.device)
    left = torch.randint(width - wide + 1, (count, 1, 1, 1), generator=generator).to(images.device)
    rows = torch.arange(height, device=images.device).reshape(1, 1, -1, 1)
    columns = torch.arange(width, device=images.device).reshape(1, 1, 1, -1)
    inside = (rows >= top) & (rows < top + tall) & (columns >= left) & (columns < left + wide)
    return moved.masked_fill(inside, 0.0)


def as_tensor(images: NDArray[np.uint8]) -> Tensor:
    """Return images as numbers from 0 to 1; shape (n, channels, height, width)."""
    return torch.from_numpy(images.transpose(0, 3, 1, 2).astype(np.float32)) / 255


class Descent:
    """Gradient descent of one network: its rate rises, then falls to 0 along a cosine.

    Attributes:
        mean: The network with the running mean of all weights so far.
    """

    def __init__(self, net: ConvNet, *, steps: int, rate: float = _LEARNING_RATE) -> None:
        self._net, self._steps, self._rate, self._step = net, steps, rate, 0
        self.mean = copy.deepcopy(net).eval()
        self._optimizer = torch.optim.SGD(
            net.parameters(), lr=rate, momentum=0.9, nesterov=True, weight_decay=_WEIGHT_DECAY
        )
        net.train()

    def take(self, loss: Tensor) -> None:
        """Take a step against the slope of a loss."""
        step, self._step = self._step, self._step + 1
        warm = min(1.0, (step + 1) / 20)
        for group in self._optimizer.param_groups:
            group["lr"] = self._rate * warm * 0.5 * (1 + math.cos(math.pi * step / self._steps))
        self._optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it without types
        self._optimizer.step()
        kept = min(_KEPT, (1 + step) / (10 + step))
        states = self.mean.state_dict().values(), self._net.state_dict().values()
        with torch.no_grad():
            for old, new in zip(*states, strict=True):
                if old.is_floating_point():
                    old.mul_(kept).add_(new, alpha=1 - kept)
                else:
                    old.copy_(new)


def trained(net: ConvNet, loss: Callable[[ConvNet, int], Tensor], *, steps: int) -> ConvNet:
    """Train a network, and return the running mean of its weights."""
    descent = Descent(net, steps=steps)
    for step in range(steps):
        descent.take(loss(net, step))
    return descent.mean


def settled(net: ConvNet, images: Tensor) -> ConvNet:
    """Take what the network holds of its layers' means and spreads from these images alone.

    A network that saw generated images, too, would else scale real ones by a mixture of both.
    """
    layers = [layer for layer in net.layers if isinstance(layer, nn.BatchNorm2d)]
    usual = [layer.momentum for layer in layers]
    for layer in layers:
        layer.reset_running_stats()
        layer.momentum = None  # the plain mean over all batches
    net.train()
    with torch.no_grad():
        for part in torch.split(images, _CHUNK):
            net.features(part)
    for layer, momentum in zip(layers, usual, strict=True):
        layer.momentum = momentum
    return net.eval()


def chances_of(net: ConvNet, images: Tensor) -> Tensor:
    """Return the chance of each class; shape (n, channels, height, width) to (n, classes)."""
    net.eval()
    with torch.no_grad():
        parts = [functional.softmax(net(part), dim=1) for part in torch.split(images, _CHUNK)]
    return torch.cat(parts)


@dataclass(frozen=True, slots=True, eq=False)
class ConvModel(Model):
    """A trained convolutional network."""

    form: ClassVar[str] = "convolution"

    net: ConvNet
    width: int

    def chances(self, inputs: Inputs) -> NDArray[np.float64]:
        """Ask the network; images are needed."""
        assert inputs.images is not None, "checked when it was trained"
        with one_thread():
            found = chances_of(self.net, as_tensor(inputs.images)).double().numpy()
        return np.asarray(found / found.sum(axis=1, keepdims=True))

    def write(self, directory: Path) -> dict[str, object]:
        """Write the weights with safetensors."""
        tensors = {name: each.contiguous() for name, each in self.net.state_dict().items()}
        save_file(tensors, directory / TENSORS_FILE)
        return {"width": self.width, "channels": self.net.layers[0].in_channels}

    @classmethod
    def read(cls, directory: Path, described: dict[str, object]) -> ConvModel:
        """See `Model.read`."""
        named = (described.get(name) for name in ("channels", "classes", "width"))
        sizes = [size for size in named if type(size) is int and 1 <= size <= 1024]
        if len(sizes) < 3:
            raise RunDirectoryError(f"{DESCRIPTION_FILE} must give the network's sizes")
        channels, classes, width = sizes
        net = ConvNet(channels, classes, width, torch.Generator())
        try:
            net.load_state_dict(load_file(directory / TENSORS_FILE))
        except (OSError, SafetensorError, ValueError, RuntimeError) as error:
            raise RunDirectoryError(
                f"{TENSORS_FILE} must be a readable safetensors file", type(error).__name__
            ) from error
        return cls(net.eval(), width)
