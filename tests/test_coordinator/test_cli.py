"""The command line as a tired person uses it: one line per error, nothing half done."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coordinator import cli
from pate_fed import __version__
from pate_fed.report import read_run
from tests.support.command import Command, leftovers, pate_fed, small_run, write_table
from tests.support.markers import more, sampled

__all__ = ["pate_fed"]  # a fixture

REPOSITORY = Path(__file__).parents[2]
RUN_FILES = {
    "run.toml",
    "manifest.json",
    "metrics.json",
    "privacy.json",
    "labels.csv",
    "transcript.jsonl",
    "seal.json",
    "sent.csv",
    "report.html",
    "annexes.html",
    "student",
}


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return write_table(tmp_path / "table.csv")


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "run"


class TestRun:
    @pytest.mark.slow
    @pytest.mark.usefixtures("pictures")
    def test_a_run_writes_one_directory_and_one_screen(
        self, pate_fed: Command, table: Path, out: Path
    ) -> None:
        ended = pate_fed(*small_run(table, out))
        assert (ended.code, ended.err) == (0, "")
        assert {path.name for path in out.iterdir()} == RUN_FILES
        lines = ended.out.splitlines()
        assert len(lines) <= 24
        assert max(map(len, lines)) <= 80
        assert "\x1b" not in ended.out
        assert leftovers(out.parent, table, out) == []

    @pytest.mark.slow
    def test_json_is_one_object_on_standard_output_and_nothing_else(
        self, pate_fed: Command, table: Path, out: Path
    ) -> None:
        ended = pate_fed(*small_run(table, out), "--format", "json")
        assert (ended.code, ended.err) == (0, "")
        assert set(ended.json) == {"run_dir", "metrics", "privacy"}
        assert ended.json["run_dir"] == str(out)
        for name in ("metrics", "privacy"):
            assert ended.json[name] == json.loads((out / f"{name}.json").read_text())

    @pytest.mark.slow
    @pytest.mark.usefixtures("pictures")
    def test_report_of_a_run_has_the_same_bytes_again(
        self, pate_fed: Command, table: Path, out: Path
    ) -> None:
        pate_fed(*small_run(table, out))
        page = (out / "report.html").read_bytes()
        summary = pate_fed("report", out)
        assert (summary.code, summary.err) == (0, "")
        assert (out / "report.html").read_bytes() == page
        (out / "report.html").unlink()
        assert pate_fed("report", out, "--format=json").json["run_dir"] == str(out)
        for name in ("manifest", "metrics", "privacy"):
            written = json.loads((out / f"{name}.json").read_text())
            assert getattr(read_run(out), name).as_json() == written
        assert (out / "report.html").read_bytes() == page
        assert {path.name for path in out.iterdir()} == RUN_FILES

    @pytest.mark.slow
    def test_missing_folders_above_are_made(
        self, pate_fed: Command, table: Path, tmp_path: Path
    ) -> None:
        deep = tmp_path / "a" / "b" / "run"
        assert pate_fed(*small_run(table, deep)).code == 0
        assert deep.is_dir()

    def test_default_place_is_named_for_the_data(
        self,
        pate_fed: Command,
        table: Path,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.chdir(tmp_path)
        assert pate_fed(*small_run(table, tmp_path / "x")[:-2]).code == 0
        [run] = (tmp_path / "runs").iterdir()
        assert run.name.startswith("csv-20")


class TestWrongUsage:
    @sampled()
    @pytest.mark.parametrize(
        ("arguments", "told"),
        [
            pytest.param(["--data", "cifar"], "cifar", id="unknown data"),
            pytest.param(["--mechanism", "best"], "best", id="unknown mechanism"),
            pytest.param(["--format", "xml"], "xml", id="unknown format"),
            pytest.param(["--secret"], "--secret", id="unknown option"),
            pytest.param(["extra"], "extra", id="an argument too many"),
            pytest.param(["--parties"], "--parties", id="missing value"),
            pytest.param(["--parties", "many"], "many", id="a word for a number"),
            pytest.param(["--parties", "3.5"], "3.5", id="half a party"),
            pytest.param(["--parties", "0"], "0", id="no party"),
            pytest.param(["--parties", "-3"], "-3", id="fewer than no party"),
            pytest.param(["--teachers", "0"], "0", id="no teacher"),
            pytest.param(["--queries", "0"], "0", id="no query"),
            pytest.param(["--queries", "1000000"], "1000000", id="more queries than the pool"),
            pytest.param(["--batch-size", "0"], "0", id="empty batches"),
            pytest.param(["--max-answers", "0"], "0", id="no answer"),
            pytest.param(["--epsilon", "0"], "0", id="epsilon 0"),
            pytest.param(["--epsilon", "nan"], "nan", id="epsilon no number"),
            pytest.param(["--epsilon", "inf"], "inf", id="epsilon endless"),
            pytest.param(["--delta", "0"], "0", id="delta 0"),
            pytest.param(["--delta", "1"], "1", id="delta 1"),
            pytest.param(["--delta", "nan"], "nan", id="delta no number"),
            pytest.param(["--sigma1", "-1"], "-1", id="negative noise"),
            pytest.param(["--sigma2", "0"], "0", id="no noise"),
            pytest.param(["--vote-threshold", "nan"], "nan", id="threshold no number"),
            pytest.param(["--seed", "-1"], "-1", id="negative seed"),
            pytest.param(["--mechanism", "gnmax", "--sigma1", "3"], "gnmax", id="contradiction"),
            pytest.param(["--data", "csv"], "neither", id="csv without a file"),
            pytest.param(
                ["--data", "csv", "--data-file", "a.csv"], "no --label", id="csv without a label"
            ),
            pytest.param(
                ["--data", "csv", "--label", "sick"], "no --data-file", id="csv without a file only"
            ),
            pytest.param(["--weights", "1,2,0,3"], "got 0", id="a weight of 0"),
            pytest.param(["--weights", "1,2,1.5"], "--weights", id="half a vote"),
            pytest.param(["--party-epsilons", "1,x"], "--party-epsilons", id="no number"),
            pytest.param(["--data", "mnist"], "--data-dir", id="mnist without a folder"),
            pytest.param(["--label", "x"], "digits", id="a label for digits"),
            pytest.param(["--data-dir", "."], "digits", id="a folder for digits"),
            pytest.param(["--vote-threshold", "-1"], "-1", id="threshold below zero"),
            pytest.param(["--device", "cuda"], "--teacher convolution", id="a device for an SVM"),
            pytest.param(
                ["--teacher", "convolution", "--device", "abacus"], "'abacus'", id="unknown device"
            ),
            pytest.param(
                ["--student", "vat", "--device", "abacus"], "'abacus'", id="unknown device of it"
            ),
            pytest.param(
                ["--mechanism", "confident", "--sigma1", "1e-300", "--sigma2", "1e300"],
                "",
                id="absurd numbers",
            ),
        ],
    )
    def test_it_ends_in_one_line_with_a_code(
        self, pate_fed: Command, out: Path, arguments: list[str], told: str
    ) -> None:
        ended = pate_fed("simulate", "--out", out, *arguments)
        assert ended.code in (2, 3) if "1e-300" in arguments else ended.code == 2
        assert ended.out == ""
        assert ended.error_code.startswith("PF-")
        assert told in ended.err
        assert leftovers(out.parent) == []

    def test_unknown_command_is_one_line(self, pate_fed: Command) -> None:
        ended = pate_fed("simulat")
        assert (ended.code, ended.error_code) == (2, "PF-402")

    @pytest.mark.parametrize(
        "arguments", [["statsu"], ["transcript", "verfy"], ["status", "--forma", "json"]]
    )
    def test_what_was_meant_is_said_once(self, pate_fed: Command, arguments: list[str]) -> None:
        assert pate_fed(*arguments).err.count("?") == 1

    @pytest.mark.parametrize("how", [["--format", "json"], ["--format=json"]])
    @pytest.mark.parametrize(
        ("arguments", "code", "exit_code"),
        [
            pytest.param(["--parties", "2"], "PF-240", 3, id="a refusal"),
            pytest.param(["--nonsense"], "PF-402", 2, id="a wrong option"),
            pytest.param(["--epsilon", "-1"], "PF-105", 2, id="a wrong number"),
        ],
    )
    def test_errors_are_json_where_json_was_asked_for(
        self,
        *,
        pate_fed: Command,
        out: Path,
        how: list[str],
        arguments: list[str],
        code: str,
        exit_code: int,
    ) -> None:
        ended = pate_fed("simulate", "--out", out, *how, *arguments)
        assert (ended.code, ended.out) == (exit_code, "")
        assert ended.err.count("\n") == 1
        error = json.loads(ended.err)
        assert set(error) == {"code", "must", "got"}
        assert error["code"] == code

    def test_existing_directory_is_refused_and_left_alone(
        self, pate_fed: Command, table: Path, out: Path
    ) -> None:
        out.mkdir()
        (out / "mine.txt").write_text("mine")
        ended = pate_fed(*small_run(table, out))
        assert (ended.code, ended.error_code) == (2, "PF-140")
        assert [path.name for path in out.iterdir()] == ["mine.txt"]

    @pytest.mark.parametrize("make", [Path.touch, lambda path: path.symlink_to("nowhere")])
    def test_whatever_stands_in_its_place_is_refused(
        self, pate_fed: Command, table: Path, out: Path, make: Callable[[Path], None]
    ) -> None:
        make(out)
        ended = pate_fed(*small_run(table, out))
        assert (ended.code, ended.error_code) == (2, "PF-140")

    def test_a_place_below_a_file_is_refused(
        self, pate_fed: Command, table: Path, tmp_path: Path
    ) -> None:
        ended = pate_fed(*small_run(table, table / "run"))
        assert (ended.code, ended.error_code) == (2, "PF-140")

    def test_line_stays_one_line_whatever_was_typed(self, pate_fed: Command, out: Path) -> None:
        ended = pate_fed("simulate", "--out", out, "--data", "two\nlines\x1b[31m")
        assert (ended.code, ended.error_code) == (2, "PF-402")
        assert "\x1b" not in ended.err


class TestRefusals:
    @pytest.mark.parametrize("parties", [1, 2])
    def test_fewer_than_three_parties_are_refused(
        self, pate_fed: Command, table: Path, out: Path, parties: int
    ) -> None:
        ended = pate_fed(*small_run(table, out), "--parties", parties)
        assert (ended.code, ended.error_code) == (3, "PF-240")
        assert leftovers(out.parent, table) == []

    def test_fewer_than_three_hospitals_are_refused(
        self, pate_fed: Command, tmp_path: Path, out: Path
    ) -> None:
        table = write_table(tmp_path / "two.csv", hospitals=2)
        ended = pate_fed(
            "simulate",
            *("--data", "csv", "--data-file", table, "--label", "sick", "--hospital", "clinic"),
            *("--teachers", 2, "--out", out),
        )
        assert (ended.code, ended.error_code) == (3, "PF-240")
        assert leftovers(tmp_path, table) == []

    def test_budget_for_nothing_leaves_nothing(
        self, pate_fed: Command, table: Path, out: Path
    ) -> None:
        ended = pate_fed(*small_run(table, out), "--epsilon", 0.01)
        assert (ended.code, ended.error_code) == (3, "PF-131")
        assert ended.out == ""
        assert leftovers(out.parent, table) == []

    @pytest.mark.parametrize("how", ["text", "json"])
    def test_a_run_above_its_budget_is_refused_with_what_fits(
        self, pate_fed: Command, table: Path, out: Path, how: str
    ) -> None:
        """However small its batches: it would never end by its budget."""
        ended = pate_fed(*small_run(table, out), "--batch-size", 1, "--epsilon", 2, "--format", how)
        assert (ended.code, ended.out, ended.err.count("\n")) == (3, "", 1)
        assert "PF-131" in ended.err
        assert leftovers(out.parent, table) == []
        found = re.search(r"at most (\d+) quer", ended.err)
        assert found is not None
        assert 1 <= int(found[1]) < 8
        fits = [*small_run(table, out), "--epsilon", 2, "--queries", found[1]]
        assert pate_fed(*fits).code == 0
        assert json.loads((out / "metrics.json").read_text())["queries"]["asked"] == int(found[1])

    def test_a_cap_on_answers_ends_a_run_that_is_done(
        self, pate_fed: Command, table: Path, out: Path
    ) -> None:
        ended = pate_fed(
            *(*small_run(table, out), "--max-answers", 3, "--batch-size", 2),
            *("--vote-threshold", 0, "--sigma2", 0.5, "--epsilon", 5000),
        )
        assert (ended.code, ended.err) == (0, "")
        queries = json.loads((out / "metrics.json").read_text())["queries"]
        assert (queries["asked"], queries["answered"]) == (3, 3)
        assert (queries["not_asked"], queries["void"]) == (5, 0)

    def test_missing_ray_is_one_line(
        self, pate_fed: Command, table: Path, out: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("coordinator.simulation.engines.find_spec", lambda name: None)
        ended = pate_fed(*small_run(table, out), "--engine", "ray")
        assert (ended.code, ended.error_code) == (2, "PF-150")
        assert "pate-fed[ray]" in ended.err
        assert leftovers(out.parent, table) == []


def lines_of(table: Path) -> list[str]:
    return table.read_text().splitlines()


def rare_class(table: Path) -> None:
    lines = lines_of(table)
    lines[5] = lines[5].rsplit(",", 1)[0] + ",unsure"
    table.write_text("\n".join(lines))


def directory(table: Path) -> None:
    table.unlink()
    table.mkdir()


BROKEN_TABLES: list[Any] = [
    pytest.param(lambda t: t.unlink(), "PF-111", id="missing"),
    pytest.param(lambda t: t.write_text("a;b\n1;2\n"), "PF-111", id="semicolons"),
    pytest.param(rare_class, "PF-114", id="a class that appears once"),
    pytest.param(lambda t: t.write_text("\n".join(lines_of(t)[:4]) + "\n"), "PF-113", id="3 rows"),
    pytest.param(
        lambda t: t.write_text(t.read_text().replace("yes", "no")), "PF-110", id="one class"
    ),
    pytest.param(
        lambda t: t.write_text(t.read_text().replace(",yes", ",", 1)), "PF-115", id="no label once"
    ),
]


class TestBrokenInput:
    @pytest.mark.parametrize(("spoil", "code"), BROKEN_TABLES)
    def test_it_ends_in_one_line_and_leaves_nothing(
        self,
        pate_fed: Command,
        table: Path,
        out: Path,
        spoil: Callable[[Path], object],
        code: str,
    ) -> None:
        spoil(table)
        ended = pate_fed(*small_run(table, out))
        assert ended.code == 5, ended.err
        assert ended.error_code.startswith(code)
        assert ended.out == ""
        assert leftovers(out.parent, table) == []

    @pytest.mark.parametrize("option", ["--patient-id", "--hospital"])
    def test_column_that_is_not_there(
        self, pate_fed: Command, table: Path, out: Path, option: str
    ) -> None:
        ended = pate_fed(*small_run(table, out), option, "nowhere")
        assert (ended.code, ended.error_code) == (5, "PF-112")

    @pytest.mark.slow
    def test_hospitals_that_the_data_lack(self, pate_fed: Command, out: Path) -> None:
        ended = pate_fed("simulate", "--partition", "column", "--out", out)
        assert (ended.code, ended.error_code) == (5, "PF-112")
        assert leftovers(out.parent) == []

    def test_more_teachers_than_patients(self, pate_fed: Command, table: Path, out: Path) -> None:
        ended = pate_fed(*small_run(table, out), "--teachers", 500)
        assert ended.code == 5
        assert ended.error_code == "PF-113"
        assert leftovers(out.parent, table) == []

    def test_cells_of_a_row_are_never_shown(
        self, pate_fed: Command, table: Path, out: Path
    ) -> None:
        lines = lines_of(table)
        lines[9] = 'Jane Doe,"rheumatic,heart'
        table.write_text("\n".join(lines))
        ended = pate_fed(*small_run(table, out))
        assert ended.code == 5
        assert "Jane" not in ended.err
        assert "rheumatic" not in ended.err
        assert "heart" not in ended.err

    @sampled()
    @pytest.mark.parametrize(
        "spoil",
        [
            pytest.param(lambda run: (run / "metrics.json").unlink(), id="a file missing"),
            pytest.param(lambda run: (run / "metrics.json").write_text("{"), id="half a file"),
            pytest.param(lambda run: (run / "labels.csv").write_text("x"), id="other labels"),
            pytest.param(
                lambda run: (run / "privacy.json").write_text('{"schema_version": 9}'),
                id="a later version",
            ),
        ],
    )
    def test_report_of_a_broken_run(
        self, pate_fed: Command, table: Path, out: Path, spoil: Callable[[Path], object]
    ) -> None:
        pate_fed(*small_run(table, out))
        spoil(out)
        page = (out / "report.html").read_bytes()
        ended = pate_fed("report", out)
        assert (ended.code, ended.error_code, ended.out) == (5, "PF-140", "")
        assert (out / "report.html").read_bytes() == page

    def test_report_of_no_run(self, pate_fed: Command, tmp_path: Path) -> None:
        ended = pate_fed("report", tmp_path / "nothing")
        assert (ended.code, ended.error_code) == (5, "PF-140")


STAGES = [
    pytest.param("coordinator.simulation.simulated_federation.load_dataset", id="loading"),
    pytest.param("coordinator.simulation.simulated_federation.train_hospitals", id="training"),
    pytest.param("coordinator.runs.labeling.deciding.open_sum", id="labeling"),
]
LATER_STAGES = [
    pytest.param("pate_fed.students.train_student", id="teaching the student"),
    pytest.param("coordinator.runs.results.render_report", id="writing"),
]
"""After the last label Ctrl-C alone ends a simulation: see `test_later_steps`."""


class TestInterruptions:
    @sampled()
    @pytest.mark.parametrize("stage", STAGES)
    @pytest.mark.parametrize(
        "error",
        [
            pytest.param(KeyboardInterrupt(), id="Ctrl-C"),
            pytest.param(ValueError("7919 votes\nof patient 4711"), id="our fault"),
            pytest.param(MemoryError(), id="no memory"),
            pytest.param(RecursionError("deep"), id="too deep"),
        ],
    )
    def test_nothing_is_left_and_nothing_is_told(
        self,
        *,
        pate_fed: Command,
        table: Path,
        out: Path,
        monkeypatch: pytest.MonkeyPatch,
        stage: str,
        error: BaseException,
    ) -> None:
        def fail(*_: object, **__: object) -> None:
            raise error

        monkeypatch.setattr(stage, fail)
        ended = pate_fed(*small_run(table, out))
        assert (ended.code, ended.out) == (1, "")
        assert ended.error_code == "PF-490"
        assert "4711" not in ended.err
        assert leftovers(out.parent, table) == []

    @pytest.mark.parametrize("stage", LATER_STAGES)
    def test_ctrl_c_after_the_last_label_leaves_nothing_either(
        self,
        pate_fed: Command,
        table: Path,
        out: Path,
        monkeypatch: pytest.MonkeyPatch,
        stage: str,
    ) -> None:
        def interrupt(*_: object, **__: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(stage, interrupt)
        ended = pate_fed(*small_run(table, out))
        assert (ended.code, ended.out, ended.error_code) == (1, "", "PF-490")
        assert leftovers(out.parent, table) == []

    @sampled()
    @pytest.mark.parametrize("place", ["mkdir", "publish"])
    def test_full_disk_is_one_line(
        self,
        pate_fed: Command,
        table: Path,
        out: Path,
        monkeypatch: pytest.MonkeyPatch,
        place: str,
    ) -> None:
        def full(*_: object, **__: object) -> None:
            raise OSError(28, "No space left on device")

        owner = "pathlib.Path" if place == "mkdir" else "pate_fed.report.run_directory"
        monkeypatch.setattr(f"{owner}.{place}", full)
        ended = pate_fed(*small_run(table, out))
        assert (ended.code, ended.error_code) == (2, "PF-140")
        assert "No space left" in ended.err
        assert leftovers(out.parent, table) == []


class TestWhole:
    """As its own process: what only that can show."""

    def run(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [
                sys.executable,
                "-c",
                "from coordinator.cli import main; main()",
                *map(str, arguments),
            ],
            capture_output=True,
            text=True,
            cwd=REPOSITORY,
            timeout=300,
            check=False,
        )

    @pytest.mark.slow
    def test_json_alone_on_standard_output(self, table: Path, out: Path) -> None:
        done = self.run(*small_run(table, out), "--format", "json")
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.count("\n") == 1
        assert json.loads(done.stdout)["run_dir"] == str(out)

    @pytest.mark.slow
    def test_refusal_is_one_line_and_exit_code_3(self, out: Path) -> None:
        done = self.run("simulate", "--parties", 2, "--out", out)
        assert (done.returncode, done.stdout) == (3, "")
        assert done.stderr.startswith("pate-fed: PF-240: ")
        assert done.stderr.count("\n") == 1
        assert not out.exists()


@sampled("files", cases=2)
@pytest.mark.slow
@pytest.mark.parametrize("files", [None, 0, more(1), more(4), more(8)])
def test_interrupt_by_hand_leaves_nothing_whenever_it_comes(
    table: Path, out: Path, files: int | None
) -> None:
    """While Python loads NumPy, or once that many files are written into the hidden folder."""
    started = subprocess.Popen(
        [
            sys.executable,
            "-c",
            # What a shell starts in the background ignores Ctrl-C, and so would all its children.
            "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
            "print('here', flush=True); from coordinator.cli import main; main()",
            *map(str, small_run(table, out)),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=REPOSITORY,
    )
    assert started.stdout is not None
    assert started.stdout.readline() == "here\n"  # else Python itself might not be there yet
    maps = Path(f"/proc/{started.pid}/maps")
    while started.poll() is None and not (
        "numpy" in maps.read_text("utf-8") if files is None else is_written(out.parent, files)
    ):
        time.sleep(0.001)
    started.send_signal(signal.SIGINT)
    _, err = started.communicate(timeout=300)
    if leftovers(out.parent, table) == [out.name]:  # it was done before, or all but the last words
        assert {path.name for path in out.iterdir()} == RUN_FILES
        assert files
        return
    assert leftovers(out.parent, table) == []
    # Python itself is interrupted while it still loads modules; afterwards it is our line.
    if "Traceback" in err:
        assert "import" in err
    else:
        assert err.startswith("pate-fed: PF-490: ")
        assert (started.returncode, err.count("\n")) == (1, 1)


def is_written(folder: Path, files: int) -> bool:
    """Whether a run's hidden folder is there, with at least so many files."""
    return any(
        len(list(hidden.iterdir())) >= files
        for hidden in folder.iterdir()
        if hidden.name.startswith(".") and hidden.is_dir()
    )


def test_help_names_both_commands(pate_fed: Command) -> None:
    ended = pate_fed("--help")
    assert ended.code == 0
    assert "simulate" in ended.out
    assert "report" in ended.out


def test_help_shows_the_defaults_that_are_written_in_brackets(pate_fed: Command) -> None:
    assert "runs/DATA-TIME" in pate_fed("simulate", "--help").out


def test_version_is_the_distributions(pate_fed: Command) -> None:
    ended = pate_fed("--version")
    assert (ended.code, ended.out) == (0, f"pate-fed {__version__}\n")


def test_tracebacks_never_show_local_variables() -> None:
    assert cli.app.pretty_exceptions_enable is False


def test_no_arguments_show_the_help(pate_fed: Command) -> None:
    ended = pate_fed()
    assert ended.code == 0
    assert "simulate" in ended.out
    assert ended.err == ""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "told"),
    [
        pytest.param(("--sigma2", 0.5), "8 votes", id="too little noise"),
        # Its check costs more than that alone.
        pytest.param(("--mechanism", "confident"), "noise of 1.6 votes", id="check alone"),
    ],
)
def test_a_budget_that_affords_no_query_says_so(
    pate_fed: Command, tmp_path: Path, more: tuple[object, ...], told: str
) -> None:
    table = write_table(tmp_path / "table.csv")
    ended = pate_fed(
        *("simulate", "--data", "csv", "--data-file", table, "--label", "sick", *more),
        *("--parties", 4, "--teachers", 2, "--epsilon", 2, "--out", tmp_path / "run"),
    )
    assert (ended.code, ended.error_code) == (3, "PF-131")
    assert told in ended.err


def warnings_of(pate_fed: Command, folder: Path, *, lab: Callable[[int], str]) -> list[str]:
    """Return the warnings of a run on the small table with one column more."""
    table = write_table(folder / "table.csv")
    head, *rows = table.read_text().splitlines()
    more = [f"{row},{lab(number)}" for number, row in enumerate(rows)]
    table.write_text("\n".join([f"{head},lab", *more]) + "\n")
    assert pate_fed(*small_run(table, folder / "run")).code == 0
    return list(json.loads((folder / "run" / "metrics.json").read_text())["warnings"])


def test_columns_that_look_like_numbers_are_pointed_at(pate_fed: Command, tmp_path: Path) -> None:
    warnings = warnings_of(pate_fed, tmp_path, lab=lambda number: f'"{number},5"')
    assert any("'lab'" in warning and "decimal commas" in warning for warning in warnings)


@pytest.mark.parametrize(
    ("few", "counted"), [pytest.param(12, 12, id="enough"), pytest.param(7, 10, id="below a floor")]
)
def test_a_column_of_numbers_but_for_a_few_is_counted(
    pate_fed: Command, tmp_path: Path, few: int, counted: int
) -> None:
    def lab(number: int) -> str:
        return "low" if number < few else str(number)

    [told] = [
        [int(number) for number in re.findall(r"\d+", warning)]
        for warning in warnings_of(pate_fed, tmp_path, lab=lab)
        if "'lab'" in warning and "numbers" in warning
    ]
    assert told == [counted]


def test_the_command_line_is_there_before_anything_that_is_slow_to_load() -> None:
    """`--help` within half a second: no database, no numerics, no ciphers, no models of files."""
    slow = (
        "{'cryptography', 'flwr', 'numpy', 'pydantic', 'rich', 'scipy', 'sklearn', 'sqlalchemy', "
        "'torch'}"
    )
    program = (
        "import atexit, sys; from coordinator.cli import main; sys.argv[1:] = ['--help']; "
        f"atexit.register(lambda: print('loaded:', sorted({slow} & set(sys.modules)))); main()"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    said = ended.stdout.decode()
    assert "simulate" in said
    assert said.endswith("loaded: []\n")
