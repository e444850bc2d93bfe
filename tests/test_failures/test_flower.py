"""A service that is told to end, over SuperLink and SuperNodes, while hospitals are asked.

SuperLink, service, SuperNode and hospital are killed in `test_both_services`, a hospital around its
y in `tests/test_party/test_service_processes.py`.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from coordinator.runs.queue import ENDED, RunState
from coordinator.service import EXCHANGE_S
from pate_fed.accounting import EntryState
from pate_fed.queries import QueryBatch
from tests.support.asking import asked_run
from tests.support.deployed import Deployed, deployed
from tests.support.invariants import require_sound

pytestmark = pytest.mark.slow

QUERIES = 6
OVER = tuple(state.value for state in ENDED)


def ask(federation: Deployed, *, patience_s: float) -> None:
    """Queue a run of two batches."""
    coordinator = federation.coordinator
    chosen = {"queries": QUERIES, "batch_size": 3, "patience_s": patience_s}
    asked_run(coordinator, "first", federation.task, **chosen)
    coordinator.close()


@pytest.mark.exhaustive
def test_a_service_that_is_told_to_end_within_an_exchange_ends_soon_and_its_run_is_taken_up(
    tmp_path: Path,
) -> None:
    """SIGTERM while a hospital's teachers vote: an exchange may take minutes."""
    with deployed(tmp_path) as federation:
        federation.serve()
        federation.wait_until_served()
        federation.enroll()
        voting, may_end, has_voted = threading.Event(), threading.Event(), threading.Event()
        slow = federation.hospitals[0]
        quick = slow.teachers

        def vote(batch: QueryBatch) -> NDArray[np.int64]:
            voting.set()
            may_end.wait(2 * EXCHANGE_S)
            has_voted.set()
            return quick(batch)

        slow.teachers = vote
        ask(federation, patience_s=600)
        assert voting.wait(600), federation.log
        before = time.monotonic()
        federation.stop_service()
        took_s = time.monotonic() - before
        assert federation.service is not None
        assert federation.service.returncode == 0, federation.log
        assert not has_voted.is_set()  # nobody waited for the answer, nor for its time to be over
        assert took_s < EXCHANGE_S / 10
        with pytest.raises(ProcessLookupError):  # nothing of it is left behind
            os.kill(federation.service.pid, 0)
        may_end.set()
        federation.serve()
        federation.wait_until_served()
        run = federation.wait_for_run("first", states=OVER, timeout_s=600)
        seen = federation.look()
        require_sound(seen, note=federation.log)
        assert (run.state, run.reason, run.progress.void) == (RunState.DONE, "", 0)
        assert run.progress.answered == QUERIES
        for one in seen.hospitals:
            states = [entry.state for entry in one.ledger.entries]
            assert states == [EntryState.COMMITTED] * 2
            assert len(one.voted) == len(set(one.voted)) == 2
