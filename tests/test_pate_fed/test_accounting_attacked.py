"""Attacks on the newest prices: lies that the fold turns around, and settings at the edges.

Chances here come from an integral of their own, and a game's values from lines below convex
functions: a reader who reaches more than a price allows would really do so.
"""

from __future__ import annotations

import functools
import itertools
import math
import time
import tracemalloc

import numpy as np
import pytest
import scipy
from numpy.typing import NDArray
from pate_fed.accounting.any_votes import AnyVotesSetting
from pate_fed.accounting.bellman import bellman_epsilon, is_worth_the_time
from pate_fed.accounting.joint_price import price_of_any_votes
from pate_fed.accounting.vote_pairs import JointSetting

from pate_fed.accounting import price
from pate_fed.accounting.label_bounds import label_rdp
from pate_fed.votes import fold_counts
from tests.support.markers import sampled

Table = NDArray[np.float64]
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(40)


def wins(counts: Table) -> Table:
    """Return the chance of each class, counts in units of the noise; shape (..., classes)."""
    middle = counts.max(axis=-1, keepdims=True)
    x = middle + 9 * _NODES
    density = np.exp(-((x[..., np.newaxis, :] - counts[..., np.newaxis]) ** 2) / 2)
    below = scipy.special.ndtr(x[..., np.newaxis, :] - counts[..., np.newaxis])
    others = np.stack(
        [np.delete(below, each, axis=-2).prod(axis=-2) for each in range(counts.shape[-1])], axis=-2
    )
    return np.asarray((density * others) @ (9 * _WEIGHTS) / math.sqrt(2 * math.pi))


def against_one(a: Table, b: Table) -> Table:
    """Return who wins of N(a, 1), N(b, 1) and 0: what a label and the best other count tell."""
    neither = scipy.special.ndtr(-a) * scipy.special.ndtr(-b)
    high = np.maximum(np.maximum(a, b), 0) + 9

    def first(a: Table, b: Table) -> Table:
        low = np.maximum(a - 9, 0)
        x = low[:, np.newaxis] + (high - low)[:, np.newaxis] * (1 + _NODES) / 2
        inside = np.exp(-((x - a[:, np.newaxis]) ** 2) / 2) * scipy.special.ndtr(
            x - b[:, np.newaxis]
        )
        return np.asarray(inside @ _WEIGHTS * (high - low) / 2 / math.sqrt(2 * math.pi))

    return np.column_stack([first(a, b), first(b, a), neither])


def test_a_lie_makes_one_vote_raise_two_counts() -> None:
    """Why the moves below matter: one honest vote goes from class 0 to class 1."""
    lie = np.array([2**31 - 1 - 6, 3, 2, 2])
    before, after = (
        fold_counts(lie + np.array(vote), total_votes=9) for vote in ([1, 0, 0, 0], [0, 1, 0, 0])
    )
    assert (after - before).tolist() == [1, 1, 0, 0]


# Both counts rise, both fall, one moves alone.
TURNED = [(1, 1), (-1, -1), (1, 0), (-1, 0)]


def places(step: float) -> tuple[Table, Table]:
    grid = np.arange(-4.5, 5, step)
    a, b = np.meshgrid(grid, grid)
    return a.ravel(), b.ravel()


@pytest.mark.parametrize(("sigma", "order"), [(1.0, 5.0), (20.0, 2.5)])
def test_a_label_of_turned_votes_tells_less_at_every_order(sigma: float, order: float) -> None:
    a, b = places(0.3)
    before = against_one(a, b)
    [claimed] = label_rdp([order], sigma=sigma)
    worst = 0.0
    for first, second in TURNED:
        after = against_one(a + first / sigma, b + second / sigma)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            moment = (before**order * after ** (1 - order)).sum(axis=1)
        moment = moment[(before.min(axis=1) > 1e-20) & (after.min(axis=1) > 1e-20)]
        worst = max(worst, float(np.log(moment).max()) / (order - 1))
    assert 0.6 * claimed < worst < 0.96 * claimed


@pytest.mark.parametrize("sigma", [0.7, 4.0])
def test_a_label_of_turned_votes_is_worth_less_to_every_reader(sigma: float) -> None:
    """For any value after it that is convex in the likelihood ratio, moved votes are worth more."""
    a, b = places(0.3)
    before, shift = against_one(a, b), math.sqrt(2) / sigma
    gammas = np.exp(np.linspace(-4, 4, 25) * shift)

    def gains(first: int, second: int) -> Table:
        after = against_one(a + first / sigma, b + second / sigma)
        return np.concatenate(
            [
                np.maximum(p[..., np.newaxis] - gammas * q[..., np.newaxis], 0).sum(axis=1)
                - np.maximum(1 - gammas, 0)
                for p, q in ((before, after), (after, before))
            ]
        )

    moved, turned = gains(-1, 1), np.concatenate([gains(*move) for move in TURNED])
    random = np.random.default_rng(1)
    for _ in range(200):
        weights = np.zeros(len(gammas))
        bends = random.integers(0, len(gammas), 3)
        weights[bends] = random.exponential(size=3) / moved.max(axis=0)[bends]
        assert (turned @ weights).max() < 0.95 * (moved @ weights).max()


def neighbors(setting: JointSetting) -> tuple[Table, Table]:
    """Return the laws of all ordered pairs, each once: a refusal, then every label."""
    rows = np.array(
        [
            row
            for row in itertools.product(range(setting.teachers + 1), repeat=setting.classes)
            if sum(row) <= setting.teachers
        ]
    )
    margin = (rows.max(axis=1) - setting.vote_threshold) / setting.sigma1
    chances = scipy.special.ndtr(margin)[:, np.newaxis] * wins(rows / setting.sigma2)
    laws = np.column_stack([scipy.special.ndtr(-margin), chances])
    at = {tuple(row): law for row, law in zip(rows.tolist(), laws, strict=True)}
    pairs = {}
    for row, law in at.items():
        for i, j in itertools.permutations(range(setting.classes), 2):
            moved = list(row)
            moved[i] -= 1
            moved[j] += 1
            if row[i]:
                pair = np.array([law, at[tuple(moved)]])
                pair[:, 1:] = pair[:, 1 + np.lexsort(pair[:, 1:])]
                pairs[tuple(pair.ravel().round(11).tolist())] = pair
    found = np.array(list(pairs.values()))
    return found[:, 0], found[:, 1]


def reached(setting: JointSetting, caps: tuple[int, int, int], epsilon: float) -> float:
    """Return a delta that some reader reaches at epsilon, in the game played to its end."""
    before, after = neighbors(setting)
    log_z = np.linspace(-14, 9, 801)
    z = np.exp(log_z)
    slope_to = np.diff(z)

    def below(values: Table, at: Table) -> Table:
        """Lines through two points on one side lie below a convex function."""
        slopes = np.append(np.diff(values) / slope_to, 1.0)
        left = np.clip(np.searchsorted(z, at) - 1, 0, len(z) - 2)
        line = values[left] + np.where(left > 0, slopes[left - 1], 0.0) * (at - z[left])
        other = values[left + 1] + slopes[left + 1] * (at - z[left + 1])
        found = np.maximum(np.maximum(line, other), np.maximum(at - 1, 0.0))
        return np.asarray(np.where((at < z[0]) | (at > z[-1]), np.maximum(at - 1, 0.0), found))

    @functools.cache
    def value(refusals: int, answers: int, asks: int) -> Table:
        best: Table = np.maximum(z - 1, 0.0)
        if min(refusals, answers, asks) == 0:
            return best
        refused = value(refusals - 1, answers, asks - 1)
        answered = value(refusals, answers - 1, asks - 1)
        for p, q in zip(before, after, strict=True):
            later = [refused, *[answered] * setting.classes]
            seen = [q[o] * below(each, z * (p[o] / q[o])) for o, each in enumerate(later) if q[o]]
            best = np.maximum(best, np.sum(seen, axis=0))
        return np.asarray(best)

    return math.exp(epsilon) * float(below(value(*caps), np.array([math.exp(-epsilon)]))[0])


def exact(setting: JointSetting, caps: tuple[int, int, int], delta: float) -> float:
    known = price(
        teachers=setting.teachers,
        classes=setting.classes,
        vote_threshold=setting.vote_threshold,
        sigma1=setting.sigma1,
        sigma2=setting.sigma2,
        max_refusals=caps[0],
        max_answers=caps[1],
        max_asks=caps[2],
        delta=delta,
    ).epsilon
    return bellman_epsilon(setting, caps, delta=delta, known=known)


@sampled(2)
@pytest.mark.parametrize(
    ("setting", "caps", "delta", "least"),
    [
        # The threshold is the largest count, or above it; hardly any noise in the check.
        (JointSetting(6, 2, 6.0, 0.6, 2.5), (1, 3, 4), 0.05, 0.95),
        (JointSetting(6, 3, 7.5, 2.0, 1.0), (2, 2, 4), 1e-3, 0.95),
        (JointSetting(4, 4, 4.0, 1.5, 4.0), (1, 4, 4), 0.05, 0.95),
        # One teacher; a huge delta.
        (JointSetting(1, 2, 1.0, 0.5, 0.7), (2, 2, 4), 0.3, 0.9),
        # Answers run out first; a tiny delta.
        (JointSetting(6, 2, 3.0, 1.0, 1.0), (4, 1, 4), 1e-6, 0.7),
    ],
    ids=str,
)
def test_a_reader_at_the_edges_reaches_the_price_and_no_more(
    setting: JointSetting, caps: tuple[int, int, int], delta: float, least: float
) -> None:
    found = exact(setting, caps, delta)
    assert least * delta < reached(setting, caps, found) <= delta


def test_next_to_no_noise_keeps_the_price_by_outcome() -> None:
    for setting in (AnyVotesSetting(2, 1e-6, 1e-6), AnyVotesSetting(3, 10.0, 1e-7)):
        known = price_of_any_votes(setting, max_refusals=1, max_answers=1, delta=1e-5).epsilon
        assert 1e9 < known < math.inf
        assert bellman_epsilon(setting, (1, 1, 2), delta=1e-5, known=known) == known


def test_a_threshold_far_from_all_votes_takes_little_memory() -> None:
    setting, caps, delta = JointSetting(4, 2, -1e5, 1.0, 1.0), (1, 2, 3), 1e-3
    tracemalloc.start()
    found = exact(setting, caps, delta)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100e6
    assert reached(setting, caps, found) <= delta


def test_a_long_run_is_not_counted_to_its_end() -> None:
    start = time.process_time()
    assert not is_worth_the_time((4000, 4000, 8000), 250)
    assert is_worth_the_time((30, 270, 300), 250)
    assert time.process_time() - start < 1


def test_a_state_of_many_votes_counts_for_more() -> None:
    assert not is_worth_the_time((30, 270, 300), 1000)
    assert is_worth_the_time((10, 30, 30), 1000)
