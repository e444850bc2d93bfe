"""What a party agreed to: a run, and the batch of it that is open."""

from __future__ import annotations

from dataclasses import dataclass

from party.decision.run_account import RunAccount
from party.site.tasks import PartyTask
from pate_fed.federation import RunTerms
from pate_fed.mechanisms import FirstPhase
from pate_fed.queries import QueryBatch
from protocols.rounds import ANY_SET, SetBound
from protocols.run_scope import RunScope
from protocols.secure_sum import SecureSum


@dataclass(slots=True)
class AgreedRun:
    """A run that a party agreed to, and its charges."""

    run_id: bytes
    terms: RunTerms
    form: SecureSum
    scope: RunScope
    seat: int
    account: RunAccount
    task: PartyTask
    void_batches: int = 0
    is_closed: bool = False


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
