"""The cost of a run before anything is spent: from its request alone.

Nothing private enters: settings, numbers of teachers, and simulated votes.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

from coordinator.runs.request import RunRequest
from pate_fed.accounting import FormalCost
from pate_fed.accounting.statement import neighbors
from pate_fed.federation import RunTerms
from pate_fed.mechanisms.preview import preview_confident, simulated_votes
from pate_fed.pricing import cost_of_runs, formal_cost_at
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
        answered: Expected share of queries that get a label; None where nobody can say.
        trust: The trusted parties, and the reasons.
        hospitals: By hospital.
    """

    digest: str
    request: RunRequest
    public: View
    coordinator: View
    delta: float
    unit: str
    neighbors: str
    answered: float | None
    trust: str
    hospitals: tuple[HospitalCost, ...]


def quote_of(request: RunRequest) -> Quote:
    """Return the cost of a run at its caps: it cannot cost more."""
    terms = request.terms
    costs = [formal_cost_at(terms, seat) for seat in range(len(terms.weights))]
    most = max(range(len(costs)), key=lambda seat: costs[seat].epsilon)
    return Quote(
        digest=hashlib.sha256(request.to_json().encode()).hexdigest(),
        request=request,
        public=_view(cost_of_runs([terms], most, unit=terms.unit)),
        coordinator=_coordinators(terms, most),
        delta=terms.delta,
        unit=terms.unit,
        neighbors=neighbors(terms.unit, weight=terms.unit_votes_at(most)),
        answered=_answered(terms),
        trust=trust(UsedRun(terms, FORMS[request.settings.form])),
        hospitals=tuple(
            HospitalCost(party.name, party.teachers, cost.epsilon, terms.budgets[seat])
            for seat, (party, cost) in enumerate(zip(request.parties, costs, strict=True))
        ),
    )


def _coordinators(terms: RunTerms, seat: int) -> View:
    if terms.at_parties:
        return _view(cost_of_runs([terms], seat, unit=terms.unit, at_coordinator=True))
    return View(
        "the coordinator",
        None,
        "no number holds: it has the exact sums in memory until the release, and is trusted",
    )


def _view(cost: FormalCost) -> View:
    epsilon = cost.epsilon if math.isfinite(cost.epsilon) else None
    return View(cost.holds_for, epsilon, cost.method)


def _answered(terms: RunTerms) -> float | None:
    if not terms.spec.may_refuse:
        return 1.0
    is_forecast = terms.mechanism == "confident" and not terms.at_parties
    if not is_forecast or terms.vote_threshold is None or None in (terms.sigma1, terms.sigma2):
        return None
    counts = simulated_votes(votes=terms.total_votes, classes=terms.classes)
    assert terms.sigma1 is not None
    assert terms.sigma2 is not None
    seen = preview_confident(
        counts, vote_threshold=terms.vote_threshold, sigma1=terms.sigma1, sigma2=terms.sigma2
    )
    return seen.answer_rate
