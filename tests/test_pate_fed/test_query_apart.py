"""Queries that lie apart: those that hospitals answer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pate_fed.queries import QueryPool
from pate_fed.query_sketches import LEAST_NEAR_DISTANCE, near_queries, sketch
from pate_fed.students import apart, select_apart, select_queries
from tests.support.command import Command, pate_fed
from tests.support.markers import more

__all__ = ["pate_fed"]  # a fixture


def near_of(pool: QueryPool, queries: tuple[int, ...]) -> int:
    """Count as a hospital does: near an earlier one."""
    sketches = sketch(pool.inputs[list(queries)])
    return int(near_queries(sketches, sketches[:0], distance=LEAST_NEAR_DISTANCE).sum())


def line(places: list[float]) -> QueryPool:
    return QueryPool(np.array(places)[:, np.newaxis])


@pytest.mark.parametrize("number", [500, more(10_000)])
def test_thousands_of_neighbors_of_a_query_are_one_question(number: int) -> None:
    steps = np.random.default_rng(1).normal(size=(number, 4)) * 1e-3
    pool = QueryPool(np.array([1.0, 2.0, 3.0, 4.0]) + steps)
    assert apart(pool, range(number), 20) == (0,)


def test_far_queries_are_all_asked_in_order() -> None:
    pool = line([0.0, 1.0, 2.0, 3.0])
    assert apart(pool, (3, 0, 2), 3) == (3, 0, 2)


def test_the_next_in_order_stands_in_for_a_near_one() -> None:
    pool = line([0.0, 0.001, 0.002, 5.0, 0.003, 7.0])
    assert apart(pool, range(6), 3) == (0, 3, 5)
    assert apart(pool, range(6), 2) == (0, 3)
    assert apart(pool, range(6), 6) == (0, 3, 5)


def test_earlier_queries_count() -> None:
    pool = line([0.0, 0.001, 0.002, 5.0])
    assert apart(pool, (2, 3), 2, earlier=(0, 1)) == (3,)


@settings(max_examples=50, deadline=None)
@given(
    places=st.lists(st.floats(-1, 1).map(lambda x: round(x, 3)), min_size=1, max_size=30),
    count=st.integers(1, 30),
    earlier=st.integers(0, 5),
)
def test_a_guard_finds_none_of_them_near(places: list[float], count: int, earlier: int) -> None:
    pool = line([*places, *np.linspace(-1, 1, earlier)])
    before = tuple(range(len(places), len(places) + earlier))
    kept = apart(pool, range(len(places)), count, earlier=before)
    assert near_of(pool, (*before, *kept)) == near_of(pool, before)
    assert list(kept) == sorted(kept)
    assert len(kept) <= count
    if len(kept) < count:  # nothing else lies apart from them and from what was tried
        others = [place for place in range(len(places)) if place not in kept]
        for other in others:
            tried = (*before, *(one for one in range(len(places)) if one < other), other)
            assert near_of(pool, tried) > near_of(pool, tried[:-1])


@pytest.mark.parametrize("method", ["random", "stratified", "medoids"])
def test_near_rows_are_replaced_from_the_pool(method: str) -> None:
    rng = np.random.default_rng(2)
    far = rng.normal(scale=3, size=(40, 3))
    pool = QueryPool(np.concatenate([far, far[:20] + 1e-4]))
    candidates = list(range(5, 60))
    chosen = select_apart(pool, candidates, 30, method=method, rng=np.random.default_rng(1))
    first = select_queries(pool.inputs[candidates], 30, method=method, rng=np.random.default_rng(1))
    assert len(set(chosen)) == len(chosen) == 30
    assert near_of(pool, chosen) == 0
    assert set(chosen) <= set(candidates)
    # What lies apart of the first choice stays.
    kept = apart(pool, [candidates[place] for place in first], 30)
    assert chosen[: len(kept)] == kept


@pytest.mark.slow
def test_a_table_of_one_column_is_priced_for_the_queries_that_hospitals_answer(
    pate_fed: Command, tmp_path: Path
) -> None:
    rng = np.random.default_rng(1)
    values = rng.normal(size=1500)
    ill = values + rng.normal(0, 0.5, 1500) > 0
    table = tmp_path / "one.csv"
    rows = (f"{value:.5f},{int(label)}\n" for value, label in zip(values, ill, strict=True))
    table.write_text("a,ill\n" + "".join(rows), "utf-8")
    asked = ("--data", "csv", "--data-file", table, "--label", "ill", "--queries", 200)
    small = ("--parties", 3, "--epsilon", 2, "--seed", 1, "--out", tmp_path / "run")
    ended = pate_fed("simulate", *asked, *small, "--format", "json")
    assert ended.code == 0, ended.err
    queries = ended.json["metrics"]["queries"]
    assert 0 < queries["asked"] < 200
    assert queries["not_asked"] == 0
    # No noise is paid for questions that were not asked.
    assert 1.97 < ended.json["privacy"]["views"]["public"]["epsilon"] <= 2
