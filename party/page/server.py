"""Serves the page on loopback, and on nothing else, until it is told to stop."""

from __future__ import annotations

import ipaddress
import logging
import socket
import time
from collections.abc import Callable
from contextlib import closing, suppress

import uvicorn

from party.errors import PageError
from party.owner import OpenSite
from party.page.app import build
from party.page.gate import ENTER
from party.page.session import Sessions

LOOPBACK = "127.0.0.1"
_log = logging.getLogger(__name__)


def serve_page(
    opened: OpenSite,
    *,
    by: str,
    host: str = LOOPBACK,
    port: int = 0,
    tell: Callable[[str], None],
    clock: Callable[[], float] = time.time,
) -> None:
    """Serve the page until Ctrl-C or SIGTERM.

    Args:
        opened: The hospital's folder, for as long as the page is served.
        by: The person who decides on it.
        host: Address of this machine's own network.
        port: Port; 0 for any free one.
        tell: Told the one-time link, which nobody else may see.
        clock: Unix time, in seconds.

    Raises:
        PageError: the address is not this machine's own alone, or the port is taken.
    """
    sessions = Sessions(clock=clock)
    with closing(_listen(host, port)) as listener:
        bound = listener.getsockname()[1]
        name = f"[{host}]" if ":" in host else host
        hosts = {f"{name}:{bound}", f"localhost:{bound}"}
        app = build(opened, sessions=sessions, hosts=hosts, by=by)
        # No log of requests: the link's token is in one.
        config = uvicorn.Config(
            app, log_config=None, access_log=False, server_header=False, lifespan="off", ws="none"
        )
        tell(f"http://{name}:{bound}/{sessions.room}/{ENTER}?link={sessions.make_link()}")
        with suppress(KeyboardInterrupt):  # its usual end
            uvicorn.Server(config).run(sockets=[listener])


def _listen(host: str, port: int) -> socket.socket:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        address = None
    if address is None or not address.is_loopback:
        raise PageError(
            "the page must be served on this machine's own network, 127.0.0.1 or ::1", repr(host)
        )
    family = socket.AF_INET6 if address.version == 6 else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise PageError(
            "the page's port must be free: take another --port", error.strerror
        ) from error
    return listener
