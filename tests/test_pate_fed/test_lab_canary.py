"""Canary audits: they never exceed a true claim, and refute a false one."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import beta

from pate_fed.accounting import RenyiAccountant
from pate_fed.accounting.gaussian_dp import gdp_epsilon
from pate_fed.errors import InvalidAnswersError, InvalidParameterError
from pate_fed.lab.canary import canary_audit, epsilon_lower_bound, releases_of
from pate_fed.lab.mechanisms import ConfidentGaussianMax, ImmutableMax
from pate_fed.mechanisms import GaussianMax, LaplaceMax, Mechanism, ThresholdMax, keyed_stream
from pate_fed.rule import Rule

QUERIES, DELTA = 4, 1e-3
SURE = 0.9999
"""20 seeds of four mechanisms are wrong together once in 125 times at most."""

GNMAX = GaussianMax(3.0)
CONFIDENT = ConfidentGaussianMax(Rule("confident", 11.0, 3.0, 3.0))
LNMAX = LaplaceMax(0.5)
THRESHOLD = ThresholdMax(3.0, vote_threshold=12.0)


def world(first: int, second: int, *, queries: int = QUERIES) -> NDArray[np.int64]:
    return np.tile([[first, second]], (queries, 1))


def claim_of(rule: Mechanism, *, queries: int = QUERIES, delta: float = DELTA) -> float:
    accountant = RenyiAccountant()
    accountant.compose(rule.worst_case_event(queries, queries, weight=1.0))
    return accountant.get_converted(delta).epsilon


def audited(
    rule: Mechanism,
    seed: int,
    *,
    trials: int = 20_000,
    queries: int = QUERIES,
    delta: float = DELTA,
    lead: int = 0,
    confidence: float = SURE,
) -> float:
    """The bound for a vote that turns a lead of `lead` + 1 for class 0 into `lead` - 1."""
    return canary_audit(
        releases_of(rule, keyed_stream(b"%d" % seed, tag="canary")),
        world(10 + lead // 2, 11 - lead // 2 - lead % 2, queries=queries),
        world(11 + lead // 2, 10 - lead // 2 - lead % 2, queries=queries),
        trials=trials,
        delta=delta,
        confidence=confidence,
    ).epsilon


def test_the_bound_is_that_of_clopper_and_pearson() -> None:
    found, alarms, trials = 900, 100, 1000
    low = beta.ppf(0.025, found, trials - found + 1)
    high = beta.ppf(0.975, alarms + 1, trials - alarms)
    expected = math.log((low - 1e-5) / high)
    assert epsilon_lower_bound(found, alarms, trials, delta=1e-5) == pytest.approx(expected)
    # The opposite event, "no canary", is the rarer one here.
    rare = epsilon_lower_bound(1000, 900, 1000, delta=1e-5)
    assert rare > math.log(0.08 / 0.004)


@pytest.mark.parametrize(
    ("found", "alarms"), [(500, 500), (0, 1000), (1000, 1000), (0, 0), (520, 500)]
)
def test_worlds_that_look_alike_give_no_bound(found: int, alarms: int) -> None:
    bound = epsilon_lower_bound(found, alarms, 1000, delta=1e-5)
    assert bound == 0.0 or (found, alarms) == (0, 1000)


@pytest.mark.slow
@pytest.mark.parametrize("rule", [GNMAX, CONFIDENT, LNMAX, THRESHOLD], ids=lambda rule: rule.name)
def test_no_audit_exceeds_a_true_claim(rule: Mechanism) -> None:
    claim = claim_of(rule)
    found = [audited(rule, seed, trials=4_000) for seed in range(20)]
    assert 0 < max(found) <= claim


def test_a_strong_audit_reaches_half_of_the_claim() -> None:
    """LNMax beside a clear lead: the rare label's ratio is nearly that of pure privacy."""
    found = audited(LNMAX, 5, queries=1, lead=4, trials=100_000, delta=1e-9, confidence=0.95)
    assert 0.5 < found / claim_of(LNMAX, queries=1, delta=1e-9) <= 1


def test_noise_30_percent_too_small_is_caught() -> None:
    """At a large delta one answer at a tie tells as much as the claim allows."""
    # One answer at noise sigma is a Gaussian mechanism of mu = sqrt(2) / sigma: an exact claim.
    claim = gdp_epsilon(math.sqrt(2), 0.3)
    assert audited(GaussianMax(1.0), 6, queries=1, delta=0.3) <= claim
    assert audited(GaussianMax(0.7), 6, queries=1, delta=0.3) > claim


def test_an_argmax_that_noise_cannot_change_refutes_the_claim_made_for_it() -> None:
    """NZC claims the price of LNMax at the same noise; the bound grows with the trials."""
    claim = claim_of(LNMAX)
    few, many = (
        audited(ImmutableMax(0.5), 7, trials=trials, confidence=0.95) for trials in (2_000, 40_000)
    )
    assert claim < few < many


@pytest.mark.parametrize(
    "given",
    [
        pytest.param({"trials": 99}, id="too few trials"),
        pytest.param({"delta": 0.0}, id="delta 0"),
        pytest.param({"confidence": 1.0}, id="certainty"),
    ],
)
def test_numbers_out_of_range_are_refused(given: dict[str, float]) -> None:
    with pytest.raises(InvalidParameterError):
        audited(GNMAX, 8, **{"trials": 100, **given})  # type: ignore[arg-type]


def test_other_worlds_and_outcomes_are_refused() -> None:
    with pytest.raises(InvalidParameterError):
        canary_audit(len, world(1, 2), world(1, 2, queries=3), trials=100, delta=0.1)  # type: ignore[arg-type]
    for wrong in (np.zeros(3, dtype=np.int64), np.full(400, 2)):
        with pytest.raises(InvalidAnswersError):
            canary_audit(
                lambda _, said=wrong: said, world(1, 2), world(2, 1), trials=100, delta=0.1
            )
    with pytest.raises(InvalidParameterError):
        epsilon_lower_bound(3, 1, 2, delta=0.1)
