"""Queries are distinct, exactly as many as asked, and spread over the pool."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pate_fed.errors import InvalidParameterError
from pate_fed.students import SELECTION_METHODS, cluster_cores, least_confident, select_queries
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


def test_strata_are_of_one_size_and_leave_no_region_out() -> None:
    rng = np.random.default_rng(0)
    pool = np.stack([rng.normal(size=1000) * 9, rng.normal(size=1000)], axis=1)
    chosen = select_queries(pool, 10, method="stratified", rng=rng)
    ranks = pool[:, 0].argsort().argsort()[list(chosen)]
    # The wide column is cut first: five of the ten lie on each side of its middle.
    assert (ranks < 500).sum() == 5
    assert min(ranks) < 250
    assert max(ranks) >= 750


def test_means_over_strata_vary_less_than_over_random_queries() -> None:
    pool = np.random.default_rng(1).normal(size=(2000, 2)) * [3.0, 1.0]

    def spread(method: str) -> float:
        means = [
            pool[
                list(select_queries(pool, 40, method=method, rng=np.random.default_rng(seed))), 0
            ].mean()
            for seed in range(60)
        ]
        return float(np.std(means))

    assert spread("stratified") < 0.5 * spread("random")


def test_a_core_is_the_inner_half_of_the_inputs_nearest_to_a_query() -> None:
    pool = np.array([[0.0], [1.0], [2.0], [3.0], [10.0], [11.0], [14.0], [10.0]])
    cores = cluster_cores(pool, (0, 4))
    assert {query: core.tolist() for query, core in cores.items()} == {0: [0, 1], 4: [4, 7]}


def test_every_query_has_a_core_even_where_inputs_coincide() -> None:
    cores = cluster_cores(np.zeros((5, 2)), (3, 1))
    assert all(query in core for query, core in cores.items())
    assert len(np.concatenate(list(cores.values()))) == len(
        set(np.concatenate(list(cores.values())).tolist())
    )


def test_the_student_asks_what_it_is_least_sure_of() -> None:
    chances = np.array([[0.9, 0.1, 0.0], [0.4, 0.35, 0.25], [0.5, 0.5, 0.0], [0.34, 0.33, 0.33]])
    assert least_confident(chances, 3).tolist() == [3, 1, 2]


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
