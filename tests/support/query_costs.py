"""The cost query by query; the product only ever holds the sum over queries."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pate_fed.accounting.ranges import positive, renyi_orders, vote_counts
from pate_fed.lab.exact import _NeighborLaws
from pate_fed.lab.pate_bounds import gnmax_log_q, rdp_from_log_q


def gnmax_rdp(
    counts: ArrayLike, orders: ArrayLike, *, sigma: float, weight: float = 1.0
) -> NDArray[np.float64]:
    """Bound the RDP of the GNMax label of each query; shape (queries, orders)."""
    return rdp_from_log_q(gnmax_log_q(counts, sigma=sigma), orders, sigma=sigma / weight)


def exact_label_rdp(
    counts: ArrayLike,
    orders: ArrayLike,
    *,
    sigma: float,
    weight: int = 1,
    vote_threshold: float | None = None,
    offsets: ArrayLike | None = None,
) -> NDArray[np.float64]:
    """Return the exact RDP of each query's label or "no answer"; shape (queries, orders)."""
    grid, noise = renyi_orders(orders), positive("sigma", sigma)
    laws = _NeighborLaws.of(
        vote_counts(counts),
        sigma=noise,
        weight=weight,
        vote_threshold=vote_threshold,
        offsets=offsets,
    )
    distinct = np.empty((len(laws.distinct), len(grid)))
    for group in laws._groups():
        distinct[group.rows] = group.rdp(grid)
    return distinct[laws.queries]
