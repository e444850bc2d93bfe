"""Who is like whom among public inputs: a graph of nearest neighbors."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

NEIGHBORS = 7
"""Neighbors that each input is joined to."""


def neighbor_graph(inputs: NDArray[np.float64], *, neighbors: int = NEIGHBORS) -> Any:
    """Join each input to its nearest ones, near ones strongly.

    Weights are exp(-d^2 / (s_i s_j)), with s the distance to the farthest neighbor, so that
    dense and thin regions are treated alike.

    Args:
        inputs: float64, shape (n, features), n at least 1.
        neighbors: Fewer are taken where there are fewer inputs.

    Returns:
        Sparse symmetric matrix D^-1/2 W D^-1/2, shape (n, n), non-negative.
    """
    from scipy import sparse  # noqa: PLC0415 - takes a second
    from sklearn.neighbors import NearestNeighbors  # noqa: PLC0415

    count = len(inputs)
    taken = min(neighbors, count - 1)
    if taken < 1:
        return sparse.csr_matrix((count, count))
    search = NearestNeighbors(n_neighbors=taken).fit(inputs)
    distances, found = search.kneighbors()
    scale = np.maximum(distances[:, -1], 1e-12)
    strength = np.exp(-(distances**2) / (scale[:, None] * scale[found]))
    rows = np.repeat(np.arange(count), taken)
    weights = sparse.csr_matrix((strength.ravel(), (rows, found.ravel())), shape=(count, count))
    joined = weights.maximum(weights.T)
    degree = np.asarray(joined.sum(axis=1)).ravel()
    root = sparse.diags(1.0 / np.sqrt(np.maximum(degree, 1e-300)))
    return (root @ joined @ root).tocsr()
