"""What a site writes down of its own doing: records, and heads that commit to all of them.

A record holds codes, digests and prices: never a vote, a cell or a key. Who keeps the records is
`party.storage.audit_log`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeAlias

from protocols import wire
from protocols.errors import MalformedMessageError
from protocols.identity import PublicIdentity, SigningIdentity

DOMAIN = b"pate-fed/1/audit log\0"
HEAD_PURPOSE = "audit log head"

Detail: TypeAlias = str | int | bytes
"""What a record may hold; a price is written as text, so that it is read as it was written."""


class AuditKind(StrEnum):
    """What a record is about."""

    JOINED = "joined"
    LEFT = "left"
    RUN_ACCEPTED = "run accepted"
    RUN_REFUSED = "run refused"
    BATCH_ANSWERED = "batch answered"
    BATCH_REFUSED = "batch refused"
    CHARGED = "charged"
    SETTLED = "settled"
    ASKED = "approval asked"
    APPROVED = "approved"
    REJECTED = "rejected"
    SETTINGS_CHANGED = "settings changed"
    DATA_CHANGED = "data changed"
    PIN_ADDED = "pin added"
    PIN_REMOVED = "pin removed"
    PAUSED = "paused"
    RESUMED = "resumed"
    JOURNAL_HALTED = "journal halted"


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """One record.

    Attributes:
        number: From 1.
        at: When, Unix time in milliseconds.
        kind: What it is about.
        detail: What there is to say.
    """

    number: int
    at: int
    kind: AuditKind
    detail: Mapping[str, Detail] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """Return its canonical CBOR."""
        return wire.encode_value([self.number, self.at, self.kind.value, dict(self.detail)])

    @classmethod
    def from_bytes(cls, body: bytes) -> AuditRecord:
        """Read what `to_bytes` wrote.

        Raises:
            MalformedMessageError: it is no record.
        """
        match wire.decode_value(body):
            case [int(number), int(at), str(kind), dict(detail)] if is_plain(detail):
                if kind in {each.value for each in AuditKind}:
                    return cls(number, at, AuditKind(kind), detail)
        raise MalformedMessageError("an audit record must be of a known kind", "another")


@dataclass(frozen=True, slots=True)
class SignedHead:
    """Where a log stands, signed by its site, to be given away.

    Attributes:
        count: Records it commits to.
        head: Link of the last of them, 32 bytes.
        signature: Over both, by the site's identity.
    """

    count: int
    head: bytes
    signature: bytes

    @classmethod
    def sign(cls, count: int, head: bytes, identity: SigningIdentity) -> SignedHead:
        """Sign where a log stands."""
        digest = _head_digest(count, head)
        return cls(count, head, identity.sign(purpose=HEAD_PURPOSE, digest=digest))

    def verify(self, identity: PublicIdentity) -> None:
        """Check the signature.

        Raises:
            BadSignatureError: it is not by this identity.
        """
        digest = _head_digest(self.count, self.head)
        identity.verify(purpose=HEAD_PURPOSE, digest=digest, signature=self.signature)

    def to_bytes(self) -> bytes:
        """Return it as canonical CBOR, to be handed over."""
        return wire.encode_value([self.count, self.head, self.signature])

    @classmethod
    def from_bytes(cls, data: bytes) -> SignedHead:
        """Read what `to_bytes` wrote.

        Raises:
            MalformedMessageError: it is no head.
        """
        match wire.decode_value(data):
            case [int(count), bytes(head), bytes(signature)] if count >= 0 and len(head) == 32:
                return cls(count, head, signature)
        raise MalformedMessageError("a signed head must have a count, a head, a signature", "none")


def is_plain(detail: Mapping[Any, Any]) -> bool:
    """Tell whether a record may hold this."""
    return all(
        type(name) is str and type(value) in (str, int, bytes) for name, value in detail.items()
    )


def _head_digest(count: int, head: bytes) -> bytes:
    return hashlib.sha256(DOMAIN + b"head\0" + count.to_bytes(8, "big") + head).digest()
