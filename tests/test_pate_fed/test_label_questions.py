"""Several yes-no labels of a table: which columns may be labels, and the questions about them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pate_fed.data import Dataset, DataSource, load_dataset
from pate_fed.data.label_questions import apart_by_label, asked_labels, of_label
from pate_fed.errors import InvalidCellError, InvalidDataError, InvalidParameterError

LABELS = ("ill", "frail", "smokes")


def write(path: Path, *, rows: int = 60, **columns: list[str]) -> Path:
    """Write a table of patients with three labels, the last one rare."""
    rng = np.random.default_rng(5)
    own = {
        "age": [str(one) for one in rng.integers(20, 90, rows)],
        "pressure": [str(one) for one in rng.integers(90, 180, rows)],
        "ill": [str(row % 2) for row in range(rows)],
        "frail": [str(int(row % 3 == 0)) for row in range(rows)],
        "smokes": [str(int(row % 19 == 4)) for row in range(rows)],
        "ward": [f"w{row % 4}" for row in range(rows)],
        **columns,
    }
    lines = [",".join(own), *(",".join(cells) for cells in zip(*own.values(), strict=True))]
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return path


def load(path: Path, labels: tuple[str, ...] = LABELS, **roles: str) -> Dataset:
    source = DataSource("csv", data_file=path, label_column=labels, **roles)  # type: ignore[arg-type]
    return load_dataset(source, rng=np.random.default_rng(0))


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    return load(write(tmp_path / "t.csv"))


def test_every_record_has_a_question_for_each_label_in_order(dataset: Dataset) -> None:
    assert dataset.labels == LABELS
    assert sum(dataset.sizes) == 60
    for part, size in zip(dataset.parts, dataset.sizes, strict=True):
        assert len(part) == 3 * size
        records, asked = asked_labels(part.inputs, 3)
        assert asked.tolist() == [0, 1, 2] * size
        each = records.features.reshape(size, 3, -1)
        assert (each == each[:, :1]).all()
        assert part.unit_ids[::3] == part.unit_ids[1::3] == part.unit_ids[2::3]
        assert part.row_names is not None
        assert part.row_names[::3] == part.row_names[2::3]


def test_answers_are_those_of_the_table(dataset: Dataset) -> None:
    for part in dataset.parts:
        assert part.row_names is not None
        for place in range(3):
            answers = of_label(part, place, 3)
            assert answers.row_names is not None
            rows = np.array([int(line) - 2 for line in answers.row_names])
            wanted = (rows % 2, rows % 3 == 0, rows % 19 == 4)[place]
            assert answers.labels.tolist() == np.asarray(wanted, dtype=np.int64).tolist()


def test_every_answer_to_every_label_reaches_all_parts(dataset: Dataset) -> None:
    for part in dataset.parts:
        for place in range(3):
            assert set(of_label(part, place, 3).labels.tolist()) == {0, 1}


def test_no_label_is_a_feature_and_no_patient_is_in_two_parts(dataset: Dataset) -> None:
    used = {one.name for one in dataset.columns if one.use in ("number", "category")}
    assert used == {"age", "pressure", "ward"}
    units = [set(part.unit_ids) for part in dataset.parts]
    assert not (units[0] & units[1])
    assert not (units[0] & units[2])
    assert not (units[1] & units[2])


@pytest.mark.parametrize(
    ("columns", "labels"),
    [
        pytest.param({"ill": ["a", "b", "c"] * 20}, LABELS, id="three values in the first"),
        pytest.param({"frail": ["0", "1", "2"] * 20}, LABELS, id="three values in another"),
        pytest.param({"frail": ["no", "yes", "yes"] * 20}, LABELS, id="other values"),
        pytest.param({"frail": ["0"] * 60}, LABELS, id="one value"),
        pytest.param({"frail": ["0", "1", ""] * 20}, LABELS, id="missing values"),
        pytest.param({}, ("ill", "frail", "ill"), id="a column twice"),
        pytest.param({}, ("ill", "nothing"), id="no such column"),
        pytest.param({}, ("ill", "age"), id="a measurement"),
        pytest.param({"smokes": ["1", "1", *["0"] * 58]}, LABELS, id="a class of two records"),
    ],
)
def test_labels_must_be_two_valued_alike(
    tmp_path: Path, columns: dict[str, list[str]], labels: tuple[str, ...]
) -> None:
    path = write(tmp_path / "t.csv", **columns)
    with pytest.raises((InvalidDataError, InvalidParameterError, InvalidCellError)) as caught:
        load(path, labels)
    assert caught.value.code.startswith("PF-")


def test_positive_names_yes_in_columns_that_differ(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", frail=["1", "unknown", "none"] * 20)
    dataset = load(path, positive="1")
    assert dataset.class_names == ("not 1", "1")
    lines = of_label(dataset.private, 1, 3)
    assert lines.row_names is not None
    wanted = [int((int(line) - 2) % 3 == 0) for line in lines.row_names]
    assert lines.labels.tolist() == wanted


def test_columns_of_a_labels_own_make_one_linear_model_of_all(dataset: Dataset) -> None:
    features = dataset.pool.features
    apart = apart_by_label(features, 3)
    width = features.shape[1] - 3 + 1
    assert apart.shape == (len(features), 3 * width)
    for row in range(6):
        blocks = apart[row].reshape(3, width)
        assert (blocks[row % 3, :-1] == features[row, :-3]).all()
        assert blocks[row % 3, -1] == 1
        assert not np.delete(blocks, row % 3, axis=0).any()
    assert apart_by_label(features, 1) is features
