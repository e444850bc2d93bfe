"""The overview, and the health of the service."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from coordinator.console.access import visit_of
from coordinator.console.rendering import page
from coordinator.federation.certificates import days_left, end_of
from coordinator.federation.enrollment import EnrolledParty
from coordinator.federation.home import utc_now
from coordinator.federation.readiness import readiness, what_is_missing
from coordinator.operator import Coordinator
from coordinator.runs.queue import ENDED, RunState
from pate_fed import wording

router = APIRouter()

FEW_DAYS: Final = 30.0
QUIET: Final = timedelta(minutes=10)
"""A hospital that asked nothing for so long is away: it asks about once a minute."""

_SHOWN: Final = 10


@router.get("/")
def overview(request: Request) -> Response:
    """Show runs, hospitals, spending, and open tasks of people."""
    coordinator = visit_of(request).coordinator
    counts = coordinator.queue.counts()
    members = coordinator.members()
    spent = coordinator.spending.by_hospital()
    return page(
        request,
        "overview",
        counts={state: count for state, count in counts.items() if count},
        open_runs=coordinator.queue.page(states=set(RunState) - ENDED, most=_SHOWN),
        last_runs=coordinator.queue.page(states=ENDED, most=5),
        members=sum(one.state == "member" for one in members),
        requests=[one for one in members if one.state == "requested"],
        spent=spent[:5],
        hospitals_charged=len(spent),
        alerts=_alerts(coordinator, members, waiting=counts[RunState.WAITING], now=utc_now()),
    )


@router.get("/health")
def health(request: Request) -> Response:
    """Show the parts of the service, the certificate, and hospitals that are away."""
    coordinator, now = visit_of(request).coordinator, utc_now()
    parts = readiness(coordinator.home)
    certificate = coordinator.home.server_certificate
    members = [one for one in coordinator.members() if one.state == "member"]
    return page(
        request,
        "health",
        parts=parts,
        missing=what_is_missing(parts),
        certificate_end=end_of(certificate),
        days=days_left(certificate, now=now),
        away=[one for one in members if one.seen_at is None or now - one.seen_at > QUIET],
        skewed=[one for one in members if abs(one.clock_skew_s or 0) > 5],
        members=len(members),
    )


def _alerts(
    coordinator: Coordinator, members: list[EnrolledParty], *, waiting: int, now: datetime
) -> list[tuple[str, str]]:
    """Return the open tasks of people: a sentence, and the page for each."""
    found = [(said, "/health") for said in what_is_missing(readiness(coordinator.home))]
    days = days_left(coordinator.home.server_certificate, now=now)
    if days < FEW_DAYS:
        found.append((f"The server's certificate ends in {max(0, days):.0f} days.", "/health"))
    asking = [one.name for one in members if one.state == "requested"]
    if asking:
        found.append((f"Asks to join: {', '.join(asking[:3])}.", "/hospitals"))
    away = [
        one.name
        for one in members
        if one.state == "member" and one.seen_at is not None and now - one.seen_at > QUIET
    ]
    if away:
        more = f" and {len(away) - 3} more" if len(away) > 3 else ""
        found.append((f"Not heard for a while: {', '.join(away[:3])}{more}.", "/hospitals"))
    proposal = coordinator.budget.proposal()
    if proposal is not None:
        found.append((f"{proposal.by} proposes a higher budget.", "/privacy"))
    if waiting:
        verb = "waits" if waiting == 1 else "wait"
        found.append((f"{wording.plural(waiting, 'run')} {verb} for hospitals.", "/runs"))
    return found
