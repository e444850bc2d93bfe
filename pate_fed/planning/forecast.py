"""What a run would give and cost: its queries, their expected answers, its price in each view."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Self, TypedDict

from pate_fed.accounting import FormalCost, distributed_row_rdp, neighbors
from pate_fed.charges import noise_of
from pate_fed.errors import InvalidParameterError, NarrowNoiseError
from pate_fed.mechanisms import DistributedNoise, make_mechanism
from pate_fed.mechanisms.preview import Preview, preview, simulated_votes
from pate_fed.planning.planner import Planner
from pate_fed.prices import charged_price, public_price
from pate_fed.rule import Rule
from pate_fed.terms import RunTerms

_POINTS: Final = 5


class Price(TypedDict):
    """An epsilon with all that belongs to it; `view` says against whom it holds."""

    epsilon: float
    delta: float
    unit: str
    view: str
    method: str


class PartyPrice(TypedDict):
    """What a run costs a hospital's units, beside its budget."""

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


class ForecastTable(TypedDict):
    """A forecast as plain data, with its price in each view; counts are expected ones."""

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
class Forecast:
    """A run whose settings are all known, and its answers on simulated votes."""

    planner: Planner
    queries: int
    seen: Preview

    @classmethod
    def of(cls, planner: Planner, *, teacher_accuracy: float) -> Self:
        """Try a run's mechanism on simulated votes.

        Args:
            planner: With settings that are filled in.
            teacher_accuracy: Assumed share of teachers that are right on an average query.
        """
        settings = planner.settings
        counts = simulated_votes(
            votes=settings.likely_votes, classes=planner.classes, teacher_accuracy=teacher_accuracy
        )
        drawn = drawn_noise(settings.rule, settings.parties or 0)
        seen = preview(make_mechanism(settings.rule.at_coordinator(drawn)), counts)
        return cls(planner, settings.caps.max_asks or 0, seen)

    def as_table(self) -> ForecastTable:
        """Return it as plain data: the keys are the same for both places of the noise."""
        terms = self.planner.terms(self.queries)
        costs = [charged_price(terms, seat) for seat in range(len(terms.weights))]
        used = [cost.epsilon / budget for cost, budget in zip(costs, terms.budgets, strict=True)]
        seat = used.index(max(used))
        views = {"public": public_price(terms, seat)}
        if terms.rule.at_aggregators:
            views = {"coordinator": costs[seat], "tally": costs[seat], **views}
        elif terms.rule.at_parties:
            views = {"coordinator": costs[seat], **views}
        return {
            "queries": self.queries,
            "expected_answered": self.queries * self.seen.answer_rate,
            "expected_right": self.queries * self.seen.right_rate,
            "expected_accuracy": self.seen.accuracy,
            "mechanism": {
                "name": terms.rule.mechanism,
                "vote_threshold": terms.rule.vote_threshold,
                "sigma2": terms.rule.need("sigma2"),
                "patient_votes": terms.caps.patient_votes,
            },
            "prices": {view: _price(cost, terms) for view, cost in views.items()},
            "noise_share": self._share(terms) if terms.rule.opens_noisy else None,
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
                "neighbors": neighbors(
                    terms.unit,
                    weight=terms.unit_votes_at(seat),
                    label_cap=terms.caps.label_cap,
                    patient_votes=terms.caps.patient_votes,
                ),
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


def drawn_noise(rule: Rule, parties: int) -> float:
    """Return the noise in each count when all who add noise add theirs.

    Raises:
        NarrowNoiseError: it is too little to be shared.
    """
    sigma = rule.need("sigma2")
    if not rule.opens_noisy:
        return sigma
    try:
        noise = DistributedNoise.of(rule, parties)
        return noise.sum_sigma(noise.parties)
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
