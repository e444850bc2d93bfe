"""A new run in four steps: rows, label, budget, hospitals. Its cost first, then the order."""

from __future__ import annotations

import hmac
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
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
from coordinator.console.public_rows import MOST_CLASSES, SeenRows, look_at_file, look_at_task
from coordinator.console.rendering import page
from coordinator.console.words import TERMS
from coordinator.errors import ConsoleError
from coordinator.federation.home import utc_now
from coordinator.operator import Coordinator, changed_votes
from coordinator.runs.request import MOST_PATIENCE_S, RunRequest
from coordinator.runs.run_options import DEPLOYED_OPTIONS
from coordinator.runs.run_price import RunPrice, price_of_run
from coordinator.runs.standings import offline_since
from pate_fed.accounting.ranges import RANGES
from pate_fed.data.image_files import is_images
from pate_fed.data.task import LearningTask
from pate_fed.errors import BudgetExhaustedError
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

    def input(self, sent: Mapping[str, str]) -> dict[str, object]:
        """Return the attributes of its input, with what was sent before."""
        row, found = self.row, dict[str, object](name=self.key)
        if row.kind in (int, float):
            allowed = RANGES[row.place[1]]
            found |= {"type": "number", "min": f"{max(0, allowed.least):g}"}
            found |= {"step": "any"} if row.kind is float else {"max": allowed.most}
            found |= {"value": None if row.usual is None else f"{row.usual:g}"}
        known = {"value": sent[self.key]} if self.key in sent else {}
        return {**found, **self.attributes, **known}

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
    ),
    "noise": (
        FormField(DEPLOYED_OPTIONS["mechanism"], "Mechanism", TERMS["mechanism"], _MECHANISMS),
        FormField(DEPLOYED_OPTIONS["teacher"], "Who votes", TERMS["voters"], _VOTERS),
        FormField(
            DEPLOYED_OPTIONS["patient_votes"],
            "Votes of a patient",
            "where patients vote: queries that one votes on in the run, at most; epsilon follows "
            "from it; empty: 8 % of the queries",
        ),
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

BUDGETS: Final = (1.0, 2.0, 3.0, 5.0, 8.0)
"""Epsilons that are compared before one is chosen."""

_MOST_IMAGES: Final = 120
"""Most images that are shown small beside a cost."""

_ONE_AT_A_TIME: Final = Lock()
"""To choose queries and find the smallest noise takes seconds of a processor."""


@router.get("/new-run")
def new_run(request: Request) -> Response:
    """Show the form."""
    return page(request, "new_run", **_choices(visit_of(request)))


@router.post("/new-run/rows")
def rows(request: Request) -> Response:
    """Show the public rows of a file or an earlier run, and offer their labels."""
    visit = visit_of(request)
    with _ONE_AT_A_TIME:
        seen = _seen(visit.form, visit.coordinator)
    offered = _offered(visit, seen)
    by_label = request.headers.get("hx-trigger-name") == "label"
    if by_label and not offered["values"] and not _ticked(visit.form):
        return Response(status_code=204)  # the classes may be typed already: they stay
    return _answer(request, visit, "rows", **offered)


@router.post("/new-run/budgets")
def budgets(request: Request) -> Response:
    """Show what some budgets give."""
    visit = visit_of(request)
    with _ONE_AT_A_TIME:
        task = _task(visit.form, visit.coordinator)
        offers = [_offer(visit, task, epsilon) for epsilon in BUDGETS]
    return _answer(request, visit, "budgets", offers=offers)


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
        "told": task.told,
        "sheet": task.rows.sheet_address(most=_MOST_IMAGES)
        if isinstance(task.rows, PublicImages)
        else "",
    }
    return _answer(request, visit, "cost", **values)


def _answer(request: Request, visit: Visit, part: str, **values: Any) -> Response:
    """Answer with the part that a page asked for; without a script with the whole page."""
    if "hx-request" in request.headers:
        return page(request, part, **values)
    return page(request, "new_run", **{**_choices(visit), **values})


def _choices(visit: Visit) -> dict[str, Any]:
    coordinator = visit.coordinator
    sent = {key: text for key, text in visit.form.items() if isinstance(text, str)}
    return {
        "pools": [(digest.hex(), schema) for digest, schema in coordinator.pools.all().items()],
        "hospitals": _fitting(coordinator),
        "fields": FIELDS,
        "selections": SELECTIONS,
        "most_mib": MOST_UPLOAD_BYTES // 2**20,
        "most_rows": MOST_ROWS,
        "sent": sent,
        "again": file_of(visit.form, "file") is not None,
        **_offered(visit, None),
        **{"offers": None, "price": None, "note": ""},
    }


def _offered(visit: Visit, seen: SeenRows | None) -> dict[str, Any]:
    """Return rows that were looked at, labels, and the classes of the one that is filled in."""
    form, pools = visit.form, visit.coordinator.pools.all().values()
    labels = dict(() if seen is None else seen.labels)
    labels |= {one.label: one.class_names for one in pools}
    label = optional_text(form, "label", label="Column to predict", most=200)
    return {
        "seen": seen,
        "labels": labels,
        "label": label,
        "values": labels.get(label, ()),
        "ticked": set(_ticked(form)) or set(labels.get(label, ())),
        "typed": optional_text(form, "classes"),
    }


@dataclass(frozen=True, slots=True)
class Offer:
    """What a budget gives: the price of the run, or why it cannot be."""

    epsilon: float
    price: RunPrice | None
    fault: str = ""


def _offer(visit: Visit, task: LearningTask, epsilon: float) -> Offer:
    try:
        order = _order(visit.form, visit.coordinator, task, name="draft", epsilon=epsilon)
        return Offer(epsilon, price_of_run(order, pool=task.pool.inputs))
    except BudgetExhaustedError as error:
        return Offer(epsilon, None, f"{error.must} [{error.code}]")


@dataclass(frozen=True, slots=True)
class Fitting:
    """Whether a run can ask a hospital, and why not.

    Attributes:
        left: What the federation's budget leaves it; None without a budget.
        tone: "good", "warn" for one that a run waits for, "bad" for one that keeps it from
            beginning, "none" for one that is left out.
    """

    name: str
    votes: int
    left: float | None
    tone: str
    why: str


def _fitting(coordinator: Coordinator) -> list[Fitting]:
    used, budget = coordinator.spending.committed(), coordinator.budget.epsilon()
    now, found = utc_now(), list[Fitting]()
    for one in coordinator.enrollment.parties():
        if one.state == "revoked":
            continue
        left = None if budget is None else max(0.0, budget - used.get(one.name, 0.0))
        tone, why = "good", "is asked"
        if one.state != "member":
            tone = "none"
            why = {"suspended": "is suspended: left out"}.get(one.state, "is not approved yet")
        elif not (one.votes or one.named_votes):
            tone, why = "bad", "its node has no table yet: call its people, or suspend it"
        elif left == 0:
            tone, why = "bad", "nothing is left of the federation's budget"
        elif one.seen_at is None or offline_since(one, now=now) is not None:
            tone, why = "warn", "is away: a run waits for it"
        found.append(Fitting(one.name, one.votes, left, tone, why))
    order = ("bad", "warn", "good", "none")
    return sorted(found, key=lambda one: (order.index(one.tone), one.name))


def draft(form: FormData, coordinator: Coordinator) -> tuple[LearningTask, RunRequest]:
    """Fill in the run of a form, and store nothing."""
    with _ONE_AT_A_TIME:
        task = _task(form, coordinator)
        name = text_of(form, "name", label="Name of the run", most=64)
        return task, _order(form, coordinator, task, name=name)


def _order(
    form: FormData,
    coordinator: Coordinator,
    task: LearningTask,
    *,
    name: str,
    epsilon: float | None = None,
) -> RunRequest:
    """Fill a run in; at an epsilon other than the form's only to see its price."""
    select = text_of(form, "select", label="Rows to ask", most=20)
    if select not in SELECTIONS:
        raise ConsoleError("rows to ask must be one of the choices")
    given = {
        one.row.name: epsilon if epsilon and one.row.name == "epsilon" else one.read(form)
        for fields in FIELDS.values()
        for one in fields
    }
    return coordinator.draft(
        name,
        task,
        coordinator.settings_of(given, source=task.name, label=task.label, kind=task.kind),
        source=task.name,
        select=select,
        patience_s=_patience_s(form),
    )


def _seen(form: FormData, coordinator: Coordinator) -> SeenRows:
    if (known := _known(form, coordinator)) is not None:
        return look_at_task(known)
    apart = {optional_text(form, "label", most=200), *_ignored(form)}
    with _uploaded(form) as path:
        return look_at_file(path, apart=apart)


def _task(form: FormData, coordinator: Coordinator) -> LearningTask:
    if (known := _known(form, coordinator)) is not None:
        return known
    with _uploaded(form) as path:
        return coordinator.read_queries(
            path,
            label=text_of(form, "label", label="Column to predict", most=200),
            classes=_classes(form),
            ignored=_ignored(form),
        )


def _known(form: FormData, coordinator: Coordinator) -> LearningTask | None:
    chosen = optional_text(form, "pool", most=64)
    if chosen and not re.fullmatch(r"[0-9a-f]{64}", chosen):
        raise ConsoleError("the queries must be one of the choices")
    return coordinator.pools.find(bytes.fromhex(chosen)) if chosen else None


@contextmanager
def _uploaded(form: FormData) -> Iterator[Path]:
    """Give the uploaded file while it is read."""
    upload = file_of(form, "file")
    if upload is None:
        raise ConsoleError("choose a file of public rows, or rows of an earlier run")
    with tempfile.TemporaryDirectory(prefix="pate-fed-upload-") as folder:
        path = Path(folder, _plain_name(upload.filename or ""))
        _save(upload, path)
        yield path


def _classes(form: FormData) -> list[str]:
    """Return the classes that were ticked, or typed."""
    typed = text_of(form, "classes", label="Classes") if not _ticked(form) else ""
    return _ticked(form) or [one.strip() for one in typed.split(",")]


def _ticked(form: FormData) -> list[str]:
    names = (f"class-{place}" for place in range(MOST_CLASSES))
    return [found for one in names if (found := optional_text(form, one, label="Class"))]


def _ignored(form: FormData) -> list[str]:
    return [one.strip() for one in optional_text(form, "ignore").split(",") if one.strip()]


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
