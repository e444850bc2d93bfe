"""How a hospital becomes a member (rule R5): an invitation, a signed request, a signed answer.

An invitation is a file for one hospital, sent by any way that its operator trusts. It opens a
request, not membership. The operator approves after both have compared fingerprints, read aloud as
words, over a telephone number that did not come with the invitation.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from protocols import wire
from protocols.errors import InvitationError, MalformedMessageError
from protocols.identity import KEY_BYTES, PublicIdentity
from protocols.membership_messages import AuditHead, NamedTally
from protocols.party_names import is_party_name

TOKEN_BYTES = 16
MAX_INVITATION_BYTES = 16 * 1024
SCHEMA_VERSION = 1
CLOCK_SKEW_S = 300
"""Largest gap between a request's clock and the coordinator's; beyond it, no answer."""


@dataclass(frozen=True, slots=True, repr=False)
class Invitation:
    """An operator's invitation to one hospital. Secret until it is used: it holds the token.

    Attributes:
        address: Of the coordinator, "host:port".
        ca_certificate: The federation's own CA, PEM.
        coordinator_key: The coordinator's Ed25519 key, 32 bytes.
        token: Random, good for one request, 16 bytes.
        expires_at: Unix time in seconds.
        tally_name: Name of the federation's tally; empty if it has none.
        tally_key: The tally's Ed25519 key, 32 bytes; empty likewise.
    """

    federation: str
    party: str
    address: str
    ca_certificate: str
    coordinator_key: bytes
    token: bytes
    expires_at: int
    tally_name: str = ""
    tally_key: bytes = b""

    @property
    def tally(self) -> NamedTally | None:
        """The federation's tally; None if it has none."""
        return NamedTally.of(self.tally_name, self.tally_key)

    @property
    def coordinator(self) -> PublicIdentity:
        """The coordinator."""
        return PublicIdentity(self.coordinator_key)

    @property
    def ca_fingerprint(self) -> bytes:
        """SHA-256 of the CA's certificate, DER, 32 bytes."""
        return certificate_fingerprint(self.ca_certificate)

    @property
    def fingerprint(self) -> bytes:
        """The fingerprint to compare by telephone, of CA and coordinator, 32 bytes."""
        return federation_fingerprint(self.ca_fingerprint, self.coordinator)

    def to_json(self) -> str:
        """Return it as the text of a file."""
        fields = asdict(self)
        fields["coordinator_key"] = self.coordinator_key.hex()
        fields["token"] = self.token.hex()
        fields["tally_key"] = self.tally_key.hex()
        fields["ca_fingerprint"] = self.ca_fingerprint.hex()
        return json.dumps({"schema_version": SCHEMA_VERSION, **fields}, indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Invitation:
        """Read the text of a file; `InvitationError` where it is none or contradicts itself."""
        if len(text) > MAX_INVITATION_BYTES:
            raise InvitationError("an invitation must be a short file", len(text))
        try:
            fields = json.loads(text)
            invitation = cls._from_fields(fields)
            shown = fields["ca_fingerprint"]
        except (ValueError, LookupError, TypeError, RecursionError, MalformedMessageError) as error:
            raise InvitationError("an invitation must be as it was made") from error
        if shown != invitation.ca_fingerprint.hex():
            raise InvitationError("an invitation must name its own CA")
        return invitation

    @classmethod
    def _from_fields(cls, fields: dict[str, Any]) -> Invitation:
        if fields["schema_version"] != SCHEMA_VERSION:
            raise InvitationError(f"an invitation must be of version {SCHEMA_VERSION}")
        texts = [fields[name] for name in ("federation", "party", "address", "ca_certificate")]
        expires_at = fields["expires_at"]
        if not all(isinstance(text, str) and text for text in texts) or type(expires_at) is not int:
            raise TypeError
        if not (texts[2].isascii() and texts[2].isprintable() and len(texts[2]) <= 256):
            raise ValueError
        if not (is_party_name(texts[0]) and is_party_name(texts[1])):
            raise ValueError
        key, token = bytes.fromhex(fields["coordinator_key"]), bytes.fromhex(fields["token"])
        if len(key) != KEY_BYTES or len(token) != TOKEN_BYTES:
            raise ValueError
        tally = fields["tally_name"], bytes.fromhex(fields["tally_key"])
        if NamedTally.of(*tally) is not None and tally[1] == key:
            raise ValueError
        federation, party, address, ca_certificate = texts
        return cls(federation, party, address, ca_certificate, key, token, expires_at, *tally)

    def __repr__(self) -> str:
        return f"Invitation({self.party})"


def certificate_fingerprint(pem: str) -> bytes:
    """Return SHA-256 of a certificate, DER, 32 bytes; `InvitationError` where it is none."""
    try:
        certificate = x509.load_pem_x509_certificate(pem.encode())
    except ValueError as error:
        raise InvitationError("the CA must be a certificate") from error
    return hashlib.sha256(certificate.public_bytes(Encoding.DER)).digest()


def federation_fingerprint(ca_fingerprint: bytes, coordinator: PublicIdentity) -> bytes:
    """Return the fingerprint of a federation, to compare by telephone, 32 bytes.

    It covers the CA and the coordinator's identity: an invitation in which one of them was changed
    has other words.
    """
    label = b"pate-fed/1/federation\0"
    return hashlib.sha256(label + ca_fingerprint + coordinator.fingerprint).digest()


def token_digest(token: bytes) -> bytes:
    """Return the digest of a token that a coordinator stores, 32 bytes."""
    return hashlib.sha256(b"pate-fed/1/invitation token\0" + token).digest()


def read_audit_head(frame: bytes, site: PublicIdentity) -> AuditHead:
    """Read where a hospital's audit log stands, as it signed that, or raise `ProtocolError`."""
    signed = wire.decode(frame)
    signed.verify(site)
    head = wire.expect(signed, AuditHead)
    if head.party != site.fingerprint:
        raise MalformedMessageError("an audit head must be of its signer")
    return head
