"""Turn a budget around: the smallest noise, or the most queries, that it affords.

Both take a cost as a function, so that they serve every bound: exact Gaussian composition, the
label-level bound, the joint price. What they return is checked against the budget once more by
that very function, and errs toward more privacy.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from pate_fed.accounting.ranges import positive, whole
from pate_fed.errors import BudgetExhaustedError, InvalidParameterError

_RELATIVE_STEP: Final = 1e-4
_MOST_DOUBLINGS: Final = 60


def smallest_noise(
    cost: Callable[[float], float], *, budget: float, start: float, step: float = _RELATIVE_STEP
) -> float:
    """Return the smallest noise whose cost stays within a budget.

    Args:
        cost: Epsilon at a given sigma, in votes; must not grow with sigma.
        budget: Epsilon that may not be exceeded, above 0.
        start: Where to begin looking, in votes; above 0.
        step: Relative precision: the result is at most this much above the smallest.

    Returns:
        A sigma with `cost(sigma) <= budget`, in votes.

    Raises:
        InvalidParameterError: an argument is out of its range.
        BudgetExhaustedError: no noise is enough.
    """
    positive("budget", budget)
    positive("step", step)
    high = positive("start", start)
    for _ in range(_MOST_DOUBLINGS):
        if cost(high) <= budget:
            break
        high *= 2
    else:
        raise BudgetExhaustedError(requested=cost(high), budget=budget)
    low = high / 2
    while cost(low) <= budget:
        high, low = low, low / 2
        if low < start * 2.0**-_MOST_DOUBLINGS:
            raise InvalidParameterError("the cost must grow as noise shrinks", "one that does not")
    # cost(low) > budget >= cost(high): close in, and keep the side that is known to be enough.
    while high > low * (1 + step):
        middle = math.sqrt(low * high)
        if cost(middle) <= budget:
            high = middle
        else:
            low = middle
    return high


def most_queries(cost: Callable[[int], float], *, budget: float, most: int) -> int:
    """Return the largest number of queries whose cost stays within a budget.

    Args:
        cost: Epsilon of so many queries, at the worst; must not fall with their number.
        budget: Epsilon that may not be exceeded, above 0.
        most: Largest number to consider, at least 0.

    Returns:
        A number from 0 to `most` with `cost(number) <= budget` (0 costs nothing).

    Raises:
        InvalidParameterError: an argument is out of its range.
    """
    positive("budget", budget)
    low, high = 0, whole("most", most) + 1
    while high - low > 1:
        middle = (low + high) // 2
        if cost(middle) <= budget:
            low = middle
        else:
            high = middle
    return low
