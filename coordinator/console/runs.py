"""Runs: all of them, and one with its hospitals, its progress and its orders; their cost."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from itertools import accumulate
from typing import Any, Final

from fastapi import APIRouter
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from coordinator import operator
from coordinator.console import words
from coordinator.console.access import Visit, finding, visit_of
from coordinator.console.form_input import number_of, optional_text
from coordinator.console.rendering import page, step_plot
from coordinator.errors import ConsoleError
from coordinator.federation.home import utc_now
from coordinator.operator import Coordinator
from coordinator.runs.queue import Run, RunState

router = APIRouter()

PAGE: Final = 50


@router.get("/runs")
def runs(request: Request) -> Response:
    """Show runs, newest first."""
    coordinator = visit_of(request).coordinator
    state, before = request.query_params.get("state", ""), place_of(request.query_params)
    states = {one for one in RunState if one.value == state}
    name = request.query_params.get("name", "").strip()[:64]
    found = coordinator.queue.page(states=states, name=name, before=before, most=PAGE + 1)
    return page(
        request,
        "runs",
        runs=found[:PAGE],
        older=found[PAGE - 1].number if len(found) > PAGE else None,
        counts=coordinator.queue.counts(),
        state=state if states else "",
        name=name,
    )


@router.get("/compare")
def compare(request: Request) -> Response:
    """Show two runs side by side."""
    coordinator, names = visit_of(request).coordinator, request.query_params.getlist("run")
    if len(names) != 2:
        raise ConsoleError("two runs must be ticked to compare them", len(names))
    queue, has = coordinator.queue, coordinator.finished.has
    with finding():
        found = [queue.find(name) for name in names]
    asked = [json.loads(queue.request(name)) for name in names]
    students = [
        coordinator.finished.read(name)[0].metrics.student if has(name) else None for name in names
    ]
    return page(request, "compare", runs=list(zip(found, asked, students, strict=True)))


@router.get("/runs/{run}")
def one_run(request: Request) -> Response:
    """Show a run."""
    visit = visit_of(request)
    name = request.path_params["run"]
    with finding():
        found = visit.coordinator.queue.find(name)
    record = json.loads(visit.coordinator.queue.request(name))
    return page(
        request,
        "run",
        settings=record["settings"],
        source=record["source"],
        label=record["label"],
        classes=record["class_names"],
        queries=len(record["queries"]),
        **facts_of(visit, found),
    )


@router.post("/runs/{run}/pause")
def pause(request: Request) -> Response:
    """Let a run rest after its batch."""
    return _order(request, lambda coordinator, run: coordinator.pause(run))


@router.post("/runs/{run}/resume")
def resume(request: Request) -> Response:
    """Let a paused run go on."""
    return _order(request, lambda coordinator, run: coordinator.resume(run))


@router.post("/runs/{run}/stop")
def stop(request: Request) -> Response:
    """End a run after its batch."""
    if visit_of(request).form.get("sure") != "yes":
        raise ConsoleError("tick the box to stop a run: it cannot go on afterwards", "no tick")
    return _order(request, lambda coordinator, run: coordinator.stop(run))


@router.get("/privacy")
def privacy(request: Request) -> Response:
    """Show the cost of runs: by hospital, by run, and over the queries of one run."""
    coordinator = visit_of(request).coordinator
    queue, terms = coordinator.queue, coordinator.spending.terms()
    before, chosen = place_of(request.query_params), request.query_params.get("run", "")
    found = queue.page(before=before, most=PAGE + 1)
    shares = queue.shares()
    budget = coordinator.budget.epsilon()
    return page(
        request,
        "privacy",
        runs=[(run, terms[run.number], shares[run.number]) for run in found[:PAGE]],
        older=found[PAGE - 1].number if len(found) > PAGE else None,
        spent=coordinator.spending.by_hospital(),
        budget=budget,
        most_used=max(coordinator.spending.committed().values(), default=0.0),
        proposal=coordinator.budget.proposal(),
        **_over_time(coordinator, budget=budget, now=utc_now()),
        of_run=_costs_of(coordinator, chosen) if chosen else None,
    )


@router.post("/budget")
def change_budget(request: Request) -> Response:
    """Set the first or a lower budget of the federation, or propose a higher one."""
    visit = visit_of(request)
    epsilon = number_of(visit.form, "epsilon", float, label="Epsilon")
    if epsilon is None:
        raise ConsoleError("Epsilon must be filled in")
    reason = optional_text(visit.form, "reason", label="Reason", most=300)
    visit.coordinator.budget.change(epsilon, reason=reason)
    return RedirectResponse("/privacy", 303)


@router.post("/budget/agree")
def agree_to_budget(request: Request) -> Response:
    """Agree to a higher budget, as the second person."""
    visit = visit_of(request)
    number = number_of(visit.form, "proposal", int, label="Proposal")
    visit.coordinator.budget.agree(number or 0)
    return RedirectResponse("/privacy", 303)


@router.post("/budget/withdraw")
def withdraw_budget(request: Request) -> Response:
    """Withdraw the open proposal."""
    visit_of(request).coordinator.budget.withdraw()
    return RedirectResponse("/privacy", 303)


def facts_of(visit: Visit, run: Run) -> dict[str, Any]:
    """Return the values of the changing part of a run's page."""
    coordinator = visit.coordinator
    can_pause = run.state in _GOING_ON and not run.wanted
    return {
        "run": run,
        "standings": operator.standings(coordinator, [run])[run.name],
        "waits_for_tally": not run.is_ended and any(code in run.reason for code in words.TALLY),
        "has_results": run.is_ended and coordinator.finished.has(run.name),
        "can_pause": can_pause and visit.may("POST", "/runs/{run}/pause"),
        "can_resume": (run.state is RunState.PAUSED or bool(run.wanted))
        and visit.may("POST", "/runs/{run}/resume"),
        "can_stop": not run.is_ended
        and run.state is not RunState.STOPPING
        and visit.may("POST", "/runs/{run}/stop"),
    }


_GOING_ON: Final = (RunState.QUEUED, RunState.RUNNING, RunState.WAITING)


def place_of(query: QueryParams) -> int | None:
    """Return the number before which a list goes on; None for its beginning."""
    text = query.get("before", "")
    if not text:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 16):
        raise ConsoleError("a list must go on before a number")
    return int(text)


def _order(request: Request, give: Callable[[Coordinator, str], Run]) -> Response:
    visit = visit_of(request)
    name = request.path_params["run"]
    with finding():
        visit.coordinator.queue.find(name)
    give(visit.coordinator, name)
    return RedirectResponse(f"/runs/{name}", 303)


def _costs_of(coordinator: Coordinator, name: str) -> dict[str, object]:
    """Return the costs of a finished run, from its own `privacy.json`."""
    coordinator.queue.find(name)
    if not coordinator.finished.has(name):
        return {"name": name, "privacy": None}
    record, _ = coordinator.finished.read(name)
    return {"name": name, "privacy": record.privacy}


def _over_time(coordinator: Coordinator, *, budget: float | None, now: datetime) -> dict[str, Any]:
    """Return the epsilons of all runs added up, from the first that charged anything to now."""
    moments, terms = coordinator.queue.moments(), coordinator.spending.terms()
    charged = [number for number, share in coordinator.queue.shares().items() if share]
    totals = list(accumulate(terms[number].epsilon for number in charged))
    if not any(totals):
        return {"plot": None}
    first, total = moments[charged[0]], totals[-1]
    points = [
        ((moments[number] - first).total_seconds(), value)
        for number, value in zip(charged, totals, strict=True)
    ]
    points.append(((now - first).total_seconds(), total))
    plot = step_plot(points, last=f"{now:%Y-%m-%d}", bound=budget)
    return {"plot": plot, "since": f"{first:%Y-%m-%d}", "total": total}
