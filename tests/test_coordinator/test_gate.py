"""What the gate relies on of the server and of Starlette, held by what comes in raw.

The gate decides by two things: the port of the socket that a request came over, and the path that
the server read from it. Nothing that a stranger writes may change the first, and Starlette, which
Flower is built on, must route by the second and by nothing else: neither by the name in the head,
which it reads into addresses, nor by the path as it was written.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from coordinator.errors import ServiceError
from coordinator.federation.admin_key import KEY_HEADER, key_of
from coordinator.federation.connections import Connections, PortLimits
from coordinator.flower import superlink
from coordinator.flower.superlink import Gate, server_of
from pate_fed.nodes.ports import listen
from tests.support.deployed import make_home
from tests.support.markers import sampled
from tests.support.running_server import running

SECRET = bytes(range(32))
KEY = key_of(SECRET)
OPEN, HIDDEN = "/v1/fleet/pull-messages", "/v1/control/start-run"


@dataclass
class Ports:
    """The two sockets of a SuperLink, with an app that tells what reached it."""

    public: int
    admin: int
    context: ssl.SSLContext
    reached: list[tuple[str, str, str]] = field(default_factory=list)

    def say(self, raw: bytes, *, port: int = 0) -> bytes:
        """Send something, and return all that comes until the other end hangs up."""
        with (
            socket.create_connection(("127.0.0.1", port or self.public), timeout=120) as plain,
            self.context.wrap_socket(plain, server_hostname="127.0.0.1") as connection,
        ):
            connection.sendall(raw)
            answer = b""
            try:
                while piece := connection.recv(4096):
                    answer += piece
            except OSError:
                return answer
            return answer

    def hidden(self) -> list[tuple[str, str, str]]:
        """What of the hidden part was reached."""
        return [one for one in self.reached if one[0] != "open"]


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ports]:
    home = make_home(tmp_path_factory.mktemp("gate") / "federation")
    context = ssl.create_default_context(cadata=home.ca_certificate.decode())
    connections = Connections(PortLimits(head_s=60.0))
    public, admin = connections.listen("127.0.0.1", 0), listen("127.0.0.1", 0, fault=ServiceError)
    ports = Ports(public.getsockname()[1], admin.getsockname()[1], context)

    async def shown(request: Request) -> Response:
        ports.reached.append(("open", request.scope["path"], str(request.url)))
        return Response("open")

    async def hidden(request: Request) -> Response:
        ports.reached.append(("hidden", request.scope["path"], str(request.url)))
        return Response("hidden")

    app = Starlette(
        routes=[
            Route(OPEN, shown, methods=["GET", "POST"]),
            Route("/{rest:path}", hidden, methods=["GET", "POST"]),
        ]
    )
    server = server_of(
        connections.over_time(Gate(app, admin_port=ports.admin, admin_key=KEY)),
        certificate=home.path("server.crt"),
        key=home.path("server.key"),
    )
    with public, admin, running(server, public, admin):
        yield ports


@pytest.fixture
def ports(serving: Ports) -> Ports:
    serving.reached.clear()
    return serving


def request(target: str, *heads: str, host: str = "coordinator.example.org") -> bytes:
    lines = [f"GET {target} HTTP/1.1", f"Host: {host}", *heads, "Connection: close", "", ""]
    return "\r\n".join(lines).encode("latin-1")


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def test_the_admin_port_reaches_all_and_the_public_one_what_nodes_need(ports: Ports) -> None:
    with_key = request(HIDDEN, f"{KEY_HEADER}: {KEY}")
    assert status(ports.say(with_key, port=ports.admin)) == 200
    assert ports.hidden()
    ports.reached.clear()
    assert status(ports.say(request(OPEN))) == 200
    assert status(ports.say(request(HIDDEN))) == 404
    assert status(ports.say(with_key)) == 404
    assert not ports.hidden()


@sampled()
@pytest.mark.parametrize(
    "said",
    [
        pytest.param((), id="nothing"),
        pytest.param((f"{KEY_HEADER}:",), id="an empty key"),
        pytest.param((f"{KEY_HEADER}: {KEY[:-1]}",), id="a part of it"),
        pytest.param((f"{KEY_HEADER}: {KEY}0",), id="more than it"),
        pytest.param((f"{KEY_HEADER}: {key_of(bytes(32))}",), id="another federation's"),
        pytest.param((f"{KEY_HEADER}: {SECRET.hex()}",), id="the secret itself"),
        pytest.param((f"authorization: Bearer {KEY}",), id="in another header"),
        pytest.param((f"{KEY_HEADER}: \xff",), id="no text"),
    ],
)
@pytest.mark.parametrize("path", [OPEN, HIDDEN, "/", "/health/", "//health", "/health/../docs"])
def test_the_admin_port_lets_nobody_pass_who_does_not_know_its_key(
    ports: Ports, path: str, said: tuple[str, ...]
) -> None:
    assert status(ports.say(request(path, *said), port=ports.admin)) == 404
    assert not ports.reached


def test_of_who_does_not_know_the_key_no_body_is_read() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        raise AssertionError

    async def receive() -> Message:
        raise AssertionError

    async def send(message: Message) -> None:
        said.append(message)

    said: list[Message] = []
    scope = {"type": "http", "path": HIDDEN, "headers": [], "server": ("127.0.0.1", 1)}
    asyncio.run(Gate(app, admin_port=1, admin_key=KEY)(scope, receive, send))
    assert said[0]["status"] == 404


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1:{admin}",
        "localhost:{admin}",
        "[::1]:{admin}",
        "coordinator.example.org:{admin}",
        "127.0.0.1:{admin}/v1/control",
        "a b",
        "a@127.0.0.1:{admin}",
        "[::1",
        "?",
        "",
    ],
)
def test_the_name_in_the_head_opens_nothing(ports: Ports, host: str) -> None:
    name = host.format(admin=ports.admin)
    assert status(ports.say(request(HIDDEN, host=name))) in (400, 404)
    assert not ports.hidden()
    # Nor does it lead what is open astray.
    if status(ports.say(request(OPEN, host=name))) == 200:
        [(_, _, url)] = ports.reached
        assert url.endswith(OPEN)


@pytest.mark.parametrize(
    "heads",
    [
        "X-Forwarded-Port: {admin}",
        "X-Forwarded-Host: 127.0.0.1:{admin}",
        "Forwarded: host=127.0.0.1:{admin}",
        "X-Forwarded-For: 127.0.0.1\r\nX-Forwarded-Proto: http",
        "X-Original-URL: /v1/control/start-run",
        "X-Rewrite-URL: /v1/control/start-run",
        "X-Forwarded-Prefix: /v1/control",
        "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==",
        "Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABk",
    ],
)
def test_no_other_line_of_the_head_opens_anything(ports: Ports, heads: str) -> None:
    line = heads.format(admin=ports.admin)
    assert status(ports.say(request(HIDDEN, line))) == 404
    ports.say(request(OPEN, line))
    assert not ports.hidden()


@pytest.mark.parametrize(
    "target",
    [
        "http://127.0.0.1:{admin}/v1/control/start-run",
        "https://coordinator.example.org/v1/control/start-run",
        "//v1/control/start-run",
        "/v1/fleet/../control/start-run",
        "/v1/fleet/%2e%2e/control/start-run",
        "/v1/fleet/%252e%252e/control/start-run",
        "/v1/fleet%2f..%2fcontrol/start-run",
        "/v1/fleet/..;/control/start-run",
        "/v1/fleet/pull-messages?/../../control/start-run",
        "/v1/control/start-run?/v1/fleet/",
        "/v1/control/start-run#/v1/fleet/",
        "/v1/%63ontrol/start-run",
        "*",
    ],
)
def test_no_way_of_writing_a_path_leads_behind_the_gate(ports: Ports, target: str) -> None:
    ports.say(request(target.format(admin=ports.admin)))
    # Whatever was reached began, as Starlette routes it, as what nodes may ask for.
    assert all(path.startswith("/v1/fleet/") for _, path, _ in ports.reached)


@pytest.mark.parametrize(
    "heads",
    [
        pytest.param("Content-Length: 0", id="one behind the other"),
        pytest.param("Content-Length: 4\r\nTransfer-Encoding: chunked", id="two lengths"),
        pytest.param("Content-Length: 0\r\nContent-Length: 60", id="two numbers"),
        pytest.param("Transfer-Encoding: chunked, identity", id="a coding nobody knows"),
    ],
)
def test_a_request_within_a_request_meets_the_gate_too(ports: Ports, heads: str) -> None:
    first = f"POST {OPEN} HTTP/1.1\r\nHost: a\r\n{heads}\r\n\r\n"
    chunk = "0\r\n\r\n" if "chunked" in heads else ""
    ports.say((first + chunk).encode() + request(HIDDEN))
    assert not ports.hidden()


def test_who_holds_all_that_it_may_of_one_address_stops_nobody_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(superlink, "MOST_HELD_BYTES", 400)
    part, question = superlink.PART_PATHS[0], "/v1/fleet/pull-messages"

    async def ask_all() -> dict[str, str]:
        heard: dict[str, str] = {}

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            message = await receive()
            while message.get("more_body"):
                message = await receive()
            heard[scope["name"]] = message["type"]

        gate = Gate(app, admin_port=1, admin_key=KEY)

        async def begin(name: str, host: str, path: str, *pieces: bytes, ends: bool) -> None:
            waiting = [
                {"type": "http.request", "body": piece, "more_body": not ends} for piece in pieces
            ]

            async def receive() -> Message:
                if not waiting:
                    await asyncio.Event().wait()  # the rest never comes
                return dict(waiting.pop(0))

            scope = {"type": "http", "name": name, "path": path, "headers": []}
            scope |= {"client": (host, 1), "server": ("10.0.0.1", 8443)}
            await gate(scope, receive, no_answer)

        flood = [
            asyncio.create_task(begin(f"flood {number}", "10.0.0.2", part, bytes(30), ends=False))
            for number in range(5)
        ]
        await asyncio.sleep(0)
        await begin("its question", "10.0.0.2", question, bytes(50), ends=True)
        await begin("another's part", "10.0.0.3", part, bytes(50), ends=True)
        for one in flood:
            one.cancel()
        await asyncio.gather(*flood, return_exceptions=True)
        await begin("its part, afterwards", "10.0.0.2", part, bytes(90), ends=True)
        return heard

    heard = asyncio.run(ask_all())
    cut = [name for name, kind in heard.items() if kind == "http.disconnect"]
    assert len(cut) == 2  # of five that would hold 150 of the 100 bytes of one address
    assert all(name.startswith("flood") for name in cut)
    assert len(heard) == 5


async def no_answer(_: Message) -> None:
    raise AssertionError("nothing is answered here")
