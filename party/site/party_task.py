"""What a hospital can be asked about: a pool with teachers to vote, or an evaluation to count."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from party.errors import Reason, RefusalError
from pate_fed.queries import QueryBatch, QueryPool
from pate_fed.terms import NO_TASK, RunTerms

Vote = Callable[[QueryBatch], NDArray[np.int64]]
"""Votes of teachers, or of patients where records vote: classes, shape (voters, queries)."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A student on the patients whom this hospital held out: a `share` of all, and no secret.

    Groups `by` columns are counted, of at most `places` patients; both public. `rows` counts them
    in a row for each grouping: see `EvaluationTask.rows_of`. Secret.
    """

    by: tuple[str, ...]
    share: float
    places: int
    rows: Callable[[], NDArray[np.int64]] = field(repr=False)


@dataclass(frozen=True, slots=True)
class PartyTask:
    """A task that a party can be asked about.

    `classes` is None where the run's terms give their number. `digest` is of the task document that
    its owner approved with the pool; `NO_TASK` in a simulation, which has none. `teachers` is a
    digest, too; empty in a simulation. Where records vote, `patients` are the ids of those who do,
    in the order of their votes. An `evaluation` is counted instead of votes. `votes` is the number
    of teachers where the task asks for a data set by name; otherwise None.
    """

    pool: QueryPool
    vote: Vote = field(repr=False)
    classes: int | None = None
    digest: bytes = NO_TASK
    teachers: bytes = b""
    patients: tuple[str, ...] | None = field(default=None, repr=False)
    evaluation: Evaluation | None = None
    votes: int | None = None


def tasks_of(*tasks: PartyTask) -> dict[bytes, PartyTask]:
    """Return tasks by the digests of their pools."""
    return {task.pool.digest: task for task in tasks}


def task_for(terms: RunTerms, tasks: Mapping[bytes, PartyTask]) -> PartyTask:
    """Return the ready task that a run asks about, as its terms say, or raise `RefusalError`."""
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
    if terms.do_records_vote is not (task.patients is not None):
        must = "teachers must vote" if terms.do_records_vote is False else "records must vote"
        raise RefusalError(Reason.UNIT, f"{must}, as our owner set teacher_model", "others")
    if task.classes not in (None, terms.classes):
        raise RefusalError(Reason.TERMS, "a run must have the task's classes", "others")
    return task
