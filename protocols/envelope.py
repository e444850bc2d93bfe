"""Sealed envelopes: HPKE (RFC 9180) from one party to another, relayed by the coordinator (R6).

HPKE's base mode does not say who sealed: the sender signs the message that carries the envelope.
Sender, receiver, run and role are bound in, so an envelope opens nowhere else.
"""

from __future__ import annotations

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite

from protocols.errors import BrokenEnvelopeError, MalformedMessageError

SUITE_X25519 = "x25519-hkdf-sha256-aes-256-gcm"
"""Name of the suite in run records; a run has one suite, the same for all."""

SEALING_KEY_BYTES = 32
_DOMAIN = b"pate-fed/1/envelope\0"
_SUITE = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.AES_256_GCM)


class SealingKey:
    """A party's key for one run's envelopes. Secret, in memory only, gone with the run."""

    __slots__ = ("_private_key",)

    def __init__(self) -> None:
        self._private_key = X25519PrivateKey.generate()

    @property
    def public_bytes(self) -> bytes:
        """Raw X25519 public key, 32 bytes."""
        return self._private_key.public_key().public_bytes_raw()

    def open(self, sealed: bytes, *, run_id: bytes, sender: bytes, receiver: bytes) -> bytes:
        """Open an envelope.

        Args:
            sealed: Encapsulated key and ciphertext, as `seal` returned them.
            run_id: Run that it must be for.
            sender: Fingerprint of the party that must have sealed it.
            receiver: Fingerprint of the party that it must be sealed to.

        Raises:
            BrokenEnvelopeError: it was sealed to another key, run or pair, or was changed.
        """
        try:
            return _SUITE.decrypt(sealed, self._private_key, _info(run_id, sender, receiver))
        except (InvalidTag, ValueError) as error:
            raise BrokenEnvelopeError(
                "an envelope must open under its run, sender and receiver", "one that does not"
            ) from error

    def __repr__(self) -> str:
        return "SealingKey()"


def seal(
    plaintext: bytes, receiver_key: bytes, *, run_id: bytes, sender: bytes, receiver: bytes
) -> bytes:
    """Seal bytes to a receiver's sealing key; see `SealingKey.open` for the arguments.

    Raises:
        MalformedMessageError: `receiver_key` is no usable X25519 key.
    """
    try:
        key = X25519PublicKey.from_public_bytes(receiver_key)
        return _SUITE.encrypt(plaintext, key, _info(run_id, sender, receiver))
    except ValueError as error:
        raise MalformedMessageError(
            "a sealing key must be a usable X25519 key", "another"
        ) from error


def _info(run_id: bytes, sender: bytes, receiver: bytes) -> bytes:
    # All three have 32 bytes, so their places cannot be mixed up.
    return _DOMAIN + b"pair root" + b"\0" + run_id + sender + receiver
