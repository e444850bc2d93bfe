"""Connection limits of the public port: count, origin, deadlines.

Anybody can reach the port, and every connection costs something before its origin is known. So each
has a deadline at every moment of its life, from before TLS is spoken. Where there is no room, a new
connection replaces one without a request, or else one whose request is still incomplete.
Connections are counted at accept: a listener hands out sockets that know when they are closed.
"""

from __future__ import annotations

import asyncio
import ipaddress
import resource
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from coordinator.errors import ServiceError
from pate_fed.nodes.ports import bound, family_of

_IPV6_PREFIX: Final = 64
"""Bits of an IPv6 address that name its owner: a machine chooses the rest."""

_OTHER_FILES: Final = 256
"""Files that the process has open besides its connections, a generous estimate."""

_PIECE_BYTES: Final = 2**16
"""Largest piece of an answer handed on at a time: the server takes every piece at once, and waits
for the other end's reading only when asked for more.
"""

_POSITIVE: Final = {"gt": 0, "le": 999_999}

Place = tuple[str, int]
"""Address and port of the other end."""


@dataclass(frozen=True, slots=True)
class PortLimits:
    """Limits of the public port; table `limits` of the federation's file.

    A hospital has about five connections at a time. All those behind one proxy or router come from
    one address.

    Attributes:
        connections: Most connections at a time.
        connections_per_address: Most of them from one address (of IPv6: from one /64).
        head_s: Seconds for the TLS handshake and a whole request head; also how long a connection
            may rest between requests.
        body_s: Seconds within which a request's body comes, after its head: at most 8 MiB.
        answer_s: Seconds within which a request is answered and the answer taken, after its body.
        enrollments_per_minute: Requests to join, about membership, for pools and for results, from
            one address; as many may come at once after a quiet minute. A hospital asks about once a
            minute.
    """

    connections: int = field(default=800, metadata=_POSITIVE)
    connections_per_address: int = field(default=200, metadata=_POSITIVE)
    head_s: float = field(default=20.0, metadata=_POSITIVE)
    body_s: float = field(default=120.0, metadata=_POSITIVE)
    answer_s: float = field(default=180.0, metadata=_POSITIVE)
    enrollments_per_minute: int = field(default=600, metadata=_POSITIVE)


class Connections:
    """The connections of one port, as an ASGI app is served over them."""

    def __init__(self, limits: PortLimits) -> None:
        self._limits = limits
        self._open: dict[Place, _Connection] = {}
        # In both, the oldest connection comes first.
        self._resting: dict[_Connection, None] = {}
        self._asking: dict[_Connection, None] = {}
        self._port = 0
        self._by_origin: Counter[str] = Counter()

    def listen(self, host: str, port: int) -> socket.socket:
        """Open the port; connections accepted there are counted here."""
        _make_room_for_files(self._limits.connections + _OTHER_FILES)
        listener = bound(_Listener(self, family_of(host)), host, port, fault=ServiceError)
        self._port = int(listener.getsockname()[1])
        return listener

    def over_time(self, app: ASGIApp) -> ASGIApp:
        """Return an app whose requests over these connections have deadlines."""

        async def timed(scope: Scope, receive: Receive, send: Send) -> None:
            with self._request_of(scope) as connection:
                await app(scope, self._watched(receive, connection), _in_pieces(send))

        return timed

    def admit(self, accepted: socket.socket, place: Place) -> socket.socket:
        """Take a connection in; called in the event loop.

        Raises:
            ConnectionAbortedError: there is no room, and no connection to replace.
        """
        gone = self._open.get(place)
        if gone is not None:  # it ended unnoticed
            gone.end()
        origin = origin_of(place[0])
        if self._by_origin[origin] >= self._limits.connections_per_address:
            self._make_room(origin)
        elif len(self._open) >= self._limits.connections:
            self._make_room("")
        if (
            self._by_origin[origin] >= self._limits.connections_per_address
            or len(self._open) >= self._limits.connections
        ):
            accepted.close()
            self._forget_if_none(origin)
            raise ConnectionAbortedError
        connection = _Connection(self, accepted, place)
        self._open[place] = connection
        self._by_origin[origin] += 1
        self._rest(connection)
        return connection

    def forget(self, connection: _Connection) -> None:
        """Count a connection no longer: it is closed, or about to be."""
        if self._open.get(connection.place) is not connection:
            return
        del self._open[connection.place]
        self._resting.pop(connection, None)
        self._asking.pop(connection, None)
        self._by_origin[connection.origin] -= 1
        self._forget_if_none(connection.origin)

    def __len__(self) -> int:
        return len(self._open)

    def _make_room(self, origin: str) -> None:
        """Close the oldest waiting connection, of one origin or of all."""
        for connection in (*self._resting, *self._asking):
            if origin in ("", connection.origin):
                connection.end()
                return

    def _forget_if_none(self, origin: str) -> None:
        if self._by_origin[origin] <= 0:
            del self._by_origin[origin]

    def _rest(self, connection: _Connection) -> None:
        connection.end_after(self._limits.head_s)
        self._asking.pop(connection, None)
        self._resting[connection] = None

    @contextmanager
    def _request_of(self, scope: Scope) -> Iterator[_Connection | None]:
        client, server = scope.get("client"), scope.get("server")
        # A proxy of ours may use one port of its own towards both of our ports.
        connection = None
        if client is not None and server is not None and server[1] == self._port:
            connection = self._open.get((client[0], client[1]))
        if connection is None:  # of another port, or ended since
            yield None
            return
        self._resting.pop(connection, None)
        self._asking[connection] = None
        connection.end_after(self._limits.body_s)
        try:
            yield connection
        finally:
            if self._open.get(connection.place) is connection:
                self._rest(connection)

    def _watched(self, receive: Receive, connection: _Connection | None) -> Receive:
        """Return a reader of a request; once the request is complete, its answer has a deadline."""
        if connection is None:
            return receive

        async def read() -> Message:
            message = await receive()
            if message["type"] == "http.request" and not message.get("more_body", False):
                self._asking.pop(connection, None)
                connection.end_after(self._limits.answer_s)
            return message

        return read


class _Connection(socket.socket):
    """A connection with a deadline, which reports its end."""

    def __init__(self, connections: Connections, accepted: socket.socket, place: Place) -> None:
        family, kind, protocol = accepted.family, accepted.type, accepted.proto
        super().__init__(family, kind, protocol, fileno=accepted.detach())
        self._connections = connections
        self.place, self.origin = place, origin_of(place[0])
        self._deadline: asyncio.TimerHandle | None = None

    def end_after(self, seconds: float) -> None:
        """End after this time, unless another deadline is set."""
        self._call_off()
        self._deadline = asyncio.get_running_loop().call_later(seconds, self.end)

    def end(self) -> None:
        """Hang up on both sides: its server sees it ended, in any state of waiting."""
        self._call_off()
        self._connections.forget(self)
        try:
            self.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # the other end was faster

    def close(self) -> None:
        """See `socket.socket.close`."""
        self._call_off()
        self._connections.forget(self)
        super().close()

    def _call_off(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


class _Listener(socket.socket):
    """A socket that listens, and hands out the admitted connections."""

    def __init__(self, connections: Connections, family: socket.AddressFamily) -> None:
        super().__init__(family, socket.SOCK_STREAM)
        self._connections = connections

    def accept(self) -> tuple[socket.socket, Any]:
        """See `socket.socket.accept`.

        Raises:
            ConnectionAbortedError: there was no room; the event loop takes it for a connection that
                is gone.
        """
        accepted, address = super().accept()
        return self._connections.admit(accepted, (str(address[0]), int(address[1]))), address


def origin_of(host: str) -> str:
    """Return the owner of an address: of IPv6 its /64, otherwise the address itself."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, _IPV6_PREFIX), strict=False))


def _in_pieces(send: Send) -> Send:
    """Return a sender that waits for the receiver, so that its end is the answer's end."""

    async def send_pieces(message: Message) -> None:
        body: bytes = message.get("body", b"")
        start = 0
        while len(body) - start > _PIECE_BYTES:
            piece = body[start : start + _PIECE_BYTES]
            await send({"type": message["type"], "body": piece, "more_body": True})
            start += len(piece)
        await send({**message, "body": body[start:]} if start else message)

    return send_pieces


def _make_room_for_files(most: int) -> None:
    """Raise the process's limit of open files, as far as allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < most:
        allowed = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
