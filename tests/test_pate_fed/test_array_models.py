"""A student as arrays: it predicts as the trained one, and no array makes it do anything else."""

from __future__ import annotations

import json
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save

from pate_fed import array_models
from pate_fed.array_models import ArrayModel
from pate_fed.errors import InvalidParameterError, UnreadableFileError
from pate_fed.inputs import Inputs
from pate_fed.students import LabelFacts, Lesson, make_student, read_student
from pate_fed.students.arrays import as_arrays
from pate_fed.students.model import SklearnModel
from pate_fed.students.student import Student

TABLES = ("logistic", "forest", "boosting", "kernel-ridge", "network", "supervised", "propagation")


@cache
def trained(name: str, *, classes: int = 3, labels: int = 150, lost: int | None = None) -> Student:
    """A student of a table whose classes lie on a circle; one class may have no label."""
    rng = np.random.default_rng(classes)
    inputs = rng.normal(size=(labels + 50, 4)) * [1.0, 3.0, 0.1, 1.0]
    known = ((np.arctan2(inputs[:, 0], inputs[:, 3]) + np.pi) / 2 / np.pi * classes).astype(int)
    known = np.minimum(known, classes - 1)
    told = np.flatnonzero(known[:labels] != lost)
    student = make_student(name, "table")
    facts = LabelFacts(votes=100, sigma=5.0)
    lesson = Lesson(Inputs(inputs), told, known[told], classes, facts)
    student.fit(lesson, rng=np.random.default_rng(1))
    return student


@pytest.mark.parametrize("name", TABLES)
def test_arrays_predict_as_the_student_that_they_were_made_of(name: str) -> None:
    for student in (trained(name, classes=2), trained(name, lost=1)):
        found = ArrayModel.from_files(as_arrays(student).to_files())
        rows = np.random.default_rng(9).normal(size=(200, 4)) * 5
        known = student.chances(Inputs(rows))
        near = 1e-3 if name == "network" else 1e-9  # torch computes in float32
        assert np.abs(found.chances(rows) - known).max() < near
        alone = np.concatenate([found.chances(row[np.newaxis]) for row in rows])
        assert np.abs(alone - known).max() < near


def test_a_student_that_knows_one_class_and_one_with_offsets_are_the_same_as_arrays() -> None:
    constant = make_student("logistic", "table")
    lesson = Lesson(Inputs(np.eye(4)), np.arange(2), np.array([2, 2]), 3)
    constant.fit(lesson, rng=np.random.default_rng(0))
    assert as_arrays(constant).chances(np.ones((2, 4))).argmax(axis=1).tolist() == [2, 2]
    student = deepcopy(trained("logistic"))
    model = student.model
    assert isinstance(model, SklearnModel)
    shifted = SklearnModel(model.estimator, 3, np.array([0.5, -1.0, 0.0]))
    student.adopt(shifted, features=4, classes=3)
    rows = np.random.default_rng(3).normal(size=(20, 4))
    known = student.chances(Inputs(rows))
    assert np.abs(as_arrays(student).chances(rows) - known).max() < 1e-9


def test_a_folder_with_arrays_is_read_as_any_student(tmp_path: Path) -> None:
    student = trained("forest")
    for name, content in as_arrays(student).to_files().items():
        (tmp_path / name).write_bytes(content)
    read = read_student(tmp_path)
    rows = Inputs(np.random.default_rng(3).normal(size=(20, 4)))
    assert np.abs(read.chances(rows) - student.chances(rows)).max() < 1e-9
    again = tmp_path / "again"
    read.save(again)
    assert as_arrays(read_student(again)).to_files() == as_arrays(student).to_files()


def test_a_student_without_such_a_form_is_told_so() -> None:
    from sklearn.svm import SVC  # noqa: PLC0415 - a second

    student = make_student("logistic", "table")
    student.adopt(SklearnModel(SVC(), 2), features=2, classes=2)
    with pytest.raises(InvalidParameterError, match="SVC"):
        as_arrays(student)


# What a stranger could send ---------------------------------------------------------------------


def forest_arrays(**changes: Any) -> dict[str, np.ndarray]:
    """One tree with an inner node and two leaves."""
    found = {
        "left": np.array([1, 1, 2]),
        "right": np.array([2, 1, 2]),
        "feature": np.array([0, 0, 0]),
        "threshold": np.zeros(3),
        "value": np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]]),
        "roots": np.array([0]),
        "start": np.zeros(2),
        "places": np.arange(2),
        "offsets": np.zeros(2),
    }
    return {**found, **changes}


def test_the_small_tree_is_one() -> None:
    model = ArrayModel("forest", "forest", 2, 2, forest_arrays())
    assert model.chances(np.array([[-1.0, 0.0], [1.0, 0.0]])).argmax(axis=1).tolist() == [0, 1]


@pytest.mark.parametrize(
    "arrays",
    [
        forest_arrays(right=np.array([0, 1, 2])),
        forest_arrays(left=np.array([1, 0, 2])),
        forest_arrays(left=np.array([1, 2, 2]), right=np.array([2, 1, 2])),
        forest_arrays(right=np.array([1, 1, 2])),
        forest_arrays(roots=np.array([0, 1])),
        forest_arrays(roots=np.array([0, 0])),
        forest_arrays(left=np.array([7, 1, 2])),
        forest_arrays(left=np.array([-1, 1, 2])),
        forest_arrays(feature=np.array([2, 0, 0])),
        forest_arrays(feature=np.array([-1, 0, 0])),
        forest_arrays(roots=np.array([3])),
        forest_arrays(roots=np.zeros(0, dtype=np.int64)),
        forest_arrays(roots=np.array([0.0])),
        forest_arrays(threshold=np.zeros(2)),
        forest_arrays(threshold=np.zeros(3, dtype=np.float32)),
        forest_arrays(value=np.zeros((3, 3))),
        forest_arrays(places=np.array([0, 5])),
        forest_arrays(places=np.array([1, 0])),
        forest_arrays(places=np.zeros(0, dtype=np.int64)),
        forest_arrays(offsets=np.zeros(3)),
        forest_arrays(more=np.zeros(3)),
        {name: array for name, array in forest_arrays().items() if name != "start"},
        {},
    ],
)
def test_arrays_that_do_not_fit_are_refused(arrays: dict[str, np.ndarray]) -> None:
    with pytest.raises(UnreadableFileError, match="arrays"):
        ArrayModel("forest", "forest", 2, 2, arrays)


def test_a_deep_tree_and_many_numbers_are_refused() -> None:
    """Otherwise one prediction would take long; honest trees are less than a tenth as deep."""
    inner = 300  # each has a leaf on its left, and the next on its right
    left = np.arange(2 * inner + 1)
    right = left.copy()
    left[:inner] = np.arange(inner) + inner
    right[: inner - 1] = np.arange(inner - 1) + 1
    right[inner - 1] = 2 * inner
    deep = forest_arrays(
        left=left,
        right=right,
        feature=np.zeros(len(left), dtype=np.int64),
        threshold=np.zeros(len(left)),
        value=np.zeros((len(left), 2)),
    )
    known = np.array([1, 1, 2]), np.array([2, 1, 2]), np.array([0])
    assert array_models._depth(*known) == 2
    wide = forest_arrays(value=np.zeros((2**20, 2)))
    for arrays in (deep, wide):
        with pytest.raises(UnreadableFileError):
            ArrayModel("forest", "forest", 2, 2, arrays)


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "pickle"},
        {"kind": ["forest"]},
        {"form": "sklearn"},
        {"features": 0},
        {"features": True},
        {"classes": 1},
        {"classes": 10**12},
        {"schema_version": 2},
        {"student": None},
        {"student": "\x1b[2J"},
    ],
    ids=str,
)
def test_a_description_of_anything_else_is_refused(change: dict[str, Any]) -> None:
    files = ArrayModel("forest", "forest", 2, 2, forest_arrays()).to_files()
    described = {**json.loads(files["student.json"]), **change}
    with pytest.raises(UnreadableFileError):
        ArrayModel.from_files({**files, "student.json": json.dumps(described).encode()})


@pytest.mark.parametrize("content", [b"", b"{", b"[" * 60_000, b"\xff", b"null", b"{}"], ids=len)
def test_files_that_are_none_are_refused(content: bytes) -> None:
    files = ArrayModel("forest", "forest", 2, 2, forest_arrays()).to_files()
    for name in files:
        with pytest.raises(UnreadableFileError):
            ArrayModel.from_files({**files, name: content})
    with pytest.raises(UnreadableFileError):
        ArrayModel.from_files({**files, "model.skops": b""})
    with pytest.raises(UnreadableFileError):
        ArrayModel.from_files({"student.json": files["student.json"]})
    halves = save({name: array.astype(np.float16) for name, array in forest_arrays().items()})
    with pytest.raises(UnreadableFileError):
        ArrayModel.from_files({**files, "model.safetensors": halves})


@pytest.mark.parametrize("name", TABLES)
def test_no_row_and_no_array_makes_a_number_that_a_processor_is_slow_at(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Denormal numbers take a hundred times as long: a maker could make some rows meet them."""
    made = as_arrays(trained(name, lost=1))
    tiny = {
        key: array * 1e-300 if array.dtype == np.float64 and key != "gamma" else array
        for key, array in made.arrays.items()
    }
    seen: list[np.ndarray] = []

    def watched(function: Any) -> Any:
        def call(*values: Any) -> Any:
            found = function(*values)
            seen.extend(np.ravel(one) for one in (*values, found) if isinstance(one, np.ndarray))
            return found

        return call

    for function in ("_softmax", "_shares"):
        monkeypatch.setattr(array_models, function, watched(getattr(array_models, function)))
    least = np.finfo(np.float64).tiny
    for scale in (1e-160, 1e-80, 1.0, 1e80):
        files = ArrayModel(made.kind, name, 4, 3, tiny).to_files()
        rows = np.random.default_rng(0).normal(size=(10, 4)) * scale
        seen.append(np.ravel(ArrayModel.from_files(files).chances(rows)))
        seen.append(np.ravel(made.chances(rows)))
    numbers = np.abs(np.concatenate(seen).astype(np.float64))
    assert not ((numbers > 0) & (numbers < least)).any()
    assert len(numbers) > 500
