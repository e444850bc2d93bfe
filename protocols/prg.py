"""Expansion of a 32-byte key into a stream of ring elements: AES-256 in counter mode.

The stream of a key is AES-256 of the counter blocks 0^96 || 2, 0^96 || 3, ... (32-bit counter,
big-endian). It starts at 2 because OpenSSL yields the very same bytes through its GCM path, which
is faster on processors with wide AES. Both back ends are here and are tested against one another;
`fastest_keystream` measures them. The choice never changes a byte. A key expands once, into one
stream; the caller ensures that a key meets one vector (rule R4).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from protocols.errors import InvalidVectorError
from protocols.ring import Ring, Words

KEY_BYTES = 32
MAX_STREAM_BYTES = 2**36 - 32
"""Longest stream of one key: the 32-bit block counter must not wrap."""

BLOCK_BYTES = 256 * 1024
"""Bytes expanded at a time, at most: these and the words they are added to fit the second-level
cache."""

_PIECE_BYTES = 64
"""Blocks end at whole multiples of it: AES is fastest without partial blocks."""

_CTR = modes.CTR(bytes(15) + b"\x02")
_GCM = modes.GCM(bytes(12))
_ZEROS = bytes(BLOCK_BYTES)  # the plaintext; made once, since fresh memory costs as much as AES


class Encryptor(Protocol):
    """The part of a cipher context that a keystream needs."""

    def update_into(self, data: bytes | memoryview, buf: bytearray | memoryview) -> int:
        """Encrypt `data` into `buf`; returns the number of bytes written."""


Keystream = Callable[[bytes], Encryptor]
"""Opens the stream of a key: encrypting zeros yields its bytes."""


def ctr_keystream(key: bytes) -> Encryptor:
    """Open the stream of `key` through OpenSSL's counter mode."""
    return Cipher(algorithms.AES256(_checked_key(key)), _CTR).encryptor()


def gcm_keystream(key: bytes) -> Encryptor:
    """Open the same stream through OpenSSL's GCM path; its tag is never used."""
    return Cipher(algorithms.AES256(_checked_key(key)), _GCM).encryptor()


def fastest_keystream(clock: Callable[[], float], *, rounds: int = 40) -> Keystream:
    """Time both back ends for some 5 ms, and return the faster one.

    On a busy machine the slower one may win: masking then takes longer, with the same bytes.
    `clock` gives seconds, of this thread's CPU time if there is such a clock. The best of `rounds`
    tries counts, since noise only adds time.
    """
    keystreams = (ctr_keystream, gcm_keystream)
    buffer = bytearray(len(_ZEROS))
    best = dict.fromkeys(keystreams, float("inf"))
    for _ in range(rounds):
        for keystream in keystreams:
            start = clock()
            keystream(bytes(KEY_BYTES)).update_into(_ZEROS, buffer)
            best[keystream] = min(best[keystream], clock() - start)
    return min(keystreams, key=best.__getitem__)


def add_streams(
    words: Words,
    signed_keys: list[tuple[int, bytes]],
    *,
    ring: Ring,
    keystream: Keystream = ctr_keystream,
) -> None:
    """Add (sign +1) or subtract (sign -1) the stream of each 32-byte key to `words`, in place.

    Works block by block with the keys inside, so that memory does not grow with their number. Where
    `words` (one axis, writeable) are not aligned to machine words, for example inside a frame,
    adding would take three times as long. There the block is added in a separate buffer.

    Raises `InvalidVectorError` where the vector is longer than a stream may be.
    """
    if words.nbytes > MAX_STREAM_BYTES:
        raise InvalidVectorError(
            f"a vector must have at most {MAX_STREAM_BYTES} bytes", words.nbytes
        )
    streams = [
        (np.add if sign > 0 else np.subtract, keystream(key).update_into)
        for sign, key in signed_keys
    ]
    step = _block_words(len(words), words.itemsize)
    zeros = memoryview(_ZEROS)[: step * words.itemsize]
    stream_words, straight = _words_in_lines(step, ring), words.flags.aligned
    own = stream_words if straight else _words_in_lines(step, ring)
    for start in range(0, len(words), step):
        part = words[start : start + step]
        if len(part) < step:
            own, stream_words = own[: len(part)], stream_words[: len(part)]
            zeros = zeros[: part.nbytes]
        block = part if straight else own
        if not straight:
            np.copyto(block, part)
        stream = stream_words.view(np.uint8).data
        for combine, encrypt_into in streams:
            encrypt_into(zeros, stream)
            combine(block, stream_words, out=block)
        if not straight:
            np.copyto(part, block)


def expand(key: bytes, length: int, *, ring: Ring, keystream: Keystream = ctr_keystream) -> Words:
    """Return the first `length` ring elements of the stream of `key`."""
    words = np.zeros(length, dtype=ring.word_type)
    add_streams(words, [(1, key)], ring=ring, keystream=keystream)
    return words


def _words_in_lines(count: int, ring: Ring) -> Words:
    """Room for this many words, aligned to a cache line."""
    room = np.empty(count * ring.word_type.itemsize + _PIECE_BYTES, dtype=np.uint8)
    skipped = -room.ctypes.data % _PIECE_BYTES
    return room[skipped : skipped + count * ring.word_type.itemsize].view(ring.word_type)


def _block_words(length: int, itemsize: int) -> int:
    """Words of a block: as few blocks as `BLOCK_BYTES` allows, of about equal length."""
    most = min(BLOCK_BYTES, len(_ZEROS))
    blocks = -(-length * itemsize // most) or 1
    piece = max(1, min(_PIECE_BYTES, most) // itemsize)
    return max(1, -(-length // (blocks * piece)) * piece)


def _checked_key(key: bytes) -> bytes:
    if len(key) != KEY_BYTES:
        raise InvalidVectorError(f"a key must have {KEY_BYTES} bytes", len(key))
    return key
