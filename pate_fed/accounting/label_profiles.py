"""Privacy profiles of a label: how well its outcome tells two neighboring votes apart.

The privacy profile of two laws P and Q is the sum of (P - gamma Q)_+ over the outcomes, for every
gamma >= 0; every divergence follows from it. Here it stands without its trivial part:

    G(gamma)  =  sum (P - gamma Q)_+ - (1 - gamma)_+  >=  0,

which is the sum of (gamma Q - P)_+ as well. For a convex U on z >= 0 with U(0) = 0, curvature nu,

    sum of Q U(z P/Q)  =  U(z) + integral of z G(x/z) nu(dx).

So a larger G never gives a smaller value: G may be bounded at each gamma apart, for many votes at
once. `bellman` composes runs with it.

Laws and notation are those of `label_divergence`: i loses a vote to j, W is the best other class.
On a cell of u, at fixed t, Q_i and Q_j rise in u and Q_o falls; the logs of the ratios P/Q of i and
j fall in size, that of "other" is monotone. So an outcome's part is at most the one of its largest
Q with its outermost ratio. The parts of i and j are averaged over W first: a label does not tell
W. Whatever W is, G is at most that of the noisy counts: of two Gaussians.
docs/explanation/joint-price.md has the proofs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import scipy
from numpy.typing import NDArray

from pate_fed.accounting.label_divergence import LOG_P_ERROR, RIGHT, SAFETY, ThreeWayLaw

Table = NDArray[np.float64]

_EVERY: Final = 5
"""Cells of u are so many times wider than those of the law."""

_KEPT: Final = 160
"""Ranges of gaps whose cells are kept: half a megabyte each."""

_PIECES: Final = 6
"""Ranges of the votes for other classes that are bounded apart."""

_ROUNDING: Final = 1e-15
"""Largest error of a difference of two chances, by the larger one."""

_BELOW_FLOOR: Final = 1e-90
"""More than what chances below the floor of `label_divergence` can count for."""


def gaussian_profile(log_gammas: Table, shift: float) -> Table:
    """Return G of two Gaussians of standard deviation 1, `shift` apart.

    Args:
        log_gammas: ln gamma; shape (gammas,).
        shift: Above 0.
    """
    x = np.abs(log_gammas)
    outer = scipy.special.ndtr(shift / 2 - x / shift) - np.exp(
        x + scipy.special.log_ndtr(-shift / 2 - x / shift)
    )
    # G is the same for the exchanged pair, so G(1/gamma) = G(gamma) / gamma.
    return np.asarray(np.maximum(outer, 0.0) * np.exp(np.minimum(log_gammas, 0.0)) * SAFETY)


def coin_profiles(log_gammas: Table, starts: Table, ends: Table, shift: float) -> Table:
    """Return the largest G of Phi(t) against Phi(t - shift) over each range of t.

    Args:
        log_gammas: ln gamma; shape (gammas,).
        starts: Least t; shape (ranges,).
        ends: Largest t, at least the least one; same shape.
        shift: Above 0.

    Returns:
        Shape (ranges, gammas).
    """
    return np.asarray(np.maximum(signed_coins(log_gammas, starts, ends, shift), 0.0) * SAFETY)


def signed_coins(log_gammas: Table, starts: Table, ends: Table, shift: float) -> Table:
    """Return the same of either sign: Phi(t) - gamma Phi(t - shift), or that of tails."""
    # Heads are likelier before: (Phi(t) - gamma Phi(t - shift))_+ where gamma >= 1. It is largest
    # where both densities agree, phi(t) = gamma phi(t - shift); tails likewise.
    best = shift / 2 - np.abs(log_gammas) / shift
    above = log_gammas >= 0
    at = np.where(above, best, shift - best)
    t = np.clip(at, starts[:, np.newaxis], ends[:, np.newaxis])
    sign = np.where(above, 1.0, -1.0)
    before, after = (
        np.exp(scipy.special.log_ndtr(sign * t)),
        np.exp(scipy.special.log_ndtr(sign * (t - shift)) + log_gammas),
    )
    return np.asarray(sign * (before - after) + _ROUNDING * before)


@dataclass(frozen=True, slots=True, eq=False)
class LabelProfiles:
    """Bounds on G where three or more classes compete.

    Attributes:
        law: Of the three outcomes.
        log_gammas: ln gamma; shape (gammas,).
        teachers: Bound on the votes of a query.
        classes: Number of classes, exactly.
    """

    law: ThreeWayLaw
    log_gammas: Table
    teachers: int
    classes: int
    _kept: dict[tuple[int, int], tuple[Table, Table]] = field(default_factory=dict)
    _kept_points: dict[int, Table] = field(default_factory=dict)
    _gaussian: Table = field(init=False)

    def __post_init__(self) -> None:
        shift = math.sqrt(2) * self.law.moved / self.law.sigma
        object.__setattr__(self, "_gaussian", gaussian_profile(self.log_gammas, shift))

    def touching(self, first: int, last: int, least: int, most: int) -> Table:
        """Bound G where i or j has the most votes.

        Args:
            first: Least n_i - n_j.
            last: Largest n_i - n_j.
            least: Least n_i + n_j.
            most: Largest n_i + n_j.

        Returns:
            Shape (gammas,).
        """
        edges, sigma = self._edges, self.law.sigma
        low = (least - math.sqrt(2) * sigma * edges) / 2
        high = (most - math.sqrt(2) * sigma * edges) / 2
        # Votes for the others, from fewer to more: W is largest if one class has them all, and
        # smallest if all have the same.
        steps = np.linspace(0, self.teachers - least, _PIECES + 1)[:, np.newaxis]
        fewer, more = steps[:-1], steps[1:]
        largest = -np.expm1(
            scipy.special.log_ndtr((low - more) / sigma)
            + (self.classes - 3) * scipy.special.log_ndtr(low / sigma)
        )
        each = fewer / (self.classes - 2)
        smallest = -np.expm1((self.classes - 2) * scipy.special.log_ndtr((high - each) / sigma))
        pair, other = (
            _mean(part, largest * SAFETY, smallest / SAFETY) for part in self._cells(first, last)
        )
        bounds = (np.maximum(pair, 0.0) + other).max(axis=0)
        return np.asarray(np.minimum(bounds * SAFETY, self._gaussian))

    def apart(self, first: int, last: int, top: int) -> Table:
        """Bound G where a third class has at least `top` votes, the most.

        Args:
            first: Least n_i - n_j.
            last: Largest n_i - n_j.
            top: Least count of that class.

        Returns:
            Shape (gammas,).
        """
        running = np.maximum.accumulate(self._revealed(first, last), axis=0)
        # W is at least that class's noisy count m, and n_i + n_j at most min(n - m, 2 m - 2).
        mean = min(self.teachers - 3 * top, -2) / (math.sqrt(2) * self.law.sigma)
        right = scipy.special.ndtr((mean - self._edges) / math.sqrt(2))
        return np.asarray((right @ np.diff(running, axis=0) + running[0]) * SAFETY)

    def revealed(self, first: int, last: int, left: int, right: int) -> Table:
        """Bound G of what W and the label tell together, over a range of gaps, at edges of u.

        Args:
            first: Least n_i - n_j.
            last: Largest n_i - n_j.
            left: First edge of u, from 1; 0 for the range left of it.
            right: Last one; one more than their number for what is right of all.

        Returns:
            Shape (gammas,).
        """
        edges = len(self.law.edges)
        start, stop = max(left, 1) - 1, min(right, edges)
        parts = [
            *([_both(self._left(first, last))] if left == 0 else []),
            *([self._points(first, last, start, stop)] if start < stop else []),
            *([_both(self._right(first, last))] if right > edges else []),
        ]
        bounds = np.max([each.max(axis=0) for each in parts], axis=0)
        return np.asarray(np.minimum(bounds * SAFETY, self._gaussian))

    def _points(self, first: int, last: int, start: int, stop: int) -> Table:
        """Bound G at each of these edges of u; all edges of a single gap are kept."""
        if first < last:
            at = np.arange(start, stop)
            return _both(self._between(at, at, first, last))
        if first not in self._kept_points:
            if len(self._kept_points) >= _KEPT:
                self._kept_points.clear()
            at = np.arange(len(self.law.edges))
            self._kept_points[first] = _both(self._between(at, at, first, last))
        return self._kept_points[first][start:stop]

    @property
    def _edges(self) -> Table:
        return self.law.edges[self._at]

    @property
    def _at(self) -> NDArray[np.intp]:
        last = len(self.law.edges) - 1
        return np.append(np.arange(0, last, _EVERY), last)

    def _cells(self, first: int, last: int) -> tuple[Table, Table]:
        """Return `_computed_cells`, which many top counts have in common."""
        if (first, last) not in self._kept:
            if len(self._kept) >= _KEPT:
                self._kept.clear()
            self._kept[first, last] = self._computed_cells(first, last)
        return self._kept[first, last]

    def _revealed(self, first: int, last: int) -> Table:
        """Bound G of what W and the label tell together, left of all cells, in each, and right."""
        pair, other = self._cells(first, last)
        return np.minimum(np.maximum(pair, 0.0) + other, self._gaussian)

    def _computed_cells(self, first: int, last: int) -> tuple[Table, Table]:
        """Bound the parts of G left of all cells of u, in each, and right of all."""
        parts = (
            self._left(first, last),
            self._between(self._at[:-1], self._at[1:], first, last),
            self._right(first, last),
        )
        pair, other = (np.concatenate(each) for each in zip(*parts, strict=True))
        return pair, other

    def _between(
        self, lefts: NDArray[np.intp], rights: NDArray[np.intp], first: int, last: int
    ) -> tuple[Table, Table]:
        """Bound the parts of G in cells of u, each from one edge to another, or to itself.

        P_i and Q_i rise in t, P_j and Q_j fall; all logs of ratios fall in t; Q_o is largest where
        its t is next to 0.

        Returns:
            P_i - gamma Q_i, where gamma < 1 gamma Q_j - P_j, of either sign; and the part of all
            other classes, at least 0. Both of shape (cells, gammas).
        """
        law, middle, step = self.law, self.law.margin, 2 * self.law.moved
        nearest = min(max(0, first - step), last - step)
        wins_i, wins_j = law.log_wins, law.log_wins[::-1]

        def loses(gap: int, at: NDArray[np.intp]) -> Table:
            return np.asarray(law.log_loses[gap + middle][at] + law.log_loses[middle - gap][at])

        ratio_i = (wins_i[first + middle] - wins_i[first - step + middle])[lefts] + LOG_P_ERROR
        ratio_j = (wins_j[last + middle] - wins_j[last - step + middle])[lefts] - LOG_P_ERROR
        high_o, low_o = (
            outward([loses(gap, at) - loses(gap - step, at) for at in (lefts, rights)], axis=0)
            for outward, gap in ((np.max, first), (np.min, last))
        )
        above = self.log_gammas >= 0
        up, down = np.exp(self.log_gammas[above]), np.exp(self.log_gammas[~above])
        pair = np.empty((len(lefts), len(self.log_gammas)))
        other = np.zeros_like(pair)
        # Where it is negative, the smallest Q bounds it.
        pair[:, above] = _signed(
            np.exp(ratio_i)[:, np.newaxis] - up,
            wins_i[last - step + middle][rights],
            wins_i[first - step + middle][lefts],
        )
        pair[:, ~above] = _signed(
            down - np.exp(ratio_j)[:, np.newaxis],
            wins_j[first - step + middle][rights],
            wins_j[last - step + middle][lefts],
        )
        chance_o = np.exp(loses(nearest, lefts))[:, np.newaxis]
        other[:, above] = chance_o * np.maximum(np.exp(high_o + LOG_P_ERROR)[:, np.newaxis] - up, 0)
        other[:, ~above] = chance_o * np.maximum(
            down - np.exp(low_o - LOG_P_ERROR)[:, np.newaxis], 0.0
        )
        return pair, other + _BELOW_FLOOR

    def _left(self, first: int, last: int) -> tuple[Table, Table]:
        """Bound the same left of all cells, where i and j are rare; shape (1, gammas)."""
        middle, step = self.law.margin, 2 * self.law.moved
        rare = [last + middle, last - step + middle, middle - first, middle + step - first]
        chance = np.exp(self.law.log_wins[rare, 0]).sum() + _BELOW_FLOOR
        shape = (1, len(self.log_gammas))
        return np.zeros(shape), np.full(shape, chance)

    def _right(self, first: int, last: int) -> tuple[Table, Table]:
        """Bound the same right of all cells, where the others are rare; shape (1, gammas)."""
        unit, step = 1 / (math.sqrt(2) * self.law.sigma), 2 * self.law.moved
        ends = np.array([first * unit]), np.array([last * unit])
        # i loses to W with at most the chance of u < 0, on either side of the difference.
        rare = 2 * scipy.special.ndtr(-RIGHT / math.sqrt(2)) ** 2 + scipy.special.ndtr(
            -RIGHT
        ) * np.maximum(np.exp(self.log_gammas), 1.0)
        return signed_coins(self.log_gammas, *ends, step * unit), rare[np.newaxis] + _BELOW_FLOOR


def _both(parts: tuple[Table, Table]) -> Table:
    """Return the bound on G that both its parts make."""
    return np.asarray(np.maximum(parts[0], 0.0) + parts[1])


def _signed(excess: Table, log_largest: Table, log_smallest: Table) -> Table:
    """Return Q times the excess: at most that of the largest Q, or of the smallest if negative."""
    chances = np.where(
        excess > 0, np.exp(log_largest)[:, np.newaxis], np.exp(log_smallest)[:, np.newaxis]
    )
    return np.asarray(chances * excess)


def _mean(cells: Table, largest: Table, smallest: Table) -> Table:
    """Bound the mean of a step function of u, given bounds on the chance of u left of each edge."""
    rises = cells[:-1] - cells[1:]
    mean = largest @ np.maximum(rises, 0.0) - smallest @ np.maximum(-rises, 0.0)
    return np.asarray(mean + cells[-1])
