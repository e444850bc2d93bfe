"""The gate in front of every page: host, session, forms, headers. Nothing passes it unchecked."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping
from http.cookies import CookieError, SimpleCookie
from typing import Any, Final
from urllib.parse import parse_qsl

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import HTMLResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from party.page.session import COOKIE, Sessions

MOST_FORM_BYTES: Final = 16 * 1024
MOST_FIELDS: Final = 12
STYLE: Final = "style.css"
ENTER: Final = "enter"
CSRF_FIELD: Final = "csrf"

HEADERS: Final[Mapping[str, str]] = {
    "content-security-policy": (
        "default-src 'none'; style-src 'self'; form-action 'self'; base-uri 'none'; "
        "frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",  # without any, a form's origin would be "null"
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "cache-control": "no-store",
}
"""Of every answer. `cache-control`: nothing stays in the browser after the session."""

_BAD, _FORBIDDEN, _NOT_THERE, _NOT_ALLOWED, _TOO_LARGE = 400, 403, 404, 405, 413


class _RefusedError(Exception):
    """A request that does not pass.

    Attributes:
        status: HTTP's.
        said: Why, for a person.
    """

    def __init__(self, status: int, said: str) -> None:
        self.status, self.said = status, said
        super().__init__(said)


class Gate:
    """Lets requests of the session through to the app, and nobody else's.

    Args:
        app: The pages. A request's form is in `scope["form"]`, its session in `scope["session"]`.
        sessions: The link and the session.
        hosts: Names of this server, as browsers send them: "127.0.0.1:9480".
    """

    def __init__(self, app: ASGIApp, *, sessions: Sessions, hosts: Collection[str]) -> None:
        self._app = app
        self._sessions = sessions
        self._hosts = frozenset(hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check one request; see ASGI."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
            await send(message)

        try:
            await self._check(scope, receive)
        except _RefusedError as error:
            answer = HTMLResponse(_refusal_page(error.said), error.status)
            await answer(scope, receive, guarded)
            return
        await self._app(scope, receive, guarded)

    async def _check(self, scope: Scope, receive: Receive) -> None:
        headers, method = Headers(scope=scope), scope["method"]
        hosts = [one.lower() for one in headers.getlist("host")]
        if len(hosts) != 1 or hosts[0] not in self._hosts:  # another name may lead here (rebinding)
            raise _RefusedError(_BAD, "This page answers under its own address only.")
        if method not in ("GET", "POST"):
            raise _RefusedError(_NOT_ALLOWED, "This page is read, or a form of it is sent.")
        room, _, page = scope["path"].removeprefix("/").partition("/")
        if not secrets.compare_digest(
            room.encode("utf-8", "replace"), self._sessions.room.encode()
        ):
            raise _RefusedError(_NOT_THERE, "Nothing is here. Use the link from the terminal.")
        if page in (STYLE, ENTER) and method != "POST":
            return
        session = self._sessions.find(_cookie_of(headers))
        if session is None:
            raise _RefusedError(
                _FORBIDDEN,
                "You are not signed in, or your session is over. Type pate-party page in a "
                "terminal of this machine, and open the link that it prints.",
            )
        scope["session"] = session
        if method == "POST":
            self._require_own_form(headers)
            form = await _form_of(headers, receive)
            given = form.pop(CSRF_FIELD, "").encode("utf-8", "replace")
            if not secrets.compare_digest(given, session.csrf.encode()):
                raise _RefusedError(_FORBIDDEN, "This form is not of this page. Load it again.")
            scope["form"] = form

    def _require_own_form(self, headers: Headers) -> None:
        """Refuse a form that another site's page sent; browsers say so."""
        origin = headers.get("origin")
        if origin is not None and origin.lower() not in {f"http://{one}" for one in self._hosts}:
            raise _RefusedError(_FORBIDDEN, "This form came from another site.")
        if headers.get("sec-fetch-site", "same-origin") != "same-origin":
            raise _RefusedError(_FORBIDDEN, "This form came from another site.")


def _cookie_of(headers: Headers) -> str:
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        return ""
    return "" if found is None else found.value


async def _form_of(headers: Headers, receive: Receive) -> dict[str, str]:
    """Read a form: small, well-formed, each field once."""
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise _RefusedError(_BAD, "This is no form of this page.")
    body = bytearray()
    while True:
        message: Any = await receive()
        if message["type"] == "http.disconnect":
            raise _RefusedError(_BAD, "The form broke off.")
        body += message.get("body", b"")
        if len(body) > MOST_FORM_BYTES:
            raise _RefusedError(_TOO_LARGE, f"A form may have {MOST_FORM_BYTES} bytes.")
        if not message.get("more_body", False):
            break
    try:
        pairs = parse_qsl(
            body.decode("ascii"),
            keep_blank_values=True,
            strict_parsing=True,
            errors="strict",
            max_num_fields=MOST_FIELDS,
        )
    except ValueError:
        raise _RefusedError(_BAD, "The form cannot be read.") from None
    if len(dict(pairs)) != len(pairs):
        raise _RefusedError(_BAD, "A field of the form came twice.")
    return dict(pairs)


def _refusal_page(said: str) -> str:
    """A page without anything of the request or of the hospital in it."""
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark"><title>Refused</title></head>'
        f"<body><main><h1>Refused</h1><p>{said}</p></main></body></html>"
    )
