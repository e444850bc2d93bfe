"""Private evaluations at a hospital: its held-out patients, and what a student says of them.

Predictions are made once, before an approved evaluation is ready, in a set time: neither an answer
nor the time until the first one shows on whom a student fails.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from party.errors import DataError, TaskError
from party.site.held_out_patients import held_out
from party.site.own_table import read_registered
from party.site.party_task import Evaluation, PartyTask
from party.site.site import Site
from party.site.student_child import predictions
from party.site.tasks import read_learning_task
from party.site.training import load_teachers, require_current, require_label
from pate_fed.data.dataset import Records
from pate_fed.data.task import LearningTask
from pate_fed.errors import InvalidTaskError
from pate_fed.evaluation import MOST_PLACES, PLACE_S, START_S, share_interval
from pate_fed.evaluation_task import EvaluationTask
from pate_fed.queries import QueryBatch
from pate_fed.wording import percent

Predict = Callable[..., NDArray[np.float64]]

_Z = 1.959963984540054


def ready_evaluation(
    site: Site,
    evaluation: EvaluationTask,
    *,
    predict: Predict = predictions,
    clock: Callable[[], float] = time.monotonic,
    wait: Callable[[float], object] = time.sleep,
) -> PartyTask:
    """Make an approved evaluation ready to be asked about, at a set time after it begins.

    This time follows from the number of places, whatever the patients are. Raises an error where no
    kept task, its teachers or the table fit, or the student is none.
    """
    ends = clock() + START_S + PLACE_S * evaluation.places
    task, places, share = task_of(site, evaluation), evaluation.places, site.settings.held_out
    if places > MOST_PLACES:
        raise TaskError(f"an evaluation must have at most {MOST_PLACES} places", places)
    require_current(site, task)
    rows: Callable[[], NDArray[np.int64]] = _nobody
    if share:  # a setting: whether anybody is held out by chance shows nowhere
        records = held_out_records(site, task, most=places)
        chances = predict(evaluation.files, records.features, classes=task.classes, places=places)
        rows = partial(evaluation.rows_of, task.schema, records, chances)
        wait(max(0.0, ends - clock()))
    columns = 2 * max(len(one.groups) for one in evaluation.groupings(task.schema)) + 1
    return PartyTask(
        evaluation.pool,
        _no_vote,
        columns,
        evaluation.digest,
        evaluation=Evaluation(evaluation.by, share, places, rows),
    )


def task_of(site: Site, evaluation: EvaluationTask) -> LearningTask:
    """Return the kept task whose student is evaluated, in groups that it knows."""
    task = read_learning_task(site, evaluation.source)
    try:
        evaluation.groupings(task.schema)
    except InvalidTaskError as error:
        raise TaskError(error.must, error.got) from error
    return task


def held_out_records(site: Site, task: LearningTask, *, most: int | None = None) -> Records:
    """Return one record of each patient who is held out here.

    The table must name a column of patients: otherwise one row more or less would change who is
    held out. Its label must be the task's.
    """
    site = site.using(task.data_set)
    data = site.settings.data
    require_label(site, task)
    if not data.patient_id:
        raise DataError(
            "the table must be registered with its patients' column: "
            "`pate-party data add --patient-id COLUMN`",
        )
    records = task.encode(read_registered(site), patient_column=data.patient_id)
    return held_out(records, site.settings.held_out, most=most)


_VERDICTS: Final = {
    "yes": "The student beats this hospital's own teachers.",
    "no": "This hospital's own teachers do better than the student.",
    "not clear": "So few patients cannot tell which of the two is better.",
}


@dataclass(frozen=True, slots=True)
class OwnScores:
    """A student and this hospital's own teachers, on its held-out patients. For its people alone.

    `right` says by name on how many each is right, `gained` on how many the student is right and
    the teachers are wrong, `lost` the reverse.
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

    def lines(self, *, floor: int) -> tuple[str, ...]:
        """Say on how many each is right, and which is better; no count below `floor` is shown."""
        if self.patients < floor:
            return (f"Fewer than {floor} patients are held out: nothing is shown.",)
        return (*(self._line(name, floor) for name in self.right), self.words)

    def as_table(self, *, floor: int) -> dict[str, object]:
        """Return the same for programs; None where a count is too small."""
        shown = self.patients >= floor
        counts = {
            name: right if min(right, self.patients - right) >= floor else None
            for name, right in self.right.items()
        }
        return {
            "patients": self.patients if shown else None,
            "right": counts if shown else None,
            "beats_own_teachers": self.verdict if shown else None,
        }

    def _line(self, name: str, floor: int) -> str:
        right, wrong = self.right[name], self.patients - self.right[name]
        if min(right, wrong) < floor:
            few = "right" if right < wrong else "wrong"
            return f"{name.capitalize()}: {few} on fewer than {floor} of {self.patients} patients"
        low, high = share_interval(right, wrong, 0.0, 0.0)
        return (
            f"{name.capitalize()}: right on {percent(right / self.patients)} of {self.patients} "
            f"patients (95 %: {percent(low)} to {percent(high)})"
        )


def own_scores(
    site: Site, evaluation: EvaluationTask, *, predict: Predict = predictions
) -> OwnScores:
    """Compare a student with this hospital's own teachers: their majority, and a constant."""
    task = task_of(site, evaluation)
    teachers = load_teachers(site, task)
    records = held_out_records(site, task)
    if not len(records):
        raise DataError("some patients must be held out: `pate-party policy set held_out`")
    chances = predict(evaluation.files, records.features, classes=task.classes)
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


def _nobody() -> NDArray[np.int64]:
    raise TaskError("patients must be held out: `pate-party policy set held_out`", "nobody")


def _no_vote(batch: QueryBatch) -> NDArray[np.int64]:
    raise TaskError("an evaluation must be counted, not voted on", f"{len(batch)} votes")
