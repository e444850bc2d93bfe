"""The folder of a run: the names of its files; it appears whole, or not at all.

Everything in it is on the disk before it gets its name.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from pate_fed.errors import RunDirectoryError

SETTINGS = "run.toml"
MANIFEST = "manifest.json"
METRICS = "metrics.json"
PRIVACY = "privacy.json"
LABELS = "labels.csv"
IMAGES = "images.png"
TRANSCRIPT = "transcript.jsonl"
EARLIER = "earlier-setups.jsonl"
SENT = "sent.csv"
SEAL = "seal.json"
AUDIT = "audit.json"
REPORT = "report.html"
ANNEXES = "annexes.html"
STUDENT = "student"
MODEL_CARD = "model_card.md"

SEALED = (
    SETTINGS,
    MANIFEST,
    METRICS,
    PRIVACY,
    LABELS,
    IMAGES,
    TRANSCRIPT,
    EARLIER,
    SENT,
    f"{STUDENT}/student.json",
    f"{STUDENT}/model.skops",
    f"{STUDENT}/model.safetensors",
    f"{STUDENT}/inputs.json",
    f"{STUDENT}/inputs.safetensors",
    f"{STUDENT}/{MODEL_CARD}",
)
"""Paths of all files that a seal may name; a student has one of the two models, or none."""


def refuse_existing(path: str | os.PathLike[str]) -> None:
    """Refuse a place where no new run directory can be written; call it before any work.

    Raises:
        RunDirectoryError: something is there already, even a dangling link, or the nearest folder
            above is no folder or not writable.
    """
    target = Path(path)
    if os.path.lexists(target):
        raise RunDirectoryError("the run directory must not exist yet", target)
    above = next(folder for folder in target.absolute().parents if os.path.lexists(folder))
    if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
        raise RunDirectoryError("the run directory must lie in a writable folder", above)


@contextmanager
def whole_folder(target: Path, finish: Callable[[Path, Path], None]) -> Iterator[Path]:
    """Yield a hidden folder beside a place, and put it there at the end if nothing failed."""
    made: list[Path] = []
    folder: Path | None = None
    try:
        with writing(target):
            _make_parents(target, made)
            # Known before it is made: Ctrl-C in between leaves nothing either.
            for name in _partial_names(target):
                folder = name
                try:
                    name.mkdir(mode=0o700)
                    break
                except FileExistsError:
                    folder = None  # somebody else's
        assert folder is not None
        yield folder
        with writing(target):
            finish(folder, target)
    except BaseException:
        if folder is not None:
            # The first error is the one to tell; a leftover names itself partial.
            shutil.rmtree(folder, ignore_errors=True)
        for parent in reversed(made):
            with contextlib.suppress(OSError):  # no longer empty: then it is not ours alone
                parent.rmdir()
        raise


def _prefix(target: Path) -> str:
    """Return the first part of the name of the folder in which a run directory is written."""
    return f".{target.name[:64]}.partial-"


def _partial_names(target: Path) -> Iterator[Path]:
    """Yield names of folders in which to write a run directory; nobody else alive has the first."""
    for number in count():
        yield target.parent / f"{_prefix(target)}{os.getpid()}-{number}"


def forget_unfinished(path: str | os.PathLike[str]) -> None:
    """Remove the leftover of a process that was killed while it wrote a run directory.

    Only for a path that no other process writes. A finished run directory is left as it is.
    """
    target = Path(path)
    with contextlib.suppress(OSError):  # it is not there, or it is finished
        target.rmdir()
    for left in target.parent.glob(f"{_prefix(target)}*"):
        shutil.rmtree(left, ignore_errors=True)


def publish(folder: Path, target: Path) -> None:
    """Give a folder its final name, which must be free."""
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


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raise errors of the file system as those of a run directory."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise RunDirectoryError(f"{path.name} must be writable", reason) from error


def _make_parents(target: Path, made: list[Path]) -> None:
    missing = [folder for folder in target.absolute().parents if not folder.exists()]
    for folder in reversed(missing):
        folder.mkdir()
        made.append(folder)
