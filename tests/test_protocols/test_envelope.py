from __future__ import annotations

import pytest

from protocols.envelope import SealingKey, seal
from protocols.errors import BrokenEnvelopeError, MalformedMessageError

RUN, ANN, BOB, EVE = (bytes([i]) * 32 for i in range(4))
HALF = bytes(range(32))


def sealed_to(key: SealingKey) -> bytes:
    return seal(HALF, key.public_bytes, run_id=RUN, sender=ANN, receiver=BOB)


def test_an_envelope_opens_where_it_was_sealed_to() -> None:
    key = SealingKey()
    assert key.open(sealed_to(key), run_id=RUN, sender=ANN, receiver=BOB) == HALF


@pytest.mark.parametrize(
    ("run_id", "sender", "receiver"),
    [
        pytest.param(EVE, ANN, BOB, id="another run"),
        pytest.param(RUN, EVE, BOB, id="another sender"),
        pytest.param(RUN, ANN, EVE, id="another receiver"),
        pytest.param(RUN, BOB, ANN, id="the other way"),
    ],
)
def test_an_envelope_opens_nowhere_else(run_id: bytes, sender: bytes, receiver: bytes) -> None:
    key = SealingKey()
    with pytest.raises(BrokenEnvelopeError):
        key.open(sealed_to(key), run_id=run_id, sender=sender, receiver=receiver)


def test_an_envelope_does_not_open_with_another_key() -> None:
    with pytest.raises(BrokenEnvelopeError):
        SealingKey().open(sealed_to(SealingKey()), run_id=RUN, sender=ANN, receiver=BOB)


def test_every_changed_byte_breaks_an_envelope() -> None:
    key = SealingKey()
    sealed = sealed_to(key)
    for place in range(len(sealed)):
        changed = bytearray(sealed)
        changed[place] ^= 1
        with pytest.raises(BrokenEnvelopeError):
            key.open(bytes(changed), run_id=RUN, sender=ANN, receiver=BOB)


@pytest.mark.parametrize("size", [0, 1, 31, 32, 33, 47])
def test_an_envelope_cut_short_does_not_open(size: int) -> None:
    key = SealingKey()
    with pytest.raises(BrokenEnvelopeError):
        key.open(sealed_to(key)[:size], run_id=RUN, sender=ANN, receiver=BOB)


@pytest.mark.parametrize(
    "public",
    [
        pytest.param(bytes(32), id="zero"),
        pytest.param(b"\x01" + bytes(31), id="one"),
        pytest.param(
            bytes.fromhex("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"),
            id="order eight",
        ),
        pytest.param(bytes.fromhex("ed" + "ff" * 30 + "7f"), id="zero, not reduced"),
        pytest.param(bytes(31), id="31 bytes"),
        pytest.param(b"", id="empty"),
    ],
)
def test_a_weak_sealing_key_is_refused(public: bytes) -> None:
    # With a point of small order anybody could open the envelope.
    with pytest.raises(MalformedMessageError):
        seal(HALF, public, run_id=RUN, sender=ANN, receiver=BOB)


def test_two_envelopes_of_the_same_half_differ() -> None:
    key = SealingKey()
    assert sealed_to(key) != sealed_to(key)
    assert HALF not in sealed_to(key)


def test_a_sealing_key_shows_nothing() -> None:
    assert repr(SealingKey()) == str(SealingKey()) == "SealingKey()"
