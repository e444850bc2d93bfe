"""Flower's SuperNode as a process of its own that ends with its parent.

The parent holds our standard input open. When that closes, for any reason, no process of the party
is left over.

Flower's SuperNode sleeps three seconds after each unanswered question, and half a second at a time
while a message is in work. Our coordinator holds a question until there is something
(`coordinator.flower.long_polling`), so the time of the question counts as sleep. The node asks as
seldom as Flower's where nobody holds the question, and hears at once where somebody does.

Flower's parts that are named here are internal: `tests/test_party/test_supernode.py` tests our
assumptions about them.
"""

from __future__ import annotations

import os
import signal
import threading
import time
import traceback
from collections.abc import Callable
from functools import partial
from typing import Final

import httpx
from flwr.proto.fleet_pb2 import ActivateNodeRequest, ActivateNodeResponse
from flwr.supercore.inflatable.inflatable_utils import pull_objects
from flwr.supernode import start_client_internal
from flwr.supernode.cli.flower_supernode import flower_supernode
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.start_client_internal import _pull_and_store_message

from pate_fed.nodes.kept_child import end_with_parent

IDLE_S: Final = 3.0
"""Flower's sleep after an unanswered question."""

_LEAST_IDLE_S: Final = 0.1
_LOCAL_S: Final = 0.05
"""How often to look whether our own process has answered: nothing leaves the machine for it."""

_END_S: Final = 15.0

_TURNED_AWAY_S: Final = 20.0
"""How long to ask again before we give up: a minute after a node or its SuperLink was killed, it
still counts as connected, and no second one is let in. Each start of ours takes seconds of a core.
"""

_ASK_AGAIN_S: Final = 2.0

_FIRST_RETRY_S, _LONGEST_RETRY_S = 0.1, 2.0
"""A missing part of a message is under way; Flower would wait for 1 s at least."""


class Pace:
    """Replaces the module `time` in Flower's SuperNode: sleeps no longer than needed."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        self._slept_until = clock()

    def sleep(self, seconds: float) -> None:
        """Sleep for the needed part of Flower's time."""
        pause = _LOCAL_S
        if seconds >= IDLE_S:
            asked_for = self._clock() - self._slept_until
            pause = min(max(seconds - asked_for, _LEAST_IDLE_S), seconds)
        self._sleep(pause)
        self._slept_until = self._clock()


def main() -> None:
    """Run it with the arguments of the command line, which `party.flower.executor` makes.

    At an answer that it does not know, Flower's loop only logs an error and returns, while other
    threads of Flower live on. So the process ends here, and another is started.
    """
    threading.excepthook = end_with_thread
    end_with_parent()
    quicken()
    try:
        flower_supernode()
    except Exception:
        traceback.print_exc()
    os._exit(1)


def quicken() -> None:
    """Shorten the sleep of Flower's loop in this process, and remove its leftovers."""
    FleetHttpClient.ActivateNode = patient(  # type: ignore[method-assign, assignment]
        FleetHttpClient.ActivateNode
    )
    loop = vars(start_client_internal)
    loop["time"] = Pace()
    loop["_pull_and_store_message"] = partial(whole_or_over, _pull_and_store_message)
    loop["pull_objects"] = partial(
        pull_objects, initial_backoff=_FIRST_RETRY_S, backoff_cap=_LONGEST_RETRY_S
    )


def patient(
    activate: Callable[[FleetHttpClient, ActivateNodeRequest], ActivateNodeResponse],
    *,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Callable[[FleetHttpClient, ActivateNodeRequest], ActivateNodeResponse]:
    """Ask again for a while where a node is turned away."""

    def ask(client: FleetHttpClient, request: ActivateNodeRequest) -> ActivateNodeResponse:
        last = clock() + _TURNED_AWAY_S
        while True:
            try:
                return activate(client, request)
            except httpx.HTTPStatusError as error:
                is_turned_away = error.response.status_code == httpx.codes.PRECONDITION_FAILED
                if not is_turned_away or clock() >= last:
                    raise
            sleep(_ASK_AGAIN_S)

    return ask


def whole_or_over(
    pull: Callable[..., int | None],
    *,
    receive: Callable[[], object | None],
    end: Callable[[], None] = lambda: os.kill(os.getpid(), signal.SIGTERM),
    **others: object,
) -> int | None:
    """Pull a message; end the process where one came and was dropped: another is started.

    Flower drops a message whose run ended before all its parts came, for example when the
    coordinator dies. Its task for the message stays. A taker of tasks would wait minutes for parts
    that never come, while the next message waits behind it.
    """
    is_here = False

    def note() -> object | None:
        nonlocal is_here
        found = receive()
        is_here = found is not None
        return found

    run_id = pull(receive=note, **others)
    if is_here and run_id is None:
        end()
    return run_id


def end_with_thread(ended: threading.ExceptHookArgs) -> None:
    """End the process with a thread that failed: its keeper starts another.

    Flower's heartbeat is such a thread. It ends at an answer that it does not know, for example of
    a coordinator whose disk is full for a moment. The process would live on, and never again count
    as connected.
    """
    threading.__excepthook__(ended)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_END_S)  # Flower's main thread says good-bye, unless it hangs itself
    os._exit(1)


if __name__ == "__main__":
    main()
