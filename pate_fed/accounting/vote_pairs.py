"""Neighboring pairs of vote rows, by kind: how far the top count moves, how much a label tells.

The joint price (`joint_price`) of a setting covers every kind that may occur in it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from pate_fed.accounting.discrete_law import LOG_ERROR as DISCRETE_LOG_ERROR
from pate_fed.accounting.discrete_law import discrete_gap_law
from pate_fed.accounting.label_divergence import (
    LARGEST_REACH,
    bernoulli_divergence,
    many_class_divergence,
    two_class_divergence,
)
from pate_fed.accounting.ranges import positive, whole
from pate_fed.errors import InvalidParameterError

Noise = Literal["gaussian", "discrete-gaussian"]
Table = NDArray[np.float64]
_Kinds = tuple[NDArray[np.int64], Table]
MOST_TEACHERS: Final = 1000
"""Most teachers for three or more classes: the time grows with their square."""
MOST_TEACHERS_TWO_CLASSES: Final = 10_000
MOST_MOVED: Final = 100
"""Most votes of one hospital that the joint price covers."""
_LARGEST_RATIO = 1e9


@dataclass(frozen=True, slots=True)
class JointSetting:
    """The public facts from which the joint price follows; checked.

    Attributes:
        teachers: Bound on the votes of a query; at least 1.
        classes: Number of classes or more, at least 2.
        vote_threshold: Noisy top count from which a query is answered, in votes.
        sigma1: Standard deviation of the noise in that check, in votes.
        sigma2: Standard deviation of the noise in each count, in votes.
        weight: Votes that one neighboring change can move: k for a hospital of k teachers.
        may_abstain: Whether a teacher may cast no vote. How many did is then not published.
        noise: "gaussian", or "discrete-gaussian" on the whole numbers, for two classes; ties go
            to the lower class.

    Raises:
        InvalidParameterError: an argument is out of its range, or no joint price is known.
    """

    teachers: int
    classes: int
    vote_threshold: float
    sigma1: float
    sigma2: float
    weight: int = 1
    may_abstain: bool = False
    noise: Noise = "gaussian"

    def __post_init__(self) -> None:
        object.__setattr__(self, "classes", _at_least("classes", self.classes, 2))
        object.__setattr__(self, "teachers", _at_least("teachers", self.teachers, 1))
        object.__setattr__(self, "weight", _at_least("weight", self.weight, 1))
        object.__setattr__(self, "sigma1", positive("sigma1", self.sigma1))
        object.__setattr__(self, "sigma2", positive("sigma2", self.sigma2))
        object.__setattr__(self, "vote_threshold", float(self.vote_threshold))
        object.__setattr__(self, "may_abstain", bool(self.may_abstain))
        self._check_reach()
        self._check_noise()

    def _check_reach(self) -> None:
        most = MOST_TEACHERS_TWO_CLASSES if self.classes == 2 else MOST_TEACHERS
        if self.teachers > most:
            raise InvalidParameterError(
                f"the joint price of {self.classes} classes needs at most {most} teachers",
                self.teachers,
            )
        if self.weight > min(self.teachers, MOST_MOVED):
            limit = min(self.teachers, MOST_MOVED)
            raise InvalidParameterError(f"weight must be at most {limit}", self.weight)
        if not math.isfinite(self.vote_threshold):
            raise InvalidParameterError("vote_threshold must be finite", self.vote_threshold)
        reach = self.teachers + abs(self.vote_threshold) + self.weight
        if self.classes > 2 and self.teachers > math.sqrt(2) * LARGEST_REACH * self.sigma2:
            least = self.teachers / (math.sqrt(2) * LARGEST_REACH)
            raise InvalidParameterError(
                f"the joint price of {self.classes} classes needs sigma2 of at least {least:.4g}",
                self.sigma2,
            )
        for name, sigma in (("sigma1", self.sigma1), ("sigma2", self.sigma2)):
            if not (reach / sigma < _LARGEST_RATIO and sigma < _LARGEST_RATIO):
                raise InvalidParameterError(f"{name} must fit the votes and the threshold", sigma)

    def _check_noise(self) -> None:
        if self.noise not in ("gaussian", "discrete-gaussian"):
            raise InvalidParameterError(
                'noise must be "gaussian" or "discrete-gaussian"', self.noise
            )
        if self.noise == "discrete-gaussian" and self.classes > 2:
            raise InvalidParameterError(
                "discrete noise has a joint price for two classes only", self.classes
            )


def kinds_of_pairs(setting: JointSetting, order: float) -> _Kinds:
    """Return moves of the top count and the label's E for each kind of neighboring pair.

    Both have shape (kinds, teachers + 1), a column per top count; E is -1 where there is none.
    """
    if setting.classes > 2:
        # The check does not enter: settings that differ in it alone share the result.
        return _many_class_kinds(replace(setting, vote_threshold=0.0, sigma1=1.0), order)
    moved = [setting.weight] if setting.may_abstain else range(1, setting.weight + 1)
    tables = [_TwoClassGaps(_two_class_table(setting, votes, order)) for votes in moved]
    if not setting.may_abstain:
        return _two_class_kinds(tables, setting.teachers)
    if setting.weight == 1:
        return _one_vote_kinds(tables[0], setting.teachers, may_abstain=True)
    return _many_vote_kinds(tables[0], setting.teachers, setting.weight)


@lru_cache(maxsize=256)
def _many_class_kinds(setting: JointSetting, order: float) -> _Kinds:
    bounds = many_class_divergence(
        teachers=setting.teachers,
        classes=setting.classes,
        sigma=setting.sigma2,
        moved=setting.weight,
        order=order,
    )
    gaps = _ManyClassGaps(bounds.touching, bounds.apart)
    if setting.weight == 1:
        return _one_vote_kinds(gaps, setting.teachers, may_abstain=setting.may_abstain)
    return _many_vote_kinds(gaps, setting.teachers, setting.weight)


def _two_class_table(setting: JointSetting, moved: int, order: float) -> Table:
    """Return E for each gap n_i - n_j, for either class as the lower; shape (2 teachers + 1,)."""
    gaps = np.arange(-setting.teachers, setting.teachers + 1)
    if setting.noise == "gaussian":
        return two_class_divergence(gaps, sigma=setting.sigma2, moved=moved, order=order)
    # Class i wins ties where it is the lower class; where it is the higher, it wins as with a
    # gap smaller by one.
    as_lower, as_higher = (
        bernoulli_divergence(
            discrete_gap_law(gaps - late, sigma=setting.sigma2),
            discrete_gap_law(gaps - late - 2 * moved, sigma=setting.sigma2),
            order,
            log_error=DISCRETE_LOG_ERROR,
        )
        for late in (0, 1)
    )
    return np.asarray(np.maximum(as_lower, as_higher))


class _TwoClassGaps:
    """Largest E over a range of gaps, by maxima over all ranges of a power of two."""

    def __init__(self, values: Table) -> None:
        self._teachers = len(values) // 2
        self._levels = [values]
        while 2 ** len(self._levels) <= len(values):
            last, half = self._levels[-1], 2 ** (len(self._levels) - 1)
            self._levels.append(np.maximum(last[:-half], last[half:]))

    def largest(self, low: NDArray[np.int64], high: NDArray[np.int64]) -> Table:
        """Return the largest E over gaps from low to high, -1 where there are none."""
        length = high - low + 1
        result = np.full(len(low), -1.0)
        for level, values in enumerate(self._levels):
            here = (length >= 2**level) & (length < 2 ** (level + 1))
            first, last = low[here], high[here] - 2**level + 1
            result[here] = np.maximum(values[first + self._teachers], values[last + self._teachers])
        return result

    def apart(self) -> Table:
        """Return -1s: there is no third class."""
        return np.full(self._teachers + 1, -1.0)


class _ManyClassGaps:
    """Largest E over a range of gaps between a class with the most votes and another."""

    def __init__(self, touching: Table, apart: Table) -> None:
        teachers = len(apart) - 1
        self._gaps = np.arange(-teachers, teachers + 1)
        both = 2 * np.arange(teachers + 1)[:, np.newaxis] - np.abs(self._gaps)
        possible = (both >= np.abs(self._gaps)) & (both <= teachers)
        rows = np.where(possible, both, 0)
        values = np.take_along_axis(touching, rows, axis=0)
        self._values = np.where(possible, values, -1.0)
        tops = np.arange(teachers + 1)
        self._apart = np.where((tops >= 1) & (tops < teachers), apart, -1.0)

    def largest(self, low: NDArray[np.int64], high: NDArray[np.int64]) -> Table:
        """Return the largest E over gaps from low to high, -1 where there are none."""
        inside = (self._gaps >= low[:, np.newaxis]) & (self._gaps <= high[:, np.newaxis])
        return np.asarray(np.where(inside, self._values, -1.0).max(axis=1))

    def apart(self) -> Table:
        """Return E where a third class has the most votes; -1 where it cannot."""
        return self._apart


_Gaps = _TwoClassGaps | _ManyClassGaps


def _one_vote_kinds(gaps: _Gaps, teachers: int, *, may_abstain: bool) -> _Kinds:
    """List the kinds of pairs of Theorem B: one vote moves from class i to class j.

    With g = n_i - n_j and top count m: i has the top and keeps it (m falls by 1, or stays where a
    third class has it too), i hands it to j (g = 1, m stays), j has it (m rises), a third class
    has it (m stays). A vote that is withdrawn or added costs no more than one that moves.
    """
    tops = np.arange(teachers + 1)
    floor = np.maximum(0, 2 * tops - teachers)
    third = np.maximum(floor, 3 * tops - teachers)
    one = np.where((floor <= 1) & (tops >= 1), 1, 2)
    falls = gaps.largest(np.maximum(2, floor), tops)
    rises = gaps.largest(1 - tops, -floor)
    stays = np.maximum(gaps.largest(one, np.ones_like(tops)), gaps.apart())
    if isinstance(gaps, _ManyClassGaps):
        stays = np.maximum(stays, gaps.largest(np.maximum(2, third), tops))
    if may_abstain:
        falls = gaps.largest(np.maximum(1, floor), tops)
        rises = gaps.largest(-tops, -floor)
        stays = np.maximum(stays, np.maximum(gaps.largest(floor, tops), rises))
    moves = np.array([-1, 0, 1])[:, np.newaxis] + 0 * tops
    return _within(moves, np.array([falls, stays, rises]), teachers)


def _many_vote_kinds(gaps: _Gaps, teachers: int, weight: int) -> _Kinds:
    """List the kinds of pairs if up to k votes move between any classes.

    Everything is convex in the move: the worst ones move all k votes from one class to another,
    and the top count by k, as far as it can; the two need not go together.
    """
    tops = np.arange(teachers + 1)
    floor = np.maximum(0, 2 * tops - teachers)
    label = np.maximum(gaps.largest(floor, tops), gaps.largest(-tops, -floor))
    label = np.maximum(label, gaps.apart())
    moves = np.array([-np.minimum(weight, tops), np.minimum(weight, teachers - tops)])
    return moves, np.array([label, label])


def _two_class_kinds(tables: list[_TwoClassGaps], teachers: int) -> _Kinds:
    """List every pair of two classes: d votes move from i to j, d from 1 to the weight."""
    tops = np.arange(teachers + 1)
    floor = np.maximum(0, 2 * tops - teachers)
    weight = len(tables)
    label = np.full((2 * weight + 1, teachers + 1), -1.0)
    for moved, gaps in enumerate(tables, start=1):
        enough = tops >= moved
        ahead = np.where(enough, np.maximum(2 * moved, floor), tops + 1)
        _raise(label, weight - moved, gaps.largest(ahead, tops))
        for gap in range(2 * moved):
            here = enough & (floor <= gap) & (gap <= tops)
            single = gaps.largest(np.where(here, gap, 1), np.where(here, gap, 0))
            _raise(label, weight + moved - gap, single)
        _raise(label, weight + moved, gaps.largest(moved - tops, -floor))
    moves = np.arange(-weight, weight + 1)[:, np.newaxis] + 0 * tops
    return _within(moves, label, teachers)


def _raise(label: Table, row: int, values: Table) -> None:
    np.maximum(label[row], values, out=label[row])


def _within(moves: NDArray[np.int64], label: Table, teachers: int) -> _Kinds:
    after = np.arange(teachers + 1) + moves
    return moves, np.where((after >= 0) & (after <= teachers), label, -1.0)


def _at_least(name: str, value: int, least: int) -> int:
    if whole(name, value) < least:
        raise InvalidParameterError(f"{name} must be at least {least}", value)
    return int(value)
