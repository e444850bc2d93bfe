"""A site's record of its own doing, and heads that commit to all of it.

The coordinator holds the newest head that the site signed, people may have written one down.
"""

from __future__ import annotations

from enum import StrEnum

from party.errors import BrokenSiteLogError
from party.storage.site_schema import SiteAuditRow
from pate_fed.nodes import audit_log
from protocols import wire
from protocols.identity import SigningIdentity
from protocols.membership_messages import AuditHead


class SiteAct(StrEnum):
    """The kind of an act, of the node or of its people."""

    JOINED = "joined"
    LEFT = "left"
    RUN_ACCEPTED = "run accepted"
    RUN_REFUSED = "run refused"
    REFUSALS_LEFT_OUT = "refusals left out"
    BATCH_ANSWERED = "batch answered"
    BATCH_REFUSED = "batch refused"
    RUN_CLOSED = "run closed"
    CHARGED = "charged"
    SETTLED = "settled"
    ASKED = "approval asked"
    APPROVED = "approved"
    REJECTED = "rejected"
    WITHDRAWN = "withdrawn"
    SETTINGS_CHANGED = "settings changed"
    DATA_CHANGED = "data changed"
    PATIENT_REMOVED = "patient removed"
    PIN_ADDED = "pin added"
    PIN_REMOVED = "pin removed"
    PAGE_OPENED = "page opened"
    RESULTS_FETCHED = "results fetched"
    EXPORTED = "exported"
    PAUSED = "paused"
    RESUMED = "resumed"
    JOURNAL_HALTED = "journal halted"
    CONTRADICTED = "log contradicted"


class SiteAuditLog(audit_log.AuditLog):
    """A site's audit log; see `pate_fed.nodes.audit_log`."""

    rows = SiteAuditRow
    domain = b"pate-fed/1/audit log\0"
    acts = SiteAct
    fault = BrokenSiteLogError


def sign_head(count: int, head: bytes, identity: SigningIdentity) -> bytes:
    """Sign where a log stands, to be given away; return the frame of an `AuditHead`."""
    return wire.sign(AuditHead(identity.fingerprint, count, head), identity).frame
