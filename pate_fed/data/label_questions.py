"""Several yes-no labels of a record: a record becomes one question for each of its labels.

So a run about five diagnoses is a run of one label over five times as many records. Question l of
record i has the features of the record and one more for each label, all 0 but that of l. It belongs
to the privacy unit of the record, and stands at place i * labels + l.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from pate_fed.data.dataset import Records
from pate_fed.inputs import Inputs

_MARK: Final = 0.25
"""Size of a label's feature, for the length of a record: questions about one record differ, and
hardly less than those about different records.
"""


def questions_of(records: Records, answers: NDArray[np.int64]) -> Records:
    """Return every question about some records.

    Args:
        records: Whose labels do not count.
        answers: 0 or 1 for each record and label; shape (records, labels).
    """
    labels = answers.shape[1]

    def each(values: tuple[str, ...] | None) -> tuple[str, ...] | None:
        return None if values is None else tuple(one for one in values for _ in range(labels))

    lengths = np.maximum(np.linalg.norm(records.features, axis=1), 1.0)
    marks = np.kron(_MARK * lengths[:, np.newaxis], np.eye(labels))
    units = each(records.unit_ids)
    assert units is not None
    return Records(
        features=np.column_stack([np.repeat(records.features, labels, axis=0), marks]),
        labels=answers.ravel(),
        unit_ids=units,
        hospitals=each(records.hospitals),
        row_names=each(records.row_names),
    )


def asked_labels(inputs: Inputs, labels: int) -> tuple[Inputs, NDArray[np.int64]]:
    """Return the records that questions are about, one for each, and the label that each asks."""
    marks = inputs.features[:, -labels:]
    return Inputs(inputs.features[:, :-labels]), np.asarray(marks.argmax(axis=1), dtype=np.int64)


def of_label(records: Records, label: int, labels: int) -> Records:
    """Return the records with one of their labels, from some of their questions."""
    inputs, asked = asked_labels(records.inputs, labels)
    rows = np.flatnonzero(asked == label)
    picked = records.select(rows)
    return Records(
        features=inputs.features[rows],
        labels=picked.labels,
        unit_ids=picked.unit_ids,
        hospitals=picked.hospitals,
        row_names=picked.row_names,
    )


def apart_by_label(features: NDArray[np.float64], labels: int) -> NDArray[np.float64]:
    """Return the features of questions in columns of their label's own: for one joint linear model.

    Returns:
        Shape (questions, labels * (features of a record + 1)); of one label the features as given.
    """
    if labels == 1:
        return features
    records, asked = asked_labels(Inputs(features), labels)
    own = np.column_stack([records.features, np.ones(len(features))])
    apart = np.zeros((len(own), labels, own.shape[1]))
    apart[np.arange(len(own)), asked] = own
    return apart.reshape(len(own), -1)
