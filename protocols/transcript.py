"""The transcript of a run: a hash chain that every honest end computes for itself (rule R8).

It holds hashes only. Every plan contains the head before it, and pair keys are derived from the
plan, so parties with different histories have different keys: their vectors cannot be added.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

_DOMAIN = b"pate-fed/1/transcript\0"
EMPTY_HEAD = hashlib.sha256(_DOMAIN).digest()


@dataclass(frozen=True, slots=True)
class EntrySignature:
    """Who signed the message of an entry, or one of the messages that an entry stands for.

    Attributes:
        sender: Fingerprint of the signer.
        digest: SHA-256 of the signed message, 32 bytes.
        signature: 64 bytes.
    """

    sender: bytes
    digest: bytes
    signature: bytes


@dataclass(frozen=True, slots=True)
class TranscriptEntry:
    """One link of the chain.

    Attributes:
        kind: Kind of the step, e.g. "plan".
        digest: SHA-256 of the message, 32 bytes.
        head: Head of the chain after this entry, 32 bytes.
        signatures: Those of its messages, where they are known; they are not in the chain.
        survivors: Of a verdict, the set that opens, where it is known; empty: the plan is closed.
    """

    kind: str
    digest: bytes
    head: bytes
    signatures: tuple[EntrySignature, ...] = field(default=(), compare=False)
    survivors: tuple[bytes, ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True)
class Transcript:
    """A chain of entries, append-only.

    Attributes:
        entries: All entries, oldest first.
    """

    entries: tuple[TranscriptEntry, ...] = ()

    @property
    def head(self) -> bytes:
        """Digest that commits to every entry and their order, 32 bytes."""
        return self.entries[-1].head if self.entries else EMPTY_HEAD

    def append(
        self,
        kind: str,
        digest: bytes,
        signatures: tuple[EntrySignature, ...] = (),
        *,
        survivors: tuple[bytes, ...] = (),
    ) -> Transcript:
        """Return the transcript with one more entry."""
        entry = TranscriptEntry(kind, digest, _link(self.head, kind, digest), signatures, survivors)
        return Transcript((*self.entries, entry))


def _link(head: bytes, kind: str, digest: bytes) -> bytes:
    name = kind.encode()
    return hashlib.sha256(_DOMAIN + head + bytes([len(name)]) + name + digest).digest()
