"""A small multilayer perceptron in torch, trained on one thread and repeatable from its seed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pate_fed.errors import InvalidParameterError

_HIDDEN = 64
_STEPS = 300
_BATCH = 64
_LEARNING_RATE = 0.01
_WEIGHT_DECAY = 1e-3
_SMOOTHING = 0.05
_CHUNK = 8192
_NAMES = frozenset(
    {"mean", "deviation", "hidden.weight", "hidden.bias", "output.weight", "output.bias"}
)


@dataclass(frozen=True, slots=True, eq=False)
class Network:
    """A trained network: standardizes its inputs, then two layers.

    Attributes:
        tensors: Parameters by name: `mean`, `deviation` (features,), `hidden.weight` (hidden,
            features), `hidden.bias`, `output.weight` (classes, hidden), `output.bias`; float32.
    """

    tensors: dict[str, Tensor]

    def __post_init__(self) -> None:
        if set(self.tensors) != _NAMES or not _shapes_fit(self.tensors):
            raise InvalidParameterError(
                f"a network must have the tensors {', '.join(sorted(_NAMES))}, of shapes that fit",
            )

    @property
    def classes(self) -> int:
        """Number of classes."""
        return len(self.tensors["output.weight"])

    def scores(self, inputs: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return scores, higher for likelier classes; (inputs, features) to (inputs, classes)."""
        with one_thread(), torch.no_grad():
            parts = [
                _forward(self.tensors, torch.from_numpy(chunk.astype(np.float32)))
                for chunk in np.array_split(inputs, max(1, -(-len(inputs) // _CHUNK)))
            ]
            found: NDArray[np.float64] = torch.cat(parts).double().numpy()
        return found


def train_network(
    inputs: NDArray[np.float64],
    labels: NDArray[np.int64],
    *,
    classes: int,
    rng: np.random.Generator,
) -> Network:
    """Train a network with AdamW on smoothed cross-entropy; inputs of shape (n, features)."""
    generator = torch.Generator().manual_seed(int(rng.integers(2**63)))
    mean = inputs.mean(axis=0)
    deviation = np.maximum(inputs.std(axis=0), 1e-6 + 1e-3 * inputs.std())
    features = torch.from_numpy(inputs.astype(np.float32))
    targets = torch.from_numpy(np.array(labels))  # a copy: torch wants to be able to write
    with one_thread():
        tensors = {
            "mean": torch.from_numpy(mean.astype(np.float32)),
            "deviation": torch.from_numpy(deviation.astype(np.float32)),
            **_initial(inputs.shape[1], classes, generator),
        }
        _train(tensors, features, targets, generator)
    return Network({name: tensor.detach() for name, tensor in tensors.items()})


def _initial(features: int, classes: int, generator: torch.Generator) -> dict[str, Tensor]:
    def layer(rows: int, columns: int) -> Tensor:
        drawn = torch.randn(rows, columns, generator=generator)
        return drawn.mul_((2.0 / columns) ** 0.5)

    parameters = {
        "hidden.weight": layer(_HIDDEN, features),
        "hidden.bias": torch.zeros(_HIDDEN),
        "output.weight": 0.1 * layer(classes, _HIDDEN),
        "output.bias": torch.zeros(classes),
    }
    for parameter in parameters.values():
        parameter.requires_grad_()
    return parameters


def _train(
    tensors: dict[str, Tensor],
    features: Tensor,
    targets: Tensor,
    generator: torch.Generator,
) -> None:
    parameters = [tensor for tensor in tensors.values() if tensor.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=_LEARNING_RATE, weight_decay=_WEIGHT_DECAY)
    for step in range(_STEPS):
        for group in optimizer.param_groups:
            group["lr"] = _LEARNING_RATE * 0.5 * (1 + np.cos(np.pi * step / _STEPS))
        rows = torch.randint(len(targets), (min(_BATCH, len(targets)),), generator=generator)
        loss = nn.functional.cross_entropy(
            _forward(tensors, features[rows]), targets[rows], label_smoothing=_SMOOTHING
        )
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it without types
        optimizer.step()


def _shapes_fit(tensors: dict[str, Tensor]) -> bool:
    if tensors["hidden.weight"].ndim != 2 or tensors["output.weight"].ndim != 2:
        return False
    hidden, features = tensors["hidden.weight"].shape
    classes = len(tensors["output.weight"])
    return (
        tensors["mean"].shape == tensors["deviation"].shape == (features,)
        and tensors["hidden.bias"].shape == (hidden,)
        and tensors["output.weight"].shape == (classes, hidden)
        and tensors["output.bias"].shape == (classes,)
    )


def _forward(tensors: dict[str, Tensor], inputs: Tensor) -> Tensor:
    scaled = (inputs - tensors["mean"]) / tensors["deviation"]
    hidden = torch.relu(scaled @ tensors["hidden.weight"].T + tensors["hidden.bias"])
    scores: Tensor = hidden @ tensors["output.weight"].T + tensors["output.bias"]
    return scores


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch use one thread."""
    # Networks this small lose more to waiting threads than they gain; one thread also fixes the
    # order of additions, hence the result.
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def usable_device(name: str) -> torch.device:
    """Return one of torch's devices; refuse one that cannot be used here."""
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).cpu()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise InvalidParameterError(
            "--device must be one that PyTorch can use here, such as cpu or cuda", repr(name)
        ) from error
    return device


def fastest_device() -> str:
    """Return torch's name of the device that trains networks fastest here."""
    return "cuda" if torch.cuda.is_available() else "cpu"
