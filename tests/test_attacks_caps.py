"""A lying coordinator that claims "not asked", to have more votes than the caps allow."""

from __future__ import annotations

import dataclasses
from contextlib import suppress
from typing import Any

import pytest

from coordinator.errors import CoordinatorError
from pate_fed.charges import RunLedger
from pate_fed.releases import ABSTAIN, Outcome
from protocols import wire
from protocols.messages import Settlement
from protocols.values import encode_value
from tests.support.federation import Federation, ready_federation

CAPS = {"max_asks": 20, "max_answers": 4}


def claim(federation: Federation, outcomes: list[Outcome]) -> bytes:
    """The settlement of the last batch, with outcomes that the coordinator made up; signed."""
    honest = wire.expect(wire.decode(federation.settlement), Settlement)
    labels = [0 if one is Outcome.ANSWERED else ABSTAIN for one in outcomes]
    result: dict[str, Any] = {"labels": labels, "outcomes": [int(one) for one in outcomes]}
    said = dataclasses.replace(honest, result=encode_value(result))
    federation.settle_otherwise(said)
    return federation.settlement


def owed(federation: Federation, *frames: bytes) -> dict[bytes, list[bytes]]:
    return {each.fingerprint: list(frames) for each in federation.identities}


def forget(federation: Federation) -> None:
    """Have the coordinator forget its own counts."""
    federation._open_store(RunLedger.of(federation.run.terms))


@pytest.mark.slow
@pytest.mark.parametrize("place", ["coordinator", "parties"])
def test_claiming_not_asked_gets_votes_on_no_more_queries_than_the_cap(place: str) -> None:
    """A batch that stays open holds answers; what a later one leaves unasked is not free by that.

    Otherwise the first batch would give its answers back afterwards, and the run would go on.
    """
    federation = ready_federation(terms={**CAPS, "noise_place": place}, pool=60)
    at = 0
    with suppress(CoordinatorError):  # hospitals may refuse any part of it
        for held, more in ((3, 17), (2, 14), (1, 12)):
            federation.ask(*range(at, at + held))
            small = claim(federation, [Outcome.REFUSED] * held)
            forget(federation)
            federation.set_up_anew(owed={})
            federation.ask(*range(at + held, at + held + more))
            large = claim(federation, [Outcome.ANSWERED, *[Outcome.NOT_ASKED] * (more - 1)])
            forget(federation)
            federation.set_up_anew(owed=owed(federation, large, small))
            at += held + more
    assert federation.nodes[0]._journal.queries.count() <= CAPS["max_asks"]
