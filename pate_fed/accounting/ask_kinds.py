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
from pate_fed.accounting.label_divergence import left_end, three_way_law
from pate_fed.accounting.label_profiles import LabelProfiles, coin_profiles
from pate_fed.accounting.vote_pairs import JointSetting

Table = NDArray[np.float64]
Counts = NDArray[np.int64]

_NEVER: Final = -1e4
"""Log of the chance of what does not occur."""
_FARTHEST: Final = 7.0
"""Standard deviations within which any votes are looked at."""
_CELL: Final = 0.02
_FINEST: Final = 0.03
"""Widths of the cells of a check and of a label, for any votes, in standard deviations."""

_BANDS: Final = (0.0, 0.3, *np.arange(0.34, 0.66, 0.02).round(2).tolist(), 0.7, 0.8)
"""Shares of all votes between which top counts have their labels in common."""


@dataclass(frozen=True, slots=True)
class Gaps:
    """A range of gaps n_i - n_j, with the counts that go with it.

    Attributes:
        first: Least gap.
        last: Largest one.
        tops: Least and largest count of the class with the most votes.
        apart: Whether that is a third class.
    """

    first: int
    last: int
    tops: tuple[int, int]
    apart: bool = False

    @property
    def halves(self) -> tuple[Gaps, ...]:
        """Both halves of the range; none where it is a single gap."""
        if self.first == self.last:
            return ()
        middle = (self.first + self.last) // 2
        return replace(self, last=middle), replace(self, first=middle + 1)


@dataclass(frozen=True, slots=True, eq=False)
class Checks:
    """What checks tell, each with the labels that may follow it.

    Attributes:
        refusals: ln Pr[refusal], for the votes and for the neighboring votes; shape (checks, 2).
        answers: The same of an answer.
        labels: Place of the set of labels that may follow; shape (checks,).
        more: Masses that a refusal and an answer count for besides, at ratios `beyond` further
            away: what votes between these can add; shape (checks, 2). None for nothing.
        beyond: Log of a factor on the ratios.
        lost: Chance of outcomes that are left out, times P / Q where that is larger.
    """

    refusals: Table
    answers: Table
    labels: Counts
    more: Table | None = None
    beyond: float = 0.0
    lost: float = 0.0


def valid_votes(setting: JointSetting) -> tuple[list[list[list[Gaps]]], Checks]:
    """Return every kind of neighboring pair of Theorem B: sets of labels, and checks.

    A top count m falls where i has it (gap 2 and more), stays (gap 1; a third class has it too, or
    it alone), or rises where j has it. No gap is below 2 m - n. In a band of top counts the labels
    are bounded together.
    """
    n, third_may = setting.teachers, setting.classes > 2
    edges = sorted({*(math.ceil(share * n) for share in _BANDS), n + 1})
    runs: list[list[list[Gaps]]] = []
    checks: list[tuple[int, int, int]] = []
    count = 0
    for first, stop in pairwise(edges):
        tops, last = (first, stop - 1), stop - 1
        stays = [Gaps(1, 1, tops)] if 2 * first - n <= 1 <= last else []
        third = max(2, 2 * first - n, 3 * first - n)
        if third_may and third <= last and 2 * first <= n:
            stays.append(Gaps(third, last, tops))
        reach = max((min(n - m, m - 1) for m in range(max(first, 1), stop)), default=-1)
        if third_may and reach >= 0:
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
    m, after, of = np.array(checks).T
    margins = (np.column_stack([m, after]) - setting.vote_threshold) / setting.sigma1
    return runs, Checks(scipy.special.log_ndtr(-margins), scipy.special.log_ndtr(margins), of)


def valid_profile(setting: JointSetting, log_gammas: Table) -> Callable[[Gaps], Table]:
    """Return the bound on G of a range of gaps, for valid votes."""
    n, unit = setting.teachers, 1 / (math.sqrt(2) * setting.sigma2)
    if setting.classes == 2:
        return lambda gaps: coin_profiles(
            log_gammas, np.array([gaps.first * unit]), np.array([gaps.last * unit]), 2 * unit
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


def any_votes_checks(setting: AnyVotesSetting, *, beyond: float) -> Checks:
    """Return checks that cover those of all votes, valid or not, with one set of labels.

    The top count, in units of its noise from the threshold, is any t; one change moves it by d =
    1 / sigma1 either way, or not at all. Between two points of t the value exceeds the larger end
    by at most width^2 / 8 times the largest fall of its slope. That is at most the sum over both
    outcomes of (|p''| / rho + |q''|) y U'(y), with rho = p / q, y = z rho; and y U'(y) is at most
    U(y e^a) / (e^a - 1), for any a. Beyond all points a refusal, or an answer, is all but certain.

    Args:
        setting: The public facts.
        beyond: a, with the change of a ratio within a cell; above `least_beyond`.
    """
    d = 1 / setting.sigma1
    t = np.arange(-_FARTHEST, _FARTHEST + _CELL / 2, _CELL)
    refusals, answers, more = [], [], []
    for move in (d, -d):
        chances = []
        for sign in (-1, 1):
            before, after = (scipy.special.log_ndtr(sign * at) for at in (t, t + move))
            ratio = np.exp(before - after)
            bends = [
                np.abs(at) * np.exp(-(at**2) / 2) / math.sqrt(2 * math.pi) for at in (t, t + move)
            ]
            # The slope of |t| phi(t) is at most 0.4. Logs of ratios change by at most d times the
            # width: their slope is a difference of hazards d apart, whose slope is below 1.
            bend = (bends[0] + 0.4 * _CELL) / ratio * math.exp(d * _CELL) + bends[1] + 0.4 * _CELL
            chances.append((np.column_stack([before, after]), bend))
        refusals.append(chances[0][0])
        answers.append(chances[1][0])
        more.append(np.column_stack([chances[0][1], chances[1][1]]))
    scale = _CELL**2 / 8 / math.expm1(beyond - d * _CELL)
    certain, never = np.zeros((1, 2)), np.full((1, 2), _NEVER)
    return Checks(
        np.concatenate([*refusals, certain, never]),
        np.concatenate([*answers, never, certain]),
        np.zeros(2 * len(t) + 2, dtype=np.int64),
        np.concatenate([*more, np.zeros((2, 2))]) * scale,
        beyond,
        lost=2 * float(scipy.special.ndtr(d - _FARTHEST)),
    )


def least_beyond(setting: AnyVotesSetting) -> float:
    """Return what `beyond` must exceed: twice the change of a ratio's log within a cell."""
    return 2 * _CELL / setting.sigma1


def any_votes_labels(
    setting: AnyVotesSetting, log_gammas: Table
) -> tuple[list[list[list[Gaps]]], Callable[[Gaps], Table]]:
    """Return the ranges and bounds of a label of two classes for all votes, valid or not.

    A gap stands for all real gaps between it and the next; the outermost ones for all beyond.
    """
    shift = math.sqrt(2) / setting.sigma2
    unit = min(shift / 2, _FINEST)
    most = math.ceil(_FARTHEST / unit)

    def profile(gaps: Gaps) -> Table:
        first = -math.inf if gaps.first == -most else gaps.first * unit
        last = math.inf if gaps.last == most - 1 else (gaps.last + 1) * unit
        bound = coin_profiles(log_gammas, np.array([first]), np.array([last]), shift)
        return np.asarray(bound[0])

    return [[[Gaps(-most, most - 1, (0, 0))]]], profile
