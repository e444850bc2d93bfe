"""A trained student takes raw rows in a fresh place, and says the names of the classes."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sklearn.base import is_classifier
from sklearn.metrics import get_scorer, roc_auc_score
from typer.testing import CliRunner

import pate_fed
from coordinator.cli import app
from pate_fed.data import Dataset, DataSource, load_dataset
from pate_fed.data.stored_preprocessing import read_preprocessing, write_preprocessing
from pate_fed.errors import (
    InvalidCellError,
    InvalidDataError,
    InvalidParameterError,
    MissingColumnError,
    RunDirectoryError,
)
from pate_fed.students import Lesson, make_student

HEAD = ["patient", "age", "sex", "glucose", "outcome"]


def write_rows(path: Path, *, rows: int = 80, unit: str = " mg/dL") -> Path:
    rng = np.random.default_rng(0)
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(HEAD)
        for row in range(rows):
            ill = row % 2
            table.writerow(
                [
                    f"p{row}",
                    round(50 + 20 * ill + rng.normal(), 1) if row % 7 else "",
                    "f" if rng.random() < 0.5 else "m",
                    f"{5 + 3 * ill + rng.normal():.1f}{unit}",
                    "ill" if ill else "well",
                ]
            )
    return path


def learned(data: Dataset, name: str = "logistic") -> object:
    student = make_student(name, data.kind)
    indices = np.arange(len(data.pool))
    student.fit(
        Lesson(data.pool.inputs, indices, data.pool.labels, data.classes),
        rng=np.random.default_rng(0),
    )
    return student


def saved(folder: Path, data: Dataset, name: str = "logistic") -> Path:
    learned(data, name).save(folder)  # type: ignore[attr-defined]
    assert data.preprocessing is not None
    write_preprocessing(folder, data.preprocessing, class_names=data.class_names)
    return folder


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return write_rows(tmp_path / "rows.csv")


def load(file: Path) -> Dataset:
    source = DataSource("csv", data_file=file, label_column="outcome", patient_column="patient")
    return load_dataset(source, rng=np.random.default_rng(0))


class TestTable:
    """Rows of a table."""

    def test_raw_rows_get_the_labels_that_encoded_ones_get(
        self, tmp_path: Path, table: Path
    ) -> None:
        data = load(table)
        student = pate_fed.load_student(saved(tmp_path / "student", data))
        with table.open() as file:
            rows = list(csv.DictReader(file))
        by_line = {f"p{place}": row for place, row in enumerate(rows)}
        asked = [by_line[unit] for unit in data.test.unit_ids]
        columns = {name: [row[name] for row in asked] for name in HEAD}
        inner = student.student.predict(data.test.inputs)
        assert student.predict(columns).tolist() == [data.class_names[one] for one in inner]
        assert np.allclose(student.predict_proba(columns).sum(axis=1), 1.0)

    def test_the_command_says_the_same(self, tmp_path: Path, table: Path) -> None:
        data = load(table)
        folder = saved(tmp_path / "student", data)
        result = CliRunner().invoke(app, ["predict", str(folder), str(table)])
        assert result.exit_code == 0, result.output
        said = list(csv.DictReader(result.stdout.splitlines()))
        assert len(said) == 80
        assert set(said[0]) == {"row", "label", "chance of ill", "chance of well"}
        with table.open() as file:
            columns = {name: [] for name in HEAD}  # type: dict[str, list[str]]
            for row in csv.DictReader(file):
                for name in HEAD:
                    columns[name].append(row[name])
        named = pate_fed.load_student(folder).predict(columns)
        assert [row["label"] for row in said] == named.tolist()
        again = CliRunner().invoke(app, ["predict", str(folder), str(table), "--format", "json"])
        assert [row["label"] for row in json.loads(again.stdout)["rows"]] == named.tolist()

    def test_a_table_without_rows_gets_a_table_without_rows(
        self, tmp_path: Path, table: Path
    ) -> None:
        folder, empty = saved(tmp_path / "student", load(table)), tmp_path / "empty.csv"
        empty.write_text(",".join(HEAD) + "\n")
        for output, said in (
            ("text", "row,label,chance of ill,chance of well\n"),
            ("json", '{"class_names": ["ill", "well"], "notes": [], "rows": []}\n'),
        ):
            result = CliRunner().invoke(
                app, ["predict", str(folder), str(empty), "--format", output]
            )
            assert (result.exit_code, result.stdout) == (0, said)
        empty.write_text("age,sex\n")
        result = CliRunner().invoke(app, ["predict", str(folder), str(empty)])
        assert isinstance(result.exception, MissingColumnError)
        absent = set(HEAD) - {"age", "sex", "patient", "outcome"}
        assert all(repr(name) in str(result.exception.got) for name in absent)
        assert pate_fed.load_student(folder).predict({name: [] for name in HEAD}).tolist() == []

    def test_it_is_used_as_a_classifier_of_scikit_learn(self, tmp_path: Path, table: Path) -> None:
        student = pate_fed.load_student(saved(tmp_path / "student", load(table)))
        with table.open() as file:
            rows = list(csv.DictReader(file))
        columns = {name: [row[name] for row in rows] for name in HEAD}
        outcomes = [row["outcome"] for row in rows]
        assert student.classes_.tolist() == ["ill", "well"]
        assert set(student.feature_names_in_) <= set(HEAD)
        right = np.mean(
            [said == true for said, true in zip(student.predict(columns), outcomes, strict=True)]
        )
        assert student.score(columns, outcomes) == right
        numbered = replace(student, class_names=("0", "1"))
        assert numbered.classes_.dtype == np.int64
        assert numbered.predict(columns).dtype == np.int64
        assert replace(student, class_names=("01", "1")).classes_.tolist() == ["01", "1"]
        chances = student.predict_proba(columns)[:, 1]
        assert is_classifier(student)
        assert get_scorer("accuracy")(student, columns, outcomes) == right
        area = get_scorer("roc_auc")(student, columns, outcomes)
        assert area == roc_auc_score([said == "well" for said in outcomes], chances)

    def test_a_score_is_of_a_label_for_each_row_and_of_its_own_classes(
        self, tmp_path: Path, table: Path
    ) -> None:
        student = pate_fed.load_student(saved(tmp_path / "student", load(table)))
        with table.open() as file:
            rows = list(csv.DictReader(file))
        columns = {name: [row[name] for row in rows] for name in HEAD}
        for labels in ([0] * len(rows), ["ill"] * (len(rows) - 1), "ill"):
            with pytest.raises(InvalidParameterError):
                student.score(columns, labels)
        some = ["ill", *["never seen"] * (len(rows) - 1)]
        assert student.score(columns, some) <= 1 / len(rows)

    def test_columns_go_along_and_unseen_categories_are_counted(
        self, tmp_path: Path, table: Path
    ) -> None:
        folder = saved(tmp_path / "student", load(table))
        student = pate_fed.load_student(folder)
        category = "sex"
        with table.open() as file:
            rows = list(csv.DictReader(file))[:5]
        rows[1][category] = rows[4][category] = "from the moon"
        rows[2][category] = ""
        odd = tmp_path / "odd.csv"
        with odd.open("w", newline="") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows)
        ended = CliRunner().invoke(app, ["predict", str(folder), str(odd), "--keep", "patient"])
        assert ended.exit_code == 0
        said = list(csv.DictReader(ended.stdout.splitlines()))
        assert [row["patient"] for row in said] == [row["patient"] for row in rows]
        [note] = ended.stderr.splitlines()
        assert category in note
        assert "2 of 5" in note
        with pytest.warns(UserWarning, match=category):
            student.predict({name: [row[name] for row in rows] for name in HEAD})
        nowhere = ["predict", str(folder), str(odd), "--keep", "shoe size"]
        assert isinstance(CliRunner().invoke(app, nowhere).exception, MissingColumnError)

    def test_a_number_without_its_unit_is_taken_and_another_unit_is_refused(
        self, tmp_path: Path, table: Path
    ) -> None:
        student = pate_fed.load_student(saved(tmp_path / "student", load(table)))
        row = {"age": [60], "sex": ["f"], "glucose": ["6.1 MG/DL"]}
        first = student.predict_proba(row)
        assert np.array_equal(first, student.predict_proba({**row, "glucose": [6.1]}))
        with pytest.raises(InvalidCellError, match="mg/dl"):
            student.predict({**row, "glucose": ["6.1 mmol/L"]})

    def test_missing_cells_are_filled_and_a_missing_column_is_named(
        self, tmp_path: Path, table: Path
    ) -> None:
        student = pate_fed.load_student(saved(tmp_path / "student", load(table)))
        blank = {"age": [None, float("nan"), "?"], "sex": ["", "f", "x"], "glucose": [6, 6, 6]}
        with pytest.warns(UserWarning, match="'sex'"):
            assert len(student.predict(blank)) == 3
        with pytest.raises(MissingColumnError, match="'glucose'"):
            student.predict({"age": [60], "sex": ["f"]})
        with pytest.raises(InvalidCellError, match="'age'"):
            student.predict({"age": ["60,5"], "sex": ["f"], "glucose": [6]})

    @pytest.mark.parametrize("rows", [[[1, 2]], {}, {"age": [1], "sex": []}, np.ones((2, 3)), None])
    def test_what_is_no_table_is_refused(self, tmp_path: Path, table: Path, rows: object) -> None:
        student = pate_fed.load_student(saved(tmp_path / "student", load(table)))
        with pytest.raises(InvalidDataError):
            student.predict(rows)


class TestImages:
    """Images as arrays and files."""

    def test_images_get_the_labels_that_their_features_get(self, tmp_path: Path) -> None:
        data = load_dataset(DataSource("digits"), rng=np.random.default_rng(0))
        student = pate_fed.load_student(saved(tmp_path / "student", data, "kernel-ridge"))
        assert data.test.images is not None
        inner = student.student.predict(data.test.inputs)
        assert student.predict(data.test.images).tolist() == inner.tolist()
        assert student.predict(data.test.images[..., 0]).tolist() == inner.tolist()
        np.savez(tmp_path / "scans.npz", images=data.test.images[:5])
        result = CliRunner().invoke(
            app, ["predict", str(tmp_path / "student"), str(tmp_path / "scans.npz")]
        )
        labels = [row["label"] for row in csv.DictReader(result.stdout.splitlines())]
        assert labels == [str(one) for one in inner[:5]]

    def test_images_of_another_size_are_refused(self, tmp_path: Path) -> None:
        data = load_dataset(DataSource("digits"), rng=np.random.default_rng(0))
        student = pate_fed.load_student(saved(tmp_path / "student", data, "supervised"))
        for wrong in (np.zeros((2, 9, 9), np.uint8), np.zeros((2, 8, 8)), np.zeros(4, np.uint8)):
            with pytest.raises(InvalidDataError):
                student.predict(wrong)


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda fields: fields.update(schema_version=2), id="version"),
        pytest.param(lambda fields: fields.update(class_names=["ill"]), id="a class too few"),
        pytest.param(lambda fields: fields.update(columns=[]), id="no column"),
        pytest.param(lambda fields: fields["columns"][0].update(mean="a"), id="no number"),
        pytest.param(lambda fields: fields["columns"][0].update(code="x"), id="another key"),
        pytest.param(lambda fields: fields.pop("kind"), id="no kind"),
        pytest.param(lambda fields: fields.update(kind="image"), id="another kind"),
    ],
)
def test_a_folder_that_no_run_wrote_is_refused(tmp_path: Path, table: Path, spoil: object) -> None:
    folder = saved(tmp_path / "student", load(table))
    file = folder / "inputs.json"
    fields = json.loads(file.read_text())
    spoil(fields)  # type: ignore[operator]
    file.write_text(json.dumps(fields))
    with pytest.raises(RunDirectoryError):
        pate_fed.load_student(folder)


@pytest.mark.parametrize("content", ["", "[]", "[" * 100_000, "{"])
def test_damaged_preprocessing_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "inputs.json").write_text(content)
    with pytest.raises(RunDirectoryError):
        read_preprocessing(tmp_path)


class NAType:
    """What pandas has for "not known": it equals nothing, and has no truth."""

    def __bool__(self) -> bool:
        raise TypeError("boolean value of NA is ambiguous")

    def __eq__(self, other: object) -> bool:
        return self  # type: ignore[return-value]

    def __ne__(self, other: object) -> bool:
        return self  # type: ignore[return-value]

    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize("written", [("True", "False"), ("1", "0")])
def test_truths_of_a_data_frame_are_those_of_the_file(
    tmp_path: Path, written: tuple[str, str]
) -> None:
    """A CSV reader makes them of the same file that the student learned from."""
    rng = np.random.default_rng(0)
    path = tmp_path / "rows.csv"
    lines = ["smokes,age,ill"]
    for row in range(80):
        ill = row % 2
        smokes = written[0] if (rng.random() < (0.9 if ill else 0.1)) else written[1]
        lines.append(f"{smokes},{50 + rng.normal():.1f},{'ill' if ill else 'well'}")
    path.write_text("\n".join(lines) + "\n", "utf-8")
    data = load_dataset(
        DataSource("csv", data_file=path, label_column="ill"), rng=np.random.default_rng(0)
    )
    student = pate_fed.load_student(saved(tmp_path / "student", data))
    frame = {"smokes": [True, False, NAType()], "age": [50.0, 50.0, float("nan")]}
    text = {"smokes": [*written, ""], "age": ["50", "50", ""]}
    np.testing.assert_array_equal(student.predict_proba(frame), student.predict_proba(text))
    chances = student.predict_proba(frame)
    assert abs(chances[0, 0] - chances[1, 0]) > 0.2
