"""Queries that lie close are told from those that do not, with the stated chances."""

from __future__ import annotations

import gzip
import hashlib
import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from pate_fed import query_sketches
from pate_fed.data import DataSource, load_dataset
from pate_fed.errors import InvalidParameterError
from pate_fed.queries import QueryPool
from pate_fed.query_sketches import (
    PROJECTIONS,
    SKETCH_BYTES,
    Sketches,
    from_bytes,
    near_queries,
    sketch,
    to_bytes,
)
from tests.support.markers import sampled
from tests.support.real_data import real_data

T = 0.02
LENGTH = PROJECTIONS
"""Place of the length in a sketch."""

NONE = sketch(np.empty((0, 1)))


def moved(
    inputs: NDArray[np.float64], by: float, chance: np.random.Generator
) -> NDArray[np.float64]:
    """Each input, moved by a part of its length in a random direction."""
    steps = chance.normal(size=inputs.shape)
    lengths = np.linalg.norm(inputs, axis=1) / np.linalg.norm(steps, axis=1)
    return inputs + by * steps * lengths[:, None]


def caught(inputs: NDArray[np.float64], others: NDArray[np.float64]) -> float:
    """Share of inputs that are near to the one that they were made from."""
    pairs = zip(sketch(inputs), sketch(others), strict=True)
    return float(np.mean([near_queries(a[None], b[None], distance=T)[0] for a, b in pairs]))


def brute_force(asked: Sketches, known: Sketches, distance: float) -> list[bool]:
    """The definition, one pair at a time."""
    found = []
    for place, one in enumerate(asked.astype(np.float64)):
        near = False
        for other in [*known.astype(np.float64), *asked[:place].astype(np.float64)]:
            limit = distance * max(one[LENGTH], other[LENGTH], 1.0) * (1 + 1e-6)
            apart = np.sqrt(((one[:LENGTH] - other[:LENGTH]) ** 2).sum())
            near |= bool(apart <= limit and abs(one[LENGTH] - other[LENGTH]) <= limit)
        found.append(near)
    return found


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    known=st.integers(0, 30),
    asked=st.integers(1, 30),
    features=st.integers(1, 40),
    distance=st.sampled_from([0.0, 0.01, 0.02, 0.1, 0.5]),
    scale=st.sampled_from([1e-9, 1.0, 1e9]),
)
def test_blocks_find_what_pairs_find(
    *, seed: int, known: int, asked: int, features: int, distance: float, scale: float
) -> None:
    chance = np.random.default_rng(seed)
    bases = chance.normal(size=(8, features)) * scale
    rows = bases[chance.integers(8, size=known + asked)]
    rows = rows * (1 + chance.choice([0, 0.005, 0.03, 0.3], size=(known + asked, 1)))
    rows = rows + chance.normal(size=rows.shape) * scale * chance.choice([0.0, 0.01])
    old, new = sketch(rows[:known]), sketch(rows[known:])
    blocks = (query_sketches._ROWS, query_sketches._COLUMNS)
    try:
        query_sketches._ROWS, query_sketches._COLUMNS = 7, 5
        assert near_queries(new, old, distance=distance).tolist() == brute_force(new, old, distance)
    finally:
        query_sketches._ROWS, query_sketches._COLUMNS = blocks


class TestDistance:
    def test_the_signs_are_the_published_ones(self) -> None:
        features = 5
        stream = hashlib.shake_256(b"pate-fed/1/query sketch\0" + bytes(7) + b"\x05").digest(20)
        for feature in range(features):
            unit = np.zeros((1, features))
            unit[0, feature] = 1.0
            word = int.from_bytes(stream[4 * feature : 4 * feature + 4], "little")
            signs = [-1 if word >> bit & 1 else 1 for bit in range(PROJECTIONS)]
            expected = np.array([*(np.array(signs) / np.sqrt(PROJECTIONS)), 1.0])
            assert np.allclose(sketch(unit)[0, : LENGTH + 1], expected, rtol=1e-6)

    def test_the_signs_hang_on_the_key(self) -> None:
        unit = np.eye(40)
        keys = (b"", b"one", b"other")
        signs = [np.sign(sketch(unit, key=key)[:, :LENGTH]).ravel() for key in keys]
        for one, other in itertools.combinations(signs, 2):
            assert abs(np.mean(one * other)) < 5 / np.sqrt(one.size)
        assert np.array_equal(sketch(unit, key=b"one"), sketch(unit, key=b"one"))

    def test_scaling_inputs_up_changes_nothing(self) -> None:
        chance = np.random.default_rng(0)
        inputs = chance.normal(size=(100, 12)) * 10
        others = np.vstack([moved(inputs[:50], 0.01, chance), moved(inputs[50:], 0.1, chance)])
        expected = near_queries(sketch(others), sketch(inputs), distance=T).tolist()
        assert sum(expected) == 50
        for scale in (2.0, 1e12):
            found = near_queries(sketch(others * scale), sketch(inputs * scale), distance=T)
            assert found.tolist() == expected

    def test_an_input_of_another_scale_is_another_question(self) -> None:
        one = np.random.default_rng(1).normal(size=(1, 12))
        assert near_queries(sketch(one * 1.01), sketch(one), distance=T).all()
        assert not near_queries(sketch(one * 1.05), sketch(one), distance=T).any()
        assert not near_queries(sketch(-one), sketch(one), distance=T).any()

    def test_few_features_are_told_apart_by_their_length(self) -> None:
        ages = np.array([[1.0], [2.0], [2.01], [4.0]])
        assert near_queries(sketch(ages), NONE, distance=T).tolist() == [False, False, True, False]

    def test_a_common_offset_makes_all_inputs_close(self) -> None:
        """Why features are to be centered: known and said."""
        inputs = np.random.default_rng(2).normal(size=(20, 12))
        assert not near_queries(sketch(inputs), NONE, distance=T).any()
        assert near_queries(sketch(inputs + 1000.0), NONE, distance=T)[1:].all()

    def test_inputs_of_other_numbers_of_features_are_not_close(self) -> None:
        one, other = np.ones((1, 30)), np.ones((1, 31))
        assert not near_queries(sketch(one), sketch(other), distance=T).any()

    def test_around_the_origin_the_unit_of_features_counts(self) -> None:
        inputs = np.array([[0.0, 0.0], [1e-30, 0.0], [0.0, 0.0], [0.015, 0.0], [0.0, -0.1]])
        assert near_queries(sketch(inputs), NONE, distance=T).tolist() == [
            False,
            *(True,) * 3,
            False,
        ]

    @pytest.mark.parametrize("length", [0.0201, 0.5, 1.0, 1.01, 30.0])
    def test_a_pair_at_the_very_limit_is_found_in_either_order(self, length: float) -> None:
        """Blocks leave pairs out by their lengths: none that the definition calls close."""
        long = sketch(np.full((1, 1), length))
        short = long.copy()
        # Within the room for rounding: just beyond T, and close by the definition.
        whole = float(long[0, LENGTH])
        short[:, LENGTH] = whole - T * (1 + 5e-7) * max(whole, 1.0)
        for asked, known in ((long, short), (short, long)):
            expected = brute_force(asked, known, T)
            assert near_queries(asked, known, distance=T).tolist() == expected
        assert expected == [True] or length >= 1

    @pytest.mark.parametrize("distance", [-0.1, 0.51, float("nan")])
    def test_a_distance_outside_its_range_is_refused(self, distance: float) -> None:
        with pytest.raises(InvalidParameterError):
            near_queries(NONE, NONE, distance=distance)

    def test_inputs_must_be_numbers_and_may_be_huge(self) -> None:
        for bad in (
            np.full((1, 2), np.nan),
            np.full((1, 2), np.inf),
            np.zeros(3),
            np.zeros((1, 0)),
        ):
            with pytest.raises(InvalidParameterError):
                sketch(bad)
        huge = sketch(np.full((2, 784), 1e300))
        assert np.isfinite(huge).all()
        assert near_queries(huge, NONE, distance=T).tolist() == [False, True]


class TestBytes:
    def test_bytes_are_read_back(self) -> None:
        sketches = sketch(np.random.default_rng(5).normal(size=(7, 3)))
        data = to_bytes(sketches)
        assert {len(one) for one in data} == {SKETCH_BYTES}
        assert np.array_equal(from_bytes(b"".join(data)), sketches)

    @pytest.mark.parametrize(
        "data", [bytes(SKETCH_BYTES - 1), b"\x00\x00\xc0\x7f" * 161, b"\x00\x00\x80\xff" * 161]
    )
    def test_what_is_no_sketch_is_refused(self, data: bytes) -> None:
        with pytest.raises(InvalidParameterError):
            from_bytes(data)


class TestChances:
    """The chances that the module states, counted. Seeds are fixed."""

    @sampled("by")
    @pytest.mark.parametrize("by", [0.5, 0.8, 1.0, 1.25, 1.5])
    def test_pairs_are_caught_as_often_as_the_chi_square_says(self, by: float) -> None:
        chance = np.random.default_rng(7)
        inputs = chance.normal(size=(1500, 200))
        share = caught(moved(inputs, by * T, chance), inputs)
        # The longer of the two is the yardstick: by about (by * T)^2 / 2, which is nothing here.
        expected = stats.chi2.cdf(PROJECTIONS / by**2, PROJECTIONS)
        # Five standard errors, and 0.02 for signs in place of normal projections.
        assert abs(share - expected) <= 5 * np.sqrt(0.25 / len(inputs)) + 0.02

    def test_the_stated_chances_are_those_of_the_chi_square(self) -> None:
        assert stats.chi2.sf(4 * PROJECTIONS, PROJECTIONS) < 1e-12
        assert stats.chi2.cdf(PROJECTIONS / 4, PROJECTIONS) < 1 / 200_000

    def test_only_who_knows_the_key_can_choose_a_direction_that_hides_a_pair(self) -> None:
        features = 60
        one = np.random.default_rng(8).normal(size=(1, features)) * 10

        def is_found(*, known: bytes) -> bool:
            """Whether a pair is found that was made to fit the signs of a known key."""
            signs = query_sketches._signs(features, known)
            _, _, directions = np.linalg.svd(signs.T)
            near = one + 0.6 * T * np.linalg.norm(one) * directions[:1]
            found = near_queries(sketch(near, key=b"own"), sketch(one, key=b"own"), distance=T)
            return bool(found.all())

        assert not is_found(known=b"own")
        assert all(is_found(known=bytes([guess])) for guess in range(20))


class TestRealData:
    @pytest.mark.parametrize("name", ["digits", "breast-cancer"])
    def test_bundled_data_raise_no_false_alarm_and_variants_are_found(self, name: str) -> None:
        pool = load_dataset(DataSource(name), rng=np.random.default_rng(1)).pool.features
        old = sketch(pool)
        assert not near_queries(old, NONE, distance=T).any()
        chance = np.random.default_rng(2)
        for by, least, most in ((0.001, 1.0, 1.0), (0.01, 1.0, 1.0), (0.04, 0.0, 0.0)):
            found = near_queries(sketch(moved(pool, by, chance)), old, distance=T)
            within = near_queries(sketch(moved(pool, by, chance)), NONE, distance=T)
            assert least <= found.mean() <= most
            assert not within.any()

    @pytest.mark.slow
    def test_images_raise_no_false_alarm(self, tmp_path: Path) -> None:
        for kept, part in ((1_000, "train"), (3_334, "t10k")):
            for name in (f"{part}-images-idx3-ubyte", f"{part}-labels-idx1-ubyte"):
                content = gzip.decompress(real_data(f"data/mnist/{name}.gz").read_bytes())
                start, each = (16, 28 * 28) if "images" in name else (8, 1)
                few = content[:4] + kept.to_bytes(4, "big") + content[8 : start + kept * each]
                (tmp_path / name).write_bytes(few)
        source = DataSource("mnist", data_dir=tmp_path)
        pool = load_dataset(source, rng=np.random.default_rng(1)).pool.features
        assert len(pool) == 3_000
        assert not near_queries(sketch(pool), NONE, distance=T).any()

    def test_pool_positions_do_not_matter(self) -> None:
        pool = QueryPool(np.random.default_rng(3).normal(size=(10, 4)))
        assert np.array_equal(sketch(pool.ask((3, 1)).inputs), sketch(pool.inputs)[[3, 1]])
