"""Open a file, plain or gzipped."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

from pate_fed.errors import UnreadableFileError
from pate_fed.regular_files import open_regular

_GZIP_MAGIC = b"\x1f\x8b"

_MOST_TIMES: Final = 200
"""Bytes that one packed byte may become: tables stay below 50, and gzip reaches 1000."""

_PIECE: Final = 2**17

_FREE_BYTES: Final = 2**20
"""Unpacked bytes from which on that holds."""


class _Unpacked(io.RawIOBase):
    """The bytes in a gzip file, as long as they are not too many for its size."""

    def __init__(self, packed: IO[bytes], name: str) -> None:
        self._packed, self._name, self._size = packed, name, 0
        self._unpacked = gzip.GzipFile(fileobj=packed, mode="rb")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        piece = self._unpacked.read1(len(buffer))
        self._size += len(piece)
        if self._size > max(_FREE_BYTES, _MOST_TIMES * self._packed.tell()):
            raise UnreadableFileError(
                f"{self._name} must unpack to at most {_MOST_TIMES} times its size: if it is your "
                "own, unpack it, and give the unpacked file",
                "more",
            )
        buffer[: len(piece)] = piece
        return len(piece)


@contextmanager
def open_unpacked(path: Path, *, most_bytes: int) -> Iterator[IO[bytes]]:
    """Open a regular file of at most `most_bytes`; a gzipped one is unpacked as it is read.

    Raises:
        UnreadableFileError: it is absent, no regular file or too large; or, while it is read, it is
            damaged, or unpacks to far more than its size. Messages give its name without its
            folder.
    """
    try:
        with open_regular(path, most_bytes=most_bytes) as raw:
            is_packed = raw.read(2) == _GZIP_MAGIC
            raw.seek(0)
            if not is_packed:
                yield raw
                return
            yield io.BufferedReader(_Unpacked(raw, path.name), _PIECE)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UnreadableFileError(
            f"{path.name} must be a whole gzip file", "a damaged or truncated one"
        ) from error
    except FileNotFoundError as error:
        raise UnreadableFileError(
            f"{path.name} must be a readable file", "none: it does not exist"
        ) from error
    except OSError as error:
        raise UnreadableFileError(
            f"{path.name} must be a readable file", error.strerror or type(error).__name__
        ) from error
