"""A student that spreads labels over a graph, learns them, and builds a better graph, in stages."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from pate_fed.inputs import Inputs
from pate_fed.networks import one_thread
from pate_fed.students.convolution import (
    STRONG,
    WEAK,
    ConvModel,
    ConvNet,
    chances_of,
    seen_from,
    trained,
)
from pate_fed.students.image_student import ImageStudent
from pate_fed.students.model import Model
from pate_fed.students.propagation import propagate_labels
from pate_fed.students.student import Lesson
from pate_fed.students.virtual_adversarial import smoothness

_BATCH = 128
_REFRESH = 60
_STRONG_SHARE = 2 / 3
_CHUNK = 1024


@dataclass(frozen=True, slots=True)
class TrainingStage:
    """One stage of training.

    Attributes:
        first: Share of the pool that is learned at the start: the surest labels.
    """

    width: int
    steps: int
    first: float
    last: float


STAGES: Final = (
    TrainingStage(16, 300, 0.6, 0.85),
    TrainingStage(16, 300, 0.8, 0.93),
    TrainingStage(24, 500, 0.85, 0.95),
)


class SelfTrainingStudent(ImageStudent):
    """Label propagation and virtual adversarial training, in three stages.

    Between stages the released labels are spread anew, over a graph of what the last network sees:
    this mends what the first graph got wrong, where keeping the network's own labels would not.
    """

    name: ClassVar[str] = "self-training"

    def _learn(self, lesson: Lesson, *, rng: np.random.Generator) -> Model:
        generator, pool, *_ = self.pictures_of(lesson, rng)
        with one_thread():
            for stage in STAGES:
                spread = propagate_labels(lesson)
                belief = torch.from_numpy(
                    np.eye(lesson.classes, dtype=np.float32)[spread.labels]
                    * spread.confidence[:, None].astype(np.float32)
                ).to(pool.device)
                net = _stage(stage, pool, belief, lesson.classes, generator)
                lesson = replace(lesson, pool=Inputs(_features(net, pool)))
        return ConvModel(net.cpu(), STAGES[-1].width)


def _stage(
    stage: TrainingStage, pool: Tensor, belief: Tensor, classes: int, generator: torch.Generator
) -> ConvNet:
    """Train one network on the surest labels, and on its own where it grows sure."""
    net = ConvNet(pool.shape[1], classes, stage.width, generator).to(pool.device)
    known = {"belief": belief, "rows": _surest(belief, stage.first)}

    def loss(net: ConvNet, step: int) -> Tensor:
        if step and step % _REFRESH == 0:
            views = [chances_of(net, seen_from(pool, WEAK, generator)) for _ in range(2)]
            mixed = 0.5 * belief + 0.5 * ((views[0] + views[1]) / 2)
            share = stage.first + (stage.last - stage.first) * step / stage.steps
            known.update(belief=mixed, rows=_surest(mixed, share))
            net.train()
        rows = known["rows"][torch.randint(len(known["rows"]), (_BATCH,), generator=generator)]
        strong = int(_STRONG_SHARE * _BATCH)
        seen = torch.cat(
            [
                seen_from(pool[rows[:strong]], STRONG, generator),
                seen_from(pool[rows[strong:]], WEAK, generator),
            ]
        )
        targets = known["belief"][rows].argmax(dim=1)
        own = functional.cross_entropy(net(seen), targets, label_smoothing=0.03)
        others = pool[torch.randint(len(pool), (_BATCH,), generator=generator)]
        return own + min(1.0, step / 200) * smoothness(net, others, generator)

    return trained(net, loss, steps=stage.steps)


def _surest(belief: Tensor, share: float) -> Tensor:
    """Return the positions of the surest images of each class, this share of all."""
    labels, sureness = belief.argmax(dim=1), belief.max(dim=1).values
    chosen = []
    for label in torch.unique(labels):
        members = torch.nonzero(labels == label).flatten()
        best = sureness[members].argsort(descending=True)[: max(1, int(share * len(members)))]
        chosen.append(members[best])
    return torch.cat(chosen)


def _features(net: ConvNet, pool: Tensor) -> NDArray[np.float64]:
    with torch.no_grad():
        parts = [net.features(part) for part in torch.split(pool, _CHUNK)]
    found = functional.normalize(torch.cat(parts), dim=1)
    features: NDArray[np.float64] = found.double().cpu().numpy()
    return features
