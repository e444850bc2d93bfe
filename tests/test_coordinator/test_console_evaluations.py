"""The console shows a private evaluation as a run among others."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.people.people import Role
from coordinator.runs.queue import RunState
from tests.support.console import browser
from tests.support.worked import Worked
from tests.test_coordinator.test_evaluate import NAME, evaluated


@pytest.mark.slow
def test_every_page_opens_beside_an_evaluation(tmp_path: Path) -> None:
    federation = Worked(tmp_path)
    federation.ask(queries=4, noise="parties", mechanism="gnmax", sigma2=5.0, epsilon=400.0)
    assert federation.work().state is RunState.DONE
    evaluated(federation)
    for _ in range(2):  # waiting, and done
        client = browser(federation.coordinator, Role.AUDITOR)
        for path in ("/", "/runs", f"/runs/{NAME}", "/privacy", f"/privacy?run={NAME}", "/results"):
            assert client.get(path, follow_redirects=True).status_code == 200, path
        operator = browser(federation.coordinator, Role.OPERATOR)
        assert operator.get("/new-run", follow_redirects=True).status_code == 200
        assert federation.work(NAME).state is RunState.DONE
    assert client.get(f"/runs/{NAME}/results").status_code == 200
    federation.coordinator.close()
