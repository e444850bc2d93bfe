"""Enrollment over the public port: four paths, small bodies, one answer to every fault.

Every request is a signed frame. Every answer is one too, except the bytes of a pool, checked by
digest, or of a run's results, checked by seal. An answer tells nothing of an error: the operator
reads the coordinator's log. A refusal is final, and a hospital may then throw its new keys away. So
a failing database refuses nobody, and has a status of its own. A caller with too many requests gets
only that answer, before anything is read. Few requests are worked on at once, so that nodes are
served meanwhile.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

from anyio import CapacityLimiter
from anyio.to_thread import run_sync
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from coordinator.errors import CoordinatorError, DatabaseError, EnrollmentError, RunQueueError
from coordinator.federation.connections import origin_of
from coordinator.federation.enrollment import Enrollment
from coordinator.federation.rate_limit import RateLimit
from coordinator.federation.run_files import RunFiles
from pate_fed.regular_files import open_regular
from protocols.errors import ProtocolError
from protocols.membership_messages import PoolQuery, ResultsQuery

PREFIX = "/v1/fleet/pate-fed/"
MAX_BODY_BYTES = 16 * 1024
POOL_CHUNK_BYTES = 4 * 2**20
_THREADS = 2
"""Own threads: nodes do not queue behind requests to join."""

_MOST_QUEUED = 64
"""Requests that wait for them: one whose caller hangs up stays in the queue."""

_REFUSED, _NOT_THERE, _TOO_OFTEN, _NOT_NOW = 403, 404, 429, 503
_COME_BACK_S = 60

_log = logging.getLogger(__name__)


def build(enrollment: Enrollment, *, pools: Path, results: RunFiles, rate: RateLimit) -> Starlette:
    """Make the app; each pool of public queries is a file of `pools`, named for its digest."""
    threads = CapacityLimiter(_THREADS)

    def pool(frame: bytes) -> bytes:
        query = enrollment.asked(frame, PoolQuery)
        with open_regular(pools / query.pool.hex()) as file:
            file.seek(query.offset)
            return file.read(POOL_CHUNK_BYTES)

    def results_piece(frame: bytes) -> bytes:
        query = enrollment.asked(frame, ResultsQuery)
        return results.read(
            query.run,
            query.file,
            party=query.sender,
            offset=query.offset,
            most_bytes=POOL_CHUNK_BYTES,
        )

    answers: dict[str, Callable[[bytes], bytes]] = {
        "join": enrollment.answer_join,
        "membership": enrollment.answer_membership,
        "pool": pool,
        "results": results_piece,
    }
    return Starlette(
        routes=[
            Route(PREFIX + name, _endpoint(name, answer, rate, threads), methods=["POST"])
            for name, answer in answers.items()
        ]
    )


def _endpoint(
    name: str, answer: Callable[[bytes], bytes], rate: RateLimit, threads: CapacityLimiter
) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        is_full = threads.statistics().tasks_waiting >= _MOST_QUEUED
        if request.client is None or is_full or not rate.allows(origin_of(request.client.host)):
            return Response(status_code=_TOO_OFTEN, headers={"retry-after": str(_COME_BACK_S)})
        try:
            body = await _body(request)
            content = await run_sync(answer, body, limiter=threads)
        except DatabaseError as error:
            _log.error("a request to %s could not be worked on: %s", name, error.code)
            return Response(status_code=_NOT_NOW)
        except RunQueueError:  # not yet, or not for this hospital: the answer is the same
            return Response(status_code=_NOT_THERE)
        except (CoordinatorError, ProtocolError, OSError, ClientDisconnect) as error:
            code = getattr(error, "code", type(error).__name__)
            _log.warning("a request to %s was refused: %s", name, code)
            return Response(status_code=_REFUSED)
        return Response(content, media_type="application/octet-stream")

    return endpoint


async def _body(request: Request) -> bytes:
    """Read a body, never more of it than allowed, for any stated length."""
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > MAX_BODY_BYTES:
            raise EnrollmentError(f"a request must have at most {MAX_BODY_BYTES} bytes")
    return bytes(body)
