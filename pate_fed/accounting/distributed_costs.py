"""The formal cost of a run whose noise the parties add, in both views.

The coordinator opens every noisy row; the public sees labels. Both numbers follow from caps that
were fixed before the run, so both are guarantees at once. Ledgers for life count the rows by a
third one, which adds up over batches and runs.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Final

import numpy as np

from pate_fed.accounting.conversion import ConvertedEpsilon, convert_at_orders, convert_curve
from pate_fed.accounting.costs import PUBLIC_VIEW, ROWS_METHOD, ROWS_RDP_METHOD, FormalCost
from pate_fed.accounting.counts_composition import rows_epsilon
from pate_fed.accounting.curves import event_label_rdp, event_rdp
from pate_fed.accounting.events import DistributedCountsEvent, DistributedGaussianMaxEvent

DistributedEvent = DistributedGaussianMaxEvent | DistributedCountsEvent

LABELS_METHOD: Final = (
    "label-level RDP bound for summed discrete Gaussian noise at the caps, converted by CKS"
)

_ORDERS: Final = 9


def distributed_labels_cost(event: DistributedEvent, *, delta: float) -> FormalCost:
    """Compute the formal cost for an observer of labels and "no answer"s only.

    The event is at the caps of the whole run.
    """
    # An observer of labels alone sees no more than the rows' reader; one of counts sees as much.
    rows = replace(rows_cost(event, delta=delta), holds_for=PUBLIC_VIEW)
    if isinstance(event, DistributedCountsEvent):
        return rows
    charged = charged_rows_cost(event, delta=delta)
    assert charged.order is not None
    labels = _convert_near(event, charged.order, delta=delta)
    if labels.epsilon >= rows.epsilon:
        return rows
    return FormalCost(labels.epsilon, LABELS_METHOD, PUBLIC_VIEW, order=labels.order)


@lru_cache(maxsize=1024)
def rows_cost(event: DistributedEvent, *, delta: float) -> FormalCost:
    """Compute the formal cost for the opener of the rows, with the colluders allowed for."""
    charged = charged_rows_cost(event, delta=delta)
    epsilon = rows_epsilon(
        event.sigma,
        event.shares,
        rows=event.rows if isinstance(event, DistributedCountsEvent) else event.asks,
        delta=delta,
        weight=event.weight,
    )
    if epsilon >= charged.epsilon:
        return charged
    return FormalCost(epsilon, ROWS_METHOD, charged.holds_for)


@lru_cache(maxsize=1024)
def charged_rows_cost(event: DistributedEvent, *, delta: float) -> FormalCost:
    """Compute what the same rows take from a budget, at the Renyi order that is best for them.

    Ledgers add up divergences at one order, so they need this much, which is more than `rows_cost`.
    """
    rows = convert_curve(lambda orders: event_rdp(event, orders), delta=delta, method="cks")
    return FormalCost(rows.epsilon, ROWS_RDP_METHOD, _reader_of_rows(event), order=rows.order)


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
