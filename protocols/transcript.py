"""The transcript of a run: a hash chain that every honest end computes for itself (rule R8).

It holds hashes only. Every plan contains the head before it, and pair keys are derived from the
plan, so parties with different histories have different keys: their vectors cannot be added.

Its written form, to be checked later by anyone, is lines of plain data: public keys, hashes and
signatures, never content. `transcript_verifier` reads them, and needs nothing of this package. The
coordinator signs every head when it writes, so that nobody else can change the order. The parties'
own signed heads stand at the end of the setup and of the run, so that the coordinator cannot change
it either.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from protocols import wire
from protocols.errors import BadSignatureError
from protocols.identity import PublicIdentity, SigningIdentity
from protocols.messages import HeadStatement, KeyStatement, Ready
from protocols.values import digest_of_values

_DOMAIN = b"pate-fed/1/transcript\0"
FORMAT_VERSION = 2
_IDENTITIES_DOMAIN = b"pate-fed/1/transcript identities\0"
_RESULTS = "results"
_HEADS_DOMAIN = b"pate-fed/1/transcript heads\0"
EMPTY_HEAD = hashlib.sha256(_DOMAIN).digest()


@dataclass(frozen=True, slots=True)
class EntrySignature:
    """Who signed the message of an entry, or one of the messages that an entry stands for."""

    sender: bytes
    digest: bytes
    signature: bytes


@dataclass(frozen=True, slots=True)
class TranscriptEntry:
    """One link of the chain, e.g. of the kind "plan"; `head` is the chain's after it.

    `signatures` are those of its messages, where they are known; they are not in the chain.
    `survivors` are, of a verdict, the set that opens, where it is known; empty: the plan is closed.
    """

    kind: str
    digest: bytes
    head: bytes
    signatures: tuple[EntrySignature, ...] = field(default=(), compare=False)
    survivors: tuple[bytes, ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True)
class Transcript:
    """A chain of entries, append-only, the oldest first."""

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


# The written form ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HeadsRecord:
    """Heads that parties signed at the end of a stage: all of them, or at the closing most.

    Attributes:
        stage: "setup" (`Ready` messages) or "closing" (`HeadStatement` messages).
        after: Number of entries before it.
        signed: Statement of each party that was heard, by fingerprint in seat order.
    """

    stage: str
    after: int
    epoch: int
    signed: Mapping[bytes, wire.Signed]


def transcript_lines(
    transcript: Transcript,
    heads: Sequence[HeadsRecord],
    *,
    parties: Sequence[PublicIdentity],
    coordinator: SigningIdentity,
) -> list[dict[str, object]]:
    """Return the coordinator's chain, with heads of parties, signed, as lines of plain data."""
    waiting = list(heads)
    lines = [_identities(parties, coordinator)]
    for place, entry in enumerate(transcript.entries, start=1):
        lines.append(_entry(entry, coordinator))
        while waiting and waiting[0].after == place:
            lines.append(_heads(waiting.pop(0), entry.head, coordinator))
    return lines


def seal_files(
    files: Mapping[str, str], *, head: bytes, coordinator: SigningIdentity
) -> dict[str, object]:
    """Bind the files of a run's results to its last head; return the seal as plain data.

    `files` has SHA-256 in hex of each, by its path.
    """
    signature = coordinator.sign(purpose=_RESULTS, digest=_files_digest(files, head))
    return {"head": head.hex(), "files": dict(files), "signature": signature.hex()}


def verify_seal(seal: Mapping[str, Any], *, coordinator: PublicIdentity) -> None:
    """Check who sealed the files of a run.

    Raises `BadSignatureError`, or `LookupError`, `TypeError` or `ValueError` if it is malformed.
    """
    files, head = seal["files"], bytes.fromhex(seal["head"])
    coordinator.verify(
        purpose=_RESULTS,
        digest=_files_digest(files, head),
        signature=bytes.fromhex(seal["signature"]),
    )


def altered_file(
    seal: str, *, transcript: str, digests: Mapping[str, str], coordinator: PublicIdentity
) -> str:
    """Return the path of a file that differs from the transcript's seal; "" if none does.

    `seal` is the content of a `seal.json`, `transcript` that of a good one, `digests` SHA-256 in
    hex of each existing file, by its path. Raises `BadSignatureError` where the seal is another's,
    or of other files, or of another run; otherwise as `verify_seal`.
    """
    said = json.loads(seal)
    verify_seal(said, coordinator=coordinator)
    if said["head"] != json.loads(transcript.splitlines()[-1])["head"]:
        raise BadSignatureError("the seal must be of this run")
    differing = (name for name, digest in said["files"].items() if digests.get(name) != digest)
    return min(differing, default="")


def _files_digest(files: Mapping[str, str], head: bytes) -> bytes:
    listed = [[name, bytes.fromhex(files[name])] for name in sorted(files)]
    return digest_of_values(_RESULTS, [head, listed])


def _identities(
    parties: Sequence[PublicIdentity], coordinator: SigningIdentity
) -> dict[str, object]:
    keys = [coordinator.public.key, *(party.key for party in parties)]
    digest = hashlib.sha256(_IDENTITIES_DOMAIN + b"".join(keys)).digest()
    return {
        "kind": "identities",
        "version": FORMAT_VERSION,
        "coordinator": keys[0].hex(),
        "parties": [key.hex() for key in keys[1:]],
        "signature": coordinator.sign(purpose="transcript identities", digest=digest).hex(),
    }


def _entry(entry: TranscriptEntry, coordinator: SigningIdentity) -> dict[str, object]:
    judged = {"survivors": [each.hex() for each in entry.survivors]}
    return {
        **(judged if entry.kind == "verdict" else {}),
        "kind": entry.kind,
        "digest": entry.digest.hex(),
        "head": entry.head.hex(),
        "head_signature": coordinator.sign(purpose="transcript head", digest=entry.head).hex(),
        "signatures": [
            {
                "sender": item.sender.hex(),
                "digest": item.digest.hex(),
                "signature": item.signature.hex(),
            }
            for item in entry.signatures
        ],
    }


def _heads(record: HeadsRecord, head: bytes, coordinator: SigningIdentity) -> dict[str, object]:
    # Otherwise a holder of the file could drop a party's signature unseen.
    said = b"".join(sender + each.signature for sender, each in record.signed.items())
    digest = hashlib.sha256(_HEADS_DOMAIN + head + said).digest()
    return {
        "kind": "heads",
        "stage": record.stage,
        "head": head.hex(),
        "epoch": record.epoch,
        "signatures": [
            {
                "sender": sender.hex(),
                "journal_counter": counter_in(each),
                "signature": each.signature.hex(),
            }
            for sender, each in record.signed.items()
        ],
        "signature": coordinator.sign(purpose="transcript heads", digest=digest).hex(),
    }


def counter_in(signed: wire.Signed) -> int:
    """Return the counter of its journal that a party stated."""
    assert isinstance(signed.message, KeyStatement | Ready | HeadStatement)
    return signed.message.journal_counter
