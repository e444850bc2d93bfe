"""Who wins among noisy counts and a public threshold: laws and attacks, by a second reader.

Written without the product's own bounds and laws, and without their proofs. "No answer" is the last
outcome of a law. Everything is in logs, so that far tails keep their relative precision.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import product

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq
from scipy.special import log_ndtr

Law = NDArray[np.float64]

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(12)
_FIRST = np.array([0.0, 0.002, 0.006, 0.014, 0.03, 0.06, 0.12, 0.25])
_HALF_LOG_TAU = 0.5 * np.log(2 * np.pi)


def threshold_log_law(counts: ArrayLike, *, vote_threshold: float, sigma: float) -> Law:
    """Return ln Pr of every label and of "no answer" under Gaussian noise; shape (classes + 1,).

    Gauss-Legendre on pieces of half a sigma, shorter ones at the threshold, where far above all
    counts the density falls fast.
    """
    means = np.asarray(counts, dtype=np.float64) / sigma
    bar = vote_threshold / sigma
    low, high = max(bar, means.min() - 11), max(bar, means.max()) + 11
    edges = np.concatenate([low + _FIRST, np.arange(low + 0.5, high + 0.5, 0.5)])
    half = np.diff(edges)[:, np.newaxis] / 2
    x = (edges[:-1, np.newaxis] + half + half * _NODES).ravel()
    away = x - means[:, np.newaxis]
    below = log_ndtr(away)
    density = np.log(half * _WEIGHTS).ravel() - away**2 / 2 - _HALF_LOG_TAU
    labels = np.logaddexp.reduce(density + below.sum(axis=0) - below, axis=1)
    return np.append(labels, log_ndtr(bar - means).sum())


def discrete_threshold_log_law(
    counts: ArrayLike, *, vote_threshold: int, share_sigma: float, shares: int
) -> Law:
    """Do the same for sums of discrete Gaussians, by enumeration; ties go to the lowest class."""
    votes = np.asarray(counts, dtype=np.int64)
    log_mass, log_below = _summed_noise(share_sigma, shares)
    reach = len(log_mass) // 2
    x = np.arange(
        max(vote_threshold, votes.min() - reach), max(vote_threshold, votes.max()) + reach
    )

    def at(table: Law, noise: NDArray[np.int64], beyond: float) -> Law:
        found = np.where(noise > reach, beyond, table[np.clip(noise + reach, 0, 2 * reach)])
        return np.where(noise < -reach, -np.inf, found)

    noise = x - votes[:, np.newaxis]
    hits, reaches, below = (
        at(log_mass, noise, -np.inf),
        at(log_below, noise, 0.0),
        at(log_below, noise - 1, 0.0),
    )
    labels = [
        np.logaddexp.reduce(hits[c] + below[:c].sum(axis=0) + reaches[c + 1 :].sum(axis=0))
        for c in range(len(votes))
    ]
    return np.append(labels, at(log_below, vote_threshold - 1 - votes, 0.0).sum())


@lru_cache(maxsize=16)
def _summed_noise(share_sigma: float, shares: int) -> tuple[Law, Law]:
    """Return ln Pr[sum = y] and ln Pr[sum <= y] around 0; tails are precise."""
    reach = int(30 * share_sigma * np.sqrt(shares))
    y = np.arange(-reach, reach + 1.0)
    one = np.exp(-((y / share_sigma) ** 2) / 2)
    one /= one.sum()
    mass = one
    for _ in range(shares - 1):
        mass = np.convolve(mass, one)[reach : 3 * reach + 1]
    with np.errstate(divide="ignore"):
        log_mass = np.log(mass)
    return log_mass, np.minimum(np.logaddexp.accumulate(log_mass), 0.0)


def larger_divergence(one: Law, other: Law, order: float) -> float:
    """Return the Renyi divergence, in the worse direction."""
    return max(_divergence(one, other, order), _divergence(other, one, order))


def _divergence(log_p: Law, log_q: Law, order: float) -> float:
    possible = np.isfinite(log_p) & np.isfinite(log_q)
    log_p, ratio = log_p[possible], (log_p - log_q)[possible]
    if np.abs((order - 1) * ratio).max() > 1:
        return float(np.logaddexp.reduce(log_p + (order - 1) * ratio) / (order - 1))
    # Laws sum to 1, so nothing is added that is not 0; what would cancel is gone.
    spread = np.expm1((order - 1) * ratio) + (order - 1) * np.expm1(-ratio)
    return float(np.log1p((np.exp(log_p) * spread).sum()) / (order - 1))


@dataclass(frozen=True, slots=True, eq=False)
class Attack:
    """What an adaptive adversary sees of a few queries of two classes, in two neighboring worlds.

    A transcript's place is its outcomes as digits to base 3: a label, or 2 for "no answer".

    Attributes:
        here: ln Pr of each transcript; shape (3^asks,).
        there: The same for the neighbor, where one vote has moved from class 0 to class 1.
        votes: By ask, the votes that the adversary chooses after each transcript before it, above
            the threshold and in votes; shape (3^asks before, 2).
    """

    here: Law
    there: Law
    votes: tuple[Law, ...] = ()

    def delta(self, epsilon: float) -> float:
        """Return the hockey-stick divergence, exactly."""
        return float(np.maximum(np.exp(self.here) - np.exp(epsilon + self.there), 0.0).sum())

    def epsilon(self, delta: float) -> float:
        """Return the least epsilon that holds at this delta."""
        if self.delta(0.0) <= delta:
            return 0.0
        return float(brentq(lambda epsilon: self.delta(epsilon) - delta, 0.0, 60.0))


def adaptive_attack(sigma: float, *, asks: int, epsilon: float, spacing: float = 0.5) -> Attack:
    """Let an adversary choose votes and threshold of every ask by the outcomes before.

    The game is solved backward on a grid of ln(likelihood ratio), for votes on a grid around the
    threshold or far above it. Then the choices are played and all transcripts are enumerated: the
    result can really happen, however good the choices are.

    Args:
        sigma: Standard deviation of the noise, in votes.
        asks: Number of queries.
        epsilon: At which the adversary wants to tell most.
        spacing: Between the votes to choose from, in sigmas.
    """
    places = np.arange(-4, 4 + spacing, spacing)
    pairs = [pair for pair in product(places, places) if max(pair) > -3]
    pairs += [(20 + place, 20 - place) for place in places]  # the threshold is never met
    votes, moved = np.array(pairs) * sigma, np.array([-1.0, 1.0])
    here, there = (
        np.array([threshold_log_law(row, vote_threshold=0, sigma=sigma) for row in world])
        for world in (votes, votes + moved)
    )
    ratios, chances = (here - there)[..., np.newaxis], np.exp(there)[..., np.newaxis]
    reach = epsilon + 8 * np.sqrt(2 * asks) / sigma
    grid = np.arange(-reach, reach, 1 / (8 * sigma))
    value, choices = np.maximum(np.expm1(grid), 0.0), []
    for _ in range(asks):
        above = np.maximum(grid + ratios - grid[-1], 0.0)
        after = np.interp(grid + ratios, grid, value) + np.exp(grid[-1]) * np.expm1(above)
        played = (chances * after).sum(axis=1)
        choices.append(played.argmax(axis=0))
        value = played.max(axis=0)
    seen = Attack(np.zeros(1), np.zeros(1))
    for choice in reversed(choices):
        at = np.searchsorted(grid, seen.here - seen.there - epsilon).clip(0, len(grid) - 1)
        chosen = choice[at]
        seen = Attack(
            (seen.here[:, np.newaxis] + here[chosen]).ravel(),
            (seen.there[:, np.newaxis] + there[chosen]).ravel(),
            (*seen.votes, votes[chosen]),
        )
    return seen
