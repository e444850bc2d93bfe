"""A simulation as its caller sees it: whom it tells, what comes of it, and where that is kept."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from coordinator.errors import RunEndedError
from pate_fed.errors import RunDirectoryError, said
from pate_fed.record import Metrics, Privacy

Progress = Callable[[str, int, int], None]
"""Called with the name of a stage, its finished steps, and all its steps."""

Tell = Callable[[str], None]
"""Called with a line for people."""


def say_nothing(_: str) -> None:
    """Keep a line to itself."""


@dataclass(frozen=True, slots=True)
class Simulation:
    """The result of a simulation.

    Attributes:
        run_dir: The run directory, with `metrics` and `privacy` in it.
        stopped_by: The error that ended the run early, after a release; None for a complete run.
    """

    run_dir: Path
    metrics: Metrics
    privacy: Privacy
    stopped_by: Exception | None


def kept(out: Path, write: Callable[[Path], None]) -> tuple[Path, RunEndedError | None]:
    """Write a run directory; where its place has become unusable, in a temporary folder.

    Returns:
        Where it is, and the fault that keeps it from where it should be.

    Raises:
        RunDirectoryError: there is no place for it at all.
    """
    try:
        write(out)
    except RunDirectoryError as error:
        spare = Path(tempfile.mkdtemp(prefix="pate-fed-run-"), out.name)
        try:
            write(spare)
        except BaseException:
            shutil.rmtree(spare.parent, ignore_errors=True)
            raise
        must = f"{out} must be writable at the end, too: the run directory is {spare}"
        return spare, RunEndedError(must, said(error.must, error.got))
    return out, None
