"""A server on loopback that speaks TLS and tells the time, and a proxy before it."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from email.utils import formatdate


@contextmanager
def listening(answer: object) -> Iterator[int]:
    """Hand every connection to `answer`, each in a thread; yields the port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        stopped = threading.Event()

        def accept() -> None:
            while not stopped.is_set():
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                connection.settimeout(60)
                threading.Thread(target=guarded, args=(connection,), daemon=True).start()

        def guarded(connection: socket.socket) -> None:
            with connection, suppress(OSError):
                answer(connection)  # type: ignore[operator]

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        stopped.set()
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
    thread.join(60)


@contextmanager
def tls_server(context: ssl.SSLContext, *, now: float, date: bool = True) -> Iterator[int]:
    """Answer whatever is asked with the time."""
    lines = ["HTTP/1.1 200 OK", "Content-Length: 0", "Connection: close"]
    if date:
        lines.append(f"Date: {formatdate(now, usegmt=True)}")

    def answer(connection: socket.socket) -> None:
        with context.wrap_socket(connection, server_side=True) as spoken:
            spoken.recv(4096)
            spoken.sendall("\r\n".join([*lines, "", ""]).encode())

    with listening(answer) as port:
        yield port


@contextmanager
def proxy_server(*, status: str = "200 OK", heads: list[bytes] | None = None) -> Iterator[int]:
    """Carry what comes after CONNECT, or answer with another status."""

    def answer(connection: socket.socket) -> None:
        head = connection.recv(4096)
        if heads is not None:
            heads.append(head)
        connection.sendall(f"HTTP/1.1 {status}\r\n\r\n".encode())
        if not status.startswith("200"):
            return
        host, _, port = head.split()[1].decode().rpartition(":")
        with socket.create_connection((host, int(port)), timeout=60) as onward:
            back = threading.Thread(target=pump, args=(onward, connection), daemon=True)
            back.start()
            pump(connection, onward)
            back.join(60)

    with listening(answer) as port:
        yield port


def pump(source: socket.socket, target: socket.socket) -> None:
    """Carry bytes until there are no more."""
    with suppress(OSError):
        while piece := source.recv(4096):
            target.sendall(piece)
        target.shutdown(socket.SHUT_WR)
