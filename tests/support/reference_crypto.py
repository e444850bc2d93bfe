"""Second implementations, written from the standards: what the protocol's bytes are held against.

Slow and plain on purpose. Nothing here imports `protocols`.
"""

from __future__ import annotations

import hashlib
import hmac

from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey, MLKEM768PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM


def _xtime(value: int) -> int:
    return ((value << 1) ^ 0x11B if value & 0x80 else value << 1) & 0xFF


def _multiply(one: int, other: int) -> int:
    product = 0
    while other:
        if other & 1:
            product ^= one
        one, other = _xtime(one), other >> 1
    return product


def _substitution_box() -> list[int]:
    box = []
    for value in range(256):
        inverse = next((i for i in range(256) if _multiply(value, i) == 1), 0)
        rotated = inverse
        for _ in range(4):
            inverse = ((inverse << 1) | (inverse >> 7)) & 0xFF
            rotated ^= inverse
        box.append(rotated ^ 0x63)
    return box


_BOX = _substitution_box()


def _round_keys(key: bytes) -> list[list[int]]:
    """FIPS 197, section 5.2, for 256-bit keys: 15 round keys of 16 bytes."""
    words = [list(key[4 * i : 4 * i + 4]) for i in range(8)]
    constant = 1
    for i in range(8, 60):
        word = words[i - 1]
        if i % 8 == 0:
            word = [_BOX[byte] for byte in (*word[1:], word[0])]
            word[0] ^= constant
            constant = _xtime(constant)
        elif i % 8 == 4:
            word = [_BOX[byte] for byte in word]
        words.append([a ^ b for a, b in zip(words[i - 8], word, strict=True)])
    flat = [byte for word in words for byte in word]
    return [flat[16 * i : 16 * i + 16] for i in range(15)]


def aes256_block(key: bytes, block: bytes) -> bytes:
    """AES-256 of one block (FIPS 197, section 5.1)."""
    keys = _round_keys(key)
    state = [a ^ b for a, b in zip(block, keys[0], strict=True)]
    for number in range(1, 15):
        state = [_BOX[byte] for byte in state]
        state = [state[(i + 4 * (i % 4)) % 16] for i in range(16)]
        if number < 14:
            state = [
                _multiply(state[i], 2)
                ^ _multiply(state[i - i % 4 + (i + 1) % 4], 3)
                ^ state[i - i % 4 + (i + 2) % 4]
                ^ state[i - i % 4 + (i + 3) % 4]
                for i in range(16)
            ]
        state = [a ^ b for a, b in zip(state, keys[number], strict=True)]
    return bytes(state)


def counter_stream(key: bytes, length: int, *, first_block: int = 0) -> bytes:
    """AES-256 of the counter blocks 2, 3, ...; `first_block` skips ahead."""
    blocks = range(first_block + 2, first_block + 2 + -(-length // 16))
    return b"".join(aes256_block(key, block.to_bytes(16, "big")) for block in blocks)[:length]


def hkdf(secret: bytes, *, salt: bytes, info: bytes) -> bytes:
    """HKDF-SHA256 to 32 bytes (RFC 5869): one block of output."""
    extracted = hmac.new(salt or bytes(32), secret, hashlib.sha256).digest()
    return hmac.new(extracted, info + b"\x01", hashlib.sha256).digest()


# HPKE, RFC 9180, base mode, with HKDF-SHA256 (0x0001) and AES-256-GCM (0x0002) -----------------

KEM_X25519, KEM_MLKEM768_X25519 = 0x0020, 0x647A


def hpke_seal_x25519(plaintext: bytes, receiver: bytes, *, info: bytes, ephemeral: bytes) -> bytes:
    """Seal with DHKEM(X25519, HKDF-SHA256), by RFC 9180, with an ephemeral key that is given."""
    key = X25519PrivateKey.from_private_bytes(ephemeral)
    encapsulated = key.public_key().public_bytes_raw()
    shared = key.exchange(X25519PublicKey.from_public_bytes(receiver))
    secret = _dhkem_secret(shared, encapsulated + receiver)
    return encapsulated + _seal_base(secret, plaintext, kem=KEM_X25519, info=info)


def hpke_seal_hybrid(
    plaintext: bytes, lattice: bytes, curve: bytes, *, info: bytes, ephemeral: bytes
) -> bytes:
    """Seal with X-Wing; ML-KEM's part is drawn at random, the ephemeral X25519 key is given."""
    shared, to_lattice = MLKEM768PublicKey.from_public_bytes(lattice).encapsulate()
    key = X25519PrivateKey.from_private_bytes(ephemeral)
    to_curve = key.public_key().public_bytes_raw()
    exchanged = key.exchange(X25519PublicKey.from_public_bytes(curve))
    secret = _x_wing_secret(shared, exchanged, to_curve, curve)
    sealed = _seal_base(secret, plaintext, kem=KEM_MLKEM768_X25519, info=info)
    return to_lattice + to_curve + sealed


def hpke_open_x25519(sealed: bytes, private: bytes, *, info: bytes) -> bytes:
    """Open an envelope of DHKEM(X25519, HKDF-SHA256), by RFC 9180, sections 4.1 and 5.1."""
    key = X25519PrivateKey.from_private_bytes(private)
    encapsulated, ciphertext = sealed[:32], sealed[32:]
    shared = key.exchange(X25519PublicKey.from_public_bytes(encapsulated))
    secret = _dhkem_secret(shared, encapsulated + key.public_key().public_bytes_raw())
    return _open_base(secret, ciphertext, kem=KEM_X25519, info=info)


def hpke_open_hybrid(sealed: bytes, seed: bytes, private: bytes, *, info: bytes) -> bytes:
    """Open an envelope of the MLKEM768-X25519 KEM, which is X-Wing.

    Args:
        sealed: 1088 bytes of ML-KEM ciphertext, 32 of an X25519 key, then the AEAD's ciphertext.
        seed: Private seed of the ML-KEM-768 key, 64 bytes.
        private: X25519 private key, 32 bytes.
        info: HPKE's info.
    """
    lattice, curve = (
        MLKEM768PrivateKey.from_seed_bytes(seed),
        X25519PrivateKey.from_private_bytes(private),
    )
    to_lattice, to_curve, ciphertext = sealed[:1088], sealed[1088:1120], sealed[1120:]
    secret = _x_wing_secret(
        lattice.decapsulate(to_lattice),
        curve.exchange(X25519PublicKey.from_public_bytes(to_curve)),
        to_curve,
        curve.public_key().public_bytes_raw(),
    )
    return _open_base(secret, ciphertext, kem=KEM_MLKEM768_X25519, info=info)


def _dhkem_secret(shared: bytes, context: bytes) -> bytes:
    suite = b"KEM" + KEM_X25519.to_bytes(2, "big")
    prk = _labeled_extract(b"", b"eae_prk", shared, suite)
    return _labeled_expand(prk, b"shared_secret", context, 32, suite)


def _x_wing_secret(lattice: bytes, curve: bytes, to_curve: bytes, receiver: bytes) -> bytes:
    """The combiner of draft-connolly-cfrg-xwing-kem, whose label is six characters of art."""
    return hashlib.sha3_256(lattice + curve + to_curve + receiver + b"\\.//^\\").digest()


def _open_base(secret: bytes, ciphertext: bytes, *, kem: int, info: bytes) -> bytes:
    key, nonce = _key_schedule(secret, kem=kem, info=info)
    return AESGCM(key).decrypt(nonce, ciphertext, b"")


def _seal_base(secret: bytes, plaintext: bytes, *, kem: int, info: bytes) -> bytes:
    key, nonce = _key_schedule(secret, kem=kem, info=info)
    return AESGCM(key).encrypt(nonce, plaintext, b"")


def _key_schedule(secret: bytes, *, kem: int, info: bytes) -> tuple[bytes, bytes]:
    suite = b"HPKE" + b"".join(number.to_bytes(2, "big") for number in (kem, 1, 2))
    context = (
        b"\0"
        + _labeled_extract(b"", b"psk_id_hash", b"", suite)
        + _labeled_extract(b"", b"info_hash", info, suite)
    )
    schedule = _labeled_extract(secret, b"secret", b"", suite)
    key = _labeled_expand(schedule, b"key", context, 32, suite)
    return key, _labeled_expand(schedule, b"base_nonce", context, 12, suite)


def _labeled_extract(salt: bytes, label: bytes, secret: bytes, suite: bytes) -> bytes:
    data = b"HPKE-v1" + suite + label + secret
    return hmac.new(salt or bytes(32), data, hashlib.sha256).digest()


def _labeled_expand(key: bytes, label: bytes, info: bytes, size: int, suite: bytes) -> bytes:
    data = size.to_bytes(2, "big") + b"HPKE-v1" + suite + label + info
    return hmac.new(key, data + b"\x01", hashlib.sha256).digest()[:size]
