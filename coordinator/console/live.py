"""Live progress of one run: a stream of server-sent events."""

from __future__ import annotations

import time
from asyncio import Semaphore
from collections.abc import AsyncIterator
from typing import Final

import anyio
from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from coordinator.console.access import Cookies, Visit, finding, visit_of
from coordinator.console.rendering import part
from coordinator.console.runs import facts_of
from coordinator.errors import ConsoleError, CoordinatorError, DatabaseError
from coordinator.runs.queue import Run

router = APIRouter()

LOOK_S: Final = 1.0
MOST_STREAMS: Final = 32
"""Open at a time: each asks the database every second."""

LONGEST_S: Final = 15 * 60.0
"""A stream ends after so long; the browser opens another, and is checked again."""

_BEAT: Final = ": beat\n\n"
"""A comment: it keeps the connection open and changes nothing."""

_BEAT_EVERY: Final = 15
_CHECK_EVERY: Final = 10


@router.get("/runs/{run}/events")
async def events(request: Request) -> Response:
    """Send a run's changes as they come, until it ends."""
    visit, streams = visit_of(request), request.app.state.streams
    name = request.path_params["run"]
    with finding():
        await run_in_threadpool(visit.coordinator.queue.find, name)
    if streams.locked():
        raise ConsoleError("close another page of a run first", "too many", status=503)
    return StreamingResponse(_stream(request, visit, streams, name), media_type="text/event-stream")


async def _stream(
    request: Request, visit: Visit, streams: Semaphore, name: str
) -> AsyncIterator[str]:
    cookies: Cookies = request.app.state.cookies
    token, sessions = request.cookies.get(cookies.name("session"), ""), visit.coordinator.sessions
    shown, began, looks = "", time.monotonic(), 0
    async with streams:
        while time.monotonic() - began < LONGEST_S and not await request.is_disconnected():
            try:
                if looks % _CHECK_EVERY == 0:
                    session = await run_in_threadpool(sessions.find, token, is_request=False)
                    if session is None:
                        yield _event("end", "Your session has ended: sign in again.")
                        return
                run, facts = await run_in_threadpool(_look, visit, name)
            except DatabaseError:  # it passes, as when others write for long: show the last state
                yield _BEAT
                await anyio.sleep(LOOK_S)
                continue
            except CoordinatorError as error:
                yield _event("end", f"The console cannot look any more [{error.code}].")
                return
            text = part("run_live", form_token=visit.form_token, **facts)
            if text != shown:
                yield _event("state", text)
                shown = text
            elif looks % _BEAT_EVERY == 0:
                yield _BEAT
            if run.is_ended:
                yield _event("end", "")
                return
            looks += 1
            await anyio.sleep(LOOK_S)


def _look(visit: Visit, name: str) -> tuple[Run, dict[str, object]]:
    run = visit.coordinator.queue.find(name)
    return run, facts_of(visit, run)


def _event(kind: str, text: str) -> str:
    lines = "".join(f"data: {line}\n" for line in text.splitlines() or [""])
    return f"event: {kind}\n{lines}\n"
