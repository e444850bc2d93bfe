"""The distance of the computer's noise from the ideal one, and its limit."""

from __future__ import annotations

import math

from pate_fed.charges import noise_of
from pate_fed.errors import InvalidSettingError
from pate_fed.mechanisms.sampling import laplace_variation_bound, total_variation_bound
from pate_fed.terms import RunTerms


def delta_slack(terms: RunTerms, *, epsilon: float) -> float | None:
    """Bound the delta that the computer's noise, almost the ideal one, could add.

    Returns:
        (1 + e^epsilon) times the total variation distance of all draws together; None where
        nothing is protected.
    """
    if not terms.spec.is_private:
        return None
    rule, asks = terms.rule, terms.caps.most.asks
    counts = asks * terms.classes
    if rule.opens_noisy:
        noise = noise_of(terms)
        drawn = counts * noise.parties * noise.variation
        return (1 + math.exp(min(epsilon, 700.0))) * drawn
    drawn = 0.0
    if rule.sigma2 is not None:
        drawn += counts * _variation(terms, rule.sigma2)
    if rule.sigma1 is not None:
        drawn += asks * _variation(terms, rule.sigma1)
    return (1 + math.exp(min(epsilon, 700.0))) * drawn


def require_fine_noise(terms: RunTerms) -> None:
    """Refuse a run whose noise may differ from the ideal one with a chance of delta or more.

    The possible addition to delta is larger by e^epsilon: a warning, as delta is not its own.
    """
    slack = delta_slack(terms, epsilon=0.0)
    if slack is not None and slack >= terms.delta:
        raise InvalidSettingError(
            f"--delta must be above the slack of the computer's noise, {slack:.1e}",
            terms.delta,
        )


def _variation(terms: RunTerms, sigma: float) -> float:
    if terms.spec.laplace:
        return laplace_variation_bound(math.sqrt(2) / sigma)
    return total_variation_bound(sigma)
