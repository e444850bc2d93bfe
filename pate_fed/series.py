"""The price of a series: runs of a simulation, of which each may be planned with those before it.

Each run has a price at its caps, fixed before it began. The series has two numbers: the
sum of these prices, and the divergence at one Renyi order that the first run fixed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from pate_fed.accounting import FormalCost
from pate_fed.accounting.conversion import epsilon_at_order
from pate_fed.accounting.costs import PUBLIC_VIEW, RUNS_METHOD, SERIES_METHOD, PrivacyUnit
from pate_fed.accounting.curves import event_public_rdp, event_rdp
from pate_fed.accounting.formal_cost import ROUNDING_ROOM
from pate_fed.accounting.gaussian_dp import gdp_epsilon, gdp_mu
from pate_fed.accounting.privacy_ledger import order_for_life
from pate_fed.prices import are_counts_seen, charged_price, event_seen, public_price
from pate_fed.terms import RunTerms

_LARGEST_FIRST: Final = 500.0
"""Largest epsilon of a first run from which an order for the whole series is taken."""


def price_of_runs(
    runs: Sequence[RunTerms],
    seat: int,
    *,
    unit: PrivacyUnit | None = None,
    at_coordinator: bool = False,
) -> FormalCost:
    """Bound what several runs together cost one party's units: epsilons and deltas add up.

    Each run's cost was fixed before it began, and queries and terms of a later run may depend on
    the releases of earlier ones: basic composition.

    Args:
        runs: Their terms, the same parties in the same seats; at least one.
        at_coordinator: Whether the cost is that of the coordinator's view, for which all runs need
            their noise at the parties; otherwise it is that of the public view.
    """
    cost_at = charged_price if at_coordinator else public_price
    costs = [cost_at(terms, seat, unit=unit) for terms in runs]
    if len(costs) == 1:
        return costs[0]
    epsilon = math.fsum(cost.epsilon for cost in costs) * ROUNDING_ROOM
    return FormalCost(epsilon, RUNS_METHOD, costs[0].holds_for)


def price_of_series(
    runs: Sequence[RunTerms], seat: int, *, unit: PrivacyUnit, at_coordinator: bool = False
) -> FormalCost:
    """Bound what a whole series costs one party's units.

    The smaller of two numbers: the sum of `price_of_runs`; and the divergence of all runs at
    `order_of_series`, which was fixed before the first. Later runs may be planned with earlier
    labels in view, and so may their number: each of both numbers has deltas of its own.

    Source:
        docs/explanation/privacy-guarantee.md, "A series of runs".
    """
    added = price_of_runs(runs, seat, unit=unit, at_coordinator=at_coordinator)
    if len(runs) == 1:
        return added
    together = _divergence_of_series(runs, seat, unit=unit, at_coordinator=at_coordinator)
    if together.epsilon >= added.epsilon:
        return added
    return replace(together, holds_for=added.holds_for)


def delta_of_series(runs: Sequence[RunTerms]) -> float:
    """Return delta of `price_of_series`: one for each run, and with several one for their sum."""
    choice = runs[0].delta if len(runs) > 1 else 0.0
    return math.fsum([*(terms.delta for terms in runs), choice])


def order_of_series(first: RunTerms, seat: int, *, unit: PrivacyUnit) -> float | None:
    """Return the Renyi order at which runs add up: it follows from the first run's terms.

    It suits Gaussian noise of twice the first run's cost.

    Returns:
        An order above 1; None where the first run has no price or an enormous one, or tests of
        stability, whose deltas would have to be fixed for the whole series: then epsilons add up.
    """
    cost = charged_price(first, seat, unit=unit)
    if not 0 < cost.epsilon <= _LARGEST_FIRST or first.rule.test_delta is not None:
        return None
    mu = gdp_mu(cost.epsilon, first.delta)
    return order_for_life(gdp_epsilon(math.sqrt(2) * mu, first.delta), first.delta)


def _divergence_of_series(
    runs: Sequence[RunTerms], seat: int, *, unit: PrivacyUnit, at_coordinator: bool = False
) -> FormalCost:
    """Convert the divergences of runs at their caps, at the order that the first one fixed."""
    holds_for = PUBLIC_VIEW
    order = order_of_series(runs[0], seat, unit=unit)
    if order is None or any(terms.rule.test_delta is not None for terms in runs):
        return FormalCost(math.inf, SERIES_METHOD, holds_for)
    parts = []
    for terms in runs:
        seen = are_counts_seen(terms, at_coordinator=at_coordinator)
        bound = event_rdp if seen else event_public_rdp
        event = event_seen(terms, seat, unit=unit, at_coordinator=at_coordinator)
        parts.append(float(bound(event, [order])[0]))
    rdp = math.fsum(parts) * ROUNDING_ROOM
    if not math.isfinite(rdp):
        return FormalCost(math.inf, SERIES_METHOD, holds_for)
    epsilon = epsilon_at_order(rdp, order, delta=runs[0].delta) * ROUNDING_ROOM
    return FormalCost(epsilon, SERIES_METHOD, holds_for, order=order)
