"""The exact price of a run at its caps: a game between a reader and the mechanism, solved backward.

A reader chooses every query by what it saw before. After the last allowed refusal, answer or ask
the run is over. Let z be the likelihood ratio of all that was seen. The largest chance of telling
two neighbors apart is delta(epsilon) = e^epsilon U(e^-epsilon). U of a run that is over is
(z - 1)_+; before that, with b refusals and k answers left,

    U_bk(z) = the largest, over all votes and neighboring votes, of
              Q_refusal U_(b-1)k(z P_refusal / Q_refusal)
              + sum over labels of Q_label U_b(k-1)(z P_label / Q_label),    or U_bk = (z - 1)_+.

Renyi prices (`joint_price`) lose 5 to 12 % against it: converting from one order supposes the worst
query of that order at every step. This number is a constant of the caps. So a run may state it,
whatever it was charged; several runs add up as (epsilon, delta) pairs do.

U is kept as a spline in ln z that is nowhere below it: each step interpolates, with a margin for
the error. Labels enter by bounds on their privacy profiles (`label_profiles`), checks by their
laws. So the result is an upper bound for every grid; the default one costs 0.2 % of epsilon.
docs/explanation/joint-price.md, Theorem F, has the proofs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Generic, Protocol, Self, TypeVar

import numpy as np
import scipy
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from pate_fed.accounting.any_votes import AnyVotesSetting
from pate_fed.accounting.ask_kinds import (
    LARGEST_NOISE,
    LEAST_NOISE,
    Box,
    Checks,
    Gaps,
    any_votes_checks,
    any_votes_labels,
    label_noise,
    valid_profile,
    valid_votes,
)
from pate_fed.accounting.gaussian_dp import gdp_mu
from pate_fed.accounting.label_divergence import SAFETY
from pate_fed.accounting.vote_pairs import JointSetting
from pate_fed.errors import InvalidParameterError

Table = NDArray[np.float64]
Counts = NDArray[np.int64]
Caps = tuple[int, int, int]
"""Most refusals, answers and asks of a run."""

_ROUNDING = 1 + 1e-12
"""Factor on every step, above the error of its sums."""
_QUASI: Final = np.array([-1.0, 8.0, -1.0]) / 6
"""Values at a place and its neighbors make its coefficient."""
_MARGIN: Final = 0.056
"""Bound of the error of `_QUASI`, by the fourth differences of the coefficients nearby: 0.0559."""
_HEIGHT_ERROR: Final = 1e-13
"""More than the rounding of a profile."""
MOST_CELLS: Final = 1 << 24
"""Entries of the largest table of an ask, 128 megabytes: little noise makes ratios that reach over
thousands of places, many votes make many sets of labels.
"""


@dataclass(frozen=True, slots=True, eq=False)
class Kernel:
    """A positive measure on likelihood ratios: it turns values after an outcome into those before.

    Attributes:
        log_ratios: ln P/Q of each atom; shape (atoms,).
        masses: Q of each; same shape.
        infinite: P of outcomes without a finite ratio.
    """

    log_ratios: Table
    masses: Table
    infinite: float = 0.0


class Splines:
    """Cubic splines on an even grid of ln z, by their coefficients, above convex functions of z.

    The value before an ask is a spline again, with coefficients

        max over kernels of (-g_(j-1) + 8 g_j - g_(j+1)) / 6  +  a margin,

    g the mean of the spline under a kernel, moved by its ratios. Each such interpolant reproduces
    cubics; it is off by at most 0.056 times the sizes of the fourth differences of the coefficients
    nearby, each with the weight of a hat, which is the margin. All B-splines are positive, so the
    maximum of coefficients is above every kernel's.
    """

    def __init__(self, low: float, high: float, step: float) -> None:
        self.step = step
        # Splines with the coefficients e^(j step) are e^x times a wave of height 0.0014 step^4.
        self._join = 1 + step**4 / 100
        self.first = math.floor(low / step)
        self.size = math.ceil(high / step) + 1 - self.first
        self.z = np.exp((self.first + np.arange(self.size)) * step)
        self.over = np.maximum(self.z - 1, 0.0)
        self.end = self.closed(self.over)
        self.end[1:-1] = np.convolve(self.end, [1 / 6, 4 / 6, 1 / 6], mode="valid")
        self.end = self.closed(self.end)

    def stencils(self, log_ratios: Table, reach: int) -> Table:
        """Return what makes a coefficient of a spline moved by these ratios; see `around`.

        Shape (ratios, 2 (2 reach + 1)).
        """
        moved = np.asarray(log_ratios)[:, np.newaxis] / self.step - np.arange(-reach, reach + 1)
        nodes = moved[..., np.newaxis] + np.arange(-1, 2)
        return np.hstack([_cubic(nodes) @ _QUASI, _MARGIN * np.maximum(1 - np.abs(moved), 0.0)])

    def reach(self, log_ratio: float) -> int:
        """Return how far such ratios reach at most."""
        return math.ceil(log_ratio / self.step) + 3

    def around(self, coefficients: Table, reach: int) -> Table:
        """Return the coefficients near each place, and the sizes of their fourth differences.

        Below the grid U(z) / z falls, above it U(z) - z does.

        Returns:
            Shape (..., 2 (2 reach + 1), places).
        """
        steps = np.arange(1, reach + 3) * self.step
        below = coefficients[..., :1] * np.exp(-steps[::-1])
        above = coefficients[..., -1:] + self.z[-1] * np.expm1(steps)
        whole = np.concatenate([below, coefficients, above], axis=-1)
        rough = np.abs(np.diff(whole, n=4, axis=-1))
        both = (sliding_window_view(each, self.size, axis=-1) for each in (whole[..., 2:-2], rough))
        return np.concatenate(list(both), axis=-2)

    def closed(self, coefficients: Table) -> Table:
        """Return coefficients of a run that may end here, with ends that can be continued."""
        found: Table = np.maximum(coefficients * _ROUNDING, self.over)
        low = (found[:3] / self.z[:3]).max() * self._join
        high = (found[-3:] - self.z[-3:]).max()
        found[:3] = low * self.z[:3]
        found[-3:] = self.z[-3:] * self._join + high
        return found

    def closed_rows(self, coefficients: Table) -> Table:
        """Return the same for each row of coefficients, where the run may not end."""
        low = (coefficients[:, :3] / self.z[:3]).max(axis=1, keepdims=True) * self._join
        high = (coefficients[:, -3:] - self.z[-3:]).max(axis=1, keepdims=True)
        coefficients[:, :3] = low * self.z[:3]
        coefficients[:, -3:] = self.z[-3:] * self._join + high
        return np.asarray(coefficients * _ROUNDING)

    def epsilon(self, coefficients: Table, delta: float) -> float:
        """Return the least epsilon with e^epsilon U(e^-epsilon) <= delta."""
        between = np.arange(64) / 64
        basis = _cubic(between - np.arange(-1, 3)[:, np.newaxis])
        values = (sliding_window_view(coefficients, 4)[1:-2] @ basis).ravel()
        places = self.first + 2 + np.arange(len(values)) / 64
        inside = values <= delta * np.exp(places * self.step)
        if not inside.any():
            return math.inf
        last = len(places) - 1 - int(np.argmax(inside[::-1]))
        return max(float(-places[last] * self.step), 0.0)


def _cubic(places: Table) -> Table:
    """Return the cubic B-spline around 0."""
    x = np.abs(places)
    near = (4 - 6 * x**2 + 3 * x**3) / 6
    far = np.maximum(2 - x, 0.0) ** 3 / 6
    return np.asarray(np.where(x < 1, near, far))


class Divisible(Protocol):
    """A range of votes."""

    @property
    def halves(self) -> tuple[Self, ...]:
        """Both halves of the range; none where it cannot be divided."""


Range = TypeVar("Range", bound=Divisible)


class Ask(Generic[Range]):
    """One ask: from the values after a refusal and after an answer to the value before.

    Labels are bounded together over wide ranges of votes; a range that decides is divided.
    """

    def __init__(
        self,
        splines: Splines,
        kernel: Callable[[Range], Kernel],
        labels: Sequence[Sequence[Sequence[Range]]],
        checks: Checks | None,
        window: slice,
        *,
        lost: float,
    ) -> None:
        """Make the ask.

        Args:
            splines: All values are such.
            kernel: Bounds what a label tells, over a range; all have the same ratios.
            labels: Runs of lists of ranges. A set of labels is a list with all that follow it in
                its run; its place is that of the list among all.
            checks: That may come before; None where every ask is answered.
            window: Places of the splines where ranges that decide are divided.
            lost: What an ask may be worth besides, in units of z.
        """
        self._splines, self._kernel, self._checks, self._window = splines, kernel, checks, window
        self._lost = lost
        lists = [each for run in labels for each in run]
        self._ranges = [each for some in lists for each in some]
        self._set_of = np.repeat(np.arange(len(lists)), [len(each) for each in lists])
        self._ends = np.repeat(
            np.cumsum([len(run) for run in labels]), [len(run) for run in labels]
        )
        ratios = kernel(self._ranges[0]).log_ratios
        self._reach = splines.reach(np.abs(ratios).max())
        _require_few_cells(self._reach, splines.size, len(ratios))
        self._atoms = splines.stencils(ratios, self._reach)
        self._found: dict[Range, Table] = {}
        self._rows = np.array([self._row(each) for each in self._ranges])
        if checks is not None:
            turns = max(
                np.abs(each[:, 0] - each[:, 1]).max() for each in (checks.refusals, checks.answers)
            )
            self._turns = splines.reach(turns)
            _require_few_cells(self._turns, len(lists) * splines.size, len(checks.labels))
            width = 2 * (2 * self._turns + 1)
            self._stay = self._weights(checks.refusals, np.zeros_like(checks.labels), width)
            self._move = self._weights(checks.answers, checks.labels * width, width * len(lists))
            self._shift = np.rint((checks.answers[:, 0] - checks.answers[:, 1]) / splines.step)

    def before(self, refused: Table, answered: Table) -> Table:
        """Return the value before an ask."""
        splines = self._splines
        around = np.vstack([splines.around(answered, self._reach), splines.z])
        values = self._rows @ around
        while True:
            labels = splines.closed_rows(self._largest(values))
            best, sets, at = self._checked(refused, labels)
            if not (decided := self._deciding(values, sets, at)):
                return splines.closed(best + self._lost * splines.z)
            values = self._divide(decided, values, around)

    def _row(self, votes: Range) -> Table:
        if votes not in self._found:
            if (len(self._found) + 1) * self._atoms.shape[1] > MOST_CELLS:
                raise _TooManyCellsError
            kernel = self._kernel(votes)
            # U's slope is at most 1: an infinite ratio is worth z times its P.
            self._found[votes] = np.append(kernel.masses @ self._atoms, kernel.infinite)
        return self._found[votes]

    def _largest(self, values: Table) -> Table:
        starts = np.searchsorted(self._set_of, np.arange(self._set_of[-1] + 1))
        largest = np.maximum.reduceat(values, starts, axis=0)
        for end in np.unique(self._ends):
            run = largest[int(np.searchsorted(self._ends, end)) : end][::-1]
            np.maximum.accumulate(run, axis=0, out=run)
        return np.asarray(largest)

    def _checked(self, refused: Table, labels: Table) -> tuple[Table, Counts, Counts]:
        """Return the best check's value, its set of labels, and the place where that is used."""
        splines = self._splines
        places = np.arange(splines.size)
        if self._checks is None:
            return labels[0], np.zeros_like(places), places
        stay = splines.around(refused, self._turns)
        move = splines.around(labels, self._turns).reshape(-1, splines.size)
        values = self._stay @ stay + self._move @ move
        check = values.argmax(axis=0)
        at = np.clip(places + self._shift[check].astype(np.int64), 0, splines.size - 1)
        return values[check, places], self._checks.labels[check], at

    def _deciding(self, values: Table, sets: Counts, at: Counts) -> list[int]:
        """Return the ranges that decide somewhere in the window and can be divided."""
        pairs = {
            (int(a), int(b)) for a, b in zip(sets[self._window], at[self._window], strict=True)
        }
        found: set[int] = set()
        for of in {each for each, _ in pairs}:
            rows = np.nonzero((self._set_of >= of) & (self._set_of < self._ends[of]))[0]
            places = [place for each, place in pairs if each == of]
            found.update(rows[np.unique(values[rows][:, places].argmax(axis=0))].tolist())
        return sorted(each for each in found if self._ranges[each].halves)

    def _divide(self, decided: list[int], values: Table, around: Table) -> Table:
        """Put halves in the place of ranges, here and from now on."""
        new = [half for each in decided for half in self._ranges[each].halves]
        kept = np.delete(np.arange(len(self._ranges)), decided)
        sets = np.concatenate([self._set_of[kept], np.repeat(self._set_of[decided], 2)])
        order = np.argsort(sets, kind="stable")
        rows = np.array([self._row(each) for each in new])
        ranges = [self._ranges[each] for each in kept] + new
        self._ranges = [ranges[each] for each in order]
        self._set_of = sets[order]
        self._rows = np.concatenate([self._rows[kept], rows])[order]
        return np.concatenate([values[kept], rows @ around])[order]

    def _weights(self, logs: Table, first: Counts, columns: int) -> scipy.sparse.csr_array:
        """Return the weights of coefficients around each place, a row for each check."""
        ratios = logs[:, 0] - logs[:, 1]
        stencils = np.exp(logs[:, 1:]) * self._splines.stencils(ratios, self._turns)
        rows, at = np.nonzero(stencils)
        return scipy.sparse.csr_array(
            (stencils[rows, at], (rows, first[rows] + at)), shape=(len(logs), columns)
        )


class _TooManyCellsError(Exception):
    """An ask needs larger tables than `MOST_CELLS`: a price by outcome stands."""


def _require_few_cells(reach: int, *columns: int) -> None:
    """Refuse tables of stencils that reach so far, for so many places or ratios, before any."""
    if 2 * (2 * reach + 1) * max(columns) > MOST_CELLS:
        raise _TooManyCellsError


def solve(splines: Splines, ask: Ask[Gaps] | Ask[Box], caps: Caps) -> Table:
    """Return U before the first ask of a run with caps on refusals, answers and asks."""
    refusals, answers, asks = caps
    layers = list(_layers(refusals, answers, asks))
    values: dict[tuple[int, int], Table] = {}
    for left, states in zip(range(1, asks + 1), reversed(layers), strict=True):
        new = {}
        for state in states:
            after = (
                values.get(_within(each, left - 1), splines.end)
                for each in ((state[0] - 1, state[1]), (state[0], state[1] - 1))
            )
            new[state] = ask.before(*after)
        values = new
    return values[_within((refusals, answers), asks)]


def _layers(refusals: int, answers: int, asks: int) -> Iterator[set[tuple[int, int]]]:
    """Yield the refusals and answers that can be left, from the first ask to the last one."""
    states = {_within((refusals, answers), asks)}
    for left in range(asks, 0, -1):
        yield states
        states = {
            _within(after, left - 1)
            for b, k in states
            for after in ((b - 1, k), (b, k - 1))
            if min(after) > 0
        }


def _within(state: tuple[int, int], left: int) -> tuple[int, int]:
    """Return the state with no more of either than asks: they are worth no more."""
    return min(state[0], left), min(state[1], left)


_MOST_STATES: Final = 10_000
_STATES_BY_VOTE: Final = 40
"""Most states that a report takes the time for: at most a minute or two, and seconds where a run is
of few votes and takes seconds itself.
"""
_MANY_VOTES: Final = 250
"""From here on a state takes longer, by about the square of the votes."""

_LARGEST_KNOWN: Final = 500.0
"""Beyond, there is next to no noise, and splines would overflow."""

_MOST_PLACES: Final = 1 << 16
_MANY_ASKS: Final = 250
"""From here on places lie closer, by the fourth root of the asks."""

_ATOMS: Final = 8
"""Ratios at which profiles are computed, by the size of a vote's change in units of the noise."""


def label_kernel(profile: Callable[[Range], Table], log_gammas: Table) -> Callable[[Range], Kernel]:
    """Return, for a range of votes, a measure that tells at least as much as each of its labels."""

    def kernel(votes: Range) -> Kernel:
        gammas = np.concatenate([[0.0], np.exp(log_gammas)])
        heights = np.maximum(1 - gammas, 0.0)
        heights[1:] += profile(votes)
        slopes = np.diff(heights) / np.diff(gammas)
        convex = scipy.optimize.isotonic_regression(slopes, weights=np.diff(gammas)).x
        # An atom where the slope changes. What is left beyond the last ratio counts as infinite.
        masses = np.maximum(np.diff(convex, append=0.0), 0.0)
        return Kernel(log_gammas, masses, float(heights[-1]) + _HEIGHT_ERROR)

    return kernel


def can_be_composed(setting: JointSetting | AnyVotesSetting) -> bool:
    """Tell whether `bellman_epsilon` covers the setting."""
    if setting.weight > 1 and setting.classes > 2:
        return False
    most = label_noise(setting.classes)[1]
    if isinstance(setting, AnyVotesSetting):
        sigma1, sigma2 = setting.sigma1 / setting.weight, setting.sigma2 / setting.weight
        return sigma1 <= LARGEST_NOISE and sigma2 <= most
    return not setting.may_abstain and setting.noise == "gaussian"


def is_worth_the_time(caps: Caps, votes: int, *, weight: int = 1) -> bool:
    """Tell whether a report computes the exact price of a run with this many votes on a query.

    Each state in which a run can be takes 3 to 10 ms, with more than 250 votes longer: with 1,000
    about half a second. Several moved votes make as many times more kinds of asks.
    """
    left = min(_MOST_STATES, _STATES_BY_VOTE * votes) * min(1.0, _MANY_VOTES / votes) ** 2 / weight
    # A long run has millions of states: it is not counted to its end.
    for states in _layers(*caps):
        left -= len(states)
        if left < 0:
            return False
    return True


def bellman_epsilon(
    setting: JointSetting | AnyVotesSetting,
    caps: Caps,
    *,
    delta: float,
    known: float,
    fineness: float = 22.0,
) -> float:
    """Return epsilon of a run of Confident-GNMax at its caps.

    Args:
        setting: The public facts, for valid votes or for any: one vote per neighboring change, or
            several of two classes; none withheld, Gaussian noise, and exactly this many classes.
        caps: On refusals, answers and asks, each at least 1, fixed before the run.
        delta: In (0, 1).
        known: An epsilon that holds, by a price by outcome: where to look.
        fineness: Places of the splines by the standard deviation of a Gaussian that has a small
            known epsilon, for up to 250 asks; large ones and longer runs have more.

    Returns:
        An epsilon that holds at this delta, `known` if it is smaller.

    Raises:
        InvalidParameterError: the setting is of another kind (`can_be_composed`).

    Source:
        docs/explanation/joint-price.md, Theorem F.
    """
    if not can_be_composed(setting):
        raise InvalidParameterError(
            "a change must move one vote, or several of two classes, with Gaussian noise; for any "
            f"votes of at most {LARGEST_NOISE:g} votes in the check and {label_noise(3)[1]:g} in a "
            "label of three classes",
            setting,
        )
    grid = _grid(known, delta, fineness, caps[2])
    if grid is None or not _has_enough_noise(setting):
        return known
    splines, window = grid
    if isinstance(setting, AnyVotesSetting) and setting.weight > 1:
        # Votes need not be whole: k of them are one, with a k-th of the noise.
        own = setting.sigma1 / setting.weight, setting.sigma2 / setting.weight
        setting = AnyVotesSetting(setting.classes, *own)
    try:
        value = solve(splines, _ask(setting, splines, window), caps)
    except _TooManyCellsError:
        return known
    return min(splines.epsilon(value, delta) * SAFETY, known)


def _has_enough_noise(setting: JointSetting | AnyVotesSetting) -> bool:
    """Tell whether ratios of chances are numbers, and places of checks of any votes few."""
    sigma1, sigma2 = setting.sigma1 / setting.weight, setting.sigma2 / setting.weight
    is_checked = isinstance(setting, JointSetting) or sigma1 >= LEAST_NOISE
    return is_checked and sigma2 >= label_noise(setting.classes)[0]


def _grid(known: float, delta: float, fineness: float, asks: int) -> tuple[Splines, slice] | None:
    """Return splines around a known epsilon, and the places that decide; None if none can be."""
    if not 0 < known <= _LARGEST_KNOWN:
        return None
    spread = gdp_mu(known, delta)
    # Each ask adds a margin of (step * order)^4; this is about the best Renyi order.
    order = 1 + max(math.sqrt(-2 * math.log(delta)), 1.0) / spread
    step = spread / fineness * (1 - 1 / order) / max(asks / _MANY_ASKS, 1.0) ** 0.25
    if known + 5.5 * spread > _MOST_PLACES * step:
        return None
    splines = Splines(-(known + 1.5 * spread), 4 * spread, step)
    low, high = -(known + 0.5 * spread), 1.5 * spread
    return splines, slice(*np.searchsorted(np.log(splines.z), (low, high)).tolist())


def _log_gammas(sigma: float) -> Table:
    shift = math.sqrt(2) / sigma
    return np.asarray(np.arange(-_ATOMS * 7, _ATOMS * 7 + 1) * (shift / _ATOMS))


def _ask(
    setting: JointSetting | AnyVotesSetting, splines: Splines, window: slice
) -> Ask[Gaps] | Ask[Box]:
    log_gammas = _log_gammas(setting.sigma2 / setting.weight)
    if isinstance(setting, JointSetting):
        labels, checks = valid_votes(setting)
        kernel = label_kernel(valid_profile(setting, log_gammas), log_gammas)
        return Ask(splines, kernel, labels, checks, window, lost=checks.lost)
    boxes, profile, lost = any_votes_labels(setting.classes, setting.sigma2, log_gammas)
    checks = any_votes_checks(setting)
    kernel_of_any = label_kernel(profile, log_gammas)
    return Ask(splines, kernel_of_any, boxes, checks, window, lost=checks.lost + lost)
