"""A run's cost against all its budgets, for searches: the share that it takes, the noise to try."""

from __future__ import annotations

import math

from pate_fed.accounting import PrivacyLedger, event_additive_delta, gdp_mu
from pate_fed.accounting.formal_cost import ROUNDING_ROOM
from pate_fed.charges import whole_charge
from pate_fed.prices import are_counts_seen, charged_price
from pate_fed.terms import RunTerms


def budget_share(terms: RunTerms) -> float:
    """Return the largest share of its budget that a run costs any party, above 1 if too much."""
    return max(cost / budget for cost, budget in _costs_and_budgets(terms))


def tightest_cost(terms: RunTerms) -> tuple[float, float]:
    """Return the cost of a run for the party that comes closest to its budget, and that budget."""
    return max(_costs_and_budgets(terms), key=lambda found: found[0] / found[1])


def _costs_and_budgets(terms: RunTerms) -> list[tuple[float, float]]:
    budgets: dict[int, tuple[int, float]] = {}
    for seat, budget in enumerate(terms.budgets):
        weight = terms.unit_votes_at(seat)
        budgets[weight] = seat, min(budget, budgets.get(weight, (seat, budget))[1])
    return [(charged_price(terms, seat).epsilon, budget) for seat, budget in budgets.values()]


def share_for_life(terms: RunTerms) -> float:
    """Return the largest share that a run takes of new ledgers for life of the same budgets.

    A ledger for life adds up at an order that was fixed at a hospital's first start, so it holds a
    little less than a run may cost.

    Returns:
        Above 1 where a hospital that never took part in a run could not pay for it.
    """
    kinds = {(terms.unit_votes_at(seat), budget): seat for seat, budget in enumerate(terms.budgets)}
    shares = [0.0]
    for (_, budget), seat in kinds.items():
        if (charge := whole_charge(terms, seat)) is None:
            continue
        kept = event_additive_delta(charge) * ROUNDING_ROOM
        if kept >= terms.delta:
            return math.inf
        ledger = PrivacyLedger.for_life(budget, terms.delta, additive_delta=kept)
        shares.append(ledger.share_of(charge))
    return max(shares)


def likely_noise(terms: RunTerms) -> float:
    """Return about the noise that fills all budgets, to start a search from: a cost takes seconds.

    Labels need four fifths of the noise that counts do, which exact Gaussian composition gives.

    The noise in `terms` does not matter here.
    """
    moved = max(
        terms.unit_votes_at(seat) / gdp_mu(budget, terms.delta)
        for seat, budget in enumerate(terms.budgets)
    )
    shown = are_counts_seen(terms, at_coordinator=True)
    asks = terms.caps.moved(terms.caps.most).asks
    return moved * math.sqrt(2 * asks) * (1.0 if shown else 0.815)
