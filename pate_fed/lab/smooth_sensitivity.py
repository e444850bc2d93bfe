"""How far the per-instance cost can move when teachers change their votes: smooth sensitivity.

The papers' per-instance cost f(D) is private. It may be released with Gaussian noise in
proportion to its smooth sensitivity,

    SS_beta(D) = max over d of e^(-beta d) A(d),

where A(d) is at least the local sensitivity of f at every D' that differs from D in at most d
units. Here are the lists A(0), A(1), ... of a GNMax label, of a threshold check, and of both
exactly for two classes. Lists of several queries add up: the same units change on all of them.
Each list never falls. Lists of the sensitivity at exactly d units would add up to less than the sum
has within d units, and the sum would not be smooth.
Everything here depends on the votes and is private.

For a label, f is a function beta(q) and one unit moves q within [B_L(q), B_U(q)]. Where the
conditions of `smooth_conditions` hold, the local sensitivity first grows with q, is largest between
q1 and q0, then falls. Among all votes within d units q lies between two known extremes: the winner
gains d votes from the strongest others, or loses d to the second. So A(d) is read off at one of
them. Statements about d teachers hold for d units of `weight` votes each.

Source:
    Papernot et al. 2018, section 5 and appendix B, algorithms 3, 4 and 5.
    https://arxiv.org/abs/1802.08908
    Nissim, Raskhodnikova, Smith 2007, Smooth sensitivity and sampling in private data analysis.
    https://doi.org/10.1145/1250790.1250803
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from pate_fed.accounting.ranges import positive, top_counts, vote_counts
from pate_fed.errors import InvalidParameterError, InvalidVotesError
from pate_fed.lab.pate_bounds import threshold_rdp
from pate_fed.lab.smooth_conditions import (
    SmoothConditions,
    SmoothSetting,
    capped_rdp,
    require_conditions,
    smooth_conditions,
)

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]

_BLOCK = 1 << 19
"""Most table entries looked up at a time."""


def smooth_sensitivity(local_sensitivities: ArrayLike, *, beta: float) -> float:
    """Return max over d of e^(-beta d) A(d)."""
    listed = np.asarray(local_sensitivities, dtype=np.float64)
    if listed.ndim != 1 or not listed.size or not (listed >= 0).all():
        raise InvalidParameterError("local sensitivities must be at least 0, on one axis")
    decay = np.exp(-positive("beta", beta) * np.arange(len(listed)))
    return float((decay * listed).max())


def distances(teachers: int, weight: int = 1) -> int:
    """Return how many distances a list holds: beyond them nothing can change."""
    return teachers if weight == 1 else -(-teachers // weight) + 1


def gnmax_local_sensitivities(counts: ArrayLike, setting: SmoothSetting) -> Floats:
    """Bound each label's local sensitivities A(d), in nats; shape (queries, distances)."""
    votes = votes_of(counts, teachers=setting.teachers, classes=setting.classes)
    reach = distances(setting.teachers, setting.weight)
    if not _is_ever_data_dependent(setting):
        return np.zeros((len(votes), reach))
    conditions = require_conditions(setting)
    # Classes are interchangeable, and queries repeat: each sorted row is priced once.
    rows, which = np.unique(-np.sort(-votes, axis=1), axis=0, return_inverse=True)
    listed = np.empty((len(rows), reach))
    for block in _row_blocks(len(rows), reach):
        listed[block] = _lists(rows[block], setting, conditions)
    return listed[which.ravel()]


def total_gnmax_local_sensitivities(
    counts: ArrayLike, setting: SmoothSetting, *, shares: ArrayLike | None = None
) -> Floats:
    """Add up the lists of many labels without holding all of them."""
    votes = votes_of(counts, teachers=setting.teachers, classes=setting.classes)
    weights = shares_of(shares, len(votes))
    total = np.zeros(distances(setting.teachers, setting.weight))
    for block in _row_blocks(len(votes), len(total)):
        total += weights[block] @ gnmax_local_sensitivities(votes[block], setting)
    return total


def threshold_local_sensitivities(
    maxima: ArrayLike,
    *,
    vote_threshold: float,
    sigma: float,
    order: float,
    teachers: int,
    weight: int = 1,
    lowest: int = 1,
) -> Floats:
    """Bound the local sensitivity of each check's cost at every distance from its top count.

    The cost is a table over the whole numbers that a top count can be; one unit moves it by at
    most `weight`. No condition is needed.

    Top counts are whole numbers from `lowest` to `teachers`; `lowest` is 1, or less where a
    student's rounded share was taken off.

    Returns:
        A(d) in nats; shape (queries, `distances(teachers, weight)`).
    """
    if lowest >= teachers:
        raise InvalidParameterError("lowest must be below the number of teachers", lowest)
    tops = top_counts(maxima)
    if (tops < lowest).any() or (tops > teachers).any():
        raise InvalidVotesError(f"top counts must be {lowest} to {teachers}")
    # One below the lowest is a neighbor in the table, not a vote that is walked to.
    possible = np.arange(lowest - 1, teachers + 1)
    check = {"vote_threshold": vote_threshold, "sigma": sigma, "weight": weight}
    costs = threshold_rdp(possible, [order], **check)[:, 0]
    local = _table_sensitivities(costs, weight)[1:]
    return _scan(local, tops.astype(np.int64) - lowest, weight, distances(teachers, weight))


def two_class_local_sensitivities(
    counts: ArrayLike,
    *,
    cost_of_class0: Floats,
    weight: int = 1,
) -> Floats:
    """Return the exact list of any cost of a query with two classes.

    With two classes the votes of a query are one number, and every change is considered: no
    condition, no bound on q.

    `cost_of_class0` has the costs of a query in which 0, 1, ..., n teachers vote for class 0.
    """
    teachers = len(cost_of_class0) - 1
    votes = votes_of(counts, teachers=teachers, classes=2)
    local = _table_sensitivities(cost_of_class0, weight)
    return _scan(local, votes[:, 0], weight, distances(teachers, weight))


def two_class_label_costs(*, sigma: float, order: float, teachers: int, weight: int = 1) -> Floats:
    """Return the cost of one GNMax label of two classes for every vote: a table over class 0.

    That is the largest Renyi divergence, in either direction, to any vote one unit away.
    """
    setting = SmoothSetting(sigma, 2, order, teachers, weight)
    gaps: Floats = 2.0 * np.arange(setting.teachers + 1, dtype=np.float64) - setting.teachers
    scale = math.sqrt(2) * setting.sigma
    costs = np.zeros(len(gaps))
    for moved in range(1, min(setting.weight, setting.teachers) + 1):
        here, there = gaps[:-moved] / scale, gaps[moved:] / scale
        # Either may be the real vote, and both directions count.
        apart = np.maximum(
            _bit_divergence(here, there, setting.order), _bit_divergence(there, here, setting.order)
        )
        costs[:-moved] = np.maximum(costs[:-moved], apart)
        costs[moved:] = np.maximum(costs[moved:], apart)
    return np.minimum(costs, setting.largest_rdp)


def local_sensitivity_at(
    log_q: Floats, setting: SmoothSetting, conditions: SmoothConditions
) -> Floats:
    """Bound the local sensitivity of beta where the votes give q (algorithm 3)."""
    # Between q1 and q0 the bound of q1 is used, which is the largest.
    between = (log_q >= conditions.log_q1) & (log_q <= conditions.log_q0)
    here = np.where(between, conditions.log_q1, log_q)
    z = setting.z_of(np.minimum(here, math.log1p(-1 / setting.classes)))
    # B_U(q1) is q0, which rounding could miss.
    log_upper = np.where(between, conditions.log_q0, setting.log_q_of(z - setting.step))
    lower, value, upper = (
        capped_rdp(log_values, setting, log_q0=conditions.log_q0)
        for log_values in (setting.log_q_of(z + setting.step), here, log_upper)
    )
    return np.asarray(np.maximum(np.maximum(upper - value, value - lower), 0.0))


def votes_of(counts: ArrayLike, *, teachers: int, classes: int) -> Counts:
    """Return vote counts of this many teachers and classes as int64."""
    votes = vote_counts(counts)
    if votes.shape[1] != classes:
        raise InvalidVotesError(f"counts must have {classes} classes", votes.shape[1])
    if (votes.sum(axis=1) != teachers).any():
        raise InvalidVotesError(f"every row must sum to {teachers} teachers")
    return votes


def shares_of(shares: ArrayLike | None, queries: int) -> Floats:
    """Return the weight of each query, 1 each for None."""
    if shares is None:
        return np.ones(queries)
    checked = np.asarray(shares, dtype=np.float64)
    if checked.shape != (queries,) or not (checked >= 0).all():
        raise InvalidParameterError(f"shares must be {queries} numbers of at least 0")
    return checked


def _is_ever_data_dependent(setting: SmoothSetting) -> bool:
    """Tell whether any vote of so many teachers costs less than order weight^2 / sigma^2."""
    unanimous = float(setting.log_q_of(np.array(setting.farthest_z)))
    return unanimous < smooth_conditions(setting).log_q0


def _lists(rows: Counts, setting: SmoothSetting, conditions: SmoothConditions) -> Floats:
    """Return the lists of rows that are sorted, largest first (algorithms 4 and 5)."""
    log_beats = _log_beats(setting)
    log_q = _log_q_of_gaps(rows[:, :1] - rows[:, 1:], log_beats)
    plateau = float(local_sensitivity_at(np.array(conditions.log_q1), setting, conditions))
    reach = distances(setting.teachers, setting.weight)
    listed = np.full((len(rows), reach), plateau)
    near = np.flatnonzero(log_q > conditions.log_q0)
    far = np.flatnonzero(log_q < conditions.log_q1)
    _walk_left(rows, near, listed, setting, conditions)
    _walk_right(rows, far, listed, setting, conditions)
    return np.asarray(np.maximum.accumulate(listed, axis=1))


def _walk_right(
    rows: Counts,
    chosen: NDArray[np.intp],
    listed: Floats,
    setting: SmoothSetting,
    conditions: SmoothConditions,
) -> None:
    """Let the winner lose votes to the second, until q reaches q1."""
    log_beats = _log_beats(setting)
    # The second alone brings q to q1 at this gap: no step beyond it is needed.
    enough = math.sqrt(2) * setting.sigma * -float(scipy.special.ndtri_exp(conditions.log_q1))
    lead = rows[chosen, 0] - rows[chosen, 1]
    last = np.ceil(np.maximum(lead - enough, 0.0) / (2 * setting.weight)).astype(np.int64)
    steps = np.minimum(last + 1, listed.shape[1])
    compact, multiples = _distinct(rows[chosen, 2:])
    for which, step in _pairs(steps, compact.shape[1] + 1):
        query, moved = chosen[which], step * setting.weight
        gap = np.maximum(rows[query, 0] - rows[query, 1] - 2 * moved, 0)
        log_second = log_beats[gap]
        if compact.shape[1]:
            gaps = np.maximum(rows[query, 0] - moved, 0)[:, np.newaxis] - compact[which]
            logs = log_beats[np.maximum(gaps, 0)]
            # The second is the likeliest to win: no other exceeds it.
            others = np.exp(logs - log_second[:, np.newaxis]) * multiples[which]
            log_q = log_second + np.log1p(others.sum(axis=1))
        else:
            log_q = log_second
        is_before = log_q < conditions.log_q1
        query, after = query[is_before], step[is_before]
        listed[query, after] = local_sensitivity_at(log_q[is_before], setting, conditions)


def _walk_left(
    rows: Counts,
    chosen: NDArray[np.intp],
    listed: Floats,
    setting: SmoothSetting,
    conditions: SmoothConditions,
) -> None:
    """Let the winner take votes from the strongest others, until q reaches q0.

    It does before all are taken: a unanimous vote is below q0.
    """
    log_beats = _log_beats(setting)
    others = rows[chosen, 1:]
    available = others.sum(axis=1)
    # At this gap to every other class q is at most q0.
    share = conditions.log_q0 - math.log(setting.classes - 1)
    enough = math.sqrt(2) * setting.sigma * -float(scipy.special.ndtri_exp(share))
    lead = rows[chosen, 0] - others[:, 0]
    last = np.ceil(np.maximum(enough - lead, 0.0) / setting.weight).astype(np.int64)
    steps = np.minimum(last + 1, listed.shape[1])
    # The number of votes that bring the strongest down to class j, for each j.
    to_level = np.cumsum(others, axis=1) - others - np.arange(others.shape[1]) * others
    sums = np.cumsum(others, axis=1)
    for which, step in _pairs(steps, others.shape[1]):
        moved = np.minimum(step * setting.weight, available[which])
        leveled = (to_level[which] <= moved[:, np.newaxis]).sum(axis=1)
        left_over = sums[which, leveled - 1] - moved
        level, extra = np.divmod(left_over, leveled)
        position = np.arange(others.shape[1])
        leveled_counts = level[:, np.newaxis] + (position < extra[:, np.newaxis])
        remaining = np.where(position < leveled[:, np.newaxis], leveled_counts, others[which])
        top = rows[chosen[which], 0] + moved
        log_q = _log_q_of_gaps(top[:, np.newaxis] - remaining, log_beats)
        is_before = log_q > conditions.log_q0
        query, after = chosen[which][is_before], step[is_before]
        listed[query, after] = local_sensitivity_at(log_q[is_before], setting, conditions)


def _table_sensitivities(costs: Floats, weight: int) -> Floats:
    """Return how far a cost that is a table can move where its number moves by `weight`."""
    size = len(costs)
    local = np.zeros(size)
    for moved in range(1, min(weight, size - 1) + 1):
        change = np.abs(costs[moved:] - costs[:-moved])
        local[moved:] = np.maximum(local[moved:], change)
        local[:-moved] = np.maximum(local[:-moved], change)
    return local


def _scan(local: Floats, positions: Counts, weight: int, reach: int) -> Floats:
    """Return the lists of a table of local sensitivities, from each of these positions.

    A(d) looks at votes d units away, or between d - 1 and d: nearer votes are looked at for smaller
    d.
    """
    votes = np.arange((reach - 1) * weight + 1)
    places, which = np.unique(positions, return_inverse=True)
    # Positions outside the table cannot happen.
    padded = np.concatenate([local, np.zeros(len(votes))])
    listed = np.empty((len(places), reach))
    for row, place in enumerate(places):
        up, down = padded[place + votes], local[np.maximum(place - votes, 0)]
        found = np.maximum(up, np.where(votes <= place, down, 0.0))
        listed[row, 0] = found[0]
        listed[row, 1:] = found[1:].reshape(reach - 1, weight).max(axis=1)
    return np.asarray(np.maximum.accumulate(listed, axis=1))[which.ravel()]


def _bit_divergence(t: Floats, other: Floats, order: float) -> Floats:
    """Return D_order(Bernoulli Phi(t) || Bernoulli Phi(other)), accurate near 0."""
    excess = np.zeros(len(t))
    for sign in (1.0, -1.0):
        log_p, ratio = (
            scipy.special.log_ndtr(sign * t),
            scipy.special.log_ndtr(sign * t) - scipy.special.log_ndtr(sign * other),
        )
        # Where p is 0 and the ratio infinite, their product is looked at in logs instead.
        with np.errstate(over="ignore", invalid="ignore"):
            # sum p (e^-r - 1) = 0: adding it (order - 1) times leaves terms of second order.
            small = np.expm1((order - 1) * ratio) + (order - 1) * np.expm1(-ratio)
            large = np.exp(log_p + (order - 1) * ratio)
            excess += np.where((order - 1) * ratio < 300, np.exp(log_p) * small, large)
    return np.asarray(np.log1p(excess) / (order - 1))


@lru_cache(maxsize=16)
def _log_beats_table(sigma: float, teachers: int) -> Floats:
    table = np.asarray(scipy.special.log_ndtr(-np.arange(teachers + 1) / (math.sqrt(2) * sigma)))
    table.flags.writeable = False
    return table


def _log_beats(setting: SmoothSetting) -> Floats:
    """Return the log of the chance that the noise closes a gap, for every gap."""
    return _log_beats_table(setting.sigma, setting.teachers)


def _log_q_of_gaps(gaps: Counts, log_beats: Floats) -> Floats:
    """Return the log of the union bound; shape (rows,)."""
    logs = log_beats[gaps]
    largest = logs.max(axis=1)
    return np.asarray(largest + np.log(np.exp(logs - largest[:, np.newaxis]).sum(axis=1)))


def _distinct(rows: Counts) -> tuple[Counts, Counts]:
    """Return the distinct values of each row and how often each occurs, padded with 0 times."""
    if not rows.size:
        return rows, rows
    starts = np.ones(rows.shape, dtype=np.bool_)
    starts[:, 1:] = rows[:, 1:] != rows[:, :-1]
    group = starts.cumsum(axis=1) - 1
    width = int(group.max()) + 1
    flat = group + np.arange(len(rows))[:, np.newaxis] * width
    multiples = np.bincount(flat.ravel(), minlength=len(rows) * width).reshape(-1, width)
    values = np.zeros(len(rows) * width, dtype=np.int64)
    values[flat.ravel()] = rows.ravel()
    return values.reshape(-1, width), multiples.astype(np.int64)


def _pairs(steps: Counts, width: int) -> Iterator[tuple[NDArray[np.intp], Counts]]:
    """Yield blocks of (row, step) for every step of every row, from 0."""
    ends = np.cumsum(steps)
    total = int(ends[-1]) if len(ends) else 0
    size = max(1, _BLOCK // max(width, 1))
    for start in range(0, total, size):
        flat = np.arange(start, min(start + size, total))
        which = np.searchsorted(ends, flat, side="right")
        yield which, flat - (ends - steps)[which]


def _row_blocks(rows: int, width: int) -> Iterator[slice]:
    size = max(1, (1 << 22) // width)
    for start in range(0, rows, size):
        yield slice(start, start + size)
