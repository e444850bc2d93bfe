"""From a teacher's scores to its votes: as they are, or each class for an equal share of the pool.

A teacher of a few dozen patients hardly ever calls a rare disease the likeliest class: then all
votes are for the majority, and a student learns nothing. A teacher can still tell who is at higher
risk. So, with equal shares, offsets are added to its scores, such that each class wins the same
share of the public pool.

Guarantee: the offsets depend on this teacher's own shard and on public inputs. So one privacy unit
still reaches one vote, and no price changes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_STEPS = 200
_MOST_INPUTS = 2000


def equal_share_offsets(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Find what to add to each class's scores, such that all win about equally often.

    Args:
        scores: Of public inputs, higher for likelier classes; float64, shape (inputs, classes),
            at least one of each. A class that never scores above minus infinity wins nothing.

    Returns:
        float64, shape (classes,); 0 for a class that cannot win.
    """
    inputs, classes = scores.shape
    offsets = np.zeros(classes)
    able = np.isfinite(scores).any(axis=0)
    if able.sum() < 2:
        return offsets
    if able.sum() == 2:
        first, second = np.flatnonzero(able)
        offsets[second] = np.median(scores[:, first] - scores[:, second])
        return offsets
    # Every step lowers a class that wins too often; steps shrink, so that it settles.
    some = scores[:: -(-inputs // _MOST_INPUTS)][:, able]
    spread = float(some.std()) or 1.0
    found, wanted = np.zeros(int(able.sum())), 1 / able.sum()
    for step in range(_STEPS):
        share = np.bincount((some + found).argmax(axis=1), minlength=len(found)) / len(some)
        found -= 2 * spread * (share - wanted) / (1 + step) ** 0.5
    offsets[able] = found
    return offsets


def log_chances(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the logarithms of chances that come as they are; a chance of 0 is minus infinity."""
    with np.errstate(divide="ignore"):
        found: NDArray[np.float64] = np.log(np.maximum(scores, 0.0))
    return found
