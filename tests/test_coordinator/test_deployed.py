"""A federation of real processes over TLS on loopback, from its first command to its labels.

In runs that are not exhaustive, `test_federation_demo` comes to labels, `test_service_log` kills a
SuperLink, and `test_kills` kills a coordinator without Flower.
"""

from __future__ import annotations

import json
import signal
from pathlib import Path

import httpx
import pytest

from pate_fed.accounting import EntryState
from tests.support import postgres
from tests.support.command import labels_in
from tests.support.deployed import CLASSES, LABEL, NAMES, Deployed, deployed, true_class

pytestmark = pytest.mark.exhaustive

QUERIES = 12
ASKED = (
    *("--label", LABEL, "--classes", ",".join(CLASSES), "--ask", QUERIES, "--batch-size", 6),
    *("--epsilon", 100, "--mechanism", "gnmax", "--sigma2", 3),
)


@pytest.fixture
def database(request: pytest.FixtureRequest) -> str:
    """Address of the coordinator's database; empty for SQLite in its folder."""
    if request.param == "sqlite":
        return ""
    cluster: postgres.Cluster = request.getfixturevalue("cluster")
    return cluster.new_database()


def require_exported(out: Path) -> None:
    assert {path.name for path in out.iterdir()} == {
        *("labels.csv", "report.html", "transcript.jsonl", "seal.json", "student"),
        *("metrics.json", "privacy.json", "manifest.json", "run.toml", "sent.csv", "annexes.html"),
    }


def require_measured(federation: Deployed) -> None:
    """Monitoring is told of the run."""
    address = f"http://127.0.0.1:{federation.home.settings.metrics_port}/metrics"
    metrics = httpx.get(address, trust_env=False, timeout=60).text
    assert 'pate_fed_runs{state="done"} 1.0' in metrics
    assert f'pate_fed_run_answered{{run="first"}} {QUERIES}.0' in metrics


@pytest.mark.parametrize("database", ["sqlite", "postgresql"], indirect=True)
def test_from_invitations_to_labels(tmp_path: Path, database: str) -> None:
    with deployed(tmp_path, database=database) as federation:
        home = ("--home", federation.home.folder)
        federation.serve()
        federation.wait_until_served()
        federation.enroll()
        shown = json.loads(federation.command("members", *home, "--format", "json").stdout)
        assert [(one["name"], one["state"]) for one in shown["members"]] == [
            (name, "member") for name in NAMES
        ]
        followed = federation.command(
            *("run", "--name", "first", "--queries", federation.queries, *ASKED, *home),
            *("--format", "json"),
        )
        assert followed.returncode == 0, followed.stderr + federation.log
        run = json.loads(followed.stdout)
        assert (run["state"], run["reason"]) == ("done", "")
        assert run["progress"]["answered"] == QUERIES

        out = tmp_path / "out"
        exported = federation.command("export", "first", "--private", "--out", out, *home)
        assert exported.returncode == 0, exported.stderr
        require_exported(out)
        labels = labels_in(out)
        truth = true_class(federation.task.inputs)
        right = sum(CLASSES[truth[index]] == label for index, label in labels.items())
        assert len(labels) == QUERIES
        assert right == QUERIES  # all teachers agree: the noise does not turn 30 votes to 0

        require_measured(federation)
        for hospital in federation.hospitals:
            assert sorted(hospital.asked) == sorted(labels)


@pytest.mark.parametrize(
    ("stage", "database"),
    [("planned", "sqlite"), ("opened", "sqlite"), ("stored", "postgresql")],
    indirect=["database"],
)
def test_a_killed_service_is_followed_by_one_that_goes_on(
    tmp_path: Path, stage: str, database: str
) -> None:
    """SIGKILL of the service between two lines of it; its SuperLink ends with it."""
    with deployed(tmp_path, database=database) as federation:
        home = ("--home", federation.home.folder)
        federation.serve(dies_at=stage)
        federation.wait_until_served()
        federation.enroll()
        shown = json.loads(federation.command("members", *home, "--format", "json").stdout)
        assert [(one["name"], one["state"]) for one in shown["members"]] == [
            (name, "member") for name in NAMES
        ]
        queued = federation.command(
            *("run", "--name", "first", "--queries", federation.queries, *ASKED, *home, "--detach"),
        )
        assert queued.returncode == 0, queued.stderr
        assert federation.wait_for_death(240) == -signal.SIGKILL, federation.log
        run = federation.wait_for_run("first", states=("running",))
        federation.serve()
        federation.wait_until_served()
        run = federation.wait_for_run("first", states=("done", "failed", "paused"))
        assert (run.state.value, run.reason, run.progress.void) == ("done", "", 0)

        out = tmp_path / "out"
        coordinator = federation.coordinator
        coordinator.export("first", out, private=True)
        coordinator.close()
        require_exported(out)
        require_measured(federation)
        labels = labels_in(out)
        truth = true_class(federation.task.inputs)
        assert labels == {index: CLASSES[truth[index]] for index in labels}
        assert len(labels) == QUERIES
        for hospital in federation.hospitals:
            assert sorted(hospital.asked) == sorted(labels)  # nothing was voted on twice
            states = [entry.state for entry in hospital.ledger.load().entries]
            assert states == [EntryState.COMMITTED] * 2  # no charge lost, none doubled
