"""The written form of a run's transcript, to be checked later by anyone (rule R8).

Lines of plain data: public keys, hashes and signatures, never content. `transcript_verifier` reads
them, and needs nothing of this package. The coordinator signs every head when it writes, so that
nobody else can change the order. The parties' own signed heads stand at the end of the setup and of
the run, so that the coordinator cannot change it either.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from protocols import wire
from protocols.errors import BadSignatureError
from protocols.identity import PublicIdentity, SigningIdentity
from protocols.transcript import Entry, Transcript

FORMAT_VERSION = 2
_IDENTITIES_DOMAIN = b"pate-fed/1/transcript identities\0"
_RESULTS = "results"
_HEADS_DOMAIN = b"pate-fed/1/transcript heads\0"


@dataclass(frozen=True, slots=True)
class HeadSignature:
    """A party's signature over the head that it remembers.

    Attributes:
        sender: Fingerprint of the party.
        journal_counter: Counter of its journal, which it signed with the head.
        signature: 64 bytes.
    """

    sender: bytes
    journal_counter: int
    signature: bytes


@dataclass(frozen=True, slots=True)
class HeadsRecord:
    """Heads that parties signed at the end of a stage: all of them, or at the closing most.

    Attributes:
        stage: "setup" (`Ready` messages) or "closing" (`HeadStatement` messages).
        after: Number of entries before it.
        epoch: Epoch of the run then.
        signatures: One per party that was heard, in seat order.
    """

    stage: str
    after: int
    epoch: int
    signatures: tuple[HeadSignature, ...]


def transcript_lines(
    transcript: Transcript,
    heads: Sequence[HeadsRecord],
    *,
    parties: Sequence[PublicIdentity],
    coordinator: SigningIdentity,
) -> list[dict[str, Any]]:
    """Return a transcript as lines of plain data.

    Args:
        transcript: The coordinator's chain.
        heads: The parties' signed heads, in order.
        parties: All parties, in seat order.
        coordinator: Signs every head.
    """
    waiting = list(heads)
    lines = [_identities(parties, coordinator)]
    for place, entry in enumerate(transcript.entries, start=1):
        lines.append(_entry(entry, coordinator))
        while waiting and waiting[0].after == place:
            lines.append(_heads(waiting.pop(0), entry.head, coordinator))
    return lines


def seal_files(
    files: Mapping[str, str], *, head: bytes, coordinator: SigningIdentity
) -> dict[str, Any]:
    """Bind the files of a run's results to its transcript; return the seal as plain data.

    Args:
        files: SHA-256 in hex of each, by its path.
        head: Last head of the run's chain.
        coordinator: Signs them.
    """
    signature = coordinator.sign(purpose=_RESULTS, digest=_files_digest(files, head))
    return {"head": head.hex(), "files": dict(files), "signature": signature.hex()}


def verify_seal(seal: Mapping[str, Any], *, coordinator: PublicIdentity) -> None:
    """Check who sealed the files of a run.

    Raises:
        BadSignatureError: another identity, or other files, or another head.
        LookupError, TypeError, ValueError: the seal is malformed.
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

    Args:
        seal: Content of a `seal.json`.
        transcript: Content of the transcript, a good one.
        digests: SHA-256 in hex of each existing file, by its path.
        coordinator: Identity that must have sealed them.

    Raises:
        BadSignatureError: the seal is another's, or of other files, or of another run.
        LookupError, TypeError, ValueError, RecursionError: the seal is malformed.
    """
    said = json.loads(seal)
    verify_seal(said, coordinator=coordinator)
    if said["head"] != json.loads(transcript.splitlines()[-1])["head"]:
        raise BadSignatureError("the seal must be of this run", "another's")
    differing = (name for name, digest in said["files"].items() if digests.get(name) != digest)
    return min(differing, default="")


def _files_digest(files: Mapping[str, str], head: bytes) -> bytes:
    listed = [[name, bytes.fromhex(files[name])] for name in sorted(files)]
    return wire.digest_of_values(_RESULTS, [head, listed])


def _identities(parties: Sequence[PublicIdentity], coordinator: SigningIdentity) -> dict[str, Any]:
    keys = [coordinator.public.key, *(party.key for party in parties)]
    digest = hashlib.sha256(_IDENTITIES_DOMAIN + b"".join(keys)).digest()
    return {
        "kind": "identities",
        "version": FORMAT_VERSION,
        "coordinator": keys[0].hex(),
        "parties": [key.hex() for key in keys[1:]],
        "signature": coordinator.sign(purpose="transcript identities", digest=digest).hex(),
    }


def _entry(entry: Entry, coordinator: SigningIdentity) -> dict[str, Any]:
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


def _heads(record: HeadsRecord, head: bytes, coordinator: SigningIdentity) -> dict[str, Any]:
    # Otherwise a holder of the file could drop a party's signature unseen.
    said = b"".join(item.sender + item.signature for item in record.signatures)
    digest = hashlib.sha256(_HEADS_DOMAIN + head + said).digest()
    return {
        "kind": "heads",
        "stage": record.stage,
        "head": head.hex(),
        "epoch": record.epoch,
        "signatures": [
            {
                "sender": item.sender.hex(),
                "journal_counter": item.journal_counter,
                "signature": item.signature.hex(),
            }
            for item in record.signatures
        ],
        "signature": coordinator.sign(purpose="transcript heads", digest=digest).hex(),
    }
