"""GNMax and Confident-GNMax: their law by quadrature, caps, ties, fresh noise, price."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import chi2

from pate_fed.accounting.events import ConfidentGaussianMaxEvent, GaussianMaxEvent
from pate_fed.accounting.gaussian_dp import gdp_mu_squared
from pate_fed.errors import InvalidParameterError
from pate_fed.lab.mechanisms.confident_max import ConfidentGaussianMax
from pate_fed.mechanisms.gaussian_max import GaussianMax
from pate_fed.mechanisms.sampling import keyed_stream
from pate_fed.releases import ABSTAIN, Outcome
from pate_fed.rule import Rule
from tests.support.exact_argmax import argmax_log_law, confident_law
from tests.support.noise_sources import CountingSource, scripted
from tests.test_pate_fed.test_mechanisms_contract import released

GNMAX = GaussianMax(sigma=2.0)
CONFIDENT = ConfidentGaussianMax(Rule("confident", 4.0, 1.5, 2.0))


def law_fits(observed: NDArray[np.int64], chances: NDArray[np.float64]) -> bool:
    """Chi-squared test with a false-alarm rate of 1e-6."""
    expected = chances * observed.sum()
    assert expected.min() > 20
    statistic = ((observed - expected) ** 2 / expected).sum()
    return bool(statistic <= chi2.isf(1e-6, len(chances) - 1))


@pytest.mark.parametrize(
    "counts",
    [
        pytest.param([3, 2], id="two classes"),
        pytest.param([2, 2, 2], id="tie"),
        pytest.param([5, 1, 0], id="majority"),
        pytest.param([0, 3, 1, 2], id="four classes"),
    ],
)
def test_outcomes_have_the_chances_that_quadrature_gives(counts: list[int]) -> None:
    rows = np.tile(np.array(counts), (40_000, 1))
    source = keyed_stream(b"law", tag=str(counts))
    labels = released(GNMAX, rows, source).labels
    seen = np.bincount(labels, minlength=len(counts))
    assert law_fits(seen, np.exp(argmax_log_law(np.array(counts), 2.0)))

    outcome = released(CONFIDENT, rows, source)
    seen = np.bincount(
        np.where(outcome.labels == ABSTAIN, len(counts), outcome.labels), minlength=len(counts) + 1
    )
    chances = confident_law(np.array(counts), vote_threshold=4.0, sigma1=1.5, sigma2=2.0)
    assert law_fits(seen, chances)
    weak = confident_law(np.array(counts), vote_threshold=4.0, sigma1=1.5 * 0.7, sigma2=1.4)
    assert not law_fits(seen, weak)


def test_check_and_label_use_fresh_noise() -> None:
    """The label does not know by how much the check was passed."""
    rows = np.tile(np.array([3, 3]), (40_000, 1))
    source = CountingSource(keyed_stream(b"fresh", tag="t"))
    outcome = released(CONFIDENT, rows, source)
    # One word per query for the check, then one per count for the labels, none twice.
    assert source.calls == [8 * 40_000, 8 * 80_000]
    assert outcome.refused > 1000
    # Reused noise of the check would pull the answered queries to one class: with fresh noise
    # the share of class 0 is 1/2, deviation 1/(2 sqrt(n)); 4.9 deviations: false alarms of 1e-6.
    answered = outcome.labels[outcome.labels != ABSTAIN]
    assert abs(np.mean(answered == 0) - 0.5) < 4.9 / (2 * math.sqrt(len(answered)))


def test_the_check_decides_from_the_first_draws_and_the_label_from_the_second() -> None:
    # Threshold 4: the first query is lifted over it, the second pushed below.
    source = scripted([+1.0, -1.0], [0.0, +3.0, 0.0, +3.0])
    outcome = released(CONFIDENT, [[4, 0], [4, 0]], source)
    assert outcome.outcomes.tolist() == [Outcome.ANSWERED, Outcome.REFUSED]
    assert outcome.labels.tolist() == [1, ABSTAIN]


def test_a_noisy_top_count_of_exactly_the_threshold_is_answered() -> None:
    source = scripted([0.0], [0.0, 0.0])
    assert released(CONFIDENT, [[4, 0]], source).outcomes.tolist() == [Outcome.ANSWERED]


def test_ties_go_to_the_lowest_class() -> None:
    assert released(GNMAX, [[1, 4, 4], [3, 3, 3]], scripted([0.0] * 6)).labels.tolist() == [1, 0]
    source = scripted([0.0], [0.0] * 3)
    assert released(CONFIDENT, [[0, 5, 5]], source).labels.tolist() == [1]


def test_events_carry_noise_counts_and_weight() -> None:
    assert GNMAX.event(4, 4, weight=2) == GaussianMaxEvent(4, 2.0, 2.0)
    assert GNMAX.worst_case_event(9, 4) == GaussianMaxEvent(9, 2.0)
    assert CONFIDENT.event(4, 3, weight=2) == ConfidentGaussianMaxEvent(4, 3, 1.5, 2.0, 2.0)
    assert CONFIDENT.worst_case_event(4, 9) == ConfidentGaussianMaxEvent(4, 4, 1.5, 2.0)


def test_the_worst_case_costs_at_least_every_way_a_run_can_end() -> None:
    worst = gdp_mu_squared(CONFIDENT.worst_case_event(8, 5))
    for asked in range(9):
        for answered in range(min(asked, 5) + 1):
            assert gdp_mu_squared(CONFIDENT.event(asked, answered)) <= worst


def test_parameters_have_the_same_keys_for_all() -> None:
    assert GNMAX.parameters() == {
        "name": "gnmax",
        "vote_threshold": None,
        "sigma1": None,
        "sigma2": 2.0,
    }
    assert CONFIDENT.parameters() == {
        "name": "confident",
        "vote_threshold": 4.0,
        "sigma1": 1.5,
        "sigma2": 2.0,
    }


@pytest.mark.parametrize(
    ("vote_threshold", "sigma1", "sigma2"),
    [
        pytest.param(math.nan, 1.0, 1.0, id="threshold is no number"),
        pytest.param(math.inf, 1.0, 1.0, id="infinite threshold"),
        pytest.param(4.0, 0.0, 1.0, id="sigma1 0"),
        pytest.param(4.0, 1.0, -1.0, id="negative sigma2"),
    ],
)
def test_parameters_out_of_range_are_refused(
    vote_threshold: float, sigma1: float, sigma2: float
) -> None:
    with pytest.raises(InvalidParameterError):
        ConfidentGaussianMax(Rule("confident", vote_threshold, sigma1, sigma2))
