"""Serves the page on loopback, and on nothing else, until it is told to stop."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing, suppress

from party.errors import PageError
from party.owner import OpenSite
from party.page.pages_app import ENTER, build
from party.page.session import PageSessions
from pate_fed.nodes.ports import in_brackets, is_loopback, listen
from pate_fed.nodes.web import server_of

LOOPBACK = "127.0.0.1"


def serve_page(
    opened: OpenSite,
    *,
    by: str,
    host: str = LOOPBACK,
    port: int = 0,
    tell: Callable[[str], None],
) -> None:
    """Serve the page on this machine alone; nobody but `by` may see the one-time link."""
    sessions = PageSessions(clock=time.time)
    if host == "localhost" or not is_loopback(host):
        raise PageError(
            "the page must be served on this machine's own network, 127.0.0.1 or ::1", repr(host)
        )
    with closing(listen(host, port, fault=PageError)) as listener:
        bound = listener.getsockname()[1]
        name = f"{in_brackets(host)}:{bound}"
        app = build(opened, sessions=sessions, hosts={name, f"localhost:{bound}"}, by=by)
        tell(f"http://{name}/{sessions.room}/{ENTER}?link={sessions.make_link()}")
        with suppress(KeyboardInterrupt):  # its usual end
            server_of(app).run(sockets=[listener])
