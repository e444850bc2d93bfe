"""Tasks at a hospital: fetched by the digest of their pool, checked, kept; voted on by teachers.

A stored task allows nothing by itself: the guard asks for pools that the owner approved.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from party.errors import Reason, RefusalError, TaskError
from party.site.document_child import AskedTask, read_document, require_readable
from party.site.folder import Site
from pate_fed.data.task import MAX_TASK_BYTES, LearningTask
from pate_fed.federation import NO_TASK, RunTerms
from pate_fed.nodes import write_file
from pate_fed.nodes.owner_files import as_fault
from pate_fed.queries import QueryBatch, QueryPool
from pate_fed.regular_files import read_regular
from pate_fed.teachers import TeacherEnsemble

DIGEST_BYTES = 32

Vote = Callable[[QueryBatch], NDArray[np.int64]]
"""Teachers' votes on a batch: classes, shape (teachers, queries)."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A student on the patients whom this hospital held out.

    Attributes:
        by: Columns whose groups are counted.
        share: Share of the patients who are held out: a setting, and no secret.
        places: Most patients that are counted; public.
        rows: Counts them in a row for each grouping: see `EvaluationTask.rows_of`. Secret.
    """

    by: tuple[str, ...]
    share: float
    places: int
    rows: Callable[[], NDArray[np.int64]] = field(repr=False)


@dataclass(frozen=True, slots=True)
class PartyTask:
    """A task that a party can be asked about.

    Attributes:
        pool: The public queries that its owner approved.
        vote: Its teachers for them.
        classes: Number of classes that they know; None where the run's terms give it.
        digest: Of the task document that its owner approved with the pool; `NO_TASK` in a
            simulation, which has none.
        teachers: Digest of the teachers as they are kept; empty in a simulation.
        evaluation: What is counted instead of votes, where it is a private evaluation.
    """

    pool: QueryPool
    vote: Vote = field(repr=False)
    classes: int | None = None
    digest: bytes = NO_TASK
    teachers: bytes = b""
    evaluation: Evaluation | None = None


def tasks_of(*tasks: PartyTask) -> dict[bytes, PartyTask]:
    """Return tasks by the digests of their pools."""
    return {task.pool.digest: task for task in tasks}


def task_for(terms: RunTerms, tasks: Mapping[bytes, PartyTask]) -> PartyTask:
    """Return the task that a run asks about.

    Raises:
        RefusalError: there is none that is ready, or it is not as the terms say.
    """
    task = tasks.get(terms.pool_digest)
    if task is None:
        raise RefusalError(Reason.POOL, "teachers must be ready for the pool", "none")
    if terms.task_digest != task.digest:
        # Otherwise hospitals could be told of one pool in two ways, and add up votes that
        # mean different classes.
        raise RefusalError(Reason.TASK, "a run must be of the task that is kept here", "another")
    if terms.is_evaluation is not (task.evaluation is not None):
        raise RefusalError(Reason.TASK, "a run must ask what its pool is for", "another thing")
    if task.evaluation is not None and set(terms.quotas) != {task.evaluation.places}:
        raise RefusalError(Reason.TASK, "a run must have the evaluation's places", "others")
    if task.classes not in (None, terms.classes):
        raise RefusalError(Reason.TERMS, "a run must have the task's classes", "others")
    return task


class PoolDoor(Protocol):
    """The source of a pool's file: `enrollment.CoordinatorDoor` is one."""

    def fetch_pool(self, digest: bytes) -> bytes:
        """Return the file."""


def fetch_task(site: Site, door: PoolDoor, digest: bytes) -> AskedTask:
    """Return the task whose pool has this digest: the stored one, or else fetched and checked.

    A document is kept once a child with bounded memory has read it: see `document_child`.

    Args:
        site: The hospital's folder.
        door: The coordinator's door.
        digest: Of its pool, 32 bytes.

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
        raise TaskError("a pool must have public inputs", "an evaluation")
    return task


def party_task(task: LearningTask, ensemble: TeacherEnsemble, *, teachers: bytes) -> PartyTask:
    """Put a task and its teachers together.

    Args:
        task: The task.
        ensemble: Its teachers.
        teachers: Their digest, as `training.teachers_digest` gives it.
    """
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
