"""The offers of a plan: a mechanism with its noise, its affordable queries, and its view.

The place of the noise is an argument: a `Split` where the parties add it, None where the
coordinator does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from pate_fed.accounting import FormalCost, Outcomes, neighbors
from pate_fed.accounting.ranges import RANGES
from pate_fed.accounting.statement import Pricing
from pate_fed.errors import (
    BudgetExhaustedError,
    InvalidParameterError,
    InvalidSettingError,
    NarrowNoiseError,
    UnfitSumError,
)
from pate_fed.federation import NO_TASK, RunTerms
from pate_fed.mechanisms import DistributedNoise
from pate_fed.mechanisms.preview import Preview
from pate_fed.planning.request import PlanRequest
from pate_fed.planning.sums import Sums
from pate_fed.pricing import PRICINGS, affordable_queries, formal_cost_at, priced, tightest_cost
from pate_fed.votes import TeacherWeights

_MARGIN: Final = 3.0
"""Margin of the cap on answers above their expected number, in standard deviations."""

_NO_BUDGET: Final = RANGES["epsilon"].most
"""A budget too large to be used up."""


@dataclass(frozen=True, slots=True)
class Split:
    """How noise at the parties is divided among them.

    Attributes:
        parties: All that add noise.
        colluders: Parties whose noise an attacker may know.
        dropouts: Parties that may be lost before the sum opens.
    """

    parties: int
    colluders: int
    dropouts: int

    @property
    def shares(self) -> int:
        """Noise shares that have to suffice."""
        return self.parties - self.colluders - self.dropouts

    @property
    def least_sigma(self) -> float:
        """The smallest sigma whose shares are wide enough, in whole votes."""
        return float(math.ceil(math.sqrt(self.shares)))

    def noise(self, sigma: float, *, option: str) -> DistributedNoise:
        """Divide noise of that sigma.

        Raises:
            NarrowNoiseError: it is too little; `option` names it.
        """
        try:
            return DistributedNoise(sigma, self.parties, self.colluders, self.dropouts)
        except InvalidParameterError as error:
            raise NarrowNoiseError(f"{option} must be wide enough: {error.must}", sigma) from error


def split_of(request: PlanRequest, advice: Mapping[str, Any], sums: Sums) -> Split | None:
    """Return the division of the noise; None where the coordinator adds it.

    Args:
        request: The federation.
        advice: Its secure sum, as `advised_sum` says.
        sums: Forms that may be advised.

    Raises:
        UnfitSumError: no secure sum fits, and noise at the parties needs one.
        InvalidSettingError: too many colluders.
    """
    if request.noise == "coordinator":
        return None
    if advice["form"] is None:
        raise UnfitSumError("--noise parties must come with a secure sum that fits", advice["why"])
    form = sums[advice["form"]]
    colluders = 1 if request.colluders is None else request.colluders
    most = form.most_colluders(request.parties)
    if not 1 <= colluders <= most:
        raise InvalidSettingError(
            f"--colluders must be from 1 to {most} with --sum {form.name} of {request.parties} "
            "hospitals",
            colluders,
        )
    # As many are lost as the sum can do without, more than expected: it does not ask first.
    split = Split(request.parties, colluders, request.parties - form.threshold(request.parties))
    if split.shares < 1:
        raise InvalidSettingError(
            f"--colluders must leave one of {request.parties} hospitals that is honest and present",
            colluders,
        )
    return split


@dataclass(frozen=True, slots=True)
class Offer:
    """One mechanism with its noise, and its behavior on simulated votes.

    Attributes:
        mechanism: "gnmax" or "confident".
        vote_threshold, sigma1: In votes; None for "gnmax".
        sigma2: In votes.
        preview: Its behavior on simulated votes.
    """

    mechanism: str
    vote_threshold: float | None
    sigma1: float | None
    sigma2: float
    preview: Preview

    def expected_right(self, queries: int) -> float:
        """Return the expected number of right answers of this many queries."""
        return queries * self.preview.answer_rate * self.preview.accuracy

    def caps(self, queries: int, split: Split | None) -> Outcomes:
        """Return caps that so many queries hardly reach, on that place's costliest outcomes."""
        if self.vote_threshold is None:
            return Outcomes(0, queries, queries)
        if split is None:
            return Outcomes(self.preview.refusals(queries), queries, queries)
        rate = self.preview.answer_rate
        spread = math.sqrt(queries * rate * (1 - rate))
        answers = max(1, min(queries, math.ceil(queries * rate + _MARGIN * spread)))
        return Outcomes(queries, answers, queries)


def terms_of_offer(
    offer: Offer,
    request: PlanRequest,
    split: Split | None,
    queries: int,
    *,
    seat: int | None = None,
) -> RunTerms:
    """Return the terms of a run of this many queries; with `seat`, other budgets do not count.

    Raises:
        InvalidSettingError: the hospitals cannot vote in this way.
    """
    weights = request.weights or (1,) * request.parties
    budgets = request.budgets
    if seat is not None:
        budgets = tuple(
            budget if place == seat else _NO_BUDGET for place, budget in enumerate(budgets)
        )
    caps = offer.caps(queries, split)
    try:
        return RunTerms(
            name="plan",
            pool_digest=bytes(32),
            task_digest=NO_TASK,
            classes=request.classes,
            weights=tuple(TeacherWeights.equal(request.teachers, weight=each) for each in weights),
            mechanism=offer.mechanism,
            vote_threshold=offer.vote_threshold,
            sigma1=offer.sigma1,
            sigma2=offer.sigma2,
            confidence=None,
            test_delta=None,
            noise_place=request.noise,  # type: ignore[arg-type]  # checked with all else
            unit=request.unit,  # type: ignore[arg-type]  # checked with all else
            pricing="gdp" if split is None else "renyi",
            orders=() if split is None else (2.0,) * request.parties,
            max_asks=caps.asks,
            max_answers=caps.answers,
            max_refusals=caps.refusals,
            budgets=budgets,
            delta=request.delta,
            colluders=None if split is None else split.colluders,
            dropouts=None if split is None else split.dropouts,
        )
    except InvalidParameterError as error:
        raise InvalidSettingError(f"the run must be possible: {error.must}", error.got) from error


def affordable(
    offer: Offer,
    request: PlanRequest,
    split: Split | None,
    *,
    most: int | None = None,
    wanted: frozenset[Pricing] = PRICINGS,
    seat: int | None = None,
) -> int:
    """Return how many queries all budgets afford, or that of one hospital alone."""

    @lru_cache
    def drafted(queries: int) -> RunTerms:
        return terms_of_offer(offer, request, split, queries, seat=seat)

    return affordable_queries(
        drafted,
        most=request.most_queries if most is None else most,
        votes_are_valid=request.votes_are_valid,
        wanted=wanted,
    )


def nothing_affordable(
    offer: Offer, request: PlanRequest, split: Split | None
) -> BudgetExhaustedError:
    """Return the error that gives the cost of a single query."""
    terms = terms_of_offer(offer, request, split, 1)
    requested, budget = tightest_cost(terms, votes_are_valid=request.votes_are_valid)
    return BudgetExhaustedError(requested=requested, budget=budget)


@dataclass(frozen=True, slots=True)
class PricedOffer:
    """An offer with as many queries as it affords, and its price.

    Attributes:
        offer: The offer.
        queries: How many.
        terms: The terms of this run, with the price chosen.
        costs: Its cost for each hospital's units, by seat.
    """

    offer: Offer
    queries: int
    terms: RunTerms
    costs: tuple[FormalCost, ...]

    @classmethod
    def of(
        cls, offer: Offer, request: PlanRequest, split: Split | None, queries: int
    ) -> PricedOffer:
        """Price an offer."""
        terms = priced(
            terms_of_offer(offer, request, split, queries), votes_are_valid=request.votes_are_valid
        )
        costs = tuple(formal_cost_at(terms, seat) for seat in range(request.parties))
        return cls(offer, queries, terms, costs)

    @property
    def decides(self) -> int:
        """Seat of the hospital that comes closest to its budget."""
        budgets = self.terms.budgets
        used = [cost.epsilon / budget for cost, budget in zip(self.costs, budgets, strict=True)]
        return used.index(max(used))

    def as_table(self) -> dict[str, Any]:
        """Return it as plain data: the keys are the same for both places of the noise."""
        offer, terms, seat = self.offer, self.terms, self.decides
        return {
            "queries": self.queries,
            "expected_answered": self.queries * offer.preview.answer_rate,
            "expected_right": offer.expected_right(self.queries),
            "expected_accuracy": offer.preview.accuracy,
            "mechanism": {
                "name": offer.mechanism,
                "vote_threshold": offer.vote_threshold,
                "sigma1": offer.sigma1,
                "sigma2": offer.sigma2,
                "max_answers": terms.max_answers,
                "max_refusals": terms.max_refusals,
                "pricing": terms.pricing,
            },
            "parties": [
                {
                    "party": f"party-{place + 1}",
                    "votes": terms.quotas[place],
                    "unit_votes": terms.unit_votes_at(place),
                    "budget": terms.budgets[place],
                    "epsilon": cost.epsilon,
                }
                for place, cost in enumerate(self.costs)
            ],
            "decides": {
                "party": f"party-{seat + 1}",
                "budget": terms.budgets[seat],
                "neighbors": neighbors(terms.unit, weight=terms.unit_votes_at(seat)),
            },
        }
