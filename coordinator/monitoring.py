"""The answers of a service to machines, on loopback: alive, ready, progress.

Only counts and released values: nothing here follows from an unreleased vote.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Final, cast

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from coordinator.errors import CoordinatorError, InternalError, ServiceError
from coordinator.federation.home import LOOPBACK
from coordinator.runs.queue import Run, RunState
from pate_fed.nodes import place_of
from pate_fed.nodes.ports import listen
from pate_fed.nodes.web import server_of

_CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_BUCKETS: Final = (0.1, 0.5, 1, 2, 5, 10, 20, 60, 120, 300)
_LOOK_S: Final = 1.0
_FAREWELL_S: Final = 1
_LEAVE_S: Final = 5.0
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Probe:
    """Monitoring's questions to the service.

    Attributes:
        is_alive: Whether its parts run.
        is_ready: Whether it can work on runs; by part, for people.
        members: Number of hospitals by state.
    """

    is_alive: Callable[[], bool]
    is_ready: Callable[[], dict[str, bool]]
    runs: Callable[[], list[Run]]
    members: Callable[[], dict[str, int]]
    restarts: Callable[[], int]
    certificate_end: Callable[[], datetime]


class Monitor:
    """The two servers of monitoring; a taken port is a `ServiceError`."""

    def __init__(self, probe: Probe, *, metrics_port: int, health_port: int) -> None:
        self._probe = probe
        self._registry = CollectorRegistry()
        self._registry.register(cast(Collector, _Collector(probe)))
        self.note_exchange = Histogram(
            "pate_fed_exchange_seconds",
            "How long exchanges with all hospitals took.",
            registry=self._registry,
            buckets=_BUCKETS,
        ).observe
        self._stopped = threading.Event()
        self._fault = ""
        self._port = listen(LOOPBACK, metrics_port, fault=ServiceError)
        self._web = server_of(self._app(), limit_concurrency=None)
        self._threads = [
            threading.Thread(target=target, name="monitoring", daemon=True)
            for target in (partial(self._web.run, sockets=[self._port]), self._follow)
        ]
        self._health = health.HealthServicer()
        self._grpc = grpc.server(ThreadPoolExecutor(2), options=[("grpc.so_reuseport", 0)])
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._grpc)
        try:
            self._grpc.add_insecure_port(f"{LOOPBACK}:{health_port}")
        except RuntimeError as error:
            self._port.close()
            raise ServiceError(f"port {health_port} must be free", "taken") from error

    def start(self) -> None:
        """Answer from now on."""
        self._grpc.start()
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Answer no more."""
        self._stopped.set()
        self._web.should_exit = True
        for thread in self._threads:
            thread.join(_LEAVE_S)
        self._port.close()
        self._grpc.stop(_FAREWELL_S).wait()

    def _app(self) -> Starlette:
        answers = {"/healthz": self._alive, "/readyz": self._ready, "/metrics": self._metrics}
        routes = [Route(path, self._endpoint(answer)) for path, answer in answers.items()]
        app = Starlette(routes=routes)
        app.router.redirect_slashes = False
        return app

    def _endpoint(self, answer: Callable[[], Response]) -> Callable[[Request], Response]:
        def endpoint(request: Request) -> Response:
            """Answer a request, in a thread; an unknown state counts as not well."""
            if request.url.query:
                return Response(status_code=404)
            try:
                return answer()
            except CoordinatorError as error:
                return PlainTextResponse(error.code, 503)
            except Exception as error:
                self._note(error)
                return PlainTextResponse(InternalError.code, 503)

        return endpoint

    def _alive(self) -> Response:
        alive = self._probe.is_alive()
        return JSONResponse({"alive": alive}, 200 if alive else 503)

    def _ready(self) -> Response:
        parts = self._parts()
        return JSONResponse(parts, 200 if all(parts.values()) else 503)

    def _metrics(self) -> Response:
        return Response(generate_latest(self._registry), headers={"Content-Type": _CONTENT_TYPE})

    def _follow(self) -> None:
        while not self._stopped.is_set():
            ready = all(self._parts().values())
            status = health_pb2.HealthCheckResponse.ServingStatus
            state = status.SERVING if ready else status.NOT_SERVING
            self._health.set("", state)
            self._stopped.wait(_LOOK_S)

    def _parts(self) -> dict[str, bool]:
        try:
            return self._probe.is_ready()
        except CoordinatorError:
            return {"database": False}
        except Exception as error:
            self._note(error)
            return {"service": False}

    def _note(self, error: Exception) -> None:
        """Log each unexpected error once: it is asked again every second."""
        fault = place_of(error)
        if fault != self._fault:
            self._fault = fault
            _log.error("[%s] monitoring failed with %s", InternalError.code, fault)


class _Collector:
    """Reads numbers off the database when they are asked for."""

    def __init__(self, probe: Probe) -> None:
        self._probe = probe

    def collect(self) -> Iterator[Metric]:
        """See `prometheus_client.registry.Collector`."""
        runs = self._probe.runs()
        by_state = GaugeMetricFamily("pate_fed_runs", "Runs by state.", labels=["state"])
        for state in RunState:
            by_state.add_metric([state.value], sum(run.state is state for run in runs))
        yield by_state
        for name, words in _BY_RUN.items():
            family = GaugeMetricFamily(f"pate_fed_run_{name}", words, labels=["run"])
            for run in runs:
                family.add_metric([run.name], getattr(run.progress, name))
            yield family
        members = GaugeMetricFamily("pate_fed_members", "Hospitals by state.", labels=["state"])
        for known, count in sorted(self._probe.members().items()):
            members.add_metric([known], count)
        yield members
        yield CounterMetricFamily(
            "pate_fed_superlink_restarts",
            "How often the SuperLink had to be started again.",
            value=self._probe.restarts(),
        )
        yield GaugeMetricFamily(
            "pate_fed_certificate_end_timestamp_seconds",
            "Unix time at which the server's certificate ends.",
            value=self._probe.certificate_end().timestamp(),
        )


_BY_RUN: Final = {
    "queries": "Queries that are to be asked.",
    "asked": "Queries that were looked at, of released batches.",
    "answered": "Labels released.",
    "refused": "Queries released without an answer.",
    "from_store": "Answers drawn in earlier runs, at no cost.",
    "batches": "Batches asked.",
    "void": "Batches that are void.",
    "exchanges": "Exchanges with all hospitals, of the last life of the service.",
    "epsilon": "Epsilon of the run at most, at its delta.",
    "share": "Share of its queries charged or reserved, from 0 to 1; each costs the same.",
    "tests_delta": "Delta charged or reserved for tests of stability.",
}
