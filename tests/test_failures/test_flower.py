"""Failures of a federation over SuperLink and SuperNodes, each with its minute.

A hospital and SuperNode alone are killed in `tests/test_party/test_service_processes.py`, the
service in `tests/test_coordinator/test_deployed.py`.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from coordinator.config import RunSettings
from coordinator.run_queue import ENDED, RunState
from coordinator.run_request import source_of
from pate_fed.accounting import EntryState
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
        assert "pate_fed_superlink_restarts 1.0" in shown
