"""How likely each class has the largest noisy count, and how that changes with the votes.

For a density f and a distribution function F of the noise, class k wins with the chance

    q_k = int f(a - H_k) prod_{i != k} F(a - H_i) da.

Both the chance and its derivatives are sums over one grid that all classes share. Everything is
computed in log space: beside a clear majority a class has chances far below 1e-300. The matrix of
derivatives is symmetric, and its rows add up to 0: adding the same number to all counts changes no
chance.

With a threshold on the same noisy counts the integrals begin there, and prod F(T - H_i) is left for
"no answer". The shift of all counts then changes chances.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal

import numpy as np
import scipy
from numpy.typing import NDArray

from pate_fed.accounting.ranges import positive
from pate_fed.errors import InvalidParameterError

Law = Literal["gaussian", "laplace"]
"""The law of the noise in each count."""

_REACH: Final = 9.0
"""Standard deviations of Gaussian noise on the grid: 1e-18 lies outside."""

_STEP: Final = 0.4
"""Step of the trapezoid rule, in sigmas: a bump of width w has the error exp(-2 (pi w / step)^2).
"""

_LAPLACE_REACH: Final = 40.0
"""Scales of Laplace noise on the grid: 1e-17 lies outside."""

_LAPLACE_PANELS: Final = 40
_NODES: Final = 8
"""Gauss-Legendre nodes of each panel; those of Laplace noise end at every kink of the integrand."""

_LOG_SQRT_TWO_PI: Final = 0.5 * math.log(2 * math.pi)


@dataclass(frozen=True, slots=True)
class Noise:
    """The noise that is added to each count before the largest is released."""

    sigma: float
    law: Law = "gaussian"

    def __post_init__(self) -> None:
        positive("sigma", self.sigma)
        if self.law not in ("gaussian", "laplace"):
            raise InvalidParameterError("the noise must be gaussian or laplace", repr(self.law))

    def draw(self, rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float64]:
        """Draw noise of this law, for a simulated attack."""
        if self.law == "laplace":
            return rng.laplace(0.0, self.sigma / math.sqrt(2), shape)
        return rng.normal(0.0, self.sigma, shape)


def win_chances(votes: NDArray[np.float64], noise: Noise) -> NDArray[np.float64]:
    """Return how likely each class wins at counts, which need not be whole; (classes,)."""
    return chances_and_slopes(votes, noise)[0]


def chances_and_slopes(
    votes: NDArray[np.float64], noise: Noise
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return how likely each class wins, and the derivatives by the counts.

    Returns:
        Chances, shape (classes,); and the derivative of chance k by count j, shape (classes,
        classes), symmetric.
    """
    logs, slopes = log_outcomes(votes, noise)
    chances = np.exp(logs)
    return chances / chances.sum(), chances[:, np.newaxis] * slopes


def log_outcomes(
    votes: NDArray[np.float64], noise: Noise, vote_threshold: float | None = None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the log of each outcome's chance, and its derivatives by the counts.

    `vote_threshold` is None where there always is an answer.

    Returns:
        Logs of the chances of the classes, and of "no answer" where there is a threshold; shape
        (outcomes,). The derivative of log k by count j; shape (outcomes, classes).
    """
    scale, grid = _GRIDS[noise.law]
    unit = noise.sigma * scale
    scaled = np.asarray(votes, dtype=np.float64) / unit
    cut = None if vote_threshold is None else vote_threshold / unit
    places, log_weights, log_density, log_below = grid(scaled, cut)
    away = places[:, np.newaxis] - scaled
    below = log_below(away)
    # f / F of each class: the integrand of k is prod F times this; of the pair k, j both of them.
    ratio = log_density(away) - below
    terms = ratio + below.sum(axis=1, keepdims=True) + log_weights[:, np.newaxis]
    top = terms.max(axis=0)
    logs = top + np.log(np.exp(terms - top).sum(axis=0))
    shares = np.exp(terms - logs)
    slopes = -(shares.T @ np.exp(ratio))
    if cut is None:  # what a class gains the others lose
        np.fill_diagonal(slopes, 0.0)
        np.fill_diagonal(slopes, -slopes.sum(axis=1))
        return logs, slopes / unit
    np.fill_diagonal(slopes, (shares * _RISES[noise.law](away)).sum(axis=0))
    lacking = cut - scaled
    behind = log_below(lacking)
    falls = np.exp(log_density(lacking) - behind)
    return np.append(logs, behind.sum()), np.vstack([slopes, -falls]) / unit


_LogOf = Callable[[NDArray[np.float64]], NDArray[np.float64]]
_Grid = tuple[NDArray[np.float64], NDArray[np.float64], _LogOf, _LogOf]


def _gaussian_grid(scaled: NDArray[np.float64], cut: float | None) -> _Grid:
    """Return places and ln weights around the largest count: the largest noisy one is near it."""
    top, spread = scaled.max(), math.sqrt(2 * math.log(len(scaled)))
    if cut is None:
        places = np.arange(top - _REACH, top + _REACH + spread, _STEP)
        log_weights = np.full(len(places), math.log(_STEP))
        return places, log_weights, _log_normal, scipy.special.log_ndtr
    low = max(top - _REACH, cut)
    length = max(top, cut) + _REACH + spread - low
    nodes, weights = _legendre()
    panels = math.ceil(length)
    # By squares: beyond a cut that is far above a count, its density falls fast.
    parts = ((np.arange(panels)[:, np.newaxis] + (1 + nodes) / 2) / panels).ravel()
    widths = np.tile(weights / (2 * panels), panels)
    log_weights = np.log(2 * length * parts * widths)
    return low + length * parts**2, log_weights, _log_normal, scipy.special.log_ndtr


def _log_normal(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return -0.5 * values * values - _LOG_SQRT_TWO_PI


def _laplace_grid(scaled: NDArray[np.float64], cut: float | None) -> _Grid:
    top = scaled.max()
    low, high = top - _LAPLACE_REACH, top + _LAPLACE_REACH
    if cut is not None:
        low, high = max(low, cut), max(top, cut) + _LAPLACE_REACH
    ends = np.linspace(low, high, _LAPLACE_PANELS + 1)
    kinks = scaled[scaled > ends[0]]
    ends = np.unique(np.concatenate([ends, kinks]))
    nodes, weights = _legendre()
    halves = 0.5 * np.diff(ends)[:, np.newaxis]
    places = (ends[:-1, np.newaxis] + halves * (1 + nodes)).ravel()
    return places, np.log(halves * weights).ravel(), _log_laplace, _log_laplace_below


@lru_cache(maxsize=1)
def _legendre() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    return np.polynomial.legendre.leggauss(_NODES)


def _log_laplace(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return -np.abs(values) - math.log(2)


def _log_laplace_below(values: NDArray[np.float64]) -> NDArray[np.float64]:
    tail = -np.abs(values) - math.log(2)
    return np.where(values < 0, tail, np.log1p(-np.exp(tail)))


_GRIDS: Final[dict[str, tuple[float, Callable[[NDArray[np.float64], float | None], _Grid]]]] = {
    "gaussian": (1.0, _gaussian_grid),
    "laplace": (1 / math.sqrt(2), _laplace_grid),
}

_RISES: Final[dict[str, Callable[[NDArray[np.float64]], NDArray[np.float64]]]] = {
    "gaussian": lambda away: away,
    "laplace": np.sign,
}
"""How fast the log density at a place rises with the count, which is that far below."""
