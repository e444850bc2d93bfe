"""Teachers that are small convolutional networks, for images."""

from __future__ import annotations

import math
from typing import Any, ClassVar, Final

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor
from torch.nn import functional

from pate_fed.data.dataset import Records
from pate_fed.errors import InvalidDataError, UnreadableFileError
from pate_fed.inputs import Inputs
from pate_fed.networks import one_thread, usable_device
from pate_fed.teachers.teacher import NEVER, Balance, TeacherEnsemble

_FILTERS: Final = (16, 32)
_HIDDEN: Final = 64
_NAMES: Final = ("first", "second", "hidden", "output")
_SMALLEST_SIDE = 8
_ROUNDS = 40
_BATCH = 32
_FEWEST_STEPS = 300
_LEARNING_RATE = 0.003
_WEIGHT_DECAY = 1e-3
_SMOOTHING = 0.05
_CHUNK = 2048

Weights = dict[str, Tensor]


class ConvolutionEnsemble(TeacherEnsemble):
    """Teachers of two convolutions and two linear layers, trained one after the other.

    They repeat from their seed on one kind of device; another device rounds differently.
    """

    suffix: ClassVar[str] = "safetensors"

    def __init__(self, balance: Balance = "natural", *, device: str = "cpu") -> None:
        super().__init__(balance)
        self._device = usable_device(device)

    def _learn(self, shard: Records, *, classes: int, rng: np.random.Generator) -> object:
        pictures = _pictures(shard.inputs)
        # Drawn on the processor: every device gets the same weights and batches.
        chance = torch.Generator().manual_seed(int(rng.integers(2**63)))
        drawn = _initial(tuple(pictures.shape[1:]), classes, chance)
        weights = {name: one.to(self._device).requires_grad_() for name, one in drawn.items()}
        with one_thread():
            _train(
                weights,
                pictures.to(self._device),
                torch.from_numpy(np.array(shard.labels)).to(self._device),
                chance,
            )
        kept = {name: one.detach().cpu() for name, one in weights.items()}
        unseen = np.setdiff1d(np.arange(classes), shard.labels)
        kept["output.bias"][torch.from_numpy(unseen)] = NEVER
        return kept

    def _scores(self, model: Any, inputs: Inputs, *, classes: int) -> NDArray[np.float64]:
        assert len(model["output.bias"]) == classes, "made by _learn, or of a task that was checked"
        pictures = _pictures(inputs)
        with one_thread(), torch.no_grad():
            weights = {name: one.to(self._device) for name, one in model.items()}
            parts = [
                _forward(weights, part.to(self._device)).cpu()
                for part in torch.split(pictures, _CHUNK)
            ]
        found = torch.cat(parts).double().numpy()
        return np.where(found < NEVER / 2, -np.inf, found)

    def _dump(self, model: Any) -> bytes:
        content: bytes = save({name: tensor.contiguous() for name, tensor in model.items()})
        return content

    def _restore(self, content: bytes) -> object:
        try:
            weights: Weights = load(content)
            _require_shapes(weights)
        except (SafetensorError, LookupError, ValueError) as error:
            raise UnreadableFileError(
                "a teacher's file must hold a convolutional network's tensors", type(error).__name__
            ) from error
        return weights


def _pictures(inputs: Inputs) -> Tensor:
    """Return images as numbers from 0 to 1; shape (inputs, channels, height, width)."""
    images = inputs.images
    if images is None or min(images.shape[1:3]) < _SMALLEST_SIDE:
        raise InvalidDataError(
            f"convolution teachers must learn from images of at least {_SMALLEST_SIDE} x "
            f"{_SMALLEST_SIDE}",
            "a table" if images is None else f"{images.shape[1]} x {images.shape[2]}",
        )
    return torch.from_numpy(images.transpose(0, 3, 1, 2).astype(np.float32)) / 255


def _sizes(channels: int, seen: int, classes: int) -> dict[str, tuple[int, ...]]:
    """Return the shape of each layer's weights; a bias has its first axis."""
    return {
        "first": (_FILTERS[0], channels, 5, 5),
        "second": (_FILTERS[1], _FILTERS[0], 3, 3),
        "hidden": (_HIDDEN, seen),
        "output": (classes, _HIDDEN),
    }


def _initial(shape: tuple[int, ...], classes: int, chance: torch.Generator) -> Weights:
    channels, height, width = shape
    seen = _FILTERS[1] * math.ceil(height / 4) * math.ceil(width / 4)
    weights = {}
    for name, size in _sizes(channels, seen, classes).items():
        spread = math.sqrt(2 / math.prod(size[1:]))
        weights[f"{name}.weight"] = torch.randn(size, generator=chance) * spread
        weights[f"{name}.bias"] = torch.zeros(size[0])
    return weights


def _forward(weights: Weights, pictures: Tensor) -> Tensor:
    """Return scores; shape (inputs, channels, height, width) to (inputs, classes)."""
    seen = pictures
    for name, side in (("first", 2), ("second", 1)):
        filters, bias = weights[f"{name}.weight"], weights[f"{name}.bias"]
        seen = torch.relu(functional.conv2d(seen, filters, bias, stride=2, padding=side))
    flat = seen.flatten(1)
    hidden = torch.relu(flat @ weights["hidden.weight"].T + weights["hidden.bias"])
    return hidden @ weights["output.weight"].T + weights["output.bias"]


def _train(weights: Weights, pictures: Tensor, labels: Tensor, chance: torch.Generator) -> None:
    optimizer = torch.optim.AdamW(weights.values(), lr=_LEARNING_RATE, weight_decay=_WEIGHT_DECAY)
    batch = min(_BATCH, len(labels))
    steps = max(_FEWEST_STEPS, _ROUNDS * len(labels) // batch)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = _LEARNING_RATE * 0.5 * (1 + math.cos(math.pi * step / steps))
        rows = torch.randint(len(labels), (batch,), generator=chance).to(labels.device)
        loss = functional.cross_entropy(
            _forward(weights, pictures[rows]), labels[rows], label_smoothing=_SMOOTHING
        )
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it without types
        optimizer.step()


def _require_shapes(weights: Weights) -> None:
    """Raise a LookupError or ValueError where tensors are no network of ours."""
    if set(weights) != {f"{name}.{part}" for name in _NAMES for part in ("weight", "bias")}:
        raise LookupError
    found = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    (_, channels, *_), (_, seen), (classes, _) = (
        found["first.weight"],
        found["hidden.weight"],
        found["output.weight"],
    )
    for name, size in _sizes(channels, seen, classes).items():
        if found[f"{name}.weight"] != size or found[f"{name}.bias"] != size[:1]:
            raise ValueError(name)
