"""The joint price of a refusal and a label: formal, and cheap where teachers mostly agree.

Confident-GNMax looks at a query and says "no answer" or a label. Charging the check and the label
apart supposes the worst of both at once: a top count that makes the check leak most, and votes so
close that the label does. But at most `teachers` votes are cast. So close votes mean a low top
count, hence mostly refusals; and a high top count means a clear label. The joint price charges
the outcome, once: c0 for a refusal, c1 for a label, valid at Renyi order l if for any votes and
any neighboring votes

    Pr[refusal]^l Pr'[refusal]^(1-l) e^(-(l-1) c0)
        + sum over labels of Pr[label]^l Pr'[label]^(1-l) e^(-(l-1) c1)  <=  1.

A run that ends after at most A0 refusals or A1 answers then costs at most A0 c0 + A1 c1 at order
l, whatever was asked and however it was chosen. The caps are fixed before the run; the mechanism
knows neither l nor the prices, so the best order and prices may be picked for the caps.

**It holds only where every vote row is valid**: whole, no count below 0, at most `teachers` votes
in all, one per teacher. Somebody who adds or withdraws votes makes a close vote with a high top
count, and the price is void for everyone. Where nobody checks the rows, charge check and label
apart. It covers those who see labels and refusals, and nobody who sees a noisy count.

    price(teachers=250, classes=2, vote_threshold=150, sigma1=50, sigma2=40,
          max_refusals=30, max_answers=270, delta=1e-5).epsilon      # 0.997, apart 2.36

docs/explanation/joint-price.md has the statement, the proofs and the limits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr

from pate_fed.accounting.conversion import convert_at_orders
from pate_fed.accounting.discrete_law import LOG_ERROR as DISCRETE_LOG_ERROR
from pate_fed.accounting.discrete_law import discrete_gap_law, discrete_pass_law
from pate_fed.accounting.label_divergence import (
    LARGEST_REACH,
    LOG_ERROR,
    SAFETY,
    bernoulli_divergence,
    many_class_divergence,
    two_class_divergence,
)
from pate_fed.accounting.ranges import positive, probability, whole
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
_FIRST_ORDER, _LAST_ORDER, _ORDER_STEP = 1.1, 400.0, 1.04
_STRIDE = 8
_FREE = 50.0
"""A price, times order - 1, at which a refusal counts for nothing."""
_SEARCH_STEPS, _SEARCH_POINTS = 8, 33
_LOG_ERRORS: Final[Mapping[Noise, float]] = {
    "gaussian": LOG_ERROR,
    "discrete-gaussian": DISCRETE_LOG_ERROR,
}
_PRICE_ERROR = 1e-13
"""Absolute error of (order - 1) times a price, rounded up."""


def _order_grid() -> Table:
    steps = round(math.log((_LAST_ORDER - 1) / (_FIRST_ORDER - 1)) / math.log(_ORDER_STEP))
    grid = np.asarray(1 + (_FIRST_ORDER - 1) * _ORDER_STEP ** np.arange(steps + 1))
    grid.flags.writeable = False
    return grid


ORDERS: Final = _order_grid()
"""Orders that `price` chooses from: order - 1 grows by 4 % from each to the next."""


@dataclass(frozen=True, slots=True)
class PricePair:
    """What a refusal and a label cost at one order.

    Attributes:
        order: Renyi order, above 1.
        refusal: RDP charged for a refusal, in nats; at least 0.
        answer: RDP charged for a label, in nats; at least 0.
        total: RDP of a whole run at its caps, in nats.
    """

    order: float
    refusal: float
    answer: float
    total: float


@dataclass(frozen=True, slots=True)
class JointPrice:
    """A guarantee for a whole run, whatever the votes, if every vote row is valid.

    Attributes:
        epsilon: Of a run that ends after its last allowed refusal, answer or ask.
        delta: It holds at this delta.
        order: Renyi order at which it was reached.
        refusal_price: RDP charged for each refusal at that order, in nats.
        answer_price: RDP charged for each label at that order, in nats.
        flat_epsilon: The same if every ask is charged alike; at least `epsilon`.
        flat_order: Order at which that was reached.
        flat_price: RDP of an ask at that order, in nats.
        is_at_edge: Whether `order` is the first or last one looked at: a warning.
    """

    epsilon: float
    delta: float
    order: float
    refusal_price: float
    answer_price: float
    flat_epsilon: float
    flat_order: float
    flat_price: float
    is_at_edge: bool


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


def price(
    *,
    teachers: int,
    classes: int,
    vote_threshold: float,
    sigma1: float,
    sigma2: float,
    max_refusals: float,
    max_answers: float,
    delta: float,
    max_asks: float | None = None,
    weight: int = 1,
    may_abstain: bool = False,
    noise: Noise = "gaussian",
    real_caps: bool = False,
) -> JointPrice:
    """Price a run of Confident-GNMax that ends after its last allowed refusal or answer.

    Args:
        teachers: As in `JointSetting`, like all up to `sigma2`, and `weight` to `noise`.
        classes: See there.
        vote_threshold: See there.
        sigma1: See there.
        sigma2: See there.
        max_refusals: Cap on refusals, above 0, fixed before the run.
        max_answers: Cap on answers, above 0, fixed before the run.
        delta: In (0, 1).
        max_asks: Cap on both together; None for none but the two.
        weight: See there.
        may_abstain: See there.
        noise: See there.
        real_caps: Allow caps that are not whole. They bound no run: for reproducing the papers,
            which put expected numbers.

    Returns:
        The price; `epsilon` is infinite where no order has a finite one.

    Raises:
        InvalidParameterError: an argument is out of its range, or no joint price is known.

    Source:
        docs/explanation/joint-price.md, Theorems A to D. Canonne, Kamath, Steinke 2020,
        Proposition 12. https://arxiv.org/abs/2004.00010
    """
    setting = JointSetting(
        teachers, classes, vote_threshold, sigma1, sigma2, weight, may_abstain, noise
    )
    caps = _caps(max_refusals, max_answers, max_asks, real=real_caps)
    probability("delta", delta)
    best = _best_on_grid(price_pairs, setting, caps, delta)
    flat = _best_on_grid(_flat_pairs, setting, caps, delta)
    if flat.epsilon < best.epsilon:
        best = flat
    return JointPrice(
        epsilon=best.epsilon,
        delta=float(delta),
        order=best.pair.order,
        refusal_price=best.pair.refusal,
        answer_price=best.pair.answer,
        flat_epsilon=flat.epsilon,
        flat_order=flat.pair.order,
        flat_price=flat.pair.refusal,
        is_at_edge=best.is_at_edge,
    )


def price_pairs(
    setting: JointSetting,
    orders: Sequence[float],
    caps: tuple[tuple[float, float], ...],
) -> list[PricePair]:
    """Return, for each order, the valid prices that make a run at its caps cheapest.

    Args:
        setting: The public facts.
        orders: Renyi orders, each above 1.
        caps: The (refusals, answers) at which a run can end: its cost is the largest over them.
    """
    return [_cheapest(_states(setting, order), caps) for order in orders]


def corners(refusals: float, answers: float, asks: float) -> tuple[tuple[float, float], ...]:
    """Return the (refusals, answers) among which every price is largest, where all are caps.

    Args:
        refusals: At most so many.
        answers: At most so many.
        asks: At most so many of both together.
    """
    refusals, answers = min(refusals, asks), min(answers, asks)
    found = {(refusals, min(answers, asks - refusals)), (min(refusals, asks - answers), answers)}
    return tuple(sorted(found))


def largest_charge(refusals: float, answers: float, asks: float, *, prices: PricePair) -> float:
    """Return the most, in nats, that outcomes within these caps are charged at these prices."""
    return _total(corners(refusals, answers, asks), prices.refusal, prices.answer)


def flat_prices(setting: JointSetting, orders: Sequence[float]) -> list[float]:
    """Return, for each order, the RDP of one ask, whatever comes of it: refusal or label."""
    return [_states(setting, order).flat for order in orders]


@dataclass(frozen=True, slots=True, eq=False)
class _States:
    """Every kind of neighboring pair at one order, each by its two summands at price 0.

    The first is Pr[refusal]^l Pr'[refusal]^(1-l), the second the same for all labels.
    """

    order: float
    log_refusal: Table
    log_answer: Table
    flat: float


@lru_cache(maxsize=256)
def _states(setting: JointSetting, order: float) -> _States:
    moves, divergence = _kinds(setting, order)
    tops = np.arange(setting.teachers + 1)
    possible = divergence >= 0
    pairs = (np.broadcast_to(tops, moves.shape)[possible], (tops + moves)[possible])
    label = divergence[possible]
    before, after = (_pass_law(setting, top) for top in pairs)
    log_error = _LOG_ERRORS[setting.noise]
    check = bernoulli_divergence(before, after, order, log_error=log_error)
    log_pass, log_stop = (
        order * here - (order - 1) * there + log_error * (1 - order * (here + there))
        for here, there in zip(before, after, strict=True)
    )
    # The sum of both summands, less 1, without its cancellation.
    with np.errstate(over="ignore", divide="ignore"):
        excess = check + np.exp(log_pass + np.log(label))
    flat = float(np.log1p(excess.max()) / (order - 1)) * SAFETY
    return _States(order, *_undominated(log_stop, log_pass + np.log1p(label)), flat)


def _undominated(log_refusal: Table, log_answer: Table) -> tuple[Table, Table]:
    """Drop states that another exceeds in both summands: no price depends on them."""
    descending = np.lexsort((-log_answer, -log_refusal))
    log_refusal, log_answer = log_refusal[descending], log_answer[descending]
    best_before = np.maximum.accumulate(np.concatenate([[-np.inf], log_answer]))[:-1]
    kept = log_answer > best_before
    return log_refusal[kept], log_answer[kept]


def _pass_law(setting: JointSetting, tops: NDArray[np.int64]) -> tuple[Table, Table]:
    """Return the logs of the chances that a query with these top counts is answered, is not."""
    if setting.noise == "gaussian":
        margin = (tops - setting.vote_threshold) / setting.sigma1
        return log_ndtr(margin), log_ndtr(-margin)
    return discrete_pass_law(tops, vote_threshold=setting.vote_threshold, sigma=setting.sigma1)


def _kinds(setting: JointSetting, order: float) -> _Kinds:
    """Return moves of the top count and the label's E for each kind of neighboring pair.

    Both have shape (kinds, teachers + 1), a column per top count; E is -1 where there is none.
    """
    if setting.classes > 2:
        # The check does not enter: settings that differ in it alone share what is computed.
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
    """Return E for each gap n_i - n_j, whichever class is the lower; shape (2 teachers + 1,)."""
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


def _cheapest(states: _States, caps: tuple[tuple[float, float], ...]) -> PricePair:
    """Search the refusal's price for the cheapest run: the cost is convex in it.

    Any price is valid with its least answer price, so the search needs no proof.
    """
    scale = states.order - 1
    flat = PricePair(states.order, states.flat, states.flat, _total(caps, states.flat, states.flat))
    if not math.isfinite(states.flat):
        return flat
    most_refusals = max(refusals for refusals, _ in caps)
    low = max(0.0, float(states.log_refusal.max()))
    # A refusal of a higher price would cost more than the flat price does, if there are any.
    high = max(low, flat.total / most_refusals * scale) if most_refusals else low + _FREE

    def cost(refusal: Table) -> Table:
        answer = _least_answer(states, refusal)
        totals = [r * refusal + (a * answer if a else 0.0) for r, a in caps]
        return np.where(np.isfinite(answer), np.max(totals, axis=0), np.inf)

    refusal = _minimize(cost, low, high)
    answer = float(_least_answer(states, np.array([refusal]))[0])
    pair = refusal / scale * SAFETY, answer / scale
    total = _total(caps, *pair)
    return PricePair(states.order, *pair, total) if total < flat.total else flat


def _least_answer(states: _States, refusal: Table) -> Table:
    """Return the least (order-1) c1 for each (order-1) c0; infinite where there is none."""
    room = -np.expm1(states.log_refusal - refusal[:, np.newaxis])
    with np.errstate(divide="ignore", invalid="ignore"):
        needed = np.where(room > 0, states.log_answer - np.log(room), np.inf)
    return np.asarray(np.maximum(needed.max(axis=1), 0.0)) + _PRICE_ERROR


def _minimize(cost: Callable[[Table], Table], low: float, high: float) -> float:
    """Return about where a convex cost is least, on a grid that closes in on it."""
    for _ in range(_SEARCH_STEPS):
        points = np.linspace(low, high, _SEARCH_POINTS)
        best = int(np.argmin(cost(points)))
        low, high = points[max(best - 1, 0)], points[min(best + 1, len(points) - 1)]
    return float(points[best])


def _total(caps: tuple[tuple[float, float], ...], refusal: float, answer: float) -> float:
    return max(refusals * refusal + answers * answer for refusals, answers in caps) * SAFETY


def _caps(
    max_refusals: float, max_answers: float, max_asks: float | None, *, real: bool
) -> tuple[tuple[float, float], ...]:
    """Return the corners of all (refusals, answers) that a run can come to."""
    check = positive if real else _at_least_one
    refusals, answers = check("max_refusals", max_refusals), check("max_answers", max_answers)
    asks = refusals + answers if max_asks is None else check("max_asks", max_asks)
    return corners(refusals, answers, asks)


def _flat_pairs(
    setting: JointSetting, orders: Sequence[float], caps: tuple[tuple[float, float], ...]
) -> list[PricePair]:
    flat = flat_prices(setting, orders)
    return [
        PricePair(order, cost, cost, _total(caps, cost, cost))
        for order, cost in zip(orders, flat, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class _Best:
    epsilon: float
    pair: PricePair
    is_at_edge: bool


_PairsAt = Callable[
    [JointSetting, Sequence[float], tuple[tuple[float, float], ...]], list[PricePair]
]


def _best_on_grid(
    pairs_at: _PairsAt, setting: JointSetting, caps: tuple[tuple[float, float], ...], delta: float
) -> _Best:
    """Find the best order of `ORDERS`; epsilon falls, then rises along them.

    Two classes are quick and have nearly the same best order, from which the walk begins.
    """
    epsilons: dict[int, tuple[float, PricePair]] = {}

    def look(positions: Iterable[int], at: JointSetting) -> int:
        for position in positions:
            if position not in epsilons:
                pair = pairs_at(at, [float(ORDERS[position])], caps)[0]
                epsilons[position] = (_epsilon(pair, delta), pair)
        return min(epsilons, key=lambda position: (epsilons[position][0], position))

    quick = replace(setting, classes=2)
    best = look(range(0, len(ORDERS), _STRIDE), quick)
    best = look(_around(best, _STRIDE), quick)
    if setting != quick:
        epsilons.clear()
        look(_around(best, 1), setting)
    while (closer := look(_around(best, 1), setting)) != best:
        best = closer
    epsilon, pair = epsilons[best]
    return _Best(epsilon, pair, best in (0, len(ORDERS) - 1) and 0 < epsilon < math.inf)


def _around(position: int, steps: int) -> range:
    return range(max(position - steps, 0), min(position + steps + 1, len(ORDERS)))


def _epsilon(pair: PricePair, delta: float) -> float:
    # Rounded up by more than the error of the conversion.
    converted = convert_at_orders([pair.total], [pair.order], delta=delta, method="cks")
    return converted.epsilon * SAFETY


def _at_least(name: str, value: int, least: int) -> int:
    if whole(name, value) < least:
        raise InvalidParameterError(f"{name} must be at least {least}", value)
    return int(value)


def _at_least_one(name: str, value: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise InvalidParameterError(f"{name} must be a whole number of at least 1", value)
    return float(value)
