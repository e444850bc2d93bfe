from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.errors import InvalidVectorError
from protocols.ring import Ring

EDGES = [-(2**31), -(2**31) + 1, -1, 0, 1, 2**31 - 2, 2**31 - 1]


@given(st.lists(st.integers(-(2**31), 2**31 - 1) | st.sampled_from(EDGES), max_size=50))
def test_decoding_gives_back_what_was_encoded(values: list[int]) -> None:
    vector = np.array(values, dtype=np.int64)
    assert Ring().decode(Ring().encode(vector)).tolist() == values


@pytest.mark.parametrize("bits", [8, 16])
def test_every_value_of_a_small_ring_encodes_and_decodes(bits: int) -> None:
    ring = Ring(bits)
    every = np.arange(-(2 ** (bits - 1)), 2 ** (bits - 1), dtype=np.int64)
    words = ring.encode(every)
    assert len(np.unique(words)) == 2**bits
    assert np.array_equal(ring.decode(words), every)


@given(st.sampled_from(EDGES), st.sampled_from(EDGES))
def test_addition_wraps_around_the_ring(one: int, other: int) -> None:
    ring = Ring()
    words = ring.encode(np.array([one])) + ring.encode(np.array([other]))
    assert int(ring.decode(words)[0]) == (one + other + 2**31) % 2**32 - 2**31


@pytest.mark.parametrize("bits", [8, 16, 32])
@pytest.mark.parametrize("length", [1, 5, 64 * 1024, 64 * 1024 + 3])
def test_words_inside_a_frame_are_added_as_others_are(bits: int, length: int) -> None:
    ring, rng = Ring(bits), np.random.default_rng(1)
    one, other = (ring.encode(rng.integers(-100, 100, length)) for _ in range(2))
    frame = np.frombuffer(b"\0" + other.tobytes(), dtype=ring.word_type, offset=1)
    assert frame.flags.aligned == (bits == 8)
    totals = [one.copy(), one.copy()]
    ring.add(totals[0], other)
    ring.add(totals[1], frame)
    np.testing.assert_array_equal(totals[1], totals[0])
    np.testing.assert_array_equal(frame, other)


@pytest.mark.parametrize(
    "vector",
    [
        pytest.param(np.array([2**31]), id="one above"),
        pytest.param(np.array([-(2**31) - 1]), id="one below"),
        pytest.param(np.array([2**63], dtype=np.uint64), id="unsigned and huge"),
        pytest.param(np.array([1.0]), id="float"),
        pytest.param(np.array([True]), id="bool"),
        pytest.param(np.array([[1]]), id="two axes"),
        pytest.param(np.array(1), id="no axis"),
        pytest.param(np.array(["1"]), id="text"),
        pytest.param(np.array([None]), id="object"),
    ],
)
def test_what_the_ring_cannot_hold_is_refused(vector: np.ndarray) -> None:
    with pytest.raises(InvalidVectorError):
        Ring().encode(vector)


def test_encoding_leaves_the_vector_alone_and_shares_no_memory() -> None:
    vector = np.array([1, -2, 3], dtype=np.int64)
    words = Ring().encode(vector)
    words += 1
    assert vector.tolist() == [1, -2, 3]


def test_words_are_little_endian_on_the_wire() -> None:
    assert Ring().encode(np.array([1, -2])).tobytes() == bytes.fromhex("01000000feffffff")
    assert Ring().from_bytes(bytes.fromhex("01000000feffffff")).tolist() == [1, 2**32 - 2]


@pytest.mark.parametrize("length", [1, 2, 3, 5])
def test_bytes_that_are_no_whole_words_are_refused(length: int) -> None:
    with pytest.raises(InvalidVectorError):
        Ring().from_bytes(bytes(length))


@pytest.mark.parametrize("bits", [0, 1, 31, 33, 64, -8])
def test_a_ring_has_8_16_or_32_bits(bits: int) -> None:
    with pytest.raises(InvalidVectorError):
        Ring(bits)
