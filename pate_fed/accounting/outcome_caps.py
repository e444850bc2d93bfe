"""Counters that keep a run within its caps on asks and on answers.

A formal price is that of a run that ends after its last allowed ask or answer. The outcome of an
ask is not known beforehand, so each reserves an answer, before any noise is drawn. When its outcome
is public, an unused one is free again (`reservations` has the states).

An `OutcomeLedger` is a value: each step returns a new one, and a failed step changes nothing.
Storing the newest value, durably and before any noise is drawn, is the node's task. The caps never
move: whether the run goes on depends on released outcomes only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from pate_fed.accounting.ranges import whole
from pate_fed.accounting.reservations import (
    Entry,
    EntryState,
    Reservations,
    entry_from_record,
    entry_to_record,
    require_distinct,
)
from pate_fed.errors import InvalidParameterError, LedgerError, OutcomeCapError

OUTCOME_LEDGER_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Outcomes:
    """Numbers of asks, and of answers among them."""

    asks: int
    answers: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "asks", whole("asks", self.asks))
        object.__setattr__(self, "answers", whole("answers", self.answers))
        if self.answers > self.asks:
            raise InvalidParameterError(f"answers must be at most {self.asks} asks", self.answers)

    def is_covered_by(self, reserved: Outcomes) -> bool:
        """Tell whether no count exceeds the other's."""
        return self.asks <= reserved.asks and self.answers <= reserved.answers


NO_OUTCOMES: Final = Outcomes(0, 0)

OutcomeEntry: TypeAlias = Entry[Outcomes]


@dataclass(frozen=True, slots=True)
class OutcomeLedger(Reservations[Outcomes]):
    """Caps on asks and answers, and everything that was reserved from them."""

    caps: Outcomes
    entries: tuple[OutcomeEntry, ...] = ()

    def __post_init__(self) -> None:
        if self.caps.answers < 1:
            raise InvalidParameterError("the cap on answers must be at least 1", self.caps.answers)
        require_distinct(self.entries)
        if self.asks > self.caps.asks or self.answers > self.caps.answers:
            raise LedgerError("entries must stay within the caps")

    @property
    def answers(self) -> int:
        """Answers that are released, held or forfeited."""
        return sum(each.answers for each in self._charges)

    @property
    def asks(self) -> int:
        """Asks that are released, held or forfeited."""
        return sum(each.asks for each in self._charges)

    @property
    def left(self) -> Outcomes:
        """The outcomes that may still be reserved; none where the run is over."""
        asks = self.caps.asks - self.asks
        answers = min(self.caps.answers - self.answers, asks)
        return Outcomes(asks, answers) if answers else NO_OUTCOMES

    @property
    def is_over(self) -> bool:
        """Whether no further ask can be reserved now; an open one may still give some back."""
        return self.left == NO_OUTCOMES

    def worst_case(self, queries: int) -> Outcomes:
        """Return the most that a batch may give; an OutcomeCapError if it has too many queries."""
        asks_left = self.caps.asks - self.asks
        if whole("queries", queries) > asks_left:
            raise OutcomeCapError(
                f"a batch must have at most the {asks_left} queries that may still be asked",
                queries,
            )
        left = self.left
        asks = min(queries, left.asks)
        return Outcomes(asks, min(asks, left.answers))

    def reserve(self, entry_id: str, outcomes: Outcomes) -> OutcomeLedger:
        """Hold the worst case of the next asks.

        A batch must be run with its `worst_case` as its caps.

        Raises:
            LedgerError: the name was used before, or the step cannot be a whole ask.
        """
        if not outcomes.is_covered_by(self.left) or self.is_over:
            left = self.left
            raise OutcomeCapError(
                f"the next step must fit in {left.asks} asks and {left.answers} answers"
            )
        if outcomes.answers < 1:
            raise LedgerError("a reservation must hold every outcome of an ask")
        entry = Entry(entry_id, EntryState.RESERVED, outcomes)
        return replace(self, entries=(*self.entries, entry))

    def to_record(self) -> dict[str, object]:
        """Return the ledger as plain values that JSON keeps exactly."""
        return {
            "outcome_ledger": OUTCOME_LEDGER_VERSION,
            "caps": self.amount_to_record(self.caps),
            "entries": [entry_to_record(one, self.amount_to_record) for one in self.entries],
        }

    @classmethod
    def from_record(cls, record: Mapping[str, object]) -> OutcomeLedger:
        """Read the record of `to_record`; anything else is a LedgerError."""
        if set(record) != {"outcome_ledger", "caps", "entries"}:
            raise LedgerError("a ledger must hold its version, caps and entries")
        version, entries = record["outcome_ledger"], record["entries"]
        if version != OUTCOME_LEDGER_VERSION or not isinstance(entries, list):
            raise LedgerError(f"a ledger must be of version {OUTCOME_LEDGER_VERSION}", str(version))
        return cls(
            caps=_outcomes_from_record(record["caps"]),
            entries=tuple(entry_from_record(entry, _outcomes_from_record) for entry in entries),
        )

    @staticmethod
    def amount_to_record(amount: Outcomes) -> object:
        """See `Reservations.amount_to_record`."""
        return {"asks": amount.asks, "answers": amount.answers}


def _outcomes_from_record(record: object) -> Outcomes:
    if not isinstance(record, Mapping) or set(record) != {"asks", "answers"}:
        raise LedgerError("outcomes must hold asks and answers")
    return Outcomes(_whole(record["asks"]), _whole(record["answers"]))


def _whole(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise LedgerError("a count must be a whole number", type(value).__name__)
    return value
