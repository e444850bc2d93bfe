"""A run that a party agreed to: its charges, the batch that is open, and the reviews of batches."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from party.decision.guard import Guard
from party.decision.run_account import RunAccount
from party.errors import Reason, RefusalError, StorageError
from party.site.tasks import PartyTask
from party.storage.journal import Journal
from party.storage.ledger import LedgerStore
from party.storage.query_journal import SketchedQueries
from pate_fed.accounting import Outcomes
from pate_fed.federation import RunTerms
from pate_fed.mechanisms import FirstPhase
from pate_fed.queries import QueryBatch
from protocols.messages import Settlement
from protocols.rounds import ANY_SET, PlanClaim, SetBound
from protocols.run_scope import RunScope
from protocols.secure_sum import SecureSum


@dataclass(frozen=True, slots=True)
class AskedBatch:
    """The batch that is open.

    Attributes:
        plan_digest: Of its plan; of two phases of the first's.
        queries: How many it asks.
        batch: The batch's terms; None if this party was not charged for it.
        bound: The journal's bound on the sets that may open for its queries (rule R3).
        first: The outcome of its first phase, once that is settled and another is to come.
        is_silent: Whether its answer failed once teachers were asked: nothing is said of this phase
            any more (rule R12).
    """

    plan_digest: bytes
    queries: int
    batch: QueryBatch | None = None
    bound: SetBound = ANY_SET
    first: FirstPhase | None = None
    is_silent: bool = False

    @property
    def entry_id(self) -> str:
        """Its name in ledgers."""
        return self.plan_digest.hex()


@dataclass(slots=True)
class AgreedRun:
    """A run that a party agreed to.

    Attributes:
        run_id: Its id, 32 bytes.
        terms: Its terms.
        form: Its secure sum.
        scope: The facts that people approve.
        seat: This party's place among all, from 0.
        account: Its charges.
        task: The task that it asks about.
        journal: The party's memory of plans and queries.
        ledger: The party's charges of all runs.
        asked: The open batch.
        void_batches: Void batches so far.
        is_closed: Whether the transcripts were compared.
    """

    run_id: bytes
    terms: RunTerms
    form: SecureSum
    scope: RunScope
    seat: int
    account: RunAccount
    task: PartyTask
    journal: Journal
    ledger: LedgerStore
    asked: AskedBatch | None = None
    void_batches: int = 0
    is_closed: bool = False

    @property
    def claim(self) -> PlanClaim:
        """The claim of a plan that this party is about to answer."""
        return PlanClaim.sent(
            self.scope.seats,
            survives_dropouts=self.form.survives_dropouts,
            task=self.task.digest,
            teachers=self.task.teachers,
        )

    # Reviews ----------------------------------------------------------------------------------

    def require_new(self, plan_digest: bytes) -> None:
        """Refuse a plan that was decided before it came: a charge for it would buy nothing."""
        if self.journal.run_of(plan_digest):
            raise RefusalError(Reason.QUERIES, "a plan must be new", "one decided before")

    def review_batch(
        self, guard: Guard, terms: bytes, *, words: int | None = None
    ) -> tuple[QueryBatch, Outcomes]:
        """Hold a batch against the policy, the run's terms and all budgets; see the guard's."""
        guard.review_consent(self.terms, scope=self.scope)
        own = "" if self.asked is None else self.asked.entry_id
        if self.task.evaluation is not None:
            guard.review_evaluation(self.task.evaluation, self.ledger.load(), own=own)
        return guard.review_batch(
            terms,
            words=words,
            seat=self.seat,
            void_batches=self.void_batches,
            lost_part=self.account.lost_part(but=own),
            pool=self.task.pool,
            queries=self.journal.queries,
            ledger=self.ledger.load(),
            run_ledger=self.account.ledger,
        )

    def review_queries(
        self, guard: Guard, batch: QueryBatch, *, after: bytes = b""
    ) -> tuple[SketchedQueries, SetBound]:
        """Hold a plan's queries against all that were ever answered; see the guard's."""
        return guard.review_queries(batch, after=after, **self._answering)

    def refused_alone(self, guard: Guard, batch: QueryBatch) -> list[int]:
        """Return the places of the queries to leave out; see the guard's."""
        return guard.refused_alone(batch, **self._answering)

    @property
    def _answering(self) -> dict[str, Any]:
        return {
            "queries": self.journal.queries,
            "seats": self.scope.seats,
            "threshold": self.form.threshold(len(self.scope.seats)),
            "task": self.task.digest,
            "teachers": self.task.teachers,
        }

    # Steps ------------------------------------------------------------------------------------

    def fall_silent(self) -> None:
        """Say nothing more of the open batch's phase (rule R12)."""
        assert self.asked is not None
        self.asked = replace(self.asked, is_silent=True)

    def settle(
        self, settlement: Settlement, proven: PlanClaim | None, *, most_returned: float
    ) -> None:
        """Charge the release, or all that was reserved; see `RunAccount.settle`.

        Raises:
            StorageError: it could not be stored: the batch is open still.
            InvalidTermsError: no run under these terms can have that release.
        """
        before = self.asked
        asked = before or AskedBatch(settlement.plan_digest, settlement.words // self.terms.classes)
        self.asked = None
        # Where its plan never came, an entry of its name is of an earlier setup.
        if before is not None or self.account.state_of(asked.entry_id) is None:
            try:
                first = self.account.settle(
                    settlement,
                    proven,
                    entry_id=asked.entry_id,
                    queries=asked.queries,
                    me=self.scope.seats[self.seat],
                    most_returned=most_returned,
                    first=asked.first,
                )
            except StorageError:
                self.asked = before
                raise
            self.asked = None if first is None else replace(asked, first=first, is_silent=False)
        self.void_batches += settlement.state == "void"
