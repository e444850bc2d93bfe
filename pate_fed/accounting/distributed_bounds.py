"""The public's view where the parties add the noise: the label of each query.

The public sees labels, never a noisy row. Its view costs less than the rows
(`distributed_law.distributed_row_rdp`), and is bounded for the law that is really drawn: sums of
discrete Gaussians, not Gaussians.

Let i and j be the classes that a vote leaves and joins. Given the noisy counts of all others, the
label is i, j, or one that follows from them: two counts, each against a number that is the same in
both worlds. So a query costs at most the largest divergence of this law over all votes and numbers
(`lattice_maximum`), and for two classes that of a coin.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pate_fed.accounting.distributed_law import distributed_row_rdp, log_mass_of_sum
from pate_fed.accounting.lattice_maximum import (
    LARGEST_LATTICE,
    MOST_CELLS,
    Setting,
    largest_label_moments,
)
from pate_fed.accounting.ranges import renyi_orders

_SLACK: Final = 1e-9
_CELLS_AT_A_TIME: Final = 1 << 20


def distributed_label_rdp(
    orders: ArrayLike, *, sigma: float, shares: int, weight: int = 1
) -> NDArray[np.float64]:
    """Bound the RDP of one label, the lowest class with the largest noisy count.

    Guarantee: for an observer who sees the label and knows everything but `shares` shares of the
    noise of every entry; neighbors as for `distributed_row_rdp`, any number of classes, all votes.

    Args:
        sigma: Standard deviation that the shares add up to, in votes; above 0. Up to about 150 the
            bound is certified for labels; beyond it is the row's.

    Returns:
        RDP at each order, in nats, at most `distributed_row_rdp`; shape (orders,).
    """
    grid = renyi_orders(orders)
    cap = distributed_row_rdp(grid, sigma=sigma, shares=shares, weight=weight)
    usable = grid * (grid - 1) * weight**2 <= LARGEST_LATTICE * sigma**2
    usable &= (grid - 1) * weight <= _lattice_reach(sigma)
    if usable.any():
        moments = _largest_labels(tuple(grid[usable].tolist()), sigma, shares, weight)
        cap[usable] = np.minimum(cap[usable], np.log1p(moments) / (grid[usable] - 1))
    return cap


def _lattice_reach(sigma: float) -> int:
    """Return the largest (order - 1) weight, in votes, that fits into a table; -1 for none."""
    reach = math.ceil(math.sqrt(LARGEST_LATTICE) * sigma)
    while reach >= 0 and Setting(sigma, 1, 1, reach).cells > MOST_CELLS:
        reach = math.floor(0.9 * reach) if reach else -1
    return reach


@lru_cache(maxsize=256)
def _largest_labels(
    orders: tuple[float, ...], sigma: float, shares: int, weight: int
) -> NDArray[np.float64]:
    # Two classes: a coin of the difference of two counts, which moves by twice the votes.
    coins = _largest_coin(orders, math.sqrt(2) * sigma, 2 * shares, 2 * weight)
    # In steps, so that one table also serves the next orders asked for.
    steps = math.ceil((max(orders) - 1) * weight / (sigma / 2))
    reach = min(math.ceil(steps * sigma / 2), _lattice_reach(sigma))
    setting = Setting(sigma, shares, weight, reach)
    return largest_label_moments(np.array(orders), setting, two_way=coins)


@lru_cache(maxsize=256)
def _largest_coin(
    orders: tuple[float, ...], sigma: float, shares: int, shift: int
) -> NDArray[np.float64]:
    """Bound sum P^l Q^(1-l) - 1 of coins F(t) and F(t+shift), over whole t, in both directions."""
    grid = np.array(orders)
    # By symmetry, 1 - F(t) = F(-t-1), t above 0 mirrors t below 0 in the other direction.
    reach = math.ceil(grid.max() * shift + 30 * sigma)
    values = np.arange(-reach - math.ceil(12 * sigma), reach + shift + 1, dtype=np.float64)
    log_mass = log_mass_of_sum(values, sigma=sigma, shares=shares)
    log_mass -= np.logaddexp.reduce(log_mass)
    log_below = np.minimum(np.logaddexp.accumulate(log_mass), 0.0)
    log_above = np.minimum(np.logaddexp.accumulate(log_mass[::-1])[::-1], 0.0)
    low = int(np.searchsorted(values, -reach))
    ends = len(values) - shift - 1
    here = (log_below[low:ends], log_above[low + 1 : ends + 1])
    moved = (log_below[low + shift : -1], log_above[low + shift + 1 :])
    found = []
    for part in np.array_split(
        grid, min(len(grid), len(grid) * len(values) // _CELLS_AT_A_TIME + 1)
    ):
        order = part[:, np.newaxis]
        up, down = _moment(order, here, moved), _moment(order, moved, here)
        inside = np.maximum(up, down).max(axis=1)
        # Below t = -reach: the chances themselves where they grow, and by Hoelder's inequality
        # the moment of the counts below t where they shrink.
        tail = np.expm1((part + 1) * math.exp(moved[0][0] + 1e-9))
        moment = order * log_mass[shift : low + shift] - (order - 1) * log_mass[:low]
        outside = np.maximum(tail, 2 * np.exp(np.logaddexp.reduce(moment, axis=1)))
        found.append(np.maximum(inside, outside) * (1 + _SLACK))
    return np.concatenate(found)


Coin = tuple[NDArray[np.float64], NDArray[np.float64]]
"""Logs of the chances of heads and of tails."""


def _moment(order: NDArray[np.float64], before: Coin, after: Coin) -> NDArray[np.float64]:
    """Return sum P^order Q^(1-order) - 1, as a sum of parts of at least 0."""
    total: NDArray[np.float64] = np.zeros(1)
    for log_p, log_q in zip(before, after, strict=True):
        m, ratio = order - 1, log_p - log_q
        p, q = np.exp(log_p), np.exp(log_q)
        near = p * (np.expm1(np.minimum(m * ratio, 1.0)) + m * np.expm1(np.minimum(-ratio, 1.0)))
        with np.errstate(over="ignore"):  # an infinite moment bounds nothing: the cap does
            far = np.exp(log_p + m * ratio) - p + m * (q - p)
        total = total + np.where(np.abs(ratio) * np.maximum(m, 1.0) < 1, near, far)
    return total
