"""Research mechanisms are known to a simulation, and to no node."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pate_fed.lab.mechanisms import RESEARCH
from pate_fed.mechanisms import DEPLOYED_MECHANISMS, SPECS


def known_after(*modules: str) -> set[str]:
    """Mechanisms that a fresh process knows after these imports."""
    code = f"import {', '.join(modules)}, pate_fed.mechanisms as m; print(*m.SPECS)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    return set(found.stdout.split())


@pytest.mark.slow
def test_a_node_knows_deployed_mechanisms_alone() -> None:
    nodes = (
        "party.service",
        "party.flower.client_app",
        "coordinator.service",
        "coordinator.console.app",
    )
    assert known_after(*nodes) == set(DEPLOYED_MECHANISMS)


@pytest.mark.slow
def test_a_simulation_knows_every_mechanism() -> None:
    assert known_after("coordinator.simulation") == {*DEPLOYED_MECHANISMS, *RESEARCH}


def test_no_research_mechanism_is_deployed() -> None:
    assert not RESEARCH.keys() & set(DEPLOYED_MECHANISMS)
    assert set(SPECS) == {*DEPLOYED_MECHANISMS, *RESEARCH}
