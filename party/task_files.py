"""The public tasks that a hospital fetched: checked by the digest of their pool, and kept."""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray

from party.errors import ApprovalError
from party.node import PartyTask
from party.site import Site
from pate_fed.data.task import LearningTask
from pate_fed.queries import QueryBatch
from pate_fed.teachers import TeacherEnsemble
from protocols.chained_log import write_file

FOLDER = "pools"


def read_task(content: bytes, *, pool: bytes) -> LearningTask:
    """Read a task as the coordinator sent it.

    Args:
        content: What came.
        pool: Digest of the pool that was asked for.

    Raises:
        InvalidTaskError: it is no task.
        ApprovalError: it is of another pool.
    """
    task = LearningTask.from_bytes(content)
    if task.pool.digest != pool:
        raise ApprovalError("the task must be of the pool that was asked for", "another's")
    return task


def keep_task(site: Site, task: LearningTask) -> None:
    """Keep a task; one that is kept for its pool already must be the very same.

    Raises:
        ApprovalError: another one is kept for the pool, or it cannot be written.
    """
    path = site.path(FOLDER, task.pool.digest.hex())
    content = task.to_bytes()
    if path.exists():
        if path.read_bytes() != content:
            # Teachers would learn other classes for the same queries.
            raise ApprovalError("a pool must have one task", "another one than is kept")
        return
    try:
        write_file(path, content)
    except OSError as error:
        raise ApprovalError("a task must be writable", error.strerror) from error


def load_task(site: Site, pool: bytes) -> LearningTask | None:
    """Return the task that is kept for a pool; None if there is none.

    Raises:
        InvalidTaskError: it is not as it was written.
        ApprovalError: it cannot be read, or is of another pool.
    """
    try:
        content = site.path(FOLDER, pool.hex()).read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ApprovalError("a kept task must be readable", error.strerror) from error
    return read_task(content, pool=pool)


def party_task(task: LearningTask, ensemble: TeacherEnsemble) -> PartyTask:
    """Put a task and its teachers together."""
    return PartyTask(task.pool, partial(_vote, ensemble), len(task.class_names), task.digest)


def _vote(ensemble: TeacherEnsemble, batch: QueryBatch) -> NDArray[np.int64]:
    return ensemble.vote(batch.inputs)
