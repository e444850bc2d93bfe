"""Folders that appear whole: everything in them is on the disk before they get their name."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from pathlib import Path

from pate_fed.errors import RunDirectoryError


def publish(folder: Path, target: Path) -> None:
    """Give a folder its final name, which must be free.

    Raises:
        RunDirectoryError: it is taken.
    """
    _sync_all(folder)
    # A plain rename would replace an empty directory that somebody made meanwhile. Here mkdir takes
    # the name or fails; then the rename replaces our own empty directory, and fails on any other.
    try:
        target.mkdir(mode=0o700)
    except FileExistsError as error:
        raise RunDirectoryError("the run directory must not exist yet", target) from error
    try:
        folder.rename(target)
    except BaseException:
        with contextlib.suppress(OSError):  # not empty: another one than ours
            target.rmdir()
        raise
    sync(target.parent)


def exchange(folder: Path, target: Path) -> None:
    """Put a folder in the place of a finished run directory."""
    _sync_all(folder)
    # A kill between the two renames leaves both, each whole, under names that say so.
    old = target.with_name(f".{target.name[:64]}.replaced-{os.getpid()}")
    target.rename(old)
    try:
        folder.rename(target)
    except BaseException:
        old.rename(target)
        raise
    sync(target.parent)
    shutil.rmtree(old, ignore_errors=True)


def sync(path: Path) -> None:
    """Bring a file, or a folder's list of names, to the disk."""
    if path.is_symlink():
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # a file system without fsync here
            raise
    finally:
        os.close(descriptor)


def _sync_all(folder: Path) -> None:
    for place, _, names in os.walk(folder):
        for name in names:
            sync(Path(place, name))
        sync(Path(place))
