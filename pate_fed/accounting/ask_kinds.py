"""Every kind of ask of two neighbors, for `bellman`: what checks tell, and labels after them.

For valid votes these are the pairs of Theorem B (docs/explanation/joint-price.md), for two classes
and any votes those of Theorem E.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

import numpy as np
import scipy
from numpy.typing import NDArray

from pate_fed.accounting.any_votes import AnyVotesSetting
from pate_fed.accounting.label_divergence import law_on_steps, left_end, three_way_law
from pate_fed.accounting.label_profiles import LabelProfiles, coin_profiles, gaussian_profile
from pate_fed.accounting.vote_pairs import JointSetting

Table = NDArray[np.float64]
Counts = NDArray[np.int64]

_NEVER: Final = -1e4
"""Log of the chance of an impossible outcome."""
_RAREST: Final = -80.0
"""Log of a chance so small that the outcome is counted as telling all."""
LEAST_NOISE, LARGEST_NOISE = 0.05, 200.0
_NOISE_OF_TWO, _NOISE_OF_MANY = (0.05, 1000.0), (0.2, 20.0)
"""Least and largest noise of a check for any votes, of a label of two classes, and of more: places
grow by the square of less, ratios of three classes would leave the range of doubles; of more noise,
places take more than seconds.
"""
_FARTHEST: Final = 7.0
"""Standard deviations within which any votes are looked at."""
_STEP: Final = 0.1
"""Widest step between votes that stand for any votes, in standard deviations."""
_SPREAD: Final = 1.25
"""Standard deviation of the steps that stand for a vote, given its noisy count, in steps."""
_UNEVEN: Final = 4 * math.exp(-2 * (math.pi * _SPREAD) ** 2)
"""Twice the largest relative difference between a sum over steps and its integral."""
_ROOM: Final = 1.01
"""Factor on labels that two classes decide: what hardly differs from them need not be looked at."""

_BANDS: Final = (0.0, 0.3, *np.arange(0.34, 0.66, 0.02).round(2).tolist(), 0.7, 0.8)
"""Shares of all votes between which top counts have their labels in common."""


def label_noise(classes: int) -> tuple[float, float]:
    """Return the least and the largest noise of a label of so many classes that is looked at."""
    return _NOISE_OF_TWO if classes == 2 else _NOISE_OF_MANY


@dataclass(frozen=True, slots=True)
class Gaps:
    """A range of gaps n_i - n_j, with the counts that go with it.

    Attributes:
        first: Least gap.
        last: Largest one.
        tops: Least and largest count of the class with the most votes.
        apart: Whether that is a third class.
        moved: Votes that the neighboring change moves.
    """

    first: int
    last: int
    tops: tuple[int, int]
    apart: bool = False
    moved: int = 1

    @property
    def halves(self) -> tuple[Gaps, ...]:
        """Both halves of the range; none where it is a single gap."""
        if self.first == self.last:
            return ()
        middle = (self.first + self.last) // 2
        return replace(self, last=middle), replace(self, first=middle + 1)


@dataclass(frozen=True, slots=True)
class Box:
    """A range of places that any votes can have, on whole steps.

    Attributes:
        first: Least n_i - n_j. The outermost ones stand for all beyond.
        last: Largest one.
        left: Least n_i + n_j - 2 W, by its place; W is the best other noisy count. The outermost
            ones stand for all beyond.
        right: Largest one.
    """

    first: int
    last: int
    left: int
    right: int

    @property
    def halves(self) -> tuple[Box, ...]:
        """Both halves, of its gaps as long as there are several; none where it is one place."""
        if self.first < self.last:
            middle = (self.first + self.last) // 2
            return replace(self, last=middle), replace(self, first=middle + 1)
        if self.left == self.right:
            return ()
        middle = (self.left + self.right) // 2
        return replace(self, right=middle), replace(self, left=middle + 1)


@dataclass(frozen=True, slots=True, eq=False)
class Checks:
    """What checks tell, each with the labels that may follow it.

    Attributes:
        refusals: ln Pr[refusal], for the votes and for the neighboring votes; shape (checks, 2).
        answers: The same of an answer.
        labels: Place of the set of labels that may follow; shape (checks,).
        lost: What a step may be worth besides, in units of z.
    """

    refusals: Table
    answers: Table
    labels: Counts
    lost: float = 0.0


_MOST_SETS: Final = 400
"""Sets of labels of two classes, about, that are kept apart."""

_Kinds = tuple[list[list[list[Gaps]]], list[tuple[int, int, int]]]
"""Runs of lists of gaps; and top counts before and after, with the place of their labels."""


def valid_votes(setting: JointSetting) -> tuple[list[list[list[Gaps]]], Checks]:
    """Return every kind of neighboring pair of Theorem B: sets of labels, and checks."""
    if setting.classes == 2:
        runs, kinds = _two_classes(setting.teachers, setting.weight)
    else:
        runs, kinds = _many_classes(setting.teachers)
    m, after, of = np.array(kinds).T
    margins = (np.column_stack([m, after]) - setting.vote_threshold) / setting.sigma1
    refusals, answers = scipy.special.log_ndtr(-margins), scipy.special.log_ndtr(margins)
    for logs in (refusals, answers):
        # Far from the threshold ratios have no bound. Such an outcome is worth at most its chance.
        logs[logs[:, 0] < _RAREST] = _NEVER
    return runs, Checks(refusals, answers, of, lost=math.exp(_RAREST))


def _many_classes(n: int) -> _Kinds:
    """Return the kinds of pairs of three classes or more, of which one vote moves.

    A top count m falls where i has it (gap 2 and more), stays (gap 1; a third class has it too, or
    it alone), or rises where j has it. No gap is below 2 m - n. In a band of top counts the labels
    are bounded together.
    """
    edges = sorted({*(math.ceil(share * n) for share in _BANDS), n + 1})
    runs: list[list[list[Gaps]]] = []
    checks: list[tuple[int, int, int]] = []
    count = 0
    for first, stop in pairwise(edges):
        tops, last = (first, stop - 1), stop - 1
        stays = [Gaps(1, 1, tops)] if 2 * first - n <= 1 <= last else []
        third = max(2, 2 * first - n, 3 * first - n)
        if third <= last and 2 * first <= n:
            stays.append(Gaps(third, last, tops))
        reach = max((min(n - m, m - 1) for m in range(max(first, 1), stop)), default=-1)
        if reach >= 0:
            stays.append(Gaps(-reach, reach, (max(first, 1), last), apart=True))
        if stays:
            checks += [(m, m, count) for m in range(first, stop)]
            runs.append([stays])
            count += 1
        for move, least, far in ((-1, 2, last), (1, 0, last - 1)):
            # Class i has a vote to lose: it is behind by m - 1 at most.
            floors = {
                m: max(least, 2 * m - n)
                for m in range(first, stop)
                if max(least, 2 * m - n) <= m - (move > 0)
            }
            if not floors:
                continue
            starts = sorted(set(floors.values()))
            parts = [*zip(starts, [each - 1 for each in starts[1:]] + [far], strict=True)]
            checks += [
                (m, m + move, count + starts.index(floor))
                for m, floor in floors.items()
                if 0 <= m + move <= n
            ]
            runs.append([[Gaps(a, b, tops) if move < 0 else Gaps(-b, -a, tops)] for a, b in parts])
            count += len(parts)
    return runs, checks


def _two_classes(n: int, weight: int) -> _Kinds:
    """Return the kinds of pairs of two classes, of which 1 to `weight` votes move.

    Let class i have the top count m, ahead by a gap g, and lose v votes to j. It keeps the top
    where g >= 2 v, which falls by v; otherwise j has it afterwards, and it moves by v - g. Where j
    has it, ahead by g, the top rises by v. In all cases g >= 2 m - n. Where there are too many sets
    of labels, top counts share the larger one of their neighbor.
    """
    grain = math.ceil((2 * weight + 1) * n / 2 / _MOST_SETS)
    runs: list[list[list[Gaps]]] = []
    lists: list[list[Gaps]] = []
    checks: list[tuple[int, int, int]] = []
    count = 0
    for move in range(-weight, weight + 1):
        least, far = max(-2 * move, int(move == 0)), n - max(move, 0)
        if move == 0:
            far = min(weight, n)
        floors = {m: max(least, 2 * m - n) for m in range(n + 1)}
        floors = {
            m: max(least, gap // grain * grain)
            for m, gap in floors.items()
            if gap <= min(m - max(move, 0), far)
        }
        if not floors:
            continue
        starts = sorted(set(floors.values()))
        checks += [(m, m + move, count + starts.index(gap)) for m, gap in floors.items()]
        for start, end in zip(starts, [each - 1 for each in starts[1:]] + [far], strict=True):
            # Here the leader changes.
            gaps = range(max(start, least + 1 if move else 1), min(end, weight - move) + 1)
            found = [Gaps(gap, gap, (0, n), moved=gap + move) for gap in gaps]
            if move:
                ends = (start, end) if move < 0 else (-end, -start)
                found.append(Gaps(*ends, (0, n), moved=abs(move)))
            lists.append(found)
        runs.append(lists[count:])
        count = len(lists)
    return runs, checks


def valid_profile(setting: JointSetting, log_gammas: Table) -> Callable[[Gaps], Table]:
    """Return the bound on G of a range of gaps, for valid votes."""
    n, unit = setting.teachers, 1 / (math.sqrt(2) * setting.sigma2)
    if setting.classes == 2:
        return lambda gaps: coin_profiles(
            log_gammas,
            np.array([gaps.first * unit]),
            np.array([gaps.last * unit]),
            2 * gaps.moved * unit,
        )[0]
    law = three_way_law(n, setting.sigma2, 1, left_end(n, setting.sigma2, 1, 4.0))
    bounds = LabelProfiles(law, log_gammas, n, setting.classes)

    def profile(gaps: Gaps) -> Table:
        lowest, highest = gaps.tops
        if gaps.apart:
            return bounds.apart(gaps.first, gaps.last, lowest)
        far = max(abs(gaps.first), abs(gaps.last))
        near = 0 if gaps.first <= 0 <= gaps.last else min(abs(gaps.first), abs(gaps.last))
        least, most = max(2 * lowest - far, lowest), min(2 * highest - near, n)
        return bounds.touching(gaps.first, gaps.last, min(least, most), most)

    return profile


def whole_steps(sigma: float) -> tuple[int, float]:
    """Return steps by vote, and a noise in steps, with which whole steps stand for any votes.

    A real number with noise is one that noise of its own rounds to steps, with the rest of the
    noise, up to a factor of 1 +- `_UNEVEN` / 2 on every chance. One change moves whole steps.
    """
    steps = math.ceil(1 / (_STEP * sigma))
    width = _SPREAD / (sigma * steps)
    return steps, sigma * steps * math.sqrt((1 + math.sqrt(1 - 4 * width**2)) / 2)


def any_votes_checks(setting: AnyVotesSetting) -> Checks:
    """Return checks that cost at least what those of any votes do, with one set of labels.

    Beyond all places a refusal, or an answer, is all but certain.
    """
    steps, sigma = whole_steps(setting.sigma1)
    most = math.ceil(_FARTHEST * sigma)
    margins = np.arange(-most, most + 1)
    # The top may move by less than a vote where votes are no whole numbers.
    moves = [move for move in range(-steps, steps + 1) if move]
    pairs = np.array([(m, m + move) for move in moves for m in margins]) / sigma
    certain, never = np.zeros((1, 2)), np.full((1, 2), _NEVER)
    return Checks(
        np.concatenate([scipy.special.log_ndtr(-pairs), certain, never]),
        np.concatenate([scipy.special.log_ndtr(pairs), never, certain]),
        np.zeros(len(pairs) + 2, dtype=np.int64),
        # The check is rounded, too, before and after the change.
        lost=2 * float(scipy.special.ndtr(steps / sigma - _FARTHEST)) + 2 * _UNEVEN,
    )


def any_votes_labels(
    classes: int, sigma: float, log_gammas: Table
) -> tuple[list[list[list[Box]]], Callable[[Box], Table], float]:
    """Return the places, and bounds on them, that cost at least what a label of any votes does.

    Of two classes a gap tells all. Of more classes W is revealed, and may be anything: a label's
    value is at most a mean of those for fixed W.

    Returns:
        A list of boxes, their bounds on G, and what a label may be worth besides, in units of z.
    """
    steps, gap_sigma = whole_steps(math.sqrt(2) * sigma)
    most = math.ceil((_FARTHEST + 2 * steps / gap_sigma) * gap_sigma)
    if classes == 2:

        def coins(box: Box) -> Table:
            # The outermost places stand for all beyond.
            start = box.first / gap_sigma if box.first > -most else -math.inf
            end = box.last / gap_sigma if box.last < most else math.inf
            shift = 2 * steps / gap_sigma
            ends = np.array([start]), np.array([end])
            return np.asarray(coin_profiles(log_gammas, *ends, shift)[0])

        return [[[Box(-most, most, 0, 0)]]], coins, 2 * _UNEVEN
    law = law_on_steps(most, gap_sigma / math.sqrt(2), steps)
    bounds = LabelProfiles(law, log_gammas, most, classes)
    # Far ahead or behind, i or j plays alone against W, and its count moves by one vote.
    rare = 3 * scipy.special.ndtr(-_FARTHEST) * np.maximum(1.0, np.exp(log_gammas))
    far = gaussian_profile(log_gammas, steps * math.sqrt(2) / gap_sigma) + rare
    right = len(law.edges) + 1

    def profile(box: Box) -> Table:
        found = bounds.revealed(box.first, box.last, box.left, box.right)
        if box.left == right:
            found = found * _ROOM
        return np.maximum(found, far) if max(abs(box.first), abs(box.last)) == most else found

    boxes = [Box(-most, most, right, right), Box(-most, most, 0, right - 1)]
    return [[boxes]], profile, 4 * _UNEVEN
