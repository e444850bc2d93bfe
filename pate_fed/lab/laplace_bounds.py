"""The cost of a label of LNMax: Laplace noise is pure differential privacy, so are its bounds.

The data-dependent bound depends on the votes and is itself private: for the operator's eyes only,
never a guarantee.

Source:
    Papernot, Abadi, Erlingsson, Goodfellow, Talwar 2017, Semi-supervised knowledge transfer for
    deep learning from private training data. https://arxiv.org/abs/1610.05755
"""

from __future__ import annotations

import math

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from pate_fed.accounting.pure_bounds import PureBound, pure_dp_rdp
from pate_fed.accounting.ranges import positive, renyi_orders, vote_counts
from pate_fed.lab.pate_bounds import log1mexp

_ROWS = 1 << 12
"""Queries worked on at a time, so that scratch memory does not grow with them."""


def laplace_log_q(counts: ArrayLike, *, gamma: float) -> NDArray[np.float64]:
    """Bound, in logs, the chance that the noisy winner of LNMax is not the plurality.

    Source:
        Papernot et al. 2017, Lemma 4. https://arxiv.org/abs/1610.05755
    """
    votes = vote_counts(counts)
    winners = votes.argmax(axis=1)[:, np.newaxis]
    gaps = positive("gamma", gamma) * (np.take_along_axis(votes, winners, axis=1) - votes)
    log_beats = np.log(2 + gaps) - math.log(4) - gaps
    np.put_along_axis(log_beats, winners, -np.inf, axis=1)
    log_q = scipy.special.logsumexp(log_beats, axis=1)
    return np.asarray(np.minimum(log_q, math.log1p(-1 / votes.shape[1])))


def laplace_rdp(
    counts: ArrayLike,
    orders: ArrayLike,
    *,
    gamma: float,
    weight: float = 1.0,
    pure_bound: PureBound = "sharp",
) -> NDArray[np.float64]:
    """Bound the RDP of the LNMax label of each query, given its votes.

    The mechanism is epsilon-DP with epsilon = 2 gamma weight for all votes. Where q <= 1 /
    (e^epsilon + 1) its moments are bounded by those of Theorem 3 of the 2017 paper. The paper's
    public code asks for q < 1/2 instead, which is not enough: the bound then need not grow with q,
    and may be the log of a negative number.

    Source:
        Papernot et al. 2017, Theorem 3 and Lemma 4. https://arxiv.org/abs/1610.05755
    """
    log_q, grid = laplace_log_q(counts, gamma=gamma), renyi_orders(orders)
    epsilon = 2 * gamma * positive("weight", weight)
    rdp = np.tile(pure_dp_rdp(grid, epsilon=epsilon, bound=pure_bound), (len(log_q), 1))
    # q <= 1 / (e^epsilon + 1), which also keeps q e^epsilon below 1.
    usable = np.flatnonzero(log_q <= -np.logaddexp(0.0, epsilon))
    for start in range(0, len(usable), _ROWS):
        rows = usable[start : start + _ROWS]
        of_rows = log_q[rows, np.newaxis]
        usual = grid * log1mexp(of_rows) - (grid - 1) * log1mexp(of_rows + epsilon)
        log_moment = np.logaddexp(usual, of_rows + (grid - 1) * epsilon)
        rdp[rows] = np.minimum(rdp[rows], np.maximum(log_moment / (grid - 1), 0.0))
    return rdp
