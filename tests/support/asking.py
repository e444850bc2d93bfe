"""A run that an operator asks for in one call, as the command line does in two."""

from __future__ import annotations

from typing import Any

from coordinator.operator import Coordinator
from coordinator.runs.queue import Run
from coordinator.runs.request import RunRequest, source_of
from pate_fed.data.task import LearningTask
from protocols.suites import DEFAULT_SUITE
from tests.support.rules import run_settings

HOW = ("select", "patience_s")


def drafted_run(
    coordinator: Coordinator, name: str, task: LearningTask, **chosen: Any
) -> RunRequest:
    """Fill in a run by GNMax, unless it is to be another; see `Coordinator.draft`."""
    how = {option: chosen.pop(option) for option in HOW if option in chosen}
    rule = {"suite": DEFAULT_SUITE, "mechanism": "gnmax", "sigma2": 3.0, "epsilon": 100.0, **chosen}
    settings = run_settings(data=source_of("public.csv", task.label, kind=task.kind), **rule)
    return coordinator.draft(name, task, settings, source="public.csv", **how)


def asked_run(coordinator: Coordinator, name: str, task: LearningTask, **chosen: Any) -> Run:
    """Publish a task and queue a run of it; see `drafted_run`."""
    return coordinator.enqueue(drafted_run(coordinator, name, task, **chosen), task)
