"""Teachers that are small torch networks."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load, save

from pate_fed.data.dataset import Records
from pate_fed.errors import InvalidParameterError, UnreadableFileError
from pate_fed.inputs import Inputs
from pate_fed.networks import Network, train_network
from pate_fed.teachers.teacher import NEVER, TeacherEnsemble


class TorchEnsemble(TeacherEnsemble):
    """Teachers that are networks with one hidden layer, trained one after the other."""

    suffix: ClassVar[str] = "safetensors"

    def _learn(self, shard: Records, *, classes: int, rng: np.random.Generator) -> object:
        network = train_network(shard.features, shard.labels, classes=classes, rng=rng)
        unseen = np.setdiff1d(np.arange(classes), shard.labels)
        network.tensors["output.bias"][torch.from_numpy(unseen)] = NEVER
        return network

    def _scores(self, model: object, inputs: Inputs, *, classes: int) -> NDArray[np.float64]:
        assert isinstance(model, Network), "made by _learn"
        assert model.classes == classes, "made by _learn, or of a task that was checked"
        found = model.scores(inputs.features)
        return np.where(found < NEVER / 2, -np.inf, found)

    def _dump(self, model: object) -> bytes:
        assert isinstance(model, Network), "made by _learn"
        content: bytes = save({name: tensor.contiguous() for name, tensor in model.tensors.items()})
        return content

    def _restore(self, content: bytes) -> object:
        try:
            return Network(load(content))
        except (SafetensorError, InvalidParameterError, ValueError) as error:
            raise UnreadableFileError(
                "a teacher's file must hold a network's tensors", type(error).__name__
            ) from error


def graphics_cards() -> tuple[str, ...]:
    """Return the names of the graphics cards that torch could use; teachers train without."""
    if not torch.cuda.is_available():
        return ()
    return tuple(torch.cuda.get_device_name(place) for place in range(torch.cuda.device_count()))
