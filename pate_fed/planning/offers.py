"""The offers of a plan: a threshold with its noise, the queries that it affords, and their price.

The place of the noise is an argument: a `Split` where the parties add it, None where the
coordinator does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
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
from pate_fed.mechanisms import DistributedNoise, ThresholdMax
from pate_fed.mechanisms.preview import Preview, preview, simulated_votes
from pate_fed.planning.budgets import budget_share, likely_noise, tightest_cost
from pate_fed.planning.request import PlanRequest
from pate_fed.planning.sums import Sums
from pate_fed.pricing import charged_cost, public_cost
from pate_fed.votes import TeacherWeights

_THRESHOLDS: Final = (0.5, 0.58, 0.66)
_SIGMAS: Final = (0.16, 0.2, 0.25)
"""Default thresholds and noises to try, as shares of the number of votes."""

_KEPT: Final = 0.9
"""Least accuracy of an offer, as a share of the best one: more noise buys more, worse labels."""

_POINTS: Final = 5


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

    def noise(self, sigma: float) -> DistributedNoise:
        """Divide noise of that sigma.

        Raises:
            NarrowNoiseError: it is too little.
        """
        try:
            return DistributedNoise(sigma, self.parties, self.colluders, self.dropouts)
        except InvalidParameterError as error:
            raise NarrowNoiseError(f"--sigma2 must be wide enough: {error.must}", sigma) from error


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
    """A threshold and its noise, with as many queries as they afford.

    Attributes:
        request: The federation and its budget.
        split: Division of the noise; None where the coordinator adds it.
        vote_threshold: In votes.
        sigma: In votes.
        queries: How many.
        seen: The mechanism's behavior on simulated votes.
    """

    request: PlanRequest
    split: Split | None
    vote_threshold: float
    sigma: float
    queries: int
    seen: Preview

    @property
    def right(self) -> float:
        """Expected number of right answers."""
        return self.queries * self.seen.right_rate

    def terms(self, queries: int | None = None) -> RunTerms:
        """Return the terms of its run, or of one of this many queries."""
        asks = self.queries if queries is None else queries
        return _terms(self.request, self.split, self.vote_threshold, self.sigma, asks)

    def as_table(self) -> dict[str, Any]:
        """Return it as plain data: the keys are the same for both places of the noise."""
        terms, request = self.terms(), self.request
        costs = [charged_cost(terms, seat) for seat in range(request.parties)]
        used = [cost.epsilon / budget for cost, budget in zip(costs, terms.budgets, strict=True)]
        seat = used.index(max(used))
        views = {"public": public_cost(terms, seat)}
        if self.split is not None:
            views = {"coordinator": costs[seat], **views}
        return {
            "queries": self.queries,
            "expected_answered": self.queries * self.seen.answer_rate,
            "expected_right": self.right,
            "expected_accuracy": self.seen.accuracy,
            "mechanism": {
                "name": terms.mechanism,
                "vote_threshold": self.vote_threshold,
                "sigma2": self.sigma,
            },
            "prices": {view: _price(cost, terms) for view, cost in views.items()},
            "noise_share": None if self.split is None else self._share(terms),
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


def best_offer(request: PlanRequest, split: Split | None) -> dict[str, Any]:
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
        (sigma, threshold, preview(ThresholdMax(drawn, vote_threshold=threshold), counts))
        for sigma in _sigmas(request, split)
        for drawn in [sigma if split is None else split.noise(sigma).sum_sigma(request.parties)]
        for threshold in _tried(request.vote_threshold, _THRESHOLDS, request.votes)
    ]
    most = max(found.accuracy for *_, found in seen)
    good = [each for each in seen if each[2].accuracy >= _KEPT * most]
    # A threshold costs nothing, and as many queries fit as noise is squared.
    of_one = likely_noise(_terms(request, split, 0.0, 1.0, 1))
    sigma, threshold, found = max(
        good,
        key=lambda each: min((each[0] / of_one) ** 2, request.most_queries) * each[2].right_rate,
    )
    queries = _affordable(request, split, sigma, first=(sigma / of_one) ** 2)
    best = Offer(request, split, threshold, sigma, queries, found)
    if not queries:
        raise _nothing_affordable(best)
    table = best.as_table()
    seat = int(table["decides"]["party"].removeprefix("party-")) - 1
    return {**table, "epsilon_over_answers": best.curve(seat)}


def _sigmas(request: PlanRequest, split: Split | None) -> list[float]:
    sigmas = _tried(request.sigma2, _SIGMAS, request.votes)
    if split is None:
        return sigmas
    if request.sigma2 is None:
        sigmas = sorted({max(sigma, split.least_sigma) for sigma in sigmas})
    return sigmas


def _tried(value: float | None, shares: tuple[float, ...], votes: int) -> list[float]:
    return [share * votes for share in shares] if value is None else [value]


def _affordable(request: PlanRequest, split: Split | None, sigma: float, *, first: float) -> int:
    def share(queries: int) -> float:
        return budget_share(_terms(request, split, 0.0, sigma, queries))

    return most_queries(share, budget=1.0, most=request.most_queries, first=first)


def _nothing_affordable(offer: Offer) -> BudgetExhaustedError:
    requested, budget = tightest_cost(offer.terms(1))
    return BudgetExhaustedError(requested=requested, budget=budget)


def _terms(
    request: PlanRequest, split: Split | None, threshold: float, sigma: float, queries: int
) -> RunTerms:
    weights = request.weights or (1,) * request.parties
    try:
        return RunTerms(
            name="plan",
            pool_digest=bytes(32),
            task_digest=NO_TASK,
            classes=request.classes,
            weights=tuple(TeacherWeights.equal(request.teachers, weight=each) for each in weights),
            mechanism=ThresholdMax.name,
            vote_threshold=threshold,
            sigma1=None,
            sigma2=sigma,
            confidence=None,
            test_delta=None,
            noise_place=request.noise,  # type: ignore[arg-type]  # checked with all else
            unit=request.unit,  # type: ignore[arg-type]  # checked with all else
            max_asks=queries,
            max_answers=queries,
            budgets=request.budgets,
            delta=request.delta,
            colluders=None if split is None else split.colluders,
            dropouts=None if split is None else split.dropouts,
        )
    except InvalidParameterError as error:
        raise InvalidSettingError(f"the run must be possible: {error.must}", error.got) from error


def _price(cost: FormalCost, terms: RunTerms) -> dict[str, object]:
    return {
        "epsilon": cost.epsilon,
        "delta": terms.delta,
        "unit": terms.unit,
        "view": cost.holds_for,
        "method": cost.method,
    }
