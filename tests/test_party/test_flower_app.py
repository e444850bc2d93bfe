"""The party's Flower app: bytes in, bytes out, and no exception passes it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from coordinator.flower.local_grid import LocalGrid
from party.errors import Reason
from party.flower import client_app as flower_app
from protocols import wire

SECRET = "7919 votes of patient 4711"


class Echo:
    def receive(self, packet: bytes) -> bytes:
        return packet[::-1]


class Broken:
    def receive(self, packet: bytes) -> bytes:
        raise RuntimeError(SECRET)


def exchange(open_node: Callable[[int], flower_app.PacketDoor], content: RecordDict) -> Message:
    grid = LocalGrid(flower_app.build(open_node), nodes=2, workers=1)
    [node, _] = grid.get_node_ids()
    [reply] = grid.send_and_receive(
        [Message(content, dst_node_id=node, message_type="query.exchange")]
    )
    return reply


def packet_of(body: bytes) -> RecordDict:
    return RecordDict({"packet": ConfigRecord({"body": body})})


def packet_in_array(body: bytes) -> RecordDict:
    array = Array("uint8", (len(body),), wire.PACKET_FORM, body)
    return RecordDict({"packet": ArrayRecord({"body": array})})


def fault_of(reply: Message) -> str:
    assert not reply.has_error()
    assert list(reply.content) == ["fault"]
    assert dict(reply.content["fault"]) == {"code": str(Reason.FAULT)}
    return str(reply.content["fault"]["code"])


@pytest.mark.parametrize("carried", [packet_of, packet_in_array])
def test_bytes_go_to_the_node_and_come_back(carried: Callable[[bytes], RecordDict]) -> None:
    reply = exchange(lambda partition: Echo(), carried(b"abc\0\xff"))
    assert reply.content["packet"]["body"] == b"\xff\0cba"


def test_many_bytes_come_back_in_an_array() -> None:
    packet = bytes(wire.MOST_SMALL_BYTES) + b"x"
    reply = exchange(lambda partition: Echo(), packet_in_array(packet))
    assert reply.content["packet"]["body"].data == packet[::-1]


def test_empty_answer_stays_an_empty_answer() -> None:
    reply = exchange(lambda partition: Echo(), packet_of(b""))
    assert reply.content["packet"]["body"] == b""


def test_nodes_are_known_by_their_partition() -> None:
    opened: list[int] = []

    def open_node(partition: int) -> Echo:
        opened.append(partition)
        return Echo()

    exchange(open_node, packet_of(b"x"))
    assert opened == [0]


def test_exception_of_a_node_becomes_a_code_without_its_text() -> None:
    reply = exchange(lambda partition: Broken(), packet_of(b"x"))
    fault_of(reply)
    assert SECRET not in repr(reply.__dict__)


def test_node_that_cannot_be_opened_becomes_a_code() -> None:
    def open_node(partition: int) -> Echo:
        raise KeyError(SECRET)

    fault_of(exchange(open_node, packet_of(b"x")))


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(RecordDict(), id="empty"),
        pytest.param(RecordDict({"packet": ConfigRecord({"body": "x"})}), id="text"),
        pytest.param(RecordDict({"packet": ConfigRecord({"body": [b"x"]})}), id="a list of bytes"),
        pytest.param(RecordDict({"packet": ConfigRecord()}), id="nothing in it"),
        pytest.param(RecordDict({"packet": ArrayRecord()}), id="no body"),
        pytest.param(
            RecordDict({"packet": ArrayRecord({"body": Array("u1", (1,), "other", b"x")})}),
            id="an array of another kind",
        ),
        pytest.param(
            RecordDict({"packet": ArrayRecord({"body": Array("u1", (1,), "numpy.ndarray", b"x")})}),
            id="an array file",
        ),
    ],
)
def test_message_without_a_packet_becomes_a_code(content: RecordDict) -> None:
    fault_of(exchange(lambda partition: Echo(), content))
