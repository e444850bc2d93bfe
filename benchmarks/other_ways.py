"""What other ways to a smaller epsilon would give, on votes of real teachers.

    python -m benchmarks.other_ways DATA_DIR

DATA_DIR holds `pate_votes` and `mnist`. The numbers stand in
docs/decisions/0017-other-ways-to-a-smaller-epsilon.md. Half a minute.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import scipy
from numpy.typing import NDArray

from pate_fed.accounting import gdp_mu
from pate_fed.accounting.label_bounds import label_rdp
from pate_fed.data import DataSource, load_dataset
from pate_fed.data.vote_file import load_vote_counts

Table = NDArray[np.float64]

TEACHERS = 250
DELTA = 1e-5
LABELS = 100
ORDERS = np.concatenate([np.arange(2.0, 65.0), np.geomspace(65, 400, 30)])
ASKS, THRESHOLD, SIGMA = 300, 150.0, 40.0
EPSILONS = (0.804, 3.0)


def epsilon(rdp: Table) -> float:
    """Convert RDP at `ORDERS`, of shape (..., orders), by CKS."""
    found = rdp + np.log1p(-1 / ORDERS) - np.log(DELTA * ORDERS) / (ORDERS - 1)
    return float(found.min())


def divergences(laws: Table) -> Table:
    """Return the larger RDP of each law and the next one, either way; shape (laws - 1, orders)."""
    logs = np.log(np.maximum(laws, 1e-300))
    both = []
    for p, q in ((logs[:-1], logs[1:]), (logs[1:], logs[:-1])):
        powers = (
            ORDERS[:, np.newaxis] * p[:, np.newaxis]
            + (1 - ORDERS)[:, np.newaxis] * q[:, np.newaxis]
        )
        both.append(scipy.special.logsumexp(powers, axis=-1) / (ORDERS - 1))
    return np.maximum(*both)


def individual_budgets(votes: NDArray[np.int64]) -> None:
    """Count asks until the run's end, or the first or the median teacher's own RDP, reach a budget.

    Args:
        votes: 0 or 1 of each teacher; shape (teachers, queries).
    """
    costs = divergences(laws_of_two(THRESHOLD, SIGMA))
    price = ASKS * label_rdp(ORDERS, sigma=SIGMA)
    at = int((price + np.log1p(-1 / ORDERS) - np.log(DELTA * ORDERS) / (ORDERS - 1)).argmin())
    random = np.random.default_rng(0)
    asks = []
    for _ in range(20):
        asked = votes[:, random.permutation(votes.shape[1])].T
        counts = asked.sum(axis=1)
        lost, gained = (
            costs[np.clip(counts + move, 0, TEACHERS - 1), at][:, np.newaxis] for move in (-1, 0)
        )
        own = np.cumsum(asked * lost + (1 - asked) * gained, axis=0)
        asks.append(
            [int(np.searchsorted(some(own, axis=1), price[at])) for some in (np.max, np.median)]
        )
    first, median = np.mean(asks, axis=0)
    print(f"individual budgets, epsilon {epsilon(price):.3f} (Renyi) for {ASKS} asks:")
    print(f"  {first:.0f} to the first teacher's, {median:.0f} to the median one's")


def laws_of_two(threshold: float, sigma: float) -> Table:
    """Return the laws of "no answer" and both labels, by teachers that say 1; (TEACHERS + 1, 3)."""
    ones = np.arange(TEACHERS + 1)[:, np.newaxis]
    tops = np.linspace(threshold, TEACHERS + 12 * sigma, 20_001)

    def wins(mine: Table, other: Table) -> Table:
        density = scipy.stats.norm.pdf(tops, mine, sigma) * scipy.special.ndtr(
            (tops - other) / sigma
        )
        return np.asarray(scipy.integrate.simpson(density, x=tops, axis=1))

    labels = [wins(TEACHERS - ones, ones), wins(ones, TEACHERS - ones)]
    misses = scipy.special.ndtr((threshold - ones[:, 0]) / sigma)
    return np.column_stack([misses * misses[::-1], *labels])


def majorities(votes: NDArray[np.int64]) -> None:
    """Compare laws of a label of two classes at one total epsilon: how often each is wrong."""
    counts, ones = votes.sum(axis=0), np.arange(TEACHERS + 1)
    margins = (2 * ones - TEACHERS) / TEACHERS
    families: dict[str, tuple[Callable[[float], Table], float]] = {
        "Gaussian noise": (lambda x: scipy.special.ndtr(margins * x), 100.0),
        "exponential mechanism": (lambda x: scipy.special.expit(margins * x), 200.0),
        "share of votes (linear)": (
            lambda x: 0.5 + 0.5 * np.clip(margins * x, -0.9999, 0.9999),
            50.0,
        ),
    }
    for target in EPSILONS:
        for name, (law, most) in families.items():

            def excess(
                scale: float, law: Callable[[float], Table] = law, target: float = target
            ) -> float:
                chances = law(scale)
                rdp = divergences(np.column_stack([chances, 1 - chances])).max(axis=0)
                return epsilon(LABELS * rdp) - target

            chances = law(scipy.optimize.brentq(excess, 1e-2, most))
            wrong = wrong_share(counts, chances)
            print(f"two classes, {LABELS} labels at epsilon {target:g}, {name}: {wrong:.2%} wrong")
        best = min(
            wrong_share(counts, steepest(float(order), rdp))
            for order in ORDERS[1:40:2]
            if (rdp := (target - epsilon_of_nothing(float(order))) / LABELS) > 0
        )
        print(
            f"two classes, {LABELS} labels at epsilon {target:g}, no law is below {best:.2%} wrong"
        )


def epsilon_of_nothing(order: float) -> float:
    """Return what converting from one order costs."""
    return math.log1p(-1 / order) - math.log(DELTA * order) / (order - 1)


def wrong_share(counts: NDArray[np.int64], chances: Table) -> float:
    """Return how often a label drawn by these chances is not the plurality's."""
    heads = chances[counts]
    return float(np.where(counts > TEACHERS / 2, 1 - heads, heads).mean())


def steepest(order: float, rdp: float) -> Table:
    """Return the law of a label of two classes that no law of this RDP at this order exceeds."""

    def excess(q: float, p: float) -> float:
        logs = [math.log(x) for x in (p, q, 1 - p, 1 - q)]
        powers = [
            order * logs[a] + (1 - order) * logs[b] for a, b in ((0, 1), (2, 3), (1, 0), (3, 2))
        ]
        largest = max(np.logaddexp(*powers[:2]), np.logaddexp(*powers[2:]))
        return float(largest) / (order - 1) - rdp

    chances = [0.5]
    for _ in range(TEACHERS // 2):
        most = 1 - 1e-15
        if excess(most, chances[-1]) > 0:
            most = scipy.optimize.brentq(excess, chances[-1], most, args=(chances[-1],))
        chances.append(most)
    upper = np.array(chances)
    return np.concatenate([1 - upper[:0:-1], upper])


def many_classes(counts: NDArray[np.int64], truth: NDArray[np.int64]) -> None:
    """Compare ways to label at one total epsilon: share of all queries with the right label."""
    top = np.sort(counts, axis=1)
    gaps, random = top[:, -1] - top[:, -2], np.random.default_rng(2)
    for target in EPSILONS:
        noise = 2 * math.sqrt(LABELS) / gdp_mu(target, DELTA / 2)
        needed = noise * scipy.special.ndtri(1 - DELTA / 2 / LABELS) + 2
        stable = scipy.special.ndtr((gaps - needed) / noise) * (counts.argmax(axis=1) == truth)
        sigma = math.sqrt(2 * LABELS) / gdp_mu(target, DELTA)
        noisy = counts + random.normal(0, sigma, (20, *counts.shape))
        # zCDP of a range-bounded choice: (2 a)^2 / 8 each.
        log_rest = math.log(1 / DELTA)
        scale = math.sqrt(2 / LABELS) * (math.sqrt(log_rest + target) - math.sqrt(log_rest))
        chosen = scipy.special.softmax(scale * counts, axis=1)[np.arange(len(truth)), truth]
        rows = {
            "Gaussian noise": float((noisy.argmax(axis=2) == truth).mean()),
            "exponential mechanism": float(chosen.mean()),
            "propose, test, release (stable argmax)": float(stable.mean()),
        }
        for name, right in rows.items():
            print(f"ten classes, {LABELS} labels at epsilon {target:g}, {name}: {right:.1%} right")


def main() -> None:
    """Print what each way gives."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data_dir", type=Path)
    folder = parser.parse_args().data_dir
    with np.load(folder / "pate_votes" / "adult_250_teachers.npz") as kept:
        votes = (kept["not_phd_votes"] > 0).astype(np.int64)
    individual_budgets(votes)
    majorities(votes)
    counts = load_vote_counts(folder / "pate_votes" / "pate2018_counts" / "mnist_250_teachers.npy")
    source = DataSource("mnist", data_dir=folder / "mnist")
    digits = load_dataset(source, rng=np.random.default_rng(0))
    many_classes(counts, digits.pool.labels[: len(counts)])


if __name__ == "__main__":
    main()
