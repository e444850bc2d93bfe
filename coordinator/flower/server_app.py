"""The coordinator's Flower app: one plain call over Flower's grid.

The same app runs in every engine: in process, on Ray, over SuperLink and SuperNodes.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Mapping

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp

from coordinator.runs.transport import Silence, Transport
from protocols import wire

MESSAGE_TYPE = "query.exchange"
_POLL_S = 0.01
_SLOW_POLL_S, _SLOWEST_POLL_S, _WAITED_SHARE = 0.2, 1.0, 0.1
"""What is waited for is looked at ever more seldom: a look costs SuperLink and coordinator 10 ms
each. What took long is noticed at most a tenth of that time later.
"""

_LOOK_S = 2.0
"""How often to check for lost nodes during an exchange."""

_GONE_S = 10.0
"""A node that was put out, or has been away this long, is not waited for."""

_CODE = re.compile(r"PF-\d{3}")


def build(main: Callable[[Transport], None], *, nodes: int, timeout_s: float) -> ServerApp:
    """Make the app: `main` runs once the transport to so many nodes stands."""
    app = ServerApp()

    @app.main()
    def run(grid: Grid, _: Context) -> None:
        main(GridTransport(grid, nodes=nodes, timeout_s=timeout_s))

    return app


class GridTransport(Transport):
    """Packets over a Flower grid.

    It reaches the given nodes alone, and waits for all of them, at most `wait_s`; a number of nodes
    is for a simulation's grid, which has no others. Messages live as long as the longest exchange,
    so nobody answers an old one later.
    """

    def __init__(
        self,
        grid: Grid,
        *,
        nodes: Collection[int] | int,
        timeout_s: float,
        wait_s: float | None = None,
    ) -> None:
        super().__init__()
        self._wait_s = timeout_s if wait_s is None else wait_s
        self._grid = grid
        self._only = None if isinstance(nodes, int) else frozenset(nodes)
        self._expected = nodes if isinstance(nodes, int) else len(nodes)
        self._timeout_s = timeout_s

    def nodes(self) -> list[int]:
        """Wait until all nodes are there, or the time is over; return those that are."""
        began = time.monotonic()
        while True:
            nodes = self.nodes_now()
            waited = time.monotonic() - began
            if len(nodes) >= self._expected or waited > self._wait_s:
                return nodes
            time.sleep(_longest_pause(waited))

    def nodes_now(self) -> list[int]:
        """See `Transport.nodes_now`."""
        there = sorted(self._grid.get_node_ids())
        return [node for node in there if self._only is None or node in self._only]

    def _carry(self, packets: Mapping[int, bytes]) -> dict[int, bytes | Silence]:
        messages = [
            Message(
                RecordDict({"packet": _carrier(packet)}),
                dst_node_id=node,
                message_type=MESSAGE_TYPE,
                ttl=self._timeout_s,
            )
            for node, packet in packets.items()
        ]
        pushed = zip(self._grid.push_messages(messages), packets, strict=True)
        # An id is None where a message could not be sent. An error reply's sender is the link, so a
        # reply is known by the message that it answers.
        waiting = {message_id: node for message_id, node in pushed if message_id is not None}
        answers: dict[int, bytes | Silence] = {}
        began = time.monotonic()
        absences = _Absences(self._grid)
        pause = _POLL_S
        while waiting:
            for reply in self._grid.pull_messages(list(waiting)):
                node = waiting.pop(reply.metadata.reply_to_message_id, None)
                if node is not None:
                    answers[node] = _body(reply)
            waited = time.monotonic() - began
            if waiting.keys() <= absences.gone(waiting) or waited > self._timeout_s:
                break
            time.sleep(pause)
            pause = min(2 * pause, _longest_pause(waited))
        return answers


def _longest_pause(waited_s: float) -> float:
    return min(max(_WAITED_SHARE * waited_s, _SLOW_POLL_S), _SLOWEST_POLL_S)


class _Absences:
    """Which nodes left the grid while their answers are waited for."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._looked_at = time.monotonic()
        self._since: dict[int, float] = {}

    def gone(self, waiting: Mapping[str, int]) -> set[str]:
        """Return the messages, of those by their ids, whose nodes have been away for long."""
        now = time.monotonic()
        if now - self._looked_at >= _LOOK_S:
            self._looked_at = now
            away = set(waiting.values()) - set(self._grid.get_node_ids())
            self._since = {node: self._since.get(node, now) for node in away}
        return {
            message
            for message, node in waiting.items()
            if now - self._since.get(node, now) >= _GONE_S
        }


def _carrier(packet: bytes) -> ConfigRecord | ArrayRecord:
    """Take plain bytes for a small packet: of an array each of five parts is a request of its own.

    A large array travels in chunks.
    """
    if len(packet) <= wire.MOST_SMALL_BYTES:
        return ConfigRecord({"body": packet})
    return ArrayRecord({"body": Array("uint8", (len(packet),), wire.PACKET_FORM, packet)})


def _body(reply: Message) -> bytes | Silence:
    """Read a packet from a reply, trusting nothing about its shape."""
    if reply.has_error():
        return Silence(f"flower error {reply.error.code}")
    record = reply.content.get("packet")
    if isinstance(record, ConfigRecord) and isinstance(body := record.get("body"), bytes):
        return body
    if not isinstance(record, ArrayRecord) or "body" not in record:
        fault = reply.content.get("fault")
        code = fault.get("code") if isinstance(fault, ConfigRecord) else None
        return Silence(code if isinstance(code, str) and _CODE.fullmatch(code) else "no packet")
    # Raw bytes, never an array file: NumPy's reader evaluates a header as Python, which two threads
    # cannot always do at once (CPython 3.11: "AST constructor recursion depth mismatch").
    array = record["body"]
    fits = array.stype == wire.PACKET_FORM and isinstance(array.data, bytes)
    return array.data if fits else Silence("no packet")
