"""Exact cost of Gaussian noise: Gaussian differential privacy (GDP).

A release that is a function of x + N(0, sigma^2 I), where a neighboring change moves x by at most s
in L2 norm, is mu-GDP with mu = s / sigma. Any number of such releases, chosen adaptively, compose
exactly: their mu^2 add. The rest computes

    delta(epsilon) = Phi(-epsilon/mu + mu/2) - e^epsilon Phi(-epsilon/mu - mu/2)

without the overflow and cancellation of that form. With the Mills ratio
R(x) = (1 - Phi(x)) / phi(x) it is phi(x) (R(x) - R(x + mu)), x = epsilon/mu - mu/2, since
e^epsilon phi(x + mu) = phi(x).

All results are rounded toward more privacy: delta and epsilon up, mu down, by more than the
error of double arithmetic (checked against 60-digit arithmetic in the tests).

Source:
    Dong, Roth, Su 2022, Gaussian differential privacy, Corollary 2.13 and 3.3.
    https://arxiv.org/abs/1905.02383. Balle, Wang 2018. https://arxiv.org/abs/1805.06530
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache, singledispatch
from typing import Final

import scipy

from pate_fed.accounting.events import (
    CappedGaussianMaxEvent,
    ConfidentGaussianMaxEvent,
    GaussianMaxEvent,
    PrivacyEvent,
)
from pate_fed.accounting.ranges import probability
from pate_fed.errors import InvalidParameterError, UnsupportedEventError

_ULP = 2.0**-52
LARGEST_MU: Final = 1e6
"""Largest mu in computations: far beyond any privacy."""


@singledispatch
def gdp_mu_squared(event: PrivacyEvent) -> float:
    """Return mu^2 of an event; the mu^2 of several events add.

    One neighboring change moves at most k votes of a query (k = the event's weight). The counts
    move by at most sqrt(2) k in L2 norm, their maximum by at most k:

        mu^2 = asks k^2 / sigma1^2 + 2 answers k^2 / sigma2^2.

    Where records vote, a unit casts k votes on at most `asks` of all queries, and so did the unit
    that it replaces: mu^2 = 2 asks k^2 / sigma^2, for any number of queries.

    Source:
        docs/explanation/records-that-vote.md;
        Papernot et al. 2018, Propositions 8 and 10 as Gaussian mechanisms.
        https://arxiv.org/abs/1802.08908
    """
    raise UnsupportedEventError("an event must be made of Gaussian noise", type(event).__name__)


@gdp_mu_squared.register
def _(event: GaussianMaxEvent) -> float:
    return 2 * _moved(event.asks, event.weight / event.sigma)


@gdp_mu_squared.register
def _(event: CappedGaussianMaxEvent) -> float:
    return 2 * _moved(event.asks, event.weight / event.sigma)


@gdp_mu_squared.register
def _(event: ConfidentGaussianMaxEvent) -> float:
    checks = _moved(event.asks, event.weight / event.sigma1)
    return checks + 2 * _moved(event.answers, event.weight / event.sigma2)


def gdp_log_delta(mu: float, epsilon: float) -> float:
    """Return an upper bound on log delta at `epsilon` of a mu-GDP release.

    It exceeds the exact value by less than 1e-14 (1 + epsilon/mu^2 + 1/mu + log delta + epsilon
    + mu^2): far less than epsilon is ever shown with, except below mu = 1e-6.
    """
    if not 0 <= mu <= LARGEST_MU:
        raise InvalidParameterError(f"mu must be between 0 and {LARGEST_MU:g}", mu)
    if not 0 <= epsilon < math.inf:
        raise InvalidParameterError("epsilon must be finite and at least 0", epsilon)
    if mu == 0 or epsilon / mu > 1e150:  # the square of more would overflow
        return -math.inf
    x = epsilon / mu - mu / 2
    exponent_error = 4 * _ULP * (abs(x) + 1) * (epsilon / mu + mu / 2 + 1)
    if x > -5:
        near, far = _mills_ratio(x), _mills_ratio(x + mu)
        difference = near - far + 16 * _ULP * near
        log_phi = -x * x / 2 - math.log(2 * math.pi) / 2
        return min(0.0, log_phi + math.log(difference) + exponent_error)
    # Here Phi(-x) is almost 1 and the subtracted term below 1e-6: nothing cancels.
    subtracted = math.exp(-x * x / 2 - exponent_error) * _mills_ratio(x + mu)
    share = subtracted / math.sqrt(2 * math.pi) * (1 - 16 * _ULP)
    return min(0.0, math.log1p(-share - math.exp(scipy.special.log_ndtr(x))) + 8 * _ULP)


def gdp_epsilon(mu: float, delta: float) -> float:
    """Return the smallest epsilon at which a mu-GDP release has at most this delta, rounded up."""
    from scipy.optimize import brentq  # noqa: PLC0415 - every command would wait for it

    log_delta = math.log(probability("delta", delta))
    if gdp_log_delta(mu, 0.0) <= log_delta:
        return 0.0
    # Phi(-x) <= e^(-x^2/2) for x >= 0: at x = sqrt(2 ln(1/delta)) delta is certainly reached.
    enough = mu * mu / 2 + mu * math.sqrt(-2 * log_delta) + 1e-300
    root = brentq(
        lambda epsilon: gdp_log_delta(mu, epsilon) - log_delta,
        0.0,
        2 * enough,
        xtol=1e-300,
        rtol=4 * _ULP,
    )
    return _step_until(lambda epsilon: gdp_log_delta(mu, epsilon) <= log_delta, root, upward=True)


@lru_cache(maxsize=256)
def gdp_mu(epsilon: float, delta: float) -> float:
    """Return the largest mu, at most 1e6, of an (epsilon, delta)-private release, rounded down."""
    from scipy.optimize import brentq  # noqa: PLC0415 - every command would wait for it

    log_delta = math.log(probability("delta", delta))
    if not gdp_log_delta(LARGEST_MU, epsilon) > log_delta:
        raise InvalidParameterError("epsilon must be reached by a mu of at most 1e6", epsilon)
    root = brentq(
        lambda mu: max(gdp_log_delta(mu, epsilon), 4 * log_delta) - log_delta,
        0.0,
        LARGEST_MU,
        xtol=1e-300,
        rtol=4 * _ULP,
    )
    return _step_until(lambda mu: gdp_log_delta(mu, epsilon) <= log_delta, root, upward=False)


def _moved(releases: int, ratio: float) -> float:
    """Return releases times ratio^2, 0 for none and infinite where it overflows."""
    return releases * (ratio * ratio) if releases else 0.0


def _mills_ratio(x: float) -> float:
    """Return (1 - Phi(x)) / phi(x), which neither under- nor overflows for x > -37."""
    return math.sqrt(math.pi / 2) * float(scipy.special.erfcx(x / math.sqrt(2)))


def _step_until(holds: Callable[[float], bool], start: float, *, upward: bool) -> float:
    """Return the first of ever longer steps away from `start` at which `holds` is true."""
    value, step = start, _ULP
    while not holds(value):
        value = start * (1 + step if upward else 1 - step)
        step *= 2
    return value
