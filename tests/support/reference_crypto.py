"""Second implementations, written from the standards: what the protocol's bytes are held against.

Slow and plain on purpose. Nothing here imports `protocols`.
"""

from __future__ import annotations

import hashlib
import hmac


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


def cbor(value: object) -> bytes:
    """Deterministic CBOR (RFC 8949, section 4.2) of the types that messages use."""
    match value:
        case bool():
            return b"\xf5" if value else b"\xf4"
        case int():
            return _cbor_head(0, value)
        case bytes():
            return _cbor_head(2, len(value)) + value
        case str():
            return _cbor_head(3, len(value.encode())) + value.encode()
        case list() | tuple():
            return _cbor_head(4, len(value)) + b"".join(cbor(item) for item in value)
    raise TypeError(type(value).__name__)


def _cbor_head(major: int, number: int) -> bytes:
    if number < 24:
        return bytes([major << 5 | number])
    for extra, size in ((24, 1), (25, 2), (26, 4), (27, 8)):
        if number < 1 << (8 * size):
            return bytes([major << 5 | extra]) + number.to_bytes(size, "big")
    raise ValueError("too large")
