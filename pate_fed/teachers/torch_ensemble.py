"""Teachers that are small torch networks."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pate_fed.data.dataset import Records
from pate_fed.networks import Network, train_network
from pate_fed.teachers.teacher import TeacherEnsemble


class TorchEnsemble(TeacherEnsemble):
    """Teachers that are networks with one hidden layer, trained one after the other."""

    def _learn(self, shard: Records, *, classes: int, rng: np.random.Generator) -> object:
        return train_network(shard.features, shard.labels, classes=classes, rng=rng)

    def _predict(self, model: object, inputs: NDArray[np.float64]) -> NDArray[np.int64]:
        assert isinstance(model, Network), "made by _learn"
        return model.pick(inputs)
