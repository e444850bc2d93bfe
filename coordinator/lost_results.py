"""Writes a run's directory anew: from the database after a restore, or with another student.

Labels, prices, settings and transcript are in the database. Traffic and times are not, and the
student's training draws other random numbers: the report names the losses.
"""

from __future__ import annotations

import secrets
from contextlib import nullcontext
from typing import Any, Final

import numpy as np

from coordinator.database import FederationAct
from coordinator.errors import RunQueueError
from coordinator.operator import Coordinator
from coordinator.runs.queue import Run, RunState
from coordinator.runs.request import RunRequest, read_learning_task
from coordinator.runs.retraining import PublicInputs, give_student
from coordinator.runs.transport import NoTransport
from coordinator.runs.worker import RunWorker
from coordinator.runs.worker_resources import WorkerResources
from coordinator.runs.write_up import write_up
from pate_fed.report import FinishedRun

WHAT_IS_LOST: Final = (
    "The run directory was written anew from the database. Lost: how much was sent, in how many "
    "exchanges, and how long it took. The student was trained anew: an earlier copy may differ."
)


def write_anew(coordinator: Coordinator, name: str) -> bool:
    """Write the directory of a run that has ended, if it is gone; tell whether it was written.

    Raises:
        RunQueueError: there is no such run, or it has not ended.
        RunRequestError: its task, or one of its hospitals, is not there any more.
        RunStateError: its records in the database do not fit each other.
    """
    run = coordinator.queue.find(name)
    results = coordinator.home.results(name)
    if results.is_dir():
        return False
    if not run.is_ended:
        raise RunQueueError("a run that is exported must have ended", run.state.value)
    results.parent.parent.mkdir(mode=0o700, exist_ok=True)
    _Writer(
        coordinator.home,
        coordinator.queue,
        parties=coordinator.enrollment.parties,
        resources=WorkerResources(
            open_transport=lambda _: nullcontext(NoTransport()),
            random_bytes=secrets.token_bytes,
            noise_bytes=secrets.token_bytes,
            wait=lambda _: None,
        ),
        write=write_up,  # which raises: somebody waits for them
    ).write(run)
    return results.is_dir()


def give_student_to(
    coordinator: Coordinator, name: str, kind: str
) -> tuple[FinishedRun, list[str]]:
    """Train a student of a kind from the stored labels of a run that has ended; see `give_student`.

    Raises:
        RunQueueError: there is no such run, it has not ended or has no label, or its student is
            being scored.
        See `write_anew` and `give_student`.
    """
    from pate_fed.students import LabelFacts, require_student  # noqa: PLC0415 - takes seconds

    request = RunRequest.from_json(coordinator.queue.request(name))
    task = read_learning_task(coordinator.home, request)
    pool, classes = task.pool, task.classes
    require_student(kind, task.kind, pool=pool.views, classes=classes, facts=LabelFacts())
    write_anew(coordinator, name)
    folder = coordinator.home.results(name)
    if not folder.is_dir():
        raise RunQueueError("a run that gets a student must have ended with labels", "none yet")
    _note_student(coordinator, name, kind)
    inputs = PublicInputs(
        pool=pool,
        kind=task.kind,
        class_names=task.class_names,
        preprocessing=task.schema.preprocessing,
    )
    return give_student(
        folder,
        kind,
        inputs,
        identity=coordinator.home.identity,
        rng=np.random.default_rng(list(secrets.token_bytes(32))),
        run=name,
    )


def _note_student(coordinator: Coordinator, name: str, kind: str) -> None:
    """Tell that a run gets another student: before it does, so that none is without an entry."""
    queue = coordinator.queue
    run = queue.find(name)
    if not run.is_ended:
        raise RunQueueError("a run that gets a student must have ended", run.state.value)
    for one in queue.all():
        evaluation = RunRequest.from_json(queue.request(one.name)).evaluation
        if evaluation is not None and evaluation.run == name and not one.is_ended:
            must = "a run must keep its student while hospitals score it"
            raise RunQueueError(must, f"{one.name} is open")
    coordinator._tell(FederationAct.STUDENT_GIVEN, name, {}, {"student": kind})


class _Writer(RunWorker):
    """A worker for runs that are over: no hospital hears of it, and no label or charge changes.

    It takes the run up as every worker does, which may add an empty attempt.
    """

    def write(self, run: Run) -> None:
        """Write the results of a run."""
        opened, _ = self._taken_up(run)
        opened.warnings.append(WHAT_IS_LOST)
        if not opened.is_unbegun or opened.left:
            self._read_out(opened, run.reason)
        elif run.state is RunState.DONE:
            self._answer_from_store(opened)

    def _note(self, *_: Any) -> None:
        """Leave the notes of its progress: the traffic is known there alone."""
