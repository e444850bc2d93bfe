"""A new form of the secure sum is one file and two lines: runs, plans and reports then have it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from coordinator.cli import app
from protocols.forms import DEPLOYED_FORMS, FORMS
from protocols.secure_sum import run_secure_sum
from protocols.sums import SUMS
from tests.support.command import shown_by
from tests.support.toy_sum import CircleSum


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two lines: `protocols.forms` makes both lists from one, `protocols.sums` has the other."""
    monkeypatch.setitem(SUMS, CircleSum.name, CircleSum)  # type: ignore[arg-type]
    monkeypatch.setitem(FORMS, CircleSum.name, CircleSum)  # type: ignore[arg-type]
    monkeypatch.setitem(DEPLOYED_FORMS, CircleSum.name, CircleSum)  # type: ignore[arg-type]


def simulated(out: Path, form: str) -> str:
    return shown_by(
        app,
        *("simulate", "--data", "breast-cancer", "--parties", 5, "--teachers", 4),
        *("--queries", 6, "--epsilon", 20, "--seed", 1, "--student", "supervised"),
        *("--sum", form, "--out", out, "--format", "json"),
    )


def test_a_new_form_sums() -> None:
    vectors = [np.array([seat, -seat, 7], dtype=np.int64) for seat in range(4)]
    total = run_secure_sum(CircleSum(), vectors, seed=bytes(32))
    assert total.tolist() == [6, -6, 28]


@pytest.mark.slow
def test_a_run_by_it_gives_the_labels_that_the_additive_form_gives(tmp_path: Path) -> None:
    assert "circle" in shown_by(app, "simulate", "--help")
    table = json.loads(simulated(tmp_path / "circle", "circle"))
    simulated(tmp_path / "additive", "additive")
    labels = [(tmp_path / form / "labels.csv").read_bytes() for form in ("circle", "additive")]
    assert labels[0] == labels[1]
    assert table["privacy"]["sum"] == "circle"


@pytest.mark.slow
def test_it_is_planned_with_its_own_collusion_threshold() -> None:
    table = json.loads(
        shown_by(
            app,
            *("plan", "--parties", 6, "--teachers", 20, "--classes", 2, "--queries", 5),
            *("--sigma2", 24, "--sum", "circle", "--format", "json"),
        )
    )
    assert table["sum"]["form"] == "circle"
    assert table["sum"]["hides_from"] == 1
    assert "up to 1 of 6 hospitals" in table["sum"]["why"]
