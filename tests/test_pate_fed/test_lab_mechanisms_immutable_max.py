"""NZC: it answers exactly, two neighbors give it away, and nobody may deploy it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pate_fed.accounting.accountant import RenyiAccountant
from pate_fed.accounting.curves import event_rdp
from pate_fed.accounting.events import ImmutableMaxEvent
from pate_fed.errors import InvalidParameterError
from pate_fed.lab.mechanisms.immutable_max import ImmutableMax
from pate_fed.lab.per_instance import instance_rdp
from pate_fed.mechanisms.registry import SPECS, make_mechanism
from pate_fed.mechanisms.sampling import keyed_stream
from pate_fed.rule import Rule
from tests.test_pate_fed.test_mechanisms_contract import released

MECHANISM = ImmutableMax(gamma=0.05, constant=10_000)


def test_two_neighbors_are_told_apart_every_time() -> None:
    """docs/explanation/immutable-argmax.md: one vote decides, and shows."""
    here = released(MECHANISM, [[6, 5]] * 2000, keyed_stream(b"a", tag="t")).labels
    there = released(MECHANISM, [[5, 6]] * 2000, keyed_stream(b"b", tag="t")).labels
    assert not here.any()
    assert there.all()
    # Label 1 never came from the first: its chance there is below `rare`, with 99.99 % confidence
    # (Clopper-Pearson), and above 1 - rare on the second. At delta = 1e-3 that forces:
    rare = 1 - 1e-4 ** (1 / 2000)
    assert math.log((1 - rare - 1e-3) / rare) > 5


def test_its_event_is_priced_at_infinity() -> None:
    assert MECHANISM.event(1, 1) == ImmutableMaxEvent(1)
    assert np.isinf(event_rdp(MECHANISM.event(1, 1), [2.0, 8.0])).all()
    accountant = RenyiAccountant()
    accountant.compose(MECHANISM.event(1, 1))
    assert accountant.get_converted(1e-5).epsilon == math.inf
    votes = np.array([[100, 0]])
    assert np.isinf(
        instance_rdp(MECHANISM, votes, np.zeros(1, dtype=np.int8), np.array([2.0]), weight=1.0)
    ).all()


def test_a_deployment_refuses_it_and_a_simulation_must_ask_for_it() -> None:
    assert not SPECS[MECHANISM.name].is_private
    with pytest.raises(InvalidParameterError, match="finite"):
        make_mechanism(Rule("immutable", sigma2=20.0))
    made = make_mechanism(Rule("immutable", sigma2=20.0), simulated=True)
    assert isinstance(made, ImmutableMax)


@pytest.mark.parametrize(("gamma", "constant"), [(0.0, 5), (1.0, 0), (1.0, 2**31), (1.0, -1)])
def test_parameters_out_of_range_are_refused(gamma: float, constant: int) -> None:
    with pytest.raises(InvalidParameterError):
        ImmutableMax(gamma, constant)
