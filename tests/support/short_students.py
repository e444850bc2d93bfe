"""Students that learn for a few steps, for tests that are not about accuracy."""

from __future__ import annotations

from importlib import import_module

import pytest

from pate_fed.students import IMAGE_STUDENTS

STEPS = (
    ("generative", "_STEPS"),
    ("co_teaching", "_STEPS"),
)
"""Module and name of each number of steps."""
OF_TWO_BATCHES = ("vat", "fixmatch")


def shortened(monkeypatch: pytest.MonkeyPatch, *, steps: int, width: int) -> None:
    """Train students of images for so many steps in each stage."""
    from pate_fed.students.self_training import TrainingStage  # noqa: PLC0415 - torch: seconds

    for module, number in STEPS:
        monkeypatch.setattr(import_module(f"pate_fed.students.{module}"), number, steps)
    for name in OF_TWO_BATCHES:
        module, student = IMAGE_STUDENTS[name]
        known = getattr(import_module(f"pate_fed.students.{module}"), student)
        monkeypatch.setattr(known, "steps", steps)
    stages = (TrainingStage(width, steps, 0.6, 0.85), TrainingStage(width, steps, 0.85, 0.95))
    monkeypatch.setattr(import_module("pate_fed.students.self_training"), "STAGES", stages)
