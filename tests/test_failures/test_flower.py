"""Failures of a federation over SuperLink and SuperNodes, each with its minute.

A hospital and SuperNode alone are killed in `tests/test_party/test_service_processes.py`, the
service in `tests/test_coordinator/test_deployed.py`.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import numpy as np
import pytest
from numpy.typing import NDArray

from coordinator.config import RunSettings
from coordinator.run_queue import ENDED, RunState
from coordinator.run_request import source_of
from coordinator.service import EXCHANGE_S
from pate_fed.accounting import EntryState
from pate_fed.queries import QueryBatch
from tests.support.deployed import LABEL, Deployed, deployed
from tests.support.invariants import require_sound

pytestmark = pytest.mark.slow

QUERIES = 6
OVER = tuple(state.value for state in ENDED)


def ask(federation: Deployed, *, patience_s: float) -> None:
    """Queue a run of two batches."""
    settings = RunSettings(
        data=source_of("public.csv", LABEL),
        queries=QUERIES,
        batch_size=3,
        mechanism="gnmax",
        sigma2=3.0,
        epsilon=100.0,
        valid_votes=False,
    )
    coordinator = federation.coordinator
    coordinator.ask("first", federation.task, settings, source="public.csv", patience_s=patience_s)
    coordinator.close()


def wait_for(holds: Callable[[], bool], federation: Deployed, *, seconds: float = 240.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, federation.log
        time.sleep(0.05)


def superlink_of(service: int) -> int:
    """Number of the one child of the service."""
    [child] = [
        int(number)
        for thread in Path(f"/proc/{service}/task").iterdir()
        for number in (thread / "children").read_text("ascii").split()
    ]
    return child


def test_a_superlink_that_is_killed_in_the_middle_of_a_batch_loses_nothing(tmp_path: Path) -> None:
    with deployed(tmp_path) as federation:
        federation.serve()
        federation.wait_until_served()
        federation.enroll()
        ask(federation, patience_s=600)
        wait_for(lambda: any(one.voted for one in federation.hospitals), federation)
        assert federation.service is not None
        os.kill(superlink_of(federation.service.pid), signal.SIGKILL)
        run = federation.wait_for_run("first", states=OVER, timeout_s=400)
        seen = federation.look()
        require_sound(seen, note=federation.log)
        assert (run.state, run.reason, run.progress["void"]) == (RunState.DONE, "", 0)
        assert run.progress["answered"] == QUERIES
        for one in seen.hospitals:
            states = [entry.state for entry in one.ledger.entries]
            assert states == [EntryState.COMMITTED] * 2
        metrics = f"http://127.0.0.1:{federation.home.settings.metrics_port}/metrics"
        shown = httpx.get(metrics, trust_env=False).text
        assert "pate_fed_superlink_restarts_total 1.0" in shown


def test_a_service_that_is_told_to_end_within_an_exchange_ends_soon_and_its_run_is_taken_up(
    tmp_path: Path,
) -> None:
    """SIGTERM while a hospital's teachers vote: an exchange may take minutes."""
    with deployed(tmp_path) as federation:
        federation.serve()
        federation.wait_until_served()
        federation.enroll()
        voting, may_end = threading.Event(), threading.Event()
        slow = federation.hospitals[0]
        quick = slow.teachers

        def vote(batch: QueryBatch) -> NDArray[np.int64]:
            voting.set()
            may_end.wait(120)
            return quick(batch)

        slow.teachers = vote
        ask(federation, patience_s=600)
        assert voting.wait(240), federation.log
        before = time.monotonic()
        federation.stop_service()
        took_s = time.monotonic() - before
        assert federation.service is not None
        assert federation.service.returncode == 0, federation.log
        assert took_s < EXCHANGE_S / 10
        with pytest.raises(ProcessLookupError):  # nothing of it is left behind
            os.kill(federation.service.pid, 0)
        may_end.set()
        federation.serve()
        federation.wait_until_served()
        run = federation.wait_for_run("first", states=OVER, timeout_s=400)
        seen = federation.look()
        require_sound(seen, note=federation.log)
        assert (run.state, run.reason, run.progress["void"]) == (RunState.DONE, "", 0)
        assert run.progress["answered"] == QUERIES
        for one in seen.hospitals:
            states = [entry.state for entry in one.ledger.entries]
            assert states == [EntryState.COMMITTED] * 2
            assert len(one.voted) == len(set(one.voted)) == 2
