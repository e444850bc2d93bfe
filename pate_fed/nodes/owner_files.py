"""Files written whole or not at all, readable only by their owner by default; and their locks.

A file holds a lock of a process. The system drops it when the process ends.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pate_fed.errors import Shown
from pate_fed.regular_files import open_regular, read_regular

OWNER_ONLY: Final = 0o600


@contextmanager
def as_fault(fault: Callable[[str, Shown], Exception], must: str) -> Iterator[None]:
    """Report an `OSError` of the body by a node's error, in the system's words."""
    try:
        yield
    except OSError as error:
        raise fault(must, error.strerror or type(error).__name__) from error


def write_file(path: Path, *pieces: bytes, mode: int = OWNER_ONLY) -> None:
    """Write or replace a file, and wait until it is on disk.

    A crash leaves the old file or the new one, and perhaps an unfinished hidden one.
    """
    partial = path.with_name(f".{path.name}.partial")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(partial, flags, OWNER_ONLY)
    try:
        with os.fdopen(descriptor, "wb") as file:
            for piece in pieces:
                file.write(piece)
            file.flush()
            os.fchmod(descriptor, mode)  # for a leftover of an earlier life, and for any umask
            os.fsync(descriptor)
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def make_folder(folder: Path, *, exists: str, fault: Callable[[str, Shown], Exception]) -> None:
    """Make a node's folder, its owner's alone; raise a `fault` if it is there or cannot be made."""
    try:
        folder.mkdir(mode=0o700, parents=True)
    except FileExistsError as error:
        raise fault(exists, folder) from error
    except OSError as error:
        raise fault("the folder must be one that can be made", error.strerror) from error


def read_named(path: Path, name: str, *, fault: type[Exception]) -> bytes:
    """Read a file of a node's folder; raise a `fault` that gives its `name`."""
    with as_fault(fault, f"{name} must be readable"):
        return read_regular(path)


def read_secret(path: Path, name: str, *, anew: str, fault: type[Exception]) -> bytes:
    """Read a secret file as `read_named` does; raise a `fault` if others may read it, too.

    `anew` is the step to take where others may have read it.
    """
    with as_fault(fault, f"{name} must be readable"), open_regular(path) as file:
        mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
        if mode & 0o077:
            raise fault(
                f"{name} must be readable by its owner alone: `chmod 600` it. If others may have "
                f"read it, {anew}",
                f"mode {mode:o}",
            )
        return file.read()


def write_named(path: Path, name: str, content: bytes, *, fault: type[Exception]) -> None:
    """Write a file of a node's folder; raise a `fault` that gives its `name`."""
    with as_fault(fault, f"{name} must be writable"):
        write_file(path, content)


def write_new(path: Path, lines: Iterable[str], *, fault: type[Exception]) -> None:
    """Write a new file of its owner alone, as `--out` names it; raise a `fault` if it cannot be."""
    with as_fault(fault, "--out must be a new file in an existing folder"):
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        with os.fdopen(os.open(path, flags, OWNER_ONLY), "w", encoding="utf-8") as file:
            file.writelines(lines)


def _sync_folder(folder: Path) -> None:
    """Wait until the names of files in a folder are on disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def take_lock(path: Path) -> int:
    """Take the lock of a file, which is made if absent; return its descriptor, to be closed.

    Raises:
        BlockingIOError: another process (or object) has it.
        OSError: the file cannot be opened.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, OWNER_ONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def is_locked(path: Path) -> bool:
    """Tell whether somebody has the lock of a file.

    Only for doubtful cases: for a moment it holds the lock that a starting process would take.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
