"""Tasks at a hospital: fetched by the digest of their pool, checked, kept; voted on by teachers.

A stored task allows nothing by itself: the guard asks for pools that the owner approved.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from party.errors import TaskError
from party.site.document_child import AskedTask, read_document, require_readable
from party.site.party_task import PartyTask
from party.site.site import Site
from pate_fed.data.task import MAX_TASK_BYTES, LearningTask
from pate_fed.evaluation_task import is_evaluation
from pate_fed.nodes import write_file
from pate_fed.nodes.owner_files import as_fault
from pate_fed.queries import QueryBatch
from pate_fed.regular_files import open_regular, read_regular
from pate_fed.teachers import TeacherEnsemble

DIGEST_BYTES = 32
_DIGEST = re.compile("[0-9a-f]{64}")


class PoolDoor(Protocol):
    """The source of a pool's file: `enrollment.CoordinatorDoor` is one."""

    def fetch_pool(self, digest: bytes) -> bytes:
        """Return the file."""


def fetch_task(site: Site, door: PoolDoor, digest: bytes) -> AskedTask:
    """Return the task whose pool has this digest: the stored one, or else fetched and checked."""
    _require_digest(digest)
    if site.path("pools", digest.hex()).exists():
        return read_task(site, digest)
    content = door.fetch_pool(digest)
    require_readable(content, digest)
    _keep(site, digest, content)
    return read_document(content, digest)


def read_task(site: Site, digest: bytes) -> AskedTask:
    """Return the kept, unchanged task whose pool has this digest, or raise `TaskError`."""
    _require_digest(digest)
    with as_fault(TaskError, "the task's file must be readable"):
        content = read_regular(site.path("pools", digest.hex()), most_bytes=MAX_TASK_BYTES)
    return read_document(content, digest)


def kept_pools(site: Site) -> list[Path]:
    """Return the files of all kept documents, named by the digests of their pools."""
    return sorted(one for one in site.path("pools").glob("*") if _DIGEST.fullmatch(one.name))


def begins_as_evaluation(kept: Path) -> bool:
    """Tell whether a kept document is no task with labels; it may be large, and is not read."""
    with open_regular(kept) as file:
        return is_evaluation(file.read(64))


def read_learning_task(site: Site, digest: bytes) -> LearningTask:
    """Return the kept task, no evaluation, of a pool whose labels are asked for."""
    task = read_task(site, digest)
    if not isinstance(task, LearningTask):
        raise TaskError("a pool must have public inputs")
    return task


def party_task(
    task: LearningTask,
    ensemble: TeacherEnsemble,
    *,
    teachers: bytes,
    patients: tuple[str, ...] | None = None,
) -> PartyTask:
    """Put a task and its voters together; the rest is of `party.site.training`."""

    def vote(batch: QueryBatch) -> NDArray[np.int64]:
        return ensemble.vote(batch.views)

    return PartyTask(task.pool, vote, len(task.class_names), task.digest, teachers, patients)


def _require_digest(digest: bytes) -> None:
    if len(digest) != DIGEST_BYTES:
        raise TaskError(f"a pool's digest must have {DIGEST_BYTES} bytes", len(digest))


def _keep(site: Site, digest: bytes, content: bytes) -> None:
    with as_fault(TaskError, "the task's file must be writable"):
        write_file(site.path("pools", digest.hex()), content)
