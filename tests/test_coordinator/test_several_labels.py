"""`pate-fed simulate` with several labels: one run of all questions, table to student."""

from __future__ import annotations

import csv
import json
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

import pate_fed as library
from coordinator.runs.transcripts import check_transcript
from pate_fed.accounting.composition import labels_epsilon
from pate_fed.data.sources import read_table
from pate_fed.errors import InvalidParameterError, RunDirectoryError
from pate_fed.report import read_run
from pate_fed.students import prediction
from tests.support.command import Command, Ended, exit_code_of, leftovers, pate_fed
from tests.test_docs import ROOT, fenced

__all__ = ["pate_fed"]  # a fixture

LABELS = ("ill", "frail", "smokes", "falls", "old")


def write(path: Path, rows: int = 240) -> Path:
    """Write a table with five labels that follow from two numbers."""
    rng = np.random.default_rng(4)
    age, weight = rng.normal(60, 15, rows), rng.normal(75, 12, rows)
    answers = np.stack([age > 60, weight < 68, weight > 84, age + weight > 150, age > 72], axis=1)
    lines = [f"patient,age,weight,{','.join(LABELS)}"]
    for row in range(rows):
        said = ",".join("yes" if one else "no" for one in answers[row])
        lines.append(f"p{row},{age[row]:.2f},{weight[row]:.2f},{said}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def arguments(table: Path, out: Path, *more: object, labels: tuple[str, ...] = LABELS) -> list:
    named = [part for name in labels for part in ("--label", name)]
    return [
        *("simulate", "--data", "csv", "--data-file", table, "--patient-id", "patient", *named),
        *("--parties", 3, "--teachers", 6, "--teacher", "logistic", "--queries", 60),
        *("--mechanism", "gnmax", "--sigma2", 4, "--epsilon", 60, "--seed", 7, "--out", out),
        *more,
    ]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the table, a run without a cap, and one with a cap of 2."""
    folder = tmp_path_factory.mktemp("several")
    table = write(folder / "table.csv")
    assert exit_code_of(*arguments(table, folder / "free")) == 0
    assert exit_code_of(*arguments(table, folder / "capped", "--label-cap", 2)) == 0
    return folder


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_labels_have_a_row_for_each_input_and_a_column_for_each_label(runs: Path) -> None:
    table = rows_of(runs / "table.csv")
    released = rows_of(runs / "free" / "labels.csv")
    assert list(released[0]) == ["query_id", *LABELS, "row"]
    assert len({row["query_id"] for row in released}) == len(released) == 12
    right = [row[name] == table[int(row["row"]) - 2][name] for row in released for name in LABELS]
    assert {released[0][name] for name in LABELS} <= {"yes", "no"}
    assert np.mean(right) > 0.6  # teachers say yes to each label equally often


def test_a_run_that_is_read_back_has_an_answer_for_each_question(runs: Path) -> None:
    for name in ("free", "capped"):
        found = read_run(runs / name)
        check_transcript(runs / name)
        assert found.settings.label == LABELS
        assert len(found.labels) == found.metrics.queries.asked == 60
        released = rows_of(runs / name / "labels.csv")
        for place, (query, label) in enumerate(found.labels):
            row, at = divmod(place, 5)
            assert int(query) == 5 * int(released[row]["query_id"]) + at
            assert label == released[row][LABELS[at]]


@pytest.mark.parametrize(("name", "asks", "cap"), [("free", 60, None), ("capped", 48, 2)])
def test_the_record_states_the_price_of_the_asks_that_one_unit_moves(
    runs: Path, name: str, asks: int, cap: int | None
) -> None:
    privacy = read_run(runs / name).privacy
    assert (privacy.mechanism.max_asks, privacy.mechanism.labels) == (60, 5)
    assert privacy.mechanism.label_cap == cap
    assert privacy.privacy_unit == "record"
    epsilon = labels_epsilon(2, 4.0, asks=asks, delta=1e-5)
    assert privacy.views.public.epsilon == pytest.approx(epsilon, rel=1e-9)
    assert privacy.views.removal is None
    free = read_run(runs / "free").privacy.neighboring_definition
    assert (privacy.neighboring_definition == free) is (cap is None)
    assert free in privacy.neighboring_definition
    assert privacy.neighboring_definition in privacy.guarantee


def test_scores_are_stated_by_label_and_as_their_mean(runs: Path) -> None:
    metrics = read_run(runs / "free").metrics
    student = metrics.scores.student
    assert student is not None
    assert student.by_label is not None
    assert tuple(sorted(student.by_label)) == tuple(sorted(LABELS))
    areas = [one.auc for one in student.by_label.values()]
    assert student.auc == pytest.approx(np.mean(np.array(areas, dtype=float)))
    assert student.auc is not None
    assert student.auc > 0.85
    assert metrics.data is not None
    assert metrics.data.records.test == student.records
    low, high = student.accuracy_interval
    assert high - low > 1.9 / np.sqrt(5 * student.records)  # patients count, not questions
    pooled, noisy = metrics.scores.pooled, metrics.scores.private_baseline
    assert pooled is not None
    assert pooled.auc is not None
    assert pooled.auc > 0.9
    assert noisy is not None


def test_students_answer_as_scikit_learns_classifiers_of_several_outputs(runs: Path) -> None:
    students = library.load_students(runs / "free" / "student")
    rows = {"age": [30.0, 85.0], "weight": [60.0, 100.0]}
    assert students.labels == LABELS
    chances = students.predict_proba(rows)
    assert [one.shape for one in chances] == [(2, 2)] * 5
    said = students.predict(rows)
    assert said.shape == (2, 5)
    assert said[:, 0].tolist() == ["no", "yes"]
    assert students.score(rows, said) == 1.0
    assert students.score(rows, said[::-1]) == 0.0
    assert list(students.feature_names_in_) == ["age", "weight"]
    assert [one.tolist() for one in students.classes_] == [["no", "yes"]] * 5
    alone = library.load_student(runs / "free" / "student" / "label-4")
    assert (alone.predict(rows) == said[:, 3]).all()
    for labels in (said[:, 0], said[:, :4], np.zeros(said.shape, dtype=int)):
        with pytest.raises(InvalidParameterError):
            students.score(rows, labels)


def test_students_of_several_labels_read_rows_alike(runs: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(runs / "free" / "student", tmp_path / "student")
    for path in sorted((folder / "label-2").glob("*.json")):
        text = path.read_text(encoding="utf-8")
        path.write_text(text.replace('"weight"', '"height"'), encoding="utf-8")
    assert library.load_student(folder / "label-2").feature_names_in_.tolist() == ["age", "height"]
    with pytest.raises(RunDirectoryError):
        library.load_students(folder)


def test_a_table_is_read_once_for_all_labels(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = Mock(side_effect=read_table)
    monkeypatch.setattr(prediction, "read_table", read)
    found = prediction.predict_file(runs / "free" / "student", runs / "table.csv")
    assert isinstance(found, prediction.PredictedAnswers)
    assert (len(found.by_label), read.call_count) == (5, 1)


def test_folders_of_one_and_of_several_labels_are_told_apart(runs: Path) -> None:
    folder = runs / "free" / "student"
    with pytest.raises(RunDirectoryError):
        library.load_student(folder)
    with pytest.raises(RunDirectoryError):
        library.load_students(folder / "label-1")


def test_predict_has_two_columns_for_each_label(runs: Path, pate_fed: Command) -> None:
    student = runs / "free" / "student"
    shown = pate_fed("predict", student, runs / "table.csv", "--keep", "patient")
    assert shown.code == 0, shown.err
    found = list(csv.DictReader(shown.out.splitlines()))
    assert len(found) == 240
    assert list(found[0])[:4] == ["row", "patient", "ill", "chance of ill yes"]
    table = rows_of(runs / "table.csv")
    assert np.mean([one["ill"] == row["ill"] for one, row in zip(found, table, strict=True)]) > 0.8
    plain = pate_fed("predict", student, runs / "table.csv", "--format", "json")
    assert [len(one["rows"]) for one in plain.json["labels"].values()] == [240] * 5
    refused = pate_fed("export-student", student, runs / "student.onnx")
    assert refused.error_code == RunDirectoryError.code


@pytest.mark.slow
def test_another_student_learns_the_same_labels(runs: Path, tmp_path: Path) -> None:
    out, table = tmp_path / "run", write(tmp_path / "table.csv")
    assert exit_code_of(*arguments(table, out)) == 0
    labels = (out / "labels.csv").read_bytes()
    assert exit_code_of("student", out, "--kind", "forest", "--data-file", table) == 0
    check_transcript(out)
    assert (out / "labels.csv").read_bytes() == labels
    described = json.loads((out / "student" / "label-2" / "student.json").read_text("utf-8"))
    assert described["student"] == "forest"


@pytest.mark.slow
def test_the_same_seed_and_its_file_repeat_a_run(runs: Path, tmp_path: Path) -> None:
    again = ("simulate", "--config", runs / "capped" / "run.toml")
    assert exit_code_of(*again, "--data-file", runs / "table.csv", "--out", tmp_path / "again") == 0
    for name in ("labels.csv", "run.toml"):
        assert (tmp_path / "again" / name).read_bytes() == (runs / "capped" / name).read_bytes()


@pytest.mark.slow
def test_a_label_alone_is_a_run_as_before(runs: Path, tmp_path: Path) -> None:
    out = tmp_path / "one"
    assert exit_code_of(*arguments(runs / "table.csv", out, labels=("ill",))) == 0
    found = read_run(out)
    assert found.settings.label == "ill"
    assert found.privacy.mechanism.labels is None
    assert (out / "labels.csv").read_text("utf-8").startswith("query_id,label,row\n")


def refused(pate_fed: Command, table: Path, out: Path, *more: object) -> Ended:
    shown = pate_fed(*arguments(table, out, *more))
    assert shown.code not in (0, 1)
    return shown


@pytest.mark.parametrize(
    "more",
    [
        pytest.param(("--label-cap", 3), id="a cap that lowers no price"),
        pytest.param(("--label-cap", 0), id="a cap of nothing"),
        pytest.param(("--label-cap", 2, "--class-balance", "equal"), id="votes shared out"),
        pytest.param(("--queries", 61), id="part of an input"),
        pytest.param(("--batch-size", 4), id="batches of part of an input"),
        pytest.param(("--queries", 6000), id="more than the pool"),
        pytest.param(("--label", "ill"), id="a label twice"),
        pytest.param(("--label", "age"), id="a label of more than two values"),
        pytest.param(("--evaluate", "private"), id="private evaluation"),
        pytest.param(("--partition", "dirichlet"), id="dealing by class"),
        pytest.param(("--prevalence", "0.5,0.5"), id="one prevalence"),
        pytest.param(("--coverage", 0.8), id="sets of classes"),
        pytest.param(("--select", "least-confident"), id="queries of a student"),
        pytest.param(("--select", "cluster-votes"), id="votes on clusters"),
        pytest.param(
            ("--mechanism", "interactive-threshold", "--vote-threshold", 9), id="a student within"
        ),
        pytest.param(("--mechanism", "counts"), id="released counts"),
    ],
)
def test_settings_that_several_labels_cannot_have_are_refused_before_anything(
    runs: Path, tmp_path: Path, pate_fed: Command, more: tuple[object, ...]
) -> None:
    shown = refused(pate_fed, runs / "table.csv", tmp_path / "out", *more)
    assert shown.error_code.startswith("PF-")
    assert not leftovers(tmp_path)


def test_a_cap_on_answers_and_a_run_that_stands_on_others_are_of_one_label(
    runs: Path, tmp_path: Path, pate_fed: Command
) -> None:
    threshold = ("--mechanism", "threshold", "--vote-threshold", 9, "--max-answers", 9)
    assert refused(pate_fed, runs / "table.csv", tmp_path / "out", *threshold).error_code
    after = ("--after", runs / "free", "--data-file", runs / "table.csv", "--out", tmp_path / "b")
    assert pate_fed("simulate", *after).code not in (0, 1)
    assert not leftovers(tmp_path)


@pytest.mark.slow
def test_no_answer_is_an_empty_cell(runs: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    threshold = ("--mechanism", "threshold", "--vote-threshold", 16)
    assert exit_code_of(*arguments(runs / "table.csv", out, *threshold)) == 0
    cells = [row[name] for row in rows_of(out / "labels.csv") for name in LABELS]
    assert 0 < cells.count("") < 60
    assert read_run(out).metrics.queries.refused == cells.count("")


def test_a_plan_states_the_price_of_the_run(pate_fed: Command, runs: Path) -> None:
    common = ("--parties", 3, "--teachers", 6, "--mechanism", "gnmax", "--sigma2", 4)
    plan = ("plan", *common, "--queries", 60, "--epsilon", 60, "--format", "json")
    for name, more in (("free", ()), ("capped", ("--label-cap", 2))):
        found = pate_fed(*plan, "--labels", 5, *more).json
        epsilon = read_run(runs / name).privacy.views.public.epsilon
        assert found["forecast"]["prices"]["public"]["epsilon"] == pytest.approx(epsilon)
    assert pate_fed(*plan, "--label-cap", 2).code not in (0, 1)
    assert pate_fed(*plan, "--labels", 5, "--classes", 3).code not in (0, 1)


@pytest.mark.slow
def test_a_hospital_as_unit_has_one_cap(runs: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    more = ("--unit", "party", "--sigma2", 40, "--label-cap", 1)
    assert exit_code_of(*arguments(runs / "table.csv", out, *more)) == 0
    privacy = read_run(out).privacy
    assert privacy.unit_votes == 6
    epsilon = labels_epsilon(2, 40.0, asks=24, delta=1e-5, weight=6)
    assert privacy.views.public.epsilon == pytest.approx(epsilon, rel=1e-9)


@pytest.mark.slow
def test_the_howto_is_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = ROOT / "docs" / "how-to" / "several-labels.md"
    monkeypatch.chdir(tmp_path)
    [code] = fenced(page, "python")
    exec(compile(code, "example", "exec"), {})  # noqa: S102 - ours
    [shell] = fenced(page, "sh")
    command = shlex.split(shell.replace("\\\n", " ").partition("pate-fed ")[2])
    assert exit_code_of(*command) == 0
    run = read_run(tmp_path / "runs" / "diabetics")
    assert len(run.settings.label or ()) == 5
    assert run.privacy.views.public.epsilon is not None
    assert run.privacy.views.public.epsilon <= 4
    shown = (tmp_path / "runs/diabetics/report.html").read_text("utf-8")
    assert all(f">{name}</th>" in shown for name in run.settings.label or ())
