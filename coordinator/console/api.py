"""The API for programs: JSON under `/api/v1`, with a person's token and OpenAPI's description.

It shows what pages show, and the same roles may do the same: `ENDPOINTS` names a page's route for
each of its own.
"""

from __future__ import annotations

import hmac
from collections.abc import AsyncIterator, Mapping
from dataclasses import asdict
from datetime import datetime
from pathlib import PurePath
from typing import Any, Final

from fastapi import APIRouter, Depends, FastAPI, Security
from fastapi.exceptions import RequestValidationError
from fastapi.security import HTTPBearer
from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from coordinator import operator
from coordinator.console import new_run
from coordinator.console.access import ACCESS, finding
from coordinator.console.form_input import MOST_FIELDS, MOST_FORM_BYTES
from coordinator.console.runs import PAGE, place_of
from coordinator.errors import ConsoleError, InternalError
from coordinator.federation.home import utc_now
from coordinator.federation.readiness import readiness
from coordinator.operator import Coordinator
from coordinator.people.api_tokens import Scope
from coordinator.runs.queue import RunState
from coordinator.runs.request import RunRequest
from coordinator.runs.run_price import price_of_run
from coordinator.runs.standings import offline_since
from pate_fed.data.task import LearningTask
from pate_fed.nodes.web import read_form
from pate_fed.version import __version__

PREFIX: Final = "/api/v1"
DOOR: Final = "API token "
"""Where acts come from in the audit log, before the token's name."""

ENDPOINTS: Final[Mapping[tuple[str, str], tuple[Scope, tuple[str, str]]]] = {
    ("GET", "/runs"): (Scope.READ_RUNS, ("GET", "/runs")),
    ("POST", "/runs/cost"): (Scope.START_RUNS, ("POST", "/new-run/cost")),
    ("POST", "/runs"): (Scope.START_RUNS, ("POST", "/new-run")),
    ("GET", "/runs/{run}"): (Scope.READ_RUNS, ("GET", "/runs/{run}")),
    ("POST", "/runs/{run}/pause"): (Scope.STOP_RUNS, ("POST", "/runs/{run}/pause")),
    ("POST", "/runs/{run}/resume"): (Scope.START_RUNS, ("POST", "/runs/{run}/resume")),
    ("POST", "/runs/{run}/stop"): (Scope.STOP_RUNS, ("POST", "/runs/{run}/stop")),
    ("GET", "/runs/{run}/results"): (Scope.READ_RESULTS, ("GET", "/runs/{run}/results")),
    ("GET", "/runs/{run}/results/{file:path}"): (
        Scope.READ_RESULTS,
        ("GET", "/runs/{run}/results/{file:path}"),
    ),
    ("GET", "/hospitals"): (Scope.READ_HOSPITALS, ("GET", "/hospitals")),
    ("GET", "/privacy"): (Scope.READ_PRIVACY, ("GET", "/privacy")),
    ("GET", "/audit"): (Scope.READ_AUDIT, ("GET", "/audit")),
    ("GET", "/health"): (Scope.READ_HEALTH, ("GET", "/health")),
}
"""The scope of a token that opens each route, and the page's route whose roles may use it."""


class RunTable(BaseModel):
    """A run: its state and progress, in released values alone."""

    name: str
    state: str
    wanted: str
    reason: str
    progress: dict[str, float]
    created_at: datetime
    updated_at: datetime


class RunList(BaseModel):
    """Runs, newest first; the next page begins with `?before=` `next`, null on the last."""

    runs: list[RunTable]
    next: int | None


class OneRun(RunTable):
    """A run, and where each of its hospitals stands."""

    hospitals: list[dict[str, Any]]


class RunCost(BaseModel):
    """The cost of a run at most; `seen` goes with the order, and binds it to this cost."""

    name: str
    seen: str
    epsilon: float
    delta: float
    unit: str
    method: str
    new_queries: int
    free_queries: int
    hospitals: dict[str, float]


class ResultFile(BaseModel):
    """A file of results; `sha256` is empty for pages and the seal."""

    path: str
    size: int
    sha256: str


class RunResults(BaseModel):
    """What a run gave: released labels by class, its cost for who sees them, its files."""

    name: str
    asked: int
    answered: int
    epsilon: float | None
    delta: float
    unit: str
    student: str | None
    warnings: list[str]
    files: list[ResultFile]


class HospitalTable(BaseModel):
    """A hospital, as the page Hospitals shows it."""

    name: str
    state: str
    votes: int
    version: str
    seen_at: datetime | None
    offline_since: datetime | None


class HospitalSpent(BaseModel):
    """What runs cost a hospital's units: epsilons and deltas add up."""

    hospital: str
    unit: str
    runs: int
    epsilon: float
    delta: float


class FederationCost(BaseModel):
    """The federation's budget, null if none was set, and the cost of all runs."""

    budget: float | None
    spent: list[HospitalSpent]


class AuditPage(BaseModel):
    """Entries of the audit log, newest first; older ones with `?before=` `next`."""

    entries: list[dict[str, Any]]
    next: int | None


class Health(BaseModel):
    """Whether each part of the service is ready; null where no service answers."""

    parts: dict[str, bool] | None


class Problem(BaseModel):
    """A refusal: its stable code, the rule that was broken, and the value that broke it."""

    code: str
    must: str
    got: str


def make_api(coordinator: Coordinator) -> FastAPI:
    """Make the API of a federation, to be served under `PREFIX`."""
    api = FastAPI(
        title="pate-fed",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        responses={code: {"model": Problem} for code in (400, 401, 403, 404)},
        root_path_in_servers=False,
        servers=[{"url": PREFIX}],
    )
    _require_scopes()
    api.router.routes.extend(router.routes)
    api.state.coordinator = coordinator
    return api


def _require_scopes() -> None:
    """Refuse routes without a scope, and scopes without a route."""
    found = {
        (method, getattr(route, "path", ""))
        for route in router.routes
        for method in getattr(route, "methods", None) or {"?"}
    }
    if found != ENDPOINTS.keys():
        wrong = str(sorted(found ^ ENDPOINTS.keys()))
        raise ConsoleError("every route of the API must have its scope", wrong)


_BEARER: Final = HTTPBearer(auto_error=False, description="`pate-fed tokens add` makes one")


async def _guard(request: Request) -> AsyncIterator[None]:
    """Let a request through whose token and whose person may do it; a cookie counts nothing."""
    coordinator: Coordinator = request.app.state.coordinator
    kind, _, text = request.headers.get("authorization", "").partition(" ")
    token = None
    if kind.lower() == "bearer" and text:
        token = await run_in_threadpool(coordinator.tokens.find, text.strip())
    if token is None:
        must = "the header Authorization must be `Bearer` and a token that holds still"
        raise ConsoleError(must, "none, another, or one that ended", status=401)
    scope, page = ENDPOINTS[request.method, request.scope["route"].path]
    if scope not in token.scopes:
        raise ConsoleError(
            f"this needs a token with the scope {scope}", " ".join(sorted(token.scopes)), status=403
        )
    if token.role not in (roles := ACCESS[page] or frozenset()):
        may = " or ".join(sorted(role.value for role in roles))
        raise ConsoleError(f"this needs the role {may}", token.role.value, status=403)
    request.state.coordinator = coordinator.on_behalf_of(token.person, door=DOOR + token.name)
    form = request.state.form = await _form(request)
    try:
        yield
    finally:
        await form.close()


async def _form(request: Request) -> FormData:
    """Return the form of an order; one without a content is empty."""
    if request.method != "POST" or "content-type" not in request.headers:
        return FormData()
    return await read_form(
        request, most_fields=MOST_FIELDS, most_bytes=MOST_FORM_BYTES, files=1, fault=ConsoleError
    )


router = APIRouter(dependencies=[Depends(_guard), Security(_BEARER)])


def refusal(error: Exception, status: int) -> JSONResponse:
    """Answer an error."""
    must, got = getattr(error, "must", str(error)), str(getattr(error, "got", ""))
    problem = Problem(code=getattr(error, "code", InternalError.code), must=must, got=got)
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else None
    return JSONResponse(problem.model_dump(), status, headers=headers)


def not_served(request: Request, error: Exception) -> Response:  # noqa: ARG001 - Starlette's
    """Answer a path or a method that the API does not have."""
    assert isinstance(error, HTTPException)
    must = "a path and its method must be the API's: see openapi.json"
    return refusal(ConsoleError(must, "another"), error.status_code)


def misread(request: Request, error: Exception) -> Response:  # noqa: ARG001 - Starlette's
    """Answer parameters that cannot be read."""
    assert isinstance(error, RequestValidationError)
    names = ", ".join(sorted({str(one["loc"][-1]) for one in error.errors()}))
    must = "parameters must be as openapi.json describes them"
    return refusal(ConsoleError(must, ascii(names)[1:-1]), 400)


@router.get("/runs")
def runs(request: Request, state: RunState | None = None, before: str = "") -> RunList:
    """List runs, newest first."""
    queue = _acting(request).queue
    place = place_of(request.query_params) if before else None
    states = {state} if state else set()
    found = queue.page(states=states, before=place, most=PAGE + 1)
    older = found[PAGE - 1].number if len(found) > PAGE else None
    return RunList(
        runs=[RunTable.model_validate(one.as_table()) for one in found[:PAGE]], next=older
    )


_FORM: Final[Mapping[str, Mapping[str, object]]] = {
    "name": {"type": "string", "description": "Name of the run."},
    "file": {"type": "string", "format": "binary", "description": "Public rows; or `pool`."},
    "pool": {"type": "string", "description": "Digest of an earlier pool."},
    "label": {"type": "string", "description": "Column to predict."},
    "classes": {"type": "string", "description": "Separated by commas."},
    "ignore": {"type": "string", "description": "Columns to leave out, likewise."},
    "select": {"type": "string", "enum": [*new_run.SELECTIONS], "description": "Rows to ask."},
    "patience": {"type": "number", "description": "Hours to wait for hospitals."},
    "seen": {"type": "string", "description": "Of the cost, with an order."},
    **{
        one.key: {"type": "string", "description": one.label}
        for fields in new_run.FIELDS.values()
        for one in fields
    },
}
_NEEDED: Final = ["name", "select", "patience", "epsilon", "delta"]
_SCHEMA: Final = {"type": "object", "required": _NEEDED, "properties": _FORM}
_AS_THE_FORM: Final = {
    "requestBody": {"required": True, "content": {"multipart/form-data": {"schema": _SCHEMA}}}
}


def _draft(request: Request) -> tuple[LearningTask, RunRequest]:
    """Fill in the run of a request, without a field that nobody would read."""
    form: FormData = request.state.form
    unknown = sorted(form.keys() - _FORM.keys())
    if unknown:
        must = "fields must be those that openapi.json lists"
        raise ConsoleError(must, ascii(", ".join(unknown))[1:-1][:200])
    return new_run.draft(form, _acting(request))


@router.post("/runs/cost", openapi_extra=_AS_THE_FORM)
def cost(request: Request) -> RunCost:
    """Say the cost of a run, and store nothing."""
    task, order = _draft(request)
    price = price_of_run(order, pool=task.pool.inputs)
    names = [one.name for one in order.parties]
    return RunCost(
        name=order.name,
        seen=price.digest,
        epsilon=price.public.epsilon,
        delta=price.delta,
        unit=price.unit,
        method=price.public.method,
        new_queries=order.new_queries,
        free_queries=len(order.queries) - order.new_queries,
        hospitals=dict(zip(names, price.epsilons, strict=True)),
    )


@router.post("/runs", status_code=201, openapi_extra=_AS_THE_FORM)
def ask(request: Request) -> RunTable:
    """Queue a run whose cost was seen: `seen` must be that of its cost now."""
    task, order = _draft(request)
    price, seen = price_of_run(order, pool=task.pool.inputs), request.state.form.get("seen", "")
    if not isinstance(seen, str) or not hmac.compare_digest(seen.encode(), price.digest.encode()):
        raise ConsoleError("`seen` must be that of the run's cost now: ask for it", "another")
    return RunTable.model_validate(_acting(request).enqueue(order, task).as_table())


@router.get("/runs/{run}")
def one_run(request: Request, run: str) -> OneRun:
    """Show a run, and where its hospitals stand."""
    coordinator = _acting(request)
    with finding():
        found = coordinator.queue.find(run)
    stand = operator.standings(coordinator, [found])[found.name]
    return OneRun.model_validate(
        found.as_table() | {"hospitals": [one.as_table() for one in stand]}
    )


@router.post("/runs/{run}/pause")
def pause(request: Request, run: str) -> RunTable:
    """Let a run rest after its batch."""
    with finding():
        _acting(request).queue.find(run)
    return RunTable.model_validate(_acting(request).pause(run).as_table())


@router.post("/runs/{run}/resume")
def resume(request: Request, run: str) -> RunTable:
    """Let a paused run go on."""
    with finding():
        _acting(request).queue.find(run)
    return RunTable.model_validate(_acting(request).resume(run).as_table())


@router.post("/runs/{run}/stop")
def stop(request: Request, run: str) -> RunTable:
    """End a run after its batch: it cannot go on afterwards."""
    with finding():
        _acting(request).queue.find(run)
    return RunTable.model_validate(_acting(request).stop(run).as_table())


@router.get("/runs/{run}/results")
def results(request: Request, run: str) -> RunResults:
    """Show the results of a run that ended."""
    coordinator = _acting(request)
    with finding():
        coordinator.queue.find(run)
        record, files = coordinator.finished.read(run)
    student, privacy = record.metrics.student, record.privacy
    return RunResults(
        name=run,
        asked=len(record.labels),
        answered=sum(bool(label) for _, label in record.labels),
        epsilon=privacy.views.public.epsilon,
        delta=privacy.delta,
        unit=privacy.privacy_unit,
        student=student.kind if student else None,
        warnings=list(record.metrics.warnings),
        files=[ResultFile(**asdict(one)) for one in files],
    )


@router.get("/runs/{run}/results/{file:path}", response_class=Response)
def file(request: Request, run: str, file: str) -> Response:
    """Hand out one file of a run's results, or its public edition; an audit entry tells it."""
    with finding():
        content = _acting(request).hand_out(run, file)
    headers = {"Content-Disposition": f'attachment; filename="{run}-{PurePath(file).name}"'}
    return Response(content, media_type="application/octet-stream", headers=headers)


@router.get("/hospitals")
def hospitals(request: Request) -> list[HospitalTable]:
    """List hospitals that asked to join, were let in, or were revoked."""
    now = utc_now()
    return [
        HospitalTable(
            name=one.name,
            state=one.state,
            votes=one.votes,
            version=one.version,
            seen_at=one.seen_at,
            offline_since=offline_since(one, now=now),
        )
        for one in _acting(request).enrollment.parties()
    ]


@router.get("/privacy")
def privacy(request: Request) -> FederationCost:
    """Show the federation's budget, and what all runs cost each hospital's units."""
    coordinator = _acting(request)
    spent = [HospitalSpent(**asdict(one)) for one in coordinator.spending.by_hospital()]
    return FederationCost(budget=coordinator.budget.epsilon(), spent=spent)


@router.get("/audit")
def audit(request: Request, before: str = "") -> AuditPage:
    """List entries of the audit log, newest first."""
    place = place_of(request.query_params) if before else None
    entries, older = _acting(request).audit_log.newest(before=place, most=PAGE)
    return AuditPage(entries=entries, next=older)


@router.get("/health")
def health(request: Request) -> Health:
    """Say which parts of the service are ready."""
    return Health(parts=readiness(_acting(request).home))


def _acting(request: Request) -> Coordinator:
    """Return the federation, where acts are those of the token's person."""
    acting: Coordinator = request.state.coordinator
    return acting
