"""The student of a run between its batches, for Interactive-GNMax: its labels and predictions.

All of it follows from released labels and public inputs. Predictions are stored before their batch
is asked, so a restart decides that batch with the same ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from coordinator.runs.later_steps import NO_STUDENT, attempt
from coordinator.runs.open_run import OpenRun
from pate_fed.errors import NoLabelError
from pate_fed.inputs import DatasetKind
from pate_fed.queries import QueryPool

if TYPE_CHECKING:
    from pate_fed.students import LabelFacts, Student


def teach(
    run: OpenRun, *, kind: DatasetKind, facts: LabelFacts, rng: np.random.Generator
) -> Student | None:
    """Return the student of a run; None, with a warning, if no label is known or training fails."""
    known, counts, settings = run.lessons, run.counts, run.request.settings
    if not known:
        error = NoLabelError()
        run.warnings.append(f"{NO_STUDENT} {error.code}: {error}.")
        return None

    def learn() -> Student:
        from pate_fed.students import Lesson, train_student  # noqa: PLC0415 - takes seconds

        lesson = Lesson.of(
            run.pool,
            known,
            classes=run.classes,
            facts=facts,
            counts=counts,
            coverage=settings.coverage,
        )
        return train_student(settings.student, kind, lesson, rng=rng, device=settings.device)

    notes: list[str] = []
    student = attempt(notes, "It", learn)
    run.warnings += [f"{NO_STUDENT} {note}. {run.again}." for note in notes]
    return student


def predictions_for(
    asked: Sequence[int], *, known: Mapping[int, int], pool: QueryPool, classes: int
) -> NDArray[np.float64] | None:
    """Return a student's chances of each class at some inputs; float64, shape (queries, classes).

    `known` are the labels that it learns from, by position in the pool. None while fewer than two
    classes have one.
    """
    if not known:
        return None
    from pate_fed.students import interim_chances  # noqa: PLC0415 - takes seconds

    return interim_chances(
        pool.inputs[list(known)],
        np.array(list(known.values()), dtype=np.int64),
        pool.inputs[list(asked)],
        classes=classes,
    )
