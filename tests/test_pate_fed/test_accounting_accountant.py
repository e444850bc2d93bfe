"""The accountant: composing, converting, refusing."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pate_fed.accounting.accountant import RenyiAccountant
from pate_fed.accounting.conversion import convert_curve
from pate_fed.accounting.curves import event_rdp
from pate_fed.accounting.events import (
    ConfidentGaussianMaxEvent,
    GaussianMaxEvent,
    PrivacyEvent,
)
from pate_fed.accounting.gaussian_dp import gdp_epsilon, gdp_mu_squared
from pate_fed.errors import UnsupportedEventError
from tests.support.pate_vectors import load_vectors

EVENTS = st.one_of(
    st.builds(GaussianMaxEvent, asks=st.integers(0, 200), sigma=st.floats(5, 100)),
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


def epsilon_of(*events: PrivacyEvent, delta: float = 1e-5) -> float:
    accountant = RenyiAccountant()
    accountant.compose(*events)
    return accountant.get_converted(delta).epsilon


@given(events=st.lists(EVENTS, max_size=5))
def test_composing_in_any_order_costs_the_same(events: list[PrivacyEvent]) -> None:
    # Renyi curves are added in order, so the last bit may differ.
    backward = epsilon_of(*reversed(events))
    assert epsilon_of(*events) == pytest.approx(backward, rel=1e-9, abs=1e-12)


@given(events=st.lists(EVENTS, min_size=1, max_size=4))
def test_a_further_event_never_costs_less(events: list[PrivacyEvent]) -> None:
    assert epsilon_of(*events) >= epsilon_of(*events[:-1]) * (1 - 1e-12)


@given(events=st.lists(EVENTS, min_size=1, max_size=3))
def test_renyi_never_says_less_than_exact_composition(events: list[PrivacyEvent]) -> None:
    mu = math.sqrt(math.fsum(gdp_mu_squared(event) for event in events))
    assert epsilon_of(*events) >= gdp_epsilon(mu, 1e-5) * (1 - 1e-9)


def test_nothing_costs_nothing() -> None:
    assert epsilon_of() == 0
    assert epsilon_of(GaussianMaxEvent(0, 3.0)) == 0


def test_one_event_costs_as_much_as_its_parts() -> None:
    parts = [GaussianMaxEvent(1, 20.0)] * 100
    assert epsilon_of(*parts) == pytest.approx(epsilon_of(GaussianMaxEvent(100, 20.0)), rel=1e-12)


def test_an_unknown_event_is_refused_and_changes_nothing() -> None:
    accountant = RenyiAccountant()
    accountant.compose(GaussianMaxEvent(5, 9.0))
    with pytest.raises(UnsupportedEventError):
        accountant.compose(GaussianMaxEvent(50, 9.0), UnknownEvent())
    assert accountant.events == (GaussianMaxEvent(5, 9.0),)


def test_data_independent_totals_are_those_of_the_reference() -> None:
    vectors = load_vectors("extract")
    for case in vectors["composition"]:
        event = ConfidentGaussianMaxEvent(
            len(case["answered"]), sum(case["answered"]), case["sigma1"], case["sigma2"]
        )
        rdp = event_rdp(event, case["orders"])
        assert list(rdp) == pytest.approx(case["rdp_data_independent"], rel=1e-12)
        for method in ("mironov", "cks"):
            epsilon = convert_curve(
                partial(event_rdp, event), delta=case["delta"], method=method
            ).epsilon
            reference = case[f"eps_{method}_data_independent"]
            # A denser grid finds a slightly better order, never a worse one.
            assert 0.98 * reference <= epsilon <= reference * (1 + 1e-12)
        assert epsilon_of(event, delta=case["delta"]) == epsilon


def test_an_event_without_a_curve_is_refused() -> None:
    with pytest.raises(UnsupportedEventError):
        event_rdp(UnknownEvent(), np.array([2.0]))
