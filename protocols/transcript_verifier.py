"""Checks a written transcript with this file and `cryptography` alone.

Run ``python -m protocols.transcript_verifier FILE``, or copy this file anywhere and run it there.
Exit code 0: good. 5: broken, and the first bad line is named. 2: wrong usage.

A file is good if each of these holds. Every entry follows from the one before, so none was edited.
The coordinator signed every head, so nobody else moved, dropped or spliced any. Each message's
sender signed it. At least floor(2n/3) + 1 of the n parties signed each verdict. All parties signed
the head at the end of the setup and, in the last line, of the run: so the coordinator did not edit
it either, and nothing is missing at the end. A party that was lost by then is named: the others
must be three at least, and more than half. The keys stand in the file: compare their fingerprints
with those that you know, or give them as ``--coordinator`` and ``--party``.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

EXIT_GOOD, EXIT_USAGE, EXIT_BROKEN = 0, 2, 5
MAX_BYTES = 2**28

FOLLOWERS: Mapping[str, tuple[str, ...]] = {
    "": ("identities",),
    "identities": ("run record",),
    "run record": ("setup", "heads setup"),
    "setup": ("heads setup",),
    "heads setup": ("plan", "heads closing"),
    "plan": ("verdict", "settlement"),
    "verdict": ("settlement",),
    "settlement": ("plan", "heads closing"),
    "heads closing": (),
}
"""Which line may come after which."""

_DOMAIN = b"pate-fed/1/"
_FORMAT, _VERSION, _READY, _HEAD_STATEMENT, _VERDICT = 2, 2, 8, 14, 27
_LEAST_HEADS = 3


@dataclass(frozen=True, slots=True)
class TranscriptCheck:
    """The result of a check; ids, heads and fingerprints are in hex.

    Attributes:
        line: Number of the first bad line, from 1; None if the transcript is good.
        kind: Kind of that line, as far as it can be read.
        must: The rule that the line breaks.
        got: What broke it; empty where that says no more.
        entries: Good entries before it.
        run_id: Empty if no run record was good.
        head: Head after the last good entry.
        heads_compared: Of the parties, which are in seat order, those that signed the last head.
    """

    line: int | None = None
    kind: str = ""
    must: str = ""
    got: str = ""
    entries: int = 0
    run_id: str = ""
    head: str = ""
    coordinator: str = ""
    parties: tuple[str, ...] = ()
    heads_compared: tuple[str, ...] = ()

    @property
    def is_good(self) -> bool:
        """Whether nothing is wrong."""
        return self.line is None

    @property
    def liars_needed(self) -> int:
        """Parties that must have signed two histories for another good transcript of this run.

        The other one needs no more heads than are enough, be it that this one has all of them.
        """
        parties = len(self.parties)
        return max(len(self.heads_compared) + _least_heads(parties) - parties, 0)

    @property
    def not_heard(self) -> tuple[str, ...]:
        """Parties that did not sign the last head, in seat order."""
        return tuple(party for party in self.parties if party not in self.heads_compared)


def verify_transcript(
    text: str,
    *,
    coordinator: str | None = None,
    parties: Sequence[str] = (),
    may_be_open: bool = False,
) -> TranscriptCheck:
    """Check the content of a `transcript.jsonl`; never raises.

    The coordinator must have this fingerprint, in hex, if one is given, and all parties those.
    `may_be_open` allows that the parties' last heads are missing, or too few: something may then
    have been cut off at the end.
    """
    chain = _Chain(coordinator, frozenset(parties), may_be_open)
    *lines, rest = text.split("\n")
    number = 0
    try:
        for line in lines:
            number, chain.kind = number + 1, ""
            chain.take(line)
        number, chain.kind = number + 1, ""
        _require(not rest, "every line must have its end")
        is_closed = chain.last == "heads closing" and bool(chain.compared)
        _require(is_closed or may_be_open, "the parties' last signed heads must come")
    except ValueError as error:
        must, got = error.args if len(error.args) == 2 else ("a line must be readable", "")
        return chain.result(line=number, must=must, got=str(got))
    return chain.result()


def separate(text: str) -> list[str]:
    """Return the transcripts that stand in a file, one behind the other."""
    found: list[str] = []
    for line in text.splitlines(keepends=True):
        if not found or line.startswith('{"coordinator": '):  # only the first line has that key
            found.append("")
        found[-1] += line
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="transcript_verifier", description="Check the transcript of a federation's run."
    )
    parser.add_argument("file", metavar="FILE", help="transcript.jsonl of a run directory")
    parser.add_argument("--coordinator", metavar="FINGERPRINT", help="whose it must be")
    parser.add_argument(
        "--party", metavar="FINGERPRINT", action="append", default=[], help="one of all parties"
    )
    given = parser.parse_args(arguments)
    path = Path(given.file)
    try:
        if not path.is_file() or path.stat().st_size > MAX_BYTES:  # a device has no end
            parser.error(f"FILE must be a file of at most {MAX_BYTES} bytes")
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        parser.error(f"FILE must be readable, got {error.strerror}")
    check = verify_transcript(text, coordinator=given.coordinator, parties=given.party)
    print(render_check(check))
    return EXIT_GOOD if check.is_good else EXIT_BROKEN


def render_check(check: TranscriptCheck) -> str:
    """Say the result of a check to people."""
    if check.is_good:
        heard = f"heads of {len(check.heads_compared)} of {len(check.parties)} parties agree"
        lost = f"; not heard: {', '.join(check.not_heard)}" if check.not_heard else ""
        lines = [
            f"good: {check.entries} entries, head {check.head}",
            f"{heard}{lost}",
            "a forged history of this run would also need the signatures of "
            f"{check.liars_needed} parties",
            f"run {check.run_id}",
        ]
    else:
        name = f" ({check.kind})" if check.kind else ""
        got = f", got {check.got}" if check.got else ""
        lines = [f"broken: line {check.line}{name}: {check.must}{got}"]
    lines += [f"coordinator {check.coordinator}"] if check.coordinator else []
    return "\n".join([*lines, *(f"party {party}" for party in check.parties)])


@dataclass(slots=True)
class _Chain:
    """The check so far: what is pinned, the kind of the line at hand, that of the last good one."""

    pinned: str | None
    pinned_parties: frozenset[str]
    may_be_open: bool = False
    kind: str = ""
    last: str = ""
    entries: int = 0
    run_id: bytes = b""
    plan: bytes = b""
    head: bytes = field(default_factory=lambda: _sha256(_DOMAIN + b"transcript\0"))
    keys: dict[bytes, bytes] = field(default_factory=dict)
    coordinator: bytes = b""
    seats: tuple[bytes, ...] = ()
    compared: tuple[bytes, ...] = ()

    def take(self, line: str) -> None:
        """Check one line; a ValueError of (must, got) if it is bad."""
        content = _object(line)
        kind = content.get("kind")
        is_heads = kind == "heads"
        name = f"heads {content.get('stage')}" if is_heads else kind
        # A result reaches screens: known names only. And an entry that calls itself "heads
        # closing" would count as the parties' heads, signed by the coordinator alone.
        is_known = type(name) is str and name in FOLLOWERS and name.startswith("heads") == is_heads
        self.kind = str(name) if is_known else ""
        allowed = FOLLOWERS[self.last]
        must = f"a line must be: {' or '.join(allowed) or 'the end'}"
        _require(bool(self.kind) and self.kind in allowed, must, self.kind)
        if is_heads:
            self._heads(content)
        elif self.kind == "identities":
            self._identities(content)
        else:
            self._entry(content)
        self.last = self.kind

    def result(self, *, line: int | None = None, must: str = "", got: str = "") -> TranscriptCheck:
        """Return the result as things stand."""
        return TranscriptCheck(
            line=line,
            kind="" if line is None else self.kind,
            must=must,
            got=got,
            entries=self.entries,
            run_id=self.run_id.hex(),
            head=self.head.hex(),
            coordinator=self.coordinator.hex(),
            parties=tuple(seat.hex() for seat in self.seats),
            heads_compared=tuple(seat.hex() for seat in self.compared),
        )

    def _identities(self, content: dict[str, object]) -> None:
        _fields(content, {"kind", "version", "coordinator", "parties", "signature"})
        _require(_count(content["version"]) == _FORMAT, f"the version must be {_FORMAT}")
        mine = _hex(content["coordinator"], 32)
        keys = [_hex(key, 32) for key in _list(content["parties"])]
        digest = _sha256(_DOMAIN + b"transcript identities\0" + mine + b"".join(keys))
        _verify(mine, "transcript identities", digest, _hex(content["signature"], 64))
        seats = [_fingerprint(key) for key in keys]
        in_order = bool(seats) and seats == sorted(set(seats))
        _require(in_order, "parties must be in the order of fingerprints, none twice")
        is_pinned = self.pinned in (None, _fingerprint(mine).hex())
        _require(is_pinned, "the coordinator must be the one that was given")
        are_pinned = self.pinned_parties in (frozenset(), {seat.hex() for seat in seats})
        _require(are_pinned, "the parties must be those that were given")
        self.coordinator, self.seats = _fingerprint(mine), tuple(seats)
        self.keys = {self.coordinator: mine, **dict(zip(seats, keys, strict=True))}

    def _entry(self, content: dict[str, object]) -> None:
        is_verdict = self.kind == "verdict"
        names = {"kind", "digest", "head", "head_signature", "signatures"}
        _fields(content, names | ({"survivors"} if is_verdict else set()))
        digest, head = _hex(content["digest"], 32), _hex(content["head"], 32)
        name = self.kind.encode()
        link = _sha256(_DOMAIN + b"transcript\0" + self.head + bytes([len(name)]) + name + digest)
        _require(head == link, "a head must follow from the entries before it")
        signature = _hex(content["head_signature"], 64)
        _verify(self.keys[self.coordinator], "transcript head", head, signature)
        if is_verdict:
            self._certificate(content, digest)
        else:
            self._signatures(content["signatures"], digest)
        if self.kind == "run record":
            self.run_id = digest
        if self.kind == "plan":
            self.plan = digest
        self.head = head
        self.entries += 1

    def _signatures(self, items: Any, digest: bytes) -> None:
        """Check who signed an entry: the coordinator its message, or each party its own."""
        if self.kind == "setup":
            by_all = self._by(self.seats, items)
            digests = [self._signed(sender, item, "confirmations") for sender, item in by_all]
            told = b"\x82" + _text("setup") + _list_of(digests)
            expected = _sha256(_DOMAIN + b"message\0" + told)
        else:
            ((sender, item),) = self._by((self.coordinator,), items)
            expected = self._signed(sender, item, self.kind)
        _require(digest == expected, "an entry must be the signed message")

    def _certificate(self, content: dict[str, object], digest: bytes) -> None:
        survivors = [_hex(each, 32) for each in _list(content["survivors"])]
        chosen = [seat for seat in self.seats if seat in survivors]
        _require(survivors == chosen, "survivors must be parties, in order, none twice")
        told = b"\x18" + bytes((_VERDICT, 0x82)) + _bytes(self.plan) + _list_of(survivors)
        _require(digest == _digest_of(told), "a verdict must be on the plan before it")
        # A set that opens needs the verdicts of its own members; a closed plan those of anybody.
        signers = _listed(content["signatures"], survivors or self.seats)
        least = 2 * len(self.seats) // 3 + 1
        enough = len(signers) >= least
        _require(enough, f"{least} parties must have given the verdict", len(signers))
        for signer, item in self._by(signers, content["signatures"]):
            given = self._signed(signer, item, "verdict")
            _require(given == digest, "all verdicts must be equal")

    def _signed(self, sender: bytes, item: Any, purpose: str) -> bytes:
        _fields(item, {"sender", "digest", "signature"})
        digest = _hex(item["digest"], 32)
        _verify(self.keys[sender], purpose, digest, _hex(item["signature"], 64))
        return digest

    def _heads(self, content: dict[str, object]) -> None:
        _fields(content, {"kind", "stage", "head", "epoch", "signatures", "signature"})
        is_ours = _hex(content["head"], 32) == self.head
        _require(is_ours, "the parties must have signed the head of this chain")
        epoch, is_setup = _count(content["epoch"]), content["stage"] == "setup"
        # The setup's statements do not sign it, and nothing was attempted yet.
        _require(not is_setup or epoch == 0, "a setup must be before epoch 1")
        # Where parties make keys together all of them are there. Any other run may be set up
        # without some, and its record, of which this file has the digest alone, names them.
        needs_all = is_setup and self.last == "setup"
        heard = self.seats if needs_all else self._heard(content["signatures"])
        said = b""
        for sender, item in self._by(heard, content["signatures"]):
            _fields(item, {"sender", "journal_counter", "signature"})
            said += sender + _hex(item["signature"], 64)
        digest = _sha256(_DOMAIN + b"transcript heads\0" + self.head + said)
        mine = self.keys[self.coordinator]
        _verify(mine, "transcript heads", digest, _hex(content["signature"], 64))
        for sender, item in self._by(heard, content["signatures"]):
            told = _bytes(self.run_id) + _bytes(sender)
            counter = _head_of(0, _count(item["journal_counter"]))
            if is_setup:
                purpose, number = "ready", _READY
                told += _text("setup") + _bytes(self.head) + counter
            else:
                purpose, number = "head statement", _HEAD_STATEMENT
                told += _bytes(self.head) + _head_of(0, epoch) + counter
            digest = _digest_of(bytes((number, 0x85)) + told)
            _verify(self.keys[sender], purpose, digest, _hex(item["signature"], 64))
        if not is_setup:
            self.compared = heard

    def _heard(self, items: Any) -> tuple[bytes, ...]:
        """Return who signed a head: at least three, and of the last one more than half of all."""
        heard = _listed(items, self.seats)
        is_last = self.kind == "heads closing"
        least = _least_heads(len(self.seats)) if is_last else min(_LEAST_HEADS, len(self.seats))
        least = 0 if is_last and self.may_be_open else least
        enough = len(heard) >= least
        _require(enough, f"{least} parties must have signed the head", len(heard))
        return heard

    def _by(self, senders: tuple[bytes, ...], items: Any) -> list[tuple[bytes, dict[str, object]]]:
        """Pair signatures with those who must have made them, in order."""
        listed = _list(items)
        came = [item.get("sender") for item in listed if isinstance(item, dict)]
        in_order = came == [sender.hex() for sender in senders]
        _require(in_order, "each who must sign must have signed, in order")
        return list(zip(senders, listed, strict=True))


def _listed(items: Any, seats: Sequence[bytes]) -> tuple[bytes, ...]:
    """Return those of these parties that are named as senders, in their order."""
    named = [item.get("sender") for item in _list(items) if isinstance(item, dict)]
    return tuple(seat for seat in seats if seat.hex() in named)


def _least_heads(parties: int) -> int:
    """Fewest parties that must have signed the last head: three, and more than half of them."""
    return min(max(parties // 2 + 1, _LEAST_HEADS), parties)


def _object(line: str) -> dict[str, object]:
    """Read one line in the one form that it may have, so that no byte of it can differ."""
    try:
        content = json.loads(line)
        again = json.dumps(content, sort_keys=True)
    except (ValueError, RecursionError) as error:
        raise ValueError("a line must be JSON", "") from error
    _require(type(content) is dict, "a line must be a JSON object")
    _require(again == line, "a line must be written with sorted keys and no other space")
    return dict(content)


def _fields(content: Any, names: set[str]) -> None:
    _require(type(content) is dict and set(content) == names, "a line must have its fields")


def _list(value: Any) -> list[Any]:
    _require(type(value) is list, "a list must be a list")
    return list(value)


def _count(value: Any) -> int:
    _require(type(value) is int and 0 <= value < 2**32, "a count must be from 0 below 2^32")
    return int(value)


def _hex(value: Any, size: int) -> bytes:
    good = (
        type(value) is str and len(value) == 2 * size and not set(value) - set("0123456789abcdef")
    )
    _require(good, f"a value must be {size} bytes in lower-case hex")
    return bytes.fromhex(value)


def _verify(key: bytes, purpose: str, digest: bytes, signature: bytes) -> None:
    message = _DOMAIN + b"signature\0" + purpose.encode() + b"\0" + digest
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, message)
    except (InvalidSignature, ValueError) as error:
        raise ValueError(f"the signature of the {purpose} must be its sender's", "") from error


def _fingerprint(key: bytes) -> bytes:
    return _sha256(_DOMAIN + b"identity\0" + key)


def _sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


# The few forms of deterministic CBOR (RFC 8949, section 4.2) that signed statements need.


def _bytes(value: bytes) -> bytes:
    return _head_of(2, len(value)) + value


def _list_of(values: Sequence[bytes]) -> bytes:
    return _head_of(4, len(values)) + b"".join(map(_bytes, values))


def _digest_of(told: bytes) -> bytes:
    """Digest of a message, from its type on."""
    return _sha256(_DOMAIN + b"message\0" + bytes((0x83, _VERSION)) + told)


def _text(value: str) -> bytes:
    return _head_of(3, len(value.encode())) + value.encode()


def _head_of(major: int, number: int) -> bytes:
    if number < 24:
        return bytes([major << 5 | number])
    for extra, size in ((24, 1), (25, 2), (26, 4)):
        if number < 1 << (8 * size):
            return bytes([major << 5 | extra]) + number.to_bytes(size, "big")
    raise ValueError("a number must be below 2^32", number)


def _require(holds: bool, must: str, got: object = "") -> None:
    if not holds:
        raise ValueError(must, got)


if __name__ == "__main__":
    sys.exit(main())
