"""The write-up of a run: its student, and its run directory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import numpy as np

from coordinator.database import SqlCoordinatorJournal
from coordinator.runs import results
from coordinator.runs.interim import labels_to_learn, reinforced_labels
from coordinator.runs.labeling import LabelingRun
from coordinator.runs.open_run import OpenRun
from coordinator.runs.results import EarlierSetup
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
    """Train the student and write the run directory.

    Nothing happens if nothing was released, or if it was written before.

    Args:
        run: The run.
        labeling: Its setup, batches and closing.
        exchanges: Exchanges of each part of the run.
        seconds: Its duration.

    Raises:
        RunDirectoryError: the directory cannot be written.
    """
    if not run.has_answers:
        return
    forget_unfinished(run.results)  # of a life that ended while it wrote
    if run.results.exists():
        return
    run.results.parent.mkdir(mode=0o700, exist_ok=True)
    request, settings = run.request, run.request.settings
    outcomes, earlier_runs = run.outcomes, dict(Counter(run.drawn_in.values()))
    setups = _earlier_setups(run)
    student = _student(run, outcomes, run.world.random_bytes(32))
    privacy = results.privacy_of(
        labeling,
        settings=settings,
        store=run.store,
        simulated=False,
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
        parties=len(request.parties),
        teachers=settings.all_teachers,
        truth=None,
        pool=len(run.task.pool),
        queries=request.queries,
        outcomes=outcomes,
        void=void,
        reinforced=len(reinforced_labels(run.store)),
        student_accuracy=None,
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
        metrics=metrics,
        privacy=privacy,
        settings=_settings_table(run),
        manifest=results.manifest_table(
            settings=settings,
            partition=None,
            run=labeling,
            pool_digest=request.pool,
            earlier=setups,
        ),
        outcomes=outcomes,
        class_names=request.class_names,
        run=labeling,
        student=student,
        drawn_in=run.drawn_in,
        earlier=setups,
    )


def _settings_table(run: OpenRun) -> dict[str, object]:
    table = run.request.settings.as_table()
    source = dict(table["source"])  # type: ignore[call-overload]
    return {
        **table,
        "data": run.request.source,
        "source": {**source, "classes": list(run.request.class_names)},
    }


def _student(run: OpenRun, outcomes: Answers, seed: bytes) -> Student | None:
    known = labels_to_learn(outcomes, run.store)
    if not known:
        run.warnings.append("No query was answered: there is no student.")
        return None
    from pate_fed.students import make_student  # noqa: PLC0415 - takes seconds

    student = make_student(run.request.settings.student, run.task.kind)
    student.fit(
        run.task.pool.inputs,
        np.array(list(known), dtype=np.int64),
        np.array(list(known.values()), dtype=np.int64),
        classes=run.task.classes,
        rng=np.random.default_rng(list(seed)),
    )
    return student


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
