"""The cost of a run before anything is spent: from its request alone.

Nothing private enters: settings, numbers of teachers, public rows, and simulated votes.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from coordinator.database import ReleasedAnswers
from coordinator.runs.request import RunRequest
from pate_fed import wording
from pate_fed.accounting import FormalCost
from pate_fed.accounting.statement import neighbors
from pate_fed.charging import RunLedger
from pate_fed.data.task import LearningTask
from pate_fed.errors import BudgetExhaustedError, InvalidParameterError
from pate_fed.federation import RunTerms
from pate_fed.mechanisms.preview import (
    Preview,
    preview_confident,
    right_chances,
    simulated_votes,
)
from pate_fed.planning.worth import evidence, outlook
from pate_fed.pricing import cost_of_runs, formal_cost_at, most_exposed
from pate_fed.report.tables import UsedRun, trust
from protocols.forms import FORMS


@dataclass(frozen=True, slots=True)
class View:
    """The cost of a run in somebody's view.

    Attributes:
        holds_for: The viewer.
        epsilon: Its largest cost for the most exposed hospital's units; None if no number holds.
        method: How it was computed.
    """

    holds_for: str
    epsilon: float | None
    method: str


@dataclass(frozen=True, slots=True)
class HospitalCost:
    """The largest cost of a run for one hospital's units.

    Attributes:
        name: The hospital.
        teachers: Teachers that it votes with.
        reserved: Most of its budget that the run can use.
        budget: The run's budget for it.
    """

    name: str
    teachers: int
    reserved: float
    budget: float


@dataclass(frozen=True, slots=True)
class Quote:
    """The cost of a run before it is asked for.

    Attributes:
        digest: SHA-256 of the request in hex: it binds an order to the seen cost.
        request: The request.
        public: The cost in the public's view.
        coordinator: The cost in the coordinator's view.
        delta: Chance with which epsilon need not hold.
        unit: The privacy unit, "record" or "party".
        neighbors: The two cases that are compared.
        preview: Expected share of queries that get a label, and of labels that are right, on
            simulated votes; None where nobody can say.
        outlook: Whether the student is likely to beat a hospital's own model; empty where nobody
            can say.
        trust: The trusted parties, and the reasons.
        hospitals: By hospital.
        answered: How many of its queries are answered already: their answers come from the store,
            at no cost.
    """

    digest: str
    request: RunRequest
    public: View
    coordinator: View
    delta: float
    unit: str
    neighbors: str
    preview: Preview | None
    outlook: str
    trust: str
    hospitals: tuple[HospitalCost, ...]
    answered: int

    @property
    def free_words(self) -> str:
        """The line that says how many queries cost nothing; empty if there are none."""
        return free_words(self.request, answered=self.answered)


def answered_in(request: RunRequest, task: LearningTask, *, answers: ReleasedAnswers) -> int:
    """Return how many queries of a run are answered already: they cost nothing.

    Args:
        request: The run.
        task: Its task.
        answers: Every answer of every run.
    """
    members = [one.fingerprint for one in request.parties]
    digests = task.pool.ask(request.queries).digests
    return len(answers.find(digests, task_digest=task.digest, members=members))


def quote_of(request: RunRequest, *, pool: NDArray[np.float64], answered: int = 0) -> Quote:
    """Return the cost of a run at its caps, for the queries that are new: it cannot cost more.

    Args:
        request: The run.
        pool: Its public rows; float64, shape (rows, features).
        answered: How many of its queries are answered already.
    """
    new = len(request.queries) - answered
    preview = _preview(request.terms)
    # At least one: what follows says how a query is charged, even where none is.
    terms = _of_new(request.terms, max(1, new))
    costs = [_charge(request.terms, seat, new=new) for seat in range(len(terms.weights))]
    most, public = most_exposed(terms)
    return Quote(
        digest=hashlib.sha256(request.to_json().encode()).hexdigest(),
        request=request,
        public=_view(public, new=new),
        coordinator=_coordinators(terms, most, new=new),
        delta=terms.delta,
        unit=terms.unit,
        neighbors=neighbors(terms.unit, weight=terms.unit_votes_at(most)),
        preview=preview,
        outlook=_outlook(terms, preview, queries=len(request.queries), pool=pool),
        trust=trust(UsedRun(terms, FORMS[request.settings.form])),
        hospitals=tuple(
            HospitalCost(party.name, party.teachers, cost, terms.budgets[seat])
            for seat, (party, cost) in enumerate(zip(request.parties, costs, strict=True))
        ),
        answered=answered,
    )


def price_line(request: RunRequest, *, answered: int) -> str:
    """Say the largest cost of a run in one line, before it is asked for.

    Args:
        request: The run.
        answered: How many of its queries are answered already.
    """
    new = len(request.queries) - answered
    _, public = most_exposed(_of_new(request.terms, max(1, new)))
    epsilon = wording.epsilon_text(_view(public, new=new).epsilon)
    delta = wording.delta_text(request.terms.delta)
    free = free_words(request, answered=answered)
    return f"the run costs at most epsilon {epsilon} at delta {delta}" + (
        f"; {free}" if free else ""
    )


def free_words(request: RunRequest, *, answered: int) -> str:
    """Say how many queries of a run cost nothing; empty if there are none."""
    if not answered:
        return ""
    return f"{answered} of {len(request.queries)} rows are answered already: free"


def _of_new(terms: RunTerms, new: int) -> RunTerms:
    """Return terms whose caps no run exceeds that asks so many queries."""
    return replace(
        terms,
        max_asks=min(terms.max_asks, new),
        max_answers=min(terms.max_answers, new),
        max_refusals=min(terms.max_refusals, new),
    )


def _charge(terms: RunTerms, seat: int, *, new: int) -> float:
    """Return the most that new queries use of a hospital's budget, as its ledger charges them."""
    whole = formal_cost_at(terms, seat).epsilon
    if new >= terms.max_asks or not math.isfinite(whole):
        return whole
    if not new:
        return 0.0
    ledger = RunLedger.of(terms, seat=seat)
    try:
        [cost] = ledger.reserve("new queries", ledger.worst_case(new)).costs
    except BudgetExhaustedError:  # then the budget ends the run
        return whole
    return min(whole, cost.charged_epsilon())


def _coordinators(terms: RunTerms, seat: int, *, new: int) -> View:
    if terms.at_parties:
        cost = cost_of_runs([terms], seat, unit=terms.unit, at_coordinator=True)
        return _view(cost, new=new)
    return View(
        "the coordinator",
        None,
        "no number holds: it has the exact sums in memory until the release, and is trusted",
    )


def _view(cost: FormalCost, *, new: int) -> View:
    if not new:
        return View(cost.holds_for, 0.0, "nothing is asked: every answer was released before")
    epsilon = cost.epsilon if math.isfinite(cost.epsilon) else None
    return View(cost.holds_for, epsilon, cost.method)


def _preview(terms: RunTerms) -> Preview | None:
    threshold, sigma1, sigma2 = terms.vote_threshold, terms.sigma1, terms.sigma2
    if terms.mechanism not in ("gnmax", "confident") or sigma2 is None:
        return None
    counts = simulated_votes(votes=terms.total_votes, classes=terms.classes)
    if terms.mechanism == "gnmax":
        return Preview(1.0, float(right_chances(counts, sigma=sigma2).mean()))
    if terms.at_parties or threshold is None or sigma1 is None:
        return None
    return preview_confident(counts, vote_threshold=threshold, sigma1=sigma1, sigma2=sigma2)


def _outlook(
    terms: RunTerms, preview: Preview | None, *, queries: int, pool: NDArray[np.float64]
) -> str:
    if preview is None or terms.sigma2 is None:
        return ""
    answers = max(1, round(queries * preview.answer_rate))
    try:
        measured = evidence(
            pool,
            votes=terms.total_votes,
            queries=answers,
            sigma=terms.sigma2,
            classes=terms.classes,
        )
    except InvalidParameterError:  # equal rows: they teach nothing
        return ""
    return outlook(measured, queries=answers)
