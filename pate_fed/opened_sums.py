"""An opened sum of votes, at the coordinator: its rows are checked, its counts folded."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pate_fed.errors import InvalidParameterError, InvalidVotesError, RowSumError
from pate_fed.votes import MAX_TOTAL_VOTES, NoisyHistogram, SummedHistogram


def open_sum(
    words: NDArray[np.int64], *, queries: int, classes: int, total_votes: int
) -> SummedHistogram:
    """Turn the opened secure sum into counts, without a step that a liar could aim at.

    Two rules, in this order (PROTOCOL rule R11):

    1. Every row must sum to `total_votes` modulo 2^32, checked on ring values, never on decoded
       integers. An honest row's sum is public, so the check tells nothing about honest votes.
    2. Every count s is folded to f(s) = max(0, min(s, total_votes, 2^31 - 1 - s)). One step around
       the ring, the wrap from 2^31 - 1 to -2^31 included, moves f by at most one. So a lie that
       keeps the row sum cannot turn one honest vote into a large jump.

    The words are signed ring values; shape (queries * classes,).

    Raises:
        RowSumError: some row fails rule 1. The batch is void, and the sum does not tell whose row
            it was.
    """
    rows = _rows(words, queries=queries, classes=classes, total_votes=total_votes)
    wrong = (rows.sum(axis=1) - total_votes) % 2**32 != 0
    if wrong.any():
        raise RowSumError(
            f"every row of the sum must come to {total_votes} votes; "
            "whose row is wrong cannot be known from the sum",
            row=int(np.argmax(wrong)),
        )
    folded = fold_counts(rows, total_votes=total_votes)
    try:
        return SummedHistogram(folded, total_votes)
    finally:
        folded.fill(0)


def open_noisy_sum(
    words: NDArray[np.int64],
    *,
    queries: int,
    classes: int,
    total_votes: int,
    sigma: float,
    row_sum_bound: int,
) -> NoisyHistogram:
    """Turn an opened sum that holds everybody's noise into noisy counts (PROTOCOL rule R11).

    Every row must sum to `total_votes` modulo 2^32 within a bound that honest noise exceeds about
    never. An honest row's sum is public votes plus noise, so the check tells nothing about votes.
    It catches accidents; a liar stays below it. Nothing is clamped or folded: the price already
    covers a reader of the rows.

    The words are as in `open_sum`. `DistributedNoise.row_sum_bound` gives the bound.

    Raises:
        RowSumError: some row is off by more; the batch is void.
    """
    if not 0 <= row_sum_bound < 2**31:
        raise InvalidParameterError("row_sum_bound must be between 0 and 2^31 - 1", row_sum_bound)
    rows = _rows(words, queries=queries, classes=classes, total_votes=total_votes)
    off = (rows.sum(axis=1) - total_votes + 2**31) % 2**32 - 2**31
    wrong = np.abs(off) > row_sum_bound
    if wrong.any():
        raise RowSumError(
            f"every row of the noisy sum must come to {total_votes} votes within {row_sum_bound}; "
            "whose row is wrong cannot be known from the sum",
            row=int(np.argmax(wrong)),
        )
    return NoisyHistogram(rows.astype(np.float64), sigma)


def fold_counts(
    values: NDArray[np.int64], *, total_votes: int, ring_bits: int = 32
) -> NDArray[np.int64]:
    """Map signed ring values to [0, total_votes] so that neighbors on the ring stay neighbors.

    Values are signed, in [-2^(b-1), 2^(b-1)), b = `ring_bits`: a small one lets tests try every
    value.

    Returns:
        f(s) = max(0, min(s, total_votes, 2^(b-1) - 1 - s)), the same shape.
    """
    # In place: each step's own array would stay in freed memory, with the exact counts.
    folded: NDArray[np.int64] = 2 ** (ring_bits - 1) - 1 - values
    np.minimum(folded, values, out=folded)
    np.minimum(folded, total_votes, out=folded)
    return np.maximum(folded, 0, out=folded)


def _rows(
    words: NDArray[np.int64], *, queries: int, classes: int, total_votes: int
) -> NDArray[np.int64]:
    values = np.asarray(words, dtype=np.int64)
    if values.shape != (queries * classes,):
        raise InvalidVotesError(f"the sum must hold {queries * classes} words", str(values.shape))
    if not 0 < total_votes <= MAX_TOTAL_VOTES:
        raise InvalidParameterError(
            f"total_votes must be between 1 and {MAX_TOTAL_VOTES}", total_votes
        )
    return values.reshape(queries, classes)
