"""What a party decides, as its owner may read it later: codes, digests and prices, never a vote."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from party.errors import Reason
from pate_fed.accounting import PrivacyEvent
from pate_fed.federation import RunTerms


@dataclass(frozen=True, slots=True)
class RunAccepted:
    """The party agrees to a run.

    Attributes:
        run_id: The run.
        terms: What it agrees to.
        seats: Fingerprints of all parties, in seat order.
    """

    run_id: bytes
    terms: RunTerms
    seats: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class RunRefused:
    """The party refuses a run.

    Attributes:
        run_id: The run.
        reason: What it says.
        terms: As they came: whether they can be read is not said.
        seats: Fingerprints of all parties, in seat order.
    """

    run_id: bytes
    reason: Reason
    terms: bytes
    seats: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class BatchAccepted:
    """The party is charged for a batch and is about to answer it, or to be silent.

    Attributes:
        plan_digest: Its plan.
        queries: How many it asks.
        charge: What is reserved in the ledger for life; None where there is no price.
    """

    plan_digest: bytes
    queries: int
    charge: PrivacyEvent | None


@dataclass(frozen=True, slots=True)
class BatchRefused:
    """The party refuses a batch.

    Attributes:
        plan_digest: Its plan.
        reason: What it says.
    """

    plan_digest: bytes
    reason: Reason


@dataclass(frozen=True, slots=True)
class BatchSettled:
    """The party heard what became of a batch, and has settled its ledger.

    Attributes:
        plan_digest: Its plan.
        state: "released" or another word of the settlement.
    """

    plan_digest: bytes
    state: str


Decision: TypeAlias = RunAccepted | RunRefused | BatchAccepted | BatchRefused | BatchSettled
