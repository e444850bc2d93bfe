"""The party's Flower app: bytes in, one plain call, bytes out.

The same app runs in every engine. No exception passes it: Flower would send its text to the
coordinator.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from party.errors import Reason
from protocols import wire

_log = logging.getLogger(__name__)

ACTION = "exchange"
"""Message type on the wire is "query.exchange"."""


class PacketDoor(Protocol):
    """An engine's way to a party: `PartyNode` is one."""

    def receive(self, packet: bytes) -> bytes:
        """Answer one packet; never raises."""


def build(open_node: Callable[[int], PacketDoor]) -> ClientApp:
    """Make the app.

    Args:
        open_node: Gives the node of a Flower partition id. Called for every message, and keeps a
            node's memory: engines share processes, so this module has no state.
    """
    app = ClientApp()

    @app.query(ACTION)
    def exchange(message: Message, context: Context) -> Message:
        try:
            packet = _packet_of(message)
            node = open_node(int(context.node_config["partition-id"]))
            answer = node.receive(packet)
            # An array travels in chunks and is hashed once; a bytes field is one large object.
            body = Array("uint8", (len(answer),), wire.PACKET_FORM, answer)
            content = RecordDict({"packet": ArrayRecord({"body": body})})
        except Exception as error:
            _log.error("a packet could not be answered: %s", type(error).__name__)
            content = RecordDict({"fault": ConfigRecord({"code": str(Reason.FAULT)})})
        return Message(content, reply_to=message)

    return app


def _packet_of(message: Message) -> bytes:
    """Take the bytes as they are: a reader of array files would parse a stranger's content."""
    array = message.content["packet"]["body"]
    if not isinstance(array, Array) or array.stype != wire.PACKET_FORM:
        raise TypeError("a packet must come in an array of its own form")
    return bytes(array.data)
