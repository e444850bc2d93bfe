"""Public rows before a run: the columns that hospitals would use, the first rows, and labels."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from pate_fed.data.cell_forms import typed
from pate_fed.data.column_review import uses_of
from pate_fed.data.columns import read_column
from pate_fed.data.csv_file import CsvTable
from pate_fed.data.dataset import ColumnUse
from pate_fed.data.image_files import is_images, public_images
from pate_fed.data.reading import read_table
from pate_fed.data.table_features import fit_table_encoder
from pate_fed.data.task import LearningTask
from pate_fed.errors import InvalidTaskError
from pate_fed.public_rows import PublicRows

MOST_CLASSES: Final = 20
"""Values of a column that may be its classes, and are offered to be ticked."""

_SHOWN_ROWS: Final = 5
_SHOWN_COLUMNS: Final = 40


@dataclass(frozen=True, slots=True)
class SeenRows:
    """Public rows, as a person sees them.

    Attributes:
        name: Their file's.
        rows: Their number.
        uses: Of the first columns, in order; empty for images.
        more: Number of the other columns.
        header, first: The first rows, of these columns.
        labels: Columns that may be the label, each with its values.
        task: Label and classes of rows that were asked about before; None for a new file.
    """

    name: str
    rows: int
    uses: tuple[ColumnUse, ...] = ()
    more: int = 0
    header: tuple[str, ...] = ()
    first: tuple[tuple[str, ...], ...] = ()
    labels: tuple[tuple[str, tuple[str, ...]], ...] = ()
    task: LearningTask | None = None


def look_at_file(path: Path, *, apart: Collection[str]) -> SeenRows:
    """Look at a file of new rows; `apart` are label and columns to leave out, if they are there.

    Raises:
        UnreadableFileError: it is no table.
        InvalidTaskError: it has no rows.
        InvalidDataError: no column is of use.
    """
    if is_images(path):
        return SeenRows(path.name, len(public_images(path)))
    raw = read_table(path)
    if not raw.lines:
        raise InvalidTaskError(f"{path.name} must have public inputs")
    text = typed(raw, apart=apart)
    columns = tuple(read_column(text, one) for one in text.header if one not in apart)
    encoder = fit_table_encoder(columns, np.arange(len(text.lines), dtype=np.int64))
    uses = tuple(uses_of(columns, encoder))
    header, first = _first(
        raw.header, list(zip(*(one[:_SHOWN_ROWS] for one in raw.columns), strict=True))
    )
    return SeenRows(
        path.name,
        len(text.lines),
        uses[:_SHOWN_COLUMNS],
        max(0, len(uses) - _SHOWN_COLUMNS),
        header,
        first,
        tuple(_labels(raw)),
    )


def look_at_task(task: LearningTask) -> SeenRows:
    """Look at rows that were asked about before."""
    if not isinstance(task.rows, PublicRows):
        return SeenRows(task.name, len(task.rows), task=task)
    uses = tuple(ColumnUse(one, "used", "") for one in task.columns)
    header, first = _first(task.rows.columns, task.rows.cells[:_SHOWN_ROWS])
    more = max(0, len(uses) - _SHOWN_COLUMNS)
    return SeenRows(
        task.name, len(task.rows), uses[:_SHOWN_COLUMNS], more, header, first, task=task
    )


def _first(
    header: Sequence[str], rows: Sequence[Sequence[object]]
) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    shown = tuple(header[:_SHOWN_COLUMNS])
    return shown, tuple(
        tuple("" if cell is None else str(cell)[:60] for cell in row[:_SHOWN_COLUMNS])
        for row in rows
    )


def _labels(text: CsvTable) -> list[tuple[str, tuple[str, ...]]]:
    found = []
    for name, cells in zip(text.header, text.columns, strict=True):
        values = {one for one in cells if one}
        if 2 <= len(values) <= MOST_CLASSES:
            found.append((name, tuple(sorted(values))))
    return found
