"""The price of all labels of a run, against games played out with laws by quadrature."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import scipy
from numpy.typing import NDArray

Table = NDArray[np.float64]
Pair = tuple[Table, Table]
_NODES = np.linspace(-12, 12, 2401)
_DENSITY = np.exp(-(_NODES**2) / 2) / math.sqrt(2 * math.pi)
VECTORS = Path(__file__).parents[1] / "vectors"


def winners(means: Table, *, threshold: float | None) -> Table:
    """Return the chance that each of N(mean, 1) is the largest, and above the threshold.

    The last column is that of none. By the trapezoid rule; shape (..., options + 1).
    """
    chances = []
    for i in range(means.shape[-1]):
        x = _NODES + means[..., i, np.newaxis]
        below = [
            scipy.special.ndtr(x - means[..., j, np.newaxis])
            for j in range(means.shape[-1])
            if j != i
        ]
        above = 1.0 if threshold is None else np.where(x > threshold, 1.0, 0.0)
        if threshold is not None:
            above = np.where(np.abs(x - threshold) < 1e-12, 0.5, above)
        chances.append(np.trapezoid(_DENSITY * np.prod(below, axis=0) * above, _NODES))
    found = np.stack(chances, axis=-1)
    none = np.zeros_like(found[..., :1])
    if threshold is not None:
        none = scipy.special.ndtr(threshold - means).prod(axis=-1, keepdims=True)
    return np.concatenate([found, none], axis=-1)


def pairs_of(counts: Table, moves: Table, sigma: float, *, threshold: float | None) -> Pair:
    """Return laws before and after moves, both directions; shape (pairs, outcomes)."""
    # On the nodes' grid a threshold falls on a node: the trapezoid rule is exact to 1e-9 then.
    before, after = (
        winners(np.round(each / sigma, 2), threshold=threshold) for each in (counts, counts + moves)
    )
    before, after = (each / each.sum(axis=-1, keepdims=True) for each in (before, after))
    return np.concatenate([before, after]), np.concatenate([after, before])


def played(laws_of: Pair, asks: int) -> tuple[Table, Table]:
    """Return x and V(x) of a reader who chooses among pairs of laws, each ask anew."""
    x = np.linspace(-14, 8, 8801)
    value = np.maximum(-np.expm1(-x), 0.0)
    before, after = laws_of
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.where(before > 1e-13, np.log(before / np.maximum(after, 1e-300)), 0.0)
    for _ in range(asks):
        best = value
        for p, r in zip(before, ratios, strict=True):
            moved = sum(
                chance * np.interp(x + ratio, x, value, left=0.0, right=1.0)
                for chance, ratio in zip(p, r, strict=True)
            )
            best = np.maximum(best, moved)
        value = best
    return x, value


def reached(game: tuple[Table, Table], epsilon: float) -> float:
    return float(np.interp(-epsilon, *game))


def grid(sigma: float) -> Table:
    """Return counts of two classes around a threshold of 0, dense where labels tell most."""
    u, t = np.meshgrid(np.arange(-1.5, 6.1, 0.5), np.arange(-5.0, 4.1, 0.25), indexing="ij")
    return np.stack([u + t, u - t], axis=-1).reshape(-1, 2) / math.sqrt(2) * sigma
