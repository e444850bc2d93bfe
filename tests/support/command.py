"""Runs the command line inside the test's process, and writes small tables for it."""

from __future__ import annotations

import csv
import json
import logging
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer import Typer
from typer.testing import CliRunner

from coordinator import cli

LINE = re.compile(r"pate-fed: (PF-\d{3}): [^\n]+\n")


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def error_code(self) -> str:
        """The code of the one line on standard error; fails where there is more or less."""
        line = LINE.fullmatch(self.err)
        assert line, self.err
        return line[1]

    @property
    def json(self) -> dict[str, Any]:
        """The one JSON object on standard output."""
        assert self.out.count("\n") == 1
        content: dict[str, Any] = json.loads(self.out)
        return content


Command = Callable[..., Ended]


@contextmanager
def logs_as_they_were() -> Iterator[None]:
    """Undo what a command that has a log of its own does to the process: ours has others."""
    loggers = [logging.getLogger(name) for name in (None, "flwr", "party", "coordinator")]
    before = [(one, one.handlers[:], one.level, one.propagate) for one in loggers]
    hooks = sys.excepthook, threading.excepthook, sys.unraisablehook
    try:
        yield
    finally:
        for one, handlers, level, propagate in before:
            one.handlers[:], one.propagate = handlers, propagate
            one.setLevel(level)
        sys.excepthook, threading.excepthook, sys.unraisablehook = hooks
        logging.captureWarnings(False)


def exit_code_of(*arguments: object) -> int:
    """Run `pate-fed` with these arguments; return its exit code."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["pate-fed", *map(str, arguments)])
        with logs_as_they_were(), pytest.raises(SystemExit) as end:
            cli.main()
    code = end.value.code
    assert isinstance(code, int)
    return code


@pytest.fixture
def pate_fed(capsys: pytest.CaptureFixture[str]) -> Command:
    """Run `pate-fed` with these arguments."""

    def run(*arguments: object) -> Ended:
        capsys.readouterr()
        code = exit_code_of(*arguments)
        shown = capsys.readouterr()
        assert "Traceback" not in shown.out + shown.err
        return Ended(code, shown.out, shown.err)

    return run


def write_table(path: Path, *, rows: int = 120, hospitals: int = 3) -> Path:
    """Write a table that is easy to learn: two visits of each patient, in one hospital each."""
    rng = np.random.default_rng(20)
    lines = ["patient,clinic,age,weight,sick"]
    for row in range(rows):
        patient = row // 2
        sick = patient % 2
        age, weight = 30 + 30 * sick + rng.normal(0, 3), 60 + rng.normal(0, 5)
        lines.append(
            f"p{patient},clinic-{patient // 2 % hospitals},{age:.2f},{weight:.2f},"
            f"{'yes' if sick else 'no'}"
        )
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def small_run(table: Path, out: Path) -> list[object]:
    """Arguments of a run that takes less than a second."""
    return [
        "simulate",
        *("--data", "csv", "--data-file", table, "--label", "sick"),
        *("--parties", 3, "--teachers", 4, "--queries", 8),
        *("--vote-threshold", 6, "--sigma2", 6),
        *("--epsilon", 50, "--seed", 7, "--out", out),
    ]


def leftovers(folder: Path, *kept: Path) -> list[str]:
    """What lies in a folder beside what belongs there, hidden folders included."""
    return sorted(path.name for path in folder.iterdir() if path not in kept)


def labels_in(folder: Path) -> dict[int, str]:
    """Labels that a run's directory has, by query; empty where none was released."""
    with (folder / "labels.csv").open(encoding="utf-8", newline="") as file:
        return {int(row["query_id"]): row["label"] for row in csv.DictReader(file)}


def shown_by(program: Typer, *arguments: object) -> str:
    """What a command of a program prints on a wide screen; it must end well."""
    wide = {"COLUMNS": "200"}
    result = CliRunner().invoke(program, [str(word) for word in arguments], env=wide)
    assert result.exit_code == 0, result.output
    return result.stdout
