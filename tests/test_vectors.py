"""Every test vector, good and spoiled, through the code that would meet it."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.hpke import MLKEM768X25519PrivateKey

from pate_fed.data.task import LearningTask
from pate_fed.errors import InvalidTaskError
from protocols import wire
from protocols.additive import AdditiveSum
from protocols.envelope import SealingKey
from protocols.errors import BrokenEnvelopeError, MalformedMessageError
from protocols.suites import SUITE_X25519, SUITES
from protocols.transcript_verifier import verify_transcript
from tests.support.make_vectors import VECTORS
from tests.support.markers import sampled
from tests.support.reference_crypto import hpke_open_hybrid, hpke_open_x25519
from tests.support.vectors import read_vectors

SUPPORT = Path(__file__).parent / "support"
PACKETS = read_vectors("packets")
MASKED = read_vectors("masked_vectors")
ENVELOPES = read_vectors("envelopes")
IMAGE_TASKS = read_vectors("image_tasks")
TRANSCRIPTS = read_vectors("written_transcripts")


def named(table: dict[str, Any]) -> list[Any]:
    return [pytest.param(value, id=name) for name, value in table.items()]


@sampled()
@pytest.mark.parametrize("name", sorted(VECTORS))
def test_vectors_are_what_the_second_implementations_write(name: str) -> None:
    # Where this fails: python -m tests.support.make_vectors
    assert read_vectors(name) == VECTORS[name]()


def test_second_implementations_import_nothing_of_what_they_test() -> None:
    ours = {"protocols", "pate_fed", "party", "coordinator", "cbor2", "numpy"}
    files = [*SUPPORT.glob("make_*vectors.py"), *SUPPORT.glob("reference_*.py")]
    files += SUPPORT.glob("make_spoiled_*.py")
    for file in files:
        tree = ast.parse(file.read_text(encoding="utf-8"))
        modules = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                modules |= {alias.name for alias in node.names}
        assert not {module.partition(".")[0] for module in modules} & ours, file.name
        inside = {module.split(".")[-1] for module in modules if module.startswith("tests.")}
        assert all(name.startswith(("make_", "reference_", "support")) for name in inside), (
            file.name
        )
    assert len(files) >= 13


# Packets ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("vector", named(PACKETS["good"]))
def test_a_good_packet_holds_its_frames(vector: dict[str, Any]) -> None:
    frames = [bytes.fromhex(frame) for frame in vector["frames"]]
    packet = bytes.fromhex(vector["packet"])
    assert wire.unpack(packet, max_bytes=1000) == frames
    assert wire.pack(frames) == packet


@pytest.mark.parametrize("packet", named(PACKETS["spoiled"]))
def test_a_spoiled_packet_is_malformed(packet: str) -> None:
    with pytest.raises(MalformedMessageError):
        wire.unpack(bytes.fromhex(packet), max_bytes=1000)


# y's -------------------------------------------------------------------------------------------


def test_each_party_writes_the_known_y_and_they_open_the_known_sum() -> None:
    form = AdditiveSum()
    keys = {tuple(map(int, name.split())): bytes.fromhex(key)
            for name, key in MASKED["pair_keys"].items()}  # fmt: skip
    total = form.empty_total(5)
    for seat, (vector, y) in enumerate(zip(MASKED["vectors"], MASKED["ys"], strict=True)):
        pair_keys = {
            peer: keys[min(seat, peer), max(seat, peer)] for peer in range(3) if peer != seat
        }
        words = form.shard(np.array(vector), seat=seat, pair_keys=pair_keys)
        assert words.tobytes().hex() == y
        form.merge(total, words)
    assert form.unshard(total).tolist() == MASKED["sum"]


# Envelopes -------------------------------------------------------------------------------------


def sealing_key(suite: str) -> SealingKey:
    """The vectors' private key, in the place of a fresh one."""
    curve = X25519PrivateKey.from_private_bytes(bytes.fromhex(ENVELOPES["x25519_private_key"]))
    seed = bytes.fromhex(ENVELOPES["mlkem768_private_seed"])
    key = SealingKey(suite)
    key._private_key = (
        curve
        if suite == SUITE_X25519
        else MLKEM768X25519PrivateKey(MLKEM768PrivateKey.from_seed_bytes(seed), curve)
    )
    return key


def opened(suite: str, sealed: str) -> bytes:
    return sealing_key(suite).open(
        bytes.fromhex(sealed),
        run_id=bytes.fromhex(ENVELOPES["run_id"]),
        sender=bytes.fromhex(ENVELOPES["sender"]),
        receiver=bytes.fromhex(ENVELOPES["receiver"]),
    )


def test_there_are_envelopes_of_every_suite() -> None:
    assert {*ENVELOPES["suites"]} == {*SUITES}


@pytest.mark.parametrize("suite", SUITES)
def test_a_known_envelope_opens_here_and_in_a_second_implementation(suite: str) -> None:
    sealed = ENVELOPES["suites"][suite]["sealed"]
    half = bytes.fromhex(ENVELOPES["plaintext"])
    private, info = (bytes.fromhex(ENVELOPES[n]) for n in ("x25519_private_key", "info"))
    seed = bytes.fromhex(ENVELOPES["mlkem768_private_seed"])
    assert opened(suite, sealed) == half
    if suite == SUITE_X25519:
        assert hpke_open_x25519(bytes.fromhex(sealed), private, info=info) == half
    else:
        assert hpke_open_hybrid(bytes.fromhex(sealed), seed, private, info=info) == half


@pytest.mark.parametrize(
    ("suite", "sealed"),
    [
        pytest.param(suite, sealed, id=f"{suite[:6]} {name}")
        for suite, table in ENVELOPES["suites"].items()
        for name, sealed in table["spoiled"].items()
    ],
)
def test_a_spoiled_envelope_does_not_open(suite: str, sealed: str) -> None:
    with pytest.raises(BrokenEnvelopeError):
        opened(suite, sealed)


# Written transcripts ---------------------------------------------------------------------------


@pytest.mark.parametrize("text", named(TRANSCRIPTS["good"]))
def test_the_known_transcripts_are_good(text: str) -> None:
    assert verify_transcript(text).is_good


@sampled()
@pytest.mark.parametrize("vector", named(TRANSCRIPTS["spoiled"]))
def test_a_spoiled_transcript_is_broken_at_its_line(vector: dict[str, Any]) -> None:
    assert verify_transcript(vector["text"]).line == vector["line"]


# Tasks of images ---------------------------------------------------------------------------------


@pytest.mark.parametrize("good", named(IMAGE_TASKS["good"]))
def test_a_task_of_images_is_read_known_and_written_alike(good: dict[str, Any]) -> None:
    document = bytes.fromhex(good["document"])
    task = LearningTask.from_bytes(document)
    assert task.digest.hex() == good["task"]
    assert [one.hex() for one in task.rows.digests] == good["queries"]
    assert task.pool.digest.hex() == good["pool"]
    assert task.to_bytes() == document


@pytest.mark.parametrize("document", named(IMAGE_TASKS["spoiled"]))
def test_a_spoiled_task_of_images_is_refused(document: str) -> None:
    with pytest.raises(InvalidTaskError):
        LearningTask.from_bytes(bytes.fromhex(document))
