"""The console as an app: its routes, their guard, and its answers to errors."""

from __future__ import annotations

import time
from asyncio import Semaphore
from collections.abc import Collection
from functools import cache
from typing import Final

from fastapi import Depends, FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute
from starlette.types import ASGIApp

from coordinator.console import (
    api,
    audit_log,
    hospitals,
    live,
    new_run,
    openid,
    overview,
    people,
    results,
    runs,
    signing,
)
from coordinator.console.access import Cookies, guard, require_complete
from coordinator.console.form_input import most_bytes
from coordinator.console.rendering import page, static_file
from coordinator.errors import ConsoleError, CoordinatorError, DatabaseError, InternalError
from coordinator.federation.rate_limit import RateLimit
from coordinator.operator import Coordinator
from pate_fed.errors import PateFedError
from pate_fed.nodes.web import LOOPBACK_NAMES, POLICY, Shield
from protocols.errors import ProtocolError

SIGN_INS_PER_MINUTE: Final = 10
"""Of one address: tries to sign in, or to set up an account."""

_PAGES: Final = (
    overview,
    hospitals,
    runs,
    new_run,
    live,
    results,
    audit_log,
    people,
    signing,
    openid,
)


def build(
    coordinator: Coordinator,
    *,
    hosts: Collection[str] = LOOPBACK_NAMES,
    is_secure: bool = False,
) -> ASGIApp:
    """Make the console of a federation, which is reached by these host names, without ports."""
    app = make_app(coordinator, is_secure=is_secure)
    app.mount(api.PREFIX, _api(coordinator))
    return Shield(
        app,
        hosts=hosts,
        policy=f"{POLICY}; script-src 'self'; img-src 'self' data:; connect-src 'self'",
        most_bytes=most_bytes,
        codes=(ConsoleError.code, InternalError.code),
        is_secure=is_secure,
    )


def make_app(coordinator: Coordinator, *, is_secure: bool) -> FastAPI:
    """Make the app inside the shield; its routes are those of the table in `access`."""
    app = _plain_app()
    app.router.routes.extend(_guarded_routes())
    app.state.coordinator = coordinator
    app.state.cookies = Cookies(is_secure)
    app.state.sign_ins = RateLimit(SIGN_INS_PER_MINUTE, clock=time.monotonic)
    app.state.streams = Semaphore(live.MOST_STREAMS)
    app.state.openid = openid.OpenId(coordinator.home)
    for kind in (CoordinatorError, PateFedError, ProtocolError):
        app.add_exception_handler(kind, _refused)
    app.add_exception_handler(HTTPException, _not_served)
    app.add_exception_handler(Exception, _failed)
    return app


def _api(coordinator: Coordinator) -> FastAPI:
    made = api.make_api(coordinator)
    for kind in (CoordinatorError, PateFedError, ProtocolError):
        made.add_exception_handler(kind, lambda _, error: api.refusal(error, _status_of(error)))
    made.add_exception_handler(HTTPException, api.not_served)
    made.add_exception_handler(RequestValidationError, api.misread)
    return made


def _plain_app() -> FastAPI:
    return FastAPI(openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False)


@cache
def _guarded_routes() -> tuple[BaseRoute, ...]:
    """Return every route, behind the guard; made once, as they hold nothing of a federation."""
    app = _plain_app()
    app.router.dependencies.append(Depends(guard))
    for module in _PAGES:
        for route in module.router.routes:
            assert isinstance(route, APIRoute)
            app.add_api_route(route.path, route.endpoint, methods=sorted(route.methods or ()))

    @app.get("/static/{name}")
    def static(request: Request) -> Response:
        return static_file(request.path_params["name"])

    require_complete(app.routes)
    return tuple(app.routes)


def _refused(request: Request, error: Exception) -> Response:
    """Answer an error of ours: a person who is not signed in goes to the door."""
    status = _status_of(error)
    if status == 401 and request.method == "GET":
        if "hx-request" in request.headers:
            return Response(status_code=204, headers={"HX-Redirect": "/sign-in"})
        return RedirectResponse("/sign-in", 303)
    must, got = getattr(error, "must", str(error)), getattr(error, "got", "")
    template = "problem_part" if "hx-request" in request.headers else "problem"
    code = getattr(error, "code", "")
    return page(request, template, status=status, must=must, got=str(got), code=code)


def _status_of(error: Exception) -> int:
    if isinstance(error, ConsoleError):
        return error.status
    return 503 if isinstance(error, DatabaseError) else 400


def _not_served(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    must = "a page must be one of the console's" if error.status_code == 404 else str(error.detail)
    return page(
        request, "problem", status=error.status_code, must=must, got="another", code="PF-435"
    )


def _failed(request: Request, error: Exception) -> Response:  # noqa: ARG001 - the shield logs it
    return page(
        request,
        "problem",
        status=500,
        must="the console must not fail: its log says where it did",
        got="a fault",
        code=InternalError.code,
    )
