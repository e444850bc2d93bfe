"""The exact RDP of a release on given votes: the smallest number that is true of it.

For every neighbor, that is every histogram in which some votes moved, the law of the noisy winner
is integrated numerically. The largest Renyi divergence is taken. It depends on the votes and is
itself private: for the operator's eyes only, never a guarantee.

The integrals: Pr[k wins] = integral of phi(x - n_k) prod_{j != k} Phi(x - n_j) dx, counts in units
of sigma. The trapezoid rule converges for them faster than any power of its step: a quarter of a
sigma gives 1e-14. A move from class i to class j multiplies the integrand by a factor of x. So the
ratio of the two chances of k is the mean of that factor under the integrand. This keeps its
relative precision for any k, however unlikely. A threshold on the same noise cuts the integrals off
below; then Gauss-Legendre nodes, denser near the cut, take the place of the trapezoid rule.

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
from pate_fed.accounting.costs import PerInstanceCost
from pate_fed.accounting.events import ConfidentGaussianMaxEvent, GaussianMaxEvent
from pate_fed.accounting.ranges import in_range, positive, renyi_orders, vote_counts, whole
from pate_fed.errors import InvalidParameterError
from pate_fed.lab.pate_bounds import checked_tops, threshold_margin, without_offsets

EXACT_METHOD: Final = "exact RDP of the release, over all neighbors, converted by CKS"
EXPECTED_METHOD: Final = "exact RDP, labels weighted by the chance of an answer, converted by CKS"

_STEP = 0.25
_REACH = 9.0
_FAR = 300.0
_MOST_SPREAD = 2e4
"""Widest votes integrated, in sigmas: wider ones need a grid that fills memory."""

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(8)
_PANELS = 1.5
"""Panels of the cut grid for each sigma of its length."""

_BLOCK = 1 << 21
"""Most values held at a time."""


def exact_threshold_rdp(
    maxima: ArrayLike,
    orders: ArrayLike,
    *,
    vote_threshold: float,
    sigma: float,
    weight: float = 1.0,
) -> NDArray[np.float64]:
    """Return the exact RDP of the threshold check of each query, given its top count.

    The neighbor's top count lies up to `weight` higher or lower; the divergence is convex in
    that difference, so the ends are the worst.
    """
    grid = renyi_orders(orders)
    margin = threshold_margin(maxima, vote_threshold=vote_threshold, sigma=sigma)
    moved = margin + np.array([[1.0], [-1.0]]) * (positive("weight", weight) / sigma)
    sides = np.array([1.0, -1.0])[:, np.newaxis, np.newaxis]
    here, there = scipy.special.log_ndtr(sides * margin), scipy.special.log_ndtr(sides * moved)
    # A chance that is 0 even in logs (margins above 1e150) adds nothing at any ratio.
    log_ratios = np.subtract(here, there, out=np.zeros(there.shape), where=np.isfinite(here))
    log_chances = np.broadcast_to(here, log_ratios.shape)
    # Axes: queries, neighbors, outcomes.
    return _largest_rdp(log_chances.T, log_ratios.T, np.ones(log_ratios.T.shape), grid)


def exact_epsilon(
    counts: ArrayLike,
    event: GaussianMaxEvent | ConfidentGaussianMaxEvent,
    *,
    delta: float,
    vote_threshold: float | None = None,
    offsets: ArrayLike | None = None,
) -> PerInstanceCost:
    """Return the exact per-instance cost of labels and "no answer"s by Gaussian noise. Private.

    Args:
        event: Says the noise, and the votes that one neighboring change can move, a whole number.
            Of one noise it is that of GNMax, or of the same with a threshold; of two that of
            Confident-GNMax or Interactive-GNMax, whose check has noise of its own: then each label
            counts with the chance that it is released, as in the papers' analysis before a run.
        vote_threshold: Noisy top count from which a query was answered; None for plain GNMax.
        offsets: Public whole numbers to subtract from the counts: for the check alone where it has
            noise of its own, otherwise for the label, too; shape (queries, classes). None for none.
    """
    votes, weight = vote_counts(counts), int(event.weight)
    if weight != event.weight:
        raise InvalidParameterError("weight must be whole for an exact cost", event.weight)
    if isinstance(event, GaussianMaxEvent):
        laws = _NeighborLaws.of(
            votes, sigma=event.sigma, weight=weight, vote_threshold=vote_threshold, offsets=offsets
        )
        every = np.ones(len(votes))
        best = convert_costly_curve(
            lambda orders: laws.total_rdp(orders, every), delta=delta, method="cks"
        )
        return PerInstanceCost(best.epsilon, best.order, EXACT_METHOD, best.is_at_edge)
    if vote_threshold is None:
        raise InvalidParameterError("a check must come with a vote_threshold")
    threshold, check_sigma = vote_threshold, event.sigma1
    tops = checked_tops(votes, offsets)
    maxima, asked = np.unique(tops, return_counts=True)
    margin = threshold_margin(tops, vote_threshold=threshold, sigma=check_sigma)
    shares = np.asarray(scipy.special.ndtr(margin))
    labels = _NeighborLaws.of(votes, sigma=event.sigma2, weight=weight)

    def curve(orders: NDArray[np.float64]) -> NDArray[np.float64]:
        checks = exact_threshold_rdp(
            maxima, orders, vote_threshold=threshold, sigma=check_sigma, weight=weight
        )
        return labels.total_rdp(orders, shares) + asked @ checks

    best = convert_costly_curve(curve, delta=delta, method="cks")
    return PerInstanceCost(best.epsilon, best.order, EXPECTED_METHOD, best.is_at_edge)


@dataclass(frozen=True, slots=True)
class _Group:
    """Laws of these rows of histograms; the arrays have shape (rows, moves, outcomes)."""

    rows: NDArray[np.intp]
    log_chances: NDArray[np.float64]
    log_ratios: NDArray[np.float64]
    classes: NDArray[np.float64]

    def rdp(self, orders: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the largest RDP over the moves; shape (rows, orders)."""
        return _largest_rdp(self.log_chances, self.log_ratios, self.classes, orders)


@dataclass(frozen=True, slots=True)
class _NeighborLaws:
    """Histograms whose outcomes' laws, and their neighbors', are integrated when needed.

    Attributes:
        distinct: Histograms, largest first: the order of the classes does not matter. Twice the
            count, and one more where the class has votes to lose.
        weight: Votes that move. Exact for 1; above, the largest over moves of all of them from one
            class that has any to another, which bounds every other move (the divergence is convex
            in the move).
    """

    distinct: NDArray[np.int64]
    queries: NDArray[np.intp]
    sigma: float
    weight: int
    vote_threshold: float | None

    @classmethod
    def of(
        cls,
        votes: NDArray[np.int64],
        *,
        sigma: float,
        weight: int,
        vote_threshold: float | None = None,
        offsets: ArrayLike | None = None,
    ) -> _NeighborLaws:
        if whole("weight", weight) < 1:
            raise InvalidParameterError("weight must be at least 1", weight)
        if weight > _MOST_SPREAD * sigma:
            raise InvalidParameterError(
                f"sigma must be at least the votes that move / {_MOST_SPREAD:g}", sigma
            )
        if vote_threshold is not None:
            in_range("vote_threshold", vote_threshold)
        keys = 2 * without_offsets(votes, offsets) + (votes > 0)
        distinct, queries = np.unique(np.sort(keys, axis=1), axis=0, return_inverse=True)
        return cls(distinct[:, ::-1], queries, sigma, weight, vote_threshold)

    def total_rdp(
        self, orders: NDArray[np.float64], shares: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Return the sum over queries, each times its share; shape (orders,)."""
        totals = np.bincount(self.queries, weights=shares, minlength=len(self.distinct))
        rdp = np.zeros(len(orders))
        for group in self._groups():
            rdp += totals[group.rows] @ group.rdp(orders)
        return rdp

    def _groups(self) -> Iterator[_Group]:
        """Merge classes with equally many votes; treat groups of the same size alike."""
        is_first = np.diff(self.distinct, axis=1, prepend=np.iinfo(np.int64).min) != 0
        values = is_first.sum(axis=1)
        for kinds in np.unique(values):
            rows = np.flatnonzero(values == kinds)
            keys = self.distinct[rows][is_first[rows]].reshape(len(rows), kinds)
            levels, is_possible = keys >> 1, (keys & 1).astype(np.bool_)
            starts = np.nonzero(is_first[rows])[1].reshape(len(rows), kinds)
            sizes = np.diff(starts, axis=1, append=self.distinct.shape[1])
            per_row = int(kinds**2 * (kinds + 3))
            for part in _by_spread(levels, sigma=self.sigma, values_per_row=per_row):
                tops = levels[part].max(axis=1, keepdims=True)
                yield _group(
                    rows[part],
                    (levels[part] - tops) / self.sigma,
                    sizes[part],
                    is_possible[part],
                    shift=self.weight / self.sigma,
                    cuts=(
                        None
                        if self.vote_threshold is None
                        else (self.vote_threshold - tops[:, 0]) / self.sigma
                    ),
                )


def _group(
    rows: NDArray[np.intp],
    shifted: NDArray[np.float64],
    sizes: NDArray[np.int64],
    is_possible: NDArray[np.bool_],
    *,
    shift: float,
    cuts: NDArray[np.float64] | None,
) -> _Group:
    """Integrate the laws of one block of histograms and of all their neighbors."""
    kinds = shifted.shape[1]
    grid, log_weights = _grid(shifted, cuts, reach=_REACH + shift)
    log_share, log_law = _integrate(shifted, sizes, grid, log_weights)
    z = grid[:, np.newaxis] - shifted[:, :, np.newaxis]
    fewer, more = _log_changes(z, shift)
    # Axes: rows, source, target, outcome; the outcomes are all kinds, then source and target, then
    # "no answer".
    shape = (len(rows), kinds, kinds, kinds + 2 + (cuts is not None))
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
    if cuts is not None:
        lacking = cuts[:, np.newaxis] - shifted
        taken, given = _log_changes(lacking, shift)
        ratios[..., -1] = taken[:, :, np.newaxis] + given[:, np.newaxis]
        silent = (sizes * scipy.special.log_ndtr(lacking)).sum(axis=1)
        log_chances[..., -1] = silent[:, np.newaxis, np.newaxis]
    # A move needs a vote to take, and another class to give it to.
    is_move = is_possible[:, :, np.newaxis] & ((same == 0) | (sizes[:, np.newaxis] > 1))
    classes = np.where(is_move[..., np.newaxis], classes, 0.0)
    flat = (len(rows), kinds**2, shape[-1])
    return _Group(rows, log_chances.reshape(flat), -ratios.reshape(flat), classes.reshape(flat))


def _log_changes(
    z: NDArray[np.float64], shift: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the change of the log chance to be below z: for a count that falls, and that rises."""
    here = scipy.special.log_ndtr(z)
    return scipy.special.log_ndtr(z + shift) - here, scipy.special.log_ndtr(z - shift) - here


def _log_mean(log_weights: NDArray[np.float64], logs: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return log of the sum over x of e^(log_weights[a, x] + logs[b, x]), for every a and b."""
    largest = np.abs(log_weights.max(axis=2)).max(initial=0.0)
    if max(np.abs(logs).max(initial=0.0), largest) < _FAR:
        return np.asarray(np.log(np.exp(log_weights) @ np.exp(logs).transpose(0, 2, 1)))
    # Noise so small beside the gaps, or a cut so far, that the factors leave the range of doubles.
    result = np.empty((*logs.shape[:2], logs.shape[1]))
    for target in range(logs.shape[1]):
        terms = log_weights + logs[:, [target]]
        top = terms.max(axis=2, keepdims=True)
        result[..., target] = (np.log(np.exp(terms - top).sum(axis=2, keepdims=True)) + top)[..., 0]
    return result


def _integrate(
    shifted: NDArray[np.float64],
    sizes: NDArray[np.int64],
    grid: NDArray[np.float64],
    log_weights: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Integrate the chance that one class of each kind wins.

    Returns:
        Log of the share of each point of the grid in the integral, shape (rows, kinds, points),
        and log of the integral, shape (rows, kinds).
    """
    z = grid[:, np.newaxis] - shifted[:, :, np.newaxis]
    log_below = scipy.special.log_ndtr(z)
    all_below = (sizes[:, :, np.newaxis] * log_below).sum(axis=1, keepdims=True)
    log_terms = all_below - log_below - z**2 / 2 + log_weights[:, np.newaxis]
    top = log_terms.max(axis=2, keepdims=True)
    log_totals = np.log(np.exp(log_terms - top).sum(axis=2, keepdims=True)) + top
    return log_terms - log_totals, log_totals[:, :, 0] - math.log(2 * math.pi) / 2


def _grid(
    shifted: NDArray[np.float64], cuts: NDArray[np.float64] | None, *, reach: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return points and the logs of their weights, from the cut, if any, to above the top.

    They begin `reach` below halfway to the farthest class, which is where a class that is far
    behind wins, if it does; and end `reach` above the top.
    """
    low = shifted.min(initial=0.0) / 2 - reach
    if cuts is None:
        points = np.arange(math.floor(low / _STEP), reach / _STEP + 1) * _STEP
        return points[np.newaxis], np.full((1, len(points)), math.log(_STEP))
    begins = np.maximum(cuts, low)[:, np.newaxis]
    lengths = np.maximum(cuts, 0.0)[:, np.newaxis] + reach - begins
    panels = max(1, math.ceil(_PANELS * lengths.max(initial=0.0)))
    places = ((np.arange(panels)[:, np.newaxis] + (_NODES + 1) / 2) / panels).ravel()
    widths = np.tile(_WEIGHTS / (2 * panels), panels)
    # By squares of the places: the integrand of a class far below the cut falls fast from it.
    return begins + lengths * places**2, np.log(lengths) + np.log(2 * places * widths)


def _by_spread(
    levels: NDArray[np.int64], *, sigma: float, values_per_row: int
) -> Iterator[NDArray[np.intp]]:
    """Yield blocks of rows of similar spread, which share a grid."""
    if not len(levels):
        return
    spread = levels.max(axis=1) - levels.min(axis=1)
    if spread.max() > _MOST_SPREAD * sigma:
        raise InvalidParameterError(
            f"sigma must be at least the spread of a row of votes / {_MOST_SPREAD:g}", sigma
        )
    rows = np.argsort(spread, kind="stable")
    points = int((spread.max() / sigma / 2 + 2 * _REACH) * _PANELS * len(_NODES)) + 2
    step = max(1, _BLOCK // (points * levels.shape[1] ** 2 + values_per_row))
    for start in range(0, len(rows), step):
        yield rows[start : start + step]


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
