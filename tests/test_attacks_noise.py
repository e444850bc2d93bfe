"""Colluders that withhold their noise, and the lost with theirs: what remains is what was promised.

Whole runs, additive and masked: c parties add nothing, d more are lost, and the
noise in what opens is held against the promise of the run's terms and against the very law that the
parties were charged for.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from coordinator.runs.labeling import deciding
from pate_fed.accounting import DistributedGaussianMaxEvent, event_charged_rdp
from pate_fed.mechanisms import DistributedNoise, RandomBytes, keyed_stream
from pate_fed.mechanisms.discrete_sampling import sample_discrete_gaussian
from pate_fed.opened_sums import open_noisy_sum
from pate_fed.votes import NoiseShare, NoisyHistogram
from tests.support.attacked import PARTIES, Kind, clean_rows
from tests.support.federation import CLASSES, ORDER, SIGMA, Federation
from tests.support.markers import more, sampled
from tests.support.summed_noise import exact_row_price, summed_mass

QUERIES = 1_500
ENTRIES = QUERIES * CLASSES
FALSE_ALARM = 1e-6

CASES = [
    pytest.param(Kind("additive", "parties"), 1, 0, id="additive, c = 1"),
    more(Kind("additive", "parties"), 3, 0, id="additive, c = 3"),
    more(Kind("masked", "parties"), 1, 1, id="masked, c = 1, d = 1"),
    pytest.param(Kind("masked", "parties"), 2, 1, id="masked, c = 2, d = 1"),
]


@cache
def withheld(
    kind: Kind, colluders: int, lost: int, *, among_all: bool = False
) -> tuple[Federation, NDArray[np.float64]]:
    """Run one large batch; return the noise that is left in the opened rows.

    Args:
        kind: The run's kind.
        colluders: Parties that withhold their noise.
        lost: Parties that are lost.
        among_all: Divide the variance by n in place of n - c - d.
    """
    with pytest.MonkeyPatch.context() as patch:
        if among_all:
            patch.setattr(DistributedNoise, "draw", draw_among_all)
        return run_withheld(kind, colluders, lost, patch)


def draw_among_all(
    self: DistributedNoise, queries: int, classes: int, *, random_bytes: RandomBytes
) -> NoiseShare:
    sigma = self.sigma / math.sqrt(self.parties)
    shape = (queries, classes)
    return NoiseShare(sample_discrete_gaussian(shape, sigma=sigma, random_bytes=random_bytes))


def run_withheld(
    kind: Kind, colluders: int, lost: int, patch: pytest.MonkeyPatch
) -> tuple[Federation, NDArray[np.float64]]:
    opened: list[NoisyHistogram] = []

    def watching(*arguments: Any, **named: Any) -> NoisyHistogram:
        opened.append(open_noisy_sum(*arguments, **named))
        return opened[-1]

    patch.setattr(deciding, "open_noisy_sum", watching)
    much = {"budgets": (1e4,) * PARTIES, "max_asks": QUERIES, "max_answers": QUERIES}
    federation = kind.federation(
        pool=QUERIES,
        noises={
            place: keyed_stream(bytes([place + 10 * colluders] * 32), tag="noise that is left")
            for place in range(PARTIES)
        },
        terms={**much, "colluders": colluders},
        policy={"most_epsilon": 1e4},
        budgets=dict.fromkeys(range(PARTIES), 1e4),
    )
    for place in range(colluders):
        federation.nodes[place]._ballots._draw_noise = lambda *_, **__: None  # type: ignore[method-assign]
    federation.run.set_up()
    gone = range(PARTIES - lost, PARTIES)
    federation.transport.on_query = lambda node, packet: None if node in gone else packet
    release = federation.ask(*range(QUERIES))
    assert release.answered == QUERIES
    clean = clean_rows(*range(QUERIES), parties=PARTIES - lost)
    [noisy] = opened
    return federation, noisy.counts - clean


def shortfall(left: NDArray[np.float64], sigma: float) -> float:
    """Standard deviations by which the variance of what is left is below the promised one."""
    ratio = float((left**2).sum()) / sigma**2 / left.size
    return (1 - ratio) / math.sqrt(2 / left.size)


MOST_SHORT = float(stats.norm.isf(FALSE_ALARM))


@sampled("colluders")
@pytest.mark.slow
@pytest.mark.parametrize(("kind", "colluders", "lost"), CASES)
def test_what_colluders_and_the_lost_leave_has_at_least_the_promised_variance(
    kind: Kind, colluders: int, lost: int
) -> None:
    """One-sided, 4,500 entries: false alarm 10^-6.

    Power: noise of 30 % too little variance is 14 standard deviations short, and is missed less
    than once in 10^20 runs; shares of a variance that is divided by n = 5, at least one share too
    many, lack 20 % to 60 % of it: 9.5 short at the least, missed less than once in 10^8.
    """
    _, left = withheld(kind, colluders, lost)
    assert left.size == ENTRIES
    assert shortfall(left, SIGMA) < MOST_SHORT


@sampled("colluders")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "colluders", "lost"),
    [
        each if place in (0, len(CASES) - 1) else more(*each.values, id=each.id)
        for place, each in enumerate(CASES)
    ],
)
def test_noise_divided_among_all_parties_would_be_caught(
    kind: Kind, colluders: int, lost: int
) -> None:
    """The same test with variance sigma^2 / n in place of sigma^2 / (n - c - d).

    Of the case that is caught least surely, and of the most that can be lost.
    """
    _, left = withheld(kind, colluders, lost, among_all=True)
    assert shortfall(left, SIGMA) > MOST_SHORT


def against_law(left: NDArray[np.float64], *, sigma: float, shares: int) -> float:
    """p-value of a chi-square of whole numbers against a sum of discrete Gaussian shares."""
    mass = summed_mass(sigma, shares)
    n = len(mass) // 2
    # Cells of about the same chance, some 90 expected in each.
    cells = 50
    place = np.minimum((np.cumsum(mass) * cells).astype(int), cells - 1)
    expected = np.bincount(place, weights=mass, minlength=cells) * left.size
    seen = np.bincount(place[left.ravel().astype(int) + n], minlength=cells)
    kept = expected > 0
    return float(stats.chisquare(seen[kept], expected[kept]).pvalue)


@sampled("colluders")
@pytest.mark.slow
@pytest.mark.parametrize(("kind", "colluders", "lost"), CASES)
def test_the_accountants_number_is_the_price_of_the_noise_that_was_drawn(
    kind: Kind, colluders: int, lost: int
) -> None:
    """What was charged names a law; what is left is of that law, whose price is what was charged.

    Law: chi-square, false alarm 10^-6; shares divided by n, and rounded Gaussians of
    a sigma that is 10 % off, fall below it. Price: by convolution in 40 digits, to 10^-6.
    """
    federation, left = withheld(kind, colluders, lost)
    shares = PARTIES - colluders - lost
    expected = DistributedGaussianMaxEvent(QUERIES, SIGMA, shares, 1)
    for node in federation.nodes[: PARTIES - lost]:
        [entry] = node.ledger.entries
        assert entry.charged == expected
    assert against_law(left, sigma=SIGMA, shares=shares) > FALSE_ALARM
    assert against_law(np.round(left * 0.9), sigma=SIGMA, shares=shares) < FALSE_ALARM
    exact = exact_row_price(SIGMA, shares, moved=1, order=ORDER) * QUERIES
    assert float(event_charged_rdp(expected, [ORDER])[0]) == pytest.approx(exact, rel=1e-6)
