"""Enrollment over the public port: three paths, small bodies, one answer to whatever is wrong.

Every request is a signed frame, and every answer but a pool's bytes is one. Nothing of an error
is told: who may know why reads the coordinator's log.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from coordinator.enrollment import Enrollment
from coordinator.errors import CoordinatorError, EnrollmentError
from protocols.errors import ProtocolError

PREFIX = "/v1/fleet/pate-fed/"
MAX_BODY_BYTES = 16 * 1024
POOL_CHUNK_BYTES = 4 * 2**20

_log = logging.getLogger(__name__)


def build(enrollment: Enrollment, *, pools: Path) -> Starlette:
    """Make the app.

    Args:
        enrollment: Who may take part.
        pools: Folder of the pools of public queries, each in a file named for its digest.
    """

    def pool(frame: bytes) -> bytes:
        digest, offset = enrollment.pool_asked(frame)
        with (pools / digest.hex()).open("rb") as file:
            file.seek(offset)
            return file.read(POOL_CHUNK_BYTES)

    answers: dict[str, Callable[[bytes], bytes]] = {
        "join": enrollment.answer_join,
        "membership": enrollment.answer_membership,
        "pool": pool,
    }
    return Starlette(
        routes=[
            Route(PREFIX + name, _endpoint(name, answer), methods=["POST"])
            for name, answer in answers.items()
        ]
    )


def _endpoint(
    name: str, answer: Callable[[bytes], bytes]
) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        try:
            body = await _body(request)
            content = await run_in_threadpool(answer, body)
        except (CoordinatorError, ProtocolError, OSError, ClientDisconnect) as error:
            code = getattr(error, "code", type(error).__name__)
            _log.warning("a request to %s was refused: %s", name, code)
            return Response(status_code=403)
        return Response(content, media_type="application/octet-stream")

    return endpoint


async def _body(request: Request) -> bytes:
    """Read a body, never more of it than allowed, whatever its length was said to be."""
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > MAX_BODY_BYTES:
            raise EnrollmentError(f"a request must have at most {MAX_BODY_BYTES} bytes", "more")
    return bytes(body)
