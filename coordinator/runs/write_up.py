"""The write-up of a run: its student, and its run directory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from coordinator.database import SqlCoordinatorJournal
from coordinator.errors import DatabaseError, RunStateError
from coordinator.runs import results
from coordinator.runs.asked_evaluation import write_evaluation
from coordinator.runs.interim_student import teach
from coordinator.runs.later_steps import NO_STUDENT, said
from coordinator.runs.open_run import OpenRun
from coordinator.runs.results import EarlierSetup
from pate_fed.data.task import LearningTask
from pate_fed.evaluation_task import EvaluationTask
from pate_fed.regular_files import read_regular
from pate_fed.report.warning_words import earlier_warnings, setup_warnings
from pate_fed.run_folder import forget_unfinished
from protocols.rounds import CoordinatorRound

if TYPE_CHECKING:
    from pate_fed.students import Student

MOST_TRIES: Final = 3
"""How often a student's training may end the whole process; then the run has no student."""

Write = Callable[[OpenRun], list[str]]
"""Writes the results of a run, and returns what is missing."""


def write_up(run: OpenRun) -> list[str]:
    """Train the student and write the absent run directory, if a label was released; list faults.

    Raises:
        RunDirectoryError: the directory cannot be written.
    """
    if not run.has_answers:
        return []
    forget_unfinished(run.results)  # of a life that ended while it wrote
    if run.results.exists():
        return []
    run.results.parent.mkdir(mode=0o700, exist_ok=True)
    task = run.task
    if isinstance(task, EvaluationTask):
        return write_evaluation(run, task)
    assert task is not None
    setups = _earlier_setups(run)
    student = _student(run, task)
    notes = [run.warnings[-1]] if run.lessons and student is None else []
    privacy = results.privacy_of(run, earlier=run.used_runs)
    run.warnings += [
        *setup_warnings(setup.reason for setup in setups),
        *earlier_warnings(Counter(run.drawn_in.values())),
    ]
    results.write_results(
        run.results,
        run=run,
        metrics=results.metrics_of(run, student=student, seconds={"labeling": run.seconds}),
        others={"data": run.request.source, "classes": run.request.class_names},
        privacy=privacy,
        student=student,
        preprocessing=task.schema.preprocessing,
        earlier=setups,
        notes=notes,
    )
    tries_of(run).unlink(missing_ok=True)
    return notes


def write_or_note(run: OpenRun) -> list[str]:
    """Write a run's results as `write_up` does; where that fails, say so: its labels are stored.

    Raises:
        RunDirectoryError: the disk is full, or not writable: the service tries again.
    """
    try:
        return write_up(run)
    except (RunStateError, DatabaseError):
        raise
    except Exception as error:
        if isinstance(error, OSError) or isinstance(error.__cause__, OSError):
            raise
        again = f"the machine's administrator tries again, by `pate-fed export {run.request.name}`"
        return [f"its results could not be written: {said(error)}; {again}"]


def tries_of(run: OpenRun) -> Path:
    """Return the file that counts how often the training of a run's student was begun."""
    return run.results.with_name("student-tries")


def _student(run: OpenRun, task: LearningTask) -> Student | None:
    if _one_more_try(run) > MOST_TRIES:
        run.warnings.append(
            f"{NO_STUDENT} Its training was cut off {MOST_TRIES} times, as where the machine has "
            f"too little memory. {run.again}."
        )
        return None
    facts = run.request.settings.label_facts(task.kind)
    rng = np.random.default_rng(list(run.world.random_bytes(32)))
    return teach(run, kind=task.kind, facts=facts, rng=rng)


def _one_more_try(run: OpenRun) -> int:
    """Count a try to train the student before it begins: one that ends the process counts, too."""
    file = tries_of(run)
    with suppress(OSError, ValueError):  # a full disk, or a file that was cut off: the first try
        tries = int(read_regular(file)) + 1 if file.exists() else 1
        file.write_text(str(tries))
        return tries
    return 1


def _earlier_setups(run: OpenRun) -> list[EarlierSetup]:
    return [
        EarlierSetup(
            CoordinatorRound.resumed(
                identity=run.identity,
                form=run.form,
                parties={one.identity.fingerprint: one.identity for one in run.members},
                journal=SqlCoordinatorJournal(attempt),
            ),
            reason,
        )
        for attempt, reason in run.attempt.earlier()
    ]
