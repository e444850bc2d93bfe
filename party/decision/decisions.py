"""The decisions of a party, as its owner reads them later: codes, digests, prices."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TypeAlias

from party.errors import Reason
from party.storage.site_audit_log import SiteAct
from pate_fed.nodes.audit_log import Fact
from pate_fed.terms import RunTerms
from protocols.run_scope import RunScope


@dataclass(frozen=True, slots=True)
class RunAccepted:
    """The party agrees to a run."""

    run_id: bytes
    terms: RunTerms
    scope: RunScope


@dataclass(frozen=True, slots=True)
class RunRefused:
    """The party refuses a run, whose terms may be unreadable."""

    run_id: bytes
    reason: Reason
    scope: RunScope


@dataclass(frozen=True, slots=True)
class BatchAccepted:
    """The party was charged for a batch and is about to answer it, or to be silent."""

    run_id: bytes
    scope: RunScope
    plan_digest: bytes
    queries: int


@dataclass(frozen=True, slots=True)
class BatchRefused:
    """The party refuses a batch."""

    plan_digest: bytes
    reason: Reason


@dataclass(frozen=True, slots=True)
class RunClosed:
    """The run is over; `compared` are the parties with our last head, in seat order."""

    run_id: bytes
    head: bytes
    compared: tuple[bytes, ...]


Decision: TypeAlias = RunAccepted | RunRefused | BatchAccepted | BatchRefused | RunClosed


def record_of(decision: Decision) -> tuple[SiteAct, dict[str, Fact]]:
    """Return a decision's entry in the audit log: the same for the same run, refused again."""
    match decision:
        case RunAccepted(run_id, terms, scope):
            return SiteAct.RUN_ACCEPTED, {
                "run": run_id,
                "coordinator": scope.coordinator,
                "terms": scope.digest,
                "parties": len(scope.seats),
                "mechanism": terms.rule.mechanism,
                "delta": repr(terms.delta),
            }
        case RunRefused(_, reason, scope):
            digest = hashlib.sha256(scope.terms).digest()
            return SiteAct.RUN_REFUSED, {
                "code": reason.value,
                "coordinator": scope.coordinator,
                "terms": digest,
            }
        case BatchAccepted(run_id, _, plan_digest, queries):
            return SiteAct.BATCH_ANSWERED, {
                "run": run_id,
                "plan": plan_digest,
                "queries": queries,
            }
        case BatchRefused(plan_digest, reason):
            return SiteAct.BATCH_REFUSED, {"plan": plan_digest, "code": reason.value}
        case RunClosed(run_id, head, compared):
            return SiteAct.RUN_CLOSED, {"run": run_id, "head": head, "parties": len(compared)}
