"""The law of a noisy argmax by quadrature: what mechanisms and bounds are held against."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, ndtr


def argmax_log_law(counts: NDArray[np.int64], sigma: float) -> NDArray[np.float64]:
    """Return log Pr[argmax(counts + N(0, sigma^2)) = k]; shape (classes,).

    The trapezoid rule converges faster than any power of its step for such integrands.
    """
    means = np.asarray(counts, dtype=np.float64) / sigma
    x = np.arange(means.min() - 12, means.max() + 12, 0.05)
    log_below = log_ndtr(x[np.newaxis] - means[:, np.newaxis])
    log_density = -((x[np.newaxis] - means[:, np.newaxis]) ** 2) / 2 - np.log(2 * np.pi) / 2
    log_terms = log_density + log_below.sum(axis=0) - log_below
    return np.asarray(np.logaddexp.reduce(log_terms, axis=1) + np.log(0.05))


def laplace_argmax_log_law(counts: NDArray[np.int64], gamma: float) -> NDArray[np.float64]:
    """Log Pr[argmax(counts + Lap(1/gamma)) = k] by the trapezoid rule between the kinks."""
    # The integrand is smooth between counts: 16-point Gauss on pieces of at most 1/8.
    means = counts * gamma
    edges = np.unique(np.concatenate([np.arange(means.min() - 40, means.max() + 40, 0.125), means]))
    nodes, weights = np.polynomial.legendre.leggauss(16)
    half = np.diff(edges) / 2
    x = ((edges[:-1] + edges[1:]) / 2)[:, np.newaxis] + half[:, np.newaxis] * nodes
    weight = half[:, np.newaxis] * weights
    shifted = x - means[:, np.newaxis, np.newaxis]
    below = np.where(shifted < 0, np.exp(shifted) / 2, 1 - np.exp(-np.abs(shifted)) / 2)
    density = np.exp(-np.abs(shifted)) / 2
    others = below.prod(axis=0) / below
    return np.asarray(np.log((density * others * weight).sum(axis=(1, 2))))


def confident_law(
    counts: NDArray[np.int64], *, vote_threshold: float, sigma1: float, sigma2: float
) -> NDArray[np.float64]:
    """Return the chance of each label, then of "no answer"; shape (classes + 1,)."""
    passes = ndtr((counts.max() - vote_threshold) / sigma1)
    labels = passes * np.exp(argmax_log_law(counts, sigma2))
    return np.append(labels, 1 - passes)


def histograms(votes: int, classes: int) -> Iterator[NDArray[np.int64]]:
    """Yield every way in which so many votes fall on so many classes."""
    for head in product(range(votes + 1), repeat=classes - 1):
        if sum(head) <= votes:
            yield np.array([*head, votes - sum(head)], dtype=np.int64)


def one_vote_neighbors(counts: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """Yield every histogram in which one teacher voted for another class."""
    classes = range(len(counts))
    for source, target in product(classes, classes):
        if source != target and counts[source] > 0:
            moved = counts.copy()
            moved[source] -= 1
            moved[target] += 1
            yield moved


def renyi_divergence(log_p: NDArray[np.float64], log_q: NDArray[np.float64], order: float) -> float:
    """Return the Renyi divergence of two discrete laws, in nats."""
    log_moment = np.logaddexp.reduce(order * log_p - (order - 1) * log_q)
    return float(log_moment / (order - 1))
