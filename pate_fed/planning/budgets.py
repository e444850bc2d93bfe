"""A run's cost against all its budgets, for searches: the share that it takes, the noise to try."""

from __future__ import annotations

import math

from pate_fed.accounting import gdp_mu
from pate_fed.federation import RunTerms
from pate_fed.pricing import are_counts_seen, charged_cost


def budget_share(terms: RunTerms) -> float:
    """Return the largest share of its budget that a run costs any party, above 1 if too much.

    Args:
        terms: The run's.
    """
    return max(cost / budget for cost, budget in _costs_and_budgets(terms))


def tightest_cost(terms: RunTerms) -> tuple[float, float]:
    """Return the cost of a run for the party that comes closest to its budget, and that budget."""
    return max(_costs_and_budgets(terms), key=lambda found: found[0] / found[1])


def _costs_and_budgets(terms: RunTerms) -> list[tuple[float, float]]:
    budgets: dict[int, tuple[int, float]] = {}
    for seat, budget in enumerate(terms.budgets):
        weight = terms.unit_votes_at(seat)
        budgets[weight] = seat, min(budget, budgets.get(weight, (seat, budget))[1])
    return [(charged_cost(terms, seat).epsilon, budget) for seat, budget in budgets.values()]


def likely_noise(terms: RunTerms) -> float:
    """Return about the noise that fills all budgets, to start a search from: a cost takes seconds.

    Labels need four fifths of the noise that counts do, which exact Gaussian composition gives.

    Args:
        terms: The run's; its noise does not matter here.
    """
    moved = max(
        terms.unit_votes_at(seat) / gdp_mu(budget, terms.delta)
        for seat, budget in enumerate(terms.budgets)
    )
    shown = are_counts_seen(terms, at_coordinator=True)
    return moved * math.sqrt(2 * terms.max_asks) * (1.0 if shown else 0.815)
