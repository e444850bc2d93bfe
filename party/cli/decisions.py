"""Approving and rejecting at the command line: shown in plain words first, then decided."""

from __future__ import annotations

import getpass
import secrets
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from party.approvals import Approval, Approvals, State, Subject
from party.cli.console import (
    DEFAULT_SITE,
    Format,
    FormatOption,
    SiteOption,
    ask,
    open_site,
    show,
    tell,
)
from party.cli.node import ByOption
from party.enrollment import CoordinatorDoor
from party.errors import EnrollmentError, NotConfirmedError
from party.peers import PINS_FILE, Pins
from party.site import Site
from pate_fed.accounting import PrivacyLedger
from pate_fed.data.task import LearningTask

DigestArgument = Annotated[
    str | None, typer.Argument(metavar="[DIGEST]", help="The first digits of what is listed.")
]
YesOption = Annotated[bool, typer.Option("--yes", help="Do not ask.")]


def approve(
    digest: DigestArgument = None,
    by: ByOption = None,
    yes: YesOption = False,
    site: SiteOption = DEFAULT_SITE,
    output_format: FormatOption = Format.TEXT,
) -> None:
    """List what waits for a person, or approve one of it.

    Whoever approves a run approves its pool. Teachers are trained before the approval counts.
    """
    opened = open_site(site)
    approvals = _approvals(opened)
    if digest is None:
        _list(opened, approvals, output_format)
        return
    approval = approvals.find(digest)
    task = _task(opened, approval)
    shown = list(_lines(opened, approval, task))
    for line in shown:
        tell(line)
    if not (yes or ask("Approve this?")):
        raise NotConfirmedError("a person must approve", "no")
    _train(opened, task)
    who = by or getpass.getuser()
    for one in (*_pool_of(approvals, approval, task), approval):
        approvals.decide(one, State.APPROVED, by=who, at=time.time())
    show(
        output_format,
        {"approved": approval.digest.hex(), "subject": approval.subject.value, "by": who},
        (f"Approved: {approval.subject.value} {approval.digest.hex()[:16]}, by {who}.",),
    )


def reject(
    digest: Annotated[
        str, typer.Argument(metavar="DIGEST", help="The first digits of what is listed.")
    ],
    by: ByOption = None,
    site: SiteOption = DEFAULT_SITE,
    output_format: FormatOption = Format.TEXT,
) -> None:
    """Reject what waits, or take an approval back; an open run is refused its next batch."""
    opened = open_site(site)
    approvals = _approvals(opened)
    who = by or getpass.getuser()
    one = approvals.decide(approvals.find(digest), State.REJECTED, by=who, at=time.time())
    show(
        output_format,
        {"rejected": one.digest.hex(), "subject": one.subject.value, "by": who},
        (f"Rejected: {one.subject.value} {one.digest.hex()[:16]}, by {who}.",),
    )


def ledger_of(site: Site) -> PrivacyLedger:
    """Return what was charged for life; an empty ledger where nothing was yet."""
    from party.ledger_file import read_ledger  # noqa: PLC0415 - keeps --help fast

    path, settings = site.path("ledger.json"), site.settings
    if path.exists():
        return read_ledger(path)
    return PrivacyLedger.for_life(settings.lifetime_epsilon, settings.delta)


# What is shown ----------------------------------------------------------------------------------


def _list(site: Site, approvals: Approvals, output_format: Format) -> None:
    waiting, known = approvals.pending(), approvals.all()
    lines: list[str] = []
    for one in waiting:
        try:
            task = _task(site, one)
        except EnrollmentError as error:
            tell(f"The task of {one.digest.hex()[:16]} could not be fetched: {error.code}")
            task = None
        lines += [*_lines(site, one, task), ""]
    show(
        output_format,
        {"approvals": [_record(site, one) for one in known]},
        lines or ["Nothing waits for a person."],
    )
    if waiting:
        tell("Approve one with: pate-party approve DIGEST")


def _lines(site: Site, approval: Approval, task: LearningTask | None) -> Iterator[str]:
    """Say in plain words what is asked."""
    from party.proposals import proposal_of  # noqa: PLC0415 - keeps --help fast

    found = proposal_of(site, approval, ledger=ledger_of(site), pins=Pins(site.path(PINS_FILE)))
    asked = datetime.fromtimestamp(approval.asked_at, UTC)
    yield f"{approval.subject.value} {approval.digest.hex()}, asked {asked:%Y-%m-%d %H:%M} UTC"
    if task is not None:
        classes = ", ".join(task.class_names)
        yield f"  Task        {task.name}: {task.label}, one of {classes}"
        yield f"  Queries     {len(task.inputs)} public inputs, from {len(task.columns)} columns"
    terms = found.terms
    if terms is not None:
        sigmas = ", ".join(f"{sigma:g}" for sigma in (terms.sigma1, terms.sigma2) if sigma)
        yield (
            f"  Mechanism   {terms.mechanism}, noise of standard deviation {sigmas or 'none'} "
            f"added by the {terms.noise_place}; at most {terms.max_asks} queries"
        )
    if found.cost is not None:
        cost = found.cost
        yield (
            f"  This run    epsilon {cost.run_epsilon:.4g} at delta {cost.delta:g} for one "
            f"{'patient' if terms is not None and terms.unit == 'record' else 'hospital'}, at most"
        )
        yield (
            f"  For life    {cost.spent_before:.4g} of {cost.lifetime_epsilon:g} is spent; with "
            f"this run {cost.spent_after:.4g} at most"
            f"{'' if cost.fits else ': too much, it would stop before'}"
        )
    for seat, name in found.peers:
        yield f"  With        {name or seat.hex()[:16] + '...: NOBODY HERE CHECKED IT'}"


def _record(site: Site, one: Approval) -> dict[str, Any]:
    from party.proposals import proposal_of  # noqa: PLC0415 - keeps --help fast

    found = proposal_of(site, one, ledger=ledger_of(site), pins=Pins(site.path(PINS_FILE)))
    cost, terms = found.cost, found.terms
    return {
        "subject": one.subject.value,
        "digest": one.digest.hex(),
        "state": one.state.value,
        "by": one.by,
        "asked_at": one.asked_at,
        "mechanism": None if terms is None else terms.mechanism,
        "max_asks": None if terms is None else terms.max_asks,
        "run_epsilon": None if cost is None else cost.run_epsilon,
        "spent_before": None if cost is None else cost.spent_before,
        "spent_after": None if cost is None else cost.spent_after,
        "peers": [{"fingerprint": seat.hex(), "checked_as": name} for seat, name in found.peers],
    }


# What is done -----------------------------------------------------------------------------------


def _approvals(site: Site) -> Approvals:
    return Approvals(site.path("approvals.json"))


def _task(site: Site, approval: Approval) -> LearningTask:
    """Return the task that is kept, or fetch it and check that it is of the pool."""
    from party.proposals import proposal_of  # noqa: PLC0415 - keeps --help fast
    from party.task_files import load_task, read_task  # noqa: PLC0415

    found = proposal_of(site, approval, ledger=ledger_of(site), pins=Pins(site.path(PINS_FILE)))
    kept = load_task(site, found.pool)
    if kept is not None:
        return kept
    with closing(CoordinatorDoor(site, clock=time.time)) as door:
        return read_task(door.fetch_pool(found.pool), pool=found.pool)


def _train(site: Site, task: LearningTask) -> None:
    from party.task_files import keep_task  # noqa: PLC0415 - keeps --help fast
    from party.training import ready_teachers  # noqa: PLC0415

    keep_task(site, task)
    ready_teachers(
        site,
        task,
        random_bytes=secrets.token_bytes,
        tell=lambda done, total: tell(f"Teacher {done} of {total} is trained."),
    )


def _pool_of(approvals: Approvals, approval: Approval, task: LearningTask) -> tuple[Approval, ...]:
    """Return the pool of a run, to be approved with it, unless it is."""
    if approval.subject is Subject.POOL:
        return ()
    asked = approvals.ask(
        Subject.POOL,
        task.pool.digest,
        terms=approval.terms,
        seats=approval.seats,
        at=time.time(),
    )
    return () if asked.state is State.APPROVED else (asked,)
