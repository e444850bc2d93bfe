"""Approving and rejecting at the command line: shown in plain words first, then decided."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from party.cli.console import (
    DEFAULT_SITE,
    ByOption,
    FederationOption,
    FormatOption,
    SiteOption,
    ask,
    decider,
    is_attended,
    show,
    tell,
)
from party.errors import (
    DataChangedError,
    DataError,
    EnrollmentError,
    MembershipError,
    NotConfirmedError,
    TaskError,
    UsageError,
)
from party.owner import OpenSite, open_records
from pate_fed.data.task import LearningTask
from pate_fed.errors import InvalidDataError
from pate_fed.evaluation_task import EvaluationTask
from pate_fed.nodes import Format

if TYPE_CHECKING:
    from party.decision.proposals import Proposal
    from party.site.document_child import AskedTask
    from party.site.records import Approval
    from pate_fed.data.flat_columns import FlatColumn

DigestArgument = Annotated[
    str | None, typer.Argument(metavar="[ID]", help="First digits of a listed id.")
]
QueriesOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Write the public inputs that may be asked about into a new CSV file; decide nothing.",
    ),
]
YesOption = Annotated[bool, typer.Option("--yes", help="Do not ask.")]
ReasonOption = Annotated[
    str, typer.Option(metavar="TEXT", help="Why, for your own audit log.", show_default=False)
]


def approve(  # noqa: PLR0917 - one argument per option
    digest: DigestArgument = None,
    federation: FederationOption = None,
    by: ByOption = None,
    reason: ReasonOption = "",
    yes: YesOption = False,
    queries: QueriesOption = None,
    site: SiteOption = DEFAULT_SITE,
    output_format: FormatOption = Format.TEXT,
) -> None:
    """List the waiting runs and pools (lists of questions), or approve one.

    At a terminal, the list asks about each. Approving a run also approves its pool. The
    approval trains the teachers first, and holds in its own federation only.
    """
    if queries is not None and (digest is None or yes):
        raise UsageError("--queries must come with an ID and without --yes", "otherwise")
    with open_records(site) as opened:
        if queries is not None:
            _write_queries(opened, opened.find(digest or "", federation), queries, output_format)
            return
        if digest is None:
            waiting = _list(opened, output_format, federation)
            if output_format is Format.TEXT and is_attended():
                _ask_about_each(opened, waiting, by=decider(by))
            elif waiting:
                tell("Approve one: `pate-party approve ID`; reject one: `pate-party reject ID`.")
            return
        approval = opened.find(digest, federation)
        task = opened.task(approval)
        for line in _lines(opened, approval, task, _flat(opened, task)):
            tell(line)
        if not (yes or ask("Approve this?")):
            raise NotConfirmedError("a person must approve", "no")
        _approve(opened, approval, task, output_format, by=decider(by), reason=reason)


def _ask_about_each(opened: OpenSite, waiting: Sequence[Approval], *, by: str) -> None:
    """Ask about each listed entry; a no is not noted, and the entry waits on."""
    for one in waiting:
        if ask(f"Approve {one.subject.value} {one.digest.hex()[:16]}?"):
            _approve(opened, one, opened.task(one), Format.TEXT, by=by)
        else:
            tell(f"It waits on. To reject it: pate-party reject {one.digest.hex()[:16]}")


def _approve(
    opened: OpenSite,
    approval: Approval,
    task: AskedTask,
    output_format: Format,
    *,
    by: str,
    reason: str = "",
) -> None:
    """Train teachers, then approve; a run's pool with it."""

    def trained(done: int, total: int) -> None:
        tell(f"Teacher {done} of {total} is trained.")

    opened.approve(approval, task, by=by, reason=reason, tell=trained)
    show(
        output_format,
        {"approved": approval.digest.hex(), "subject": approval.subject.value, "by": by},
        (f"Approved: {approval.subject.value} {approval.digest.hex()[:16]}, by {by}.",),
    )


def reject(  # noqa: PLR0917 - one argument per option
    digest: Annotated[str, typer.Argument(metavar="ID", help="First digits of a listed id.")],
    federation: FederationOption = None,
    by: ByOption = None,
    reason: ReasonOption = "",
    site: SiteOption = DEFAULT_SITE,
    output_format: FormatOption = Format.TEXT,
) -> None:
    """Reject a waiting run or pool, or withdraw an approval: an open run's next batch fails."""
    with open_records(site) as opened:
        found = opened.find(digest, federation)
        one = opened.reject(found, by=decider(by), reason=reason)
    show(
        output_format,
        {"rejected": one.digest.hex(), "subject": one.subject.value, "by": one.decided_by},
        (f"Rejected: {one.subject.value} {one.digest.hex()[:16]}, by {one.decided_by}.",),
    )


def _write_queries(opened: OpenSite, approval: Approval, file: Path, output_format: Format) -> None:
    """Write a pool's rows as this hospital's teachers will get them."""
    task = opened.task(approval)
    if isinstance(task, EvaluationTask):
        raise UsageError("--queries must be of a run or pool with public inputs", "an evaluation")
    made = False
    try:
        with file.open("x", encoding="utf-8", newline="") as new:
            made = True
            new.writelines(task.rows.csv_lines())
    except OSError as error:
        if made:
            file.unlink()
        raise UsageError(
            "--queries must be a new file that can be written", error.strerror
        ) from error
    show(
        output_format,
        {"file": str(file), "rows": len(task.rows)},
        (f"{file} has the {len(task.rows)} public inputs. Nothing was decided.",),
    )


# Showing -----------------------------------------------------------------------------------------


def _list(opened: OpenSite, output_format: Format, federation: str | None) -> Sequence[Approval]:
    """Show the waiting approvals; return those that people decide: a run includes its pool."""
    known = opened.approvals(federation)
    waiting = [one for one in known if one.state.value == "pending"]
    proposals = [opened.proposal(one) for one in known]
    lines: list[str] = []
    tasks: dict[bytes, AskedTask] = {}
    merged: dict[bytes, tuple[FlatColumn, ...]] = {}
    in_full = opened.to_decide(waiting)
    for one in in_full:
        try:
            task = opened.task(one)
            tasks[task.pool.digest] = task
        except (EnrollmentError, MembershipError, TaskError) as error:
            tell(f"The task of {one.digest.hex()[:16]} could not be read: {error.code}: {error}")
            task = None
        flat = _flat(opened, task)
        if task is not None:
            merged[task.pool.digest] = flat
        lines += [*_lines(opened, one, task, flat), ""]
    for one in waiting:
        if one not in in_full:
            lines += [*_lines_of_pool_with_run(opened, one), ""]
    show(
        output_format,
        {
            "approvals": [
                _record(found, tasks.get(found.pool), merged.get(found.pool)) for found in proposals
            ]
        },
        lines or ["Nothing waits for a person."],
    )
    return in_full


def _lines_of_pool_with_run(opened: OpenSite, pool: Approval) -> Iterator[str]:
    """Mention a pool whose run waits too."""
    asked = datetime.fromtimestamp(pool.asked_at, UTC)
    yield f"pool {pool.digest.hex()}, asked {asked:%Y-%m-%d %H:%M} UTC"
    yield f"  Federation  {opened.proposal(pool).federation}"
    yield "  Of          the run above: its public inputs. Approving that run approves this pool,"
    yield "              too. Rejecting that run leaves this pool waiting."


def _lines(
    opened: OpenSite,
    approval: Approval,
    task: AskedTask | None,
    flat: Sequence[FlatColumn],
) -> Iterator[str]:
    """Describe the request in plain words."""
    from party.decision.proposal_words import words_of  # noqa: PLC0415 - keeps --help fast

    asked = datetime.fromtimestamp(approval.asked_at, UTC)
    yield f"{approval.subject.value} {approval.digest.hex()}, asked {asked:%Y-%m-%d %H:%M} UTC"
    for name, text in words_of(opened.proposal(approval), task, flat):
        yield f"  {name:11} {text}"


def _flat(opened: OpenSite, task: AskedTask | None) -> tuple[FlatColumn, ...]:
    """Compare a task with the own table; say why where that cannot be done."""
    try:
        return () if task is None else opened.flat_columns(task)
    except (DataError, DataChangedError, InvalidDataError) as error:
        tell(f"Your table could not be compared with the public inputs: {error.code}: {error}")
        return ()


def _record(
    found: Proposal, task: AskedTask | None, flat: Sequence[FlatColumn] | None
) -> dict[str, Any]:
    one, cost, terms = found.approval, found.cost, found.terms
    return {
        "subject": one.subject.value,
        "digest": one.digest.hex(),
        "federation": found.federation,
        "state": one.state.value,
        "by": one.decided_by,
        "reason": one.reason,
        "asked_at": one.asked_at,
        "mechanism": None if terms is None else terms.mechanism,
        "columns": list(task.columns) if isinstance(task, LearningTask) else None,
        "flat_columns": None
        if flat is None
        else [{"column": one.name, "share": one.share, "why": one.why} for one in flat],
        "inputs": len(task.inputs) if isinstance(task, LearningTask) else None,
        "evaluation": list(task.by) if isinstance(task, EvaluationTask) else None,
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
