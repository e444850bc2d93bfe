"""From Renyi differential privacy (RDP) to epsilon at a given delta.

A curve of RDP values holds at all its orders at once, so the order may be chosen freely. The best
one is looked for on a dense grid and then refined. An optimum on the grid's edge is reported,
because a wider grid might do better.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pate_fed.accounting.ranges import probability, renyi_orders
from pate_fed.errors import InvalidParameterError

RdpCurve = Callable[[NDArray[np.float64]], NDArray[np.float64]]
"""RDP in nats at each order of an array, same shape."""

ConversionMethod = Literal["mironov", "cks"]

SMALLEST_CKS_ORDER = 1.01
"""Nothing is converted by CKS at this order or below."""
_REFINEMENTS = 3
_POINTS_PER_REFINEMENT = 33
_COARSENESS = 6
_COSTLY_POINTS = 7


def _dense_orders() -> NDArray[np.float64]:
    geometric = 1.0 + 10.0 ** np.linspace(-1.3, 3.0, 260)
    orders = np.union1d(geometric, np.arange(2.0, 32.5, 0.5))
    orders.flags.writeable = False
    return orders


DENSE_ORDERS: Final = _dense_orders()
"""Orders from 1.05 to 1001, spaced geometrically in order - 1, with the halves up to 32."""

PAPER_ORDERS: Final = np.concatenate(
    [np.arange(2, 101, 0.5), np.logspace(np.log10(100), np.log10(500), 100)]
)
"""The 298 orders of the 2018 paper: for reproducing its numbers; `DENSE_ORDERS` is finer."""


@dataclass(frozen=True, slots=True)
class ConvertedEpsilon:
    """The best epsilon that a curve gives.

    Attributes:
        is_at_edge: Whether that is the first or last order looked at: a warning, as orders
            beyond might give less.
    """

    epsilon: float
    order: float
    is_at_edge: bool


def convert_at_orders(
    rdp: ArrayLike, orders: ArrayLike, *, delta: float, method: ConversionMethod
) -> ConvertedEpsilon:
    """Convert RDP values that are known at some orders only.

    Args:
        method: "mironov", or "cks", which is never worse from order 1.01 on.
    """
    known, values = renyi_orders(orders), np.asarray(rdp, dtype=np.float64)
    if values.shape != known.shape or not (values >= 0).all():
        raise InvalidParameterError(
            "rdp must be at least 0, one value per order", str(values.shape)
        )
    epsilons = _epsilons(values, known, delta=probability("delta", delta), method=method)
    best = int(np.argmin(epsilons))
    at_edge = best in (0, len(known) - 1) and bool(epsilons[best] > 0)
    return ConvertedEpsilon(float(epsilons[best]), float(known[best]), at_edge)


def epsilon_at_order(rdp: float, order: float, *, delta: float) -> float:
    """Convert RDP at one order that was fixed beforehand, by CKS."""
    return convert_at_orders([rdp], [order], delta=delta, method="cks").epsilon


def rdp_within(epsilon: float, order: float, *, delta: float) -> float:
    """Return the most RDP at one order whose epsilon is at most this; 0 or less for none."""
    return epsilon - math.log1p(-1 / order) + (math.log(delta) + math.log(order)) / (order - 1)


def convert_curve(curve: RdpCurve, *, delta: float, method: ConversionMethod) -> ConvertedEpsilon:
    """Convert a curve that can be computed at any order: dense grid, then refinement."""
    orders = DENSE_ORDERS
    best = convert_at_orders(curve(orders), orders, delta=delta, method=method)
    is_at_edge = best.is_at_edge
    for _ in range(_REFINEMENTS):
        orders = _orders_around(best.order, orders)
        refined = convert_at_orders(curve(orders), orders, delta=delta, method=method)
        if refined.epsilon < best.epsilon:
            best = refined
    return ConvertedEpsilon(best.epsilon, best.order, is_at_edge)


def convert_costly_curve(
    curve: RdpCurve, *, delta: float, method: ConversionMethod, likely: RdpCurve | None = None
) -> ConvertedEpsilon:
    """Convert a curve with costly values: a coarse grid, a finer one, the bottom of a parabola.

    Any order gives a valid epsilon; with a quarter of the values it is the same to 1e-6 where
    epsilon has one minimum over the orders, which such curves have.

    `likely` is about the same curve, quick to compute and not proved: it finds the order, and
    `curve` is computed there alone.
    """
    if likely is not None:
        found = convert_costly_curve(likely, delta=delta, method=method)
        order = np.array([found.order])
        proved = convert_at_orders(curve(order), order, delta=delta, method=method)
        return ConvertedEpsilon(proved.epsilon, found.order, found.is_at_edge)
    orders = np.append(DENSE_ORDERS[:-1:_COARSENESS], DENSE_ORDERS[-1])
    best = convert_at_orders(curve(orders), orders, delta=delta, method=method)
    orders = _orders_around(best.order, orders, points=_COSTLY_POINTS)
    epsilons = _epsilons(curve(orders), orders, delta=delta, method=method)
    bottom = _bottom(np.log(orders - 1), epsilons)
    orders = np.append(orders, 1 + np.exp(bottom))
    epsilons = np.append(
        epsilons, _epsilons(curve(orders[-1:]), orders[-1:], delta=delta, method=method)
    )
    lowest = int(epsilons.argmin())
    if epsilons[lowest] >= best.epsilon:
        return best
    return ConvertedEpsilon(float(epsilons[lowest]), float(orders[lowest]), best.is_at_edge)


def _bottom(places: NDArray[np.float64], values: NDArray[np.float64]) -> float:
    """Return where a parabola through the lowest value and its neighbors is lowest."""
    middle = min(max(int(values.argmin()), 1), len(values) - 2)
    near = slice(middle - 1, middle + 2)
    if not np.isfinite(values[near]).all():
        return float(places[middle])
    (left, right), (before, after) = np.diff(places[near]), np.diff(values[near])
    slope, next_slope = before / left, after / right
    if next_slope <= slope:
        return float(places[middle])
    rise = (next_slope - slope) / (left + right)
    vertex = (places[middle - 1] + places[middle] - slope / rise) / 2
    return float(np.clip(vertex, places[middle - 1], places[middle + 1]))


def _epsilons(
    rdp: NDArray[np.float64],
    orders: NDArray[np.float64],
    *,
    delta: float,
    method: ConversionMethod,
) -> NDArray[np.float64]:
    """Return epsilon at each order.

    Source:
        Mironov 2017, Proposition 3. https://arxiv.org/abs/1702.07476
        Canonne, Kamath, Steinke 2020, Proposition 12. https://arxiv.org/abs/2004.00010
    """
    if method == "mironov":
        return np.asarray(rdp - math.log(delta) / (orders - 1))
    if method != "cks":
        raise InvalidParameterError('method must be "mironov" or "cks"', method)
    epsilons = rdp + np.log1p(-1 / orders) - np.log(delta * orders) / (orders - 1)
    # Near order 1 the formula cancels.
    epsilons[orders <= SMALLEST_CKS_ORDER] = math.inf
    # So little divergence that total variation alone is at most delta.
    epsilons[delta * delta + np.expm1(-rdp) > 0] = 0.0
    return np.maximum(epsilons, 0.0)


def _orders_around(
    best: float, orders: NDArray[np.float64], *, points: int = _POINTS_PER_REFINEMENT
) -> NDArray[np.float64]:
    position = int(np.argmin(np.abs(orders - best)))
    low = orders[max(position - 1, 0)]
    high = orders[min(position + 1, len(orders) - 1)]
    return np.linspace(low, high, points)
