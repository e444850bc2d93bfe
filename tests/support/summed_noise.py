"""Laws of summed discrete Gaussian noise by plain convolution, and of what is decided from it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import product

import mpmath
import numpy as np
from numpy.typing import NDArray


@lru_cache(maxsize=16)
def summed_mass(sigma: float, shares: int, *, reach: float = 12.0) -> NDArray[np.float64]:
    """Pr[sum = x] for x = -n .. n, by adding one share after the other; shape (2 n + 1,)."""
    width = int(reach * sigma / np.sqrt(shares)) + 2
    x = np.arange(-width, width + 1)
    share = np.exp(-(x**2) * shares / (2 * sigma**2))
    share /= share.sum()
    mass = np.ones(1)
    for _ in range(shares):
        mass = np.convolve(mass, share)
    return mass


SCALE = 10**80
"""Whole numbers are added and multiplied many times as fast as `mpmath` does it, and exactly."""


@lru_cache(maxsize=16)
def exact_row_price(sigma: float, shares: int, *, moved: int, order: float) -> float:
    """2 d(k) by convolution in 40 digits."""
    with mpmath.workdps(90):
        variance = mpmath.mpf(sigma) ** 2 / shares
        width = int(13 * mpmath.sqrt(variance)) + 2
        share = np.array(
            [int(SCALE * mpmath.exp(-x * x / (2 * variance))) for x in range(-width, width + 1)],
            dtype=object,
        )
    counts = np.array([1], dtype=object)
    for _ in range(shares):
        counts = np.convolve(counts, share)
    with mpmath.workdps(40):
        mass = [mpmath.mpf(count) for count in counts]
        total = mpmath.fsum(mass)
        exponent = mpmath.mpf(order)
        moment = mpmath.fsum(
            (mass[i] / total) ** exponent * (mass[i - moved] / total) ** (1 - exponent)
            for i in range(moved, len(mass))
        )
        return float(2 * mpmath.log(moment) / (exponent - 1))


def label_law(counts: NDArray[np.int64], mass: NDArray[np.float64]) -> NDArray[np.float64]:
    """Chance that each class has the largest noisy count, the lowest on ties; shape (classes,)."""
    n = len(mass) // 2
    x = np.arange(counts.min() - n, counts.max() + n + 1)
    padded = np.concatenate([[0.0], np.cumsum(mass)])

    def below(y: NDArray[np.int64]) -> NDArray[np.float64]:
        return padded[np.clip(y + n + 1, 0, len(mass))]

    def at(y: NDArray[np.int64]) -> NDArray[np.float64]:
        inside = np.abs(y) <= n
        return np.where(inside, mass[np.clip(y + n, 0, 2 * n)], 0.0)

    law = []
    for winner, count in enumerate(counts):
        chance = at(x - count)
        for other, rival in enumerate(counts):
            if other != winner:
                chance = chance * below(x - rival - (other < winner))
        law.append(chance.sum())
    return np.array(law)


def moment_divergence(p: NDArray[np.float64], q: NDArray[np.float64], order: float) -> float:
    """Renyi divergence of two laws on few outcomes, in nats."""
    logs = order * np.log(p) + (1 - order) * np.log(q)
    return float(np.logaddexp.reduce(logs) / (order - 1))


def moves(classes: int, votes: int) -> Iterator[NDArray[np.int64]]:
    """Every way to move at most so many votes between classes, but for none."""
    span = range(-votes, votes + 1)
    for head in product(span, repeat=classes - 1):
        move = np.array([*head, -sum(head)])
        if 0 < np.abs(move).sum() <= 2 * votes:
            yield move
