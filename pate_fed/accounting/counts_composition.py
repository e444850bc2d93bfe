"""Exact composition of noisy rows: epsilon from the privacy loss distribution of the drawn noise.

A coordinator opens `rows` rows of counts, each chosen after the earlier ones. Each count carries
the sum of `shares` discrete Gaussians, together of variance sigma^2. One neighboring change moves
at most k votes of a row. The worst is to move k votes from one class to another in every row: two
counts, each moved by k. If their noise were a discrete Gaussian, the privacy loss of all rows would
be a function of one whole number, the sum S of the noises of these counts:

    loss  =  k (rows k - S) / sigma^2,        S a discrete Gaussian of variance V = 2 rows sigma^2,
    delta(epsilon)  =  E[ (1 - e^(epsilon - loss))+ ].                                          (1)

By how much the drawn law (`distributed_law`), other moves and sums of discrete Gaussians differ
from this is bounded and added: to the loss, or as a factor of delta. Mostly this is below 1e-9. The
sum in (1) has terms of one sign. Where it would be long, a block of values counts as if all of them
had its largest chance and its largest loss. So every error counts: the result is an upper bound.

Source:
    Proof: docs/explanation/noise-at-the-parties.md, Theorem 3. Of one discrete Gaussian: Canonne,
    Kamath, Steinke 2020, Theorem 7. https://arxiv.org/abs/2004.00010. Of sums: Kairouz, Liu,
    Steinke 2021, Theorem 1. https://arxiv.org/abs/2102.06387
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pate_fed.accounting.distributed_law import shape_range, share_sigma
from pate_fed.accounting.ranges import probability, whole
from pate_fed.errors import InvalidParameterError

_BLOCKS: Final = 4096
"""Blocks per standard deviation of S, at most: they raise epsilon by a factor below 1 + 1e-4."""

_OMITTED: Final = 18.0
"""Values that S exceeds with probability e^-18 delta count as if their loss were infinite."""

_SAFETY: Final = 1 + 1e-12
"""More than the rounding of the chances of all values and of their sums."""

_ULP: Final = 2.0**-52


class _Slack(NamedTuple):
    """What the rows differ from discrete Gaussians of which k is moved.

    Attributes:
        loss: To be added to the loss of all rows, in nats.
        log_factor: ln of the factor by which chances of S may be larger.
    """

    loss: float
    log_factor: float


def rows_epsilon(sigma: float, shares: int, *, rows: int, delta: float, weight: int = 1) -> float:
    """Bound the epsilon of several noisy rows for an observer of them all, for all votes.

    Guarantee: neighbors are histograms between which at most `weight` votes move in each row, from
    any classes to any others. Every row may be chosen after the earlier ones. The reader knows
    everything but `shares` shares of the noise of every entry.

    Args:
        shares: Shares that the reader does not know, between 1 and `MOST_SHARES`.
        weight: Votes k that one neighboring change can move in a row; a whole number above 0.

    Returns:
        Epsilon, rounded up: infinite where no bound is known, for k far above sigma^2 and for
        delta below 1e-280.
    """
    count, moved = whole("rows", rows), whole("weight", weight)
    share_sigma(sigma, shares), probability("delta", delta)
    if moved < 1:
        raise InvalidParameterError("weight must be at least 1", weight)
    if count == 0:
        return 0.0
    slack = _slack(sigma, shares, rows=count, moved=moved)
    reached = delta * math.exp(-slack.log_factor)
    if not reached > 1e-280 or not math.isfinite(slack.loss):
        return math.inf
    losses, chances = _losses(sigma, rows=count, moved=moved, delta=reached)
    kept = reached * (1 - 2 * math.exp(-_OMITTED))

    def holds(epsilon: float) -> bool:
        """Tell whether the sum (1) is at most delta, all omitted values counted in full."""
        first = int(np.searchsorted(losses, epsilon, side="right"))
        gains = -np.expm1(epsilon - losses[first:])
        return float(chances[first:] @ gains) * _SAFETY <= kept

    low, high = -slack.loss, float(losses[-1])
    if holds(low):
        return 0.0
    while high - low > 1e-10 * abs(high):
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return (high + slack.loss) * (1 + 4 * _ULP)


def _losses(
    sigma: float, *, rows: int, moved: int, delta: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return bounds on the losses of blocks of values of -S, rising, and on the blocks' chances.

    Left and right of all blocks S is with probability at most e^-18 delta each: any sum of discrete
    Gaussians of variance V has E[e^(t S)] <= e^(t^2 V / 2).
    """
    deviation = math.sqrt(2 * rows) * sigma
    reach = math.ceil(deviation * math.sqrt(2 * (_OMITTED - math.log(delta))))
    block = max(1, int(deviation // _BLOCKS))
    first = -reach + block * np.arange((2 * reach) // block + 1, dtype=np.float64)
    last = first + (block - 1)
    # A discrete Gaussian's chances are at most those of e^(-x^2 / (2 V)) / sqrt(2 pi V).
    nearest = np.clip(0.0, first, last) / deviation
    chances = np.exp(-(nearest**2) / 2) * (block / (math.sqrt(2 * math.pi) * deviation) * _SAFETY)
    unit = moved / sigma / sigma
    rounding = 8 * _ULP * unit * (rows * moved + reach + block)
    return unit * (rows * moved + last) + rounding, chances


def _slack(sigma: float, shares: int, *, rows: int, moved: int) -> _Slack:
    """Bound what separates the rows from discrete Gaussians; the numbers are those of the proof."""
    step, spread = shape_range(sigma, shares)
    loss = 2 * moved * step
    as_one = _sum_closeness(sigma**2, 2 * rows)
    if moved == 1:  # every move is the worst one, and the law of all shares is known as well
        by_shares = _sum_closeness(sigma**2 / shares, 2 * rows * shares)
        return _Slack(rows * loss, min(by_shares, 2 * rows * spread + as_one))
    rounding = _rounding(sigma, moved)
    return _Slack(rows * (loss + 2 * rounding), 2 * rows * (moved * spread + rounding) + as_one)


def _sum_closeness(variance: float, terms: int) -> float:
    """Bound |ln| of the ratio of the law of a sum of discrete Gaussians to that of a single one.

    This is `closeness` with all terms of its sum as large as the last one.
    """
    return 10 * (terms - 1) * math.exp(-2 * math.pi**2 * variance * (1 - 1 / terms))


def _rounding(sigma: float, moved: int) -> float:
    """Bound |ln| of what separates other moves from rounded counts of which k is moved."""
    exponent = 2 * math.pi**2 * (sigma / moved) * sigma
    one = 2 * math.exp(-exponent) / -math.expm1(-3 * exponent)
    if one >= 1 or moved * math.log1p(one) >= math.log(2):
        return math.inf
    several = math.expm1(moved * math.log1p(one))
    return math.log1p(one) - math.log1p(-one) + math.log1p(several) - math.log1p(-several)
