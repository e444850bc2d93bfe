"""The operator's audit log: who did what, from where, before and after."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from coordinator.database.federation_schema import FederationAuditRow
from coordinator.errors import BrokenAuditLogError
from pate_fed.nodes import audit_log


class FederationAct(StrEnum):
    """The kind of an act."""

    INVITED = "hospital invited"
    APPROVED = "hospital approved"
    REVOKED = "hospital revoked"
    SUSPENDED = "hospital suspended"
    REINSTATED = "hospital reinstated"
    VOTES_CHANGED = "votes changed"
    BUDGET_SET = "budget set"
    BUDGET_PROPOSED = "budget proposed"
    BUDGET_AGREED = "budget agreed"
    BUDGET_WITHDRAWN = "budget withdrawn"
    ASKED = "run asked"
    PAUSED = "run paused"
    RESUMED = "run resumed"
    STOPPED = "run stopped"
    EXPORTED = "results exported"
    STUDENT_GIVEN = "student given"
    PERSON_ADDED = "person added"
    PERSON_CHANGED = "person changed"
    PERSON_REMOVED = "person removed"
    API_OPENED = "token made"
    API_CLOSED = "token revoked"
    SIGNED_IN = "person signed in"
    LOCKED_OUT = "person locked out"


@dataclass(frozen=True, slots=True)
class Actor:
    """A person's name or login, and the place of their act: "command line", or another door."""

    name: str
    origin: str


class FederationAuditLog(audit_log.AuditLog):
    """The operator's audit log; see `pate_fed.nodes.audit_log`."""

    rows = FederationAuditRow
    domain = b"pate-fed/1/operator audit log\0"
    acts = FederationAct
    fault = BrokenAuditLogError
