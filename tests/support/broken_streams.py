"""Key streams that say less than they should, for tests that have to find it out."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from protocols.prg import ctr_keystream

Change = Callable[[NDArray[np.uint8]], NDArray[np.uint8]]


class SpoiledStream:
    """A key's true stream, changed."""

    def __init__(self, key: bytes, change: Change) -> None:
        self._inner, self._change = ctr_keystream(key), change

    def update_into(self, data: bytes | memoryview, buf: bytearray | memoryview) -> int:
        size = self._inner.update_into(data, buf)
        buf[:size] = self._change(np.frombuffer(bytes(buf[:size]), dtype=np.uint8)).tobytes()
        return size


def seven_bits(key: bytes) -> SpoiledStream:
    return SpoiledStream(key, lambda stream: stream & 0x7F)


def sometimes_clear(key: bytes) -> SpoiledStream:
    return SpoiledStream(
        key, lambda stream: np.where(np.arange(len(stream)) % 16 == 0, 0, stream).astype(np.uint8)
    )
