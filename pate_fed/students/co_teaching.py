"""Students for noisy labels: two networks that pick each other's lessons, and cleansing.

Source:
    Han et al. 2018, Co-teaching. https://arxiv.org/abs/1804.06872
    Yu et al. 2019, How does disagreement help generalization against label corruption?
    https://arxiv.org/abs/1901.04215
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from pate_fed.networks import one_thread
from pate_fed.students.convolution import (
    WEAK,
    ConvModel,
    ConvNet,
    Descent,
    chances_of,
    seen_from,
    settled,
)
from pate_fed.students.generative import Rivals
from pate_fed.students.image_student import ImageStudent, Pictures
from pate_fed.students.model import Model
from pate_fed.students.student import Lesson

_WIDTH = 16
_STEPS = 1200
_WARM_UP_SHARE = 0.25
_BATCH = 64
_RATE = 0.08
_USUAL_NOISE = 0.15
_ROUNDS = 3
_DECAY = 0.5
_DOUBTED = 0.5

Pair = tuple[ConvNet, ConvNet]


class CoTeachingStudent(ImageStudent):
    """Two networks; each learns the labels that cost the other one least."""

    name: ClassVar[str] = "co-teaching"

    def _learn(self, lesson: Lesson, *, rng: np.random.Generator) -> Model:
        with one_thread():
            pair = self._teach(self.pictures_of(lesson, rng), lesson.classes)
            return ConvModel(pair[0].eval().cpu(), _WIDTH)

    def _teach(self, given: Pictures, classes: int) -> Pair:
        """Train a pair on the labeled images."""
        return co_taught(given.known, given.labels, classes, given.chance)


class PatePlusStudent(CoTeachingStudent):
    """PATE+: two networks that learn where they differ, each against a generator of its own.

    Source:
        Jiang et al. 2021, PATE+ and PATE++: private co-teaching against noisy labels.
    """

    name: ClassVar[str] = "pate-plus"

    def _teach(self, given: Pictures, classes: int) -> Pair:
        chance, pool, known, labels = given
        rivals = Rivals.make(pool, chance), Rivals.make(pool, chance)
        pair = co_taught(known, labels, classes, chance, where_they_differ=True, rivals=rivals)
        return settled(pair[0], pool), settled(pair[1], pool)


class PatePlusPlusStudent(PatePlusStudent):
    """PATE++: PATE+, trained anew without the labels that are doubted.

    After each round a label that the pair does not confirm is counted as doubted; older doubts
    count half. A label doubted in the last round, or often before, becomes an unlabeled image.
    """

    name: ClassVar[str] = "pate-plus-plus"

    def _teach(self, given: Pictures, classes: int) -> Pair:
        known, labels = given.known, given.labels
        doubts = torch.zeros(len(labels), device=labels.device)
        pair = super()._teach(given, classes)
        for _ in range(_ROUNDS - 1):
            said = (chances_of(pair[0], known) + chances_of(pair[1], known)) / 2
            doubts = _DECAY * doubts + (said.argmax(dim=1) != labels).float()
            kept = doubts <= _DOUBTED
            if len(torch.unique(labels[kept])) < len(torch.unique(labels)):
                break  # a class would have no label left
            pair = super()._teach(given._replace(known=known[kept], labels=labels[kept]), classes)
        return pair


def co_taught(
    images: Tensor,
    labels: Tensor,
    classes: int,
    chance: torch.Generator,
    *,
    where_they_differ: bool = False,
    rivals: tuple[Rivals, Rivals] | None = None,
) -> Pair:
    """Train two networks that pick each other's lessons.

    With `where_they_differ` they learn where they disagree only (co-teaching+). Rivals teach
    them unlabeled images, too.
    """
    channels, device = images.shape[1], images.device
    pair = (
        ConvNet(channels, classes, _WIDTH, chance).to(device),
        ConvNet(channels, classes, _WIDTH, chance).to(device),
    )
    descents = [Descent(net, steps=_STEPS, rate=_RATE) for net in pair]
    warm_up = int(_WARM_UP_SHARE * _STEPS)
    for step in range(_STEPS):
        rows = torch.randint(len(labels), (_BATCH,), generator=chance)
        seen, wanted = seen_from(images[rows], WEAK, chance), labels[rows]
        forgotten = _USUAL_NOISE * min(1.0, step / warm_up)
        scores = [net(seen) for net in pair]
        losses = [functional.cross_entropy(each, wanted, reduction="none") for each in scores]
        picked = _lessons(scores, losses, forgotten, where_they_differ and step >= warm_up)
        for place, net in enumerate(pair):
            loss = losses[place][picked[1 - place]].mean()
            if rivals is not None:
                loss = loss + 0.5 * rivals[place].real_or_not(net)
            descents[place].take(loss)
    return descents[0].mean, descents[1].mean


def _lessons(
    scores: list[Tensor], losses: list[Tensor], forgotten: float, where_they_differ: bool
) -> list[Tensor]:
    """Return the rows that each network finds easiest; at least two."""
    rows = torch.arange(len(scores[0]), device=scores[0].device)
    if where_they_differ:
        differ = torch.nonzero(scores[0].argmax(dim=1) != scores[1].argmax(dim=1)).flatten()
        rows = differ if len(differ) >= 2 else rows
    count = max(2, int((1 - forgotten) * len(rows)))
    return [rows[each.detach()[rows].argsort()[:count]] for each in losses]
