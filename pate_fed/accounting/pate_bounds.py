"""The papers' data-dependent bounds: a clear majority of teachers costs less.

Everything here depends on the votes and is itself private: for the operator's eyes only,
never a guarantee, never what decides whether a run goes on.

The chance q that the noisy winner is not the plurality is computed with the noise as it is
(`sigma`), the cost with the noise as one neighboring change sees it (`sigma / weight`): dividing
sigma by the weight in both places would make q, and with it the cost, too small.

Source:
    Papernot, Song, Mironov, Raghunathan, Talwar, Erlingsson 2018, Scalable private learning
    with PATE. https://arxiv.org/abs/1802.08908
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import log_ndtr, logsumexp

from pate_fed.accounting.ranges import positive, renyi_orders, vote_counts
from pate_fed.errors import InvalidParameterError

_BLOCK = 1 << 20
"""Most values held at a time, so that memory does not grow with queries times orders."""


def gnmax_log_q(counts: ArrayLike, *, sigma: float) -> NDArray[np.float64]:
    """Bound, in logs, the chance that the noisy winner is not the plurality.

    Args:
        counts: Votes; whole numbers, shape (queries, classes), at least 2 classes.
        sigma: Standard deviation of the total noise in each count, in votes; above 0.

    Returns:
        Upper bound on log q, at most log(1 - 1/classes); shape (queries,).

    Raises:
        InvalidVotesError: `counts` is not what teachers can have cast.
        InvalidParameterError: `sigma` is not above 0.

    Source:
        Papernot et al. 2018, Proposition 7, by a union bound over the other classes.
    """
    votes = vote_counts(counts)
    positive("sigma", sigma)
    winners = votes.argmax(axis=1)[:, np.newaxis]
    gaps = np.take_along_axis(votes, winners, axis=1) - votes
    log_beats = log_ndtr(-gaps / (math.sqrt(2) * sigma))
    np.put_along_axis(log_beats, winners, -np.inf, axis=1)
    log_q = logsumexp(log_beats, axis=1)
    # The plurality wins with probability 1/classes at least.
    return np.asarray(np.minimum(log_q, math.log1p(-1 / votes.shape[1])))


def threshold_log_q(
    maxima: ArrayLike, *, vote_threshold: float, sigma1: float
) -> NDArray[np.float64]:
    """Return the log of the chance of the check's less likely outcome.

    Args:
        maxima: Largest count of each query, in votes; shape (queries,).
        vote_threshold: Noisy top count from which a query is answered.
        sigma1: Standard deviation of the noise in the check, in votes; above 0.

    Raises:
        InvalidParameterError: `sigma1` is not above 0, or the threshold is not finite.
    """
    margin = threshold_margin(maxima, vote_threshold=vote_threshold, sigma1=sigma1)
    return np.asarray(log_ndtr(-np.abs(margin)))


def threshold_margin(
    maxima: ArrayLike, *, vote_threshold: float, sigma1: float
) -> NDArray[np.float64]:
    """Return by how many sigma1 each maximum exceeds the threshold; shape (queries,)."""
    if not math.isfinite(vote_threshold):
        raise InvalidParameterError("vote_threshold must be finite", vote_threshold)
    tops = np.asarray(maxima, dtype=np.float64)
    return np.asarray((tops - vote_threshold) / positive("sigma1", sigma1))


def gnmax_rdp(
    counts: ArrayLike, orders: ArrayLike, *, sigma: float, weight: float = 1.0
) -> NDArray[np.float64]:
    """Bound the RDP of the GNMax label of each query, given its votes.

    Args:
        counts: Votes; whole numbers, shape (queries, classes).
        orders: Renyi orders, each above 1; shape (orders,).
        sigma: Standard deviation of the total noise in each count, in votes; above 0.
        weight: Votes that one neighboring change can move.

    Returns:
        RDP in nats, at most order weight^2 / sigma^2; shape (queries, orders).

    Raises:
        InvalidVotesError: `counts` is not what teachers can have cast.
        InvalidParameterError: another argument is out of its range.
    """
    log_q = gnmax_log_q(counts, sigma=sigma)
    return rdp_from_log_q(log_q, orders, sigma=sigma / positive("weight", weight))


def threshold_rdp(
    maxima: ArrayLike,
    orders: ArrayLike,
    *,
    vote_threshold: float,
    sigma1: float,
    weight: float = 1.0,
) -> NDArray[np.float64]:
    """Bound the RDP of the threshold check of each query, given its top count.

    The check is a Gaussian mechanism of sensitivity 1 where GNMax has sqrt(2): the same
    formula with sigma = sqrt(2) sigma1.

    Returns:
        RDP in nats, at most order weight^2 / (2 sigma1^2); shape (queries, orders).

    Raises:
        InvalidParameterError: an argument is out of its range.
    """
    log_q = threshold_log_q(maxima, vote_threshold=vote_threshold, sigma1=sigma1)
    sigma = math.sqrt(2) * sigma1 / positive("weight", weight)
    return rdp_from_log_q(log_q, orders, sigma=sigma)


def rdp_from_log_q(log_q: ArrayLike, orders: ArrayLike, *, sigma: float) -> NDArray[np.float64]:
    """Bound the RDP of a mechanism whose likeliest output fails with chance at most q.

    The mechanism must have RDP order / sigma^2 whatever the data. The data-dependent bound
    holds where all four conditions do:

    1. order <= mu1;  2. mu2 > 1;
    3. q <= e^((mu2-1) eps2) / (mu1/(mu1-1) mu2/(mu2-1))^mu2, below which the bound grows with
       q, so that an upper bound on q may stand for q: without it the result is unsound;
    4. q e^eps2 < 1.

    Elsewhere, and where it is larger, order / sigma^2 is returned.

    Args:
        log_q: Upper bounds on log q, at most 0, minus infinity for q = 0; shape (queries,).
        orders: Renyi orders, each above 1; shape (orders,).
        sigma: Above 0.

    Returns:
        RDP in nats; shape (queries, orders).

    Raises:
        InvalidParameterError: an argument is out of its range.

    Source:
        Papernot et al. 2018, Theorem 6, with mu2 = sigma sqrt(ln 1/q) and mu1 = mu2 + 1.
    """
    checked, grid = np.asarray(log_q, dtype=np.float64), renyi_orders(orders)
    if checked.ndim != 1 or not (checked <= 0).all():
        raise InvalidParameterError("log q must be at most 0, on one axis", checked.shape)
    independent = grid / positive("sigma", sigma) ** 2
    rdp = np.tile(independent, (len(checked), 1))
    mu2 = sigma * np.sqrt(-checked)
    usable = np.isfinite(checked) & (mu2 > 1)
    usable[usable] = _is_bound_valid(checked[usable], mu2[usable], sigma)
    for rows in _blocks(np.flatnonzero(usable), len(grid)):
        bound = _data_dependent_rdp(checked[rows], mu2[rows], grid, sigma)
        within_mu1 = grid < mu2[rows, np.newaxis] + 1
        rdp[rows] = np.where(within_mu1, np.minimum(bound, independent), independent)
    rdp[np.isneginf(checked)] = 0.0
    return rdp


def _is_bound_valid(
    log_q: NDArray[np.float64], mu2: NDArray[np.float64], sigma: float
) -> NDArray[np.bool_]:
    """Check conditions 3 and 4, which do not depend on the order."""
    epsilon2 = mu2 / sigma**2
    log_ratio = np.log1p(1 / mu2) + np.log1p(1 / (mu2 - 1))
    grows_with_q = log_q <= (mu2 - 1) * epsilon2 - mu2 * log_ratio
    return np.asarray(grows_with_q & (-log_q > epsilon2))


def _data_dependent_rdp(
    log_q: NDArray[np.float64],
    mu2: NDArray[np.float64],
    orders: NDArray[np.float64],
    sigma: float,
) -> NDArray[np.float64]:
    """Return ln((1-q) A^(order-1) + q B^(order-1)) / (order-1), all in logs."""
    log_q, mu2 = log_q[:, np.newaxis], mu2[:, np.newaxis]
    epsilon1, epsilon2 = (mu2 + 1) / sigma**2, mu2 / sigma**2
    log_1mq = _log1mexp(log_q)
    log_a = log_1mq - _log1mexp((log_q + epsilon2) * (1 - 1 / mu2))
    log_b = epsilon1 - log_q / mu2
    # (order-1) log_b may be hundreds: never exponentiated by itself.
    log_moment = np.logaddexp(log_1mq + (orders - 1) * log_a, log_q + (orders - 1) * log_b)
    # Below 1e-16 the two terms may round to less than 0 together.
    return np.asarray(np.maximum(log_moment / (orders - 1), 0.0))


def _log1mexp(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return log(1 - e^x) for x < 0."""
    with np.errstate(divide="ignore", under="ignore"):
        return np.where(x < -1, np.log1p(-np.exp(x)), np.log(-np.expm1(x)))


def _blocks(rows: NDArray[np.intp], orders: int) -> Iterator[NDArray[np.intp]]:
    step = max(1, _BLOCK // orders)
    for start in range(0, len(rows), step):
        yield rows[start : start + step]
