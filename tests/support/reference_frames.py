"""A second reader and writer of frames, from the page of the wire format alone.

Imports nothing of ours but the second CBOR. `Refused` is all that it raises.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from tests.support.reference_cbor import NotDeterministicError, cbor, read_cbor

VERSION = 2
PURPOSES = {
    1: "run offer", 2: "key statement", 3: "run record", 4: "envelope", 5: "",
    6: "confirmations", 7: "setup closing", 8: "ready", 9: "plan", 10: "masked vector",
    12: "settlement", 16: "dealing", 17: "", 18: "proposal", 19: "reveal", 27: "verdict", 28: "",
    29: "", 35: "masked vector",
}  # fmt: skip
"""What each type of message is signed for; nothing for a container."""

OFFER, STATEMENT, RECORD, ENVELOPE, ENVELOPES, CONFIRMATIONS, SETUP_CLOSING, READY = range(1, 9)
PLAN, VECTOR, SETTLEMENT = 9, 10, 12
DEALING, SHARES, PROPOSAL, REVEAL = 16, 17, 18, 19
VERDICT, CERTIFICATE, VERDICT_MACS = 27, 28, 29
VECTOR_HEAD = 35


class Refused(ValueError):  # noqa: N818 - a verdict, not a fault
    """What a reader refuses, and why."""


@dataclass(frozen=True)
class Frame:
    """One frame, read."""

    number: int
    fields: list[Any]
    signature: bytes
    digest: bytes


def sha256(*pieces: bytes) -> bytes:
    return hashlib.sha256(b"".join(pieces)).digest()


def require(holds: bool, must: str) -> None:
    if not holds:
        raise Refused(must)


def fingerprint(public: bytes) -> bytes:
    return sha256(b"pate-fed/1/identity\0", public)


def public_of(private: bytes) -> bytes:
    return Ed25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def digest_of_fields(number: int, fields: list[Any]) -> bytes:
    """The digest of a message: of an array of three, version, type and fields.

    That of a y is its head's.
    """
    if number == VECTOR and type(fields) is list and len(fields) == 3:
        plan, sender, body = fields
        number, fields = VECTOR_HEAD, [plan, sender, len(body), sha256(body)]
    pieces = cbor(VERSION), cbor(number), cbor(fields)
    return sha256(b"pate-fed/1/message\0", b"\x83", *pieces)


def digest_of_values(label: str, value: Any) -> bytes:
    return sha256(b"pate-fed/1/message\0", cbor([label, value]))


def signature_over(number: int, fields: list[Any], private: bytes) -> bytes:
    """A signature over a message with an Ed25519 private key."""
    key = Ed25519PrivateKey.from_private_bytes(private)
    return key.sign(_signed(number, digest_of_fields(number, fields)))


def write_frame(number: int, fields: list[Any], private: bytes = b"") -> bytes:
    """A frame, signed with an Ed25519 private key where its type is signed."""
    signature = b""
    if PURPOSES[number]:
        signature = signature_over(number, fields, private)
    return b"\x84" + cbor(VERSION) + cbor(number) + cbor(fields) + cbor(signature)


def read_frame(data: bytes, number: int, *, signer: bytes | None = None) -> Frame:
    """Read a frame of a type; check its signature where the signer's public key is given."""
    try:
        parts = read_cbor(data)
    except NotDeterministicError as error:
        raise Refused("a frame must be deterministic CBOR") from error
    is_frame = type(parts) is list and len(parts) == 4 and parts[0] == VERSION
    require(is_frame, "a frame must be one of this version")
    require(parts[1] == number, "a frame must be of its type")
    frame = Frame(number, parts[2], parts[3], digest_of_fields(number, parts[2]))
    require(len(frame.signature) == (64 if PURPOSES[number] else 0), "a signature has 64 bytes")
    if signer is not None:
        require_signature(number, frame.digest, frame.signature, signer=signer)
    return frame


def require_signature(number: int, digest: bytes, signature: bytes, *, signer: bytes) -> None:
    """Check a signature over a message, by its digest, with an Ed25519 public key."""
    try:
        key = Ed25519PublicKey.from_public_bytes(signer)
        key.verify(signature, _signed(number, digest))
    except InvalidSignature as error:
        raise Refused("a message must be signed by its sender") from error


def next_head(head: bytes, kind: str, digest: bytes) -> bytes:
    """The head of a transcript after one more entry."""
    name = kind.encode()
    return sha256(b"pate-fed/1/transcript\0", head, bytes([len(name)]), name, digest)


EMPTY_HEAD = sha256(b"pate-fed/1/transcript\0")


def _signed(number: int, digest: bytes) -> bytes:
    return b"pate-fed/1/signature\0" + PURPOSES[number].encode() + b"\0" + digest
