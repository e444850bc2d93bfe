"""Tasks at a hospital: fetched by the digest of their pool, checked, kept; voted on by teachers.

A stored task allows nothing by itself: the guard asks for pools that the owner approved.
"""

from __future__ import annotations

from functools import partial
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from party.errors import TaskError
from party.site.document_child import AskedTask, read_document, require_readable
from party.site.party_task import PartyTask
from party.site.site import Site
from pate_fed.data.task import MAX_TASK_BYTES, LearningTask
from pate_fed.nodes import write_file
from pate_fed.nodes.owner_files import as_fault
from pate_fed.queries import QueryBatch
from pate_fed.regular_files import read_regular
from pate_fed.teachers import TeacherEnsemble

DIGEST_BYTES = 32


class PoolDoor(Protocol):
    """The source of a pool's file: `enrollment.CoordinatorDoor` is one."""

    def fetch_pool(self, digest: bytes) -> bytes:
        """Return the file."""


def fetch_task(site: Site, door: PoolDoor, digest: bytes) -> AskedTask:
    """Return the task whose pool has this digest: the stored one, or else fetched and checked.

    A document is kept once a child with bounded memory has read it: see `document_child`.

    Raises:
        EnrollmentError: the coordinator cannot be reached, or has no such file for us.
        TaskError: the answer is no task of this pool, or cannot be kept.
    """
    _require_digest(digest)
    if site.path("pools", digest.hex()).exists():
        return read_task(site, digest)
    content = door.fetch_pool(digest)
    require_readable(content, digest)
    _keep(site, digest, content)
    return read_document(content, digest)


def read_task(site: Site, digest: bytes) -> AskedTask:
    """Return the kept task whose pool has this digest.

    Raises:
        TaskError: there is none, or its file changed.
    """
    _require_digest(digest)
    with as_fault(TaskError, "the task's file must be readable"):
        content = read_regular(site.path("pools", digest.hex()), most_bytes=MAX_TASK_BYTES)
    return read_document(content, digest)


def read_learning_task(site: Site, digest: bytes) -> LearningTask:
    """Return the kept task of a pool whose labels are asked for.

    Raises:
        TaskError: there is none, its file changed, or it is an evaluation.
    """
    task = read_task(site, digest)
    if not isinstance(task, LearningTask):
        raise TaskError("a pool must have public inputs")
    return task


def party_task(task: LearningTask, ensemble: TeacherEnsemble, *, teachers: bytes) -> PartyTask:
    """Put a task and its teachers together; `teachers` is `training.teachers_digest`."""
    vote = partial(_vote, ensemble)
    return PartyTask(task.pool, vote, len(task.class_names), task.digest, teachers)


def _require_digest(digest: bytes) -> None:
    if len(digest) != DIGEST_BYTES:
        raise TaskError(f"a pool's digest must have {DIGEST_BYTES} bytes", len(digest))


def _keep(site: Site, digest: bytes, content: bytes) -> None:
    with as_fault(TaskError, "the task's file must be writable"):
        write_file(site.path("pools", digest.hex()), content)


def _vote(ensemble: TeacherEnsemble, batch: QueryBatch) -> NDArray[np.int64]:
    return ensemble.vote(batch.views)
