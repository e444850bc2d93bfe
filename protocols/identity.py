"""Identities: long-term Ed25519 keys, their fingerprints and signatures (rule R5).

A fingerprint is pinned out of band: read over the telephone, never learned from a message. Every
signature names its purpose, so it is worth nothing for another.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from protocols.errors import BadSignatureError, MalformedMessageError

KEY_BYTES = 32
SIGNATURE_BYTES = 64
_SIGNATURE_DOMAIN = b"pate-fed/1/signature\0"
_FINGERPRINT_DOMAIN = b"pate-fed/1/identity\0"


@dataclass(frozen=True, slots=True, order=True)
class PublicIdentity:
    """The public half of an identity: a raw Ed25519 public key, 32 bytes."""

    key: bytes

    def __post_init__(self) -> None:
        if len(self.key) != KEY_BYTES:
            raise MalformedMessageError(f"an identity key has {KEY_BYTES} bytes", len(self.key))

    @property
    def fingerprint(self) -> bytes:
        """SHA-256 of the key under its own domain, 32 bytes: the value that people compare."""
        return hashlib.sha256(_FINGERPRINT_DOMAIN + self.key).digest()

    def verify(self, *, purpose: str, digest: bytes, signature: bytes) -> None:
        """Raise `BadSignatureError` unless this identity signed `digest` for `purpose`."""
        try:
            Ed25519PublicKey.from_public_bytes(self.key).verify(
                signature, _signed_bytes(purpose, digest)
            )
        except (InvalidSignature, ValueError) as error:
            raise BadSignatureError(
                f"the signature over a {purpose} must be by the pinned identity"
            ) from error


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class SigningIdentity:
    """An identity with its private key. Secret: never leaves its node."""

    private_key: Ed25519PrivateKey
    public: PublicIdentity = field(init=False)

    def __post_init__(self) -> None:
        public = PublicIdentity(self.private_key.public_key().public_bytes_raw())
        object.__setattr__(self, "public", public)

    @classmethod
    def generate(cls) -> SigningIdentity:
        """Make a fresh identity from the operating system's random numbers."""
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def from_private_bytes(cls, private_bytes: bytes) -> SigningIdentity:
        """Read back the 32 bytes of `private_bytes`."""
        return cls(Ed25519PrivateKey.from_private_bytes(private_bytes))

    @property
    def private_bytes(self) -> bytes:
        """The raw private key, 32 bytes. Secret: for the node's own storage only."""
        return self.private_key.private_bytes_raw()

    @property
    def fingerprint(self) -> bytes:
        """The public half's fingerprint, 32 bytes."""
        return self.public.fingerprint

    def sign(self, *, purpose: str, digest: bytes) -> bytes:
        """Sign a 32-byte digest for one purpose; returns 64 bytes."""
        return self.private_key.sign(_signed_bytes(purpose, digest))

    def __repr__(self) -> str:
        return f"SigningIdentity({self.fingerprint.hex()[:16]})"


def _signed_bytes(purpose: str, digest: bytes) -> bytes:
    return _SIGNATURE_DOMAIN + purpose.encode() + b"\0" + digest
