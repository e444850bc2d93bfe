"""A student's ONNX file says what the student says, on raw rows."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from coordinator.cli import app
from pate_fed.data import Dataset, DataSource, load_dataset
from pate_fed.errors import InvalidParameterError, RunDirectoryError
from pate_fed.students import LabelFacts, Lesson, TrainedStudent, load_student, train_student
from pate_fed.students.onnx_export import export_onnx
from tests.test_pate_fed.test_student_files import saved, write_rows

onnxruntime = pytest.importorskip("onnxruntime")
FACTS = LabelFacts(votes=100, sigma=20.0, shared_out=True, prevalence=(0.7, 0.3))
UNKNOWN = 5
"""Line of the row with an unknown number."""


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    return write_rows(tmp_path / "rows.csv", rows=120, unit="")


def load(file: Path) -> Dataset:
    source = DataSource("csv", data_file=file, label_column="outcome", patient_column="patient")
    return load_dataset(source, rng=np.random.default_rng(0))


def learned(data: Dataset, name: str, *, facts: LabelFacts = FACTS) -> TrainedStudent:
    indices = np.arange(len(data.pool))
    lesson = Lesson(data.pool.inputs, indices, data.pool.labels, data.classes, facts)
    student = train_student(name, data.kind, lesson, rng=np.random.default_rng(0))
    assert data.preprocessing is not None
    return TrainedStudent(student, data.preprocessing, data.class_names)


def asked(file: Path, given: dict[str, np.ndarray]) -> tuple[list[str], np.ndarray]:
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    named = {one.name: given[one.name] for one in session.get_inputs()}
    label, chances = session.run(["label", "chances"], named)
    return list(label), chances


def raw_of(rows: Path) -> tuple[dict[str, list[str]], dict[str, np.ndarray]]:
    with rows.open() as file:
        read = list(csv.DictReader(file))
    read[UNKNOWN]["glucose"], read[UNKNOWN]["sex"] = "", "x"
    text = {name: [row[name] for row in read] for name in ("age", "sex", "glucose")}
    numbers = {
        name: np.array([[float(cell or "nan")] for cell in text[name]])
        for name in ("age", "glucose")
    }
    return text, {**numbers, "sex": np.array([[cell] for cell in text["sex"]], dtype=object)}


@pytest.mark.parametrize(
    "name",
    [
        *("logistic", "supervised", "kernel-ridge"),
        pytest.param("network", marks=pytest.mark.slow),
        *("forest", "boosting"),
    ],
)
@pytest.mark.filterwarnings("ignore:column .sex.")
def test_raw_rows_get_the_same_labels_and_chances(tmp_path: Path, rows: Path, name: str) -> None:
    student = learned(load(rows), name)
    file = tmp_path / "student.onnx"
    assert set(export_onnx(student, file)) == {"age", "sex", "glucose"}
    text, given = raw_of(rows)
    labels, chances = asked(file, given)
    assert np.allclose(chances, student.predict_proba(text), atol=2e-6)
    assert labels == student.predict(text).tolist()
    assert len(set(labels)) == 2


def test_a_constant_says_its_class(tmp_path: Path, rows: Path) -> None:
    data = load(rows)
    ill = np.flatnonzero(data.pool.labels == 1)
    lesson = Lesson(data.pool.inputs, ill, data.pool.labels[ill], 2)
    student = train_student("logistic", data.kind, lesson, rng=np.random.default_rng(0))
    assert data.preprocessing is not None
    export_onnx(
        TrainedStudent(student, data.preprocessing, data.class_names), tmp_path / "one.onnx"
    )
    labels, chances = asked(tmp_path / "one.onnx", raw_of(rows)[1])
    assert set(labels) == {data.class_names[1]}
    assert set(chances[:, 1]) == {1.0}


def test_features_of_images_get_the_same_labels(tmp_path: Path) -> None:
    data = load_dataset(DataSource("digits"), rng=np.random.default_rng(0))
    student = learned(data, "kernel-ridge", facts=LabelFacts())
    assert export_onnx(student, tmp_path / "digits.onnx") == ("features",)
    labels, chances = asked(tmp_path / "digits.onnx", {"features": data.test.features})
    assert np.allclose(chances, student.student.chances(data.test.inputs), atol=1e-9)
    assert labels == [data.class_names[one] for one in student.student.predict(data.test.inputs)]
    with pytest.raises(InvalidParameterError, match="logistic"):
        export_onnx(learned(data, "supervised", facts=LabelFacts()), tmp_path / "other.onnx")


def test_the_command_writes_a_new_file_and_spares_an_old_one(tmp_path: Path, rows: Path) -> None:
    folder, file = saved(tmp_path / "student", load(rows)), tmp_path / "student.onnx"
    said = CliRunner().invoke(app, ["export-student", str(folder), str(file)])
    assert said.exit_code == 0, said.output
    assert "takes age, sex, glucose" in said.stdout
    before = file.read_bytes()
    again = CliRunner().invoke(app, ["export-student", str(folder), str(file)])
    assert again.exit_code != 0
    assert file.read_bytes() == before
    with pytest.raises(RunDirectoryError, match="new"):
        export_onnx(load_student(folder), tmp_path / "nowhere" / "student.onnx")
