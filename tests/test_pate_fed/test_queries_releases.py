from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from pate_fed.errors import InvalidParameterError, InvalidTermsError
from pate_fed.public_rows import PublicRows
from pate_fed.queries import QueryBatch, QueryPool
from pate_fed.releases import ABSTAIN, NoisyRelease, Outcome

POOL = QueryPool(np.arange(12.0).reshape(4, 3))
ANSWERED, REFUSED, NOT_ASKED = (int(outcome) for outcome in Outcome)


# The pool --------------------------------------------------------------------------------------


def test_a_batch_holds_the_inputs_asked_for_in_their_order() -> None:
    batch = POOL.ask((2, 0))
    assert (len(batch), batch.indices) == (2, (2, 0))
    assert batch.inputs.tolist() == [[6.0, 7.0, 8.0], [0.0, 1.0, 2.0]]


@pytest.mark.parametrize("indices", [(), (4,), (-1,), (0, 0), (1, 2, 1), (10**9,)], ids=str)
def test_indices_outside_the_pool_or_repeated_are_refused(indices: tuple[int, ...]) -> None:
    with pytest.raises(InvalidParameterError):
        POOL.ask(indices)


@pytest.mark.parametrize(
    "inputs",
    [
        pytest.param(np.zeros(3), id="one axis"),
        pytest.param(np.zeros((0, 3)), id="empty"),
        pytest.param(np.zeros((3, 0)), id="no features"),
        pytest.param(np.array([[np.nan]]), id="not a number"),
        pytest.param(np.array([[np.inf]]), id="infinite"),
    ],
)
def test_a_pool_is_finite_and_has_rows(inputs: NDArray[np.float64]) -> None:
    with pytest.raises(InvalidParameterError):
        QueryPool(inputs)


def test_the_digest_of_a_pool_is_of_its_shape_and_values() -> None:
    body = b"pate-fed pool 4,3\n" + np.arange(12, dtype="<f8").tobytes()
    assert POOL.digest == hashlib.sha256(body).digest()


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(np.arange(12.0).reshape(3, 4), id="another shape"),
        pytest.param(np.arange(12.0).reshape(4, 3)[::-1], id="another order"),
        pytest.param(np.arange(12.0).reshape(4, 3) + np.eye(4, 3) * 1e-12, id="one bit"),
        pytest.param(np.arange(9.0).reshape(3, 3), id="one input fewer"),
    ],
)
def test_another_pool_has_another_digest(other: NDArray[np.float64]) -> None:
    assert QueryPool(other).digest != POOL.digest


def test_how_inputs_lie_in_memory_does_not_change_the_digest() -> None:
    inputs = np.asfortranarray(POOL.inputs)
    assert QueryPool(inputs).digest == QueryPool(inputs.astype(">f8")).digest == POOL.digest


def test_pool_and_batch_are_frozen_and_show_their_size_only() -> None:
    source = np.full((2, 1), 1234567.0)
    pool = QueryPool(source)
    batch = pool.ask((1,))
    source[:] = 0
    for value in (pool, batch):
        assert "1234567" not in f"{value!r}{value!s}"
        assert value.inputs.max() == 1234567.0
        with pytest.raises(ValueError, match="read-only"):
            value.inputs[0, 0] = 0


@pytest.mark.parametrize("rows", [0, 1, 3])
def test_a_batch_has_one_row_for_each_index(rows: int) -> None:
    with pytest.raises(InvalidParameterError):
        QueryBatch((0, 1), np.zeros((rows, 2)))


# The release -----------------------------------------------------------------------------------


def release(labels: list[int], outcomes: list[int]) -> NoisyRelease:
    return NoisyRelease(np.array(labels), np.array(outcomes))


def test_a_release_counts_what_was_looked_at() -> None:
    made = release([3, -1, 0, -1], [ANSWERED, REFUSED, ANSWERED, NOT_ASKED])
    assert (len(made), made.answered, made.refused, made.asked) == (4, 2, 1, 3)


@pytest.mark.parametrize(
    ("labels", "outcomes"),
    [
        pytest.param([1], [REFUSED], id="a label for a refusal"),
        pytest.param([1], [NOT_ASKED], id="a label for what was not asked"),
        pytest.param([ABSTAIN], [ANSWERED], id="an answer without a label"),
        pytest.param([-2], [ANSWERED], id="a label that is no class"),
        pytest.param([1, 2], [ANSWERED], id="unequal lengths"),
        pytest.param([[1]], [[ANSWERED]], id="two axes"),
        pytest.param([ABSTAIN], [3], id="an unknown outcome"),
        pytest.param([ABSTAIN], [-1], id="a negative outcome"),
        pytest.param([1], [256], id="an outcome that would wrap to an answer"),
        pytest.param([1.5], [ANSWERED], id="half a class"),
        pytest.param([ABSTAIN, 1], [NOT_ASKED, ANSWERED], id="an answer after a stop"),
        pytest.param([ABSTAIN, ABSTAIN], [NOT_ASKED, REFUSED], id="a refusal after a stop"),
    ],
)
def test_a_release_that_contradicts_itself_is_refused(labels: list, outcomes: list) -> None:
    with pytest.raises(InvalidParameterError):
        release(labels, outcomes)


@st.composite
def releases(draw: st.DrawFn) -> NoisyRelease:
    looked_at = draw(st.lists(st.sampled_from([ANSWERED, REFUSED]), max_size=8))
    outcomes = looked_at + [NOT_ASKED] * draw(st.integers(0, 3))
    labels = [draw(st.integers(0, 9)) if o == ANSWERED else ABSTAIN for o in outcomes]
    return release(labels, outcomes)


@given(releases())
def test_a_release_comes_back_from_plain_data(made: NoisyRelease) -> None:
    again = NoisyRelease.from_record(made.as_record())
    assert again.as_record() == made.as_record()
    assert again.digest == made.digest


@given(releases(), releases())
def test_digests_agree_for_equal_releases_only(one: NoisyRelease, other: NoisyRelease) -> None:
    assert (one.digest == other.digest) == (one.as_record() == other.as_record())


@pytest.mark.parametrize(
    "record",
    [
        pytest.param(None, id="nothing"),
        pytest.param([], id="a list"),
        pytest.param({"labels": [1]}, id="no outcomes"),
        pytest.param({"labels": [1], "outcomes": [0], "counts": [[9]]}, id="more than a release"),
        pytest.param({"labels": [1.0], "outcomes": [0]}, id="a float"),
        pytest.param({"labels": [True], "outcomes": [0]}, id="a bool"),
        pytest.param({"labels": [1], "outcomes": [7]}, id="an unknown outcome"),
        pytest.param({"labels": [1], "outcomes": [-1]}, id="a negative outcome"),
        pytest.param({"labels": [2**31], "outcomes": [0]}, id="a huge label"),
        pytest.param({"labels": [-2], "outcomes": [0]}, id="a negative label"),
        pytest.param({"labels": "1", "outcomes": [0]}, id="a text"),
        pytest.param({"labels": [1, 2], "outcomes": [0]}, id="unequal lengths"),
        pytest.param({"labels": [1], "outcomes": [1]}, id="a label for a refusal"),
        pytest.param({"labels": [-1, 1], "outcomes": [2, 0]}, id="an answer after a stop"),
    ],
)
def test_a_record_that_is_no_release_is_refused(record: object) -> None:
    with pytest.raises(InvalidTermsError):
        NoisyRelease.from_record(record)


def test_a_release_is_frozen() -> None:
    labels, outcomes = np.array([3]), np.array([ANSWERED])
    made = NoisyRelease(labels, outcomes)
    labels[0] = 5
    assert made.labels.tolist() == [3]
    for array in (made.labels, made.outcomes):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0


def test_equal_inputs_are_one_question() -> None:
    pool = QueryPool(np.array([[1.0, 2.0], [0.0, 0.0], [1.0, 2.0], [-0.0, 0.0], [3.0, 4.0]]))
    assert pool.distinct == (0, 1, 4)


ROWS = PublicRows(("a", "b"), ((1.0, "x"), (2.0, "x"), (1.0, "y"), (3.0, None)))
INPUTS = np.array([[1.0], [2.0], [1.0], [3.0]])


def test_the_digest_of_a_pool_of_rows_is_of_the_task_and_the_rows_in_order() -> None:
    task = bytes(range(32))
    pool = QueryPool(INPUTS, ROWS, task=task)
    body = b"pate-fed pool of rows\n" + task + b"".join(ROWS.digests)
    assert pool.digest == hashlib.sha256(body).digest()
    assert pool.ask((2, 0)).digests == (ROWS.digests[2], ROWS.digests[0])
    reordered = QueryPool(INPUTS[::-1], ROWS.pick((3, 2, 1, 0)), task=task)
    other_encoder = QueryPool(INPUTS * 2, ROWS, task=bytes(32))
    assert len({one.digest for one in (pool, reordered, other_encoder)}) == 3
    assert set(reordered.ask((0, 1, 2, 3)).digests) == set(ROWS.digests)
    assert other_encoder.ask((0,)).digests == pool.ask((0,)).digests


def test_of_rows_that_teachers_take_for_one_the_same_is_asked_in_any_order() -> None:
    for order in ((0, 1, 2, 3), (3, 2, 1, 0), (2, 0, 3, 1)):
        rows = ROWS.pick(order)
        pool = QueryPool(INPUTS[list(order)], rows)
        asked = {ROWS.digests.index(rows.digests[place]) for place in pool.distinct}
        assert asked == {1, 3, min((0, 2), key=ROWS.digests.__getitem__)}
        assert list(pool.distinct) == sorted(pool.distinct)


def test_the_same_row_twice_is_one_question() -> None:
    assert len(QueryPool(INPUTS[[0, 1, 0]], ROWS.pick((0, 1, 0))).distinct) == 2


def test_every_input_has_its_row() -> None:
    with pytest.raises(InvalidParameterError):
        QueryPool(INPUTS, ROWS.pick((0, 1)))
    with pytest.raises(InvalidParameterError):
        QueryBatch((0,), INPUTS[:1], ROWS)
