"""What the operator is told by message: of runs, hospitals, the certificate and the budget."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final

from coordinator.certificates import days_left, end_of
from coordinator.federation.home import utc_now
from coordinator.operator import Coordinator, standings
from coordinator.runs.queue import Run
from coordinator.runs.run_hospitals import HospitalState
from coordinator.runs.standings import QUIET, HospitalStanding, offline_since
from pate_fed.nodes.notices import Notice
from pate_fed.wording import plural

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_WAVE: Final = timedelta(minutes=5)
"""Hospitals that go away one after the other are told together, once in so long."""
_DAYS: Final = (7.0, 30.0)
_LOW: Final = 0.1
"""Share of the federation's budget below which it is low."""


def news_of(coordinator: Coordinator, *, since: datetime) -> Iterator[Notice]:
    """Return the facts that hold now; `since` is when this service began to hear hospitals."""
    now = utc_now()
    runs = coordinator.queue.all()
    for run in runs:
        if run.is_ended:
            key = f"run {run.number} {run.state}"
            yield Notice(key, f"run {run.state}", partial(_of_end, run), is_old_news=True)
    is_open = [run for run in runs if not run.is_ended]
    for name, found in standings(coordinator, is_open).items():
        yield from _of_decisions(name, found)
    if now - since > QUIET:
        told_at = _EPOCH + (now - _EPOCH) // _WAVE * _WAVE
        for one in coordinator.enrollment.parties():
            gone_at = offline_since(one, now=now)
            if one.state == "member" and gone_at is not None and told_at - gone_at > QUIET:
                key = f"away {one.identity.fingerprint.hex()}"
                yield Notice(key, "hospital away", partial(_of_absence, one.name))
    yield from _of_certificate(coordinator.home.server_certificate, now=now)
    yield from _of_budget(coordinator)


def _of_end(run: Run) -> tuple[str, list[str]]:
    lines = [f"Run {run.name} has ended: {run.state}.", f"More: `pate-fed status {run.name}`."]
    return f"run {run.name} is {run.state}", lines


def _of_decisions(run: str, found: tuple[HospitalStanding, ...]) -> Iterator[Notice]:
    """Tell of each rejection, without its words; of approvals once all are there."""
    answers = [one.answer for one in found]
    if answers and all(one and one.decision is HospitalState.APPROVED for one in answers):
        subject = f"run {run} is approved"
        lines = [f"All {plural(len(found), 'hospital')} of run {run} take part."]
        yield Notice(f"run {run} approved", "run approved", lambda: (subject, lines))
    for one in found:
        if one.answer and one.answer.decision is HospitalState.REJECTED:
            at = one.answer.decided_at
            key = f"run {run} rejected {one.fingerprint.hex()} {at and at.isoformat()}"
            yield Notice(key, "run rejected", partial(_of_rejection, run, one.hospital))


def _of_rejection(run: str, hospital: str) -> tuple[str, list[str]]:
    lines = [f"{hospital} rejects run {run}.", f"Its words: `pate-fed status {run}`."]
    return f"{hospital} rejects run {run}", lines


def _of_absence(hospital: str) -> tuple[str, list[str]]:
    lines = [f"Nothing was heard of {hospital} for {QUIET.total_seconds() / 60:.0f} minutes."]
    return f"{hospital} is away", [*lines, "Its people can look: `pate-party doctor`."]


def _of_certificate(certificate: bytes, *, now: datetime) -> Iterator[Notice]:
    left, end = days_left(certificate, now=now), end_of(certificate)
    if limit := next((most for most in _DAYS if left < most), None):
        lines = [f"The server's certificate ends on {end:%Y-%m-%d}.", "Renew: `pate-fed renew`."]
        key = f"certificate {end.isoformat()} {limit:g}"
        yield Notice(key, "certificate ends", lambda: ("the certificate ends soon", lines))


def _of_budget(coordinator: Coordinator) -> Iterator[Notice]:
    held = coordinator.budget.epsilon()
    used = max(coordinator.spending.committed().values(), default=0.0)
    if held is not None and held - used < _LOW * held:
        lines = [
            f"Of the federation's budget of epsilon {held:g}, {max(0.0, held - used):.4g} is left "
            "for at least one hospital."
        ]
        yield Notice(f"budget {held!r}", "budget low", lambda: ("the budget is low", lines))
