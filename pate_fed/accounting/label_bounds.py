"""Formal cost of released labels alone: about a third below that of the noisy counts.

GNMax draws noise for every count and shows the winner only. Against everybody who sees nothing
but labels and "no answer"s, the cost at a Renyi order is at most

    S = min(order h^2, sup over a, b of D(P_{a,b} || P_{a-h,b+h})),    h = weight / sigma,

where P_{a,b} says who wins of N(a, 1), N(b, 1) and 0. The cost of the threshold check's bit is
at most B = min(order h^2 / 2, sup over t of D(Phi(t) || Phi(t + h))). Both hold for any number
of teachers and classes and for all votes. They do NOT hold against a reader of noisy counts or
noisy maxima: the coordinator, where it adds the noise, or parties that see the noisy sum.

Each number is certified when it is asked for (`moment_maximum`), at most 3e-4 above the true
supremum, and cached. Proofs: docs/explanation/label-level-bound.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pate_fed.accounting.conversion import ConvertedEpsilon, convert_costly_curve
from pate_fed.accounting.events import ConfidentGaussianMaxEvent, GaussianMaxEvent
from pate_fed.accounting.moment_maximum import (
    LARGEST_THREE_WAY,
    LARGEST_TWO_WAY,
    Maximum,
    largest_three_way,
    largest_two_way,
)
from pate_fed.accounting.ranges import positive, renyi_orders
from pate_fed.errors import InvalidParameterError

LABEL_METHOD: Final = "label-level RDP bound at the caps, converted by CKS"

_SMALLEST_RATIO, _LARGEST_RATIO = 1e-4, 4.0


def label_rdp(orders: ArrayLike, *, sigma: float, weight: float = 1.0) -> NDArray[np.float64]:
    """Bound the RDP of one GNMax label for an observer of the label only, for all votes.

    Guarantee: neighbors are histograms between which at most `weight` votes move, from any
    classes to any others, or appear or vanish where the number of votes is not released. The
    noise is continuous Gaussian, fresh for every label.

    Returns:
        RDP at each order, in nats, at most order weight^2 / sigma^2; shape (orders,).
    """
    return _label_rdp(renyi_orders(orders), _ratio(sigma, weight), is_proved=True)


def _label_rdp(
    orders: NDArray[np.float64], ratio: float, *, is_proved: bool
) -> NDArray[np.float64]:
    found = _supremum(_label, orders, ratio, largest=LARGEST_THREE_WAY / 2, is_proved=is_proved)
    return np.minimum(orders * (ratio * ratio), found)


def threshold_bit_rdp(
    orders: ArrayLike, *, sigma: float, weight: float = 1.0
) -> NDArray[np.float64]:
    """Bound the RDP of one threshold check for an observer of "answered or not", for all votes.

    Guarantee: as for `label_rdp`. It covers every check of a noisy number that a neighboring
    change moves by at most `weight`.

    Returns:
        RDP at each order, in nats, at most order weight^2 / (2 sigma^2); shape (orders,).
    """
    return _bit_rdp(renyi_orders(orders), _ratio(sigma, weight), is_proved=True)


def _bit_rdp(orders: NDArray[np.float64], ratio: float, *, is_proved: bool) -> NDArray[np.float64]:
    found = _supremum(largest_two_way, orders, ratio, largest=LARGEST_TWO_WAY, is_proved=is_proved)
    return np.minimum(orders * (ratio * ratio) / 2, found)


def label_level_epsilon(
    event: GaussianMaxEvent | ConfidentGaussianMaxEvent,
    *,
    delta: float,
    expected: tuple[float, float] | None = None,
) -> ConvertedEpsilon:
    """Return the epsilon of all checks and labels of an event, for an observer of only these.

    It is a guarantee where asks and answers are caps that were fixed before the run. The sum of
    charges is then the same constant on every path, at all orders at once, so the order may be
    optimized. Queries may be chosen adaptively.

    `expected` numbers of asks and answers in place of the event's, not whole, make it an
    analysis that reproduces papers, and no guarantee.
    """
    check = None
    if isinstance(event, ConfidentGaussianMaxEvent):
        asks, answers = expected or (event.asks, event.answers)
        check, label = _ratio(event.sigma1, event.weight), _ratio(event.sigma2, event.weight)
    else:
        asks, answers = expected or (0, event.asks)
        label = _ratio(event.sigma, event.weight)
    for name, value in (("asks", asks), ("answers", answers)):
        if not (math.isfinite(value) and value >= 0):
            raise InvalidParameterError(f"{name} must be finite and at least 0", value)

    def curve(orders: NDArray[np.float64], *, is_proved: bool = True) -> NDArray[np.float64]:
        rdp = answers * _label_rdp(orders, label, is_proved=is_proved)
        if check is not None:
            rdp += asks * _bit_rdp(orders, check, is_proved=is_proved)
        return rdp

    return convert_costly_curve(
        curve, delta=delta, method="cks", likely=partial(curve, is_proved=False)
    )


def _ratio(sigma: float, weight: float) -> float:
    return positive("weight", weight) / positive("sigma", sigma)


_Supremum = Callable[..., Maximum]
"""Of orders and a shift; `is_proved` says whether it must be a bound."""


def _label(orders: NDArray[np.float64], ratio: float, *, is_proved: bool) -> Maximum:
    return largest_three_way(orders, math.sqrt(2) * ratio, is_proved=is_proved)


def _supremum(
    supremum: _Supremum,
    orders: NDArray[np.float64],
    ratio: float,
    *,
    largest: float,
    is_proved: bool,
) -> NDArray[np.float64]:
    """Bound a supremum at each order; infinite where only the Gaussian bound is used.

    That is where order (order - 1) ratio^2 exceeds `largest`.
    """
    # Convex in the ratio and 0 at 0: below a certified value it lies under the line to 0.
    certified_ratio = max(ratio, _SMALLEST_RATIO)
    result = np.full(len(orders), np.inf)
    # Products, not powers, which raise where they overflow.
    usable = orders * (orders - 1) * (certified_ratio * certified_ratio) <= largest
    if certified_ratio <= _LARGEST_RATIO and usable.any():
        at = tuple(orders[usable].tolist())
        values = _cached(supremum, at, certified_ratio, is_proved=is_proved)
        result[usable] = np.array(values) * (ratio / certified_ratio)
    return result


@lru_cache(maxsize=512)
def _cached(
    supremum: _Supremum, orders: tuple[float, ...], ratio: float, *, is_proved: bool
) -> tuple[float, ...]:
    grid = np.array(orders)
    divergence = np.log1p(supremum(grid, ratio, is_proved=is_proved).upper) / (grid - 1)
    return tuple(divergence.tolist())
