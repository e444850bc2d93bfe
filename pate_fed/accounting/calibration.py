"""Turn a budget around: the most queries that it affords.

The cost comes as a function, so that it serves every bound. The result is checked against the
budget once more by that very function.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from pate_fed.accounting.ranges import positive, whole


def most_queries(
    cost: Callable[[int], float], *, budget: float, most: int, first: float = math.inf
) -> int:
    """Return the largest number of queries whose cost stays within a budget.

    Args:
        cost: Largest epsilon of this many queries; must not fall with their number.

    Returns:
        A number from 0 to `most` with `cost(number) <= budget` (0 costs nothing).
    """
    positive("budget", budget)
    low, high = 0, whole("most", most) + 1
    tried = int(min(max(first, 1), most))
    while high - low > 1:
        found = cost(tried)
        if found <= budget:
            low = tried
        else:
            high = tried
        # A cost takes seconds. It grows a little faster than the root of the number.
        aimed = int(tried * (budget / max(found, 1e-9 * budget)) ** _POWER)
        tried = min(max(aimed, low + 1), high - 1)
    return low


_POWER = 1.8
