"""Around every request: its host, its size, its answer's headers, and errors nobody foresaw."""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Final

from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from coordinator.console.forms import MOST_FORM_BYTES, MOST_UPLOAD_BYTES
from coordinator.errors import InternalError
from pate_fed.nodes import place_of

LOOPBACK_NAMES: Final = frozenset({"127.0.0.1", "localhost", "[::1]"})
UPLOADS: Final = frozenset({"/new-run", "/new-run/cost"})
"""Paths that take a file."""

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Referrer-Policy": "same-origin",  # without one browsers hide the origin of our own forms
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_TLS_HEADER: Final = "max-age=31536000"
_log = logging.getLogger(__name__)


class Shield:
    """Wraps the console.

    Args:
        app: The console.
        hosts: Names that it is reached by, without ports.
        is_secure: Whether it is served over TLS.
    """

    def __init__(self, app: ASGIApp, *, hosts: Collection[str], is_secure: bool) -> None:
        self._app = app
        self._hosts = frozenset(host.lower() for host in hosts)
        self._is_secure = is_secure

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        if scope["type"] != "http":
            return
        is_begun = False

        async def send_safely(message: Message) -> None:
            nonlocal is_begun
            if message["type"] == "http.response.start":
                is_begun = True
                self._add_headers(message)
            await send(message)

        async def refuse(text: str, status: int) -> None:
            if not is_begun:
                await PlainTextResponse(text, status)(scope, receive, send_safely)

        if not self._is_ours(scope):
            # A page of another name on this address would pass for ours (DNS rebinding).
            await refuse("PF-435: the console must be opened under its own name\n", 421)
            return
        try:
            await self._app(scope, _bounded(scope, receive), send_safely)
        except Exception as error:
            # No traceback: it could hold secrets.
            _log.error("[%s] the console failed at %s", InternalError.code, place_of(error))
            await refuse(f"{InternalError.code}: the console failed; its log says where\n", 500)

    def _is_ours(self, scope: Scope) -> bool:
        hosts = [value for name, value in scope["headers"] if name == b"host"]
        if len(hosts) != 1:
            return False
        text = hosts[0].decode("latin-1").lower()
        name, colon, port = text.rpartition(":")
        is_port = bool(colon) and port.isdecimal() and not text.endswith("]")
        return (name if is_port else text) in self._hosts

    def _add_headers(self, message: Message) -> None:
        headers = MutableHeaders(scope=message)
        for name, value in _HEADERS.items():
            headers.setdefault(name, value)
        headers.setdefault("Cache-Control", "no-store")
        if self._is_secure:
            headers["Strict-Transport-Security"] = _TLS_HEADER


def _bounded(scope: Scope, receive: Receive) -> Receive:
    most = MOST_FORM_BYTES
    if scope["path"] in UPLOADS:
        most += MOST_UPLOAD_BYTES
    read = 0

    async def bounded() -> Message:
        nonlocal read
        message = await receive()
        read += len(message.get("body", b""))
        if read > most:
            raise HTTPException(413, "a form or file must be smaller")
        return message

    return bounded
