"""Queries are distinct, exactly as many as asked, and spread over the pool."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pate_fed.errors import InvalidParameterError
from pate_fed.students import SELECTION_METHODS, select_queries
from tests.support.small_records import blobs


@given(
    inputs=st.integers(1, 40),
    distinct=st.integers(1, 6),
    share=st.floats(0.01, 1.0),
    method=st.sampled_from(SELECTION_METHODS),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=60, deadline=None)
def test_exactly_so_many_distinct_inputs_come_back_even_if_inputs_coincide(
    inputs: int, distinct: int, share: float, method: str, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    pool = rng.normal(size=(distinct, 2))[rng.integers(distinct, size=inputs)]
    count = max(1, int(share * inputs))
    chosen = select_queries(pool, count, method=method, rng=rng)
    assert len(chosen) == len(set(chosen)) == count
    assert all(0 <= place < inputs for place in chosen)
    assert all(type(place) is int for place in chosen)


@pytest.mark.parametrize("method", SELECTION_METHODS)
def test_the_same_seed_gives_the_same_queries(method: str) -> None:
    pool = blobs(120).features
    first, again, other = (
        select_queries(pool, 20, method=method, rng=np.random.default_rng(seed))
        for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other


def test_medoids_reach_every_cluster() -> None:
    pool = blobs(300, classes=10, features=8)
    chosen = select_queries(pool.features, 10, method="medoids", rng=np.random.default_rng(0))
    assert set(pool.labels[list(chosen)].tolist()) == set(range(10))


def test_members_of_large_clusters_are_asked_first() -> None:
    rng = np.random.default_rng(0)
    sizes = (10, 200, 40)
    pool = np.concatenate(
        [rng.normal(size=(size, 2)) + 50 * place for place, size in enumerate(sizes)]
    )
    cluster = np.repeat([0, 1, 2], sizes)
    chosen = select_queries(pool, 3, method="medoids", rng=rng)
    assert cluster[list(chosen)].tolist() == [1, 2, 0]


def test_a_medoid_is_the_member_nearest_its_center() -> None:
    pool = np.array([[-1.0], [0.1], [1.0], [99.0], [100.1], [101.0]])
    chosen = select_queries(pool, 2, method="medoids", rng=np.random.default_rng(0))
    assert set(chosen) == {1, 4}


@pytest.mark.parametrize(
    ("count", "method"),
    [
        pytest.param(0, "medoids", id="none"),
        pytest.param(31, "random", id="more than the pool"),
        pytest.param(5, "best", id="unknown method"),
    ],
)
def test_impossible_selections_are_refused(count: int, method: str) -> None:
    with pytest.raises(InvalidParameterError):
        select_queries(blobs(30).features, count, method=method, rng=np.random.default_rng(0))
