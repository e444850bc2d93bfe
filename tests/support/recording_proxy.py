"""A TCP proxy on loopback that keeps every byte in both directions."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field


@dataclass
class Recording:
    """What passed a proxy."""

    port: int
    streams: list[bytearray] = field(default_factory=list)

    @property
    def size(self) -> int:
        return sum(map(len, self.streams))


@contextmanager
def recording_proxy(target: int) -> Iterator[Recording]:
    """Pass connections on to a port of loopback; yields what is recorded."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        recording = Recording(listener.getsockname()[1])

        def accept() -> None:
            while True:
                try:
                    near, _ = listener.accept()
                except OSError:
                    return  # the listener is closed: it is over
                try:
                    far = socket.create_connection(("127.0.0.1", target), timeout=60)
                except OSError:
                    near.close()
                    continue
                far.settimeout(None)
                streams = bytearray(), bytearray()
                recording.streams += streams
                threading.Thread(target=relay, args=(near, far, streams), daemon=True).start()

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield recording
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
    thread.join(60)


def relay(near: socket.socket, far: socket.socket, streams: tuple[bytearray, bytearray]) -> None:
    """Pass a connection on in both directions, until both have ended."""
    with near, far:
        back = threading.Thread(target=_pump, args=(far, near, streams[1]), daemon=True)
        back.start()
        _pump(near, far, streams[0])
        back.join()


def _pump(source: socket.socket, target: socket.socket, stream: bytearray) -> None:
    with suppress(OSError):
        while piece := source.recv(65536):
            stream += piece
            target.sendall(piece)
    for one in (source, target):
        with suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
