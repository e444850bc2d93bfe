"""The papers' bound query by query; the product only ever holds the sum over queries."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pate_fed.lab.pate_bounds import gnmax_log_q, rdp_from_log_q


def gnmax_rdp(
    counts: ArrayLike, orders: ArrayLike, *, sigma: float, weight: float = 1.0
) -> NDArray[np.float64]:
    """Bound the RDP of the GNMax label of each query; shape (queries, orders)."""
    return rdp_from_log_q(gnmax_log_q(counts, sigma=sigma), orders, sigma=sigma / weight)
