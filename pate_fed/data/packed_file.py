"""Open a file, plain or gzipped."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from pate_fed.errors import UnreadableFileError
from pate_fed.regular_files import open_regular

_GZIP_MAGIC = b"\x1f\x8b"


@contextmanager
def open_unpacked(path: Path, *, most_bytes: int) -> Iterator[IO[bytes] | gzip.GzipFile]:
    """Open a regular file of at most `most_bytes`; a gzipped one is unpacked as it is read.

    Raises:
        UnreadableFileError: it is absent, no regular file or too large; or, while it is read, it is
            damaged. Messages give its name without its folder.
    """
    try:
        with open_regular(path, most_bytes=most_bytes) as raw:
            is_packed = raw.read(2) == _GZIP_MAGIC
            raw.seek(0)
            if not is_packed:
                yield raw
                return
            with gzip.GzipFile(fileobj=raw, mode="rb") as unpacked:
                yield unpacked
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
