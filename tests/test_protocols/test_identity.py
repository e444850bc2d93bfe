from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.errors import BadSignatureError, MalformedMessageError
from protocols.identity import PublicIdentity, SigningIdentity

ME, OTHER = SigningIdentity.generate(), SigningIdentity.generate()
DIGEST = bytes(range(32))


def test_a_signature_verifies_under_its_own_key_purpose_and_digest() -> None:
    signature = ME.sign(purpose="plan", digest=DIGEST)
    assert len(signature) == 64
    ME.public.verify(purpose="plan", digest=DIGEST, signature=signature)


@pytest.mark.parametrize(
    ("signer", "purpose", "digest"),
    [
        pytest.param(OTHER, "plan", DIGEST, id="another key"),
        pytest.param(ME, "ready", DIGEST, id="another purpose"),
        pytest.param(ME, "", DIGEST, id="no purpose"),
        pytest.param(ME, "plan", DIGEST[::-1], id="another digest"),
        pytest.param(ME, "plan\0", DIGEST, id="a longer purpose"),
    ],
)
def test_a_signature_is_worth_nothing_elsewhere(
    signer: SigningIdentity, purpose: str, digest: bytes
) -> None:
    signature = signer.sign(purpose=purpose, digest=digest)
    with pytest.raises(BadSignatureError):
        ME.public.verify(purpose="plan", digest=DIGEST, signature=signature)


@given(st.binary(max_size=80))
def test_random_bytes_are_no_signature(signature: bytes) -> None:
    with pytest.raises(BadSignatureError):
        ME.public.verify(purpose="plan", digest=DIGEST, signature=signature)


@given(st.integers(0, 511))
def test_a_flipped_bit_breaks_a_signature(bit: int) -> None:
    signature = bytearray(ME.sign(purpose="plan", digest=DIGEST))
    signature[bit // 8] ^= 1 << bit % 8
    with pytest.raises(BadSignatureError):
        ME.public.verify(purpose="plan", digest=DIGEST, signature=bytes(signature))


def test_a_key_that_is_no_point_verifies_nothing() -> None:
    no_point = PublicIdentity(b"\x02" + bytes(30) + b"\xff")
    with pytest.raises(BadSignatureError):
        no_point.verify(purpose="plan", digest=DIGEST, signature=bytes(64))


@pytest.mark.parametrize("size", [0, 31, 33])
def test_an_identity_key_has_32_bytes(size: int) -> None:
    with pytest.raises(MalformedMessageError):
        PublicIdentity(bytes(size))


def test_a_fingerprint_is_the_hash_of_the_key_under_its_own_domain() -> None:
    expected = hashlib.sha256(b"pate-fed/1/identity\0" + ME.public.key).digest()
    assert ME.fingerprint == ME.public.fingerprint == expected
    assert ME.fingerprint != OTHER.fingerprint


def test_an_identity_shows_no_private_key() -> None:
    private = ME.private_key.private_bytes_raw()
    for text in (repr(ME), str(ME), f"{ME!r}"):
        assert private.hex() not in text
        assert text == f"SigningIdentity({ME.fingerprint.hex()[:16]})"
