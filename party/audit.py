"""What a node writes down of its own doing: the kinds of records, and whoever keeps them.

`NoAudit` keeps none, for simulations and tests.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import StrEnum
from typing import TypeAlias

Detail: TypeAlias = str | int | bytes
"""What a record may hold; a price is written as text, so that it is read as it was written."""


class AuditKind(StrEnum):
    """What a record is about."""

    JOINED = "joined"
    LEFT = "left"
    RUN_ACCEPTED = "run accepted"
    RUN_REFUSED = "run refused"
    BATCH_REFUSED = "batch refused"
    CHARGED = "charged"
    BATCH_ANSWERED = "batch answered"
    SETTLED = "settled"
    ASKED = "approval asked"
    APPROVED = "approved"
    REJECTED = "rejected"
    POLICY_CHANGED = "policy changed"
    DATA_CHANGED = "data changed"
    PIN_ADDED = "pin added"
    PIN_REMOVED = "pin removed"
    SETTING_CHANGED = "setting changed"
    JOURNAL_HALTED = "journal halted"
    JOURNAL_RESUMED = "journal resumed"


class Audit(ABC):
    """Keeps what a node decided and sent. Whoever keeps it on disk syncs before returning."""

    @abstractmethod
    def note(self, kind: AuditKind, **detail: Detail) -> None:
        """Add a record: codes, digests, prices; never a vote, a cell or a key."""


class NoAudit(Audit):
    """Keeps nothing."""

    def note(self, kind: AuditKind, **detail: Detail) -> None:
        """See `Audit.note`."""
