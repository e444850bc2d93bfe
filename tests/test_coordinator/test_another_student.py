"""`pate-fed student`: another student from stored labels, at nobody's charge."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coordinator import operator
from coordinator.database import FederationAct
from coordinator.errors import RunQueueError, RunRequestError
from coordinator.lost_results import give_student_to
from coordinator.runs.queue import RunState
from coordinator.runs.transcripts import check_transcript
from pate_fed.errors import RunDirectoryError
from pate_fed.planning.evaluation_settings import EvaluationSettings
from pate_fed.report import RunDirectory, read_run
from pate_fed.students.trained import load_student
from tests.support.command import Command, leftovers, pate_fed, small_run, write_table
from tests.support.worked import Worked

__all__ = ["pate_fed"]  # a fixture

KEPT = ("labels.csv", "privacy.json", "manifest.json", "transcript.jsonl", "sent.csv")
"""Files that no student changes."""


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worked]:
    """A federation with one run that is done."""
    made = Worked(tmp_path_factory.mktemp("ended"))
    made.ask(student="logistic")
    assert made.work().state is RunState.DONE
    yield made
    made.coordinator.close()


@pytest.fixture
def home(ended: Worked, tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    """Its folder, and the run's results, as they were after the test."""
    folder = ended.coordinator.home.results("first")
    kept = tmp_path / "kept"
    shutil.copytree(folder, kept)
    yield ended.coordinator.home.folder, folder
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(kept, folder)


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.slow
def test_a_student_takes_the_place_of_another_and_nothing_is_charged(
    pate_fed: Command, ended: Worked, home: tuple[Path, Path]
) -> None:
    folder, run = home
    before, ledgers = contents(run), [one.ledger.load() for one in ended.hospitals.values()]
    exchanges = [len(one.exchanges) for one in ended.hospitals.values()]
    shown = pate_fed("student", "first", "--kind", "forest", "--home", folder, "--format", "json")
    assert shown.code == 0, shown.err
    assert shown.json["student"]["kind"] == "forest"
    after = contents(run)
    assert {name: after[name] for name in KEPT} == {name: before[name] for name in KEPT}
    assert json.loads(after["student/student.json"])["student"] == "forest"
    assert (b"forest" in after["student/model_card.md"], b"forest" in after["report.html"]) == (
        True,
        True,
    )
    check_transcript(run)  # sealed anew
    assert read_run(run).settings.student == "forest"
    rows = {"age": [30.0, 70.0], "weight": [60.0, 60.0]}
    assert list(load_student(run / "student").predict(rows)) == ["no", "yes"]
    assert leftovers(run.parent, run) == []
    assert [one.ledger.load() for one in ended.hospitals.values()] == ledgers
    assert [len(one.exchanges) for one in ended.hospitals.values()] == exchanges
    *_, entry = ended.coordinator.audit_log.tables()
    assert (entry["act"], entry["subject"], entry["after"]) == (
        FederationAct.STUDENT_GIVEN,
        "first",
        {"student": "forest"},
    )
    assert ended.coordinator.queue.find("first").state is RunState.DONE


@pytest.mark.slow
def test_a_lost_directory_is_written_anew_first(pate_fed: Command, home: tuple[Path, Path]) -> None:
    folder, run = home
    shutil.rmtree(run)
    shown = pate_fed("student", "first", "--kind", "forest", "--home", folder)
    assert shown.code == 0, shown.err
    check_transcript(run)
    assert read_run(run).metrics.student.kind == "forest"


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        pytest.param(("first", "--kind", "gan"), "PF-101", id="a student of images"),
        pytest.param(("first", "--kind", "genius"), "PF-402", id="an unknown student"),
        pytest.param(("second", "--kind", "forest"), "PF-446", id="an unknown run"),
        pytest.param(
            ("first", "--kind", "forest", "--data-file", "x.csv"), "PF-402", id="a file of records"
        ),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_done(
    pate_fed: Command,
    ended: Worked,
    home: tuple[Path, Path],
    arguments: tuple[str, ...],
    code: str,
) -> None:
    folder, run = home
    before, entries = contents(run), ended.coordinator.audit_log.end
    shown = pate_fed("student", *arguments, "--home", folder)
    assert (shown.code, shown.error_code) == (2, code)
    assert (contents(run), ended.coordinator.audit_log.end) == (before, entries)


@pytest.mark.parametrize("file", ["labels.csv", "privacy.json", "transcript.jsonl"])
def test_nobodys_changes_are_sealed_anew(
    pate_fed: Command, home: tuple[Path, Path], file: str
) -> None:
    """Otherwise a forger of labels would only have to wait for the next student."""
    folder, run = home
    text = (run / file).read_text("utf-8")
    (run / file).write_text(text.replace("yes", "no").replace("0.", "1.").replace("a", "b", 1))
    before = contents(run)
    shown = pate_fed("student", "first", "--kind", "forest", "--home", folder)
    assert shown.code in (2, 5)
    assert shown.error_code in ("PF-140", "PF-414", "PF-418")
    assert contents(run) == before


def test_a_run_that_goes_on_gets_no_student(tmp_path: Path, pate_fed: Command) -> None:
    federation = Worked(tmp_path)
    federation.ask()
    folder = federation.coordinator.home.folder
    shown = pate_fed("student", "first", "--kind", "forest", "--home", folder)
    assert (shown.code, shown.error_code) == (2, "PF-446")
    federation.coordinator.close()


@pytest.mark.slow
def test_a_student_that_hospitals_are_scoring_stays(ended: Worked, home: tuple[Path, Path]) -> None:
    _, run = home
    settings = EvaluationSettings(epsilon=1.0, delta=1e-5, unit="record", places=100, colluders=1)
    asked = operator.evaluation_of(ended.coordinator, "first", settings)
    scoring = operator.evaluate(ended.coordinator, asked)
    before = contents(run)
    with pytest.raises(RunQueueError, match=scoring.name):
        give_student_to(ended.coordinator, "first", "forest")
    assert contents(run) == before
    ended.coordinator.queue.enter(scoring.name, RunState.FAILED, "as it ends here")
    give_student_to(ended.coordinator, "first", "forest")
    with pytest.raises(RunRequestError):  # it has labels of another run
        give_student_to(ended.coordinator, scoring.name, "forest")


def test_a_failure_leaves_the_old_student(
    ended: Worked, home: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, run = home
    before = contents(run)

    def fill_up(*_: object) -> None:
        raise RunDirectoryError("seal.json must be writable", "no room")

    monkeypatch.setattr(RunDirectory, "write_json", fill_up)
    with pytest.raises(RunDirectoryError):
        give_student_to(ended.coordinator, "first", "forest")
    assert contents(run) == before
    assert leftovers(run.parent, run) == []


class TestOfASimulation:
    @pytest.fixture
    def table(self, tmp_path: Path) -> Path:
        return write_table(tmp_path / "table.csv")

    @pytest.mark.slow
    def test_it_is_the_student_that_the_run_itself_would_have_had(
        self, pate_fed: Command, table: Path, tmp_path: Path
    ) -> None:
        first, other = tmp_path / "first", tmp_path / "other"
        assert pate_fed(*small_run(table, first), "--student", "logistic").code == 0
        assert pate_fed(*small_run(table, other), "--student", "forest").code == 0
        before = contents(first)
        shown = pate_fed("student", first, "--kind", "forest", "--data-file", table)
        assert (shown.code, shown.err) == (0, "")
        check_transcript(first)
        after = contents(first)
        assert {name: after[name] for name in KEPT} == {name: before[name] for name in KEPT}
        same = {"run.toml", "labels.csv", "student/student.json", "student/model_card.md"}
        expected = contents(other)
        assert {name: after[name] for name in same} == {name: expected[name] for name in same}

        def scores(folder: Path) -> Any:
            metrics = read_run(folder).metrics
            return metrics.scores, metrics.warnings

        assert scores(first) == scores(other)
        assert pate_fed("transcript", "verify", first).code == 0

    @pytest.mark.slow
    def test_another_table_or_none_is_refused_and_so_is_a_public_edition(
        self, pate_fed: Command, table: Path, tmp_path: Path
    ) -> None:
        run, public = tmp_path / "run", tmp_path / "public"
        arguments = [one for one in small_run(table, run) if one not in ("--seed", 7)]
        assert pate_fed(*arguments).code == 0
        before = contents(run)
        other = write_table(tmp_path / "other.csv", rows=90)
        assert pate_fed("report", run, "--out", public).code == 0
        for place, more, codes in (
            (run, ("--data-file", other), (5, "PF-110")),
            (run, (), (2, "PF-101")),
            (run, ("--data-file", table, "--kind", "gan"), (2, "PF-101")),
            (public, ("--data-file", table), (2, "PF-140")),
        ):
            shown = pate_fed("student", place, "--kind", "forest", *more)
            assert (shown.code, shown.error_code) == codes
        assert contents(run) == before
        private = json.loads((run / "manifest.json").read_text())["split"]
        written = "".join(one.read_text("utf-8") for one in public.rglob("*") if one.is_file())
        for name in ("seed", "coordinator"):
            assert private[name] not in written
            assert private[name] not in (run / "report.html").read_text("utf-8")

    @pytest.mark.slow
    def test_a_student_that_was_scored_on_patients_stays(
        self, pate_fed: Command, table: Path, tmp_path: Path
    ) -> None:
        run = tmp_path / "run"
        assert pate_fed(*small_run(table, run), "--evaluate", "private").code == 0
        shown = pate_fed("student", run, "--kind", "forest", "--data-file", table)
        assert (shown.code, shown.error_code) == (2, "PF-140")
