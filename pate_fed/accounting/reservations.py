"""Reserve first, then settle: the common part of every ledger's entries.

    reserved --commit--> committed    the release counts, at most the reserved amount
             --cancel--> cancelled    the sum provably never opens: nothing counts (decision 16)
             --return--> returned     the same by the word of some hospitals alone: nothing counts
             --forfeit-> forfeited    something may have been seen: all that was reserved counts

Entries are values: settling one returns new entries, and a failed step changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Generic, Protocol, Self, TypeVar

from pate_fed.errors import LedgerError

_DIGEST_BYTES = 32


class EntryState(StrEnum):
    """The state of an entry; all but `RESERVED` are final."""

    RESERVED = "reserved"
    COMMITTED = "committed"
    CANCELLED = "cancelled"
    RETURNED = "returned"
    FORFEITED = "forfeited"


class Reservable(Protocol):
    """An amount that can be held and later used up in part."""

    def is_covered_by(self, reserved: Self, /) -> bool:
        """Tell whether `reserved` is enough for this."""


T = TypeVar("T", bound=Reservable)


@dataclass(frozen=True, slots=True)
class Entry(Generic[T]):
    """One reservation and its state.

    A committed entry has the release, and its SHA-256.
    """

    entry_id: str
    state: EntryState
    reserved: T
    spent: T | None = None
    release_digest: bytes | None = None

    def __post_init__(self) -> None:
        is_committed = self.state is EntryState.COMMITTED
        if (self.spent is not None) != is_committed or (
            self.release_digest is not None
        ) != is_committed:
            raise LedgerError("exactly committed entries must name their release", self.state)
        if self.spent is not None and not self.spent.is_covered_by(self.reserved):
            raise LedgerError("the spending must be covered by the reservation")
        if self.release_digest is not None and len(self.release_digest) != _DIGEST_BYTES:
            raise LedgerError("a release digest must have 32 bytes", len(self.release_digest))
        if not self.entry_id:
            raise LedgerError("an entry must have a name")

    @property
    def charged(self) -> T | None:
        """The amount that counts now; None of a cancelled or returned entry."""
        if self.state in (EntryState.CANCELLED, EntryState.RETURNED):
            return None
        return self.reserved if self.spent is None else self.spent


def require_distinct(entries: tuple[Entry[T], ...]) -> None:
    """Refuse entries of which two have one name."""
    if len({entry.entry_id for entry in entries}) != len(entries):
        raise LedgerError("every entry must have a name of its own")


class Reservations(Generic[T]):
    """What every ledger does with its entries; each step returns a new ledger.

    To settle an entry raises a `LedgerError` where its reservation is unknown or settled.
    """

    __slots__ = ()

    if TYPE_CHECKING:

        @property
        def entries(self) -> tuple[Entry[T], ...]:
            """In the order of their reservation."""

    def commit(self, entry_id: str, spent: T, release_digest: bytes) -> Self:
        """Count a release, no larger than its reservation; the rest is free again."""
        return self._settled(entry_id, EntryState.COMMITTED, spent, release_digest)

    def cancel(self, entry_id: str) -> Self:
        """Give a reservation back: its sum provably never opens."""
        return self._settled(entry_id, EntryState.CANCELLED)

    def give_back(self, entry_id: str) -> Self:
        """Give a reservation back on the word of others, who may all lie.

        Unlike a cancelled entry it stays known as such, so that its owner can bound them.
        """
        return self._settled(entry_id, EntryState.RETURNED)

    def forfeit(self, entry_id: str) -> Self:
        """Count a whole reservation whose step failed after a message had left a party."""
        return self._settled(entry_id, EntryState.FORFEITED)

    def changed_since(self, before: Self) -> dict[int, dict[str, object]]:
        """Return the records of the entries that are new or were settled, by their places."""
        if len(self.entries) < len(before.entries):
            raise LedgerError("a ledger must keep every entry")
        # An unchanged entry is the same object, so this compares few.
        return {
            place: entry_to_record(entry, self.amount_to_record)
            for place, entry in enumerate(self.entries)
            if place >= len(before.entries) or entry != before.entries[place]
        }

    @staticmethod
    def amount_to_record(amount: T) -> object:
        """Return an amount as plain values that JSON keeps exactly."""
        raise NotImplementedError

    @property
    def _charges(self) -> list[T]:
        """The amounts that count now."""
        return [entry.charged for entry in self.entries if entry.charged is not None]

    def _settled(
        self,
        entry_id: str,
        state: EntryState,
        spent: T | None = None,
        release_digest: bytes | None = None,
    ) -> Self:
        names = [entry.entry_id for entry in self.entries]
        if entry_id not in names:
            raise LedgerError("a reservation must be known", entry_id)
        position = names.index(entry_id)
        entry = self.entries[position]
        if entry.state is not EntryState.RESERVED:
            raise LedgerError("a reservation must be open", f"{entry_id}, {entry.state}")
        done = replace(entry, state=state, spent=spent, release_digest=release_digest)
        entries = (*self.entries[:position], done, *self.entries[position + 1 :])
        return replace(self, entries=entries)  # type: ignore[type-var]  # ledgers are dataclasses


def entry_to_record(entry: Entry[T], encode: Callable[[T], object]) -> dict[str, object]:
    """Return an entry as plain values that JSON keeps exactly."""
    return {
        "entry_id": entry.entry_id,
        "state": entry.state.value,
        "reserved": encode(entry.reserved),
        "spent": None if entry.spent is None else encode(entry.spent),
        "release_digest": None if entry.release_digest is None else entry.release_digest.hex(),
    }


def entry_from_record(record: object, decode: Callable[[object], T]) -> Entry[T]:
    """Read the record of `entry_to_record`; anything else is a LedgerError."""
    fields = {"entry_id", "state", "reserved", "spent", "release_digest"}
    if not isinstance(record, Mapping) or set(record) != fields:
        raise LedgerError(f"a ledger entry must hold {sorted(fields)}")
    entry_id, state, digest = record["entry_id"], record["state"], record["release_digest"]
    if not isinstance(entry_id, str) or state not in list(EntryState):
        raise LedgerError("a ledger entry must have a name and a known state", state)
    try:
        release_digest = None if digest is None else bytes.fromhex(digest)
    except (TypeError, ValueError):
        raise LedgerError("a release digest must be hexadecimal") from None
    spent = record["spent"]
    return Entry(
        entry_id=entry_id,
        state=EntryState(state),
        reserved=decode(record["reserved"]),
        spent=None if spent is None else decode(spent),
        release_digest=release_digest,
    )
