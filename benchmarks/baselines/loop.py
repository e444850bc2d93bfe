"""Data-dependent accounting as the public reference does it: one query at a time.

Per query one vectorized evaluation over all orders, with numpy and scipy, no loop over orders.
It gives the same numbers as `pate_fed.lab.pate_bounds`, and is written for speed as far as
this shape allows: conditions first, one mask over the orders, plain logs.

Source:
    Papernot et al. 2018, Proposition 7 and Theorem 6. https://arxiv.org/abs/1802.08908
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, logsumexp, ndtri_exp


def gnmax_log_q(counts: NDArray[np.int64], sigma: float) -> float:
    """Bound, in logs, the chance that the noisy winner is not the plurality."""
    winner = int(np.argmax(counts))
    gaps = counts[winner] - np.delete(counts, winner)
    log_q = float(logsumexp(log_ndtr(-gaps / (math.sqrt(2) * sigma))))
    return min(log_q, math.log1p(-1 / len(counts)))


def rdp_gaussian(log_q: float, sigma: float, orders: NDArray[np.float64]) -> NDArray[np.float64]:
    """Bound the RDP of one query at every order."""
    independent = orders / sigma**2
    mu2 = sigma * math.sqrt(-log_q)
    if mu2 <= 1:
        return independent
    mu1, epsilon1, epsilon2 = mu2 + 1, (mu2 + 1) / sigma**2, mu2 / sigma**2
    log_ratio = math.log1p(1 / mu2) + math.log1p(1 / (mu2 - 1))
    if log_q > (mu2 - 1) * epsilon2 - mu2 * log_ratio or -log_q <= epsilon2:
        return independent
    usable = orders < mu1
    log_1mq = math.log1p(-math.exp(log_q))
    log_a = log_1mq - math.log1p(-math.exp((log_q + epsilon2) * (1 - 1 / mu2)))
    log_b = epsilon1 - log_q / mu2
    steps = orders[usable] - 1
    bound = np.logaddexp(log_1mq + steps * log_a, log_q + steps * log_b) / steps
    rdp = independent.copy()
    rdp[usable] = np.minimum(np.maximum(bound, 0), independent[usable])
    return rdp


def gnmax_rdp(
    counts: NDArray[np.int64], orders: NDArray[np.float64], sigma: float
) -> NDArray[np.float64]:
    """Sum the bounds of all queries; shape (orders,)."""
    total = np.zeros(len(orders))
    for row in counts:
        total += rdp_gaussian(gnmax_log_q(row, sigma), sigma, orders)
    return total


class SmoothLoop:
    """Local sensitivities at every distance, one query and one distance at a time.

    Algorithms 3 to 5 of the paper with scalar formulas, as the public reference has them. The
    crossover and its neighbor are worked out once, not per query.

    Args:
        sigma: Standard deviation of the noise in each count, in votes.
        classes: Number of classes.
        order: Renyi order.
        log_q0: Log of the crossover.
        log_q1: Log of the least q from which one teacher can reach it.
    """

    def __init__(
        self, *, sigma: float, classes: int, order: float, log_q0: float, log_q1: float
    ) -> None:
        self.sigma, self.classes, self.order = sigma, classes, order
        self.log_q0, self.log_q1 = log_q0, log_q1

    def lists(self, counts: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the bound of every query at every distance; shape (queries, teachers)."""
        return np.array([self.one_list(row) for row in counts])

    def one_list(self, row: NDArray[np.int64]) -> list[float]:
        """Return the bound at distances 0 to teachers - 1."""
        votes = np.sort(row)[::-1].copy()
        teachers = int(votes.sum())
        plateau = self.sensitivity(self.log_q1)
        result = [plateau] * teachers
        log_q = self.log_q(votes)
        if self.log_q1 <= log_q <= self.log_q0:
            return result
        moves_left = log_q > self.log_q0
        for distance in range(teachers):
            result[distance] = self.sensitivity(log_q)
            if moves_left:
                if votes[1] == 0:
                    break
                votes[0] += 1
                votes[1] -= 1
                votes[1:] = np.sort(votes[1:])[::-1]
            else:
                votes[0] -= 1
                votes[1] += 1
                if votes[1] > votes[0]:
                    break
            log_q = self.log_q(votes)
            if (log_q <= self.log_q0) if moves_left else (log_q >= self.log_q1):
                break
        return result

    def log_q(self, votes: NDArray[np.int64]) -> float:
        """Bound the log of q for sorted votes."""
        gaps = votes[0] - votes[1:]
        log_q = float(logsumexp(log_ndtr(-gaps / (math.sqrt(2) * self.sigma))))
        return min(log_q, math.log1p(-1 / self.classes))

    def sensitivity(self, log_q: float) -> float:
        """Bound how far the cost can move where the votes give q (algorithm 3)."""
        if self.log_q1 <= log_q <= self.log_q0:
            log_q = self.log_q1
        z = -float(ndtri_exp(log_q - math.log(self.classes - 1)))
        step = math.sqrt(2) / self.sigma
        lower, upper = (
            min(0.0, math.log(self.classes - 1) + float(log_ndtr(-moved)))
            for moved in (z + step, z - step)
        )
        value = self.cost(log_q)
        return max(self.cost(upper) - value, value - self.cost(lower), 0.0)

    def cost(self, log_q: float) -> float:
        """Return the cost at one q and the one order."""
        if log_q >= self.log_q0:
            return self.order / self.sigma**2
        return float(rdp_gaussian(log_q, self.sigma, np.array([self.order]))[0])
