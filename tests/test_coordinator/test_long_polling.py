"""A question for messages is held while there is none, and for nobody who is no node."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from coordinator.flower import long_polling
from coordinator.flower.long_polling import (
    MOST_BODY_BYTES,
    PULL_PATH,
    PUSH_PATHS,
    LongPolling,
    Message,
    Receive,
    Scope,
    Send,
)

LONG_S = 60.0
"""Longer than any test takes: whoever is held so long was told of nothing."""


@dataclass
class Flower:
    """Answers as Flower's app does: with what was pushed, once; else with nothing."""

    mail: list[bytes] = field(default_factory=list)
    asked: list[tuple[bytes, dict[str, Any]]] = field(default_factory=list)
    status: int = 200
    on_ask: Callable[[], None] = lambda: None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = (await receive()).get("body", b"")
        if scope["path"] in PUSH_PATHS:
            self.mail.append(body)
            answer = b""
        else:
            self.asked.append((body, dict(scope["state"])))
            scope["state"]["protobuf_request"] = body  # as Flower's middleware does
            self.on_ask()
            answer = self.mail.pop(0) if self.mail and self.status == 200 else b""
        await send({"type": "http.response.start", "status": self.status, "headers": []})
        await send({"type": "http.response.body", "body": answer})


class Client:
    """One request, and what came of it."""

    def __init__(self, app: LongPolling, path: str, *pieces: bytes) -> None:
        self.got: list[Message] = []
        self._hung_up = asyncio.Event()
        self._pieces = list(pieces or (b"",))
        scope = {"type": "http", "path": path, "state": {}}
        self.task = asyncio.ensure_future(app(scope, self._receive, self._send))

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.got)

    @property
    def status(self) -> int:
        [status] = [message["status"] for message in self.got if "status" in message]
        return int(status)

    def hang_up(self) -> None:
        self._hung_up.set()

    async def _receive(self) -> Message:
        if self._pieces:
            body = self._pieces.pop(0)
            return {"type": "http.request", "body": body, "more_body": bool(self._pieces)}
        await self._hung_up.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        self.got.append(message)


def run(test: Callable[[], Awaitable[None]]) -> None:
    """Run a test in an event loop of its own; one that hangs fails."""

    async def bounded() -> None:
        async with asyncio.timeout(LONG_S / 2):
            await test()

    asyncio.run(bounded())


async def until(what: Callable[[], bool]) -> None:
    while not what():
        await asyncio.sleep(0.005)


def test_a_question_waits_for_a_message_and_is_answered_with_it() -> None:
    async def test() -> None:
        flower = Flower()
        app = LongPolling(flower, hold_s=LONG_S)
        node = Client(app, PULL_PATH, b"no", b"de 7")
        await until(lambda: len(flower.asked) == 1)
        assert not node.got
        await Client(app, PUSH_PATHS[0], b"a message").task
        await node.task
        assert (node.status, node.body) == (200, b"a message")
        # Asked as it came both times, and nothing of the first question is in the second.
        assert flower.asked == [(b"node 7", {}), (b"node 7", {})]

    run(test)


def test_what_is_sent_while_flower_is_asked_is_not_missed() -> None:
    async def test() -> None:
        flower = Flower()
        app = LongPolling(flower, hold_s=LONG_S)
        sent: list[Client] = []

        def push_once() -> None:
            if not sent:
                sent.append(Client(app, PUSH_PATHS[1], b"late"))

        flower.on_ask = push_once
        node = Client(app, PULL_PATH)
        await node.task
        assert node.body == b"late"

    run(test)


def test_nodes_are_told_once_a_message_has_all_its_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    quiet_s = long_polling._QUIET_S

    async def test() -> None:
        flower = Flower()
        app = LongPolling(flower, hold_s=LONG_S)
        nodes = [Client(app, PULL_PATH) for _ in range(3)]
        await until(lambda: len(flower.asked) == 3)
        monkeypatch.setattr(long_polling, "_QUIET_S", LONG_S)
        for part in (b"one", b"two"):
            await Client(app, PUSH_PATHS[1], part).task
        await asyncio.sleep(0.01)
        assert not any(node.got for node in nodes)
        monkeypatch.setattr(long_polling, "_QUIET_S", quiet_s)
        await Client(app, PUSH_PATHS[1], b"three").task
        await asyncio.gather(*(node.task for node in nodes))
        assert sorted(node.body for node in nodes) == [b"one", b"three", b"two"]
        assert len(flower.asked) == 6

    run(test)


def test_nobody_is_held_longer_than_that() -> None:
    async def test() -> None:
        flower = Flower()
        node = Client(LongPolling(flower, hold_s=0.05), PULL_PATH)
        await node.task
        assert (node.status, node.body) == (200, b"")
        assert len(flower.asked) == 1

    run(test)


@pytest.mark.parametrize("status", [401, 403, 422, 500])
def test_who_is_turned_away_is_not_held(status: int) -> None:
    async def test() -> None:
        flower = Flower(status=status)
        node = Client(LongPolling(flower, hold_s=LONG_S), PULL_PATH)
        await node.task
        assert node.status == status

    run(test)


def test_a_node_that_was_put_out_while_it_waited_is_turned_away() -> None:
    async def test() -> None:
        flower = Flower()
        app = LongPolling(flower, hold_s=LONG_S)
        node = Client(app, PULL_PATH)
        await until(lambda: len(flower.asked) == 1)
        push = Client(app, PUSH_PATHS[0], b"for members")
        await push.task
        flower.status = 401
        await node.task
        assert (node.status, node.body) == (401, b"")

    run(test)


def test_for_a_node_that_hung_up_no_message_is_taken() -> None:
    async def test() -> None:
        flower = Flower()
        app = LongPolling(flower, hold_s=LONG_S)
        node = Client(app, PULL_PATH)
        await until(lambda: len(flower.asked) == 1)
        node.hang_up()
        await node.task
        await Client(app, PUSH_PATHS[0], b"a message").task
        await asyncio.sleep(0.1)
        assert flower.mail == [b"a message"]

    run(test)


def test_a_server_that_ends_lets_go_of_all() -> None:
    async def test() -> None:
        over: list[bool] = []
        app = LongPolling(Flower(), hold_s=LONG_S, is_over=lambda: bool(over))
        nodes = [Client(app, PULL_PATH) for _ in range(3)]
        await asyncio.sleep(0.02)
        over.append(True)
        await asyncio.gather(*(node.task for node in nodes))
        assert [node.status for node in nodes] == [200] * 3

    run(test)


def test_no_more_are_held_than_that() -> None:
    async def test() -> None:
        flower = Flower()
        app = LongPolling(flower, hold_s=LONG_S, most_held=2)
        held = [Client(app, PULL_PATH) for _ in range(2)]
        await until(lambda: len(flower.asked) == 2)
        third = Client(app, PULL_PATH)
        await third.task
        assert (third.status, third.body) == (200, b"")
        assert not any(node.task.done() for node in held)
        for node in held:  # whoever leaves makes room
            node.hang_up()
        await asyncio.gather(*(node.task for node in held))
        fourth = Client(app, PULL_PATH)
        await asyncio.sleep(0.05)
        assert not fourth.task.done()
        fourth.hang_up()
        await fourth.task

    run(test)


def test_a_question_that_is_too_large_never_reaches_flower() -> None:
    async def test() -> None:
        flower = Flower()
        pieces = [bytes(MOST_BODY_BYTES // 4)] * 5
        node = Client(LongPolling(flower, hold_s=LONG_S), PULL_PATH, *pieces)
        await node.task
        assert node.status == 413
        assert not flower.asked

    run(test)


def test_all_else_passes_as_it_is() -> None:
    async def test() -> None:
        flower = Flower(mail=[b"an answer"])
        other = Client(LongPolling(flower, hold_s=LONG_S), "/v1/fleet/push-object", b"part")
        await other.task
        assert (other.status, other.body) == (200, b"an answer")
        assert flower.asked == [(b"part", {})]

    run(test)
