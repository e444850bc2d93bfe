"""A run's charges: from its terms to mechanism, events and ledger.

Everybody who keeps a budget, coordinator and parties, takes it from here, so that all count alike:

    ledger = RunLedger.of(terms)                       # budgets and caps, nothing spent
    reserved = ledger.worst_case(len(queries))         # before a plan leaves
    ledger = ledger.reserve("batch 0", reserved)
    ...
    ledger = ledger.commit("batch 0", outcomes_of(release), release.digest)

A run ends at a cap on asks, refusals or answers, or at the budget of the party that has least left.
Caps and budgets were fixed before it, so both bounds hold at once. `pricing`
says what a run may cost.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

from pate_fed.accounting import (
    NO_OUTCOMES,
    AnyVotesEvent,
    Entry,
    EntryState,
    JointPriceEvent,
    OutcomeLedger,
    Outcomes,
    PrivacyEvent,
    PrivacyLedger,
    event_additive_delta,
)
from pate_fed.errors import BudgetExhaustedError, InvalidParameterError, LedgerError
from pate_fed.federation import RunTerms
from pate_fed.mechanisms import DistributedNoise, Mechanism, Options, make_mechanism
from pate_fed.releases import NoisyRelease

ROUNDING_ROOM = 1 + 1e-9
"""Factor that covers the rounding of sums over a run's batches."""


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
    """Count the released outcomes."""
    return Outcomes(release.refused, release.answered)


def charge_of(terms: RunTerms, outcomes: Outcomes, *, weight: int) -> PrivacyEvent:
    """Return the event that a run is charged for outcomes, by the run's pricing.

    Args:
        terms: The run's.
        outcomes: Released, or the worst case.
        weight: Votes that one neighboring change can move.
    """
    if terms.pricing not in ("label", "joint") or terms.sigma1 is None:
        mechanism = mechanism_of(terms)
        return mechanism.worst_case_event(outcomes.asks, outcomes.answers, weight=float(weight))
    assert terms.sigma2 is not None
    any_votes = AnyVotesEvent(
        refusals=outcomes.refusals,
        answers=outcomes.answers,
        asks=outcomes.asks,
        classes=terms.classes,
        sigma1=terms.sigma1,
        sigma2=terms.sigma2,
        weight=weight,
        max_refusals=terms.max_refusals,
        max_answers=terms.max_answers,
        max_asks=terms.max_asks,
    )
    if terms.pricing == "label":
        return any_votes
    assert terms.vote_threshold is not None
    return JointPriceEvent(
        teachers=terms.total_votes, vote_threshold=terms.vote_threshold, **asdict(any_votes)
    )


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
        """The state of each batch, in order."""
        kept: OutcomeLedger | PrivacyLedger = self.costs[0] if self.costs else self.outcomes
        return tuple(entry.state for entry in kept.entries)

    @property
    def left(self) -> Outcomes:
        """The outcomes that the caps still allow."""
        return self.outcomes.left

    @property
    def is_over(self) -> bool:
        """Whether a cap is reached."""
        return self.outcomes.is_over

    def used_share(self) -> float:
        """Return the share of the run's cost that is charged or reserved, at the most of any party.

        The run's cost is that of its caps, or the budget if that ends the run before.
        """
        shares = (run_share(self.terms, seat, ledger) for seat, ledger in self._kept)
        return max(shares, default=0.0)

    def worst_case(self, queries: int) -> Outcomes:
        """Return the most that a batch of so many queries may give; see `OutcomeLedger`."""
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
        """Charge the release; the rest of the reservation is free again.

        With noise at the parties nothing becomes free: see `paid_for`.

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
        """Return the outcomes that a batch counts for in the budgets once it is released.

        With noise at the coordinator, the released ones. With noise at the parties, all opened rows
        (rule R13: no refunds): every query of the batch.

        Args:
            entry_id: A reservation.
            released: The outcomes of the batch.
        """
        if not self.terms.at_parties:
            return released
        [held] = [e.reserved for e in self.outcomes.entries if e.entry_id == entry_id]
        return held

    def cancel(self, entry_id: str) -> Self:
        """Give a reservation back to budgets and caps: its sum provably never opens."""
        costs = tuple(ledger.cancel(entry_id) for ledger in self.costs)
        return replace(self, costs=costs, outcomes=self.outcomes.cancel(entry_id))

    def end_void(self, entry_id: str, *, is_counted: bool, is_charged: bool) -> Self:
        """Settle a void batch at a party.

        Args:
            entry_id: A reservation.
            is_counted: Whether it uses up the caps. All parties count alike, from public evidence.
            is_charged: Whether it uses up this party's own budget.
        """
        caps, costs = self.outcomes, self.costs
        return replace(
            self,
            costs=tuple(
                one.forfeit(entry_id) if is_charged else one.cancel(entry_id) for one in costs
            ),
            outcomes=caps.forfeit(entry_id) if is_counted else caps.cancel(entry_id),
        )

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
            released: Its outcomes.
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
        """Return the reservations and releases as plain values, without the terms."""
        return {
            "costs": [ledger.to_record() for ledger in self.costs],
            "outcomes": self.outcomes.to_record(),
        }

    def with_record(self, record: Mapping[str, Any]) -> Self:
        """Return the ledger with a record of `to_record`, of the same terms and parties.

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


def run_share(terms: RunTerms, seat: int, ledger: PrivacyLedger) -> float:
    """Return the share of a run's cost that a party's ledger holds, charged or reserved.

    Args:
        terms: The run's; its pricing is not "none".
        seat: Place of the party among all, from 0.
        ledger: `ledger_of` these terms and this seat, with its entries.

    Returns:
        From 0 to 1; 1 is the cost at the caps, or the budget if that is less.
    """
    at_caps = ledger.share_of(charge_of(terms, _at_caps(terms), weight=terms.unit_votes_at(seat)))
    return min(1.0, ledger.used_share() / min(1.0, at_caps)) if at_caps else 0.0


def lifelong_charge(
    terms: RunTerms, outcomes: Outcomes, *, weight: int, ledger: PrivacyLedger
) -> PrivacyEvent | None:
    """Return the charge in a hospital's ledger for life, which adds up by a rule of its own.

    Returns:
        The event to charge; None where pricing is "none", which only a simulation accepts. A ledger
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


def whole_charge(terms: RunTerms, seat: int, ledger: PrivacyLedger) -> PrivacyEvent | None:
    """Return the charge of a whole run, at its caps, in a hospital's ledger for life.

    Args:
        terms: The run's.
        seat: Place of the hospital among all, from 0.
        ledger: The hospital's, for life.

    Returns:
        The event; None where pricing is "none".
    """
    weight = terms.unit_votes_at(seat)
    return lifelong_charge(terms, _at_caps(terms), weight=weight, ledger=ledger)


def require_room_for_life(terms: RunTerms, queries: int) -> None:
    """Refuse a run that new ledgers for life, of the same budgets as the run, cannot hold.

    A ledger for life adds up at an order that was fixed at a hospital's first start. A run's own
    ledger has the order that is best for the run, so it can hold a little more.

    Args:
        terms: The run's.
        queries: Number of asked queries, at the worst.

    Raises:
        BudgetExhaustedError: a hospital that never took part in a run could not pay for them.
    """
    run_ledger = RunLedger.of(terms)
    worst = run_ledger.worst_case(queries)
    for seat in run_ledger.seats:
        ledger = PrivacyLedger.for_life(
            terms.budgets[seat], terms.delta, additive_delta=_additive_delta(terms)
        )
        weight = terms.unit_votes_at(seat)
        charge = lifelong_charge(terms, worst, weight=weight, ledger=ledger)
        try:
            if charge is not None:
                ledger.reserve("whole run", charge)
        except BudgetExhaustedError as error:
            raise BudgetExhaustedError(
                requested=error.requested,
                budget=ledger.epsilon,
                advice="hospitals add up all their runs by a fixed rule, and a budget for life of "
                "the run's epsilon would not hold it; ask fewer queries, add noise or raise "
                "--epsilon",
            ) from error


def _at_caps(terms: RunTerms) -> Outcomes:
    """Return the most that a whole run can release."""
    return OutcomeLedger(caps_of(terms)).worst_case(terms.max_asks)


def _additive_delta(terms: RunTerms) -> float:
    worst = mechanism_of(terms).worst_case_event(
        terms.max_asks, terms.max_answers, weight=float(terms.unit_votes)
    )
    own = event_additive_delta(worst)
    # Batches add up to it but for rounding.
    return own * ROUNDING_ROOM if own * ROUNDING_ROOM < terms.delta else 0.0
