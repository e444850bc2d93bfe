"""Flower's SuperLink behind our gate, as a process of its own.

Flower serves everything on one port: the nodes' paths, the start of runs, and the tasks, the last
two without a login. Here the public socket serves `/v1/fleet/*`, for nodes and for hospitals that
enroll, and `/health`. All paths are on loopback, for callers with a key that is derived from the
federation's secret. The process ends with its parent: it reads a pipe that its parent holds open.

Flower's parts that are named here are internal: `tests/test_coordinator/test_superlink.py` tests
our assumptions about them.
"""

from __future__ import annotations

import ssl
import sys
from collections import Counter
from pathlib import Path

import uvicorn
from anyio.to_thread import current_default_thread_limiter
from flwr.supercore import sql_mixin
from flwr.supercore.constant import SQLITE_PRAGMAS, NodeStatus
from flwr.supercore.routers.runtime.tracing import RuntimeTracingMiddleware
from flwr.superlink.cli.flower_superlink import SuperLinkLifespan, _parse_superlink_lifespan_config
from flwr.superlink.main import create_app
from flwr.superlink.routers.control.middlewares import (
    ControlEventLogMiddleware,
    ControlLicenseMiddleware,
)
from flwr.superlink.routers.fleet.middlewares import FleetEventLogMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from coordinator.errors import ServiceError
from coordinator.federation.admin_key import is_known, key_of
from coordinator.federation.connections import Connections, origin_of
from coordinator.federation.home import LOOPBACK, FederationHome
from coordinator.flower.long_polling import LongPolling
from pate_fed.nodes.ports import listen

PUBLIC_PREFIX = "/v1/fleet/"
HEALTH_PATH = "/health"

PART_PATHS = (PUBLIC_PREFIX + "push-object", PUBLIC_PREFIX + "push-messages")
"""Where nodes send their answers; a message travels in parts of at most 5 MiB."""

MOST_PART_BYTES = 8 * 2**20
MOST_BODY_BYTES = 64 * 2**10
"""Of each other request of a node: these hold numbers, keys and signatures."""

MOST_HELD_BYTES = 512 * 2**20
"""Of all parts of messages together that are under way on the public socket."""

ORIGIN_SHARE = 4
"""One address may hold one part in so many of it."""

_THREADS = 4
"""Requests that Flower works on at once; others queue. Its database has one writer at a time, and
waiting writers are served in no order. With 40 threads, Flower's default, a request of ten busy
nodes can wait in vain until it fails. Each thread has a cache of 64 MB besides.
"""

_IDLE_LAYERS: tuple[object, ...] = (
    *(ControlEventLogMiddleware, FleetEventLogMiddleware, ControlLicenseMiddleware),
    RuntimeTracingMiddleware,
)
"""Of Flower's nine layers around each request those that would pass all of ours on: we have none of
its plugins for events and licenses, and no traces. A request spends most of its time in layers.
"""

_BACKLOG = 128
"""Length of the queue of connections to accept; all are accepted at once."""

_FAREWELL_S = 3
"""Deadline of the requests under way when the process is told to end."""

_BUSY_MS = 20_000
"""How long a request waits for the database's writer: less than a node waits for an answer."""


def arguments(
    home: FederationHome, *, port: int | None = None, database: Path | None = None
) -> list[str]:
    """Return Flower's command line; its port and database may be others."""
    return [
        "flower-superlink",
        "--host",
        home.settings.host,
        "--port",
        str(port or home.settings.port),
        "--ssl-certfile",
        str(home.path("server.crt")),
        "--ssl-keyfile",
        str(home.path("server.key")),
        "--ssl-ca-certfile",
        str(home.path("ca.crt")),
        "--superexec-auth-secret-file",
        str(home.path("superlink.secret")),
        "--database",
        str(database or home.path("superlink.db")),
        # Nodes authenticate; Flower runs and installs nothing for a run.
        "--enable-supernode-auth",
        "--isolation",
        "process",
        "--disable-runtime-dependency-installation",
    ]


class _Bodies:
    """Bounds the unchecked bytes that the public socket holds before Flower has checked the sender.

    Flower reads a request whole, and parses it, before it looks at a signature.
    """

    def __init__(self) -> None:
        self._held: Counter[str] = Counter()  # of parts of messages, by their sender

    async def pass_on(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        """Let an app answer a request, as long as its body stays in bounds."""
        is_part = scope["path"] in PART_PATHS
        most = MOST_PART_BYTES if is_part else MOST_BODY_BYTES
        origin = origin_of(scope["client"][0]) if scope.get("client") else ""
        mine = 0

        async def bounded() -> Message:
            nonlocal mine
            message = await receive()
            size = len(message.get("body", b""))
            mine += size
            if is_part:  # the others are so small that their number bounds them
                self._held[origin] += size
            if mine > most or (is_part and self._is_too_much(origin)):
                return {"type": "http.disconnect"}
            return message

        try:
            if _length_of(scope) > most:
                await _refuse(scope, send)
            else:
                await app(scope, bounded, send)
        finally:
            if is_part:
                self._held[origin] -= mine
                if not self._held[origin]:
                    del self._held[origin]

    def _is_too_much(self, origin: str) -> bool:
        return (
            self._held[origin] > MOST_HELD_BYTES // ORIGIN_SHARE
            or self._held.total() > MOST_HELD_BYTES
        )


class Gate:
    """Opens the nodes' paths to the public socket, and the admin port to callers with its key.

    Hospitals' paths below `ENROLLMENT_PREFIX` are answered by `enrollment`, if there is one.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        admin_port: int,
        admin_key: str,
        enrollment: ASGIApp | None = None,
    ) -> None:
        self._app = app
        self._admin_port = admin_port
        self._admin_key = admin_key
        self._enrollment = enrollment
        self._bodies = _Bodies()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer "not found"."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["server"][1] == self._admin_port:
            if self._is_ours(scope):
                await self._app(scope, receive, send)
            else:
                await _refuse(scope, send)
        elif scope["type"] != "http" or not _is_public(scope["path"]):
            await _refuse(scope, send)
        elif self._enrollment is not None and scope["path"].startswith(ENROLLMENT_PREFIX):
            await self._enrollment(scope, receive, send)
        else:
            await self._bodies.pass_on(self._app, scope, receive, send)

    def _is_ours(self, scope: Scope) -> bool:
        """Tell whether a request at the admin port may pass: all but the health check need the key.

        Of a refused one nothing else is read.
        """
        return scope["type"] == "http" and (
            scope["path"] == HEALTH_PATH or is_known(scope["headers"], key=self._admin_key)
        )


ENROLLMENT_PREFIX = PUBLIC_PREFIX + "pate-fed/"
"""Below the nodes' prefix: a hospital asks to join here, before it is a node."""


def serve(home: FederationHome, *, enrollment: ASGIApp) -> None:
    """Serve until the process is told to stop, or its parent ends."""
    settings = home.settings
    sys.argv = arguments(home)
    config = _parse_superlink_lifespan_config()
    _set_pragmas()
    made = create_app(config, _Lifespan)
    made.user_middleware = [one for one in made.user_middleware if one.cls not in _IDLE_LAYERS]
    flower = _with_few_threads(made)
    app = Gate(
        LongPolling(flower, is_over=lambda: server.should_exit),
        admin_port=settings.admin_port,
        admin_key=key_of(home.superlink_secret),
        enrollment=enrollment,
    )
    connections = Connections(settings.limits)
    server = server_of(
        connections.over_time(app), certificate=home.path("server.crt"), key=home.path("server.key")
    )
    server.run(
        sockets=[
            connections.listen(settings.host, settings.port),
            listen(LOOPBACK, settings.admin_port, fault=ServiceError),
        ]
    )


def server_of(app: ASGIApp, *, certificate: Path, key: Path) -> uvicorn.Server:
    """Return a server of an app over TLS."""
    config = uvicorn.Config(
        app,
        ssl_certfile=certificate,
        ssl_keyfile=key,
        access_log=False,
        log_config=None,  # the log of the process is all
        lifespan="on",
        # The one that accepts by the socket itself, which is where connections are counted.
        loop="asyncio",
        # The one that bounds a request's head.
        http="h11",
        ws="none",
        # No header tells the caller: otherwise everybody could ask in others' names.
        proxy_headers=False,
        backlog=_BACKLOG,
        # A client that never hangs up is not waited for: TLS would wait half a minute.
        timeout_graceful_shutdown=_FAREWELL_S,
    )
    config.load()
    assert config.ssl is not None
    # Also where a machine's OpenSSL would still speak older versions.
    config.ssl.minimum_version = ssl.TLSVersion.TLSv1_2
    return uvicorn.Server(config)


class _Lifespan(SuperLinkLifespan):
    """Flower's, where a SuperLink was killed before: every connection of a node ended with it.

    Flower's database would still count them as connected for a minute, and turn each node away.
    """

    def startup(self) -> None:
        super().startup()
        state = self.state_factory.state()
        for node in state.get_node_info(statuses=[NodeStatus.ONLINE]):
            state.deactivate_node(node.node_id)


def _set_pragmas() -> None:
    """Let Flower's database wait longer than its 5 s, and overwrite messages that it deletes."""
    pragmas = {
        **dict(SQLITE_PRAGMAS),
        "busy_timeout": str(_BUSY_MS),
        "secure_delete": "ON",
    }
    vars(sql_mixin)["SQLITE_PRAGMAS"] = tuple(pragmas.items())


def _with_few_threads(app: ASGIApp) -> ASGIApp:
    async def limited(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":  # the one call that comes before all others
            current_default_thread_limiter().total_tokens = _THREADS
        await app(scope, receive, send)

    return limited


def _length_of(scope: Scope) -> int:
    """Return a request's stated length; 0 where it is missing or malformed."""
    said = [value for name, value in scope.get("headers", ()) if name == b"content-length"]
    return int(said[0]) if said and said[0].isdigit() else 0


def _is_public(path: str) -> bool:
    # Decoded already: a caller that encodes a path has no business here.
    plain = not any(part in ("..", ".", "") for part in path.split("/")[1:])
    return plain and (path == HEALTH_PATH or path.startswith(PUBLIC_PREFIX))


async def _refuse(scope: Scope, send: Send) -> None:
    if scope["type"] != "http":  # a WebSocket: nobody here speaks it
        await send({"type": "websocket.close", "code": 1008})
        return
    await send({"type": "http.response.start", "status": 404, "headers": []})
    await send({"type": "http.response.body", "body": b""})
