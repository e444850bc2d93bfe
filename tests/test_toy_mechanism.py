"""A new mechanism is one file and one line: it can then be simulated, priced, planned, reported."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from coordinator.cli import app
from pate_fed.accounting.events import EVENT_TYPES
from pate_fed.mechanisms import SPECS
from tests.support.command import shown_by


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one line: it stands in `pate_fed.mechanisms.registry` for a real one."""
    from tests.support import toy_mechanism  # noqa: PLC0415 - its event registers itself

    EVENT_TYPES.pop("toy/1", None)
    monkeypatch.setitem(EVENT_TYPES, "toy/1", toy_mechanism.ToyEvent)
    monkeypatch.setitem(SPECS, toy_mechanism.SPEC.name, toy_mechanism.SPEC)  # type: ignore[misc]


@pytest.mark.slow
def test_a_new_mechanism_is_simulated_charged_and_reported(tmp_path: Path) -> None:
    run = tmp_path / "run"
    out = json.loads(
        shown_by(
            app,
            *("simulate", "--data", "breast-cancer", "--parties", 5, "--teachers", 4),
            *("--mechanism", "toy", "--queries", 6, "--epsilon", 20, "--seed", 1),
            *("--out", run, "--format", "json"),
        )
    )
    sigma = 0.5 * 20
    assert out["privacy"]["mechanism"]["name"] == "toy"
    assert out["privacy"]["mechanism"]["sigma2"] == sigma
    assert out["metrics"]["queries"]["answered"] == 6
    # 6 labels, each of RDP order / sigma^2 for 4 votes of one hospital or 1 of one record.
    votes = out["privacy"]["views"]["public"]
    assert 0 < votes["epsilon"] <= 20
    assert "RDP" in votes["method"]
    page = (run / "report.html").read_text(encoding="utf-8")
    assert "Toy-Max" in page
    assert "The toy of sigma 10 chose." in page
    assert "The toy of sigma 10 chose." in (run / "student" / "model_card.md").read_text("utf-8")


def test_a_new_mechanism_is_offered_and_priced_on_votes(tmp_path: Path) -> None:
    assert "toy" in shown_by(app, "simulate", "--help")
    votes = tmp_path / "votes.npy"
    np.save(votes, np.array([[180, 70]] * 5))
    table = json.loads(
        shown_by(app, "account", votes, "--mechanism", "toy", "--sigma2", 40, "--format", "json")
    )
    found = table["epsilon"]["formal_renyi"]["epsilon"]
    # The converted curve of 5 labels: order * 5 / 40^2.
    assert math.isclose(found, gaussian_epsilon(5 / 40**2), rel_tol=0.02)


def gaussian_epsilon(rate: float) -> float:
    """Convert RDP of order * rate by the plain bound, over a fine grid of orders."""
    orders = 1 + np.geomspace(0.01, 1000, 20_000)
    logs = np.log(1e5) + np.log1p(-1 / orders) * (orders - 1) - np.log(orders)
    return float((orders * rate + logs / (orders - 1)).min())


def test_options_that_a_new_mechanism_does_not_have_are_refused() -> None:
    result = CliRunner().invoke(
        app, ["simulate", "--mechanism", "toy", "--vote-threshold", "3", "--data", "digits"]
    )
    assert result.exit_code != 0
