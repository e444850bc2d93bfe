"""The joint price of a refusal and a label: formal, and cheap where teachers mostly agree.

Confident-GNMax looks at a query and says "no answer" or a label. Charging the check and the label
apart supposes the worst of both at once: a top count that makes the check leak most, and votes so
close that the label does. But at most `teachers` votes are cast. So close votes mean a low top
count, hence mostly refusals; and a high top count means a clear label. The joint price charges
the outcome, once: c0 for a refusal, c1 for a label, valid at Renyi order l if for any votes and
any neighboring votes

    Pr[refusal]^l Pr'[refusal]^(1-l) e^(-(l-1) c0)
        + sum over labels of Pr[label]^l Pr'[label]^(1-l) e^(-(l-1) c1)  <=  1.

A run that ends after at most A0 refusals or A1 answers then costs at most A0 c0 + A1 c1 at order l,
for all queries, chosen in any way. The caps are fixed before the run; the mechanism knows neither l
nor the prices, so the best order and prices may be picked for the caps.

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
from itertools import pairwise
from typing import Final

import numpy as np
import scipy
from numpy.typing import NDArray

from pate_fed.accounting.any_votes import (
    AnyVotesSetting,
    any_votes_kinds,
    check_price,
    label_price,
)
from pate_fed.accounting.conversion import convert_at_orders
from pate_fed.accounting.discrete_law import LOG_ERROR as DISCRETE_LOG_ERROR
from pate_fed.accounting.discrete_law import discrete_pass_law
from pate_fed.accounting.label_divergence import (
    LOG_ERROR,
    SAFETY,
    bernoulli_divergence,
)
from pate_fed.accounting.ranges import positive
from pate_fed.accounting.vote_pairs import JointSetting, Noise, Table, kinds_of_pairs
from pate_fed.errors import InvalidParameterError

Setting = JointSetting | AnyVotesSetting
_FIRST_ORDER, _LAST_ORDER, _ORDER_STEP = 1.1, 400.0, 1.04
_STRIDES = (32, 8, 2)
_FREE = 50.0
"""A price, times order - 1, at which a refusal counts for nothing."""
_SEARCH_STEPS, _SEARCH_POINTS = 8, 33
_ROUGH_STEPS = 2
"""Steps while only the best order is looked for."""
_SEARCH_STATES = 1000
_LARGE = 1e3
"""Noise by vote moved from which the states of an order take megabytes."""
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
    """The cost of a refusal and of a label at one order.

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
    """A guarantee for a whole run, for all votes, if every vote row is valid.

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
    return _priced(setting, caps, delta)


def price_of_any_votes(
    setting: AnyVotesSetting,
    *,
    max_refusals: float,
    max_answers: float,
    delta: float,
    max_asks: float | None = None,
    real_caps: bool = False,
) -> JointPrice:
    """Price the same run where nobody checks the votes: the price holds for any votes.

    It is the price of Interactive-GNMax too, whose check compares other numbers.

    Args:
        setting: The public facts.
        max_refusals: As for `price`, like all others and the errors.
        max_answers: See there.
        delta: See there.
        max_asks: See there.
        real_caps: See there.

    Source:
        docs/explanation/joint-price.md, Theorems A and C to E.
    """
    return _priced(setting, _caps(max_refusals, max_answers, max_asks, real=real_caps), delta)


def _priced(setting: Setting, caps: tuple[tuple[float, float], ...], delta: float) -> JointPrice:
    best = _best_on_grid(_pairs, setting, caps, delta)
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
    setting: Setting,
    orders: Sequence[float],
    caps: tuple[tuple[float, float], ...],
) -> list[PricePair]:
    """Return, for each order, the valid prices that make a run at its caps cheapest.

    Args:
        setting: The public facts.
        orders: Renyi orders, each above 1.
        caps: The (refusals, answers) at which a run can end: its cost is the largest over them.
    """
    return _pairs(setting, orders, caps, _SEARCH_STEPS)


def _pairs(
    setting: Setting, orders: Sequence[float], caps: tuple[tuple[float, float], ...], steps: int
) -> list[PricePair]:
    found = [_cheapest(_states(setting, order), caps, steps) for order in orders]
    if isinstance(setting, JointSetting) or steps == _ROUGH_STEPS:
        return found
    # Check and label charged apart are a valid pair too, which cells may miss by a little.
    apart = (_apart(setting, order, caps) for order in orders)
    return [min(pair, key=lambda each: each.total) for pair in zip(found, apart, strict=True)]


def _apart(
    setting: AnyVotesSetting, order: float, caps: tuple[tuple[float, float], ...]
) -> PricePair:
    refusal = check_price(setting, order)
    answer = refusal + label_price(setting, order)
    return PricePair(order, refusal, answer, _total(caps, refusal, answer))


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


def flat_prices(setting: Setting, orders: Sequence[float]) -> list[float]:
    """Return, for each order, the RDP of one ask, for either outcome: refusal or label."""
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


def _states(setting: Setting, order: float) -> _States:
    is_large = isinstance(setting, AnyVotesSetting) and setting.sigma1 > _LARGE * setting.weight
    return (_large_states if is_large else _small_states)(setting, order)


def _computed_states(setting: Setting, order: float) -> _States:
    if isinstance(setting, AnyVotesSetting):
        kinds = any_votes_kinds(setting, order)
        if kinds is None:
            return _States(order, np.zeros(1), np.zeros(1), math.inf)
        flat = math.log1p(kinds.excess) / (order - 1) * SAFETY
        return _States(order, *_undominated(kinds.log_refusal, kinds.log_answer), flat)
    moves, divergence = kinds_of_pairs(setting, order)
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


_small_states = lru_cache(maxsize=256)(_computed_states)
_large_states = lru_cache(maxsize=32)(_computed_states)
"""Kept apart: these have ten megabytes at an order, the others one at most."""


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
        return scipy.special.log_ndtr(margin), scipy.special.log_ndtr(-margin)
    return discrete_pass_law(tops, vote_threshold=setting.vote_threshold, sigma=setting.sigma1)


def _cheapest(states: _States, caps: tuple[tuple[float, float], ...], steps: int) -> PricePair:
    """Search the refusal's price for the cheapest run: the cost is convex in it.

    Any price is valid with its least answer price, so the search needs no proof, and
    looks at a part of them where they are many.
    """
    part = slice(None, None, -(-len(states.log_refusal) // _SEARCH_STATES))
    few = replace(states, log_refusal=states.log_refusal[part], log_answer=states.log_answer[part])
    scale = states.order - 1
    flat = PricePair(states.order, states.flat, states.flat, _total(caps, states.flat, states.flat))
    if not math.isfinite(states.flat):
        return flat
    most_refusals = max(refusals for refusals, _ in caps)
    low = max(0.0, float(states.log_refusal.max()))
    # A refusal of a higher price would cost more than the flat price does, if there are any.
    high = max(low, flat.total / most_refusals * scale) if most_refusals else low + _FREE

    refusal = _cheapest_refusal(few, caps, low, high, steps)
    answer = float(_least_answer(states, np.array([refusal]))[0])
    pair = refusal / scale * SAFETY, answer / scale
    total = _total(caps, *pair)
    return PricePair(states.order, *pair, total) if total < flat.total else flat


def _least_answer(states: _States, refusal: Table) -> Table:
    """Return the least (order-1) c1 for each (order-1) c0; infinite where there is none."""
    return _largest(_needed(states.log_refusal, states.log_answer, refusal))


def _needed(log_refusal: Table, log_answer: Table, refusal: Table) -> Table:
    """Return the price of each state as (order-1) c1; shape (prices, states)."""
    room = -np.expm1(log_refusal - refusal[:, np.newaxis])
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(room > 0, log_answer - np.log(room), np.inf)


def _largest(needed: Table) -> Table:
    return np.asarray(np.maximum(needed.max(axis=1), 0.0)) + _PRICE_ERROR


def _cheapest_refusal(
    states: _States,
    caps: tuple[tuple[float, float], ...],
    low: float,
    high: float,
    steps: int,
) -> float:
    """Return about where the convex cost is least, on a grid that closes in on it.

    What a state needs falls the faster the larger its `log_refusal`, the order in which states
    are kept. So between two prices only those count that lie between the neediest at each.
    """
    log_refusal, log_answer = states.log_refusal, states.log_answer
    for _ in range(steps):
        points = np.linspace(low, high, _SEARCH_POINTS)
        needed = _needed(log_refusal, log_answer, points)
        answer = _largest(needed)
        totals = [r * points + (a * answer if a else 0.0) for r, a in caps]
        best = int(np.argmin(np.where(np.isfinite(answer), np.max(totals, axis=0), np.inf)))
        before, after = max(best - 1, 0), min(best + 1, len(points) - 1)
        low, high = points[before], points[after]
        between = slice(
            int(np.argmax(needed[before])),
            needed.shape[1] - int(np.argmax(needed[after, ::-1])),
        )
        log_refusal, log_answer = log_refusal[between], log_answer[between]
    return float(points[best])


def _total(caps: tuple[tuple[float, float], ...], refusal: float, answer: float) -> float:
    """Return the largest charge over the caps; an outcome that cannot occur costs nothing."""
    return SAFETY * max(
        (refusals * refusal if refusals else 0.0) + (answers * answer if answers else 0.0)
        for refusals, answers in caps
    )


def _caps(
    max_refusals: float, max_answers: float, max_asks: float | None, *, real: bool
) -> tuple[tuple[float, float], ...]:
    """Return the corners of all (refusals, answers) that a run can come to."""
    check = positive if real else _at_least_one
    refusals, answers = check("max_refusals", max_refusals), check("max_answers", max_answers)
    asks = refusals + answers if max_asks is None else check("max_asks", max_asks)
    return corners(refusals, answers, asks)


def _flat_pairs(
    setting: Setting, orders: Sequence[float], caps: tuple[tuple[float, float], ...], _: int
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
    [Setting, Sequence[float], tuple[tuple[float, float], ...], int], list[PricePair]
]


def _best_on_grid(
    pairs_at: _PairsAt, setting: Setting, caps: tuple[tuple[float, float], ...], delta: float
) -> _Best:
    """Find the best order of `ORDERS`; epsilon falls, then rises along them.

    Two classes and a rough search are quick and have nearly the same best order, from which the
    walk begins.
    """
    epsilons: dict[int, tuple[float, PricePair]] = {}

    def look(positions: Iterable[int], at: Setting, steps: int = _SEARCH_STEPS) -> int:
        for position in positions:
            if position not in epsilons:
                pair = pairs_at(at, [float(ORDERS[position])], caps, steps)[0]
                epsilons[position] = (_epsilon(pair, delta), pair)
        return min(epsilons, key=lambda position: (epsilons[position][0], position))

    quick = replace(setting, classes=2)
    best = look(range(0, len(ORDERS), _STRIDES[0]), quick, _ROUGH_STEPS)
    for before, stride in pairwise(_STRIDES):
        best = look(_around(best, before)[::stride], quick, _ROUGH_STEPS)
    epsilons.clear()
    best = look(_around(best, 1), setting)
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


def _at_least_one(name: str, value: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise InvalidParameterError(f"{name} must be a whole number of at least 1", value)
    return float(value)
