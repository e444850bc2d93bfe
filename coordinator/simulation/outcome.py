"""A simulation as its caller sees it: its stages, its result, and where that is kept."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from coordinator.errors import RunEndedError
from pate_fed.errors import RunDirectoryError, said
from pate_fed.record import Metrics, Privacy

Progress = Callable[[str, int, int], None]
"""Called with the name of a stage, its finished steps, and all its steps."""

Tell = Callable[[str], None]
"""Called with a line for people."""


class Stages:
    """The stages of a simulation: shown while they last, and timed.

    Attributes:
        seconds: How long each took, by its name.
    """

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self.seconds: dict[str, float] = {}

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Time the body."""
        start = time.perf_counter()
        yield
        self.seconds[stage] = time.perf_counter() - start

    def ticker(self, stage: str, total: int) -> Callable[[], None]:
        """Show a stage of so many steps; return what to call after each."""
        done = 0

        def tick() -> None:
            nonlocal done
            done += 1
            self._progress(stage, done, total)

        self._progress(stage, 0, total)
        return tick


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

    Returns where it is, and the fault that keeps it from where it should be.
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
