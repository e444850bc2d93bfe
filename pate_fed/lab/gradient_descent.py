"""The vote-leak paper's own search: descend along the gradient of the distance of frequencies.

Starts from equal votes, minimizes the distance of the chances from the frequencies, both scaled to
length 1, in steps of 10 votes, then of 1. It stops when the distance rises or a count is negative.

Kept to compare with `vote_leak.rebuild_votes`. It stops early, which keeps rare classes from
falling to 0. So beside disagreement and small noise it is the more exact of the two, elsewhere the
less. It gives no standard errors and knows no refusals.

Source:
    Wang et al. 2022, In differential privacy, there is truth, section 4.
    https://arxiv.org/abs/2209.10732
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pate_fed.audit.vote_leak import Answers
from pate_fed.audit.win_chances import Noise, chances_and_slopes

MOST_STEPS: Final = 100

Model = Callable[[NDArray[np.float64], Noise], tuple[NDArray[np.float64], NDArray[np.float64]]]
"""Returns chances and slopes, as `chances_and_slopes`."""


def descend(
    answers: Answers, noise: Noise, *, teachers: int, model: Model = chances_and_slopes
) -> NDArray[np.float64]:
    """Return votes by the paper's search, shifted to add up to the teachers; some below 0."""
    labels = answers.labels.astype(np.float64)
    target = labels / np.linalg.norm(labels)
    classes = len(labels)
    votes: NDArray[np.float64] = np.full(classes, teachers / classes)
    distance, slope = _distance(votes, noise, target, model)
    length = 10.0
    for _ in range(MOST_STEPS):
        size = float(np.linalg.norm(slope))
        if size == 0.0:
            break
        moved = votes - length / size * slope
        further, next_slope = _distance(moved, noise, target, model)
        if further > distance:
            if length == 1.0:
                break
            length = 1.0
            continue
        if (moved < 0).any():
            break
        votes, distance, slope = moved, further, next_slope
    return np.asarray(votes + (teachers - votes.sum()) / classes)


def _distance(
    votes: NDArray[np.float64], noise: Noise, target: NDArray[np.float64], model: Model
) -> tuple[float, NDArray[np.float64]]:
    """Return the distance of the scaled chances from the target, and its gradient."""
    chances, slopes = model(votes, noise)
    size = float(np.linalg.norm(chances))
    unit = chances / size
    off = unit - target
    distance = float(np.linalg.norm(off))
    if distance == 0.0:
        return 0.0, np.zeros_like(votes)
    toward = (off - (off @ unit) * unit) / (size * distance)
    return distance, np.asarray(slopes @ toward)
