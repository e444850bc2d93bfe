"""Certified largest Renyi moment of a noisy choice, over all states that votes can bring about.

A noisy choice has few outcomes k: which of some independent N(x, 1) wins. In the state x outcome k
has chance P_k(x), the chance of a convex set under a Gaussian; a neighboring change moves the state
by a known vector of length s, to the chances Q_k(x). The bound is on

    E(x) = sum_k P_k^order Q_k^(1-order) - 1 = e^((order-1) D) - 1,  D the Renyi divergence,

over every x. Written as sum_k P_k G(r_k), r_k = ln P_k/Q_k, G(r) = e^((order-1) r) - 1 +
(order-1) (e^-r - 1), it adds terms of at least 0 that are quadratic in s: nothing cancels.

How: branch and bound. In a box with center c and half-diagonal rho, Taylor's formula gives E <=
E(c) + |gradient| per axis + M rho^2 / 2, with a bound M that follows from values at c. A box whose
bound exceeds the target is split: a few hundred boxes per order are enough. Outside a compact
region `Choice.outside` bounds E.

Arithmetic is in doubles; ln P_k is exact to 2e-13, and `_SLACK` covers the effect on E. Proofs:
docs/explanation/label-level-bound.md.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from itertools import product
from typing import Final

import numpy as np
import scipy
from numpy.typing import NDArray

Floats = NDArray[np.float64]

LARGEST_TWO_WAY: Final = 400.0
"""Largest order (order - 1) shift^2 of a coin: beyond, the Gaussian bound is within 3 %."""

LARGEST_THREE_WAY: Final = 72.0
"""The same of three outcomes: beyond, the Gaussian bound is within 7 %."""

TOLERANCE: Final = 3e-4
"""How far, relative to D, a certified bound lies above the largest value found."""

_SLACK = 1e-7
_FIRST_HALF_WIDTH = 0.25
_SMALLEST_HALF_WIDTH = 2.0**-16
_TWO_WAY_TOLERANCE = TOLERANCE / 5
_POLISHING = 12
_FINEST_STEP = 1e-4
_PAIRS_AT_A_TIME = 1 << 16
_CUTS = np.arange(0.0, 32.0, 0.125)


@dataclass(frozen=True, slots=True)
class Law:
    """The outcomes' chances at some states, before and after the change.

    Attributes:
        chances: P_k; shape (states, outcomes).
        log_ratios: r_k = ln P_k/Q_k; same shape.
        slopes: Gradient of ln P_k; shape (states, outcomes, axes).
        ratio_slopes: Gradient of r_k; same shape.
    """

    chances: Floats
    log_ratios: Floats
    slopes: Floats
    ratio_slopes: Floats

    def at(self, states: NDArray[np.intp]) -> Law:
        """Return the law at some of the states."""
        return Law(
            self.chances[states],
            self.log_ratios[states],
            self.slopes[states],
            self.ratio_slopes[states],
        )


class Choice(ABC):
    """A noisy choice whose state changes by a vector of length `shift`."""

    axes: int
    shift: float

    @abstractmethod
    def law(self, states: Floats) -> Law:
        """Return the chances at states of shape (states, axes)."""

    @abstractmethod
    def outside(self, orders: Floats, targets: Floats) -> tuple[Floats, Floats]:
        """Find half-spaces x . normal >= cut in which E is at most the target.

        Returns:
            Normals of length 1, shape (half-spaces, axes), and cuts, shape (half-spaces, orders);
            infinite where no cut will do. The region outside all half-spaces is bounded.
        """

    @abstractmethod
    def box(self, cuts: Floats) -> tuple[Floats, Floats]:
        """Return corners (lowest, highest) of a box around all that finite `cuts` leave."""


@dataclass(frozen=True, slots=True)
class Maximum:
    """The largest E of a choice at each order.

    Attributes:
        upper: Certified: no state has more.
        lower: Reached at some state, or in the limit of states.
    """

    upper: Floats
    lower: Floats


class TwoWay(Choice):
    """A coin: heads with chance Phi(t), after the change Phi(t - shift)."""

    axes = 1

    def __init__(self, shift: float) -> None:
        self.shift = shift

    def law(self, states: Floats) -> Law:
        """Return the chances of heads and tails."""
        t = states[:, 0]
        logs, slopes = _coin(t)
        moved_logs, moved_slopes = _coin(t - self.shift)
        return Law(np.exp(logs), logs - moved_logs, slopes, slopes - moved_slopes)

    def outside(self, orders: Floats, targets: Floats) -> tuple[Floats, Floats]:
        """Far out, reveal the noisy state itself wherever it decides against the likely side."""
        normals = np.array([[1.0], [-1.0]])
        up = _first_cut(_censored(orders, self.shift, sign=-1) - 1, targets)
        down = _first_cut(_censored(orders, self.shift, sign=+1) - 1, targets)
        return normals, np.array([up, down])

    def box(self, cuts: Floats) -> tuple[Floats, Floats]:
        """Return the interval between the cuts."""
        return -cuts[1:].max(axis=1), cuts[:1].max(axis=1)


class ThreeWay(Choice):
    """Who wins: N(a, 1), N(b, 1), or 0; the change takes h = shift / sqrt(2) from a to b.

    States are (u, t) with a = (u + t) / sqrt(2), b = (u - t) / sqrt(2): the change moves t by
    -shift and leaves u.
    """

    axes = 2

    def __init__(self, shift: float, *, two_way: Floats, one_sided: Floats) -> None:
        """Make the choice.

        Args:
            two_way: Upper bounds on E of `TwoWay(shift)` at the orders asked for.
            one_sided: The same of `TwoWay(shift / sqrt(2))`.
        """
        self.shift = shift
        self._two_way = two_way
        self._one_sided = one_sided

    def law(self, states: Floats) -> Law:
        """Return the chances that the first, the second, and neither wins."""
        u, t = states[:, 0], states[:, 1]
        logs, slopes = _three_way(u, t)
        moved_logs, moved_slopes = _three_way(u, t - self.shift)
        return Law(np.exp(logs), logs - moved_logs, slopes, slopes - moved_slopes)

    def outside(self, orders: Floats, targets: Floats) -> tuple[Floats, Floats]:
        """Reveal more than the winner: u's noise, or the noisy value of the unlikely one."""
        h, root = self.shift / np.sqrt(2), np.sqrt(0.5)
        normals = np.array([[1.0, 0.0], [-root, -root], [-root, root]])
        cap = np.exp(orders * (orders - 1) * h**2)[:, np.newaxis]
        half_cap = np.sqrt(cap)
        two_way = self._two_way[:, np.newaxis]
        both = two_way + scipy.special.ndtr(-_CUTS) * (cap - 1 - two_way)
        cuts = [_first_cut(both, targets)]
        for sign in (+1, -1):
            tail = half_cap * scipy.special.ndtr(sign * (orders[:, np.newaxis] - 1) * h - _CUTS)
            one_sided = 1 + self._one_sided[:, np.newaxis]
            censored = _censored(orders, h, sign=sign)
            cuts.append(_first_cut(censored * one_sided + (half_cap - 1) * tail - 1, targets))
        return normals, np.array(cuts)

    def box(self, cuts: Floats) -> tuple[Floats, Floats]:
        """Return the rectangle around the triangle that the cuts leave, over all orders."""
        u, minus_a, minus_b = cuts
        low = [-((minus_a + minus_b) * np.sqrt(0.5)).max(), -(u + np.sqrt(2) * minus_a).max()]
        return np.array(low), np.array([u.max(), (u + np.sqrt(2) * minus_b).max()])


def largest_two_way(orders: Floats, shift: float, *, is_proved: bool = True) -> Maximum:
    """Bound E of a coin Phi(t) against Phi(t - shift), over all t; shape (orders,).

    Args:
        orders: Above 1, with order (order - 1) shift^2 at most `LARGEST_TWO_WAY`.
        shift: Between 1e-4 and 6.
        is_proved: False to search only: `upper` is then about right, and no bound.
    """
    choice, nothing = TwoWay(shift), np.zeros(len(orders))
    return _largest(
        choice, orders, known=nothing, tolerance=_TWO_WAY_TOLERANCE, is_proved=is_proved
    )


def largest_three_way(orders: Floats, shift: float, *, is_proved: bool = True) -> Maximum:
    """Bound E of the winner among N(a, 1), N(b, 1) and 0, over all a and b; shape (orders,).

    Args:
        orders: Above 1, with order (order - 1) shift^2 at most `LARGEST_THREE_WAY`.
        shift: Length of the change of (a, b), between 1e-4 and 6.
    """
    two_way = largest_two_way(orders, shift, is_proved=is_proved)
    one_sided = largest_two_way(orders, shift / np.sqrt(2), is_proved=is_proved)
    choice = ThreeWay(shift, two_way=two_way.upper, one_sided=one_sided.upper)
    # a and b far above 0 with a - b fixed: the coin is the limit.
    return _largest(choice, orders, known=two_way.lower, tolerance=TOLERANCE, is_proved=is_proved)


def _largest(
    choice: Choice, orders: Floats, *, known: Floats, tolerance: float, is_proved: bool
) -> Maximum:
    """Search, then certify: the target rises where a box's center exceeds it."""
    lower = np.maximum(known, _search(choice, orders))
    while True:
        targets = np.expm1(np.log1p(lower) * (1 + tolerance))
        better = _certify(choice, orders, targets) if is_proved else np.zeros(len(orders))
        if not (better > targets).any():
            return Maximum(targets * (1 + _SLACK), lower)
        lower = np.maximum(lower, better)


def _certify(choice: Choice, orders: Floats, targets: Floats) -> Floats:
    """Prove that E is at most the target everywhere, or return where it is not.

    Returns:
        At each order 0, or a value above the target: one that was met, or infinity where the
        proof failed; shape (orders,).
    """
    normals, cuts = choice.outside(orders, targets)
    better = np.where(np.isfinite(cuts).all(axis=0), 0.0, np.inf)
    if np.isinf(better).any():
        return better
    half_width = _FIRST_HALF_WIDTH
    centers = _cover(*choice.box(cuts), half_width)
    boxes, which = (x.ravel() for x in np.indices((len(centers), len(orders))))
    while len(boxes):
        reach = half_width * np.abs(normals).sum(axis=1)
        inside = ((centers @ normals.T - reach)[boxes] < cuts.T[which]).all(axis=1)
        boxes, which = boxes[inside], which[inside]
        used, boxes = np.unique(boxes, return_inverse=True)
        centers = centers[used]
        law = choice.law(centers)
        open_pairs = np.zeros(len(boxes), dtype=np.bool_)
        for start in range(0, len(boxes), _PAIRS_AT_A_TIME):
            part = slice(start, start + _PAIRS_AT_A_TIME)
            value, bound = _enclose(
                law.at(boxes[part]), orders[which[part]], choice.shift, half_width
            )
            open_pairs[part] = ~(bound <= targets[which[part]])
            np.maximum.at(better, which[part], np.where(value > targets[which[part]], value, 0.0))
        open_pairs &= better[which] == 0
        boxes, which = boxes[open_pairs], which[open_pairs]
        if half_width <= _SMALLEST_HALF_WIDTH:
            better[which] = np.inf
            return better
        half_width /= 2
        corners = half_width * np.array(list(product((-1.0, 1.0), repeat=choice.axes)))
        centers = (centers[:, np.newaxis] + corners).reshape(-1, choice.axes)
        boxes = (boxes[:, np.newaxis] * len(corners) + np.arange(len(corners))).ravel()
        which = np.repeat(which, len(corners))
    return better


def _enclose(law: Law, orders: Floats, shift: float, half_width: float) -> tuple[Floats, Floats]:
    """Return E at the center of each box, and its bound on the whole box."""
    axes = law.slopes.shape[2]
    rho = half_width * np.sqrt(axes)
    m = (orders - 1)[:, np.newaxis]
    chances, ratios = law.chances, law.log_ratios
    grown, shrunk = np.exp(m * ratios), np.exp(-ratios)
    excess = np.expm1(m * ratios) + m * np.expm1(-ratios)
    excess_slope = m * (grown - shrunk)
    value = (chances * excess).sum(axis=1)
    weighted = chances[:, :, np.newaxis] * (
        excess[:, :, np.newaxis] * law.slopes + excess_slope[:, :, np.newaxis] * law.ratio_slopes
    )
    first = np.abs(weighted.sum(axis=1)).sum(axis=1) * half_width
    slope = np.sqrt((law.slopes**2).sum(axis=2))
    ratio_slope = np.sqrt((law.ratio_slopes**2).sum(axis=2))
    # The largest values that each factor can have anywhere in the box.
    spread = np.minimum(ratio_slope * rho + shift * rho**2, shift * rho)
    low, high = ratios - spread, ratios + spread
    grown_low, grown_high = np.exp(m * low), np.exp(m * high)
    shrunk_low, shrunk_high = np.exp(-low), np.exp(-high)
    excess_most = np.maximum(
        grown_low - 1 + m * (shrunk_low - 1), grown_high - 1 + m * (shrunk_high - 1)
    )
    slope_most = m * np.maximum(shrunk_low - grown_low, grown_high - shrunk_high)
    bend_most = m * np.maximum(m * grown_low + shrunk_low, m * grown_high + shrunk_high)
    chance_most = np.minimum(chances * np.exp(slope * rho), 1.0)
    slope = slope + rho
    ratio_slope = np.minimum(ratio_slope + 2 * shift * rho, shift)
    second = chance_most * (
        excess_most * slope**2
        + slope_most * (2 * slope * ratio_slope + 2 * shift)
        + bend_most * ratio_slope**2
    )
    return value, value + first + second.sum(axis=1) * (rho**2 / 2)


def _values(law: Law, orders: Floats) -> Floats:
    """Return E at states (rows of `law`) of matching orders; shape (states,)."""
    m = (orders - 1)[:, np.newaxis]
    excess = np.expm1(m * law.log_ratios) + m * np.expm1(-law.log_ratios)
    return np.asarray((law.chances * excess).sum(axis=1))


def _search(choice: Choice, orders: Floats) -> Floats:
    """Find a large E for each order: on a coarse grid, then by parabolas through smaller ones."""
    stencil = np.array(list(product((-1.0, 0.0, 1.0), repeat=choice.axes)))
    # The change, tilted by the order, is the distance of the best states from 0.
    reach = (orders.max() - 1) * choice.shift + 4
    grid = _cover(np.full(choice.axes, -reach), np.full(choice.axes, reach), 0.25)
    law = choice.law(grid)
    states, best = np.empty((len(orders), choice.axes)), np.empty(len(orders))
    for index, order in enumerate(orders):
        values = _values(law, np.full(1, order))
        states[index], best[index] = grid[values.argmax()], values.max()
    fit = np.linalg.pinv(_monomials(stencil))
    steps = np.full((len(orders), 1), 0.25)
    for _ in range(_POLISHING):
        around = states[:, np.newaxis] + steps[:, np.newaxis] * stencil
        law = choice.law(around.reshape(-1, choice.axes))
        values = _values(law, np.repeat(orders, len(stencil))).reshape(len(orders), -1)
        best = np.maximum(best, values.max(axis=1))
        jump = _vertex((values / best[:, np.newaxis]) @ fit.T, choice.axes)
        is_inside = (np.abs(jump) <= 1).all(axis=1, keepdims=True)
        states += steps * np.where(is_inside, jump, stencil[values.argmax(axis=1)])
        steps = np.maximum(np.where(is_inside, steps / 4, steps), _FINEST_STEP)
    return best


def _monomials(points: Floats) -> Floats:
    """Return 1, x_i, and x_i x_j for i <= j of each point."""
    axes = points.shape[1]
    pairs = [points[:, i] * points[:, j] for i in range(axes) for j in range(i, axes)]
    return np.column_stack([np.ones(len(points)), points, *pairs])


def _vertex(coefficients: Floats, axes: int) -> Floats:
    """Return where parabolas with these coefficients of `_monomials` are largest, or nan."""
    linear, rest = coefficients[:, 1 : 1 + axes], coefficients[:, 1 + axes :]
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        if axes == 1:
            return np.where(rest < 0, -linear / (2 * rest), np.nan)
        xx, xy, yy = rest.T
        determinant = 4 * xx * yy - xy**2
        x = (xy * linear[:, 1] - 2 * yy * linear[:, 0]) / determinant
        y = (xy * linear[:, 0] - 2 * xx * linear[:, 1]) / determinant
        is_peak = (determinant > 0) & (xx < 0)
    return np.where(is_peak[:, np.newaxis], np.column_stack([x, y]), np.nan)


def _cover(low: Floats, high: Floats, half_width: float) -> Floats:
    """Return centers of equal boxes that cover the one between two corners."""
    sides = [
        start + half_width * (2 * np.arange(np.ceil((end - start) / (2 * half_width))) + 1)
        for start, end in zip(low, high, strict=True)
    ]
    return np.stack(np.meshgrid(*sides, indexing="ij"), axis=-1).reshape(-1, len(low))


def _censored(orders: Floats, shift: float, *, sign: int) -> Floats:
    """Return 1 + E of max(X, 0), X of mean -cut, moved by `shift` away from 0 (+1) or toward it.

    It falls with the cut: a higher one hides more (data processing).

    Returns:
        Shape (orders, cuts).
    """
    order = orders[:, np.newaxis]
    log_hidden = order * scipy.special.log_ndtr(_CUTS) - (order - 1) * scipy.special.log_ndtr(
        _CUTS + sign * shift
    )
    tilted = scipy.special.ndtr(sign * (order - 1) * shift - _CUTS)
    return np.asarray(np.exp(log_hidden) + np.exp(order * (order - 1) * shift**2 / 2) * tilted)


def _first_cut(values: Floats, targets: Floats) -> Floats:
    """Return the lowest cut from which the values, which fall, are at most the target."""
    fits = values <= targets[:, np.newaxis]
    return np.where(fits.any(axis=1), _CUTS[fits.argmax(axis=1)], np.inf)


def _coin(t: Floats) -> tuple[Floats, Floats]:
    """Return ln Phi(t), ln Phi(-t), shape (states, 2), and their slopes, shape (states, 2, 1)."""
    logs = np.column_stack([scipy.special.log_ndtr(t), scipy.special.log_ndtr(-t)])
    log_density = _log_density(t)[:, np.newaxis]
    slopes = np.exp(log_density - logs) * np.array([1.0, -1.0])
    return logs, slopes[:, :, np.newaxis]


def _three_way(u: Floats, t: Floats) -> tuple[Floats, Floats]:
    """Return ln P_k, shape (states, 3), and gradients in (u, t), shape (states, 3, 2).

    P_1 is the integral of phi(v - t) Phi(v + u) over v > 0; its derivatives are elementary.
    """
    root = np.sqrt(0.5)
    a, b = root * (u + t), root * (u - t)
    logs = np.column_stack(
        [
            _log_first(u, t),
            _log_first(u, -t),
            scipy.special.log_ndtr(-a) + scipy.special.log_ndtr(-b),
        ]
    )
    first = root * np.exp(_log_density(a) + scipy.special.log_ndtr(-b))
    second = root * np.exp(_log_density(b) + scipy.special.log_ndtr(-a))
    between = np.exp(_log_density(t) + scipy.special.log_ndtr(u))
    by_u = np.column_stack([first, second, -first - second])
    by_t = np.column_stack([first + between, -second - between, second - first])
    slopes = np.stack([by_u, by_t], axis=-1) / np.exp(logs)[:, :, np.newaxis]
    return logs, slopes


_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(24)
_ANGLES = (_NODES + 1) * (np.pi / 8)
_QUARTER_WEIGHTS = _WEIGHTS / 16


def _log_first(u: Floats, t: Floats) -> Floats:
    """Return ln P_1 = ln Pr[V > 0, A > 0], V ~ N(t, 1), A ~ N(a, 1), of correlation sqrt(1/2).

    Source:
        Drezner, Wesolowsky 1990, On the computation of the bivariate normal integral: the
        derivative by the correlation is elementary. All terms are positive: nothing cancels.
    """
    a = np.sqrt(0.5) * (u + t)
    independent = scipy.special.ndtr(t) * scipy.special.ndtr(a)
    squares, products = (t * t + a * a) / 2, t * a
    exponents = np.multiply.outer(products, np.tan(_ANGLES) / np.cos(_ANGLES))
    exponents -= np.multiply.outer(squares, np.cos(_ANGLES) ** -2)
    between = np.exp(exponents, out=exponents) @ _QUARTER_WEIGHTS
    return np.asarray(np.log(independent + between))


def _log_density(x: Floats) -> Floats:
    return np.asarray(-(x**2) / 2 - 0.5 * np.log(2 * np.pi))
