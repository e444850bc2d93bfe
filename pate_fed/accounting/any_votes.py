"""The kinds of pairs of a joint price for any votes: nobody has to send valid ones.

A check compares a number that one change moves by at most k votes, for all votes; a
label costs at most its label-level supremum S (`label_bounds`). So every pair of neighbors has

    Pr[refusal]^l Pr'[refusal]^(1-l) = Q(t)^l Q(t+d)^(1-l),
    sum over labels of Pr^l Pr'^(1-l) <= P(t)^l P(t+d)^(1-l) e^((l-1) S),

with P the normal distribution function, Q = 1 - P, a real t, and d at most k / sigma1 in size. The
sum of both with any factors is convex in d: only d = k / sigma1 and d = -k / sigma1 matter, and the
second is the first with P and Q exchanged. Both summands are computed on a grid of t. Between two
points the sum exceeds its larger end by at most width^2 / 8 times the largest fall of its slope:
at most 1 for the first summand, 1 + (l-1) min(1, 0.3 d) for the second, each times that summand.
docs/explanation/joint-price.md, Theorem E, has the proof.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
import scipy
from numpy.typing import NDArray

from pate_fed.accounting.label_bounds import label_rdp, threshold_bit_rdp
from pate_fed.accounting.label_divergence import LOG_ERROR, SAFETY
from pate_fed.accounting.ranges import positive, whole
from pate_fed.errors import InvalidParameterError

Table = NDArray[np.float64]

LARGEST_EXPONENT: Final = 40.0
"""Most of order (order - 1) d^2 and of (order - 1) S; beyond it they are charged apart."""

HAZARD_BEND: Final = 0.3
"""More than the largest second derivative, 0.2954, of the hazard phi / Q."""

SMALLEST_SHIFT: Final = 1e-4
"""Smallest k / sigma1 that cells are made for, a million or so: they are no wider than it."""

_TAIL = 10.0
_CELL, _FINEST, _COARSEST = 0.02, 1e-3, 0.05
"""Width of a cell by sqrt(order (order - 1)) d, and its limits: a price is 0.1 % too high."""


@dataclass(frozen=True, slots=True)
class AnyVotesSetting:
    """The public facts from which the joint price for any votes follows; checked.

    Attributes:
        classes: Number of classes, at least 2; two have a smaller price than more.
        sigma1: Standard deviation of the noise in the check, in votes; above 0.
        sigma2: Standard deviation of the noise in each count, in votes; above 0.
        weight: Votes that one neighboring change can move, at least 1.

    Raises:
        InvalidParameterError: an argument is out of its range.
    """

    classes: int
    sigma1: float
    sigma2: float
    weight: int = 1

    def __post_init__(self) -> None:
        for name, least in (("classes", 2), ("weight", 1)):
            if whole(name, getattr(self, name)) < least:
                raise InvalidParameterError(f"{name} must be at least {least}", getattr(self, name))
        positive("sigma1", self.sigma1)
        positive("sigma2", self.sigma2)


@dataclass(frozen=True, slots=True, eq=False)
class AnyVotesKinds:
    """Bounds that cover every pair of neighbors at one order.

    Attributes:
        log_refusal: ln of the first summand; shape (kinds,).
        log_answer: ln of the second one, for all labels together; shape (kinds,).
        excess: Largest sum of both, less 1.
    """

    log_refusal: Table
    log_answer: Table
    excess: float


def any_votes_kinds(setting: AnyVotesSetting, order: float) -> AnyVotesKinds | None:
    """Return bounds over all votes and all neighbors; None where they are not known."""
    # Less noise never costs less, so the price at 10,000 votes of noise holds for more noise.
    shift = max(setting.weight / setting.sigma1, SMALLEST_SHIFT)
    exponent = order * (order - 1) * shift * shift
    label = (order - 1) * label_price(setting, order) * SAFETY
    if not (exponent <= LARGEST_EXPONENT and label <= LARGEST_EXPONENT):
        return None
    width, steps = _cells(order, shift)
    log_p, log_q = _log_chances(width, steps, math.ceil((order - 1) * shift))
    at, later = slice(0, len(log_p) - steps), slice(steps, None)
    falls = (order - 1) * (log_q[at] - log_q[later])
    rises = (order - 1) * (log_p[at] - log_p[later])
    error = LOG_ERROR * (1 - 2 * order * (log_p[at] + log_q[at]))
    p, q = np.exp(log_p[at]), np.exp(log_q[at])
    stays, passes = log_q[at] + falls + error, log_p[at] + rises + error
    # Between the edges of a cell: Q falls, P and both ratios rise.
    bend = math.log(width**2 / 8)
    curved = math.log1p((order - 1) * min(1.0, HAZARD_BEND * shift))
    more_stays = _around(bend + log_q[at][:-1] + (falls + error)[1:])
    more_passes = _around(bend + curved + log_p[at][1:] + (rises + error)[1:])
    more = error + np.exp(more_stays), error + np.exp(more_passes)
    gained = math.exp(label)
    over = max(
        (q * np.expm1(falls) + more[0] + p * np.expm1(rises + label) + gained * more[1]).max(),
        (p * np.expm1(rises) + more[1] + q * np.expm1(falls + label) + gained * more[0]).max(),
    )
    stays, passes = np.logaddexp(stays, more_stays), np.logaddexp(passes, more_passes)
    # Left of all cells a refusal's ratio is at most that of the edge.
    edge = float(falls[0]) + 1e-12
    tail_refusals, tail_answers = _tails(order, shift, label, edge=edge)
    sums = np.exp(tail_refusals) + np.exp(tail_answers) - 1
    return AnyVotesKinds(
        np.concatenate([tail_refusals, stays, passes]),
        np.concatenate([tail_answers, passes + label, stays + label]),
        float(max(over, sums.max())),
    )


def _around(cells: Table) -> Table:
    """Return the larger value of both cells at each edge."""
    return np.asarray(np.maximum(np.append(cells, -np.inf), np.insert(cells, 0, -np.inf)))


def check_price(setting: AnyVotesSetting, order: float) -> float:
    """Return the RDP of a check alone."""
    return float(threshold_bit_rdp([order], sigma1=setting.sigma1, weight=setting.weight)[0])


def label_price(setting: AnyVotesSetting, order: float) -> float:
    """Return the RDP of a label alone."""
    if setting.classes > 2:
        return float(label_rdp([order], sigma=setting.sigma2, weight=setting.weight)[0])
    # Of two classes one bit is seen: their gap moves by 2 k, with noise of sqrt(2) sigma2.
    sigma = setting.sigma2 / math.sqrt(2)
    return float(threshold_bit_rdp([order], sigma1=sigma, weight=setting.weight)[0])


def _cells(order: float, shift: float) -> tuple[float, int]:
    """Return the width of a cell and how many of them make the shift."""
    wanted = min(max(_CELL * math.sqrt(order * (order - 1)) * shift, _FINEST), _COARSEST)
    steps = max(1, math.ceil(shift / wanted))
    return shift / steps, steps


@lru_cache(maxsize=4)
def _log_chances(width: float, steps: int, further: int) -> tuple[Table, Table]:
    """Return ln P and ln Q on the edges of cells that reach beyond `_TAIL` on both sides."""
    half = math.ceil((_TAIL + further) / width)
    edges = np.arange(-half, half + steps + 1) * width
    log_p, log_q = (
        np.asarray(scipy.special.log_ndtr(edges)),
        np.asarray(scipy.special.log_ndtr(-edges)),
    )
    return log_p, log_q


def _tails(order: float, shift: float, label: float, *, edge: float) -> tuple[Table, Table]:
    """Bound both summands left of all cells and right of them.

    By Hoelder Q^l Q'^(1-l) <= e^(l (l-1) d^2 / 2) Q(t - (l-1) d), likewise for P; both rise or fall
    in t. The other factor is at most its chance's ratio at the edge, or 1.
    """
    tilt = (order - 1) * shift
    half_exponent = order * (order - 1) * shift * shift / 2
    reach = _TAIL + math.ceil(tilt)
    small = half_exponent + float(scipy.special.log_ndtr(-(reach - tilt))) + 1e-9
    # Right: refusals are rare, P / P' is at most 1. Left: answers are rare.
    stays, passes = np.array([small, edge]), np.array([0.0, small])
    return np.concatenate([stays, passes]), np.concatenate([passes, stays]) + label
