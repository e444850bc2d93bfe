"""Packets over a Flower grid, and what a transport makes of answers that are none."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

from coordinator.flower import server_app as flower_app
from coordinator.flower.local_grid import LocalGrid
from coordinator.flower.server_app import MESSAGE_TYPE, GridTransport
from coordinator.runs.transport import Silence, Transport
from party.flower import client_app as party_app
from party.flower.client_app import ACTION
from protocols import wire

TIMEOUT_S = 60.0


def saved(array: object, **options: Any) -> bytes:
    """Bytes of an array file."""
    stream = io.BytesIO()
    np.save(stream, array, **options)
    return stream.getvalue()


def zipped() -> bytes:
    """Bytes of a whole archive of arrays."""
    stream = io.BytesIO()
    np.savez(stream, body=np.zeros(3, dtype=np.uint8))
    return stream.getvalue()


def record(array: Array, *, name: str = "packet", key: str = "body") -> RecordDict:
    return RecordDict({name: ArrayRecord({key: array})})


def body(values: object) -> RecordDict:
    return record(Array(np.asarray(values)))


def raw(data: bytes, *, kind: str = "numpy.ndarray") -> RecordDict:
    return record(Array("uint8", (3,), kind, data))


PACKET = Array("uint8", (3,), wire.PACKET_FORM, b"abc")


def grid_of(answer: Callable[[Message], RecordDict], *, nodes: int = 2) -> LocalGrid:
    app = ClientApp()

    @app.query(ACTION)
    def exchange(message: Message, _: Any) -> Message:
        return Message(answer(message), reply_to=message)

    return LocalGrid(app, nodes=nodes, workers=2)


def answers_to(grid: LocalGrid, packet: bytes = b"packet") -> dict[int, bytes | Silence]:
    transport = GridTransport(grid, nodes=len(list(grid.get_node_ids())), timeout_s=TIMEOUT_S)
    return transport.exchange(dict.fromkeys(transport.nodes(), packet))


def one_answer(content: RecordDict) -> bytes | Silence:
    [answer] = answers_to(grid_of(lambda message: content, nodes=1)).values()
    return answer


def in_one_piece(packet: bytes) -> RecordDict:
    return RecordDict({"packet": ConfigRecord({"body": packet})})


def in_array(packet: bytes) -> RecordDict:
    return raw(packet, kind=wire.PACKET_FORM)


@pytest.mark.parametrize("carried", [in_one_piece, in_array])
@pytest.mark.parametrize("size", [0, 6, wire.MOST_SMALL_BYTES, wire.MOST_SMALL_BYTES + 1])
def test_bytes_go_there_and_back(size: int, carried: Callable[[bytes], RecordDict]) -> None:
    packet = (b"\0\xff abc" * size)[:size]

    def answer(message: Message) -> RecordDict:
        body = message.content["packet"]["body"]
        assert isinstance(body, bytes) is (size <= wire.MOST_SMALL_BYTES)
        came = body if isinstance(body, bytes) else body.data  # type: ignore[union-attr]
        return carried(came[::-1])

    assert list(answers_to(grid_of(answer), packet).values()) == [packet[::-1]] * 2


def test_both_apps_speak_of_the_same_message() -> None:
    assert f"query.{ACTION}" == MESSAGE_TYPE


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(body(np.zeros(3, dtype=np.uint8)), id="an array of bytes"),
        pytest.param(body(np.zeros(3, dtype=np.int8)), id="signed bytes"),
        pytest.param(body(np.zeros(3, dtype=np.uint32)), id="words"),
        pytest.param(body(np.zeros(3)), id="floats"),
        pytest.param(body(np.array(["abc"])), id="text"),
        pytest.param(body(np.zeros((1, 3), dtype=np.uint8)), id="two axes"),
        pytest.param(body(np.uint8(3)), id="no axis"),
        pytest.param(RecordDict(), id="nothing"),
        pytest.param(record(PACKET, name="parcel"), id="other record"),
        pytest.param(record(PACKET, key="head"), id="other array"),
        pytest.param(RecordDict({"packet": ConfigRecord({"body": "abc"})}), id="text, no bytes"),
        pytest.param(
            RecordDict({"packet": ConfigRecord({"body": [b"abc"]})}), id="bytes in a list"
        ),
        pytest.param(RecordDict({"packet": ConfigRecord()}), id="no body"),
        pytest.param(RecordDict({"packet": MetricRecord({"body": 1})}), id="a number"),
        pytest.param(raw(b""), id="no bytes"),
        pytest.param(raw(b"abc"), id="no array file"),
        pytest.param(raw(saved(np.zeros(3, dtype=np.uint8))[:-1]), id="an array file cut short"),
        pytest.param(raw(saved(np.zeros(3, dtype=np.uint8))[:20]), id="half a header"),
        pytest.param(raw(zipped()), id="an archive of arrays"),
        pytest.param(raw(b"PK\x03\x04 no archive"), id="a broken archive"),
        pytest.param(
            raw(saved(np.zeros(3, dtype=np.uint8)).replace(b"(3,)", b"(9" + b"9" * 15 + b",)")),
            id="a header without end",
        ),
        pytest.param(raw(saved(np.array([{}]), allow_pickle=True)), id="a pickle"),
        pytest.param(raw(saved(np.zeros(3, dtype=np.uint8)), kind="pickle"), id="another kind"),
        pytest.param(RecordDict({"fault": ConfigRecord({"code": "secret"})}), id="text for a code"),
        pytest.param(
            RecordDict({"fault": ConfigRecord({"code": "PF-301\n7919"})}), id="more than a code"
        ),
        pytest.param(RecordDict({"fault": ConfigRecord({"code": 301})}), id="a number for a code"),
        pytest.param(RecordDict({"fault": ConfigRecord({"code": [b"PF-301"]})}), id="a list"),
        pytest.param(RecordDict({"fault": ConfigRecord()}), id="a fault without a code"),
        pytest.param(RecordDict({"fault": MetricRecord({"code": 1})}), id="a fault of numbers"),
    ],
)
def test_what_is_no_packet_is_silence(content: RecordDict) -> None:
    assert one_answer(content) == Silence("no packet")


def test_code_of_a_fault_is_passed_on() -> None:
    fault = RecordDict({"fault": ConfigRecord({"code": "PF-301"})})
    assert one_answer(fault) == Silence("PF-301")


def test_exception_of_a_node_is_silence_without_its_text() -> None:
    def answer(message: Message) -> RecordDict:
        raise RuntimeError("patient 4711")

    [silence] = answers_to(grid_of(answer, nodes=1)).values()
    assert silence == Silence("flower error 2")


def test_one_silent_node_leaves_the_other_answers_alone() -> None:
    grid = grid_of(lambda message: raw(b"ok", kind=wire.PACKET_FORM))
    grid._is_down = lambda partition: partition == 0
    assert list(answers_to(grid).values()) == [Silence("flower error 5"), b"ok"]


def test_traffic_is_counted() -> None:
    grid = grid_of(lambda message: raw(bytes(7), kind=wire.PACKET_FORM))
    transport = GridTransport(grid, nodes=2, timeout_s=TIMEOUT_S)
    transport.exchange(dict.fromkeys(transport.nodes(), b"abc"))
    traffic = transport.traffic
    assert (traffic.exchanges, traffic.sent, traffic.received) == (1, 6, 14)


class ScriptedGrid(LocalGrid):
    """A grid whose answers are the test's."""

    def __init__(self) -> None:
        super().__init__(ClientApp(), nodes=2, workers=1)
        self.pushed: list[Message] = []
        self.ids: list[str | None] = ["first", "second"]
        self.replies: Iterator[list[Message]] = iter([])

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        self.pushed = list(messages)
        return self.ids  # type: ignore[return-value]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return next(self.replies, [])

    def reply(self, place: int, *, to: str, content: RecordDict) -> Message:
        message = Message(content, reply_to=self.pushed[place])
        message.metadata.__dict__["_reply_to_message_id"] = to
        return message


class Clock:
    """Time as `coordinator.flower.server_app` reads it; it passes only where somebody waits."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(flower_app, "time", clock)
    return clock


@pytest.fixture
def grid() -> ScriptedGrid:
    return ScriptedGrid()


class TestTime:
    def test_messages_live_no_longer_than_the_exchange(self, grid: ScriptedGrid) -> None:
        GridTransport(grid, nodes=2, timeout_s=0.05).exchange({1000: b"a", 1001: b"b"})
        assert [message.metadata.ttl for message in grid.pushed] == [0.05, 0.05]
        assert [message.metadata.dst_node_id for message in grid.pushed] == [1000, 1001]

    def test_node_that_never_answers_is_silent(self, grid: ScriptedGrid) -> None:
        answers = GridTransport(grid, nodes=2, timeout_s=0.05).exchange({1000: b"a", 1001: b"b"})
        assert set(map(type, answers.values())) == {Silence}

    def test_message_that_could_not_be_sent_is_silence(self, grid: ScriptedGrid) -> None:
        grid.ids = [None, None]
        answers = GridTransport(grid, nodes=2, timeout_s=9.0).exchange({1000: b"a", 1001: b"b"})
        assert set(map(type, answers.values())) == {Silence}

    def test_answers_are_known_by_what_they_answer_and_count_once(self, grid: ScriptedGrid) -> None:
        def script() -> Iterator[list[Message]]:
            one, two = (raw(data, kind=wire.PACKET_FORM) for data in (b"one", b"two"))
            yield [
                grid.reply(0, to="second", content=two),
                grid.reply(0, to="second", content=one),
                grid.reply(0, to="unknown", content=one),
            ]
            yield [grid.reply(1, to="first", content=one)]

        grid.replies = script()
        transport = GridTransport(grid, nodes=2, timeout_s=TIMEOUT_S)
        answers = transport.exchange({1000: b"a", 1001: b"b"})
        assert answers == {1000: b"one", 1001: b"two"}

    def test_a_node_that_was_put_out_is_not_waited_for(
        self, monkeypatch: pytest.MonkeyPatch, clock: Clock, grid: ScriptedGrid
    ) -> None:
        monkeypatch.setattr(grid, "get_node_ids", lambda: [1000])

        def script() -> Iterator[list[Message]]:
            yield []
            clock.sleep(2 * flower_app._GONE_S)
            yield [grid.reply(0, to="first", content=raw(b"one", kind=wire.PACKET_FORM))]

        grid.replies = script()
        transport = GridTransport(grid, nodes=2, timeout_s=3600.0)
        answers = transport.exchange({1000: b"a", 1001: b"b"})
        assert answers[1000] == b"one"
        assert isinstance(answers[1001], Silence)
        assert clock.now < 4 * flower_app._GONE_S

    def test_a_node_that_is_back_in_time_is_waited_for(
        self, monkeypatch: pytest.MonkeyPatch, clock: Clock, grid: ScriptedGrid
    ) -> None:
        there = iter([[], []])
        monkeypatch.setattr(grid, "get_node_ids", lambda: next(there, [1000, 1001]))

        def script() -> Iterator[list[Message]]:
            for _ in range(3):  # away at the first two looks
                clock.sleep(flower_app._LOOK_S)
                yield []
            clock.sleep(2 * flower_app._GONE_S)
            yield []
            yield [
                grid.reply(place, to=to, content=raw(b"y", kind=wire.PACKET_FORM))
                for place, to in enumerate(("first", "second"))
            ]

        grid.replies = script()
        transport = GridTransport(grid, nodes=2, timeout_s=3600.0)
        assert transport.exchange({1000: b"a", 1001: b"b"}) == {1000: b"y", 1001: b"y"}
        assert next(there, None) is None

    def test_transport_waits_for_its_own_nodes_and_knows_no_others(
        self, monkeypatch: pytest.MonkeyPatch, grid: ScriptedGrid
    ) -> None:
        """Approved later, or put out but not gone: who is in besides ends no wait."""
        looks = iter([[7, 1000], [7, 8, 1000]])
        monkeypatch.setattr(grid, "get_node_ids", lambda: next(looks, [1001, 7, 1000]))
        mine = GridTransport(grid, nodes={1000, 1001}, timeout_s=60.0)
        assert mine.nodes() == [1000, 1001]
        assert next(looks, None) is None
        absent = GridTransport(grid, nodes={1000, 1002}, timeout_s=0.0)
        assert absent.nodes() == [1000]
        assert GridTransport(grid, nodes=(), timeout_s=60.0).nodes() == []

    def test_transport_waits_for_nodes_no_longer_than_it_must(self) -> None:
        assert len(GridTransport(ScriptedGrid(), nodes=2, timeout_s=60.0).nodes()) == 2
        assert len(GridTransport(ScriptedGrid(), nodes=3, timeout_s=0.0).nodes()) == 2


class HalfDeaf(Transport):
    """Answers the first node only."""

    def nodes(self) -> list[int]:
        return [1, 2]

    def _carry(self, packets: Mapping[int, bytes]) -> dict[int, bytes | Silence]:
        return {min(packets): b"answer"}


def test_transport_has_an_answer_or_a_reason_for_every_node() -> None:
    answers = HalfDeaf().exchange({1: b"a", 2: b"b"})
    assert (set(answers), answers[1], type(answers[2])) == ({1, 2}, b"answer", Silence)


def test_app_hands_its_transport_to_the_plain_call() -> None:
    transports: list[Transport] = []
    app: ServerApp = flower_app.build(transports.append, nodes=2, timeout_s=1.0)
    LocalGrid(ClientApp(), nodes=2, workers=1).run_server(app)
    [transport] = transports
    assert isinstance(transport, GridTransport)
    assert transport.nodes() == [1000, 1001]


def test_error_reply_needs_no_content() -> None:
    message = Message(RecordDict(), dst_node_id=5, message_type=MESSAGE_TYPE)
    reply = Message(Error(code=5, reason="down: 4711"), reply_to=message)
    assert flower_app._body(reply) == Silence("flower error 5")


def test_packets_are_never_parsed_as_python(monkeypatch: pytest.MonkeyPatch) -> None:
    # NumPy's reader evaluates the header of an array file; two threads that do so at once can
    # fail on Python 3.11, and a stranger's header has no business there.
    def forbidden(*_: object, **__: object) -> Any:
        raise AssertionError("an array file was read")

    monkeypatch.setattr(np, "load", forbidden)
    monkeypatch.setattr(np, "save", forbidden)
    grid = LocalGrid(party_app.build(lambda partition: Echo()), nodes=2, workers=2)
    assert list(answers_to(grid, b"abc").values()) == [b"abc"] * 2


class Echo:
    def receive(self, packet: bytes) -> bytes:
        return packet
