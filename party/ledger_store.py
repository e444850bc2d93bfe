"""Where a party keeps what it was charged.

`MemoryLedgerStore` keeps it in memory, for simulations and tests.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from pate_fed.accounting import EntryState, PrivacyLedger


class LedgerStore(ABC):
    """Where a party keeps its ledger. Whoever keeps it on disk syncs before returning."""

    @abstractmethod
    def load(self) -> PrivacyLedger:
        """Return the newest ledger."""

    @abstractmethod
    def save(self, ledger: PrivacyLedger) -> None:
        """Replace the ledger, durably."""


class MemoryLedgerStore(LedgerStore):
    """A ledger in memory, for simulations and tests."""

    def __init__(self, ledger: PrivacyLedger) -> None:
        self._ledger = ledger

    def load(self) -> PrivacyLedger:
        """See `LedgerStore.load`."""
        return self._ledger

    def save(self, ledger: PrivacyLedger) -> None:
        """See `LedgerStore.save`."""
        self._ledger = ledger


def forfeit_reserved(store: LedgerStore) -> int:
    """Forfeit every charge that an earlier life of the node left open: nobody can settle it now.

    The keys of its run were in that life's memory, so no settlement of it can be checked.

    Returns:
        How many there were.
    """
    ledger = before = store.load()
    for entry in before.entries:
        if entry.state is EntryState.RESERVED:
            ledger = ledger.forfeit(entry.entry_id)
    if ledger is not before:
        store.save(ledger)
    return sum(one is not other for one, other in zip(before.entries, ledger.entries, strict=True))
