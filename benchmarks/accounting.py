"""How fast the accounting is, beside a loop over queries, both measured in one run.

CPU time, medians, actions in turns. Ratios travel between machines; times do not, so they are
stated as well. Run from the repository root: ``python -m benchmarks.accounting`` (half a minute;
``--format json`` for other programs, ``--quick`` for a look).
"""

from __future__ import annotations

import gc
import tracemalloc
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from benchmarks.bars import Bar, arguments, cpu_seconds, report
from benchmarks.baselines import loop
from pate_fed.accounting.composition import labels_epsilon
from pate_fed.accounting.counts_composition import rows_epsilon
from pate_fed.accounting.events import ConfidentGaussianMaxEvent
from pate_fed.accounting.label_bounds import label_level_epsilon
from pate_fed.lab.pate_bounds import gnmax_total_rdp
from pate_fed.lab.smooth_conditions import SmoothSetting, smooth_conditions
from pate_fed.lab.smooth_sensitivity import gnmax_local_sensitivities

ORDERS = np.concatenate([np.arange(2.0, 101.0, 0.5), np.geomspace(100.0, 500.0, 100)])
QUERIES = 1_000


@dataclass(frozen=True, slots=True)
class Size:
    """A size of the problem, with its bars.

    Attributes:
        classes: Number of classes.
        teachers: Votes per query.
        sigma: Standard deviation of the noise in each count, in votes.
        order: Renyi order of the smooth sensitivity.
        accounting_bar: How many times faster than the loop.
        smooth_bar: The same of the smooth sensitivity.
    """

    classes: int
    teachers: int
    sigma: float
    order: float
    accounting_bar: float
    smooth_bar: float


SIZES = (
    Size(10, 250, sigma=40.0, order=14.0, accounting_bar=20, smooth_bar=4),
    Size(150, 5_000, sigma=100.0, order=20.5, accounting_bar=12, smooth_bar=40),
)


def draw_votes(queries: int, size: Size, *, seed: int) -> NDArray[np.int64]:
    """Draw votes of teachers whose accuracy differs from query to query."""
    numbers = np.random.default_rng(seed)
    accuracy = numbers.uniform(0.3, 0.99, size=(queries, 1))
    chances = np.repeat((1 - accuracy) / (size.classes - 1), size.classes, axis=1)
    truth = numbers.integers(0, size.classes, size=(queries, 1))
    np.put_along_axis(chances, truth, accuracy, axis=1)
    return numbers.multinomial(size.teachers, chances)


def fresh_queries(size: Size, rounds: int) -> list[Bar]:
    """Time 1,000 different queries at all orders, ours and the loop's."""
    counts = draw_votes(QUERIES, size, seed=1)
    np.testing.assert_allclose(
        gnmax_total_rdp(counts, ORDERS, sigma=size.sigma),
        loop.gnmax_rdp(counts, ORDERS, size.sigma),
        rtol=1e-12,
    )
    ours, theirs = cpu_seconds(
        lambda: gnmax_total_rdp(counts, ORDERS, sigma=size.sigma),
        lambda: loop.gnmax_rdp(counts, ORDERS, size.sigma),
        rounds=rounds,
    )
    name = (
        f"loop {1e3 * theirs:.0f} ms / ours {1e3 * ours:.1f} ms: 1,000 queries, {described(size)}"
    )
    return [Bar(name, theirs / ours, size.accounting_bar)]


def smooth(size: Size, rounds: int, queries: int) -> list[Bar]:
    """Time local sensitivities at every distance, ours and the loop's."""
    counts = draw_votes(queries, size, seed=2)
    setting = SmoothSetting(size.sigma, size.classes, size.order, size.teachers)
    conditions = smooth_conditions(setting)
    baseline = loop.SmoothLoop(
        sigma=size.sigma,
        classes=size.classes,
        order=size.order,
        log_q0=conditions.log_q0,
        log_q1=conditions.log_q1,
    )
    expected = np.maximum.accumulate(baseline.lists(counts), axis=1)
    # As for the reference lists: 1e-9 of each list's maximum.
    np.testing.assert_allclose(
        gnmax_local_sensitivities(counts, setting), expected, rtol=0, atol=1e-9 * expected.max()
    )
    ours, theirs = cpu_seconds(
        lambda: gnmax_local_sensitivities(counts, setting),
        lambda: baseline.lists(counts),
        rounds=max(1, rounds // 3),
    )
    per = 1e3 / queries
    name = (
        f"loop {per * theirs:.2f} ms / ours {per * ours:.3f} ms: smooth sensitivity of a query, "
        f"{size.classes} x {size.teachers:,}"
    )
    return [Bar(name, theirs / ours, size.smooth_bar)]


def repeated_queries(rounds: int) -> list[Bar]:
    """Time 100,000 queries among which many are alike."""
    size = SIZES[0]
    numbers = np.random.default_rng(3)
    counts = draw_votes(10_000, size, seed=3)[numbers.integers(0, 10_000, 100_000)]
    (ours,) = cpu_seconds(lambda: gnmax_total_rdp(counts, ORDERS, sigma=size.sigma), rounds=rounds)
    name = "milliseconds for 100,000 queries, 10,000 of them different, 298 orders"
    return [Bar(name, 1e3 * ours, 100, is_most=True)]


def memory() -> list[Bar]:
    """Measure the peak beside the votes; a table over the orders would take 30 times them."""
    bars = []
    for size, queries in ((SIZES[0], 20_000), (SIZES[1], 2_000)):
        counts = draw_votes(queries, size, seed=4)
        gnmax_total_rdp(counts[:10], ORDERS, sigma=size.sigma)
        gc.collect()
        tracemalloc.start()
        gnmax_total_rdp(counts, ORDERS, sigma=size.sigma)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        name = f"peak memory / memory of the votes; {queries:,} queries, {described(size)}"
        bars.append(Bar(name, peak / counts.nbytes, 6, is_most=True))
    return bars


def label_level() -> list[Bar]:
    """Time the certified label-level number of settings that were not asked for before."""
    settings = iter([(151.0, 41.0), (152.0, 42.0), (153.0, 43.0), (154.0, 44.0)])

    def certify() -> None:
        label_level_epsilon(ConfidentGaussianMaxEvent(640, 300, *next(settings)), delta=1e-5)

    (ours,) = cpu_seconds(certify, rounds=3)
    return [Bar("seconds for a certified label-level epsilon", ours, 2, is_most=True)]


def composed_prices() -> list[Bar]:
    """Time prices of whole runs by dynamic programming; the number of classes does not matter."""
    bars = []
    for options, asks, sigma, most in ((3, 100, 20.0, 1), (1_001, 1_000, 30.0, 5)):
        solve = partial(labels_epsilon, options, sigma, asks=asks, delta=1e-5)
        (ours,) = cpu_seconds(solve, rounds=1)
        name = f"seconds for the exact price of {asks:,} labels, {options:,} options"
        bars.append(Bar(name, ours, most, is_most=True))
    return bars


def composed_rows() -> list[Bar]:
    """Time the composition of noisy rows: of many, and of several votes."""
    settings = iter([(20.0, 500, 1), (7.4, 30, 3), (60.0, 100_000, 1)])

    def compose() -> None:
        sigma, rows, weight = next(settings)
        rows_epsilon(sigma, 9, rows=rows, delta=1e-5, weight=weight)

    (ours,) = cpu_seconds(compose, rounds=2)
    return [Bar("milliseconds to compose noisy rows", 1e3 * ours, 100, is_most=True)]


def composed_memory() -> list[Bar]:
    """Measure the peak of such a price."""
    tracemalloc.start()
    labels_epsilon(1_001, 12.0, asks=42, delta=1e-5)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return [Bar("megabytes for the exact price of 42 labels", peak / 1e6, 300, is_most=True)]


def described(size: Size) -> str:
    return f"{len(ORDERS)} orders, {size.classes} x {size.teachers:,}"


def main() -> None:
    """Measure, and print the bars."""
    options = arguments(__doc__)
    rounds = 3 if options.quick else 9
    bars = [bar for size in SIZES for bar in fresh_queries(size, rounds)]
    bars += repeated_queries(rounds)
    bars += [bar for size in SIZES for bar in smooth(size, rounds, 5 if options.quick else 20)]
    bars += memory() + label_level() + composed_prices() + composed_memory() + composed_rows()
    report(bars, as_json=options.format == "json")


if __name__ == "__main__":
    main()
