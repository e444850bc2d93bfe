"""Checks of the machine that every node's doctor makes: room on the disk, rights of files."""

from __future__ import annotations

import shutil
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from pate_fed.nodes.checks import Finding, fail, ok, warn

GIB: Final = 2**30
_LEAST_DISK, _WANTED_DISK = GIB, 5 * GIB


def free_disk(folder: Path) -> int:
    """Return the free bytes where a folder is."""
    return shutil.disk_usage(folder).free


def check_room(free: int, *, folder: str) -> Finding:
    """Check the free disk space: on a full disk no charge can be written, so every run waits.

    Args:
        folder: Name in messages of the folder that lies there.
    """
    said = f"{free / GIB:.1f} GiB are free where {folder} is."
    if free < _LEAST_DISK:
        return fail(said, f"Free {_LEAST_DISK // GIB} GiB or more.")
    if free < _WANTED_DISK:
        return warn(said, f"{_WANTED_DISK // GIB} GiB last longer.")
    return ok(said)


def check_owner_only(
    folder: Path, guarded: Iterable[Path], *, user: int, readable: Iterable[str] = (), anew: str
) -> Finding:
    """Check who may read secret files, and whether we may.

    Args:
        guarded: The files or folders there that must be their owner's alone.
        readable: Names of files that others may read, and not write.
        anew: The step to take if others may have read a key.
    """
    paths, open_to_all = list(guarded), set(readable)

    def named(found: Iterable[Path]) -> str:
        return ", ".join(
            "the folder" if one == folder else one.relative_to(folder).as_posix() for one in found
        )

    of_others = [path for path in paths if path.lstat().st_uid != user]
    if of_others:
        said = f"Another user owns {named(of_others)}."
        advice = "Run this, and the node, as the folder's user; or make that user the owner."
        return fail(said, advice)
    exposed = [
        path
        for path in paths
        if stat.S_IMODE(path.lstat().st_mode) & (0o022 if path.name in open_to_all else 0o077)
    ]
    if exposed:
        said = f"Others than the folder's user may read or write {named(exposed)}."
        advice = f"`chmod -R go= ` the folder. If others may have read a key, {anew}."
        return fail(said, advice)
    return ok("Secret files can be read by their owner alone.")
