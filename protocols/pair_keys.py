"""The secret that two parties share for a run, and the keys of its attempts.

A pair root is made once per run from randomness of both ends. It moves forward with the epoch: one
hash step per attempt, older roots erased. The key of an attempt binds to the digest of its plan.
Ends that saw different plans hold different keys, and their streams do not cancel.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from protocols.errors import KeyReuseError

if TYPE_CHECKING:
    from hashlib import _Hash

MAX_SKIPPED_EPOCHS = 64
_DOMAIN = b"pate-fed/1/pair\0"
_HASH_BLOCK_BYTES = 64
_INNER_PAD = bytes(byte ^ 0x36 for byte in range(256))
_OUTER_PAD = bytes(byte ^ 0x5C for byte in range(256))


def make_root(halves: Mapping[bytes, bytes], *, run_id: bytes) -> bytes:
    """Mix both ends' halves, 32 random bytes by fingerprint, into a run's root of epoch 0."""
    lower, higher = sorted(halves)
    return _derive(halves[lower] + halves[higher], salt=run_id, label=b"root\0" + lower + higher)


def confirmation(root: bytes, *, run_id: bytes, sender: bytes, receiver: bytes) -> bytes:
    """Prove to the other end that this end holds the same root, 32 bytes."""
    key = _derive(root, salt=run_id, label=b"confirm\0")
    return hmac.new(key, _DOMAIN + sender + receiver, hashlib.sha256).digest()


def envelope_key(
    root: bytes, *, plan_digest: bytes, stage: str, sender: bytes, receiver: bytes
) -> bytes:
    """Derive the key of the one envelope of a stage from one end to the other, 32 bytes."""
    label = b"envelope\0" + stage.encode() + b"\0" + sender + receiver
    return _derive(root, salt=plan_digest, label=label)


class PairRoots:
    """A party's roots with all its peers, at one epoch. Secret, in memory only.

    Moves forward only; older roots are dropped. (Python cannot promise that the memory is zeroed.)
    """

    __slots__ = ("_epoch", "_me", "_roots")

    def __init__(self, me: bytes, roots: Mapping[bytes, bytes]) -> None:
        self._me = me
        self._roots = dict(roots)
        self._epoch = 0

    @property
    def epoch(self) -> int:
        """Epoch of the roots held; 0 before the first attempt."""
        return self._epoch

    def advance(self, epoch: int) -> None:
        """Move to a later epoch and drop all earlier roots.

        Raises `KeyReuseError` where `epoch` is not ahead (its roots are gone, or were used), or
        more than `MAX_SKIPPED_EPOCHS` ahead.
        """
        if not self._epoch < epoch <= self._epoch + MAX_SKIPPED_EPOCHS:
            raise KeyReuseError(
                f"an epoch must be 1 to {MAX_SKIPPED_EPOCHS} ahead of {self._epoch}", epoch
            )
        for step in range(self._epoch + 1, epoch + 1):
            label = b"ratchet\0" + step.to_bytes(8, "big")
            derive = _UNSALTED.derive
            self._roots = {peer: derive(root, label) for peer, root in self._roots.items()}
        self._epoch = epoch

    def keys_for(self, plan_digest: bytes) -> dict[bytes, bytes]:
        """Derive this epoch's key with each peer, by the peer's fingerprint."""
        derive, me = _Extractor(plan_digest).derive, self._me
        return {
            peer: derive(root, b"stream\0" + min(me, peer) + max(me, peer))
            for peer, root in self._roots.items()
        }

    def sending_key(self, peer: bytes, *, plan_digest: bytes, stage: str) -> bytes:
        """Derive this epoch's key for the envelope of a stage to a peer."""
        root, ends = self._roots[peer], {"sender": self._me, "receiver": peer}
        return envelope_key(root, plan_digest=plan_digest, stage=stage, **ends)

    def receiving_key(self, peer: bytes, *, plan_digest: bytes, stage: str) -> bytes:
        """Derive this epoch's key for the envelope of a stage from a peer."""
        root, ends = self._roots[peer], {"sender": peer, "receiver": self._me}
        return envelope_key(root, plan_digest=plan_digest, stage=stage, **ends)

    def erase(self) -> None:
        """Drop all roots."""
        self._roots.clear()

    def __repr__(self) -> str:
        return f"PairRoots(peers={len(self._roots)}, epoch={self._epoch})"


class _Extractor:
    """HKDF with SHA-256 (RFC 5869) to 32 bytes, for many secrets under one salt.

    Of the two HMACs, the first is keyed with the salt: its hash states are made once. With a
    hundred peers this is a tenth of the time for masking a short vector.
    """

    __slots__ = ("_inner", "_outer")

    def __init__(self, salt: bytes) -> None:
        self._inner, self._outer = _keyed(salt)

    def derive(self, secret: bytes, label: bytes) -> bytes:
        """Derive the key that `label` names from `secret`."""
        inner, outer = self._inner.copy(), self._outer.copy()
        inner.update(secret)
        outer.update(inner.digest())
        # One block of HKDF-Expand: T(1) = HMAC(extracted, info | 1).
        inner, outer = _keyed(outer.digest())
        inner.update(_DOMAIN + label + b"\x01")
        outer.update(inner.digest())
        return outer.digest()


def _keyed(key: bytes) -> tuple[_Hash, _Hash]:
    """Inner and outer hash of HMAC (RFC 2104) under a key of at most one block."""
    block = key.ljust(_HASH_BLOCK_BYTES, b"\0")
    return hashlib.sha256(block.translate(_INNER_PAD)), hashlib.sha256(block.translate(_OUTER_PAD))


def _derive(secret: bytes, *, salt: bytes, label: bytes) -> bytes:
    return _Extractor(salt).derive(secret, label)


_UNSALTED: Final = _Extractor(b"")  # of every step from root to root; holds no secret
