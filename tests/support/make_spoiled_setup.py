"""Spoiled messages of the setup and of a plan, each named for what is spoiled, all to seat 0.

For `make_run_vectors`. Each is well formed and signed by the coordinator, unless its name says
otherwise: only its content is wrong, at that place of the run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from tests.support import reference_frames as frames
from tests.support.make_format_vectors import some_bytes
from tests.support.make_spoiled_shares import flipped
from tests.support.reference_crypto import hpke_seal_x25519
from tests.support.reference_frames import read_frame, write_frame

if TYPE_CHECKING:
    from tests.support.make_run_vectors import Run

OTHER = some_bytes("another")
_PEER = 1
"""The peer of seat 0 whose part is spoiled."""


def changed(frame: bytes, number: int, private: bytes, **fields: Any) -> bytes:
    """The same message with other fields, `f3=...` for the field in place 3, signed again."""
    values = list(read_frame(frame, number).fields)
    for name, value in fields.items():
        values[int(name[1:])] = value
    return write_frame(number, values, private)


def spoiled_records(run: Run, coordinator: bytes) -> dict[str, bytes]:
    def record(**fields: Any) -> bytes:
        return changed(run.record, frames.RECORD, coordinator, **fields)

    def with_peer(private: bytes = run.identities[_PEER], **fields: Any) -> bytes:
        said = changed(run.statements[_PEER], frames.STATEMENT, private, **fields)
        return record(f2=[run.statements[0], said, *run.statements[2:]])

    mine = read_frame(run.statements[0], frames.STATEMENT).fields
    return {
        "another offer": record(f0=OTHER),
        "another coordinator": record(f1=OTHER),
        "a party twice": record(f2=[run.statements[0], *run.statements[:2]]),
        "parties in another order": record(f2=run.statements[::-1]),
        "without the receiver": record(f2=run.statements[1:]),
        "two parties": record(f2=run.statements[:2]),
        "another form": record(f3="plain"),
        "another ring": record(f4=16),
        "another suite": record(f5="mlkem768-x25519-hkdf-sha256-aes-256-gcm"),
        "another expiry": record(f9=9_999),
        "simulated changed": record(f10=False),
        "a statement for another offer": with_peer(f0=OTHER),
        "a sealing key twice": with_peer(f2=mine[2]),
        "a sealing key of another suite": with_peer(f2=some_bytes("hybrid key", 1216)),
        "a statement of another role": with_peer(f4="coordinator"),
        "a statement of another expiry": with_peer(f5=9_999),
        "a statement signed by another": with_peer(private=run.identities[2]),
        "a party that nobody pinned": record(f2=_with_stranger(run)),
        "signed by a party": changed(run.record, frames.RECORD, run.identities[_PEER]),
        "signature changed": flipped(run.record, -1),
    }


def _with_stranger(run: Run) -> list[bytes]:
    private = some_bytes("a stranger's identity")
    fields = {"f1": frames.public_of(private), "f2": some_bytes("a stranger's sealing key")}
    said = changed(run.statements[_PEER], frames.STATEMENT, private, **fields)
    return sorted([*run.statements, said], key=_fingerprint)


def _fingerprint(statement: bytes) -> bytes:
    return frames.fingerprint(read_frame(statement, frames.STATEMENT).fields[1])


def spoiled_envelopes(run: Run) -> dict[str, bytes]:
    true = read_frame(run.envelopes_to(0), frames.ENVELOPES).fields[1]
    private = run.identities[_PEER]

    def bundle(envelopes: list[bytes], *, run_id: bytes = run.run_id) -> bytes:
        return write_frame(frames.ENVELOPES, [run_id, envelopes])

    def first(*, by: bytes = private, **fields: Any) -> bytes:
        return bundle([changed(true[0], frames.ENVELOPE, by, **fields), *true[1:]])

    def sealed(half: bytes, *, told: bytes = run.run_id) -> bytes:
        key = X25519PrivateKey.from_private_bytes(run.sealing[0]).public_key().public_bytes_raw()
        ends = run.fingerprints[_PEER] + run.fingerprints[0]
        info = b"pate-fed/1/envelope\0pair root\0" + told + ends
        return hpke_seal_x25519(half, key, info=info, ephemeral=some_bytes("ephemeral"))

    return {
        "one is missing": bundle(true[:-1]),
        "one twice": bundle([true[0], true[0]]),
        "another run": bundle(true, run_id=OTHER),
        "an envelope of another run": first(f0=OTHER),
        "an envelope to another party": first(f2=run.fingerprints[2]),
        "an envelope by a stranger": first(f1=OTHER),
        "an envelope signed by another": first(by=run.identities[2]),
        "ciphertext changed": first(f3=flipped(read_frame(true[0], frames.ENVELOPE).fields[3], -1)),
        "a half of 31 bytes": first(f3=sealed(bytes(31))),
        "a half sealed for another run": first(f3=sealed(run.half(_PEER, 0), told=OTHER)),
    }


def spoiled_closings(run: Run, coordinator: bytes) -> dict[str, bytes]:
    _, macs, digests = read_frame(run.closings[0], frames.SETUP_CLOSING).fields

    def closing(private: bytes = coordinator, **fields: Any) -> bytes:
        return changed(run.closings[0], frames.SETUP_CLOSING, private, **fields)

    return {
        "another run": closing(f0=OTHER),
        "a MAC changed": closing(f1=[flipped(macs[0], 0), *macs[1:]]),
        "two MACs swapped": closing(f1=macs[::-1]),
        "a MAC is missing": closing(f1=macs[:-1]),
        "its own MAC for a peer": closing(f1=run.macs[0]),
        "digest of its own confirmations changed": closing(f2=[OTHER, *digests[1:]]),
        "a digest is missing": closing(f2=digests[:-1]),
        "signed by a party": closing(private=run.identities[_PEER]),
    }


def spoiled_plans(run: Run, coordinator: bytes) -> dict[str, bytes]:
    def plan(private: bytes = coordinator, **fields: Any) -> bytes:
        return changed(run.plan, frames.PLAN, private, **fields)

    return {
        "another run": plan(f0=OTHER),
        "epoch 0": plan(f1=0),
        "an epoch 65 ahead": plan(f1=65),
        "another head": plan(f3=OTHER),
        "head of an empty transcript": plan(f3=frames.EMPTY_HEAD),
        "expires after its run": plan(f5=10_001),
        "expired": plan(f5=999),
        "signed by a party": plan(private=run.identities[_PEER]),
        "signature changed": flipped(run.plan, -1),
        "signature of another message": run.plan[:-64] + run.record[-64:],
    }
