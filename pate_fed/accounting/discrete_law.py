"""Exact laws of two decisions under discrete Gaussian noise, in logs.

Discrete Gaussian noise on the whole numbers has Pr[Y = y] proportional to e^(-y^2 / (2 sigma^2)).
The check passes if a count plus Y reaches the threshold; of two classes the lower wins if its noisy
count is at least the other's. Sums run over terms of one sign from the far tail inward, so small
chances keep their relative precision; the truncated part is below e^-800 of the sum.

Source:
    Canonne, Kamath, Steinke 2020, The discrete Gaussian for differential privacy.
    https://arxiv.org/abs/2004.00010
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pate_fed.accounting.ranges import in_range
from pate_fed.errors import InvalidParameterError

LOG_ERROR: Final = 1e-11
"""Bound on the absolute error of the logs."""

LARGEST_DISCRETE_SIGMA: Final = 1e4

LARGEST_REACH: Final = 1 << 22
"""Votes within which a law is enumerated, whose entries are held in memory."""

Table = NDArray[np.float64]


def discrete_pass_law(
    counts: NDArray[np.int64], *, vote_threshold: float, sigma: float
) -> tuple[Table, Table]:
    """Return the logs of Pr[count + Y >= threshold] and of its complement, one per count.

    Raises:
        InvalidParameterError: `sigma` or a distance is too large to enumerate.
    """
    needed = math.ceil(in_range("vote_threshold", vote_threshold)) - counts
    reach = int(np.abs(needed).max())
    values = noise_values(reach, sigma)
    return split_law(-(values**2) / (2 * sigma**2), int(values[0]), needed)


def discrete_gap_law(gaps: NDArray[np.int64], *, sigma: float) -> tuple[Table, Table]:
    """Return the logs of Pr[the lower class wins] and of its complement, one per gap.

    The difference of two discrete Gaussians is d with a chance proportional to
    e^(-d^2 / (4 sigma^2)) times a sum over all halves of d's parity.

    Args:
        gaps: Count of the lower class minus count of the higher, in votes.
        sigma: Of the noise in each count, in votes.

    Raises:
        InvalidParameterError: `sigma` is too large to enumerate.
    """
    values = noise_values(int(np.abs(gaps).max()), 1.5 * sigma)
    around = np.arange(-math.ceil(30 * sigma) - 1, math.ceil(30 * sigma) + 2)
    by_parity = [np.logaddexp.reduce(-((around + half) ** 2) / sigma**2) for half in (0.0, 0.5)]
    log_mass = -(values**2) / (4 * sigma**2) + np.where(values % 2, by_parity[1], by_parity[0])
    # The lower class wins if the other's noise exceeds its own by at most the gap; by symmetry
    # that is as likely as an excess of its own noise of at least -gap.
    return split_law(log_mass, int(values[0]), -gaps)


def noise_values(reach: int, sigma: float) -> Table:
    """Return the whole numbers around 0 that a law of this sigma needs to answer up to `reach`.

    Raises:
        InvalidParameterError: `sigma` or `reach` is too large to enumerate.
    """
    if sigma > 1.5 * LARGEST_DISCRETE_SIGMA:
        raise InvalidParameterError(
            f"a discrete sigma must be at most {LARGEST_DISCRETE_SIGMA:g}", sigma
        )
    if reach > LARGEST_REACH:
        raise InvalidParameterError(
            f"discrete noise must be looked up within {LARGEST_REACH} votes", reach
        )
    last = reach + math.ceil(41 * sigma) + 2
    return np.arange(-last, last + 1, dtype=np.float64)


def split_law(log_mass: Table, first: int, needed: NDArray[np.int64]) -> tuple[Table, Table]:
    """Return the logs of Pr[Y >= needed] and of Pr[Y < needed].

    Args:
        log_mass: Logs of Y's chances up to a constant, at first, first + 1, ...
        first: Lowest value of Y.
        needed: Whole numbers well within; shape (numbers,).
    """
    total = np.logaddexp.reduce(log_mass)
    below = np.logaddexp.accumulate(log_mass) - total
    above = np.logaddexp.accumulate(log_mass[::-1])[::-1] - total
    position = needed - first
    return np.asarray(above[position]), np.asarray(below[position - 1])
