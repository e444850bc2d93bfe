"""Votes, from one party's count to the noisy sum, each stage its own type.

A function that takes a `NoisyHistogram` cannot be handed a `VoteHistogram`: the type
checker is the first privacy review. Counts are integers until noise is added.

    noise at the coordinator:  VoteHistogram -> secure sum -> SummedHistogram -> NoisyHistogram
    noise at the parties:      VoteHistogram + NoiseShare = NoisedVotes -> secure sum
                               -> NoisyHistogram; the clean sum exists nowhere
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from pate_fed.errors import InvalidParameterError, InvalidVotesError

INVALID_VOTE_CLASS = 0
"""Class that an unusable prediction (NaN, missing, out of range) is counted for.

A fixed class keeps every row sum equal to the number of teachers, so a broken model can
neither stop a batch nor make itself seen.
"""

MAX_TOTAL_VOTES = 2**30 - 1
"""Most votes a query may receive in all, so that sums fit the ring with room to spare."""

NEAR_SHARE = 0.08
"""Share of the public pool that counts as close to a query, where records close to it vote."""

RECORDS_PER_TEACHER: Final = 8
"""Default number of patients of a table's teacher; see `pate_fed.planning.defaults.Defaults`."""

_QUERIES_AT_ONCE = 1024


@dataclass(frozen=True, slots=True)
class TeacherWeights:
    """How many votes each teacher of a party casts per query; public.

    Attributes:
        runs: (weight, teachers): this many teachers of this weight, one run after another;
            neighbors differ in weight. A large hospital is as short as a small one.
    """

    runs: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        numbers = [number for run in self.runs for number in run]
        if not numbers or not all(type(number) is int and number >= 1 for number in numbers):
            raise InvalidParameterError("weights must be at least 1 each")
        if any(len(run) != 2 for run in self.runs):
            raise InvalidParameterError("weights must be runs of a weight and its teachers")
        if any(run[0] == following[0] for run, following in pairwise(self.runs)):
            raise InvalidParameterError("one run of weights must be written once")
        if self.votes > MAX_TOTAL_VOTES:
            raise InvalidParameterError(f"votes must be at most {MAX_TOTAL_VOTES}", self.votes)

    @classmethod
    def equal(cls, teachers: int, *, weight: int = 1) -> Self:
        """Give all teachers the same weight."""
        return cls(((weight, teachers),))

    @classmethod
    def of(cls, weights: Iterable[int]) -> Self:
        """Give each teacher its own."""
        return cls(tuple((weight, len(list(run))) for weight, run in groupby(weights)))

    @property
    def teachers(self) -> int:
        """Number of teachers."""
        return sum(teachers for _, teachers in self.runs)

    @property
    def votes(self) -> int:
        """Votes of all of them on a query."""
        return sum(weight * teachers for weight, teachers in self.runs)

    @property
    def heaviest(self) -> int:
        """Most votes of one teacher."""
        return max(weight for weight, _ in self.runs)


def teachers_of(units: int, *, records_per_teacher: int) -> int:
    """Return the number of a hospital's teachers, from its number of patients or records.

    It is public. A hospital with fewer than a teacher's has one all the same.
    """
    return max(1, units // records_per_teacher)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class _Counts:
    """Whole numbers for each query and class. Prints their shape alone.

    Attributes:
        counts: In votes; int64, shape (queries, classes), read-only.
    """

    counts: NDArray[np.int64]

    def __post_init__(self) -> None:
        object.__setattr__(self, "counts", _checked_integers(self.counts))

    def __repr__(self) -> str:
        return _shape_only(self, self.counts)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class VoteHistogram(_Counts):
    """One party's teacher votes, counted per query and class; none negative.

    Secret: a histogram stays inside the party that counted it.
    """

    def __post_init__(self) -> None:
        object.__setattr__(self, "counts", _checked_counts(self.counts))


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class NoiseShare(_Counts):
    """The part of the noise that one party adds, for one plan.

    Secret: with it, this party's noised votes can be read without noise. It is added once and
    stored only in the sent sum.
    """

    def add_to(self, votes: VoteHistogram) -> NoisedVotes:
        """Return a party's votes with its noise; nothing is clamped."""
        if votes.counts.shape != self.counts.shape:
            raise InvalidVotesError("votes must fit the noise share", str(votes.counts.shape))
        noised = votes.counts + self.counts
        noised.flags.writeable = False
        return NoisedVotes(noised)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class NoisedVotes(_Counts):
    """One party's votes plus its noise share, of either sign: its input to the secure sum.

    Secret: one share alone is far too narrow to protect the votes under it.
    """


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class SummedHistogram(_Counts):
    """The exact sum of all parties' votes. Exists where noise is the coordinator's to add.

    Secret: in memory only, at the coordinator; never stored, logged, printed or counted.
    Two things read it: `pate_fed.mechanisms.CoordinatorNoise`, and the per-instance cost.

    Attributes:
        total_votes: Votes cast per query. After the fold of `open_sum` each count is between 0
            and this.
    """

    total_votes: int

    def __post_init__(self) -> None:
        counts = _checked_counts(self.counts)
        if (counts > self.total_votes).any():
            raise InvalidVotesError("counts must be folded to at most the votes cast")
        object.__setattr__(self, "counts", counts)

    def of_classes(self, classes: int) -> SummedHistogram:
        """Return the counts of classes alone; one more, of those who cast no vote, is erased."""
        if self.counts.shape[1] == classes:
            return self
        kept = self.counts[:, :classes].copy()
        kept.flags.writeable = False  # so that it is not copied once more
        self.erase()
        return SummedHistogram(kept, self.total_votes)

    def erase(self) -> None:
        """Overwrite the counts with zeros, once they are used. Python may hold other copies."""
        self.counts.flags.writeable = True
        self.counts.fill(0)
        self.counts.flags.writeable = False


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class NoisyHistogram:
    """Summed votes plus noise: the input of a mechanism's decision.

    Attributes:
        rest: The part of each draw that rounding cut off, which decides ties; of the same shape,
            read-only. None where the noise is whole.
    """

    counts: NDArray[np.float64]
    sigma: float
    rest: NDArray[np.float64] | None = None

    def __post_init__(self) -> None:
        counts = np.array(self.counts, dtype=np.float64)
        if counts.ndim != 2 or not np.isfinite(counts).all():
            raise InvalidVotesError("noisy counts must be finite, with 2 axes", str(counts.shape))
        counts.flags.writeable = False
        object.__setattr__(self, "counts", counts)
        if self.rest is not None:
            rest = np.array(self.rest, dtype=np.float64)
            if rest.shape != counts.shape:
                raise InvalidVotesError("the rest must fit the noisy counts", str(rest.shape))
            rest.flags.writeable = False
            object.__setattr__(self, "rest", rest)

    def __repr__(self) -> str:
        return _shape_only(self, self.counts)


def count_votes(
    votes: NDArray[np.int64] | NDArray[np.float64],
    *,
    classes: int,
    weights: TeacherWeights | None = None,
) -> VoteHistogram:
    """Count each teacher's vote per query, as often as its public weight says.

    A prediction that is no class (NaN, negative, too large, not a whole number) is counted for
    `INVALID_VOTE_CLASS`.

    Votes are of shape (teachers, queries); without weights each counts once.
    """
    if classes < 2:
        raise InvalidParameterError("classes must be at least 2", classes)
    raw = np.asarray(votes)
    if raw.ndim != 2:
        raise InvalidVotesError("votes must have 2 axes (teachers, queries)", f"{raw.ndim}")
    runs = ((1, len(raw)),) if weights is None else weights.runs
    if weights is not None and weights.teachers != len(raw):
        raise InvalidVotesError(f"votes must be of {weights.teachers} teachers", len(raw))
    if raw.dtype.kind not in "biuf":
        raw = raw.astype(np.float64)
    queries = raw.shape[1]
    counts = np.zeros((queries, classes), dtype=np.int64)
    # Some queries of all teachers at a time: intermediate arrays stay in the cache.
    for start in range(0, queries, _QUERIES_AT_ONCE):
        these = slice(start, start + _QUERIES_AT_ONCE)
        _count_into(counts[these], _choices(raw[:, these], classes), runs)
    counts.flags.writeable = False
    return VoteHistogram(counts)


def cap_votes(
    votes: NDArray[np.float64], *, used: NDArray[np.int64], most: int, classes: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Let every patient vote on at most so many queries of a run, in the order asked.

    Guarantee: whatever the votes are, no row of all results of a run has more than `most` classes
    in it, and a row depends on this patient's votes alone. It is the one place that a price of
    records that vote rests on (docs/explanation/records-that-vote.md).

    Args:
        votes: Class for which each patient would vote; anything else is no vote; shape (patients,
            queries).
        used: Votes that each cast before in this run; shape (patients,).
        most: The cap, at least 1.
        classes: Their number.

    Returns:
        The votes that count, `classes` for none, int64, shape (patients, queries); and the votes
        used up afterwards, shape (patients,).
    """
    raw = np.asarray(votes, dtype=np.float64)
    is_vote = (raw >= 0) & (raw < classes) & (raw == np.floor(raw))
    cast = used[:, np.newaxis] + np.cumsum(is_vote, axis=1)
    counted = np.where(is_vote & (cast <= most), raw, classes).astype(np.int64)
    return counted, used + (counted < classes).sum(axis=1)


def _count_into(
    counts: NDArray[np.int64], choices: NDArray[np.int64], runs: Iterable[tuple[int, int]]
) -> None:
    """Add each teacher's vote to the counts of some queries, times its weight."""
    queries, classes = counts.shape
    flat, first = counts.reshape(-1), 0
    choices += np.arange(queries) * classes
    for weight, teachers in runs:
        np.add.at(flat, choices[first : first + teachers].reshape(-1), weight)
        first += teachers


def _choices(votes: NDArray[Any], classes: int) -> NDArray[np.int64]:
    """Read teachers' votes; a vote outside the classes becomes `INVALID_VOTE_CLASS`."""
    with np.errstate(invalid="ignore"):  # NaN and infinity become some number, which differs
        choices = votes.astype(np.int64, order="C")
    valid = choices.view(np.uint64) < classes  # a negative number is a large one, unsigned
    if votes.dtype.kind == "f":
        valid &= choices == votes
    np.copyto(choices, INVALID_VOTE_CLASS, where=~valid)
    return choices


def _checked_counts(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    checked = _checked_integers(counts)
    if checked.min(initial=0) < 0:
        raise InvalidVotesError("counts must not be negative")
    return checked


def _checked_integers(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    raw = np.asarray(counts)
    if raw.ndim != 2 or not np.issubdtype(raw.dtype, np.integer):
        raise InvalidVotesError(
            "counts must be integers with 2 axes", f"{raw.dtype} with {raw.ndim}"
        )
    if raw.dtype == np.int64 and raw.base is None and not raw.flags.writeable:
        return raw  # nobody can change it: a long vector need not be held twice
    checked = np.array(raw, dtype=np.int64)
    checked.flags.writeable = False
    return checked


def _shape_only(value: object, counts: NDArray[np.int64] | NDArray[np.float64]) -> str:
    queries, classes = counts.shape
    return f"{type(value).__name__}(queries={queries}, classes={classes})"
