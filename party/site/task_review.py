"""A task beside this hospital's own table, before its people decide: what would fail is said now.

Nothing of a review leaves the machine, and no message starts one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from party.errors import DataError, Fault, PartyError
from party.site.document_child import AskedTask
from party.site.evaluations import held_out_records, task_of
from party.site.held_out_patients import taught
from party.site.own_table import read_registered
from party.site.site import Site
from party.site.training import (
    folder_of,
    require_current,
    require_label,
    require_teachers,
    taught_records,
)
from pate_fed.data.csv_file import CsvTable
from pate_fed.data.dataset import Records
from pate_fed.data.flat_columns import FlatColumn, flat_columns, flat_images
from pate_fed.data.image_files import ImageFiles
from pate_fed.data.image_schema import ImageSchema
from pate_fed.data.table_fit import TableFit, table_fit
from pate_fed.data.task import LearningTask, OwnRecords
from pate_fed.errors import PateFedError
from pate_fed.evaluation_task import EvaluationTask
from pate_fed.shards import require_enough


@dataclass(frozen=True, slots=True)
class TaskReview:
    """What this hospital's people see of a task before they decide. For them alone.

    Attributes:
        label: The label that is registered here; empty without a table.
        fit: The own table beside the task; None where it cannot be read, and for an evaluation.
        faults: Everything known by now that keeps this hospital from answering.
        flat: Columns in which nearly all own rows become one feature.
    """

    label: str
    fit: TableFit | None
    faults: tuple[Fault, ...]
    flat: tuple[FlatColumn, ...] = ()


def review_task(site: Site, task: AskedTask) -> TaskReview:
    """Hold the registered table, and kept teachers, against a task: nothing is trained or kept."""
    if isinstance(task, EvaluationTask):
        label = site.settings.data.label
        return TaskReview(label, None, tuple(_evaluation_faults(site, task)))
    site = site.using(task.data_set)
    label = site.settings.data.label
    try:
        text = read_registered(site)
    except (PartyError, PateFedError) as error:
        return TaskReview(label, None, (error,))
    if isinstance(text, ImageFiles) or isinstance(task.schema, ImageSchema):
        return _image_review(site, task, text)
    data = site.settings.data
    fit = table_fit(
        text, task, label=label, patient_column=data.patient_id or None, floor=data.floor
    )
    faults = (*_label_faults(site, task), *fit.faults)
    flat = () if fit.faults else flat_columns(task.schema, text)
    return TaskReview(label, fit, faults or tuple(_table_faults(site, task, text)), flat)


def _image_review(site: Site, task: LearningTask, own: OwnRecords) -> TaskReview:
    """Read the own images as the task says, once, and look at what teachers would see."""
    label = site.settings.data.label
    faults = tuple(_label_faults(site, task))
    try:
        records = task.encode(own, patient_column=site.settings.data.patient_id or None)
    except PateFedError as error:
        return TaskReview(label, TableFit((), label_fault=error), (*faults, error))
    counts = np.bincount(records.labels, minlength=task.classes)
    unseen = tuple(name for name, count in zip(task.class_names, counts, strict=True) if not count)
    fit = TableFit((), unseen, has_labels=not faults)
    later = faults or tuple(_later_faults(site, task, taught(records, site.settings.held_out)))
    return TaskReview(label, fit, later, flat_images(records.features))


def _label_faults(site: Site, task: LearningTask) -> Iterator[Fault]:
    try:
        require_label(site, task)
    except DataError as error:
        yield error


def _table_faults(site: Site, task: LearningTask, text: CsvTable) -> Iterator[Fault]:
    try:
        records = taught_records(site, task, text)
    except (PartyError, PateFedError) as error:
        yield error
        return
    yield from _later_faults(site, task, records)


def _later_faults(site: Site, task: LearningTask, records: Records) -> Iterator[Fault]:
    """Yield the fault, if any, that training or loading teachers would end with."""
    try:
        settings = site.settings
        require_teachers(site, task)
        if folder_of(site, task).exists() and not settings.do_records_vote:
            require_current(site, task)
            return
        needed = 1 if settings.do_records_vote else settings.teachers
        require_enough(len(set(records.unit_ids)), needed)
    except (PartyError, PateFedError) as error:
        yield error


def _evaluation_faults(site: Site, evaluation: EvaluationTask) -> Iterator[Fault]:
    try:
        task = task_of(site, evaluation)
        require_current(site, task)
        held_out_records(site, task)
        if not site.settings.held_out:
            yield DataError("some patients must be held out: `pate-party policy set held_out`")
    except (PartyError, PateFedError) as error:
        yield error
