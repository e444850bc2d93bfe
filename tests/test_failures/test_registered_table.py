"""A table that is registered while a hospital's node runs, as processes: the run goes on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coordinator.runs.queue import RunState
from party.doctor import WARN, Check, PartyProbes, examine_standing
from party.site.people_decisions import Subject
from party.site.ready_tasks import ReadyTasks
from party.site.site import Site
from party.site.tasks import fetch_task
from party.site.training import of_another_table
from pate_fed.data.task import LearningTask
from tests.support.hospital_services import records_of
from tests.support.hospital_site import LABEL, PATIENT, write_own_table
from tests.support.process_federation import CLASSES, ProcessFederation, process_federation

pytestmark = pytest.mark.slow


def learn_from_the_table() -> None:
    """Let a hospital's process vote with teachers of its own table, as `pate-party start` does."""
    made = ReadyTasks.__init__

    def without_others(self: ReadyTasks, *arguments: Any, vote_of: object, **more: Any) -> None:
        made(self, *arguments, vote_of=None, **more)

    ReadyTasks.__init__ = without_others  # type: ignore[method-assign]


def typed(site: Site, *words: object) -> str:
    """Type `pate-party` as a process of its own, while the node runs."""
    ended = subprocess.run(
        [sys.executable, "-m", "party.cli", *map(str, words), "--site", str(site.folder)],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def public_task(federation: ProcessFederation, name: str, *, seed: int) -> LearningTask:
    rng = np.random.default_rng(seed)
    rows = [f"{rng.uniform(20, 80):.6f},{('male', 'female')[row % 2]}" for row in range(30)]
    path = federation.folder / f"{name}.csv"
    path.write_text("\n".join(["age,sex", *rows]) + "\n", encoding="utf-8")
    # Other classes, hence another task with teachers of its own.
    classes = CLASSES[:: 1 if name == "before" else -1]
    return federation.coordinator.read_queries(path, label=LABEL, classes=classes)


def doctor(site: Site) -> Check:
    [found] = [one for one in examine_standing(site, PartyProbes()) if one.name == "approved pools"]
    return found


def test_a_run_goes_on_with_the_table_that_is_registered_while_the_node_runs(
    tmp_path: Path,
) -> None:
    with process_federation(tmp_path, "additive") as federation:
        hospitals, site = federation.hospitals, federation.hospitals.sites[0]
        hospitals.task = public_task(federation, "before", seed=1)
        hospitals.approve(0)
        hospitals.task = task = public_task(federation, "after", seed=2)
        for place in (1, 2):
            hospitals.approve(place)
        fetch_task(site, hospitals, task.pool.digest)
        for place in range(3):
            federation.start_hospital(place, change=learn_from_the_table)

        table = write_own_table(tmp_path / "mended.csv", seed=77)
        said = typed(site, "data", "add", table, "--label", LABEL, "--patient-id", PATIENT)
        assert "restart" in said
        site = Site.open(site.folder)
        [old] = of_another_table(site)
        assert old in said  # it votes no more, and the command says so
        assert (doctor(site).state, "(PF-346)" in doctor(site).said) == (WARN, True)

        asking = hospitals.coordinator.public.fingerprint
        with records_of(site) as records:
            records.ask(Subject.POOL, task.pool.digest, tally=b"", coordinator=asking)
        typed(site, "approve", task.pool.digest.hex(), "--yes")
        federation.tasks["after"] = task
        federation.ask("after", patience_s=60.0)
        federation.work()
        run = federation.run("after")
        assert run.state is RunState.DONE, run.reason
        assert federation.dead_hospitals() == []
