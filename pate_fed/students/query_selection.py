"""Choose which public inputs to ask about: it looks at public data only, so it is free."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from pate_fed.errors import InvalidParameterError
from pate_fed.one_thread import one_thread
from pate_fed.queries import QueryPool
from pate_fed.students.label_sets import CALIBRATING_PART, calibrating_rows
from pate_fed.students.propagation import neighbor_graph

SELECTION_METHODS = ("medoids", "spectral", "stratified", "random")
"""Every method that `select_queries` knows."""
_RESTARTS = 10
_RESTARTS_OF_MANY = 3
_MANY_CLUSTERS = 100
_FEWEST_AXES, _MOST_AXES = 10, 25
_FEWEST_INNER = 20
_TINY = 1e-12


def select_queries(
    inputs: NDArray[np.float64], count: int, *, method: str, rng: np.random.Generator
) -> tuple[int, ...]:
    """Choose distinct public inputs, the most telling first.

    "medoids" clusters the pool and takes the member nearest to each center. "spectral" clusters the
    graph of similar inputs, and takes from the inner quarter of each cluster the input nearest to
    its mean: the one that teachers agree about most. Both take members of large clusters first, so
    that a run that a cap ends early has asked for most of the pool. "stratified" halves the pool
    along the feature that varies most, again and again, and draws one input from each part: no
    region of a table is left out, or asked about twice. "random" draws without replacement.

    Source:
        Ng, Jordan, Weiss 2001, On spectral clustering: analysis and an algorithm.
        https://proceedings.neurips.cc/paper/2001/hash/801272ee79cfde7fa5960571fee36b9b
    """
    if not 1 <= count <= len(inputs):
        raise InvalidParameterError(
            f"queries must be between 1 and the {len(inputs)} inputs of the pool", count
        )
    if method == "medoids":
        return _medoids(inputs, count, rng=rng)
    if method == "spectral":
        return _spectral(inputs, count, rng=rng)
    if method == "stratified":
        drawn = [int(rng.choice(rows)) for rows in _strata(inputs, count)]
        return tuple(drawn[place] for place in rng.permutation(count))
    if method == "random":
        return tuple(int(place) for place in rng.choice(len(inputs), size=count, replace=False))
    raise InvalidParameterError(
        f"selection must be one of {', '.join(SELECTION_METHODS)}", repr(method)
    )


def choose_queries(
    pool: QueryPool,
    candidates: Sequence[int],
    count: int,
    *,
    method: str,
    rng: np.random.Generator,
    calibrates: bool = False,
) -> tuple[int, ...]:
    """Choose the queries of a run as `select_queries` does.

    To calibrate, a fifth of them is drawn at random from rows that do nothing else
    (`calibrating_rows`), and spread evenly among the others.

    Args:
        pool: The public pool.
        candidates: Positions in it to choose from, at least `count`.
        count: How many.
        method: One of `SELECTION_METHODS`.
        rng: Seeds the choice.
        calibrates: Whether sets of classes are wanted.

    Returns:
        Positions in the pool.
    """
    if calibrates:
        reserved, allowed = calibrating_rows(pool), set(candidates)
        others = sorted(allowed.difference(reserved))
        wanted = max(count // CALIBRATING_PART, count - len(others))
        held = [place for place in reserved if place in allowed][:wanted]
        taught = choose_queries(
            pool, others, min(count - len(held), len(others)), method=method, rng=rng
        )
        return _spread(held, taught)
    chosen = select_queries(pool.inputs[list(candidates)], count, method=method, rng=rng)
    return tuple(candidates[place] for place in chosen)


def _spread(few: Sequence[int], many: Sequence[int]) -> tuple[int, ...]:
    """Merge two lists in their orders, both evenly: a run that ends early has asked of both."""
    places = [((at + 0.5) / len(part), row) for part in (few, many) for at, row in enumerate(part)]
    return tuple(row for _, row in sorted(places))


def least_confident(chances: NDArray[np.float64], count: int) -> NDArray[np.int64]:
    """Choose the inputs that a student is least sure of, the least sure first.

    Guarantee: the student learned from released labels and public inputs, so the choice is free.

    Source:
        Lewis, Gale 1994, A sequential algorithm for training text classifiers.
        https://arxiv.org/abs/cmp-lg/9407020
    """
    return np.asarray(np.argsort(chances.max(axis=1), kind="stable")[:count], dtype=np.int64)


def cluster_cores(
    inputs: NDArray[np.float64], queries: Sequence[int]
) -> dict[int, NDArray[np.int64]]:
    """Return the inputs around each query that teachers may vote on in its place.

    Every input belongs to its nearest query; the core is the half of them that is nearest. A
    teacher that votes for the class it gives most of a core depends on its own records and public
    inputs alone, and casts one vote as before. So no price changes.

    Returns:
        Positions of each query's core, itself among them, by the query's position.
    """
    from sklearn.metrics import pairwise_distances_argmin_min  # noqa: PLC0415 - takes a second

    asked = np.array(queries, dtype=np.int64)
    with one_thread():
        owner, distance = pairwise_distances_argmin_min(inputs, inputs[asked])
    owner[asked], distance[asked] = np.arange(len(asked)), -1.0
    cores = {}
    for place, query in enumerate(asked.tolist()):
        members = np.flatnonzero(owner == place)
        nearest = members[distance[members].argsort(kind="stable")]
        cores[query] = np.sort(nearest[: -(-len(nearest) // 2)])
    return cores


def _strata(inputs: NDArray[np.float64], count: int) -> Iterator[NDArray[np.int64]]:
    """Yield the rows of `count` parts of about one size, each one input or more."""
    waiting = [(np.arange(len(inputs)), count)]
    while waiting:
        rows, parts = waiting.pop()
        if parts == 1:
            yield rows
            continue
        below = parts // 2
        cut = min(max(round(len(rows) * below / parts), below), len(rows) - (parts - below))
        widest = int(inputs[rows].var(axis=0).argmax())
        ordered = rows[inputs[rows, widest].argsort(kind="stable")]
        waiting += [(ordered[:cut], below), (ordered[cut:], parts - below)]


def _medoids(
    inputs: NDArray[np.float64], count: int, *, rng: np.random.Generator
) -> tuple[int, ...]:
    chosen = [int(members[0]) for members in _clusters(inputs, count, rng=rng)]
    return _filled_up(chosen, len(inputs), count, rng=rng)


def _spectral(
    inputs: NDArray[np.float64], count: int, *, rng: np.random.Generator
) -> tuple[int, ...]:
    wanted = min(max(_FEWEST_AXES, count), _MOST_AXES)
    if len(inputs) <= 2 * wanted:  # too few for a graph
        return _medoids(inputs, count, rng=rng)
    from scipy.sparse.linalg import eigsh  # noqa: PLC0415 - takes a moment

    graph = neighbor_graph(inputs)
    with one_thread():
        _, axes = eigsh(graph, k=wanted, v0=rng.normal(size=len(inputs)))
    places = axes / np.maximum(np.linalg.norm(axes, axis=1, keepdims=True), _TINY)
    chosen = []
    for members in _clusters(places, count, rng=rng):
        inner = members[: max(_FEWEST_INNER, len(members) // 4)]
        lengths = np.linalg.norm(inputs[inner] - inputs[inner].mean(axis=0), axis=1)
        chosen.append(int(inner[lengths.argmin()]))
    return _filled_up(chosen, len(inputs), count, rng=rng)


def _clusters(
    places: NDArray[np.float64], count: int, *, rng: np.random.Generator
) -> Iterator[NDArray[np.int64]]:
    """Yield the members of each cluster, innermost first; large clusters first."""
    from sklearn.cluster import KMeans  # noqa: PLC0415 - takes a second

    seed = int(rng.integers(2**31))
    # Equal inputs cannot make two clusters, and k-means warns where there are too few.
    clusters = min(count, len(np.unique(places, axis=0)))
    restarts = _RESTARTS if clusters <= _MANY_CLUSTERS else _RESTARTS_OF_MANY
    # One thread: the order in which threads add up could change the last digit of a center.
    with one_thread():
        fitted = KMeans(n_clusters=clusters, n_init=restarts, random_state=seed).fit(places)
    distances = fitted.transform(places)
    sizes = np.bincount(fitted.labels_, minlength=clusters)
    for cluster in np.argsort(-sizes, kind="stable"):
        members = np.flatnonzero(fitted.labels_ == cluster)
        if len(members):
            yield members[distances[members, cluster].argsort(kind="stable")]


def _filled_up(
    chosen: list[int], inputs: int, count: int, *, rng: np.random.Generator
) -> tuple[int, ...]:
    rest = np.setdiff1d(np.arange(inputs), chosen)
    extra = rng.permutation(rest)[: count - len(chosen)]
    return (*chosen, *(int(place) for place in extra))
