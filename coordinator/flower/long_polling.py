"""Holds a node's question for messages until there is one, so that nodes ask less often.

Flower's nodes ask for messages again and again. Here such a question is held, and asked again of
Flower once the coordinator has sent something. The node hears of a message at once, and asks only a
few times a minute while nothing happens. Only Flower's own answers are held: strangers are turned
away as before. A question is asked anew as it came, so Flower checks its signature each time.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, Final

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

PULL_PATH: Final = "/v1/fleet/pull-messages"
PUSH_PATHS: Final = ("/v1/runtime/push-messages", "/v1/runtime/push-object")
HOLD_S: Final = 10.0
"""How long a question is held: under half a minute, after which a node takes us for dead."""

MOST_HELD: Final = 1000
"""Questions beyond so many are answered at once, as Flower would."""

MOST_BODY_BYTES: Final = 16 * 1024
"""Largest question: it holds only a number."""

_QUIET_S: Final = 0.03
"""A message travels in parts: nodes are told once no part came for this long."""

_TICK_S: Final = 0.25
_OK, _TOO_LARGE = 200, 413


class LongPolling:
    """Flower's app, with patience; nothing is held any more once the server ends."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        is_over: Callable[[], bool] = lambda: False,
        hold_s: float = HOLD_S,
        most_held: int = MOST_HELD,
    ) -> None:
        self._app = app
        self._is_over = is_over
        self._hold_s = hold_s
        self._most_held = most_held
        self._held = 0
        self._sent = asyncio.Event()
        self._ringing: asyncio.TimerHandle | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on; hold it if it asks for messages and there is none."""
        path = scope.get("path")
        if scope["type"] == "http" and path == PULL_PATH:
            await self._pull(scope, receive, send)
            return
        await self._app(scope, receive, send)
        if path in PUSH_PATHS:
            self._ring_soon()

    def _ring_soon(self) -> None:
        if self._ringing is not None:
            self._ringing.cancel()
        self._ringing = asyncio.get_running_loop().call_later(_QUIET_S, self._ring)

    def _ring(self) -> None:
        self._ringing = None
        rung, self._sent = self._sent, asyncio.Event()
        rung.set()

    async def _pull(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await _body(receive)
        if body is None:
            await Response(status_code=_TOO_LARGE)(scope, receive, send)
            return
        gone = asyncio.ensure_future(receive())  # returns once the node hangs up
        try:
            answer = await self._answer(scope, body, gone)
        finally:
            gone.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await gone
        for message in answer:
            await send(message)

    async def _answer(
        self, scope: Scope, body: bytes, gone: asyncio.Future[Message]
    ) -> list[Message]:
        """Ask Flower until it has something, the time is over, or the node has hung up."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._hold_s
        while True:
            sent = self._sent  # before we ask: messages sent meanwhile are not missed
            answer = await _ask(self._app, scope, body)
            if not _is_nothing(answer) or self._held >= self._most_held:
                return answer
            self._held += 1
            try:
                await self._wait(sent, gone, deadline)
            finally:
                self._held -= 1
            # No message is fetched for a node that hung up: it would be lost.
            if gone.done() or not sent.is_set():
                return answer

    async def _wait(
        self, sent: asyncio.Event, gone: asyncio.Future[Message], deadline: float
    ) -> None:
        loop = asyncio.get_running_loop()
        rung = asyncio.ensure_future(sent.wait())
        either: set[asyncio.Future[Any]] = {rung, gone}
        try:
            while not (rung.done() or gone.done() or self._is_over()):
                left = min(_TICK_S, deadline - loop.time())
                if left <= 0:
                    return
                await asyncio.wait(either, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        finally:
            rung.cancel()


async def _body(receive: Receive) -> bytes | None:
    """Read a question; None if it is too large, or the node hung up."""
    body = bytearray()
    while True:
        message = await receive()
        body += message.get("body", b"")
        if message["type"] != "http.request" or len(body) > MOST_BODY_BYTES:
            return None
        if not message.get("more_body", False):
            return bytes(body)


async def _ask(app: ASGIApp, scope: Scope, body: bytes) -> list[Message]:
    """Ask Flower once, as if the question had just come."""
    answer: list[Message] = []
    is_answered = asyncio.Event()
    questions: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        if questions:
            return questions.pop()
        await is_answered.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        answer.append(message)
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            is_answered.set()

    # Flower's notes in a request belong to that one.
    await app({**scope, "state": dict(scope.get("state") or {})}, receive, send)
    return answer


def _is_nothing(answer: list[Message]) -> bool:
    """Tell whether Flower answered that there is no message: a protocol buffer without fields."""
    is_good = any(message.get("status") == _OK for message in answer)
    return is_good and not any(message.get("body") for message in answer)
