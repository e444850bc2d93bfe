"""A server of HTTP in a thread of this process."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn


@contextmanager
def running(server: uvicorn.Server, *listeners: socket.socket) -> Iterator[None]:
    """Serve at these sockets, from the first request that can be answered."""
    thread = threading.Thread(target=server.run, args=(list(listeners),), daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.005)
    yield
    server.should_exit = True
    thread.join(60)
    assert not thread.is_alive()
