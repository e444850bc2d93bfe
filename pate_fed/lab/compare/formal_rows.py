"""Formal rows: bounds for every possible set of records, from public parameters and caps.

A row without a number gives the reason.
"""

from __future__ import annotations

import math
from dataclasses import replace
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
from pate_fed.accounting.composition import can_be_composed, labels_epsilon
from pate_fed.accounting.conversion import convert_costly_curve, convert_curve
from pate_fed.accounting.costs import COMPOSED_METHOD, GDP_METHOD
from pate_fed.accounting.gaussian_dp import LARGEST_MU, gdp_mu_squared
from pate_fed.accounting.label_bounds import LABEL_METHOD, label_level_epsilon
from pate_fed.accounting.ranges import probability
from pate_fed.errors import InvalidParameterError
from pate_fed.lab.compare.case import Details, MethodCost, VoteCase, no_finite_epsilon

FORMAL_METHODS: Final = ("formal_gdp", "formal_label", "formal_composed")
"""Rows of every mechanism; "formal_renyi" is one more where noise is not in the counts, or not
Gaussian."""

RENYI_METHOD: Final = "RDP of the mechanism at the caps, for all votes, converted by CKS"
_PURE_METHOD: Final = "pure differential privacy at the caps: each answer's epsilon, added up"
_OWN_DELTAS: Final = "; for tests of stability, whose own deltas are in delta"
_GAUSSIAN_ONLY: Final = "no bound: it is proved for Gaussian noise; formal_renyi holds"
_ONE_NOISE_ONLY: Final = "no bound: it is proved for Gaussian noise in every count, and none else"
_NOT_EXPECTED: Final = "no bound: whole queries are composed, not expected numbers of them"
_NOT_COMPOSED: Final = "no bound: it is not known for so little noise, or for so many queries"


def formal_rows(case: VoteCase) -> dict[str, MethodCost]:
    """Price the caps of a case.

    Returns:
        A row for each of `FORMAL_METHODS`, and "formal_renyi" for Laplace noise and for tests of
        stability.
    """
    match case.event:
        case ConfidentGaussianMaxEvent() | GaussianMaxEvent() as event:
            return _gaussian(case, event)
        case StableGaussianMaxEvent() | StableLaplaceMaxEvent() as test:
            return _stable(case, test)
        case LaplaceMaxEvent(gamma=gamma):
            return _laplace(case, gamma)
        case ImmutableMaxEvent():
            return dict.fromkeys(FORMAL_METHODS, no_finite_epsilon())
    why = MethodCost(None, _GAUSSIAN_ONLY, releasable=not case.is_expected)
    return {**dict.fromkeys(FORMAL_METHODS, why), "formal_renyi": _renyi(case, case.asks)}


def _gaussian(
    case: VoteCase, event: GaussianMaxEvent | ConfidentGaussianMaxEvent
) -> dict[str, MethodCost]:
    # Products, as expected numbers of checks and labels are not whole.
    if isinstance(event, GaussianMaxEvent):
        labels = case.asks
        mu_squared = labels * gdp_mu_squared(event)
    else:
        labels = case.answers
        label = GaussianMaxEvent(1, event.sigma2, event.weight)
        check = replace(event, answers=0)
        mu_squared = case.asks * gdp_mu_squared(check) + labels * gdp_mu_squared(label)
    mu, shown = math.sqrt(mu_squared), not case.is_expected
    by_gdp = gdp_epsilon(mu, case.delta) if mu <= LARGEST_MU else None
    by_label = label_level_epsilon(event, delta=case.delta, expected=(case.asks, labels))
    return {
        "formal_gdp": MethodCost(by_gdp, GDP_METHOD, shown),
        "formal_label": MethodCost(by_label.epsilon, LABEL_METHOD, shown),
        "formal_composed": _composed(case, event),
    }


def _composed(case: VoteCase, event: GaussianMaxEvent | ConfidentGaussianMaxEvent) -> MethodCost:
    options = case.classes + (case.vote_threshold is not None)
    shown = not case.is_expected
    if not isinstance(event, GaussianMaxEvent):
        return MethodCost(None, _ONE_NOISE_ONLY, shown)
    if case.is_expected:
        return MethodCost(None, _NOT_EXPECTED, shown)
    asks = int(case.asks)
    if not can_be_composed(options, event.sigma, asks=asks, delta=case.delta, weight=event.weight):
        return MethodCost(None, _NOT_COMPOSED, shown)
    epsilon = labels_epsilon(options, event.sigma, asks=asks, delta=case.delta, weight=event.weight)
    return MethodCost(epsilon if math.isfinite(epsilon) else None, COMPOSED_METHOD, shown)


def _laplace(case: VoteCase, gamma: float) -> dict[str, MethodCost]:
    shown = not case.is_expected
    pure = case.asks * 2 * gamma * case.weight
    renyi = _renyi(case, case.asks)
    # Both hold for all votes, so the smaller one does.
    if renyi.epsilon is None or pure < renyi.epsilon:
        renyi = MethodCost(pure, _PURE_METHOD, shown, {"order": None, "additive_delta": 0.0})
    rows = dict.fromkeys(FORMAL_METHODS, MethodCost(None, _GAUSSIAN_ONLY, shown))
    return {**rows, "formal_renyi": renyi}


def _stable(
    case: VoteCase, test: StableGaussianMaxEvent | StableLaplaceMaxEvent
) -> dict[str, MethodCost]:
    shown = not case.is_expected
    left, additive = _left_of_delta(case, case.asks)
    details: Details = {"additive_delta": additive}
    gdp = label = MethodCost(None, _GAUSSIAN_ONLY, shown, details)
    if isinstance(test, StableGaussianMaxEvent):
        epsilon = gdp_epsilon(math.sqrt(case.asks) / test.sigma, left)
        gdp = MethodCost(epsilon, GDP_METHOD + _OWN_DELTAS, shown, details)
        bits = convert_costly_curve(
            # The release is a function of one bit of the noisy distance, in units.
            lambda orders: case.asks * threshold_bit_rdp(orders, sigma=test.sigma),
            delta=left,
            method="cks",
        )
        label = MethodCost(bits.epsilon, LABEL_METHOD + _OWN_DELTAS, shown, details)
    return {
        "formal_gdp": gdp,
        "formal_label": label,
        "formal_composed": MethodCost(None, _ONE_NOISE_ONLY, shown),
        "formal_renyi": _renyi(case, case.asks),
    }


def _renyi(case: VoteCase, times: float) -> MethodCost:
    """Price this many releases of one query by the mechanism's own curve."""
    left, additive = _left_of_delta(case, times)
    shown = not case.is_expected
    details: Details = {"order": None, "additive_delta": additive}
    if not times:
        return MethodCost(0.0, RENYI_METHOD, shown, details)
    best = convert_curve(
        lambda orders: times * event_approximate_rdp(case.event, orders), delta=left, method="cks"
    )
    method = RENYI_METHOD + (_OWN_DELTAS if additive else "")
    return MethodCost(best.epsilon, method, shown, {**details, "order": best.order})


def _left_of_delta(case: VoteCase, times: float) -> tuple[float, float]:
    """Return the part of delta left for the conversion, and the part that the releases take."""
    probability("delta", case.delta)
    additive = times * event_additive_delta(case.event)
    if additive >= case.delta:
        raise InvalidParameterError(f"delta must be above the tests' own {additive:g}", case.delta)
    return case.delta - additive, additive
