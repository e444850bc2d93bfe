"""How far one vote moves a GNMax label, given how many votes the classes can have.

The unit is E = e^((order-1) D) - 1, where D is the Renyi divergence between the label's law before
and after a vote moves from class i to class j. Everything here is an upper bound on E, for all
votes: the building block of the joint price (`joint_price`).

Two classes: the gap g = n_i - n_j is whole, so E is that of two Bernoulli laws, once per gap.

Three or more: the best of the other classes is revealed too, as W. With
t = g / (sqrt(2) sigma), u = (n_i + n_j - 2 W) / (sqrt(2) sigma) the outcome (i, j or other) has a
law P(u, t); moving the vote turns t into t - s. On a cell of u, at fixed t,

    E <= P_i(u1) G(r_i(u0)) + P_j(u1) G(r_j(u0)) + P_o(u0) max(G(r_o(u0)), G(r_o(u1)))

with r = ln P/P' and G(r) = expm1((order-1) r) + (order-1) expm1(-r): P_i and P_j rise in u,
P_o falls, |r_i| and |r_j| fall, r_o is monotone. Running maxima over the cells make bounds that
fall (or rise) in u, and these are averaged over a W that is at least (or at most) as large as
the real one. docs/explanation/joint-price.md has the proofs.

Arithmetic is double, rounded outward by more than its error (the tests compare with 40 digits);
it is not interval arithmetic.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
import scipy
from numpy.typing import NDArray

Table = NDArray[np.float64]

SAFETY: Final = 1 + 1e-9
"""Factor on every bound, far above the error of double arithmetic."""

LOG_ERROR: Final = 2e-15
"""Relative error of the log of a normal chance, and of values computed from it."""

LARGEST_REACH: Final = 100.0
"""Largest teachers / (sqrt(2) sigma) that three or more classes are computed for."""

_FINE, _COARSE = 0.0125, 0.05
_FINE_REACH = 15.0
_LARGEST_CAP_EXPONENT = 40.0
_FLOOR = 1e-300
_BELOW_FLOOR = 1e-90
_LARGE = 50.0
RIGHT: Final = 7.0
"""From here on the best other class hardly ever matters."""
LOG_P_ERROR: Final = 2e-13
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(5)
_BLOCK = 128


def weighted_spread(log_chances: Table, log_ratios: Table, order: float) -> Table:
    """Return P G(r), G(r) = expm1((order-1) r) + (order-1) expm1(-r), rounded up.

    G is at least 0, convex, and 0 at r = 0. For laws P and P' with r = ln P/P' the sum of
    P G(r) is e^((order-1) D) - 1, because the sum of P expm1(-r) is 0: the terms of first order,
    which would cancel, are gone.

    Args:
        log_chances: ln P.
        log_ratios: r, of the same shape.
        order: Renyi order.
    """
    return np.asarray(
        _weighted_curvature(log_chances, (order - 1) * log_ratios)
        + (order - 1) * _weighted_curvature(log_chances, -log_ratios)
    )


def gaussian_cap(order: float, shift: float) -> float:
    """Return E of the noisy counts themselves, which no label exceeds.

    Args:
        order: Renyi order.
        shift: Votes moved, in standard deviations of the noise.
    """
    exponent = order * (order - 1) * shift * shift
    return math.expm1(exponent) * SAFETY if exponent < 700 else math.inf


def bernoulli_divergence(
    before: tuple[Table, Table],
    after: tuple[Table, Table],
    order: float,
    *,
    log_error: float = LOG_ERROR,
) -> Table:
    """Return E of two Bernoulli laws, rounded up.

    Args:
        before: Logs of the chances of "yes" and of "no"; any shape.
        after: The same for the neighbor.
        order: Renyi order.
        log_error: Relative error of the logs, and of the chances.
    """
    total = np.zeros(np.shape(before[0]))
    for log_chance, log_neighbor in zip(before, after, strict=True):
        ratio = log_chance - log_neighbor
        error = log_error * (1 - log_chance - log_neighbor)
        outward = ratio + np.copysign(error, ratio)
        total = total + weighted_spread(log_chance, outward, order)
    return np.asarray(total * SAFETY)


def two_class_divergence(
    gaps: NDArray[np.int64], *, sigma: float, moved: int, order: float
) -> Table:
    """Bound E for two classes and Gaussian noise: exact up to rounding.

    Args:
        gaps: n_i - n_j, in votes; shape (gaps,).
        sigma: Standard deviation of the noise in each count, in votes.
        moved: Votes that move from class i to class j.
        order: Renyi order.

    Returns:
        E for each gap; shape (gaps,).
    """
    unit = 1 / (math.sqrt(2) * sigma)
    before, after = np.asarray(gaps * unit), np.asarray((gaps - 2 * moved) * unit)
    bound = bernoulli_divergence(_signs(before), _signs(after), order)
    return np.asarray(np.minimum(bound, gaussian_cap(order, moved / sigma)))


@dataclass(frozen=True, slots=True, eq=False)
class ManyClassDivergence:
    """Bounds on E for three or more classes, at one order.

    Attributes:
        touching: E where class i or j has the most votes; at [n_i + n_j, teachers + n_i - n_j].
        apart: E where a third class has the most votes; at [its count].
    """

    touching: Table
    apart: Table


def many_class_divergence(
    *, teachers: int, classes: int, sigma: float, moved: int, order: float
) -> ManyClassDivergence:
    """Bound E for three or more classes and Gaussian noise.

    Args:
        teachers: Bound on the votes of a query.
        classes: Number of classes, or more; at least 3.
        sigma: Standard deviation of the noise in each count, in votes.
        moved: Votes that move from class i to class j.
        order: Renyi order.

    Returns:
        Bounds for every place of the votes. `apart` covers gaps and sums of i and j that leave
        the third class strictly on top where one vote moves, and at least tied where several do.
    """
    if order * (order - 1) * (moved / sigma) ** 2 > _LARGEST_CAP_EXPONENT:
        # Here the label costs about as much as the noisy counts.
        cap = gaussian_cap(order, moved / sigma)
        return ManyClassDivergence(
            np.full((teachers + 1, 2 * teachers + 1), cap), np.full(teachers + 1, cap)
        )
    law = three_way_law(teachers, sigma, moved, left_end(teachers, sigma, moved, order))
    falls = _falls(law, teachers=teachers, classes=classes)
    rises = _rises(law, teachers=teachers)
    touching = np.empty((teachers + 1, 2 * teachers + 1))
    apart = np.empty_like(touching)
    for start in range(-teachers, teachers + 1, _BLOCK):
        gaps = np.arange(start, min(start + _BLOCK, teachers + 1))
        columns = slice(start + teachers, start + teachers + len(gaps))
        bounds = _cell_bounds(law, gaps, order)
        touching[:, columns] = _mean_of_falling(bounds, falls)
        apart[:, columns] = _mean_of_rising(bounds, rises)
    largest = _largest_apart(apart, teachers, least=1 if moved == 1 else 0)
    return ManyClassDivergence(touching * SAFETY, largest * SAFETY)


@dataclass(frozen=True, slots=True, eq=False)
class ThreeWayLaw:
    """Logs of P_i(u, t_g) and of Pr[i stays below the best other], on edges of u.

    Row g + margin belongs to the gap g; t_g = g / (sqrt(2) sigma).
    """

    edges: Table
    log_wins: Table
    log_loses: Table
    margin: int
    moved: int
    sigma: float


def left_end(teachers: int, sigma: float, moved: int, order: float) -> float:
    """Return a u below which nothing but the best other class wins, tilted or not."""
    rounded = 2.0 ** math.ceil(math.log2(order + 1))  # so that most orders share one law
    reach = teachers / (math.sqrt(2) * sigma) + math.sqrt(2) * rounded * moved / sigma
    return -float(math.ceil(reach + 9.5))


@lru_cache(maxsize=4)
def three_way_law(teachers: int, sigma: float, moved: int, left: float) -> ThreeWayLaw:
    """Tabulate who wins, from u = left on; as for `many_class_divergence`."""
    return _tabulated(_edges(left, teachers / (math.sqrt(2) * sigma)), teachers, sigma, moved)


@lru_cache(maxsize=4)
def law_on_steps(most: int, sigma: float, moved: int) -> ThreeWayLaw:
    """Tabulate who wins at every whole n_i + n_j - 2 W, to where only one side can, or 7.

    Args:
        most: Largest gap, in steps.
        sigma: Standard deviation of the noise in each count, in steps; at least 7.
        moved: Steps that one change moves.
    """
    unit = 1 / (math.sqrt(2) * sigma)
    left = left_end(most, sigma, moved, 1.0)
    edges = np.asarray(np.arange(math.floor(left / unit), math.ceil(RIGHT / unit) + 1) * unit)
    return _tabulated(edges, most, sigma, moved)


def _tabulated(edges: Table, most: int, sigma: float, moved: int) -> ThreeWayLaw:
    unit = 1 / (math.sqrt(2) * sigma)
    margin = most + 2 * moved
    gaps = np.asarray(np.arange(-margin, margin + 1)[:, np.newaxis] * unit)
    # Where the integral begins, 8 below, the integrand is 1e-17 of its value at the left end.
    lead = np.arange(edges[0] - 8, edges[0], _COARSE)
    wins = _orthant(np.concatenate([lead, edges]), gaps)[:, len(lead) :]
    log_wins = np.log(np.maximum(wins, _FLOOR))
    log_loses = scipy.special.log_ndtr(-(edges + gaps) / math.sqrt(2))
    return ThreeWayLaw(edges, log_wins, log_loses, margin, moved, sigma)


def _edges(left: float, reach: float) -> Table:
    """Return edges of u: fine where three classes can be close, coarse elsewhere."""
    fine = _FINE * max(1.0, reach / _FINE_REACH)
    fine_left, fine_right = max(left, -float(math.ceil(reach + 4.5))), 4.5
    ends = [left, fine_left, fine_right, RIGHT]
    parts = [
        np.linspace(start, end, math.ceil((end - start) / step), endpoint=False)
        for start, end, step in zip(ends, ends[1:], (_COARSE, fine, _COARSE), strict=False)
    ]
    return np.concatenate([*parts, [RIGHT]])


def _orthant(edges: Table, gaps: Table) -> Table:
    """Return P_i(u, t) = Pr[V > 0, V > -U] for V ~ N(t, 1), U ~ N(u, 1), at every edge.

    Its derivative in u is phi((t+u)/sqrt(2)) Phi((t-u)/sqrt(2)) / sqrt(2). The integral is summed
    from the left, all terms positive, so that small values keep their relative precision.
    """
    halves = np.diff(edges) / 2
    cells = np.zeros((len(gaps), len(edges)))
    for node, weight in zip(_NODES, _WEIGHTS, strict=True):
        at = edges[:-1] + halves * (1 + node)
        density = np.exp(-((gaps + at) ** 2) / 4) * scipy.special.ndtr((gaps - at) / math.sqrt(2))
        cells[:, 1:] += weight * halves * density
    # The first edge carries the part left of it: a Gaussian tail, to a few percent.
    first = edges[0]
    cells[:, :1] = 2 * np.exp(-((gaps + first) ** 2) / 4) / np.abs(gaps + first)
    return np.asarray(np.cumsum(cells, axis=1) / (2 * math.sqrt(math.pi)))


def _cell_bounds(law: ThreeWayLaw, gaps: NDArray[np.int64], order: float) -> Table:
    """Bound E at each gap: left of all cells of u, in each, right of all; one column each."""
    k = law.moved
    here, there = gaps + law.margin, law.margin - gaps
    log_i, log_j = law.log_wins[here], law.log_wins[there]
    ratio_i = log_i - law.log_wins[here - 2 * k] + LOG_P_ERROR
    ratio_j = log_j - law.log_wins[there + 2 * k] - LOG_P_ERROR
    log_o = law.log_loses[here] + law.log_loses[there]
    ratio_o = log_o - law.log_loses[here - 2 * k] - law.log_loses[there + 2 * k]
    ratio_o = ratio_o + np.copysign(LOG_ERROR * (1 - 2 * log_o + np.abs(ratio_o)), ratio_o)
    cells = weighted_spread(log_i[:, 1:], ratio_i[:, :-1], order)
    cells += weighted_spread(log_j[:, 1:], ratio_j[:, :-1], order)
    spread_o = weighted_spread(np.zeros_like(ratio_o), ratio_o, order)
    cells += np.exp(log_o[:, :-1]) * np.maximum(spread_o[:, :-1], spread_o[:, 1:])
    left = _left_tail(law, gaps, order) + spread_o[:, 0]
    bounds = np.column_stack([left, cells, _right_tail(law, gaps, order)])
    # Chances below the floor have ratios of their own, but even tilted they count for less.
    bounds = bounds * SAFETY + _BELOW_FLOOR
    return np.asarray(np.minimum(bounds, gaussian_cap(order, k / law.sigma)))


def _left_tail(law: ThreeWayLaw, gaps: NDArray[np.int64], order: float) -> Table:
    """Bound the part of i and j in E left of all cells.

    For i, P_i^l P_i'^(1-l) <= e^(l(l-1)h^2) P_i(tilted) by Hoelder; for j, (l-1) P_j'.
    """
    shift = law.moved / law.sigma
    t = gaps / (math.sqrt(2) * law.sigma)
    step = math.sqrt(2) * shift
    tilted = (law.edges[0] + t + (order - 1) * step) / math.sqrt(2)
    i_term = np.exp(min(order * (order - 1) * shift**2, 700.0) + scipy.special.log_ndtr(tilted))
    return np.asarray(
        i_term + (order - 1) * scipy.special.ndtr((law.edges[0] - t + step) / math.sqrt(2))
    )


def _right_tail(law: ThreeWayLaw, gaps: NDArray[np.int64], order: float) -> Table:
    """Bound E right of all cells: reveal whether U >= 0; if so, only i and j count."""
    t = gaps / (math.sqrt(2) * law.sigma)
    after = t - math.sqrt(2) * law.moved / law.sigma
    binary = bernoulli_divergence(_signs(t), _signs(after), order)
    cap = gaussian_cap(order, law.moved / law.sigma)
    rest = scipy.special.ndtr(-RIGHT) * cap if cap < math.inf else math.inf
    return np.asarray(binary + rest)


def _falls(law: ThreeWayLaw, *, teachers: int, classes: int) -> Table:
    """Return the chance of u <= edge for W*, for each n_i + n_j; shape (teachers + 1, edges).

    Pr[W <= x], a product of Phi((x - n_c) / sigma), is log-concave in the counts and falls in
    each: over all counts of sum R it is least at (R, 0, ..., 0), and that W is W*.
    """
    both = np.arange(teachers + 1)[:, np.newaxis]
    best = (both - math.sqrt(2) * law.sigma * law.edges) / 2
    log_below = scipy.special.log_ndtr((best - (teachers - both)) / law.sigma)
    if classes > 3:
        log_below = log_below + (classes - 3) * scipy.special.log_ndtr(best / law.sigma)
    return np.asarray(-np.expm1(log_below))


def _rises(law: ThreeWayLaw, *, teachers: int) -> Table:
    """Return the chance of u > edge if the third class with the most votes is the best other.

    Shape (teachers + 1, edges), one row per its count m: n_i + n_j is at most teachers - m, and
    at most 2 m - 2 where one vote moves (both stay below m; a tie counts as touching the top).
    """
    top = np.arange(teachers + 1)[:, np.newaxis]
    both = np.minimum(teachers - top, 2 * top - (2 if law.moved == 1 else 0))
    mean = (both - 2 * top) / (math.sqrt(2) * law.sigma)
    return np.asarray(scipy.special.ndtr((mean - law.edges) / math.sqrt(2)))


def _mean_of_falling(bounds: Table, chance_below: Table) -> Table:
    """Average the least falling majorant; shape (sums, gaps). All terms are positive."""
    running = np.maximum.accumulate(bounds[:, ::-1], axis=1)[:, ::-1]
    drops = running[:, :-1] - running[:, 1:]
    return np.asarray(chance_below @ drops.T + running[:, -1])


def _mean_of_rising(bounds: Table, chance_above: Table) -> Table:
    """Average the least rising majorant; shape (tops, gaps). All terms are positive."""
    running = np.maximum.accumulate(bounds, axis=1)
    steps = running[:, 1:] - running[:, :-1]
    return np.asarray(chance_above @ steps.T + running[:, 0])


def _largest_apart(apart: Table, teachers: int, least: int) -> Table:
    """Return the largest E over the gaps that leave a third class with m votes on top."""
    largest = np.zeros(teachers + 1)
    for top in range(teachers + 1):
        reach = min(teachers - top, 2 * (top - least), top - least)
        if reach >= 0:
            largest[top] = apart[top, teachers - reach : teachers + reach + 1].max()
    return largest


def _weighted_curvature(log_chances: Table, x: Table) -> Table:
    """Return P (e^x - 1 - x), above the error of the subtraction; infinite where it overflows."""
    near = np.minimum(x, _LARGE)
    value = np.expm1(near) - near + 5e-16 * np.abs(near)
    value *= np.exp(log_chances)
    if x.size and x.max() > _LARGE:
        with np.errstate(over="ignore"):
            far = np.exp(log_chances + np.maximum(x, _LARGE))
        value = np.where(x > _LARGE, far, value)
    return np.asarray(value)


def _signs(t: Table) -> tuple[Table, Table]:
    """Return the logs of Pr[N(t, 1) > 0] and of its complement."""
    return scipy.special.log_ndtr(t), scipy.special.log_ndtr(-t)
