"""Approving and rejecting at the command line: shown in plain words first, then decided."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from party.cli.terminal import (
    DEFAULT_SITE,
    ByOption,
    FederationOption,
    SiteOption,
    decider,
    is_attended,
    tell,
)
from party.errors import NotConfirmedError, PartyUsageError, code_of, fault_line, fault_of
from party.owner import OpenSite, open_records, refused_for_tally
from pate_fed.data.task import LearningTask
from pate_fed.evaluation_task import EvaluationTask
from pate_fed.nodes.command_line import ask, prints_json, show
from pate_fed.nodes.terminal import minute
from pate_fed.public_images import PublicImages

if TYPE_CHECKING:
    from party.decision.proposals import Request
    from party.site.people_decisions import Approval
    from pate_fed.data.table_fit import TableFit

_MOST_COLUMNS: Final = 30

DigestArgument = Annotated[
    str | None, typer.Argument(metavar="[ID]", help="First digits of a listed id.")
]
QueriesOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Write the public inputs that may be asked about into a new CSV file, images into a "
        "new .zip file; decide nothing.",
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
) -> None:
    """List the waiting runs and pools (lists of questions), or approve one.

    At a terminal, the list asks about each. Approving a run also approves its pool. The
    approval trains the teachers first, and holds in its own federation only.
    """
    if queries is not None and (digest is None or yes):
        raise PartyUsageError("--queries must come with an ID and without --yes")
    with open_records(site) as opened:
        if queries is not None:
            _write_queries(opened, opened.find(digest or "", federation), queries)
            return
        if digest is None:
            waiting = _list(opened, federation)
            if not prints_json() and is_attended():
                _ask_about_each(opened, waiting, by=decider(by))
            elif waiting:
                tell("Approve one: `pate-party approve ID`; reject one: `pate-party reject ID`.")
            return
        request = opened.request(opened.find(digest, federation))
        for line in _lines(request):
            tell(line)
        request.require_no_fault()
        if not (yes or ask("Approve this?")):
            raise NotConfirmedError("a person must approve")
        _approve(opened, request, by=decider(by), reason=reason)


def _ask_about_each(opened: OpenSite, waiting: Sequence[Request], *, by: str) -> None:
    """Ask about each listed entry; one that is not or cannot be approved waits on."""
    for one in waiting:
        named = f"{one.approval.subject.value} {one.approval.digest.hex()[:16]}"
        on = f"It waits on. To reject it: pate-party reject {one.approval.digest.hex()[:16]}"
        if one.faults:
            tell(f"{named} cannot be approved now: {fault_line(one.faults[0])}")
            tell(on)
        elif ask(f"Approve {named}?"):
            try:
                _approve(opened, one, by=by)
            except Exception as error:
                tell(f"{named} was not approved: {fault_line(fault_of(error))}")
                tell(on)
        else:
            tell(on)


def _approve(
    opened: OpenSite,
    request: Request,
    *,
    by: str,
    reason: str = "",
) -> None:
    def trained(done: int, total: int) -> None:
        tell(f"Teacher {done} of {total} is trained.")

    opened.approve(request, by=by, reason=reason, tell=trained)
    approval = request.approval
    show(
        {"approved": approval.digest.hex(), "subject": approval.subject.value, "by": by},
        (f"Approved: {approval.subject.value} {approval.digest.hex()[:16]}, by {by}.",),
    )


def reject(  # noqa: PLR0917 - one argument per option
    digest: Annotated[str, typer.Argument(metavar="ID", help="First digits of a listed id.")],
    federation: FederationOption = None,
    by: ByOption = None,
    reason: ReasonOption = "",
    words: Annotated[
        str,
        typer.Option(
            "--tell",
            metavar="TEXT",
            help="For the operator: it is sent. Without it only the rejection and its time are.",
            show_default=False,
        ),
    ] = "",
    site: SiteOption = DEFAULT_SITE,
) -> None:
    """Reject a waiting run or pool, or withdraw an approval: an open run's next batch fails."""
    with open_records(site) as opened:
        found = opened.find(digest, federation)
        one = opened.reject(found, by=decider(by), reason=reason, words=words)
    show(
        {"rejected": one.digest.hex(), "subject": one.subject.value, "by": one.decided_by},
        (f"Rejected: {one.subject.value} {one.digest.hex()[:16]}, by {one.decided_by}.",),
    )


def _write_queries(opened: OpenSite, approval: Approval, file: Path) -> None:
    """Write a pool's rows as this hospital's teachers will get them."""
    task = opened.task(approval)
    if isinstance(task, EvaluationTask):
        raise PartyUsageError("--queries must be of a run or pool with public inputs")
    made = False
    rows = task.rows
    try:
        with file.open("xb") as new:
            made = True
            if isinstance(rows, PublicImages):
                new.write(rows.as_zip())
            else:
                new.writelines(line.encode() for line in rows.csv_lines())
    except OSError as error:
        if made:
            file.unlink()
        raise PartyUsageError(
            "--queries must be a new file that can be written", error.strerror
        ) from error
    show(
        {"file": str(file), "rows": len(task.rows)},
        (f"{file} has the {len(task.rows)} public inputs. Nothing was decided.",),
    )


# Showing -----------------------------------------------------------------------------------------


def _list(opened: OpenSite, federation: str | None) -> Sequence[Request]:
    """Show the waiting approvals; return those that people decide: a run includes its pool."""
    known = opened.approvals(federation)
    waiting = [one for one in known if one.state.value == "pending"]
    in_full = opened.to_decide(waiting)
    read = {one: opened.request(one) for one in in_full}
    tasks = {
        (one.coordinator, request.task.pool.digest): request
        for one, request in read.items()
        if request.task is not None
    }
    lines: list[str] = []
    for request in read.values():
        lines += [*_lines(request), ""]
    for one in waiting:
        if one not in in_full:
            lines += [
                f"pool {one.digest.hex()}, asked {minute(one.asked_at)}",
                f"  Federation  {opened.site.federation_of(one.coordinator)}",
                "  Of          the run above: its public inputs. Approving or rejecting that run "
                "approves",
                "              or rejects this pool, too.",
                "",
            ]
    show(
        {"approvals": [_record(opened, one, read, tasks) for one in known]},
        lines or list(refused_for_tally(opened.site)) or ["Nothing waits for a person."],
    )
    return list(read.values())


def _lines(request: Request) -> Iterator[str]:
    from party.decision.proposal_words import RECORDS, words_of  # noqa: PLC0415 - keeps --help fast

    approval = request.approval
    yield f"{approval.subject.value} {approval.digest.hex()}, asked {minute(approval.asked_at)}"
    named = ""
    for name, text in (*words_of(request), (" ", "")):
        if named == RECORDS and name:
            yield from (f"  {'':11} {line}" for line in _column_lines(request))
        named = name or named
        if text:
            yield f"  {name:11} {text}"


def _column_lines(request: Request) -> Iterator[str]:
    """Show the public rows beside the own ones, those with faults and doubts first."""
    fit = None if request.review is None else request.review.fit
    if fit is None:
        return
    for one in fit.first(_MOST_COLUMNS):
        yield f"{one.name}: public {one.public}"
        yield f"  here {one.own or 'it cannot be read'}"
        yield from (f"  LOOK: {remark}" for remark in one.remarks)
    more = len(fit.columns) - _MOST_COLUMNS
    if more > 0:
        yield f"and {more} more columns; `--format json` has all"


def _record(
    opened: OpenSite,
    one: Approval,
    read: Mapping[Approval, Request],
    tasks: Mapping[tuple[bytes, bytes], Request],
) -> dict[str, object]:
    from party.decision.proposals import Request  # noqa: PLC0415 - keeps --help fast

    request = read.get(one) or Request(opened.proposal(one))
    found = request.proposal
    cost, terms = found.cost, found.terms
    pool = one.digest if terms is None else terms.pool_digest
    of = tasks.get((one.coordinator, pool), request)
    task, fit = of.task, None if of.review is None else of.review.fit
    return {
        "subject": one.subject.value,
        "digest": one.digest.hex(),
        "federation": found.federation,
        "state": one.state.value,
        "by": one.decided_by,
        "reason": one.reason,
        "asked_at": one.asked_at,
        "purpose": None if terms is None else terms.purpose,
        "faults": [{"code": code_of(each), "said": str(each)} for each in request.faults],
        "mechanism": None if terms is None else terms.rule.mechanism,
        "label": task.label if isinstance(task, LearningTask) else None,
        "classes": list(task.class_names) if isinstance(task, LearningTask) else None,
        "columns": list(task.columns) if isinstance(task, LearningTask) else None,
        "flat_columns": None if of.review is None else [asdict(each) for each in of.review.flat],
        "inputs": len(task.inputs) if isinstance(task, LearningTask) else None,
        "table": None if fit is None or of.review is None else _table(of.review.label, fit),
        "evaluation": list(task.by) if isinstance(task, EvaluationTask) else None,
        "max_asks": None if terms is None else terms.caps.max_asks,
        "form": one.form or None,
        "suite": one.suite or None,
        "coordinator": found.aggregators[0],
        "tally": found.aggregators[1] or None,
        "run": None if terms is None else terms.name,
        "run_epsilon": None if cost is None else cost.run_epsilon,
        "view": None if cost is None else cost.view,
        "charged_epsilon": None if cost is None else cost.charged_epsilon,
        "charged_view": None if cost is None else cost.charged_view,
        "used_share": None if cost is None else cost.used,
        "share": None if cost is None else cost.share,
        "room": None if cost is None else cost.room,
        "tests_before": None if cost is None else cost.tests_before,
        "tests_after": None if cost is None else cost.tests_after,
        "delta_for_tests": None if cost is None else cost.delta_for_tests,
        "peers": [
            {"fingerprint": seat.hex(), "checked_as": name, "votes": found.votes.get(seat)}
            for seat, name in found.peers
        ],
    }


def _table(label: str, fit: TableFit) -> dict[str, object]:
    """Return the own table beside the task: for this hospital's people, and nobody else."""
    return {
        "label": label,
        "unseen_classes": list(fit.unseen),
        "unread_columns": list(fit.unread),
        "columns": [
            {
                "name": one.name,
                "kind": one.kind,
                "public": one.public,
                "here": one.own or None,
                "remarks": list(one.remarks),
                "fault": None if one.fault is None else fault_line(one.fault),
            }
            for one in fit.columns
        ],
    }
