"""Approving and rejecting at the command line: shown in plain words first, then decided."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from party.cli.console import (
    DEFAULT_SITE,
    ByOption,
    FederationOption,
    FormatOption,
    OpenSite,
    SiteOption,
    ask,
    decider,
    is_attended,
    open_records,
    show,
    tell,
)
from party.errors import EnrollmentError, MembershipError, NotConfirmedError
from party.site.enrollment import CoordinatorDoor
from party.site.folder import Site
from pate_fed.data.task import LearningTask
from pate_fed.nodes import Format, printable

if TYPE_CHECKING:
    from party.decision.proposals import Cost, Proposal
    from party.site.records import Approval
    from pate_fed.federation import RunTerms

DigestArgument = Annotated[
    str | None, typer.Argument(metavar="[DIGEST]", help="First digits of a listed item.")
]
YesOption = Annotated[bool, typer.Option("--yes", help="Do not ask.")]


def approve(  # noqa: PLR0917 - one argument per option
    digest: DigestArgument = None,
    federation: FederationOption = None,
    by: ByOption = None,
    yes: YesOption = False,
    site: SiteOption = DEFAULT_SITE,
    output_format: FormatOption = Format.TEXT,
) -> None:
    """List the waiting runs and pools (lists of questions), or approve one.

    At a terminal, the list asks about each. Approving a run also approves its pool. The
    approval trains the teachers first, and holds in its own federation only.
    """
    with open_records(site) as opened:
        if digest is None:
            waiting = _list(opened, output_format, federation)
            if output_format is Format.TEXT and is_attended():
                _ask_about_each(opened, waiting, by=decider(by))
            elif waiting:
                tell("Approve one: `pate-party approve DIGEST`; reject one: `pate-party reject`.")
            return
        approval = _find(opened, digest, federation)
        task = _task(opened, approval)
        for line in _lines(opened, approval, task):
            tell(line)
        if not (yes or ask("Approve this?")):
            raise NotConfirmedError("a person must approve", "no")
        _approve(opened, approval, task, output_format, by=decider(by))


def _ask_about_each(opened: OpenSite, waiting: Sequence[Approval], *, by: str) -> None:
    """Ask about each listed entry; a no is not noted, and the entry waits on."""
    for one in waiting:
        if ask(f"Approve {one.subject.value} {one.digest.hex()[:16]}?"):
            _approve(opened, one, _task(opened, one), Format.TEXT, by=by)
        else:
            tell(f"It waits on. To reject it: pate-party reject {one.digest.hex()[:16]}")


def _approve(
    opened: OpenSite, approval: Approval, task: LearningTask, output_format: Format, *, by: str
) -> None:
    """Train teachers, then approve; a run's pool with it."""
    _train(opened.site, task)
    for one in (*_pool_of(opened, approval, task), approval):
        opened.records.approve(one.subject, one.digest, coordinator=one.coordinator, by=by)
    show(
        output_format,
        {"approved": approval.digest.hex(), "subject": approval.subject.value, "by": by},
        (f"Approved: {approval.subject.value} {approval.digest.hex()[:16]}, by {by}.",),
    )


def reject(
    digest: Annotated[str, typer.Argument(metavar="DIGEST", help="First digits of a listed item.")],
    federation: FederationOption = None,
    by: ByOption = None,
    site: SiteOption = DEFAULT_SITE,
    output_format: FormatOption = Format.TEXT,
) -> None:
    """Reject a waiting run or pool, or withdraw an approval: an open run's next batch fails."""
    with open_records(site) as opened:
        found = _find(opened, digest, federation)
        one = opened.records.reject(
            found.subject, found.digest, coordinator=found.coordinator, by=decider(by)
        )
    show(
        output_format,
        {"rejected": one.digest.hex(), "subject": one.subject.value, "by": one.decided_by},
        (f"Rejected: {one.subject.value} {one.digest.hex()[:16]}, by {one.decided_by}.",),
    )


# Showing -----------------------------------------------------------------------------------------


def _list(opened: OpenSite, output_format: Format, federation: str | None) -> Sequence[Approval]:
    """Show the waiting approvals; return those that people decide: a run includes its pool."""
    asking = _asking(opened, federation)
    known = [one for one in opened.records.approvals() if asking in (None, one.coordinator)]
    waiting = [one for one in known if one.state.value == "pending"]
    proposals = [_proposal(opened, one) for one in known]
    lines: list[str] = []
    tasks: dict[bytes, LearningTask] = {}
    in_full = _without_pools_of_runs(opened, waiting)
    for one in in_full:
        try:
            task = _task(opened, one)
            tasks[task.pool.digest] = task
        except (EnrollmentError, MembershipError) as error:
            tell(f"The task of {one.digest.hex()[:16]} could not be fetched: {error.code}")
            task = None
        lines += [*_lines(opened, one, task), ""]
    for one in waiting:
        if one not in in_full:
            lines += [*_lines_of_pool_with_run(opened, one), ""]
    show(
        output_format,
        {"approvals": [_record(found, tasks.get(found.pool)) for found in proposals]},
        lines or ["Nothing waits for a person."],
    )
    return in_full


def _without_pools_of_runs(opened: OpenSite, waiting: list[Approval]) -> list[Approval]:
    """Leave out pools that are approved with a waiting run: they are mentioned in short."""
    if opened.site.settings.approval != "each run":
        return waiting
    runs = [one for one in waiting if one.subject.value == "run"]
    pools = {(one.coordinator, _proposal(opened, one).pool) for one in runs}
    return [one for one in waiting if one in runs or (one.coordinator, one.digest) not in pools]


def _lines_of_pool_with_run(opened: OpenSite, pool: Approval) -> Iterator[str]:
    """Mention a pool whose run waits too."""
    asked = datetime.fromtimestamp(pool.asked_at, UTC)
    yield f"pool {pool.digest.hex()}, asked {asked:%Y-%m-%d %H:%M} UTC"
    yield f"  Federation  {_proposal(opened, pool).federation}"
    yield "  Asked for   by a run that waits, too: its public inputs. Approving that run approves"
    yield "              this pool with it. Rejecting that run leaves this pool waiting."


def _lines(opened: OpenSite, approval: Approval, task: LearningTask | None) -> Iterator[str]:
    """Describe the request in plain words."""
    found = _proposal(opened, approval)
    asked = datetime.fromtimestamp(approval.asked_at, UTC)
    yield f"{approval.subject.value} {approval.digest.hex()}, asked {asked:%Y-%m-%d %H:%M} UTC"
    yield f"  Federation  {found.federation}"
    if task is not None:
        classes = ", ".join(task.class_names)
        yield f"  Task        {task.name}: {task.label}, one of {classes}"
        yield f"  Queries     {len(task.inputs)} public inputs, from {len(task.columns)} columns:"
        yield f"              {printable(', '.join(task.columns))}"
    terms = found.terms
    if terms is not None and approval.subject.value == "run":
        yield (
            f"  Run         {terms.name}; the operator's `pate-fed status {terms.name}` shows the "
            "first 16 digits of the same digest"
        )
    if terms is not None:
        sigmas = ", ".join(f"{sigma:g}" for sigma in (terms.sigma1, terms.sigma2) if sigma)
        yield (
            f"  Mechanism   {terms.mechanism}, noise of standard deviation {sigmas or 'none'} "
            f"added by the {terms.noise_place}; at most {terms.max_asks} queries{_others(terms)}"
        )
    if approval.form:
        yield f"  Secure sum  {approval.form}, sealed with {approval.suite}"
    if found.cost is not None:
        cost = found.cost
        unit = "patient" if terms is not None and terms.unit == "record" else "hospital"
        yield (
            f"  Cost        this run alone: epsilon {cost.run_epsilon:.4g} at most, at delta "
            f"{cost.delta:g}, for one {unit}"
        )
        yield from _budget_lines(cost)
        yield from _tests_lines(cost)
    for seat, name in found.peers:
        yield f"  With        {name or seat.hex()[:16] + '...: NOBODY HERE CHECKED IT'}"


def _others(terms: RunTerms) -> str:
    """Name the mechanism's other parameters, if it has any."""
    values = {name: getattr(terms, name) for name in ("vote_threshold", "confidence", "test_delta")}
    known = [f"{name} {value:g}" for name, value in values.items() if value is not None]
    return f"; {', '.join(known)}" if known else ""


def _tests_lines(cost: Cost) -> Iterator[str]:
    """Write a run's effect on the part of delta for tests of stability, if it has any."""
    if cost.tests_after <= cost.tests_before:
        return
    yield (
        f"  Tests       of stability: before: {cost.tests_before:.3g} of delta "
        f"{cost.delta_for_tests:.3g} for life is spent"
    )
    over = cost.tests_after > cost.delta_for_tests
    yield (
        f"              after: at most {cost.tests_after:.3g} is spent"
        f"{': THE RUN WOULD BE STOPPED BEFORE ITS END' if over else ''}"
    )


def _budget_lines(cost: Cost) -> Iterator[str]:
    """Write a run's effect on the budget for life: before, by this run, after."""
    yield (
        f"  Budget      before: {cost.spent_before:.4g} of epsilon {cost.lifetime_epsilon:g} for "
        f"life is spent, {cost.lifetime_epsilon - cost.spent_before:.4g} is left"
    )
    if cost.spent_after > cost.lifetime_epsilon:
        yield (
            f"              after: {cost.spent_after:.4g} would be spent, more than "
            f"{cost.lifetime_epsilon:g}: THE RUN WOULD BE STOPPED BEFORE ITS END"
        )
        yield (
            "              (Perhaps before its first label. Reject it, and ask the operator for a "
            "run with a smaller --epsilon.)"
        )
        return
    yield (
        f"              after: at most {cost.spent_after:.4g} is spent, at least "
        f"{cost.lifetime_epsilon - cost.spent_after:.4g} is left; this run takes "
        f"{cost.spent_after - cost.spent_before:.4g} at most"
    )
    if cost.spent_after - cost.spent_before > cost.run_epsilon:
        first = "" if cost.spent_before else " The first run takes most of that difference."
        yield (
            "              (More than the run alone: the budget adds up all runs in one way, which "
            f"is less exact for a single one.{first})"
        )


def _record(found: Proposal, task: LearningTask | None) -> dict[str, Any]:
    one, cost, terms = found.approval, found.cost, found.terms
    return {
        "subject": one.subject.value,
        "digest": one.digest.hex(),
        "federation": found.federation,
        "state": one.state.value,
        "by": one.decided_by,
        "asked_at": one.asked_at,
        "mechanism": None if terms is None else terms.mechanism,
        "columns": None if task is None else list(task.columns),
        "inputs": None if task is None else len(task.inputs),
        "max_asks": None if terms is None else terms.max_asks,
        "form": one.form or None,
        "suite": one.suite or None,
        "run": None if terms is None else terms.name,
        "run_epsilon": None if cost is None else cost.run_epsilon,
        "spent_before": None if cost is None else cost.spent_before,
        "spent_after": None if cost is None else cost.spent_after,
        "tests_before": None if cost is None else cost.tests_before,
        "tests_after": None if cost is None else cost.tests_after,
        "delta_for_tests": None if cost is None else cost.delta_for_tests,
        "peers": [{"fingerprint": seat.hex(), "checked_as": name} for seat, name in found.peers],
    }


# Deciding ---------------------------------------------------------------------------------------


def _proposal(opened: OpenSite, approval: Approval) -> Proposal:
    from party.decision.proposals import proposal_of  # noqa: PLC0415 - keeps --help fast

    return proposal_of(opened.site, approval, ledger=opened.ledger(), pins=opened.records.pins())


def _asking(opened: OpenSite, federation: str | None) -> bytes | None:
    """Return the coordinator's fingerprint of the named federation, if one is named."""
    if federation is None:
        return None
    return opened.site.membership(federation).coordinator.fingerprint


def _find(opened: OpenSite, digits: str, federation: str | None) -> Approval:
    return opened.records.find(digits, coordinator=_asking(opened, federation))


def _task(opened: OpenSite, approval: Approval) -> LearningTask:
    """Return the stored task, or fetch it and check that it is of the pool."""
    from party.site.tasks import fetch_task  # noqa: PLC0415 - keeps --help fast

    asking = [
        one
        for one in opened.site.memberships
        if one.coordinator.fingerprint == approval.coordinator
    ]
    if not asking:
        raise MembershipError("who asked must be one of this hospital's federations", "another")
    with closing(CoordinatorDoor(asking[0], clock=time.time)) as door:
        return fetch_task(opened.site, door, _proposal(opened, approval).pool)


def _train(site: Site, task: LearningTask) -> None:
    from party.site.training import ready_teachers  # noqa: PLC0415 - keeps --help fast

    ready_teachers(
        site,
        task,
        random_bytes=secrets.token_bytes,
        tell=lambda done, total: tell(f"Teacher {done} of {total} is trained."),
    )


def _pool_of(opened: OpenSite, approval: Approval, task: LearningTask) -> tuple[Approval, ...]:
    """Return the pool to approve with a run, unless it is approved."""
    from party.site.records import Subject  # noqa: PLC0415 - keeps --help fast

    if approval.subject.value == "pool":
        return ()
    digest = task.pool.digest
    asked = opened.records.ask(
        Subject.POOL,
        digest,
        coordinator=approval.coordinator,
        terms=approval.terms,
        seats=approval.seats,
        form=approval.form,
        suite=approval.suite,
    )
    return () if asked.state.value == "approved" else (asked,)
