"""What each page shows, as plain values: texts are escaped where they are written into a page."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, Final

from party.decision.proposal_words import FAULT, TABLE, words_of
from party.decision.proposals import Request
from party.errors import ApprovalError, PartyError, TaskError, fault_line
from party.owner import OpenSite
from party.site.document_child import read_document
from party.site.evaluations import own_scores, task_of
from party.site.records import ApprovalState, Subject
from party.site.sent_words import words_of_sent
from party.site.tasks import read_task
from pate_fed.accounting.statement import PUBLIC_VIEW
from pate_fed.data.task import LearningTask
from pate_fed.errors import PateFedError
from pate_fed.evaluation_task import EvaluationTask, is_evaluation
from pate_fed.regular_files import open_regular, read_regular
from pate_fed.wording import percent, room_words
from protocols.errors import ProtocolError

SENT_AT_ONCE: Final = 50
RECORDS_AT_ONCE: Final = 50
SEARCHED_AT_ONCE: Final = 5_000
"""Records of the audit log that one search looks at."""

MOST_COLUMNS: Final = 60
"""Columns whose ranges the page shows."""

MOST_SEARCH_LETTERS: Final = 200

EXPLAINED: Final[Mapping[str, str]] = {
    "Federation": "The group of hospitals whose coordinator asks.",
    "Purpose": "The operator's own words: why the run is asked for.",
    TABLE: "Your registered table beside the question: checked here, and shown to you alone.",
    "Task": "What the models learn to predict: a column of your table, and its possible values.",
    "Pool": "Public cases that your teachers label. They are none of your patients. Read the "
    "columns: a column that says nothing about a patient lets its author ask one question often.",
    "Your table": "Public inputs set the center and the range of each column. Nothing of your "
    "table leaves for this comparison.",
    "Run": "The coordinator's name for this round of questions.",
    "Mechanism": "The rule that turns votes into labels. Noise is added to the counted votes, so "
    "that no single vote shows. More noise hides more.",
    "Secure sum": "How the hospitals add up their votes without showing them. The seal keeps the "
    "keys between two hospitals.",
    "Cost": "Epsilon bounds how much the labels can tell about one patient: smaller is safer. "
    "Delta is the probability that this bound fails.",
    "Budget": "The most epsilon of all runs together. Parts of it add up. When it is used up, this "
    "hospital answers nothing any more, for ever.",
    "Tests": "Some mechanisms test whether an answer is stable. Each test uses a part of delta.",
    "With": "The other hospitals of this run. Your people must have checked them by telephone.",
}
"""A sentence for each name of `words_of`."""

STATES: Final[Mapping[str, str]] = {
    "pending": "waits for you",
    "approved": "approved",
    "rejected": "rejected",
}


@dataclass(frozen=True, slots=True)
class Term:
    """One name of a proposal.

    Attributes:
        name: The name.
        lines: Its texts.
        explained: What it is, for a reader who does not know.
        is_alarm: Whether a text is a warning.
    """

    name: str
    lines: tuple[str, ...]
    explained: str
    is_alarm: bool


def terms_of(request: Request) -> list[Term]:
    """Return a request in words, each name with its explanation; its faults stand elsewhere."""
    groups: list[tuple[str, list[str]]] = []
    for name, text in words_of(request):
        if name and not (groups and groups[-1][0] == name):
            groups.append((name, [text]))
        else:
            groups[-1][1].append(text)
    alarms = ("WOULD BE STOPPED", "NOBODY HERE CHECKED", "NOT the task's", "LOOK ALIKE TO YOUR")
    return [
        Term(
            name,
            tuple(lines),
            EXPLAINED.get(name, ""),
            name != "Purpose" and any(alarm in line for alarm in alarms for line in lines),
        )
        for name, lines in groups
        if name != FAULT
    ]


def columns_of(request: Request) -> dict[str, Any]:
    """Return the public rows beside the own ones, column by column: for this hospital's people."""
    fit = None if request.review is None else request.review.fit
    if fit is None:
        return {"columns": [], "more_columns": 0}
    shown = fit.first(MOST_COLUMNS)
    columns = [
        {
            "name": one.name,
            "public": one.public,
            "own": one.own,
            "remarks": one.remarks,
            "fault": "" if one.fault is None else fault_line(one.fault),
        }
        for one in shown
    ]
    return {"columns": columns, "more_columns": len(fit.columns) - len(shown)}


def request_of(opened: OpenSite, request: Request) -> dict[str, Any]:
    """Return a request in short."""
    one, terms = request.approval, request.proposal.terms
    task = request.task
    is_run = one.subject is Subject.RUN
    return {
        "what": "Run" if is_run else "Pool of questions",
        "is_run": is_run,
        "name": "" if terms is None else terms.name,
        "purpose": "" if terms is None else terms.purpose,
        "predicts": task.label if isinstance(task, LearningTask) else "",
        "classes": ", ".join(task.class_names) if isinstance(task, LearningTask) else "",
        "faults": [fault_line(fault) for fault in request.faults],
        "digest": one.digest.hex(),
        "federation": opened.site.federation_of(one.coordinator),
        "asked": moment(one.asked_at),
        "state": one.state.value,
        "said": STATES[one.state.value],
        "by": one.decided_by,
        "at": "" if one.decided_at is None else moment(one.decided_at),
        "reason": one.reason,
        "words": one.words,
        "cost": request.proposal.cost,
        "unit": "" if terms is None else _UNITS[terms.unit],
    }


def waiting(opened: OpenSite) -> list[dict[str, Any]]:
    """Return the requests to decide next; a run includes its pool."""
    pending = list(opened.records.approvals(ApprovalState.PENDING))
    listed = (opened.request(one, fetch=False) for one in opened.to_decide(pending))
    return [request_of(opened, one) for one in listed]


def decided(opened: OpenSite) -> list[dict[str, Any]]:
    """Return past decisions, newest first; one on a run is one on its pool, too."""
    known = [one for one in opened.approvals() if one.state is not ApprovalState.PENDING]
    found = opened.to_decide(known)
    found.sort(key=lambda one: one.decided_at or 0, reverse=True)
    return [request_of(opened, Request(opened.proposal(one))) for one in found]


def data_sets(opened: OpenSite) -> dict[str, Any]:
    """Return the table that was registered, and the tasks that were kept here."""
    tasks: list[dict[str, Any]] = []
    for path in sorted(opened.site.path("pools").glob("*")):
        if len(path.name) != 64 or not set(path.name) <= set("0123456789abcdef"):
            continue
        kept = path.stat()
        facts = _facts_of(path, kept.st_mtime_ns, kept.st_size)
        if facts is not None:
            digest = facts.get("task", "")
            has_teachers = bool(digest) and opened.site.path("teachers", digest).is_dir()
            tasks.append({"digest": path.name, **facts, "has_teachers": has_teachers})
    settings = opened.site.settings
    return {
        "table": opened.site.data,
        "teachers": settings.teachers,
        "held_out": percent(settings.held_out) if settings.held_out else "",
        "tasks": tasks,
        "evaluations": evaluations(opened),
    }


@lru_cache(maxsize=256)
def _facts_of(path: Path, *written: int) -> Mapping[str, Any] | None:
    """Return what is shown of a kept document; None for an evaluation, which has no teachers.

    A large one takes seconds to read: it is read once for each time that it was written.
    """
    del written
    try:
        task = read_document(read_regular(path), bytes.fromhex(path.name))
    except (TaskError, OSError):
        return {"fault": TaskError.code}
    if not isinstance(task, LearningTask):
        return None
    return {
        "fault": "",
        "task": task.digest.hex(),
        "name": task.name,
        "label": task.label,
        "classes": ", ".join(task.class_names),
        "inputs": len(task.inputs),
        "columns": ", ".join(task.columns),
    }


def budget(opened: OpenSite) -> dict[str, Any]:
    """Return the budget for life, and each run's charge."""
    ledger, runs = opened.spending()
    rows = [
        {
            "run": one.run,
            "name": one.name,
            "unit": _UNITS.get(one.unit, ""),
            "mechanism": one.mechanism,
            "federation": opened.site.federation_of(one.coordinator),
            "batches": one.batches,
            "open": one.open_batches,
            "epsilon": one.epsilon,
            "share": percent(one.share),
            "room": None if one.room is None else room_words(one.room),
            "tests": f"{one.tests_delta:.3g}" if one.tests_delta else "",
        }
        for one in runs
    ]
    used = ledger.used_share()
    return {
        "epsilon": f"{ledger.epsilon:g}",
        "delta": f"{ledger.delta:g}",
        "used": percent(used),
        "share": min(1.0, used),
        "batches": len(ledger.entries),
        "for_tests": f"{ledger.additive_delta:g}" if ledger.additive_delta else "",
        "tests": f"{ledger.charged_delta():.3g}",
        "view": PUBLIC_VIEW,
        "method": (
            "exact Gaussian composition"
            if ledger.order is None
            else f"RDP added up over all batches at one order, {ledger.order:.3g}, fixed with the "
            "budget"
        ),
        "runs": rows,
    }


_UNITS: Final = {"record": "one patient", "party": "one hospital"}


def sent(opened: OpenSite, *, skip: int) -> dict[str, Any]:
    """Return the messages that left this site, newest first, and the totals."""
    rows, times, size = opened.sent.total()
    found = opened.sent.newest(SENT_AT_ONCE, skip=skip)
    return {
        "messages": [
            {
                "kind": one.kind,
                "title": words_of_sent(one.kind)[0],
                "words": words_of_sent(one.kind)[1],
                "federation": opened.site.federation_of(one.coordinator),
                "run": one.run.hex(),
                "times": one.times,
                "size": size_words(one.size),
                "bytes": one.size,
                "digest": one.digest.hex(),
                "at": moment(one.last_at),
                "first": moment(one.first_at),
            }
            for one in found
        ],
        "rows": rows,
        "times": times,
        "size": size_words(size),
        "skip": skip,
        "older": skip + SENT_AT_ONCE if skip + SENT_AT_ONCE < rows else None,
        "newer": None if not skip else max(0, skip - SENT_AT_ONCE),
    }


def audit(opened: OpenSite, *, search: str, before: int | None) -> dict[str, Any]:
    """Return records of the audit log, newest first, that hold a text.

    Args:
        opened: The site.
        search: The text; empty for all records.
        before: Number of the first newer record that is left out; None for the newest.
    """
    count, head = opened.log.end
    end = count if before is None else max(0, min(before - 1, count))
    window = SEARCHED_AT_ONCE if search else RECORDS_AT_ONCE
    first = max(1, end - window + 1)
    tables = list(islice(opened.log.tables(first=first), max(0, end - first + 1)))
    wanted = search.casefold()
    found = [_record(one) for one in reversed(tables)]
    if wanted:
        found = [one for one in found if wanted in one["searched"]]
    cut = len(found) > RECORDS_AT_ONCE
    found = found[:RECORDS_AT_ONCE]
    last = int(found[-1]["number"]) if cut else first
    return {
        "count": count,
        "head": head.hex(),
        "records": found,
        "search": search,
        "first": last,
        "end": end,
        "older": last if last > 1 else None,
    }


def _record(table: Mapping[str, Any]) -> dict[str, Any]:
    facts = {
        **{name: table[name] for name in ("before", "after") if table[name] != ""},
        **table["facts"],
    }
    who = f"{table['by']}, {table['from']}" if table["by"] else "the node"
    said = [f"{name}: {value}" for name, value in facts.items() if value != ""]
    at = f"{str(table['at'])[:19].replace('T', ' ')} UTC"
    searched = " ".join((str(table["number"]), at, str(table["act"]), who, *said)).casefold()
    return {
        "number": table["number"],
        "at": at,
        "act": table["act"],
        "who": who,
        "facts": said,
        "searched": searched,
    }


def results(opened: OpenSite) -> list[dict[str, Any]]:
    """Return the runs that this hospital answered in, newest first."""
    return [
        {
            "run": one.run.hex(),
            "federation": opened.site.federation_of(one.coordinator),
            "at": moment(one.at),
            "batches": one.batches,
            "is_closed": bool(one.head),
        }
        for one in reversed(opened.answered_runs())
    ]


def evaluations(opened: OpenSite) -> list[dict[str, str]]:
    """Return the evaluations that were kept here: students that can be tried on own patients."""
    found = []
    for path in sorted(opened.site.path("pools").glob("*")):
        task = None
        with suppress(PartyError, PateFedError, ProtocolError, ValueError, OSError):
            if _begins_as_evaluation(path):
                task = read_task(opened.site, bytes.fromhex(path.name))
        if isinstance(task, EvaluationTask):
            found.append({"digest": path.name, "label": task_of(opened.site, task).label})
    return found


def _begins_as_evaluation(path: Path) -> bool:
    with open_regular(path) as file:
        return is_evaluation(file.read(64))


def compare(opened: OpenSite, digest: str) -> dict[str, Any]:
    """Return how a kept student does beside this hospital's own teachers, on held-out patients.

    Raises:
        ApprovalError: no such evaluation is kept here.
        See `own_scores`.
    """
    if digest not in [one["digest"] for one in evaluations(opened)]:
        raise ApprovalError("an evaluation must be one that this page lists", "another")
    task, floor = read_task(opened.site, bytes.fromhex(digest)), opened.site.settings.data.floor
    assert isinstance(task, EvaluationTask)
    *rows, says = own_scores(opened.site, task).lines(floor=floor)
    return {"rows": rows, "says": says}


def moment(at: float) -> str:
    """Return a time for people, given Unix time in seconds."""
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M} UTC"


def size_words(size: int) -> str:
    """Return a number of bytes for people."""
    if size < 1000:
        return f"{size} bytes"
    return f"{size / 1e3:.1f} kB" if size < 1e6 else f"{size / 1e6:.1f} MB"
