"""The sum of discrete Gaussian shares: its exact law, and the cost of seeing it.

A sum of m discrete Gaussians of variance parameter sigma^2 / m each is not a discrete Gaussian, but

    Pr[sum = x] is proportional to e^(-x^2 / (2 sigma^2)) g(x mod m)                         (1)

exactly, for a function g of m values that is nearly constant. Share by share, with g_1 = 1 and
s^2 = sigma^2 / m,

    g_{j+1}(x) = sum over y of g_j(y) e^(-(y - x j/(j+1))^2 (j+1) / (2 j s^2)).

All terms are positive and none is small beside the largest: nothing cancels or underflows. From
(1), a count that moves by k costs at order l

    d(k) = l k^2 / (2 sigma^2) + ln(A / B) / (l-1),                                           (2)
    A = sum over x of e^(-(x + (l-1) k)^2 / (2 sigma^2)) g(x)^l g(x-k)^(1-l),
    B = sum over x of e^(-x^2 / (2 sigma^2)) g(x),

the known price of Gaussian noise plus a price for the shape of g. A neighboring change moves at
most k votes. It costs most, 2 d(k), if k go from one class to another: `distributed_row_rdp`.

Source:
    Kairouz, Liu, Steinke 2021, Theorem 1 and Proposition 14 (closeness and closed forms).
    https://arxiv.org/abs/2102.06387. Canonne, Kamath, Steinke 2020 (one share).
    https://arxiv.org/abs/2004.00010. Proofs: docs/explanation/noise-at-the-parties.md.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pate_fed.accounting.ranges import positive, renyi_orders, whole
from pate_fed.errors import InvalidParameterError

LEAST_SHARE_VARIANCE: Final = 1
"""Shares of less variance are refused: the shape of their sum would be felt."""

MOST_SHARES: Final = 1 << 11
"""Most shares of a sum: the shape of the sum of two such sums is still computed in seconds."""

_FLAT: Final = 1e-14
"""Closeness below which g is constant for all that doubles can tell."""

_REACH: Final = 9.5
"""Standard deviations, beyond which a Gaussian has e^-45 of its peak."""


def honest_shares(parties: int, *, colluders: int, dropouts: int) -> int:
    """Return how many noise shares are honest and present at the worst: n - c - d."""
    return parties - colluders - dropouts


def share_sigma(sigma: float, shares: int) -> float:
    """Return sigma / sqrt(shares), rounded up; refuse less than `LEAST_SHARE_VARIANCE`."""
    promised = Fraction(positive("sigma", sigma)) ** 2 / checked_shares(shares)
    if promised < LEAST_SHARE_VARIANCE:
        raise InvalidParameterError(
            f"every noise share must have a variance of at least {LEAST_SHARE_VARIANCE}; "
            f"{shares} shares need a sigma of at least {math.ceil(1e4 * math.sqrt(shares)) / 1e4}",
            sigma,
        )
    rounded = sigma / math.sqrt(shares)
    while Fraction(rounded) ** 2 < promised:
        rounded = math.nextafter(rounded, math.inf)
    return rounded


def checked_shares(shares: int) -> int:
    """Return a number of shares between 1 and `MOST_SHARES`."""
    if not 1 <= whole("shares", shares) <= MOST_SHARES:
        raise InvalidParameterError(f"shares must be between 1 and {MOST_SHARES}", shares)
    return int(shares)


def closeness(sigma: float, shares: int) -> float:
    """Bound |ln| of the ratio of the sum's law to that of one discrete Gaussian (tau).

    Source:
        Kairouz, Liu, Steinke 2021, Theorem 1. https://arxiv.org/abs/2102.06387
    """
    variance = positive("sigma", sigma) ** 2 / whole("shares", shares)
    j = np.arange(1.0, shares)
    return float(10 * np.exp(-2 * math.pi**2 * variance * j / (j + 1)).sum())


@lru_cache(maxsize=64)
def shape_of_sum(sigma: float, shares: int) -> NDArray[np.float64]:
    """Return ln g(0), ..., ln g(m-1) of equation (1), up to a constant; read-only."""
    shape = np.ones(1)
    if closeness(sigma, shares) > _FLAT:
        variance = sigma**2 / shares
        reach = math.ceil(_REACH * math.sqrt(variance)) + 1
        steps = np.arange(-reach, reach + 1)
        for j in range(1, shares):
            centers = np.arange(j + 1) * (j / (j + 1))
            y = np.rint(centers).astype(np.int64)[:, np.newaxis] + steps
            away = y - centers[:, np.newaxis]
            terms = shape[y % j] * np.exp(-(away**2) * ((j + 1) / (2 * j * variance)))
            shape = terms.sum(axis=1)
            shape /= shape.max()
    logs = np.resize(np.log(shape), shares)
    logs.flags.writeable = False
    return logs


def shape_range(sigma: float, shares: int) -> tuple[float, float]:
    """Bound how much the logs of g differ: between neighbors, and between any two numbers."""
    tau = closeness(sigma, shares)
    if tau <= _FLAT:
        return 2 * tau, 2 * tau
    shape = shape_of_sum(sigma, shares)
    error = 2 * _shape_error(shares)
    step = float(np.abs(np.diff(shape, append=shape[0])).max())
    return step + error, float(np.ptp(shape)) + error


def _shape_error(shares: int) -> float:
    """Bound the error of each ln g: a few roundings per share."""
    return 4e-15 * shares + 1e-14


def log_mass_of_sum(
    values: NDArray[np.float64], *, sigma: float, shares: int
) -> NDArray[np.float64]:
    """Return the logs of Pr[sum = x] at whole numbers x, up to a constant."""
    shape = shape_of_sum(sigma, shares)
    return np.asarray(-(values**2) / (2 * sigma**2) + shape[values.astype(np.int64) % shares])


def distributed_row_rdp(
    orders: ArrayLike, *, sigma: float, shares: int, weight: int = 1
) -> NDArray[np.float64]:
    """Bound the RDP of one row of noisy counts for an observer of them all, for all votes.

    Guarantee: neighbors are histograms between which at most `weight` votes move, from any classes
    to any others. The reader knows everything but `shares` shares of the noise of every entry.
    More shares than these cost no more (adding independent noise is post-processing).

    Args:
        shares: Shares that the reader does not know, between 1 and `MOST_SHARES`.
        weight: Votes k that one neighboring change can move; a whole number above 0.

    Returns:
        2 d(k) at each order, rounded up, in nats; at least order k^2 / sigma^2; shape (orders,).
    """
    grid, moved = renyi_orders(orders), whole("weight", weight)
    share_sigma(sigma, shares)
    if moved < 1:
        raise InvalidParameterError("weight must be at least 1", weight)
    gaussian = grid * (moved / sigma) ** 2 * (1 + 2.0**-50)
    return np.asarray(gaussian + 2 * _excess(grid, sigma=sigma, shares=shares, moved=moved))


def _excess(
    orders: NDArray[np.float64], *, sigma: float, shares: int, moved: int
) -> NDArray[np.float64]:
    """Bound ln(A / B) / (order-1) of equation (2) from above by a number of at least 0."""
    tau = closeness(sigma, shares)
    if tau <= _FLAT:
        # D = ln E[(p/q)^(order-1)] / (order-1), and p/q is within e^(2 tau) of the Gaussian ratio
        # e^((k^2 - 2 x k) / (2 sigma^2)), whose mean under sums of discrete Gaussians is at most
        # that under Gaussians.
        return np.full(len(orders), 2 * tau)
    shape = shape_of_sum(sigma, shares)
    reach = math.ceil(_REACH * sigma) + 1
    centers = -(orders - 1) * moved
    x = np.rint(centers).astype(np.int64)[:, np.newaxis] + np.arange(-reach, reach + 1)
    m = (orders - 1)[:, np.newaxis]
    bent = (m + 1) * shape[x % shares] - m * shape[(x - moved) % shares]
    away = x - centers[:, np.newaxis]
    above = np.exp(-(away**2) / (2 * sigma**2) + bent).sum(axis=1)
    values = np.arange(-reach, reach + 1, dtype=np.float64)
    below = np.exp(log_mass_of_sum(values, sigma=sigma, shares=shares)).sum()
    # Each value of g enters 2 order - 1 times.
    error = _shape_error(shares) * (2 * orders - 1) / (orders - 1)
    return np.asarray(np.maximum(np.log(above / below) / (orders - 1), 0.0) + error)
