"""The cost of a run before anything is spent: from its request alone.

Nothing private enters: settings, numbers of teachers, public rows, and simulated votes.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from coordinator.runs.request import RunRequest
from pate_fed import wording
from pate_fed.accounting import FormalCost
from pate_fed.accounting.costs import neighbors
from pate_fed.charges import mechanism_of, noise_of
from pate_fed.errors import InvalidParameterError
from pate_fed.mechanisms.preview import Preview, preview, simulated_votes
from pate_fed.planning.outlook import evidence, outlook
from pate_fed.prices import charged_price, most_exposed, public_price
from pate_fed.report.ended_run import UsedRun, trust
from pate_fed.rule import AGGREGATORS
from pate_fed.terms import RunTerms
from protocols.forms import FORMS


@dataclass(frozen=True, slots=True)
class RunPrice:
    """The cost of a run before it is asked for.

    Attributes:
        digest: SHA-256 of the request in hex: it binds an order to the seen cost.
        unit: The privacy unit, "record" or "party".
        neighbors: The two cases that are compared.
        preview: Expected share of queries that get a label, and of labels that are right, on
            simulated votes; None where nobody can say.
        coordinator: The cost in the coordinator's view; None where it has the exact sums.
        epsilons: Largest cost for the units of each hospital of the request, in its order.
        outlook: Whether the student is likely to beat a hospital's own model; empty where nobody
            can say.
    """

    digest: str
    request: RunRequest
    public: FormalCost
    coordinator: FormalCost | None
    delta: float
    unit: str
    neighbors: str
    preview: Preview | None
    outlook: str
    trust: str
    epsilons: tuple[float, ...]


def price_of_run(request: RunRequest, *, pool: NDArray[np.float64]) -> RunPrice:
    """Return the cost of a run at its caps, for the queries that are new: it cannot cost more.

    `pool` has its public rows; float64, shape (rows, features).
    """
    terms = request.terms
    seen = _preview(terms, votes=request.settings.likely_votes)
    most, public = most_exposed(terms)
    return RunPrice(
        digest=hashlib.sha256(request.to_json().encode()).hexdigest(),
        request=request,
        public=_view(request, public),
        coordinator=_view(request, charged_price(terms, most)) if terms.rule.opens_noisy else None,
        delta=terms.delta,
        unit=terms.unit,
        neighbors=neighbors(
            terms.unit,
            weight=terms.unit_votes_at(most),
            patient_votes=terms.caps.patient_votes,
        ),
        preview=seen,
        outlook=_outlook(request, seen, pool=pool),
        trust=trust(UsedRun(terms, FORMS[request.settings.form])),
        epsilons=tuple(
            public_price(terms, seat).epsilon if request.new_queries else 0.0
            for seat in range(len(request.parties))
        ),
    )


def price_line(request: RunRequest) -> str:
    """Say the largest cost of a run in one line, before it is asked for."""
    epsilon = wording.epsilon_text(request.epsilon)
    delta = wording.delta_text(request.terms.delta)
    said = f"the run costs at most epsilon {epsilon} at delta {delta}"
    terms = request.terms
    if terms.rule.opens_noisy and request.new_queries:
        reader = "the coordinator or the tally" if terms.rule.at_aggregators else "the coordinator"
        seen = wording.epsilon_text(charged_price(terms, most_exposed(terms)[0]).epsilon)
        said += f" against readers of labels, and {seen} against {reader}: budgets bound that one"
    free = request.free_words
    return f"{said}; {free}" if free else said


def _view(request: RunRequest, cost: FormalCost) -> FormalCost:
    """Return a cost for the most exposed hospital's units, or none where nothing is asked."""
    if request.new_queries:
        return cost
    nothing = "nothing is asked: every answer was released before"
    return replace(cost, epsilon=0.0, method=nothing)


def _preview(terms: RunTerms, *, votes: int) -> Preview | None:
    if terms.spec.learns or terms.is_evaluation:
        return None
    counts = simulated_votes(votes=votes, classes=terms.classes)
    rule = terms.rule.at_coordinator(_sigma_in_labels(terms))
    return preview(mechanism_of(replace(terms, rule=rule)), counts)


def _sigma_in_labels(terms: RunTerms) -> float | None:
    """Return the noise of each count: of all hospitals that are there, or of both aggregators."""
    rule = terms.rule
    if not rule.opens_noisy:
        return rule.sigma2
    present = len(terms.weights) if rule.at_parties else AGGREGATORS
    return noise_of(terms).sum_sigma(present)  # more than is promised


def _outlook(request: RunRequest, seen: Preview | None, *, pool: NDArray[np.float64]) -> str:
    terms = request.terms
    sigma = None if seen is None else _sigma_in_labels(terms)
    if seen is None or sigma is None:
        return ""
    answers = max(1, round(len(request.queries) * seen.answer_rate))
    try:
        measured = evidence(
            pool,
            votes=request.settings.likely_votes,
            queries=answers,
            sigma=sigma,
            classes=terms.classes,
        )
    except InvalidParameterError:  # equal rows: they teach nothing
        return ""
    return outlook(measured, queries=answers)
