"""The record of a privacy budget: reserve before noise is drawn, then settle.

A `PrivacyLedger` is a value: each step returns a new one, and a step that fails returns none,
so it changes nothing. Storing the newest value, durably and before any noise is drawn, is the
node's task.

    reserved --commit--> committed    what was released is charged, at most what was reserved
             --cancel--> cancelled    nothing had left a party: nothing is charged
             --forfeit-> forfeited    something may have been seen: the reservation is charged

It is a filter of Gaussian differential privacy (Smith, Thakurta 2022): the budget
(epsilon, delta) is set in advance, a reservation is refused unless the mu^2 of everything
charged, of every open reservation and of its own worst case together are
(epsilon, delta)-private. The whole run then is, however its queries were chosen and wherever it
stopped. The guarantee is the budget; `charged_epsilon` only says how much of it is used.

Exactness: the mu^2 are added by `math.fsum`, which rounds once, so the order of entries changes
nothing and errors do not pile up. Sum and budget are compared by `is_gdp_within`, which counts
its own rounding error against the reservation. The same comparison yields `gdp_epsilon`, so a
run whose worst case costs exactly the budget is allowed.

Source:
    Smith, Thakurta 2022, Fully adaptive composition for Gaussian differential privacy.
    https://arxiv.org/abs/2210.17520
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from pate_fed.accounting.events import PrivacyEvent, event_from_record
from pate_fed.accounting.gaussian_dp import (
    LARGEST_MU,
    gdp_epsilon,
    gdp_mu_squared,
    is_gdp_within,
)
from pate_fed.accounting.ranges import positive, probability
from pate_fed.errors import BudgetExhaustedError, LedgerError

LEDGER_VERSION: Final = 1
_DIGEST_BYTES = 32


class EntryState(StrEnum):
    """Where an entry stands; all but `RESERVED` are final."""

    RESERVED = "reserved"
    COMMITTED = "committed"
    CANCELLED = "cancelled"
    FORFEITED = "forfeited"


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """One reservation and what became of it.

    Attributes:
        entry_id: Name of the reservation, never used twice in a ledger.
        state: Where it stands.
        reserved: Worst case that was reserved.
        spent: What was released; of committed entries only.
        release_digest: SHA-256 of the release, 32 bytes; of committed entries only.
    """

    entry_id: str
    state: EntryState
    reserved: PrivacyEvent
    spent: PrivacyEvent | None = None
    release_digest: bytes | None = None

    def __post_init__(self) -> None:
        is_committed = self.state is EntryState.COMMITTED
        if (self.spent is not None) != is_committed or (
            self.release_digest is not None
        ) != is_committed:
            raise LedgerError("exactly committed entries must say what was released", self.state)
        if self.spent is not None and not self.spent.is_covered_by(self.reserved):
            raise LedgerError("what was spent must be covered by what was reserved", "more")
        if self.release_digest is not None and len(self.release_digest) != _DIGEST_BYTES:
            raise LedgerError("a release digest must have 32 bytes", len(self.release_digest))
        if not self.entry_id:
            raise LedgerError("an entry must have a name", "an empty one")

    @property
    def charged(self) -> PrivacyEvent | None:
        """What counts against the budget now; None of a cancelled entry."""
        if self.state is EntryState.CANCELLED:
            return None
        return self.reserved if self.spent is None else self.spent


@dataclass(frozen=True, slots=True)
class PrivacyLedger:
    """A budget and everything that was reserved from it.

    Attributes:
        epsilon: Budget that may not be exceeded, above 0, fixed before the first reservation.
        delta: In (0, 1), fixed with it.
        entries: In the order of their reservation.
    """

    epsilon: float
    delta: float
    entries: tuple[LedgerEntry, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", positive("epsilon", self.epsilon))
        object.__setattr__(self, "delta", probability("delta", self.delta))
        if len({entry.entry_id for entry in self.entries}) != len(self.entries):
            raise LedgerError("every entry must have a name of its own", "a repeated name")
        if not self._is_within(self.entries):
            raise LedgerError("entries must stay within the budget", "entries that exceed it")

    def reserve(self, entry_id: str, event: PrivacyEvent) -> PrivacyLedger:
        """Hold the worst case of the next step.

        Args:
            entry_id: A name that the ledger has never seen.
            event: The most that the step can release.

        Raises:
            BudgetExhaustedError: it could exceed the budget.
            LedgerError: the name was used before.
            UnsupportedEventError: the event has no GDP cost.
        """
        entries = (*self.entries, LedgerEntry(entry_id, EntryState.RESERVED, event))
        if any(entry.entry_id == entry_id for entry in self.entries):
            raise LedgerError("a reservation must have a new name", entry_id)
        if not self._is_within(entries):
            raise BudgetExhaustedError(
                requested=_epsilon_of(entries, self.delta), budget=self.epsilon
            )
        return replace(self, entries=entries)

    def commit(
        self, entry_id: str, spent_event: PrivacyEvent, release_digest: bytes
    ) -> PrivacyLedger:
        """Charge what was released; the rest of the reservation is free again.

        Args:
            entry_id: An open reservation.
            spent_event: What was released, in no component more than was reserved.
            release_digest: `NoisyRelease.digest`, 32 bytes.

        Raises:
            LedgerError: the reservation is unknown or settled, too small, or the digest has
                another length.
        """
        return self._settled(
            entry_id, EntryState.COMMITTED, spent=spent_event, release_digest=release_digest
        )

    def cancel(self, entry_id: str) -> PrivacyLedger:
        """Give a reservation back. Allowed only while nothing of its step has left a party.

        Raises:
            LedgerError: the reservation is unknown or settled.
        """
        return self._settled(entry_id, EntryState.CANCELLED)

    def forfeit(self, entry_id: str) -> PrivacyLedger:
        """Charge a whole reservation whose step failed after something had left a party.

        Raises:
            LedgerError: the reservation is unknown or settled.
        """
        return self._settled(entry_id, EntryState.FORFEITED)

    def can_afford(self, event: PrivacyEvent) -> bool:
        """Tell whether `reserve` would accept `event`.

        Raises:
            UnsupportedEventError: the event has no GDP cost.
        """
        return self._is_within((*self.entries, LedgerEntry("?", EntryState.RESERVED, event)))

    def charged_epsilon(self) -> float:
        """Return epsilon of all that is charged or held now, at the ledger's delta.

        Not a guarantee, which is the budget: an odometer, for showing how much is left.
        """
        return _epsilon_of(self.entries, self.delta)

    def to_record(self) -> dict[str, object]:
        """Return the ledger as plain values that JSON keeps exactly."""
        return {
            "ledger": LEDGER_VERSION,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "entries": [_entry_to_record(entry) for entry in self.entries],
        }

    @classmethod
    def from_record(cls, record: Mapping[str, object]) -> PrivacyLedger:
        """Read what `to_record` wrote.

        Raises:
            LedgerError: the record is of another version, lacks a part, or contradicts itself.
            InvalidParameterError: a number in it is out of its range.
        """
        if set(record) != {"ledger", "epsilon", "delta", "entries"}:
            raise LedgerError("a ledger must hold its version, budget and entries", "others")
        version, entries = record["ledger"], record["entries"]
        if version != LEDGER_VERSION or not isinstance(entries, list):
            raise LedgerError(f"a ledger must be of version {LEDGER_VERSION}", version)
        return cls(
            epsilon=_number(record["epsilon"]),
            delta=_number(record["delta"]),
            entries=tuple(_entry_from_record(entry) for entry in entries),
        )

    def _is_within(self, entries: tuple[LedgerEntry, ...]) -> bool:
        return is_gdp_within(_mu_squared_of(entries), epsilon=self.epsilon, delta=self.delta)

    def _settled(
        self,
        entry_id: str,
        state: EntryState,
        *,
        spent: PrivacyEvent | None = None,
        release_digest: bytes | None = None,
    ) -> PrivacyLedger:
        names = [entry.entry_id for entry in self.entries]
        if entry_id not in names:
            raise LedgerError("a reservation must be known", entry_id)
        position = names.index(entry_id)
        entry = self.entries[position]
        if entry.state is not EntryState.RESERVED:
            raise LedgerError("a reservation must be open", f"{entry_id}, {entry.state}")
        settled = replace(entry, state=state, spent=spent, release_digest=release_digest)
        before, after = self.entries[:position], self.entries[position + 1 :]
        return replace(self, entries=(*before, settled, *after))


def _mu_squared_of(entries: tuple[LedgerEntry, ...]) -> float:
    charges = [entry.charged for entry in entries]
    return math.fsum(gdp_mu_squared(event) for event in charges if event is not None)


def _epsilon_of(entries: tuple[LedgerEntry, ...], delta: float) -> float:
    mu = math.sqrt(_mu_squared_of(entries))
    return gdp_epsilon(mu, delta) if mu <= LARGEST_MU else math.inf


def _entry_to_record(entry: LedgerEntry) -> dict[str, object]:
    return {
        "entry_id": entry.entry_id,
        "state": entry.state.value,
        "reserved": entry.reserved.as_record(),
        "spent": None if entry.spent is None else entry.spent.as_record(),
        "release_digest": None if entry.release_digest is None else entry.release_digest.hex(),
    }


def _entry_from_record(record: object) -> LedgerEntry:
    fields = {"entry_id", "state", "reserved", "spent", "release_digest"}
    if not isinstance(record, Mapping) or set(record) != fields:
        raise LedgerError(f"a ledger entry must hold {sorted(fields)}", "others")
    entry_id, state, digest = record["entry_id"], record["state"], record["release_digest"]
    if not isinstance(entry_id, str) or state not in list(EntryState):
        raise LedgerError("a ledger entry must have a name and a known state", state)
    try:
        release_digest = None if digest is None else bytes.fromhex(digest)
    except (TypeError, ValueError):
        raise LedgerError("a release digest must be hexadecimal", "another form") from None
    spent = record["spent"]
    return LedgerEntry(
        entry_id=entry_id,
        state=EntryState(state),
        reserved=_event(record["reserved"]),
        spent=None if spent is None else _event(spent),
        release_digest=release_digest,
    )


def _event(record: object) -> PrivacyEvent:
    if not isinstance(record, Mapping):
        raise LedgerError("an event must be a record", type(record).__name__)
    return event_from_record(record)


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise LedgerError("a budget must be a number", type(value).__name__)
    return float(value)
