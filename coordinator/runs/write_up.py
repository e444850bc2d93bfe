"""The write-up of a run: its student, and its run directory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from coordinator.database import SqlCoordinatorJournal
from coordinator.errors import DatabaseError, RunStateError
from coordinator.runs import results
from coordinator.runs.evaluating import write_evaluation
from coordinator.runs.interim import labels_to_learn, reinforced_labels, teach
from coordinator.runs.labeling import LabelingRun
from coordinator.runs.later_steps import NO_STUDENT, another_student, told
from coordinator.runs.open_run import OpenRun
from coordinator.runs.results import EarlierSetup
from pate_fed.data.task import LearningTask
from pate_fed.evaluation_task import EvaluationTask
from pate_fed.regular_files import read_regular
from pate_fed.report.tables import metrics_table
from pate_fed.report.warning_words import (
    earlier_warnings,
    end_warnings,
    setup_warnings,
    slack_warnings,
)
from pate_fed.run_folder import forget_unfinished
from protocols.rounds import CoordinatorRound

if TYPE_CHECKING:
    from pate_fed.students import Student

MOST_TRIES: Final = 3
"""How often a student's training may end the whole process; then the run has no student."""

Write = Callable[[OpenRun, LabelingRun], list[str]]
"""Writes the results of a run, and returns what is missing."""

_NO_EXCHANGES: Final = dict.fromkeys(("setup", "batches", "closing"), 0)


def write_up(
    run: OpenRun,
    labeling: LabelingRun,
    *,
    exchanges: Mapping[str, int] = _NO_EXCHANGES,
    seconds: float = 0.0,
) -> list[str]:
    """Train the student and write the run directory, if a label was released and it is absent.

    Returns:
        What is missing in it, a line each: see `later_steps`.

    Raises:
        RunDirectoryError: the directory cannot be written.
    """
    if not run.has_answers:
        return []
    forget_unfinished(run.results)  # of a life that ended while it wrote
    if run.results.exists():
        return []
    run.results.parent.mkdir(mode=0o700, exist_ok=True)
    request, settings, task = run.request, run.request.settings, run.task
    if isinstance(task, EvaluationTask):
        return write_evaluation(run, labeling, task)
    outcomes, earlier_runs = run.outcomes, dict(Counter(run.drawn_in.values()))
    setups, reinforced = _earlier_setups(run), reinforced_labels(run.store)
    known = labels_to_learn(outcomes, run.store)
    student = _student(run, task, known)
    notes = [run.warnings[-1]] if known and student is None else []
    privacy = results.privacy_of(
        labeling,
        settings=settings,
        store=run.store,
        simulated=False,
        earlier=run.used_runs,
        asks_nothing=not run.left and not run.store.asked(),
    )
    # Batches that were asked and are in no release.
    void = len(labeling.asked) - len(results.answers_of(run.store))
    run.warnings += [
        *slack_warnings(privacy),
        *end_warnings(
            labeling.terms,
            is_over=labeling.is_over,
            ledger=privacy.ledger,
            queries=len(request.queries) - len(run.earlier),
            void=void,
            voids=run.voids,
        ),
        *(f"{said}." for said in run.skipped_words),
        *setup_warnings(setup.reason for setup in setups),
        *results.warnings_of(labeling),
        *earlier_warnings(earlier_runs),
    ]
    metrics = metrics_table(
        data=None,
        parties=len(request.parties),
        teachers=settings.all_teachers,
        truth=None,
        pool=len(task.pool),
        queries=request.queries,
        outcomes=outcomes,
        void=void,
        reinforced=len(reinforced),
        student=student,
        scores=None,
        yardsticks={},
        sent=run.traffic.sent,
        received=run.traffic.received,
        exchanges=exchanges,
        batches=len(run.store.ledger().states),
        seconds={"labeling": seconds},
        warnings=run.warnings,
        earlier_runs=earlier_runs,
    )
    results.write_results(
        run.results,
        run=labeling,
        begun_on=run.attempt.begun_on(),
        settings=settings,
        others={"data": request.source, "classes": request.class_names},
        pool_digest=request.pool,
        metrics=metrics,
        privacy=privacy,
        outcomes=outcomes,
        class_names=request.class_names,
        student=student,
        preprocessing=task.schema.preprocessing,
        drawn_in=run.drawn_in,
        reinforced=reinforced,
        earlier=setups,
        packets=run.traffic.packets,
        federation=run.home.settings.name,
        again=another_student(request.name),
        notes=notes,
    )
    tries_of(run).unlink(missing_ok=True)
    return notes


def write_or_note(run: OpenRun, labeling: LabelingRun, **took: Any) -> list[str]:
    """Write a run's results; where that fails, say so: its labels are in the database.

    Args:
        run: The run.
        labeling: The same, closed.
        took: Its exchanges and seconds, where they are known.

    Returns:
        What is missing, a line each.

    Raises:
        RunDirectoryError: the disk is full, or not writable: the service tries again.
    """
    try:
        return write_up(run, labeling, **took)
    except (RunStateError, DatabaseError):
        raise
    except Exception as error:
        if isinstance(error, OSError) or isinstance(error.__cause__, OSError):
            raise
        again = f"`pate-fed export {run.request.name}` tries again"
        return [f"its results could not be written: {told(error)}; {again}"]


def tries_of(run: OpenRun) -> Path:
    """Return the file that counts how often the training of a run's student was begun."""
    return run.results.with_name("student-tries")


def _student(run: OpenRun, task: LearningTask, known: Mapping[int, int]) -> Student | None:
    again, tries = another_student(run.request.name), _one_more_try(run)
    if tries > MOST_TRIES:
        run.warnings.append(
            f"{NO_STUDENT} Its training was cut off {MOST_TRIES} times, as where the machine has "
            f"too little memory. {again}."
        )
        return None
    return teach(
        known,
        name=run.request.settings.student,
        pool=task.pool,
        kind=task.kind,
        classes=task.classes,
        facts=run.request.settings.label_facts(task.kind),
        rng=np.random.default_rng(list(run.world.random_bytes(32))),
        warnings=run.warnings,
        again=again,
    )


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
