"""The console's port: loopback unless the operator says otherwise, and then over TLS."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from coordinator.certificates import names_of
from coordinator.console.app import build
from coordinator.errors import ServiceError
from coordinator.operator import Coordinator
from pate_fed.nodes import place_of
from pate_fed.nodes.ports import in_brackets, is_loopback, listen
from pate_fed.nodes.web import LOOPBACK_NAMES, server_of

_log = logging.getLogger(__name__)


def serve(
    coordinator: Coordinator,
    *,
    host: str,
    port: int,
    on_ready: Callable[[str], None] = lambda _: None,
) -> None:
    """Serve the console until the process is told to end.

    It uses TLS, with the coordinator's certificate, unless the host is loopback. `on_ready` gets
    its address before it is served.

    Raises:
        ServiceError: the port is taken, or the host is not this machine's.
        HomeError: the certificate's key cannot be read.
    """
    home, is_secure = coordinator.home, not is_loopback(host)
    hosts, tls = set(LOOPBACK_NAMES), dict[str, Any]()
    if is_secure:
        hosts |= {in_brackets(name) for name in names_of(home.server_certificate)}
        assert home.server_key
        tls = {
            "ssl_certfile": str(home.path("server.crt")),
            "ssl_keyfile": str(home.path("server.key")),
        }
    if not coordinator.people.all():
        _log.warning("nobody can sign in yet: `pate-fed users add NAME --role administrator`")
    app = build(coordinator, hosts=hosts, is_secure=is_secure)
    opened = listen(host, port, fault=ServiceError)
    try:
        name = host if not is_secure else sorted(names_of(home.server_certificate))[0]
        scheme = "https" if is_secure else "http"
        address = f"{scheme}://{in_brackets(name)}:{opened.getsockname()[1]}/"
        _log.info("the console is served at %s", address)
        on_ready(address)
        server_of(app, **tls).run(sockets=[opened])
    except OSError as error:
        raise ServiceError("the console must be served", place_of(error)) from error
    finally:
        opened.close()
