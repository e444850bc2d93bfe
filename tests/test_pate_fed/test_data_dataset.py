"""Records and data sets check themselves and show no record."""

from __future__ import annotations

import numpy as np
import pytest

from pate_fed.data import Dataset, Records
from pate_fed.errors import InvalidDataError
from tests.support.small_records import blobs


@pytest.mark.parametrize(
    ("features", "labels", "units"),
    [
        pytest.param(np.ones((2, 2)), [0], ("a", "b"), id="a label too few"),
        pytest.param(np.ones((2, 2)), [0, 1], ("a",), id="an id too few"),
        pytest.param(np.ones(2), [0, 1], ("a", "b"), id="one axis"),
        pytest.param(np.ones((2, 0)), [0, 1], ("a", "b"), id="no feature"),
        pytest.param([[1.0], [np.nan]], [0, 1], ("a", "b"), id="not a number"),
        pytest.param([[1.0], [np.inf]], [0, 1], ("a", "b"), id="infinite"),
        pytest.param(np.ones((2, 1)), [0, -1], ("a", "b"), id="negative label"),
    ],
)
def test_broken_records_are_refused(
    features: np.ndarray, labels: list[int], units: tuple[str, ...]
) -> None:
    with pytest.raises(InvalidDataError):
        Records(np.asarray(features), np.asarray(labels), units)


def test_hospitals_must_be_as_many_as_records() -> None:
    with pytest.raises(InvalidDataError):
        blobs(3, hospitals=("north", "south"))


def test_records_cannot_be_changed_and_do_not_change_with_their_source() -> None:
    source = np.ones((2, 2))
    records = Records(source, np.array([0, 1]), ("a", "b"))
    source[0, 0] = 5.0
    assert records.features[0, 0] == 1.0
    with pytest.raises(ValueError, match="read-only"):
        records.features[0, 0] = 2.0
    with pytest.raises(ValueError, match="read-only"):
        records.labels[0] = 1


def test_records_print_their_size_only() -> None:
    records = Records(np.array([[424242.0]]), np.array([7]), ("patient-marker",))
    assert repr(records) == "Records(records=1, features=1)"


def test_selected_records_keep_order_ids_and_hospitals() -> None:
    records = blobs(6, hospitals=("n", "n", "s", "s", "s", "n"))
    picked = records.select([4, 0])
    assert picked.unit_ids == ("unit-4", "unit-0")
    assert picked.hospitals == ("s", "n")
    assert np.array_equal(picked.features, records.features[[4, 0]])
    assert np.array_equal(picked.labels, records.labels[[4, 0]])


@pytest.mark.parametrize(
    ("names", "test_features"),
    [
        pytest.param(("a",), 4, id="one class name"),
        pytest.param(("a", "a", "b"), 4, id="a name twice"),
        pytest.param(("a", "b"), 4, id="a label without a name"),
        pytest.param(("a", "b", "c"), 5, id="other features in the test"),
    ],
)
def test_a_dataset_must_be_consistent(names: tuple[str, ...], test_features: int) -> None:
    part = blobs(9)
    with pytest.raises(InvalidDataError):
        Dataset("toy", "table", names, part, part, blobs(9, features=test_features))


def test_a_dataset_prints_sizes_only() -> None:
    part = blobs(9)
    shown = repr(Dataset("toy", "table", ("a", "b", "c"), part, part, part))
    assert shown == "Dataset(toy, table, classes=3, records=9/9/9)"
