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
    """Make the app; `open_node` gives the node of a Flower partition id, for every message.

    It keeps a node's memory: engines share processes, so this module has no state.
    """
    app = ClientApp()

    @app.query(ACTION)
    def exchange(message: Message, context: Context) -> Message:
        try:
            packet = _packet_of(message)
            node = open_node(int(context.node_config["partition-id"]))
            answer = node.receive(packet)
            content = RecordDict({"packet": _carrier(answer)})
        except Exception as error:
            _log.error("a packet could not be answered: %s", type(error).__name__)
            content = RecordDict({"fault": ConfigRecord({"code": str(Reason.FAULT)})})
        return Message(content, reply_to=message)

    return app


def _carrier(packet: bytes) -> ConfigRecord | ArrayRecord:
    """Take plain bytes for a small packet: an array's five parts are a request each."""
    if len(packet) <= wire.MOST_SMALL_BYTES:
        return ConfigRecord({"body": packet})
    return ArrayRecord({"body": Array("uint8", (len(packet),), wire.PACKET_FORM, packet)})


def _packet_of(message: Message) -> bytes:
    """Take the bytes as they are: a reader of array files would parse a stranger's content."""
    record = message.content["packet"]
    if isinstance(record, ConfigRecord) and isinstance(body := record["body"], bytes):
        return body
    array = record["body"]
    if not isinstance(array, Array) or array.stype != wire.PACKET_FORM:
        raise TypeError("a packet must come in an array of its own form")
    return bytes(array.data)
