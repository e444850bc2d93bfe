"""Look at a table before anything is trained: columns used, and columns like the label."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from pate_fed.data.dataset import ColumnUse
from pate_fed.data.table_features import CategoryEncoder, Column, TableEncoder

_ALMOST_ALONE = 0.98
_FEWEST_ROWS = 20
_BINS = 20


def uses_of(columns: Sequence[Column], encoder: TableEncoder) -> Iterator[ColumnUse]:
    """Yield the use of each column that could be a feature, in the table's order."""
    encoders = {one.position: one for one in encoder.encoders}
    for place, column in enumerate(columns):
        found = encoders.get(place)
        if found is None:
            yield ColumnUse(column.name, "left out", encoder.left_out[column.name])
        elif isinstance(found, CategoryEncoder):
            yield ColumnUse(column.name, "category", f"{len(found.categories)} values")
        else:
            yield ColumnUse(column.name, "number", column.unit)


def copies_of_label(
    columns: Sequence[Column],
    labels: NDArray[np.int64],
    encoder: TableEncoder,
    rows: NDArray[np.int64],
) -> Iterator[str]:
    """Warn of each column that predicts the label almost alone, in some rows, public or own."""
    known = labels[rows]
    if len(known) < _FEWEST_ROWS or len(np.unique(known)) < 2:
        return
    for one in encoder.encoders:
        column = columns[one.position]
        told = _recall_of_one_column(one.apply(column, rows), known)
        if told >= _ALMOST_ALONE:
            yield (
                f"Column {column.name!r} predicts the label almost alone ({100 * told:.0f} % of "
                "each class): is it a copy of the label, or written after it? If so, leave it out "
                "with --ignore."
            )


def _recall_of_one_column(values: NDArray[np.float64], labels: NDArray[np.int64]) -> float:
    """Return the mean recall of the best label for each value (numbers: each twentieth)."""
    if values.shape[1] > 1:
        cells = values.argmax(axis=1) + values.any(axis=1)
    else:
        bounds = np.unique(np.quantile(values[:, 0], np.linspace(0, 1, _BINS + 1)[1:-1]))
        cells = np.searchsorted(bounds, values[:, 0], side="right")
    classes = np.unique(labels)
    counts = np.array(
        [np.bincount(cells[labels == label], minlength=cells.max() + 1) for label in classes]
    )
    shares = counts / counts.sum(axis=1, keepdims=True)
    best = shares.argmax(axis=0)
    return float(np.mean([shares[place, best == place].sum() for place in range(len(classes))]))
