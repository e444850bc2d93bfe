"""A run's charges: from its terms to mechanism, events and counts.

Everybody who keeps a run within its caps, coordinator and parties, takes it from here, so that all
count alike:

    ledger = RunLedger.of(terms)                       # nothing spent
    reserved = ledger.worst_case(len(queries))         # before a plan leaves
    ledger = ledger.reserve("batch 0", reserved)
    ...
    ledger = ledger.commit("batch 0", outcomes_of(release), release.digest)

A run ends at its cap on asks or on answers. Both were fixed before it, and so was its cost
(`prices`), which its parties compared with their budgets. A hospital's ledger for life adds up the
charges of all its runs: `lifelong_charge`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any, Final, Self

from pate_fed.accounting import (
    CappedGaussianMaxEvent,
    EntryState,
    GaussianMaxEvent,
    OutcomeEntry,
    OutcomeLedger,
    Outcomes,
    PrivacyEvent,
)
from pate_fed.accounting.ranges import RANGES
from pate_fed.errors import LedgerError
from pate_fed.mechanisms import DistributedNoise, Mechanism, make_mechanism
from pate_fed.releases import NoisyRelease
from pate_fed.terms import RunTerms

_ANY: Final = Outcomes(int(RANGES["max_asks"].most), int(RANGES["max_asks"].most))
"""As many as terms can have."""


def mechanism_of(terms: RunTerms) -> Mechanism:
    """Build the mechanism that the terms name, wherever the noise is added."""
    return make_mechanism(
        terms.rule,
        parties=len(terms.weights),
        unit_votes=terms.unit_votes,
        simulated=not terms.spec.is_private,
    )


def noise_of(terms: RunTerms) -> DistributedNoise:
    """Say how the noise is divided among those who add it: parties, or both aggregators."""
    return DistributedNoise.of(terms.rule, len(terms.weights))


def outcomes_of(release: NoisyRelease) -> Outcomes:
    """Count the released outcomes."""
    return Outcomes(release.asked, release.answered)


def charge_of(
    terms: RunTerms, outcomes: Outcomes, *, weight: int, earlier: int = 0
) -> PrivacyEvent:
    """Return the event of these outcomes, as far as one privacy unit can move them.

    Where records vote, a patient who voted on all `earlier` asks that were charged has only the
    rest of the run's votes left: charges of all batches add up to the cap.
    """
    moved = terms.caps.moved(outcomes)
    event = mechanism_of(terms).worst_case_event(moved.asks, moved.answers, weight=float(weight))
    if terms.caps.patient_votes is None:
        return event
    assert isinstance(event, GaussianMaxEvent), "checked by the terms"
    left = max(0, terms.caps.patient_votes - earlier)
    return CappedGaussianMaxEvent(min(event.asks, left), event.sigma, event.weight)


@dataclass(frozen=True, slots=True)
class RunLedger:
    """Everything that a run has reserved and released, within its caps.

    A value, as its parts are: a step that fails changes nothing.

    Attributes:
        outcomes: Counts against the caps, the same for all who keep them: from public evidence.
        own: What this party's own votes went into, within the same caps, so that its units never
            cost more than the run; see `of`. None at the coordinator, whose counts are everybody's.
    """

    terms: RunTerms
    outcomes: OutcomeLedger
    own: OutcomeLedger | None = None

    @classmethod
    def of(cls, terms: RunTerms, *, at_party: bool = False) -> Self:
        """Open the ledger of a run, with nothing spent.

        Where records vote, a unit's cost is that of its votes, whatever is asked: a party's own
        counts have no cap, so that queries of a void batch, which stays charged, can be asked anew.
        """
        empty = OutcomeLedger(terms.caps.most)
        own = OutcomeLedger(_ANY) if terms.do_records_vote else empty
        return cls(terms, empty, own if at_party else None)

    @property
    def states(self) -> tuple[EntryState, ...]:
        """The state of each batch, in order."""
        return tuple(entry.state for entry in (self.own or self.outcomes).entries)

    def asks_before(self, entry_id: str = "") -> int:
        """Return the asks that its own votes went into before an entry; before the next one."""
        entries = (self.own or self.outcomes).entries
        earlier = takewhile(lambda one: one.entry_id != entry_id, entries)
        return sum(one.charged.asks for one in earlier if one.charged is not None)

    @property
    def left(self) -> Outcomes:
        """The outcomes that the caps still allow."""
        return self.outcomes.left

    @property
    def is_over(self) -> bool:
        """Whether a cap is reached."""
        return self.outcomes.is_over

    def used_share(self) -> float:
        """Return the share of the run's asks that is charged or reserved, from 0 to 1."""
        entries = (self.own or self.outcomes).entries
        return sum(map(self.charged, entries)) / self.terms.caps.most.asks

    @staticmethod
    def charged(entry: OutcomeEntry) -> int:
        """Count the queries that a batch charges: all that it held, as `paid_for` explains."""
        return 0 if entry.charged is None else entry.reserved.asks

    def worst_case(self, queries: int) -> Outcomes:
        """Return the most that a batch of so many queries may give; see `OutcomeLedger`."""
        return self.outcomes.worst_case(queries)

    def reserve(self, entry_id: str, outcomes: Outcomes) -> Self:
        """Hold the worst case of the next batch, before any noise is drawn."""
        return self._each(lambda one: one.reserve(entry_id, outcomes))

    def commit(self, entry_id: str, released: Outcomes, release_digest: bytes) -> Self:
        """Count the release; the rest of the reservation is free again.

        With noise at the parties nothing becomes free: see `paid_for`.
        """
        outcomes = self.outcomes.commit(entry_id, released, release_digest)
        paid = self.paid_for(entry_id, released)
        own = self.own and self.own.commit(entry_id, paid, release_digest)
        return replace(self, outcomes=outcomes, own=own)

    def paid_for(self, entry_id: str, released: Outcomes) -> Outcomes:
        """Return the outcomes that a batch costs once it is released: no query comes back.

        With noise at the parties every row was opened (rule R13). With noise at the coordinator its
        word alone says which queries were looked at: one that keeps an earlier batch open could
        have ever more of them voted on, and call them not asked.
        """
        [held] = [e.reserved for e in self.outcomes.entries if e.entry_id == entry_id]
        return replace(released, asks=held.asks)

    def cancel(self, entry_id: str) -> Self:
        """Give a reservation back: its sum provably never opens."""
        return self._each(lambda one: one.cancel(entry_id))

    def end_void(self, entry_id: str, *, is_counted: bool, is_charged: bool) -> Self:
        """Settle a void batch at a party.

        Args:
            is_counted: Whether it uses up the caps. All parties count alike, from public evidence.
            is_charged: Whether it uses up this party's own share of them.
        """

        def ended(ledger: OutcomeLedger, *, is_used: bool) -> OutcomeLedger:
            return ledger.forfeit(entry_id) if is_used else ledger.cancel(entry_id)

        return replace(
            self,
            outcomes=ended(self.outcomes, is_used=is_counted),
            own=self.own and ended(self.own, is_used=is_charged),
        )

    def pass_over(self, entry_id: str, queries: int) -> Self:
        """Use up the caps of a void batch without this party, which is charged nothing."""
        worst = self.worst_case(min(queries, self.left.asks))
        if not worst.asks:
            return self
        return replace(self, outcomes=self.outcomes.reserve(entry_id, worst).forfeit(entry_id))

    def follow(
        self, entry_id: str, queries: int, released: Outcomes, release_digest: bytes
    ) -> Self:
        """Use up the caps of a batch released without this party: it is charged nothing."""
        counted = self.outcomes.reserve(entry_id, self.worst_case(queries))
        return replace(self, outcomes=counted.commit(entry_id, released, release_digest))

    def forfeit(self, entry_id: str) -> Self:
        """Count a whole reservation whose batch failed after something had left a party."""
        return self._each(lambda one: one.forfeit(entry_id))

    def to_record(self) -> dict[str, object]:
        """Return the reservations and releases as plain values, without the terms."""
        return {
            "outcomes": self.outcomes.to_record(),
            "own": None if self.own is None else self.own.to_record(),
        }

    def with_record(self, record: Mapping[str, Any]) -> Self:
        """Return the ledger with a record of `to_record`; one of other caps is a LedgerError."""
        outcomes, own = OutcomeLedger.from_record(record["outcomes"]), record["own"]
        written = replace(
            self, outcomes=outcomes, own=None if own is None else OutcomeLedger.from_record(own)
        )
        if written.without_entries != self.without_entries:
            raise LedgerError("a run's ledger must keep its caps")
        return written

    @property
    def without_entries(self) -> Self:
        """The ledger with nothing reserved or released."""
        return self._each(lambda one: replace(one, entries=()))

    def _each(self, step: Callable[[OutcomeLedger], OutcomeLedger]) -> Self:
        return replace(self, outcomes=step(self.outcomes), own=self.own and step(self.own))


def lifelong_charge(
    terms: RunTerms, outcomes: Outcomes, *, weight: int, earlier: int = 0
) -> PrivacyEvent | None:
    """Return the charge in a hospital's ledger for life; `earlier` as in `charge_of`.

    Returns:
        The event to charge; None where the mechanism protects nobody, which only a simulation
        accepts.
    """
    if not terms.spec.is_private:
        return None
    return charge_of(terms, outcomes, weight=weight, earlier=earlier)


def whole_charge(terms: RunTerms, seat: int) -> PrivacyEvent | None:
    """Return the charge of a whole run, at its caps, in a hospital's ledger for life."""
    return lifelong_charge(terms, terms.caps.most, weight=terms.unit_votes_at(seat))
