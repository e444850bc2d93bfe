"""What y's tell: nothing about a vector, and nothing about two vectors beyond their sum.

The 8-bit ring is small enough to try everything. With ideal streams hiding is exact, and is
enumerated; with the real expansion it is tested by chi-square, under fixed keys, each test with a
false-alarm rate of 10^-6. Expansions that are broken on purpose must be caught by the same tests.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from protocols.additive import AdditiveSum
from protocols.prg import Keystream, ctr_keystream, expand, gcm_keystream
from protocols.ring import Ring
from tests.support.chi_square import FALSE_ALARMS, independence, uniformity
from tests.support.markers import sampled

TINY = Ring(8)
Bytes = NDArray[np.uint8]


class _Chosen:
    """A stream whose bytes the test chose."""

    def __init__(self, stream: bytes) -> None:
        self._stream, self._place = stream, 0

    def update_into(self, data: bytes | memoryview, buf: bytearray | memoryview) -> int:
        size = len(data)
        buf[:size] = self._stream[self._place : self._place + size]
        self._place += size
        return size


def _key(label: str) -> bytes:
    return hashlib.sha256(label.encode()).digest()


def _shard(
    vector: NDArray[np.int64], seat: int, keys: dict[int, bytes], keystream: Keystream
) -> Bytes:
    form = AdditiveSum(TINY, keystream=keystream)
    return form.shard(vector, seat=seat, pair_keys=keys).astype(np.uint8)


@pytest.mark.parametrize("total", [0, 1, 7, 100, 127, 128, 200, 255])
def test_with_ideal_streams_two_vectors_are_hidden_but_for_their_sum(total: int) -> None:
    """Every split of the sum meets every stream: 2^16 cases, in one vector of 2^16 words."""
    split, stream = np.divmod(np.arange(2**16), 256)
    streams = {_key("01"): stream.astype(np.uint8).tobytes(), _key("02"): bytes(2**16)}

    def chosen(key: bytes) -> _Chosen:
        return _Chosen(streams[key])

    first = (split + 128) % 256 - 128
    second = (total - split + 128) % 256 - 128
    # Seat 2 colludes with the coordinator: its streams with both are known, hence zero here.
    y0 = _shard(first, 0, {1: _key("01"), 2: _key("02")}, chosen)
    y1 = _shard(second, 1, {0: _key("01"), 2: _key("02")}, chosen)
    views = (y0.astype(np.int64) * 256 + y1).reshape(256, 256)
    # Whatever the split, the 256 equally likely streams give the same 256 views, each once.
    expected = np.sort(views[0])
    assert len(np.unique(expected)) == 256
    assert all(np.array_equal(np.sort(row), expected) for row in views)


def _votes(words: int, seed: int) -> NDArray[np.int64]:
    """Counts as votes are: small and skewed, so that a mask that leaks shows."""
    return np.random.default_rng(seed).binomial(100, 0.2, size=words).astype(np.int64)


def _lag(y: Bytes) -> float:
    return independence(y[:-16], y[16:])


def _from_many_keys(keystream: Keystream, keys: int = 2**12) -> Bytes:
    """First byte of y under each of many keys: hiding must not rest on one lucky key."""
    votes = np.array([20])
    bytes_ = [
        _shard(votes, 0, {1: _key(f"many {i}"), 2: _key("fixed")}, keystream)[0]
        for i in range(keys)
    ]
    return np.array(bytes_, dtype=np.uint8)


def _p_values(keystream: Keystream) -> dict[str, float]:
    words = 2**20
    votes = _votes(words, seed=1)
    y = _shard(votes, 0, {1: _key("a"), 2: _key("b")}, keystream)
    # The colluders at seat 2 take their stream off again.
    seen = y - expand(_key("b"), words, ring=TINY, keystream=keystream).astype(np.uint8)
    return {
        "y is uniform": uniformity(y),
        "y is independent of the votes": independence(votes.astype(np.uint8), y),
        "y is independent of y a block before": _lag(y),
        "what colluders see is independent of the votes": independence(
            votes.astype(np.uint8), seen
        ),
        "first bytes are uniform over keys": uniformity(_from_many_keys(keystream)),
    }


@sampled()
@pytest.mark.parametrize("keystream", [ctr_keystream, gcm_keystream], ids=["ctr", "gcm"])
def test_y_looks_uniform_and_independent_of_the_votes(keystream: Keystream) -> None:
    for claim, p_value in _p_values(keystream).items():
        assert p_value > FALSE_ALARMS, claim


def test_colluders_cannot_tell_two_splits_of_one_sum_apart() -> None:
    words = 2**20
    keys = {1: _key("c"), 2: _key("d")}
    nothing = np.zeros(words, dtype=np.int64)
    flat = nothing + 20
    skewed = np.where(np.arange(words) % 2, 40, 0)
    histograms = []
    for label, first in (("flat", flat), ("skewed", skewed)):
        keys = {1: _key(f"honest {label}"), 2: _key("colluder")}
        y0 = _shard(first, 0, keys, ctr_keystream)
        y1 = _shard(40 - first, 1, {0: keys[1], 2: _key("colluder 1")}, ctr_keystream)
        y2 = _shard(nothing, 2, {0: keys[2], 1: _key("colluder 1")}, ctr_keystream)
        assert np.all(y0 + y1 + y2 == 40)  # the sum is open to all
        histograms.append(np.bincount(y0, minlength=256))
    assert stats.chi2_contingency(histograms).pvalue > FALSE_ALARMS


def _wrap(change: Callable[[bytes, int], bytes]) -> Keystream:
    """A stream that `change` spoils; it is given bytes and their place."""

    class Spoiled:
        def __init__(self, key: bytes) -> None:
            self._inner, self._place = ctr_keystream(key), 0

        def update_into(self, data: bytes | memoryview, buf: bytearray | memoryview) -> int:
            size = self._inner.update_into(data, buf)
            buf[:size] = change(bytes(buf[:size]), self._place)
            self._place += size
            return size

    return Spoiled


class _OneBlock:
    """A counter that stands still."""

    def __init__(self, key: bytes) -> None:
        block = bytearray(16)
        ctr_keystream(key).update_into(bytes(16), block)
        self._block = bytes(block)

    def update_into(self, data: bytes | memoryview, buf: bytearray | memoryview) -> int:
        size = len(data)
        buf[:size] = (self._block * (size // 16 + 1))[:size]
        return size


def _lossy(data: bytes, _: int) -> bytes:
    return (np.frombuffer(data, dtype=np.uint8) & 0x7F).tobytes()


def _sometimes_clear(data: bytes, place: int) -> bytes:
    words = np.frombuffer(data, dtype=np.uint8).copy()
    words[np.arange(place, place + len(data)) % 64 == 0] = 0
    return words.tobytes()


@sampled()
@pytest.mark.parametrize(
    "keystream",
    [
        pytest.param(lambda _: _Chosen(bytes(2**21)), id="no stream at all"),
        pytest.param(_OneBlock, id="the counter stands still"),
        pytest.param(_wrap(_lossy), id="seven bits of eight"),
        pytest.param(_wrap(_sometimes_clear), id="one byte of 64 in the clear"),
        pytest.param(
            lambda key: ctr_keystream(bytes(31) + bytes([key[0] & 0x0F])), id="keys of four bits"
        ),
    ],
)
def test_a_broken_expansion_is_caught(keystream: Keystream) -> None:
    assert min(_p_values(keystream).values()) < FALSE_ALARMS
