"""The overview, and the health of the service."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Final

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from coordinator.certificates import days_left, end_of
from coordinator.console import words
from coordinator.console.access import visit_of
from coordinator.console.rendering import page
from coordinator.federation.enrollment import INSIDE, EnrolledParty
from coordinator.federation.home import utc_now
from coordinator.federation.readiness import readiness, what_is_missing
from coordinator.operator import Coordinator
from coordinator.runs.queue import ENDED, RunState
from coordinator.runs.standings import offline_since
from pate_fed import wording

router = APIRouter()

FEW_DAYS: Final = 30.0
_SHOWN: Final = 10
_MOST_NAMED: Final = 3
LEAST_HOSPITALS: Final = 3
"""Fewest hospitals whose votes a secure sum hides."""


@router.get("/")
def overview(request: Request) -> Response:
    """Show runs, hospitals, spending, and open tasks of people."""
    coordinator, now = visit_of(request).coordinator, utc_now()
    counts = coordinator.queue.counts()
    members = coordinator.enrollment.parties()
    spent = coordinator.spending.by_hospital()
    return page(
        request,
        "overview",
        counts={state: count for state, count in counts.items() if count},
        open_runs=coordinator.queue.page(states=set(RunState) - ENDED, most=_SHOWN),
        last_runs=coordinator.queue.page(states=ENDED, most=5),
        members=sum(one.state in INSIDE for one in members),
        suspended=sum(one.state == "suspended" for one in members),
        requests=sum(one.state == "requested" for one in members),
        spent=spent[:5],
        alerts=_alerts(coordinator, members, waiting=counts[RunState.WAITING], now=now),
        steps=_steps(coordinator, members, counts, now=now),
    )


@router.get("/health")
def health(request: Request) -> Response:
    """Show the parts of the service, the certificate, and hospitals that are away."""
    coordinator, now = visit_of(request).coordinator, utc_now()
    parts = readiness(coordinator.home)
    certificate = coordinator.home.server_certificate
    members = [one for one in coordinator.enrollment.parties() if one.state == "member"]
    return page(
        request,
        "health",
        parts=parts,
        missing=what_is_missing(parts),
        certificate_end=end_of(certificate),
        days=days_left(certificate, now=now),
        away=[one for one in members if one.seen_at is None or offline_since(one, now=now)],
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
        found.append((f"Asks to join: {_names(asking)}.", "/hospitals"))
    away = [
        one.name
        for one in members
        if one.state == "member" and offline_since(one, now=now) is not None
    ]
    if away:
        found.append((f"Not heard for a while: {_names(away)}.", "/hospitals"))
    tally = coordinator.home.tally
    if tally and (code := coordinator.queue.tally.standing(tally.identity.fingerprint).code):
        found.append((words.TALLY[code], "/hospitals"))
    suspended = [one.name for one in members if one.state == "suspended"]
    if suspended:
        found.append((f"Suspended: {_names(suspended)}.", "/hospitals"))
    proposal = coordinator.budget.proposal()
    if proposal is not None:
        found.append((f"{proposal.by} proposes a higher budget.", "/privacy"))
    if waiting:
        verb = "waits" if waiting == 1 else "wait"
        found.append((f"{wording.plural(waiting, 'run')} {verb}.", "/runs"))
    return found


def _steps(
    coordinator: Coordinator,
    members: list[EnrolledParty],
    counts: Mapping[RunState, int],
    *,
    now: datetime,
) -> list[tuple[str, str, bool]]:
    """Return the steps to the first results: a sentence, its page, and whether it is done.

    Nothing once a run is done.
    """
    if counts[RunState.DONE]:
        return []
    inside = sum(one.state in INSIDE for one in members)
    asking = sum(one.state == "requested" for one in members)
    invited = sum(one.is_open(now=now) for one in coordinator.enrollment.invitations())
    missing = LEAST_HOSPITALS - inside - asking - invited
    more = wording.plural(missing, "hospital")
    return [
        (
            f"First invite {more}: a run needs {LEAST_HOSPITALS} or more."
            if missing > 0
            else f"{LEAST_HOSPITALS} hospitals or more are invited.",
            "/hospitals",
            missing <= 0,
        ),
        (
            "Each joins with its invitation. Compare its words by telephone, and approve it: "
            f"{inside} of {LEAST_HOSPITALS} are in.",
            "/hospitals",
            inside >= LEAST_HOSPITALS,
        ),
        ("Ask for the first run.", "/new-run", any(counts.values())),
        ("Its hospitals decide, and the service asks them.", "/runs", False),
    ]


def _names(names: list[str]) -> str:
    """List names: all of them, or as many as one sentence holds and the number of the others."""
    if len(names) <= _MOST_NAMED:
        return ", ".join(names)
    return f"{', '.join(names[:_MOST_NAMED])} and {len(names) - _MOST_NAMED} more"
