"""Flower at a hospital: the SuperNode's command line, and the executor of its tasks.

A stock SuperNode runs any code that the coordinator sends. Ours runs none: it hands each message to
this executor, in our own process, which runs the app installed here. The code part of a message is
held against one pinned hash and never opened.

Flower's parts that are named here are internal: `tests/test_party/test_flower_runtime.py` tests our
assumptions about them.
"""

from __future__ import annotations

import hashlib
import logging
import sys
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial

import httpx
from flwr.app import Context, Message
from flwr.app.error import Error
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode, SubStatus
from flwr.proto.runtime_pb2 import AcquireTaskRequest, SendTaskHeartbeatRequest
from flwr.supercore.heartbeat import HeartbeatSender
from flwr.supercore.inflatable.inflatable_utils import pull_and_inflate_object_from_tree
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.retry import RetryInvoker, exponential, make_simple_http_retry_invoker
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.runtime import run_clientapp
from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output

from party.errors import Reason
from party.site.membership import CA_FILE, SiteMembership
from pate_fed.nodes import QUIET_FLOWER

LOOPBACK = "127.0.0.1"

STUB_DIGEST = "75d40371225cebe98944cd895132f38637ec66438d67a2d154854d748ad087c7"
"""SHA-256 of the only accepted code part: it holds none (`coordinator.flower.superlink_client`)."""

_LEAST_IDLE_S, _IDLE_S = 0.05, 0.5
_IDLE_SHARE = 0.1
"""The SuperNode is asked again after a tenth of the time since the last message, within these
seconds. A message soon after another is taken soon, and a night without one costs little.
"""

_FIRST_RETRY_S, _LONGEST_RETRY_S = 0.05, 1.0
"""A missing part of a message is under way; Flower would wait for 1 s."""

_LONGEST_PAUSE_S, _PATIENCE_S = 1, 30.0
"""Longest absence of a SuperNode while a message is answered: the next one brings its own."""

_log = logging.getLogger(__name__)


def quiet_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of our two processes.

    Flower calls nobody. The way to the coordinator goes through the hospital's proxy, if it has
    one; calls between our two processes on loopback do not.
    Hosts that are exempt from the proxy stay so.
    """
    # Where both are set, the small letters count.
    exempt = environment.get("no_proxy", environment.get("NO_PROXY", ""))
    names = [name.strip() for name in exempt.split(",") if name.strip()]
    if "*" not in names and LOOPBACK not in names:
        exempt = ",".join([*names, LOOPBACK])
    return {**environment, **QUIET_FLOWER, "no_proxy": exempt, "NO_PROXY": exempt}


def supernode_command(joined: SiteMembership, *, port: int) -> list[str]:
    """Return the command line of a membership's SuperNode, which hands tasks out on `port`."""
    return [
        sys.executable,
        "-P",  # no module of the current folder
        "-m",
        "party.flower.supernode",
        "--superlink",
        joined.settings.address,
        "--root-certificates",
        str(joined.path(CA_FILE)),
        "--auth-supernode-private-key",
        str(joined.path("node.key")),
        "--node-config",
        "partition-id=0",
        # It runs and installs nobody's code.
        "--isolation",
        "process",
        "--superexec-auth-secret-file",
        str(joined.path("node.secret")),
        "--host",
        LOOPBACK,
        "--port",
        str(port),
    ]


def patient_invoker() -> RetryInvoker:
    """Return an invoker that retries calls to the SuperNode, and never ends our process.

    Flower's never gives up. It would end our process by SIGINT where the SuperNode does not know a
    task any more: it takes the process for one made for that task alone. Ours answers all tasks.
    """
    invoker = make_simple_http_retry_invoker()
    flowers = invoker.should_giveup

    def should_give_up(error: Exception) -> bool:
        status = error.response.status_code if isinstance(error, httpx.HTTPStatusError) else None
        return status == httpx.codes.UNAUTHORIZED or flowers is None or flowers(error)

    invoker.should_giveup = should_give_up
    invoker.wait_gen_factory = lambda: exponential(max_delay=_LONGEST_PAUSE_S)
    invoker.max_time = _PATIENCE_S
    return invoker


class Executor:
    """Takes messages from the SuperNode beside us, one at a time, and answers them.

    The SuperNode hands tasks out at `address`, host:port on loopback, under `secret`.
    """

    def __init__(self, app: ClientApp, *, address: str, secret: bytes) -> None:
        _retry_soon()
        self._app = app
        self._address = address
        self._tasks = RuntimeHttpClient.from_server_address(
            server_address=address,
            insecure=True,  # loopback, and under a secret
            root_certificates=None,
            interceptors=[
                RuntimeVersionHttpInterceptor(component_name="SuperExec"),
                SuperExecAuthHttpInterceptor(
                    master_secret=secret,
                    protected_methods={"/flwr.proto.Runtime/AcquireTask"},
                ),
            ],
        )

    def run(
        self,
        stopped: threading.Event,
        *,
        on_idle: Callable[[], None] | None = None,
        may_answer: Callable[[], bool] = lambda: True,
    ) -> None:
        """Answer messages until told to stop; wait for a SuperNode that is away.

        Messages that come before `may_answer` wait; `on_idle` is called in idle time.
        """
        last = time.monotonic()
        while not stopped.is_set():
            if may_answer() and self.run_one():
                last = time.monotonic()
                continue
            if on_idle is not None:
                on_idle()
            idle_for = time.monotonic() - last
            stopped.wait(min(max(_IDLE_SHARE * idle_for, _LEAST_IDLE_S), _IDLE_S))

    def run_one(self) -> bool:
        """Answer one message; tell whether there was any."""
        try:
            task = self._tasks.AcquireTask(
                AcquireTaskRequest(supported_task_types=["flwr-clientapp"])
            )
        except Exception as error:
            _log.debug("the SuperNode cannot be reached: %s", type(error).__name__)
            return False
        if not (task.HasField("task") and task.token):
            return False
        self._answer(task.token)
        return True

    def close(self) -> None:
        """Let go of the connection."""
        self._tasks.close()

    def _answer(self, token: str) -> None:
        client = RuntimeHttpClient.from_server_address(
            server_address=self._address,
            insecure=True,
            root_certificates=None,
            interceptors=[
                RuntimeVersionHttpInterceptor(component_name="flwr-clientapp"),
                RuntimeTokenHttpInterceptor(token),
            ],
            retry_invoker=patient_invoker(),
        )
        # The SuperNode takes a task for lost after a minute without: teachers may need longer.
        heartbeat = HeartbeatSender(partial(_beat, client))
        heartbeat.start()
        context: Context | None = None
        status, details = SubStatus.FAILED, "not answered"
        try:
            message, context, _, fab = pull_task_input(client)
            reply, is_done = self._reply(message, context, fab.content)
            push_message(client, reply, context)
            if is_done:
                status, details = SubStatus.COMPLETED, ""
        except Exception as error:
            # Its text could hold anything: neither the coordinator nor our own log gets it.
            _log.error("a message could not be answered: %s", type(error).__name__)
        finally:
            heartbeat.stop()
            self._close_task(client, context, status, details)

    @staticmethod
    def _close_task(
        client: RuntimeHttpClient, context: Context | None, status: str, details: str
    ) -> None:
        try:
            push_task_output(client, context, status, details)
        except Exception as error:  # the SuperNode may be gone: the next task comes from another
            _log.error("a task could not be closed: %s", type(error).__name__)
        finally:
            client.close()

    def _reply(self, message: Message, context: Context, code: bytes) -> tuple[Message, bool]:
        if hashlib.sha256(code).hexdigest() != STUB_DIGEST:
            _log.error("the coordinator sent code: it was not run")
            return Message(Error(ErrorCode.INVALID_FAB, "not pinned here"), reply_to=message), False
        try:
            return self._app(message=message, context=context), True
        except Exception as error:  # a message of a kind that the app does not have
            _log.error("a message could not be read: %s", type(error).__name__)
            fault = Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, Reason.FAULT.value)
            return Message(fault, reply_to=message), False


def _beat(client: RuntimeHttpClient) -> bool:
    """Report a task in work; on failure Flower's own would interrupt our process."""
    try:
        return bool(client.SendTaskHeartbeat(SendTaskHeartbeatRequest()).success)
    except Exception as error:
        _log.warning("the SuperNode was not told of our work: %s", type(error).__name__)
        return False


def _retry_soon() -> None:
    """Shorten the wait of Flower's reader of messages for parts; only executors use it."""
    vars(run_clientapp)["pull_and_inflate_object_from_tree"] = partial(
        pull_and_inflate_object_from_tree,
        initial_backoff=_FIRST_RETRY_S,
        backoff_cap=_LONGEST_RETRY_S,
    )
