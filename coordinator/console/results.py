"""Results: the labels of a finished run, and its files."""

from __future__ import annotations

from collections import Counter
from pathlib import PurePath
from typing import Final

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from coordinator.console.access import finding, visit_of
from coordinator.console.rendering import page
from coordinator.console.runs import PAGE, place_of
from coordinator.runs.finished import PUBLIC_EDITION
from coordinator.runs.queue import ENDED
from pate_fed.run_folder import ANNEXES, LABELS, MODEL_CARD, REPORT, STUDENT

router = APIRouter()

_SHOWN: Final = 20

READABLE: Final = {
    REPORT: "text/html",
    ANNEXES: "text/html",
    LABELS: "text/plain",
    f"{STUDENT}/{MODEL_CARD}": "text/plain",
}
"""Files that a browser may show, and as what; any other is only downloaded."""

_APART: Final = "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:"
"""Policy of a shown file: it has styles of its own, and none of the console's rights."""


@router.get("/results")
def results(request: Request) -> Response:
    """Show the runs that ended, newest first."""
    coordinator, before = visit_of(request).coordinator, place_of(request.query_params)
    found = coordinator.queue.page(states=ENDED, before=before, most=PAGE + 1)
    return page(
        request,
        "results",
        runs=[(run, coordinator.finished.has(run.name)) for run in found[:PAGE]],
        older=found[PAGE - 1].number if len(found) > PAGE else None,
    )


@router.get("/runs/{run}/results")
def run_results(request: Request) -> Response:
    """Show the results of a run."""
    coordinator, name = visit_of(request).coordinator, request.path_params["run"]
    with finding():
        coordinator.queue.find(name)
        record, files = coordinator.finished.read(name)
    labels = Counter(label or "no answer" for _, label in record.labels)
    return page(
        request,
        "run_results",
        name=name,
        labels=labels.most_common(_SHOWN),
        answered=sum(bool(label) for _, label in record.labels),
        asked=len(record.labels),
        privacy=record.privacy,
        student=record.metrics.student,
        warnings=record.metrics.warnings,
        files=files,
        public=PUBLIC_EDITION,
        readable=READABLE,
    )


@router.get("/runs/{run}/results/{file:path}")
def file(request: Request) -> Response:
    """Hand out one file of a run's results, or show it; an audit entry tells it."""
    coordinator, wanted = visit_of(request).coordinator, request.path_params
    with finding():
        content = coordinator.hand_out(wanted["run"], wanted["file"])
    kind = READABLE.get(wanted["file"])
    if kind and request.query_params.get("show") == "yes":
        return Response(content, media_type=kind, headers={"Content-Security-Policy": _APART})
    name = f"{wanted['run']}-{PurePath(wanted['file']).name}"
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return Response(content, media_type="application/octet-stream", headers=headers)
