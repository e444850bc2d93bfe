"""Monitoring on loopback: alive, ready, counts; nothing about votes."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
import yaml
from grpc_health.v1 import health_pb2, health_pb2_grpc

from coordinator import monitoring
from coordinator.errors import DatabaseError, ServiceError
from coordinator.monitoring import Monitor, Probe
from coordinator.runs.queue import Progress, Run, RunState
from tests.support.loopback_home import free_ports

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
PATIENCE_S = 60.0


@dataclass
class Asked:
    """A service that monitoring can ask."""

    alive: bool = True
    parts: dict[str, bool] = field(default_factory=lambda: {"superlink": True, "worker": True})
    fault: Exception | None = None
    runs: list[Run] = field(default_factory=list)

    @property
    def probe(self) -> Probe:
        return Probe(
            is_alive=lambda: self.alive,
            is_ready=self._ready,
            runs=self._runs,
            members=lambda: {"member": 3, "requested": 1, "revoked": 0},
            restarts=lambda: 2,
            certificate_end=lambda: datetime(2027, 1, 2, tzinfo=UTC),
        )

    def _ready(self) -> dict[str, bool]:
        self._runs()
        return self.parts

    def _runs(self) -> list[Run]:
        if self.fault is not None:
            raise self.fault
        return self.runs


@dataclass
class Watched:
    asked: Asked
    monitor: Monitor
    metrics_port: int
    health_port: int

    def get(self, path: str) -> httpx.Response:
        address = f"http://127.0.0.1:{self.metrics_port}{path}"
        return httpx.get(address, trust_env=False, timeout=PATIENCE_S)

    def health(self) -> int:
        with grpc.insecure_channel(f"127.0.0.1:{self.health_port}") as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            return int(stub.Check(health_pb2.HealthCheckRequest(), timeout=PATIENCE_S).status)

    def wait_for_health(self, status: int) -> None:
        """Ask until the standard health service says so."""
        deadline = time.monotonic() + PATIENCE_S
        while (said := self.health()) != status:
            assert time.monotonic() < deadline, said
            time.sleep(0.05)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    monkeypatch.setattr(monitoring, "_LOOK_S", 0.05)
    asked = Asked()
    metrics, health = free_ports(2)
    monitor = Monitor(asked.probe, metrics_port=metrics, health_port=health)
    monitor.start()
    yield Watched(asked, monitor, metrics, health)
    monitor.stop()


def run(name: str, state: RunState, **progress: Any) -> Run:
    return Run(1, name, state, "", "a secret", True, Progress(**progress), NOW, NOW)


def test_alive_and_ready_are_told_apart(watched: Watched) -> None:
    assert (watched.get("/healthz").status_code, watched.get("/readyz").status_code) == (200, 200)
    watched.asked.parts["superlink"] = False
    ready = watched.get("/readyz")
    assert (ready.status_code, ready.json()) == (503, {"superlink": False, "worker": True})
    assert watched.get("/healthz").status_code == 200
    watched.asked.alive = False
    assert watched.get("/healthz").status_code == 503
    address = f"http://127.0.0.1:{watched.metrics_port}/healthz"
    asked = httpx.head(address, trust_env=False, timeout=PATIENCE_S)
    assert (asked.status_code, asked.content) == (503, b"")


def test_a_database_that_is_gone_is_not_ready_and_no_traceback(watched: Watched) -> None:
    watched.asked.fault = DatabaseError("the database must be there", "nothing")
    ready, metrics = watched.get("/readyz"), watched.get("/metrics")
    assert (ready.status_code, ready.json()) == (503, {"database": False})
    assert (metrics.status_code, metrics.text) == (503, "PF-440")


def test_metrics_are_counts_and_released_values(watched: Watched) -> None:
    watched.asked.runs = [
        run("first", RunState.DONE, answered=7, refused=2, epsilon=1.5, tests_delta=2e-6, void=1),
        run("second", RunState.WAITING),
    ]
    watched.monitor.note_exchange(4.2)
    text = watched.get("/metrics").text
    for line in (
        'pate_fed_runs{state="done"} 1.0',
        'pate_fed_runs{state="failed"} 0.0',
        'pate_fed_run_answered{run="first"} 7.0',
        'pate_fed_run_epsilon{run="first"} 1.5',
        'pate_fed_run_tests_delta{run="first"} 2e-06',
        'pate_fed_run_answered{run="second"} 0.0',
        'pate_fed_members{state="member"} 3.0',
        "pate_fed_superlink_restarts_total 2.0",
        "pate_fed_certificate_end_timestamp_seconds 1.798848e+09",
        "pate_fed_exchange_seconds_count 1.0",
        "pate_fed_exchange_seconds_sum 4.2",
    ):
        assert line in text.splitlines()
    assert "secret" not in text
    assert "vote" not in text


EXAMPLES = Path(__file__).parents[2] / "docs" / "examples" / "monitoring"


def test_dashboard_and_alarms_ask_for_metrics_that_are_there(watched: Watched) -> None:
    watched.asked.runs = [run("first", RunState.DONE)]
    watched.monitor.note_exchange(4.2)
    told = {line.partition(" ")[0].partition("{")[0]
            for line in watched.get("/metrics").text.splitlines()}  # fmt: skip
    panels = json.loads((EXAMPLES / "grafana.json").read_text("utf-8"))["panels"]
    groups = yaml.safe_load((EXAMPLES / "alerts.yaml").read_text("utf-8"))["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    asked = [panel["targets"][0]["expr"] for panel in panels] + [rule["expr"] for rule in rules]
    for expression in asked:
        names = set(re.findall(r"pate_fed_\w+", expression))
        assert names, expression
        assert names <= told, expression
        assert set(re.findall(r'state="(\w+)"', expression)) <= {
            *RunState, *watched.asked.probe.members(),
        }  # fmt: skip
        # A number that may fall is no counter.
        for name in re.findall(r"(?:rate|increase)\((\w+)", expression):
            assert name.endswith(("_total", "_bucket")), expression
    for rule in rules:
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert rule["annotations"]["summary"]
    assert len({rule["alert"] for rule in rules}) == len(rules) > 5
    assert len({panel["id"] for panel in panels}) == len(panels) > 5


def test_other_paths_are_not_there(watched: Watched) -> None:
    for path in ("/", "/metrics/../healthz/x", "/debug", "/metrics?x=1", "/healthz/"):
        assert watched.get(path).status_code == 404


def test_the_standard_health_service_follows(watched: Watched) -> None:
    status = health_pb2.HealthCheckResponse.ServingStatus
    watched.wait_for_health(status.SERVING)
    watched.asked.parts["worker"] = False
    watched.wait_for_health(status.NOT_SERVING)


def test_what_cannot_be_told_is_not_well_and_told_again_once_it_can(
    watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    """A run in a state that this version does not know, for one."""
    status = health_pb2.HealthCheckResponse.ServingStatus
    watched.wait_for_health(status.SERVING)
    watched.asked.fault = ValueError("votes 17 of 23")
    watched.wait_for_health(status.NOT_SERVING)
    ready, metrics = watched.get("/readyz"), watched.get("/metrics")
    assert (ready.status_code, ready.json()) == (503, {"service": False})
    assert (metrics.status_code, metrics.text) == (503, "PF-490")
    said = [one.getMessage() for one in caplog.records]
    assert [("[PF-490]" in one, "ValueError" in one) for one in said] == [(True, True)]
    watched.asked.fault = None
    watched.wait_for_health(status.SERVING)
    assert watched.get("/readyz").status_code == 200


def test_ports_that_are_taken_are_said(watched: Watched) -> None:
    (other,) = free_ports(1)
    with pytest.raises(ServiceError, match=str(watched.metrics_port)):
        Monitor(watched.asked.probe, metrics_port=watched.metrics_port, health_port=other)
    with pytest.raises(ServiceError, match=str(watched.health_port)):
        Monitor(watched.asked.probe, metrics_port=other, health_port=watched.health_port)


def test_logs_are_json_and_hold_no_traceback(caplog: pytest.LogCaptureFixture) -> None:
    import logging  # noqa: PLC0415

    from pate_fed.nodes import JsonFormatter  # noqa: PLC0415

    try:
        int("7919 votes of patient 4711")
    except ValueError:
        logging.getLogger("coordinator.test").exception("a run is %s", "interrupted")
    line = JsonFormatter().format(caplog.records[-1])
    assert "4711" not in line
    assert json.loads(line)["exception"] == "ValueError"
    assert json.loads(line)["message"].endswith("interrupted")
