"""A new student is one file and one line: a run then offers it, trains it, saves it, reports it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from sklearn.datasets import load_breast_cancer
from typer.testing import CliRunner

from coordinator.cli import app
from pate_fed.students import STUDENTS, load_student
from tests.support.command import shown_by
from tests.support.toy_student import CentersStudent


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one line: it stands in `pate_fed.students.student_choice` for a real one."""
    monkeypatch.setitem(STUDENTS, CentersStudent.name, CentersStudent)


@pytest.mark.slow
def test_it_is_offered_trained_saved_and_read_again(tmp_path: Path) -> None:
    assert "centers" in shown_by(app, "simulate", "--help")
    run = tmp_path / "run"
    out = json.loads(
        shown_by(
            app,
            *("simulate", "--data", "breast-cancer", "--parties", 5, "--teachers", 4),
            *("--mechanism", "gnmax", "--queries", 20, "--epsilon", 50, "--seed", 1),
            *("--student", "centers", "--out", run, "--format", "json"),
        )
    )
    assert out["metrics"]["scores"]["student"]["accuracy"] > 0.5
    read = load_student(run / "student")
    assert isinstance(read.student, CentersStudent)
    named = read.predict({name: [1.0, 2.0, 3.0] for name in load_breast_cancer().feature_names})
    assert set(named.tolist()) <= {"benign", "malignant"}
    assert json.loads((run / "student" / "student.json").read_text())["form"] == "centers"


def test_an_unknown_student_is_refused_with_all_names() -> None:
    result = CliRunner().invoke(app, ["simulate", "--student", "genius"])
    assert result.exit_code == 2
    assert "centers" in result.output
