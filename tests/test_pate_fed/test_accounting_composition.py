"""The price of all labels of a run, against games played out with laws by quadrature."""

from __future__ import annotations

import itertools
import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import scipy
from numpy.typing import NDArray

from pate_fed.accounting.composition import (
    _Asks,
    _Splines,
    can_be_composed,
    labels_epsilon,
)
from pate_fed.accounting.events import GaussianMaxEvent
from pate_fed.accounting.gaussian_dp import gdp_epsilon
from pate_fed.accounting.label_bounds import label_level_epsilon
from pate_fed.accounting.label_laws import Boxes, bends, laws, log_wins
from pate_fed.errors import InvalidParameterError
from tests.support.markers import more
from tests.support.ties import tied_epsilon

Table = NDArray[np.float64]
Pair = tuple[Table, Table]
_NODES = np.linspace(-12, 12, 2401)
_DENSITY = np.exp(-(_NODES**2) / 2) / math.sqrt(2 * math.pi)
VECTORS = Path(__file__).parents[1] / "vectors"


def winners(means: Table, *, threshold: float | None) -> Table:
    """Return the chance that each of N(mean, 1) is the largest, and above the threshold.

    The last column is that of none. By the trapezoid rule; shape (..., options + 1).
    """
    chances = []
    for i in range(means.shape[-1]):
        x = _NODES + means[..., i, np.newaxis]
        below = [
            scipy.special.ndtr(x - means[..., j, np.newaxis])
            for j in range(means.shape[-1])
            if j != i
        ]
        above = 1.0 if threshold is None else np.where(x > threshold, 1.0, 0.0)
        if threshold is not None:
            above = np.where(np.abs(x - threshold) < 1e-12, 0.5, above)
        chances.append(np.trapezoid(_DENSITY * np.prod(below, axis=0) * above, _NODES))
    found = np.stack(chances, axis=-1)
    none = np.zeros_like(found[..., :1])
    if threshold is not None:
        none = scipy.special.ndtr(threshold - means).prod(axis=-1, keepdims=True)
    return np.concatenate([found, none], axis=-1)


def pairs_of(counts: Table, moves: Table, sigma: float, *, threshold: float | None) -> Pair:
    """Return laws before and after moves, both directions; shape (pairs, outcomes)."""
    # On the nodes' grid a threshold falls on a node: the trapezoid rule is exact to 1e-9 then.
    before, after = (
        winners(np.round(each / sigma, 2), threshold=threshold) for each in (counts, counts + moves)
    )
    before, after = (each / each.sum(axis=-1, keepdims=True) for each in (before, after))
    return np.concatenate([before, after]), np.concatenate([after, before])


def played(laws_of: Pair, asks: int) -> tuple[Table, Table]:
    """Return x and V(x) of a reader who chooses among pairs of laws, each ask anew."""
    x = np.linspace(-14, 8, 8801)
    value = np.maximum(-np.expm1(-x), 0.0)
    before, after = laws_of
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.where(before > 1e-13, np.log(before / np.maximum(after, 1e-300)), 0.0)
    for _ in range(asks):
        best = value
        for p, r in zip(before, ratios, strict=True):
            moved = sum(
                chance * np.interp(x + ratio, x, value, left=0.0, right=1.0)
                for chance, ratio in zip(p, r, strict=True)
            )
            best = np.maximum(best, moved)
        value = best
    return x, value


def reached(game: tuple[Table, Table], epsilon: float) -> float:
    return float(np.interp(-epsilon, *game))


def grid(sigma: float) -> Table:
    """Return counts of two classes around a threshold of 0, dense where labels tell most."""
    u, t = np.meshgrid(np.arange(-1.5, 6.1, 0.5), np.arange(-5.0, 4.1, 0.25), indexing="ij")
    return np.stack([u + t, u - t], axis=-1).reshape(-1, 2) / math.sqrt(2) * sigma


@pytest.mark.parametrize(
    ("sigma", "asks", "delta", "least"),
    [
        (2.0, 3, 1e-3, 0.996),
        (10.0, 4, 1e-5, 0.996),
        pytest.param(4.0, 6, 1e-5, 0.995, marks=pytest.mark.slow, id="six asks"),
        more(1.5625, 3, 1e-5, 0.995),
        more(2.5, 2, 1e-8, 0.96),
        more(20.0, 12, 1e-5, 0.996),
    ],
)
def test_no_reader_of_a_threshold_on_the_same_counts_does_better(
    sigma: float, asks: int, delta: float, least: float
) -> None:
    """Two classes and a threshold, the votes chosen anew after each outcome; and it is no more."""
    counts = grid(sigma)
    pairs = pairs_of(counts, np.array([-1.0, 1.0]), sigma, threshold=0.0)
    game = played(pairs, asks)
    found = labels_epsilon(3, sigma, asks=asks, delta=delta)
    assert reached(game, found) <= delta < reached(game, least * found)


def test_noise_that_is_a_fifth_too_small_is_noticed() -> None:
    pairs = pairs_of(grid(2.5), np.array([-1.0, 1.0]), 2.0, threshold=0.0)
    found = labels_epsilon(3, 2.5, asks=3, delta=1e-3)
    assert reached(played(pairs, 3), found) > 1e-3


@pytest.mark.parametrize(("classes", "threshold"), [(3, None), (4, None), (4, 1.5)])
def test_no_votes_of_many_classes_do_better(classes: int, threshold: float | None) -> None:
    sigma, asks, delta = 2.5, 3, 1e-3
    random = np.random.default_rng(classes)
    counts = random.normal(0, 1.3 * sigma, (150, classes))
    moves = np.array([random.permutation([-1, 1, *[0] * (classes - 2)]) for _ in counts])
    pairs = pairs_of(counts, moves, sigma, threshold=threshold)
    found = labels_epsilon(classes + (threshold is not None), sigma, asks=asks, delta=delta)
    assert reached(played(pairs, asks), found) <= delta


def test_several_votes_of_one_unit_may_move_among_all_classes() -> None:
    """Three votes, from any classes to any others; with two it would be noticed."""
    sigma, asks, delta, weight = 10.0, 3, 1e-3, 3
    random = np.random.default_rng(1)
    counts = random.normal(0, 0.8 * sigma, (240, 4))
    moves = np.zeros_like(counts)
    for row in moves:
        for _ in range(weight):
            i, j = random.choice(4 if random.random() < 0.7 else 2, 2, replace=False)
            row[[i, j]] += [-1, 1]
    # Both classes ahead: where two classes alone decide.
    counts[:60] = [6.0, 6.0, -9.0, -9.0] + random.normal(0, 3.0, (60, 4)) * [1, 1, 0, 0]
    moves[:60] = [-3.0, 3.0, 0.0, 0.0]
    game = played(pairs_of(counts, moves, sigma, threshold=None), asks)
    found = labels_epsilon(4, sigma, asks=asks, delta=delta, weight=weight)
    assert reached(game, found) <= delta
    assert reached(game, labels_epsilon(4, sigma, asks=asks, delta=delta, weight=2)) > delta


def test_a_mean_of_convex_rising_values_is_convex_in_the_votes_that_move() -> None:
    """Theorem 3: halfway between two moves it is at most the mean of both."""
    random = np.random.default_rng(3)
    base = np.round(random.normal(0, 1.0, (400, 4)), 2)
    ends = [base + np.round(random.normal(0, 0.7, base.shape), 2) for _ in range(2)]
    law, first, middle, last = (
        winners(each, threshold=0.3) for each in (base, ends[0], (ends[0] + ends[1]) / 2, ends[1])
    )
    for slope, place in itertools.product((0.3, 1.0, 3.0), (-2.0, 0.0, 1.0)):

        def value(other: Table, slope: float = slope, place: float = place) -> Table:
            ratio = np.log(law / other)
            return np.asarray((law * np.logaddexp(0.0, slope * (ratio + place))).sum(axis=-1))

        assert (value(middle) <= (value(first) + value(last)) / 2 + 1e-7).all()


@pytest.mark.parametrize(
    ("sigma", "asks", "delta", "weight", "factor"),
    [
        # Of few labels a reader learns more than of ties: from votes less close, once it knows
        # something.
        (12.0, 40, 1e-5, 1, 1.07),
        (12.0, 100, 1e-9, 1, 1.05),
        (2.0, 100, 1e-5, 1, 1.1),
        (1000.0, 100, 1e-6, 1, 1.04),
        (60.0, 100, 1e-5, 5, 1.06),
        (24.1, 500, 1e-5, 1, 1.015),
        (75.6, 500, 1e-5, 2, 1.015),
        more(30.0, 1000, 1e-5, 1, 1.008),
        more(60.0, 2000, 1e-5, 1, 1.008),
        more(10.0, 2000, 1e-8, 1, 1.02),
        more(200.0, 2000, 1e-8, 1, 1.02),
    ],
)
def test_labels_of_two_classes_cost_hardly_more_than_ties(
    sigma: float, asks: int, delta: float, weight: int, factor: float
) -> None:
    found = labels_epsilon(2, sigma, asks=asks, delta=delta, weight=weight)
    least = tied_epsilon(sigma / weight, asks, delta)
    assert least <= found <= factor * least


@pytest.mark.parametrize(
    ("options", "sigma", "asks", "expected"),
    [
        (2, 12.0, 42, 2.5431),
        (3, 12.0, 42, 2.550),
        (1_000, 9.5, 30, 2.7650),
        pytest.param(3, 30.0, 1_000, 5.382, marks=pytest.mark.slow, id="1,000 labels"),
        more(3, 60.0, 2_000, 3.602),
        more(3, 1000.0, 2_000, 0.1643),
    ],
)
def test_prices_are_those_of_finer_grids(
    options: int, sigma: float, asks: int, expected: float
) -> None:
    found = labels_epsilon(options, sigma, asks=asks, delta=1e-5)
    assert expected <= found <= 1.003 * expected


def test_a_single_ask_costs_what_its_noisy_counts_cost() -> None:
    """Some votes tell as much as the counts, at each epsilon (Neyman and Pearson)."""
    for options, sigma in ((2, 0.3), (2, 12.0), (3, 1.3), (3, 40.0)):
        expected = gdp_epsilon(math.sqrt(2) / sigma, 1e-5)
        found = labels_epsilon(options, sigma, asks=1, delta=1e-5)
        assert 0.995 * expected <= found <= expected


def test_more_of_anything_costs_no_less() -> None:
    def epsilon(options: int, sigma: float, asks: int, delta: float, weight: int = 1) -> float:
        return labels_epsilon(options, sigma, asks=asks, delta=delta, weight=weight)

    base = epsilon(3, 5.0, 6, 1e-5)
    assert epsilon(2, 5.0, 6, 1e-5) < base
    assert epsilon(10, 5.0, 6, 1e-5) == base
    for larger in (
        epsilon(3, 5.0, 7, 1e-5),
        epsilon(3, 4.6, 6, 1e-5),
        epsilon(3, 5.0, 6, 3e-6),
        # A vote of many classes more than one: at the noise of each, a little more.
        epsilon(3, 10.0, 6, 1e-5, weight=2),
    ):
        assert larger > base


@pytest.mark.parametrize("delta", [1e-12, 0.4, 0.999])
def test_prices_hold_for_every_delta(delta: float) -> None:
    found = labels_epsilon(3, 6.0, asks=5, delta=delta)
    gaussian = gdp_epsilon(math.sqrt(10) / 6, delta)
    assert found <= gaussian
    if delta < 0.1:
        assert 0.7 * gaussian < found < 0.97 * gaussian
    assert (
        labels_epsilon(3, 1e6, asks=3, delta=1e-5)
        == labels_epsilon(3, 9.0, asks=0, delta=delta)
        == 0
    )


def test_what_cannot_be_composed_is_refused() -> None:
    for options, sigma, asks, delta, weight in (
        (3, 1.0, 3, 1e-5, 1),
        (2, 0.2, 3, 1e-5, 1),
        (2, 2.0, 3, 1e-5, 10),
        (2, 1e7, 3, 1e-5, 1),
        (2, 5.0, 20_000, 1e-5, 1),
        (2, 1.0, 2_000, 1e-5, 1),
        (2, 5.0, 3, 1e-13, 1),
    ):
        run = {"asks": asks, "delta": delta, "weight": weight}
        assert not can_be_composed(options, sigma, **run)
        with pytest.raises(InvalidParameterError, match="votes"):
            labels_epsilon(options, sigma, **run)
    with pytest.raises(InvalidParameterError, match=r"\b2\b"):
        labels_epsilon(1, 5.0, asks=3, delta=1e-5)


def test_composition_is_below_certified_divergences() -> None:
    """By reference bounds of another method (branch and bound), at a dozen orders."""
    rows = json.loads((VECTORS / "label_level.json").read_text(encoding="utf-8"))["values"]
    for sigma, asks in ((4, 20), (16, 42), (40, 100)):
        # Canonne, Kamath, Steinke 2020, Proposition 12.
        by_orders = min(
            asks * each["S_upper"]
            + math.log1p(-1 / each["order"])
            - math.log(1e-5 * each["order"]) / (each["order"] - 1)
            for each in rows
            if each["sigma"] == sigma
        )
        found = labels_epsilon(3, float(sigma), asks=asks, delta=1e-5)
        assert 0.8 * by_orders < found < 0.97 * by_orders


def test_composition_is_below_the_label_level_price_of_every_run() -> None:
    for sigma, asks, weight in ((3.0, 5, 1), (12.0, 42, 2), (150.0, 60, 5)):
        known = label_level_epsilon(GaussianMaxEvent(asks, sigma, weight), delta=1e-6).epsilon
        assert labels_epsilon(3, sigma, asks=asks, delta=1e-6, weight=weight) < 0.99 * known


def test_a_price_takes_little_memory() -> None:
    program = (
        "import resource\n"
        "from pate_fed.accounting.composition import labels_epsilon\n"
        "labels_epsilon(2, 12.0, asks=2, delta=1e-5)\n"
        "used = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        "resource.setrlimit(resource.RLIMIT_AS, (used + 2**28, used + 2**28))\n"
        "print(labels_epsilon(1000, 1.3, asks=3, delta=1e-5))\n"
        "print(labels_epsilon(1000, 12.0, asks=42, delta=1e-5))\n"
    )
    child = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert child.returncode == 0, child.stderr[-1_500:]
    assert len(child.stdout.split()) == 2


def spline(splines: _Splines, coefficients: Table, x: Table) -> Table:
    """Return the values of a spline, at places within the grid."""
    away = np.abs(x[..., np.newaxis] / splines.step - splines.first - np.arange(splines.size))
    basis = np.where(
        away < 1, (4 - 6 * away**2 + 3 * away**3) / 6, np.maximum(2 - away, 0.0) ** 3 / 6
    )
    return np.asarray(basis @ coefficients)


@pytest.mark.parametrize(("shift", "many"), [(0.1, True), (0.7, True), (0.1, False)])
def test_no_law_at_any_place_is_worth_more_than_an_ask(shift: float, many: bool) -> None:
    """Right after the boxes are made, and after they were halved; near, far and at random."""
    splines = _Splines(-14 * shift, 16 * shift, shift / 6, math.exp(-16 * shift))
    value = splines.closed(np.maximum(1 - np.exp(-splines.x - splines.step**2 / 6), 0.0) + 1e-9)
    asks = _Asks(splines, shift, 7.1, 10, 1e-5, many=many)
    value = splines.closed(asks.last(value))
    random = np.random.default_rng(5)
    t = np.concatenate([random.uniform(-9, 9, 300), random.normal(0, 1, 300)])
    u = np.concatenate([random.uniform(-9, 9, 300), random.uniform(-1, 4, 300)])
    if not many:
        u[:] = np.inf
    p, q = np.moveaxis(laws(u, t, shift), 1, 0)
    x = np.linspace(-4.0, 4.0, 41) * shift
    with np.errstate(divide="ignore", invalid="ignore"):
        moves = np.clip(np.where(p > 1e-13, np.log(p / q), 0.0), -8 * shift, 10 * shift)
    exact = (
        p[:, np.newaxis] * spline(splines, value, x[:, np.newaxis] + moves[:, np.newaxis])
    ).sum(axis=-1)
    for tolerance, may_halve in ((1.0, False), (0.1, True), (0.003, True)):
        found = asks.before(value, np.full(splines.size, tolerance), may_halve=may_halve)
        bound = spline(splines, splines.closed(found), x)
        assert (exact <= bound * (1 + 1e-9) + 1e-10).all()
    # It is no empty bound.
    best, before = exact.max(axis=0), spline(splines, value, x)
    near = slice(12, 28)
    assert (bound[near] - before[near] < 1.05 * (best - before)[near]).all()


def test_chances_bend_no_more_than_is_said() -> None:
    random = np.random.default_rng(9)
    shift = 0.3
    u0, t0 = random.uniform(-4, 3, 200), random.uniform(-4, 4, 200)
    boxes = Boxes(u0, u0 + random.uniform(0.01, 1, 200), t0, t0 + random.uniform(0.01, 1, 200))
    u, t = boxes.corners()
    corners = laws(u.ravel(), t.ravel(), shift).reshape(200, 4, 2, 3)
    most = (
        np.log(corners[:, 0, 0, 0] / corners[:, 0, 1, 0]),
        np.log(corners[:, 1, 1, 2] / corners[:, 1, 0, 2]),
    )
    taken, given = bends(boxes, *most, shift).sum(axis=1)
    tightest = math.inf
    for part_u, part_t in itertools.product((0.2, 0.5, 0.9), (0.1, 0.5, 0.7)):
        inside = laws(
            boxes.u0 + part_u * (boxes.u1 - boxes.u0),
            boxes.t0 + part_t * (boxes.t1 - boxes.t0),
            shift,
        )
        weights = np.array(
            [
                (1 - part_u) * (1 - part_t),
                (1 - part_u) * part_t,
                part_u * (1 - part_t),
                part_u * part_t,
            ]
        )
        mean = np.einsum("k,bkpo->bpo", weights, corners)
        middle = inside[:, 0, 1] / inside[:, 1, 1]
        ends = inside[:, 0, 0] / inside[:, 1, 0], inside[:, 0, 2] / inside[:, 1, 2]
        for share in (0.0, 0.4, 1.0):
            gamma = middle + share * (ends[0] - middle)
            more_i = (inside - mean)[:, 0, 0] - gamma * (inside - mean)[:, 1, 0]
            assert (more_i <= gamma * taken + 1e-13).all()
            gamma = middle + share * (ends[1] - middle)
            more_j = gamma * (inside - mean)[:, 1, 2] - (inside - mean)[:, 0, 2]
            assert (more_j <= gamma * given + 1e-13).all()
            tightest = min(tightest, float((taken / np.maximum(more_i, 1e-12)).min()))
        # The middle ratio is that of "other": i tells more, j less.
        assert (ends[0] >= middle).all()
        assert (middle >= ends[1]).all()
    assert tightest < 3


def test_chances_of_winning_agree_with_quadrature() -> None:
    random = np.random.default_rng(2)
    u, t = random.uniform(-9, 9, 40), random.uniform(-8, 8, 40)
    for place, log in zip(zip(u, t, strict=True), log_wins(u, t), strict=True):
        low, high = place

        def density(v: float, u: float = low, t: float = high, log: float = log) -> float:
            return float(np.exp(-((v - t) ** 2) / 2 + scipy.special.log_ndtr(v + u) - log))

        mode = max(0.0, high, (high - low) / 2)
        total = scipy.integrate.quad(density, 0, mode + 14, points=[mode], limit=200, epsabs=0)[0]
        assert total / math.sqrt(2 * math.pi) == pytest.approx(1.0, rel=1e-9)
    assert log_wins(np.array([np.inf]), np.array([-3.0]))[0] == scipy.special.log_ndtr(-3.0)


def test_places_inside_prove_a_price_where_the_edge_does_not() -> None:
    splines = _Splines(-6.0, 6.0, 0.05, 1.0)
    values = np.full(splines.size, 1e-4)
    values[10:30] = 1e-6
    assert splines.epsilon(values, 1e-5) == pytest.approx(6.0 - 29 * 0.05, abs=0.15)
    assert splines.epsilon(np.full(splines.size, 1e-4), 1e-5) == math.inf


def test_margin_covers_the_error_of_interpolation() -> None:
    """The interpolant of (x - t)_+^3 / 6 is off by at most 0.056 hats at t, times B-splines."""

    def basis(x: Table) -> Table:
        x = np.abs(x)
        return np.where(x < 1, (4 - 6 * x**2 + 3 * x**3) / 6, np.maximum(2 - x, 0) ** 3 / 6)

    places, nodes = np.linspace(0, 1, 257), np.arange(-9.0, 10.0)
    splines = basis(places[:, np.newaxis] - nodes)
    worst = 0.0
    for knot in np.arange(-4, 5, 1 / 64):
        power = np.maximum(np.arange(-10.0, 11.0) - knot, 0) ** 3 / 6
        coefficients = (-power[:-2] + 8 * power[1:-1] - power[2:]) / 6
        error = np.abs(np.maximum(places - knot, 0) ** 3 / 6 - splines @ coefficients)
        hats = splines @ np.maximum(1 - np.abs(nodes - knot), 0.0)
        assert (error <= 0.056 * hats + 1e-12).all()
        worst = max(worst, float(np.max(error / np.maximum(hats, 1e-9))))
    assert worst > 0.055
