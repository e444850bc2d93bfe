"""What a budget buys, before anything is spent: `pate-fed plan`.

Works from public numbers and simulated votes alone, never from a hospital's. For each choice of
threshold and noise it asks how many queries the budget affords by the smallest formal bound that
holds, and how many right answers to expect from them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from pate_fed.accounting import neighbors
from pate_fed.accounting.statement import Pricing
from pate_fed.charging import (
    PRICINGS,
    affordable_queries,
    formal_bounds,
    formal_cost_at,
    priced,
    tightest_cost,
)
from pate_fed.errors import (
    BudgetExhaustedError,
    InvalidParameterError,
    InvalidSettingError,
    UnfitSumError,
)
from pate_fed.federation import NO_TASK, RunTerms
from pate_fed.mechanisms.preview import (
    ASSUMED_ACCURACY,
    Preview,
    preview_confident,
    simulated_votes,
)
from pate_fed.planning.sums import Sums, advised_sum
from pate_fed.votes import MAX_TOTAL_VOTES, TeacherWeights

MOST_QUERIES: Final = 10_000
MOST_CLASSES: Final = 10_000
_THRESHOLDS: Final = (0.4, 0.5, 0.6, 0.7)
_SIGMA1S: Final = (0.2, 0.3)
_SIGMA2S: Final = (0.12, 0.16, 0.24)
"""Shares of the number of votes that are tried where nothing is said."""

_CANDIDATES: Final = 4
_GDP: Final[frozenset[Pricing]] = frozenset({"gdp"})
_STEPS: Final = 10
_REACH: Final = 6
BOUNDS: Final[tuple[Pricing, ...]] = ("gdp", "label", "joint")


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """A federation and a budget.

    Attributes:
        parties: Hospitals.
        teachers: Teachers per hospital.
        classes: Number of classes.
        epsilon: Budget.
        delta: In (0, 1).
        unit: "record" or "party".
        weights: Votes that each teacher of a hospital casts, hospital by hospital; None for 1.
        party_epsilons: Budgets of the hospitals one by one, instead of `epsilon`; None for that.
        queries: Queries wanted; None for as many as the budget affords.
        vote_threshold, sigma1, sigma2: The mechanism's, in votes; None to choose.
        teacher_accuracy: Assumed share of teachers that are right on an average query.
        votes_are_valid: Whether the hospitals are trusted to send valid vote rows.
        expected_dropouts: Hospitals that may be lost in a batch, at the worst.
        form: Secure sum; None for the one that fits.
        colluders: With noise at the parties, hospitals whose noise an attacker may know; None
            with noise at the coordinator.
    """

    parties: int
    teachers: int
    classes: int
    epsilon: float
    delta: float
    unit: str
    weights: tuple[int, ...] | None = None
    party_epsilons: tuple[float, ...] | None = None
    queries: int | None = None
    vote_threshold: float | None = None
    sigma1: float | None = None
    sigma2: float | None = None
    teacher_accuracy: float = ASSUMED_ACCURACY
    votes_are_valid: bool = True
    expected_dropouts: int = 0
    form: str | None = None
    colluders: int | None = None

    def __post_init__(self) -> None:
        for name in ("parties", "teachers"):
            if getattr(self, name) < 1:
                raise InvalidSettingError(f"--{name} must be at least 1", getattr(self, name))
        for name, least in (("weights", 1), ("party_epsilons", 0)):
            given = getattr(self, name)
            if given is None:
                continue
            option = f"--{name.replace('_', '-')}"
            if len(given) != self.parties:
                raise InvalidSettingError(
                    f"{option} must have one entry for each of {self.parties} hospitals", len(given)
                )
            if not all(least <= each < math.inf and each > 0 for each in given):
                raise InvalidSettingError(f"{option} must be above 0 and finite", "others")
        if not 0 <= self.expected_dropouts < self.parties:
            raise InvalidSettingError(
                f"--expected-dropouts must be at least 0 and below {self.parties}",
                self.expected_dropouts,
            )
        if not 2 <= self.classes <= MOST_CLASSES:
            raise InvalidSettingError(f"--classes must be from 2 to {MOST_CLASSES}", self.classes)
        if self.queries is not None and self.queries < 1:
            raise InvalidSettingError("--queries must be at least 1", self.queries)
        if self.votes > MAX_TOTAL_VOTES:
            raise InvalidSettingError(
                f"all hospitals together must cast at most {MAX_TOTAL_VOTES} votes", self.votes
            )
        self._check_mechanism()
        if not 0 < self.epsilon < math.inf or not 0 < self.delta < 1:
            raise InvalidSettingError("--epsilon must be above 0 and --delta in (0, 1)", "others")
        if not 1 / self.classes < self.teacher_accuracy < 1:
            raise InvalidSettingError(
                "--teacher-accuracy must lie between that of guessing and 1", self.teacher_accuracy
            )

    def _check_mechanism(self) -> None:
        for name in ("sigma1", "sigma2"):
            sigma = getattr(self, name)
            if sigma is not None and not 0 < sigma < math.inf:
                raise InvalidSettingError(f"--{name} must be above 0 and finite", sigma)
        threshold = self.vote_threshold
        if threshold is not None and not 0 <= threshold < math.inf:
            raise InvalidSettingError("--vote-threshold must be at least 0 and finite", threshold)

    @property
    def votes(self) -> int:
        """Votes per query."""
        return sum(self.weights or (1,) * self.parties) * self.teachers

    @property
    def budgets(self) -> tuple[float, ...]:
        """Budget of each hospital's units."""
        return self.party_epsilons or (self.epsilon,) * self.parties


@dataclass(frozen=True, slots=True)
class Choice:
    """Threshold and noise of Confident-GNMax, with what simulated votes say of them.

    Attributes:
        vote_threshold, sigma1, sigma2: In votes.
        preview: What simulated votes say of them.
    """

    vote_threshold: float
    sigma1: float
    sigma2: float
    preview: Preview

    def right_answers(self, queries: int) -> float:
        """Return how many right answers to expect of so many queries."""
        return queries * self.preview.answer_rate * self.preview.accuracy


def plan(request: PlanRequest, *, sums: Sums) -> dict[str, Any]:
    """Find what a budget buys.

    Args:
        request: The federation and its budget.
        sums: Forms of the secure sum that may be advised.

    Raises:
        BudgetExhaustedError: not a single query.
        InvalidSettingError: the hospitals cannot vote like that.
    """
    advice = sum_for(request, sums)  # refuses one that does not fit before it takes long
    choices = list(_choices(request))
    # Every choice is ranked by the bound that costs nothing to compute, the best are priced.
    most = request.queries or MOST_QUERIES
    choices.sort(
        key=lambda choice: -choice.right_answers(_affordable(choice, request, _GDP, most=most))
    )
    found = {choice: _offer(choice, request) for choice in choices[:_CANDIDATES]}
    offers = {choice: offer for choice, offer in found.items() if offer["queries"]}
    if not offers:
        requested, budget = tightest_cost(
            _terms(choices[0], request, 1), votes_are_valid=request.votes_are_valid
        )
        raise BudgetExhaustedError(requested=requested, budget=budget)
    chosen = max(offers, key=lambda choice: float(offers[choice]["expected_right"]))
    best = offers.pop(chosen)
    place = int(best["decides"]["party"].removeprefix("party-")) - 1
    best["epsilon_over_answers"] = _curve(chosen, request, best["queries"], seat=place)
    return {
        "schema_version": 1,
        "parties": request.parties,
        "teachers": request.parties * request.teachers,
        "votes": request.votes,
        "classes": request.classes,
        "budget": {"epsilon": max(request.budgets), "delta": request.delta},
        "requested_queries": request.queries,
        "unit": request.unit,
        "neighbors": best["decides"]["neighbors"],
        "view": 'public: labels and "no answer"s',
        "assumed_teacher_accuracy": request.teacher_accuracy,
        "noise": "coordinator",
        "sum": advice,
        "best": best,
        "others": list(offers.values()),
    }


def sum_for(request: PlanRequest, sums: Sums) -> dict[str, Any]:
    """Say which secure sum a federation uses: the one that it names, else the one that fits.

    Returns:
        As `advised_sum`.

    Raises:
        UnfitSumError: it names one that does not fit.
    """
    advice = advised_sum(
        request.parties, dropouts=request.expected_dropouts, sums=sums, form=request.form
    )
    if request.form is not None and advice["form"] is None:
        raise UnfitSumError(
            f"--sum {request.form} must fit {request.parties} hospitals of which "
            f"{request.expected_dropouts} may be lost",
            advice["why"],
        )
    return advice


def _choices(request: PlanRequest) -> Iterator[Choice]:
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
                yield Choice(threshold, sigma1, sigma2, seen)


def _given(value: float | None, shares: tuple[float, ...], votes: int) -> tuple[float, ...]:
    return tuple(share * votes for share in shares) if value is None else (value,)


def _terms(choice: Choice, request: PlanRequest, queries: int) -> RunTerms:
    """Terms of a run of so many queries: caps at what is expected of it, and a margin."""
    refusals = choice.preview.refusals(queries)
    weights = request.weights or (1,) * request.parties
    try:
        return RunTerms(
            name="plan",
            pool_digest=bytes(32),
            task_digest=NO_TASK,
            classes=request.classes,
            weights=tuple(TeacherWeights.equal(request.teachers, weight=each) for each in weights),
            mechanism="confident",
            vote_threshold=choice.vote_threshold,
            sigma1=choice.sigma1,
            sigma2=choice.sigma2,
            confidence=None,
            test_delta=None,
            noise_place="coordinator",
            unit=request.unit,  # type: ignore[arg-type]  # checked with all else
            pricing="gdp",
            orders=(),
            max_asks=queries,
            max_answers=queries,
            max_refusals=refusals,
            budgets=request.budgets,
            delta=request.delta,
        )
    except InvalidParameterError as error:
        raise InvalidSettingError(f"the run must be possible: {error.must}", error.got) from error


def _affordable(
    choice: Choice, request: PlanRequest, wanted: frozenset[Pricing], *, most: int
) -> int:
    @lru_cache
    def terms_of(queries: int) -> RunTerms:
        return _terms(choice, request, queries)

    return affordable_queries(
        terms_of,
        most=most,
        votes_are_valid=request.votes_are_valid,
        wanted=wanted,
    )


def _offer(choice: Choice, request: PlanRequest) -> dict[str, Any]:
    by_gdp = _affordable(choice, request, _GDP, most=request.queries or MOST_QUERIES)
    # No other bound affords many times more: it need not be looked for up to the very end.
    further = request.queries or min(MOST_QUERIES, max(8, _REACH * by_gdp))
    queries = _affordable(choice, request, PRICINGS, most=further)
    if not queries:
        return {"queries": 0, "expected_right": 0.0}
    terms = priced(_terms(choice, request, queries), votes_are_valid=request.votes_are_valid)
    costs = [formal_cost_at(terms, seat) for seat in range(request.parties)]
    shares = [cost.epsilon / budget for cost, budget in zip(costs, terms.budgets, strict=True)]
    decides = shares.index(max(shares))
    bounds = formal_bounds(
        terms, weight=terms.unit_votes_at(decides), votes_are_valid=request.votes_are_valid
    )
    return {
        "queries": queries,
        "queries_by_gdp": by_gdp,
        "expected_answered": queries * choice.preview.answer_rate,
        "expected_right": choice.right_answers(queries),
        "expected_accuracy": choice.preview.accuracy,
        "mechanism": {
            "name": "confident",
            "vote_threshold": choice.vote_threshold,
            "sigma1": choice.sigma1,
            "sigma2": choice.sigma2,
            "max_answers": terms.max_answers,
            "max_refusals": terms.max_refusals,
            "pricing": terms.pricing,
        },
        "epsilon": {
            **{f"formal_{bound}": _epsilon(bounds, bound) for bound in BOUNDS},
            "smallest": costs[decides].epsilon,
            "method": costs[decides].method,
        },
        "parties": [
            {
                "party": f"party-{seat + 1}",
                "votes": terms.quotas[seat],
                "unit_votes": terms.unit_votes_at(seat),
                "budget": terms.budgets[seat],
                "epsilon": cost.epsilon,
            }
            for seat, cost in enumerate(costs)
        ],
        "decides": {
            "party": f"party-{decides + 1}",
            "budget": terms.budgets[decides],
            "neighbors": neighbors(terms.unit, weight=terms.unit_votes_at(decides)),
        },
        "epsilon_over_answers": [],
    }


def _epsilon(bounds: Any, bound: Pricing) -> float | None:
    cost = bounds.get(bound)
    return None if cost is None or not math.isfinite(cost.epsilon) else cost.epsilon


def _curve(
    choice: Choice, request: PlanRequest, queries: int, *, seat: int
) -> list[dict[str, float | None]]:
    """Return what runs of ever more queries cost one hospital's units, by every bound."""
    points: list[dict[str, float | None]] = []
    for asked in sorted({max(1, queries * step // _STEPS) for step in range(1, _STEPS + 1)}):
        terms = _terms(choice, request, asked)
        bounds = formal_bounds(
            terms, weight=terms.unit_votes_at(seat), votes_are_valid=request.votes_are_valid
        )
        points.append(
            {
                "asked": asked,
                "answers": asked * choice.preview.answer_rate,
                **{f"epsilon_{bound}": _epsilon(bounds, bound) for bound in BOUNDS},
            }
        )
    return points
