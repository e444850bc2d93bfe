"""The guarantee in words: the number is that of the caps or of the budget, rounded up."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pate_fed.accounting.costs import (
    GDP_METHOD,
    FormalCost,
    NoisePlace,
    PrivacyUnit,
    neighbors,
)
from pate_fed.errors import InvalidParameterError
from pate_fed.report.guarantee_words import (
    NOT_PROTECTED,
    SIMULATED_NOT_PROTECTED,
    delta_warning,
    guarantee_sentence,
    not_protected,
    trust_sentence,
)

AT_CAPS = FormalCost(2.5, GDP_METHOD)


def test_the_sentence_names_every_part_of_the_guarantee() -> None:
    formal = AT_CAPS
    sentence = guarantee_sentence(formal, delta=1e-5, unit="party", weight=3)
    assert formal.holds_for in sentence
    assert formal.method in sentence
    assert neighbors("party", weight=3) in sentence
    assert "delta = 1e-05" in sentence
    assert "hospital" in sentence


@given(epsilon=st.floats(1e-3, 600))
def test_the_sentence_never_shows_less_than_the_number(epsilon: float) -> None:
    sentence = guarantee_sentence(FormalCost(epsilon, "m"), delta=1e-5, unit="record", weight=1)
    shown = re.search(r"e\^epsilon = (\S+) \(epsilon = (\S+)\)", sentence)
    assert shown is not None
    assert epsilon * (1 - 1e-12) <= float(shown[2]) <= epsilon * 1.002
    assert math.exp(epsilon) * (1 - 1e-12) <= float(shown[1]) <= math.exp(epsilon) * 1.002


def test_neighbors_name_the_unit() -> None:
    assert "one patient" in neighbors("record", weight=1)
    assert "votes" not in neighbors("record", weight=1)
    assert " 3 votes" in neighbors("record", weight=3)
    assert "one hospital" in neighbors("party", weight=1)
    assert "votes" not in neighbors("party", weight=1)
    assert " 4 votes " in neighbors("party", weight=4)


@pytest.mark.parametrize(
    ("unit", "weight"),
    [
        pytest.param("record", 0, id="a record without a vote"),
        pytest.param("party", 0, id="a hospital without teachers"),
        pytest.param("city", 1, id="unknown unit"),
    ],
)
def test_a_weight_that_does_not_fit_the_unit_is_refused(unit: PrivacyUnit, weight: int) -> None:
    with pytest.raises(InvalidParameterError):
        neighbors(unit, weight=weight)


def test_trust_in_the_coordinator_is_said_plainly() -> None:
    sentence = trust_sentence("coordinator")
    assert all(word in sentence for word in ("noise", "memory"))
    with pytest.raises(InvalidParameterError):
        trust_sentence("moon")  # type: ignore[arg-type]


def test_a_delta_that_could_give_one_patient_away_is_warned_of() -> None:
    assert delta_warning(1e-5, units=1000) is None
    warning = delta_warning(1e-3, units=1000)
    assert warning is not None
    assert "1/1000" in warning


def test_a_simulation_says_that_pool_and_test_are_treated_as_public() -> None:
    said = [line for line in not_protected(unit="party", simulated=True) if "labels.csv" in line]
    assert len(said) == 1
    assert "test set" in said[0]
    assert not any("labels.csv" in line for line in not_protected(unit="party", simulated=False))


@pytest.mark.parametrize("unit", ["record", "party"])
@pytest.mark.parametrize("noise_place", ["coordinator", "parties"])
@pytest.mark.parametrize("simulated", [True, False])
def test_each_gap_is_listed_once_and_the_common_ones_always(
    unit: PrivacyUnit, noise_place: NoisePlace, *, simulated: bool
) -> None:
    said = not_protected(unit=unit, simulated=simulated, noise_place=noise_place)
    gaps = [line.partition(":")[0] for line in said]
    assert len({*gaps}) == len(gaps)
    assert {"Invented hospitals", "Correct labels", "Completion"} <= {*gaps}


def test_a_simulation_says_that_it_protects_nothing() -> None:
    assert not_protected(unit="party", simulated=False) == NOT_PROTECTED
    assert (
        not_protected(unit="party", simulated=True)[: len(SIMULATED_NOT_PROTECTED)]
        == SIMULATED_NOT_PROTECTED
    )
    assert all(line.endswith(".") for line in not_protected(unit="party", simulated=True))
