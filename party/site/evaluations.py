"""Private evaluations at a hospital: its held-out patients, and what a student says of them.

Predictions are made once, when an approved evaluation becomes ready: that they fail shows in no
answer. How long they take can show in the node's silence meanwhile (see known limitations).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from party.errors import DataError, TaskError
from party.site.dataset import read_registered
from party.site.folder import Site
from party.site.held_out import held_out
from party.site.student_child import predictions
from party.site.tasks import Evaluation, PartyTask, read_learning_task
from party.site.training import load_teachers, require_current
from pate_fed.data.dataset import Records
from pate_fed.data.task import LearningTask
from pate_fed.errors import InvalidTaskError
from pate_fed.evaluation import share_interval
from pate_fed.evaluation_task import EvaluationTask
from pate_fed.queries import QueryBatch

Predict = Callable[..., NDArray[np.float64]]
"""As `student_child.predictions`."""

_Z = 1.959963984540054
_log = logging.getLogger(__name__)


def ready_evaluation(
    site: Site, evaluation: EvaluationTask, *, predict: Predict = predictions
) -> PartyTask:
    """Make an approved evaluation ready to be asked about.

    Args:
        site: The hospital's folder.
        evaluation: The approved one.
        predict: Makes a student's predictions.

    Raises:
        TaskError: it is of no task that is kept here, or of columns that it does not read.
        TeachersError: the task's teachers were not trained without the patients held out now.
        DataError, DataChangedError, InvalidDataError: the table cannot be read.
    """
    task = task_of(site, evaluation)
    require_current(site, task)
    records = held_out_records(site, task)
    chances = _predicted(evaluation, task, records, predict)

    def rows(slots: int) -> NDArray[np.int64]:
        counted = records.select(range(min(slots, len(records))))
        said = chances[: len(counted)]
        return evaluation.rows_of(task.schema, counted, said, slots=slots)

    columns = 2 * max(len(one.groups) for one in evaluation.groupings(task.schema)) + 1
    return PartyTask(
        evaluation.pool,
        _no_vote,
        columns,
        evaluation.digest,
        evaluation=Evaluation(evaluation.by, len(records), rows),
    )


def task_of(site: Site, evaluation: EvaluationTask) -> LearningTask:
    """Return the kept task whose student is evaluated.

    Raises:
        TaskError: there is none, or the evaluation asks for groups that it does not know.
    """
    task = read_learning_task(site, evaluation.source)
    try:
        evaluation.groupings(task.schema)
    except InvalidTaskError as error:
        raise TaskError(error.must, error.got) from error
    return task


def held_out_records(site: Site, task: LearningTask) -> Records:
    """Return one record of each patient who is held out here.

    Raises:
        DataError: no table is registered, or its label is another column than the task's.
        DataChangedError, InvalidDataError: it changed, or does not fit the task.
    """
    data = site.settings.data
    if data.label != task.label:
        raise DataError(f"the table's label must be the task's, {task.label!r}", repr(data.label))
    records = task.encode(read_registered(site), patient_column=data.patient_id or None)
    return held_out(records, site.settings.held_out)


_VERDICTS: Final = {
    "yes": "The student beats this hospital's own teachers.",
    "no": "This hospital's own teachers do better than the student.",
    "not clear": "So few patients cannot tell which of the two is better.",
}


@dataclass(frozen=True, slots=True)
class OwnScores:
    """A student and this hospital's own teachers, on its held-out patients. For its people alone.

    Attributes:
        patients: How many there are.
        right: By name ("student", "own teachers", "most common class"), on how many each is right.
        gained: Patients on whom the student is right and the teachers are wrong.
        lost: The reverse.
    """

    patients: int
    right: Mapping[str, int]
    gained: int
    lost: int

    @property
    def verdict(self) -> str:
        """Whether the student beats the hospital's own teachers: "yes", "no" or "not clear"."""
        difference = self.gained - self.lost
        if abs(difference) <= _Z * math.sqrt(self.gained + self.lost):
            return "not clear"
        return "yes" if difference > 0 else "no"

    @property
    def words(self) -> str:
        """The verdict in a sentence."""
        return _VERDICTS[self.verdict]

    def interval(self, name: str) -> tuple[float, float]:
        """Return the 95 % interval of the share on which one is right."""
        return share_interval(self.right[name], self.patients - self.right[name], 0.0, 0.0)


def own_scores(
    site: Site, evaluation: EvaluationTask, *, predict: Predict = predictions
) -> OwnScores:
    """Compare a student with this hospital's own teachers: their majority, and a constant.

    Raises:
        See `ready_evaluation`, and `training.load_teachers`.
    """
    task = task_of(site, evaluation)
    teachers = load_teachers(site, task)
    records = held_out_records(site, task)
    if not len(records):
        raise DataError("some patients must be held out: `pate-party policy set held_out`", "none")
    chances = _predicted(evaluation, task, records, predict)
    known = np.isfinite(chances).all(axis=1)
    student = known & (np.nan_to_num(chances).argmax(axis=1) == records.labels)
    votes = teachers.vote(records.inputs)
    counts = np.stack([(votes == one).sum(axis=0) for one in range(task.classes)], axis=1)
    own = counts.argmax(axis=1) == records.labels
    return OwnScores(
        len(records),
        {
            "student": int(student.sum()),
            "own teachers": int(own.sum()),
            "most common class": int(np.bincount(records.labels).max()),
        },
        int((student & ~own).sum()),
        int((own & ~student).sum()),
    )


def _predicted(
    evaluation: EvaluationTask, task: LearningTask, records: Records, predict: Predict
) -> NDArray[np.float64]:
    shape = (len(records), task.classes)
    if not len(records):
        return np.zeros(shape)
    chances = predict(evaluation.files, records.features, classes=task.classes)
    if chances.shape != shape:
        chances = np.full(shape, np.nan)
    if not np.isfinite(chances).all():
        _log.error("a student gave no numbers for some patients: they count as wrong")
    return chances


def _no_vote(batch: QueryBatch) -> NDArray[np.int64]:
    raise TaskError("an evaluation must be counted, not voted on", f"{len(batch)} votes")
