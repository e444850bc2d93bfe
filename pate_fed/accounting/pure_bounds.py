"""The cost of a release that is differentially private without a delta."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pate_fed.accounting.ranges import positive, renyi_orders
from pate_fed.errors import InvalidParameterError

PureBound = Literal["sharp", "paper"]


def pure_dp_rdp(
    orders: ArrayLike, *, epsilon: float, bound: PureBound = "sharp"
) -> NDArray[np.float64]:
    """Bound the RDP of a release that is epsilon-differentially private.

    `bound` is "sharp", which randomized response attains, or "paper", min(order epsilon^2 / 2,
    epsilon), which is never less.

    Source:
        Bun, Steinke 2016, Proposition 3.3. https://arxiv.org/abs/1605.02065
        Papernot et al. 2017, Theorem 2, for "paper".
    """
    grid = renyi_orders(orders)
    positive("epsilon", epsilon)
    if bound == "paper":
        return epsilon * np.minimum(grid * min(epsilon, 2.0) / 2, 1.0)  # order is above 1
    if bound != "sharp":
        raise InvalidParameterError('bound must be "sharp" or "paper"', bound)
    # (sinh(a e) - sinh((a-1) e)) / sinh(e) = cosh((a-1/2) e) / cosh(e/2)
    #                                        = 1 + 2 sinh(a e / 2) sinh((a-1) e / 2) / cosh(e/2).
    log_excess = (
        math.log(2)
        + _log_sinh(grid * epsilon / 2)
        + _log_sinh((grid - 1) * epsilon / 2)
        - _log_cosh(np.full(1, epsilon / 2))
    )
    return np.asarray(np.logaddexp(0.0, log_excess) / (grid - 1))


def _log_sinh(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(x + np.log(-np.expm1(-2 * x)) - math.log(2))


def _log_cosh(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(x + np.log1p(np.exp(-2 * x)) - math.log(2))
