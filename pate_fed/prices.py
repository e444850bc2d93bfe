"""A run's cost at its caps: the one number that budgets, pages, commands and files agree on."""

from __future__ import annotations

import math
from dataclasses import replace

from pate_fed.accounting import FormalCost, GaussianMaxEvent
from pate_fed.accounting.costs import PrivacyUnit
from pate_fed.accounting.formal_cost import counts_cost, gdp_cost, labels_cost
from pate_fed.charges import charge_of
from pate_fed.terms import RunTerms


def charged_price(terms: RunTerms, seat: int, *, unit: PrivacyUnit | None = None) -> FormalCost:
    """Return a run's largest cost for one party's units, in the view that budgets are for.

    That is the view of whoever receives the party's messages (rule R13): the public's with noise at
    the coordinator, which is trusted; the coordinator's with noise at the parties.

    Args:
        seat: Place of the party among all, from 0.
        unit: The privacy unit to protect; None for the run's own.
    """
    shown = are_counts_seen(terms, at_coordinator=True)
    return _cost(terms, seat, unit=unit, shows_counts=shown)


def public_price(terms: RunTerms, seat: int, *, unit: PrivacyUnit | None = None) -> FormalCost:
    """Return a run's largest cost for one party's units, seen by readers of its outcomes only."""
    shown = are_counts_seen(terms, at_coordinator=False)
    return _cost(terms, seat, unit=unit, shows_counts=shown)


def are_counts_seen(terms: RunTerms, *, at_coordinator: bool) -> bool:
    """Tell whether a run is priced as if its noisy counts were seen, not its outcomes alone.

    `at_coordinator` asks for the view of the messages' receiver, otherwise for the public's.
    """
    if at_coordinator and terms.rule.at_parties:
        return True
    # The counts of an evaluation are published: everybody sees what the coordinator sees.
    # Everybody sees whether a batch is void. A hospital can lie about its row sums, so that the
    # noise decides it; no proof covers that and a threshold together for less than the row.
    decided = terms.rule.at_parties and terms.spec.may_refuse
    return terms.is_evaluation or terms.spec.shows_counts or decided


def removal_price(terms: RunTerms, seat: int) -> FormalCost | None:
    """Return a run's cost for one party's units, compared with their having cast no vote at all.

    A smaller number than `public_price`, whose neighbors vote differently: only one count moves, so
    that a query is a bit, "this class or not", of noise 1 / sigma.

    Returns:
        None where no such number is proved: of another mechanism, of several votes or labels, or
        with noise at the parties.

    Source:
        docs/explanation/label-level-bound.md, section on abstention.
    """
    event = charge_of(terms, terms.caps.most, weight=terms.unit_votes_at(seat))
    if not isinstance(event, GaussianMaxEvent) or event.weight != 1 or terms.spec.shows_counts:
        return None
    if terms.caps.labels is not None:  # no vote at all also takes back each "no"
        return None
    # Two options differ by the noise of two counts, and move by two votes.
    bit = replace(event, sigma=event.sigma * math.sqrt(2) * (1 - 1e-15))
    return labels_cost(bit, options=2, delta=terms.delta)


def _cost(
    terms: RunTerms, seat: int, *, unit: PrivacyUnit | None, shows_counts: bool
) -> FormalCost:
    weight = replace(terms, unit=unit or terms.unit).unit_votes_at(seat)
    event = charge_of(terms, terms.caps.most, weight=weight)
    if shows_counts:
        return counts_cost(event, delta=terms.delta)
    options = terms.classes + terms.spec.may_refuse
    return labels_cost(event, options=options, delta=terms.delta)


def run_price(terms: RunTerms) -> FormalCost:
    """Return a run's cost: the one epsilon that every page, command and file states for it.

    It is that of `most_exposed`.
    """
    return most_exposed(terms)[1]


def most_exposed(terms: RunTerms) -> tuple[int, FormalCost]:
    """Return the party whose units a run may cost most in the public view, and that cost."""
    # Parties that are alike cost the same: the first of each kind is looked at.
    seats: dict[int, int] = {}
    for seat in range(len(terms.weights)):
        seats.setdefault(terms.unit_votes_at(seat), seat)
    costs = [(seat, public_price(terms, seat)) for seat in seats.values()]
    return max(costs, key=lambda found: found[1].epsilon)


def is_within_budget(terms: RunTerms, seat: int) -> bool:
    """Tell whether a run costs one party's units at most its budget."""
    budget, event = (
        terms.budgets[seat],
        charge_of(terms, terms.caps.most, weight=terms.unit_votes_at(seat)),
    )
    if isinstance(event, GaussianMaxEvent) and gdp_cost(event, delta=terms.delta).epsilon <= budget:
        return True  # without the seconds that the exact price takes, which is smaller
    return charged_price(terms, seat).epsilon <= budget
