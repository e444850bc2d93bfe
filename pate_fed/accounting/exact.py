"""The exact RDP of a release on given votes: the smallest number that is true of it.

For every neighbor, that is every histogram in which some votes moved, the law of the noisy winner
is integrated numerically. The largest Renyi divergence is taken. It depends on the votes and is
itself private: for the operator's eyes only, never a guarantee.

The integrals: Pr[k wins] = integral of phi(x - n_k) prod_{j != k} Phi(x - n_j) dx, counts in units
of sigma. The trapezoid rule converges for them faster than any power of its step: a quarter of a
sigma gives 1e-14. A move from class i to class j multiplies the integrand by a factor of x. So the
ratio of the two chances of k is the mean of that factor under the integrand. This keeps its
relative precision for any k, however unlikely.

Direction: D(law on the votes as they are || law on the neighbor), as in the papers' bounds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from pate_fed.accounting.conversion import convert_costly_curve
from pate_fed.accounting.pate_bounds import checked_tops, threshold_margin
from pate_fed.accounting.per_instance import PerInstanceCost
from pate_fed.accounting.ranges import positive, renyi_orders, vote_counts, whole
from pate_fed.errors import InvalidParameterError

EXACT_METHOD: Final = "exact RDP of the release, over all neighbors, converted by CKS"
EXPECTED_METHOD: Final = "exact RDP, labels weighted by the chance of an answer, converted by CKS"

_STEP = 0.25
_REACH = 9.0
_FAR = 300.0
_MOST_SPREAD = 2e4
"""Widest votes integrated, in sigmas: wider ones need a grid that fills memory."""

_BLOCK = 1 << 21
"""Most values held at a time."""


def exact_label_rdp(
    counts: ArrayLike, orders: ArrayLike, *, sigma: float, weight: int = 1
) -> NDArray[np.float64]:
    """Return the exact RDP of the GNMax label of each query, given its votes.

    Args:
        counts: Votes; whole numbers, shape (queries, classes).
        orders: Renyi orders, each above 1; shape (orders,).
        sigma: Standard deviation of the total noise in each count, in votes; above 0.
        weight: Votes that one neighboring change can move, at least 1. Exact for 1; above, the
            largest over moves of all `weight` votes from one class that has any to another, which
            bounds every other move (the divergence is convex in the move).

    Returns:
        RDP in nats; shape (queries, orders).

    Raises:
        InvalidVotesError: no teachers can have cast `counts`.
        InvalidParameterError: another argument is out of its range.
    """
    grid = renyi_orders(orders)
    laws = _NeighborLaws.of(vote_counts(counts), sigma=positive("sigma", sigma), weight=weight)
    return laws.rdp(grid)


def exact_threshold_rdp(
    maxima: ArrayLike,
    orders: ArrayLike,
    *,
    vote_threshold: float,
    sigma1: float,
    weight: float = 1.0,
) -> NDArray[np.float64]:
    """Return the exact RDP of the threshold check of each query, given its top count.

    The neighbor's top count lies up to `weight` higher or lower; the divergence is convex in
    that difference, so the ends are the worst.

    Returns:
        RDP in nats; shape (queries, orders).

    Raises:
        InvalidParameterError: an argument is out of its range.
    """
    grid = renyi_orders(orders)
    margin = threshold_margin(maxima, vote_threshold=vote_threshold, sigma1=sigma1)
    moved = margin + np.array([[1.0], [-1.0]]) * (positive("weight", weight) / sigma1)
    sides = np.array([1.0, -1.0])[:, np.newaxis, np.newaxis]
    here, there = scipy.special.log_ndtr(sides * margin), scipy.special.log_ndtr(sides * moved)
    # A chance that is 0 even in logs (margins above 1e150) adds nothing at any ratio.
    log_ratios = np.subtract(here, there, out=np.zeros(there.shape), where=np.isfinite(here))
    log_chances = np.broadcast_to(here, log_ratios.shape)
    # Axes: queries, neighbors, outcomes.
    return _largest_rdp(log_chances.T, log_ratios.T, np.ones(log_ratios.T.shape), grid)


def exact_epsilon(
    counts: ArrayLike,
    *,
    sigma2: float,
    delta: float,
    vote_threshold: float | None = None,
    sigma1: float | None = None,
    offsets: ArrayLike | None = None,
    answered: ArrayLike | None = None,
    weight: int = 1,
) -> PerInstanceCost:
    """Return the exact per-instance cost of GNMax, Confident-GNMax or Interactive-GNMax. Private.

    Args:
        counts: Votes of the queries that were asked; shape (queries, classes).
        sigma2: Standard deviation of the noise in each count, in votes.
        delta: In (0, 1).
        vote_threshold: Noisy top count from which a query was answered; None for plain GNMax.
        sigma1: Standard deviation of the noise in that check; None for plain GNMax.
        offsets: Public whole numbers to subtract from the counts for the check, of
            Interactive-GNMax; shape (queries, classes). None for none.
        answered: Whether each query was answered; shape (queries,). None for the papers'
            analysis before a run: each label counts with the chance that it is released.
        weight: Votes that one neighboring change can move.

    Raises:
        InvalidVotesError: no teachers can have cast `counts`.
        InvalidParameterError: another argument is out of its range.
    """
    votes = vote_counts(counts)
    shares = np.ones(len(votes)) if answered is None else np.asarray(answered, dtype=np.float64)
    if shares.shape != (len(votes),) or not ((shares == 0) | (shares == 1)).all():
        raise InvalidParameterError(f"answered must be {len(votes)} truth values", shares.shape)
    if (vote_threshold is None) != (sigma1 is None):
        raise InvalidParameterError("vote_threshold and sigma1 must come together", "one of them")
    tops = checked_tops(votes, offsets)
    maxima, asked = np.unique(tops, return_counts=True)
    if vote_threshold is not None and sigma1 is not None and answered is None:
        shares = scipy.special.ndtr(
            threshold_margin(tops, vote_threshold=vote_threshold, sigma1=sigma1)
        )
    laws = _NeighborLaws.of(votes, sigma=positive("sigma2", sigma2), weight=weight)

    def curve(orders: NDArray[np.float64]) -> NDArray[np.float64]:
        rdp = laws.total_rdp(orders, shares)
        if vote_threshold is not None and sigma1 is not None:
            checks = exact_threshold_rdp(
                maxima, orders, vote_threshold=vote_threshold, sigma1=sigma1, weight=weight
            )
            rdp = rdp + asked @ checks
        return rdp

    best = convert_costly_curve(curve, delta=delta, method="cks")
    method = EXACT_METHOD if answered is not None else EXPECTED_METHOD
    return PerInstanceCost(best.epsilon, best.order, method, best.is_at_edge)


@dataclass(frozen=True, slots=True)
class _Group:
    """Laws of histograms that take equally many different values.

    Attributes:
        rows: Which of the distinct histograms; shape (rows,).
        log_chances: Log of the chance of each outcome; shape (rows, moves, outcomes).
        log_ratios: Log of that over the chance on the neighbor; same shape.
        classes: How many classes share the outcome; same shape.
    """

    rows: NDArray[np.intp]
    log_chances: NDArray[np.float64]
    log_ratios: NDArray[np.float64]
    classes: NDArray[np.float64]

    def rdp(self, orders: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the largest RDP over the moves; shape (rows, orders)."""
        return _largest_rdp(self.log_chances, self.log_ratios, self.classes, orders)


@dataclass(frozen=True, slots=True)
class _NeighborLaws:
    """Histograms whose winners' laws, and their neighbors', are integrated when needed.

    Attributes:
        distinct: Histograms, most votes first: the order of the classes does not matter.
        queries: Which of them each query has; shape (queries,).
        sigma: Standard deviation of the noise, in votes.
        weight: Votes that move.
    """

    distinct: NDArray[np.int64]
    queries: NDArray[np.intp]
    sigma: float
    weight: int

    @classmethod
    def of(cls, votes: NDArray[np.int64], *, sigma: float, weight: int) -> _NeighborLaws:
        if whole("weight", weight) < 1:
            raise InvalidParameterError("weight must be at least 1", weight)
        if weight > _MOST_SPREAD * sigma:
            raise InvalidParameterError(
                f"sigma must be at least the votes that move / {_MOST_SPREAD:g}", sigma
            )
        distinct, queries = np.unique(np.sort(votes, axis=1), axis=0, return_inverse=True)
        return cls(distinct[:, ::-1], queries, sigma, weight)

    def rdp(self, orders: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the RDP of each query's label; shape (queries, orders)."""
        distinct = np.empty((len(self.distinct), len(orders)))
        for group in _groups(self.distinct, sigma=self.sigma, shift=self.weight / self.sigma):
            distinct[group.rows] = group.rdp(orders)
        return distinct[self.queries]

    def total_rdp(
        self, orders: NDArray[np.float64], shares: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Return the sum over queries, each times its share; shape (orders,)."""
        totals = np.bincount(self.queries, weights=shares, minlength=len(self.distinct))
        rdp = np.zeros(len(orders))
        for group in _groups(self.distinct, sigma=self.sigma, shift=self.weight / self.sigma):
            rdp += totals[group.rows] @ group.rdp(orders)
        return rdp


def _groups(sorted_votes: NDArray[np.int64], *, sigma: float, shift: float) -> Iterator[_Group]:
    """Merge classes with equally many votes; treat groups of the same size alike."""
    is_first = np.diff(sorted_votes, axis=1, prepend=-1) != 0
    values = is_first.sum(axis=1)
    for kinds in np.unique(values):
        rows = np.flatnonzero(values == kinds)
        levels = sorted_votes[rows][is_first[rows]].reshape(len(rows), kinds)
        starts = np.nonzero(is_first[rows])[1].reshape(len(rows), kinds)
        sizes = np.diff(starts, axis=1, append=sorted_votes.shape[1])
        per_row = int(kinds**2 * (kinds + 2))
        for part in _by_spread(levels, sigma=sigma, values_per_row=per_row):
            shifted = _below_top(levels[part]) / sigma
            is_possible = levels[part] > 0
            yield _group(rows[part], shifted, sizes[part], is_possible, shift=shift)


def _group(
    rows: NDArray[np.intp],
    shifted: NDArray[np.float64],
    sizes: NDArray[np.int64],
    is_possible: NDArray[np.bool_],
    *,
    shift: float,
) -> _Group:
    """Integrate the laws of one block of histograms and of all their neighbors."""
    kinds = shifted.shape[1]
    reach = _REACH + shift
    log_share, log_law = _integrate(shifted, sizes, reach=reach)
    z = _grid(shifted, reach=reach) - shifted[:, :, np.newaxis]
    log_below = scipy.special.log_ndtr(z)
    # The change of the log chance that a class's noisy count is below x, for a vote less (more).
    fewer, more = (
        scipy.special.log_ndtr(z + shift) - log_below,
        scipy.special.log_ndtr(z - shift) - log_below,
    )
    # Axes: rows, source, target, outcome; the outcomes are all kinds, then source and target.
    shape = (len(rows), kinds, kinds, kinds + 2)
    ratios, classes, log_chances = np.empty(shape), np.empty(shape), np.empty(shape)
    for kind in range(kinds):
        ratios[..., kind] = _log_mean(log_share[:, [kind]] + fewer, more)
    ratios[..., kinds] = _log_mean(log_share - shift * z - shift**2 / 2, more)
    target = log_share + shift * z - shift**2 / 2
    ratios[..., kinds + 1] = _log_mean(target, fewer).transpose(0, 2, 1)
    same = np.eye(kinds)
    classes[..., :kinds] = sizes[:, np.newaxis, np.newaxis] - same[:, np.newaxis] - same
    classes[..., kinds:] = 1.0
    log_chances[..., :kinds] = log_law[:, np.newaxis, np.newaxis]
    log_chances[..., kinds] = log_law[:, :, np.newaxis]
    log_chances[..., kinds + 1] = log_law[:, np.newaxis]
    # A move needs a vote to take, and another class to give it to.
    is_move = is_possible[:, :, np.newaxis] & ((same == 0) | (sizes[:, np.newaxis] > 1))
    classes = np.where(is_move[..., np.newaxis], classes, 0.0)
    flat = (len(rows), kinds**2, kinds + 2)
    return _Group(rows, log_chances.reshape(flat), -ratios.reshape(flat), classes.reshape(flat))


def _log_mean(log_weights: NDArray[np.float64], logs: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return log of the sum over x of e^(log_weights[a, x] + logs[b, x]), for every a and b.

    Args:
        log_weights: Shape (rows, kinds, points).
        logs: Same shape.

    Returns:
        Shape (rows, kinds, kinds).
    """
    if max(np.abs(logs).max(initial=0.0), log_weights.max(initial=0.0)) < _FAR:
        return np.asarray(np.log(np.exp(log_weights) @ np.exp(logs).transpose(0, 2, 1)))
    # Noise so small beside the gaps that the factors leave the range of doubles.
    result = np.empty((*logs.shape[:2], logs.shape[1]))
    for target in range(logs.shape[1]):
        terms = log_weights + logs[:, [target]]
        top = terms.max(axis=2, keepdims=True)
        result[..., target] = (np.log(np.exp(terms - top).sum(axis=2, keepdims=True)) + top)[..., 0]
    return result


def _integrate(
    shifted: NDArray[np.float64],
    sizes: NDArray[np.int64],
    *,
    reach: float = _REACH,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Integrate the chance that one class of each kind wins.

    Args:
        shifted: Counts less the top count, in sigmas; shape (rows, kinds).
        sizes: Classes of each kind; same shape.
        reach: How far the grid goes beyond, in sigmas.

    Returns:
        Log of the share of each point of the grid in the integral, shape (rows, kinds, points),
        and log of the integral, shape (rows, kinds).
    """
    z = _grid(shifted, reach=reach) - shifted[:, :, np.newaxis]
    log_below = scipy.special.log_ndtr(z)
    all_below = (sizes[:, :, np.newaxis] * log_below).sum(axis=1, keepdims=True)
    log_terms = all_below - log_below - z**2 / 2
    top = log_terms.max(axis=2, keepdims=True)
    log_totals = np.log(np.exp(log_terms - top).sum(axis=2, keepdims=True)) + top
    log_law = log_totals[:, :, 0] + math.log(_STEP / math.sqrt(2 * math.pi))
    return log_terms - log_totals, log_law


def _grid(shifted: NDArray[np.float64], *, reach: float) -> NDArray[np.float64]:
    """Return points from `reach` below halfway to the farthest class to `reach` above the top.

    Halfway is where a class that is far behind wins, if it does.
    """
    low = shifted.min(initial=0.0) / 2 - reach
    return np.asarray(np.arange(math.floor(low / _STEP), reach / _STEP + 1) * _STEP)


def _by_spread(
    levels: NDArray[np.int64], *, sigma: float, values_per_row: int
) -> Iterator[NDArray[np.intp]]:
    """Yield blocks of rows of similar spread, which share a grid."""
    if not len(levels):
        return
    spread = -_below_top(levels).min(axis=1)
    if spread.max() > _MOST_SPREAD * sigma:
        raise InvalidParameterError(
            f"sigma must be at least the spread of a row of votes / {_MOST_SPREAD:g}", sigma
        )
    rows = np.argsort(spread, kind="stable")
    points = int((spread.max() / sigma / 2 + 2 * _REACH) / _STEP) + 2
    step = max(1, _BLOCK // (points * levels.shape[1] ** 2 + values_per_row))
    for start in range(0, len(rows), step):
        yield rows[start : start + step]


def _below_top(levels: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.asarray(levels - levels.max(axis=1, keepdims=True))


def _largest_rdp(
    log_chances: NDArray[np.float64],
    log_ratios: NDArray[np.float64],
    classes: NDArray[np.float64],
    orders: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Return the largest divergence over the moves; shape (rows, orders).

    With r = ln P/Q the moment less 1 is the sum of P (e^((order-1) r) - 1) + (order-1) (Q - P).
    These terms are at least 0 together, so nothing cancels where the divergence is tiny.
    """
    chances = classes * np.exp(log_chances)
    nearer = np.maximum(log_ratios, -1.0)
    change = np.where(
        log_ratios > -1.0,
        chances * np.expm1(-nearer),
        classes * np.exp(log_chances - log_ratios) - chances,
    ).sum(axis=2)
    with np.errstate(divide="ignore"):
        log_classes = np.log(classes)
    most = log_ratios.max(axis=2)
    rdp = np.empty((len(chances), len(orders)))
    for index, order in enumerate(orders):
        step = order - 1
        grown = np.expm1(np.minimum(step * log_ratios, _FAR))
        excess = (chances * grown).sum(axis=2) + step * change
        divergence = np.log1p(excess) / step
        far = step * most >= _FAR
        if far.any():
            log_terms = log_chances[far] + step * log_ratios[far] + log_classes[far]
            divergence[far] = np.logaddexp.reduce(log_terms, axis=1) / step
        # Moves that no vote can make have no outcomes, hence no divergence.
        rdp[:, index] = np.maximum(divergence.max(axis=1), 0.0)
    return rdp
