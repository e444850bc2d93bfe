"""Locks of processes: a file holds one, and the system drops it when the process ends."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from pate_fed.nodes.owner_files import OWNER_ONLY


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
