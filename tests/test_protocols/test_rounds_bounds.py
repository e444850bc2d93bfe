"""Bounds on the sets that may open, and what an earlier plan leaves to ask (rule R3)."""

from __future__ import annotations

import pytest

from protocols.errors import KeyReuseError
from protocols.rounds.bounds import ANY_SET, PlanClaim, SetBound, bound_on

A, B, C, D = (bytes([letter]) * 32 for letter in b"abcd")
ALL = (A, B, C)
UNKNOWN = PlanClaim.sent(ALL, survives_dropouts=True)
SENT = PlanClaim.sent(ALL, survives_dropouts=False)
CLOSED = PlanClaim.certified(())
OPENED = PlanClaim.certified((A, B))
ABANDONED = PlanClaim.abandoned_by((C,), seats=ALL)
REFUSED_BY_ALL = PlanClaim.abandoned_by(ALL, seats=ALL)


@pytest.mark.parametrize(
    ("claim", "at_coordinator", "at_parties"),
    [
        pytest.param(UNKNOWN, False, False, id="sent, the set unknown"),
        pytest.param(SENT, False, False, id="sent"),
        pytest.param(OPENED, False, False, id="opened"),
        pytest.param(CLOSED, True, True, id="closed"),
        pytest.param(REFUSED_BY_ALL, True, True, id="refused by all"),
        pytest.param(ABANDONED, True, False, id="refused by some, who may lie"),
        pytest.param(PlanClaim(None, is_free=True), False, False, id="free, the set unknown"),
    ],
)
def test_a_charge_comes_back_only_for_a_sum_that_never_opens(
    claim: PlanClaim, at_coordinator: bool, at_parties: bool
) -> None:
    assert claim.gives_back(noise_at_parties=False) is at_coordinator
    assert claim.gives_back(noise_at_parties=True) is at_parties


@pytest.mark.parametrize("claim", [UNKNOWN, SENT, OPENED])
def test_no_query_of_an_answered_plan_is_asked_again(claim: PlanClaim) -> None:
    with pytest.raises(KeyReuseError):
        bound_on([CLOSED, claim])


def test_a_query_of_freed_plans_is_bound_by_all_of_them_together() -> None:
    assert bound_on([ABANDONED, CLOSED]) == SetBound(frozenset((A, B)), frozenset(ALL))
    assert bound_on([CLOSED]) == ANY_SET
    assert bound_on([]) == ANY_SET


def test_two_bounds_need_what_either_needs_and_allow_what_both_allow() -> None:
    both = SetBound(frozenset((A,))) & SetBound(frozenset((B,)), frozenset(ALL))
    assert both == SetBound(frozenset((A, B)), frozenset(ALL))
    assert (both & SetBound(allowed=frozenset((A, B, D)))).allowed == {A, B}
    assert [both.allows(chosen) for chosen in ((A, B), ALL, (A, C), (A, B, D))] == [
        True,
        True,
        False,
        False,
    ]


@pytest.mark.parametrize(
    ("bound", "seats", "threshold", "leaves"),
    [
        pytest.param(ANY_SET, ALL, 3, True, id="any set"),
        pytest.param(ANY_SET, ALL, 4, False, id="too few seats"),
        pytest.param(SetBound.exactly((A, B)), ALL, 2, True, id="just enough"),
        pytest.param(SetBound.exactly((A, B)), ALL, 3, False, id="too few allowed"),
        pytest.param(SetBound(frozenset((D,))), ALL, 2, False, id="a needed one is absent"),
    ],
)
def test_a_plan_needs_a_set_within_its_bound(
    bound: SetBound, seats: tuple[bytes, ...], threshold: int, leaves: bool
) -> None:
    assert bound.leaves_room(seats, threshold=threshold) is leaves
