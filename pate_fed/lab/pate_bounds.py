"""The papers' data-dependent bounds: a clear majority of teachers costs less.

Everything here depends on the votes and is itself private: for the operator's eyes only, never a
guarantee, never a reason to stop a run or go on.

The bounds of single queries take memory for queries times orders. The totals do not: they look
at every distinct log q once, in blocks of queries that fit the processor's cache.

The chance q that the noisy winner is not the plurality uses the actual noise (`sigma`). The cost
uses the noise per neighboring change (`sigma / weight`). Dividing sigma by the weight in both
places would make q, and with it the cost, too small.

Source:
    Papernot, Song, Mironov, Raghunathan, Talwar, Erlingsson 2018, Scalable private learning
    with PATE. https://arxiv.org/abs/1802.08908
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from pate_fed.accounting.ranges import positive, renyi_orders, top_counts, vote_counts
from pate_fed.errors import InvalidParameterError

_BLOCK = 1 << 14
"""Values worked on at a time: 128 kB, which stay in cache, and memory does not grow."""

_UNDERFLOW = -600.0
"""Log of a chance below which a plain sum of chances would lose precision or vanish."""


def gnmax_log_q(
    counts: ArrayLike,
    *,
    sigma: float,
    vote_threshold: float | None = None,
    offsets: ArrayLike | None = None,
) -> NDArray[np.float64]:
    """Bound, in logs, the chance of all outcomes but one: the plurality, or "no answer".

    A query is answered from `vote_threshold` votes on, always for None. `offsets` are public
    whole numbers to subtract first.

    Returns:
        Upper bound on log q, at most log(1 - 1/outcomes); shape (queries,).

    Source:
        Papernot et al. 2018, Proposition 7, by a union bound over the other outcomes. A threshold
        is one more option, whose count has no noise.
    """
    votes = without_offsets(vote_counts(counts), offsets)
    scale = math.sqrt(2) * positive("sigma", sigma)
    spread = int(votes.max(initial=0) - votes.min(initial=0))
    # A table where gaps are more than their different values.
    table = scipy.special.ndtr(np.arange(spread + 1) / -scale) if spread < votes.size else None
    log_q = np.empty(len(votes))
    step = max(1, _BLOCK // votes.shape[1])
    for start in range(0, len(votes), step):
        block = slice(start, start + step)
        log_q[block] = _log_q_of_block(votes[block], scale, table)
    outcomes = votes.shape[1]
    if vote_threshold is not None:
        over = _threshold_margin(votes, vote_threshold=vote_threshold, sigma=sigma)
        below = scipy.special.log_ndtr(-over.max(axis=1))
        answers = scipy.special.logsumexp(scipy.special.log_ndtr(over), axis=1)
        log_q = np.minimum(np.logaddexp(log_q, below), answers)
        outcomes += 1
    # The likeliest outcome, the plurality or "no answer", has a chance of 1/outcomes at least.
    return np.asarray(np.minimum(log_q, math.log1p(-1 / outcomes)))


def threshold_log_q(
    maxima: ArrayLike, *, vote_threshold: float, sigma: float
) -> NDArray[np.float64]:
    """Return the log of the chance of the check's less likely outcome."""
    margin = threshold_margin(maxima, vote_threshold=vote_threshold, sigma=sigma)
    return np.asarray(scipy.special.log_ndtr(-np.abs(margin)))


def threshold_margin(
    maxima: ArrayLike, *, vote_threshold: float, sigma: float
) -> NDArray[np.float64]:
    """Return by how many sigmas each maximum exceeds the threshold; shape (queries,)."""
    noise = positive("sigma", sigma)
    return _threshold_margin(top_counts(maxima), vote_threshold=vote_threshold, sigma=noise)


def _threshold_margin(
    counts: NDArray[np.int64] | NDArray[np.float64], *, vote_threshold: float, sigma: float
) -> NDArray[np.float64]:
    if not math.isfinite(vote_threshold):
        raise InvalidParameterError("vote_threshold must be finite", vote_threshold)
    return np.asarray((counts - vote_threshold) / sigma)


def checked_tops(votes: NDArray[np.int64], offsets: ArrayLike | None = None) -> NDArray[np.int64]:
    """Return the largest count of each query, as for `without_offsets`; shape (queries,)."""
    return np.asarray(without_offsets(votes, offsets).max(axis=1))


def without_offsets(
    votes: NDArray[np.int64], offsets: ArrayLike | None = None
) -> NDArray[np.int64]:
    """Return counts without what a student expects of them."""
    if offsets is None:
        return votes
    shares = np.asarray(offsets)
    if shares.shape != votes.shape or not np.issubdtype(shares.dtype, np.integer):
        raise InvalidParameterError(
            f"offsets must be integers of shape {votes.shape}", str(shares.shape)
        )
    return np.asarray(votes - shares.astype(np.int64))


def threshold_rdp(
    maxima: ArrayLike,
    orders: ArrayLike,
    *,
    vote_threshold: float,
    sigma: float,
    weight: float = 1.0,
) -> NDArray[np.float64]:
    """Bound the RDP of the threshold check of each query, given its top count.

    The check is a Gaussian mechanism of sensitivity 1 where GNMax has sqrt(2): the same
    formula with sqrt(2) times the noise.
    """
    log_q = threshold_log_q(maxima, vote_threshold=vote_threshold, sigma=sigma)
    noise = math.sqrt(2) * sigma / positive("weight", weight)
    return rdp_from_log_q(log_q, orders, sigma=noise)


def gnmax_total_rdp(
    counts: ArrayLike,
    orders: ArrayLike,
    *,
    sigma: float,
    weight: float = 1.0,
    shares: ArrayLike | None = None,
    vote_threshold: float | None = None,
    offsets: ArrayLike | None = None,
) -> NDArray[np.float64]:
    """Bound the RDP of the GNMax outcomes of queries together, given their votes.

    Each query counts with its share: the chance that it is answered, for the papers' analysis
    before a run. None is 1 each.
    """
    log_q = gnmax_log_q(counts, sigma=sigma, vote_threshold=vote_threshold, offsets=offsets)
    noise = sigma / positive("weight", weight)
    return total_rdp_from_log_q(log_q, orders, sigma=noise, shares=shares)


def threshold_total_rdp(
    maxima: ArrayLike,
    orders: ArrayLike,
    *,
    vote_threshold: float,
    sigma: float,
    weight: float = 1.0,
) -> NDArray[np.float64]:
    """Sum `threshold_rdp` over the queries, without holding it; shape (orders,)."""
    log_q = threshold_log_q(maxima, vote_threshold=vote_threshold, sigma=sigma)
    noise = math.sqrt(2) * sigma / positive("weight", weight)
    return total_rdp_from_log_q(log_q, orders, sigma=noise)


def total_rdp_from_log_q(
    log_q: ArrayLike, orders: ArrayLike, *, sigma: float, shares: ArrayLike | None = None
) -> NDArray[np.float64]:
    """Sum `rdp_from_log_q` over the queries, each times its share, without holding it."""
    checked, grid = _checked_log_q(log_q), renyi_orders(orders)
    each = np.ones(len(checked)) if shares is None else np.asarray(shares, dtype=np.float64)
    if each.shape != checked.shape or not (each >= 0).all():
        raise InvalidParameterError("shares must be at least 0, one per query", str(each.shape))
    distinct, inverse = np.unique(checked, return_inverse=True)
    together = np.bincount(inverse, weights=each, minlength=len(distinct))
    ascending = np.argsort(grid)
    independent = _independent(grid[ascending], sigma)
    total = np.zeros(len(grid))
    for rows, rdp in _blocks_of_rdp(distinct, grid[ascending], sigma):
        tried = rdp.shape[1]
        total[:tried] += together[rows] @ rdp
        rest = together[rows].sum()
        if rest:  # nothing times infinity is nothing
            total[tried:] += rest * independent[tried:]
    result = np.empty(len(grid))
    result[ascending] = total
    return result


def rdp_from_log_q(log_q: ArrayLike, orders: ArrayLike, *, sigma: float) -> NDArray[np.float64]:
    """Bound the RDP of a mechanism whose likeliest output fails with chance at most q.

    The mechanism must have RDP order / sigma^2 for all data. The data-dependent bound holds where
    all four conditions do:

    1. order <= mu1;  2. mu2 > 1;
    3. q <= e^((mu2-1) eps2) / (mu1/(mu1-1) mu2/(mu2-1))^mu2, below which the bound grows with
       q, so that an upper bound on q may stand for q: without it the result is unsound;
    4. q e^eps2 < 1.

    Elsewhere, and where it is larger, order / sigma^2 is returned.

    Source:
        Papernot et al. 2018, Theorem 6, with mu2 = sigma sqrt(ln 1/q) and mu1 = mu2 + 1.
    """
    checked, grid = _checked_log_q(log_q), renyi_orders(orders)
    ascending = np.argsort(grid)
    independent = _independent(grid, sigma)
    result = np.zeros((len(checked), len(grid)))
    for rows, rdp in _blocks_of_rdp(checked, grid[ascending], sigma):
        result[rows] = independent
        result[rows[:, np.newaxis], ascending[: rdp.shape[1]]] = rdp
    return result


def _independent(orders: NDArray[np.float64], sigma: float) -> NDArray[np.float64]:
    """Return order / sigma^2, infinite where that is beyond doubles."""
    with np.errstate(over="ignore"):
        return orders / _squared(sigma)


def _squared(sigma: float) -> float:
    """Return sigma^2 as a product, which is infinite where a power would raise an error."""
    checked = positive("sigma", sigma)
    # Rounded to the smallest double at most: a cost is infinite then, never a division by 0.
    return max(checked * checked, 5e-324)


def _checked_log_q(log_q: ArrayLike) -> NDArray[np.float64]:
    checked = np.asarray(log_q, dtype=np.float64)
    if checked.ndim != 1 or not (checked <= 0).all():
        raise InvalidParameterError("log q must be at most 0, on one axis", str(checked.shape))
    return checked


def _log_q_of_block(
    votes: NDArray[np.int64], scale: float, table: NDArray[np.float64] | None
) -> NDArray[np.float64]:
    """Return the log of the sum of Phi(-gap / scale) over the losers; shape (queries,)."""
    winners = votes.argmax(axis=1)[:, np.newaxis]
    gaps = np.take_along_axis(votes, winners, axis=1) - votes
    chances = scipy.special.ndtr(-gaps / scale) if table is None else table[gaps]
    np.put_along_axis(chances, winners, 0.0, axis=1)
    with np.errstate(divide="ignore"):
        log_q = np.log(chances.sum(axis=1))
    far = log_q < _UNDERFLOW
    if far.any():
        log_beats = scipy.special.log_ndtr(-gaps[far] / scale)
        np.put_along_axis(log_beats, winners[far], -np.inf, axis=1)
        log_q[far] = scipy.special.logsumexp(log_beats, axis=1)
    return np.asarray(log_q)


def _blocks_of_rdp(
    log_q: NDArray[np.float64], orders: NDArray[np.float64], sigma: float
) -> Iterator[tuple[NDArray[np.intp], NDArray[np.float64]]]:
    """Yield every row whose q is above 0 once, with its RDP at the first of ascending orders.

    At the orders that a block leaves out, none of its rows is better than order / sigma^2.
    """
    independent, steps = _independent(orders, sigma), orders - 1
    mu2 = sigma * np.sqrt(-log_q)
    usable = np.isfinite(log_q) & (mu2 > 1)
    usable[usable] = _is_bound_valid(log_q[usable], mu2[usable], sigma)
    others = np.flatnonzero(~usable & np.isfinite(log_q))
    yield others, np.empty((len(others), 0))
    candidates = np.flatnonzero(usable)
    # Rows of like mu2 have like orders below mu1 = mu2 + 1: the rest of a block is skipped.
    for rows in _blocks(candidates[np.argsort(mu2[candidates])], len(orders)):
        every, tried = np.searchsorted(steps, mu2[rows[[0, -1]]])
        rdp = _data_dependent_rdp(log_q[rows], mu2[rows], steps[:tried], sigma)
        # Condition 1, order <= mu1, and the smaller of both bounds.
        is_beyond = steps[every:tried] >= mu2[rows, np.newaxis]
        np.copyto(rdp[:, every:], np.inf, where=is_beyond)
        yield rows, np.minimum(rdp, independent[:tried], out=rdp)


def _is_bound_valid(
    log_q: NDArray[np.float64], mu2: NDArray[np.float64], sigma: float
) -> NDArray[np.bool_]:
    """Check conditions 3 and 4, which do not depend on the order."""
    epsilon2 = mu2 / _squared(sigma)
    log_ratio = np.log1p(1 / mu2) + np.log1p(1 / (mu2 - 1))
    grows_with_q = log_q <= (mu2 - 1) * epsilon2 - mu2 * log_ratio
    return np.asarray(grows_with_q & (-log_q > epsilon2))


def _data_dependent_rdp(
    log_q: NDArray[np.float64],
    mu2: NDArray[np.float64],
    steps: NDArray[np.float64],
    sigma: float,
) -> NDArray[np.float64]:
    """Return ln((1-q) A^step + q B^step) / step for step = order - 1, all in logs."""
    epsilon1, epsilon2 = (mu2 + 1) / _squared(sigma), mu2 / _squared(sigma)
    log_1mq = log1mexp(log_q)
    log_a = log_1mq - log1mexp((log_q + epsilon2) * (1 - 1 / mu2))
    log_b = epsilon1 - log_q / mu2
    # step log_b may be hundreds: never exponentiated by itself. log(e^x + e^y) is
    # max(x, y) + log(1 + e^-|x-y|), in place, as it takes most of the time.
    smaller, larger = np.multiply.outer(log_a, steps), np.multiply.outer(log_b, steps)
    smaller += log_1mq[:, np.newaxis]
    larger += log_q[:, np.newaxis]
    difference = smaller - larger
    np.maximum(smaller, larger, out=larger)
    np.negative(np.abs(difference, out=difference), out=difference)
    larger += np.log1p(np.exp(difference, out=difference), out=difference)
    larger /= steps
    # Below 1e-16 the two terms may round to less than 0 together.
    return np.asarray(np.maximum(larger, 0.0, out=larger))


def log1mexp(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return log(1 - e^x) for x < 0."""
    with np.errstate(divide="ignore", under="ignore"):
        return np.where(x < -1, np.log1p(-np.exp(x)), np.log(-np.expm1(x)))


def _blocks(rows: NDArray[np.intp], orders: int) -> Iterator[NDArray[np.intp]]:
    step = max(1, _BLOCK // orders)
    for start in range(0, len(rows), step):
        yield rows[start : start + step]
