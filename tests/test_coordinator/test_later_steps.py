"""Nothing after the last label fails a run: what breaks is a note, and the labels are there."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coordinator.cli import following
from coordinator.errors import RunQueueError
from coordinator.runs import results, write_up
from coordinator.runs.later_steps import NO_STUDENT, attempt
from coordinator.runs.queue import Run, RunState
from coordinator.runs.transcripts import check_transcript
from coordinator.simulation import run as simulation
from pate_fed import students
from pate_fed.accounting import EntryState
from pate_fed.errors import InvalidParameterError, RunDirectoryError
from pate_fed.record import RecordTable
from pate_fed.report import RunDirectory, plots, read_run
from pate_fed.students import Student
from tests.support.command import Command, pate_fed, small_run, write_table
from tests.support.deployed import CLASSES, LABEL
from tests.support.worked import QUERIES, KilledError, Worked

__all__ = ["pate_fed"]  # a fixture

SECRET = "a value that nobody may see"


def failing(error: Callable[[], BaseException]) -> Callable[..., Any]:
    def fail(*_: object, **__: object) -> Any:
        raise error()

    return fail


def full() -> OSError:
    return OSError(28, "No space left on device")


WITHOUT_STUDENT: dict[str, tuple[object, str, Callable[[], BaseException]]] = {
    "training is refused": (students, "train_student", lambda: InvalidParameterError("a", "b")),
    "training breaks": (students, "train_student", lambda: RuntimeError(SECRET)),
    "training has no memory": (students, "train_student", MemoryError),
    "a full disk for the student": (Student, "save", full),
}
WITHOUT_PAGES: dict[str, tuple[object, str, Callable[[], BaseException]]] = {
    "pictures": (plots, "classes_plot", lambda: RuntimeError(SECRET)),
    "report": (results, "render_report", lambda: RuntimeError(SECRET)),
    "annexes": (results, "render_annexes", lambda: RuntimeError(SECRET)),
    "model card": (results, "render_model_card", lambda: RuntimeError(SECRET)),
    "the record": (RunDirectory, "read_back", lambda: RuntimeError(SECRET)),
}
FAULTS = {**WITHOUT_STUDENT, **WITHOUT_PAGES}


def plant(patch: pytest.MonkeyPatch, name: str) -> None:
    place, attribute, error = FAULTS[name]
    patch.setattr(place, attribute, failing(error))


def require_results(folder: Path, fault: str, *, labels: int) -> None:
    """The labels are there, whole and sealed, and the report says what is missing."""
    with (folder / "labels.csv").open() as file:
        assert len(list(csv.DictReader(file))) == labels
    check_transcript(folder)
    record, report = read_run(folder), (folder / "report.html").read_text("utf-8")
    assert (folder / "annexes.html").is_file()
    assert SECRET not in report + str(record.metrics.warnings)
    if fault in WITHOUT_STUDENT:
        assert record.metrics.student is None
        assert not (folder / "student").exists()
        [said] = [one for one in record.metrics.warnings if one.startswith(NO_STUDENT)]
        assert "pate-fed student" in said
        assert "pate-fed student" in report
    else:
        assert record.metrics.student is not None
        assert "RuntimeError" in report
        assert (folder / "student" / "student.json").is_file()


@pytest.mark.slow
@pytest.mark.parametrize("fault", [one for one in FAULTS if one != "pictures"])  # it has none
def test_a_run_whose_later_step_fails_is_done_and_exported(
    federation: Worked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    federation.ask(queries=4)
    with monkeypatch.context() as patch:
        plant(patch, fault)
        run = federation.work()
    assert run.state is RunState.DONE
    assert run.reason
    assert SECRET not in run.reason
    folder = federation.coordinator.home.results("first")
    require_results(folder, fault, labels=4)
    assert [path.name for path in folder.parent.iterdir()] == ["results"]
    for private in (True, False):
        out = tmp_path / f"out-{private}"
        assert "labels.csv" in federation.coordinator.export("first", out, private=private)
    for one in federation.hospitals.values():
        assert [entry.state for entry in one.ledger.load().entries] == [EntryState.COMMITTED]


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_simulation_whose_later_step_fails_ends_well(
    pate_fed: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    table, out = write_table(tmp_path / "table.csv"), tmp_path / "run"
    with monkeypatch.context() as patch:
        plant(patch, fault)
        ended = pate_fed(*small_run(table, out))
    assert ended.code == 0, ended.err
    assert SECRET not in ended.out + ended.err
    require_results(out, fault, labels=8)
    again = pate_fed("report", out)
    assert again.code == 0, again.err
    assert "<section " in (out / "report.html").read_text("utf-8")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "name"),
    [
        pytest.param(simulation, "yardsticks", id="comparison models"),
        pytest.param(simulation, "scores_of", id="scores"),
        pytest.param(simulation.PrivateEvaluation, "run", id="private evaluation"),
    ],
)
def test_a_simulation_that_cannot_be_measured_keeps_its_student(
    pate_fed: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: object, name: str
) -> None:
    table, out = write_table(tmp_path / "table.csv"), tmp_path / "run"
    monkeypatch.setattr(place, name, failing(lambda: RuntimeError(SECRET)))
    ended = pate_fed(*small_run(table, out), "--evaluate", "private")
    assert ended.code == 0, ended.err
    record = read_run(out)
    assert record.metrics.student is not None
    assert any("PF-490: a RuntimeError" in one for one in record.metrics.warnings)
    is_evaluated = name != "run"
    assert (record.metrics.evaluation is not None) is is_evaluated
    assert (record.privacy.evaluation is not None) is is_evaluated


@pytest.mark.slow
def test_a_simulation_keeps_its_labels_elsewhere_where_its_place_is_gone(
    pate_fed: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, out = write_table(tmp_path / "table.csv"), tmp_path / "run"
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "spare"))
    (tmp_path / "spare").mkdir()
    write = RunDirectory.write_record

    def fill_up(directory: RunDirectory, *tables: RecordTable) -> None:
        if directory.folder.parent == out.parent:
            raise RunDirectoryError("run.toml must be writable", "no room") from full()
        write(directory, *tables)

    monkeypatch.setattr(RunDirectory, "write_record", fill_up)
    ended = pate_fed(*small_run(table, out))
    assert (ended.code, ended.err.split()[1]) == (4, "PF-447:")
    assert not out.exists()
    [kept] = (tmp_path / "spare").glob("*/run")
    assert str(kept) in ended.err
    assert len(read_run(kept).labels) == 8


@pytest.mark.slow
def test_results_that_find_no_room_are_written_once_there_is_some_without_a_hospital(
    federation: Worked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service tries again: see `test_service`. By then no hospital need be there."""
    federation.ask(queries=4)
    with monkeypatch.context() as patch:
        patch.setattr("pate_fed.report.run_directory.publish", failing(full))
        with pytest.raises(RunDirectoryError):
            federation.work()
    assert not federation.coordinator.home.results("first").exists()
    federation.away.update(federation.hospitals)
    assert federation.work().state is RunState.DONE
    folder = federation.coordinator.home.results("first")
    check_transcript(folder)
    record = read_run(folder)
    assert (len(record.labels), record.metrics.student is None) == (4, False)


@pytest.mark.slow
def test_results_that_cannot_be_written_are_exported_later(
    federation: Worked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation.ask(queries=4)
    with monkeypatch.context() as patch:
        patch.setattr(results, "manifest_table", failing(lambda: RuntimeError(SECRET)))
        run = federation.work()
        assert run.state is RunState.DONE
        assert "pate-fed export" in run.reason
        assert SECRET not in run.reason
    with pytest.raises(RunQueueError):
        federation.coordinator.export("first", tmp_path / "early")
    from coordinator.lost_results import write_anew  # noqa: PLC0415 - as the command does

    assert write_anew(federation.coordinator, "first")
    federation.coordinator.export("first", tmp_path / "out", private=True)
    assert len(read_run(tmp_path / "out").labels) == 4


@pytest.mark.slow
def test_a_training_that_ends_the_process_each_time_is_given_up(
    federation: Worked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a machine without memory kills the service whenever the student learns."""
    federation.ask(queries=4)
    monkeypatch.setattr(students, "train_student", failing(KilledError))
    for _ in range(write_up.MOST_TRIES):
        with pytest.raises(KilledError):
            federation.work()
    run = federation.work()
    assert (run.state, "cut off 3 times" in run.reason) == (RunState.DONE, True)
    folder = federation.coordinator.home.results("first")
    assert read_run(folder).metrics.student is None
    assert [path.name for path in folder.parent.iterdir()] == ["results"]


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["training breaks", "report"])
def test_who_follows_such_a_run_gets_exit_code_0_and_the_reason(
    pate_fed: Command, federation: Worked, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    follow = following.follow

    def work_and_follow(queue: Any, name: str, **given: Any) -> Run:
        federation.work(name)
        return follow(queue, name, **given)

    monkeypatch.setattr(following, "follow", work_and_follow)
    plant(monkeypatch, fault)
    home = federation.coordinator.home.folder
    ended = pate_fed(
        *("run", "--queries", federation.queries, "--label", LABEL, "--ask", 4),
        *("--classes", ",".join(CLASSES), "--name", "first", "--home", home),
        *("--epsilon", 100, "--mechanism", "gnmax", "--sigma2", 3, "--format", "json"),
    )
    assert ended.code == 0
    assert ended.json["state"] == "done"
    assert "PF-490: a RuntimeError" in ended.json["reason"]
    require_results(federation.coordinator.home.results("first"), fault, labels=4)
    assert ended.json["progress"]["answered"] == 4 < QUERIES


def test_only_faults_of_the_step_are_notes() -> None:
    notes: list[str] = []
    assert attempt(notes, "it", lambda: 7) == 7
    assert attempt(notes, "it", failing(lambda: InvalidParameterError("a", "b"))) is None
    [note] = notes
    assert note.startswith("it ")
    assert note.endswith(": PF-101: a, got b")
    with pytest.raises(KeyboardInterrupt):
        attempt(notes, "it", failing(KeyboardInterrupt))
