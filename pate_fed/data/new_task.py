"""The task of a coordinator's table of public inputs: a new one, or one that is known already."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from pate_fed.cells import cell_of, plain, text_of
from pate_fed.data.cell_forms import typed
from pate_fed.data.columns import read_column
from pate_fed.data.csv_file import CsvTable
from pate_fed.data.preprocessing import TablePreprocessing
from pate_fed.data.reading import USUAL, Reading, read_table
from pate_fed.data.table_features import fit_table_encoder
from pate_fed.data.task import LearningTask, require_size
from pate_fed.data.task_schema import TaskSchema, require_pool
from pate_fed.errors import InvalidDataError, InvalidTaskError
from pate_fed.public_rows import PublicRows


def make_task(
    path: Path,
    *,
    label: str,
    classes: Sequence[str],
    ignored: Sequence[str] = (),
    reading: Reading = USUAL,
    known: Iterable[TaskSchema] = (),
) -> LearningTask:
    """Make the task of a table of public inputs, or find it among those that are known.

    A known one has the same label and set of classes, reads columns that the table has,
    and was offered every other column that is of use here. Then name, order of classes and
    encoders are those that it has had since its first pool.

    Args:
        path: The table, one input a row. Where it has the label's column, that is not read.
        reading: How its file is read.
        known: Schemas of earlier pools of this federation.

    Raises:
        InvalidCellError: a number is out of range, or none stands in a known task's column of
            numbers.
        InvalidTaskError: the names of classes or columns cannot be, or the pool is larger than
            hospitals read.
    """
    label, *class_names = (plain(one) for one in (label, *classes))
    text = typed(read_table(path, reading), apart={label, *ignored})
    for column in ignored:
        text.column(column)
    offered = tuple(one for one in text.header if one not in {label, *ignored})
    if not text.lines:
        raise InvalidTaskError(f"{text.file_name} must have public inputs")
    schema = _known_schema(
        text, offered, known, label=label, class_names=class_names
    ) or _new_schema(text, offered, name=path.name, label=label, class_names=tuple(class_names))
    task = LearningTask(schema, schema.rows_of(text))
    require_size(len(task.to_bytes()))
    return task


def _known_schema(
    text: CsvTable,
    offered: tuple[str, ...],
    known: Iterable[TaskSchema],
    *,
    label: str,
    class_names: Sequence[str],
) -> TaskSchema | None:
    """Return the known schema that a table belongs to; of several the one that reads most."""
    wanted = {text_of(cell_of(one)) for one in class_names}
    fitting = [
        one
        for one in known
        if (one.label, one.kind) == (label, "table")
        and {text_of(cell_of(name)) for name in one.class_names} == wanted
        and set(one.columns) <= set(offered)
        and not _useful(text, set(offered) - {*one.columns, *one.left_out})
    ]
    return max(fitting, key=lambda one: (len(one.columns), one.digest), default=None)


def _new_schema(
    text: CsvTable,
    offered: tuple[str, ...],
    *,
    name: str,
    label: str,
    class_names: tuple[str, ...],
) -> TaskSchema:
    require_pool(len(text.lines), max(1, len(offered)))
    columns = tuple(read_column(text, one) for one in sorted(offered))
    fitted = fit_table_encoder(columns, np.arange(len(text.lines), dtype=np.int64))
    used = tuple(columns[one.position] for one in fitted.encoders)
    names = tuple(one.name for one in used)
    cells = TablePreprocessing(names, fitted).cells(text)
    return TaskSchema(
        name=name,
        kind="table",
        label=label,
        class_names=class_names,
        first=PublicRows(names, tuple(zip(*cells, strict=True))),
        units=tuple(one.unit for one in used),
        left_out=tuple(one for one in offered if one not in names),
    )


def _useful(text: CsvTable, names: set[str]) -> bool:
    """Tell whether one of some columns says anything in this table."""
    columns = tuple(read_column(text, name) for name in sorted(names))
    try:
        fit_table_encoder(columns, np.arange(len(text.lines), dtype=np.int64))
    except InvalidDataError:
        return False
    return True
