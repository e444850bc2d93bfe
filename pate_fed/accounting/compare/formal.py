"""Formal rows: bounds for every possible set of records, from public parameters and caps.

A row without a number gives the reason.
"""

from __future__ import annotations

import math
from typing import Final

from pate_fed.accounting import (
    ConfidentGaussianMaxEvent,
    GaussianMaxEvent,
    ImmutableMaxEvent,
    LaplaceMaxEvent,
    StableGaussianMaxEvent,
    StableLaplaceMaxEvent,
    event_additive_delta,
    event_approximate_rdp,
    gdp_epsilon,
    threshold_bit_rdp,
)
from pate_fed.accounting.compare.case import Details, MethodCost, VoteCase, no_finite_epsilon
from pate_fed.accounting.conversion import convert_costly_curve, convert_curve
from pate_fed.accounting.formal import formal_costs, gdp_cost, label_cost
from pate_fed.accounting.label_bounds import LABEL_METHOD
from pate_fed.accounting.ranges import probability
from pate_fed.accounting.statement import CAPS_METHOD, FormalCost
from pate_fed.errors import InvalidParameterError

FORMAL_METHODS: Final = ("formal_gdp", "formal_label", "formal_joint")
"""Rows of every mechanism; "formal_renyi" is one more where noise is not in the counts, or not
Gaussian."""

RENYI_METHOD: Final = "RDP of the mechanism at the caps, for all votes, converted by CKS"
_PURE_METHOD: Final = "pure differential privacy at the caps: each answer's epsilon, added up"
_OWN_DELTAS: Final = "; for tests of stability, whose own deltas are in delta"
_GAUSSIAN_ONLY: Final = "no bound: it is proved for Gaussian noise; formal_renyi holds"
_NO_REFUSAL: Final = "no bound: the mechanism never refuses, so there is no refusal to price"


def formal_rows(case: VoteCase) -> dict[str, MethodCost]:
    """Price the caps of a case.

    Returns:
        A row for each of `FORMAL_METHODS`, and "formal_renyi" for Laplace noise and for tests of
        stability.

    Raises:
        InvalidParameterError: a parameter is out of its range.
    """
    match case.event:
        case ConfidentGaussianMaxEvent() | GaussianMaxEvent():
            return _gaussian(case) if case.offsets is None else _interactive(case)
        case StableGaussianMaxEvent() | StableLaplaceMaxEvent() as test:
            return _stable(case, test)
        case LaplaceMaxEvent(gamma=gamma):
            return _laplace(case, gamma)
        case ImmutableMaxEvent():
            rows = dict.fromkeys(FORMAL_METHODS, no_finite_epsilon())
            return {**rows, "formal_joint": no_finite_epsilon(_caps_of_joint(case))}
    why = MethodCost(None, _GAUSSIAN_ONLY, not case.caps.real)
    return {**dict.fromkeys(FORMAL_METHODS, why), "formal_renyi": _renyi(case, case.caps.asks)}


def _gaussian(case: VoteCase) -> dict[str, MethodCost]:
    costs, shown = formal_costs(case.caps, votes_are_valid=True), not case.caps.real
    joint, method = (None, _NO_REFUSAL) if costs.joint is None else _shown(costs.joint)
    return {
        "formal_gdp": MethodCost(costs.gdp.epsilon, costs.gdp.method, shown),
        "formal_label": MethodCost(costs.label.epsilon, costs.label.method, shown),
        "formal_joint": MethodCost(joint, method, shown, _caps_of_joint(case)),
    }


def _shown(cost: FormalCost) -> tuple[float | None, str]:
    return (cost.epsilon if math.isfinite(cost.epsilon) else None), cost.method


def _interactive(case: VoteCase) -> dict[str, MethodCost]:
    shown = not case.caps.real
    gdp, label = gdp_cost(case.caps), label_cost(case.caps)
    why = "no bound: the joint price is proved for a check of the votes alone"
    return {
        "formal_gdp": MethodCost(gdp.epsilon, gdp.method, shown),
        "formal_label": MethodCost(label.epsilon, label.method, shown),
        "formal_joint": MethodCost(None, why, shown, _caps_of_joint(case)),
    }


def _laplace(case: VoteCase, gamma: float) -> dict[str, MethodCost]:
    caps, shown = case.caps, not case.caps.real
    pure = caps.answers * 2 * gamma * caps.weight
    renyi = _renyi(case, caps.answers)
    # Both hold for all votes, so the smaller one does.
    if renyi.epsilon is None or pure < renyi.epsilon:
        renyi = MethodCost(pure, _PURE_METHOD, shown, {"order": None, "additive_delta": 0.0})
    return {
        "formal_gdp": MethodCost(None, _GAUSSIAN_ONLY, shown),
        "formal_label": MethodCost(None, _GAUSSIAN_ONLY, shown),
        "formal_joint": MethodCost(None, _NO_REFUSAL, shown, _caps_of_joint(case)),
        "formal_renyi": renyi,
    }


def _stable(
    case: VoteCase, test: StableGaussianMaxEvent | StableLaplaceMaxEvent
) -> dict[str, MethodCost]:
    caps, shown = case.caps, not case.caps.real
    left, additive = _left_of_delta(case, caps.asks)
    details = {"additive_delta": additive}
    gdp = label = MethodCost(None, _GAUSSIAN_ONLY, shown, details)
    if isinstance(test, StableGaussianMaxEvent):
        epsilon = gdp_epsilon(math.sqrt(caps.asks) / test.sigma, left)
        gdp = MethodCost(epsilon, CAPS_METHOD + _OWN_DELTAS, shown, details)
        bits = convert_costly_curve(
            # The release is a function of one bit of the noisy distance, in units.
            lambda orders: caps.asks * threshold_bit_rdp(orders, sigma1=test.sigma),
            delta=left,
            method="cks",
        )
        label = MethodCost(bits.epsilon, LABEL_METHOD + _OWN_DELTAS, shown, details)
    why = "no bound: the joint price is proved for a check of the top count"
    return {
        "formal_gdp": gdp,
        "formal_label": label,
        "formal_joint": MethodCost(None, why, shown, _caps_of_joint(case)),
        "formal_renyi": _renyi(case, caps.asks),
    }


def _renyi(case: VoteCase, times: float) -> MethodCost:
    """Price this many releases of one query by the mechanism's own curve."""
    left, additive = _left_of_delta(case, times)
    shown = not case.caps.real
    details = {"order": None, "additive_delta": additive}
    if not times:
        return MethodCost(0.0, RENYI_METHOD, shown, details)
    best = convert_curve(
        lambda orders: times * event_approximate_rdp(case.event, orders), delta=left, method="cks"
    )
    method = RENYI_METHOD + (_OWN_DELTAS if additive else "")
    return MethodCost(best.epsilon, method, shown, {**details, "order": best.order})


def _left_of_delta(case: VoteCase, times: float) -> tuple[float, float]:
    """Return the part of delta left for the conversion, and the part that the releases take."""
    probability("delta", case.caps.delta)
    additive = times * event_additive_delta(case.event)
    if additive >= case.caps.delta:
        raise InvalidParameterError(
            f"delta must be above the tests' own {additive:g}", case.caps.delta
        )
    return case.caps.delta - additive, additive


def _caps_of_joint(case: VoteCase) -> Details:
    return {"max_refusals": case.caps.refusals, "max_answers": case.caps.answers}
