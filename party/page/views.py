"""What each page shows, as plain values: texts are escaped where they are written into a page."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from party.decision.proposal_words import FAULT, RECORDS, SIGHT, words_of
from party.decision.proposals import Request
from party.errors import ApprovalError, PartyError, TaskError
from party.owner import OpenSite
from party.site.document_child import read_document
from party.site.evaluations import own_scores, task_of
from party.site.people_decisions import ApprovalState
from party.site.tasks import begins_as_evaluation, kept_pools, read_task
from pate_fed.data.task import LearningTask
from pate_fed.errors import PateFedError
from pate_fed.evaluation_task import EvaluationTask
from pate_fed.regular_files import read_regular
from pate_fed.wording import percent
from protocols.errors import ProtocolError

MOST_COLUMNS: Final = 60
MOST_THUMBNAILS: Final = 240

EXPLAINED: Final[Mapping[str, str]] = {
    "Federation": "The group of hospitals whose coordinator asks.",
    "Purpose": "The operator's own words: why the run is asked for.",
    "Task": "What the models learn to predict, and its possible values.",
    "Pool": "Public cases that your teachers label. They are none of your patients. Look at them: "
    "cases that differ only in what says nothing about a patient let their author ask one question "
    "often.",
    RECORDS: "Public cases set how yours are read. Nothing of yours leaves for this comparison.",
    "Run": "The coordinator's name for this round of questions.",
    "Mechanism": "The rule that turns votes into labels. Noise is added to the counted votes, so "
    "that no single vote shows. More noise hides more.",
    "Secure sum": "How the hospitals add up their votes without showing them. The seal closes what "
    "others pass on.",
    SIGHT: "Who would have to work together to see your hospital's own votes on a question.",
    "Cost": "Epsilon bounds how much the labels can tell about one patient: smaller is safer. "
    "Delta is the probability that this bound fails.",
    "Budget": "The most epsilon of all runs together. Parts of it add up. When it is used up, this "
    "hospital answers nothing any more, for ever.",
    "Tests": "Some mechanisms test whether an answer is stable. Each test uses a part of delta.",
    "With": "The other hospitals of this run. Unless a tally adds noise, too, your people must "
    "have checked them by telephone.",
}
"""A sentence for each name of `words_of`."""


@dataclass(frozen=True, slots=True)
class Term:
    """One name of a proposal: its texts, its meaning for a newcomer, and whether one warns."""

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
    alarms = (
        "WOULD BE STOPPED",
        "NOBODY HERE CHECKED",
        "NOT PINNED HERE",
        "NOT the task's",
        "LOOK ALIKE TO YOUR",
    )
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


def waiting(opened: OpenSite) -> list[Request]:
    """Return the requests to decide next; a run includes its pool."""
    pending = list(opened.decisions.approvals(ApprovalState.PENDING))
    return [opened.request(one, fetch=False) for one in opened.to_decide(pending)]


def decided(opened: OpenSite) -> list[Request]:
    """Return past decisions, newest first; one on a run is one on its pool, too."""
    known = [one for one in opened.approvals() if one.state is not ApprovalState.PENDING]
    found = opened.to_decide(known)
    found.sort(key=lambda one: one.decided_at or 0, reverse=True)
    return [Request(opened.proposal(one)) for one in found]


def data_sets(opened: OpenSite) -> dict[str, Any]:
    """Return the table that was registered, and the tasks that were kept here."""
    tasks = []
    for path in kept_pools(opened.site):
        kept = path.stat()
        if (task := _kept_task(path, kept.st_mtime_ns, kept.st_size)) is not None:
            digest = task.task
            has_teachers = bool(digest) and opened.site.path("teachers", digest).is_dir()
            tasks.append((path.name, task, has_teachers))
    settings = opened.site.settings
    return {
        "table": opened.site.data,
        "teachers": settings.teachers,
        "records_vote": settings.do_records_vote,
        "held_out": percent(settings.held_out) if settings.held_out else "",
        "tasks": tasks,
        "evaluations": evaluations(opened),
    }


@dataclass(frozen=True, slots=True)
class KeptTask:
    """What is shown of a kept document: a fault's code, or a task and its digest in hex."""

    fault: str = ""
    task: str = ""
    name: str = ""
    label: str = ""
    classes: str = ""
    inputs: int = 0
    columns: str = ""


@lru_cache(maxsize=256)
def _kept_task(path: Path, *written: int) -> KeptTask | None:
    """Return what is shown of a kept document, read once for each time that it was written.

    An evaluation, which has no teachers, is None.
    """
    del written
    try:
        task = read_document(read_regular(path), bytes.fromhex(path.name))
    except (TaskError, OSError):
        return KeptTask(fault=TaskError.code)
    if not isinstance(task, LearningTask):
        return None
    return KeptTask(
        task=task.digest.hex(),
        name=task.name,
        label=task.label,
        classes=", ".join(task.class_names),
        inputs=len(task.inputs),
        columns=", ".join(task.columns),
    )


UNITS: Final = {"record": "one patient", "party": "one hospital"}


def evaluations(opened: OpenSite) -> list[dict[str, str]]:
    """Return the evaluations that were kept here: students that can be tried on own patients."""
    found = []
    for path in kept_pools(opened.site):
        task = None
        with suppress(PartyError, PateFedError, ProtocolError, OSError):
            if begins_as_evaluation(path):
                task = read_task(opened.site, bytes.fromhex(path.name))
        if isinstance(task, EvaluationTask):
            found.append({"digest": path.name, "label": task_of(opened.site, task).label})
    return found


def compare(opened: OpenSite, digest: str) -> tuple[list[str], str]:
    """Compare a kept student with our own teachers; return facts, a line each, and the verdict."""
    if digest not in [one["digest"] for one in evaluations(opened)]:
        raise ApprovalError("an evaluation must be one that this page lists")
    task, floor = read_task(opened.site, bytes.fromhex(digest)), opened.site.settings.data.floor
    assert isinstance(task, EvaluationTask)
    *rows, says = own_scores(opened.site, task).lines(floor=floor)
    return rows, says
