"""The offers of a plan: a threshold with its noise, the queries that it affords, their price."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final, TypedDict

from pate_fed.accounting import FormalCost, distributed_row_rdp, neighbors
from pate_fed.charges import noise_of
from pate_fed.errors import InvalidParameterError, NarrowNoiseError
from pate_fed.mechanisms import DistributedNoise, make_mechanism
from pate_fed.mechanisms.preview import Preview, preview, simulated_votes
from pate_fed.planning.budgets import likely_noise
from pate_fed.planning.planner import Planner
from pate_fed.prices import charged_price, public_price
from pate_fed.rule import Rule
from pate_fed.terms import RunTerms

MOST_QUERIES: Final = 10_000
"""More queries than anybody plans."""

_THRESHOLDS: Final = (0.5, 0.58, 0.66)
_SIGMAS: Final = (0.16, 0.2, 0.25)
"""Default thresholds and noises to try, as shares of the number of votes."""

_KEPT: Final = 0.9
"""Least accuracy of an offer, as a share of the best one: more noise buys more, worse labels."""

_POINTS: Final = 5


class Price(TypedDict):
    """An epsilon with all that belongs to it; `view` says against whom it holds."""

    epsilon: float
    delta: float
    unit: str
    view: str
    method: str


class PartyPrice(TypedDict):
    """What an offer costs a hospital's units, beside its budget."""

    party: str
    votes: int
    unit_votes: int
    budget: float
    epsilon: float


class Deciding(TypedDict):
    """The hospital that is closest to its budget."""

    party: str
    budget: float
    neighbors: str


class BestOffer(TypedDict):
    """An offer as plain data, with its price in each view; counts are expected ones."""

    queries: int
    expected_answered: float
    expected_right: float
    expected_accuracy: float
    mechanism: dict[str, str | float | None]
    prices: dict[str, Price]
    noise_share: dict[str, float] | None
    parties: list[PartyPrice]
    decides: Deciding
    epsilon_over_answers: list[dict[str, float]]


@dataclass(frozen=True, slots=True)
class Offer:
    """A threshold and its noise, with as many queries as they afford."""

    planner: Planner
    queries: int
    seen: Preview

    @property
    def right(self) -> float:
        """Expected number of right answers."""
        return self.queries * self.seen.right_rate

    def as_table(self) -> BestOffer:
        """Return it as plain data: the keys are the same for both places of the noise."""
        terms = self.planner.terms(self.queries)
        costs = [charged_price(terms, seat) for seat in range(len(terms.weights))]
        used = [cost.epsilon / budget for cost, budget in zip(costs, terms.budgets, strict=True)]
        seat = used.index(max(used))
        views = {"public": public_price(terms, seat)}
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
                "sigma2": terms.rule.need("sigma2"),
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
            "epsilon_over_answers": self.curve(seat),
        }

    def curve(self, seat: int) -> list[dict[str, float]]:
        """Return the cost of ever longer runs for one hospital's units."""
        steps = {max(1, self.queries * step // _POINTS) for step in range(1, _POINTS + 1)}
        return [
            {
                "asked": asked,
                "answers": asked * self.seen.answer_rate,
                "epsilon": charged_price(self.planner.terms(asked), seat).epsilon,
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


def best_offer(planner: Planner, *, teacher_accuracy: float) -> BestOffer:
    """Return the best offer, with its cost over answers.

    It has the most right answers, of those whose labels are hardly worse than the best.
    """
    settings, most = planner.settings, planner.settings.caps.max_asks or MOST_QUERIES
    counts = simulated_votes(
        votes=settings.votes, classes=planner.classes, teacher_accuracy=teacher_accuracy
    )
    seen = [
        (rule, preview(make_mechanism(rule.at_coordinator(drawn)), counts))
        for sigma in _sigmas(planner)
        for drawn in [_drawn(replace(settings.rule, sigma2=sigma), settings.parties or 0)]
        for threshold in _tried(settings.rule.vote_threshold, _THRESHOLDS, settings.votes)
        for rule in [replace(settings.rule, sigma2=sigma, vote_threshold=threshold)]
    ]
    best = max(found.accuracy for _, found in seen)
    good = [each for each in seen if each[1].accuracy >= _KEPT * best]
    # A threshold costs nothing, and as many queries fit as noise is squared.
    of_one = likely_noise(planner.with_rule(good[0][0]).terms(1))

    def likely_queries(rule: Rule) -> float:
        return (rule.need("sigma2") / of_one) ** 2

    def likely_right(offer: tuple[Rule, Preview]) -> float:
        return min(likely_queries(offer[0]), most) * offer[1].right_rate

    rule, found = max(good, key=likely_right)
    offered = planner.with_rule(rule)
    return Offer(offered, offered.affordable(most, first=likely_queries(rule)), found).as_table()


def _sigmas(planner: Planner) -> list[float]:
    rule = planner.settings.rule
    sigmas = _tried(rule.sigma2, _SIGMAS, planner.settings.votes)
    if not rule.at_parties or rule.sigma2 is not None:
        return sigmas
    # Wide enough to be shared, in whole votes.
    return sorted({max(sigma, float(math.ceil(planner.narrowest_noise))) for sigma in sigmas})


def _tried(value: float | None, shares: tuple[float, ...], votes: int) -> list[float]:
    return [share * votes for share in shares] if value is None else [value]


def _drawn(rule: Rule, parties: int) -> float:
    """Return the noise in each count when all parties add theirs."""
    sigma = rule.need("sigma2")
    if not rule.at_parties:
        return sigma
    try:
        return DistributedNoise.of(rule, parties).sum_sigma(parties)
    except InvalidParameterError as error:
        raise NarrowNoiseError(f"--sigma2 must be wide enough: {error.must}", sigma) from error


def _price(cost: FormalCost, terms: RunTerms) -> Price:
    return {
        "epsilon": cost.epsilon,
        "delta": terms.delta,
        "unit": terms.unit,
        "view": cost.holds_for,
        "method": cost.method,
    }
