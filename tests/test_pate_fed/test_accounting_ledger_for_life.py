"""A hospital's ledger over the years: runs of every kind, in one budget, never undercharged."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.signal import fftconvolve
from scipy.stats import norm

from pate_fed.accounting import (
    ConfidentGaussianMaxEvent,
    DistributedCountsEvent,
    DistributedGaussianMaxEvent,
    GaussianMaxEvent,
    LaplaceMaxEvent,
    PrivacyEvent,
    PrivacyLedger,
    RenyiAccountant,
    StableGaussianMaxEvent,
    gdp_epsilon,
    order_for_life,
)
from pate_fed.accounting.conversion import epsilon_at_order
from pate_fed.errors import BudgetExhaustedError, InvalidParameterError
from tests.support.charged import charged_epsilon

DELTA = 1e-5

EVERY_KIND = [
    pytest.param(GaussianMaxEvent(3, 20.0), id="labels, noise at the coordinator"),
    pytest.param(ConfidentGaussianMaxEvent(3, 2, 30.0, 20.0), id="labels and refusals"),
    pytest.param(LaplaceMaxEvent(3, 0.1), id="Laplace noise"),
    pytest.param(DistributedGaussianMaxEvent(3, 20.0, 5), id="noise at the parties"),
    pytest.param(DistributedCountsEvent(3, 20.0, 5), id="counts of an evaluation"),
    pytest.param(StableGaussianMaxEvent(3, 20.0, 1e-8), id="tests of stability"),
]

# A composition that knows nothing of Renyi -------------------------------------------------------

STEP = 2.0**-12
REACH = 1 << 17
"""Losses are kept in steps, rounded down, up to 32 either way: what comes out is never too much."""

Pair = tuple[NDArray[np.float64], NDArray[np.float64]]


def discrete_gaussian_sum(sigma: float, shares: int) -> NDArray[np.float64]:
    """Return the law of the sum of discrete Gaussians, added up one by one."""
    reach = math.ceil(40 * sigma / math.sqrt(shares))
    steps = np.arange(-reach, reach + 1)
    one = np.exp(-(steps**2) * shares / (2 * sigma**2))
    law = one / one.sum()
    total = law
    for _ in range(shares - 1):
        total = np.convolve(total, law)
    return np.asarray(total)


def worlds_of(event: PrivacyEvent) -> list[tuple[int, Pair]]:
    """Return two worlds that the event must hide, as laws of what is seen, and how often each."""
    if isinstance(event, GaussianMaxEvent):
        return [(event.asks, label(event.sigma))]
    if isinstance(event, ConfidentGaussianMaxEvent):
        return [(event.answers, label(event.sigma2))]
    if isinstance(event, DistributedGaussianMaxEvent):
        # Both counts that move are seen.
        return [(2 * event.asks, count(event.sigma, event.shares))]
    assert isinstance(event, DistributedCountsEvent)
    return [(2 * event.rows, count(event.sigma, event.shares))]


def label(sigma: float) -> Pair:
    """One vote of two classes changes sides where they are even."""
    chances = norm.cdf(np.array([1.0, -1.0]) / (math.sqrt(2) * sigma))
    return np.asarray(chances), np.asarray(chances)[::-1]


def count(sigma: float, shares: int) -> Pair:
    law = discrete_gaussian_sum(sigma, shares)
    seen = (law[1:] > 1e-60) & (law[:-1] > 1e-60)
    return law[1:][seen], law[:-1][seen]


def exact_delta(events: Iterable[PrivacyEvent], epsilon: float) -> float:
    """Return at least what the chance of failure really is less, from the laws of the losses."""
    total = np.zeros(2 * REACH + 1)
    total[REACH] = 1.0
    for event in events:
        for times, (here, there) in worlds_of(event):
            losses = np.zeros(2 * REACH + 1)
            steps = np.floor(np.log(here / there) / STEP).astype(int)
            np.add.at(losses, np.clip(steps, -REACH, REACH) + REACH, here)
            for _ in range(times):
                total = fftconvolve(total, losses, mode="same")
    at = np.arange(-REACH, REACH + 1) * STEP
    beyond = at > epsilon
    return float((total[beyond] * -np.expm1(epsilon - at[beyond])).sum())


class TestNeverLessThanWhatIsReallyLost:
    CHARGES = (
        GaussianMaxEvent(4, 6.0),
        DistributedGaussianMaxEvent(6, 9.0, 4),
        DistributedCountsEvent(2, 8.0, 4),
    )

    def charged(self, charges: Iterable[PrivacyEvent], epsilon: float = 40.0) -> float:
        ledger = PrivacyLedger.for_life(epsilon, DELTA)
        for number, event in enumerate(charges):
            ledger = ledger.reserve(str(number), event).forfeit(str(number))
        return charged_epsilon(ledger)

    @pytest.mark.slow
    @settings(max_examples=8, deadline=None)
    @given(
        charges=st.lists(
            st.one_of(
                st.builds(GaussianMaxEvent, st.integers(1, 5), st.sampled_from([3.0, 6.0, 20.0])),
                st.builds(
                    DistributedGaussianMaxEvent,
                    st.integers(1, 3),
                    st.sampled_from([4.0, 9.0]),
                    st.sampled_from([1, 4]),
                ),
            ),
            min_size=1,
            max_size=3,
        ),
        epsilon=st.sampled_from([5.0, 40.0]),
    )
    def test_whatever_runs_a_hospital_takes_part_in(
        self, charges: list[PrivacyEvent], epsilon: float
    ) -> None:
        try:
            charged = self.charged(charges, epsilon)
        except BudgetExhaustedError:
            return
        assert exact_delta(charges, charged) <= DELTA

    @pytest.mark.slow
    def test_and_a_charge_of_two_thirds_of_it_would_be_less(self) -> None:
        """The check can fail: what is really lost is not far below what is charged."""
        charged = self.charged(self.CHARGES, 5.0)
        lost = [exact_delta(self.CHARGES, epsilon) for epsilon in (charged, charged / 1.5)]
        assert lost[0] <= DELTA < lost[1]

    def test_never_less_than_the_accountant_that_may_choose_its_order(self) -> None:
        rows = [event for event in self.CHARGES if not isinstance(event, GaussianMaxEvent)]
        accountant = RenyiAccountant()
        accountant.compose(*rows)
        best = accountant.get_converted(DELTA).epsilon
        assert best <= self.charged(rows, 5.0)
        # Where the budget is nearly spent, its order is nearly the best.
        assert best <= self.charged(rows, 1.05 * best) <= 1.01 * best


# The order --------------------------------------------------------------------------------------


@pytest.mark.parametrize("charge", EVERY_KIND)
def test_every_kind_of_run_adds_up(charge: PrivacyEvent) -> None:
    ledger = PrivacyLedger.for_life(20.0, DELTA, additive_delta=1e-6)
    once = ledger.reserve("one run", charge)
    twice = once.commit("one run", charge, bytes(32)).reserve("another", charge)
    assert 0 < once.used_share() < twice.used_share() <= 1.0
    assert PrivacyLedger.from_record(twice.to_record()) == twice


@settings(max_examples=60, deadline=None)
@given(
    epsilon=st.floats(0.01, 100.0), log_delta=st.floats(-30.0, -3.0), at=st.floats(1.001, 3000.0)
)
def test_no_other_order_holds_more_gaussian_noise(
    epsilon: float, log_delta: float, at: float
) -> None:
    delta = math.exp(log_delta)

    def held(order: float) -> float:
        """Total mu^2 at which this order has spent the budget."""
        nothing = epsilon_at_order(1e6, order, delta=delta) - 1e6
        return (epsilon - nothing) * 2 / order

    assert held(at) <= held(order_for_life(epsilon, delta)) + 1e-6 * epsilon


@pytest.mark.parametrize(
    ("epsilon", "most_lost"), [(0.1, 0.20), (1.0, 0.16), (5.0, 0.13), (50.0, 0.08)]
)
def test_what_gaussian_runs_lose_by_it_is_bounded(epsilon: float, most_lost: float) -> None:
    """Exact composition of mu^2 holds more, but nothing else than Gaussian noise."""
    order = order_for_life(epsilon, DELTA)
    nothing = epsilon_at_order(1e6, order, delta=DELTA) - 1e6
    mu_squared = (epsilon - nothing) * 2 / order
    # At this much noise the budget is spent here; exactly it would be less.
    assert gdp_epsilon(math.sqrt(mu_squared), DELTA) < epsilon
    assert gdp_epsilon(math.sqrt(mu_squared / (1 - most_lost)), DELTA) > epsilon


@pytest.mark.parametrize("epsilon", [1e5, 1e6, 1e12])
def test_a_vast_budget_adds_up_at_an_order_that_converts(epsilon: float) -> None:
    order = order_for_life(epsilon, 0.3)
    assert 0 < epsilon_at_order(0.5, order, delta=0.3) < epsilon


def test_the_order_follows_from_the_budget_alone() -> None:
    assert PrivacyLedger.for_life(5.0, DELTA).order == order_for_life(5.0, DELTA)
    kept = PrivacyLedger.for_life(5.0, DELTA, additive_delta=9e-6)
    assert kept.order == pytest.approx(order_for_life(5.0, 1e-6), rel=1e-6)
    assert kept.additive_delta == 9e-6


def test_tests_of_stability_need_a_part_of_delta() -> None:
    charge = StableGaussianMaxEvent(3, 20.0, 1e-8)
    assert PrivacyLedger.for_life(5.0, DELTA, additive_delta=1e-6).can_afford(charge)
    assert not PrivacyLedger.for_life(5.0, DELTA).can_afford(charge)


def test_many_small_runs_do_not_overspend_the_delta_of_tests() -> None:
    """Every batch counts: a committed one by its asks, an open or a lost one by its worst case."""
    ledger = PrivacyLedger.for_life(1000.0, DELTA, additive_delta=1e-6)
    test_delta, asks, paid = 3e-8, 0, 0
    for number in range(200):
        name, charge = f"run {number}", StableGaussianMaxEvent(2, 50.0, test_delta)
        if (paid + 2) * test_delta > 1e-6:
            with pytest.raises(BudgetExhaustedError, match=r"stability .* 1e-06 "):
                ledger.reserve(name, charge)
            continue
        ledger = ledger.reserve(name, charge)
        asks += 2
        assert ledger.charged_delta() == pytest.approx((paid + 2) * test_delta, rel=1e-12)
        if number % 3 == 0:
            ledger = ledger.forfeit(name)
            paid += 2
        elif number % 3 == 1:
            ledger = ledger.commit(name, StableGaussianMaxEvent(1, 50.0, test_delta), bytes(32))
            paid += 1
        else:
            paid += 2  # it stays open
        ledger = PrivacyLedger.from_record(ledger.to_record())
    assert 1e-6 - 2 * test_delta < ledger.charged_delta() <= 1e-6
    one = StableGaussianMaxEvent(1, 50.0, test_delta)
    assert ledger.can_afford(one) == (paid + 1 == math.floor(1e-6 / test_delta))
    # Nothing else is in its way, and what is kept for tests is not to be had otherwise.
    assert ledger.used_share() < 1
    assert ledger.can_afford(GaussianMaxEvent(1, 50.0))


def test_room_is_what_both_budgets_hold_and_no_more() -> None:
    """`room_for` events can be reserved, one after the other, and one more cannot."""
    ledger = PrivacyLedger.for_life(5.0, DELTA, additive_delta=1e-7)
    ledger = ledger.reserve("before", GaussianMaxEvent(40, 30.0))
    for event in (
        StableGaussianMaxEvent(2, 60.0, 1e-8),  # delta ends it
        StableGaussianMaxEvent(2, 6.0, 1e-10),  # epsilon does
        GaussianMaxEvent(5, 20.0),
        DistributedGaussianMaxEvent(3, 30.0, 4),
        GaussianMaxEvent(1, 0.1),
    ):
        room, full = ledger.room_for(event), ledger
        for number in range(room):
            full = full.reserve(f"{number}", event)
        assert not full.can_afford(event)
        assert full.used_share() == pytest.approx(
            ledger.used_share() + room * ledger.share_of(event), rel=1e-9
        )
    assert ledger.room_for(GaussianMaxEvent(1, 2.0**28)) == 10**9


class TestTheSplitOfDelta:
    """Two steps. Where the first shows a rare sign, divergence is spent, and otherwise delta.

    All numbers are exact for the laws below: each step has two outcomes in both worlds, and what
    an attacker gains at epsilon is the sum of P - e^epsilon Q over the outcomes that tell most.
    """

    SIGN = 1e-3
    """Chance of the sign in the first world."""

    def gain(self, *, epsilon: float, order: float, tests: float, divergence: float) -> float:
        """Return the delta of the worst such run, for these budgets of the two paths.

        Args:
            epsilon: At which it is measured.
            order: Of the divergence.
            tests: Delta left for a test where the sign does not come.
            divergence: Largest e^((l-1) R) of both steps where it comes.
        """
        worst = 0.0
        for tilt in (10.0, 100.0, 1000.0):  # of the first step, which costs most at the largest
            rare = (self.SIGN**order / tilt) ** (1 / (order - 1))
            first = tilt + (1 - self.SIGN) ** order * (1 - rare) ** (1 - order)
            left = divergence / first
            ratio = math.exp(epsilon) * order / (order - 1) * rare / self.SIGN
            chance = (left - 1) * ratio**-order
            assert 0 < chance * ratio < 1
            second = chance * ratio**order + (1 - chance * ratio) ** order * (1 - chance) ** (
                1 - order
            )
            assert second <= left
            leak = self.SIGN * chance * ratio - math.exp(epsilon) * rare * chance
            worst = max(worst, (1 - self.SIGN) * tests + leak)
        return worst

    def budget(self, *, epsilon: float, order: float, delta: float) -> float:
        """Return the e^((l-1) R) that converts to epsilon at delta."""
        per_unit = (1 - 1 / order) ** (order - 1) / order * math.exp(-(order - 1) * epsilon)
        rdp = math.log(delta / per_unit) / (order - 1)
        assert epsilon_at_order(rdp, order, delta=delta) == pytest.approx(epsilon, rel=1e-9)
        return delta / per_unit

    def test_a_split_that_each_path_chooses_breaks_the_promise(self) -> None:
        order = order_for_life(5.0, DELTA)
        whole = self.budget(epsilon=5.0, order=order, delta=DELTA)
        # Each path keeps conversion + tests within delta, and all paths together do not.
        first_step = DELTA * 1001 / whole
        gained = self.gain(epsilon=5.0, order=order, tests=DELTA - first_step, divergence=whole)
        assert gained == pytest.approx(1.99 * DELTA, rel=0.005)

    @pytest.mark.parametrize("kept", [1e-7, 1e-6, 4e-6, 9e-6])
    def test_a_split_that_is_fixed_keeps_it(self, kept: float) -> None:
        ledger = PrivacyLedger.for_life(5.0, DELTA, additive_delta=kept)
        assert ledger.order is not None
        divergence = self.budget(epsilon=5.0, order=ledger.order, delta=DELTA - kept)
        gained = self.gain(epsilon=5.0, order=ledger.order, tests=kept, divergence=divergence)
        assert 0.9 * DELTA < gained <= DELTA


@pytest.mark.parametrize(
    ("epsilon", "delta", "kept"),
    [
        pytest.param(0.0, DELTA, 0.0, id="no budget"),
        pytest.param(math.nan, DELTA, 0.0, id="a budget that is no number"),
        pytest.param(5.0, 1.0, 0.0, id="delta of 1"),
        pytest.param(5.0, DELTA, DELTA, id="all of delta kept"),
        pytest.param(5.0, DELTA, -1e-6, id="less than nothing kept"),
    ],
)
def test_budgets_out_of_range_are_refused(epsilon: float, delta: float, kept: float) -> None:
    with pytest.raises(InvalidParameterError):
        PrivacyLedger.for_life(epsilon, delta, additive_delta=kept)
