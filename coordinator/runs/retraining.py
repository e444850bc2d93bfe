"""Another student for a finished run, from its stored labels: nobody is asked, nothing is charged.

A student learns from released labels and public inputs alone, so it may be trained as often as
somebody likes. The run directory is then sealed anew, after it was found to be as it was sealed.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from coordinator.runs import results
from coordinator.runs.later_steps import NO_STUDENT, another_student
from coordinator.runs.transcripts import check_transcript
from pate_fed.data import Records
from pate_fed.data.preprocessing import Preprocessing
from pate_fed.errors import InvalidDataError, NoLabelError, RunDirectoryError
from pate_fed.evaluation_task import groups_of
from pate_fed.inputs import DatasetKind
from pate_fed.queries import QueryPool
from pate_fed.record import Metrics
from pate_fed.report import FinishedRun, RunDirectory, read_run
from pate_fed.report.ended_run import student_kind
from pate_fed.report.run_directory import digests_of
from pate_fed.report.scores import scores_of
from pate_fed.run_folder import ANNEXES, AUDIT, METRICS, REPORT, SEAL, SETTINGS, STUDENT
from protocols.identity import SigningIdentity
from protocols.transcript import seal_files

if TYPE_CHECKING:
    from pate_fed.students import LabelFacts, Student

_ANEW: Final = (SETTINGS, METRICS, SEAL, REPORT, ANNEXES, STUDENT)
"""Entries of a run directory that another student changes."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class PublicInputs:
    """The public inputs of a run, which its directory does not hold.

    Attributes:
        preprocessing: The way from raw rows to inputs; None for data without one.
        labels: Names of several labels; empty for one.
        pool_shares: Share of each class in the pool, label by label, which a simulation knows;
            None elsewhere.
        test: A simulation's test records; None in a deployment.
    """

    pool: QueryPool
    kind: DatasetKind
    class_names: tuple[str, ...]
    preprocessing: Preprocessing | None
    labels: tuple[str, ...] = ()
    pool_shares: tuple[tuple[float, ...] | None, ...] = (None,)
    test: Records | None = None


def give_student(
    run_dir: Path,
    name: str,
    inputs: PublicInputs,
    *,
    identity: SigningIdentity,
    rng: np.random.Generator,
    run: str,
) -> tuple[FinishedRun, list[str]]:
    """Train a student of a kind, one of `STUDENTS` or "auto", from a run's labels; put it there.

    It takes the place of an earlier one. Settings, metrics, card, seal and pages follow; labels,
    prices, manifest and transcript stay as they are. `identity` is that of the run's coordinator,
    who seals the results, and `run` how a person names the run. Returns the run with its student,
    and what could not be made, a line each.

    Raises:
        RunDirectoryError: the directory cannot be read or written, is a public edition, or its
            student was scored on patients who were kept back.
        BrokenTranscriptError, AlteredResultsError: somebody changed it.
        InvalidParameterError: no such student could learn from these inputs.
        NoLabelError: the run released no label.
        InvalidDataError: the inputs are not those of the run.
    """
    record = _readable(run_dir)
    known = _labels_of(record, inputs.class_names)
    student = _trained(name, record, inputs, known, rng=rng)
    metrics = _metrics_with(student, record, inputs)
    settings = record.settings.changed(student=name)
    notes: list[str] = []
    with RunDirectory.open_in_place(run_dir) as directory:
        for path in sorted(run_dir.iterdir()):
            if path.name not in _ANEW and path.is_file() and not path.name.startswith("."):
                shutil.copyfile(path, directory.folder / path.name)
        metrics = results.write_student(
            directory,
            student,
            (inputs.preprocessing, inputs.class_names),
            metrics=metrics,
            again=another_student(run),
            notes=notes,
        )
        directory.write_record(settings, metrics)
        results.write_card(directory, metrics, record.privacy, settings, notes=notes)
        if (run_dir / SEAL).exists():
            found = digests_of(directory.folder)
            files = {name: found[name] for name in found if name != AUDIT}
            head = bytes.fromhex(record.manifest.transcript_head)
            directory.write_json(SEAL, seal_files(files, head=head, coordinator=identity))
        results.write_pages(directory, notes=notes)
    return read_run(run_dir), notes


def _readable(run_dir: Path) -> FinishedRun:
    """Read a run whose student may be replaced; nobody's changes get a new seal."""
    record = read_run(run_dir)
    if record.manifest.is_public:
        raise RunDirectoryError("a run must be whole to get a student", "a public edition")
    if record.metrics.evaluation is not None:
        raise RunDirectoryError(
            "a run must keep the student that was scored on patients who were kept back",
        )
    if (run_dir / SEAL).exists():
        check_transcript(run_dir)
    return record


def _labels_of(record: FinishedRun, class_names: tuple[str, ...]) -> dict[int, int]:
    """Return the labels to learn from, by position in the pool."""
    numbers = {name: place for place, name in enumerate(class_names)}
    found = {query: label for query, label in record.labels if label} | dict(record.reinforced)
    if not set(found.values()) <= numbers.keys():
        raise InvalidDataError("classes must be those of the run")
    return {int(query): numbers[label] for query, label in found.items()}


def _trained(
    name: str,
    record: FinishedRun,
    inputs: PublicInputs,
    known: Mapping[int, int],
    *,
    rng: np.random.Generator,
) -> Student:
    from pate_fed.students import (  # noqa: PLC0415 - takes seconds
        IMAGE_STUDENTS,
        Lesson,
        require_student,
        train_student,
    )

    facts, classes = _facts_of(record, inputs), len(inputs.class_names)
    device = (name in IMAGE_STUDENTS and record.settings.device) or "cpu"
    require_student(
        name, inputs.kind, pool=inputs.pool.views, classes=classes, facts=facts, device=device
    )
    if not known:
        raise NoLabelError
    lesson = Lesson.of(
        inputs.pool, known, classes=classes, facts=facts, coverage=record.settings.coverage
    )
    return train_student(name, inputs.kind, lesson, rng=rng, device=device)


def _facts_of(record: FinishedRun, inputs: PublicInputs) -> LabelFacts:
    """Return the facts that the run's own student had."""
    from pate_fed.students import LabelFacts  # noqa: PLC0415 - takes seconds
    from pate_fed.teachers.teacher_choice import shares_out  # noqa: PLC0415 - the same

    settings = record.settings
    shared_out = shares_out(settings.class_balance or "auto", inputs.kind)
    dealt = record.manifest.partition  # of a simulation
    records = dealt.records / (len(inputs.labels) or 1) if dealt else 0.0
    facts = LabelFacts(
        votes=sum(party.votes for party in record.privacy.parties),
        sigma=settings.sigma2 or 0.0,
        shared_out=shared_out,
        records=records / record.metrics.teachers,
    )
    known = inputs.pool_shares if shared_out else (None,) * len(inputs.pool_shares)
    return facts.of_each(inputs.labels, [settings.prevalence or one for one in known])


def _metrics_with(student: Student, record: FinishedRun, inputs: PublicInputs) -> Metrics:
    """Return the metrics of a run with this student: all that was said of an earlier one goes."""
    metrics, test, scores = record.metrics, inputs.test, None
    if test is not None:
        chances = student.chances(test.inputs)
        scores = scores_of(
            chances,
            test.labels,
            inputs.class_names,
            groups=groups_of(test, inputs.preprocessing, record.settings.evaluate_by),
            labels_named=inputs.labels,
            in_set=student.sets_from(chances),
        )
    return metrics.with_student(
        student_kind(student),
        scores,
        warnings=tuple(one for one in metrics.warnings if not one.startswith(NO_STUDENT)),
    )
