"""People of the console, and their roles."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from coordinator.console.access import visit_of
from coordinator.console.form_input import number_of, optional_text, text_of
from coordinator.console.rendering import page
from coordinator.errors import ConsoleError
from coordinator.people.api_tokens import MOST_DAYS, USUAL_DAYS, Scope
from coordinator.people.people import Role, SetupCode

router = APIRouter()


@router.get("/people")
def people(request: Request) -> Response:
    """Show everybody, and the rights of each role."""
    return _shown(request)


@router.post("/people/add")
def add(request: Request) -> Response:
    """Add a person, and show their setup code, once."""
    visit = visit_of(request)
    name = text_of(visit.form, "name", label="Name", most=64)
    return _shown(request, visit.coordinator.people.add(name, _role_in(visit.form)))


@router.post("/people/role")
def give_role(request: Request) -> Response:
    """Give a person another role."""
    visit = visit_of(request)
    visit.coordinator.people.give_role(text_of(visit.form, "name", most=64), _role_in(visit.form))
    return RedirectResponse("/people", 303)


@router.post("/people/reset")
def reset(request: Request) -> Response:
    """Let a person set up their access anew, and show the code for it, once."""
    visit = visit_of(request)
    return _shown(request, visit.coordinator.people.reset(text_of(visit.form, "name", most=64)))


@router.post("/people/subject")
def give_subject(request: Request) -> Response:
    """Let a person sign in by their account at the OpenID provider, or no more."""
    visit = visit_of(request)
    name = text_of(visit.form, "name", most=64)
    subject = optional_text(visit.form, "subject", label="Subject", most=255)
    issuer = visit.coordinator.home.settings.openid.issuer
    visit.coordinator.people.give_subject(name, subject, issuer=issuer)
    return RedirectResponse("/people", 303)


@router.post("/people/remove")
def remove(request: Request) -> Response:
    """Remove a person."""
    visit = visit_of(request)
    visit.coordinator.people.remove(text_of(visit.form, "name", most=64))
    return RedirectResponse("/people", 303)


@router.post("/people/token")
def make_token(request: Request) -> Response:
    """Make a token of the API for a person, and show it, once."""
    visit = visit_of(request)
    form = visit.form
    made = visit.coordinator.tokens.make(
        text_of(form, "name", label="Name", most=64),
        person=text_of(form, "person", label="Person", most=64),
        scopes=[scope for scope in Scope if form.get(scope.value) == "yes"],
        days=number_of(form, "days", float, label="Days") or USUAL_DAYS,
    )
    return _shown(request, token=made)


@router.post("/people/token/revoke")
def revoke_token(request: Request) -> Response:
    """Let a token end now."""
    visit = visit_of(request)
    visit.coordinator.tokens.revoke(text_of(visit.form, "name", most=64))
    return RedirectResponse("/people", 303)


def _shown(request: Request, code: SetupCode | None = None, *, token: str = "") -> Response:
    coordinator = visit_of(request).coordinator
    return page(
        request,
        "people",
        people=coordinator.people.all(),
        roles=list(Role),
        code=code,
        token=token,
        tokens=coordinator.tokens.all(),
        scopes=list(Scope),
        usual_days=USUAL_DAYS,
        most_days=MOST_DAYS,
    )


def _role_in(form: FormData) -> Role:
    text = text_of(form, "role", label="Role", most=40)
    known = next((role for role in Role if role.value == text), None)
    if known is None:
        raise ConsoleError("a role must be one of the choices")
    return known
