"""Content between two parties inside a batch: AES-256-GCM under a key of its own (rule R6).

The key is derived from the pair's root, the plan, the stage, the sender and the receiver
(`pair_keys.envelope_key`). It seals one envelope, so the nonce may be the same in all. The digest
of the dealing that the envelope goes with is bound in as associated data.
"""

from __future__ import annotations

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from protocols.errors import BrokenEnvelopeError

TAG_BYTES = 16
_NONCE = bytes(12)


def seal_shares(plaintext: bytes, key: bytes, *, dealing_digest: bytes) -> bytes:
    """Seal bytes under a key that seals nothing else; `TAG_BYTES` longer.

    Args:
        plaintext: The bytes to seal.
        key: Of this one envelope.
        dealing_digest: Digest of the dealing that it goes with.
    """
    return AESGCM(key).encrypt(_NONCE, plaintext, dealing_digest)


def open_shares(sealed: bytes, key: bytes, *, dealing_digest: bytes) -> bytes:
    """Open an envelope.

    Raises:
        BrokenEnvelopeError: it was sealed for another pair, direction, plan or stage, with
            another dealing, or changed.
    """
    try:
        return AESGCM(key).decrypt(_NONCE, sealed, dealing_digest)
    except (InvalidTag, ValueError) as error:
        raise BrokenEnvelopeError(
            "an envelope must open under its plan, stage, sender, receiver and dealing"
        ) from error
