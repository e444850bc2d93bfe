"""Sign-in by an OpenID provider: the way there, and the way back."""

from __future__ import annotations

import hashlib
import logging
import secrets
import time
from threading import Lock
from typing import Final

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from coordinator.console.access import Cookies, visit_of
from coordinator.console.rendering import give_cookie, page
from coordinator.console.signing import let_in, require_few
from coordinator.errors import ConsoleError, PersonError
from coordinator.federation.home import FederationHome
from coordinator.people.openid import Attempt, Provider
from pate_fed.errors import said

router = APIRouter()

MOST_ATTEMPTS: Final = 1000
_log = logging.getLogger(__name__)


class OpenId:
    """The provider, if there is one, and the sign-ins under way, each bound to its browser."""

    def __init__(self, home: FederationHome) -> None:
        settings = home.settings.openid
        self.provider: Provider | None = None
        if settings.issuer:
            self.provider = Provider(
                settings.issuer,
                settings.client_id,
                home.openid_secret,
                random_bytes=secrets.token_bytes,
                clock=time.time,
            )
        self._attempts: dict[bytes, Attempt] = {}
        self._lock = Lock()

    def keep(self, cookie: str, attempt: Attempt) -> None:
        """Keep an attempt until its browser comes back; of too many the oldest goes."""
        with self._lock:
            while len(self._attempts) >= MOST_ATTEMPTS:
                del self._attempts[next(iter(self._attempts))]
            self._attempts[_digest(cookie)] = attempt

    def take(self, cookie: str) -> Attempt | None:
        """Return the attempt of a browser, for once."""
        with self._lock:
            return self._attempts.pop(_digest(cookie), None)


@router.get("/sign-in/openid")
def leave(request: Request) -> Response:
    """Send a browser to the provider."""
    require_few(request)
    state, provider = _openid(request)
    attempt = provider.begin(str(request.url_for("come_back")))
    cookie = secrets.token_hex(32)
    state.keep(cookie, attempt)
    response = RedirectResponse(attempt.url, 303)
    give_cookie(response, request, "openid", cookie, samesite="lax")
    return response


@router.get("/sign-in/openid/return")
def come_back(request: Request) -> Response:
    """Let somebody in whom the provider vouches for, and an administrator knows."""
    require_few(request)
    state, provider = _openid(request)
    cookies: Cookies = request.app.state.cookies
    attempt = state.take(request.cookies.get(cookies.name("openid"), ""))
    coordinator = visit_of(request).coordinator
    try:
        if attempt is None:
            must = "the sign-in must be begun in this browser: begin again"
            raise PersonError(must)  # noqa: TRY301 - answered like the others
        subject = provider.finish(attempt, dict(request.query_params))
        person = coordinator.people.of_subject(subject, issuer=provider.issuer)
    except PersonError as error:
        _log.warning("a sign-in by OpenID Connect failed [%s]: %s", error.code, error.got)
        problem = said(error.must, error.got)
        return page(request, "sign_in", status=403, problem=problem, name="")
    acting = coordinator.on_behalf_of(person.name, door="console")
    acting.people.note_sign_in(person, by=provider.issuer)
    # A page and not a redirect: a browser that came from elsewhere would not bring the cookie.
    return let_in(request, person, page(request, "entered"))


def _openid(request: Request) -> tuple[OpenId, Provider]:
    state: OpenId = request.app.state.openid
    if state.provider is None:
        raise ConsoleError("a page must be one of the console's", status=404)
    return state, state.provider


def _digest(cookie: str) -> bytes:
    return hashlib.sha256(cookie.encode(errors="replace")).digest()
