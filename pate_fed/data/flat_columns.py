"""Columns in which a hospital's own rows look alike to its teachers, found before they are trained.

Features are centered and scaled by public rows. If those lie far from a hospital's patients, or
name other categories, nearly all its patients become one feature. Its teachers learn nothing of
that column then: questions that differ in it alone are one question to them. So the author of such
public rows can ask one question many times. Only the hospital can see it, and its people should,
before they approve.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from pate_fed.cells import Cell, folded
from pate_fed.data.csv_file import CsvTable
from pate_fed.data.table_features import (
    MOST_DEVIATIONS,
    CategoryEncoder,
    NumberEncoder,
    column_of,
)
from pate_fed.data.task_schema import TaskSchema

NEARLY_ALL: Final = 0.95
"""Share of the rows from which a column is named."""

_ALIKE: Final = 0.02
"""Distance of features that count as one: half of the distance of queries that count as close."""

_OF_THE_OTHERS: Final = 0.5
"""Share of the rows beside the most common value that must become that feature, too.

Otherwise a rare flag would be named, though teachers see it.
"""

Why = Literal["beyond", "crushed", "unknown", "one value", "missing"]


@dataclass(frozen=True, slots=True)
class FlatColumn:
    """A column in which nearly all own rows are one feature. For the hospital's people alone.

    Attributes:
        share: Share of the rows that become this feature, among those with a value.
        why: "beyond": all lie beyond the range that the public rows give; "crushed": the public
            rows are spread so widely that these fall together; "unknown": their categories are none
            of the public rows'; "one value": the table itself has no other; "missing": hardly any
            row has a value, and `share` is of those that have none.
    """

    column: str
    share: float
    why: Why

    @property
    def is_by_task(self) -> bool:
        """Whether the public rows make it so, and not the table itself."""
        return self.why in ("beyond", "crushed", "unknown")


def flat_columns(schema: TaskSchema, table: CsvTable) -> tuple[FlatColumn, ...]:
    """Find the columns in which nearly all rows of a table become one feature.

    One column at a time is encoded, so that a wide task needs little memory.
    """
    found = (
        _look_at(name, encoder, schema.preprocessing.cells_of(table, name))
        for name, encoder in zip(schema.columns, schema.encoder.encoders, strict=True)
    )
    return tuple(one for one in found if one is not None)


def flat_images(features: NDArray[np.float64]) -> tuple[FlatColumn, ...]:
    """Tell whether nearly all own images are one to teachers: float64, shape (images, features)."""
    middle = np.median(features, axis=0, keepdims=True)
    share = float((np.abs(features - middle) <= _ALIKE).all(axis=1).mean())
    return (FlatColumn("the images", share, "crushed"),) if share >= NEARLY_ALL else ()


def _look_at(
    name: str, encoder: NumberEncoder | CategoryEncoder, cells: Sequence[Cell]
) -> FlatColumn | None:
    known = [cell for cell in cells if cell is not None]
    if len(known) <= (1 - NEARLY_ALL) * len(cells):
        return FlatColumn(name, 1 - len(known) / max(1, len(cells)), "missing")
    features = encoder.apply(column_of(name, known), np.arange(len(known), dtype=np.int64))
    # The middle one is in any group that has more than half of the rows.
    middle = np.median(features, axis=0, keepdims=True)
    is_one = np.asarray((np.abs(features - middle) <= _ALIKE).all(axis=1))
    values = [folded(cell) if isinstance(cell, str) else cell for cell in known]
    usual, _ = Counter(values).most_common(1)[0]
    is_other = np.array([value != usual for value in values])
    share = float(is_one.mean())
    if share < NEARLY_ALL or (is_other.any() and is_one[is_other].mean() < _OF_THE_OTHERS):
        return None
    if not is_other.any():
        return FlatColumn(name, share, "one value")
    if isinstance(encoder, CategoryEncoder):
        return FlatColumn(name, share, "unknown")
    is_beyond = abs(middle[0, 0]) == MOST_DEVIATIONS
    return FlatColumn(name, share, "beyond" if is_beyond else "crushed")
