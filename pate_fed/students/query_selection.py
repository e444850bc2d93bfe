"""Choose which public inputs to ask about: it looks at public data only, so it is free."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from pate_fed.errors import InvalidParameterError

SELECTION_METHODS = ("medoids", "random")
"""Every method that `select_queries` knows."""

_RESTARTS = 10
_RESTARTS_OF_MANY = 3
_MANY_CLUSTERS = 100


def select_queries(
    inputs: NDArray[np.float64], count: int, *, method: str, rng: np.random.Generator
) -> tuple[int, ...]:
    """Choose distinct public inputs, the most telling first.

    "medoids" clusters the pool and takes the member nearest to each center, members of large
    clusters first. A run that a cap ends early has then asked for most of the pool. "random" draws
    without replacement.

    Args:
        inputs: The public pool; float64, shape (inputs, features).
        count: How many; between 1 and the number of inputs.
        method: One of `SELECTION_METHODS`.
        rng: Seeds the clustering or the draw.

    Returns:
        `count` distinct positions in the pool.

    Raises:
        InvalidParameterError: `count` or `method` is out of range.
    """
    if not 1 <= count <= len(inputs):
        raise InvalidParameterError(
            f"queries must be between 1 and the {len(inputs)} inputs of the pool", count
        )
    if method == "medoids":
        return _medoids(inputs, count, rng=rng)
    if method == "random":
        return tuple(int(place) for place in rng.choice(len(inputs), size=count, replace=False))
    raise InvalidParameterError(
        f"selection must be one of {', '.join(SELECTION_METHODS)}", repr(method)
    )


def _medoids(
    inputs: NDArray[np.float64], count: int, *, rng: np.random.Generator
) -> tuple[int, ...]:
    from sklearn.cluster import KMeans  # noqa: PLC0415 - takes a second

    seed = int(rng.integers(2**31))
    # Equal inputs cannot make two clusters, and k-means warns where there are too few.
    clusters = min(count, len(np.unique(inputs, axis=0)))
    restarts = _RESTARTS if clusters <= _MANY_CLUSTERS else _RESTARTS_OF_MANY
    # One thread: the order in which threads add up could change the last digit of a center.
    with threadpool_limits(limits=1):
        fitted = KMeans(n_clusters=clusters, n_init=restarts, random_state=seed).fit(inputs)
    distances = fitted.transform(inputs)
    sizes = np.bincount(fitted.labels_, minlength=clusters)
    chosen: list[int] = []
    for cluster in np.argsort(-sizes, kind="stable"):
        members = np.flatnonzero(fitted.labels_ == cluster)
        if len(members):
            chosen.append(int(members[distances[members, cluster].argmin()]))
    rest = np.setdiff1d(np.arange(len(inputs)), chosen)
    extra = rng.permutation(rest)[: count - len(chosen)]
    return (*chosen, *(int(place) for place in extra))
