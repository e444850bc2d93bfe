"""The settlements that a party heard: each is booked, also those of runs that it lost."""

from __future__ import annotations

import logging
from collections.abc import Callable

from party.decision.agreed_run import AgreedRun
from party.decision.faults import Faults
from party.decision.run_account import RunAccount
from party.errors import StorageError
from party.storage.journal import Journal
from party.storage.ledger_store import LedgerStore
from pate_fed.errors import PateFedError
from pate_fed.terms import MOST_VOID_BATCHES
from protocols.messages import Settlement
from protocols.rounds import PartyRound, PlanClaim

_log = logging.getLogger(__name__)


class Settlements:
    """The settlements that a party has yet to book, in order.

    One that cannot be stored is booked before anything else is answered: it comes only once.
    """

    def __init__(
        self,
        ledger: LedgerStore,
        journal: Journal,
        faults: Faults,
        *,
        me: bytes,
        most_returned: Callable[[], float],
    ) -> None:
        self._most_returned = most_returned
        self._me = me
        self._ledger = ledger
        self._journal = journal
        self._faults = faults
        self._waiting: list[tuple[Settlement, PlanClaim | None]] = []
        self._voids: dict[bytes, set[bytes]] = {}

    def add(self, settlement: Settlement, proven: PlanClaim | None) -> None:
        """Note a verified settlement, and the part of its plan that its evidence proves."""
        self._waiting.append((settlement, proven))

    def book(self, run: AgreedRun | None, round_: PartyRound) -> None:
        """Charge each release, or all that was reserved; free nothing on a mere claim."""
        while self._waiting:
            try:
                self._book(*self._waiting[0], run, round_)
            except StorageError:
                raise
            except Exception:
                self._waiting.pop(0)
                raise
            self._waiting.pop(0)

    def _book(
        self,
        settlement: Settlement,
        proven: PlanClaim | None,
        run: AgreedRun | None,
        round_: PartyRound,
    ) -> None:
        if settlement.run_id != round_.run_id:
            asked = None if run is None else run.asked
            self._book_late(
                settlement,
                proven,
                open_plan=b"" if asked is None else asked.plan_digest,
            )
            return
        assert run is not None
        run.settle(settlement, proven, most_returned=self._most_returned())
        if round_.batch.reveal_was_lost:
            _log.warning("the coordinator reports that it did not receive our shares of a batch")
        for dealer in round_.batch.wrong_dealers:
            name = dealer.hex()[:16]
            _log.warning(
                "a share differed from its signed hash: at fault is %s or the coordinator", name
            )

    def _book_late(
        self,
        settlement: Settlement,
        proven: PlanClaim | None,
        *,
        open_plan: bytes,
    ) -> None:
        """Charge a batch of a lost run, if it is open still."""
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
                queries=settlement.words // account.terms.columns,
                me=self._me,
                most_returned=self._most_returned(),
            )
        except PateFedError as error:  # no complaint about a run that is lost: another may follow
            self._faults.note(error)
            _log.error("a settlement of an earlier run does not fit: %s", error.code)
