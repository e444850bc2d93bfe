"""Where a simulation's apps run: in this process, or on Flower's Ray engine.

Both run the ServerApp and ClientApp that a deployment runs. On Ray, Flower's workers come and go
and share processes, so the hospitals' memory lives in one Ray actor that every worker asks.
"""

from __future__ import annotations

import logging
import math
import os
import sys
import uuid
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, Final

from coordinator.flower import server_app as server_side
from coordinator.flower.local_grid import LocalGrid
from coordinator.runs.transport import Transport
from coordinator.simulation.simulated_hospitals import HospitalsBlueprint
from party.flower import client_app as client_side
from pate_fed.errors import InvalidSettingError, MissingExtraError
from pate_fed.nodes import QUIET_FLOWER

_EXCHANGE_S: Final = {"local": math.inf, "ray": 3600.0}
"""Longest exchange. A node in this process always answers, if only by an error; a slow machine must
not end the run. Ray can die without an answer.
"""


def require_engine(name: str) -> None:
    """Check that an engine can run here."""
    if name not in ("local", "ray"):
        raise InvalidSettingError("--engine must be local or ray", name)
    if name == "ray" and find_spec("ray") is None:
        raise MissingExtraError(
            "--engine ray needs Ray: install it with `pip install 'pate-fed[ray]'`", "no Ray here"
        )


def run_engine(name: str, main: Callable[[Transport], None], hospitals: HospitalsBlueprint) -> None:
    """Open all hospitals' nodes, and run the coordinator's `main` on them; its errors pass."""
    workers = os.cpu_count() or 1
    os.environ.update(QUIET_FLOWER, RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="0")
    for library in ("flwr", "ray"):
        # They log tracebacks, with a party's current work; faults that matter come back as a code.
        logging.getLogger(library).setLevel(logging.CRITICAL + 1)
    for node in ("party", "coordinator"):
        # A node's log is its own; here it would mix with the lines of standard error.
        logging.getLogger(node).addHandler(logging.NullHandler())
    failure: list[BaseException] = []
    count = len(hospitals.hospitals)

    def guarded(transport: Transport) -> None:
        # Engines wrap or swallow a ServerApp's exception, so it is passed on by hand.
        try:
            main(transport)
        except Exception as error:
            failure.append(error)

    server_app = server_side.build(guarded, nodes=count, timeout_s=_EXCHANGE_S[name])
    if name == "ray":
        _run_on_ray(server_app, hospitals, workers=workers)
    else:
        nodes = hospitals.open()
        client_app = client_side.build(lambda partition: nodes[partition])
        LocalGrid(client_app, nodes=count, workers=workers).run_server(server_app)
    if failure:
        raise failure[0]


class _Hall:
    """All hospitals' nodes, in one Ray actor."""

    def __init__(self, hospitals: HospitalsBlueprint) -> None:
        self._nodes = hospitals.open()

    def receive(self, partition: int, packet: bytes) -> bytes:
        return self._nodes[partition].receive(packet)


class _Door:
    """A hospital's node, seen from a Flower worker."""

    def __init__(self, hall: str, partition: int) -> None:
        self._hall = hall
        self._partition = partition

    def receive(self, packet: bytes) -> bytes:
        import ray  # noqa: PLC0415 - an extra

        hall = ray.get_actor(self._hall, namespace=_NAMESPACE)
        answer: bytes = ray.get(hall.receive.remote(self._partition, packet))
        return answer


_NAMESPACE = "pate-fed"


def _run_on_ray(server_app: Any, hospitals: HospitalsBlueprint, *, workers: int) -> None:
    import ray  # noqa: PLC0415 - an extra
    from flwr.simulation import run_simulation  # noqa: PLC0415 - imports Ray

    hall_name = f"hospitals-{uuid.uuid4().hex}"
    ray.init(
        num_cpus=workers,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        namespace=_NAMESPACE,
        runtime_env={"env_vars": {"PYTHONPATH": os.pathsep.join(sys.path)}},
    )
    try:
        hall = ray.remote(num_cpus=0)(_Hall).options(name=hall_name).remote(hospitals)
        client_app = client_side.build(lambda partition: _Door(hall_name, partition))
        run_simulation(
            server_app,
            client_app,
            num_supernodes=len(hospitals.hospitals),
            backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
        )
        del hall  # Flower has shut Ray down by now, and the actor with it
    finally:
        ray.shutdown()
