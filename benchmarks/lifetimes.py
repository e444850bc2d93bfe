"""How much a budget for life holds, by several rules of adding up: the numbers of decision 19.

    python -m benchmarks.lifetimes

A lifetime is N equal runs of 40 labels of two classes (GNMax, noise at the coordinator) that
together use up epsilon 5 at delta 1e-5. Each rule needs some noise for that: the less, the better.
A second table has N runs of noise 60: what could be said of all of them so far.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
from scipy.optimize import brentq

from pate_fed.accounting import gdp_epsilon
from pate_fed.accounting.composition import labels_epsilon
from pate_fed.accounting.conversion import convert_at_orders, epsilon_at_order
from pate_fed.accounting.label_bounds import label_rdp
from pate_fed.accounting.privacy_ledger import order_for_life

EPSILON, DELTA, LABELS = 5.0, 1e-5, 40
LIFETIMES = (1, 10, 100)
ORDERS = np.geomspace(3.0, 60.0, 60)
"""Enough for what may be said afterwards: a finer grid changes the third digit."""

LEVELS = (0.5, 1.0, 2.0, 3.0, 4.0, 5.0)
"""Of an odometer: each a filter of its own, with a sixth of delta."""

Rule = Callable[[int, float], float]
"""Epsilon of so many labels of this noise."""


def fixed_order(order: float, delta: float = DELTA) -> Rule:
    """RDP at one order that was fixed beforehand."""
    return lambda labels, sigma: epsilon_at_order(
        labels * float(label_rdp([order], sigma=sigma)[0]), order, delta=delta
    )


def best_order(labels: int, sigma: float, delta: float = DELTA) -> float:
    """RDP at the order that is best afterwards: no filter, but no fixed order does better."""
    rdp = labels * label_rdp(ORDERS, sigma=sigma)
    return convert_at_orders(rdp, ORDERS, delta=delta, method="cks").epsilon


def gaussian(labels: int, sigma: float, delta: float = DELTA) -> float:
    """mu^2 of Gaussian differential privacy, which covers readers of counts, too."""
    return gdp_epsilon(math.sqrt(2 * labels) / sigma, delta)


def known_beforehand(labels: int, sigma: float) -> float:
    """Exact composition of labels whose number and noise were fixed before the first."""
    return labels_epsilon(2, sigma, asks=labels, delta=DELTA)


def two_filters(labels: int, sigma: float) -> float:
    """An order and mu^2, each with half of delta, until the later one is full."""
    order = order_for_life(EPSILON, DELTA / 2)
    return min(fixed_order(order, DELTA / 2)(labels, sigma), gaussian(labels, sigma, DELTA / 2))


def odometer(labels: int, sigma: float) -> float:
    """The lowest level whose filter still holds everything, each with its share of delta."""
    share = DELTA / len(LEVELS)
    holding = (
        level
        for level in LEVELS
        if fixed_order(order_for_life(level, share), share)(labels, sigma) <= level
    )
    return next(holding, math.inf)


RULES: Mapping[str, Rule] = {
    "RDP at one order, fixed with the budget (ours)": fixed_order(order_for_life(EPSILON, DELTA)),
    "GDP filter": gaussian,
    "both with half of delta, until the later is full": two_filters,
    "best order afterwards (no filter)": best_order,
    "exact, all labels fixed before the first (no filter)": known_beforehand,
}


def least_noise(rule: Rule, runs: int) -> float:
    """Return the least noise at which a rule lets so many runs fill the budget."""
    about = 6.9 * math.sqrt(runs)
    found: float = brentq(
        lambda factor: rule(runs * LABELS, factor * about) - EPSILON, 0.7, 30.0, xtol=1e-3
    )
    return found * about


def main() -> None:
    """Print both tables."""
    print(f"Noise with which N runs of {LABELS} labels fill epsilon {EPSILON:g}")
    for name, rule in RULES.items():
        lifetimes = LIFETIMES[:2] if rule is known_beforehand else LIFETIMES  # 4,000 take hours
        print(f"{name:55}", *(f"{least_noise(rule, runs):8.2f}" for runs in lifetimes))
    print(
        f"{'sum of the runs epsilons (basic composition)':55}",
        *(f"{least_noise(summed(runs), runs):8.2f}" for runs in LIFETIMES),
    )
    print("Epsilon that could be said of N runs with noise 60 so far")
    so_far: Mapping[str, Rule] = {
        "at the order of the budget": fixed_order(order_for_life(EPSILON, DELTA)),
        "an odometer of six levels": odometer,
        "exact, if nothing more is ever asked (no filter)": known_beforehand,
    }
    for name, rule in so_far.items():
        print(f"{name:55}", *(f"{rule(runs * LABELS, 60.0):8.3f}" for runs in LIFETIMES[:2]))


def summed(runs: int) -> Rule:
    """Each run alone, as exact Gaussian noise, with its part of delta; epsilons add up."""
    return lambda labels, sigma: runs * gaussian(labels // runs, sigma, DELTA / runs)


if __name__ == "__main__":
    main()
