"""The price of all labels of a run together, as a game between a reader and the mechanism.

A reader chooses every query by the outcomes before it. With L the log of the likelihood ratio of
all outcomes, delta(epsilon) is the mean of (1 - e^(epsilon - L))_+ . Backward, with k asks left,

    V_0(x) = (1 - e^-x)_+,    V_k(x) = largest mean of V_(k-1)(x + r),    delta = V_asks(-epsilon),

r being the log of the ratio of one outcome's chances, over every pair of laws that one ask can
have. Given the best of all other options, those are the laws P_{u,t} of who wins: i if V > 0 and
V > -U, j if V < 0 and V < U, else "other", for U ~ N(u, 1), V ~ N(t, 1); the neighbor has t - s.
"Other" may be a class or the threshold; u is infinite for two options.

Renyi prices are the game with an exponential in place of V_0: they suppose the worst query of one
order throughout. V is kept as a cubic spline that is nowhere below it (`Splines`). The supremum
over all u and t is bounded on boxes by their corners, each made a little worse by all that the law
can bend between them (`Asks`). Boxes are halved where they decide.

docs/explanation/composition.md has the proofs, also for several votes of one unit.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
import scipy
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from pate_fed.accounting.gaussian_dp import gdp_epsilon, gdp_mu
from pate_fed.accounting.label_laws import Boxes, bends, laws
from pate_fed.accounting.ranges import positive, probability, whole
from pate_fed.errors import InvalidParameterError
from pate_fed.one_thread import one_thread

Table = NDArray[np.float64]

LEAST_NOISE, LEAST_NOISE_OF_MANY = 0.25, 1.25
"""Least noise by moved vote, for two options and for more: less of it hides next to nothing."""
LARGEST_NOISE: Final = 1e6
MOST_ASKS: Final = 2_500
"""More would take a hospital that looks at a run longer than ten seconds."""
LEAST_DELTA: Final = 1e-12
"""Less makes tables of a gigabyte."""
_LARGEST_SPREAD: Final = 12.0
"""Standard deviation of the log of the ratio of all noisy counts: beyond, epsilon is above 100."""

_ROUNDING: Final = 1 + 4e-12
"""Factor on every step, above the error of its sums and of its chances."""
_LOG_ERROR: Final = 1e-12
"""More than the error of the log of a ratio of chances."""
_QUASI: Final = np.array([-1.0, 8.0, -1.0]) / 6
"""Values at a place and its neighbors make its coefficient."""
_MARGIN: Final = 0.056
"""Bound of the error of `_QUASI`, by the fourth differences of the coefficients nearby: 0.0559."""
_FINENESS: Final = 40.0
"""Places of the spline by the standard deviation of L, at 1,000 asks."""
_TOLERANCE: Final = 2e-3
"""Boxes are halved until they may be so much worse than their corners, relatively."""
_TAIL: Final = 1e-5
"""Share of delta that may be lost where outcomes are too rare to look at."""
_RIGHT: Final = 3.3
"""Largest u that is looked at."""
_HIDDEN: Final = math.erfc(_RIGHT / math.sqrt(2)) / 2
_NONE: Final = 1e-300
_FARTHEST: Final = 16.0
"""Places whose chance is e^-16 are not looked at: there V itself counts."""
_BLOCK: Final = 64
_MOST_CELLS: Final = 1 << 22
"""No box is halved where a table of all laws is larger: 32 megabytes."""


def labels_epsilon(
    options: int, sigma: float, *, asks: int, delta: float, weight: float = 1
) -> float:
    """Return epsilon of a run that releases the winner of noisy counts, at its cap on asks.

    It holds for any votes, chosen by all that was released before, and for any classes between
    which the votes of one unit move. It is never above that of the noisy counts themselves.

    `options` are the classes, and one more with a threshold on the same noisy counts. The cap
    on asks is fixed before the run.
    """
    shift = math.sqrt(2) * positive("weight", weight) / positive("sigma", sigma)
    delta = probability("delta", delta)
    if whole("options", options) < 2:
        raise InvalidParameterError("there must be at least 2 options", options)
    if not can_be_composed(options, sigma, asks=whole("asks", asks), delta=delta, weight=weight):
        raise InvalidParameterError(
            f"asks must be at most {MOST_ASKS}, delta at least {LEAST_DELTA:g}, and the noise at "
            f"least {LEAST_NOISE:g} votes for each vote that moves ({LEAST_NOISE_OF_MANY:g} with "
            f"three options or more, and more for many asks), at most {LARGEST_NOISE:g}",
            f"{sigma:g} for {weight:g}, {asks} asks, {delta:g}",
        )
    noisy_counts = gdp_epsilon(shift * math.sqrt(asks), delta)
    if noisy_counts == 0:
        return 0.0
    # Threads share out tables that are too small for it, and burn several times the time.
    with one_thread():
        # Two options, coarsely: where to look.
        about = gdp_epsilon(0.82 * shift * math.sqrt(asks), delta)
        about = min(
            _Game(shift, asks, delta, about=max(about, noisy_counts / 9)).epsilon(), noisy_counts
        )
        many = options > 2
        game = _Game(
            shift,
            asks,
            delta,
            about=about,
            tolerance=_TOLERANCE,
            many=many,
            is_convex=many and weight > 1,
        )
        return min(game.epsilon(), noisy_counts)


def can_be_composed(
    options: int, sigma: float, *, asks: int, delta: float, weight: float = 1
) -> bool:
    """Tell whether `labels_epsilon` covers so much noise, so many asks, and such a delta."""
    ratio, least = sigma / weight, LEAST_NOISE if options == 2 else LEAST_NOISE_OF_MANY
    return (
        least <= ratio <= LARGEST_NOISE
        and asks <= MOST_ASKS
        and delta >= LEAST_DELTA
        and math.sqrt(2 * asks) / ratio <= _LARGEST_SPREAD
    )


class _Game:
    """All asks of a run, backward."""

    def __init__(
        self,
        shift: float,
        asks: int,
        delta: float,
        *,
        about: float,
        tolerance: float = 10 * _TOLERANCE,
        many: bool = False,
        is_convex: bool = False,
    ) -> None:
        """Set the game up.

        `about` says where to look for the result; boxes are halved by `tolerance`. With
        `is_convex` V_0 is made convex, for votes that move among many options.
        """
        self._shift, self._asks, self._delta = shift, asks, delta
        self._about, self._tolerance, self._many = about, tolerance, many
        self._spread = spread = gdp_mu(about, delta)
        # How fast delta falls with epsilon, by that of a Gaussian.
        tail = about + scipy.special.log_ndtr(-about / spread - spread / 2) - math.log(delta)
        self._fall = float(math.exp(tail))
        fineness = _FINENESS * (asks / 1000 if asks > 300 else 0.3) ** 0.25
        step, high = spread / fineness, 4 * spread
        slope = self._fall / (1 + self._fall) if is_convex else math.exp(-high)
        self._splines = _Splines(-about - 1.5 * spread, high, step, slope)
        self._end = self._convex_end(slope) if is_convex else self._usual_end()

    def epsilon(self) -> float:
        """Return the least epsilon that is proved."""
        splines, s = self._splines, self._shift
        worth = 2 * s + s**2 + 8
        tail = max(7.1, math.sqrt(-2 * math.log(_TAIL * self._delta / self._asks / worth)))
        lost = worth * math.exp(-(tail**2) / 2)
        asks = _Asks(splines, s, tail, self._asks, self._delta, many=self._many)
        value = splines.closed(asks.last(splines.closed(self._end)) + lost)
        for left in range(2, self._asks + 1):
            # While boxes are new, and as the place that decides moves on.
            may_halve = left <= 10 or left % (left // 10) == 0 or left == self._asks
            before = asks.before(value, self._allowed(left), may_halve=may_halve)
            value = splines.closed(before + lost)
        return splines.epsilon(value, self._delta)

    def _usual_end(self) -> Table:
        """Return coefficients above (1 - e^-x)_+; e^(-step^2/6) keeps a spline of e^-x below it."""
        x, step = self._splines.x, self._splines.step
        return np.asarray(np.maximum(step**4 / 100 - np.expm1(-x - step**2 / 6), 0.0))

    def _convex_end(self, slope: float) -> Table:
        """Return coefficients of the tangent of 1 - e^-x with this slope, where above 0."""
        line = 1 - slope + slope * (self._splines.x + math.log(slope))
        return np.asarray(np.maximum(line, 0.0))

    def _allowed(self, left: int) -> Table:
        """Return how exact an ask must be at each place; infinite where a run hardly ever is.

        A run that is as likely under both neighbors at its end was at about -epsilon left / asks.
        """
        part = left / self._asks
        width = self._spread * math.sqrt(part * (1 - part)) + self._shift / 2
        middle = (1 - part) / (2 * self._fall) - part * self._about
        away = ((self._splines.x - middle) / (width + 0.01 * self._about)) ** 2 / 2
        first = 1 + min(self._asks, 100) / (10 * left)  # one ask of many
        allowed = self._tolerance * first * np.exp(np.minimum(away, _FARTHEST))
        return np.where(away > _FARTHEST, np.inf, allowed)


class _Splines:
    """Cubic splines on an even grid of x, by their coefficients, above nondecreasing functions.

    The mean of such a spline, moved by the ratios of a law, has a spline above it: coefficients

        (-g_(j-1) + 8 g_j - g_(j+1)) / 6  +  a margin,

    g the mean at the places of the grid. Each such interpolant reproduces cubics; it is off by at
    most 0.056 times the sizes of the fourth differences of the coefficients nearby, each with the
    weight of a hat, which is the margin. All B-splines are positive, so the maximum of coefficients
    is above the spline of every law.
    """

    def __init__(self, low: float, high: float, step: float, slope: float) -> None:
        """Make the grid.

        Functions do not fall below `low`, and rise by at most `slope` above `high`.
        """
        self.step, self._rise = step, slope * step
        self.first = math.floor(low / step)
        self.size = math.ceil(high / step) + 1 - self.first
        self.x = (self.first + np.arange(self.size)) * step

    def stencils(self, ratios: Table, reach: int) -> Table:
        """Return what makes a coefficient of a spline moved by these ratios; see `around`.

        Shape (..., 2 (2 reach + 1)).
        """
        moved = ratios[..., np.newaxis] / self.step - np.arange(-reach, reach + 1)
        nodes = moved[..., np.newaxis] + np.arange(-1, 2)
        hats = np.maximum(1 - np.abs(moved), 0.0)
        return np.concatenate([_cubic(nodes) @ _QUASI, _MARGIN * hats], axis=-1)

    def around(self, coefficients: Table, reach: int) -> Table:
        """Return coefficients near places, and their fourth differences; (4 reach + 2, places)."""
        steps = np.arange(1, reach + 3)
        below = np.full(len(steps), coefficients[0])
        whole = np.concatenate([below, coefficients, coefficients[-1] + self._rise * steps])
        rough = np.abs(np.diff(whole, n=4))
        both = (sliding_window_view(each, self.size) for each in (whole[2:-2], rough))
        return np.concatenate(list(both))

    def closed(self, coefficients: Table) -> Table:
        """Return coefficients with ends that can be continued: level, and a line."""
        found = coefficients * _ROUNDING
        found[:3] = found[:3].max()
        line = self._rise * np.arange(-2, 1)
        found[-3:] = (found[-3:] - line).max() + line
        return np.asarray(found)

    def epsilon(self, coefficients: Table, delta: float) -> float:
        """Return the least epsilon with a value of at most delta at -epsilon; infinite if none."""
        between = np.arange(64) / 64
        basis = _cubic(between - np.arange(-1, 3)[:, np.newaxis])
        values = (sliding_window_view(coefficients, 4) @ basis).ravel() * _ROUNDING
        inside = np.nonzero(values <= delta)[0]
        if not len(inside):
            return math.inf
        return max(-float(self.x[1] + self.step * inside[-1] / 64), 0.0)


def _cubic(places: Table) -> Table:
    """Return the cubic B-spline around 0."""
    x = np.abs(places)
    near = (4 - 6 * x**2 + 3 * x**3) / 6
    far = np.maximum(2 - x, 0.0) ** 3 / 6
    return np.asarray(np.where(x < 1, near, far))


class _Asks:
    """All that one ask can tell: laws that together tell at least as much as any at all u and t.

    A box of u and t is bounded by the laws at its corners, with a little taken from Q_i and given
    to Q_j; a box where that is not enough by a law of its largest chances and ratios.
    """

    def __init__(
        self, splines: _Splines, shift: float, tail: float, asks: int, delta: float, *, many: bool
    ) -> None:
        """Make the first boxes.

        Outcomes `tail` standard deviations out count by what they can be worth. With
        `many`, u may be finite.
        """
        self._splines, self._shift, self._many = splines, shift, many
        self._ignored, self._delta = 3.0 / asks, delta
        self._cut = shift * tail + shift**2 / 2
        self._reach = math.ceil(self._cut / splines.step) + 3
        self._rare = min(2e-4, shift**2 / 50)
        self._near = min(math.ceil(1.5 * shift / splines.step) + 3, self._reach)
        self._still, self._certain = (
            np.append(row, 0.0)
            for row in splines.stencils(
                np.array([0.0, -math.log1p(-self._rare) + _LOG_ERROR]), self._reach
            )
        )
        self._made: dict[bytes, int] = {}  # place of a law's row among those kept
        self._kept = np.empty((0, 4 * self._reach + 3))
        self._places: dict[tuple[float, float], Table] = {}
        self._all = _gaussian_row(splines, shift, tail, self._cut, self._reach)
        end = float(scipy.special.ndtri(self._rare))
        ends = np.append(np.arange(-tail, end, 0.1), end)
        chances = scipy.special.ndtr(ends)
        logs = scipy.special.log_ndtr(ends) - scipy.special.log_ndtr(ends - shift) + _LOG_ERROR
        self._tails = _rows(
            splines, chances[1:, np.newaxis], logs[:-1, np.newaxis], self._cut, self._reach
        )
        edges = np.arange(-math.ceil(tail), math.ceil(tail + shift) + 1.0)
        endless = np.full(len(edges) - 1, np.inf)
        boxes = Boxes(endless, endless, edges[:-1], edges[1:])
        boxes = boxes.joined(_cover(tail, shift)) if many else boxes
        nothing = np.zeros(0, dtype=np.intp)
        self._boxes, self._bent = boxes.taken(nothing), np.zeros((2, 2, 0))
        self._at = np.empty((0, 4, 2, 3))
        self._take(nothing, boxes)

    def last(self, after: Table) -> Table:
        """Return the coefficients before the last ask: nothing tells more than V itself."""
        return np.asarray(self._all @ self._around(after))

    def before(self, after: Table, tolerance: Table, *, may_halve: bool) -> Table:
        """Return the coefficients before an ask, from those after it.

        Args:
            tolerance: Boxes are halved while they make the ask so much worse, as a share of what it
                is worth; infinite where that does not matter; same shape.
        """
        around = self._around(after)
        found = self._all @ around
        places = np.nonzero(np.isfinite(tolerance))[0]
        if len(places) < 8:
            return np.asarray(found)
        window = slice(places[0], places[-1] + 1)
        around, allowed, before = around[:, window], tolerance[window], after[window]
        while True:
            values = self._values(around)
            if not may_halve or len(values) * max(around.shape) > _MOST_CELLS:
                break
            least = (self._plain @ around).max(axis=0)
            gain = np.maximum(least - before, self._ignored * np.maximum(least, self._delta))
            wrong = (values > least + allowed * gain).any(axis=1)
            wide = wrong[self._row_of] & (self._needs > 0)
            # The widest ones at a corner are halved first.
            most = np.zeros(len(wrong))
            np.maximum.at(most, self._row_of, self._needs)
            wide &= self._needs >= most[self._row_of] / 4
            if not wide.any():
                break
            which = np.zeros(len(self._boxes), dtype=bool)
            which[self._box_of[wide]] = True
            along_u = np.greater(*self._bent.sum(axis=0)[:, which])
            halves = self._boxes.taken(which).halves(along_u)
            self._take(~which, halves)
        inner = self._largest_of(values, around)
        # Four coefficients meet at a place: those of V and of the label may not be mixed.
        for edge in (slice(0, 3), slice(-3, None)):
            inner[edge] = np.maximum(inner[edge], found[window][edge])
        found[window] = inner
        return np.asarray(found)

    def _around(self, after: Table) -> Table:
        around = self._splines.around(after, self._reach)
        return np.vstack([around, np.ones(self._splines.size)])

    def _take(self, left: NDArray[np.bool_] | NDArray[np.intp], new: Boxes) -> None:
        """Make the laws of the boxes that are left, and of new ones."""
        at = self._laws_of(new)
        # Elsewhere i or "other" hardly ever wins, or i nearly always.
        is_open = (at[:, 1, 0, 2] < 1 - self._rare) & (at[:, 0, 1, 0] < 1 - self._rare)
        new, at = new.taken(is_open), at[is_open]
        most = np.log(at[:, 0, 0, 0] / at[:, 0, 1, 0]), np.log(at[:, 1, 1, 2] / at[:, 1, 0, 2])
        found = bends(new, *most, self._shift)
        self._bent = bent = np.concatenate([self._bent[:, :, left], found], axis=-1)
        self._boxes = boxes = self._boxes.taken(left).joined(new)
        self._at = at = np.concatenate([self._at[left], at])
        u, t = boxes.corners()
        p, q = at[:, :, 0], at[:, :, 1]
        taken, given = (each[:, np.newaxis] for each in bent.sum(axis=1))
        # What is left for "other" must not be negative.
        taken = np.maximum(taken, given - q[..., 1]).max(axis=1, keepdims=True)
        with np.errstate(divide="ignore", invalid="ignore"):
            needs = [(taken / (p - q)[..., 0]).max(axis=1), (given / (q - p)[..., 2]).max(axis=1)]
        largest = self._largest(at)
        is_rare = largest[0] <= self._rare
        fits = [(needs[0] < 1) & (taken < q[..., 0]).all(axis=1), needs[1] < 1]
        # A rare i is counted apart.
        need = np.maximum(
            np.where(is_rare, 0.0, np.where(fits[0], needs[0], np.inf)),
            np.where(fits[1], needs[1], np.inf),
        )
        alone = is_rare & fits[1]
        fit = fits[0] & fits[1] & ~is_rare
        shared = [_shared(u[of], t[of], at[of], taken[of], given[of]) for of in (fit, alone)]
        rest = ~(fit | alone)
        own = [p[..., 0], q[..., 0] - taken, p[..., 2], q[..., 2] + given]
        p_i, q_i, p_j, q_j = (
            np.where(ok[:, np.newaxis], each, most[:, np.newaxis])[rest]
            for ok, each, most in zip((fits[0],) * 2 + (fits[1],) * 2, own, largest, strict=True)
        )
        others, more = np.unique(
            _completed(p_i, q_i, p_j, q_j).reshape(-1, 6), axis=0, return_inverse=True
        )
        starts = np.cumsum([0, len(shared[0][1]), len(shared[1][1])])
        self._row_of = np.concatenate(
            [shared[0][0], starts[1] + shared[1][0], starts[2] + more.ravel()]
        )
        self._box_of = np.repeat(
            np.concatenate([np.nonzero(of)[0] for of in (fit, alone, rest)]), 4
        )
        self._needs = need[self._box_of]
        without = shared[1][1].copy()
        without[:, :, 1] += without[:, :, 0]
        without[:, :, 0] = 0.0
        far = np.zeros(starts[2] + len(others), dtype=bool)
        far[self._row_of[np.isinf(boxes.u0[self._box_of])]] = True
        self._rows = self._rows_of(
            np.concatenate([shared[0][1], without, others.reshape(-1, 2, 3)]), far
        )
        self._without = slice(starts[1], starts[2])
        size = 2 * self._reach + 1
        inner = np.arange(self._reach - self._near, self._reach + self._near + 1)
        self._middle = np.concatenate([inner, size + inner, [2 * size]])
        outer = np.ones(2 * size + 1, dtype=bool)
        outer[self._middle] = False
        self._is_wide = (self._rows[:, outer] != 0).any(axis=1)
        self._wide, self._narrow = (
            self._rows[self._is_wide],
            self._rows[~self._is_wide][:, self._middle],
        )
        plain = np.unique(at[:, ::3].reshape(-1, 6), axis=0).reshape(-1, 2, 3)
        self._plain = self._rows_of(plain, np.zeros(len(plain), dtype=bool))

    def _values(self, around: Table) -> Table:
        """Return what every row makes of an ask."""
        values = np.empty((len(self._rows), around.shape[1]))
        values[self._is_wide] = self._wide @ around
        values[~self._is_wide] = self._narrow @ around[self._middle]
        return values

    def _largest_of(self, values: Table, around: Table) -> Table:
        """Return the largest value, with what hardly ever happens."""
        tails = (self._tails @ around).max(axis=0)
        if self._without.start < self._without.stop:
            values[self._without] += tails
        # i or "other" wins against all odds; or i does not.
        rare = np.maximum(self._still @ around + 2 * tails, self._certain @ around)
        if self._many:  # and U < 0, beyond the largest u
            rare += _HIDDEN * (self._all @ around - rare)
        return np.asarray(np.maximum(values.max(axis=0), rare))

    def _laws_of(self, boxes: Boxes) -> Table:
        """Return the laws at the corners of boxes; shape (boxes, 4, 2, 3)."""
        u, t = boxes.corners()
        return self._laws_at(u.ravel(), t.ravel()).reshape(len(boxes), 4, 2, 3)

    def _laws_at(self, u: Table, t: Table) -> Table:
        """Return laws at places, of which many are asked for again; shape (places, 2, 3)."""
        names = list(zip(u.tolist(), t.tolist(), strict=True))
        new = [each for each in dict.fromkeys(names) if each not in self._places]
        if new:
            places = np.array(new)
            found = laws(places[:, 0], places[:, 1], self._shift)
            self._places |= zip(new, found, strict=True)
        return np.array([self._places[each] for each in names]).reshape(-1, 2, 3)

    @staticmethod
    def _largest(at: Table) -> tuple[Table, Table, Table, Table]:
        """Return P_i, Q_i, P_j and Q_j that tell most on boxes, from their corners' laws."""
        least, first, last, most = np.moveaxis(at, 1, 0)
        p_i, q_j = most[:, 0, 0], last[:, 1, 2]
        q_i, p_j = p_i * least[:, 1, 0] / least[:, 0, 0], q_j * first[:, 0, 2] / first[:, 1, 2]
        return p_i, q_i, p_j, q_j

    def _rows_of(self, found: Table, far: NDArray[np.bool_]) -> Table:
        """Return the row of each law."""
        numbers = np.column_stack([found.reshape(-1, 6), far])
        names = numbers.view(f"V{numbers.itemsize * numbers.shape[1]}").ravel().tolist()
        if (len(self._kept) + len(names)) * (4 * self._reach + 3) > 2 * _MOST_CELLS:
            self._made, self._kept = {}, self._kept[:0]
        new = [at for at, name in enumerate(names) if name not in self._made]
        made = [self._kept]
        for block in (new[start : start + _BLOCK] for start in range(0, len(new), _BLOCK)):
            p, q = np.moveaxis(np.maximum(found[block], _NONE), 1, 0)
            ratios = np.log(p / q) + _LOG_ERROR
            rows = _rows(self._splines, found[block, 0], ratios, self._cut, self._reach)
            if self._many:
                # What U >= 0 says is told, too, and more than that if it is not.
                ends = far[block]
                rows[ends] += _HIDDEN * (self._all - rows[ends])
            made.append(rows)
        self._made |= {names[at]: place for place, at in enumerate(new, start=len(self._kept))}
        self._kept = np.concatenate(made)
        return self._kept[[self._made[name] for name in names]]


def _shared(
    u: Table, t: Table, at: Table, taken: Table, given: Table
) -> tuple[NDArray[np.intp], Table]:
    """Return which law stands for each corner of boxes, and these laws."""
    four = np.stack(np.broadcast_arrays(u, t, taken, given), axis=-1).reshape(-1, 4)
    places, first, corners = np.unique(four[:, :2], axis=0, return_index=True, return_inverse=True)
    most = np.zeros((len(places), 2))
    np.maximum.at(most, corners.ravel(), four[:, 2:])
    moved = at.reshape(-1, 2, 3)[first]
    moved[:, 1] += most @ np.array([[-1.0, 1.0, 0.0], [0.0, -1.0, 1.0]])
    return corners.ravel(), moved


def _rows(splines: _Splines, p: Table, ratios: Table, cut: float, reach: int) -> Table:
    """Return what makes a coefficient from those around, and from 1; ratios are cut off.

    A function that rises by at most 1 loses no more than what is cut.
    """
    ends = np.clip(ratios, -cut, cut)
    lost = (p * np.maximum(ratios - ends, 0.0)).sum(axis=-1, keepdims=True)
    found = (p[..., np.newaxis, :] @ splines.stencils(ends, reach))[..., 0, :]
    return np.concatenate([found, lost], axis=-1)


def _completed(p_i: Table, q_i: Table, p_j: Table, q_j: Table) -> Table:
    """Return laws with these chances of i and j, or that tell more; shape (..., 2, 3)."""
    p_o, q_o = 1 - p_i - p_j, 1 - q_i - q_j
    # Where nothing is left for "other", i is what is not j.
    none = (p_o < 0) | (q_o < 0)
    p_i = np.where(none, np.maximum(p_i, 1 - p_j), p_i)
    q_i = np.where(none, np.minimum(q_i, 1 - q_j), q_i)
    # Rounding may have taken something.
    p_o, q_o = np.where(none, 0.0, p_o + 1e-15), np.where(none, 0.0, q_o)
    return np.stack([p_i, p_o, p_j, q_i, q_o, q_j], axis=-1).reshape(*p_i.shape, 2, 3)


def _gaussian_row(splines: _Splines, shift: float, tail: float, cut: float, reach: int) -> Table:
    """Return the row of all noise, which no label exceeds: cells are split to both their ends."""
    x = np.arange(-tail, tail + 0.1, 0.1)  # V - t, between cells
    logs = shift * x + shift**2 / 2
    p, q, y = _between(x), _between(x + shift), np.exp(logs)
    upper = np.clip((p - q * y[:-1]) / np.diff(y) * y[1:], 0.0, p)
    masses = np.zeros_like(y)
    masses[1:] += upper
    masses[:-1] += p - upper
    masses[0] += scipy.special.ndtr(-tail)
    masses[-1] += scipy.special.ndtr(-tail)
    return _rows(splines, masses, logs + _LOG_ERROR, cut, reach)


def _between(x: Table) -> Table:
    """Return the chance that a standard normal number falls between neighbors of these."""
    low, high = x[:-1], x[1:]
    below = scipy.special.ndtr(high) - scipy.special.ndtr(low)
    above = scipy.special.ndtr(-low) - scipy.special.ndtr(-high)
    return np.asarray(np.where(low > 0, above, below))


def _cover(tail: float, shift: float) -> Boxes:
    """Return boxes over all u and t where no outcome is so rare that a coin tells as much."""
    root, far = math.sqrt(2), tail + shift / math.sqrt(2)
    u = np.linspace(-root * far, _RIGHT, math.ceil(root * far + _RIGHT) + 1)
    t = np.linspace(
        -_RIGHT - root * tail, _RIGHT + root * far, math.ceil(_RIGHT + root * (tail + far)) + 1
    )
    low, left = (each.ravel() for each in np.meshgrid(u[:-1], t[:-1], indexing="ij"))
    high, right = (each.ravel() for each in np.meshgrid(u[1:], t[1:], indexing="ij"))
    inside = (high + right > -root * tail) & (high - left > -root * far)
    return Boxes(low, high, left, right).taken(inside)
