"""The task of a coordinator's table of public inputs: a new one, or one that is known already."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from pate_fed.cells import cell_of, folded, plain, text_of
from pate_fed.data.cell_forms import typed
from pate_fed.data.columns import read_column
from pate_fed.data.csv_file import CsvTable
from pate_fed.data.image_files import is_images, public_images, reading_of
from pate_fed.data.image_pixels import ImageReading
from pate_fed.data.image_schema import MOST_IMAGES, ImageSchema
from pate_fed.data.image_schema import require_pool as require_images
from pate_fed.data.preprocessing import TablePreprocessing
from pate_fed.data.reading import USUAL, Reading, read_table
from pate_fed.data.table_features import (
    CategoryEncoder,
    Column,
    NumberEncoder,
    TableEncoder,
    fit_table_encoder,
)
from pate_fed.data.table_review import review
from pate_fed.data.task import LearningTask, Schema, require_size
from pate_fed.data.task_facts import ColumnFacts, TaskFacts
from pate_fed.data.task_schema import TaskSchema, require_pool
from pate_fed.errors import InvalidDataError, InvalidTaskError
from pate_fed.public_images import PublicImages
from pate_fed.public_rows import PublicRows

NO_FACTS: Final = TaskFacts()


def make_task(
    path: Path,
    *,
    label: str,
    classes: Sequence[str],
    ignored: Sequence[str] = (),
    reading: Reading = USUAL,
    facts: TaskFacts = NO_FACTS,
    known: Iterable[Schema] = (),
) -> LearningTask:
    """Make the task of public inputs, a table or images, or find it among those that are known.

    A known one has the same label and set of classes, reads columns that the table has,
    and was offered every other column that is of use here. Then name, order of classes and
    encoders are those that it has had since its first pool.

    Args:
        path: The table, one input a row. Where it has the label's column, that is not read. Or
            images: see `public_images`.
        reading: How its file is read.
        facts: What its author writes of columns and classes; a known task has the same.
        known: Schemas of earlier pools of this federation.

    Raises:
        InvalidCellError: a number is out of range, or none stands in a known task's column of
            numbers.
        InvalidTaskError: the names of classes or columns cannot be, or the pool is larger than
            hospitals read.
    """
    if is_images(path):
        return _of_images(path, known, label=label, classes=classes, facts=facts)
    label, *class_names = (plain(one) for one in (label, *classes))
    text = typed(read_table(path, reading), apart={label, *ignored})
    for column in ignored:
        text.column(column)
    offered = tuple(one for one in text.header if one not in {label, *ignored})
    if not text.lines:
        raise InvalidTaskError(f"{text.file_name} must have public inputs")
    _require_known(facts, class_names, offered)
    schema = _known_schema(
        text, offered, known, label=label, class_names=class_names, facts=facts
    ) or _new_schema(
        text, offered, name=path.name, label=label, class_names=tuple(class_names), facts=facts
    )
    _require_in_range(schema, text)
    found = review(text, labels=(), patient=None, apart=(label, *ignored), is_private=False)
    task = LearningTask(schema, schema.rows_of(text), found.sentences)
    require_size(len(task.to_bytes()))
    return task


def _known_schema(
    text: CsvTable,
    offered: tuple[str, ...],
    known: Iterable[Schema],
    *,
    label: str,
    class_names: Sequence[str],
    facts: TaskFacts,
) -> TaskSchema | None:
    """Return the known schema that a table belongs to; of several the one that reads most."""
    wanted = {text_of(cell_of(one)) for one in class_names}
    fitting = [
        one
        for one in known
        if isinstance(one, TaskSchema)
        and one.label == label
        and {text_of(cell_of(name)) for name in one.class_names} == wanted
        and set(one.columns) <= set(offered)
        and _has_facts(one, facts)
        and not _useful(text, set(offered) - {*one.columns, *one.left_out})
    ]
    return max(fitting, key=lambda one: (len(one.columns), one.digest), default=None)


def _of_images(
    path: Path, known: Iterable[Schema], *, label: str, classes: Sequence[str], facts: TaskFacts
) -> LearningTask:
    label, *class_names = (plain(one) for one in (label, *classes))
    if facts != TaskFacts(facts.data_set):
        raise InvalidTaskError("a schema of images must name a data set alone", "columns, classes")
    found = public_images(path)
    if len(found) > MOST_IMAGES:
        raise InvalidTaskError(
            f"a pool must have at most {MOST_IMAGES} images: ask fewer", len(found)
        )
    known = [one for one in known if one.data_set == facts.data_set]
    schema = _known_images(known, label=label, class_names=class_names)

    def read(reading: ImageReading) -> PublicImages:
        require_images(len(found), reading.shape)
        return PublicImages(found.read(reading))

    if schema is None:
        reading = reading_of(found.looks())
        schema = ImageSchema(
            path.name,
            label,
            tuple(class_names),
            read(reading),
            (reading.low, reading.high),
            facts.data_set,
        )
        return LearningTask(schema, schema.first)
    return LearningTask(schema, read(schema.reading))


def _known_images(
    known: Iterable[Schema], *, label: str, class_names: Sequence[str]
) -> ImageSchema | None:
    """Return the known schema of images with this label and these classes."""
    wanted = {text_of(cell_of(one)) for one in class_names}
    fitting = [
        one
        for one in known
        if isinstance(one, ImageSchema)
        and one.label == label
        and {text_of(cell_of(name)) for name in one.class_names} == wanted
    ]
    return max(fitting, key=lambda one: one.digest, default=None)


def _new_schema(
    text: CsvTable,
    offered: tuple[str, ...],
    *,
    name: str,
    label: str,
    class_names: tuple[str, ...],
    facts: TaskFacts,
) -> TaskSchema:
    require_pool(len(text.lines), max(1, len(offered)))
    columns = tuple(_column(text, one, facts) for one in sorted(offered))
    fitted = fit_table_encoder(columns, np.arange(len(text.lines), dtype=np.int64))
    used = tuple(columns[one.position] for one in fitted.encoders)
    names = tuple(one.name for one in used)
    told = [facts.columns.get(name, ColumnFacts()) for name in names]
    categories = tuple(
        tuple(sorted(one.categories)) or _as_categories(encoder, one)
        for encoder, one in zip(fitted.encoders, told, strict=True)
    )
    encoders = tuple(
        CategoryEncoder(encoder.position, listed) if listed else encoder
        for encoder, listed in zip(fitted.encoders, categories, strict=True)
    )
    cells = TablePreprocessing(names, TableEncoder(encoders)).cells(text)
    return TaskSchema(
        name=name,
        kind="table",
        label=label,
        class_names=class_names,
        first=PublicRows(names, tuple(zip(*cells, strict=True))),
        units=tuple(one.unit for one in used),
        left_out=tuple(one for one in offered if one not in names),
        ranges=tuple(one.range for one in told),
        categories=categories,
        spellings=tuple(facts.classes.get(one, ()) for one in class_names),
        data_set=facts.data_set,
    )


def _column(text: CsvTable, name: str, facts: TaskFacts) -> Column:
    """Read a column of the type and unit that its author wrote."""
    told, column = facts.columns.get(name, ColumnFacts()), read_column(text, name)
    if told.type == "category" or told.categories:
        # As texts alone: numbers in it count nothing.
        return replace(column, numbers=np.full(len(column.numbers), np.nan), unit="")
    unit = folded(told.unit)
    if told.type == "number" or unit or told.range:
        if not np.isfinite(column.numbers[~column.missing()]).all():
            raise InvalidTaskError(f"column {name!r} must hold numbers", "texts")
        if unit and column.unit not in ("", unit):
            raise InvalidTaskError(f"column {name!r} must be in {unit}", column.unit)
    return replace(column, unit=unit or column.unit)


def _as_categories(encoder: NumberEncoder | CategoryEncoder, told: ColumnFacts) -> tuple[str, ...]:
    """Return the pool's categories where the author wrote the type, which nobody else can see."""
    is_told = told.type == "category" and isinstance(encoder, CategoryEncoder)
    return encoder.categories if is_told and isinstance(encoder, CategoryEncoder) else ()


def _require_known(facts: TaskFacts, class_names: Sequence[str], offered: Sequence[str]) -> None:
    """Refuse facts of classes and columns that the task does not have."""
    for what, told, names in (
        ("class", facts.classes, class_names),
        ("column", facts.columns, offered),
    ):
        wrong = [one for one in told if one not in names]
        if wrong:
            raise InvalidTaskError(f"every {what} of the schema must be one of the task", wrong[0])


def _has_facts(schema: TaskSchema, facts: TaskFacts) -> bool:
    """Tell whether a known task says of columns and classes what its author writes now."""
    if facts == NO_FACTS:
        return not schema.data_set
    by_class = dict(zip(schema.class_names, schema.spellings, strict=True))
    places = {name: place for place, name in enumerate(schema.columns)}
    return (
        schema.data_set == facts.data_set
        and all(by_class.get(name) == spelled for name, spelled in facts.classes.items())
        and all(
            name in places
            and schema.ranges[places[name]] == told.range
            and folded(told.unit) in ("", schema.units[places[name]])
            and (tuple(sorted(told.categories)) or schema.categories[places[name]])
            == schema.categories[places[name]]
            for name, told in facts.columns.items()
        )
    )


def _require_in_range(schema: TaskSchema, text: CsvTable) -> None:
    """Refuse public rows outside a written range: one of the two is wrong."""
    for name, ends in zip(schema.columns, schema.ranges, strict=True):
        cells = schema.preprocessing.cells_of(text, name) if ends else ()
        for line, cell in zip(text.lines, cells, strict=False):
            if isinstance(cell, float) and not ends[0] <= cell <= ends[1]:
                raise InvalidTaskError(
                    f"column {name!r} of {text.file_name} must be {ends[0]:g} to {ends[1]:g}, as "
                    "the schema says",
                    f"another in line {line}",
                )


def _useful(text: CsvTable, names: set[str]) -> bool:
    """Tell whether one of some columns says anything in this table."""
    columns = tuple(read_column(text, name) for name in sorted(names))
    try:
        fit_table_encoder(columns, np.arange(len(text.lines), dtype=np.int64))
    except InvalidDataError:
        return False
    return True
