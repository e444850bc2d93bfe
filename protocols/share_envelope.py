"""What travels between two parties inside a batch: AES-256-GCM under a key of its own (rule R6).

The key is derived from the pair's root, the phase, the stage, the sender and the receiver
(`pair_keys.envelope_key`), and seals one envelope: so the nonce may be the same in all.
"""

from __future__ import annotations

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from protocols.errors import BrokenEnvelopeError

TAG_BYTES = 16
_NONCE = bytes(12)


def seal_shares(plaintext: bytes, key: bytes) -> bytes:
    """Seal bytes under a key that seals nothing else; `TAG_BYTES` longer."""
    return AESGCM(key).encrypt(_NONCE, plaintext, None)


def open_shares(sealed: bytes, key: bytes) -> bytes:
    """Open an envelope.

    Raises:
        BrokenEnvelopeError: it was sealed for another pair, direction, phase or stage, or changed.
    """
    try:
        return AESGCM(key).decrypt(_NONCE, sealed, None)
    except (InvalidTag, ValueError) as error:
        raise BrokenEnvelopeError(
            "an envelope must open under its phase, stage, sender and receiver", "one that does not"
        ) from error
