"""Where a party keeps what it was charged: for life, and in each run.

`MemoryLedgerStore` keeps it in memory, for simulations and tests.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from pate_fed.accounting import PrivacyLedger
from pate_fed.charging import RunLedger


@dataclass(frozen=True, slots=True)
class RunCharges:
    """What one run was charged here, over all times that it was set up.

    Attributes:
        scope: `protocols.run_scope.RunScope.digest` of the run, 32 bytes.
        seat: Place of this party among all, from 0.
        ledger: Its budget for this party, its caps, and what was used of both.
    """

    scope: bytes
    seat: int
    ledger: RunLedger


class LedgerStore(ABC):
    """Where a party keeps its ledgers. Whoever keeps them on disk syncs before returning."""

    @abstractmethod
    def load(self) -> PrivacyLedger:
        """Return the newest ledger for life."""

    @abstractmethod
    def save(self, ledger: PrivacyLedger) -> None:
        """Replace the ledger for life, durably."""

    @abstractmethod
    def save_run(self, ledger: PrivacyLedger, charges: RunCharges, *, run_id: bytes) -> None:
        """Replace the ledger for life and a run's, durably and in one step.

        Args:
            ledger: The one for life.
            charges: The run's.
            run_id: Id under which the run was set up this time, 32 bytes.
        """

    @abstractmethod
    def charges(self, scope: bytes) -> RunCharges | None:
        """Return what a run was charged; None if it was never set up."""

    @abstractmethod
    def charges_of(self, run_id: bytes) -> RunCharges | None:
        """Return the same of the run that was once set up under an id."""


class MemoryLedgerStore(LedgerStore):
    """Ledgers in memory, for simulations and tests.

    Args:
        ledger: The one for life.
    """

    def __init__(self, ledger: PrivacyLedger) -> None:
        self._ledger = ledger
        self._charges: dict[bytes, RunCharges] = {}
        self._scopes: dict[bytes, bytes] = {}

    def load(self) -> PrivacyLedger:
        """See `LedgerStore.load`."""
        return self._ledger

    def save(self, ledger: PrivacyLedger) -> None:
        """See `LedgerStore.save`."""
        self._ledger = ledger

    def save_run(self, ledger: PrivacyLedger, charges: RunCharges, *, run_id: bytes) -> None:
        """See `LedgerStore.save_run`."""
        self.save(ledger)
        self._charges[charges.scope] = charges
        self._scopes[run_id] = charges.scope

    def charges(self, scope: bytes) -> RunCharges | None:
        """See `LedgerStore.charges`."""
        return self._charges.get(scope)

    def charges_of(self, run_id: bytes) -> RunCharges | None:
        """See `LedgerStore.charges_of`."""
        return self._charges.get(self._scopes.get(run_id, b""))
