"""A queued run of verified votes: hospitals report once, the worker and a tally open the sums."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.runs.queue import RunState
from tests.support.worked import QUERIES
from tests.support.worked_tally import WorkedWithTally


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[WorkedWithTally]:
    made = WorkedWithTally(tmp_path)
    yield made
    made.stop_tally()


def test_a_run_goes_from_the_queue_to_its_directory(federation: WorkedWithTally) -> None:
    federation.ask()
    run = federation.work()
    assert (run.state, run.reason) == (RunState.DONE, "")
    assert run.progress.answered == QUERIES
