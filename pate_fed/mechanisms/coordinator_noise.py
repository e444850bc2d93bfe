"""Noise at the coordinator: the only way to turn an exact sum into a noisy one."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pate_fed.errors import InvalidParameterError
from pate_fed.mechanisms.sampling import RandomBytes, sample_laplace, split_gaussian
from pate_fed.releases import ABSTAIN
from pate_fed.votes import NoisyHistogram, SummedHistogram

StabilityTest = Callable[[NDArray[np.int64]], NDArray[np.bool_]]
"""From distances to instability to whether each query passed."""


@dataclass(frozen=True, slots=True)
class CoordinatorNoise:
    """Draws noise for the exact sum that opened at the coordinator, and adds it.

    The coordinator is trusted to add it and to keep the sum to itself. `DistributedNoise` describes
    noise that the parties add.
    """

    def perturb(
        self, summed: SummedHistogram, *, sigma: float, random_bytes: RandomBytes
    ) -> NoisyHistogram:
        """Add fresh noise to every count."""
        shape = summed.counts.shape
        noise, rest = split_gaussian(shape, sigma=sigma, random_bytes=random_bytes)
        return NoisyHistogram(_added(summed.counts, noise), sigma, rest)

    def passes(
        self,
        summed: SummedHistogram,
        *,
        vote_threshold: float,
        sigma: float,
        random_bytes: RandomBytes,
        offsets: NDArray[np.int64] | None = None,
    ) -> NDArray[np.bool_]:
        """Tell for which queries the largest count, with fresh noise added, reaches a threshold.

        The noisy top count itself never leaves.
        """
        counts = summed.counts
        if offsets is not None:
            if offsets.shape != counts.shape:
                raise InvalidParameterError("offsets must fit the queries", str(offsets.shape))
            counts = counts - offsets
        maxima = counts.max(axis=1)
        if offsets is not None:
            counts.fill(0)  # a copy of ours, from which anybody could tell the exact counts
        noise, rest = split_gaussian(maxima.shape, sigma=sigma, random_bytes=random_bytes)
        # Where the rest matters the difference is small, hence exact.
        return np.asarray((maxima + noise) - vote_threshold >= -rest)

    def perturb_laplace(
        self,
        summed: SummedHistogram,
        *,
        gamma: float,
        random_bytes: RandomBytes,
        boost: int = 0,
    ) -> NoisyHistogram:
        """Add fresh Laplace noise to every count.

        `boost` votes are added to the largest count first. Anything but 0 voids
        differential privacy: for the comparison in `immutable_max` only.
        """
        counts = summed.counts
        noise = sample_laplace(counts.shape, gamma=gamma, random_bytes=random_bytes)
        noisy = _added(counts, noise)
        if boost:
            noisy[np.arange(len(counts)), counts.argmax(axis=1)] += boost
        return NoisyHistogram(noisy, math.sqrt(2) / gamma)

    def stable_winners(
        self, summed: SummedHistogram, *, unit_votes: int, test: StabilityTest
    ) -> NDArray[np.int64]:
        """Return the exact plurality where a private test finds it stable, otherwise `ABSTAIN`.

        The test looks at d = max(0, ceil(lead / (2 unit_votes)) - 1). This many units can change
        while the plurality stays the same, also for all neighbors of the changed counts. One unit
        moves d by at most 1.

        `test` adds fresh noise to d and compares; from distances to passes, shape
        (queries,).
        """
        winners, lead = _plurality(summed.counts)
        return np.where(test(_distance(lead, unit_votes)), winners, ABSTAIN)


def stable_distance(counts: NDArray[np.int64], *, unit_votes: int) -> NDArray[np.int64]:
    """Return d = max(0, ceil(lead / (2 unit_votes)) - 1) of each row; shape (queries,). Private."""
    return _distance(_plurality(counts)[1], unit_votes)


def _distance(lead: NDArray[np.int64], unit_votes: int) -> NDArray[np.int64]:
    return np.asarray(np.maximum(0, -(-lead // (2 * unit_votes)) - 1))


def _plurality(counts: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the class of each row's largest count, and its lead; leave no copy of the counts.

    NumPy would copy read-only counts to look for the largest, and sorting leaves some on the stack.
    """
    others = counts.copy()
    winners = others.argmax(axis=1)
    others[np.arange(len(others)), winners] = -1
    lead = counts.max(axis=1) - others.max(axis=1)
    others.fill(0)
    return winners, lead


def _added(counts: NDArray[np.int64], noise: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the sum of exact counts and their noise, and leave no other copy of the counts.

    NumPy would convert the counts of an addition of two kinds of numbers in memory of its own.
    """
    exact = counts.astype(np.float64)
    noisy = exact + noise
    exact.fill(0)
    return noisy
