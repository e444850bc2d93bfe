"""Turning a budget around: the result is within the budget, and one query more is not."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pate_fed.accounting import gdp_epsilon
from pate_fed.accounting.calibration import most_queries
from pate_fed.errors import InvalidParameterError


def gnmax_cost(answers: int, sigma: float, delta: float = 1e-5) -> float:
    return gdp_epsilon(math.sqrt(2 * answers) / sigma, delta)


@given(budget=st.floats(0.05, 20), sigma=st.floats(1, 500), most=st.integers(0, 5_000))
def test_most_queries_is_affordable_and_one_more_is_not(
    budget: float, sigma: float, most: int
) -> None:
    queries = most_queries(lambda q: gnmax_cost(q, sigma), budget=budget, most=most)
    assert queries == 0 or gnmax_cost(queries, sigma) <= budget
    assert queries == most or gnmax_cost(queries + 1, sigma) > budget


@pytest.mark.parametrize(
    ("budget", "most", "queries"),
    [
        pytest.param(5.0, 9, 5, id="exactly the budget"),
        pytest.param(4.99, 9, 4, id="hardly less"),
        pytest.param(9.0, 9, 9, id="all"),
        pytest.param(1.0, 1, 1, id="the only one"),
        pytest.param(0.99, 1, 0, id="not even one"),
        pytest.param(9.0, 0, 0, id="none wanted"),
    ],
)
def test_a_query_that_costs_one_is_bought_for_one(budget: float, most: int, queries: int) -> None:
    assert most_queries(float, budget=budget, most=most) == queries


@pytest.mark.parametrize(
    ("budget", "most"),
    [
        pytest.param(0.0, 1, id="no budget"),
        pytest.param(math.nan, 1, id="budget is no number"),
        pytest.param(1.0, -1, id="a negative number of queries"),
    ],
)
def test_bad_input_is_refused(budget: float, most: int) -> None:
    with pytest.raises(InvalidParameterError):
        most_queries(float, budget=budget, most=most)
