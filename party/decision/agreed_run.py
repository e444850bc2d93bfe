"""A run that a party agreed to: its charges, the batch that is open, and the reviews of batches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self

from party.decision.guard import Guard
from party.decision.run_account import RunAccount
from party.errors import Reason, RefusalError, StorageError
from party.site.party_task import PartyTask, task_for
from party.storage.journal import Journal
from party.storage.ledger_store import LedgerStore
from pate_fed.accounting import Outcomes
from pate_fed.queries import QueryBatch
from pate_fed.terms import MOST_ASKED, RunTerms
from protocols.errors import InvalidVectorError
from protocols.messages import RunInquiry, RunRecord, Settlement
from protocols.rounds import ANY_SET, PlanClaim, SetBound
from protocols.run_scope import RunScope
from protocols.secure_sum import RoundForm
from protocols.verified import VoteLayout

MOST_INQUIRED: Final = 16 * MOST_ASKED
"""Most queries of different inquiries before a plan: a coordinator asks for others in the place of
refused ones, until it has a batch.
"""


@dataclass(frozen=True, slots=True)
class OpenBatch:
    """The batch that is open; without `batch` this party was not charged for it.

    `bound` is the journal's, on the sets that may open for its queries (rule R3). It `is_silent`
    where its answer failed once teachers were asked: nothing is said of it any more (rule R12).
    """

    plan_digest: bytes
    queries: int
    batch: QueryBatch | None = None
    bound: SetBound = ANY_SET
    is_silent: bool = False

    @property
    def entry_id(self) -> str:
        """Its name in ledgers."""
        return self.plan_digest.hex()


@dataclass(slots=True)
class AgreedRun:
    """A run that a party, at a seat from 0, agreed to; closed once the transcripts are compared."""

    run_id: bytes
    terms: RunTerms
    form: RoundForm
    scope: RunScope
    seat: int
    account: RunAccount
    task: PartyTask
    journal: Journal
    ledger: LedgerStore
    asked: OpenBatch | None = None
    void_batches: int = 0
    is_closed: bool = False
    _inquired: dict[tuple[int, ...], list[int]] = field(default_factory=dict, repr=False)
    _inquired_since: object = None

    @classmethod
    def reviewed(
        cls,
        record: RunRecord | RunInquiry,
        scope: RunScope,
        *,
        run_id: bytes,
        me: bytes,
        guard: Guard,
        forms: Mapping[str, RoundForm],
        tasks: Mapping[bytes, PartyTask],
        journal: Journal,
        ledger: LedgerStore,
    ) -> Self:
        """Return a run as this party agrees to it, or raise `RefusalError`; nothing is written."""
        terms = guard.review_run(record, seats=scope.seats, me=me)
        seat = scope.seats.index(me)
        account = RunAccount.open(ledger, terms, scope=scope.digest, seat=seat, run_id=run_id)
        task = task_for(terms, tasks)
        places = terms.weights[seat]
        if len(task.patients or ()) * places.heaviest > places.votes:
            raise RefusalError(Reason.UNIT, "our patients must have a place each", "fewer")
        if task.evaluation is not None:
            guard.review_evaluation(task.evaluation, ledger.load())
        run = cls(run_id, terms, forms[record.form], scope, seat, account, task, journal, ledger)
        guard.review_price(account.ledger, seat=seat, ledger=ledger.load())
        guard.review_consent(terms, scope=scope)
        return run

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
        batch, worst = guard.review_batch(
            terms,
            words=words,
            seat=self.seat,
            void_batches=self.void_batches,
            lost_share=self.account.lost_share(but=own),
            pool=self.task.pool,
            queries=self.journal.queries,
            ledger=self.ledger.load(),
            run_ledger=self.account.ledger,
        )
        try:
            self.layout(len(batch))  # what no proof can be made of is known before a charge
        except InvalidVectorError as error:
            raise RefusalError(Reason.TERMS, error.must, error.got) from error
        return batch, worst

    def review_queries(self, guard: Guard, batch: QueryBatch) -> SetBound:
        """Hold a plan's queries against all that were ever answered; see the guard's."""
        return guard.review_queries(batch, **self._answering)

    def refused_alone(self, guard: Guard, batch: QueryBatch) -> list[int]:
        """Return the places of the queries to leave out; see the guard's.

        An inquiry is free, and its answer takes the node seconds. So the answer is kept until the
        journal or the policy changes, and inquiries about many queries are refused until then.
        """
        since = self.journal.counter, guard.policy
        if since != self._inquired_since:
            self._inquired_since = since
            self._inquired.clear()
        if batch.indices not in self._inquired:
            if sum(map(len, self._inquired)) + len(batch) > MOST_INQUIRED:
                must = f"inquiries must name at most {MOST_INQUIRED} queries before a plan"
                raise RefusalError(Reason.QUERIES, must, "more")
            self._inquired[batch.indices] = guard.refused_alone(batch, **self._answering)
        return self._inquired[batch.indices]

    @property
    def _answering(self) -> dict[str, Any]:
        return {
            "queries": self.journal.queries,
            "seats": self.scope.seats,
            "threshold": self.form.threshold(len(self.scope.seats)),
            "task": self.task.digest,
            "teachers": self.task.teachers,
        }

    def layout(self, queries: int) -> VoteLayout | None:
        """Return the layout of our report of so many rows; None where the form has none."""
        if not self.form.adds_noise:
            return None
        votes, columns = self.terms.quotas[self.seat], self.terms.columns
        return VoteLayout.of(queries=queries, columns=columns, votes=votes)

    # Steps ------------------------------------------------------------------------------------

    def fall_silent(self) -> None:
        """Say nothing more of the open batch (rule R12)."""
        assert self.asked is not None
        self.asked = replace(self.asked, is_silent=True)

    def settle(
        self, settlement: Settlement, proven: PlanClaim | None, *, most_returned: float
    ) -> None:
        """Settle the open batch, which stays open if that cannot be stored; see `RunAccount`."""
        before = self.asked
        asked = before or OpenBatch(settlement.plan_digest, settlement.words // self.terms.columns)
        self.asked = None
        # Where its plan never came, an entry of its name is of an earlier setup.
        if before is not None or self.account.state_of(asked.entry_id) is None:
            try:
                self.account.settle(
                    settlement,
                    proven,
                    entry_id=asked.entry_id,
                    queries=asked.queries,
                    me=self.scope.seats[self.seat],
                    most_returned=most_returned,
                )
            except StorageError:
                self.asked = before
                raise
        self.void_batches += settlement.state == "void"
