"""The console's port: loopback unless the operator says otherwise, and then over TLS."""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Callable
from typing import Any, Final

import uvicorn

from coordinator.console.app import build
from coordinator.console.shield import LOOPBACK_NAMES
from coordinator.errors import ServiceError
from coordinator.federation.certificates import names_of
from coordinator.federation.connections import listen
from coordinator.operator import Coordinator
from pate_fed.nodes import place_of

_FAREWELL_S: Final = 2
_MOST_CONNECTIONS: Final = 200
_log = logging.getLogger(__name__)


def serve(
    coordinator: Coordinator,
    *,
    host: str,
    port: int,
    on_ready: Callable[[str], None] = lambda _: None,
) -> None:
    """Serve the console until the process is told to end.

    Args:
        coordinator: The federation.
        host: Address to listen at; TLS with the coordinator's certificate unless it is loopback.
        port: Its port.
        on_ready: Called with the address of the console before it is served.

    Raises:
        ServiceError: the port is taken, or the host is not this machine's.
        HomeError: the certificate's key cannot be read.
    """
    home, is_secure = coordinator.home, not is_loopback(host)
    hosts, tls = set(LOOPBACK_NAMES), dict[str, Any]()
    if is_secure:
        hosts |= {_in_brackets(name) for name in names_of(home.server_certificate)}
        assert home.server_key
        tls = {
            "ssl_certfile": str(home.path("server.crt")),
            "ssl_keyfile": str(home.path("server.key")),
        }
    if not coordinator.people.all():
        _log.warning("nobody can sign in yet: `pate-fed users add NAME --role administrator`")
    app = build(coordinator, hosts=hosts, is_secure=is_secure)
    config = uvicorn.Config(
        app,
        access_log=False,  # addresses of pages name runs and searches
        log_config=None,
        lifespan="off",
        http="h11",
        ws="none",
        loop="asyncio",
        proxy_headers=False,
        server_header=False,
        limit_concurrency=_MOST_CONNECTIONS,
        timeout_graceful_shutdown=_FAREWELL_S,
        h11_max_incomplete_event_size=32 * 1024,
        **tls,
    )
    opened = listen(host, port)
    opened.listen()  # an early caller waits until the server runs
    try:
        name = host if not is_secure else sorted(names_of(home.server_certificate))[0]
        scheme = "https" if is_secure else "http"
        address = f"{scheme}://{_in_brackets(name)}:{opened.getsockname()[1]}/"
        _log.info("the console is served at %s", address)
        on_ready(address)
        uvicorn.Server(config).run(sockets=[opened])
    except OSError as error:
        raise ServiceError("the console must be served", place_of(error)) from error
    finally:
        opened.close()


def is_loopback(host: str) -> bool:
    """Tell whether an address is reached from this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _in_brackets(name: str) -> str:
    return f"[{name}]" if ":" in name else name
