"""Flower's grid inside one process: the same ServerApp and ClientApp, no servers, no Ray.

Messages are copied on the way, as on a network; a dead node's answer is Flower's error.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from itertools import count

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

_RUN_ID = 1
_SERVER_NODE_ID = 1
_FIRST_NODE_ID = 1000
_NODE_UNAVAILABLE = 5
_CLIENT_APP_RAISED = 2
_WAIT_S = 1.0


class LocalGrid(Grid):
    """A grid whose nodes run in this process; node i has partition id i.

    Threads let nodes that release the interpreter lock run side by side. `is_down` tells whether a
    node is dead when a message reaches it.
    """

    def __init__(
        self,
        client_app: ClientApp,
        *,
        nodes: int,
        workers: int,
        is_down: Callable[[int], bool] | None = None,
    ) -> None:
        # Flower's Message() reads these from a process-wide place.
        TaskIdentity.run_id = TaskIdentity.task_id = _RUN_ID
        TaskIdentity.node_id = _SERVER_NODE_ID
        self._client_app = client_app
        self._is_down = is_down or (lambda _: False)
        self._contexts = {
            _FIRST_NODE_ID + partition: Context(
                run_id=_RUN_ID,
                node_id=_FIRST_NODE_ID + partition,
                node_config={"partition-id": partition, "num-partitions": nodes},
                state=RecordDict(),
                run_config={},
            )
            for partition in range(nodes)
        }
        self._pool = ThreadPoolExecutor(workers)
        self._pending: dict[str, Future[Message]] = {}
        self._numbers = count(1)

    def run_server(self, server_app: ServerApp) -> None:
        """Run a ServerApp on this grid, then stop its threads."""
        context = Context(
            run_id=_RUN_ID,
            node_id=_SERVER_NODE_ID,
            node_config={},
            state=RecordDict(),
            run_config={},
        )
        with self._pool:
            server_app(self, context)

    def set_run(self, run: Run) -> None:
        """See `Grid.set_run`; this grid has one run."""

    @property
    def run(self) -> Run:
        """See `Grid.run`."""
        return Run.create_empty(_RUN_ID)

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """See `Grid.create_message`."""
        return Message(
            content, dst_node_id=dst_node_id, message_type=message_type, group_id=group_id, ttl=ttl
        )

    def get_node_ids(self) -> Iterable[int]:
        """See `Grid.get_node_ids`."""
        return list(self._contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """See `Grid.push_messages`."""
        ids = []
        for message in messages:
            message_id = f"message-{next(self._numbers)}"
            message.metadata.__dict__["_message_id"] = message_id
            self._pending[message_id] = self._pool.submit(self._deliver, copy.deepcopy(message))
            ids.append(message_id)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """See `Grid.pull_messages`; what this process works on is waited for, and not polled."""
        pending = {i: self._pending[i] for i in message_ids if i in self._pending}
        done, _ = wait(pending.values(), timeout=_WAIT_S)
        return [self._pending.pop(i).result() for i, each in pending.items() if each in done]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """See `Grid.send_and_receive`."""
        futures = [self._pending.pop(message_id) for message_id in self.push_messages(messages)]
        return [future.result(timeout) for future in futures]

    def _deliver(self, message: Message) -> Message:
        context = self._contexts[message.metadata.dst_node_id]
        if self._is_down(int(context.node_config["partition-id"])):
            return Message(Error(code=_NODE_UNAVAILABLE, reason="node is down"), reply_to=message)
        try:
            return copy.deepcopy(self._client_app(message=message, context=context))
        except Exception as error:
            reason = type(error).__name__
            return Message(Error(code=_CLIENT_APP_RAISED, reason=reason), reply_to=message)
