"""Asks that are all tied but for one vote, between two classes: the least that labels can cost."""

from __future__ import annotations

import math

import numpy as np
import scipy


def tied_laws(sigma: float, asks: int) -> list[np.ndarray[tuple[int], np.dtype[np.float64]]]:
    """Return the laws of the number of heads for two neighbors, shape (asks + 1,)."""
    chance = scipy.special.ndtr(1 / (math.sqrt(2) * sigma))
    heads = np.arange(asks + 1)
    return [scipy.stats.binom.pmf(heads, asks, each) for each in (chance, 1 - chance)]


def tied_epsilon(sigma: float, asks: int, delta: float) -> float:
    """Return epsilon of such asks, exactly: no smaller number can hold for asks in general."""
    laws = tied_laws(sigma, asks)

    def excess(epsilon: float) -> float:
        return float(np.maximum(laws[0] - math.exp(epsilon) * laws[1], 0.0).sum()) - delta

    return float(scipy.optimize.brentq(excess, 0, 200))
