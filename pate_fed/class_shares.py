"""Decide each class for its share of the public inputs, at any level of the scores.

A teacher of a few dozen patients hardly ever calls a rare disease the likeliest class: then all
votes are for the majority, and a student learns nothing. A teacher can still tell who is at higher
risk. So offsets are added to scores, such that each class wins its share of the public pool.

Guarantee: a teacher's offsets depend on its own shard and on public inputs. So one privacy unit
still reaches one vote, and no price changes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

RARE = 0.4
"""A class is rare below this part of an equal share: with two classes, below 0.2."""

ENOUGH_RECORDS = 200
"""Records from which a teacher knows how common a class is, and more than a straight line."""

_STEPS = 200
_MOST_INPUTS = 2000
_FEW = 0.01
"""Share of inputs with equal scores that may fall on either side."""

_LEAST_SHARE = 1e-9
"""Stands for none where a logarithm is taken."""


def is_any_rare(shares: NDArray[np.float64]) -> bool:
    """Tell whether a class is so rare that votes as common as it is would hardly name it."""
    return bool(shares.min() < RARE / len(shares))


def share_offsets(
    scores: NDArray[np.float64], shares: NDArray[np.float64] | None = None
) -> NDArray[np.float64]:
    """Find the offset of each class's scores such that it wins about its share.

    Args:
        scores: Of public inputs, higher for likelier classes; float64, shape (inputs, classes), at
            least one of each. A class that is minus infinity throughout cannot win, and its share
            goes to the others; a class that can must be finite throughout.
        shares: Wanted share of each class, above 0; shape (classes,). None for equal ones.
    """
    inputs, classes = scores.shape
    wanted = np.full(classes, 1 / classes) if shares is None else shares
    able = np.isfinite(scores).all(axis=0)
    places = np.flatnonzero(able)
    if len(places) < 2:
        return np.zeros(classes)
    wanted = wanted[able] / wanted[able].sum()
    some = scores[:: -(-inputs // _MOST_INPUTS)][:, able]
    found = _of_two(scores[:, able], wanted) if len(places) == 2 else _of_many(some, wanted)
    offsets = np.full(classes, found.min())
    offsets[places] = found
    return offsets


def _of_two(scores: NDArray[np.float64], wanted: NDArray[np.float64]) -> NDArray[np.float64]:
    leads = scores[:, 1] - scores[:, 0]
    lead = float(np.quantile(leads, wanted[0]))
    if (leads == lead).mean() > _FEW:
        lead = _beside(leads, lead, float(wanted[0]))
    return np.array([lead / 2, -lead / 2])


def _beside(leads: NDArray[np.float64], lead: float, wanted: float) -> float:
    """Cut below or above equal leads, as trees have them: all of them fall on one side."""
    cuts = [
        (lead + float(nearest)) / 2
        for nearest in (
            leads[leads < lead].max(initial=-np.inf),
            leads[leads > lead].min(initial=np.inf),
        )
        if np.isfinite(nearest)
    ]
    return min(cuts, key=lambda cut: abs(float((leads < cut).mean()) - wanted), default=lead)


def _of_many(scores: NDArray[np.float64], wanted: NDArray[np.float64]) -> NDArray[np.float64]:
    # Every step lowers a class that wins too often; steps shrink, so that it settles.
    spread = float(scores.std()) or 1.0
    found = np.zeros(len(wanted))
    best, least = found, np.inf
    for step in range(_STEPS):
        won = np.bincount((scores + found).argmax(axis=1), minlength=len(wanted)) / len(scores)
        # Where many scores are equal no step may be close; one that leaves a class out is worst.
        missed = -float(wanted @ np.log(np.maximum(won, _LEAST_SHARE)))
        if missed < least:
            best, least = found.copy(), missed
        found -= 2 * spread * (won - wanted) / (1 + step) ** 0.5
    return np.asarray(best - best.mean())
