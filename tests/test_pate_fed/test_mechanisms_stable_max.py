"""Propose-test-release for the argmax: its law in closed form, its guarantee by brute force."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import chi2, laplace, norm

from pate_fed.accounting.accountant import RenyiAccountant
from pate_fed.accounting.curves import event_additive_delta, event_approximate_rdp
from pate_fed.accounting.events import (
    GaussianMaxEvent,
    StableGaussianMaxEvent,
    StableLaplaceMaxEvent,
)
from pate_fed.accounting.gaussian_dp import gdp_mu_squared
from pate_fed.accounting.pure_bounds import pure_dp_rdp
from pate_fed.errors import InvalidParameterError, InvalidVotesError, UnsupportedEventError
from pate_fed.lab.per_instance import instance_rdp
from pate_fed.mechanisms.sampling import keyed_stream
from pate_fed.mechanisms.stable_max import StableGaussianMax, StableLaplaceMax, StableMax
from pate_fed.releases import ABSTAIN
from tests.support.exact_argmax import histograms, one_vote_neighbors, renyi_divergence
from tests.test_pate_fed.test_mechanisms_contract import released

GAUSSIAN = StableGaussianMax(test_delta=0.05, sigma=1.5)
LAPLACE = StableLaplaceMax(test_delta=0.05, test_epsilon=0.8)
FORMS = [pytest.param(GAUSSIAN, id="gaussian"), pytest.param(LAPLACE, id="laplace")]
ORDERS = np.array([1.5, 2.0, 8.0, 32.0])


def answer_chance(mechanism: StableMax, counts: NDArray[np.int64]) -> float:
    """Closed form, written without the mechanism's own helpers."""
    second, first = np.sort(counts)[-2:]
    units = max(0, math.ceil((first - second) / (2 * mechanism.unit_votes)) - 1)
    if isinstance(mechanism, StableGaussianMax):
        bar = mechanism.sigma * norm.isf(mechanism.test_delta)
        return float(norm.sf((bar - units) / mechanism.sigma))
    assert isinstance(mechanism, StableLaplaceMax)
    bar = math.log(1 / (2 * mechanism.test_delta)) / mechanism.test_epsilon
    return float(laplace.sf((bar - units) * mechanism.test_epsilon))


@pytest.mark.parametrize("mechanism", FORMS)
def test_chances_of_an_answer_are_the_closed_form(mechanism: StableMax) -> None:
    rows = np.array([[9, 1, 0], [5, 4, 1], [5, 5, 0], [40, 1, 0], [400, 0, 0]])
    chances = mechanism.answer_chances(rows)
    for row, chance in zip(rows, chances, strict=True):
        # The bar is 1/128 higher for the grid of the noise.
        assert chance == pytest.approx(answer_chance(mechanism, row), abs=0.003)
        assert chance <= answer_chance(mechanism, row)
    with pytest.raises(InvalidVotesError):
        mechanism.answer_chances([[3, -1]])


@pytest.mark.parametrize("mechanism", FORMS)
@pytest.mark.parametrize("counts", [[9, 1, 0], [5, 4, 1], [5, 5, 0], [8, 1, 1]])
def test_queries_are_answered_as_often_as_the_closed_form_says(
    mechanism: StableMax, counts: list[int]
) -> None:
    source = keyed_stream(b"law", tag=str(counts))
    outcome = released(mechanism, [counts] * 40_000, source)
    chance = answer_chance(mechanism, np.array(counts))
    # The bar is 1/128 higher for the grid of the noise: less than 0.3 % of an answer.
    assert outcome.answered / 40_000 == pytest.approx(
        chance, abs=0.003 + 4.9 * math.sqrt(chance * (1 - chance) / 40_000)
    )
    assert set(outcome.labels.tolist()) == {ABSTAIN, 0}


@pytest.mark.parametrize("mechanism", FORMS)
def test_noise_that_is_30_percent_off_is_noticed(mechanism: StableMax) -> None:
    """Chi-squared with one degree of freedom, false-alarm rate 1e-6, at d = 2."""
    counts = np.array([8, 2, 0])
    chance = answer_chance(mechanism, counts)

    def statistic(form: StableMax) -> float:
        answered = released(form, [[8, 2, 0]] * 40_000, keyed_stream(b"n", tag="t")).answered
        return (answered - 40_000 * chance) ** 2 / (40_000 * chance * (1 - chance))

    bar = chi2.isf(1e-6, 1)
    assert statistic(mechanism) <= bar
    if isinstance(mechanism, StableGaussianMax):
        weak, strong = (StableGaussianMax(0.05, 1.5 * factor) for factor in (0.7, 1.3))
    else:
        weak, strong = (StableLaplaceMax(0.05, 0.8 / factor) for factor in (0.7, 1.3))
    assert statistic(weak) > bar
    assert statistic(strong) > bar


@pytest.mark.parametrize("unit_votes", [1, 2])
@pytest.mark.parametrize("form", ["gaussian", "laplace"])
def test_the_guarantee_holds_for_every_pair_of_neighbors(form: str, unit_votes: int) -> None:
    """Brute force: the law of label or "no answer", every histogram, every change of a unit."""
    mechanism: StableMax
    if form == "gaussian":
        mechanism = StableGaussianMax(0.05, 1.5, unit_votes=unit_votes)
    else:
        mechanism = StableLaplaceMax(0.05, 0.8, unit_votes=unit_votes)
    event = mechanism.event(1, 0, weight=unit_votes)
    rdp = event_approximate_rdp(event, ORDERS)
    delta = event_additive_delta(event)
    assert delta == 0.05
    for counts in histograms(votes=7, classes=3):
        neighbors = {tuple(moved.tolist()) for moved in one_vote_neighbors(counts)}
        for _ in range(unit_votes - 1):
            neighbors |= {
                tuple(moved.tolist())
                for row in neighbors
                for moved in one_vote_neighbors(np.array(row))
            }
        chance = answer_chance(mechanism, counts)
        for row in neighbors:
            other = answer_chance(mechanism, np.array(row))
            if counts.argmax() == int(np.argmax(row)):
                laws = [np.log([p, 1 - p]) for p in (chance, other)]
                exact = [renyi_divergence(laws[0], laws[1], order) for order in ORDERS]
                assert (np.array(exact) <= rdp * (1 + 1e-9)).all()
            else:
                # All that differs has the chance delta, on both sides.
                assert chance <= delta * (1 + 1e-9)
                assert other == pytest.approx(chance, rel=1e-12)


@pytest.mark.parametrize("mechanism", FORMS)
def test_with_no_lead_an_answer_has_at_most_the_chance_delta(mechanism: StableMax) -> None:
    outcome = released(mechanism, [[5, 5]] * 40_000, keyed_stream(b"d", tag="t"))
    # 4.9 deviations: false alarms of 1e-6.
    assert outcome.answered / 40_000 <= 0.05 + 4.9 * math.sqrt(0.05 * 0.95 / 40_000)


def test_the_label_is_always_the_exact_plurality() -> None:
    rows = np.array([[30, 70, 0], [70, 30, 0], [0, 1, 99]] * 300)
    labels = released(GAUSSIAN, rows, keyed_stream(b"p", tag="t")).labels
    answered = labels != ABSTAIN
    assert answered.sum() > 800
    assert np.array_equal(labels[answered], rows.argmax(axis=1)[answered])


def test_only_asks_cost_and_their_deltas_add_up() -> None:
    assert GAUSSIAN.event(5, 3) == GAUSSIAN.event(5, 0) == StableGaussianMaxEvent(5, 1.5, 0.05)
    assert LAPLACE.event(5, 3) == StableLaplaceMaxEvent(5, 0.8, 0.05)
    rdp = event_approximate_rdp(GAUSSIAN.event(5, 3), ORDERS)
    assert rdp == pytest.approx(5 * ORDERS / (2 * 1.5**2), rel=1e-14)
    rdp = event_approximate_rdp(LAPLACE.event(5, 3), ORDERS)
    assert rdp == pytest.approx(5 * pure_dp_rdp(ORDERS, epsilon=0.8), rel=1e-14)


def test_an_accountant_takes_the_tests_deltas_off_its_own() -> None:
    tests = StableGaussianMax(1e-7, 15.0).event(20, 7)
    accountant = RenyiAccountant()
    accountant.compose(tests)
    assert accountant.additive_delta == pytest.approx(2e-6, rel=1e-12)
    plain = RenyiAccountant()
    # GNMax with sigma = sqrt(2) 15 has the same RDP, without an additive delta.
    plain.compose(GaussianMaxEvent(20, math.sqrt(2) * 15.0))
    assert accountant.get_converted(1e-5).epsilon == pytest.approx(
        plain.get_converted(8e-6).epsilon, rel=1e-9
    )
    assert accountant.get_converted(1e-5).epsilon > plain.get_converted(1e-5).epsilon
    with pytest.raises(InvalidParameterError):
        accountant.get_converted(2e-6)


def test_exact_composition_cannot_count_an_additive_delta() -> None:
    with pytest.raises(UnsupportedEventError):
        gdp_mu_squared(GAUSSIAN.event(1, 1))


def test_a_unit_must_be_known_to_the_test() -> None:
    with pytest.raises(InvalidParameterError):
        GAUSSIAN.event(5, 3, weight=2)
    hospital = StableGaussianMax(0.05, 1.5, unit_votes=5)
    assert hospital.event(5, 3, weight=5) == StableGaussianMaxEvent(5, 1.5, 0.05, 5.0)
    assert hospital.event(5, 3, weight=1) == hospital.event(5, 3, weight=5)


def test_votes_that_a_neighbor_could_turn_have_no_finite_cost_of_their_own() -> None:
    outcomes = np.zeros(2, dtype=np.int8)
    unstable = instance_rdp(GAUSSIAN, np.array([[9, 1], [6, 4]]), outcomes, ORDERS, weight=1.0)
    assert np.isinf(unstable).all()
    stable = instance_rdp(GAUSSIAN, np.array([[9, 1], [7, 3]]), outcomes, ORDERS, weight=1.0)
    assert np.isfinite(stable).all()


@pytest.mark.parametrize("test_delta", [0.0, 0.5, 1.0, -0.1, math.nan])
def test_parameters_out_of_range_are_refused(test_delta: float) -> None:
    for make in (StableGaussianMax, StableLaplaceMax):
        with pytest.raises(InvalidParameterError):
            make(test_delta, 1.0)
        with pytest.raises(InvalidParameterError):
            make(0.05, 0.0)
        with pytest.raises(InvalidParameterError):
            make(0.05, 1.0, unit_votes=0)
