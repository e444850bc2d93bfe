"""What a budget buys, before anything is spent: `pate-fed plan`.

Works from public numbers and simulated votes alone, never from a hospital's. For each choice of
threshold and noise it asks how many queries the budget affords by the smallest formal bound that
holds, and how many right answers to expect from them.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from coordinator.errors import InvalidSettingError
from pate_fed.accounting import gdp_epsilon, neighbors
from pate_fed.accounting.calibration import most_queries
from pate_fed.accounting.formal import FormalCosts, RunCaps, formal_costs, gdp_at_caps
from pate_fed.errors import BudgetExhaustedError

MOST_QUERIES: Final = 10_000
SIMULATED_QUERIES: Final = 400
SIMULATED_DRAWS: Final = 20
_THRESHOLDS: Final = (0.4, 0.5, 0.6, 0.7)
_SIGMA1S: Final = (0.2, 0.3)
_SIGMA2S: Final = (0.12, 0.16, 0.24)
"""Shares of the number of votes that are tried where nothing is said."""

_CANDIDATES: Final = 4
_CAP_MARGIN: Final = 3.0
"""Standard deviations that a cap on refusals lies above their expected number."""


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
        queries: Queries wanted; None for as many as the budget affords.
        vote_threshold, sigma1, sigma2: The mechanism's, in votes; None to choose.
        teacher_accuracy: Assumed share of teachers that are right on an average query.
        votes_are_valid: Whether the hospitals are trusted to send valid vote rows.
    """

    parties: int
    teachers: int
    classes: int
    epsilon: float
    delta: float
    unit: str
    queries: int | None = None
    vote_threshold: float | None = None
    sigma1: float | None = None
    sigma2: float | None = None
    teacher_accuracy: float = 0.7
    votes_are_valid: bool = True

    def __post_init__(self) -> None:
        for name in ("parties", "teachers"):
            if getattr(self, name) < 1:
                raise InvalidSettingError(f"--{name} must be at least 1", getattr(self, name))
        if self.classes < 2:
            raise InvalidSettingError("--classes must be at least 2", self.classes)
        if not 0 < self.epsilon < math.inf or not 0 < self.delta < 1:
            raise InvalidSettingError("--epsilon must be above 0 and --delta in (0, 1)", "others")
        if not 1 / self.classes < self.teacher_accuracy < 1:
            raise InvalidSettingError(
                "--teacher-accuracy must lie between that of guessing and 1", self.teacher_accuracy
            )

    @property
    def votes(self) -> int:
        """Votes per query."""
        return self.parties * self.teachers

    @property
    def unit_votes(self) -> int:
        """Votes that one privacy unit can move."""
        return self.teachers if self.unit == "party" else 1


@dataclass(frozen=True, slots=True)
class Choice:
    """Threshold and noise of Confident-GNMax, with what simulated votes say of them.

    Attributes:
        vote_threshold, sigma1, sigma2: In votes.
        answer_rate: Share of queries that are answered.
        accuracy: Share of the answers that are right.
    """

    vote_threshold: float
    sigma1: float
    sigma2: float
    answer_rate: float
    accuracy: float


def plan(request: PlanRequest) -> dict[str, Any]:
    """Find what a budget buys.

    Raises:
        BudgetExhaustedError: not a single query.
    """
    simulated = _simulated_votes(request)
    choices = [_rated(choice, simulated) for choice in _choices(request)]
    # Every choice is ranked by the bound that costs nothing to compute, the best are priced.
    choices.sort(key=lambda choice: -_right_answers(choice, _queries_by_gdp(choice, request)))
    offers = [_offer(choice, request) for choice in choices[:_CANDIDATES]]
    offers = [offer for offer in offers if offer["queries"]]
    if not offers:
        one = _caps(choices[0], request, 1)
        raise BudgetExhaustedError(requested=gdp_at_caps(one), budget=request.epsilon)
    best = max(offers, key=lambda offer: float(offer["expected_right"]))
    return {
        "schema_version": 1,
        "parties": request.parties,
        "teachers": request.votes,
        "classes": request.classes,
        "budget": {"epsilon": request.epsilon, "delta": request.delta},
        "unit": request.unit,
        "neighbors": neighbors(request.unit, weight=request.unit_votes),  # type: ignore[arg-type]
        "view": 'public: labels and "no answer"s',
        "assumed_teacher_accuracy": request.teacher_accuracy,
        "best": best,
        "others": [offer for offer in offers if offer is not best],
    }


def render_plan(found: dict[str, Any]) -> str:
    """Write the result of `plan` for people: what to ask, what it costs, how it grows."""
    best, epsilon = found["best"], found["best"]["epsilon"]
    rule = best["mechanism"]
    lines = [
        f"{found['parties']} hospitals, {found['teachers']} votes a query, "
        f"{found['classes']} classes; budget epsilon {found['budget']['epsilon']:g} "
        f"at delta {found['budget']['delta']:g}",
        "",
        f"Ask {best['queries']:,} queries with",
        f"  --vote-threshold {rule['vote_threshold']:g} --sigma1 {rule['sigma1']:g} "
        f"--sigma2 {rule['sigma2']:g}",
        f"  --max-answers {rule['max_answers']} --max-refusals {rule['max_refusals']}",
        f"and expect {best['expected_answered']:.0f} answers, {best['expected_right']:.0f} of them "
        f"right, if teachers are right {found['assumed_teacher_accuracy']:.0%} of the time.",
        "",
        f"It costs epsilon {_up(epsilon['smallest'])} at most; unit {found['unit']};",
        f"view {found['view']};",
        *textwrap.wrap(f"method: {epsilon['method']}.", 80),
        *textwrap.wrap(f"neighbors: {found['neighbors']}", 80),
        *textwrap.wrap(
            f"`pate-fed simulate` keeps its budget by exact Gaussian composition so far: with it, "
            f"this choice affords {best['queries_by_gdp']:,} queries.",
            80,
        ),
        "",
        "exact Gaussian composition, epsilon over answers (never what the guarantee is):",
    ]
    largest = max(point["epsilon_gdp"] for point in best["epsilon_over_answers"])
    for point in best["epsilon_over_answers"]:
        bar = "#" * max(1, round(50 * point["epsilon_gdp"] / largest))
        lines.append(f"{point['answers']:8.0f} {bar} {_up(point['epsilon_gdp'])}")
    return "\n".join(lines)


def _up(epsilon: float) -> str:
    return f"{math.ceil(epsilon * 1e4) / 1e4:.4f}"


def _choices(request: PlanRequest) -> Iterator[Choice]:
    votes = request.votes
    for threshold in _given(request.vote_threshold, _THRESHOLDS, votes):
        for sigma1 in _given(request.sigma1, _SIGMA1S, votes):
            for sigma2 in _given(request.sigma2, _SIGMA2S, votes):
                yield Choice(threshold, sigma1, sigma2, 0.0, 0.0)


def _given(value: float | None, shares: tuple[float, ...], votes: int) -> tuple[float, ...]:
    return tuple(share * votes for share in shares) if value is None else (value,)


def _simulated_votes(request: PlanRequest) -> NDArray[np.int64]:
    """Make votes from public numbers: the right class first, mistakes spread over the others."""
    rng = np.random.default_rng(0)
    mean, spread = request.teacher_accuracy, 4.0
    right = rng.beta(spread * mean, spread * (1 - mean), size=SIMULATED_QUERIES)
    wrong = rng.dirichlet(np.ones(request.classes - 1), size=SIMULATED_QUERIES)
    chances = np.column_stack([right, (1 - right)[:, None] * wrong])
    return np.array([rng.multinomial(request.votes, row) for row in chances], dtype=np.int64)


def _rated(choice: Choice, simulated: NDArray[np.int64]) -> Choice:
    passes = ndtr((simulated.max(axis=1) - choice.vote_threshold) / choice.sigma1)
    rng = np.random.default_rng(1)
    noise = rng.normal(0, choice.sigma2, (SIMULATED_DRAWS, *simulated.shape))
    right = ((simulated + noise).argmax(axis=2) == 0).mean(axis=0)
    rate = float(passes.mean())
    return replace(
        choice,
        answer_rate=rate,
        accuracy=float((passes * right).sum() / max(passes.sum(), 1e-12)),
    )


def _caps(choice: Choice, request: PlanRequest, queries: int) -> RunCaps:
    """Caps of a run of so many queries: what is expected of it, and a margin."""
    spread = math.sqrt(queries * choice.answer_rate * (1 - choice.answer_rate))
    refusals = math.ceil(queries * (1 - choice.answer_rate) + _CAP_MARGIN * spread)
    return RunCaps(
        teachers=request.votes,
        classes=request.classes,
        vote_threshold=choice.vote_threshold,
        sigma1=choice.sigma1,
        sigma2=choice.sigma2,
        asks=queries,
        answers=queries,
        refusals=max(1, min(queries, refusals)),
        weight=request.unit_votes,
        delta=request.delta,
    )


def _queries_by_gdp(choice: Choice, request: PlanRequest) -> int:
    wanted = request.queries or MOST_QUERIES
    return most_queries(
        lambda queries: gdp_at_caps(_caps(choice, request, queries)),
        budget=request.epsilon,
        most=wanted,
    )


def _right_answers(choice: Choice, queries: int) -> float:
    return queries * choice.answer_rate * choice.accuracy


def _offer(choice: Choice, request: PlanRequest) -> dict[str, Any]:
    @lru_cache
    def costs(queries: int) -> FormalCosts:
        caps = _caps(choice, request, queries)
        return formal_costs(caps, votes_are_valid=request.votes_are_valid)

    # The smallest bound affords at least what exact Gaussian composition affords.
    least = _queries_by_gdp(choice, request)
    wanted = request.queries or min(MOST_QUERIES, max(8, 4 * least))
    queries = max(
        least,
        most_queries(
            lambda number: costs(number).smallest.epsilon, budget=request.epsilon, most=wanted
        ),
    )
    if not queries:
        return {"queries": 0, "expected_right": 0.0}
    caps, cost = _caps(choice, request, queries), costs(queries)
    return {
        "queries": queries,
        "queries_by_gdp": least,
        "expected_answered": queries * choice.answer_rate,
        "expected_right": _right_answers(choice, queries),
        "expected_accuracy": choice.accuracy,
        "mechanism": {
            "name": "confident",
            "vote_threshold": choice.vote_threshold,
            "sigma1": choice.sigma1,
            "sigma2": choice.sigma2,
            "max_answers": int(caps.answers),
            "max_refusals": int(caps.refusals),
        },
        "epsilon": {
            "formal_gdp": cost.gdp.epsilon,
            "formal_label": cost.label.epsilon,
            "formal_joint": None if cost.joint is None else cost.joint.epsilon,
            "smallest": cost.smallest.epsilon,
            "method": cost.smallest.method,
        },
        "epsilon_over_answers": _curve(choice, request, queries),
    }


def _curve(choice: Choice, request: PlanRequest, queries: int) -> list[dict[str, float]]:
    """Return what answers would have been charged by exact composition: how it grows."""
    steps = sorted({max(1, round(queries * share)) for share in np.linspace(0.1, 1.0, 10)})
    points = []
    for asked in steps:
        answers = asked * choice.answer_rate
        mu_squared = request.unit_votes**2 * (
            asked / choice.sigma1**2 + 2 * answers / choice.sigma2**2
        )
        epsilon = gdp_epsilon(math.sqrt(mu_squared), request.delta)
        points.append({"asked": asked, "answers": answers, "epsilon_gdp": epsilon})
    return points
