"""A simulation asks the near queries that hospitals would answer, and no more."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.simulation.near_quota import MOST_NEAR, near_notes, within_quota
from party.site.policy import Policy
from pate_fed.queries import QueryPool
from pate_fed.query_sketches import LEAST_NEAR_DISTANCE, near_queries, sketch
from tests.support.command import Command, pate_fed
from tests.support.markers import more

__all__ = ["pate_fed"]  # a fixture


def near_of(pool: QueryPool, asked: tuple[int, ...]) -> int:
    """Count as a hospital's guard does."""
    sketches = sketch(pool.inputs[list(asked)])
    return int(near_queries(sketches, sketches[:0], distance=LEAST_NEAR_DISTANCE).sum())


def line(places: list[float]) -> QueryPool:
    return QueryPool(np.array(places)[:, np.newaxis])


def test_ten_thousand_copies_of_a_query_are_one_question() -> None:
    pool = QueryPool(np.tile([[1.0, 2.0]], (10_000, 1)))
    assert within_quota(pool, pool.distinct) == (0,)


@pytest.mark.parametrize("number", [500, more(10_000)])
def test_thousands_of_neighbors_of_a_query_are_eleven_answers(number: int) -> None:
    steps = np.random.default_rng(1).normal(size=(number, 4)) * 1e-3
    pool = QueryPool(np.array([1.0, 2.0, 3.0, 4.0]) + steps)
    assert within_quota(pool, range(number)) == tuple(range(1 + MOST_NEAR))


def test_far_queries_are_all_asked_in_order() -> None:
    pool = line([0.0, 1.0, 2.0, 3.0])
    assert within_quota(pool, (3, 0, 2), most=0) == (3, 0, 2)


def test_near_queries_beyond_the_quota_are_left_out() -> None:
    pool = line([0.0, 0.001, 0.002, 5.0, 0.003])
    assert within_quota(pool, (0, 1, 2, 3, 4), most=2) == (0, 1, 2, 3)
    assert within_quota(pool, (0, 1, 2, 3, 4), most=0) == (0, 3)


def test_earlier_queries_count() -> None:
    pool = line([0.0, 0.001, 0.002, 5.0])
    assert within_quota(pool, (2, 3), earlier=(0, 1), most=1) == (3,)


def test_a_query_close_to_a_left_out_one_only_is_asked() -> None:
    pool = line([0.0, 0.015, 0.03])
    assert within_quota(pool, (0, 1, 2), most=0) == (0, 2)


@settings(max_examples=50, deadline=None)
@given(
    places=st.lists(st.floats(-1, 1).map(lambda x: round(x, 3)), min_size=1, max_size=30),
    most=st.integers(0, 5),
)
def test_a_guard_never_finds_too_many(places: list[float], most: int) -> None:
    pool = line(places)
    kept = within_quota(pool, tuple(range(len(places))), most=most)
    assert near_of(pool, kept) <= most
    assert list(kept) == sorted(kept)
    # Only near queries are left out.
    left = set(range(len(places))) - set(kept)
    assert near_of(pool, tuple(range(len(places)))) >= len(left)


def test_the_quota_is_that_of_a_hospitals_default_rule() -> None:
    assert Policy().most_near_queries == MOST_NEAR == 10


def test_the_warning_says_how_many() -> None:
    assert near_notes(0) == []
    assert near_notes(7)[0].startswith("7 ")


@pytest.mark.exhaustive
def test_a_table_of_one_column_is_rehearsed_with_the_queries_that_hospitals_answer(
    pate_fed: Command, tmp_path: Path
) -> None:
    rng = np.random.default_rng(1)
    values = rng.normal(size=1500)
    ill = values + rng.normal(0, 0.5, 1500) > 0
    table = tmp_path / "one.csv"
    rows = (f"{value:.5f},{int(label)}\n" for value, label in zip(values, ill, strict=True))
    table.write_text("a,ill\n" + "".join(rows), "utf-8")
    asked = ("--data", "csv", "--data-file", table, "--label", "ill", "--queries", 200)
    small = ("--parties", 3, "--teachers", 5, "--seed", 1, "--out", tmp_path / "run")
    ended = pate_fed("simulate", *asked, *small, "--format", "json")
    assert ended.code == 0, ended.err
    metrics = ended.json["metrics"]
    assert 0 < metrics["queries"]["asked"] < 200
    left_out = 200 - metrics["queries"]["asked"]
    assert set(near_notes(left_out)) < set(metrics["warnings"])
