"""The write-up of a run: its student, and its run directory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import numpy as np

from coordinator.database import SqlCoordinatorJournal
from coordinator.runs import results
from coordinator.runs.evaluating import write_evaluation
from coordinator.runs.interim import labels_to_learn, reinforced_labels, teach
from coordinator.runs.labeling import LabelingRun
from coordinator.runs.open_run import OpenRun
from coordinator.runs.results import EarlierSetup
from pate_fed.data.task import LearningTask
from pate_fed.evaluation_task import EvaluationTask
from pate_fed.report import forget_unfinished
from pate_fed.report.tables import Answers, metrics_table
from pate_fed.report.warning_words import (
    earlier_warnings,
    end_warnings,
    setup_warnings,
    slack_warnings,
)
from protocols.rounds import CoordinatorRound

if TYPE_CHECKING:
    from pate_fed.students import Student

_NO_EXCHANGES: Final = dict.fromkeys(("setup", "batches", "closing"), 0)


def write_up(
    run: OpenRun,
    labeling: LabelingRun,
    *,
    exchanges: Mapping[str, int] = _NO_EXCHANGES,
    seconds: float = 0.0,
) -> None:
    """Train the student and write the run directory, if a label was released and it is absent.

    Raises:
        RunDirectoryError: the directory cannot be written.
    """
    if not run.has_answers:
        return
    forget_unfinished(run.results)  # of a life that ended while it wrote
    if run.results.exists():
        return
    run.results.parent.mkdir(mode=0o700, exist_ok=True)
    request, settings, task = run.request, run.request.settings, run.task
    if isinstance(task, EvaluationTask):
        write_evaluation(run, labeling, task)
        return
    outcomes, earlier_runs = run.outcomes, dict(Counter(run.drawn_in.values()))
    setups, reinforced = _earlier_setups(run), reinforced_labels(run.store)
    student = _student(run, task, outcomes)
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
            ledger=privacy["ledger"],
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
        source=_source(run),
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
    )


def _source(run: OpenRun) -> dict[str, object]:
    source = dict(run.request.settings.as_table()["source"])  # type: ignore[call-overload]
    classes = list(run.request.class_names)
    return {"data": run.request.source, "source": {**source, "classes": classes}}


def _student(run: OpenRun, task: LearningTask, outcomes: Answers) -> Student | None:
    return teach(
        labels_to_learn(outcomes, run.store),
        name=run.request.settings.student,
        pool=task.pool,
        kind=task.kind,
        classes=task.classes,
        facts=run.request.settings.label_facts(task.kind),
        rng=np.random.default_rng(list(run.world.random_bytes(32))),
        warnings=run.warnings,
    )


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
