"""The audit log: search, export, and check the chain."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from threading import Lock
from typing import Final

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from coordinator.console.access import finding, visit_of
from coordinator.console.rendering import page, step_plot
from coordinator.console.runs import PAGE, place_of
from coordinator.errors import BrokenAuditLogError, ConsoleError
from coordinator.operator import Coordinator
from coordinator.runs.queue import ENDED
from pate_fed.nodes.audit_log import said_of
from pate_fed.nodes.forwarding import as_line
from pate_fed.record.audit import Step

router = APIRouter()

_MOST_LETTERS: Final = 100
_ONE_AT_A_TIME: Final = Lock()


@router.get("/audit")
def audit(request: Request) -> Response:
    """Show entries, newest first."""
    log = visit_of(request).coordinator.audit_log
    search = request.query_params.get("search", "").strip()
    act = request.query_params.get("act", "")
    if len(search) > _MOST_LETTERS:
        raise ConsoleError(f"a search must have at most {_MOST_LETTERS} letters", len(search))
    acts = [one.value for one in log.acts]
    words = [*search.split(), *([act] if act in acts else [])]
    found, older = log.newest(words=words, before=place_of(request.query_params), most=PAGE)
    template = "audit_entries" if "hx-request" in request.headers else "audit"
    return page(
        request,
        template,
        entries=[(one, *said_of(one)) for one in found],
        older=older,
        count=log.end[0],
        search=search,
        act=act if act in acts else "",
        acts=acts,
    )


@router.get("/audit/export")
def export(request: Request) -> Response:
    """Hand out all entries, one JSON object a line, after the chain was checked."""
    coordinator = visit_of(request).coordinator
    with _ONE_AT_A_TIME:
        coordinator.audit_log.verify()
    headers = {"Content-Disposition": 'attachment; filename="audit-log.jsonl"'}
    return StreamingResponse(
        _lines(coordinator), media_type="application/octet-stream", headers=headers
    )


@router.post("/audit/verify")
def verify(request: Request) -> Response:
    """Check the chain now."""
    log = visit_of(request).coordinator.audit_log
    with _ONE_AT_A_TIME:
        count, link = log.end
        try:
            log.verify(heads=[(count, link)])
            broken = ""
        except BrokenAuditLogError as error:
            broken = f"{error} [{error.code}]"
    return page(request, "audit_verified", count=count, head=link.hex(), broken=broken)


@router.get("/audit/vote-leak")
def vote_leak(request: Request) -> Response:
    """Show what a repeated question would tell about votes, by the rules of a finished run."""
    coordinator, name = visit_of(request).coordinator, request.query_params.get("run", "")
    ended = coordinator.queue.page(states=ENDED, most=PAGE)
    found = None
    if name:
        with finding():
            coordinator.queue.find(name)
            with _ONE_AT_A_TIME:
                found = coordinator.finished.leak(name)
    return page(
        request,
        "vote_leak",
        runs=[run.name for run in ended if coordinator.finished.has(run.name)],
        name=name,
        found=found,
        plot=None if found is None else _plot(found.curve),
    )


def _plot(curve: Sequence[Step]) -> dict[str, object]:
    """Return a plot of the attacker's mean error, in percent, over the answers they get."""
    points = [(math.log10(one.asks), 100 * one.mean_error) for one in curve]
    return step_plot(points, last=f"{curve[-1].asks:,}")


def _lines(coordinator: Coordinator) -> Iterator[str]:
    return (f"{as_line(table)}\n" for table in coordinator.audit_log.tables())
