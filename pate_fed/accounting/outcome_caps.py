"""Counters that keep a run within its caps on refusals, on answers and on asks.

A formal price is that of a run that ends after its last allowed refusal, answer or ask. The outcome
of an ask is not known beforehand, so each reserves one refusal and one answer, before any noise is
drawn. When its outcome is public, the unused one is free again (`reservations` has the states).

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
    entry_from_record,
    entry_to_record,
    require_distinct,
    settled,
)
from pate_fed.errors import InvalidParameterError, LedgerError, OutcomeCapError

OUTCOME_LEDGER_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Outcomes:
    """Numbers of refusals and answers, from at most this many asks.

    Attributes:
        refusals: At least 0.
        answers: At least 0.
        asks: At least as many as either and at most both together; both together if not given,
            since each ask gives one or the other.
    """

    refusals: int
    answers: int
    asks: int = -1

    def __post_init__(self) -> None:
        object.__setattr__(self, "refusals", whole("refusals", self.refusals))
        object.__setattr__(self, "answers", whole("answers", self.answers))
        both = self.refusals + self.answers
        asks = both if self.asks == -1 else whole("asks", self.asks)
        if not max(self.refusals, self.answers) <= asks <= both:
            raise InvalidParameterError("each ask must give a refusal or an answer", asks)
        object.__setattr__(self, "asks", asks)

    def is_covered_by(self, reserved: Outcomes) -> bool:
        """Tell whether no count exceeds the other's."""
        return (
            self.refusals <= reserved.refusals
            and self.answers <= reserved.answers
            and self.asks <= reserved.asks
        )


NO_OUTCOMES: Final = Outcomes(0, 0)

OutcomeEntry: TypeAlias = Entry[Outcomes]


@dataclass(frozen=True, slots=True)
class OutcomeLedger:
    """Caps on refusals, answers and asks, and everything that was reserved from them.

    Attributes:
        caps: Numbers of refusals and answers that end the run; fixed before it begins. No cap on
            refusals says that the mechanism never refuses.
        entries: In the order of their reservation.
    """

    caps: Outcomes
    entries: tuple[OutcomeEntry, ...] = ()

    def __post_init__(self) -> None:
        if self.caps.answers < 1:
            raise InvalidParameterError("the cap on answers must be at least 1", self.caps.answers)
        require_distinct(self.entries)
        if not self._is_within:
            raise LedgerError("entries must stay within the caps", "entries that exceed them")

    @property
    def refusals(self) -> int:
        """Refusals that are released, held or forfeited."""
        return sum(each.refusals for each in self._counted)

    @property
    def answers(self) -> int:
        """Answers that are released, held or forfeited."""
        return sum(each.answers for each in self._counted)

    @property
    def asks(self) -> int:
        """Asks that are released, held or forfeited."""
        return sum(each.asks for each in self._counted)

    @property
    def asks_left(self) -> int:
        """Queries that may still be asked, apart from the other caps."""
        return self.caps.asks - self.asks

    @property
    def left(self) -> Outcomes:
        """The outcomes that may still be reserved; none where the run is over."""
        refusals = self.caps.refusals - self.refusals
        answers = self.caps.answers - self.answers
        asks = min(self.asks_left, refusals + answers)
        if asks == 0 or answers == 0 or (self._may_refuse and refusals == 0):
            return NO_OUTCOMES
        return Outcomes(min(refusals, asks), min(answers, asks), asks)

    @property
    def is_over(self) -> bool:
        """Whether no further ask can be reserved now; an open one may still give some back."""
        return self.left == NO_OUTCOMES

    def worst_case(self, queries: int) -> Outcomes:
        """Return the most that a batch may give if it stops at the caps by itself.

        The last ask ends the run by a refusal or by an answer, not by both, so one ask fewer than
        both caps together is possible.

        Args:
            queries: Of the batch, at least 0.

        Raises:
            InvalidParameterError: `queries` is not a whole number of at least 0.
            OutcomeCapError: it has more queries than may still be asked.
        """
        if whole("queries", queries) > self.asks_left:
            raise OutcomeCapError(
                f"a batch must have at most the {self.asks_left} queries that may still be asked",
                queries,
            )
        left = self.left
        most = left.refusals + left.answers - 1 if self._may_refuse else left.answers
        asks = min(queries, left.asks, max(most, 0))
        return Outcomes(min(asks, left.refusals), min(asks, left.answers), asks)

    def reserve(self, entry_id: str, outcomes: Outcomes) -> OutcomeLedger:
        """Hold the worst case of the next asks: an answer each, and a refusal if there can be one.

        Args:
            entry_id: A name that the ledger has never seen.
            outcomes: The most of each outcome that the step can release: one and one for an ask,
                `worst_case` for a batch. The batch must then be run with these as its caps.

        Raises:
            OutcomeCapError: more than is left of a cap.
            LedgerError: the name was used before, or the step cannot be a whole ask.
        """
        if not outcomes.is_covered_by(self.left) or self.is_over:
            left = self.left
            raise OutcomeCapError(
                f"the next step must fit in {left.refusals} refusals and {left.answers} answers "
                f"of {left.asks} asks",
                "more",
            )
        if outcomes.answers < 1 or (self._may_refuse and outcomes.refusals < 1):
            raise LedgerError("a reservation must hold every outcome of an ask", "fewer")
        entry = Entry(entry_id, EntryState.RESERVED, outcomes)
        return replace(self, entries=(*self.entries, entry))

    def commit(self, entry_id: str, released: Outcomes, release_digest: bytes) -> OutcomeLedger:
        """Count the released outcomes; the rest of the reservation is free again.

        Args:
            entry_id: An open reservation.
            released: The outcomes of the asks, in no count more than was reserved.
            release_digest: `NoisyRelease.digest`, 32 bytes.

        Raises:
            LedgerError: the reservation is unknown or settled, too small, or the digest has
                another length.
        """
        entries = settled(
            self.entries,
            entry_id,
            EntryState.COMMITTED,
            spent=released,
            release_digest=release_digest,
        )
        return replace(self, entries=entries)

    def cancel(self, entry_id: str) -> OutcomeLedger:
        """Give a reservation back: its sum provably never opens. See `reservations`.

        Raises:
            LedgerError: the reservation is unknown or settled.
        """
        return replace(self, entries=settled(self.entries, entry_id, EntryState.CANCELLED))

    def forfeit(self, entry_id: str) -> OutcomeLedger:
        """Count a whole reservation whose step failed after a message had left a party.

        Raises:
            LedgerError: the reservation is unknown or settled.
        """
        return replace(self, entries=settled(self.entries, entry_id, EntryState.FORFEITED))

    def to_record(self) -> dict[str, object]:
        """Return the ledger as plain values that JSON keeps exactly."""
        return {
            "outcome_ledger": OUTCOME_LEDGER_VERSION,
            "caps": _outcomes_to_record(self.caps),
            "entries": [entry_to_record(entry, _outcomes_to_record) for entry in self.entries],
        }

    @classmethod
    def from_record(cls, record: Mapping[str, object]) -> OutcomeLedger:
        """Read the record of `to_record`.

        Raises:
            LedgerError: the record is of another version, lacks a part, or contradicts itself.
            InvalidParameterError: a number in it is out of its range.
        """
        if set(record) != {"outcome_ledger", "caps", "entries"}:
            raise LedgerError("a ledger must hold its version, caps and entries", "others")
        version, entries = record["outcome_ledger"], record["entries"]
        if version != OUTCOME_LEDGER_VERSION or not isinstance(entries, list):
            raise LedgerError(f"a ledger must be of version {OUTCOME_LEDGER_VERSION}", version)
        return cls(
            caps=_outcomes_from_record(record["caps"]),
            entries=tuple(entry_from_record(entry, _outcomes_from_record) for entry in entries),
        )

    @property
    def _may_refuse(self) -> bool:
        return self.caps.refusals > 0

    @property
    def _counted(self) -> list[Outcomes]:
        return [entry.charged for entry in self.entries if entry.charged is not None]

    @property
    def _is_within(self) -> bool:
        return (
            self.refusals <= self.caps.refusals
            and self.answers <= self.caps.answers
            and self.asks <= self.caps.asks
        )


def _outcomes_to_record(outcomes: Outcomes) -> dict[str, int]:
    return {"refusals": outcomes.refusals, "answers": outcomes.answers, "asks": outcomes.asks}


def _outcomes_from_record(record: object) -> Outcomes:
    if not isinstance(record, Mapping) or set(record) != {"refusals", "answers", "asks"}:
        raise LedgerError("outcomes must hold refusals, answers and asks", "others")
    return Outcomes(*(_whole(record[name]) for name in ("refusals", "answers", "asks")))


def _whole(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise LedgerError("a count must be a whole number", type(value).__name__)
    return value
