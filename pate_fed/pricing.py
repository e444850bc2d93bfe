"""A run's worst cost by each method of charging, and which is cheapest for its caps."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Final

from pate_fed.accounting import (
    FormalCost,
    RenyiAccountant,
)
from pate_fed.accounting.any_votes import AnyVotesSetting
from pate_fed.accounting.bellman import (
    Caps,
    bellman_epsilon,
    can_be_composed,
    is_worth_the_time,
)
from pate_fed.accounting.calibration import most_queries
from pate_fed.accounting.composition import can_be_composed as labels_can_be_composed
from pate_fed.accounting.composition import labels_epsilon
from pate_fed.accounting.distributed_costs import DistributedEvent, distributed_costs, rows_cost
from pate_fed.accounting.formal import RunCaps, gdp_cost, joint_cost, label_cost
from pate_fed.accounting.statement import (
    BELLMAN_ANSWERS_METHOD,
    BELLMAN_LABEL_METHOD,
    BELLMAN_METHOD,
    COUNTS_VIEW,
    FILTER_METHODS,
    NO_BOUND_METHOD,
    PUBLIC_VIEW,
    RENYI_METHOD,
    RUNS_METHOD,
    Pricing,
    PrivacyUnit,
)
from pate_fed.accounting.vote_pairs import JointSetting
from pate_fed.charging import ROUNDING_ROOM, mechanism_of
from pate_fed.errors import InvalidParameterError
from pate_fed.federation import RunTerms
from pate_fed.mechanisms import GaussianMax

_QUICKEST_FIRST: Final[tuple[Pricing, ...]] = ("gdp", "joint", "renyi", "none", "label")
PRICINGS: Final[frozenset[Pricing]] = frozenset({"gdp", "label", "joint", "renyi", "none"})
"""Every way to charge."""
_MOST_LABELS: Final = 2_000
"""Labels up to which a report takes the time for their price by dynamic programming: of two classes
a second, of more classes about three for each thousand.
"""


Bounds = Mapping[Pricing, FormalCost]


def formal_bounds(
    terms: RunTerms, *, weight: int, votes_are_valid: bool, wanted: frozenset[Pricing] = PRICINGS
) -> Bounds:
    """Bound the cost of a run that reaches its caps, by every pricing that holds.

    The view is the one that a party's ledger charges (rule R13): the public's with noise at the
    coordinator, the coordinator's with noise at the parties.

    Args:
        terms: The run's; its pricing, orders and budgets do not matter here.
        weight: Votes that one neighboring change can move.
        votes_are_valid: Whether all parties are trusted to send valid vote rows, which the joint
            price needs.
        wanted: Compute no others, where several pricings hold: some take a second.

    Returns:
        The cost by each pricing: infinite, with the reason as its method, where it is not known
        for these parameters. Where nothing holds, "none" alone, with an infinite epsilon.
    """
    prices = terms.spec.prices_with(terms.noise_place)
    if prices == ("none",):
        return {"none": FormalCost(math.inf, NO_BOUND_METHOD)}
    if terms.at_parties:
        return {"renyi": rows_cost(_whole_run(terms, weight), delta=terms.delta)}
    if prices == ("renyi",):
        return {"renyi": _by_curve(terms, weight)}
    assert terms.sigma2 is not None
    caps = RunCaps(
        teachers=terms.total_votes,
        classes=terms.classes,
        vote_threshold=terms.vote_threshold,
        sigma1=terms.sigma1,
        sigma2=terms.sigma2,
        asks=terms.max_asks,
        answers=terms.max_answers,
        refusals=terms.max_refusals,
        weight=weight,
        delta=terms.delta,
    )
    ways = wanted & _known_for(terms, votes_are_valid=votes_are_valid)
    found = {pricing: _bound(caps, pricing) for pricing in _QUICKEST_FIRST if pricing in ways}
    known = {pricing: cost for pricing, cost in found.items() if cost is not None}
    if terms.spec.for_research:
        return {name: replace(cost, holds_for=COUNTS_VIEW) for name, cost in known.items()}
    return known


@lru_cache(maxsize=1024)
def _bound(caps: RunCaps, pricing: Pricing) -> FormalCost | None:
    if pricing == "gdp":
        return gdp_cost(caps)
    return joint_cost(caps) if pricing == "joint" else label_cost(caps)


def cheapest_pricing(
    terms: RunTerms, *, votes_are_valid: bool, wanted: frozenset[Pricing] = PRICINGS
) -> tuple[Pricing, float]:
    """Find the pricing by which the party nearest to its budget uses the smallest share of it.

    Args:
        terms: The run's; its pricing and orders do not matter here.
        votes_are_valid: As for `formal_bounds`.
        wanted: Pricings to choose from.

    Returns:
        The pricing, and the largest share of its budget that any party needs: at most 1 where
        the caps fit all budgets.

    Raises:
        InvalidParameterError: none of `wanted` is known for these parameters.
    """
    found = {
        pricing: _needs(terms, pricing, votes_are_valid=votes_are_valid)
        for pricing in _QUICKEST_FIRST
        if pricing in wanted & _known_for(terms, votes_are_valid=votes_are_valid)
    }
    needs = {pricing: max(shares)[0] for pricing, shares in found.items() if shares}
    if not needs:
        raise InvalidParameterError(
            f"a price must be known for {terms.mechanism} with these parameters",
            f"none by {', '.join(sorted(wanted))}{_why_unknown(terms, wanted)}",
        )
    chosen = min(needs, key=lambda pricing: needs[pricing])
    return chosen, needs[chosen]


def tightest_cost(
    terms: RunTerms, *, votes_are_valid: bool, wanted: frozenset[Pricing] = PRICINGS
) -> tuple[float, float]:
    """Return the cost of a run at its caps for the party that comes closest to its budget.

    Returns:
        Epsilon by the cheapest pricing, and that party's budget.

    Raises:
        InvalidParameterError: as for `cheapest_pricing`.
    """
    chosen, _ = cheapest_pricing(terms, votes_are_valid=votes_are_valid, wanted=wanted)
    _, epsilon, budget = max(_needs(terms, chosen, votes_are_valid=votes_are_valid))
    return epsilon, budget


def _known_for(terms: RunTerms, *, votes_are_valid: bool) -> frozenset[Pricing]:
    """Return the pricings that a mechanism can have; the joint one may still be out of reach."""
    prices = frozenset(terms.spec.prices_with(terms.noise_place))
    return prices if votes_are_valid else prices - {"joint"}


def _is_known(pricing: Pricing, cost: FormalCost) -> bool:
    """Tell whether a price may be charged: the joint one is infinite beyond its range."""
    return pricing != "joint" or math.isfinite(cost.epsilon)


def _why_unknown(terms: RunTerms, wanted: frozenset[Pricing]) -> str:
    """Say why there is no price: the limit that a joint price is beyond, or the method."""
    bounds = formal_bounds(
        terms, weight=terms.unit_votes, votes_are_valid="joint" in wanted, wanted=wanted
    )
    return "".join(f" ({cost.method})" for cost in bounds.values())


def _needs(
    terms: RunTerms, pricing: Pricing, *, votes_are_valid: bool
) -> list[tuple[float, float, float]]:
    """Return share of its budget, epsilon and budget of each kind of party; none where unknown."""
    budgets: dict[int, float] = {}
    for seat, budget in enumerate(terms.budgets):
        weight = terms.unit_votes_at(seat)
        budgets[weight] = min(budget, budgets.get(weight, budget))
    found = []
    for weight, budget in budgets.items():
        bounds = formal_bounds(
            terms, weight=weight, votes_are_valid=votes_are_valid, wanted=frozenset({pricing})
        )
        if pricing not in bounds or not _is_known(pricing, bounds[pricing]):
            return []
        found.append((bounds[pricing].epsilon / budget, bounds[pricing].epsilon, budget))
    return found


def affordable_queries(
    terms_of: Callable[[int], RunTerms],
    *,
    most: int,
    votes_are_valid: bool,
    wanted: frozenset[Pricing] = PRICINGS,
) -> int:
    """Return how many queries all budgets afford at the worst, by the smallest price.

    Args:
        terms_of: Gives the terms of a run of so many queries. More queries must not cost less.
        most: Largest number to consider, at least 0.
        votes_are_valid: As for `formal_bounds`.
        wanted: Pricings to choose from.

    Returns:
        A number from 0 to `most`.
    """

    def need(queries: int) -> float:
        terms, least = terms_of(queries), math.inf
        for pricing in _QUICKEST_FIRST:
            if pricing in wanted & _known_for(terms, votes_are_valid=votes_are_valid):
                shares = _needs(terms, pricing, votes_are_valid=votes_are_valid)
                least = min(least, max(shares)[0] if shares else math.inf)
            if least * ROUNDING_ROOM <= 1:  # one that fits is enough
                break
        # A ledger adds batches up and rounds up: a query afforded here must not fail there.
        return least * ROUNDING_ROOM

    return most_queries(need, budget=1.0, most=most)


def priced(
    terms: RunTerms, *, votes_are_valid: bool, wanted: frozenset[Pricing] = PRICINGS
) -> RunTerms:
    """Choose how a run is charged, from public parameters and before it begins.

    Args:
        terms: The run's; pricing and orders are replaced.
        votes_are_valid: As for `formal_bounds`.
        wanted: Pricings to choose from.

    Returns:
        Terms with the cheapest pricing, and for each party the order that is best for its units.

    Raises:
        InvalidParameterError: none of `wanted` is known for these parameters.
    """
    chosen, _ = cheapest_pricing(terms, votes_are_valid=votes_are_valid, wanted=wanted)
    weights = [terms.unit_votes_at(seat) for seat in range(len(terms.weights))]
    orders = {
        weight: formal_bounds(
            terms, weight=weight, votes_are_valid=True, wanted=frozenset({chosen})
        )[chosen].order
        for weight in set(weights)
    }
    return replace(
        terms,
        pricing=chosen,
        orders=tuple(order for weight in weights if (order := orders[weight]) is not None),
    )


def formal_cost_at(terms: RunTerms, seat: int) -> FormalCost:
    """Return a run's largest cost for one party's units: at the caps, or its budget if less.

    In the view that is charged; see `formal_bounds`.

    Args:
        terms: The run's.
        seat: Place of the party among all, from 0.
    """
    weight, budget = terms.unit_votes_at(seat), terms.budgets[seat]
    wanted = frozenset({terms.pricing})
    bounds = formal_bounds(terms, weight=weight, votes_are_valid=True, wanted=wanted)
    at_caps = bounds.get(terms.pricing)  # a joint price is not known for all parameters
    if at_caps is not None and (at_caps.epsilon <= budget or terms.pricing == "none"):
        return at_caps
    order = terms.orders[seat] if terms.orders else None
    holds_for = PUBLIC_VIEW if at_caps is None else at_caps.holds_for
    return FormalCost(budget, FILTER_METHODS[terms.pricing], holds_for, order=order)


def public_cost_at(terms: RunTerms, seat: int) -> FormalCost:
    """Return a run's largest cost for one party's units, seen by readers of its outcomes only.

    With noise at the parties the coordinator, who opens the noisy sums, can learn more than that; a
    budget that holds for the coordinator holds for the public.

    Args:
        terms: The run's.
        seat: Place of the party among all, from 0.
    """
    charged = formal_cost_at(terms, seat)
    if not terms.at_parties:
        return charged
    event = _whole_run(terms, terms.unit_votes_at(seat))
    public = distributed_costs(event, delta=terms.delta).public
    if public.epsilon <= charged.epsilon:
        return public
    return FormalCost(charged.epsilon, charged.method, public.holds_for, order=charged.order)


def cost_of_runs(
    runs: Sequence[RunTerms], seat: int, *, unit: PrivacyUnit, at_coordinator: bool = False
) -> FormalCost:
    """Bound what several runs together cost one party's units: epsilons and deltas add up.

    Each run's cost was fixed before it began, and queries and terms of a later run may depend on
    the releases of earlier ones: basic composition.

    Args:
        runs: Their terms, the same parties in the same seats; at least one.
        seat: Place of the party among all, from 0.
        unit: The privacy unit to protect, in place of each run's own.
        at_coordinator: Whether the cost is that of the coordinator's view, for which all runs need
            their noise at the parties; otherwise it is that of the public view.

    Returns:
        The cost at the sum of the runs' deltas.
    """
    cost_at = formal_cost_at if at_coordinator else public_cost_at
    costs = [
        _stated(cost_at(terms, seat), terms, terms.pricing, weight=terms.unit_votes_at(seat))
        if terms.unit == unit
        else cost_of_unit(terms, seat, unit=unit)
        for terms in runs
    ]
    if len(costs) == 1:
        return costs[0]
    epsilon = math.fsum(cost.epsilon for cost in costs) * ROUNDING_ROOM
    return FormalCost(epsilon, RUNS_METHOD, costs[0].holds_for)


def run_cost(terms: RunTerms) -> FormalCost:
    """Return a run's cost: the one epsilon that every page, command and file states for it.

    It is that of `most_exposed`. Budgets add up other amounts than this number: shares of them are
    said beside it.

    Args:
        terms: The run's.
    """
    return most_exposed(terms)[1]


def cost_for(terms: RunTerms, seat: int) -> FormalCost:
    """Return a run's cost for one party's units, as stated: at most `run_cost`.

    Args:
        terms: The run's.
        seat: Place of the party among all, from 0.
    """
    if terms.is_evaluation:  # its counts are published: everybody sees what the coordinator sees
        return formal_cost_at(terms, seat)
    return cost_of_runs([terms], seat, unit=terms.unit)


def most_exposed(terms: RunTerms) -> tuple[int, FormalCost]:
    """Return the party whose units a run may cost most in the public view, and that cost.

    It need not be the party that is charged most: what is stated may be less than the charge.

    Args:
        terms: The run's.
    """
    charged = [formal_cost_at(terms, seat).epsilon for seat in range(len(terms.weights))]
    most, found = 0, FormalCost(-math.inf, NO_BOUND_METHOD)
    # Parties that are alike cost the same: one of each kind is looked at.
    kinds = {
        (charged[seat], terms.unit_votes_at(seat), terms.budgets[seat]): seat
        for seat in reversed(range(len(charged)))
    }
    for (most_charged, *_), seat in sorted(kinds.items(), reverse=True):
        if most_charged <= found.epsilon and not terms.at_parties:
            break  # nor does any other: no stated cost exceeds its charge
        cost = cost_for(terms, seat)
        if cost.epsilon > found.epsilon:
            most, found = seat, cost
    return most, found


def _stated(cost: FormalCost, terms: RunTerms, pricing: Pricing, *, weight: int) -> FormalCost:
    """Return a cost of these votes, by dynamic programming where that is known and smaller.

    It is a constant of the caps, which end every run. The budget is charged by prices that add up.
    """
    if terms.mechanism == GaussianMax.name:
        return _stated_labels(cost, terms, pricing, weight=weight)
    if terms.vote_threshold is None or terms.sigma1 is None or terms.sigma2 is None:
        return cost
    setting: JointSetting | AnyVotesSetting
    if pricing == "joint":
        setting = JointSetting(
            terms.total_votes,
            terms.classes,
            terms.vote_threshold,
            terms.sigma1,
            terms.sigma2,
            weight,
        )
    elif pricing == "label":
        setting = AnyVotesSetting(terms.classes, terms.sigma1, terms.sigma2, weight)
    else:
        return cost
    caps = (terms.max_refusals, terms.max_answers, terms.max_asks)
    if not can_be_composed(setting) or not is_worth_the_time(
        caps, terms.total_votes, weight=weight * _kinds_of_units(terms)
    ):
        return cost
    epsilon = _bellman(setting, caps, terms.delta, cost.epsilon)
    if epsilon >= cost.epsilon:
        return cost
    method = BELLMAN_METHOD if pricing == "joint" else BELLMAN_LABEL_METHOD
    return FormalCost(epsilon, method, cost.holds_for)


def _stated_labels(
    cost: FormalCost, terms: RunTerms, pricing: Pricing, *, weight: int
) -> FormalCost:
    """Return the same for a run that answers every ask."""
    sigma, classes, asks = terms.sigma2, terms.classes, min(terms.max_asks, terms.max_answers)
    if (
        pricing != "label"
        or terms.at_parties
        or sigma is None
        or not labels_can_be_composed(classes, sigma, asks=asks, weight=weight)
        or asks * _kinds_of_units(terms) > _MOST_LABELS
    ):
        return cost
    epsilon = _labels(classes, sigma, asks=asks, delta=terms.delta, weight=weight)
    if epsilon >= cost.epsilon:
        return cost
    return FormalCost(epsilon, BELLMAN_ANSWERS_METHOD, cost.holds_for)


def _kinds_of_units(terms: RunTerms) -> int:
    """Count the different numbers of votes of one unit: a report composes for each of them."""
    return len({terms.unit_votes_at(seat) for seat in range(len(terms.weights))})


@lru_cache(maxsize=256)
def _labels(classes: int, sigma: float, *, asks: int, delta: float, weight: int) -> float:
    return labels_epsilon(classes, sigma, asks=asks, delta=delta, weight=weight)


@lru_cache(maxsize=256)
def _bellman(
    setting: JointSetting | AnyVotesSetting, caps: Caps, delta: float, known: float
) -> float:
    return bellman_epsilon(setting, caps, delta=delta, known=known)


def unconditional_epsilon(terms: RunTerms, seat: int, *, unit: PrivacyUnit) -> float:
    """Return the smallest bound of a run at its caps that needs no valid votes.

    Args:
        terms: The run's.
        seat: Place of the party among all, from 0.
        unit: The privacy unit to protect, in place of the run's own.
    """
    weight = replace(terms, unit=unit).unit_votes_at(seat)
    bounds = formal_bounds(terms, weight=weight, votes_are_valid=False)
    return min(
        (_stated(cost, terms, pricing, weight=weight).epsilon for pricing, cost in bounds.items()),
        default=math.inf,
    )


def cost_of_unit(terms: RunTerms, seat: int, *, unit: PrivacyUnit) -> FormalCost:
    """Return a run's cost at its caps for another unit than its own: no budget was kept for it."""
    weight = replace(terms, unit=unit).unit_votes_at(seat)
    bounds = formal_bounds(terms, weight=weight, votes_are_valid=terms.pricing == "joint")
    nothing = FormalCost(math.inf, NO_BOUND_METHOD)
    return min(bounds.values(), key=lambda cost: cost.epsilon, default=nothing)


def _whole_run(terms: RunTerms, weight: int) -> DistributedEvent:
    """Return the event of a run at its caps, with noise at the parties."""
    event = mechanism_of(terms).worst_case_event(
        terms.max_asks, terms.max_answers, weight=float(weight)
    )
    assert isinstance(event, DistributedEvent)
    return event


def _by_curve(terms: RunTerms, weight: int) -> FormalCost:
    mechanism = mechanism_of(terms)
    accountant = RenyiAccountant()
    accountant.compose(
        mechanism.worst_case_event(terms.max_asks, terms.max_answers, weight=float(weight))
    )
    if accountant.additive_delta * ROUNDING_ROOM >= terms.delta:
        return FormalCost(math.inf, RENYI_METHOD, order=2.0)
    # `_additive_delta` of `charging` keeps a little more for the tests than they need.
    kept_more = accountant.additive_delta * (ROUNDING_ROOM - 1)
    converted = accountant.get_converted(terms.delta - kept_more)
    return FormalCost(converted.epsilon, RENYI_METHOD, order=converted.order)
