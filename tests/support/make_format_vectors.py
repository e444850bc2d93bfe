"""Writes vectors of whole formats: packets, y's, envelopes, written transcripts.

From second implementations only, as `make_protocol_vectors`. Envelopes are drawn at random, since
ML-KEM is: they are made where their file is missing, and checked by the second implementation.
Run from the repository root: ``python -m tests.support.make_format_vectors``.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from tests.support.make_protocol_vectors import FOLDER, write_vectors
from tests.support.reference_cbor import cbor
from tests.support.reference_crypto import counter_stream, hpke_seal_hybrid, hpke_seal_x25519

Row = dict[str, Any]


def some_bytes(label: str, size: int = 32) -> bytes:
    return hashlib.shake_256(b"format vectors, " + label.encode()).digest(size)


# Packets ---------------------------------------------------------------------------------------


def packets() -> Row:
    frames = [b"one frame", some_bytes("frame", 300)]
    good = {"none": [], "one": frames[:1], "two": frames, "sixteen": [b"f"] * 16}
    one = cbor(frames[:1])
    return {
        "what": "packets, and packets that must be refused",
        "good": {
            name: {"packet": cbor(items).hex(), "frames": [item.hex() for item in items]}
            for name, items in good.items()
        },
        "spoiled": {
            "empty": "",
            "seventeen frames": cbor([b"f"] * 17).hex(),
            "a frame is a text": cbor(["frame"]).hex(),
            "a frame is a list": cbor([[b"frame"]]).hex(),
            "no list": cbor(b"frame").hex(),
            "trailing byte": (one + b"\0").hex(),
            "cut short": one[:-1].hex(),
            "indefinite list": (b"\x9f" + one[1:] + b"\xff").hex(),
            "long list head": (b"\x98\x01" + one[1:]).hex(),
            "long bytes head": (b"\x81\x58\x09" + frames[0]).hex(),
            "a tag": (b"\xc1" + one).hex(),
        },
    }


# y's -------------------------------------------------------------------------------------------


def masked_vectors() -> Row:
    vectors = [[3, 0, -1, 2**31 - 1, 25], [0, 4, 7, -(2**31), 25], [1, 1, 1, 1, 200]]
    keys = {pair: some_bytes(f"key of {pair}") for pair in ("0 1", "0 2", "1 2")}
    ys = []
    for seat, vector in enumerate(vectors):
        words = list(vector)
        for peer in set(range(3)) - {seat}:
            key = keys[f"{min(seat, peer)} {max(seat, peer)}"]
            stream = counter_stream(key, 4 * len(words))
            for place in range(len(words)):
                word = int.from_bytes(stream[4 * place : 4 * place + 4], "little")
                words[place] += word if seat < peer else -word
        ys.append(b"".join((word % 2**32).to_bytes(4, "little") for word in words))
    total = [sum(column) for column in zip(*vectors, strict=True)]
    wrapped = [(value + 2**31) % 2**32 - 2**31 for value in total]
    return {
        "what": "the additive form: y of each party, and the sum that they open",
        "pair_keys": {pair: key.hex() for pair, key in keys.items()},
        "vectors": vectors,
        "ys": [y.hex() for y in ys],
        "sum": wrapped,
    }


# Envelopes -------------------------------------------------------------------------------------


def envelopes() -> Row:
    half, seed, private = some_bytes("half"), some_bytes("ml-kem", 64), some_bytes("x25519")
    run, sender, receiver, other = (some_bytes(name) for name in ("run", "me", "you", "they"))
    info = b"pate-fed/1/envelope\0pair root\0" + run + sender + receiver
    curve = X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()
    lattice = MLKEM768PrivateKey.from_seed_bytes(seed).public_key().public_bytes_raw()
    publics = {"x25519": curve, "mlkem768-x25519": lattice + curve}

    def seal(name: str, **changed: bytes) -> bytes:
        used = changed.get("info", info)
        if name == "x25519":
            return hpke_seal_x25519(half, curve, info=used, ephemeral=some_bytes("ephemeral"))
        return hpke_seal_hybrid(half, lattice, curve, info=used, ephemeral=some_bytes("ephemeral"))

    def spoiled(name: str) -> dict[str, str]:
        true = seal(name)
        head = len(true) - 48

        def flipped(place: int) -> str:
            return (true[:place] + bytes([true[place] ^ 1]) + true[place + 1 :]).hex()

        domain = b"pate-fed/1/envelope\0pair root\0"
        return {
            "empty": "",
            "encapsulated key only": true[:head].hex(),
            "cut by one byte": true[:-1].hex(),
            "one byte more": (true + b"\0").hex(),
            "encapsulated key changed": flipped(0),
            "ciphertext changed": flipped(head),
            "tag changed": flipped(len(true) - 1),
            "sealed for another run": seal(name, info=domain + other + sender + receiver).hex(),
            "sealed by another sender": seal(name, info=domain + run + other + receiver).hex(),
            "sealed to another receiver": seal(name, info=domain + run + sender + other).hex(),
            "sender and receiver swapped": seal(name, info=domain + run + receiver + sender).hex(),
            "sealed for another role": seal(
                name, info=b"pate-fed/1/envelope\0pair key\0" + run + sender + receiver
            ).hex(),
        }

    return {
        "what": "envelopes of both suites around one half of a root, and envelopes that never open",
        "run_id": run.hex(),
        "sender": sender.hex(),
        "receiver": receiver.hex(),
        "info": info.hex(),
        "plaintext": half.hex(),
        "mlkem768_private_seed": seed.hex(),
        "x25519_private_key": private.hex(),
        "suites": {
            f"{name}-hkdf-sha256-aes-256-gcm": {
                "public_key": public.hex(),
                "sealed": seal(name).hex(),
                "spoiled": spoiled(name),
            }
            for name, public in publics.items()
        },
    }


# Written transcripts ---------------------------------------------------------------------------


def _key(name: str) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(some_bytes(f"identity of {name}"))


def _public(key: Ed25519PrivateKey) -> bytes:
    return key.public_key().public_bytes_raw()


def _fingerprint(key: Ed25519PrivateKey) -> bytes:
    return hashlib.sha256(b"pate-fed/1/identity\0" + _public(key)).digest()


def _sign(key: Ed25519PrivateKey, purpose: str, digest: bytes) -> str:
    return key.sign(b"pate-fed/1/signature\0" + purpose.encode() + b"\0" + digest).hex()


def _digest(told: bytes) -> bytes:
    return hashlib.sha256(b"pate-fed/1/message\0" + told).digest()


PARTIES = 5


def _parties() -> list[Ed25519PrivateKey]:
    """The parties' keys, in the order of seats."""
    return sorted((_key(f"party {place}") for place in range(PARTIES)), key=_fingerprint)


@dataclass(frozen=True)
class Ruling:
    """What a verdict line says: good as it is made, spoiled where a field is changed.

    The seat after the last is a stranger's.

    Attributes:
        survivors: Seats of the set that opens; none: the plan is closed.
        signers: Seats whose signatures stand in the line.
        signed: A seat, and the purpose and digest that it signs in place of the true ones.
        shown: A seat, and the digest that stands beside its signature in place of the true one.
        plan: Plan that the verdict is on, in place of the plan before it.
    """

    survivors: Sequence[int] = (0, 2, 3, 4)
    signers: Sequence[int] = (0, 2, 3, 4)
    signed: tuple[int, str, bytes] | None = None
    shown: tuple[int, bytes] | None = None
    plan: bytes = b""


STRANGER = PARTIES
CLOSED = Ruling(survivors=(), signers=(0, 1, 2, 4))
MASKED = (Ruling(), Ruling((0, 1, 2, 3, 4), (0, 1, 2, 3)))
MORE = Ruling((0, 1, 2, 3, 4), (0, 1, 2, 3, 4))
"""More verdicts than a certificate needs."""


def transcript_rows(*rulings: Ruling | None) -> list[Row]:
    """The lines of a run with two batches; of a masked one with a ruling on each."""
    coordinator, parties = _key("coordinator"), _parties()
    keys = b"".join(map(_public, (coordinator, *parties)))
    named = hashlib.sha256(b"pate-fed/1/transcript identities\0" + keys).digest()
    rows: list[Row] = [
        {
            "kind": "identities",
            "version": 2,
            "coordinator": _public(coordinator).hex(),
            "parties": [_public(party).hex() for party in parties],
            "signature": _sign(coordinator, "transcript identities", named),
        }
    ]
    head = hashlib.sha256(b"pate-fed/1/transcript\0").digest()
    run = some_bytes("run record")

    def add(kind: str, digest: bytes, signatures: list[Row], **more: Any) -> None:
        nonlocal head
        name = bytes([len(kind)]) + kind.encode()
        head = hashlib.sha256(b"pate-fed/1/transcript\0" + head + name + digest).digest()
        rows.append(
            {
                "kind": kind,
                "digest": digest.hex(),
                "head": head.hex(),
                "head_signature": _sign(coordinator, "transcript head", head),
                "signatures": signatures,
                **more,
            }
        )

    def by_coordinator(kind: str, digest: bytes) -> None:
        signature = _sign(coordinator, kind, digest)
        item = {"sender": _fingerprint(coordinator).hex(), "digest": digest.hex()}
        add(kind, digest, [{**item, "signature": signature}])

    def heads(stage: str, number: int, purpose: str, epoch: int, told: list[Any]) -> None:
        signatures = []
        for place, party in enumerate(parties):
            counter = 10 * place + number
            digest = _message_digest(number, [run, _fingerprint(party), *told, counter])
            item = {"sender": _fingerprint(party).hex(), "journal_counter": counter}
            signatures.append({**item, "signature": _sign(party, purpose, digest)})
        rows.append(_heads_row(coordinator, stage, head, epoch, signatures))

    by_coordinator("run record", run)
    said = [some_bytes(f"confirmations {place}") for place in range(PARTIES)]
    add(
        "setup",
        _digest(cbor(["setup", said])),
        [
            {
                "sender": _fingerprint(party).hex(),
                "digest": digest.hex(),
                "signature": _sign(party, "confirmations", digest),
            }
            for party, digest in zip(parties, said, strict=True)
        ],
    )
    heads("setup", 8, "ready", 0, ["setup", head])
    for batch in range(2):
        plan = some_bytes(f"plan {batch}")
        by_coordinator("plan", plan)
        ruling = rulings[batch] if batch < len(rulings) else None
        if ruling is not None:
            add("verdict", *_certified(ruling, plan))
            rows[-1]["survivors"] = [seat.hex() for seat in _seats(ruling.survivors)]
        by_coordinator("settlement", some_bytes(f"settlement {batch}"))
    heads("closing", 14, "head statement", 2, [head, 2])
    return rows


def _seats(places: Sequence[int]) -> list[bytes]:
    known = [_fingerprint(key) for key in (*_parties(), _key("a stranger"))]
    return [known[place] for place in places]


def _certified(ruling: Ruling, plan: bytes) -> tuple[bytes, list[Row]]:
    """Digest of a verdict, and the signatures of the parties that gave it."""
    digest = _verdict_digest(ruling.plan or plan, ruling.survivors)
    signatures = []
    for seat, sender in zip(ruling.signers, _seats(ruling.signers), strict=True):
        purpose, signed, shown = "verdict", digest, digest
        if ruling.signed is not None and ruling.signed[0] == seat:
            _, purpose, signed = ruling.signed
        if ruling.shown is not None and ruling.shown[0] == seat:
            _, shown = ruling.shown
        signature = _sign([*_parties(), _key("a stranger")][seat], purpose, signed)
        item = {"sender": sender.hex(), "digest": shown.hex()}
        signatures.append({**item, "signature": signature})
    return digest, signatures


def _verdict_digest(plan: bytes, survivors: Sequence[int]) -> bytes:
    return _message_digest(27, [plan, _seats(survivors)])


def _message_digest(number: int, fields: list[Any]) -> bytes:
    return _digest(b"\x83" + cbor(2) + cbor(number) + cbor(fields))


def _heads_row(
    coordinator: Ed25519PrivateKey, stage: str, head: bytes, epoch: int, signatures: list[Row]
) -> Row:
    said = b"".join(bytes.fromhex(item["sender"] + item["signature"]) for item in signatures)
    digest = hashlib.sha256(b"pate-fed/1/transcript heads\0" + head + said).digest()
    return {
        "kind": "heads",
        "stage": stage,
        "head": head.hex(),
        "epoch": epoch,
        "signatures": signatures,
        "signature": _sign(coordinator, "transcript heads", digest),
    }


def _text(rows: list[Row]) -> str:
    return "".join(json.dumps(row, sort_keys=True) + "\n" for row in rows)


def written_transcripts() -> Row:
    return {
        "what": "a written transcript of each form, and transcripts that are broken at a line",
        "good": {
            "additive": _text(transcript_rows()),
            "masked": _text(transcript_rows(*MASKED)),
            "masked, more verdicts than needed": _text(transcript_rows(MORE)),
            "masked, one plan closed, one settled without a certificate": _text(
                transcript_rows(CLOSED)
            ),
            "three of five heads": _heard(0, 2, 3),
        },
        "spoiled": {
            **_edited(),
            **_falsely_certified(),
            **_not_heard(),
            **_reordered(),
            **_cut_short(),
            **_written_otherwise(),
        },
    }


def _heard(*places: int) -> str:
    """The transcript of a run whose coordinator heard these parties at the end."""
    *rows, last = transcript_rows()
    signatures = [last["signatures"][place] for place in places]
    head = bytes.fromhex(last["head"])
    return _text([*rows, _heads_row(_key("coordinator"), "closing", head, 2, signatures)])


def _not_heard() -> Row:
    return {
        "two of five heads": {"line": 9, "text": _heard(1, 3)},
        "a party's head twice": {"line": 9, "text": _heard(0, 2, 2, 3)},
        "heads in another order": {"line": 9, "text": _heard(2, 0, 3)},
    }


def _edited() -> Row:
    rows, masked = transcript_rows(), transcript_rows(*MASKED)

    def changed(place: int, change: Callable[[Row], object]) -> Row:
        row = copy.deepcopy(rows[place])
        change(row)
        return {"line": place + 1, "text": _text([*rows[:place], row, *rows[place + 1 :]])}

    def signature_of(place: int, other: int) -> Row:
        taken = rows[other]["head_signature"]
        return changed(place, lambda row: row.update(head_signature=taken))

    def first(row: Row) -> Row:
        signature: Row = row["signatures"][0]
        return signature

    settled = first(rows[5])["signature"]
    moved = copy.deepcopy(masked)
    moved[5]["kind"] = "settlement"
    del moved[5]["survivors"]
    return {
        "digest changed": changed(4, lambda row: row.update(digest="00" * 32)),
        "head changed": changed(5, lambda row: row.update(head="00" * 32)),
        "kind changed": {"line": 6, "text": _text(moved)},
        "head's signature changed": changed(4, lambda r: r.update(head_signature="00" * 64)),
        "head's signature of another head": signature_of(4, 5),
        "sender's signature changed": changed(
            1, lambda row: first(row).update(signature="00" * 64)
        ),
        "sender's signature of another message": changed(
            4, lambda row: first(row).update(signature=settled)
        ),
        "sender's digest changed": changed(4, lambda row: first(row).update(digest="00" * 32)),
        "sender changed": changed(1, lambda row: first(row).update(sender="00" * 32)),
        "confirmations of two parties swapped": changed(2, lambda r: r["signatures"].reverse()),
        "confirmations of a party are missing": changed(2, lambda row: row["signatures"].pop()),
        "a party's signature is missing": changed(8, lambda row: row["signatures"].pop()),
        "a party signed twice": changed(8, lambda r: r["signatures"].append(r["signatures"][0])),
        "a party's journal counter changed": changed(
            8, lambda row: row["signatures"][1].update(journal_counter=0)
        ),
        "a journal counter of 2^32": changed(
            8, lambda row: first(row).update(journal_counter=2**32)
        ),
        "epoch changed": changed(8, lambda row: row.update(epoch=3)),
        "epoch of the setup changed": changed(3, lambda row: row.update(epoch=1)),
        "epoch is a float": changed(8, lambda row: row.update(epoch=2.0)),
        "signature of the heads changed": changed(8, lambda row: row.update(signature="00" * 64)),
        "stage changed": changed(8, lambda row: row.update(stage="setup")),
        "coordinator's key changed": changed(0, lambda row: row.update(coordinator="00" * 32)),
        "parties in another order": changed(0, lambda row: row["parties"].reverse()),
        "a party left out": changed(0, lambda row: row["parties"].pop()),
        "the version before": changed(0, lambda row: row.update(version=1)),
        "a later version": changed(0, lambda row: row.update(version=3)),
        "an extra field": changed(4, lambda row: row.update(extra=1)),
        "a field is missing": changed(4, lambda row: row.pop("head_signature")),
        "digest of 31 bytes": changed(4, lambda row: row.update(digest=row["digest"][2:])),
        "digest in capitals": changed(4, lambda row: row.update(digest=row["digest"].upper())),
    }


def _falsely_certified() -> Row:
    """Verdict lines that prove nothing; the chain around each is as its coordinator signed it."""
    good, plan, other = Ruling(), some_bytes("plan 0"), some_bytes("plan 1")
    verdict = _verdict_digest(plan, good.survivors)
    closing = _verdict_digest(plan, ())

    def ruled(ruling: Ruling) -> Row:
        return {"line": 6, "text": _text(transcript_rows(ruling))}

    def signed(digest: bytes, *, purpose: str = "verdict", of: Ruling = good) -> Row:
        return ruled(replace(of, signed=(4, purpose, digest)))

    def changed(change: Callable[[Row], object], *, of: Ruling = good, place: int = 5) -> Row:
        rows = transcript_rows(of)
        change(rows[place])
        return {"line": place + 1, "text": _text(rows)}

    stranger = [seat.hex() for seat in _seats([STRANGER])]
    return {
        "too few verdicts": ruled(replace(good, signers=(0, 2, 3))),
        "no verdict": ruled(replace(good, signers=())),
        "too few parties in the set": ruled(Ruling((0, 2, 3), (0, 2, 3))),
        "too few in the set, a signer outside it": ruled(Ruling((0, 2, 3), (0, 2, 3, 4))),
        "a signer twice in place of another": ruled(replace(good, signers=(0, 2, 3, 3))),
        "a signer twice": ruled(replace(good, signers=(0, 2, 3, 4, 4))),
        "a signer outside the set": ruled(replace(good, signers=(0, 1, 2, 3))),
        "one signer more, outside the set": ruled(replace(good, signers=(0, 1, 2, 3, 4))),
        "a stranger among the signers": ruled(replace(good, signers=(0, 2, 3, STRANGER))),
        "one signer more, a stranger": ruled(replace(good, signers=(0, 2, 3, 4, STRANGER))),
        "signers in another order": ruled(replace(good, signers=(0, 3, 2, 4))),
        "a signature over another verdict": signed(closing),
        "a signature over another set": signed(_verdict_digest(plan, range(PARTIES))),
        "a signature over a verdict on another plan": signed(
            _verdict_digest(other, good.survivors)
        ),
        "a signature for another purpose": signed(verdict, purpose="proposal"),
        "one signature more, over another verdict": signed(closing, of=MORE),
        "a verdict on another plan": ruled(replace(good, plan=other)),
        "another digest beside a signature": ruled(replace(good, shown=(4, closing))),
        "a verdict's signature changed": changed(
            lambda row: row["signatures"][0].update(signature="00" * 64)
        ),
        "two verdicts' signatures swapped": changed(lambda row: row["signatures"].reverse()),
        "a stranger in the set": ruled(Ruling((0, 2, 3, 4, STRANGER), (0, 2, 3, 4))),
        "a party twice in the set": ruled(Ruling((0, 2, 3, 4, 4), (0, 2, 3, 4))),
        "the set in another order": ruled(Ruling((0, 3, 2, 4), (0, 2, 3, 4))),
        "the set emptied": changed(lambda row: row["survivors"].clear()),
        "a party left out of the set": changed(lambda row: row["survivors"].pop()),
        "a stranger added to the set": changed(lambda row: row["survivors"].extend(stranger)),
        "the set in capitals": changed(
            lambda row: row.update(survivors=[one.upper() for one in row["survivors"]])
        ),
        "without its set": changed(lambda row: row.pop("survivors")),
        "a set in a plan's line": changed(lambda row: row.update(survivors=[]), place=4),
        "a closed plan with too few verdicts": ruled(replace(CLOSED, signers=(0, 1, 2))),
        "a closed plan with a signer twice": ruled(replace(CLOSED, signers=(0, 1, 2, 2))),
        "a closed plan with a stranger's verdict": ruled(
            replace(CLOSED, signers=(0, 1, 2, STRANGER))
        ),
        "a closed plan with a signature over a set": signed(verdict, of=CLOSED),
        "a closed plan with a signature over another plan": signed(
            _verdict_digest(other, ()), of=CLOSED
        ),
        "another plan closed": ruled(replace(CLOSED, plan=other)),
        "a closed plan with a set": changed(
            lambda row: row.update(survivors=[one.hex() for one in _seats(good.survivors)]),
            of=CLOSED,
        ),
    }


def _reordered() -> Row:
    rows, masked = transcript_rows(), transcript_rows(*MASKED)

    def order(line: int, *places: int, of: list[Row] = rows) -> Row:
        return {"line": line, "text": _text([of[place] for place in places])}

    return {
        "two plans swapped": order(5, 0, 1, 2, 3, 6, 5, 4, 7, 8),
        "two settlements swapped": order(6, 0, 1, 2, 3, 4, 7, 6, 5, 8),
        "two batches swapped": order(5, 0, 1, 2, 3, 6, 7, 4, 5, 8),
        "a settlement before its plan": order(5, 0, 1, 2, 3, 5, 4, 6, 7, 8),
        "the setup before the run record": order(2, 0, 2, 1, 3, 4, 5, 6, 7, 8),
        "a plan and its settlement dropped": order(7, 0, 1, 2, 3, 4, 5, 8),
        "a settlement dropped": order(6, 0, 1, 2, 3, 4, 6, 7, 8),
        "the setup dropped": order(3, 0, 1, 3, 4, 5, 6, 7, 8),
        "the setup's heads dropped": order(4, 0, 1, 2, 4, 5, 6, 7, 8),
        "a verdict dropped": order(6, 0, 1, 2, 3, 4, 6, 7, 8, 9, 10, of=masked),
        "a verdict after its settlement": order(6, 0, 1, 2, 3, 4, 6, 5, 7, 8, 9, 10, of=masked),
        "a verdict before its plan": order(5, 0, 1, 2, 3, 5, 4, 6, 7, 8, 9, 10, of=masked),
        "a verdict twice": order(7, 0, 1, 2, 3, 4, 5, 5, 6, 7, 8, 9, 10, of=masked),
        "two verdicts swapped": order(6, 0, 1, 2, 3, 4, 8, 6, 7, 5, 9, 10, of=masked),
        "a line twice": order(6, 0, 1, 2, 3, 4, 4, 5, 6, 7, 8),
        "a batch twice": order(7, 0, 1, 2, 3, 4, 5, 4, 5, 6, 7, 8),
        "the last line twice": order(10, *range(9), 8),
    }


def _cut_short() -> Row:
    rows = transcript_rows()
    good = _text(rows)
    return {
        "last line cut off": {"line": 9, "text": _text(rows[:8])},
        "cut after the setup": {"line": 5, "text": _text(rows[:4])},
        "cut after a plan": {"line": 6, "text": _text(rows[:5])},
        "last line end cut off": {"line": 9, "text": good[:-1]},
        "cut in the middle of a line": {"line": 5, "text": _text(rows[:4]) + '{"digest": "'},
        "first line cut off": {"line": 1, "text": _text(rows[1:])},
        "empty": {"line": 1, "text": ""},
    }


def _written_otherwise() -> Row:
    rows = transcript_rows()
    good = _text(rows)
    fifth = json.dumps(rows[4], sort_keys=True)
    return {
        "an empty line at the end": {"line": 10, "text": good + "\n"},
        "other spaces": {"line": 1, "text": good.replace(", ", ",", 1)},
        "keys in another order": {
            "line": 5,
            "text": good.replace(fifth, json.dumps(dict(sorted(rows[4].items(), reverse=True)))),
        },
        "a key twice": {
            "line": 5,
            "text": good.replace(fifth, fifth[:-1] + ', "signatures": []}'),
        },
        "carriage returns": {"line": 1, "text": good.replace("\n", "\r\n")},
        "a byte order mark": {"line": 1, "text": "\ufeff" + good},
        "a list": {"line": 1, "text": json.dumps(rows) + "\n"},
    }


# Tasks of images ---------------------------------------------------------------------------------


def image_tasks() -> Row:
    gray, color = [some_bytes(f"gray {one}", 64) for one in range(3)], [some_bytes("color", 240)]
    facts = {
        "version": 1,
        "name": "finding",
        "data_set": "",
        "label": "finding",
        "classes": ["normal", "pneumonia"],
        "size": [8, 8, 1],
        "window": [0, 65535],
        "images": 2,
    }
    other = {"size": [8, 10, 3], "window": [-1000, 400], "images": 1, "classes": ["nein", "jä"]}

    def document(header: Row, *images: bytes, **written: Any) -> str:
        text = json.dumps(
            header, **{"sort_keys": True, "separators": (",", ":"), **written}
        ).encode()
        return (_IMAGE_TASK + len(text).to_bytes(4, "big") + text + b"".join(images)).hex()

    def good(header: Row, first: Sequence[bytes], pool: Sequence[bytes]) -> Row:
        size = b"".join(side.to_bytes(4, "big") for side in header["size"])

        def known(images: Sequence[bytes]) -> list[bytes]:
            return [hashlib.sha256(b"pate-fed image\n" + size + one).digest() for one in images]

        text = json.dumps(header, sort_keys=True, separators=(",", ":")).encode()
        task = hashlib.sha256(text + b"".join(known(first))).digest()
        asked = known(pool or first)
        whole = hashlib.sha256(b"pate-fed pool of rows\n" + task + b"".join(asked)).digest()
        return {
            "document": document(header, *first, *pool),
            "task": task.hex(),
            "queries": [one.hex() for one in asked],
            "pool": whole.hex(),
        }

    first = gray[:2]
    true = document(facts, *first)
    head = len(_IMAGE_TASK)
    return {
        "what": "tasks of images with a pool, and documents that must be refused",
        "good": {
            "its first pool": good(facts, first, []),
            "another pool": good(facts, first, gray[2:]),
            "color, another data set": good({**facts, **other, "data_set": "scans"}, color, []),
        },
        "spoiled": {
            "empty": "",
            "the first line alone": _IMAGE_TASK.hex(),
            "a header longer than the document": true[: 2 * head]
            + "0003ffff"
            + true[2 * head + 8 :],
            "a pixel less": true[:-2],
            "a pixel more": true + "00",
            "no image": document({**facts, "images": 0}),
            "more images than pixels": document({**facts, "images": 3}, *first),
            "a million images": document({**facts, "images": 2**20}, *first),
            "a negative count": document({**facts, "images": -1}, *first),
            "a count that is true": document({**facts, "images": True}, first[0]),
            "a broken count": document({**facts, "images": 2.0}, *first),
            "seven pixels high": document(
                {**facts, "size": [7, 8, 1]}, *(one[8:] for one in first)
            ),
            "two channels": document({**facts, "size": [8, 4, 2]}, *first),
            "huge sides": document({**facts, "size": [2**31, 2**31, 1]}, *first),
            "an axis less": document({**facts, "size": [8, 8]}, *first),
            "an empty window": document({**facts, "window": [5, 5]}, *first),
            "a window of 17 bits": document({**facts, "window": [0, 65536]}, *first),
            "another version": document({**facts, "version": 2}, *first),
            "one class": document({**facts, "classes": ["normal"]}, *first),
            "a class twice": document({**facts, "classes": ["a", "a"]}, *first),
            "a class twice, as a number": document({**facts, "classes": ["1", "1.0"]}, *first),
            "a class called as a missing cell": document({**facts, "classes": ["a", "NA"]}, *first),
            "a name with a line feed": document({**facts, "name": "a\nb"}, *first),
            "no label": document({**facts, "label": ""}, *first),
            "a path as data set": document({**facts, "data_set": "../x"}, *first),
            "a key more": document({**facts, "file": "x"}, *first),
            "a key less": document({k: v for k, v in facts.items() if k != "window"}, *first),
            "blanks": document(facts, *first, separators=(", ", ": ")),
            "keys in another order": document(facts, *first, sort_keys=False),
            "a letter that is not escaped": document(
                {**facts, "classes": ["nein", "jä"]}, *first, ensure_ascii=False
            ),
            "the first pool again": document(facts, *first, *first),
        },
    }


_IMAGE_TASK = b"pate-fed image task\n"


VECTORS: dict[str, Callable[[], Row]] = {
    "image_tasks": image_tasks,
    "packets": packets,
    "masked_vectors": masked_vectors,
    "written_transcripts": written_transcripts,
}
"""What writes each file, by its name without `.json`; the envelopes, which are random, aside."""


def main() -> None:
    missing = not (FOLDER / "envelopes.json").exists()
    write_vectors(VECTORS | ({"envelopes": envelopes} if missing else {}))


if __name__ == "__main__":
    main()
