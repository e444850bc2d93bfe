"""A new run: its cost first, then the order. Nothing is stored before the cost was seen."""

from __future__ import annotations

import hmac
import re
import tempfile
from pathlib import Path, PurePath
from threading import Lock
from typing import Any, Final

from fastapi import APIRouter
from starlette.datastructures import FormData, UploadFile
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from coordinator.console.access import Visit, visit_of
from coordinator.console.forms import (
    MOST_ROWS,
    MOST_UPLOAD_BYTES,
    file_of,
    number_of,
    optional_text,
    text_of,
)
from coordinator.console.rendering import page
from coordinator.errors import ConsoleError
from coordinator.operator import Coordinator
from coordinator.runs.quote import Quote, quote_of
from coordinator.runs.request import MOST_PATIENCE_S, RunRequest, source_of
from pate_fed.data.task import LearningTask
from pate_fed.mechanisms import DEPLOYED
from pate_fed.planning import RunSettings, usual_mechanism
from pate_fed.rule import Caps, Rule
from protocols.forms import DEPLOYED_FORMS, usual_form
from protocols.suites import DEFAULT_SUITE

router = APIRouter()

SELECTIONS: Final = {
    "medoids": "the middle of groups of similar rows",
    "random": "random rows",
    "stratified": "one row of each part of the pool",
    "all": "all rows, in order",
}
MECHANISMS: Final = {
    "gnmax": "answers every query",
    "threshold": "gives no answer where the teachers disagree",
    "interactive-threshold": "answers where the teachers contradict the student",
    "lnmax": "answers every query, with Laplace noise",
}
_ONE_AT_A_TIME: Final = Lock()
"""To choose queries and find the smallest noise takes seconds of a processor."""


@router.get("/new-run")
def new_run(request: Request) -> Response:
    """Show the form."""
    return page(request, "new_run", **_choices(visit_of(request).coordinator), quote=None, note="")


@router.post("/new-run/cost")
def cost(request: Request) -> Response:
    """Show the cost of a run, and store nothing."""
    visit = visit_of(request)
    task, order = _draft(visit)
    return _shown(request, visit, quote_of(order, pool=task.pool.inputs), note="")


@router.post("/new-run")
def ask(request: Request) -> Response:
    """Queue a run whose cost was seen."""
    visit = visit_of(request)
    task, order = _draft(visit)
    quote = quote_of(order, pool=task.pool.inputs)
    seen = optional_text(visit.form, "seen", most=64)
    if not hmac.compare_digest(seen.encode(), quote.digest.encode()):
        note = "The run is not the one whose cost you saw. This is its cost now: read it again."
        return _shown(request, visit, quote, note=note)
    queued = visit.coordinator.enqueue(order, task)
    where = f"/runs/{queued.name}"
    if "hx-request" in request.headers:
        return Response(status_code=204, headers={"HX-Redirect": where})
    return RedirectResponse(where, 303)


def _shown(request: Request, visit: Visit, quote: Quote, *, note: str) -> Response:
    used, budget = visit.coordinator.spending.committed(), visit.coordinator.budget.epsilon()
    left = {
        one.name: None if budget is None else max(0.0, budget - used.get(one.name, 0.0))
        for one in quote.hospitals
    }
    values: dict[str, Any] = {"quote": quote, "note": note, "used": used, "left": left}
    if "hx-request" in request.headers:
        return page(request, "cost", **values)
    return page(request, "new_run", **_choices(visit.coordinator), **values)


def _choices(coordinator: Coordinator) -> dict[str, Any]:
    members = [one for one in coordinator.members() if one.state == "member"]
    return {
        "pools": [(digest.hex(), schema) for digest, schema in coordinator.pools.all().items()],
        "members": members,
        "mechanisms": {name: MECHANISMS.get(name, "") for name in DEPLOYED},
        "selections": SELECTIONS,
        "students": [name for name in _students() if name != "auto"],
        "forms": sorted(DEPLOYED_FORMS),
        "most_mib": MOST_UPLOAD_BYTES // 2**20,
        "most_rows": MOST_ROWS,
    }


def _draft(visit: Visit) -> tuple[LearningTask, RunRequest]:
    form, coordinator = visit.form, visit.coordinator
    with _ONE_AT_A_TIME:
        task = _task(form, coordinator)
        select = text_of(form, "select", label="Rows to ask", most=20)
        if select not in SELECTIONS:
            raise ConsoleError("rows to ask must be one of the choices", "another")
        request = coordinator.draft(
            text_of(form, "name", label="Name of the run", most=64),
            task,
            _settings(form, coordinator, task),
            source=task.name,
            select=select,
            patience_s=_patience_s(form),
        )
    return task, request


def _task(form: FormData, coordinator: Coordinator) -> LearningTask:
    chosen = optional_text(form, "pool", most=64)
    if chosen:
        if not re.fullmatch(r"[0-9a-f]{64}", chosen):
            raise ConsoleError("the queries must be one of the choices", "another")
        return coordinator.pools.find(bytes.fromhex(chosen))
    upload = file_of(form, "file")
    if upload is None:
        raise ConsoleError("choose a file of public rows, or rows of an earlier run", "none")
    classes = text_of(form, "classes", label="Classes")
    with tempfile.TemporaryDirectory(prefix="pate-fed-upload-") as folder:
        path = Path(folder, _plain_name(upload.filename or ""))
        _save(upload, path)
        return coordinator.read_queries(
            path,
            label=text_of(form, "label", label="Column to predict", most=200),
            classes=[one.strip() for one in classes.split(",")],
            ignored=[
                one.strip() for one in optional_text(form, "ignore").split(",") if one.strip()
            ],
        )


def _save(upload: UploadFile, path: Path) -> None:
    """Keep an upload while it is read; it is a table, and nothing of it is ever run."""
    content = upload.file.read(MOST_UPLOAD_BYTES + 1)
    if len(content) > MOST_UPLOAD_BYTES:
        raise ConsoleError("a file must be smaller", "more", status=413)
    if (rows := content.count(b"\n")) > MOST_ROWS:
        raise ConsoleError(f"a file must have at most {MOST_ROWS:,} lines", f"{rows:,}", status=413)
    path.write_bytes(content)


def _plain_name(name: str) -> str:
    """Return a file's name without folders and marks: hospitals see it as the task's name."""
    last = PurePath(name.replace("\\", "/")).name
    return re.sub(r"[^A-Za-z0-9._-]", "-", last).lstrip(".")[:80] or "queries.csv"


def _settings(form: FormData, coordinator: Coordinator, task: LearningTask) -> RunSettings:
    threshold = number_of(form, "vote_threshold", float, label="Vote threshold")
    noise = _choice(form, "noise", ("coordinator", "parties"), label="Who adds the noise")
    mechanism = _choice(form, "mechanism", ("", *DEPLOYED), label="Mechanism")
    sums = _choice(form, "sum", ("", *DEPLOYED_FORMS), label="Secure sum")
    unit = _choice(form, "unit", ("", "record", "party"), label="Unit")
    members = sum(one.state == "member" for one in coordinator.members())
    return RunSettings(
        data=source_of(task.name, task.label),
        rule=Rule(
            mechanism or usual_mechanism(may_refuse=threshold is not None),
            vote_threshold=threshold,
            sigma2=number_of(form, "sigma2", float, label="Noise of each count"),
            noise_place=noise,  # type: ignore[arg-type]  # one of the choices
        ),
        caps=Caps(
            max_asks=number_of(form, "ask", int, label="Number of queries"),
            batch_size=number_of(form, "batch_size", int, label="Queries per batch") or 20,
        ),
        form=sums or usual_form(members),
        suite=DEFAULT_SUITE,
        unit=unit or None,  # type: ignore[arg-type]  # the same
        epsilon=_required(number_of(form, "epsilon", float, label="Epsilon"), "Epsilon"),
        delta=_required(number_of(form, "delta", float, label="Delta"), "Delta"),
        purpose=optional_text(form, "purpose", label="Purpose", most=300),
        student=_choice(form, "student", ("", *_students()), label="Student") or "auto",
    )


def _students() -> tuple[str, ...]:
    from pate_fed.students import students_for  # noqa: PLC0415 - takes seconds

    return students_for("table")


def _choice(form: FormData, name: str, known: tuple[str, ...], *, label: str) -> str:
    found = optional_text(form, name, label=label, most=40)
    if found not in known:
        raise ConsoleError(f"{label} must be one of the choices", "another")
    return found


def _required(number: float | None, label: str) -> float:
    if number is None:
        raise ConsoleError(f"{label} must be filled in", "nothing")
    return number


def _patience_s(form: FormData) -> float:
    hours = number_of(form, "patience", float, label="Hours to wait")
    if hours is None or not 0 < hours * 3600 <= MOST_PATIENCE_S:
        raise ConsoleError("Hours to wait must be above 0, and at most a year", hours)
    return hours * 3600
