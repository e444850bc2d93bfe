"""All formal bounds of a run at its caps, side by side, and the smallest that holds.

Formal means: for every possible set of records, from public parameters that were fixed before
the run. Each bound is a constant, so reporting the smallest of those that hold is sound.

    gdp     exact Gaussian composition: for observers of labels, and even of noisy counts
    label   label-level: for observers of labels and "no answer"s only, priced by outcome
    joint   joint price of labels and "no answer"s: the same, and only where every vote row is valid
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, TypedDict

from pate_fed.accounting.any_votes import AnyVotesSetting
from pate_fed.accounting.events import ConfidentGaussianMaxEvent, GaussianMaxEvent
from pate_fed.accounting.gaussian_dp import LARGEST_MU, gdp_epsilon, gdp_mu_squared
from pate_fed.accounting.joint_price import price, price_of_any_votes
from pate_fed.accounting.label_bounds import LABEL_METHOD, label_level_epsilon
from pate_fed.accounting.ranges import positive
from pate_fed.accounting.statement import CAPS_METHOD, FormalCost
from pate_fed.accounting.vote_pairs import JointSetting
from pate_fed.errors import InvalidParameterError

JOINT_METHOD: Final = (
    'joint price of labels and "no answer"s at the caps, converted by CKS; '
    "holds if all votes are valid"
)


@dataclass(frozen=True, slots=True)
class RunCaps:
    """The public facts of a run that its formal cost follows from.

    Attributes:
        teachers: Votes per query in all.
        classes: Number of classes, at least 2.
        vote_threshold: Noisy top count from which a query is answered, in votes; None for GNMax.
        sigma1: Noise of that check, in votes; None for GNMax.
        sigma2: Noise of each count, in votes.
        asks: Most queries looked at.
        answers: Most labels.
        refusals: Most "no answer"s.
        weight: Votes that one neighboring change can move.
        delta: In (0, 1).
        real: Allow caps that are not whole: expected numbers, for reproducing papers; the result is
            then an analysis, not a guarantee.
    """

    teachers: int
    classes: int
    vote_threshold: float | None
    sigma1: float | None
    sigma2: float
    asks: float
    answers: float
    refusals: float
    weight: int
    delta: float
    real: bool = False

    def __post_init__(self) -> None:
        if (self.vote_threshold is None) != (self.sigma1 is None):
            raise InvalidParameterError("vote_threshold and sigma1 must come together", "one")
        for name in ("asks", "answers", "refusals"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise InvalidParameterError(f"{name} must be finite and at least 0", value)
            if not self.real and value != math.floor(value):
                raise InvalidParameterError(f"{name} must be whole", value)
        if self.asks < self.answers:
            raise InvalidParameterError(f"answers must be at most {self.asks} asks", self.answers)

    def number(self, cap: float) -> float:
        """Return a cap as the whole number that it is, unless real ones are allowed."""
        return cap if self.real else int(cap)


@dataclass(frozen=True, slots=True)
class FormalCosts:
    """The bounds of a run, side by side.

    Attributes:
        gdp: Exact Gaussian composition.
        label: Label level.
        joint: Joint price; None where a run cannot refuse, or answer; infinite where it is not
            known for these parameters.
        votes_are_valid: Whether the run's parties are trusted to send valid vote rows.
    """

    gdp: FormalCost
    label: FormalCost
    joint: FormalCost | None
    votes_are_valid: bool

    @property
    def smallest(self) -> FormalCost:
        """The smallest bound that holds: the joint one only where votes are trusted valid."""
        holding = [self.gdp, self.label]
        if self.joint is not None and self.votes_are_valid:
            holding.append(self.joint)
        return min(holding, key=lambda cost: cost.epsilon)


def formal_costs(caps: RunCaps, *, votes_are_valid: bool) -> FormalCosts:
    """Compute every formal bound of a run at its caps.

    Args:
        caps: The run.
        votes_are_valid: Whether its parties are trusted to send valid vote rows: counts of at
            least 0 that sum to at most `teachers`.

    Raises:
        InvalidParameterError: an argument is out of its range.
    """
    return FormalCosts(
        gdp=gdp_cost(caps),
        label=label_cost(caps),
        joint=joint_cost(caps),
        votes_are_valid=votes_are_valid,
    )


def gdp_cost(caps: RunCaps) -> FormalCost:
    """Return the cost by exact Gaussian composition."""
    return FormalCost(gdp_at_caps(caps), CAPS_METHOD)


def label_cost(caps: RunCaps) -> FormalCost:
    """Return the cost for an observer of labels and "no answer"s only, for any votes."""
    if caps.sigma1 is not None and caps.refusals > 0 and caps.answers > 0:
        by_outcome = price_of_any_votes(
            AnyVotesSetting(caps.classes, caps.sigma1, caps.sigma2, caps.weight),
            max_refusals=caps.number(caps.refusals),
            max_answers=caps.number(caps.answers),
            max_asks=caps.number(caps.asks),
            delta=caps.delta,
            real_caps=caps.real,
        )
        return FormalCost(by_outcome.epsilon, LABEL_METHOD, order=by_outcome.order)
    found = label_level_epsilon(
        caps.number(caps.asks),
        caps.number(caps.answers),
        sigma1=caps.sigma1,
        sigma2=caps.sigma2,
        delta=caps.delta,
        weight=float(caps.weight),
        real_counts=caps.real,
    )
    return FormalCost(found.epsilon, LABEL_METHOD, order=found.order)


def joint_cost(caps: RunCaps) -> FormalCost | None:
    """Return the cost where every vote row is valid; None where a run cannot refuse, or answer.

    Infinite beyond the range of the joint price; the method then names the limit.
    """
    if caps.sigma1 is None or caps.vote_threshold is None:
        return None
    if caps.refusals <= 0 or caps.answers <= 0:
        return None
    facts: _Facts = {
        "teachers": caps.teachers,
        "classes": caps.classes,
        "vote_threshold": caps.vote_threshold,
        "sigma1": caps.sigma1,
        "sigma2": caps.sigma2,
        "weight": caps.weight,
    }
    try:
        JointSetting(**facts)
    except InvalidParameterError as beyond:
        return FormalCost(math.inf, f"not computed: {beyond.must}, got {beyond.got}")
    found = price(
        **facts,
        max_refusals=caps.number(caps.refusals),
        max_answers=caps.number(caps.answers),
        max_asks=caps.number(caps.asks),
        delta=caps.delta,
        real_caps=caps.real,
    )
    return FormalCost(found.epsilon, JOINT_METHOD, order=found.order)


class _Facts(TypedDict):
    teachers: int
    classes: int
    vote_threshold: float
    sigma1: float
    sigma2: float
    weight: int


def gdp_at_caps(caps: RunCaps) -> float:
    """Return epsilon by exact Gaussian composition; infinite where there is next to no noise."""
    mu = math.sqrt(_mu_squared(caps))
    return gdp_epsilon(mu, caps.delta) if mu <= LARGEST_MU else math.inf


def _mu_squared(caps: RunCaps) -> float:
    if not caps.real:
        weight = float(caps.weight)
        if caps.sigma1 is None:
            event = GaussianMaxEvent(int(caps.answers), caps.sigma2, weight)
            return gdp_mu_squared(event)
        return gdp_mu_squared(
            ConfidentGaussianMaxEvent(
                int(caps.asks), int(caps.answers), caps.sigma1, caps.sigma2, weight
            )
        )
    # Expected numbers are not whole: the same formula, for analysis only.
    ratios = [caps.weight / positive("sigma2", caps.sigma2)] * 2
    counts = [caps.answers, caps.answers]
    if caps.sigma1 is not None:
        ratios.append(caps.weight / positive("sigma1", caps.sigma1))
        counts.append(caps.asks)
    # Products, not powers, which raise where they overflow.
    return math.fsum(
        count * (ratio * ratio) for count, ratio in zip(counts, ratios, strict=True) if count
    )
