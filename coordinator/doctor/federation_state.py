"""Checks of the federation's state: its hospitals, open invitations, waiting runs."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from coordinator.doctor.probes import CoordinatorProbes
from coordinator.operator import Coordinator
from coordinator.runs.queue import Run, RunState
from pate_fed.nodes.checks import Finding, ok, warn
from protocols.additive import AdditiveSum

SOON: Final = timedelta(days=2)


def check_hospitals(coordinator: Coordinator, around: CoordinatorProbes) -> Finding:
    """List hospitals to approve or away; check that there are enough for a run."""
    found = coordinator.enrollment.parties()
    members = [one for one in found if one.state == "member"]
    waiting = [one.name for one in found if one.state == "requested"]
    is_served = around.is_served(coordinator.home)
    online = around.online(coordinator.home) if is_served and members else None
    away = [one.name for one in members if online is not None and one.node_id not in online]
    said = [f"Members: {len(members)}."]
    advice = []
    if waiting:
        said.append(f"Asked to join and not approved: {', '.join(waiting)}.")
        advice.append("Telephone them, then `pate-fed approve`, or `pate-fed revoke`.")
    suspended = [one.name for one in found if one.state == "suspended"]
    if suspended:
        said.append(f"Suspended: {', '.join(suspended)}.")
    if away:
        said.append(f"Not connected: {', '.join(away)}.")
        advice.append("Telephone them: is their node running? `pate-party doctor` tells.")
    if len(members) < AdditiveSum.smallest:
        advice.append(f"A run needs {AdditiveSum.smallest}: `pate-fed invite`.")
    finding = warn if advice else ok
    return finding(" ".join(said), " ".join(advice))


def check_invitations(coordinator: Coordinator, around: CoordinatorProbes) -> Finding:
    """Look for invitations that nobody used and that end soon."""
    now = around.clock()
    out = [one for one in coordinator.enrollment.invitations() if one.is_open(now=now)]
    soon = [one for one in out if one.expires_at - now < SOON]
    if soon:
        ends = ", ".join(f"{one.party} ({one.expires_at:%Y-%m-%d %H:%M} UTC)" for one in soon)
        said = f"Invitations that nobody used end soon: {ends}."
        return warn(said, "Telephone them, or `pate-fed invite` once more.")
    names = ", ".join(one.party for one in out) or "none"
    return ok(f"Invitations that are out and not used: {names}.")


def check_runs(coordinator: Coordinator, around: CoordinatorProbes) -> Finding:
    """Look for runs that wait, and for the reason."""
    is_open = [one for one in coordinator.queue.all() if not one.is_ended]
    waiting = [one for one in is_open if one.state in (RunState.WAITING, RunState.PAUSED)]
    if waiting:
        said = f"{'; '.join(_said(one) for one in waiting)}."
        advice = "Remove the reason for waiting; a paused run goes on after `pate-fed resume`."
        return warn(said, advice)
    names = ", ".join(one.name for one in is_open) or "none"
    if is_open and not around.is_served(coordinator.home):
        said = f"No service runs to work on the open runs: {names}."
        return warn(said, "`pate-fed serve` does.")
    return ok(f"Open runs: {names}.")


def _said(run: Run) -> str:
    reason = f": {run.reason}" if run.reason else ""
    return f"{run.name} is {run.state.value}{reason}"
