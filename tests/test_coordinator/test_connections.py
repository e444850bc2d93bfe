"""The public port under those who only take up room: raw sockets against the server as it is set.

Nobody waits for a deadline: the server's clock is set forward. Connections that have to stay are
far from theirs, so that no machine is too slow.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace

import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from coordinator.errors import HomeError
from coordinator.federation.connections import Connections, PortLimits, origin_of
from coordinator.federation.home import FederationHome
from coordinator.flower.superlink import server_of
from pate_fed.nodes import checked
from tests.support.deployed import make_home
from tests.support.running_server import running
from tests.support.waiting import wait_for

LIMITS = PortLimits(connections=8, connections_per_address=4, head_s=120, body_s=120, answer_s=120)
"""Twice the time that a test lets pass: who tries a deadline sets that one shorter."""

SHORT_S = 30.0
"""A deadline that passes in a test, on the server's clock."""

LONG_S = 2 * SHORT_S
"""A question that takes long: longer than anybody may rest, shorter than an answer may take."""

SLACK_S = 60.0
"""How much later than its deadline a connection may end on a busy machine."""

HERE = b"here"
LARGE_BYTES = 2**26
PLENTY = replace(LIMITS, connections=500, connections_per_address=400)


class App:
    """Answers when it read the whole request: `/never` never.

    Attributes:
        at_work: Requests that it works on.
        begun: Requests that ever came.
        read: Requests that came whole.
        may_answer: Set to let it answer `/held`.
        loop: The server's.
        ahead_s: How far the server's clock was set forward.
    """

    def __init__(self) -> None:
        self.at_work = self.begun = self.read = 0
        self.may_answer = threading.Event()
        self.loop: asyncio.AbstractEventLoop | None = None
        self.ahead_s = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http":
            self._set_clock(asyncio.get_running_loop())
            await _live(receive, send)
            return
        self.at_work += 1
        self.begun += 1
        try:
            message = await receive()
            while message.get("more_body", False):
                message = await receive()
            self.read += 1
            if scope["path"] == "/never":
                await receive()  # says so when the other end hung up
                return
            while scope["path"] == "/held" and not self.may_answer.is_set():
                await asyncio.sleep(0.01)
            body = bytes(LARGE_BYTES) if scope["path"] == "/large" else HERE
            length = (b"content-length", str(len(body)).encode())
            await send({"type": "http.response.start", "status": 200, "headers": [length]})
            await send({"type": "http.response.body", "body": body})
        finally:
            self.at_work -= 1

    def _set_clock(self, loop: asyncio.AbstractEventLoop) -> None:
        real = loop.time
        loop.time = lambda: real() + self.ahead_s  # type: ignore[method-assign]
        self.loop = loop

    def pass_time(self, seconds: float) -> None:
        """Set the server's clock forward; returns once all that ends by then has ended."""
        loop, has_passed = self.loop, threading.Event()
        assert loop is not None

        def set_forward() -> None:
            self.ahead_s += seconds
            loop.call_later(0, has_passed.set)  # after all that was due before

        loop.call_soon_threadsafe(set_forward)
        assert has_passed.wait(SLACK_S)


async def _live(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": message["type"] + ".complete"})
        if message["type"] == "lifespan.shutdown":
            return


@dataclass
class Port:
    """A server in a thread of this process."""

    home: FederationHome
    connections: Connections
    app: App
    number: int
    stack: ExitStack

    def connect(self, *, source: str = "127.0.0.1", timeout_s: float = SLACK_S) -> socket.socket:
        """A connection on which nothing was said; all of 127/8 is this machine."""
        made = socket.create_connection(
            ("127.0.0.1", self.number), timeout=timeout_s, source_address=(source, 0)
        )
        return self.stack.enter_context(made)

    def open(self, *, source: str = "127.0.0.1") -> ssl.SSLSocket:
        """A connection that speaks TLS."""
        context = ssl.create_default_context(cadata=self.home.ca_certificate.decode())
        return self.stack.enter_context(
            context.wrap_socket(self.connect(source=source), server_hostname="127.0.0.1")
        )

    def get(self, path: str = "/", *, source: str = "127.0.0.1") -> bytes:
        """The answer to a request on a connection of its own."""
        return ask(self.open(source=source), path)

    def wait_until_open(self, number: int) -> None:
        """Wait until the server counts so many connections."""
        wait_for(lambda: len(self.connections) == number)

    def wait_until_at_work(self, number: int) -> None:
        """Wait until the app works on so many requests."""
        wait_for(lambda: self.app.at_work == number)

    def wait_until_read(self, number: int) -> None:
        """Wait until the app read so many requests whole."""
        wait_for(lambda: self.app.read == number)

    def trickle(self, connection: ssl.SSLSocket, content: bytes) -> None:
        """Send a byte a second; hung up on in time, this ends with an error."""
        for sent, byte in enumerate(content):
            assert sent < LONG_S
            connection.sendall(bytes([byte]))
            self.app.pass_time(1)

    def set_limits(self, **changed: float) -> None:
        """Set other limits for what begins from now on."""
        self.connections._limits = replace(LIMITS, **changed)  # type: ignore[arg-type]


def ask(connection: ssl.SSLSocket, path: str = "/") -> bytes:
    """Ask once, and keep the connection."""
    connection.sendall(head_of(path))
    return answer_on(connection)


def answer_on(connection: ssl.SSLSocket) -> bytes:
    """Read one answer."""
    answer = b""
    while not answer.endswith(HERE):
        piece = connection.recv(4096)
        assert piece, answer
        answer += piece
    return answer


def head_of(path: str, *, length: int = 0) -> bytes:
    return f"POST {path} HTTP/1.1\r\nhost: a\r\ncontent-length: {length}\r\n\r\n".encode()


def is_good(answer: bytes) -> bool:
    return answer.startswith(b"HTTP/1.1 200")


def is_over(connection: socket.socket) -> bool:
    """Whether the other end hung up; waits as long as the socket does."""
    try:
        while connection.recv(2**16):
            pass
    except TimeoutError:
        return False
    except OSError:
        return True
    return True


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> FederationHome:
    return make_home(tmp_path_factory.mktemp("port") / "federation")


@pytest.fixture
def limits() -> PortLimits:
    return LIMITS


@pytest.fixture
def port(home: FederationHome, limits: PortLimits) -> Iterator[Port]:
    connections, app = Connections(limits), App()
    served: ASGIApp = connections.over_time(app)
    server = server_of(served, certificate=home.path("server.crt"), key=home.path("server.key"))
    listener = connections.listen("127.0.0.1", 0)
    with running(server, listener), ExitStack() as stack:
        yield Port(home, connections, app, listener.getsockname()[1], stack)
    listener.close()


class TestTime:
    @pytest.mark.parametrize("limits", [replace(LIMITS, head_s=SHORT_S)])
    @pytest.mark.parametrize(
        "said", [b"", b"\x16\x03\x01\x02\x00\x01"], ids=["nothing", "half a ClientHello"]
    )
    def test_who_never_ends_its_handshake_is_hung_up_on(self, port: Port, said: bytes) -> None:
        connection = port.connect()
        connection.sendall(said)
        port.wait_until_open(1)
        port.app.pass_time(SHORT_S)
        assert is_over(connection)

    @pytest.mark.parametrize("limits", [replace(LIMITS, head_s=SHORT_S)])
    def test_who_speaks_tls_and_then_nothing_is_hung_up_on(self, port: Port) -> None:
        connection = port.open()
        port.app.pass_time(SHORT_S)
        assert is_over(connection)

    @pytest.mark.parametrize("limits", [replace(LIMITS, head_s=SHORT_S)])
    @pytest.mark.parametrize("is_second", [False, True], ids=["first", "after another"])
    def test_a_head_that_trickles_in_is_cut_off(self, port: Port, is_second: bool) -> None:
        connection = port.open()
        if is_second:
            assert is_good(ask(connection))
        with pytest.raises(OSError, match=r"."):
            port.trickle(connection, head_of("/" + "a" * 2000))
        assert port.app.begun == is_second

    @pytest.mark.parametrize("limits", [replace(LIMITS, body_s=SHORT_S)])
    def test_a_body_that_trickles_in_is_cut_off(self, port: Port) -> None:
        connection = port.open()
        connection.sendall(head_of("/", length=2000))
        port.wait_until_at_work(1)
        with pytest.raises(OSError, match=r"."):
            port.trickle(connection, bytes(2000))
        port.wait_until_open(0)
        port.wait_until_at_work(0)

    @pytest.mark.parametrize("limits", [replace(LIMITS, answer_s=SHORT_S)])
    def test_who_does_not_take_its_answer_is_hung_up_on(self, port: Port) -> None:
        connection = port.open()
        connection.sendall(head_of("/large"))
        port.wait_until_read(1)
        port.app.pass_time(SHORT_S)
        port.wait_until_open(0)

    def test_an_answer_on_a_slow_line_has_the_time_of_an_answer(self, port: Port) -> None:
        connection = port.open()
        port.set_limits(head_s=SHORT_S)
        connection.sendall(head_of("/large"))
        taken, passed = 0, 0.0
        while taken < LARGE_BYTES:
            piece = connection.recv(2**14)
            assert piece, (taken, passed)
            taken += len(piece)
            if passed < LONG_S:
                port.app.pass_time(LONG_S / 64)
                passed += LONG_S / 64
            if taken > LARGE_BYTES // 2:  # its end may be a rest of ours: we are slow
                port.set_limits()
        assert passed > SHORT_S

    @pytest.mark.parametrize("limits", [replace(LIMITS, head_s=SHORT_S, body_s=SHORT_S)])
    def test_a_question_that_is_held_outlasts_every_rest(self, port: Port) -> None:
        connection = port.open()
        for asked in range(2):
            port.app.may_answer.clear()
            connection.sendall(head_of("/held"))
            port.wait_until_read(asked + 1)
            port.app.pass_time(LONG_S)
            port.app.may_answer.set()
            assert is_good(answer_on(connection))

    @pytest.mark.parametrize("limits", [replace(LIMITS, answer_s=SHORT_S)])
    def test_an_answer_that_never_comes_is_not_waited_for(self, port: Port) -> None:
        connection = port.open()
        connection.sendall(head_of("/never"))
        port.wait_until_read(1)
        port.app.pass_time(SHORT_S)
        assert is_over(connection)

    @pytest.mark.parametrize("limits", [replace(LIMITS, head_s=SHORT_S)])
    def test_a_connection_that_asks_again_and_again_stays(self, port: Port) -> None:
        connection = port.open()
        for _ in range(30):
            assert is_good(ask(connection))
            port.app.pass_time(SHORT_S / 20)
        assert len(port.connections) == 1

    def test_a_head_without_end_takes_no_memory(self, port: Port) -> None:
        connection = port.open()
        with suppress(OSError):
            connection.sendall(b"POST / HTTP/1.1\r\na: " + bytes(65 for _ in range(2**20)))
        with suppress(OSError):
            assert not is_good(connection.recv(4096))
        assert is_over(connection)
        assert port.app.begun == 0


class TestNumber:
    def test_idle_connections_of_one_address_make_room_for_new_ones(self, port: Port) -> None:
        idle = [port.connect() for _ in range(30)]
        assert is_good(port.get())
        assert len(port.connections) <= LIMITS.connections_per_address
        # They were hung up on in the order of their coming.
        for connection in idle[: 30 - LIMITS.connections_per_address]:
            assert is_over(connection)

    def test_idle_connections_of_many_addresses_keep_nobody_out(self, port: Port) -> None:
        for place in range(20):
            port.connect(source=f"127.0.1.{place + 1}")
        assert is_good(port.get(source="127.0.0.9"))
        assert len(port.connections) <= LIMITS.connections

    def test_whoever_waits_for_an_answer_is_not_hung_up_on_for_others(self, port: Port) -> None:
        waiting = [port.open() for _ in range(2)]
        for connection in waiting:
            connection.sendall(head_of("/held"))
        port.wait_until_at_work(2)
        for place in range(40):
            port.connect(source=f"127.0.1.{place + 1}")
            first = port.connect()
        port.connect()
        port.connect()
        assert is_over(first)  # others were hung up on, the last of them for the last
        port.app.may_answer.set()
        assert all(is_good(answer_on(connection)) for connection in waiting)

    def test_one_address_that_keeps_all_its_places_busy_leaves_those_of_others(
        self, port: Port
    ) -> None:
        busy = [port.open() for _ in range(LIMITS.connections_per_address)]
        for connection in busy:
            connection.sendall(head_of("/never"))
        port.wait_until_at_work(len(busy))
        assert is_over(port.connect())
        assert is_good(port.get(source="127.0.0.9"))
        port.wait_until_at_work(len(busy))

    @pytest.mark.parametrize("limits", [PLENTY])
    def test_a_hundred_hospitals_behind_one_address_are_all_served(self, port: Port) -> None:
        connections = [port.open() for _ in range(100)]
        for connection in connections:
            connection.sendall(head_of("/held"))
        port.wait_until_at_work(100)
        port.app.may_answer.set()
        assert all(is_good(answer_on(connection)) for connection in connections)
        assert len(port.connections) == 100

    def test_bodies_that_never_end_keep_nobody_out(self, port: Port) -> None:
        waiting = port.open(source="127.0.0.9")
        waiting.sendall(head_of("/held"))
        port.wait_until_at_work(1)
        for place in range(LIMITS.connections):
            connection = port.open(source=f"127.0.1.{place % 2 + 1}")
            connection.sendall(head_of("/", length=2000) + b"a")
        port.wait_until_at_work(LIMITS.connections)
        assert len(port.connections) == LIMITS.connections
        assert is_good(port.get(source="127.0.0.8"))
        port.app.may_answer.set()
        assert is_good(answer_on(waiting))  # whoever asked, to the end, is not hung up on

    def test_what_was_closed_is_counted_no_longer(self, port: Port) -> None:
        for _ in range(3 * LIMITS.connections):
            connection = port.open()
            assert is_good(ask(connection))
            connection.close()
        port.wait_until_open(0)
        wait_for(lambda: not (port.connections._resting or port.connections._by_origin))

    def test_a_header_does_not_say_who_asks(self, port: Port) -> None:
        connections = [port.open() for _ in range(3)]
        for number, connection in enumerate(connections):
            connection.sendall(
                f"POST /held HTTP/1.1\r\nhost: a\r\nx-forwarded-for: 10.0.0.{number}\r\n"
                "content-length: 0\r\n\r\n".encode()
            )
        port.wait_until_at_work(3)
        # Taken for another's, they would rest, and be the first to make room.
        idle = [port.connect() for _ in range(6)]
        assert is_over(idle[4])
        port.app.may_answer.set()
        assert all(is_good(answer_on(connection)) for connection in connections)


def test_a_port_that_is_used_again_before_its_end_was_noticed_is_counted_once() -> None:
    """Else each use would take a place of its address for ever."""

    async def hang_up_too(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            await reader.read()
        writer.close()

    async def use_it_again() -> tuple[int, dict[str, int], int]:
        connections = Connections(PLENTY)
        listener = connections.listen("127.0.0.1", 0)
        server = await asyncio.start_server(hang_up_too, sock=listener)
        address, first = listener.getsockname(), socket.socket()
        first.connect(address)
        while not connections:
            await asyncio.sleep(0.001)
        place = first.getsockname()
        first.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        first.close()  # by a reset: the port is free at once
        with socket.socket() as second:
            second.bind(place)
            second.connect(address)  # the event loop saw neither the end nor this
            await asyncio.sleep(0.05)
            counted = len(connections), dict(connections._by_origin), len(connections._resting)
        while connections:
            await asyncio.sleep(0.001)
        server.close()
        await server.wait_closed()
        return counted

    assert asyncio.run(use_it_again()) == (1, {"127.0.0.1": 1}, 1)


def test_a_request_of_another_port_is_none_of_its_connections() -> None:
    """A proxy on this machine may come from one port to both of ours."""

    async def ask_elsewhere() -> tuple[bool, bool]:
        connections = Connections(PLENTY)
        with connections.listen("127.0.0.1", 0) as listener, socket.socket() as client:
            listener.listen()
            client.connect(listener.getsockname())
            accepted, place = listener.accept()
            with accepted:
                ours, found = listener.getsockname()[1], []
                for number in (ours, ours + 1):
                    scope = {"type": "http", "client": place, "server": ("127.0.0.1", number)}
                    with connections._request_of(scope) as connection:
                        found.append(connection is accepted)
        return found[0], found[1]

    assert asyncio.run(ask_elsewhere()) == (True, False)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        pytest.param("192.0.2.1", "192.0.2.1", True, id="one address"),
        pytest.param("192.0.2.1", "192.0.2.2", False, id="two addresses"),
        pytest.param("2001:db8::1", "2001:db8::ffff:1", True, id="one network of IPv6"),
        pytest.param("2001:db8::1", "2001:db8:0:1::1", False, id="two networks of IPv6"),
        pytest.param("::ffff:192.0.2.1", "192.0.2.1", True, id="two ways of writing"),
        pytest.param("fe80::1%eth0", "fe80::2%eth0", True, id="with a zone"),
    ],
)
def test_whose_an_address_is(one: str, other: str, same: bool) -> None:
    assert (origin_of(one) == origin_of(other)) is same


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("connections", 0),
        ("connections", 2.5),
        ("connections_per_address", -1),
        ("head_s", 0.0),
        ("body_s", float("nan")),
        ("answer_s", "180"),
        ("enrollments_per_minute", True),
    ],
)
def test_limits_that_cannot_be_are_refused(name: str, value: object) -> None:
    with pytest.raises(HomeError):
        checked(PortLimits, {name: value}, where="", fault=HomeError)
