"""Columns in which a hospital's own rows look alike to its teachers, found before they are trained.

Features are centered and scaled by public rows. If those lie far from a hospital's patients, or
name other categories, nearly all its patients become one feature. Its teachers learn nothing of
that column then: questions that differ in it alone are one question to them. So the author of such
public rows can ask one question many times. Only the hospital can see it, and its people should,
before they approve.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from pate_fed.cells import Cell, folded
from pate_fed.data.csv_file import CsvTable
from pate_fed.data.table_features import MOST_DEVIATIONS, CategoryEncoder, column_of
from pate_fed.data.task_schema import TaskSchema

NEARLY_ALL: Final = 0.95
"""Share of the rows from which a column is named."""

_ALIKE: Final = 0.02
"""Distance of features that count as one: half of the distance of queries that count as close."""

_OF_THE_OTHERS: Final = 0.5
"""Share of the rows beside the most common value that must become that feature, too.

Otherwise a rare flag would be named, though teachers see it.
"""

Why = Literal["beyond", "crushed", "unknown", "one value"]


@dataclass(frozen=True, slots=True)
class FlatColumn:
    """A column in which nearly all own rows are one feature. For the hospital's people alone.

    Attributes:
        name: The column.
        share: Share of the rows that become this feature.
        why: "beyond": all lie beyond the range that the public rows give; "crushed": the public
            rows are spread so widely that these fall together; "unknown": their categories are none
            of the public rows'; "one value": the table itself has no other.
    """

    name: str
    share: float
    why: Why


def flat_columns(schema: TaskSchema, table: CsvTable) -> tuple[FlatColumn, ...]:
    """Find the columns in which nearly all rows of a table become one feature.

    One column at a time is encoded, so that a wide task needs little memory.

    Args:
        schema: Of the task.
        table: The hospital's own.

    Raises:
        MissingColumnError: a column of the task is absent.
        InvalidCellError: a cell of a column of numbers is none.
    """
    rows = np.arange(len(table.lines), dtype=np.int64)
    found = []
    if not len(rows):
        return ()
    preprocessing = schema.preprocessing
    for name, encoder in zip(schema.columns, schema.encoder.encoders, strict=True):
        cells = preprocessing.cells_of(table, name)
        features = encoder.apply(column_of(name, cells), rows)
        # The middle one is in any group that has more than half of the rows.
        middle = np.median(features, axis=0, keepdims=True)
        is_one = np.asarray((np.abs(features - middle) <= _ALIKE).all(axis=1))
        values = [_value(cell) for cell in cells]
        (usual, _), *others = Counter(values).most_common(2)
        beside = np.array([value != usual for value in values])
        if is_one.mean() < NEARLY_ALL or (others and is_one[beside].mean() < _OF_THE_OTHERS):
            continue
        why: Why = "crushed"
        if not others:
            why = "one value"
        elif isinstance(encoder, CategoryEncoder):
            why = "unknown"
        elif abs(middle[0, 0]) == MOST_DEVIATIONS:
            why = "beyond"
        found.append(FlatColumn(name, float(is_one.mean()), why))
    return tuple(found)


def _value(cell: Cell) -> Cell:
    return folded(cell) if isinstance(cell, str) else cell
