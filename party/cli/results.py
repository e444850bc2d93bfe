"""Results of runs at the command line: listed, and fetched with a check of every file."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from party.cli.terminal import DEFAULT_SITE, SiteOption, decider, tell
from party.errors import JoinError, MembershipError, ResultsError
from party.owner import OpenSite, open_records
from party.site.joining import CoordinatorDoor
from party.site.membership import SiteMembership
from pate_fed.nodes import one_line
from pate_fed.nodes.command_line import show
from pate_fed.nodes.terminal import minute
from pate_fed.run_folder import SEAL, refuse_existing

if TYPE_CHECKING:
    from party.site.fetched_results import AnsweredRun

MOST_ASKED = 20


def results(
    run: Annotated[
        str | None, typer.Argument(metavar="[RUN]", help="The first digits of a run's id.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="New folder. [default: results-RUN]"),
    ] = None,
    site: SiteOption = DEFAULT_SITE,
) -> None:
    """List the runs of this hospital, or fetch the results of one: labels and student.

    Every file is checked against the coordinator's seal and the transcript that this hospital
    signed. A mismatch keeps nothing.
    """
    from party.site.fetched_results import answered_runs, find_run  # noqa: PLC0415 - keeps --help fast

    with open_records(site) as opened:
        if run is None:
            _list(opened)
        else:
            _fetch(opened, find_run(answered_runs(opened.log.entries()), run), out)


def _list(opened: OpenSite) -> None:
    from party.people_tables import runs_table  # noqa: PLC0415 - the same
    from party.site.fetched_results import answered_runs  # noqa: PLC0415 - keeps --help fast

    asked = list(answered_runs(opened.log.entries()))[-MOST_ASKED:]
    states = {one.run.hex(): _state(opened, one) for one in asked}
    runs = [{**one, "results": states.get(one["run"], "not asked")} for one in runs_table(opened)]
    show(
        {"runs": runs},
        [
            f"run {one['run'][:16]}  {one['federation']}, {minute(one['agreed_at'])}, "
            f"{one['batches']} batch(es): {one['results']}"
            for one in runs
        ]
        or ["This hospital took part in no run."],
    )
    if "ready" in states.values():
        tell("Fetch the results of a run: pate-party results RUN")


def _state(opened: OpenSite, one: AnsweredRun) -> str:
    try:
        with closing(CoordinatorDoor(_membership(opened, one), clock=time.time)) as door:
            return "none yet" if next(door.results_pieces(one.run, SEAL), None) is None else "ready"
    except ResultsError:
        return "none yet"
    except (JoinError, MembershipError) as error:
        return f"not known ({error.code}): {one_line(str(error))}"


def _fetch(opened: OpenSite, one: AnsweredRun, out: Path | None) -> None:
    from party.site.fetched_results import fetch_results  # noqa: PLC0415 - keeps --help fast
    from party.storage.site_audit_log import SiteAct  # noqa: PLC0415 - the same
    from pate_fed.nodes.audit_log import Fact  # noqa: PLC0415 - the same

    joined = _membership(opened, one)
    target = (out or Path(f"results-{one.run.hex()[:16]}")).absolute()
    refuse_existing(target)
    taken: dict[str, Fact] = {"run": one.run, "to": str(target)}
    opened.decisions.state.note_taken(SiteAct.RESULTS_FETCHED, taken, by=decider(None))
    with closing(CoordinatorDoor(joined, clock=time.time)) as door:
        verdict = fetch_results(
            door,
            one,
            target,
            coordinator=joined.coordinator,
            party=joined.identity.public,
        )
    files = sorted(
        path.relative_to(target).as_posix() for path in target.rglob("*") if path.is_file()
    )
    signed = joined.identity.public.fingerprint.hex() in verdict.heads_compared
    ours = (
        "this hospital's own signature is one of them"
        if signed
        else "this hospital was not there at the end: its signature is not among them"
    )
    show(
        {
            "run": one.run.hex(),
            "federation": joined.settings.federation,
            "out": str(target),
            "files": files,
            "sealed": True,
            "head": verdict.head,
            "heads_compared": list(verdict.heads_compared),
            "not_heard": list(verdict.not_heard),
        },
        (
            f"Fetched into {target}: {', '.join(files)}.",
            f"The seal is good: every file is as the coordinator of {joined.settings.federation} "
            "sealed it with this run. report.html was made here, from these files.",
            f"The transcript is good: heads of {len(verdict.heads_compared)} of "
            f"{len(verdict.parties)} hospitals agree; {ours}.",
        ),
    )


def _membership(opened: OpenSite, one: AnsweredRun) -> SiteMembership:
    found = opened.site.membership_at(one.coordinator)
    if found is None or found.has_left or not opened.site.has_keys:
        raise MembershipError("a run must be of a federation that this hospital is in")
    return found
