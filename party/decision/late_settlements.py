"""Settlements of runs that a party lost: their charges are booked still."""

from __future__ import annotations

import logging

from party.decision.faults import Faults
from party.decision.run_account import RunAccount
from party.storage.ledger import LedgerStore
from party.storage.query_journal import Journal
from pate_fed.errors import PateFedError
from pate_fed.federation import MOST_VOID_BATCHES
from protocols.messages import (
    Settlement,
)
from protocols.rounds import PlanClaim

_log = logging.getLogger(__name__)


class LateSettlements:
    """Books them, as far as they can be true.

    Args:
        ledger: Where the party keeps what it was charged.
        journal: What it remembers of plans.
        faults: Told of what does not fit.
    """

    def __init__(self, ledger: LedgerStore, journal: Journal, faults: Faults) -> None:
        self._ledger = ledger
        self._journal = journal
        self._faults = faults
        self._voids: dict[bytes, set[bytes]] = {}

    def settle(self, settlement: Settlement, proven: PlanClaim | None, *, open_plan: bytes) -> None:
        """Charge a batch of a run that we lost as its settlement says, if it is open still.

        A batch in two phases stays charged, unless its first one provably never opens.

        Args:
            settlement: What became of the batch.
            proven: What the settlement proves about its plan.
            open_plan: Digest of the plan that is open in the run of now; empty if none is.
        """
        account = RunAccount.find(self._ledger, run_id=settlement.run_id)
        known = self._journal.run_of(settlement.plan_digest)
        is_open_here = settlement.plan_digest == open_plan
        if account is None or is_open_here or known not in (b"", settlement.run_id):
            return  # the plan is of another setup
        if settlement.state == "void" and account.state_of(settlement.plan_digest.hex()) is None:
            # No setup has more: others were made up, to use up caps.
            told = self._voids.setdefault(settlement.run_id, set())
            if len(told | {settlement.plan_digest}) > MOST_VOID_BATCHES:
                _log.error("an earlier run has more void batches than it can have")
                return
            told.add(settlement.plan_digest)
        try:
            account.settle(
                settlement,
                proven,
                entry_id=settlement.plan_digest.hex(),
                queries=settlement.words // account.terms.classes,
                is_late=True,
            )
        except PateFedError as error:  # no complaint about a run that is lost: another may follow
            self._faults.note(error)
            _log.error("a settlement of an earlier run does not fit: %s", error.code)
