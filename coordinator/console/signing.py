"""The door: sign in, sign out, and a new person's first visit."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import segno
from fastapi import APIRouter
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from coordinator.console.access import visit_of
from coordinator.console.form_input import text_of
from coordinator.console.rendering import give_cookie, page
from coordinator.errors import ConsoleError, PersonError
from coordinator.federation.connections import origin_of
from coordinator.people.one_time_codes import app_address, shown_key
from coordinator.people.passwords import LEAST_LETTERS
from coordinator.people.people import Person

router = APIRouter()
_log = logging.getLogger(__name__)


@router.get("/sign-in")
def sign_in_page(request: Request) -> Response:
    """Show the door."""
    if visit_of(request).session is not None:
        return RedirectResponse("/", 303)
    return page(request, "sign_in", problem="", name="")


@router.post("/sign-in")
def sign_in(request: Request) -> Response:
    """Let somebody in."""
    require_few(request)
    visit = visit_of(request)
    name = text_of(visit.form, "name", label="Name", most=64)
    password = text_of(visit.form, "password", label="Password")
    code = text_of(visit.form, "code", label="One-time code", most=20)
    acting = visit.coordinator.on_behalf_of(name, door="console")
    try:
        person = acting.people.sign_in(name, password=password, code=code)
    except PersonError as error:
        _log.warning("a sign-in to the console failed [%s]", error.code)
        return page(request, "sign_in", status=403, problem=str(error.must), name=name)
    return let_in(request, person, RedirectResponse("/", 303))


def let_in(request: Request, person: Person, response: Response) -> Response:
    """Open a session for a person who has proven who they are."""
    _log.info("%s signed in to the console", person.name)
    token = visit_of(request).coordinator.sessions.open(person.name)
    give_cookie(response, request, "session", token)
    give_cookie(response, request, "visit", "")
    return response


@router.post("/sign-out")
def sign_out(request: Request) -> Response:
    """End the session."""
    visit = visit_of(request)
    visit.coordinator.sessions.close(visit.token)
    response = RedirectResponse("/sign-in", 303)
    give_cookie(response, request, "session", "")
    return response


@router.get("/welcome")
def welcome_page(request: Request) -> Response:
    """Show a new person's first form."""
    return _welcome(request, status=200)


@router.post("/welcome")
def welcome(request: Request) -> Response:
    """Take a new person's password, and show the key of their one-time codes."""
    require_few(request)
    visit = visit_of(request)
    name = text_of(visit.form, "name", label="Name", most=64)
    setup_code = text_of(visit.form, "setup_code", label="Setup code", most=64)
    password = text_of(visit.form, "password", label="Password")
    again = text_of(visit.form, "again", label="Password, once more")
    people, field = visit.coordinator.people, "setup_code"
    try:
        people.require_setup_code(name, setup_code)
        if password != again:
            problem = {"again": "both passwords must be the same"}
            return _welcome(request, problems=problem, name=name, setup_code=setup_code)
        field = "password"
        key = people.choose_password(name, setup_code=setup_code, password=password)
    except PersonError as error:
        problem = {field: error.must}
        return _welcome(request, problems=problem, name=name, setup_code=setup_code)
    return _code(request, key, name=name, setup_code=setup_code)


def _welcome(
    request: Request,
    *,
    status: int = 403,
    problems: Mapping[str, str] | None = None,
    name: str = "",
    setup_code: str = "",
) -> Response:
    """Show the first form, with what was typed, but no password."""
    typed = {"name": name, "setup_code": setup_code, "problems": problems or {}}
    return page(request, "welcome", status=status, least=LEAST_LETTERS, **typed)


def _code(
    request: Request,
    key: bytes,
    *,
    status: int = 200,
    name: str,
    setup_code: str,
    problems: Mapping[str, str] | None = None,
) -> Response:
    """Show the key of the one-time codes, until a code has proven it."""
    federation = request.app.state.coordinator.home.settings.name
    picture = segno.make(app_address(key, person=name, federation=federation), micro=False)
    return page(
        request,
        "welcome_code",
        status=status,
        problems=problems or {},
        name=name,
        setup_code=setup_code,
        key=shown_key(key),
        picture=Markup(picture.svg_inline(scale=5, light="#fff")),  # noqa: S704 - of digits alone
    )


@router.post("/welcome/code")
def welcome_code(request: Request) -> Response:
    """Take a new person's first one-time code, and let them in; ask again for a mistyped one."""
    require_few(request)
    visit = visit_of(request)
    name = text_of(visit.form, "name", label="Name", most=64)
    setup_code = text_of(visit.form, "setup_code", label="Setup code", most=64)
    code = text_of(visit.form, "code", label="One-time code", most=20)
    people = visit.coordinator.on_behalf_of(name, door="console").people
    try:
        key = people.key_to_prove(name, setup_code=setup_code)
    except PersonError as error:
        return _welcome(request, problems={"setup_code": error.must}, name=name)
    try:
        person = people.finish_setup(name, setup_code=setup_code, code=code)
    except PersonError as error:
        problems = {"code": error.must}
        return _code(request, key, status=403, name=name, setup_code=setup_code, problems=problems)
    return let_in(request, person, RedirectResponse("/", 303))


def require_few(request: Request) -> None:
    """Bound the tries of one address."""
    host = request.client.host if request.client is not None else ""
    if not request.app.state.sign_ins.allows(origin_of(host)):
        raise ConsoleError("wait a minute before the next try", "too many tries", status=429)
