"""Writes vectors of whole formats: packets, y's, envelopes, written transcripts.

From second implementations only, as `make_protocol_vectors`. Envelopes are drawn at random, since
ML-KEM is: they are made where their file is missing, and checked by the second implementation.
Run from the repository root: ``python -m tests.support.make_format_vectors``.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable
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


def transcript_rows(*, masked: bool = False) -> list[Row]:
    coordinator = _key("coordinator")
    parties = sorted((_key(f"party {place}") for place in range(PARTIES)), key=_fingerprint)
    keys = b"".join(map(_public, (coordinator, *parties)))
    named = hashlib.sha256(b"pate-fed/1/transcript identities\0" + keys).digest()
    rows: list[Row] = [
        {
            "kind": "identities",
            "version": 1,
            "coordinator": _public(coordinator).hex(),
            "parties": [_public(party).hex() for party in parties],
            "signature": _sign(coordinator, "transcript identities", named),
        }
    ]
    head = hashlib.sha256(b"pate-fed/1/transcript\0").digest()
    run = some_bytes("run record")

    def add(kind: str, digest: bytes, signatures: list[Row]) -> None:
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
            fields = cbor([run, _fingerprint(party), *told, counter])
            digest = _digest(b"\x83\x01" + bytes([number]) + fields)
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
        by_coordinator("plan", some_bytes(f"plan {batch}"))
        if masked:
            by_coordinator("survivor set", some_bytes(f"survivor set {batch}"))
        by_coordinator("settlement", some_bytes(f"settlement {batch}"))
    heads("closing", 14, "head statement", 2, [head, 2])
    return rows


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
            "masked": _text(transcript_rows(masked=True)),
            "three of five heads": _heard(0, 2, 3),
        },
        "spoiled": {
            **_edited(),
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
    rows, masked = transcript_rows(), transcript_rows(masked=True)

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
        "another version": changed(0, lambda row: row.update(version=2)),
        "an extra field": changed(4, lambda row: row.update(extra=1)),
        "a field is missing": changed(4, lambda row: row.pop("head_signature")),
        "digest of 31 bytes": changed(4, lambda row: row.update(digest=row["digest"][2:])),
        "digest in capitals": changed(4, lambda row: row.update(digest=row["digest"].upper())),
    }


def _reordered() -> Row:
    rows, masked = transcript_rows(), transcript_rows(masked=True)

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
        "a survivor set dropped": order(6, 0, 1, 2, 3, 4, 6, 7, 8, 9, 10, of=masked),
        "a survivor set after its settlement": order(
            6, 0, 1, 2, 3, 4, 6, 5, 7, 8, 9, 10, of=masked
        ),
        "two survivor sets swapped": order(6, 0, 1, 2, 3, 4, 8, 6, 7, 5, 9, 10, of=masked),
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


VECTORS: dict[str, Callable[[], Row]] = {
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
