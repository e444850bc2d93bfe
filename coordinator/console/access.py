"""One table of routes and roles, and the check of every request against it.

A route that is not in the table is open to nobody, and the console does not start with one.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Literal, cast

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.routing import BaseRoute, Route

from coordinator.console.form_input import MOST_FIELDS, MOST_FORM_BYTES
from coordinator.errors import ConsoleError, RunQueueError
from coordinator.operator import Coordinator
from coordinator.people.budget import AGREEING, PROPOSING
from coordinator.people.people import Role
from coordinator.people.sessions import Session
from pate_fed.nodes.web import read_form, require_token

PUBLIC: Final = None
ALL: Final = frozenset(Role)
RUNNING: Final = frozenset({Role.ADMINISTRATOR, Role.OPERATOR})
STOPPING: Final = RUNNING | {Role.PRIVACY_OFFICER}
DECIDING: Final = frozenset({Role.ADMINISTRATOR})

ACCESS: Final[Mapping[tuple[str, str], frozenset[Role] | None]] = {
    ("GET", "/static/{name}"): PUBLIC,
    ("GET", "/sign-in"): PUBLIC,
    ("POST", "/sign-in"): PUBLIC,
    ("GET", "/sign-in/openid"): PUBLIC,
    ("GET", "/sign-in/openid/return"): PUBLIC,
    ("GET", "/welcome"): PUBLIC,
    ("POST", "/welcome"): PUBLIC,
    ("POST", "/welcome/code"): PUBLIC,
    ("POST", "/sign-out"): ALL,
    ("GET", "/"): ALL,
    ("GET", "/hospitals"): ALL,
    ("POST", "/hospitals/invite"): RUNNING,
    ("POST", "/hospitals/approve"): RUNNING,
    ("POST", "/hospitals/revoke"): RUNNING,
    ("POST", "/hospitals/suspend"): STOPPING,
    ("POST", "/hospitals/reinstate"): RUNNING,
    ("GET", "/runs"): ALL,
    ("GET", "/compare"): ALL,
    ("GET", "/new-run"): RUNNING,
    ("POST", "/new-run/rows"): RUNNING,
    ("POST", "/new-run/budgets"): RUNNING,
    ("POST", "/new-run/cost"): RUNNING,
    ("POST", "/new-run"): RUNNING,
    ("GET", "/runs/{run}"): ALL,
    ("GET", "/runs/{run}/events"): ALL,
    ("POST", "/runs/{run}/pause"): STOPPING,
    ("POST", "/runs/{run}/stop"): STOPPING,
    ("POST", "/runs/{run}/resume"): RUNNING,
    ("GET", "/privacy"): ALL,
    ("POST", "/budget"): PROPOSING,
    ("POST", "/budget/agree"): AGREEING,
    ("POST", "/budget/withdraw"): PROPOSING,
    ("GET", "/results"): ALL,
    ("GET", "/runs/{run}/results"): ALL,
    ("GET", "/runs/{run}/results/{file:path}"): ALL,
    ("GET", "/audit"): ALL,
    ("GET", "/audit/export"): ALL,
    ("GET", "/audit/vote-leak"): ALL,
    ("POST", "/audit/verify"): ALL,
    ("GET", "/people"): ALL,
    ("POST", "/people/add"): DECIDING,
    ("POST", "/people/role"): DECIDING,
    ("POST", "/people/reset"): DECIDING,
    ("POST", "/people/subject"): DECIDING,
    ("POST", "/people/remove"): DECIDING,
    ("POST", "/people/token"): DECIDING,
    ("POST", "/people/token/revoke"): DECIDING,
    ("GET", "/health"): ALL,
}
"""Roles that may use each route."""

_BY_ITSELF: Final = frozenset({"/runs/{run}/events"})
"""Routes that a page asks by itself: they keep no session alive."""

_TOKEN_BYTES: Final = 32


@dataclass(slots=True)
class Visit:
    """One request, after the check.

    Attributes:
        coordinator: The federation; its acts are those of the person.
        token: Secret of the browser that forms are bound to: its session's, or its visit's.
        is_new: Whether the browser has no such secret yet, and gets one.
    """

    coordinator: Coordinator
    session: Session | None
    token: str
    form: FormData
    is_new: bool = False

    @property
    def form_token(self) -> str:
        """The token in every form: another website cannot know it."""
        return hmac.digest(self.token.encode(), b"pate-fed console form", "sha256").hex()

    def may(self, method: str, path: str) -> bool:
        """Tell whether the person may use a route."""
        roles = ACCESS[method, path]
        return roles is PUBLIC or (self.session is not None and self.session.role in roles)


CookieKind = Literal["session", "visit", "openid"]
"""Holds the token of a session; the secret of a browser in which nobody is signed in; what binds a
sign-in by an OpenID provider to the browser in which it was begun.
"""


@dataclass(frozen=True, slots=True)
class Cookies:
    """Names of the console's cookies; secure ones are sent over TLS alone."""

    is_secure: bool

    def name(self, kind: CookieKind) -> str:
        """Return the name of the cookie of a kind."""
        return f"{'__Host-' if self.is_secure else ''}pate-fed-{kind}"


def require_complete(routes: Iterable[BaseRoute]) -> None:
    """Refuse routes that the table does not list, and entries without a route."""
    found = {
        (method, cast(Route, route).path)
        for route in routes
        for method in getattr(route, "methods", None) or {"?"}
        if method != "HEAD"
    }
    if found != ACCESS.keys():
        raise ConsoleError("every route must have its roles", str(sorted(found ^ ACCESS.keys())))


async def guard(request: Request) -> AsyncIterator[None]:
    """Check a request before its route sees it; `visit_of` returns the finding.

    Uploaded files are gone once the answer was sent.

    Raises:
        ConsoleError: nobody is signed in, the role may not, or the form is not one of ours.
    """
    visit = request.state.visit = await _checked(request)
    try:
        if request.method == "POST":
            await _require_ours(request, visit)
        yield
    finally:
        await visit.form.close()


def visit_of(request: Request) -> Visit:
    """Return the finding of the check."""
    visit: Visit = request.state.visit
    return visit


@contextmanager
def finding() -> Iterator[None]:
    """Answer "not found" where the body knows no such run or file."""
    try:
        yield
    except RunQueueError as error:
        raise ConsoleError(error.must, error.got, status=404) from error


async def _checked(request: Request) -> Visit:
    """Find the person; refuse one whose role may not use the route."""
    cookies: Cookies = request.app.state.cookies
    coordinator: Coordinator = request.app.state.coordinator
    path = request.scope["route"].path
    roles = ACCESS[request.method if request.method != "HEAD" else "GET", path]
    token, session = request.cookies.get(cookies.name("session"), ""), None
    if token:
        is_request = path not in _BY_ITSELF
        session = await run_in_threadpool(coordinator.sessions.find, token, is_request=is_request)
    if roles is not PUBLIC and session is None:
        raise ConsoleError("somebody must be signed in", "nobody", status=401)
    if roles is not PUBLIC and session is not None and session.role not in roles:
        may = " or ".join(sorted(role.value for role in roles))
        raise ConsoleError(f"this needs the role {may}", session.role.value, status=403)
    if session is not None:
        coordinator = coordinator.on_behalf_of(session.person, door="console")
    else:
        token = request.cookies.get(cookies.name("visit"), "")
    fresh = secrets.token_hex(_TOKEN_BYTES)
    return Visit(coordinator, session, token or fresh, FormData(), is_new=not token)


async def _require_ours(request: Request, visit: Visit) -> None:
    """Refuse a form that another website sent, or an old one."""
    visit.form = await read_form(
        request,
        most_fields=MOST_FIELDS,
        most_bytes=MOST_FORM_BYTES,
        files=1,
        fault=ConsoleError,
    )
    # A browser that gets its secret now cannot have it in a form yet.
    require_token(
        visit.form, "form_token", "" if visit.is_new else visit.form_token, fault=ConsoleError
    )
