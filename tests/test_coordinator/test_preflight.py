"""Whatever can be known before a charge is refused before a charge: at each door, by one check."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer

from coordinator import cli, operator
from coordinator.console.new_run import FIELDS
from coordinator.errors import ConsoleError
from coordinator.runs import preflight
from coordinator.runs.queue import RunState
from pate_fed.data import DataSource
from pate_fed.errors import InvalidParameterError, PateFedError, RunDirectoryError
from pate_fed.inputs import Inputs
from pate_fed.planning import RunSettings
from pate_fed.students import IMAGE_STUDENTS, LabelFacts, require_student, students_for
from protocols.suites import DEFAULT_SUITE
from tests.support.command import Command, pate_fed, small_run, write_table
from tests.support.deployed import CLASSES, LABEL
from tests.support.rules import run_settings
from tests.support.worked import Worked

__all__ = ["pate_fed"]  # a fixture

IMAGES = Inputs(np.zeros((9, 4)), np.zeros((9, 8, 8, 1), np.uint8))
NOT_OF_A_RUN = {"--home", "--format", "--detach"}
"""Options of the command that no run has."""


@pytest.fixture(scope="module")
def refusing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worked]:
    """A federation that no run of these tests reaches."""
    made = Worked(tmp_path_factory.mktemp("refusing"))
    yield made
    made.coordinator.close()


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return write_table(tmp_path / "table.csv")


WRONG: dict[str, tuple[str, ...]] = {
    "--queries": ("--queries", "missing.csv"),
    "--label": ("--label", ""),
    "--classes": ("--classes", "no"),
    "--name": ("--name", "A run"),
    "--ignore": ("--ignore", "height"),
    "--schema": ("--schema", "missing.toml"),
    "--separator": ("--separator", "ab"),
    "--decimal": ("--decimal", "x"),
    "--missing": ("--missing", "height=9"),
    "--select": ("--select", "best"),
    "--ask": ("--ask", "61"),
    "--mechanism": ("--mechanism", "immutable"),
    "--vote-threshold": ("--vote-threshold", "-1"),
    "--sigma1": ("--sigma1", "0"),
    "--sigma2": ("--sigma2", "nan"),
    "--confidence": ("--mechanism", "interactive-threshold", "--confidence", "2"),
    "--test-delta": ("--mechanism", "stable-gaussian", "--test-delta", "0.6"),
    "--sum": ("--sum", "plain"),
    "--teacher": ("--teacher", "svm"),
    "--votes-per-patient": ("--teacher", "neighbors", "--votes-per-patient", "0"),
    "--noise": ("--noise", "nobody"),
    "--suite": ("--suite", "rot13"),
    "--unit": ("--unit", "country"),
    "--epsilon": ("--epsilon", "0"),
    "--delta": ("--delta", "1"),
    "--batch-size": ("--batch-size", "0"),
    "--student": ("--student", "gan"),
    "--prevalence": ("--prevalence", "0.2,0.3,0.5"),
    "--coverage": ("--coverage", "1"),
    "--purpose": ("--purpose", "x" * 301),
    "--patience": ("--patience", "0"),
}
"""A wrong value of each option of `run`."""


def test_the_table_has_every_option_of_run() -> None:
    commands = typer.main.get_command(cli.app).commands  # type: ignore[attr-defined]
    options = {one.opts[0] for one in commands["run"].params}
    assert options - NOT_OF_A_RUN == set(WRONG)


@pytest.mark.parametrize("option", WRONG)
def test_a_wrong_value_of_run_is_refused_before_anything_is_queued(
    pate_fed: Command, refusing: Worked, option: str
) -> None:
    right = {
        "--queries": str(refusing.queries),
        "--label": LABEL,
        "--classes": ",".join(CLASSES),
        "--name": "first",
        "--epsilon": "100",
    }
    for known in right.keys() & set(WRONG[option]):
        del right[known]
    given = [each for pair in right.items() for each in pair]
    ended = pate_fed("run", *given, *WRONG[option], "--home", refusing.coordinator.home.folder)
    assert ended.code in (2, 3, 5)
    assert ended.error_code.startswith("PF-")
    assert refusing.coordinator.queue.all() == []
    assert list(refusing.coordinator.home.path("pools").iterdir()) == []
    assert not any(one.exchanges for one in refusing.hospitals.values())


def test_the_help_of_run_offers_students_of_tables_alone(pate_fed: Command) -> None:
    offered = pate_fed("run", "--help").out
    assert not any(name in offered.split() for name in IMAGE_STUDENTS)
    every = pate_fed("simulate", "--help").out
    assert all(name in every for name in IMAGE_STUDENTS)


@pytest.mark.parametrize("name", IMAGE_STUDENTS)
def test_a_student_of_images_learns_from_no_table(name: str) -> None:
    assert name not in students_for("table")
    given: dict[str, Any] = {"classes": 3, "facts": LabelFacts()}
    pool = IMAGES
    require_student(name, "image", pool=pool, **given)
    for kind, wrong in (("table", pool), ("table", None), ("image", Inputs(pool.features))):
        with pytest.raises(InvalidParameterError):
            require_student(name, kind, pool=wrong, **given)  # type: ignore[arg-type]


def test_a_device_that_is_not_here_is_refused_before_training() -> None:
    given: dict[str, Any] = {"classes": 3, "facts": LabelFacts(), "device": "abacus"}
    with pytest.raises(InvalidParameterError, match="--device"):
        require_student("gan", "image", pool=IMAGES, **given)


class TestSimulate:
    @pytest.mark.parametrize(
        "wrong",
        [
            pytest.param(("--student", "gan"), id="a student of images"),
            pytest.param(("--teacher", "convolution"), id="teachers of images"),
            pytest.param(("--teacher", "nobody"), id="unknown teachers"),
            pytest.param(("--prevalence", "0.2,0.3,0.5"), id="three classes of two"),
        ],
    )
    def test_it_refuses_before_a_teacher_is_trained(
        self,
        pate_fed: Command,
        table: Path,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        wrong: tuple[str, ...],
    ) -> None:
        monkeypatch.setattr("coordinator.simulation.simulated_federation.train_hospitals", None)
        ended = pate_fed(*small_run(table, tmp_path / "run"), *wrong)
        assert (ended.code, ended.error_code) == (2, "PF-101")
        assert not (tmp_path / "run").exists()

    def test_it_refuses_a_full_disk(
        self, pate_fed: Command, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(preflight, "free_disk", lambda folder: preflight.LEAST_ROOM - 1)
        ended = pate_fed(*small_run(table, tmp_path / "deep" / "run"))
        assert (ended.code, ended.error_code) == (2, "PF-140")
        assert not (tmp_path / "deep").exists()


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    settings = run_settings(DataSource("digits"), DEFAULT_SUITE)
    given: dict[str, Any] = {"kind": "image", "pool": None, "classes": 0}
    with pytest.raises(RunDirectoryError, match="folder"):
        preflight.require_chargeable(settings, place=tmp_path / "file" / "run", **given)


def test_a_package_that_is_missing_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coordinator.runs.results._VERSIONS_OF", ("numpy", "no-such-package"))
    settings = run_settings(DataSource("digits"), DEFAULT_SUITE)
    with pytest.raises(PateFedError, match="no-such-package"):
        preflight.require_chargeable(
            settings, kind="image", pool=None, classes=0, place=tmp_path / "run"
        )


def test_the_console_offers_known_students_alone(refusing: Worked) -> None:
    def asked(form: Any) -> RunSettings:
        given = {one.row.name: one.read(form) for fields in FIELDS.values() for one in fields}
        return refusing.coordinator.settings_of(given, source="a.csv", label=LABEL)

    form = {"student": "oracle", "noise": "coordinator", "epsilon": "5", "delta": "1e-5"}
    with pytest.raises(ConsoleError, match="Student"):
        asked(form)
    for name in ("forest", "gan"):  # of images alone, which a table's draft refuses: `TestWorker`
        assert asked({**form, "student": name}).student == name


class TestWorker:
    """The last to check: an order may be older than the check, and a disk fills up."""

    @pytest.mark.parametrize(
        "wrong",
        [
            pytest.param({"student": "gan"}, id="student"),
            pytest.param({"prevalence": (0.2, 0.3, 0.5)}, id="prevalence"),
        ],
    )
    def test_a_run_that_cannot_get_its_student_ends_before_anybody_hears_of_it(
        self, federation: Worked, monkeypatch: pytest.MonkeyPatch, wrong: dict[str, Any]
    ) -> None:
        with pytest.raises(InvalidParameterError):
            federation.ask(**wrong)
        assert federation.coordinator.queue.all() == []
        with monkeypatch.context() as patch:
            patch.setattr(operator, "require_request", lambda *_: None)
            federation.ask(**wrong)
        run = federation.work()
        assert (run.state, "PF-101" in run.reason) == (RunState.FAILED, True)
        assert not any(one.exchanges for one in federation.hospitals.values())

    @pytest.mark.slow
    def test_a_full_disk_is_waited_for_at_nobodys_charge(
        self, federation: Worked, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        federation.ask(queries=8, patience_s=1e6)
        with monkeypatch.context() as patch:
            patch.setattr(preflight, "free_disk", lambda folder: 0)
            with pytest.raises(RunDirectoryError):
                federation.ask("second")
            run = federation.work()
            assert (run.state, "PF-140" in run.reason) == (RunState.WAITING, True)
            assert not any(one.exchanges for one in federation.hospitals.values())
        free, waits = preflight.free_disk, 0

        def fill_up(seconds: float) -> None:  # between two batches, for a while
            nonlocal waits
            waits += 1
            if waits == 30:
                monkeypatch.setattr(preflight, "free_disk", free)

        federation.on_wait = fill_up
        federation.on_stage = lambda stage: (
            monkeypatch.setattr(preflight, "free_disk", lambda folder: 0) if not waits else None
        )
        assert federation.work().state is RunState.DONE
        assert waits >= 30
        for one in federation.hospitals.values():
            assert len(one.ledger.load().entries) == 2
