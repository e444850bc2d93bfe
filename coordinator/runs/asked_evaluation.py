"""A private evaluation at the coordinator: its request, and the run directory with its scores.

The evaluated run's directory stays as it was sealed. The evaluation has one of its own: the same
labels and student with the scores and their price, and the evaluation's transcript and seal.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from coordinator.errors import RunQueueError, RunRequestError
from coordinator.federation.enrollment import EnrolledParty
from coordinator.federation.home import FederationHome
from coordinator.runs import results
from coordinator.runs.open_run import OpenRun, rounds_of
from coordinator.runs.request import EvaluationRequest, RunRequest, read_learning_task
from pate_fed import wording
from pate_fed.charges import noise_of
from pate_fed.data.task import LearningTask, Schema
from pate_fed.errors import InvalidSettingError, InvalidTaskError
from pate_fed.evaluation import CLASS, PLACE_S, START_S, CertaintyBins, EvaluationPlan
from pate_fed.evaluation_task import STUDENT_FILES, EvaluationTask, groups_by, places_by
from pate_fed.planning.evaluation_settings import EvaluationSettings, EvaluationShape
from pate_fed.prices import charged_price
from pate_fed.record.manifest import EvaluatedRun
from pate_fed.record.metrics import OutcomeCounts
from pate_fed.record.privacy import EvaluationPrice, WithLabels
from pate_fed.report import FinishedRun, RunDirectory, read_run
from pate_fed.report.held_out_scores import (
    answered_by_group,
    half_width,
    held_out_price,
    held_out_scores,
)
from pate_fed.report.run_directory import digests_of
from pate_fed.run_folder import IMAGES, LABELS, SEAL, SETTINGS, STUDENT
from pate_fed.stored_models import SKOPS_FILE
from pate_fed.terms import RUN_NAME, RunTerms, is_run_name
from protocols.forms import FORMS, usual_form

_ADDED_UP: Final = (
    "Both numbers are added up: hospitals may have changed who is held out between the two runs."
)
_MINUTES: Final = 120
_EXAMPLE: Final = 1000
"""Held-out patients for which a price says what it buys: nobody knows how many there are."""


@dataclass(frozen=True, slots=True)
class AskedEvaluation:
    """An evaluation that is to be asked."""

    task: EvaluationTask
    request: RunRequest
    plan: EvaluationPlan

    def is_asked_by(self, request: RunRequest) -> bool:
        """Tell whether another run asks of the same student in the same groups."""
        if request.evaluation is None:
            return False
        places = request.evaluation.settings.places
        return replace(self.task, places=places).pool.digest == request.pool

    @property
    def price_line(self) -> str:
        """Say the cost and what it buys, before it is asked."""
        unit = "patient" if self.request.terms.unit == "record" else "hospital"
        return (
            f"the evaluation costs one {unit} at most epsilon "
            f"{wording.epsilon_text(self.plan.epsilon)} at delta "
            f"{wording.delta_text(self.plan.delta)}, in everybody's view; noise of "
            f"{self.plan.sigma:.1f} patients in each count; with {_EXAMPLE:,} held-out patients it "
            f"tells the accuracy to about {100 * half_width(self.plan, _EXAMPLE):.1f} points; "
            f"a hospital is ready about {self._wait} after it approves"
        )

    @property
    def _wait(self) -> str:
        minutes = math.ceil((START_S + self.task.places * PLACE_S) / 60)
        if minutes < _MINUTES:
            return wording.plural(minutes, "minute")
        return wording.plural(math.ceil(minutes / 60), "hour")


def asked_evaluation(
    home: FederationHome,
    of: RunRequest,
    settings: EvaluationSettings,
    *,
    name: str,
    by: Sequence[str],
    members: Sequence[EnrolledParty],
    patience_s: float,
) -> AskedEvaluation:
    """Make the request of an evaluation; `by` names the columns whose groups are counted.

    Raises:
        RunRequestError: the name cannot be, or the run has no task of its own.
        RunQueueError: the run has no student.
        InvalidSettingError: a number is out of its range, or the task does not read a column.
        TooFewPartiesError: fewer members took part in the run than a secure sum needs.
        BudgetExhaustedError: no noise is enough for the price.
    """
    if not is_run_name(name):
        raise RunRequestError(f"a run's name must be {RUN_NAME}", repr(name))
    task = read_learning_task(home, of)
    current = {one.identity.fingerprint for one in members}
    parties = tuple(
        replace(one, teachers=settings.places) for one in of.parties if one.fingerprint in current
    )
    form = usual_form(len(parties))
    FORMS[form].require_enough(len(parties))
    settings.check(parties=len(parties))
    try:
        evaluation = _document(home.results(of.name) / STUDENT, task, by, settings.places)
        groupings = evaluation.groupings(task.schema)
    except InvalidTaskError as error:
        raise InvalidSettingError(f"--by: {error.must}", error.got) from error
    shape = EvaluationShape(
        name=name,
        pool_digest=evaluation.pool.digest,
        task_digest=task.digest,
        rows=len(groupings),
        columns=EvaluationPlan(groupings, 1.0, 1.0, 0.5).columns,
        parties=len(parties),
    )
    noise = shape.least_noise(settings, form=FORMS[form])
    request = RunRequest(
        name=name,
        pool=evaluation.pool.digest,
        task=task.digest,
        source=of.source,
        kind=of.kind,
        label=of.label,
        class_names=of.class_names,
        parties=parties,
        queries=tuple(range(len(groupings))),
        patience_s=patience_s,
        settings=replace(
            of.settings, form=form, caps=replace(of.settings.caps, batch_size=len(groupings))
        ),
        evaluation=EvaluationRequest(of.name, shape.columns, settings, noise),
    ).priced
    return AskedEvaluation(evaluation, request, plan_of(request.terms, evaluation, task.schema))


def plan_of(terms: RunTerms, evaluation: EvaluationTask, schema: Schema) -> EvaluationPlan:
    """Return what is counted, with the noise of all hospitals: more than their price needs."""
    return EvaluationPlan(
        evaluation.groupings(schema),
        noise_of(terms).sum_sigma(len(terms.weights)),
        charged_price(terms, 0).epsilon,
        terms.delta,
        terms.unit_votes,
    )


def write_evaluation(run: OpenRun, evaluation: EvaluationTask) -> list[str]:
    """Write the directory of an evaluation, if its counts were released; return what it misses.

    Raises:
        RunDirectoryError: the directory cannot be written, or the evaluated run's cannot be read.
        RunRequestError: the evaluated run's task cannot be read.
    """
    released = [release for _, release in run.store.releases().values()]
    if not released or released[0].tallies is None:
        return []
    assert run.request.evaluation is not None
    assert run.home is not None
    labeling = run.labeling
    source = run.home.results(run.request.evaluation.run)
    task = read_learning_task(run.home, replace(run.request, pool=evaluation.source))
    record = read_run(source)
    plan = plan_of(labeling.terms, evaluation, task.schema)
    scores = held_out_scores(plan, plan.counts_in(released[0].tallies))
    privacy = record.privacy.changed(evaluation=_price(record, labeling.terms, plan))
    evaluated = EvaluatedRun(run=run.request.evaluation.run, run_id=record.manifest.run_id)
    manifest = results.manifest_table(run, evaluated=evaluated)
    notes: list[str] = []
    with RunDirectory.open_new(run.results) as directory:
        for name in (SETTINGS, LABELS, *([IMAGES] if (source / IMAGES).exists() else [])):
            shutil.copyfile(source / name, directory.folder / name)
        folder = directory.student_directory()
        for path in sorted((source / STUDENT).iterdir()):
            if path.name not in (*STUDENT_FILES, SKOPS_FILE):
                shutil.copyfile(path, folder / path.name)
        # The one that was scored, as arrays: a directory that was written anew has another.
        for name, content in evaluation.files.items():
            (folder / name).write_bytes(content)
        scores = scores.changed(no_answer=_no_answer(record, folder, task, evaluation.by))
        metrics = record.metrics.changed(evaluation=scores)
        directory.write_record(metrics, privacy, manifest)
        directory.write_transcript(results.transcript_of(rounds_of(run)))
        if run.traffic.packets:
            directory.write_sent(results.sent_of(run))
        files = digests_of(directory.folder)
        directory.write_json(SEAL, rounds_of(run).closing.seal_results(files))
        results.write_pages(directory, notes=notes)
    return notes


def _document(folder: Path, task: LearningTask, by: Sequence[str], places: int) -> EvaluationTask:
    """Return the document of a stored student."""
    from pate_fed.students import read_student  # noqa: PLC0415 - takes seconds
    from pate_fed.students.arrays import as_arrays  # noqa: PLC0415

    if not folder.is_dir():
        raise RunQueueError("a run that is evaluated must have ended with a student")
    model = as_arrays(read_student(folder))
    bins = CertaintyBins.of(model.chances(task.pool.views.features))
    return EvaluationTask(task.digest, task.pool.digest, bins, tuple(by), model.to_files(), places)


def _price(record: FinishedRun, terms: RunTerms, plan: EvaluationPlan) -> EvaluationPrice:
    """Return the entry of `privacy.json`."""
    cost, labels = charged_price(terms, 0), record.privacy.views.public.epsilon
    same = record.privacy.privacy_unit == terms.unit
    return held_out_price(
        plan,
        terms.unit,
        view="everybody",
        method=cost.method,
        trust=f"The hospitals added the noise. It holds against {cost.holds_for}.",
        with_labels=WithLabels(
            epsilon=None if labels is None or not same else labels + plan.epsilon,
            delta=record.privacy.delta + plan.delta,
            method=_ADDED_UP if same else "The labels were priced for another privacy unit.",
        ),
    )


def _no_answer(
    record: FinishedRun, student: Path, task: LearningTask, by: Sequence[str]
) -> dict[str, dict[str, OutcomeCounts]]:
    """Count public queries with and without an answer, by predicted class and by column."""
    from pate_fed.students import read_student  # noqa: PLC0415 - takes seconds

    asked = np.array([int(query) for query, _ in record.labels], dtype=np.int64)
    refused = np.array([not label for _, label in record.labels], dtype=np.bool_)
    views = task.pool.views.select(asked)
    said = read_student(student).chances(views).argmax(axis=1)
    groups = {CLASS: (task.class_names, np.asarray(said, dtype=np.int64))}
    for column in by:
        names = groups_by(task.schema, column)
        groups[f"by {column}"] = names, places_by(task.schema, column, views.features)
    return answered_by_group(groups, refused)
