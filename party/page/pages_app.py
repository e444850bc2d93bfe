"""The pages and forms of the hospital's page, behind the gate."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection
from dataclasses import replace
from importlib.resources import files
from threading import Lock
from typing import Any, Final

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.types import ASGIApp

from party.errors import (
    ApprovalError,
    Fault,
    PageError,
    PartyError,
    PartyInternalError,
    code_of,
    fault_line,
)
from party.owner import OpenSite, open_site, refused_for_tally, state_of_node
from party.page import views
from party.page.approvals import Approvals
from party.page.session import COOKIE, SESSION_LIFETIME_S, PageSessions
from party.people_tables import budget_table, runs_table, sent_table
from party.site.people_decisions import MOST_REASON_LETTERS, Approval, ApprovalState
from party.site.status_file import FILE as STATUS_FILE
from party.site.status_file import known_status
from party.storage.site_audit_log import SiteAct
from pate_fed import wording
from pate_fed.data.task import LearningTask
from pate_fed.errors import PateFedError
from pate_fed.nodes.audit_log import said_of
from pate_fed.nodes.forwarding import as_line
from pate_fed.nodes.terminal import minute, place_of
from pate_fed.nodes.web import POLICY, Shield, is_same, read_form, require_token, templates
from pate_fed.public_images import PublicImages, contact_sheet
from protocols.errors import ProtocolError

NAV: Final = (
    ("./", "To decide"),
    ("decided", "Decided"),
    ("budget", "Budget"),
    ("sent", "What left"),
    ("data", "Data"),
    ("results", "Results"),
    ("audit", "Audit log"),
)
STYLE: Final = "style.css"
ENTER: Final = "enter"
SENT_AT_ONCE: Final = 50
CSRF_FIELD: Final = "csrf"
MOST_FORM_BYTES: Final = 16 * 1024
MOST_FIELDS: Final = 12
MOST_SEARCH_LETTERS: Final = 200
_DIGEST_LETTERS = 64
_MOST_SKIP = 10**9
_SEE_OTHER, _FORBIDDEN = 303, 403
_log = logging.getLogger(__name__)

Show = Callable[[Request], Response]
Answer = Callable[[Request], Awaitable[Response]]


def build(opened: OpenSite, *, sessions: PageSessions, hosts: Collection[str], by: str) -> ASGIApp:
    """Make the app; `hosts` are the names of this server, as browsers send them."""
    pages = Pages(opened, sessions=sessions, by=by)
    style = files("party.page").joinpath("templates", STYLE).read_bytes()
    shown: dict[str, tuple[Show, str]] = {
        "/": (pages.waiting, "GET"),
        "/request": (pages.request, "GET"),
        "/pool": (pages.pool, "GET"),
        "/thumbnails": (pages.thumbnails, "GET"),
        "/decided": (pages.decided, "GET"),
        "/budget": (pages.budget, "GET"),
        "/sent": (pages.sent, "GET"),
        "/data": (pages.data, "GET"),
        "/results": (pages.results, "GET"),
        "/audit": (pages.audit, "GET"),
        "/export": (pages.export, "GET"),
        "/approve": (pages.approve, "POST"),
        "/reject": (pages.reject, "POST"),
        "/pause": (pages.pause, "POST"),
        "/resume": (pages.resume, "POST"),
        "/leave": (pages.leave, "POST"),
    }
    routes = [
        Route(path, pages.safe(show), methods=[method]) for path, (show, method) in shown.items()
    ]
    open_to_all: dict[str, Show] = {
        f"/{STYLE}": lambda _: Response(style, media_type="text/css"),
        f"/{ENTER}": pages.enter,
    }
    routes += [
        Route(path, pages.safe(show, needs_session=False)) for path, show in open_to_all.items()
    ]
    app = Starlette(routes=[Mount("/{room}", routes=routes)])
    app.router.redirect_slashes = False
    return Shield(
        app,
        hosts=hosts,
        policy=f"{POLICY}; img-src 'self'",
        most_bytes=lambda _: MOST_FORM_BYTES,
        codes=(PageError.code, PartyInternalError.code),
    )


class Pages:
    """The pages of one hospital, for the person who decides."""

    def __init__(self, opened: OpenSite, *, sessions: PageSessions, by: str) -> None:
        self._opened = opened
        self._sessions = sessions
        self._by = by
        self._approvals = Approvals()
        self._comparing = Lock()
        self._kept: dict[object, tuple[object, Any]] = {}

    # Signing in and out -----------------------------------------------------------------------

    def enter(self, request: Request) -> Response:
        """Exchange the one-time link for the session's cookie."""
        cookie = self._sessions.open(request.query_params.get("link", ""))
        if cookie is None:
            return HTMLResponse(_template("enter.html.j2").render(is_open=False), _FORBIDDEN)
        self._opened.decisions.state.note_page(by=self._by)
        # A page and not a redirect: a browser that came from elsewhere would not bring the cookie.
        answer = HTMLResponse(_template("enter.html.j2").render(is_open=True))
        answer.set_cookie(
            COOKIE,
            cookie,
            max_age=int(SESSION_LIFETIME_S),
            path=f"/{self._sessions.room}/",
            httponly=True,
            samesite="strict",
        )
        return answer

    def leave(self, _: Request) -> Response:
        """End the session."""
        self._sessions.close()
        return HTMLResponse(_template("left.html.j2").render())

    # Pages ------------------------------------------------------------------------------------

    def waiting(self, request: Request) -> Response:
        """Show the requests that wait for a decision."""
        opened = self._now
        found = views.waiting(opened)
        refused = [] if found else list(refused_for_tally(opened.site))
        return self._show(request, "waiting", waiting=found, refused=refused)

    def request(self, request: Request) -> Response:
        """Show one request in full, with the forms to decide on it."""
        opened = self._now
        approval = self._asked(request.query_params.get("digest", ""))
        found = opened.request(approval)
        return self._show(
            request,
            "request",
            one=found,
            terms=views.terms_of(found),
            fit=None if found.review is None else found.review.fit,
            most_columns=views.MOST_COLUMNS,
            most_thumbnails=views.MOST_THUMBNAILS,
            can_approve=not found.faults and approval.state is not ApprovalState.APPROVED,
            can_reject=approval.state is not ApprovalState.REJECTED,
            most_letters=MOST_REASON_LETTERS,
            trains=not opened.site.settings.do_records_vote,
        )

    def pool(self, request: Request) -> Response:
        """Send the public inputs that a request is about, as a CSV file."""
        approval = self._asked(request.query_params.get("digest", ""))
        task = self._now.task(approval)
        if not isinstance(task, LearningTask):
            raise ApprovalError("the request must be of public inputs")
        if isinstance(task.rows, PublicImages):
            headers = {"content-disposition": 'attachment; filename="pool.zip"'}
            return Response(task.rows.as_zip(), media_type="application/zip", headers=headers)
        headers = {"content-disposition": 'attachment; filename="pool.csv"'}
        lines = (line.encode() for line in task.rows.csv_lines())
        return StreamingResponse(lines, media_type="text/csv", headers=headers)

    def thumbnails(self, request: Request) -> Response:
        """Send small copies of the first public images that a request is about, as one image."""
        task = self._now.task(self._asked(request.query_params.get("digest", "")))
        if not isinstance(task, LearningTask) or not isinstance(task.rows, PublicImages):
            raise ApprovalError("the request must be of public images")
        sheet = contact_sheet([task.rows.pixels[: views.MOST_THUMBNAILS]])
        return Response(sheet, media_type="image/png")

    def decided(self, request: Request) -> Response:
        """Show past decisions."""
        return self._show(request, "decided", decided=views.decided(self._now))

    def data(self, request: Request) -> Response:
        """Show the registered table and the kept tasks."""
        return self._show(request, "data", **views.data_sets(self._now))

    def budget(self, request: Request) -> Response:
        """Show the budget for life, and each run's charge."""
        return self._show(request, "budget", **self._at_head(budget_table))

    def sent(self, request: Request) -> Response:
        """Show the messages that left this site."""
        skip = _number(request, "skip") or 0
        found = sent_table(self._now, most=SENT_AT_ONCE, skip=skip)
        older = skip + SENT_AT_ONCE if skip + SENT_AT_ONCE < found["rows"] else None
        newer = max(0, skip - SENT_AT_ONCE) if skip else None
        return self._show(request, "sent", older=older, newer=newer, **found)

    def results(self, request: Request) -> Response:
        """Show the runs that this hospital answered in."""
        runs, compared = self._at_head(runs_table), request.query_params.get("compare", "")
        rows: list[str] = []
        says = ""
        if compared:
            with self._comparing:  # takes seconds of the processor
                rows, says = views.compare(self._now, compared)
        kept = views.evaluations(self._now)
        return self._show(request, "results", runs=runs, evaluations=kept, rows=rows, says=says)

    def audit(self, request: Request) -> Response:
        """Show the audit log, searched and checked."""
        log, search = self._opened.log, request.query_params.get("search", "")[:MOST_SEARCH_LETTERS]
        found, older = log.newest(words=search.split(), before=_number(request, "before"))
        is_checked = request.query_params.get("check") == "1"
        if is_checked:
            log.verify()  # raises, and the page says where
        count, head = log.end
        return self._show(
            request,
            "audit",
            is_checked=is_checked,
            count=count,
            head=head.hex(),
            entries=[(one, *said_of(one)) for one in found],
            older=older,
            search=search,
        )

    def export(self, _: Request) -> Response:
        """Send the whole audit log, checked, as a file of JSON lines."""
        self._opened.log.verify()
        what = {"what": "audit log"}
        self._opened.decisions.state.note_taken(SiteAct.EXPORTED, what, by=self._by)
        lines = (f"{as_line(table)}\n".encode("ascii") for table in self._opened.log.tables())
        headers = {"content-disposition": 'attachment; filename="audit-log.jsonl"'}
        return StreamingResponse(lines, media_type="application/x-ndjson", headers=headers)

    # Decisions --------------------------------------------------------------------------------

    def approve(self, request: Request) -> Response:
        """Begin an approval: teachers are trained first."""
        form = request.state.form
        approval = self._asked(str(form.get("digest", "")))
        opened = self._now
        reason = str(form.get("reason", "")).strip()
        self._approvals.start(opened, opened.request(approval), by=self._by, reason=reason)
        return RedirectResponse("./", _SEE_OTHER)

    def reject(self, request: Request) -> Response:
        """Reject a request, or withdraw its approval."""
        form = request.state.form
        approval = self._asked(str(form.get("digest", "")))
        reason = str(form.get("reason", "")).strip()
        if not reason:
            raise ApprovalError("a rejection on this page must have a reason: go back")
        words = str(form.get("words", "")).strip()
        self._opened.reject(approval, by=self._by, reason=reason, words=words)
        return RedirectResponse("decided", _SEE_OTHER)

    def pause(self, _: Request) -> Response:
        """Refuse every new batch from now on."""
        self._opened.decisions.state.pause(by=self._by)
        return RedirectResponse("./", _SEE_OTHER)

    def resume(self, _: Request) -> Response:
        """Take part again."""
        self._opened.decisions.state.resume(by=self._by)
        return RedirectResponse("./", _SEE_OTHER)

    # Helpers ----------------------------------------------------------------------------------

    def safe(self, show: Show, *, needs_session: bool = True) -> Answer:
        """Return a page that says its faults in words, and never in a traceback."""

        async def shown(request: Request) -> Response:
            try:
                await self._check(request, needs_session=needs_session)
                return await run_in_threadpool(show, request)
            except HTTPException as error:
                fault: Fault = PageError(error.detail, status=error.status_code)
            except (PartyError, PateFedError, ProtocolError) as error:
                fault = error
            except Exception as error:
                _log.error("a page failed: %s", place_of(error))
                fault = PartyInternalError("this program must not fail", place_of(error))
            template = _template("fault.html.j2")
            said = template.render(code=code_of(fault), said=str(fault))
            return HTMLResponse(said, _status_of(fault))

        return shown

    async def _check(self, request: Request, *, needs_session: bool) -> None:
        """Let requests of the session through, and nobody else's."""
        if not is_same(request.path_params["room"], self._sessions.room):
            raise PageError("use the link from the terminal", status=404)
        if not needs_session:
            return
        session = self._sessions.find(request.cookies.get(COOKIE, ""))
        if session is None:
            raise PageError(
                "you must be signed in: type pate-party page in a terminal of this machine, and "
                "open the link that it prints",
                status=403,
            )
        request.state.session = session
        if request.method == "POST":
            most = {"most_fields": MOST_FIELDS, "most_bytes": MOST_FORM_BYTES}
            request.state.form = await read_form(request, **most, fault=PageError)
            require_token(request.state.form, CSRF_FIELD, session.csrf, fault=PageError)

    @property
    def _now(self) -> OpenSite:
        """The hospital, with the settings that its file has now."""
        return replace(self._opened, site=open_site(self._opened.site.folder))

    def _at_head(self, view: Callable[[OpenSite], Any]) -> Any:
        """Return a view of the whole audit log, read anew when the log or the settings change."""
        opened = self._now
        state = opened.log.end, opened.site.settings_digest
        if self._kept.get(view, (None, None))[0] != state:
            self._kept[view] = state, view(opened)
        return self._kept[view][1]

    def _asked(self, digest: str) -> Approval:
        """Return the request of a whole digest, as our own forms and links have it."""
        if len(digest) != _DIGEST_LETTERS:
            raise ApprovalError("a request must be one that this page lists")
        return self._opened.find(digest)

    def _show(self, request: Request, page: str, **values: Any) -> Response:
        status = known_status(self._opened.site.path(STATUS_FILE))
        paused = self._opened.decisions.state.paused()
        newest = self._approvals.newest
        return HTMLResponse(
            _template(f"{page}.html.j2").render(
                nav=NAV,
                here="./" if page in ("waiting", "request") else page,
                csrf=request.state.session.csrf,
                by=self._by,
                node="never started" if status is None else state_of_node(self._now.site, status),
                trouble="" if status is None else status.trouble,
                paused=None if paused is None else (paused[0], minute(paused[1])),
                training=newest,
                refresh=page == "waiting" and newest is not None and not newest.is_over,
                **values,
            )
        )


def _number(request: Request, name: str) -> int | None:
    """Return a number of the query; None where it is none."""
    text = request.query_params.get(name, "")
    is_number = text.isascii() and text.isdecimal() and len(text) <= len(str(_MOST_SKIP))
    return int(text) if is_number else None


def _status_of(fault: Fault) -> int:
    if isinstance(fault, PageError):
        return fault.status
    if isinstance(fault, PartyInternalError):
        return 500
    return 400 if isinstance(fault, ApprovalError) else 409


_TEMPLATES: Final = templates(
    "party.page",
    epsilon=wording.epsilon_text,
    percent=wording.percent,
    room=wording.room_words,
    size=wording.size_text,
    unit=views.UNITS.get,
    fault=fault_line,
    minute=minute,
)


def _template(name: str) -> Any:
    return _TEMPLATES.get_template(name)
