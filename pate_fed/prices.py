"""A run's cost at its caps: the one number that budgets, pages, commands and files agree on."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

from pate_fed.accounting import FormalCost, GaussianMaxEvent, PrivacyEvent
from pate_fed.accounting.costs import AGGREGATOR_VIEW, PUBLIC_VIEW, PrivacyUnit
from pate_fed.accounting.events import DistributedGaussianMaxEvent
from pate_fed.accounting.formal_cost import counts_cost, gdp_cost, labels_cost
from pate_fed.charges import charge_of, noise_of
from pate_fed.terms import RunTerms


def charged_price(terms: RunTerms, seat: int, *, unit: PrivacyUnit | None = None) -> FormalCost:
    """Return a run's largest cost for one party's units, in the view that budgets are for.

    That is the view of whoever receives the party's messages (rule R13): the public's with noise at
    the coordinator, which is trusted; the coordinator's with noise at the parties. With noise at
    the aggregators it is that of either of them, the coordinator or the tally.

    Args:
        seat: Place of the party among all, from 0.
        unit: The privacy unit to protect; None for the run's own.
    """
    cost = _cost(terms, seat, unit=unit, at_coordinator=True)
    return replace(cost, holds_for=AGGREGATOR_VIEW) if terms.rule.at_aggregators else cost


def charged_number(terms: RunTerms, seat: int, *, stated: FormalCost) -> tuple[float, str]:
    """Return the epsilon of `charged_price`, and its view in short.

    Args:
        stated: What readers see, `run_price`: where budgets are for their view, it is that number,
            and the view is `READERS`.
    """
    if terms.is_evaluation or not terms.rule.opens_noisy:
        return stated.epsilon, READERS
    view = "the coordinator or the tally" if terms.rule.at_aggregators else "the coordinator"
    return charged_price(terms, seat).epsilon, view


READERS: Final = "readers"
"""The public's view in short, of labels or of an evaluation's counts."""


def public_price(terms: RunTerms, seat: int, *, unit: PrivacyUnit | None = None) -> FormalCost:
    """Return a run's largest cost for one party's units, seen by readers of its outcomes only."""
    if terms.rule.at_aggregators:
        return replace(_cost(terms, seat, unit=unit, at_coordinator=False), holds_for=PUBLIC_VIEW)
    return _cost(terms, seat, unit=unit, at_coordinator=False)


def are_counts_seen(terms: RunTerms, *, at_coordinator: bool) -> bool:
    """Tell whether a run is priced as if its noisy counts were seen, not its outcomes alone.

    `at_coordinator` asks for the view of the messages' receiver, otherwise for the public's.
    """
    if at_coordinator and terms.rule.opens_noisy:
        return True
    # The counts of an evaluation are published: everybody sees what the coordinator sees.
    # Everybody sees whether a batch is void. A hospital can lie about its row sums, so that the
    # noise decides it; no proof covers that and a threshold together for less than the row. Nor
    # does one cover a threshold and whole noise of two aggregators.
    decided = terms.rule.opens_noisy and terms.spec.may_refuse
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


def event_seen(
    terms: RunTerms, seat: int, *, unit: PrivacyUnit | None = None, at_coordinator: bool
) -> PrivacyEvent:
    """Return a run's event at its caps, with the noise that a view does not know.

    An aggregator knows its own noise, and readers of labels that of neither.
    """
    weight = replace(terms, unit=unit or terms.unit).unit_votes_at(seat)
    event = charge_of(terms, terms.caps.most, weight=weight)
    if at_coordinator or not terms.rule.at_aggregators:
        return event
    assert isinstance(event, DistributedGaussianMaxEvent), "checked by the terms"
    noise = noise_of(terms)
    # Rounded down, but to no less than what can be shared.
    both = max(noise.sum_sigma(noise.parties) * (1 - 1e-15), math.sqrt(noise.parties))
    return replace(event, sigma=both, shares=noise.parties)


def _cost(
    terms: RunTerms, seat: int, *, unit: PrivacyUnit | None, at_coordinator: bool
) -> FormalCost:
    event = event_seen(terms, seat, unit=unit, at_coordinator=at_coordinator)
    if are_counts_seen(terms, at_coordinator=at_coordinator):
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
