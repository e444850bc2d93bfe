"""A second reader, written from the wire format's page, opens runs that our two ends made."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from pate_fed.terms import BatchTerms, RunTerms
from protocols import wire
from protocols.additive import AdditiveSum
from protocols.envelope import SealingKey
from protocols.errors import BadSignatureError
from protocols.masked import MaskedSum
from protocols.messages import (
    Confirmations,
    Dealing,
    EnvelopeBundle,
    KeyStatement,
    MaskedVector,
    Ready,
    Reveal,
    Settlement,
    SetupClosing,
    ShareBundle,
    Verdict,
    VerdictMacs,
)
from protocols.secure_sum import SecureSum
from protocols.suites import SUITE_X25519
from protocols.values import encode_value
from protocols.wire import Signed
from tests.support.make_terms_vectors import RUN_TERMS
from tests.support.markers import sampled
from tests.support.reference_frames import Refused
from tests.support.reference_run import RunReader
from tests.support.rounds import MemoryRun

QUERIES, CLASSES = 2, 3
TERMS = {"additive": "confident", "masked": "gnmax, noise at the parties"}
BY_TYPE = {
    "KeyStatement": "statements",
    "EnvelopeBundle": "envelopes_to",
    "Confirmations": "confirmations",
    "SetupClosing": "closings",
    "Ready": "readies",
    "MaskedVector": "vectors",
    "ShareBundle": "bundles",
    "Verdict": "verdicts",
    "VerdictMacs": "macs_to",
    "Reveal": "reveals",
}
BATCH = ("vectors", "bundles", "verdicts", "macs_to", "reveals")
RUNS = [
    pytest.param(AdditiveSum, 3, None, id="additive"),
    pytest.param(MaskedSum, 5, None, id="masked, all survive"),
    pytest.param(MaskedSum, 5, 0, id="masked, the first seat lost"),
    pytest.param(MaskedSum, 5, 3, id="masked, a later seat lost"),
]


class Recorder:
    """Every frame of a run, and the sealing keys of its parties."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.frames: list[tuple[bytes | None, bytes]] = []
        self.sealing: dict[bytes, bytes] = {}

        def sealing_key(suite: str) -> SealingKey:
            key = SealingKey(suite)
            private = key._private_key
            assert isinstance(private, X25519PrivateKey)
            self.sealing[key.public_bytes] = private.private_bytes_raw()
            return key

        monkeypatch.setattr("protocols.rounds.setup.at_party.SealingKey", sealing_key)

    def take(self, stage: str, receiver: bytes | None, frame: bytes) -> bytes:
        self.frames.append((receiver, frame))
        return frame

    def row(self, run: MemoryRun) -> dict[str, Any]:
        """The frames as a vector has them: of the computed values, none."""
        seats = run.coordinator.seats
        found: dict[str, dict[str, str]] = {name: {} for name in BY_TYPE.values()}
        newest: dict[str, str] = {}
        for receiver, frame in self.frames:
            message = wire.decode(frame).message
            newest[type(message).__name__] = frame.hex()
            owner = self._owner(run, wire.decode(frame), receiver=receiver)
            if owner is not None:
                found[BY_TYPE[type(message).__name__]][str(seats.index(owner))] = frame.hex()
        in_order = {name: [table[seat] for seat in sorted(table)] for name, table in found.items()}
        return {
            "coordinator": {"identity_private": run.coordinator_identity.private_bytes.hex()},
            "parties": [{"sealing_private": self._sealing_of(run, seat)} for seat in seats],
            "setup": {"offer": newest["RunOffer"], "record": newest["RunRecord"], **in_order},
            "batch": {
                "plan": newest["Plan"],
                "proposal": newest.get("SetProposal", ""),
                **{name: found[name] for name in BATCH},
            },
        }

    def _owner(self, run: MemoryRun, signed: Signed, *, receiver: bytes | None) -> bytes | None:
        """Whose frame it is in a vector: its sender's, or who got envelopes."""
        message = signed.message
        match message:
            case KeyStatement():
                return _fingerprint(run, message)
            case EnvelopeBundle() | SetupClosing() | VerdictMacs():
                return receiver
            case ShareBundle() if receiver is None:
                return wire.expect(wire.decode(message.dealings[0]), Dealing).sender
            case Verdict():
                return _signer(run, signed)
            case Confirmations() | Ready() | MaskedVector() | Reveal():
                return message.sender
        return None

    def _sealing_of(self, run: MemoryRun, seat: bytes) -> str:
        messages = [wire.decode(frame).message for _, frame in self.frames]
        statements = [message for message in messages if isinstance(message, KeyStatement)]
        (statement,) = [one for one in statements if _fingerprint(run, one) == seat]
        return self.sealing[statement.sealing_key].hex()


def _fingerprint(run: MemoryRun, statement: KeyStatement) -> bytes:
    keys = {identity.public.key: fp for fp, identity in run.identities.items()}
    return keys[statement.identity_key]


def _signer(run: MemoryRun, signed: Signed) -> bytes:
    """Who signed a message that names no sender."""
    for fingerprint, identity in run.identities.items():
        with suppress(BadSignatureError):
            signed.verify(identity.public)
            return fingerprint
    raise AssertionError("a verdict must be a party's")


def recorded(
    form: type[SecureSum],
    parties: int,
    lost: int | None,
    monkeypatch: pytest.MonkeyPatch,
    *,
    reveals: bool = True,
) -> tuple[MemoryRun, dict[str, Any], dict[int, list[int]]]:
    """A run, its frames, and the vectors in the sum that our coordinator opened if it reveals."""
    recorder = Recorder(monkeypatch)
    run = MemoryRun(parties, form=form, suite=SUITE_X25519, tamper=recorder.take)
    terms = RunTerms.from_record(RUN_TERMS[TERMS[form.name]])
    run.set_up(terms=encode_value(terms.as_record()))
    batch = encode_value(BatchTerms(terms, (7, 2)).as_record())
    vectors = np.random.default_rng(6).integers(-90, 10, size=(parties, QUERIES * CLASSES))
    plan = run.open_plan(QUERIES * CLASSES, terms=batch)
    for seat, fingerprint in enumerate(run.coordinator.seats):
        if seat != lost:
            run.to_party("plan", fingerprint, plan)
            frames = list(run.parties[fingerprint].contribute(vectors[seat]))
            run.to_coordinator("vector", fingerprint, frames)
    summed = {seat: vectors[seat].tolist() for seat in range(parties) if seat != lost}
    if reveals:
        if run.form.survives_dropouts:
            run.reveal()
        assert run.coordinator.batch.open_total().tolist() == added(summed)
    return run, recorder.row(run), summed


def added(vectors: dict[int, list[int]]) -> list[int]:
    return [sum(column) for column in zip(*vectors.values(), strict=True)]


@sampled()
@pytest.mark.parametrize(("form", "parties", "lost"), RUNS)
def test_a_second_reader_opens_what_our_ends_sent(
    form: type[SecureSum], parties: int, lost: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, row, vectors = recorded(form, parties, lost, monkeypatch)
    reader = RunReader(row)
    assert reader.run_id == next(iter(run.parties.values())).run_id
    assert reader.plan_digest == run.coordinator.open_plan.digest
    assert reader.opened_sum() == added(vectors)
    assert {seat: reader.vector_of(seat) for seat in reader.ys} == vectors
    frame = run.coordinator.batch.settle(released=True, result=b"")
    settlement = wire.expect(wire.decode(frame), Settlement)
    for seat in vectors:
        entry = [reader.contribution(seat)]
        assert reader.settled(frame, seat, entries=entry, agreed=sorted(vectors)) == sorted(vectors)
    assert reader.head_after(frame) == run.coordinator.transcript.head
    entries = {seat: entry for seat, entry in enumerate(settlement.contributions) if entry}
    assert entries == {seat: reader.contribution(seat) for seat in vectors}
    assert any(number < 0 for number in reader.opened_sum())


@sampled()
@pytest.mark.parametrize("lost", [0, 3])
def test_what_is_opened_are_self_masks_and_keys_with_the_lost(
    lost: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, row, vectors = recorded(MaskedSum, 5, lost, monkeypatch)
    reader = RunReader(row)
    opened = reader.opened_secrets()
    assert {dealer: set(secrets) for dealer, secrets in opened.items()} == {
        dealer: {dealer, lost} for dealer in vectors
    }
    for dealer, secrets in opened.items():
        assert secrets[lost] == reader.stream_key(dealer, lost)


@sampled()
@pytest.mark.parametrize("lost", [None, 0, 3])
def test_a_second_reader_finds_the_plan_closed_that_our_ends_closed(
    lost: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, row, _ = recorded(MaskedSum, 5, lost, monkeypatch, reveals=False)
    run.agree(run.coordinator.batch.propose_closing())
    assert run.coordinator.batch.certify() == {}
    frame = run.coordinator.batch.settle(released=False, result=b"")
    certificate = wire.expect(wire.decode(frame), Settlement).certificate
    reader = RunReader(row)
    assert reader.certified(certificate) == []
    assert reader.head_after(frame) == run.coordinator.transcript.head
    for seat, fingerprint in enumerate(run.coordinator.seats):
        entries = [] if seat == lost else [reader.contribution(seat, without_reveal=True)]
        assert reader.settled(frame, seat, entries=entries) is None
        run.to_party("settlement", fingerprint, frame)
        assert run.parties[fingerprint].transcript.head == reader.head_after(frame)


def test_a_second_reader_notices_frames_of_another_run(monkeypatch: pytest.MonkeyPatch) -> None:
    _, one, _ = recorded(MaskedSum, 5, None, monkeypatch)
    _, other, _ = recorded(MaskedSum, 5, None, monkeypatch)
    for name in ("record", "envelopes_to", "confirmations", "closings", "readies"):
        mixed = {**one, "setup": {**one["setup"], name: other["setup"][name]}}
        with pytest.raises(Refused):
            RunReader(mixed)
    mixed = {**one, "batch": {**one["batch"], "plan": other["batch"]["plan"]}}
    with pytest.raises(Refused):
        RunReader(mixed)
    for name in BATCH:
        mixed = {**one, "batch": {**one["batch"], name: other["batch"][name]}}
        with pytest.raises(Refused):
            RunReader(mixed).opened_sum()
