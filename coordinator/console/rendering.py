"""Pages: templates filled with values, every text from outside shown as text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from importlib.resources import files
from typing import Any, Final, Literal

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from coordinator.console import words
from coordinator.console.access import CookieKind, Cookies, Visit
from coordinator.errors import ConsoleError
from pate_fed import wording
from pate_fed.nodes.web import templates
from pate_fed.version import __version__
from protocols.fingerprint_words import spoken

MENU: Final = (
    ("/", "Overview"),
    ("/hospitals", "Hospitals"),
    ("/runs", "Runs"),
    ("/privacy", "Privacy"),
    ("/results", "Results"),
    ("/audit", "Audit"),
    ("/people", "People"),
    ("/health", "Health"),
)

STATIC: Final = {
    "console.css": "text/css; charset=utf-8",
    "console.js": "text/javascript; charset=utf-8",
    "htmx.min.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
"""Every file that browsers may fetch, and its type."""

_WIDTH, _HEIGHT = 640.0, 220.0
"""Of a plot."""


def page(request: Request, template: str, *, status: int = 200, **values: Any) -> HTMLResponse:
    """Return a page, filled from the template of a name without its ending."""
    visit: Visit | None = getattr(request.state, "visit", None)
    here = "/" + request.url.path.split("/")[1].replace("new-run", "runs").replace(
        "compare", "runs"
    )
    text = _ENVIRONMENT.get_template(f"{template}.html.j2").render(
        visit=visit,
        session=None if visit is None else visit.session,
        form_token="" if visit is None else visit.form_token,
        federation=request.app.state.coordinator.home.settings.name,
        provider=request.app.state.openid.provider,
        here=here,
        menu=MENU,
        now=datetime.now(UTC),
        **values,
    )
    response = HTMLResponse(text, status)
    if visit is not None and visit.is_new:
        give_cookie(response, request, "visit", visit.token)
    return response


def part(template: str, **values: Any) -> str:
    """Return a part of a page."""
    return _ENVIRONMENT.get_template(f"{template}.html.j2").render(now=datetime.now(UTC), **values)


def static_file(name: str) -> Response:
    """Return a file that pages use."""
    known = next((one for one in STATIC if one == name), None)
    if known is None:
        raise ConsoleError("a page must be one of the console's", status=404)
    content = files("coordinator.console").joinpath("static", known).read_bytes()
    headers = {"Cache-Control": "public, max-age=3600"}
    return Response(content, media_type=STATIC[known], headers=headers)


def give_cookie(
    response: Response,
    request: Request,
    kind: CookieKind,
    value: str,
    *,
    samesite: Literal["strict", "lax"] = "strict",
) -> None:
    """Give a browser a cookie for its own requests; an empty value takes it back.

    It is "lax" if it must come along when another website sends the browser here.
    """
    cookies: Cookies = request.app.state.cookies
    response.set_cookie(
        cookies.name(kind),
        value,
        max_age=None if value else 0,
        path="/",
        secure=cookies.is_secure,
        httponly=True,
        samesite=samesite,
    )


def step_plot(
    points: Sequence[tuple[float, float]], *, last: str, bound: float | None = None
) -> dict[str, object]:
    """Return a plot of a line, as an SVG path, that goes up in steps from 0.

    `points` are places along the axis and values, in order; `last` names the last place. A bound
    is a line of its own.
    """
    right = max(place for place, _ in points) or 1.0
    most = max(*(value for _, value in points), bound or 0.0) or 1.0

    def height(value: float) -> float:
        return _HEIGHT * (1 - value / (1.1 * most))

    path = [f"M0 {_HEIGHT:.1f}"]
    path += [f"H{_WIDTH * place / right:.1f}V{height(value):.1f}" for place, value in points]
    return {
        "line": "".join(path),
        "most": most,
        "last": last,
        "bound": None if bound is None else round(height(bound), 1),
        "width": _WIDTH,
        "height": _HEIGHT,
    }


def _moment(moment: datetime | None) -> str:
    return "never" if moment is None else f"{moment.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def _ago(moment: datetime | None, now: datetime) -> str:
    """Say how long ago a moment was, in its largest unit."""
    if moment is None:
        return "never"
    seconds = max(0, int((now - moment).total_seconds()))
    for name, length in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds >= length:
            return f"{wording.plural(seconds // length, name)} ago"
    return "just now"


def _parts(reason: str) -> Iterable[str]:
    return (why for code, why in words.WHY.items() if code in reason)


_ENVIRONMENT: Final = templates(
    "coordinator.console",
    moment=_moment,
    ago=_ago,
    why=_parts,
    words=spoken,
    percent=wording.percent,
    count=wording.count,
    epsilon=wording.epsilon_text,
    delta=wording.delta_text,
    size=wording.size_text,
)
_ENVIRONMENT.globals.update(
    plural=wording.plural,
    terms=words.TERMS,
    states=words.STATES,
    services=words.SERVICE,
    version=__version__,
)
