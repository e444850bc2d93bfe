"""Sets of classes from a deployed run on: who calibrates them, and where they are stated."""

from __future__ import annotations

import csv
import re
from collections.abc import Collection
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from coordinator.runs.queue import RunState
from coordinator.runs.transcripts import check_transcript
from pate_fed import load_student
from pate_fed.queries import QueryBatch
from pate_fed.report import read_run, render_report
from pate_fed.students.label_sets import calibrating_rows
from tests.support.command import Command, pate_fed
from tests.support.deployed import CLASSES, LABEL, TEACHERS, true_class
from tests.support.worked import Worked

__all__ = ["pate_fed"]  # a fixture

ASKED = 25
INTERACTIVE = ("--mechanism", "interactive-threshold", "--vote-threshold", 20)


def ask(federation: Worked, pate_fed: Command, *more: object) -> Path:
    """Let an operator ask for a run with sets, work on it, and return its folder."""
    asked = pate_fed(
        *("run", "--queries", federation.queries, "--label", LABEL, "--classes", ",".join(CLASSES)),
        *("--name", "first", "--home", federation.coordinator.home.folder, "--detach"),
        *("--epsilon", 300, "--ask", ASKED, "--coverage", 0.8, *more),
    )
    assert asked.code == 0, asked.err
    run = federation.work()
    assert run.state is RunState.DONE, run.reason
    return federation.coordinator.home.results("first")


def disagree(federation: Worked, *, about: Collection[int]) -> None:
    """Let half of each hospital's teachers be wrong about some rows: a threshold refuses these."""
    halves = np.arange(TEACHERS)[:, np.newaxis] % 2

    def vote(batch: QueryBatch) -> NDArray[np.int64]:
        is_split = np.isin(batch.indices, list(about))
        return np.where(is_split, halves, true_class(batch.inputs))

    for hospital in federation.hospitals.values():
        hospital.teachers = vote


def page_of(folder: Path) -> str:
    """The report's words."""
    bare = re.sub(r"<[^>]+>", "", render_report(read_run(folder)).replace("&nbsp;", " "))
    return " ".join(bare.replace("\xa0", " ").split())


def sets_in(page: str) -> str:
    """The words of a page on sets of classes: the first 800 letters after their heading."""
    return page.partition("Sets of classes")[2][:800]


def test_a_deployed_run_gives_sets_that_predict_writes_and_the_report_states(
    federation: Worked, pate_fed: Command
) -> None:
    reserved = set(calibrating_rows(federation.task.pool))
    disagree(federation, about=set(range(0, len(federation.task.inputs), 3)) - reserved)
    folder = ask(federation, pate_fed, "--vote-threshold", 18, "--sigma2", 3)
    check_transcript(folder)
    run = read_run(folder)
    assert run.settings.coverage == 0.8
    assert run.metrics.student is not None
    sets = run.metrics.student.sets
    assert sets is not None
    # A fifth of the queries, from the rows that only calibrate: of all that were asked.
    held = [int(query) for query, _ in run.labels if int(query) in reserved]
    assert len(held) == sets.labels == ASKED // 5
    assert sets.labels_needed == 4

    shown = pate_fed("predict", folder / "student", federation.queries, "--keep", "weight")
    assert shown.code == 0, shown.err
    rows = list(csv.DictReader(shown.out.splitlines()))
    assert list(rows[0]) == ["row", "weight", "label", "set", *(f"chance of {c}" for c in CLASSES)]
    chances = np.array([[float(row[f"chance of {name}"]) for name in CLASSES] for row in rows])
    written = np.array([[name in row["set"].split(" or ") for name in CLASSES] for row in rows])
    raw = list(csv.DictReader(federation.queries.read_text("utf-8").splitlines()))
    table = {name: [row[name] for row in raw] for name in raw[0]}
    student = load_student(folder / "student")
    assert (student.predict_set(table) == written).all()
    likeliest = np.eye(len(CLASSES), dtype=bool)[chances.argmax(axis=1)]
    clear = np.abs(chances - sets.least_chance).min(axis=1) > 1e-4  # four decimals are written
    assert (written == ((chances >= sets.least_chance) | likeliest))[clear].all()
    as_json = pate_fed("predict", folder / "student", federation.queries, "--format", "json").json
    assert [row["set"] for row in as_json["rows"]] == [row["set"].split(" or ") for row in rows]

    promise = rf"80 % [^.;]*\b{sets.labels} held-out"
    low, high = sets.interval
    said = sets_in(page_of(folder))
    assert re.search(promise, said)
    assert "nobody measured" in said  # nor was there any test data
    assert f"{100 * low:.1f} to {100 * high:.1f} %" in said
    assert "an answer" in said  # some rows were refused
    card = (folder / "student" / "model_card.md").read_text("utf-8")
    for text in (card, shown.err):
        assert re.search(promise, " ".join(text.split()))


def test_a_later_student_of_a_deployed_run_keeps_the_same_rows_back(
    federation: Worked, pate_fed: Command
) -> None:
    folder = ask(federation, pate_fed, "--mechanism", "gnmax", "--sigma2", 3)
    before = read_run(folder).metrics.student
    home = ("--home", federation.coordinator.home.folder)
    again = pate_fed("student", "first", "--kind", "forest", *home)
    assert again.code == 0, again.err
    after = read_run(folder).metrics.student
    assert before is not None
    assert after is not None
    assert before.sets is not None
    assert after.sets is not None
    assert (before.kind == "forest", after.kind) == (False, "forest")
    assert (after.sets.labels, after.sets.coverage) == (before.sets.labels, before.sets.coverage)


def test_where_too_few_rows_are_answered_sets_hold_all_classes_and_say_so(
    federation: Worked, pate_fed: Command
) -> None:
    reserved = sorted(calibrating_rows(federation.task.pool))
    disagree(federation, about=reserved)
    folder = ask(federation, pate_fed, "--vote-threshold", 28, "--sigma2", 3)
    run = read_run(folder)
    assert run.metrics.student is not None
    sets = run.metrics.student.sets
    assert sets is not None
    assert sets.labels == 0
    shown = pate_fed("predict", folder / "student", federation.queries)
    rows = list(csv.DictReader(shown.out.splitlines()))
    assert {row["set"] for row in rows} == {"no or yes"}
    stated = r"all classes: 80 % [^.]*\b4 held-out [^.]*\b0\b"
    assert re.search(stated, " ".join(shown.err.split()))
    said = sets_in(page_of(folder))
    assert re.search(stated, said)
    assert "19 of 20" not in said


@pytest.mark.parametrize(
    ("more", "said"),
    [
        pytest.param(("--coverage", 0.8, "--ask", 19), "20", id="too few queries"),
        pytest.param(("--coverage", 0.8, "--ask", 25, "--select", "all"), "all", id="some rows"),
        pytest.param(
            ("--coverage", 0.8, "--ask", 25, *INTERACTIVE), "interactive-threshold", id="a student"
        ),
    ],
)
def test_a_coverage_that_no_run_could_promise_is_refused_before_anything_is_queued(
    federation: Worked, pate_fed: Command, more: tuple[object, ...], said: str
) -> None:
    ended = pate_fed(
        *("run", "--queries", federation.queries, "--label", LABEL, "--classes", ",".join(CLASSES)),
        *("--name", "first", "--home", federation.coordinator.home.folder, "--detach"),
        *("--epsilon", 300, "--mechanism", "gnmax", "--sigma2", 3, *more),
    )
    assert ended.error_code == "PF-105", ended.err
    assert said in ended.err
    assert federation.coordinator.queue.all() == []
