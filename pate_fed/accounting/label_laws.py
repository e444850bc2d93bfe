"""What the winner of noisy counts tells at every place of the votes, for `composition`.

A law at (u, t) has three outcomes: i wins, "other" wins, j wins. The neighbor's is at (u, t - s).
With phi and Phi the standard normal density and distribution function, the derivatives of the
chances are sums of

    A(u, t) = phi(t) Phi(u),    B(u, t) = phi(a) Phi(-b) / sqrt 2,    a, b = (u +- t) / sqrt 2:

dP_i/dt = A(u, t) + B(u, t), dP_i/du = B(u, t), and P_j(u, t) = P_i(u, -t). So the bends of all
chances on a box have bounds in closed form. docs/explanation/composition.md has the proofs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
import scipy
from numpy.polynomial.hermite_e import hermeroots, hermeval
from numpy.typing import NDArray

Table = NDArray[np.float64]
Span = tuple[Table, Table]
"""Least and largest values, each of shape (boxes,)."""

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(120)
_WIDE: Final = 9.5
"""Beyond so many from its mode the integrand is nothing."""
_SLACK: Final = 1 + 1e-6
"""Factor on all bends, above the error of differences of ratios next to 1."""


def log_wins(u: Table, t: Table) -> Table:
    """Return ln P_i(u, t), with an error below 1e-12.

    P_i is the integral over v >= 0 of phi(v - t) Phi(v + u), which is log-concave, bent by 1 to 2.
    """
    found = np.asarray(scipy.special.log_ndtr(t))
    some = np.isfinite(u)
    if not some.any():
        return found
    u, t = u[some], t[some]

    def slope(v: Table) -> Table:
        below = scipy.special.log_ndtr(v + u)
        hazard = np.exp(-((v + u) ** 2) / 2 - math.log(2 * math.pi) / 2 - below)
        return np.asarray(t - v + hazard)

    low, high = np.zeros_like(u), np.maximum(np.maximum(t, (t - u) / 2), 0.0) + 2.0
    for _ in range(16):
        middle = (low + high) / 2
        rises = slope(middle) > 0
        low, high = np.where(rises, middle, low), np.where(rises, high, middle)
    steep = np.minimum(slope(low), 0.0)  # below 0 only where the mode is 0
    start = np.maximum(low - _WIDE, 0.0)
    end = low + np.where(low > 0, _WIDE, steep + np.sqrt(steep**2 + _WIDE**2))
    half = ((end - start) / 2)[:, np.newaxis]
    v = start[:, np.newaxis] + half * (1 + _NODES)
    logs = scipy.special.log_ndtr(v + u[:, np.newaxis]) - (v - t[:, np.newaxis]) ** 2 / 2
    top = logs.max(axis=1)
    total = np.exp(logs - top[:, np.newaxis]) @ _WEIGHTS * half[:, 0]
    found[some] = top + np.log(total) - math.log(2 * math.pi) / 2
    return found


def log_loses(u: Table, t: Table) -> Table:
    """Return ln P_o(u, t) = ln Phi(-a) Phi(-b)."""
    a, b = (u + t) / math.sqrt(2), (u - t) / math.sqrt(2)
    return np.asarray(scipy.special.log_ndtr(-a) + scipy.special.log_ndtr(-b))


def ratio_of_loses(u: Table, t: Table, shift: float) -> Table:
    """Return r of "other", ln P_o(u, t) / P_o(u, t - shift); 0 where u is infinite."""
    with np.errstate(invalid="ignore"):
        found = log_loses(u, t) - log_loses(u, t - shift)
    return np.where(np.isinf(u), 0.0, found)


def laws(u: Table, t: Table, shift: float) -> Table:
    """Return the chances P of i, "other" and j, and Q, for t less by `shift`.

    Shape (places, 2, 3).
    """
    found = [
        [np.exp(log_wins(u, at)), np.exp(log_loses(u, at)), np.exp(log_wins(u, -at))]
        for at in (t, t - shift)
    ]
    return np.moveaxis(np.array(found), -1, 0)


@dataclass(frozen=True, slots=True, eq=False)
class Boxes:
    """Ranges of places; each field of shape (boxes,). Both u are infinite where one is."""

    u0: Table
    u1: Table
    t0: Table
    t1: Table

    def __len__(self) -> int:
        return len(self.u0)

    def corners(self) -> tuple[Table, Table]:
        """Return u and t of the corners, each of shape (boxes, 4)."""
        u = np.stack([self.u0, self.u0, self.u1, self.u1], axis=-1)
        t = np.stack([self.t0, self.t1, self.t0, self.t1], axis=-1)
        return u, t

    def taken(self, which: NDArray[np.bool_] | NDArray[np.intp]) -> Boxes:
        """Return some of them."""
        return Boxes(self.u0[which], self.u1[which], self.t0[which], self.t1[which])

    def joined(self, other: Boxes) -> Boxes:
        """Return these and others."""
        pairs = (
            (self.u0, other.u0),
            (self.u1, other.u1),
            (self.t0, other.t0),
            (self.t1, other.t1),
        )
        return Boxes(*(np.concatenate(pair) for pair in pairs))

    def halves(self, along_u: NDArray[np.bool_]) -> Boxes:
        """Return both halves of each, along u or t."""
        with np.errstate(invalid="ignore"):
            u, t = (self.u0 + self.u1) / 2, (self.t0 + self.t1) / 2
        lower = Boxes(
            self.u0, np.where(along_u, u, self.u1), self.t0, np.where(along_u, self.t1, t)
        )
        upper = Boxes(
            np.where(along_u, u, self.u0), self.u1, np.where(along_u, self.t0, t), self.t1
        )
        return lower.joined(upper)


def bends(boxes: Boxes, most_i: Table, most_j: Table, shift: float) -> Table:
    """Bound how far the chances of i and j on boxes bend between the corners.

    Args:
        most_i: Largest ln P/Q of i on each, that at (u0, t0).
        most_j: Largest ln Q/P of j, that at (u0, t1).

    Returns:
        What must be taken from Q_i, and given to Q_j, at every corner, so that P_i - gamma Q_i and
        gamma Q_j - P_j at any place are at most the mean of those at the corners, for every gamma
        at which they can count. Each by the bends along u and along t; shape (2, 2, boxes).
    """
    u, t = (boxes.u0, boxes.u1), (boxes.t0, boxes.t1)
    after = (t[0] - shift, t[1] - shift)
    most_o, least_o = _ratios_of_loses(boxes, shift)
    bent = np.stack(
        [
            _bent(u, after, shift, [(np.exp(-x), -np.expm1(-x)) for x in (least_o, most_i)]),
            _bent(u, (-t[1], -t[0]), shift, [(1.0, np.expm1(x)) for x in (-most_o, most_j)]),
        ]
    )
    with np.errstate(invalid="ignore"):
        wide = np.stack([boxes.u1 - boxes.u0, boxes.t1 - boxes.t0])
    return np.asarray(np.where(np.isnan(wide), 0.0, wide) ** 2 / 8 * _SLACK * bent)


def _ratios_of_loses(boxes: Boxes, shift: float) -> tuple[Table, Table]:
    """Return the largest and the least r of "other": it falls in a and rises in b."""
    root = math.sqrt(2)
    a = ((boxes.u0 + boxes.t0) / root, (boxes.u1 + boxes.t1) / root)
    b = ((boxes.u0 - boxes.t1) / root, (boxes.u1 - boxes.t0) / root)
    with np.errstate(invalid="ignore"):
        most = ratio_of_loses((a[0] + b[1]) / root, (a[0] - b[1]) / root, shift)
        least = ratio_of_loses((a[1] + b[0]) / root, (a[1] - b[0]) / root, shift)
    never = np.isinf(boxes.u0)
    return np.where(never, 0.0, most), np.where(never, 0.0, least)


def _bent(u: Span, last: Span, shift: float, ends: list[tuple[Table | float, Table]]) -> Table:
    """Bound second derivatives of x (P_i(t) - P_i(t + shift)) + y P_i(t) on boxes, from above.

    Returns:
        Along u and along t, at least 0; shape (2, boxes).
    """
    with np.errstate(invalid="ignore"):
        middle, side_u = (u[0] + u[1]) / 2, (u[1] - u[0]) / 2
    at, sides = (
        (last[0] + last[1]) / 2,
        (np.where(np.isinf(middle), 0.0, side_u), (last[1] - last[0]) / 2),
    )
    now, then = _wins_at(middle, at), _wins_at(middle, at + shift)
    on_last, on_whole = _most_wins(u, last), _most_wins(u, (last[0], last[1] + shift))
    found = []
    for m, n in ((0, 2), (2, 0)):
        here, there = now.derivative(m, n), then.derivative(m, n)
        size, change = on_last.derivative(m, n), shift * on_whole.derivative(m + 1, n)
        # From the middle of a box to its sides.
        moves = [
            (
                side * shift * on_whole.derivative(m + dt + 1, n + du),
                side * on_last.derivative(m + dt, n + du),
            )
            for side, du, dt in zip(sides, (1, 0), (0, 1), strict=True)
        ]
        largest = np.zeros_like(at)
        for part, rest in ends:
            near = part * (here - there) + rest * here
            for fixed, scaled in moves:
                near = near + part * fixed + np.abs(rest) * scaled
            far = part * change + np.abs(rest) * size
            largest = np.maximum(largest, np.minimum(near, far))
        found.append(largest + 1e-14 * size)
    return np.stack(found)


@dataclass(frozen=True, slots=True, eq=False)
class _Wins:
    """Derivatives of P_i at places, or bounds of their sizes on boxes.

    B's are those of phi(a) Phi(c), c = -b; both turn with (u +- t) / sqrt 2.
    """

    u: _Normal | _Extent
    t: _Normal | _Extent
    a: _Normal | _Extent
    c: _Normal | _Extent
    are_bounds: bool

    def derivative(self, m: int, n: int) -> Table:
        """Return it m times along t and n times along u; m + n at least 1."""
        if m == 0:
            return self._of_b(0, n - 1)
        edge = self.t.density(m - 1) * self.u.distribution(n)
        return np.asarray(edge + self._of_b(m - 1, n))

    def _of_b(self, m: int, n: int) -> Table:
        found: Table | float = 0.0
        for k, factor in enumerate(_parts(m, n)):
            size = abs(factor) if self.are_bounds else factor
            found = found + size * self.a.density(k) * self.c.distribution(m + n - k)
        return np.asarray(found / 2 ** ((m + n + 1) / 2))


def _wins_at(u: Table, t: Table) -> _Wins:
    root = math.sqrt(2)
    a, c = _Normal((t + u) / root), _Normal((t - u) / root)
    return _Wins(_Normal(u), _Normal(t), a, c, are_bounds=False)


def _most_wins(u: Span, t: Span) -> _Wins:
    root = math.sqrt(2)
    a = _Extent((u[0] + t[0]) / root, (u[1] + t[1]) / root)
    c = _Extent((t[0] - u[1]) / root, (t[1] - u[0]) / root)
    return _Wins(_Extent(*u), _Extent(*t), a, c, are_bounds=True)


@lru_cache
def _parts(m: int, n: int) -> tuple[float, ...]:
    """Return the factors of (da + dc)^m (da - dc)^n, by the power of da."""
    plus, minus = np.poly1d([1.0, 1.0]) ** m, np.poly1d([1.0, -1.0]) ** n
    return tuple(float(each) for each in (plus * minus).coeffs[::-1])


_HERMITE: Final = tuple(np.eye(8)[k, : k + 1] for k in range(8))
"""Coefficients of the first polynomials."""


class _Normal:
    """The normal density's derivatives at places, and its distribution; each is computed once."""

    def __init__(self, x: Table) -> None:
        self._x, self._is_finite = x, np.isfinite(x)
        with np.errstate(over="ignore"):
            self._bell = np.exp(-(x**2) / 2)
        self._found: dict[int, Table] = {}

    def density(self, order: int) -> Table:
        """Return the derivative of this order of the density; 0 at infinity."""
        if order not in self._found:
            with np.errstate(invalid="ignore", over="ignore"):
                size = hermeval(self._x, _HERMITE[order]) * self._bell / math.sqrt(2 * math.pi)
            self._found[order] = np.where(self._is_finite, (-1) ** order * size, 0.0)
        return self._found[order]

    def distribution(self, order: int) -> Table:
        """Return the derivative of this order of the distribution function."""
        return np.asarray(self.density(order - 1) if order else scipy.special.ndtr(self._x))


class _Extent:
    """The largest sizes of the same on spans; each is computed once."""

    def __init__(self, low: Table, high: Table) -> None:
        self._low, self._high = low, high
        self._ends = _Normal(np.stack([low, high]))
        self._found: dict[int, Table] = {}

    def density(self, order: int) -> Table:
        """Return the largest size of the density's derivative of this order on each span."""
        if order not in self._found:
            found = np.abs(self._ends.density(order)).max(axis=0)
            # It turns where the next one is 0.
            for turn, size in _turns(order):
                is_inside = (self._low <= turn) & (turn <= self._high)
                found = np.maximum(found, np.where(is_inside, size, 0.0))
            self._found[order] = np.asarray(found * _SLACK)
        return self._found[order]

    def distribution(self, order: int) -> Table:
        """Return the largest size of the distribution function's derivative of this order."""
        return self.density(order - 1) if order else np.asarray(scipy.special.ndtr(self._high))


@lru_cache
def _turns(order: int) -> tuple[tuple[float, float], ...]:
    """Return where the density's derivative of this order turns, and its size there."""
    places = hermeroots(_HERMITE[order + 1]).real
    sizes = np.abs(_Normal(places).density(order))
    return tuple(zip(places.tolist(), sizes.tolist(), strict=True))
