"""The formal cost of a run whose noise the parties add, in both views.

The coordinator opens every noisy row; the public sees labels and "no answer"s. Both
numbers follow from caps that were fixed before the run, so both are guarantees at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np

from pate_fed.accounting.conversion import ConvertedEpsilon, convert_at_orders, convert_curve
from pate_fed.accounting.curves import event_label_rdp, event_rdp
from pate_fed.accounting.events import (
    DistributedCountsEvent,
    DistributedGaussianMaxEvent,
)
from pate_fed.accounting.statement import PUBLIC_VIEW, FormalCost

DistributedEvent = DistributedGaussianMaxEvent | DistributedCountsEvent

ROWS_METHOD: Final = (
    "RDP of every opened row of summed discrete Gaussian noise at the caps, converted by CKS"
)
LABELS_METHOD: Final = (
    "label-level RDP bound for summed discrete Gaussian noise at the caps, converted by CKS"
)

_ORDERS: Final = 9


@dataclass(frozen=True, slots=True)
class DistributedCosts:
    """The largest cost of a run at its caps.

    Attributes:
        coordinator: For the opener of the noisy sums, together with the colluders allowed for.
        public: For an observer of labels and "no answer"s only.
    """

    coordinator: FormalCost
    public: FormalCost


def distributed_costs(event: DistributedEvent, *, delta: float) -> DistributedCosts:
    """Compute the formal cost in both views.

    Args:
        event: The event at the caps of the whole run: `Mechanism.worst_case_event`.
        delta: In (0, 1).

    Raises:
        InvalidParameterError: an argument is out of its range.
    """
    rows = rows_cost(event, delta=delta)
    assert rows.order is not None
    if isinstance(event, DistributedCountsEvent):
        return DistributedCosts(rows, FormalCost(rows.epsilon, ROWS_METHOD, order=rows.order))
    labels = _convert_near(event, rows.order, delta=delta)
    return DistributedCosts(
        coordinator=rows,
        # An observer of labels alone sees no more than the rows' reader.
        public=FormalCost(
            min(labels.epsilon, rows.epsilon), LABELS_METHOD, PUBLIC_VIEW, order=labels.order
        ),
    )


@lru_cache(maxsize=1024)
def rows_cost(event: DistributedEvent, *, delta: float) -> FormalCost:
    """Compute the formal cost in the coordinator's view alone, the one that parties charge.

    Args:
        event: As for `distributed_costs`.
        delta: In (0, 1).

    Raises:
        InvalidParameterError: `delta` is out of its range.
    """
    rows = convert_curve(lambda orders: event_rdp(event, orders), delta=delta, method="cks")
    return FormalCost(rows.epsilon, ROWS_METHOD, _reader_of_rows(event), order=rows.order)


def _convert_near(event: DistributedEvent, order: float, *, delta: float) -> ConvertedEpsilon:
    """Convert the public's curve at few orders: each takes up to a second, any of them is valid.

    Labels cost a little less than rows at every order, so their best order is a little higher.
    """
    orders = 1 + (order - 1) * np.geomspace(0.8, 2.5, _ORDERS)
    best = convert_at_orders(event_label_rdp(event, orders), orders, delta=delta, method="cks")
    position = int(np.searchsorted(orders, best.order))
    near = np.linspace(
        orders[max(position - 1, 0)], orders[min(position + 1, _ORDERS - 1)], _ORDERS
    )
    refined = convert_at_orders(event_label_rdp(event, near), near, delta=delta, method="cks")
    return min(best, refined, key=lambda found: found.epsilon)


def _reader_of_rows(event: DistributedEvent) -> str:
    one = event.shares == 1
    honest = "1 hospital keeps its" if one else f"{event.shares} hospitals keep their"
    return (
        "the coordinator, who opens every noisy row, even together with other hospitals, if at "
        f"least {honest} noise secret"
    )
