"""Two counters that keep a run within its caps on refusals and on answers.

The joint price (`joint_price`) is that of a run that ends after its last allowed refusal or
answer. What an ask will give is not known beforehand, so each reserves one refusal and one
answer, before any noise is drawn; when its outcome is public, what it did not use is free again.

    reserved --commit--> committed    the outcomes that were released are counted
             --cancel--> cancelled    nothing had left a party: nothing is counted
             --forfeit-> forfeited    something may have been seen: all that was reserved counts

An `OutcomeLedger` is a value: each step returns a new one, and a step that fails returns none, so
it changes nothing. Storing the newest value, durably and before any noise is drawn, is the
node's task. The caps never move: whether the run goes on depends on released outcomes only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from pate_fed.accounting.ledger import EntryState
from pate_fed.accounting.ranges import whole
from pate_fed.errors import InvalidParameterError, LedgerError, OutcomeCapError

OUTCOME_LEDGER_VERSION: Final = 1
_DIGEST_BYTES = 32


@dataclass(frozen=True, slots=True)
class Outcomes:
    """So many refusals and so many answers.

    Attributes:
        refusals: At least 0.
        answers: At least 0.
    """

    refusals: int
    answers: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "refusals", whole("refusals", self.refusals))
        object.__setattr__(self, "answers", whole("answers", self.answers))

    def is_covered_by(self, other: Outcomes) -> bool:
        """Tell whether neither count exceeds the other's."""
        return self.refusals <= other.refusals and self.answers <= other.answers


NO_OUTCOMES: Final = Outcomes(0, 0)


@dataclass(frozen=True, slots=True)
class OutcomeEntry:
    """One reservation and what became of it.

    Attributes:
        entry_id: Name of the reservation, never used twice in a ledger.
        state: Where it stands.
        reserved: The most of each outcome that its asks may give.
        released: What they gave; of committed entries only.
        release_digest: SHA-256 of the release, 32 bytes; of committed entries only.
    """

    entry_id: str
    state: EntryState
    reserved: Outcomes
    released: Outcomes | None = None
    release_digest: bytes | None = None

    def __post_init__(self) -> None:
        is_committed = self.state is EntryState.COMMITTED
        if (self.released is not None) != is_committed or (
            self.release_digest is not None
        ) != is_committed:
            raise LedgerError("exactly committed entries must say what was released", self.state)
        if self.released is not None and not self.released.is_covered_by(self.reserved):
            raise LedgerError("what was released must be covered by what was reserved", "more")
        if self.release_digest is not None and len(self.release_digest) != _DIGEST_BYTES:
            raise LedgerError("a release digest must have 32 bytes", len(self.release_digest))
        if not self.entry_id:
            raise LedgerError("an entry must have a name", "an empty one")

    @property
    def counted(self) -> Outcomes:
        """What counts against the caps now."""
        if self.state is EntryState.CANCELLED:
            return NO_OUTCOMES
        return self.reserved if self.released is None else self.released


@dataclass(frozen=True, slots=True)
class OutcomeLedger:
    """Caps on refusals and answers, and everything that was reserved from them.

    Attributes:
        max_refusals: Refusals after which the run is over, at least 1; fixed before it begins.
        max_answers: Answers after which the run is over, at least 1; fixed with it.
        entries: In the order of their reservation.
    """

    max_refusals: int
    max_answers: int
    entries: tuple[OutcomeEntry, ...] = ()

    def __post_init__(self) -> None:
        for name in ("max_refusals", "max_answers"):
            cap = whole(name, getattr(self, name))
            if cap < 1:
                raise InvalidParameterError(f"{name} must be at least 1", cap)
            object.__setattr__(self, name, cap)
        if len({entry.entry_id for entry in self.entries}) != len(self.entries):
            raise LedgerError("every entry must have a name of its own", "a repeated name")
        if not self.counted.is_covered_by(self._caps):
            raise LedgerError("entries must stay within the caps", "entries that exceed them")

    @property
    def counted(self) -> Outcomes:
        """What is released, held or forfeited."""
        counted = [entry.counted for entry in self.entries]
        return Outcomes(sum(each.refusals for each in counted), sum(c.answers for c in counted))

    @property
    def left(self) -> Outcomes:
        """What may still be reserved."""
        counted = self.counted
        return Outcomes(self.max_refusals - counted.refusals, self.max_answers - counted.answers)

    @property
    def is_over(self) -> bool:
        """Whether no further ask can be reserved unless an open one gives something back."""
        left = self.left
        return left.refusals == 0 or left.answers == 0

    def worst_case(self, asks: int) -> Outcomes:
        """Return what a batch of asks may give at most if it stops at the caps by itself.

        Args:
            asks: Queries of the batch, at least 0.

        Raises:
            InvalidParameterError: `asks` is not a whole number of at least 0.
        """
        left = self.left
        return Outcomes(min(whole("asks", asks), left.refusals), min(asks, left.answers))

    def reserve(self, entry_id: str, outcomes: Outcomes) -> OutcomeLedger:
        """Hold the worst case of the next asks: at least one refusal and one answer.

        Args:
            entry_id: A name that the ledger has never seen.
            outcomes: The most of each outcome that the step can release: one and one for an
                ask, `worst_case` for a batch, which must then be run with these as its caps.

        Raises:
            OutcomeCapError: more than is left of a cap.
            LedgerError: the name was used before, or the step cannot be a whole ask.
        """
        if any(entry.entry_id == entry_id for entry in self.entries):
            raise LedgerError("a reservation must have a new name", entry_id)
        if min(outcomes.refusals, outcomes.answers) < 1:
            raise self._refused_or(
                LedgerError("a reservation must hold a refusal and an answer", "fewer")
            )
        if not outcomes.is_covered_by(self.left):
            raise self._cap_error()
        entry = OutcomeEntry(entry_id, EntryState.RESERVED, outcomes)
        return replace(self, entries=(*self.entries, entry))

    def commit(self, entry_id: str, released: Outcomes, release_digest: bytes) -> OutcomeLedger:
        """Count what was released; the rest of the reservation is free again.

        Args:
            entry_id: An open reservation.
            released: What the asks gave, in neither count more than was reserved.
            release_digest: `NoisyRelease.digest`, 32 bytes.

        Raises:
            LedgerError: the reservation is unknown or settled, too small, or the digest has
                another length.
        """
        return self._settled(
            entry_id, EntryState.COMMITTED, released=released, release_digest=release_digest
        )

    def cancel(self, entry_id: str) -> OutcomeLedger:
        """Give a reservation back. Allowed only while nothing of its step has left a party.

        Raises:
            LedgerError: the reservation is unknown or settled.
        """
        return self._settled(entry_id, EntryState.CANCELLED)

    def forfeit(self, entry_id: str) -> OutcomeLedger:
        """Count a whole reservation whose step failed after something had left a party.

        Raises:
            LedgerError: the reservation is unknown or settled.
        """
        return self._settled(entry_id, EntryState.FORFEITED)

    def to_record(self) -> dict[str, object]:
        """Return the ledger as plain values that JSON keeps exactly."""
        return {
            "outcome_ledger": OUTCOME_LEDGER_VERSION,
            "max_refusals": self.max_refusals,
            "max_answers": self.max_answers,
            "entries": [_entry_to_record(entry) for entry in self.entries],
        }

    @classmethod
    def from_record(cls, record: Mapping[str, object]) -> OutcomeLedger:
        """Read what `to_record` wrote.

        Raises:
            LedgerError: the record is of another version, lacks a part, or contradicts itself.
            InvalidParameterError: a number in it is out of its range.
        """
        if set(record) != {"outcome_ledger", "max_refusals", "max_answers", "entries"}:
            raise LedgerError("a ledger must hold its version, caps and entries", "others")
        version, entries = record["outcome_ledger"], record["entries"]
        if version != OUTCOME_LEDGER_VERSION or not isinstance(entries, list):
            raise LedgerError(f"a ledger must be of version {OUTCOME_LEDGER_VERSION}", version)
        return cls(
            max_refusals=_whole(record["max_refusals"]),
            max_answers=_whole(record["max_answers"]),
            entries=tuple(_entry_from_record(entry) for entry in entries),
        )

    @property
    def _caps(self) -> Outcomes:
        return Outcomes(self.max_refusals, self.max_answers)

    def _cap_error(self) -> OutcomeCapError:
        left = self.left
        return OutcomeCapError(
            f"the next step must fit in {left.refusals} refusals and {left.answers} answers",
            "more",
        )

    def _refused_or(self, error: LedgerError) -> LedgerError | OutcomeCapError:
        """Prefer to say that the run is over: then `worst_case` has nothing to reserve."""
        return self._cap_error() if self.is_over else error

    def _settled(
        self,
        entry_id: str,
        state: EntryState,
        *,
        released: Outcomes | None = None,
        release_digest: bytes | None = None,
    ) -> OutcomeLedger:
        names = [entry.entry_id for entry in self.entries]
        if entry_id not in names:
            raise LedgerError("a reservation must be known", entry_id)
        position = names.index(entry_id)
        entry = self.entries[position]
        if entry.state is not EntryState.RESERVED:
            raise LedgerError("a reservation must be open", f"{entry_id}, {entry.state}")
        settled = replace(entry, state=state, released=released, release_digest=release_digest)
        before, after = self.entries[:position], self.entries[position + 1 :]
        return replace(self, entries=(*before, settled, *after))


def _entry_to_record(entry: OutcomeEntry) -> dict[str, object]:
    return {
        "entry_id": entry.entry_id,
        "state": entry.state.value,
        "reserved": _outcomes_to_record(entry.reserved),
        "released": None if entry.released is None else _outcomes_to_record(entry.released),
        "release_digest": None if entry.release_digest is None else entry.release_digest.hex(),
    }


def _entry_from_record(record: object) -> OutcomeEntry:
    fields = {"entry_id", "state", "reserved", "released", "release_digest"}
    if not isinstance(record, Mapping) or set(record) != fields:
        raise LedgerError(f"a ledger entry must hold {sorted(fields)}", "others")
    entry_id, state, digest = record["entry_id"], record["state"], record["release_digest"]
    if not isinstance(entry_id, str) or state not in list(EntryState):
        raise LedgerError("a ledger entry must have a name and a known state", state)
    try:
        release_digest = None if digest is None else bytes.fromhex(digest)
    except (TypeError, ValueError):
        raise LedgerError("a release digest must be hexadecimal", "another form") from None
    released = record["released"]
    return OutcomeEntry(
        entry_id=entry_id,
        state=EntryState(state),
        reserved=_outcomes_from_record(record["reserved"]),
        released=None if released is None else _outcomes_from_record(released),
        release_digest=release_digest,
    )


def _outcomes_to_record(outcomes: Outcomes) -> dict[str, int]:
    return {"refusals": outcomes.refusals, "answers": outcomes.answers}


def _outcomes_from_record(record: object) -> Outcomes:
    if not isinstance(record, Mapping) or set(record) != {"refusals", "answers"}:
        raise LedgerError("outcomes must hold refusals and answers", "others")
    return Outcomes(_whole(record["refusals"]), _whole(record["answers"]))


def _whole(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise LedgerError("a count must be a whole number", type(value).__name__)
    return value
