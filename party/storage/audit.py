"""A site's record of its own doing: records, and heads that commit to all of them.

A record holds codes, digests, prices, words of people and of a run's terms: never a vote, a cell or
a key. Who keeps the records is `party.storage.audit_log`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, TypeAlias

from protocols import wire
from protocols.errors import MalformedMessageError
from protocols.identity import SigningIdentity
from protocols.membership import AuditHead

Detail: TypeAlias = str | int | bytes
"""A record's values; a price is written as text, so that reading gives the same text."""


class AuditKind(StrEnum):
    """The kind of a record."""

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


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """One record.

    Attributes:
        number: From 1.
        at: When, Unix time in milliseconds.
        kind: Its kind.
        detail: Its facts.
    """

    number: int
    at: int
    kind: AuditKind
    detail: Mapping[str, Detail] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """Return its canonical CBOR."""
        return wire.encode_value([self.number, self.at, self.kind.value, dict(self.detail)])

    def table(self, link: bytes) -> dict[str, Any]:
        """Return it as a table of JSON, with its bytes and its link.

        The node's own acts have an empty `by`.
        """
        known = {name: _plain(value) for name, value in self.detail.items()}
        return {
            "number": self.number,
            "at": datetime.fromtimestamp(self.at / 1000, UTC).isoformat(timespec="milliseconds"),
            "act": self.kind.value,
            **{name: known.pop(name, "") for name in ("by", "from", "before", "after")},
            "facts": known,
            "body": self.to_bytes().hex(),
            "link": link.hex(),
        }

    @classmethod
    def from_bytes(cls, body: bytes) -> AuditRecord:
        """Read the bytes of `to_bytes`.

        Raises:
            MalformedMessageError: it is no record.
        """
        match wire.decode_value(body):
            case [int(number), int(at), str(kind), dict(detail)] if is_plain(detail):
                if kind in {each.value for each in AuditKind}:
                    return cls(number, at, AuditKind(kind), detail)
        raise MalformedMessageError("an audit record must be of a known kind", "another")


def _plain(value: Detail) -> str | int:
    return value.hex() if isinstance(value, bytes) else value


def sign_head(count: int, head: bytes, identity: SigningIdentity) -> bytes:
    """Sign where a log stands, to be given away.

    Args:
        count: Number of records.
        head: Link of the last of them, 32 bytes.
        identity: The site's.

    Returns:
        The frame of an `AuditHead`.
    """
    return wire.sign(AuditHead(identity.fingerprint, count, head), identity).frame


def is_plain(detail: Mapping[Any, Any]) -> bool:
    """Tell whether a record may hold this."""
    return all(
        type(name) is str and type(value) in (str, int, bytes) for name, value in detail.items()
    )
