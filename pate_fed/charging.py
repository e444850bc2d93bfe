"""What a run charges: from its terms to mechanism, events, price and ledger.

Everybody who keeps a budget, coordinator and parties, takes it from here, so that all count alike:

    ledger = RunLedger.of(terms)                       # budgets and caps, nothing spent
    reserved = ledger.worst_case(len(queries))         # before a plan leaves
    ledger = ledger.reserve("batch 0", reserved)
    ...
    ledger = ledger.commit("batch 0", outcomes_of(release), release.digest)

Two things end a run, whichever comes first: its caps on asks, refusals and answers, and the budget
of the party that has least left. Both were fixed before it, so both bounds hold at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final, Self

from pate_fed.accounting import (
    NO_OUTCOMES,
    Entry,
    EntryState,
    FormalCost,
    JointPriceEvent,
    OutcomeLedger,
    Outcomes,
    PrivacyEvent,
    PrivacyLedger,
    RenyiAccountant,
    event_additive_delta,
)
from pate_fed.accounting.calibration import most_queries
from pate_fed.accounting.distributed_costs import DistributedEvent, distributed_costs, rows_cost
from pate_fed.accounting.formal import RunCaps, gdp_cost, joint_cost, label_cost
from pate_fed.accounting.statement import (
    FILTER_METHODS,
    NO_BOUND_METHOD,
    PUBLIC_VIEW,
    RENYI_METHOD,
    Pricing,
)
from pate_fed.errors import InvalidParameterError, LedgerError
from pate_fed.federation import RunTerms
from pate_fed.mechanisms import DistributedNoise, Mechanism, Options, make_mechanism
from pate_fed.releases import NoisyRelease

_QUICKEST_FIRST: Final[tuple[Pricing, ...]] = ("gdp", "joint", "renyi", "none", "label")
_ROUNDING = 1 + 1e-9

PRICINGS: Final[frozenset[Pricing]] = frozenset({"gdp", "label", "joint", "renyi", "none"})
"""Every way to charge."""

Bounds = Mapping[Pricing, FormalCost]


def mechanism_of(terms: RunTerms) -> Mechanism:
    """Build the mechanism that the terms name, wherever the noise is added.

    Raises:
        InvalidParameterError: the parties add the noise, and shares of it are too narrow.
    """
    options = Options(
        vote_threshold=terms.vote_threshold,
        sigma1=terms.sigma1,
        sigma2=terms.sigma2,
        confidence=terms.confidence,
        test_delta=terms.test_delta,
        unit_votes=terms.unit_votes,
        shares=terms.shares if terms.at_parties else None,
    )
    return make_mechanism(terms.mechanism, options, simulated=terms.pricing == "none")


def noise_of(terms: RunTerms, *, phase: int = 0) -> DistributedNoise:
    """Say how the noise of a phase is divided among the parties that add it.

    Args:
        terms: The run's, with noise at the parties.
        phase: Which vector of a plan, from 0.

    Raises:
        InvalidParameterError: the coordinator adds the noise, shares of it are too narrow, or no
            such phase exists.
    """
    if not terms.at_parties:
        raise InvalidParameterError("noise must be the parties' to add", terms.noise_place)
    sigmas = mechanism_of(terms).phase_sigmas
    if not 0 <= phase < len(sigmas):
        raise InvalidParameterError(f"a phase must be one of {len(sigmas)}", phase)
    assert terms.colluders is not None
    assert terms.dropouts is not None
    return DistributedNoise(sigmas[phase], len(terms.weights), terms.colluders, terms.dropouts)


def caps_of(terms: RunTerms) -> Outcomes:
    """Return the most that a run can release."""
    return Outcomes(terms.max_refusals, terms.max_answers, terms.max_asks)


def outcomes_of(release: NoisyRelease) -> Outcomes:
    """Count what was released."""
    return Outcomes(release.refused, release.answered)


def charge_of(terms: RunTerms, outcomes: Outcomes, *, weight: int) -> PrivacyEvent:
    """Say what outcomes of a run cost at most, by the run's pricing.

    Args:
        terms: The run's.
        outcomes: Released, or the worst case of what may be.
        weight: Votes that one neighboring change can move.
    """
    if terms.pricing != "joint":
        mechanism = mechanism_of(terms)
        return mechanism.worst_case_event(outcomes.asks, outcomes.answers, weight=float(weight))
    assert terms.vote_threshold is not None
    assert terms.sigma1 is not None
    assert terms.sigma2 is not None
    return JointPriceEvent(
        refusals=outcomes.refusals,
        answers=outcomes.answers,
        asks=outcomes.asks,
        teachers=terms.total_votes,
        classes=terms.classes,
        vote_threshold=terms.vote_threshold,
        sigma1=terms.sigma1,
        sigma2=terms.sigma2,
        weight=weight,
        max_refusals=terms.max_refusals,
        max_answers=terms.max_answers,
        max_asks=terms.max_asks,
    )


def formal_bounds(
    terms: RunTerms, *, weight: int, votes_are_valid: bool, wanted: frozenset[Pricing] = PRICINGS
) -> Bounds:
    """Bound a run at its caps in every way that holds, whatever the votes.

    In the view of whoever receives what a party sends, which is what a party charges (rule R13):
    the public's with noise at the coordinator, the coordinator's with noise at the parties.

    Args:
        terms: The run's; its pricing, orders and budgets do not matter here.
        weight: Votes that one neighboring change can move.
        votes_are_valid: Whether all parties are trusted to send valid vote rows, which the joint
            price needs.
        wanted: Leave out all others: some take a second.

    Returns:
        By pricing; without those that are not known for these parameters. "none" alone, with an
        infinite epsilon, where nothing holds.
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
    return {pricing: cost for pricing, cost in found.items() if cost is not None}


@lru_cache(maxsize=1024)
def _bound(caps: RunCaps, pricing: Pricing) -> FormalCost | None:
    if pricing == "gdp":
        return gdp_cost(caps)
    return joint_cost(caps) if pricing == "joint" else label_cost(caps)


def cheapest_pricing(
    terms: RunTerms, *, votes_are_valid: bool, wanted: frozenset[Pricing] = PRICINGS
) -> tuple[Pricing, float]:
    """Find the pricing by which the party that comes closest to its budget stays furthest from it.

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
            f"none by {', '.join(sorted(wanted))}",
        )
    chosen = min(needs, key=lambda pricing: needs[pricing])
    return chosen, needs[chosen]


def tightest_cost(
    terms: RunTerms, *, votes_are_valid: bool, wanted: frozenset[Pricing] = PRICINGS
) -> tuple[float, float]:
    """Return what a run at its caps costs the party that comes closest to its budget.

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
        if pricing not in bounds:
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
    """Return how many queries all budgets afford at the worst, by whichever price is smallest.

    Args:
        terms_of: Terms of a run of so many queries, which may not cost less than one of fewer.
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
            if least * _ROUNDING <= 1:  # one that fits is enough
                break
        # A ledger adds batches up and rounds up: what is afforded here must not fail there.
        return least * _ROUNDING

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
    """Return what a run costs one party's units at most: at the caps, or its budget if less.

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
    """Return the same for whoever sees labels and "no answer"s only.

    With noise at the parties that is less than what the coordinator, who opens the noisy sums, can
    learn; a budget that holds for the coordinator holds for the public.

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


@dataclass(frozen=True, slots=True)
class RunLedger:
    """Everything that a run has reserved and released: from its caps and from its budgets.

    A value, as its parts are: a step that fails changes nothing.

    Attributes:
        terms: The run's.
        seats: Parties whose budgets are kept here; of parties alike in weight, budget and order,
            one.
        costs: Charges against the budget of each of `seats`; empty where pricing is "none".
        outcomes: Counts against the caps.
    """

    terms: RunTerms
    seats: tuple[int, ...]
    costs: tuple[PrivacyLedger, ...]
    outcomes: OutcomeLedger

    @classmethod
    def of(cls, terms: RunTerms, *, seat: int | None = None) -> Self:
        """Open the ledger of a run, with nothing spent.

        Args:
            terms: The run's.
            seat: Keep the budget of this party alone; None for all parties'.
        """
        alike: dict[tuple[int, float, float | None], int] = {}
        for place in range(len(terms.weights)) if seat is None else (seat,):
            order = terms.orders[place] if terms.orders else None
            alike.setdefault((terms.unit_votes_at(place), terms.budgets[place], order), place)
        seats = tuple(alike.values()) if terms.pricing != "none" else ()
        return cls(
            terms,
            seats,
            tuple(ledger_of(terms, place) for place in seats),
            OutcomeLedger(caps_of(terms)),
        )

    @property
    def states(self) -> tuple[EntryState, ...]:
        """What became of each batch, in order."""
        kept: OutcomeLedger | PrivacyLedger = self.costs[0] if self.costs else self.outcomes
        return tuple(entry.state for entry in kept.entries)

    @property
    def left(self) -> Outcomes:
        """What the caps still allow."""
        return self.outcomes.left

    @property
    def is_over(self) -> bool:
        """Whether a cap is reached."""
        return self.outcomes.is_over

    def worst_case(self, queries: int) -> Outcomes:
        """Return what a batch of so many queries may give at most; see `OutcomeLedger`."""
        return self.outcomes.worst_case(queries)

    def reserve(self, entry_id: str, outcomes: Outcomes) -> Self:
        """Hold the worst case of the next batch, before any noise is drawn.

        Raises:
            OutcomeCapError: a cap leaves less.
            BudgetExhaustedError: it could exceed a party's budget.
            LedgerError: the name was used before.
        """
        counted = self.outcomes.reserve(entry_id, outcomes)
        costs = tuple(
            ledger.reserve(entry_id, self._charge(seat, outcomes)) for seat, ledger in self._kept
        )
        return replace(self, costs=costs, outcomes=counted)

    def commit(self, entry_id: str, released: Outcomes, release_digest: bytes) -> Self:
        """Charge what was released; the rest of the reservation is free again.

        With noise at the parties nothing is: see `paid_for`.

        Raises:
            LedgerError: the reservation is unknown, settled or too small.
        """
        counted = self.outcomes.commit(entry_id, released, release_digest)
        paid = self.paid_for(entry_id, released)
        costs = tuple(
            ledger.commit(entry_id, self._charge(seat, paid), release_digest)
            for seat, ledger in self._kept
        )
        return replace(self, costs=costs, outcomes=counted)

    def paid_for(self, entry_id: str, released: Outcomes) -> Outcomes:
        """Return what a batch counts for in the budgets once it is released.

        With noise at the coordinator, what was released. With noise at the parties, all rows that
        were opened, whatever became of them (rule R13: no refunds): every query of the batch, and
        where there is a second phase those that passed.

        Args:
            entry_id: A reservation.
            released: What the batch gave.
        """
        if not self.terms.at_parties:
            return released
        [held] = [e.reserved for e in self.outcomes.entries if e.entry_id == entry_id]
        if self.terms.phases == 1:
            return held
        return Outcomes(held.asks, released.answers, held.asks)

    def cancel(self, entry_id: str) -> Self:
        """Give a reservation back to budgets and caps: its sum provably never opens."""
        costs = tuple(ledger.cancel(entry_id) for ledger in self.costs)
        return replace(self, costs=costs, outcomes=self.outcomes.cancel(entry_id))

    def pass_over(self, entry_id: str, queries: int) -> Self:
        """Use up the caps of a void batch that this party took no part in: it is charged nothing.

        Args:
            entry_id: A name that the ledger has never seen.
            queries: Of the batch.
        """
        worst = self.worst_case(min(queries, self.outcomes.asks_left))
        if not worst.asks:
            return self
        return replace(self, outcomes=self.outcomes.reserve(entry_id, worst).forfeit(entry_id))

    def remember(self, entry_id: str) -> Self:
        """Note the name of a plan that uses nothing, so that its settlement counts once.

        Args:
            entry_id: A name that the ledger has never seen.
        """
        nothing = Entry(entry_id, EntryState.CANCELLED, NO_OUTCOMES)
        entries = (*self.outcomes.entries, nothing)
        return replace(self, outcomes=replace(self.outcomes, entries=entries))

    def follow(
        self, entry_id: str, queries: int, released: Outcomes, release_digest: bytes
    ) -> Self:
        """Use up the caps of a batch that was released without this party: it is charged nothing.

        Args:
            entry_id: A name that the ledger has never seen.
            queries: Of the batch.
            released: What it gave.
            release_digest: Of the release.

        Raises:
            OutcomeCapError: the caps leave less.
            LedgerError: it gave more than it can have.
        """
        counted = self.outcomes.reserve(entry_id, self.worst_case(queries))
        return replace(self, outcomes=counted.commit(entry_id, released, release_digest))

    def forfeit(self, entry_id: str) -> Self:
        """Charge a whole reservation whose batch failed after something had left a party."""
        costs = tuple(ledger.forfeit(entry_id) for ledger in self.costs)
        return replace(self, costs=costs, outcomes=self.outcomes.forfeit(entry_id))

    def to_record(self) -> dict[str, object]:
        """Return what was reserved and released as plain values, without the terms."""
        return {
            "costs": [ledger.to_record() for ledger in self.costs],
            "outcomes": self.outcomes.to_record(),
        }

    def with_record(self, record: Mapping[str, Any]) -> Self:
        """Return the ledger with what `to_record` wrote of one of the same terms and parties.

        Raises:
            LedgerError: it is of other budgets or caps, or contradicts itself.
        """
        costs = tuple(PrivacyLedger.from_record(each) for each in record["costs"])
        outcomes = OutcomeLedger.from_record(record["outcomes"])
        written = replace(self, costs=costs, outcomes=outcomes)
        if written.without_entries != self.without_entries:
            raise LedgerError("a run's ledger must keep its budgets and caps", "others")
        return written

    @property
    def without_entries(self) -> Self:
        """The ledger with nothing reserved or released."""
        costs = tuple(replace(ledger, entries=()) for ledger in self.costs)
        return replace(self, costs=costs, outcomes=replace(self.outcomes, entries=()))

    @property
    def _kept(self) -> zip[tuple[int, PrivacyLedger]]:
        return zip(self.seats, self.costs, strict=True)

    def _charge(self, seat: int, outcomes: Outcomes) -> PrivacyEvent:
        return charge_of(self.terms, outcomes, weight=self.terms.unit_votes_at(seat))


def ledger_of(terms: RunTerms, seat: int) -> PrivacyLedger:
    """Open the ledger that keeps one party's budget in a run.

    Args:
        terms: The run's; its pricing is not "none".
        seat: Place of the party among all, from 0.
    """
    return PrivacyLedger(
        terms.budgets[seat],
        terms.delta,
        order=terms.orders[seat] if terms.orders else None,
        additive_delta=_additive_delta(terms),
    )


def lifelong_charge(
    terms: RunTerms, outcomes: Outcomes, *, weight: int, ledger: PrivacyLedger
) -> PrivacyEvent | None:
    """Say what outcomes cost in a ledger over many runs, whose way of adding up is its own.

    Returns:
        What to charge; None where pricing is "none", which only a simulation accepts. A ledger
        that knows no cost of the mechanism refuses it when it is reserved.
    """
    if terms.pricing == "none":
        return None
    charge = charge_of(terms, outcomes, weight=weight)
    if ledger.supports(charge):
        return charge
    return mechanism_of(terms).worst_case_event(
        outcomes.asks, outcomes.answers, weight=float(weight)
    )


def _additive_delta(terms: RunTerms) -> float:
    worst = mechanism_of(terms).worst_case_event(
        terms.max_asks, terms.max_answers, weight=float(terms.unit_votes)
    )
    own = event_additive_delta(worst)
    # Batches add up to it but for rounding.
    return own * _ROUNDING if own * _ROUNDING < terms.delta else 0.0


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
    if accountant.additive_delta * _ROUNDING >= terms.delta:
        return FormalCost(math.inf, RENYI_METHOD, order=2.0)
    # What `_additive_delta` keeps for the tests is a little more than they need.
    kept_more = accountant.additive_delta * (_ROUNDING - 1)
    converted = accountant.get_converted(terms.delta - kept_more)
    return FormalCost(converted.epsilon, RENYI_METHOD, order=converted.order)
