"""The record of a privacy budget: reserve before noise is drawn, then settle.

A `PrivacyLedger` is a value: each step returns a new one, and a failed step changes nothing.
Storing the newest value, durably and before any noise is drawn, is the node's task. `reservations`
has the states of an entry.

It is a filter at one order (decision 19): a reservation is refused unless everything charged, every
open reservation and its own worst case together are (epsilon, delta)-private. The whole then is,
for any choice of queries and any stop. The guarantee is the budget, the only epsilon of a ledger.

An operator who picked the order after seeing releases could pick the one with more room left. The
part of delta for tests of stability is fixed for the same reason: where each path of releases may
choose its own split, delta can be exceeded almost twofold (docs/explanation/privacy-guarantee.md,
"Tests of stability over many runs").

Charges are added by `math.fsum`, which rounds once, so the order of entries changes nothing and
errors do not pile up.

Source:
    Feldman, Zrnic 2021, Individual privacy accounting via a Renyi filter.
    https://arxiv.org/abs/2008.11193
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pate_fed.accounting.conversion import SMALLEST_CKS_ORDER, epsilon_at_order, rdp_within
from pate_fed.accounting.curves import event_additive_delta, event_charged_rdp
from pate_fed.accounting.events import PrivacyEvent, event_from_record
from pate_fed.accounting.ranges import positive, probability, renyi_orders
from pate_fed.accounting.reservations import (
    Entry,
    EntryState,
    Reservations,
    entry_from_record,
    entry_to_record,
    require_distinct,
)
from pate_fed.errors import BudgetExhaustedError, InvalidParameterError, LedgerError

LEDGER_VERSION: Final = 1
LARGEST_ORDER: Final = 1e15
"""More than that of any budget for life."""

_SAFETY: Final = 1 + 1e-12
"""Exceeds the rounding of a few additions and of the conversion at one order."""

_MANY: Final = 10**9
"""Events that a budget may be said to hold; more than that nobody asks."""

LedgerEntry: TypeAlias = Entry[PrivacyEvent]


@dataclass(frozen=True, slots=True)
class PrivacyLedger(Reservations[PrivacyEvent]):
    """A budget and everything that was reserved from it.

    Attributes:
        order: Renyi order at which charges add up, above 1, fixed with it.
        additive_delta: Part of delta kept for events with a delta of their own (tests of
            stability), at least 0 and below delta; fixed with it.
    """

    epsilon: float
    delta: float
    order: float
    entries: tuple[LedgerEntry, ...] = ()
    additive_delta: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", positive("epsilon", self.epsilon))
        object.__setattr__(self, "delta", probability("delta", self.delta))
        renyi_orders([self.order])
        if self.order > LARGEST_ORDER:
            raise InvalidParameterError(f"order must be at most {LARGEST_ORDER:g}", self.order)
        if not 0 <= self.additive_delta < self.delta:
            raise InvalidParameterError(
                f"additive_delta must be at least 0 and below {self.delta:g}", self.additive_delta
            )
        require_distinct(self.entries)
        if not self._is_within(self.entries):
            raise LedgerError("entries must stay within the budget")

    @classmethod
    def for_life(cls, epsilon: float, delta: float, *, additive_delta: float = 0.0) -> Self:
        """Open an empty ledger at `order_for_life`, which can add up every kind of run."""
        left = probability("delta", delta) - additive_delta
        return cls(
            epsilon,
            delta,
            order=order_for_life(positive("epsilon", epsilon), probability("delta", left)),
            additive_delta=additive_delta,
        )

    def reserve(self, entry_id: str, event: PrivacyEvent) -> PrivacyLedger:
        """Hold the worst case of the next step.

        Raises:
            LedgerError: the name was used before.
        """
        entries = (*self.entries, Entry(entry_id, EntryState.RESERVED, event))
        if not self._is_within(entries):
            raise BudgetExhaustedError(
                requested=self._epsilon_of(entries) if self._holds_tests(entries) else math.inf,
                budget=self.epsilon,
                advice="" if self._holds_tests(entries) else self._lack_for_tests(entries),
            )
        return replace(self, entries=entries)

    def can_afford(self, event: PrivacyEvent) -> bool:
        """Tell whether `reserve` would accept `event`."""
        return self._is_within((*self.entries, Entry("?", EntryState.RESERVED, event)))

    def used_share(self) -> float:
        """Return the share of the budget that all charges and open reservations use.

        Linear in what adds up, so the shares of several charges add up to that of all: 0 for none,
        at most 1, rounded up.
        """
        return self._share(self._charges)

    def share_of(self, *events: PrivacyEvent) -> float:
        """Return the share of an empty budget that events use together, above 1 if too much."""
        return self._share(list(events))

    def room_for(self, event: PrivacyEvent) -> int:
        """Return how many more such events the budget holds, rounded down."""
        parts = [(1 - self.used_share(), self.share_of(event))]
        if tests := event_additive_delta(event):
            parts.append((self.additive_delta - self.charged_delta(), tests))
        room = min((left / each if each else math.inf) for left, each in parts)
        return int(min(max(room, 0.0), _MANY))

    def charged_delta(self) -> float:
        """Return the part of `additive_delta` that tests have used, open reservations included."""
        return _tests_delta_of(self.entries)

    def events_of(self, *states: EntryState) -> list[PrivacyEvent]:
        """Return the reserved events of all entries in one of these states."""
        return [entry.reserved for entry in self.entries if entry.state in states]

    @property
    def budget_words(self) -> str:
        """The budget in words, for people."""
        kept = self.additive_delta
        tests = f", {kept:g} of it kept for tests of stability" if kept else ""
        return f"epsilon {self.epsilon:g} at delta {self.delta:g}{tests}"

    def to_record(self) -> dict[str, object]:
        """Return the ledger as plain values that JSON keeps exactly."""
        return {
            "ledger": LEDGER_VERSION,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "order": self.order,
            "additive_delta": self.additive_delta,
            "entries": [entry_to_record(one, self.amount_to_record) for one in self.entries],
        }

    @classmethod
    def from_record(cls, record: Mapping[str, object]) -> PrivacyLedger:
        """Read the record of `to_record`; anything else is a LedgerError."""
        if set(record) != {"ledger", "epsilon", "delta", "order", "additive_delta", "entries"}:
            raise LedgerError("a ledger must hold its version, budget and entries")
        version, entries, order = record["ledger"], record["entries"], record["order"]
        if version != LEDGER_VERSION or not isinstance(entries, list):
            raise LedgerError(f"a ledger must be of version {LEDGER_VERSION}", str(version))
        return cls(
            epsilon=_number(record["epsilon"]),
            delta=_number(record["delta"]),
            entries=tuple(entry_from_record(entry, _event) for entry in entries),
            order=_number(order),
            additive_delta=_number(record["additive_delta"]),
        )

    @staticmethod
    def amount_to_record(amount: PrivacyEvent) -> object:
        """See `Reservations.amount_to_record`."""
        return amount.as_record()

    def _share(self, charges: list[PrivacyEvent]) -> float:
        amount = math.fsum(_rdp_at(event, self.order) for event in charges) * _SAFETY
        capacity = rdp_within(self.epsilon, self.order, delta=self.delta - self.additive_delta)
        if not amount:
            return 0.0
        return amount / capacity * _SAFETY if capacity > 0 else math.inf

    def _is_within(self, entries: tuple[LedgerEntry, ...]) -> bool:
        return self._epsilon_of(entries) <= self.epsilon and self._holds_tests(entries)

    def _holds_tests(self, entries: tuple[LedgerEntry, ...]) -> bool:
        # Fixed beforehand, as the order is: a path's spending must not choose the split.
        return _tests_delta_of(entries) <= self.additive_delta

    def _lack_for_tests(self, entries: tuple[LedgerEntry, ...]) -> str:
        return (
            f"tests of stability would use {_tests_delta_of(entries):.3g} of delta, and "
            f"{self.additive_delta:.3g} is kept for them"
        )

    def _epsilon_of(self, entries: tuple[LedgerEntry, ...]) -> float:
        charges = _charges(entries)
        rdp = math.fsum(_rdp_at(event, self.order) for event in charges) * _SAFETY
        if not charges or not math.isfinite(rdp):
            return math.inf if charges else 0.0
        delta = self.delta - self.additive_delta
        return epsilon_at_order(rdp, self.order, delta=delta) * _SAFETY


@lru_cache(maxsize=64)
def order_for_life(epsilon: float, delta: float) -> float:
    """Return the Renyi order at which a budget holds most Gaussian noise.

    At order l a budget holds an RDP of R(l) = epsilon - ln(1 - 1/l) + ln(l delta) / (l - 1).
    Gaussian noise of total mu^2 has l mu^2 / 2 there, so the order with the largest R(l) / l is
    chosen. It follows from the budget alone, so no release can influence it. Other prices have
    their best order nearby.

    Source:
        The conversion: Canonne, Kamath, Steinke 2020, Proposition 12.
        https://arxiv.org/abs/2004.00010
    """

    def room(log_above_1: NDArray[np.float64]) -> NDArray[np.float64]:
        above_1 = np.exp(log_above_1)
        converted = np.log1p(1 / above_1) + (math.log(delta) + np.log1p(above_1)) / above_1
        return np.asarray((epsilon + converted) / (1 + above_1))

    # The best l - 1 is near sqrt(ln(1/delta) / epsilon) for large budgets, 2 ln(1/delta) / epsilon
    # for small ones.
    scale = 1 - math.log(delta)
    lowest = 1.001 * (SMALLEST_CKS_ORDER - 1)
    low = math.log(max(1e-3 / (1 + epsilon), lowest))
    high = math.log(100 * scale / epsilon + 100)
    for _ in range(3):  # scipy.optimize would take longer to load than all else of a command
        grid = np.linspace(low, high, 2001)
        best = int(np.argmax(room(grid)))
        low, high = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
    # Any order is valid: four digits of this one, to be the same on every machine.
    return 1 + float(f"{math.exp(float(grid[best])):.4g}")


def _charges(entries: tuple[LedgerEntry, ...]) -> list[PrivacyEvent]:
    return [entry.charged for entry in entries if entry.charged is not None]


def _tests_delta_of(entries: tuple[LedgerEntry, ...]) -> float:
    return math.fsum(event_additive_delta(event) for event in _charges(entries))


@lru_cache(maxsize=4096)
def _rdp_at(event: PrivacyEvent, order: float) -> float:
    return float(event_charged_rdp(event, [order])[0])


def _event(record: object) -> PrivacyEvent:
    if not isinstance(record, Mapping):
        raise LedgerError("an event must be a record", type(record).__name__)
    return event_from_record(record)


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise LedgerError("a budget must be a number", type(value).__name__)
    return positive("a budget", value) if value > 1 else float(value)  # one of 400 digits is none
