"""What a budget buys where the parties add the noise: `pate-fed plan --noise parties`.

Priced as the coordinator sees it, who opens every noisy row: that is what budgets bound. Plain
GNMax comes first, because it takes one vector and one exchange. The two-phase check stands beside
it, with what its threshold lets through: it looks at the largest of C noisy counts, so it passes
more than the coordinator's own check would.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from pate_fed.accounting import FormalCost, distributed_row_rdp, neighbors
from pate_fed.charging import (
    affordable_queries,
    formal_cost_at,
    noise_of,
    priced,
    public_cost_at,
    tightest_cost,
)
from pate_fed.errors import (
    BudgetExhaustedError,
    InvalidParameterError,
    InvalidSettingError,
    NarrowNoiseError,
    UnfitSumError,
)
from pate_fed.federation import NO_TASK, RunTerms
from pate_fed.mechanisms import (
    DistributedNoise,
    flat_row,
    pass_chances,
    preview_two_phases,
    row_of_top,
    usual_vote_threshold,
)
from pate_fed.mechanisms.preview import Preview, right_chances, simulated_votes
from pate_fed.planning.at_coordinator import (
    MOST_QUERIES,
    PlanRequest,
    sum_for,
)
from pate_fed.planning.sums import Sums
from pate_fed.votes import TeacherWeights

_SIGMAS: Final = (0.06, 0.08, 0.12, 0.16, 0.2, 0.24, 0.3)
"""Shares of the number of votes that are tried where nothing is said, for both phases."""

_KEPT: Final = 0.9
"""Part of the right labels that noise may leave: more noise buys more labels, and worse ones."""

_USEFUL: Final = 0.5
"""Chance that a query on which all teachers agree passes a check that is worth its rows."""

_LEADS: Final = (0.0, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0)
"""Leads of the first class over the next, as shares of the votes, whose rows are previewed."""

_MARGIN: Final = 3.0
"""Standard deviations that the cap on answers lies above their expected number."""

_SOURCES: Final = {
    "coordinator": (
        "docs/explanation/noise-at-the-parties.md, Theorem 1; Kairouz, Liu, Steinke 2021, "
        "arXiv:2102.06387"
    ),
    "public": (
        "docs/explanation/noise-at-the-parties.md, Theorems 2 and 3; "
        "docs/explanation/label-level-bound.md"
    ),
}


@dataclass(frozen=True, slots=True)
class Offer:
    """One mechanism with its noise, and what simulated votes say of it.

    Attributes:
        mechanism: "gnmax" or "confident".
        vote_threshold, sigma1: In votes; None for "gnmax".
        sigma2: In votes.
        preview: What simulated votes say of them.
    """

    mechanism: str
    vote_threshold: float | None
    sigma1: float | None
    sigma2: float
    preview: Preview

    def most_answers(self, queries: int) -> int:
        """Return a cap on answers that so many queries will hardly reach."""
        rate = self.preview.answer_rate
        spread = math.sqrt(queries * rate * (1 - rate))
        return max(1, min(queries, math.ceil(queries * rate + _MARGIN * spread)))


def plan_at_parties(request: PlanRequest, *, sums: Sums) -> dict[str, Any]:
    """Find what a budget buys with noise at the parties.

    Args:
        request: The federation and its budget.
        sums: Forms of the secure sum that may be advised.

    Raises:
        BudgetExhaustedError: not a single query.
        UnfitSumError: no secure sum fits, or not the one that is named.
        NarrowNoiseError: the noise that is named is too little to be shared.
        InvalidSettingError: too many colluders, or the hospitals cannot vote like that.
    """
    advice = sum_for(request, sums)
    split = _split(request, advice, sums)
    counts = simulated_votes(
        votes=request.votes, classes=request.classes, teacher_accuracy=request.teacher_accuracy
    )
    plain = _best(list(_plain_offers(request, split, counts)), request, split)
    if not plain["queries"]:
        terms = _terms(plain["offer"], request, split, 1)
        requested, budget = tightest_cost(terms, votes_are_valid=False)
        raise BudgetExhaustedError(requested=requested, budget=budget)
    phased = _best(list(_phased_offers(request, split, counts)), request, split)
    others = [_said(phased, request, split)] if phased["queries"] else []
    best = _said(plain, request, split)
    return {
        "schema_version": 1,
        "noise": "parties",
        "parties": request.parties,
        "teachers": request.parties * request.teachers,
        "votes": request.votes,
        "classes": request.classes,
        "budget": {"epsilon": max(request.budgets), "delta": request.delta},
        "requested_queries": request.queries,
        "unit": request.unit,
        "neighbors": best["decides"]["neighbors"],
        "assumed_teacher_accuracy": request.teacher_accuracy,
        "sum": advice,
        "shares": {
            "parties": request.parties,
            "colluders": split.colluders,
            "dropouts": split.dropouts,
            "suffice": split.shares,
        },
        "best": best,
        "others": others,
    }


# Choosing ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Split:
    """How the noise is divided: parties, colluders, drop-outs."""

    parties: int
    colluders: int
    dropouts: int

    @property
    def shares(self) -> int:
        return self.parties - self.colluders - self.dropouts

    @property
    def least_sigma(self) -> float:
        """The smallest sigma whose shares are wide enough, in whole votes."""
        return float(math.ceil(math.sqrt(self.shares)))

    def noise(self, sigma: float, *, option: str) -> DistributedNoise:
        try:
            return DistributedNoise(sigma, self.parties, self.colluders, self.dropouts)
        except InvalidParameterError as error:
            raise NarrowNoiseError(f"{option} must be wide enough: {error.must}", sigma) from error


def _split(request: PlanRequest, advice: Mapping[str, Any], sums: Sums) -> _Split:
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
    # As many are lost as the sum goes on without, whatever is expected: it does not ask first.
    split = _Split(request.parties, colluders, request.parties - form.threshold(request.parties))
    if split.shares < 1:
        raise InvalidSettingError(
            f"--colluders must leave one of {request.parties} hospitals that is honest and present",
            colluders,
        )
    return split


def _tried(value: float | None, request: PlanRequest, split: _Split) -> tuple[float, ...]:
    if value is not None:
        return (value,)
    wide = {max(share * request.votes, split.least_sigma) for share in _SIGMAS}
    return tuple(sorted(wide))


def _plain_offers(
    request: PlanRequest, split: _Split, counts: NDArray[np.int64]
) -> Iterator[Offer]:
    for sigma in _tried(request.sigma2, request, split):
        noise = split.noise(sigma, option="--sigma2")
        # All hospitals that send add their noise: more than is promised.
        right = right_chances(counts, sigma=noise.sum_sigma(noise.parties))
        yield Offer("gnmax", None, None, sigma, Preview(1.0, float(right.mean())))


def _phased_offers(
    request: PlanRequest, split: _Split, counts: NDArray[np.int64]
) -> Iterator[Offer]:
    for narrowest, sigma1 in _first_marked(_tried(request.sigma1, request, split)):
        first = split.noise(sigma1, option="--sigma1")
        threshold = request.vote_threshold
        if threshold is None:
            threshold = float(
                usual_vote_threshold(votes=request.votes, classes=request.classes, noise=first)
            )
        alike = row_of_top(request.votes, votes=request.votes, classes=request.classes)
        useful = pass_chances([alike], vote_threshold=threshold, noise=first)[0] >= _USEFUL
        for sigma2 in _tried(request.sigma2, request, split) if useful or narrowest else ():
            seen = preview_two_phases(
                counts,
                vote_threshold=threshold,
                first=first,
                second=split.noise(sigma2, option="--sigma2"),
            )
            yield Offer("confident", threshold, sigma1, sigma2, seen)


def _first_marked(values: tuple[float, ...]) -> Iterator[tuple[bool, float]]:
    """Mark the first value: the one to fall back to."""
    return ((place == 0, value) for place, value in enumerate(values))


def _best(offers: list[Offer], request: PlanRequest, split: _Split) -> dict[str, Any]:
    """Return the offer with most right labels among those whose labels the noise does not spoil."""
    most = max(offer.preview.accuracy for offer in offers)
    good = [offer for offer in offers if offer.preview.accuracy >= _KEPT * most]
    queries = {offer: _affordable(offer, request, split) for offer in good}
    chosen = max(good, key=lambda offer: _right(offer, queries[offer]))
    return {"offer": chosen, "queries": queries[chosen]}


def _right(offer: Offer, queries: int) -> float:
    return queries * offer.preview.answer_rate * offer.preview.accuracy


def _affordable(
    offer: Offer, request: PlanRequest, split: _Split, *, seat: int | None = None
) -> int:
    """Return how many queries all budgets afford, or that of one hospital alone."""

    @lru_cache
    def terms_of(queries: int) -> RunTerms:
        return _terms(offer, request, split, queries, seat=seat)

    return affordable_queries(terms_of, most=request.queries or MOST_QUERIES, votes_are_valid=False)


def _terms(
    offer: Offer, request: PlanRequest, split: _Split, queries: int, *, seat: int | None = None
) -> RunTerms:
    """Terms of a run of so many queries; with `seat`, other hospitals' budgets do not count."""
    weights = request.weights or (1,) * request.parties
    budgets = request.budgets
    if seat is not None:
        budgets = tuple(budget if place == seat else 1e300 for place, budget in enumerate(budgets))
    refuses = offer.mechanism == "confident"
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
            noise_place="parties",
            unit=request.unit,  # type: ignore[arg-type]  # checked with all else
            pricing="renyi",
            orders=(2.0,) * request.parties,
            max_asks=queries,
            max_answers=offer.most_answers(queries) if refuses else queries,
            max_refusals=queries if refuses else 0,
            budgets=budgets,
            delta=request.delta,
            colluders=split.colluders,
            dropouts=split.dropouts,
        )
    except InvalidParameterError as error:
        raise InvalidSettingError(f"the run must be possible: {error.must}", error.got) from error


# Saying -----------------------------------------------------------------------------------------


def _said(chosen: Mapping[str, Any], request: PlanRequest, split: _Split) -> dict[str, Any]:
    offer, queries = chosen["offer"], chosen["queries"]
    terms = priced(_terms(offer, request, split, queries), votes_are_valid=False)
    costs = [formal_cost_at(terms, seat) for seat in range(request.parties)]
    used = [cost.epsilon / budget for cost, budget in zip(costs, terms.budgets, strict=True)]
    seat = used.index(max(used))
    weight = terms.unit_votes_at(seat)
    views = {"coordinator": costs[seat], "public": public_cost_at(terms, seat)}
    said = neighbors(terms.unit, weight=weight)
    return {
        "queries": queries,
        "exchanges": _exchanges(terms),
        "expected_answered": queries * offer.preview.answer_rate,
        "expected_right": _right(offer, queries),
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
        "noise_shares": [_share(terms, phase, weight) for phase in range(terms.phases)],
        "prices": {view: _price(cost, view, terms, said) for view, cost in views.items()},
        "parties": _hospitals(offer, request, split, terms, costs),
        "decides": {
            "party": f"party-{seat + 1}",
            "budget": terms.budgets[seat],
            "neighbors": said,
        },
        "passing": _passing(offer, request, noise_of(terms)),
    }


def _exchanges(terms: RunTerms) -> int:
    """Exchanges of a batch: for each phase one of the additive sum, three of the masked."""
    return (3 if terms.dropouts else 1) * terms.phases


def _price(cost: FormalCost, view: str, terms: RunTerms, said: str) -> dict[str, Any]:
    return {
        "epsilon": cost.epsilon,
        "delta": terms.delta,
        "unit": terms.unit,
        "neighbors": said,
        "view": cost.holds_for,
        "method": cost.method,
        "source": _SOURCES[view],
    }


def _share(terms: RunTerms, phase: int, weight: int) -> dict[str, Any]:
    """Say what each hospital adds in a phase, and what the shape of the sum costs more."""
    noise, order = noise_of(terms, phase=phase), terms.orders[0]
    [row] = distributed_row_rdp([order], sigma=noise.sigma, shares=noise.shares, weight=weight)
    gaussian = order * weight**2 / noise.sigma**2
    return {
        "sigma": noise.sigma,
        "share_sigma": noise.share_sigma,
        "sum_sigma": noise.sum_sigma(noise.parties),
        "least_sigma": math.ceil(1e4 * math.sqrt(noise.shares)) / 1e4,
        "correction": max(0.0, float(row) / gaussian - 1),
    }


def _hospitals(
    offer: Offer,
    request: PlanRequest,
    split: _Split,
    terms: RunTerms,
    costs: list[FormalCost],
) -> list[dict[str, Any]]:
    """Say what each hospital's units may be charged, and how many queries its budget affords."""

    @lru_cache
    def affords(weight: int, budget: float) -> int:
        seat = next(
            place
            for place in range(request.parties)
            if (terms.unit_votes_at(place), terms.budgets[place]) == (weight, budget)
        )
        return _affordable(offer, request, split, seat=seat)

    return [
        {
            "party": f"party-{seat + 1}",
            "votes": terms.quotas[seat],
            "unit_votes": terms.unit_votes_at(seat),
            "budget": terms.budgets[seat],
            "epsilon": cost.epsilon,
            "affords": affords(terms.unit_votes_at(seat), terms.budgets[seat]),
        }
        for seat, cost in enumerate(costs)
    ]


def _passing(
    offer: Offer, request: PlanRequest, noise: DistributedNoise
) -> list[dict[str, float | int]]:
    """Return how often rows pass the check, beside that of noise at the coordinator."""
    if offer.vote_threshold is None:
        return []
    assert offer.sigma1 is not None
    votes, classes = request.votes, request.classes
    even = int(flat_row(votes, classes)[0])
    tops = sorted(
        {max(even, round((votes + (classes - 1) * lead * votes) / classes)) for lead in _LEADS}
    )
    rows = np.array([row_of_top(top, votes=votes, classes=classes) for top in tops])
    two_phases = pass_chances(rows, vote_threshold=offer.vote_threshold, noise=noise)
    one_check = ndtr((rows.max(axis=1) - offer.vote_threshold) / offer.sigma1)
    return [
        {
            "top_votes": int(row[0]),
            "lead": int(row[0] - row[1]),
            "passes": float(passes),
            "passes_at_coordinator": float(beside),
        }
        for row, passes, beside in zip(rows, two_phases, one_check, strict=True)
    ]
