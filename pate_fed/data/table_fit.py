"""A hospital's own table beside a task: what does not fit, and ranges beside those of the pool.

For the hospital's own people alone. Of its cells this shows counts and middle ranges, and nothing
that fewer rows than a floor share: a screen's content may end in a mail.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pate_fed.cells import Cell, folded, text_of
from pate_fed.data.csv_file import CsvTable
from pate_fed.data.preprocessing import TablePreprocessing
from pate_fed.data.table_features import CategoryEncoder, NumberEncoder, TableEncoder
from pate_fed.data.task import LearningTask
from pate_fed.data.task_schema import TaskSchema
from pate_fed.errors import (
    InvalidCellError,
    InvalidDataError,
    InvalidParameterError,
    MissingColumnError,
    PateFedError,
)
from pate_fed.public_rows import PublicRows
from pate_fed.wording import percent

_OUTSIDE = 0.05
"""Share of the rows on each side of a middle range."""

_MOST_OUTSIDE = 0.25
_MOST_LISTED = 5


@dataclass(frozen=True, slots=True)
class ColumnFit:
    """A column of the task in the own table.

    Attributes:
        public: Its cells in the public pool, in words.
        own: Its own cells, in words; empty where it cannot be read.
        remarks: Doubts about it, in words; it can be read all the same.
    """

    name: str
    kind: str
    public: str
    own: str = ""
    remarks: tuple[str, ...] = ()
    fault: PateFedError | None = None


@dataclass(frozen=True, slots=True)
class TableFit:
    """A table beside a task.

    Attributes:
        unseen: Classes of the task that no row here has.
        label_fault: Why the labels cannot be read; None if they can, or if the hospital registered
            another label.
        unread: Columns here that the task does not know.
    """

    columns: tuple[ColumnFit, ...]
    unseen: tuple[str, ...] = ()
    has_labels: bool = False
    label_fault: PateFedError | None = None
    unread: tuple[str, ...] = ()

    @property
    def faults(self) -> tuple[PateFedError, ...]:
        """Everything that keeps teachers from learning, the label first."""
        label = () if self.label_fault is None else (self.label_fault,)
        return (*label, *(one.fault for one in self.columns if one.fault is not None))

    def first(self, most: int) -> tuple[ColumnFit, ...]:
        """Return so many columns at most, those with faults and then those with doubts first."""
        doubtful = sorted(self.columns, key=lambda one: (one.fault is None, not one.remarks))
        return tuple(doubtful[:most])


def table_fit(
    text: CsvTable, task: LearningTask, *, label: str, patient_column: str | None, floor: int
) -> TableFit:
    """Hold a hospital's own table against a task: nothing is trained.

    Args:
        label: Column that the hospital registered as the label: no other column's values are named.
        floor: Smallest count of rows that anybody may see.
    """
    fault, unseen = _label_fault(text, task), tuple[str, ...]()
    is_registered = label == task.label and fault is None
    schema, rows = task.schema, task.rows
    assert isinstance(schema, TaskSchema), "of a table"
    assert isinstance(rows, PublicRows), "of a table"
    if is_registered:
        fault, unseen = _classes(text, task, schema)
    by_column = zip(*rows.cells, strict=True)
    columns = tuple(
        _column_fit(
            text, name, encoder, public, ends, is_patient=name == patient_column, floor=floor
        )
        for name, encoder, public, ends in zip(
            schema.columns, schema.encoder.encoders, by_column, schema.ranges, strict=True
        )
    )
    known = {label, task.label, patient_column, *schema.columns, *schema.left_out}
    unread = tuple(name for name in text.header if name not in known)
    return TableFit(columns, unseen, is_registered and fault is None, fault, unread)


# Label --------------------------------------------------------------------------------------------


def _label_fault(text: CsvTable, task: LearningTask) -> PateFedError | None:
    if task.label in text.header:
        return None
    return MissingColumnError(
        f"{text.file_name} must have the task's label, a column {task.label!r}",
        _nearest(text, task.label),
    )


def _classes(
    text: CsvTable, task: LearningTask, schema: TaskSchema
) -> tuple[PateFedError | None, tuple[str, ...]]:
    """Return the fault of labels that are no class, and the classes that nobody here has."""
    counts = Counter(text.column(task.label))
    class_of = {cell: schema.class_of(cell) for cell in counts}
    seen = set(class_of.values())
    strangers = [cell for cell, place in class_of.items() if place is None]
    fault = _stranger_fault(text, task, counts, strangers) if strangers else None
    return fault, tuple(name for place, name in enumerate(task.class_names) if place not in seen)


def _stranger_fault(
    text: CsvTable, task: LearningTask, counts: Counter[str], strangers: Sequence[str]
) -> PateFedError:
    """Name the own label's values that are no class: they are shown with the table, too."""
    strangers = sorted(strangers, key=lambda cell: (-counts[cell], cell))
    unknown = set(strangers)
    like = {folded(name): name for name in task.class_names}
    said = [
        f"{cell!r}, which the task writes {like[folded(cell)]!r}"
        if folded(cell) in like
        else repr(cell)
        for cell in strangers[:_MOST_LISTED]
    ]
    more = len(strangers) - len(said)
    first = min(
        line
        for line, cell in zip(text.lines, text.column(task.label), strict=True)
        if cell in unknown
    )
    return InvalidCellError(
        f"column {task.label!r} of {text.file_name} must hold the task's classes only, "
        f"{_listed(task.class_names)}; `pate-party data add` takes --map OLD=NEW",
        f"{', '.join(said)}{f' and {more} more' if more else ''}, first in line {first}",
    )


# Columns ------------------------------------------------------------------------------------------


def _column_fit(
    text: CsvTable,
    name: str,
    encoder: NumberEncoder | CategoryEncoder,
    public: Sequence[Cell],
    ends: tuple[float, ...],
    *,
    is_patient: bool,
    floor: int,
) -> ColumnFit:
    if isinstance(encoder, NumberEncoder):
        fit = ColumnFit(name, "number", _public_numbers(public, encoder, ends))
    else:
        fit = ColumnFit(
            name, "category", f"{len(encoder.categories)}: {_listed(encoder.categories)}"
        )
    fault: PateFedError
    if is_patient:
        fault = InvalidParameterError("the patients' column must be no feature", repr(name))
        return _failed(fit, fault)
    try:
        [own] = TablePreprocessing((name,), TableEncoder((encoder,))).cells(text)
    except MissingColumnError:
        fault = MissingColumnError(
            f"{text.file_name} must have the task's column {name!r}", _nearest(text, name)
        )
        return _failed(fit, fault)
    except InvalidDataError as error:
        return _failed(fit, error)
    if isinstance(encoder, NumberEncoder):
        said, remarks = _own_numbers(own, public, encoder, ends, floor=floor)
    else:
        said, remarks = _own_categories(own, encoder, floor=floor)
    return ColumnFit(fit.name, fit.kind, fit.public, said, remarks)


def _failed(fit: ColumnFit, fault: PateFedError) -> ColumnFit:
    return ColumnFit(fit.name, fit.kind, fit.public, fault=fault)


def _nearest(text: CsvTable, name: str) -> str:
    near = [one for one in text.header if folded(one) == folded(name)]
    return f"{near[0]!r}" if near else "none"


def _public_numbers(cells: Sequence[Cell], encoder: NumberEncoder, ends: tuple[float, ...]) -> str:
    known = _numbers(cells)
    unit = f" {encoder.unit}" if encoder.unit else ""
    if not len(known):
        return "empty"
    low, middle, high = np.quantile(known, (0.0, 0.5, 1.0))
    can_be = f"; can be {ends[0]:g} to {ends[1]:g}" if ends else ""
    return f"{low:.4g} to {high:.4g}{unit}, median {middle:.4g}{can_be}"


def _own_numbers(
    own: Sequence[Cell],
    public: Sequence[Cell],
    encoder: NumberEncoder,
    ends: tuple[float, ...],
    *,
    floor: int,
) -> tuple[str, tuple[str, ...]]:
    known = _numbers(own)
    gaps = _gaps(len(own) - len(known), len(own), floor)
    outside = max(_OUTSIDE, floor / max(1, len(known)))
    if outside > _MOST_OUTSIDE or not len(known):
        return f"too few rows to show{gaps}", ()
    low, middle, high = np.quantile(known, (outside, 0.5, 1 - outside))
    unit = f" {encoder.unit}" if encoder.unit else ""
    said = f"middle {100 * (1 - 2 * outside):.0f} %: {low:.4g} to {high:.4g}{unit}"
    said += f", median {middle:.4g}{gaps}"
    odd = int(((known < ends[0]) | (known > ends[1])).sum()) if ends else 0
    if odd:
        share = percent(odd / len(known)) if odd >= floor else f"fewer than {floor}"
        return said, (
            f"{share} of your rows are outside {ends[0]:g} to {ends[1]:g}, where the task says all "
            "can be: is it the same unit?",
        )
    asked = _numbers(public)
    if len(asked) and (high < asked.min() or low > asked.max()):
        return said, ("your rows and the public ones do not overlap: is it the same unit?",)
    return said, ()


def _own_categories(
    own: Sequence[Cell], encoder: CategoryEncoder, *, floor: int
) -> tuple[str, tuple[str, ...]]:
    counts = Counter(folded(text_of(cell)) for cell in own if cell is not None)
    known = [one for one in encoder.categories if counts[folded(one)] >= max(1, floor)]
    others = [one for one in encoder.categories if one not in known]
    rest = counts.total() - sum(counts[folded(one)] for one in encoder.categories)
    few = f"in fewer than {floor} rows" if floor > 1 else "not"
    said = f"{len(known)} of {len(encoder.categories)} occur here"
    said += f" ({few}: {_listed(others)})" if others and known else ""
    if rest:
        share = percent(rest / len(own)) if rest >= floor else f"fewer than {floor}"
        said += f"; {share} of your rows have another value"
    said += _gaps(len(own) - counts.total(), len(own), floor)
    if not known:
        return said, ("no public value occurs here often: is it written in the same way?",)
    return said, ()


def _numbers(cells: Sequence[Cell]) -> NDArray[np.float64]:
    return np.array([cell for cell in cells if isinstance(cell, float)], dtype=np.float64)


def _gaps(missing: int, rows: int, floor: int) -> str:
    if not missing:
        return ""
    share = percent(missing / rows) if missing >= floor else f"fewer than {floor}"
    return f"; empty in {share} of your rows"


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _MOST_LISTED
    return ", ".join(names[:_MOST_LISTED]) + (f" and {more} more" if more > 0 else "")
