"""Read idx files, the format of MNIST, strictly and within bounds."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from pate_fed.data.packed_file import open_unpacked
from pate_fed.errors import UnreadableFileError

MAX_IDX_BYTES = 2**29
"""Most bytes of content that a header may announce."""

_UNSIGNED_BYTES = 0x08


def read_idx(path: Path, *, axes: int) -> NDArray[np.uint8]:
    """Read an idx file of unsigned bytes, plain or gzipped, with so many axes."""
    with open_unpacked(path, most_bytes=MAX_IDX_BYTES) as stream:
        return _read_stream(stream, path.name, axes)


def _read_stream(stream: IO[bytes] | gzip.GzipFile, name: str, axes: int) -> NDArray[np.uint8]:
    header = stream.read(4 + 4 * axes)
    if len(header) != 4 + 4 * axes or header[:4] != bytes([0, 0, _UNSIGNED_BYTES, axes]):
        raise UnreadableFileError(f"{name} must be an idx file of bytes with {axes} axes")
    shape = struct.unpack(f">{axes}I", header[4:])
    size = 1
    for length in shape:
        size *= length
    if not 0 < size <= MAX_IDX_BYTES:
        raise UnreadableFileError(f"{name} must announce between 1 and {MAX_IDX_BYTES} bytes", size)
    body = _read_up_to(stream, size + 1)
    if len(body) != size:
        came = "more" if len(body) > size else f"{len(body)}"
        raise UnreadableFileError(f"{name} must hold the {size} bytes that it announces", came)
    return np.frombuffer(body, dtype=np.uint8).reshape(shape)


def _read_up_to(stream: IO[bytes] | gzip.GzipFile, size: int) -> bytes:
    # In pieces: a header that lies about its size costs no more memory than the file has.
    pieces: list[bytes] = []
    missing = size
    while missing:
        piece = stream.read(min(missing, 2**20))
        if not piece:
            break
        pieces.append(piece)
        missing -= len(piece)
    return b"".join(pieces)
