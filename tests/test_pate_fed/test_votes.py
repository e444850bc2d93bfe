from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from pate_fed.errors import InvalidParameterError, InvalidVotesError, RowSumError
from pate_fed.opened_sums import fold_counts, open_noisy_sum, open_sum
from pate_fed.votes import (
    INVALID_VOTE_CLASS,
    MAX_TOTAL_VOTES,
    NoisedVotes,
    NoiseShare,
    NoisyHistogram,
    SummedHistogram,
    TeacherWeights,
    VoteHistogram,
    count_votes,
)

Counts = NDArray[np.int64]


def wrapped(values: Counts, bits: int = 32) -> Counts:
    half = 2 ** (bits - 1)
    return (values + half) % 2**bits - half


# Counting --------------------------------------------------------------------------------------


@given(data=st.data())
def test_counting_agrees_with_counting_by_hand(data: st.DataObject) -> None:
    classes, queries = data.draw(st.integers(2, 6)), data.draw(st.integers(1, 5))
    ballots = st.lists(st.integers(-2, 8), min_size=queries, max_size=queries)
    votes = data.draw(st.lists(ballots, min_size=1, max_size=6))
    expected = np.zeros((queries, classes), dtype=np.int64)
    for teacher in votes:
        for query, vote in enumerate(teacher):
            expected[query, vote if 0 <= vote < classes else INVALID_VOTE_CLASS] += 1
    counted = count_votes(np.array(votes), classes=classes)
    assert np.array_equal(counted.counts, expected)
    assert (counted.counts.sum(axis=1) == len(votes)).all()


@pytest.mark.parametrize(
    "vote", [np.nan, np.inf, -np.inf, -1.0, 0.5, 2.9999, 3.0, 1e300, -0.1], ids=str
)
def test_what_is_no_class_counts_for_the_fixed_class(vote: float) -> None:
    counts = count_votes(np.array([[vote, 2.0], [1.0, vote]]), classes=3).counts
    assert counts.tolist() == [[1, 1, 0], [1, 0, 1]]


def test_no_vote_changes_the_sum_of_a_row() -> None:
    strange = np.array([[np.nan, -5, 99, np.inf], [1, 2, 0, 0.3]])
    assert (count_votes(strange, classes=3).counts.sum(axis=1) == 2).all()


def test_many_queries_are_counted_as_each_of_them_alone() -> None:
    queries, classes = 2500, 4
    whole = np.random.default_rng(1).integers(-1, classes + 1, size=(3, queries))
    for votes in (whole, whole.astype(np.float64), np.asfortranarray(whole), whole.astype(np.int8)):
        weights = TeacherWeights.of((1, 5, 5))
        counts = count_votes(votes, classes=classes, weights=weights).counts
        for query in (0, 1, 1023, 1024, 1025, 2047, 2048, 2499):
            alone = [0] * classes
            for vote, weight in zip(whole[:, query], (1, 5, 5), strict=True):
                alone[vote if 0 <= vote < classes else INVALID_VOTE_CLASS] += weight
            assert counts[query].tolist() == alone


def test_counting_takes_no_votes_and_no_queries() -> None:
    assert count_votes(np.zeros((0, 2)), classes=2).counts.tolist() == [[0, 0], [0, 0]]
    assert count_votes(np.zeros((3, 0)), classes=2).counts.shape == (0, 2)


@pytest.mark.parametrize("votes", [np.zeros(3), np.zeros((1, 2, 3)), np.float64(1)], ids=str)
def test_votes_have_two_axes(votes: NDArray[np.float64]) -> None:
    with pytest.raises(InvalidVotesError):
        count_votes(votes, classes=3)


@pytest.mark.parametrize("classes", [1, 0, -1])
def test_there_are_two_classes_at_least(classes: int) -> None:
    with pytest.raises(InvalidParameterError):
        count_votes(np.zeros((1, 1)), classes=classes)


@given(data=st.data())
def test_a_vote_counts_as_often_as_its_teachers_weight_says(data: st.DataObject) -> None:
    classes, queries = data.draw(st.integers(2, 5)), data.draw(st.integers(1, 4))
    ballots = st.lists(st.integers(-1, 6), min_size=queries, max_size=queries)
    votes = np.array(data.draw(st.lists(ballots, min_size=1, max_size=6)))
    weights = data.draw(st.lists(st.integers(1, 10**6), min_size=len(votes), max_size=len(votes)))
    counts = count_votes(votes, classes=classes, weights=TeacherWeights.of(weights)).counts
    expected = np.zeros((queries, classes), dtype=np.int64)
    for weight, teacher in zip(weights, votes, strict=True):
        for query, vote in enumerate(teacher):
            expected[query, vote if 0 <= vote < classes else INVALID_VOTE_CLASS] += weight
    assert counts.dtype == np.int64
    assert np.array_equal(counts, expected)
    assert (counts.sum(axis=1) == sum(weights)).all()
    ones = count_votes(votes, classes=classes, weights=TeacherWeights.equal(len(votes))).counts
    assert np.array_equal(ones, count_votes(votes, classes=classes).counts)


def test_the_heaviest_teacher_takes_no_more_memory_than_any_other() -> None:
    votes = np.array([[1, 0], [0, 0]])
    counts = count_votes(
        votes, classes=2, weights=TeacherWeights.of((MAX_TOTAL_VOTES - 1, 1))
    ).counts
    assert counts.tolist() == [[1, MAX_TOTAL_VOTES - 1], [MAX_TOTAL_VOTES, 0]]


@pytest.mark.parametrize(
    "weights",
    [
        pytest.param((1,), id="one missing"),
        pytest.param((1, 1, 1), id="one too many"),
        pytest.param((1, 0), id="none"),
        pytest.param((1, -1), id="negative"),
        pytest.param((1, 1.5), id="no whole number"),
        pytest.param((1, 2**30), id="more than the ring holds"),
    ],
)
def test_weights_must_be_whole_and_one_for_each_teacher(weights: tuple[int, ...]) -> None:
    with pytest.raises((InvalidVotesError, InvalidParameterError)):
        count_votes(np.zeros((2, 3)), classes=2, weights=TeacherWeights.of(weights))


@pytest.mark.parametrize(
    "runs",
    [
        pytest.param((), id="no teacher"),
        pytest.param(((1,),), id="no number of teachers"),
        pytest.param(((1, 0),), id="a run of nobody"),
        pytest.param(((1, 2), (1, 3)), id="one run written as two"),
        pytest.param(((True, 2),), id="a yes for a weight"),
    ],
)
def test_weights_have_one_form(runs: Any) -> None:
    with pytest.raises(InvalidParameterError):
        TeacherWeights(runs)


@given(st.lists(st.integers(1, 5), min_size=1, max_size=12))
def test_weights_of_all_teachers_are_kept(weights: list[int]) -> None:
    kept = TeacherWeights.of(weights)
    assert [weight for weight, count in kept.runs for _ in range(count)] == weights
    assert (kept.teachers, kept.votes, kept.heaviest) == (len(weights), sum(weights), max(weights))


# The fold, on a small ring: everything is tried ------------------------------------------------

BITS = 8
RING = np.arange(-128, 128, dtype=np.int64)


@pytest.mark.parametrize("quota", [1, 2, 5, 31, 63])
def test_one_step_around_the_ring_moves_a_count_by_one_at_most(quota: int) -> None:
    folded = fold_counts(RING, total_votes=quota, ring_bits=BITS)
    around = np.append(folded, folded[0])  # the step from 127 to -128 included
    assert np.abs(np.diff(around)).max() <= 1
    assert folded.min() == 0
    assert folded.max() == quota


@pytest.mark.parametrize("quota", [1, 2, 5, 31, 63])
def test_an_honest_count_is_not_changed(quota: int) -> None:
    honest = np.arange(quota + 1)
    assert np.array_equal(fold_counts(honest, total_votes=quota, ring_bits=BITS), honest)


def neighbors(votes: int, classes: int) -> list[tuple[Counts, Counts]]:
    """All pairs of honest rows that differ in one vote."""
    rows = [
        np.array(row)
        for row in itertools.product(range(votes + 1), repeat=classes)
        if sum(row) == votes
    ]
    return [(a, b) for a in rows for b in rows if np.abs(a - b).sum() == 2]


def test_no_lie_makes_one_honest_vote_count_for_more_than_one_in_two_classes() -> None:
    """Every lie in two classes of the 8-bit ring, against every honest pair of neighbors."""
    lies = np.array(list(itertools.product(RING, RING)))
    for one, other in neighbors(4, classes=2):
        moved = np.abs(
            fold_counts(wrapped(one + lies, BITS), total_votes=7, ring_bits=BITS)
            - fold_counts(wrapped(other + lies, BITS), total_votes=7, ring_bits=BITS)
        )
        assert moved.max() <= 1  # so a row moves by sqrt(2) at most: what is paid for


def test_sum_preserving_lies_in_three_classes_move_two_counts_by_one_at_most() -> None:
    pairs = np.array(list(itertools.product(RING[::3], RING[::5])))
    lies = np.column_stack([pairs, wrapped(-pairs.sum(axis=1), BITS)])
    for one, other in neighbors(3, classes=3):
        moved = np.abs(
            fold_counts(wrapped(one + lies, BITS), total_votes=7, ring_bits=BITS)
            - fold_counts(wrapped(other + lies, BITS), total_votes=7, ring_bits=BITS)
        )
        assert moved.max() <= 1
        assert (moved != 0).sum(axis=1).max() <= 2


def test_a_plain_clamp_would_be_broken() -> None:
    """The attack that the fold is for: at the wrap a clamp turns one vote into all of them."""

    def clamp(values: Counts, quota: int) -> Counts:
        return np.clip(values, 0, quota)

    quota, lie = 20, 127 - 4  # the label would tell whether four honest votes are there
    three, four = (wrapped(np.array([honest + lie + 1]), BITS) for honest in (3, 4))
    assert np.abs(clamp(three, quota) - clamp(four, quota)).max() == quota
    folded = [fold_counts(v, total_votes=quota, ring_bits=BITS) for v in (three, four)]
    assert np.abs(folded[0] - folded[1]).max() <= 1


def test_one_vote_can_move_two_counts_the_same_way() -> None:
    """Why malicious parties are priced with the vector's distance, not with one class's gain."""
    lie = np.array([100, 28, -128])  # sums to 0
    before, after = np.array([1, 0, 9]), np.array([0, 1, 9])
    folded = [
        fold_counts(wrapped(row + lie, BITS), total_votes=40, ring_bits=BITS)
        for row in (before, after)
    ]
    moved = folded[1] - folded[0]
    assert moved.tolist() == [1, 1, 0]


# Opening a sum ---------------------------------------------------------------------------------

SHAPE = {"queries": 2, "classes": 3}
HONEST = np.array([[3, 1, 1], [0, 0, 5]], dtype=np.int64)
LIES = [0, 1, -1, 2**30, 2**31 - 1, -(2**31), 2**31 - 4, 12345]


def opened(rows: Counts, quota: int = 5) -> Counts:
    return open_sum(wrapped(rows).ravel(), **SHAPE, total_votes=quota).counts


def test_an_honest_sum_opens_as_it_is() -> None:
    assert np.array_equal(opened(HONEST), HONEST)


@given(st.lists(st.sampled_from(LIES), min_size=6, max_size=6))
def test_whether_a_row_sum_fails_depends_on_the_lie_alone(lies: list[int]) -> None:
    """Not on one honest vote: so a void batch tells nothing (rule R12)."""
    lie = np.array(lies).reshape(2, 3)
    fails = bool((lie.sum(axis=1) % 2**32).any())
    for honest in (HONEST, HONEST[::-1], np.array([[5, 0, 0], [1, 2, 2]])):
        if fails:
            with pytest.raises(RowSumError):
                opened(honest + lie)
        else:
            assert opened(honest + lie).max() <= 5


@pytest.mark.parametrize("first", LIES)
@pytest.mark.parametrize("second", LIES)
def test_a_sum_preserving_lie_is_folded_and_seen_by_nobody(first: int, second: int) -> None:
    lie = np.array([[first, second, -(first + second)], [0, first, -first]])
    counts = opened(HONEST + lie)
    assert counts.min() >= 0
    assert counts.max() <= 5
    moved = HONEST + lie
    moved[0, 0], moved[0, 1] = moved[0, 0] - 1, moved[0, 1] + 1  # one honest vote elsewhere
    assert np.abs(opened(moved) - counts).max() <= 1


@pytest.mark.parametrize("change", [1, -1, 2**31, -(2**31), 2**32 - 1, 10**6])
def test_a_row_that_misses_the_quota_voids_the_batch(change: int) -> None:
    lie = np.zeros((2, 3), dtype=np.int64)
    lie[1, 2] = change
    with pytest.raises(RowSumError) as caught:
        opened(HONEST + lie)
    assert str(change) not in str(caught.value)


def test_rows_that_make_up_for_one_another_do_not_pass() -> None:
    with pytest.raises(RowSumError):
        opened(HONEST + np.array([[1, 0, 0], [-1, 0, 0]]))


def test_row_sums_are_compared_around_the_ring() -> None:
    rows = np.array([[2**31 - 1, 2**31 - 1, 7], [0, 0, 5]])  # 2^32 + 5
    assert opened(rows).tolist() == [[0, 0, 5], [0, 0, 5]]


@pytest.mark.parametrize("quota", [0, -1, MAX_TOTAL_VOTES + 1])
def test_the_quota_leaves_the_ring_room(quota: int) -> None:
    with pytest.raises(InvalidParameterError):
        opened(HONEST, quota)


@pytest.mark.parametrize("shape", [(5,), (7,), (2, 3), (0,)], ids=str)
def test_a_sum_of_another_size_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(InvalidVotesError):
        open_sum(np.zeros(shape, dtype=np.int64), **SHAPE, total_votes=5)


def test_the_largest_quota_opens() -> None:
    rows = np.array([[MAX_TOTAL_VOTES, 0, 0], [0, 1, MAX_TOTAL_VOTES - 1]])
    assert np.array_equal(opened(rows, MAX_TOTAL_VOTES), rows)


# Values ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "counts",
    [
        pytest.param([[-1, 2]], id="negative"),
        pytest.param([1, 2], id="one axis"),
        pytest.param([[[1]]], id="three axes"),
        pytest.param([[1.0, 2.0]], id="floats"),
        pytest.param([[True, False]], id="bools"),
        pytest.param(np.array([[2**64 - 1]], dtype=np.uint64), id="unsigned and huge"),
    ],
)
def test_counts_that_no_teachers_cast_are_refused(counts: object) -> None:
    for make in (VoteHistogram, lambda c: SummedHistogram(c, 3)):
        with pytest.raises(InvalidVotesError):
            make(np.array(counts))


def test_a_sum_holds_no_more_than_the_votes_cast() -> None:
    SummedHistogram(np.array([[3, 3]]), 3)
    with pytest.raises(InvalidVotesError):
        SummedHistogram(np.array([[4, 0]]), 3)


@pytest.mark.parametrize("counts", [[[np.nan]], [[np.inf]], [1.0]], ids=str)
def test_noisy_counts_are_finite_rows(counts: list[object]) -> None:
    with pytest.raises(InvalidVotesError):
        NoisyHistogram(np.array(counts, dtype=np.float64), 1.0)


@pytest.mark.parametrize(
    "value",
    [
        VoteHistogram(np.array([[987654, 1]])),
        SummedHistogram(np.array([[987654, 1]]), 10**6),
        NoisyHistogram(np.array([[987654.5, 1.0]]), 40.0),
    ],
    ids=lambda value: type(value).__name__,
)
def test_votes_are_frozen_and_show_their_shape_only(
    value: VoteHistogram | SummedHistogram | NoisyHistogram,
) -> None:
    assert "987654" not in f"{value!r}{value!s}"
    assert repr(value) == f"{type(value).__name__}(queries=1, classes=2)"
    with pytest.raises(ValueError, match="read-only"):
        value.counts[0, 0] = 0
    with pytest.raises(AttributeError):
        value.counts = np.zeros((1, 2))  # type: ignore[misc, assignment]


def test_a_histogram_does_not_follow_what_it_was_made_from() -> None:
    source = np.array([[1, 2]])
    histogram = VoteHistogram(source)
    source[0, 0] = 9
    assert histogram.counts.tolist() == [[1, 2]]


# Noise at the parties ---------------------------------------------------------------------------


def opened_noisy(words: Counts, **changed: float) -> NoisyHistogram:
    settings = {"queries": 2, "classes": 2, "total_votes": 10, "sigma": 3.0, "row_sum_bound": 6}
    return open_noisy_sum(words, **{**settings, **changed})


def test_noisy_counts_are_neither_clamped_nor_folded() -> None:
    assert opened_noisy(np.array([-4, 17, 30, -23])).counts.tolist() == [[-4, 17], [30, -23]]


@pytest.mark.parametrize("off", [-6, 6])
def test_row_sums_may_be_off_by_the_bound_and_no_more(off: int) -> None:
    assert opened_noisy(np.array([5, 5 + off, 4, 6])).counts[0].tolist() == [5, 5 + off]
    with pytest.raises(RowSumError) as failed:
        opened_noisy(np.array([5, 5 + off + (1 if off > 0 else -1), 4, 6]))
    assert str(11 + off) not in failed.value.got


@given(st.integers(-6, 6), st.integers(-(2**31), 2**31 - 1))
def test_row_sums_are_checked_modulo_the_ring(off: int, first: int) -> None:
    second = int(wrapped(np.array([10 + off - first]))[0])
    assert opened_noisy(np.array([4, 6, first, second])).counts[1].tolist() == [first, second]


@pytest.mark.parametrize(
    "changed",
    [{"row_sum_bound": -1}, {"row_sum_bound": 2**31}, {"total_votes": 0}, {"total_votes": 2**30}],
    ids=str,
)
def test_opening_out_of_range_is_refused(changed: dict[str, float]) -> None:
    with pytest.raises(InvalidParameterError):
        opened_noisy(np.zeros(4, dtype=np.int64), **changed)
    with pytest.raises(InvalidVotesError):
        opened_noisy(np.zeros(3, dtype=np.int64))


@pytest.mark.parametrize("secret", [NoiseShare, NoisedVotes])
def test_shares_and_noised_votes_show_their_shape_only_and_cannot_be_changed(
    secret: type[NoiseShare] | type[NoisedVotes],
) -> None:
    held = secret(np.array([[-987_654, 123_456]]))
    assert repr(held) == f"{secret.__name__}(queries=1, classes=2)"
    with pytest.raises(ValueError, match="read-only"):
        held.counts[0, 0] = 0
    for wrong in (np.zeros(3, dtype=np.int64), np.zeros((1, 2))):
        with pytest.raises(InvalidVotesError):
            secret(wrong)


@pytest.mark.parametrize("counted", [NoiseShare, VoteHistogram])
def test_what_somebody_else_could_change_is_copied(
    counted: type[NoiseShare] | type[VoteHistogram],
) -> None:
    writable = np.array([[1, 2]])
    view = writable[:]
    view.flags.writeable = False
    for handed in (writable, view):
        held = counted(handed)
        writable[0, 0] += 5
        assert held.counts[0, 0] == writable[0, 0] - 5
    frozen = np.array([[1, 2]])
    frozen.flags.writeable = False
    assert counted(frozen).counts is frozen


def test_a_share_fits_its_votes_only() -> None:
    share = NoiseShare(np.array([[1, -9]]))
    assert share.add_to(VoteHistogram(np.array([[3, 2]]))).counts.tolist() == [[4, -7]]
    with pytest.raises(InvalidVotesError):
        share.add_to(VoteHistogram(np.array([[3, 2], [1, 4]])))
