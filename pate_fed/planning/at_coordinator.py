"""Offers with noise at the coordinator: the best of many thresholds and noises.

Each offer is ranked by the bound that is cheapest to compute; the best are priced by all.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Final

from pate_fed.accounting.statement import Pricing
from pate_fed.mechanisms.preview import preview_confident, simulated_votes
from pate_fed.planning.offers import (
    Offer,
    PricedOffer,
    affordable,
    nothing_affordable,
    terms_of_offer,
)
from pate_fed.planning.request import MOST_QUERIES, PlanRequest
from pate_fed.pricing import Bounds, formal_bounds

_THRESHOLDS: Final = (0.4, 0.5, 0.6)
_SIGMA1S: Final = (0.3, 0.4, 0.5)
_SIGMA2S: Final = (0.16, 0.2, 0.24)
"""Default thresholds and noises to try, as shares of the number of votes.

More noise buys more right answers at every accuracy of teachers; its limit keeps labels good.
"""

_CANDIDATES: Final = 4
_GDP: Final[frozenset[Pricing]] = frozenset({"gdp"})
_STEPS: Final = 10
_REACH: Final = 6

BOUNDS: Final[tuple[Pricing, ...]] = ("gdp", "label", "joint")
"""Formal bounds that are shown side by side."""


def offers_at_coordinator(request: PlanRequest) -> list[dict[str, Any]]:
    """Return the best offers with noise at the coordinator, the best of them first.

    Raises:
        BudgetExhaustedError: not a single query.
        InvalidSettingError: the hospitals cannot vote in this way.
    """
    choices = sorted(
        _choices(request),
        key=lambda offer: -offer.expected_right(affordable(offer, request, None, wanted=_GDP)),
    )
    found = [priced for offer in choices[:_CANDIDATES] if (priced := _priced(offer, request))]
    if not found:
        raise nothing_affordable(choices[0], request, None)
    best = max(found, key=lambda priced: priced.offer.expected_right(priced.queries))
    others = [_said(priced, request) for priced in found if priced is not best]
    return [{**_said(best, request), "epsilon_over_answers": _curve(best, request)}, *others]


def _choices(request: PlanRequest) -> Iterator[Offer]:
    votes = request.votes
    counts = simulated_votes(
        votes=votes, classes=request.classes, teacher_accuracy=request.teacher_accuracy
    )
    for threshold in _given(request.vote_threshold, _THRESHOLDS, votes):
        for sigma1 in _given(request.sigma1, _SIGMA1S, votes):
            for sigma2 in _given(request.sigma2, _SIGMA2S, votes):
                seen = preview_confident(
                    counts, vote_threshold=threshold, sigma1=sigma1, sigma2=sigma2
                )
                yield Offer("confident", threshold, sigma1, sigma2, seen)


def _given(value: float | None, shares: tuple[float, ...], votes: int) -> tuple[float, ...]:
    return tuple(share * votes for share in shares) if value is None else (value,)


def _priced(offer: Offer, request: PlanRequest) -> PricedOffer | None:
    """Price an offer by the smallest bound; None where it affords nothing."""
    by_gdp = affordable(offer, request, None, wanted=_GDP)
    # No other bound affords many times more, so the search stops early.
    further = request.queries or min(MOST_QUERIES, max(8, _REACH * by_gdp))
    queries = affordable(offer, request, None, most=further)
    return PricedOffer.of(offer, request, None, queries) if queries else None


def _said(priced: PricedOffer, request: PlanRequest) -> dict[str, Any]:
    bounds = _bounds(priced, request, priced.queries)
    cost = priced.costs[priced.decides]
    return {
        **priced.as_table(),
        "queries_by_gdp": affordable(priced.offer, request, None, wanted=_GDP),
        "epsilon": {
            **{f"formal_{bound}": _epsilon(bounds, bound) for bound in BOUNDS},
            "smallest": cost.epsilon,
            "method": cost.method,
        },
        "epsilon_over_answers": [],
    }


def _bounds(priced: PricedOffer, request: PlanRequest, queries: int) -> Bounds:
    """Bound a run of this many queries for the hospital that decides, in every valid way."""
    terms = terms_of_offer(priced.offer, request, None, queries)
    weight = terms.unit_votes_at(priced.decides)
    return formal_bounds(terms, weight=weight, votes_are_valid=request.votes_are_valid)


def _epsilon(bounds: Bounds, bound: Pricing) -> float | None:
    cost = bounds.get(bound)
    return None if cost is None or not math.isfinite(cost.epsilon) else cost.epsilon


def _curve(priced: PricedOffer, request: PlanRequest) -> list[dict[str, float | None]]:
    """Return the cost of ever longer runs for the hospital that decides, by every bound."""
    points: list[dict[str, float | None]] = []
    queries, rate = priced.queries, priced.offer.preview.answer_rate
    for asked in sorted({max(1, queries * step // _STEPS) for step in range(1, _STEPS + 1)}):
        bounds = _bounds(priced, request, asked)
        points.append(
            {
                "asked": asked,
                "answers": asked * rate,
                **{f"epsilon_{bound}": _epsilon(bounds, bound) for bound in BOUNDS},
            }
        )
    return points
