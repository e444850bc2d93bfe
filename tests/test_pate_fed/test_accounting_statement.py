"""The guarantee in words: the number is that of the caps or of the budget, rounded up."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pate_fed.accounting.events import ConfidentGaussianMaxEvent
from pate_fed.accounting.gaussian_dp import gdp_epsilon, gdp_mu_squared
from pate_fed.accounting.statement import (
    CAPS_METHOD,
    FILTER_METHOD,
    NOT_PROTECTED,
    SIMULATED_NOT_PROTECTED,
    FormalCost,
    PrivacyUnit,
    delta_warning,
    formal_cost,
    guarantee_sentence,
    neighbors,
    not_protected,
    trust_sentence,
)
from pate_fed.errors import InvalidParameterError

CAPS = ConfidentGaussianMaxEvent(asks=30, answers=30, sigma1=15.0, sigma2=8.0)
AT_CAPS = gdp_epsilon(math.sqrt(gdp_mu_squared(CAPS)), 1e-5)


def test_the_formal_number_is_the_smaller_of_caps_and_budget() -> None:
    assert formal_cost(CAPS, delta=1e-5) == FormalCost(AT_CAPS, CAPS_METHOD)
    assert formal_cost(CAPS, delta=1e-5, budget_epsilon=50.0).epsilon == AT_CAPS
    assert formal_cost(CAPS, delta=1e-5, budget_epsilon=AT_CAPS).method == CAPS_METHOD
    assert formal_cost(CAPS, delta=1e-5, budget_epsilon=2.0) == FormalCost(2.0, FILTER_METHOD)


@pytest.mark.parametrize(
    ("caps", "delta", "epsilon"),
    [
        pytest.param((640, 640, 150.0, 40.0), 1e-5, 3.927, id="MNIST, no caps"),
        pytest.param((12_000, 10_762, 500.0, 100.0), 1e-8, 9.012, id="Glyph"),
        pytest.param((200, 100, 20.0, 8.0), 1e-5, 9.411, id="50 teachers"),
        pytest.param((100, 50, 10.0, 4.0), 1e-5, 14.512, id="20 teachers"),
    ],
)
def test_published_settings_cost_what_the_accounting_page_says(
    caps: tuple[int, int, float, float], delta: float, epsilon: float
) -> None:
    formal = formal_cost(ConfidentGaussianMaxEvent(*caps), delta=delta)
    assert formal.epsilon == pytest.approx(epsilon, abs=6e-4)


@pytest.mark.parametrize("budget", [0.0, -1.0, math.nan])
def test_a_budget_out_of_range_is_refused(budget: float) -> None:
    with pytest.raises(InvalidParameterError):
        formal_cost(CAPS, delta=1e-5, budget_epsilon=budget)


def test_the_sentence_names_every_part_of_the_guarantee() -> None:
    formal = formal_cost(CAPS, delta=1e-5)
    sentence = guarantee_sentence(formal, delta=1e-5, unit="party", weight=3)
    assert formal.holds_for in sentence
    assert formal.method in sentence
    assert neighbors("party", weight=3) in sentence
    assert "delta = 1e-05" in sentence
    assert "one hospital's records" in sentence


@given(epsilon=st.floats(1e-3, 600))
def test_the_sentence_never_shows_less_than_the_number(epsilon: float) -> None:
    sentence = guarantee_sentence(FormalCost(epsilon, "m"), delta=1e-5, unit="record", weight=1)
    shown = re.search(r"e\^epsilon = (\S+) \(epsilon = (\S+)\)", sentence)
    assert shown is not None
    assert epsilon * (1 - 1e-12) <= float(shown[2]) <= epsilon * 1.002
    assert math.exp(epsilon) * (1 - 1e-12) <= float(shown[1]) <= math.exp(epsilon) * 1.002


def test_neighbors_name_the_unit() -> None:
    assert "one patient" in neighbors("record", weight=1)
    assert "one hospital" in neighbors("party", weight=1)
    assert "each of its 4 teachers" in neighbors("party", weight=4)


@pytest.mark.parametrize(
    ("unit", "weight"),
    [
        pytest.param("record", 2, id="a record with two teachers"),
        pytest.param("party", 0, id="a hospital without teachers"),
        pytest.param("city", 1, id="unknown unit"),
    ],
)
def test_a_weight_that_does_not_fit_the_unit_is_refused(unit: PrivacyUnit, weight: int) -> None:
    with pytest.raises(InvalidParameterError):
        neighbors(unit, weight=weight)


def test_trust_in_the_coordinator_is_said_plainly() -> None:
    sentence = trust_sentence("coordinator")
    assert "add the noise" in sentence
    assert "holds in memory until the batch is released" in sentence
    assert "no differential privacy" in sentence
    with pytest.raises(InvalidParameterError):
        trust_sentence("moon")  # type: ignore[arg-type]


def test_a_delta_that_could_give_one_patient_away_is_warned_of() -> None:
    assert delta_warning(1e-5, units=1000) is None
    warning = delta_warning(1e-3, units=1000)
    assert warning is not None
    assert "1/1000" in warning


def test_a_simulation_says_that_pool_and_test_are_treated_as_public() -> None:
    said = [line for line in not_protected(simulated=True) if "records of the pool" in line]
    assert len(said) == 1
    assert "test set" in said[0]
    assert "labels.csv" in said[0]
    assert not any("records of the pool" in line for line in not_protected(simulated=False))


def test_a_simulation_says_that_it_protects_nothing() -> None:
    assert not_protected(simulated=False) == NOT_PROTECTED
    assert not_protected(simulated=True)[: len(SIMULATED_NOT_PROTECTED)] == SIMULATED_NOT_PROTECTED
    assert all(line.endswith(".") for line in not_protected(simulated=True))
