"""Accountants: one contract, two forms."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pate_fed.accounting.accountant import Accountant, GaussianAccountant, RenyiAccountant
from pate_fed.accounting.curves import event_rdp
from pate_fed.accounting.events import (
    ConfidentGaussianMaxEvent,
    GaussianMaxEvent,
    PrivacyEvent,
)
from pate_fed.errors import InvalidParameterError, UnsupportedEventError
from tests.support.pate_vectors import load_vectors

EVENTS = st.one_of(
    st.builds(GaussianMaxEvent, answers=st.integers(0, 200), sigma=st.floats(5, 100)),
    st.builds(
        lambda asks, share, sigma1, sigma2: ConfidentGaussianMaxEvent(
            asks, int(asks * share), sigma1, sigma2
        ),
        st.integers(0, 200),
        st.floats(0, 1),
        st.floats(5, 200),
        st.floats(5, 100),
    ),
)


@dataclass(frozen=True, slots=True)
class UnknownEvent(PrivacyEvent):
    """An event that no accountant has heard of."""

    def is_covered_by(self, reserved: PrivacyEvent) -> bool:
        return False


def epsilon_of(accountant: Accountant, *events: PrivacyEvent) -> float:
    accountant.compose(*events)
    return accountant.get_epsilon(1e-5)


@pytest.mark.parametrize("make", [GaussianAccountant, RenyiAccountant])
@given(events=st.lists(EVENTS, max_size=5))
def test_composing_in_any_order_costs_the_same(
    make: Callable[[], Accountant], events: list[PrivacyEvent]
) -> None:
    # Renyi curves are added in order, so the last bit may differ.
    backward = epsilon_of(make(), *reversed(events))
    assert epsilon_of(make(), *events) == pytest.approx(backward, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("make", [GaussianAccountant, RenyiAccountant])
@given(events=st.lists(EVENTS, min_size=1, max_size=4))
def test_a_further_event_never_costs_less(
    make: Callable[[], Accountant], events: list[PrivacyEvent]
) -> None:
    fewer = epsilon_of(make(), *events[:-1])
    assert epsilon_of(make(), *events) >= fewer * (1 - 1e-12)


@given(events=st.lists(EVENTS, min_size=1, max_size=3))
def test_renyi_never_says_less_than_the_exact_accountant(events: list[PrivacyEvent]) -> None:
    exact = epsilon_of(GaussianAccountant(), *events)
    assert epsilon_of(RenyiAccountant(), *events) >= exact * (1 - 1e-9)


class AccountantContract:
    """What every accountant keeps to."""

    def make(self) -> Accountant:
        raise NotImplementedError

    def epsilon(self, *events: PrivacyEvent) -> float:
        return epsilon_of(self.make(), *events)

    def test_nothing_costs_nothing(self) -> None:
        assert self.epsilon() == 0
        assert self.epsilon(GaussianMaxEvent(0, 3.0)) == 0

    def test_one_event_costs_as_much_as_its_parts(self) -> None:
        parts = [GaussianMaxEvent(1, 20.0)] * 100
        assert self.epsilon(*parts) == pytest.approx(
            self.epsilon(GaussianMaxEvent(100, 20.0)), rel=1e-12
        )

    def test_an_unknown_event_is_refused_and_changes_nothing(self) -> None:
        accountant = self.make()
        accountant.compose(GaussianMaxEvent(5, 9.0))
        before = accountant.get_epsilon(1e-5)
        assert not accountant.supports(UnknownEvent())
        with pytest.raises(UnsupportedEventError):
            accountant.compose(GaussianMaxEvent(50, 9.0), UnknownEvent())
        assert accountant.get_epsilon(1e-5) == before
        assert accountant.events == (GaussianMaxEvent(5, 9.0),)

    @pytest.mark.parametrize("delta", [0.0, 1.0, 2.0, math.nan])
    def test_delta_out_of_range_is_refused(self, delta: float) -> None:
        accountant = self.make()
        accountant.compose(GaussianMaxEvent(5, 9.0))
        with pytest.raises(InvalidParameterError):
            accountant.get_epsilon(delta)


class TestGaussianAccountant(AccountantContract):
    def make(self) -> Accountant:
        return GaussianAccountant()

    def test_mu_squared_adds_up(self) -> None:
        accountant = GaussianAccountant()
        accountant.compose(GaussianMaxEvent(50, 10.0), GaussianMaxEvent(9, 3.0))
        assert accountant.mu == pytest.approx(math.sqrt(3.0), rel=1e-15)


class TestRenyiAccountant(AccountantContract):
    def make(self) -> Accountant:
        return RenyiAccountant()

    def test_data_independent_totals_are_those_of_the_reference(self) -> None:
        vectors = load_vectors("extract")
        for case in vectors["composition"]:
            event = ConfidentGaussianMaxEvent(
                len(case["answered"]), sum(case["answered"]), case["sigma1"], case["sigma2"]
            )
            rdp = event_rdp(event, case["orders"])
            assert list(rdp) == pytest.approx(case["rdp_data_independent"], rel=1e-12)
            for accountant, key in (
                (RenyiAccountant(method="mironov"), "eps_mironov_data_independent"),
                (RenyiAccountant(method="cks"), "eps_cks_data_independent"),
            ):
                accountant.compose(event)
                # A denser grid finds a slightly better order, never a worse one.
                assert 0.98 * case[key] <= accountant.get_epsilon(case["delta"])
                assert accountant.get_epsilon(case["delta"]) <= case[key] * (1 + 1e-12)

    def test_an_optimum_on_the_grids_edge_is_reported(self) -> None:
        accountant = RenyiAccountant(method="mironov")
        accountant.compose(GaussianMaxEvent(1, 1e6))
        assert accountant.get_converted(1e-5).is_at_edge


def test_an_event_without_a_curve_is_refused() -> None:
    with pytest.raises(UnsupportedEventError):
        event_rdp(UnknownEvent(), np.array([2.0]))
