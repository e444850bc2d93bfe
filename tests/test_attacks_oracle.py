"""What "void or not" tells a hospital that lies about row sums, where the parties add the noise.

There the row check has a bound, so a liar can put it where honest noise decides it. By brute force:
the verdict follows from noise and lie alone, whatever anybody voted. Together with what a batch
answers it is still a function of the noisy rows, hence paid for in the coordinator's view. The
public pays that, too, where a query may get no answer; with labels alone the public's own price
holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import product

import numpy as np
import pytest
from numpy.typing import NDArray

from pate_fed.accounting.distributed_bounds import distributed_label_rdp
from pate_fed.accounting.distributed_law import distributed_row_rdp
from pate_fed.errors import RowSumError
from pate_fed.opened_sums import open_noisy_sum
from tests.support.federation import wrapped
from tests.support.summed_noise import moment_divergence, summed_mass

VOTES, CLASSES, BOUND = 3, 3, 2
Row = NDArray[np.int64]


def histograms() -> Iterator[Row]:
    """Every honest row of a few votes."""
    for head in product(range(VOTES + 1), repeat=CLASSES - 1):
        if sum(head) <= VOTES:
            yield np.array([*head, VOTES - sum(head)])


def is_void(row: Row) -> bool:
    try:
        open_noisy_sum(
            wrapped(row),
            queries=1,
            classes=CLASSES,
            total_votes=VOTES,
            sigma=1.0,
            row_sum_bound=BOUND,
        )
    except RowSumError:
        return True
    return False


LIES = [
    np.array(lie)
    for lie in (
        (0, 0, 0),
        (1, 0, 0),
        (BOUND, 0, 0),
        (-BOUND, 0, 0),
        (BOUND + 1, 0, 0),
        (2**31 - 1, -(2**31) + 1, 0),
        (2**31 - 1, -(2**31), 0),
        (2**31, 2**31, BOUND),
        (2**31 - VOTES, 2**31 + VOTES, -BOUND),
        (2**30, 2**30, -(2**31)),
        (2**31 - 1, 0, 0),
        (2**31 - BOUND, 0, 0),
    )
]


def test_the_verdict_follows_from_noise_and_lie_alone_whatever_anybody_voted() -> None:
    """Every honest row, every noise in a cube, lies at every edge of ring and bound."""
    verdicts = set()
    for lie in LIES:
        for noise in product(range(-2, 3), repeat=CLASSES):
            seen = {is_void(votes + np.array(noise) + lie) for votes in histograms()}
            assert len(seen) == 1
            verdicts |= seen
    assert verdicts == {True, False}


def test_a_check_of_counts_instead_of_sums_would_be_an_oracle() -> None:
    """What is not done, and why: void if a count is negative tells a vote by a lie of one."""
    lie = np.array([-1, 1, 0])
    assert {bool((votes + lie < 0).any()) for votes in histograms()} == {True, False}


# What a liar learns beside -----------------------------------------------------------------------

SIGMA, SHARES = 3.0, 3
REACH = 45
"""Entries of noise that are looked at: beyond them is less than 10^-40."""
Law = NDArray[np.float64]
Move = tuple[int, int]
Events = NDArray[np.bool_]
Outcome = tuple[Events, ...]


def noise() -> tuple[Row, Law, Row]:
    """Entries of two classes' noise, the chance of each pair, and its sum."""
    mass = summed_mass(SIGMA, SHARES, reach=30.0)
    n = len(mass) // 2
    x = np.arange(-REACH, REACH + 1)
    mass = mass[n - REACH : n + REACH + 1]
    return x, np.outer(mass, mass) / mass.sum() ** 2, x[:, None] + x[None, :]


X, PAIRS, SUMS = noise()


def with_verdict(events: Outcome, opens: Events) -> Law:
    """Chances of: void; opens, and each event."""
    return np.array([PAIRS[~opens].sum(), *(PAIRS[opens & event].sum() for event in events)])


def label(lead: int) -> Outcome:
    """Which class wins, given by how much the first leads."""
    first = X[:, None] - X[None, :] >= -lead
    return first, ~first


def label_or_none(lacks: Move) -> Outcome:
    """No answer, or which class wins, given what each lacks of the threshold."""
    none = (X[:, None] < lacks[0]) & (X[None, :] < lacks[1])
    first, second = label(lacks[1] - lacks[0])
    return none, first & ~none, second & ~none


def worst(cases: Iterable[tuple[Outcome, Outcome]]) -> Law:
    """The largest divergence over two neighboring worlds and every place of the bound."""
    largest = np.zeros(len(ORDERS))
    for one, other in cases:
        for edge in (*range(-10, 11), NO_BOUND):
            opens = np.less_equal(SUMS, edge)
            p, q = (with_verdict(events, opens) for events in (one, other))
            assert p[0] == q[0]  # the verdict itself: the very same chance
            possible = np.maximum(p, q) > 0
            p, q = p[possible], q[possible]
            for a, b in ((p, q), (q, p)):
                if min(a.min(), b.min()) > 0:
                    found = [moment_divergence(a, b, order) for order in ORDERS]
                    largest = np.maximum(largest, found)
    return largest


ORDERS = (1.5, 2.0, 4.0, 8.0)
NO_BOUND = 4 * REACH


def thresholds() -> Iterator[tuple[Outcome, Outcome]]:
    for first, second in product(range(-6, 13), (-3, 0, 3, 6, 9, 80)):
        yield label_or_none((first, second)), label_or_none((first + 1, second - 1))


def labels() -> Iterator[tuple[Outcome, Outcome]]:
    for lead in range(-12, 13):
        yield label(lead), label(lead - 2)


@pytest.mark.parametrize(
    ("cases", "price", "least"),
    [
        # "No answer" follows from the counts themselves, and their sum tells of these: everybody
        # pays for the row, from which all follows.
        pytest.param(thresholds, distributed_row_rdp, 0.6, id="threshold"),
        # A label follows from differences of counts, of which their sum tells next to nothing.
        pytest.param(labels, distributed_label_rdp, 0.9, id="gnmax"),
    ],
)
def test_void_or_not_and_what_a_query_answers_cost_no_more_than_is_charged(
    cases: Callable[[], Iterator[tuple[Outcome, Outcome]]],
    price: Callable[..., Law],
    least: float,
) -> None:
    charged = price(ORDERS, sigma=SIGMA, shares=SHARES)
    found = worst(cases())
    assert (found <= charged).all()
    assert (found > least * charged).all()  # the search is not blind
