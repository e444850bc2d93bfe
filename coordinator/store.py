"""What the coordinator must not lose: its ledger and what it released.

`MemoryStore` keeps both in memory, for simulations and tests.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from pate_fed.charging import RunLedger
from pate_fed.releases import NoisyRelease


class RunStore(ABC):
    """Durable memory of a run. Whoever keeps it on disk syncs before returning."""

    @abstractmethod
    def ledger(self) -> RunLedger:
        """Return the newest ledger."""

    @abstractmethod
    def save_ledger(self, ledger: RunLedger) -> None:
        """Replace the ledger."""

    @abstractmethod
    def save_release(
        self, ledger: RunLedger, *, batch: int, indices: tuple[int, ...], release: NoisyRelease
    ) -> None:
        """Store a release together with the ledger that was charged for it, in one step."""

    @abstractmethod
    def releases(self) -> dict[int, tuple[tuple[int, ...], NoisyRelease]]:
        """Return the indices and release of each released batch, by its number, in order."""


class MemoryStore(RunStore):
    """A run in memory."""

    def __init__(self, ledger: RunLedger) -> None:
        self._ledger = ledger
        self._releases: dict[int, tuple[tuple[int, ...], NoisyRelease]] = {}

    def ledger(self) -> RunLedger:
        """See `RunStore.ledger`."""
        return self._ledger

    def save_ledger(self, ledger: RunLedger) -> None:
        """See `RunStore.save_ledger`."""
        self._ledger = ledger

    def save_release(
        self, ledger: RunLedger, *, batch: int, indices: tuple[int, ...], release: NoisyRelease
    ) -> None:
        """See `RunStore.save_release`."""
        self._ledger = ledger
        self._releases[batch] = (indices, release)

    def releases(self) -> dict[int, tuple[tuple[int, ...], NoisyRelease]]:
        """See `RunStore.releases`."""
        return {batch: self._releases[batch] for batch in sorted(self._releases)}
