"""The formal cost of a run at its caps: one number, the smallest bound that holds.

Formal means: for every possible set of records, from public parameters that were fixed before the
run. Each bound is a constant of the caps, so the smallest of them is one, too.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache

from pate_fed.accounting.accountant import RenyiAccountant
from pate_fed.accounting.composition import can_be_composed, labels_epsilon
from pate_fed.accounting.costs import (
    COMPOSED_METHOD,
    COUNTS_VIEW,
    GDP_METHOD,
    NO_BOUND_METHOD,
    PUBLIC_VIEW,
    RENYI_METHOD,
    FormalCost,
)
from pate_fed.accounting.distributed_costs import (
    DistributedEvent,
    distributed_labels_cost,
    rows_cost,
)
from pate_fed.accounting.events import (
    CappedGaussianMaxEvent,
    ConfidentGaussianMaxEvent,
    GaussianMaxEvent,
    ImmutableMaxEvent,
    PrivacyEvent,
)
from pate_fed.accounting.gaussian_dp import LARGEST_MU, gdp_epsilon, gdp_mu_squared
from pate_fed.accounting.label_bounds import LABEL_METHOD, label_level_epsilon

ROUNDING_ROOM = 1 + 1e-9
"""Factor that covers the rounding of sums over a run's batches."""


@lru_cache(maxsize=1024)
def labels_cost(event: PrivacyEvent, *, options: int, delta: float) -> FormalCost:
    """Return the cost for those who see labels and "no answer"s alone, for any votes.

    `options` are the outcomes of a query: the classes, and "no answer" if there is one.
    """
    if isinstance(event, DistributedEvent):
        return distributed_labels_cost(event, delta=delta)
    if isinstance(event, GaussianMaxEvent):
        kinds = min(options, 3)  # all numbers of options above two have one price
        if can_be_composed(kinds, event.sigma, asks=event.asks, delta=delta, weight=event.weight):
            return _composed(kinds, event, delta)
    if isinstance(event, GaussianMaxEvent | ConfidentGaussianMaxEvent):
        # Who sees labels alone sees no more than a reader of the counts.
        by_counts = replace(gdp_cost(event, delta=delta), holds_for=PUBLIC_VIEW)
        return min(_label_rdp(event, delta), by_counts, key=lambda cost: cost.epsilon)
    if isinstance(event, CappedGaussianMaxEvent):
        return replace(gdp_cost(event, delta=delta), holds_for=PUBLIC_VIEW)
    if isinstance(event, ImmutableMaxEvent):
        return FormalCost(math.inf, NO_BOUND_METHOD)
    return _by_curve(event, delta)


def counts_cost(event: PrivacyEvent, *, delta: float) -> FormalCost:
    """Return the cost for those who see the noisy counts, too; of Gaussian noise only."""
    if isinstance(event, DistributedEvent):
        return rows_cost(event, delta=delta)
    return gdp_cost(event, delta=delta)


@lru_cache(maxsize=1024)
def _composed(options: int, event: GaussianMaxEvent, delta: float) -> FormalCost:
    epsilon = labels_epsilon(
        options, event.sigma, asks=event.asks, delta=delta, weight=event.weight
    )
    return FormalCost(epsilon, COMPOSED_METHOD)


def gdp_cost(event: PrivacyEvent, *, delta: float) -> FormalCost:
    """Return the cost by exact Gaussian composition; infinite where there is next to no noise."""
    mu = math.sqrt(gdp_mu_squared(event))
    epsilon = gdp_epsilon(mu, delta) if mu <= LARGEST_MU else math.inf
    return FormalCost(epsilon, GDP_METHOD, COUNTS_VIEW)


def _label_rdp(event: GaussianMaxEvent | ConfidentGaussianMaxEvent, delta: float) -> FormalCost:
    found = label_level_epsilon(event, delta=delta)
    return FormalCost(found.epsilon, LABEL_METHOD, order=found.order)


def _by_curve(event: PrivacyEvent, delta: float) -> FormalCost:
    accountant = RenyiAccountant()
    accountant.compose(event)
    # A ledger keeps a little more for tests of stability than they need.
    kept = accountant.additive_delta * ROUNDING_ROOM
    if kept >= delta:
        return FormalCost(math.inf, RENYI_METHOD)
    converted = accountant.get_converted(delta - (kept - accountant.additive_delta))
    return FormalCost(converted.epsilon, RENYI_METHOD, order=converted.order)
