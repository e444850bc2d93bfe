from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from protocols.envelope import SealingKey, seal, sealing_key_bytes
from protocols.errors import BrokenEnvelopeError, MalformedMessageError, SuiteError
from protocols.messages import Envelope, KeyStatement
from protocols.suites import DEFAULT_SUITE, SUITE_MLKEM768_X25519, SUITE_X25519, SUITES
from tests.support.reference_crypto import hpke_open_hybrid, hpke_open_x25519

RUN, ANN, BOB, EVE = (bytes([i]) * 32 for i in range(4))
HALF = bytes(range(32))
LATTICE_SEED, CURVE_SEED = b"lattice " * 8, b"a curve " * 4
INFO = b"pate-fed/1/envelope\0pair root\0" + RUN + ANN + BOB

every_suite = pytest.mark.parametrize("suite", SUITES)


def test_the_default_suite_is_named_first() -> None:
    """The command line's help says so."""
    assert SUITES[0] == DEFAULT_SUITE


def sealed_to(key: SealingKey) -> bytes:
    return seal(HALF, key.public_bytes, suite=key.suite, run_id=RUN, sender=ANN, receiver=BOB)


@every_suite
def test_an_envelope_opens_where_it_was_sealed_to(suite: str) -> None:
    key = SealingKey(suite)
    assert key.open(sealed_to(key), run_id=RUN, sender=ANN, receiver=BOB) == HALF


def test_the_default_holds_against_a_quantum_computer() -> None:
    assert DEFAULT_SUITE == SUITE_MLKEM768_X25519 == SealingKey().suite
    key = SealingKey()
    sealed = seal(HALF, key.public_bytes, run_id=RUN, sender=ANN, receiver=BOB)
    assert key.open(sealed, run_id=RUN, sender=ANN, receiver=BOB) == HALF


@pytest.mark.parametrize(
    ("suite", "key_bytes", "overhead"),
    [
        pytest.param(SUITE_X25519, 32, 48, id="X25519"),
        # 1184 of ML-KEM-768 and 32; a ciphertext of 1088, a key of 32, a tag of 16.
        pytest.param(SUITE_MLKEM768_X25519, 1216, 1136, id="hybrid"),
    ],
)
def test_sizes_are_those_of_the_standards(suite: str, key_bytes: int, overhead: int) -> None:
    key = SealingKey(suite)
    assert len(key.public_bytes) == sealing_key_bytes(suite) == key_bytes
    assert len(sealed_to(key)) == len(HALF) + overhead
    assert KeyStatement(RUN, ANN, key.public_bytes, RUN, "party", 1, 0)
    assert Envelope(RUN, ANN, BOB, sealed_to(key))


def test_a_second_implementation_opens_an_x25519_envelope() -> None:
    public = X25519PrivateKey.from_private_bytes(CURVE_SEED).public_key().public_bytes_raw()
    sealed = seal(HALF, public, suite=SUITE_X25519, run_id=RUN, sender=ANN, receiver=BOB)
    assert hpke_open_x25519(sealed, CURVE_SEED, info=INFO) == HALF


def test_a_second_implementation_opens_a_hybrid_envelope() -> None:
    lattice = MLKEM768PrivateKey.from_seed_bytes(LATTICE_SEED).public_key().public_bytes_raw()
    curve = X25519PrivateKey.from_private_bytes(CURVE_SEED).public_key().public_bytes_raw()
    sealed = seal(HALF, lattice + curve, run_id=RUN, sender=ANN, receiver=BOB)
    assert hpke_open_hybrid(sealed, LATTICE_SEED, CURVE_SEED, info=INFO) == HALF


@every_suite
def test_an_envelope_does_not_open_with_another_key(suite: str) -> None:
    with pytest.raises(BrokenEnvelopeError):
        SealingKey(suite).open(sealed_to(SealingKey(suite)), run_id=RUN, sender=ANN, receiver=BOB)


@every_suite
def test_an_envelope_of_one_suite_does_not_open_under_the_other(suite: str) -> None:
    (other,) = {*SUITES} - {suite}
    with pytest.raises(BrokenEnvelopeError):
        SealingKey(other).open(sealed_to(SealingKey(suite)), run_id=RUN, sender=ANN, receiver=BOB)


@every_suite
def test_a_key_of_one_suite_is_no_key_of_the_other(suite: str) -> None:
    (other,) = {*SUITES} - {suite}
    with pytest.raises(SuiteError):
        seal(
            HALF,
            SealingKey(other).public_bytes,
            suite=suite,
            run_id=RUN,
            sender=ANN,
            receiver=BOB,
        )


def test_a_suite_that_nobody_knows_is_an_error() -> None:
    with pytest.raises(SuiteError):
        SealingKey("rot13")
    with pytest.raises(SuiteError):
        seal(HALF, bytes(32), suite="", run_id=RUN, sender=ANN, receiver=BOB)


@every_suite
def test_every_changed_byte_breaks_an_envelope(suite: str) -> None:
    key = SealingKey(suite)
    sealed = sealed_to(key)
    for place in range(len(sealed)):
        changed = bytearray(sealed)
        changed[place] ^= 1
        with pytest.raises(BrokenEnvelopeError):
            key.open(bytes(changed), run_id=RUN, sender=ANN, receiver=BOB)


def test_both_halves_of_a_hybrid_envelope_are_needed() -> None:
    """Who has one of the two private keys, the other broken one day or not, has nothing."""
    one, other = SealingKey(), SealingKey()
    mixed = one.public_bytes[:1184] + other.public_bytes[1184:]
    sealed = seal(HALF, mixed, run_id=RUN, sender=ANN, receiver=BOB)
    for key in (one, other):
        with pytest.raises(BrokenEnvelopeError):
            key.open(sealed, run_id=RUN, sender=ANN, receiver=BOB)


WEAK_POINTS = [
    pytest.param(bytes(32), id="zero"),
    pytest.param(b"\x01" + bytes(31), id="one"),
    pytest.param(
        bytes.fromhex("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"),
        id="order eight",
    ),
    pytest.param(bytes.fromhex("ed" + "ff" * 30 + "7f"), id="zero, not reduced"),
]


@pytest.mark.parametrize("point", WEAK_POINTS)
@every_suite
def test_a_weak_sealing_key_is_refused(suite: str, point: bytes) -> None:
    # With a point of small order anybody could open an envelope of X25519 alone.
    public = SealingKey(suite).public_bytes[:-32] + point
    with pytest.raises(MalformedMessageError):
        seal(HALF, public, suite=suite, run_id=RUN, sender=ANN, receiver=BOB)


def test_a_lattice_key_whose_numbers_are_not_reduced_is_refused() -> None:
    # FIPS 203, section 7.2: every coefficient must be below 3329.
    public = b"\xff" * 1152 + SealingKey().public_bytes[1152:]
    with pytest.raises(MalformedMessageError):
        seal(HALF, public, run_id=RUN, sender=ANN, receiver=BOB)


@every_suite
@pytest.mark.parametrize("change", [-1, 1])
def test_a_key_of_another_length_is_refused(suite: str, change: int) -> None:
    public = bytes(sealing_key_bytes(suite) + change)
    for key in (public, b""):
        with pytest.raises(SuiteError):
            seal(HALF, key, suite=suite, run_id=RUN, sender=ANN, receiver=BOB)


@every_suite
def test_two_envelopes_of_the_same_half_differ(suite: str) -> None:
    key = SealingKey(suite)
    assert sealed_to(key) != sealed_to(key)
    assert HALF not in sealed_to(key)


@every_suite
def test_a_sealing_key_shows_nothing(suite: str) -> None:
    key = SealingKey(suite)
    assert repr(key) == str(key) == f"SealingKey({suite})"
