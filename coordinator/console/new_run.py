"""A new run: its cost first, then the order. Nothing is stored before the cost was seen."""

from __future__ import annotations

import hmac
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from threading import Lock
from typing import Any, Final

from fastapi import APIRouter
from starlette.datastructures import FormData, UploadFile
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from coordinator.console.access import Visit, visit_of
from coordinator.console.form_input import (
    MOST_ROWS,
    MOST_UPLOAD_BYTES,
    file_of,
    number_of,
    optional_text,
    text_of,
)
from coordinator.console.rendering import page
from coordinator.console.words import TERMS
from coordinator.errors import ConsoleError
from coordinator.operator import Coordinator, changed_votes
from coordinator.runs.request import MOST_PATIENCE_S, RunRequest
from coordinator.runs.run_options import DEPLOYED_OPTIONS
from coordinator.runs.run_price import RunPrice, price_of_run
from pate_fed.accounting.ranges import RANGES
from pate_fed.data.image_files import is_images
from pate_fed.data.task import LearningTask
from pate_fed.options import Option
from pate_fed.public_images import PublicImages
from pate_fed.terms import MOST_PURPOSE

router = APIRouter()

SELECTIONS: Final = {
    "medoids": "the middle of groups of similar rows",
    "random": "random rows",
    "stratified": "one row of each part of the pool",
    "all": "all rows, in order",
}

_MECHANISMS: Final = {
    "": "usual",
    "gnmax": "gnmax: answers every query",
    "threshold": "threshold: gives no answer where the teachers disagree",
    "interactive-threshold": "interactive-threshold: answers where the teachers contradict the "
    "student",
    "lnmax": "lnmax: answers every query, with Laplace noise",
}

_VOTERS: Final = {
    "": "teachers, of the kind that each hospital chose",
    "neighbors": "patients, on the queries close to their records; hospitals must have set it",
}


@dataclass(frozen=True, slots=True)
class FormField:
    """A setting in the form.

    Attributes:
        words: Of its choices; with "" it may stay open.
        attributes: Of its input, besides those that follow from the row.
    """

    row: Option
    label: str
    hint: str
    words: Mapping[str, str] = field(default_factory=dict)
    attributes: Mapping[str, object] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """Its name in the form."""
        return self.row.flag.removeprefix("--").replace("-", "_")

    @property
    def choices(self) -> dict[str, str]:
        """Its possible values with their words; empty for any."""
        known = self.row.choices
        names = [*(known() if callable(known) else known)]
        if "" in self.words:
            names = ["", *(name for name in names if name != self.row.usual)]
        return {name: self.words.get(name, name) for name in names}

    @property
    def input(self) -> dict[str, object]:
        """The attributes of its input."""
        row, found = self.row, dict[str, object](name=self.key)
        if row.kind in (int, float):
            allowed = RANGES[row.place[1]]
            found |= {"type": "number", "min": f"{max(0, allowed.least):g}"}
            found |= {"step": "any"} if row.kind is float else {"max": allowed.most}
            found |= {"value": None if row.usual is None else f"{row.usual:g}"}
        return {**found, **self.attributes}

    def read(self, form: FormData) -> Any:
        """Return its value; None if it stays open."""
        if self.row.kind in (int, float):
            found = number_of(form, self.key, self.row.kind, label=self.label)
            if found is None and "required" in self.attributes:
                raise ConsoleError(f"{self.label} must be filled in")
            return self.row.usual if found is None else found
        text = optional_text(form, self.key, label=self.label, most=300)
        if (choices := self.choices) and text not in choices:
            raise ConsoleError(f"{self.label} must be one of the choices")
        return text or None


_NEEDED: Final = {"required": ""}
FIELDS: Final[Mapping[str, tuple[FormField, ...]]] = {
    "rows": (
        FormField(
            DEPLOYED_OPTIONS["queries"],
            "Number of queries",
            f"empty: as many as usual. {TERMS['query']}",
        ),
    ),
    "privacy": (
        FormField(DEPLOYED_OPTIONS["epsilon"], "Epsilon", TERMS["budget"], attributes=_NEEDED),
        FormField(
            DEPLOYED_OPTIONS["delta"],
            "Delta",
            TERMS["delta"],
            attributes={"type": "text", "min": None, "step": None, "maxlength": 20, **_NEEDED},
        ),
        FormField(
            DEPLOYED_OPTIONS["unit"],
            "Unit",
            TERMS["unit"],
            {
                "": "usual: a patient, or a hospital with one teacher",
                "record": "a patient's records",
                "party": "a whole hospital",
            },
        ),
        FormField(DEPLOYED_OPTIONS["mechanism"], "Mechanism", TERMS["mechanism"], _MECHANISMS),
        FormField(DEPLOYED_OPTIONS["teacher"], "Who votes", TERMS["voters"], _VOTERS),
        FormField(
            DEPLOYED_OPTIONS["patient_votes"],
            "Votes of a patient",
            "where patients vote: queries that one votes on in the run, at most; epsilon follows "
            "from it; empty: 8 % of the queries",
        ),
    ),
    "noise": (
        FormField(
            DEPLOYED_OPTIONS["sigma2"],
            "Noise of each count",
            TERMS["sigma"],
            attributes={"placeholder": "as little as the budget allows"},
        ),
        FormField(DEPLOYED_OPTIONS["vote_threshold"], "Vote threshold", TERMS["threshold"]),
        FormField(
            DEPLOYED_OPTIONS["noise"],
            "Who adds the noise",
            TERMS["noise"],
            {
                "": "usual: with a tally both aggregators, otherwise the coordinator",
                "coordinator": "the coordinator: it must be trusted",
                "parties": "the hospitals: the coordinator sees noisy counts only",
                "aggregators": "coordinator and tally, each the full amount: with the verified sum",
            },
        ),
        FormField(DEPLOYED_OPTIONS["form"], "Secure sum", TERMS["secure sum"], {"": "usual"}),
        FormField(DEPLOYED_OPTIONS["batch_size"], "Queries per batch", TERMS["batch"]),
    ),
    "run": (
        FormField(DEPLOYED_OPTIONS["student"], "Student", TERMS["student"], {"": "usual"}),
        FormField(
            DEPLOYED_OPTIONS["coverage"],
            "Coverage of sets",
            "such as 0.9: the student also gives sets of classes that hold a row's released label "
            "so often; a fifth of the queries calibrates them; empty: no sets",
        ),
        FormField(
            DEPLOYED_OPTIONS["purpose"],
            "Purpose",
            "why you ask: hospitals read it before they approve; stands on the report's first "
            "page; may stay empty",
            attributes={"maxlength": MOST_PURPOSE},
        ),
    ),
}
"""The settings that the form asks for, in its parts."""

_MOST_IMAGES: Final = 120
"""Most images that are shown small beside a cost."""

_ONE_AT_A_TIME: Final = Lock()
"""To choose queries and find the smallest noise takes seconds of a processor."""


@router.get("/new-run")
def new_run(request: Request) -> Response:
    """Show the form."""
    return page(request, "new_run", **_choices(visit_of(request).coordinator), price=None, note="")


@router.post("/new-run/cost")
def cost(request: Request) -> Response:
    """Show the cost of a run, and store nothing."""
    visit = visit_of(request)
    task, order = draft(visit.form, visit.coordinator)
    return _shown(request, visit, task, price_of_run(order, pool=task.pool.inputs), note="")


@router.post("/new-run")
def ask(request: Request) -> Response:
    """Queue a run whose cost was seen."""
    visit = visit_of(request)
    task, order = draft(visit.form, visit.coordinator)
    price = price_of_run(order, pool=task.pool.inputs)
    seen = optional_text(visit.form, "seen", most=64)
    if not hmac.compare_digest(seen.encode(), price.digest.encode()):
        note = "The run is not the one whose cost you saw. This is its cost now: read it again."
        return _shown(request, visit, task, price, note=note)
    queued = visit.coordinator.enqueue(order, task)
    where = f"/runs/{queued.name}"
    if "hx-request" in request.headers:
        return Response(status_code=204, headers={"HX-Redirect": where})
    return RedirectResponse(where, 303)


def _shown(
    request: Request, visit: Visit, task: LearningTask, price: RunPrice, *, note: str
) -> Response:
    used, budget = visit.coordinator.spending.committed(), visit.coordinator.budget.epsilon()
    left = {
        one.name: None if budget is None else max(0.0, budget - used.get(one.name, 0.0))
        for one in price.request.parties
    }
    changed = changed_votes(visit.coordinator, price.request)
    values: dict[str, Any] = {
        **{"price": price, "note": note, "used": used, "left": left, "changed": changed},
        "images": len(task.rows) if isinstance(task.rows, PublicImages) else 0,
        "most_images": _MOST_IMAGES,
        "sheet": task.rows.sheet_address(most=_MOST_IMAGES)
        if isinstance(task.rows, PublicImages)
        else "",
    }
    if "hx-request" in request.headers:
        return page(request, "cost", **values)
    return page(request, "new_run", **_choices(visit.coordinator), **values)


def _choices(coordinator: Coordinator) -> dict[str, Any]:
    members = [one for one in coordinator.enrollment.parties() if one.state == "member"]
    return {
        "pools": [(digest.hex(), schema) for digest, schema in coordinator.pools.all().items()],
        "members": members,
        "fields": FIELDS,
        "selections": SELECTIONS,
        "most_mib": MOST_UPLOAD_BYTES // 2**20,
        "most_rows": MOST_ROWS,
    }


def draft(form: FormData, coordinator: Coordinator) -> tuple[LearningTask, RunRequest]:
    """Fill in the run of a form, and store nothing."""
    with _ONE_AT_A_TIME:
        task = _task(form, coordinator)
        select = text_of(form, "select", label="Rows to ask", most=20)
        if select not in SELECTIONS:
            raise ConsoleError("rows to ask must be one of the choices")
        given = {one.row.name: one.read(form) for fields in FIELDS.values() for one in fields}
        request = coordinator.draft(
            text_of(form, "name", label="Name of the run", most=64),
            task,
            coordinator.settings_of(given, source=task.name, label=task.label, kind=task.kind),
            source=task.name,
            select=select,
            patience_s=_patience_s(form),
        )
    return task, request


def _task(form: FormData, coordinator: Coordinator) -> LearningTask:
    chosen = optional_text(form, "pool", most=64)
    if chosen:
        if not re.fullmatch(r"[0-9a-f]{64}", chosen):
            raise ConsoleError("the queries must be one of the choices")
        return coordinator.pools.find(bytes.fromhex(chosen))
    upload = file_of(form, "file")
    if upload is None:
        raise ConsoleError("choose a file of public rows, or rows of an earlier run")
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
    """Keep an upload while it is read: a table or images, and nothing of it is ever run."""
    content = upload.file.read()
    rows = 0 if is_images(path) else content.count(b"\n")
    if rows > MOST_ROWS:
        raise ConsoleError(f"a file must have at most {MOST_ROWS:,} lines", f"{rows:,}", status=413)
    path.write_bytes(content)


def _plain_name(name: str) -> str:
    """Return a file's name without folders and marks: hospitals see it as the task's name."""
    last = PurePath(name.replace("\\", "/")).name
    return re.sub(r"[^A-Za-z0-9._-]", "-", last).lstrip(".")[:80] or "queries.csv"


def _patience_s(form: FormData) -> float:
    hours = number_of(form, "patience", float, label="Hours to wait")
    if hours is None or not 0 < hours * 3600 <= MOST_PATIENCE_S:
        raise ConsoleError("Hours to wait must be above 0, and at most a year", hours)
    return hours * 3600
