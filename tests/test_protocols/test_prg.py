from __future__ import annotations

import hashlib

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from protocols import prg
from protocols.errors import InvalidVectorError
from protocols.prg import Keystream, add_streams, ctr_keystream, expand, gcm_keystream
from protocols.ring import Ring
from tests.support.reference_crypto import aes256_block, counter_stream
from tests.support.vectors import read_vectors

VECTORS = read_vectors("keystream")
BACK_ENDS = pytest.mark.parametrize(
    "keystream", [pytest.param(ctr_keystream, id="ctr"), pytest.param(gcm_keystream, id="gcm")]
)
KEY = bytes(range(32))
BLOCK = prg.BLOCK_BYTES // 4


def test_the_reference_is_the_aes_of_the_standard() -> None:
    known = {name: bytes.fromhex(value) for name, value in VECTORS["fips_197_c3"].items()}
    assert aes256_block(known["key"], known["plaintext"]) == known["ciphertext"]
    assert known["ciphertext"].hex() == "8ea2b7ca516745bfeafc49904b496089"  # FIPS 197, C.3


@BACK_ENDS
@pytest.mark.parametrize("vector", VECTORS["streams"], ids=lambda v: f"{v['key'][:4]}+{v['start']}")
def test_the_stream_of_a_key_is_known(keystream: Keystream, vector: dict[str, str | int]) -> None:
    start, expected = int(vector["start"]), bytes.fromhex(str(vector["bytes"]))
    key = bytes.fromhex(str(vector["key"]))
    words = expand(key, start + len(expected), ring=Ring(8), keystream=keystream)
    assert words[start:].tobytes() == expected


def test_the_vectors_of_the_stream_follow_from_the_standard() -> None:
    for vector in VECTORS["streams"]:
        key, block = bytes.fromhex(vector["key"]), vector["start"] // 16
        assert counter_stream(key, 64, first_block=block).hex() == vector["bytes"]


@pytest.mark.parametrize(
    "length", [0, 1, 3, 4, 5, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 3 * BLOCK + 7]
)
def test_both_back_ends_give_the_stream_that_one_piece_gives(length: int) -> None:
    counter = modes.CTR(bytes(15) + b"\x02")
    whole = Cipher(algorithms.AES(KEY), counter).encryptor().update(bytes(4 * length))
    assert expand(KEY, length, ring=Ring(), keystream=ctr_keystream).tobytes() == whole
    assert expand(KEY, length, ring=Ring(), keystream=gcm_keystream).tobytes() == whole


@BACK_ENDS
@pytest.mark.parametrize("block_bytes", [16, 64, 4096, 2**20])
def test_the_size_of_blocks_changes_nothing(
    keystream: Keystream, block_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = expand(KEY, 5003, ring=Ring(), keystream=keystream)
    monkeypatch.setattr(prg, "BLOCK_BYTES", block_bytes)
    assert np.array_equal(expand(KEY, 5003, ring=Ring(), keystream=keystream), expected)


@BACK_ENDS
def test_a_shorter_stream_is_the_beginning_of_a_longer_one(keystream: Keystream) -> None:
    longer = expand(KEY, 2 * BLOCK + 9, ring=Ring(), keystream=keystream)
    for length in (1, 9, BLOCK, BLOCK + 5):
        shorter = expand(KEY, length, ring=Ring(), keystream=keystream)
        assert np.array_equal(shorter, longer[:length])


@BACK_ENDS
@pytest.mark.parametrize("bits", [8, 16, 32])
def test_streams_are_added_and_subtracted_with_their_signs(keystream: Keystream, bits: int) -> None:
    ring = Ring(bits)
    start = expand(bytes(32), 40_000, ring=ring)
    words = start.copy()
    plus, minus = b"+" * 32, b"-" * 32
    add_streams(words, [(1, plus), (-1, minus)], ring=ring, keystream=keystream)
    expected = start + expand(plus, 40_000, ring=ring) - expand(minus, 40_000, ring=ring)
    assert np.array_equal(words, expected)
    add_streams(words, [(-1, plus), (1, minus)], ring=ring, keystream=keystream)
    assert np.array_equal(words, start)


@BACK_ENDS
@pytest.mark.parametrize("offset", [1, 4, 16, 77])
def test_words_may_lie_anywhere_in_a_frame(keystream: Keystream, offset: int) -> None:
    count = BLOCK + 5003
    frame = bytearray(b"\x5a" * (offset + 4 * count + 3))
    ring, before = Ring(), bytes(frame)
    words = ring.words_in(memoryview(frame)[offset : offset + 4 * count])
    expected = words + expand(KEY, count, ring=ring)
    add_streams(words, [(1, KEY)], ring=ring, keystream=keystream)
    assert np.array_equal(words, expected)
    assert frame[:offset] == before[:offset]
    assert frame[-3:] == before[-3:]


class _Clock:
    """Each reading is a step later; the steps come round."""

    def __init__(self, *steps: float) -> None:
        self._steps, self._now, self._count = steps, 0.0, 0

    def __call__(self) -> float:
        self._now += self._steps[self._count % len(self._steps)]
        self._count += 1
        return self._now


# A trial reads the clock at the start and the end of either back end, counter mode first.
@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        pytest.param((0, 5, 0, 2), gcm_keystream, id="GCM is faster"),
        pytest.param((0, 2, 0, 5), ctr_keystream, id="counter mode is faster"),
        pytest.param((0, 3, 0, 3), ctr_keystream, id="neither: the plain one"),
        pytest.param((0, 5, 0, 99, 0, 9, 0, 2), gcm_keystream, id="the best of its trials counts"),
    ],
)
def test_the_back_end_that_a_clock_finds_faster_is_taken(
    steps: tuple[float, ...], expected: Keystream
) -> None:
    assert prg.fastest_keystream(_Clock(*steps), rounds=4) is expected


@pytest.mark.parametrize("size", [0, 16, 31, 33, 64])
def test_a_key_has_32_bytes(size: int) -> None:
    for keystream in (ctr_keystream, gcm_keystream):
        with pytest.raises(InvalidVectorError):
            keystream(bytes(size))


def test_a_vector_longer_than_a_stream_may_be_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prg, "MAX_STREAM_BYTES", 63)
    words = np.zeros(16, dtype="<u4")
    with pytest.raises(InvalidVectorError):
        add_streams(words, [(1, KEY)], ring=Ring())
    assert not words.any()
    monkeypatch.setattr(prg, "MAX_STREAM_BYTES", 64)
    add_streams(words, [(1, KEY)], ring=Ring())
    assert words.any()


def test_the_longest_stream_never_brings_its_counter_round() -> None:
    # Counter blocks 2 .. 2^32 - 1 give 2^32 - 2 blocks of 16 bytes.
    assert prg.MAX_STREAM_BYTES == 16 * (2**32 - 2)


def _distinct_streams(keys: int) -> int:
    return len(
        {
            expand(hashlib.sha256(number.to_bytes(4, "big")).digest(), 2, ring=Ring()).tobytes()
            for number in range(keys)
        }
    )


def test_2_to_the_12_keys_give_as_many_streams() -> None:
    assert _distinct_streams(2**12) == 2**12


@pytest.mark.exhaustive
def test_2_to_the_20_keys_give_as_many_streams() -> None:
    # By chance two of 2^20 streams agree in 64 bits with probability 2^-25.
    assert _distinct_streams(2**20) == 2**20


def test_one_bit_of_the_key_changes_half_of_the_stream() -> None:
    words = 2**14
    base = expand(bytes(32), words, ring=Ring())
    for bit in range(0, 256, 17):
        key = (1 << bit).to_bytes(32, "big")
        changed = np.bitwise_count(base ^ expand(key, words, ring=Ring())).sum()
        # 2^19 fair bits: standard deviation 362; 6 of them happen once in 10^9.
        assert abs(int(changed) - 2**18) < 6 * 362
