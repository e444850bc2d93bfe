"""A run that an operator asks for in one call, as the command line does in two."""

from __future__ import annotations

from typing import Any

from coordinator.operator import Coordinator
from coordinator.runs.queue import Run
from pate_fed.data.task import LearningTask
from pate_fed.planning import RunSettings


def asked_run(
    coordinator: Coordinator, name: str, task: LearningTask, settings: RunSettings, **how: Any
) -> Run:
    """Publish a task and queue a run of it; see `Coordinator.draft`."""
    return coordinator.enqueue(coordinator.draft(name, task, settings, **how), task)
