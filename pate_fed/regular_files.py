"""Files from outside: regular ones of bounded size, which is checked before the first byte is read.

A device has no end, a pipe makes its reader wait, and a file may be larger than memory. The faults
are `OSError`, as for a file that is absent, so each reader tells them with its own code.
"""

from __future__ import annotations

import errno
import io
import os
import stat
from pathlib import Path
from typing import Final

MOST_SETTINGS_BYTES: Final = 2**20
"""Of a file of settings."""

MOST_BYTES: Final = 2**28
"""Of a file that a reader sets no bound for: a document of a run, a model, a key."""


def open_regular(path: Path, *, most_bytes: int = MOST_BYTES) -> io.BufferedReader:
    """Open a regular file of at most this size for reading; others are an OSError."""
    # Without waiting for the other end of a pipe.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        _require_regular(os.fstat(descriptor), most_bytes, path)
    except OSError:
        os.close(descriptor)
        raise
    return io.BufferedReader(io.FileIO(descriptor, "rb"))


def read_regular(path: Path, *, most_bytes: int = MOST_BYTES) -> bytes:
    """Return the content of a file; arguments and errors as for `open_regular`."""
    with open_regular(path, most_bytes=most_bytes) as file:
        content = file.read(most_bytes + 1)
    _require_size(len(content), most_bytes, path)  # it may have grown
    return content


def _require_regular(found: os.stat_result, most_bytes: int, path: Path) -> None:
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "no regular file", str(path))
    _require_size(found.st_size, most_bytes, path)


def _require_size(size: int, most_bytes: int, path: Path) -> None:
    if size > most_bytes:
        raise OSError(errno.EFBIG, f"more than {most_bytes} bytes", str(path))
