"""Where smooth sensitivity of the GNMax bound may be computed by walking along one path.

The data-dependent bound of one GNMax label is a function beta of q, the chance that the noisy
winner is not the plurality. With x = sqrt(ln 1/q), kappa = order - 1 and h = weight / sigma it
reads (Theorem 6 of the paper, its optimal mu put in)

    exp(kappa beta) = M(x) = T1(x) + T2(x),
    T1 = (1 - e^(-x^2))^order / (1 - e^(-(x-h)^2))^kappa,
    T2 = exp(kappa order h^2 - (x - kappa h)^2),

up to the crossover q0, from which on beta = order h^2. One changed unit moves z, defined by
q = (classes - 1) Phi(-z), by at most s = sqrt(2) h. The path algorithm is right where

    C5  beta does not decrease in q on (0, q0);
    C6  beta(B_U(q)) - beta(q) does not decrease in q on (0, q1), with B_U(q) at z - s, and q1
        at z(q0) + s.

Both are checked here by enclosures, without a search for a minimum. An interval is cut until on
every cell the value at the middle exceeds the largest decrease that the derivative's bound over the
whole cell allows. A condition that cannot be shown counts as failed.

With M' = -2 T2 exp(-v) D5 and D5 = exp(v) D, v = kappa h^2 + 2 kappa h x:

    C5  <=>  D(x) >= 0,
    C6  <=>  E(z - s) >= E(z),  E(z) = -z^2 / 2 + v + ln D - ln x - ln M,

because -d ln M / dz is a constant times exp(E). Only q that this many teachers can cause are
considered, which makes both intervals finite.

Source:
    Papernot et al. 2018, section 5 and appendix B. https://arxiv.org/abs/1802.08908
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
import scipy
from numpy.typing import NDArray

from pate_fed.accounting.ranges import positive, renyi_orders, whole
from pate_fed.errors import InvalidParameterError

Floats = NDArray[np.float64]

_MOST_CELLS: Final = 1 << 18
_FIRST_CELLS: Final = 64
_ULPS: Final = 1e-11
"""Relative allowance for double arithmetic in a value at the middle of a cell; its error is
below 1e-13 of the terms added."""


@dataclass(frozen=True, slots=True)
class SmoothSetting:
    """The parameters of a GNMax label's smooth sensitivity, besides the votes. All public."""

    sigma: float
    classes: int
    order: float
    teachers: int
    weight: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "sigma", positive("sigma", self.sigma))
        object.__setattr__(self, "order", float(renyi_orders([self.order])[0]))
        for name, least in (("classes", 2), ("teachers", 1), ("weight", 1)):
            if whole(name, getattr(self, name)) < least:
                raise InvalidParameterError(f"{name} must be at least {least}")

    @property
    def h(self) -> float:
        """One unit's votes in standard deviations of the noise."""
        return self.weight / self.sigma

    @property
    def step(self) -> float:
        """By how much one changed unit can move z."""
        return math.sqrt(2) * self.h

    @property
    def largest_rdp(self) -> float:
        """RDP of a label for all votes, in nats: order weight^2 / sigma^2."""
        return self.order * self.h**2

    @property
    def farthest_z(self) -> float:
        """The z of a unanimous vote."""
        return self.teachers / (math.sqrt(2) * self.sigma)

    def z_of(self, log_q: Floats) -> Floats:
        """Return z with q = (classes - 1) Phi(-z)."""
        return np.asarray(-scipy.special.ndtri_exp(log_q - math.log(self.classes - 1)))

    def log_q_of(self, z: Floats) -> Floats:
        """Return log((classes - 1) Phi(-z)), at most 0."""
        return np.asarray(np.minimum(math.log(self.classes - 1) + scipy.special.log_ndtr(-z), 0.0))


@dataclass(frozen=True, slots=True)
class SmoothConditions:
    """Where the bound stops to depend on the votes, and whether the algorithm may be used.

    Attributes:
        log_q0: Log of the crossover q0.
        log_q1: Log of the q from which one changed unit can reach q0.
    """

    log_q0: float
    log_q1: float
    c5: bool
    c6: bool

    @property
    def hold(self) -> bool:
        """Whether both were shown."""
        return self.c5 and self.c6


def capped_rdp(log_q: Floats, setting: SmoothSetting, *, log_q0: float) -> Floats:
    """Return beta: the bound below the crossover, order weight^2 / sigma^2 from there on.

    It is valid wherever `rdp_from_log_q` is, and never smaller.
    """
    is_below = log_q < log_q0
    x = np.sqrt(-np.where(is_below, log_q, log_q0))
    bound = np.maximum(_log_moment(x, setting) / (setting.order - 1), 0.0)
    return np.where(is_below, np.minimum(bound, setting.largest_rdp), setting.largest_rdp)


@lru_cache(maxsize=1024)
def smooth_conditions(setting: SmoothSetting) -> SmoothConditions:
    """Find the crossover and check both conditions, for every vote of this many teachers."""
    x0 = _crossover(setting)
    z0 = float(setting.z_of(np.array(-x0 * x0)))
    z1 = z0 + setting.step
    log_q1 = float(setting.log_q_of(np.array(z1)))
    # The farthest vote and one unit beyond it: as far as B_L reaches.
    last_z = max(setting.farthest_z, z1) + setting.step
    last_x = math.sqrt(-float(setting.log_q_of(np.array(last_z))))
    # The least double above 0 in ln q moves x by less than this.
    c5 = _holds_on(lambda low, high: _c5_margin(low, high, setting), x0, last_x * (1 + 1e-12))
    c6 = c5 and _holds_on(lambda low, high: _c6_margin(low, high, setting), z1, last_z)
    return SmoothConditions(log_q0=-x0 * x0, log_q1=log_q1, c5=c5, c6=c6)


def require_conditions(setting: SmoothSetting) -> SmoothConditions:
    """Return the conditions of a setting; refuse it unless both could be shown."""
    conditions = smooth_conditions(setting)
    if not conditions.hold:
        failed = "C6" if conditions.c5 else "C5"
        raise InvalidParameterError(
            "sigma, classes and order must meet the conditions of smooth sensitivity",
            f"{failed} fails at sigma {setting.sigma:g}, {setting.classes} classes, "
            f"order {setting.order:g}",
        )
    return conditions


def _crossover(setting: SmoothSetting) -> float:
    """Return x at q0: the smallest q at which the bound reaches order h^2."""
    from scipy.optimize import brentq  # noqa: PLC0415 - every command would wait for it

    h, order = setting.h, setting.order
    # From here on all four conditions of Theorem 6 hold, strictly.
    first = max(1 + h, (order - 0.99) * h)
    limit = (order - 1) * setting.largest_rdp

    def excess(x: float) -> float:
        return float(_log_moment(np.array(x), setting)) - limit

    if excess(first) < 0:
        return first
    last = first
    while excess(last) >= 0:  # M falls to 1
        last *= 1.25
    return float(brentq(excess, first, last, xtol=1e-14, rtol=4 * 2.0**-52))


def _log_moment(x: Floats, setting: SmoothSetting) -> Floats:
    """Return ln M(x), accurate where M is almost 1."""
    order, kappa, h = setting.order, setting.order - 1, setting.h
    log_t2 = kappa * order * h * h - (x - kappa * h) ** 2
    return np.asarray(np.logaddexp(_log_t1(x, setting), log_t2))


def _log_t1(x: Floats, setting: SmoothSetting) -> Floats:
    with np.errstate(under="ignore"):
        near = np.log1p(-np.exp(-((x - setting.h) ** 2)))
        return np.asarray(setting.order * np.log1p(-np.exp(-x * x)) - (setting.order - 1) * near)


# Enclosures: pairs of arrays, the least and the largest value on each cell.


@dataclass(frozen=True, slots=True)
class _Range:
    low: Floats
    high: Floats

    def __add__(self, other: _Range) -> _Range:
        return _Range(self.low + other.low, self.high + other.high)

    def __sub__(self, other: _Range) -> _Range:
        return _Range(self.low - other.high, self.high - other.low)

    def __mul__(self, other: _Range) -> _Range:
        products = np.stack(
            [
                self.low * other.low,
                self.low * other.high,
                self.high * other.low,
                self.high * other.high,
            ]
        )
        return _Range(products.min(axis=0), products.max(axis=0))

    def times(self, factor: float) -> _Range:
        ends = np.stack([self.low * factor, self.high * factor])
        return _Range(ends.min(axis=0), ends.max(axis=0))

    def inverse(self) -> _Range:
        """Return 1 / range, of a range above 0."""
        return _Range(1 / self.high, 1 / self.low)

    @property
    def magnitude(self) -> Floats:
        return np.asarray(np.maximum(np.abs(self.low), np.abs(self.high)))


Margin = Callable[[Floats, Floats], tuple[Floats, Floats]]
"""From cells to (certain on the whole cell, certain to fail at its middle)."""


def _holds_on(margin: Margin, start: float, end: float) -> bool:
    """Tell whether a margin was shown to be at least 0 on [start, end]."""
    edges = np.linspace(start, end, _FIRST_CELLS + 1)
    low, high = edges[:-1], edges[1:]
    looked_at = 0
    while len(low):
        looked_at += len(low)
        if looked_at > _MOST_CELLS:
            return False
        with np.errstate(all="ignore"):
            certain, at_middle = margin(low, high)
        if (at_middle < 0).any():
            return False
        # A comparison with NaN is false: such a cell is cut.
        is_open = ~(certain >= 0)
        low, high = low[is_open], high[is_open]
        middle = (low + high) / 2
        low, high = np.concatenate([low, middle]), np.concatenate([middle, high])
    return True


def _c5_margin(low: Floats, high: Floats, setting: SmoothSetting) -> tuple[Floats, Floats]:
    middle = (low + high) / 2
    value, allowance = _d_at(middle, setting)
    slope = _d_slope(_Range(low, high), setting).magnitude
    return value - allowance - (high - low) / 2 * slope, value + allowance


def _c6_margin(low: Floats, high: Floats, setting: SmoothSetting) -> tuple[Floats, Floats]:
    step = setting.step
    middle = (low + high) / 2
    near, near_allowance = _e_at(middle - step, setting)
    far, far_allowance = _e_at(middle, setting)
    value = near - far + step * (middle - step / 2)
    allowance = near_allowance + far_allowance + _ULPS * step * (np.abs(middle) + step)
    rates = _e_slope(low - step, high - step, setting) - _e_slope(low, high, setting)
    slope = _Range(rates.low + step, rates.high + step).magnitude
    return value - allowance - (high - low) / 2 * slope, value + allowance


def _d_at(x: Floats, setting: SmoothSetting) -> tuple[Floats, Floats]:
    """Return D(x) and a bound on the error of double arithmetic in it."""
    kappa, h = setting.order - 1, setting.h
    log_t1 = _log_t1(x, setting)
    v = kappa * h * h + 2 * kappa * h * x
    u = 2 * x * h - h * h - v
    grown = setting.order * _p(x) * np.exp(log_t1 - v)
    shrunk = kappa * _p(x - h) * np.exp(log_t1 + u)
    return x - kappa * h - grown + shrunk, _ULPS * 1e-2 * (x + kappa * h + grown + shrunk)


def _d_slope(x: _Range, setting: SmoothSetting) -> _Range:
    """Enclose D'(x)."""
    order, kappa, h = setting.order, setting.order - 1, setting.h
    near = _Range(x.low - h, x.high - h)
    t1 = _Range(
        np.exp(order * _log_below(x.low) - kappa * _log_below(near.high)),
        np.exp(order * _log_below(x.high) - kappa * _log_below(near.low)),
    )
    decay = _exp(_Range(-kappa * h * h - 2 * kappa * h * x.high,
                        -kappa * h * h - 2 * kappa * h * x.low))  # fmt: skip
    tilt = 2 * h * (1 - kappa)
    tilted = _Range(tilt * x.low, tilt * x.high) if tilt >= 0 else _Range(
        tilt * x.high, tilt * x.low
    )  # fmt: skip
    offset = -h * h - kappa * h * h
    growth = _exp(_Range(tilted.low + offset, tilted.high + offset))
    alpha = (_p_range(x) * decay).times(order)
    gamma = (_p_range(near) * growth).times(kappa)
    rate = _w_range(x).times(order) - _w_range(near).times(kappa)
    inner = (
        rate * (alpha - gamma)
        + (_p_slope(x) * decay).times(order)
        - alpha.times(2 * kappa * h)
        - (_p_slope(near) * growth).times(kappa)
        - gamma.times(tilt)
    )
    product = t1 * inner
    return _Range(1 - product.high, 1 - product.low)


def _e_at(z: Floats, setting: SmoothSetting) -> tuple[Floats, Floats]:
    """Return E(z) + z^2 / 2 and an allowance."""
    kappa, h = setting.order - 1, setting.h
    x = np.sqrt(-setting.log_q_of(z))
    d, d_error = _d_at(x, setting)
    v = kappa * h * h + 2 * kappa * h * x
    log_moment = _log_moment(x, setting)
    value = v + np.log(d) - np.log(x) - log_moment
    allowance = 2 * d_error / d + _ULPS * (1 + v + np.abs(np.log(d)) + np.log(x) + log_moment)
    return value, allowance


def _e_slope(low: Floats, high: Floats, setting: SmoothSetting) -> _Range:
    """Enclose E'(z) + z."""
    kappa, h = setting.order - 1, setting.h
    x = _Range(np.sqrt(-setting.log_q_of(low)), np.sqrt(-setting.log_q_of(high)))
    middle = (x.low + x.high) / 2
    d_slope = _d_slope(x, setting)
    d_middle, d_error = _d_at(middle, setting)
    reach = (x.high - x.low) / 2 * d_slope.magnitude + d_error
    d_low = d_middle - reach
    # A cell on which D may vanish is too wide.
    d = _Range(np.where(d_low > 0, d_low, np.nan), d_middle + reach)
    x_rate = _Range(_hazard(low), _hazard(high)) * x.inverse().times(0.5)
    log_t2 = [kappa * setting.order * h * h - (end - kappa * h) ** 2 for end in (x.high, x.low)]
    share = _Range(  # T2 / M, both decreasing by C5
        np.exp(log_t2[0] - _log_moment(x.low, setting)),
        np.exp(log_t2[1] - _log_moment(x.high, setting)),
    )
    log_d_rate = d_slope * d.inverse() - x.inverse()
    drift = _Range(log_d_rate.low + 2 * kappa * h, log_d_rate.high + 2 * kappa * h)
    return drift * x_rate + (share * d * x_rate).times(2.0)


def _exp(exponent: _Range) -> _Range:
    return _Range(np.exp(exponent.low), np.exp(exponent.high))


def _log_below(x: Floats) -> Floats:
    """Return ln(1 - e^(-x^2)), increasing."""
    return np.asarray(np.log1p(-np.exp(-x * x)))


def _p(x: Floats) -> Floats:
    """Return x / (1 - e^(-x^2))."""
    return np.asarray(x / -np.expm1(-x * x))


_P_VALLEY: Final = 1.1209064227785340
"""Where x / (1 - e^(-x^2)) is least: e^(x^2) = 1 + 2 x^2."""


def _p_range(x: _Range) -> _Range:
    ends = np.stack([_p(x.low), _p(x.high)])
    holds_valley = (x.low < _P_VALLEY) & (x.high > _P_VALLEY)
    valley = float(_p(np.array(_P_VALLEY))) * (1 - 1e-14)
    return _Range(np.where(holds_valley, valley, ends.min(axis=0)), ends.max(axis=0))


def _p_slope(x: _Range) -> _Range:
    """Enclose the derivative of x / (1 - e^(-x^2)), for x of at least 0.71."""
    # The numerator 1 - e^(-x^2) (1 + 2 x^2) increases from there on.
    numerator = _Range(_p_numerator(x.low), _p_numerator(x.high))
    squared = _Range(np.expm1(-x.low * x.low) ** 2, np.expm1(-x.high * x.high) ** 2)
    return numerator * squared.inverse()


def _p_numerator(x: Floats) -> Floats:
    return np.asarray(1 - np.exp(-x * x) * (1 + 2 * x * x))


def _w_range(x: _Range) -> _Range:
    """Enclose 2 x / (e^(x^2) - 1), decreasing."""
    # Written with e^(-x^2): e^(x^2) overflows.
    ends = [2 * end * np.exp(-end * end) / -np.expm1(-end * end) for end in (x.high, x.low)]
    return _Range(ends[0], ends[1])


def _hazard(z: Floats) -> Floats:
    """Return phi(z) / Phi(-z), increasing."""
    return np.asarray(math.sqrt(2 / math.pi) / scipy.special.erfcx(z / math.sqrt(2)))
