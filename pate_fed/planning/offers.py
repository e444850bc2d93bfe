"""The offers of a plan: a threshold with its noise, the queries that it affords, their price."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from pate_fed.accounting import FormalCost, distributed_row_rdp, neighbors
from pate_fed.accounting.calibration import most_queries
from pate_fed.charging import noise_of
from pate_fed.errors import (
    BudgetExhaustedError,
    InvalidParameterError,
    InvalidSettingError,
    NarrowNoiseError,
    UnfitSumError,
)
from pate_fed.federation import NO_TASK, RunTerms
from pate_fed.mechanisms import DistributedNoise, make_mechanism
from pate_fed.mechanisms.preview import Preview, preview, simulated_votes
from pate_fed.planning.request import PlanRequest
from pate_fed.planning.sums import Sums, divided
from pate_fed.pricing import (
    budget_share,
    charged_cost,
    likely_noise,
    public_cost,
    tightest_cost,
)
from pate_fed.rule import Caps, Rule
from pate_fed.votes import TeacherWeights

_THRESHOLDS: Final = (0.5, 0.58, 0.66)
_SIGMAS: Final = (0.16, 0.2, 0.25)
"""Default thresholds and noises to try, as shares of the number of votes."""

_KEPT: Final = 0.9
"""Least accuracy of an offer, as a share of the best one: more noise buys more, worse labels."""

_POINTS: Final = 5


def whole_rule(request: PlanRequest, advice: Mapping[str, Any], sums: Sums) -> Rule:
    """Return the request's rule with all that divides the noise, if the parties add it.

    Args:
        request: The federation.
        advice: Its secure sum, as `advised_sum` says.
        sums: Forms that may be advised.

    Raises:
        UnfitSumError: no secure sum fits, and noise at the parties needs one.
        InvalidSettingError: too many colluders.
    """
    rule = request.rule
    if not rule.at_parties:
        return rule
    if advice["form"] is None:
        raise UnfitSumError("--noise parties must come with a secure sum that fits", advice["why"])
    form = sums[advice["form"]]
    most = form.most_colluders(request.parties)
    if not 1 <= (rule.colluders or 1) <= most:
        raise InvalidSettingError(
            f"--colluders must be from 1 to {most} with --sum {form.name} of {request.parties} "
            "hospitals",
            rule.colluders,
        )
    return divided(rule, request.parties, form)


@dataclass(frozen=True, slots=True)
class Offer:
    """A threshold and its noise, with as many queries as they afford.

    Attributes:
        request: The federation and its budget; its rule and its number of queries are the offer's.
        seen: The mechanism's behavior on simulated votes.
    """

    request: PlanRequest
    seen: Preview

    @property
    def queries(self) -> int:
        """How many."""
        return self.request.caps.max_asks or 0

    @property
    def right(self) -> float:
        """Expected number of right answers."""
        return self.queries * self.seen.right_rate

    def terms(self, queries: int | None = None) -> RunTerms:
        """Return the terms of its run, or of one of this many queries."""
        asks = self.queries if queries is None else queries
        return _terms(self.request, self.request.rule, asks)

    def as_table(self) -> dict[str, Any]:
        """Return it as plain data: the keys are the same for both places of the noise."""
        terms, request = self.terms(), self.request
        costs = [charged_cost(terms, seat) for seat in range(request.parties)]
        used = [cost.epsilon / budget for cost, budget in zip(costs, terms.budgets, strict=True)]
        seat = used.index(max(used))
        views = {"public": public_cost(terms, seat)}
        if terms.rule.at_parties:
            views = {"coordinator": costs[seat], **views}
        return {
            "queries": self.queries,
            "expected_answered": self.queries * self.seen.answer_rate,
            "expected_right": self.right,
            "expected_accuracy": self.seen.accuracy,
            "mechanism": {
                "name": terms.rule.mechanism,
                "vote_threshold": terms.rule.vote_threshold,
                "sigma2": terms.rule.sigma2,
            },
            "prices": {view: _price(cost, terms) for view, cost in views.items()},
            "noise_share": self._share(terms) if terms.rule.at_parties else None,
            "parties": [
                {
                    "party": f"party-{place + 1}",
                    "votes": terms.quotas[place],
                    "unit_votes": terms.unit_votes_at(place),
                    "budget": terms.budgets[place],
                    "epsilon": cost.epsilon,
                }
                for place, cost in enumerate(costs)
            ],
            "decides": {
                "party": f"party-{seat + 1}",
                "budget": terms.budgets[seat],
                "neighbors": neighbors(terms.unit, weight=terms.unit_votes_at(seat)),
            },
        }

    def curve(self, seat: int) -> list[dict[str, float]]:
        """Return the cost of ever longer runs for one hospital's units."""
        steps = {max(1, self.queries * step // _POINTS) for step in range(1, _POINTS + 1)}
        return [
            {
                "asked": asked,
                "answers": asked * self.seen.answer_rate,
                "epsilon": charged_cost(self.terms(asked), seat).epsilon,
            }
            for asked in sorted(steps)
        ]

    def _share(self, terms: RunTerms) -> dict[str, float]:
        """Return each hospital's noise, and the extra divergence for the shape of the sum."""
        noise, weight, order = noise_of(terms), terms.unit_votes, 8.0
        [row] = distributed_row_rdp([order], sigma=noise.sigma, shares=noise.shares, weight=weight)
        return {
            "sigma": noise.sigma,
            "share_sigma": noise.share_sigma,
            "sum_sigma": noise.sum_sigma(noise.parties),
            "least_sigma": math.ceil(1e4 * math.sqrt(noise.shares)) / 1e4,
            "correction": max(0.0, float(row) * noise.sigma**2 / (order * weight**2) - 1),
        }


def best_offer(request: PlanRequest) -> dict[str, Any]:
    """Return the best offer as a table, with its cost over answers.

    It has the most right answers, of those whose labels are hardly worse than the best.

    Raises:
        BudgetExhaustedError: not a single query.
        NarrowNoiseError: the given noise is too little to be shared.
        InvalidSettingError: the hospitals cannot vote in this way.
    """
    counts = simulated_votes(
        votes=request.votes, classes=request.classes, teacher_accuracy=request.teacher_accuracy
    )
    seen = [
        (rule, preview(make_mechanism(rule.at_coordinator(drawn)), counts))
        for sigma in _sigmas(request)
        for drawn in [_drawn(replace(request.rule, sigma2=sigma), request.parties)]
        for threshold in _tried(request.rule.vote_threshold, _THRESHOLDS, request.votes)
        for rule in [replace(request.rule, sigma2=sigma, vote_threshold=threshold)]
    ]
    most = max(found.accuracy for _, found in seen)
    good = [each for each in seen if each[1].accuracy >= _KEPT * most]
    # A threshold costs nothing, and as many queries fit as noise is squared.
    of_one = likely_noise(_terms(request, good[0][0], 1))

    def likely_queries(rule: Rule) -> float:
        return (rule.need("sigma2") / of_one) ** 2

    def likely_right(offer: tuple[Rule, Preview]) -> float:
        return min(likely_queries(offer[0]), request.most_queries) * offer[1].right_rate

    rule, found = max(good, key=likely_right)
    queries = most_queries(
        lambda queries: budget_share(_terms(request, rule, queries)),
        budget=1.0,
        most=request.most_queries,
        first=likely_queries(rule),
    )
    best = Offer(replace(request, rule=rule, caps=Caps(max_asks=queries or None)), found)
    if not queries:
        requested, budget = tightest_cost(best.terms(1))
        raise BudgetExhaustedError(requested=requested, budget=budget)
    table = best.as_table()
    seat = int(table["decides"]["party"].removeprefix("party-")) - 1
    return {**table, "epsilon_over_answers": best.curve(seat)}


def _sigmas(request: PlanRequest) -> list[float]:
    sigmas = _tried(request.rule.sigma2, _SIGMAS, request.votes)
    shares = request.rule.shares(request.parties)
    if shares is None or request.rule.sigma2 is not None:
        return sigmas
    least = float(math.ceil(math.sqrt(shares)))  # its shares are wide enough, in whole votes
    return sorted({max(sigma, least) for sigma in sigmas})


def _tried(value: float | None, shares: tuple[float, ...], votes: int) -> list[float]:
    return [share * votes for share in shares] if value is None else [value]


def _drawn(rule: Rule, parties: int) -> float:
    """Return the noise in each count when all parties add theirs.

    Raises:
        NarrowNoiseError: it is too little to be shared.
    """
    sigma = rule.need("sigma2")
    if not rule.at_parties:
        return sigma
    try:
        return DistributedNoise.of(rule, parties).sum_sigma(parties)
    except InvalidParameterError as error:
        raise NarrowNoiseError(f"--sigma2 must be wide enough: {error.must}", sigma) from error


def _terms(request: PlanRequest, rule: Rule, queries: int) -> RunTerms:
    weights = request.weights or (1,) * request.parties
    try:
        return RunTerms(
            name="plan",
            pool_digest=bytes(32),
            task_digest=NO_TASK,
            classes=request.classes,
            weights=tuple(TeacherWeights.equal(request.teachers, weight=each) for each in weights),
            rule=rule,
            unit=request.unit,
            caps=Caps(queries, queries, queries),
            budgets=request.budgets,
            delta=request.delta,
        )
    except InvalidParameterError as error:
        raise InvalidSettingError(f"the run must be possible: {error.must}", error.got) from error


def _price(cost: FormalCost, terms: RunTerms) -> dict[str, Any]:
    return {
        "epsilon": cost.epsilon,
        "delta": terms.delta,
        "unit": terms.unit,
        "view": cost.holds_for,
        "method": cost.method,
    }
