"""Turning a budget around: what comes back is within the budget, and nothing smaller is."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pate_fed.accounting import gdp_epsilon
from pate_fed.accounting.calibration import most_queries, smallest_noise
from pate_fed.errors import BudgetExhaustedError, InvalidParameterError


def gnmax_cost(answers: int, sigma: float, delta: float = 1e-5) -> float:
    return gdp_epsilon(math.sqrt(2 * answers) / sigma, delta)


@given(
    budget=st.floats(0.05, 20),
    answers=st.integers(1, 1_000),
    start=st.floats(0.1, 1_000),
)
def test_smallest_noise_is_enough_and_little_less_is_not(
    budget: float, answers: int, start: float
) -> None:
    sigma = smallest_noise(lambda s: gnmax_cost(answers, s), budget=budget, start=start)
    assert gnmax_cost(answers, sigma) <= budget
    assert gnmax_cost(answers, sigma / 1.0002) > budget


@given(budget=st.floats(0.05, 20), sigma=st.floats(1, 500), most=st.integers(0, 5_000))
def test_most_queries_is_affordable_and_one_more_is_not(
    budget: float, sigma: float, most: int
) -> None:
    queries = most_queries(lambda q: gnmax_cost(q, sigma), budget=budget, most=most)
    assert queries == 0 or gnmax_cost(queries, sigma) <= budget
    assert queries == most or gnmax_cost(queries + 1, sigma) > budget


def test_a_cost_that_no_noise_lowers_exhausts_the_budget() -> None:
    with pytest.raises(BudgetExhaustedError):
        smallest_noise(lambda sigma: 3.0, budget=1.0, start=1.0)


def test_a_cost_that_does_not_grow_as_noise_shrinks_is_refused() -> None:
    with pytest.raises(InvalidParameterError):
        smallest_noise(lambda sigma: 0.5, budget=1.0, start=1.0)


@pytest.mark.parametrize(
    ("budget", "start"),
    [
        pytest.param(0.0, 1.0, id="no budget"),
        pytest.param(math.nan, 1.0, id="budget is no number"),
        pytest.param(1.0, 0.0, id="no start"),
        pytest.param(1.0, math.inf, id="infinite start"),
    ],
)
def test_bad_input_is_refused(budget: float, start: float) -> None:
    with pytest.raises(InvalidParameterError):
        smallest_noise(lambda sigma: 1 / sigma, budget=budget, start=start)


def test_negative_numbers_of_queries_are_refused() -> None:
    with pytest.raises(InvalidParameterError):
        most_queries(float, budget=1.0, most=-1)
