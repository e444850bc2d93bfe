"""Hospitals: invite, compare words, approve, revoke."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import timedelta

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from coordinator import operator
from coordinator.certificates import days_left, end_of
from coordinator.console import words
from coordinator.console.access import visit_of
from coordinator.console.form_input import number_of, text_of
from coordinator.console.rendering import page
from coordinator.errors import ConsoleError, EnrollmentError
from coordinator.federation.enrollment import INSIDE
from coordinator.federation.home import utc_now
from coordinator.runs.queue import ENDED, Run, RunState
from coordinator.runs.standings import HospitalStanding, offline_since
from protocols.fingerprint_words import WORDS, differing, heard_words
from protocols.party_names import normalized

router = APIRouter()


@router.get("/hospitals")
def hospitals(request: Request) -> Response:
    """Show requests, members, invitations and revoked hospitals."""
    return _page(request)


def _page(
    request: Request,
    *,
    problem: Mapping[str, str] | None = None,
    typed_for: str = "",
    typed: str = "",
    marks: Sequence[tuple[str, bool]] = (),
) -> Response:
    """Show the page; of words that were typed for a request the `problem`, and which differ."""
    coordinator, now = visit_of(request).coordinator, utc_now()
    found = coordinator.enrollment.parties()
    certificate = coordinator.home.server_certificate
    open_runs = coordinator.queue.page(states=set(RunState) - ENDED)
    runs: dict[bytes, list[tuple[Run, HospitalStanding]]] = defaultdict(list)
    for run, all_of_it in zip(
        open_runs, operator.standings(coordinator, open_runs).values(), strict=True
    ):
        for one in all_of_it:
            runs[one.fingerprint].append((run, one))
    tally = coordinator.home.tally
    return page(
        request,
        "hospitals",
        status=403 if problem else 200,
        problem=problem or {},
        typed_for=typed_for,
        typed=typed,
        marks=marks,
        tally=tally,
        tally_stands=tally and coordinator.queue.tally.standing(tally.identity.fingerprint),
        tally_words=words.TALLY,
        no_votes=operator.reports_without_votes(coordinator) if tally else (),
        fingerprint=coordinator.home.fingerprint,
        certificate_end=end_of(certificate),
        days=days_left(certificate, now=now),
        requests=[one for one in found if one.state == "requested"],
        members=[one for one in found if one.state in INSIDE],
        revoked=[one for one in found if one.state == "revoked"],
        invitations=[one for one in coordinator.enrollment.invitations() if one.is_open(now=now)],
        offline={one.name: offline_since(one, now=now) for one in found},
        runs=runs,
    )


@router.post("/hospitals/invite")
def invite(request: Request) -> Response:
    """Make an invitation, as a file for the hospital alone."""
    visit = visit_of(request)
    party = text_of(visit.form, "hospital", label="Name of the hospital", most=64)
    days = number_of(visit.form, "days", float, label="Days")
    if days is None or not 0 < days <= 30:
        raise ConsoleError("days must be above 0, and 30 at most", days)
    invitation = visit.coordinator.invite(party, lifetime=timedelta(days=days))
    name = re.sub(r"[^A-Za-z0-9._-]", "-", invitation.party)
    return Response(
        invitation.to_json(),
        media_type="application/json",
        headers={"Content-Disposition": f'attachment; filename="{name}.invite.json"'},
    )


@router.post("/hospitals/approve")
def approve(request: Request) -> Response:
    """Make a hospital a member."""
    visit = visit_of(request)
    party = text_of(visit.form, "hospital", most=64)
    words = text_of(visit.form, "words", label="The twelve words", most=400)
    try:
        visit.coordinator.approve(party, words=words)
    except EnrollmentError as error:
        asks = [one for one in visit.coordinator.enrollment.parties() if one.state == "requested"]
        asking = next((one for one in asks if one.name == normalized(party)), None)
        if asking is None:
            raise
        return _page(
            request,
            problem={"words": f"{error.must}; got {error.got} [{error.code}]"},
            typed_for=asking.name,
            typed=words,
            marks=_marks(asking.identity.fingerprint, words),
        )
    return RedirectResponse("/hospitals", 303)


def _marks(fingerprint: bytes, typed: str) -> list[tuple[str, bool]]:
    """Return each typed word, and whether it is the request's; nothing if there are not 12."""
    words, wrong = heard_words(typed), differing(fingerprint, typed)
    if len(words) != WORDS:
        return []
    return [(word, place not in wrong) for place, word in enumerate(words, 1)]


@router.post("/hospitals/suspend")
def suspend(request: Request) -> Response:
    """Ask a hospital nothing from now on."""
    visit = visit_of(request)
    operator.suspend(visit.coordinator, text_of(visit.form, "hospital", most=64))
    return RedirectResponse("/hospitals", 303)


@router.post("/hospitals/reinstate")
def reinstate(request: Request) -> Response:
    """Let a suspended hospital take part again."""
    visit = visit_of(request)
    operator.reinstate(visit.coordinator, text_of(visit.form, "hospital", most=64))
    return RedirectResponse("/hospitals", 303)


@router.post("/hospitals/revoke")
def revoke(request: Request) -> Response:
    """Expel a hospital, reject its request, or withdraw its invitation."""
    visit = visit_of(request)
    party = text_of(visit.form, "hospital", most=64)
    typed = text_of(visit.form, "typed", label="The hospital's name", most=64)
    if normalized(typed) != normalized(party):
        raise ConsoleError("type the hospital's name to revoke it")
    visit.coordinator.revoke(party)
    return RedirectResponse("/hospitals", 303)
