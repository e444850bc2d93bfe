"""A node's pages for people: what stands around every request, and what every form must be.

Loaded by itself: `pate_fed.nodes` does not load Starlette.
"""

from __future__ import annotations

import hmac
import logging
from collections.abc import Callable, Collection
from typing import Any, Final

import jinja2
import uvicorn
from python_multipart.exceptions import FormParserError
from starlette.datastructures import FormData, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pate_fed.nodes.terminal import place_of

LOOPBACK_NAMES: Final = frozenset({"127.0.0.1", "localhost", "[::1]"})

POLICY: Final = (
    "default-src 'none'; style-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'"
)
"""Of pages without scripts and pictures; others allow more."""

_HEADERS: Final = {
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Referrer-Policy": "same-origin",  # without one browsers hide the origin of our own forms
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_TLS_HEADER: Final = "max-age=31536000"
_FAREWELL_S: Final = 2
_MOST_CONNECTIONS: Final = 200
_MOST_HEAD_BYTES: Final = 32 * 1024
_MISDIRECTED, _BROKEN, _BAD, _FORBIDDEN, _TOO_LARGE = 421, 500, 400, 403, 413
_log = logging.getLogger(__name__)

Fault = Callable[..., Exception]
"""Makes an error from a rule, the value that broke it, and `status`, HTTP's."""


class Shield:
    """Wraps pages: their host, the size of a request, an answer's headers, unforeseen errors.

    Args:
        hosts: Names that they are reached by; one without a port may have any, as of a tunnel.
        most_bytes: Most bytes of a request to a path.
        codes: Public codes of a request that is not ours, and of a fault of this program.
        is_secure: Whether they are served over TLS.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        hosts: Collection[str],
        policy: str,
        most_bytes: Callable[[str], int],
        codes: tuple[str, str],
        is_secure: bool = False,
    ) -> None:
        self._app = app
        self._hosts = frozenset(host.lower() for host in hosts)
        self._headers = {"Content-Security-Policy": policy, **_HEADERS}
        self._most_bytes = most_bytes
        self._codes = codes
        self._is_secure = is_secure

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        if scope["type"] != "http":
            return
        is_begun = False
        foreign, broken = self._codes

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
            await refuse(f"{foreign}: these pages answer under their own name\n", _MISDIRECTED)
            return
        try:
            await self._app(scope, self._bounded(scope, receive), send_safely)
        except Exception as error:
            # No traceback: it could hold secrets.
            _log.error("[%s] a page failed at %s", broken, place_of(error))
            await refuse(f"{broken}: this program failed; its log says where\n", _BROKEN)

    def _is_ours(self, scope: Scope) -> bool:
        hosts = [value for name, value in scope["headers"] if name == b"host"]
        if len(hosts) != 1:
            return False
        text = hosts[0].decode("latin-1").lower()
        name, colon, port = text.rpartition(":")
        is_port = bool(colon) and port.isdecimal() and not text.endswith("]")
        return text in self._hosts or (is_port and name in self._hosts)

    def _add_headers(self, message: Message) -> None:
        headers = MutableHeaders(scope=message)
        for name, value in self._headers.items():
            headers.setdefault(name, value)
        headers.setdefault("Cache-Control", "no-store")  # nothing stays after the session
        if self._is_secure:
            headers["Strict-Transport-Security"] = _TLS_HEADER

    def _bounded(self, scope: Scope, receive: Receive) -> Receive:
        most, read = self._most_bytes(scope["path"]), 0

        async def bounded() -> Message:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > most:
                raise HTTPException(_TOO_LARGE, "a form or file must be smaller")
            return message

        return bounded


async def read_form(
    request: Request, *, most_fields: int, most_bytes: int, files: int = 0, fault: Fault
) -> FormData:
    """Read a form that a page of ours sent: well-formed, each field once.

    Raises:
        Exception: a `fault`: it is malformed, or another website sent it.
        HTTPException: it has too many parts.
    """
    origin = request.headers.get("origin")
    own = f"{request.url.scheme}://{request.headers.get('host', '')}"
    is_same = request.headers.get("sec-fetch-site", "same-origin") == "same-origin"
    if not is_same or (origin is not None and origin.lower() != own.lower()):
        raise fault("a form must come from a page of ours", "another website", status=_FORBIDDEN)
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    known = ("application/x-www-form-urlencoded", *(["multipart/form-data"] if files else []))
    try:
        form = await request.form(max_files=files, max_fields=most_fields, max_part_size=most_bytes)
        is_well_formed = kind in known and len(form) == len(form.multi_items())
    except FormParserError as error:
        raise fault("a form must be as a browser sends it", "another", status=_BAD) from error
    if not is_well_formed:
        raise fault("a form must be as a browser sends it", "another", status=_BAD)
    return form


def require_token(form: FormData, name: str, token: str, *, fault: Fault) -> None:
    """Refuse a form without the token that another website cannot know.

    Where there is no token yet, every form is refused.
    """
    sent = form.get(name)
    if not (token and isinstance(sent, str) and is_same(sent, token)):
        raise fault(
            "a form must come from the page that this browser opened: reload it, and try again",
            "another, or an old one",
            status=_FORBIDDEN,
        )


def is_same(one: str, other: str) -> bool:
    """Compare secrets in a time that does not depend on them."""
    return hmac.compare_digest(one.encode(errors="replace"), other.encode(errors="replace"))


def templates(package: str, **filters: Callable[..., Any]) -> jinja2.Environment:
    """Return the templates of a package; every text from outside is shown as text."""
    made = jinja2.Environment(
        loader=jinja2.PackageLoader(package),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(filters)
    return made


def server_of(app: ASGIApp, **more: Any) -> uvicorn.Server:
    """Return a server of an app."""
    config = {
        "access_log": False,  # addresses of pages hold secrets and names
        "log_config": None,  # the log of the process is all
        "lifespan": "off",
        "http": "h11",
        "ws": "none",
        "loop": "asyncio",
        "proxy_headers": False,
        "server_header": False,
        "limit_concurrency": _MOST_CONNECTIONS,
        "timeout_graceful_shutdown": _FAREWELL_S,
        "h11_max_incomplete_event_size": _MOST_HEAD_BYTES,
        **more,
    }
    return uvicorn.Server(uvicorn.Config(app, **config))
