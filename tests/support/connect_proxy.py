"""A hospital's HTTP proxy on loopback: carries what comes after CONNECT, and knows one name."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from tests.support.recording_proxy import relay


@dataclass
class ConnectProxy:
    """What a proxy was asked for."""

    port: int
    asked: list[str] = field(default_factory=list)
    streams: list[bytearray] = field(default_factory=list)


@contextmanager
def connect_proxy(name: str, target: int) -> Iterator[ConnectProxy]:
    """Carry connections to `name`, on any port, to a port of loopback; refuse all others."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        proxy = ConnectProxy(listener.getsockname()[1])

        def carry(near: socket.socket) -> None:
            try:
                head = _head(near)
                proxy.asked.append(head.split("\r\n", 1)[0])
                method, whom, *_ = head.split()
                is_known = method == "CONNECT" and whom.rpartition(":")[0] == name
                far = socket.create_connection(("127.0.0.1", target)) if is_known else None
            except (OSError, ValueError):
                near.close()
                return
            if far is None:
                near.sendall(b"HTTP/1.1 403 Forbidden\r\n\r\n")
                near.close()
                return
            near.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            streams = bytearray(), bytearray()
            proxy.streams += streams
            relay(near, far, streams)

        def accept() -> None:
            while True:
                try:
                    near, _ = listener.accept()
                except OSError:
                    return  # the listener is closed: it is over
                threading.Thread(target=carry, args=(near,), daemon=True).start()

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield proxy
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
    thread.join(60)


def _head(connection: socket.socket) -> str:
    """Read a request's head; the client says nothing behind it before it is answered."""
    head = b""
    while b"\r\n\r\n" not in head:
        piece = connection.recv(4096)
        if not piece:
            raise ValueError("no request")
        head += piece
    return head.decode("latin-1")
