"""Flower at the coordinator: nodes are registered, and a run's grid is opened, without its CLI.

Flower wants an app to be uploaded before anything can be sent. Ours is a stub that holds no code
and says so: parties run the software installed at their site, and pin the stub's hash.

Flower's parts that are named here are internal: `tests/test_coordinator/test_flower_runtime.py`
tests our assumptions about them.
"""

from __future__ import annotations

import hashlib
import logging
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

from flwr.cli.build import build_fab_from_files
from flwr.common.constant import SubStatus
from flwr.common.serde import fab_to_proto, run_from_proto, user_config_to_proto
from flwr.proto.control_pb2 import (
    ListNodesRequest,
    RegisterNodeRequest,
    StartRunRequest,
    UnregisterNodeRequest,
)
from flwr.proto.runtime_pb2 import AcquireTaskRequest, PullTaskInputRequest, PushTaskOutputRequest
from flwr.serverapp import Grid
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.fab import Fab
from flwr.supercore.heartbeat import HeartbeatSender, make_task_heartbeat_fn_http
from flwr.supercore.inflatable.inflatable_utils import pull_objects
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor, SuperExecAuthHttpInterceptor
from flwr.supercore.protobuf.client import ProtobufClient
from flwr.supercore.retry import RetryInvoker, exponential
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid import HttpGrid, http_grid

from coordinator.errors import SuperLinkError
from coordinator.federation.admin_key import KEY_HEADER, key_of
from coordinator.federation.enrollment import NodeAtLink

_STUB = {
    "pyproject.toml": b"""[project]
name = "pate-fed"
version = "0.1.0"
license = { text = "Apache-2.0" }
dependencies = []
[tool.flwr.app]
publisher = "pate"
[tool.flwr.app.components]
serverapp = "pate_fed_stub:app"
clientapp = "pate_fed_stub:app"
[tool.flwr.app.config]
""",
    "pate_fed_stub.py": b"raise SystemExit('parties run what is installed at their site')\n",
    "LICENSE": b"Apache-2.0",
}
_FORGET_S = 2.0
_TASK_S = 30.0
_POLL_S = 0.1
_LONGEST_PAUSE_S = 1
"""Between two calls to a SuperLink that is gone."""

_FIRST_RETRY_S, _LONGEST_RETRY_S = 0.05, 1.0
"""A missing part of an answer is under way. Flower would wait 1 s, then up to 10 s, and take no
other answer meanwhile.
"""

_log = logging.getLogger(__name__)


def stub() -> bytes:
    """Return the bytes uploaded in place of an app: always the same."""
    content, _ = build_fab_from_files(_STUB)
    return content


class SuperLinkClient:
    """The coordinator's own connection to its SuperLink, on loopback.

    A SuperLink that refuses, or cannot be reached, is a `SuperLinkError`.
    """

    def __init__(self, address: str, *, ca_certificate: bytes, secret: bytes) -> None:
        self._address = address
        self._ca_certificate = ca_certificate
        self._secret = secret

    def register(self, public_key: bytes, *, name: str) -> int:
        """Let a node in, and return its number."""
        with self._control() as control:
            answer = control.RegisterNode(RegisterNodeRequest(public_key=public_key, name=name))
        return int(answer.node_id)

    def unregister(self, node_id: int) -> None:
        """Put a node out."""
        with self._control() as control:
            control.UnregisterNode(UnregisterNodeRequest(node_id=node_id))

    def nodes(self) -> list[NodeAtLink]:
        """Return all nodes that were let in and not put out."""
        with self._control() as control:
            answer = control.ListNodes(ListNodesRequest())
        return [
            NodeAtLink(int(node.node_id), bytes(node.public_key), str(node.status))
            for node in answer.nodes_info
            if node.status != "unregistered"
        ]

    @contextmanager
    def grid(self, *, is_over: Callable[[], bool] = lambda: False) -> Iterator[Grid]:
        """Start a run of Flower's and hold its grid; the run ends with the context.

        Once `is_over`, a SuperLink that is gone is not waited for.
        """
        self._start()
        _retry_soon()
        grid = HttpGrid(self._address, False, self._ca_certificate, token=self._acquire())
        _give_up_once(grid._retry_invoker, is_over)
        client = grid._runtime_client
        self._let_pass(client)
        heartbeat = HeartbeatSender(make_task_heartbeat_fn_http(client))
        heartbeat.start()
        status, details = SubStatus.FAILED, "failed"
        try:
            task = client.PullTaskInput(PullTaskInputRequest())
            TaskIdentity.task_id = task.task_id
            TaskIdentity.run_id = task.run.run_id
            TaskIdentity.node_id = task.context.node_id
            grid.set_run(run_from_proto(task.run))
            yield grid
            status, details = SubStatus.COMPLETED, ""
        finally:
            try:
                client.PushTaskOutput(
                    PushTaskOutputRequest(context=None, sub_status=status, details=details)
                )
            finally:
                heartbeat.stop()
                grid.close()

    def _start(self) -> None:
        content = stub()
        fab = Fab(hashlib.sha256(content).hexdigest(), content, {})
        request = StartRunRequest(
            fab=fab_to_proto(fab), override_config=user_config_to_proto({}), federation=""
        )
        with self._control() as control:
            control.StartRun(request)

    def _acquire(self) -> str:
        client = RuntimeHttpClient.from_server_address(
            server_address=self._address,
            insecure=False,
            root_certificates=self._ca_certificate,
            interceptors=[
                RuntimeVersionHttpInterceptor(component_name="SuperExec"),
                SuperExecAuthHttpInterceptor(
                    master_secret=self._secret,
                    protected_methods={"/flwr.proto.Runtime/AcquireTask"},
                ),
            ],
        )
        self._let_pass(client)
        deadline = time.monotonic() + _TASK_S
        try:
            while time.monotonic() < deadline:
                task = client.AcquireTask(
                    AcquireTaskRequest(supported_task_types=["flwr-serverapp"])
                )
                if task.HasField("task") and task.token:
                    return str(task.token)
                time.sleep(_POLL_S)
        finally:
            client.close()
        raise SuperLinkError("the SuperLink must hand out the run's task", "none in time")

    @contextmanager
    def _control(self) -> Iterator[ControlHttpClient]:
        control = ControlHttpClient.from_server_address(
            self._address,
            insecure=False,
            root_certificates=self._ca_certificate,
            interceptors=[RuntimeVersionHttpInterceptor(component_name="flwr-cli")],
        )
        self._let_pass(control)
        try:
            yield control
        except SuperLinkError:
            raise
        except Exception as error:
            raise SuperLinkError("the SuperLink must answer", f"{type(error).__name__}") from error
        finally:
            control.close()

    def _let_pass(self, client: ProtobufClient) -> None:
        """Let a client's calls pass at the admin port."""
        client._client.headers[KEY_HEADER] = key_of(self._secret)


def forget_delivered(database: Path) -> bool:
    """Empty the write-ahead log of Flower's database: the last copy of messages it has deleted.

    Flower deletes a message when its answer was fetched, and all messages of a run at its end. Its
    pages are overwritten then (`superlink` sets `secure_delete`), but the log still has them.

    Returns whether the log is empty now; it is not while somebody reads.
    """
    try:
        with closing(
            sqlite3.connect(f"file:{database}?mode=rw", uri=True, timeout=_FORGET_S)
        ) as connection:
            busy, _, _ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    except sqlite3.Error as error:
        _log.warning("Flower's write-ahead log was not emptied: %s", type(error).__name__)
        return False
    return not busy


def _give_up_once(invoker: RetryInvoker, is_over: Callable[[], bool]) -> None:
    """Let calls to a SuperLink that is gone end once nobody needs their answer.

    Flower's calls retry for ever, in threads that keep the process from ending.
    """
    flowers = invoker.should_giveup
    invoker.should_giveup = lambda error: is_over() or (flowers is not None and flowers(error))
    invoker.wait_gen_factory = lambda: exponential(max_delay=_LONGEST_PAUSE_S)


def _retry_soon() -> None:
    """Shorten the wait of Flower's grid for parts of answers."""
    vars(http_grid)["pull_objects"] = partial(
        pull_objects, initial_backoff=_FIRST_RETRY_S, backoff_cap=_LONGEST_RETRY_S
    )
