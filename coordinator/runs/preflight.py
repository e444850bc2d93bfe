"""Whatever can be known before a charge is checked before a charge, here.

`run`, `simulate` and the console ask before anything is queued, and the worker again before each
batch: a charge is for ever, and a disk may have filled up since.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from coordinator.runs.request import RunRequest
from coordinator.runs.results import installed_versions
from pate_fed.data.task import LearningTask
from pate_fed.errors import RunDirectoryError
from pate_fed.evaluation_task import EvaluationTask
from pate_fed.inputs import DatasetKind, Inputs
from pate_fed.nodes import free_disk
from pate_fed.planning import RunSettings

if TYPE_CHECKING:
    from pate_fed.teachers import TeacherEnsemble
    from pate_fed.teachers.teachers_of_labels import TeachersOfLabels

LEAST_ROOM: Final = 2**26
"""Free bytes that a run needs beside its pool: its results, its database and Flower's."""

_ROOM_PER_POOL: Final = 4
"""Copies of its pool that a run may need: published, in its database, and in a student."""


def require_chargeable(
    settings: RunSettings,
    *,
    kind: DatasetKind,
    pool: Inputs | None,
    classes: int,
    place: Path,
) -> None:
    """Refuse a run that could not end with a student and its results, before anything is charged.

    The pool is None while nobody has read it, and the classes 0; otherwise the settings are
    resolved.

    Raises:
        InvalidParameterError: the student or the teachers could not learn from such records, a
            device cannot be used, or the prevalence is of other classes.
        RunDirectoryError: the disk has no room for the results, or they cannot be written.
        MissingExtraError: a package that a run needs is not installed.
    """
    from pate_fed.students import IMAGE_STUDENTS, LabelFacts, require_student  # noqa: PLC0415 - slow

    untrained_teachers(settings, kind)
    require_student(
        settings.student,
        kind,
        pool=pool,
        classes=classes,
        facts=LabelFacts(prevalence=settings.prevalence),
        device=settings.device if settings.student in IMAGE_STUDENTS else "cpu",
    )
    installed_versions()
    _require_room(place, 0 if pool is None else pool.features.nbytes)


def require_request(
    request: RunRequest, task: LearningTask | EvaluationTask | None, place: Path
) -> None:
    """Refuse a request that could not end with its results; see `require_chargeable`."""
    if not isinstance(task, LearningTask):  # nothing is trained, or a simulation has looked before
        installed_versions()
        _require_room(place, 0)
        return
    require_chargeable(
        request.settings, kind=task.kind, pool=task.pool.views, classes=task.classes, place=place
    )


def untrained_teachers(
    settings: RunSettings, kind: DatasetKind, *, records: float | None = None, teachers: int = 1
) -> TeacherEnsemble | TeachersOfLabels:
    """Make the untrained teachers of a simulated hospital; others keep their kind to themselves.

    `records` are the hospital's patients for each; None for its own model of all its records.

    Raises:
        InvalidParameterError: unknown teachers, some that learn from other records, or a device
            that cannot be used, or that neither they nor the student would use.
    """
    from pate_fed.students import IMAGE_STUDENTS  # noqa: PLC0415 - takes seconds
    from pate_fed.teachers import make_ensemble  # noqa: PLC0415 - the same
    from pate_fed.teachers.own_teacher import pinned  # noqa: PLC0415 - the same

    name, device = settings.teacher, settings.device
    if settings.do_records_vote and records is None:
        name = "auto"  # a hospital's own model: its records alone are none
    if device != "cpu" and name != "convolution" and settings.student in IMAGE_STUDENTS:
        from pate_fed.networks import usable_device  # noqa: PLC0415 - torch: several seconds

        usable_device(device)
        device = "cpu"
    held = settings.data.data_file or settings.data.data_dir
    folders = () if held is None else (Path(held).absolute().parent,)
    make = partial(
        make_ensemble,
        pinned(name, folders),
        kind,
        balance=settings.class_balance,
        device=device,
        records=records,
        teachers=teachers,
        folders=folders,
    )
    caps = settings.caps
    if caps.labels is None:
        return make()
    from pate_fed.teachers.teachers_of_labels import TeachersOfLabels  # noqa: PLC0415 - as above

    return TeachersOfLabels(
        make, caps.labels, cap=caps.label_cap, are_one_unit=settings.unit == "party"
    )


def _require_room(place: Path, pool_bytes: int) -> None:
    above = next(folder for folder in place.absolute().parents if folder.exists())
    if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
        raise RunDirectoryError("the run directory must lie in a writable folder", above)
    wanted, free = LEAST_ROOM + _ROOM_PER_POOL * pool_bytes, free_disk(above)
    if free < wanted:
        raise RunDirectoryError(
            f"the disk must have {wanted / 2**20:.0f} MiB free where the run directory will be",
            f"{free / 2**20:.0f} MiB",
        )
