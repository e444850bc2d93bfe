"""Expansion of a 32-byte key into a stream of ring elements: AES-256 in counter mode.

The stream of a key is AES-256 of the counter blocks 0^96 || 2, 0^96 || 3, ... (32-bit counter,
big-endian). It starts at 2 because OpenSSL yields the very same bytes through its GCM path, which
is faster on processors with wide AES: both back ends are here and are tested against one another.
A key expands once, into one stream; the caller sees to it that a key meets one vector (rule R4).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from protocols.errors import InvalidVectorError
from protocols.ring import Ring, Words

KEY_BYTES = 32
MAX_STREAM_BYTES = 2**36 - 32
"""Longest stream of one key: the 32-bit block counter must not come round."""

BLOCK_BYTES = 128 * 1024
"""Bytes expanded at a time: fits the second-level cache, and bounds memory for any length."""

_FIRST_COUNTER_BLOCK = bytes(15) + b"\x02"
_GCM_NONCE = bytes(12)


class Encryptor(Protocol):
    """The part of a cipher context that a keystream needs."""

    def update_into(self, data: bytes | memoryview, buf: bytearray | memoryview) -> int:
        """Encrypt `data` into `buf`; returns the number of bytes written."""


Keystream = Callable[[bytes], Encryptor]
"""Opens the stream of a key: encrypting zeros yields its bytes."""


def ctr_keystream(key: bytes) -> Encryptor:
    """Open the stream of `key` through OpenSSL's counter mode."""
    return Cipher(algorithms.AES(_checked_key(key)), modes.CTR(_FIRST_COUNTER_BLOCK)).encryptor()


def gcm_keystream(key: bytes) -> Encryptor:
    """Open the same stream through OpenSSL's GCM path; its tag is never used."""
    return Cipher(algorithms.AES(_checked_key(key)), modes.GCM(_GCM_NONCE)).encryptor()


def add_streams(
    words: Words,
    signed_keys: list[tuple[int, bytes]],
    *,
    ring: Ring,
    keystream: Keystream = ctr_keystream,
) -> None:
    """Add (sign +1) or subtract (sign -1) the stream of each key to `words`, in place.

    Works block by block with the keys inside, so that memory does not grow with their number.

    Args:
        words: Ring elements; one axis, writeable; changed.
        signed_keys: Sign and 32-byte key of each stream.
        ring: Ring of `words`.
        keystream: Back end; both give the same bytes.

    Raises:
        InvalidVectorError: the vector is longer than a stream may be.
    """
    if words.nbytes > MAX_STREAM_BYTES:
        raise InvalidVectorError(f"a vector must have at most {MAX_STREAM_BYTES} bytes", "more")
    streams = [(sign, keystream(key)) for sign, key in signed_keys]
    buffer = bytearray(min(BLOCK_BYTES, words.nbytes))
    zeros = bytes(len(buffer))
    for block in _blocks(words):
        size = block.nbytes
        stream = memoryview(buffer)[:size]
        stream_words = np.frombuffer(stream, dtype=ring.word_type)
        for sign, encryptor in streams:
            encryptor.update_into(memoryview(zeros)[:size], stream)
            if sign > 0:
                np.add(block, stream_words, out=block)
            else:
                np.subtract(block, stream_words, out=block)


def expand(key: bytes, length: int, *, ring: Ring, keystream: Keystream = ctr_keystream) -> Words:
    """Return the first `length` ring elements of the stream of `key`."""
    words = np.zeros(length, dtype=ring.word_type)
    add_streams(words, [(1, key)], ring=ring, keystream=keystream)
    return words


def _blocks(words: Words) -> Iterator[Words]:
    step = BLOCK_BYTES // words.itemsize
    for start in range(0, len(words), step):
        yield words[start : start + step]


def _checked_key(key: bytes) -> bytes:
    if len(key) != KEY_BYTES:
        raise InvalidVectorError(f"a key must have {KEY_BYTES} bytes", len(key))
    return key
