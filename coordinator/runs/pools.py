"""The pools of public queries that a federation published, each with its task, in one folder.

The documents of evaluations, which hospitals fetch like pools, are in the same folder.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

from coordinator.errors import RunRequestError
from coordinator.federation.home import FederationHome
from pate_fed.data.task import LearningTask, Schema, schema_in
from pate_fed.errors import InvalidTaskError
from pate_fed.evaluation_task import EvaluationTask, is_evaluation
from pate_fed.nodes import write_file
from pate_fed.regular_files import open_regular, read_regular


class Pools:
    """The published pools of a federation; one that cannot be read is a `RunRequestError`."""

    def __init__(self, home: FederationHome) -> None:
        self._folder = home.path("pools")

    def all(self) -> dict[bytes, Schema]:
        """Return the schema of each pool of labels, by the pool's digest."""
        try:
            paths = sorted(one for one in self._folder.iterdir() if one.name[0] != ".")
            pools = (path for path in paths if not _is_evaluation(path))
            return {bytes.fromhex(path.name): _schema_in(path) for path in pools}
        except (OSError, ValueError, InvalidTaskError) as error:
            raise RunRequestError(
                "every file under pools must be one that was published: put it back from a backup",
                type(error).__name__,
            ) from error

    def find(self, digest: bytes) -> LearningTask:
        """Return a pool with its task."""
        try:
            task = LearningTask.from_bytes(read_regular(self._folder / digest.hex()))
        except (OSError, InvalidTaskError) as error:
            must = "the queries must be a pool that was published"
            raise RunRequestError(must) from error
        if task.pool.digest != digest:
            raise RunRequestError("a pool that was published must be as it was")
        return task

    @contextmanager
    def published(self, pool: bytes, task: LearningTask | EvaluationTask) -> Iterator[None]:
        """Let members fetch a task and its pool as first published, unless the body fails."""
        path, content = self._folder / pool.hex(), task.to_bytes()
        with _alone_in(self._folder):
            is_new = not path.exists()
            try:
                if is_new:
                    write_file(path, content)
                is_same = read_regular(path) == content
            except OSError as error:
                raise RunRequestError("the folder must be writable", error.strerror) from error
            if not is_same:
                raise RunRequestError("a pool that was published must be as it was")
            try:
                yield
            except BaseException:
                if is_new:
                    path.unlink()
                raise


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Wait until no other process holds the lock of our folder."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _schema_in(path: Path) -> Schema:
    written = path.stat()
    return _read_schema(path, written.st_mtime_ns, written.st_size)


@lru_cache(maxsize=64)
def _read_schema(path: Path, *written: int) -> Schema:
    """Read a file's schema once for each time that it was written: its rows take a while."""
    del written
    return schema_in(path)


def _is_evaluation(path: Path) -> bool:
    with open_regular(path) as file:
        return is_evaluation(file.read(64))
