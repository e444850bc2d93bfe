"""Certified largest Renyi moment of a noisy argmax of whole counts, over all votes.

As `moment_maximum`, for noise on the whole numbers whose law p is symmetric and log-concave (sums
of discrete Gaussians). Votes move from class i to class j, k of them. Reveal the best noisy count
of the other classes and its class; subtract it. The rest is two whole numbers A, B with

    P_i = sum over x >= 1 - t_i of p(x - A) F(x - B - 1 + t_ij),    F the distribution function,
    P_j the same with i and j exchanged,    P_o = F(-t_i - A) F(-t_j - B),

where t_ij, t_i, t_j say who wins ties: four patterns, up to adding 1 to A and B. The change moves
(A, B) to (A - k, B + k), from chances P to Q. The bound is on E = sum P^l Q^(1-l) - 1 = sum P G(r),
r = ln P/Q, G(r) = e^((l-1) r) - 1 + (l-1) (e^-r - 1), over all whole A and B.

How: branch and bound. On a box [A0, A1] x [B0, B1], finite or not, everything is monotone:

    P_i rises with A, falls with B;  r_i >= 0 falls with A, rises with B;    (i)
    P_j, |r_j| = -r_j the other way round;                                   (j)
    P_o falls with both;  r_o falls with A, rises with B;                    (o)

So corners bound E on the box. Boxes shrink to single points, which are exact. Far out other bounds
hold, and with A and B both far above 0, E is that of two classes, but for the chance that the third
still wins.

Proofs: docs/explanation/noise-at-the-parties.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pate_fed.accounting.distributed_law import distributed_row_rdp, log_mass_of_sum

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]

LARGEST_LATTICE: Final = 36.0
"""Largest order (order - 1) k^2 / sigma^2: beyond, the price of the row is within 7 %."""

MOST_CELLS: Final = 1 << 24
"""Largest table: sigma up to about 200."""

TOLERANCE: Final = 1e-4
"""How far, relative to E, the certified bound lies above the largest value found."""

_SLACK: Final = 1e-7
"""Covers the arithmetic: ln P is exact to 1e-12, and E is quadratic in differences of it."""

_FAR: Final = 9
"""Standard deviations that counts reach beyond their tilted centers: e^-40 is left."""

_FAR_APART: Final = 12
"""The same of the difference of two counts: e^-36."""

_BEYOND: Final = 1 << 40
"""Stands for infinity in a coordinate."""

_PATTERNS: Final = np.array([(1, 1, 1), (0, 1, 1), (1, 1, 0), (0, 0, 1)])
"""(t_ij, t_i, t_j): 1 where the first named wins a tie."""

_BOXES_AT_A_TIME: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class Setting:
    """The noise and the change.

    Attributes:
        moved: Votes k that move.
        reach: Largest (order - 1) k of the orders asked for, in votes.
    """

    sigma: float
    shares: int
    moved: int
    reach: int

    @property
    def far(self) -> int:
        """`_FAR` standard deviations, in votes."""
        return math.ceil(_FAR * self.sigma)

    @property
    def far_apart(self) -> int:
        """`_FAR_APART` standard deviations, in votes."""
        return math.ceil(_FAR_APART * self.sigma)

    @property
    def cells(self) -> int:
        """Entries of the table of ln P_i, about."""
        return (2 * self.reach + 2 * self.far_apart) * (self.reach + 2 * self.far)


def largest_label_moments(orders: Floats, setting: Setting, *, two_way: Floats) -> Floats:
    """Bound E over all whole A and B and all patterns of ties, at each order.

    Args:
        orders: Above 1, with order (order - 1) k^2 / sigma^2 at most `LARGEST_LATTICE`.
        setting: With `cells` at most `MOST_CELLS`, and a reach of at least (order - 1) k.
        two_way: Upper bounds on E of two classes, reached or nearly so.

    Returns:
        Upper bounds, at most `TOLERANCE` too large; infinite where the proof failed.
    """
    tilts = (orders - 1) * setting.moved
    row = distributed_row_rdp(
        orders, sigma=setting.sigma, shares=setting.shares, weight=setting.moved
    )
    search = _Search(setting, orders, tilts, (orders - 1) * row + math.log(2))
    lower = two_way.copy()
    both_high = search.both_high(lower)
    failed = both_high < 0
    boxes, is_open = search.cover(both_high)
    while len(boxes.pattern):
        # The bound on a box of one point is its value.
        values = search.are_inside(boxes) & boxes.are_points()
        for index, _, found in search.bounds(boxes.take(values), is_open[values]):
            lower[index] = max(lower[index], found.max())
        others = ~values
        boxes, is_open = boxes.take(others), is_open[others]
        still_open = np.zeros_like(is_open)
        for index, rows, found in search.bounds(boxes, is_open):
            still_open[rows, index] = ~(found <= lower[index] * (1 + TOLERANCE))
        # Where a half-line cannot be bounded, the proof failed.
        failed |= still_open[boxes.are_points()].any(axis=0)
        still_open &= ~failed
        kept = np.asarray(still_open.any(axis=1))
        boxes, parents = boxes.take(kept).split()
        is_open = still_open[kept][parents]
    upper: Floats = lower * (1 + TOLERANCE) * (1 + _SLACK)
    return np.where(failed, np.inf, upper)


@dataclass(frozen=True, slots=True)
class _Boxes:
    """Boxes [a0, a1] x [b0, b1] of whole points, each of one pattern; each of shape (boxes,)."""

    pattern: Whole
    a0: Whole
    a1: Whole
    b0: Whole
    b1: Whole

    def take(self, which: NDArray[np.bool_] | NDArray[np.intp] | slice) -> _Boxes:
        return _Boxes(*(x[which] for x in (self.pattern, self.a0, self.a1, self.b0, self.b1)))

    def are_points(self) -> NDArray[np.bool_]:
        """Tell which cannot be split: an infinite side is not."""
        return ~(_is_wide(self.a0, self.a1) | _is_wide(self.b0, self.b1))

    def split(self) -> tuple[_Boxes, NDArray[np.intp]]:
        """Halve every side that can be, and say which box each part is of."""
        parents = np.arange(len(self.pattern))
        a0, a1, of = _halves(self.a0, self.a1)
        halved, parents = self.take(of), parents[of]
        b0, b1, of = _halves(halved.b0, halved.b1)
        return _Boxes(halved.pattern[of], a0[of], a1[of], b0, b1), parents[of]


def _is_wide(low: Whole, high: Whole) -> NDArray[np.bool_]:
    return (low > -_BEYOND) & (high < _BEYOND) & (high > low)


def _halves(low: Whole, high: Whole) -> tuple[Whole, Whole, NDArray[np.intp]]:
    wide, middle = _is_wide(low, high), (low + high) // 2
    starts = np.concatenate([low, middle[wide] + 1])
    ends = np.concatenate([np.where(wide, middle, high), high[wide]])
    return starts, ends, np.concatenate([np.arange(len(low)), np.flatnonzero(wide)])


class _Search:
    """Bounds on boxes at several orders, and the boxes to start from."""

    def __init__(self, setting: Setting, orders: Floats, tilts: Floats, log_masses: Floats) -> None:
        self._setting, self._tables = setting, _tables(setting)
        self._orders, self._tilts = orders, tilts
        # Twice the moment of the counts: covers the tails of tilted sums of discrete Gaussians.
        self._log_masses = log_masses

    def cover(self, both_high: Whole) -> tuple[_Boxes, NDArray[np.bool_]]:
        """Cover all whole points but those with A and B both at least `both_high`.

        Returns:
            Boxes, and the orders at which to bound each; shape (boxes, orders).
        """
        setting, step = self._setting, max(1, round(self._setting.sigma))
        far, apart, tilt = setting.far, setting.far_apart, math.ceil(self._tilts.max())
        highest = int(both_high.max())
        a_edges = _edges(-tilt - far, highest + apart + 2 * setting.moved, both_high, step)
        b_edges = _edges(-far - setting.moved, highest + 2 * tilt + apart, both_high, step)
        a, b = (x.ravel() for x in np.indices((len(a_edges) - 1, len(b_edges) - 1)))
        a = np.tile(a, len(_PATTERNS))
        pattern = np.repeat(np.arange(len(_PATTERNS)), len(b))
        b = np.tile(b, len(_PATTERNS))
        # The last edges stand for infinity themselves.
        a_ends, b_ends = (np.append(edges[1:-1] - 1, _BEYOND) for edges in (a_edges, b_edges))
        boxes = _Boxes(pattern, a_edges[a], a_ends[a], b_edges[b], b_ends[b])
        is_open = np.minimum(boxes.a0, boxes.b0)[:, np.newaxis] < both_high
        return boxes, is_open

    def both_high(self, lower: Floats) -> Whole:
        """Return from where on, A and B both at least that, E is at most the target; -1 if nowhere.

        Given that i beats j, X_i is larger than without that; so the third class takes at most
        F(k - A) of Q_i, likewise of Q_j.
        """
        setting, orders = self._setting, self._orders
        steps = np.arange(4, 4 * _FAR_APART)[:, np.newaxis]
        high = np.ceil(steps * (setting.sigma / 4)).astype(np.int64) + setting.moved
        third = np.exp(self._tables.log_below(setting.moved - high))
        deep = (high + self._tilts) ** 2 / (2 * setting.sigma**2)
        hidden = np.exp(self._log_masses - deep)
        grown = np.expm1((1 - orders) * np.log1p(-third))
        fits = (1 + lower) * grown + hidden <= lower * TOLERANCE
        return np.where(fits.any(axis=0), high[fits.argmax(axis=0), 0], -1)

    def are_inside(self, points: _Boxes) -> NDArray[np.bool_]:
        """Tell which points the tables reach."""
        setting = self._setting
        far, apart, reach = setting.far, setting.far_apart, setting.reach
        inside = (points.a0 > -reach - far) & (points.a0 - points.b0 > -2 * reach - apart)
        return inside & (np.abs(points.a0) < _BEYOND) & (np.abs(points.b0) < _BEYOND)

    def bounds(
        self, boxes: _Boxes, wanted: NDArray[np.bool_]
    ) -> Iterator[tuple[int, NDArray[np.intp], Floats]]:
        """Bound E on boxes: yield an order's index, which boxes, and their bounds."""
        for start in range(0, len(boxes.pattern), _BOXES_AT_A_TIME):
            part = slice(start, start + _BOXES_AT_A_TIME)
            corners = self._corners(boxes.take(part))
            for index in np.flatnonzero(wanted[part].any(axis=0)):
                rows = np.flatnonzero(wanted[part, index])
                yield int(index), start + rows, self._bound(corners, rows, int(index))

    def _corners(self, box: _Boxes) -> _Corners:
        """Look up the values that bounds at every order need."""
        tables, moved = self._tables, self._setting.moved
        # i is likeliest at (a1, b0), its ratio largest at (a0, b1); j the other way round.
        i_low, j_high = self._logs(box.pattern, box.a0, box.b1)
        i_high, j_low = self._logs(box.pattern, box.a1, box.b0)
        i_low_moved, j_high_moved = self._logs(box.pattern, box.a0 - moved, box.b1 + moved)
        _, j_low_moved = self._logs(box.pattern, box.a1 - moved, box.b0 + moved)
        _, i_ties, j_ties = _PATTERNS[box.pattern].T
        left, right = -i_ties - box.a0, -j_ties - box.b0
        with np.errstate(invalid="ignore"):
            i_ratio, j_ratio = i_low - i_low_moved, j_low - j_low_moved
            lowest = self._other_ratio(-i_ties - box.a1, right)
            highest = self._other_ratio(left, -j_ties - box.b1)
        floor = tables.least_log
        return _Corners(
            first=_Term.of(np.maximum(i_high, floor), np.where(np.isnan(i_ratio), np.inf, i_ratio)),
            second=_Term.of(
                np.maximum(j_high, floor), np.where(np.isnan(j_ratio), -np.inf, j_ratio)
            ),
            second_moved=np.exp(np.maximum(j_high_moved, floor)),
            falling=_Term.of(
                tables.log_below(left) + tables.log_below(right),
                np.minimum(np.where(np.isnan(lowest), -np.inf, lowest), 0.0),
            ),
            rising=_Term.of(
                tables.log_below(left) + tables.log_below(right),
                np.maximum(np.where(np.isnan(highest), np.inf, highest), 0.0),
            ),
            other_moved=np.exp(tables.log_below(left + moved) + tables.log_below(right - moved)),
            box=box,
        )

    def _other_ratio(self, left: Whole, right: Whole) -> Floats:
        below, moved = self._tables.log_below, self._setting.moved
        return below(left) - below(left + moved) + below(right) - below(right - moved)

    def _bound(self, corners: _Corners, rows: NDArray[np.intp], index: int) -> Floats:
        m = self._orders[index] - 1
        sigma, tilt, log_mass = self._setting.sigma, self._tilts[index], self._log_masses[index]
        box = corners.box.take(rows)
        # The moment of all counts, times the tilted chance that i wins, or that none does.
        behind = np.maximum(box.b0 - box.a1 - 2 * tilt, 0.0) ** 2 / (4 * sigma**2)
        below = np.maximum(-box.a1 - tilt, 0.0) ** 2 / (2 * sigma**2)
        deep = np.maximum(np.maximum(box.a0 + tilt, box.b0 - tilt), 0.0) ** 2 / (2 * sigma**2)
        hidden_first = np.exp(log_mass - np.maximum(behind, below))
        hidden_other = np.exp(log_mass - deep)
        first = np.minimum(corners.first.value(m, rows), hidden_first)
        second = np.minimum(corners.second.value(m, rows), m * corners.second_moved[rows])
        falling = np.minimum(corners.falling.value(m, rows), m * corners.other_moved[rows])
        rising = np.minimum(corners.rising.value(m, rows), hidden_other)
        return np.asarray(first + second + np.maximum(falling, rising))

    def _logs(self, pattern: Whole, a: Whole, b: Whole) -> tuple[Floats, Floats]:
        """Return ln P_i and ln P_j at points."""
        first, i_ties, j_ties = _PATTERNS[pattern].T
        return (
            self._tables.log_first(a - b - 1 + first, 1 - i_ties - a),
            self._tables.log_first(b - a - first, 1 - j_ties - b),
        )


@dataclass(frozen=True, slots=True)
class _Term:
    """Chances P and ratios r, for P G(r) at any order; each of shape (boxes,)."""

    log_p: Floats
    p: Floats
    ratio: Floats
    shrunk: Floats

    @classmethod
    def of(cls, log_p: Floats, ratio: Floats) -> _Term:
        with np.errstate(over="ignore"):
            return cls(log_p, np.exp(log_p), ratio, np.expm1(-ratio))

    def value(self, m: float, rows: NDArray[np.intp]) -> Floats:
        """Return P G(r) at order m + 1, or a little more where e^|r| is large."""
        p, ratio = self.p[rows], self.ratio[rows]
        with np.errstate(over="ignore", invalid="ignore"):
            value = p * (np.expm1(m * ratio) + m * self.shrunk[rows])
            large = np.flatnonzero(~(np.abs(ratio) * max(m, 1.0) < 30))
            high = ratio[large]
            exponent = np.where(high > 0, m * high, math.log(m) - high)
            value[large] = np.exp(self.log_p[rows[large]] + exponent)
        return np.where(np.isnan(value), np.inf, value)


@dataclass(frozen=True, slots=True)
class _Corners:
    """The values on boxes that bounds at every order share; each of shape (boxes,)."""

    first: _Term
    second: _Term
    second_moved: Floats
    falling: _Term
    rising: _Term
    other_moved: Floats
    box: _Boxes


def _edges(low: int, high: int, inner: Whole, step: int) -> Whole:
    """Return edges from -infinity to infinity, with `inner` among them."""
    edges = np.arange(low, high + step, step)
    return np.unique(np.concatenate([[-_BEYOND], edges, inner, [_BEYOND]]))


class _Tables:
    """ln F, and ln of the sum over y >= z of p(y) F(y + gap), for gaps and z that matter.

    Attributes:
        least_log: Bound on ln P_i where the second table ends.
    """

    def __init__(self, setting: Setting) -> None:
        far, apart, reach = setting.far, setting.far_apart, setting.reach
        least_gap, most_gap = -2 * reach - apart - 2 * setting.moved - 2, apart
        least_z, most_z = -far, reach + far + setting.moved + 1
        top = most_z + 2 * apart
        values = np.arange(2 * (least_gap - far), top + 1, dtype=np.float64)
        log_mass = log_mass_of_sum(values, sigma=setting.sigma, shares=setting.shares)
        log_mass -= np.logaddexp.reduce(log_mass)
        self._first = int(values[0])
        self._log_below = np.minimum(np.logaddexp.accumulate(log_mass), 0.0)
        self._gaps, self._zs = (least_gap, most_gap), (least_z, most_z)
        y = np.arange(least_z, top + 1)
        mass, below = np.exp(log_mass[y - self._first]), np.exp(self._log_below)
        gaps = range(least_gap, most_gap + 1)
        self._log_first = np.empty((len(gaps), most_z - least_z + 1))
        for row, gap in enumerate(gaps):
            at = np.minimum(y + gap - self._first, len(below) - 1)
            sums = np.cumsum((mass * below[at])[::-1])[::-1]
            np.log(sums[: self._log_first.shape[1]], out=self._log_first[row])
        self.least_log = float(max(self._log_first[0].max(), self._log_first[:, -1].max()))

    def log_below(self, y: Whole) -> Floats:
        """Return ln F(y); minus infinity below the table, where it is below -1,000."""
        at = y - self._first
        inside = np.clip(at, 0, len(self._log_below) - 1)
        return np.where(at < 0, -np.inf, self._log_below[inside])

    def log_first(self, gap: Whole, z: Whole) -> Floats:
        """Return ln P_i; minus infinity where it is below `least_log` and the table ends.

        Beyond the other ends the chance is that of the edge, but for a relative e^-36.
        """
        row = np.clip(gap, *self._gaps) - self._gaps[0]
        column = np.clip(z, *self._zs) - self._zs[0]
        logs = self._log_first[row, column]
        return np.where((gap < self._gaps[0]) | (z > self._zs[1]), -np.inf, logs)


@lru_cache(maxsize=1)
def _tables(setting: Setting) -> _Tables:
    return _Tables(setting)
