"""Writes the protocol's test vectors, from second implementations only: nothing is what it tests.

Run from the repository root: ``python -m tests.support.make_protocol_vectors``.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.support.reference_cbor import cbor
from tests.support.reference_crypto import aes256_block, counter_stream, hkdf

FOLDER = Path(__file__).parent.parent / "vectors"
VERSION = 2
SIGNING_SEED = hashlib.sha256(b"test vectors, signer").digest()
_PURPOSES = {
    "RunOffer": "run offer",
    "KeyStatement": "key statement",
    "RunRecord": "run record",
    "Envelope": "envelope",
    "EnvelopeBundle": "",
    "Confirmations": "confirmations",
    "SetupClosing": "setup closing",
    "Ready": "ready",
    "Plan": "plan",
    "MaskedVector": "masked vector",
    "Refusal": "refusal",
    "Settlement": "settlement",
    "Closing": "closing",
    "HeadStatement": "head statement",
    "HeadBundle": "",
    "Dealing": "dealing",
    "ShareBundle": "",
    "SetProposal": "proposal",
    "Reveal": "reveal",
    "BlameRequest": "blame request",
    "StreamSums": "stream sums",
    "JoinRequest": "join request",
    "MembershipQuery": "membership query",
    "Membership": "membership",
    "PoolQuery": "pool query",
    "AuditHead": "audit head",
    "Verdict": "verdict",
    "Certificate": "",
    "VerdictMacs": "",
    "Inquiry": "inquiry",
    "Readiness": "readiness",
    "ResultsQuery": "results query",
    "RunInquiry": "run inquiry",
    "RunReadiness": "run readiness",
    "VectorHead": "masked vector",
    "ReportHeader": "report header",
    "VoteReport": "",
    "ReportList": "report list",
    "ListReceipt": "list receipt",
    "VoteAnswers": "vote answers",
    "Acceptance": "acceptance",
    "SumShare": "sum share",
}


def _bytes(label: str, size: int = 32) -> bytes:
    return hashlib.shake_256(label.encode()).digest(size)


def keystream() -> dict[str, Any]:
    keys = [bytes(32), bytes(range(32)), _bytes("key")]
    return {
        "what": "AES-256 of the counter blocks 2, 3, ...: the stream of a key",
        "fips_197_c3": {
            "key": bytes(range(32)).hex(),
            "plaintext": "00112233445566778899aabbccddeeff",
            "ciphertext": aes256_block(
                bytes(range(32)), bytes.fromhex("00112233445566778899aabbccddeeff")
            ).hex(),
        },
        "streams": [
            {
                "key": key.hex(),
                "start": start,
                "bytes": counter_stream(key, 64, first_block=block).hex(),
            }
            for key in keys
            for block in (0, 255, 8191, 65534)
            for start in (16 * block,)
        ],
    }


def pair_keys() -> dict[str, Any]:
    domain = b"pate-fed/1/pair\0"
    run_id, plan = _bytes("run"), _bytes("plan")
    lower, higher = sorted((_bytes("one"), _bytes("other")))
    halves = _bytes("lower half"), _bytes("higher half")
    root = hkdf(halves[0] + halves[1], salt=run_id, info=domain + b"root\0" + lower + higher)
    roots = [root]
    for epoch in range(1, 4):
        info = domain + b"ratchet\0" + epoch.to_bytes(8, "big")
        roots.append(hkdf(roots[-1], salt=b"", info=info))
    confirm_key = hkdf(root, salt=run_id, info=domain + b"confirm\0")
    return {
        "what": "roots, ratchet, confirmations and stream keys, from RFC 5869 by hand",
        "run_id": run_id.hex(),
        "lower": lower.hex(),
        "higher": higher.hex(),
        "lower_half": halves[0].hex(),
        "higher_half": halves[1].hex(),
        "roots_by_epoch": [value.hex() for value in roots],
        "confirmation_lower_to_higher": _mac(confirm_key, domain + lower + higher),
        "confirmation_higher_to_lower": _mac(confirm_key, domain + higher + lower),
        "plan_digest": plan.hex(),
        "stream_keys_by_epoch": [
            hkdf(value, salt=plan, info=domain + b"stream\0" + lower + higher).hex()
            for value in roots
        ],
    }


def _mac(key: bytes, data: bytes) -> str:
    return hmac.new(key, data, hashlib.sha256).hexdigest()


def transcript() -> dict[str, Any]:
    domain = b"pate-fed/1/transcript\0"
    head = hashlib.sha256(domain).digest()
    entries = []
    for kind in ("run record", "setup", "plan", "verdict", "settlement", "plan"):
        digest = _bytes(f"digest {len(entries)}")
        head = hashlib.sha256(domain + head + bytes([len(kind)]) + kind.encode() + digest).digest()
        entries.append({"kind": kind, "digest": digest.hex(), "head": head.hex()})
    return {
        "what": "heads of a run's hash chain",
        "empty_head": hashlib.sha256(domain).hexdigest(),
        "entries": entries,
    }


def _messages() -> dict[str, list[Any]]:
    run, me, peer = _bytes("run"), _bytes("me"), _bytes("peer")
    return {
        "RunOffer": [_bytes("ck"), _bytes("n"), "additive", 32, "suite", 1_900_000_000, True],
        "KeyStatement": [_bytes("o"), _bytes("ik"), _bytes("sk"), _bytes("n"), "party", 10_000, 41],
        "RunRecord": [
            _bytes("o"), me, [_bytes("s1", 40), _bytes("s2", 300)], "additive", 32, "suite",
            3, 1, 0, 10_000, False, _bytes("ck"), _bytes("tally", 300), [_bytes("a1")],
            b"terms",
        ],
        "Envelope": [run, me, peer, _bytes("sealed", 80)],
        "EnvelopeBundle": [run, [_bytes("e1", 200), _bytes("e2", 201)]],
        "Confirmations": [run, me, [_bytes("m1"), _bytes("m2")]],
        "SetupClosing": [run, [_bytes("m1")], [_bytes("d1"), _bytes("d2")]],
        "Ready": [run, me, "setup", _bytes("head"), 42],
        "Plan": [run, 7, 3, _bytes("head"), 300, 10_000, b"what is asked"],
        "MaskedVector": [_bytes("plan"), me, _bytes("y", 64)],
        "Refusal": [_bytes("plan"), me, "PF-301"],
        "Settlement": [
            run, _bytes("plan"), "void", 300, [_bytes("v1"), b""], [_bytes("refusal", 204)],
            _bytes("certificate", 240), b"",
        ],
        "Closing": [run, _bytes("head")],
        "HeadStatement": [run, me, _bytes("head"), 7, 43],
        "HeadBundle": [run, [_bytes("h1", 150), b""]],
        "Dealing": [
            _bytes("plan"), me, _bytes("salt"), _bytes("sh1") + _bytes("sh2"),
            _bytes("r1") + _bytes("r2"),
        ],
        "ShareBundle": [_bytes("plan"), [_bytes("dealing", 300)], [_bytes("column", 84)]],
        "SetProposal": [run, _bytes("plan"), [me, peer]],
        "Reveal": [_bytes("opening"), me, [_bytes("disclosure", 66), b""]],
        "BlameRequest": [run, _bytes("plan"), 17],
        "StreamSums": [_bytes("plan"), me, 17, [0, 2**32 - 1, 255]],
        "JoinRequest": [
            _bytes("co"), _bytes("token", 16), "North", _bytes("ik"), b"PEM", 1_900_000_000,
        ],
        "MembershipQuery": [
            _bytes("co"), me, 1_900_000_000, _bytes("audit head", 150), _bytes("kept"),
            "1.2.3", 10, ["eyes", "lungs"], [4, 2**30 - 1],
        ],
        "Membership": [
            me, "lung study", "member", 1_900_000_000, ["South", "West"], [_bytes("k1"), peer],
            b"", ["first", "run-7"], "Notary", _bytes("k2"),
        ],
        "PoolQuery": [_bytes("co"), me, _bytes("pool"), 4_194_304, 1_900_000_000],
        "AuditHead": [me, 4711, _bytes("audit log")],
        "Verdict": [_bytes("plan"), []],
        "Certificate": [
            _bytes("plan"), [me, peer], [me, peer], [_bytes("s1", 64), _bytes("s2", 64)],
        ],
        "VerdictMacs": [_bytes("plan"), [_bytes("m1", 16), b""]],
        "Inquiry": [run, b"what may be asked"],
        "Readiness": [_bytes("inquiry"), me, [0, 3, 2**17]],
        "ResultsQuery": [_bytes("co"), me, run, "student/student.json", 4_194_304, 1_900_000_000],
        "RunInquiry": [
            _bytes("co"), [me, peer], "additive", 32, "x25519", 2, 1, 0, False, _bytes("tally"),
            b"terms",
        ],
        "RunReadiness": [_bytes("inquiry"), me, "PF-300", 1_900_000_000, "nicht bis Mai: prüft"],
        "VectorHead": [_bytes("plan"), me, 64, hashlib.sha256(_bytes("y", 64)).digest()],
        "ReportHeader": [
            _bytes("plan"), me, _bytes("b1"), _bytes("b2"), _bytes("e1"), _bytes("e2"),
        ],
        "VoteReport": [_bytes("header", 275), _bytes("large", 5000), _bytes("small", 80)],
        "ReportList": [
            _bytes("plan"), [_bytes("h1", 275), _bytes("h2", 275)],
            [_bytes("t1", 80), _bytes("t2", 80)], _bytes("commitment"), _bytes("noise"),
        ],
        "ListReceipt": [_bytes("plan"), _bytes("list"), _bytes("nonce"), _bytes("noise")],
        "VoteAnswers": [_bytes("plan"), me, _bytes("nonce"), [_bytes("answer", 4200), b""]],
        "Acceptance": [_bytes("plan"), me, _bytes("accepted")],
        "SumShare": [_bytes("plan"), me, _bytes("share", 5000)],
    }  # fmt: skip


def _frame(number: int, purpose: str, fields: list[Any]) -> tuple[bytes, bytes]:
    body = b"\x83" + cbor(VERSION) + cbor(number) + cbor(fields)
    digested = body
    if number == 10:  # a y is signed by its head
        plan, sender, y = fields
        head = [plan, sender, len(y), hashlib.sha256(y).digest()]
        digested = b"\x83" + cbor(VERSION) + cbor(35) + cbor(head)
    digest = hashlib.sha256(b"pate-fed/1/message\0" + digested).digest()
    signature = b""
    if purpose:
        signed = b"pate-fed/1/signature\0" + purpose.encode() + b"\0" + digest
        signature = Ed25519PrivateKey.from_private_bytes(SIGNING_SEED).sign(signed)
    return b"\x84" + body[1:] + cbor(signature), digest


def wire_frames() -> dict[str, Any]:
    good = {}
    for number, (name, fields) in enumerate(_messages().items(), start=1):
        frame, digest = _frame(number, _PURPOSES[name], fields)
        good[name] = {"frame": frame.hex(), "digest": digest.hex()}
    return {
        "what": "one signed frame of each type, and frames that must be refused",
        "signer": Ed25519PrivateKey.from_private_bytes(SIGNING_SEED)
        .public_key()
        .public_bytes_raw()
        .hex(),
        "good": good,
        "spoiled": {name: frame.hex() for name, frame in _spoiled().items()},
    }


def _spoiled() -> dict[str, bytes]:
    run, head, signature = _bytes("run"), _bytes("head"), cbor(_bytes("signature", 64))
    fields = cbor([run, head])
    closing = b"\x84\x02\x0d" + fields + signature

    def closing_of(encoded_fields: bytes) -> bytes:
        return b"\x84\x02\x0d" + encoded_fields + signature

    def statement_of(encoded_epoch: bytes) -> bytes:
        fields = b"\x85" + cbor(run) + cbor(head) + cbor(head) + encoded_epoch + cbor(1)
        return b"\x84\x02\x0e" + fields + signature

    return {
        "empty": b"",
        "one byte": b"\x84",
        "no type": b"\x84\x02",
        "no type after its head": b"\x84\x02\x18",
        "cut short": closing[:-1],
        "trailing byte": closing + b"\0",
        "two frames": closing + closing,
        "version 0": b"\x84\x00" + closing[2:],
        "version 1": b"\x84\x01" + closing[2:],
        "version 3": b"\x84\x03" + closing[2:],
        "version true": b"\x84\xf5" + closing[2:],
        "version in two bytes": b"\x84\x18\x02" + closing[2:],
        "type 0": b"\x84\x02\x00" + closing[3:],
        "type 23": b"\x84\x02\x17" + closing[3:],
        "type 34": b"\x84\x02\x18\x22" + closing[3:],
        "type in two bytes": b"\x84\x02\x18\x0d" + closing[3:],
        "type is a text": b"\x84\x02\x61\x0d" + closing[3:],
        "array of 5": b"\x85" + closing[1:] + b"\x00",
        "array of 3": b"\x83" + closing[1:3] + fields,
        "array with long header": b"\x98\x04" + closing[1:],
        "indefinite array": b"\x9f" + closing[1:] + b"\xff",
        "map for array": b"\xa2" + closing[1:],
        "missing field": closing_of(cbor([run])),
        "extra field": closing_of(cbor([run, head, head])),
        "fields are no list": closing_of(cbor(run)),
        "digest of 31 bytes": closing_of(cbor([run, head[1:]])),
        "digest of 33 bytes": closing_of(cbor([run, head + b"\0"])),
        "digest is a text": closing_of(cbor([run, "h" * 32])),
        "digest is null": closing_of(b"\x82" + cbor(run) + b"\xf6"),
        "digest in chunks": closing_of(b"\x82" + cbor(run) + b"\x5f" + cbor(head) + b"\xff"),
        "digest with long header": closing_of(b"\x82" + cbor(run) + b"\x59\x00\x20" + head),
        "count is true": statement_of(b"\xf5"),
        "count is a float": statement_of(b"\xf9\x3c\x00"),
        "count is negative": statement_of(b"\x20"),
        "count is 2^32": statement_of(cbor(2**32)),
        "count with long header": statement_of(b"\x19\x00\x07"),
        "count is a bignum": statement_of(b"\xc2\x41\x07"),
        "count is tagged": statement_of(b"\xd9\x01\x00\x07"),
        "count is undefined": statement_of(b"\xf7"),
        "count is a simple value": statement_of(b"\xf8\xff"),
        "count is a date": statement_of(b"\xc1\x07"),
        "count is a shared reference": statement_of(b"\xd8\x1c\x07"),
        "count is a reference to itself": statement_of(b"\xd8\x1d\x00"),
        "count is a regular expression": statement_of(b"\xd8\x23\x61\x61"),
        "count is nested in lists": statement_of(b"\x81" * 64 + b"\x07"),
        "self-described": b"\xd9\xd9\xf7" + closing,
        "no signature": closing[: -len(signature)] + b"\x40",
        "signature of 63 bytes": closing[: -len(signature)] + cbor(_bytes("signature", 63)),
        "signature of 65 bytes": closing[: -len(signature)] + cbor(_bytes("signature", 65)),
        "signature is a text": closing[: -len(signature)] + cbor("s" * 64),
        "settlement without a certificate's place": b"\x84\x02\x0c"
        + cbor([run, head, "void", 3, [b""], [], b""]) + signature,
        "verdict without a signature": b"\x84\x02\x18\x1b" + cbor([head, [run]]) + b"\x40",
        "verdict that names its sender": b"\x84\x02\x18\x1b" + cbor([head, run, [run]])
        + signature,
        "certificate with a signature of its own": b"\x84\x02\x18\x1c"
        + cbor([head, [run], [run], [_bytes("signature", 64)]]) + signature,
        "certificate without signers": b"\x84\x02\x18\x1c" + cbor([head, [run], [], []]) + b"\x40",
        "signature of 63 bytes in a certificate": b"\x84\x02\x18\x1c"
        + cbor([head, [run], [run], [_bytes("signature", 63)]]) + b"\x40",
        "no MACs of a verdict": b"\x84\x02\x18\x1d" + cbor([head, []]) + b"\x40",
        "a verdict's MAC of 17 bytes": b"\x84\x02\x18\x1d" + cbor([head, [bytes(17)]]) + b"\x40",
        "container with a signature": b"\x84\x02\x0f" + cbor([run, [head]]) + signature,
        "list claims 2^63 items": b"\x84\x02\x0d\x9b" + b"\x7f" + b"\xff" * 7,
        "bytes claim 2^63": b"\x84\x02\x0d\x5b" + b"\x7f" + b"\xff" * 7,
        "text is no utf-8": b"\x84\x02\x0b" + b"\x83" + cbor(run) + cbor(head) + b"\x62\xc3\x28"
        + signature,
        "name is empty": b"\x84\x02\x0b" + cbor([run, head, ""]) + signature,
        "name of 65 letters": b"\x84\x02\x0b" + cbor([run, head, "x" * 65]) + signature,
        "row beyond every vector": b"\x84\x02\x14" + cbor([run, head, 2**26 + 1]) + signature,
        "no stream sums": b"\x84\x02\x15" + cbor([run, head, 0, []]) + signature,
        "a stream sum of 2^32": b"\x84\x02\x15" + cbor([run, head, 0, [2**32]]) + signature,
        "a negative stream sum": b"\x84\x02\x15" + cbor([run, head, 0]).replace(b"\x83", b"\x84", 1)
        + b"\x81\x20" + signature,
        "vector is empty": b"\x84\x02\x0a" + cbor([run, head, b""]) + signature,
        "no envelopes": b"\x84\x02\x05" + cbor([run, []]) + b"\x40",
        "envelope is a list": b"\x84\x02\x05" + cbor([run, [[1]]]) + b"\x40",
    }  # fmt: skip


VECTORS: dict[str, Callable[[], dict[str, Any]]] = {
    "keystream": keystream,
    "pair_keys": pair_keys,
    "transcript": transcript,
    "wire_frames": wire_frames,
}
"""What writes each file, by its name without `.json`."""


def write_vectors(makers: Mapping[str, Callable[[], dict[str, Any]]]) -> None:
    for name, make in makers.items():
        text = json.dumps(make(), indent=1) + "\n"
        (FOLDER / f"{name}.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write_vectors(VECTORS)
