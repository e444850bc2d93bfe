"""Attacks on one party's state machine that no coordinator of ours would even make."""

from __future__ import annotations

from dataclasses import replace

import pytest

from protocols import wire
from protocols.additive import AdditiveSum
from protocols.errors import (
    BadSignatureError,
    ConflictingMessageError,
    UnexpectedMessageError,
)
from protocols.masked import MaskedSum
from protocols.messages import Plan, ShareBundle
from protocols.rounds import PartyState
from protocols.secure_sum import SecureSum
from tests.support.cheating import Cheat
from tests.support.rounds import NOW, MemoryRun
from tests.support.walk import altered, vector

WORDS = len(vector())
forms = pytest.mark.parametrize("form", [AdditiveSum, MaskedSum])


def settled_at_epoch(form: type[SecureSum], epoch: int) -> tuple[MemoryRun, bytes]:
    """A run whose parties served one batch, at an epoch that the coordinator skipped to."""
    run = MemoryRun(form.smallest, form=form)
    run.set_up()
    run.coordinator._epoch = epoch - 1
    run.sum([vector()] * form.smallest)
    run.settle()
    return run, run.coordinator.seats[0]


@forms
@pytest.mark.parametrize("epoch", [1, 4, 5])
def test_an_epoch_that_was_skipped_or_served_is_not_gone_back_to(
    form: type[SecureSum], epoch: int
) -> None:
    """Its roots are gone, and whoever has an older root must not be given a use for it."""
    run, me = settled_at_epoch(form, 5)
    party = run.parties[me]
    assert party.epoch == 5
    plan = run.open_plan(WORDS, batch=1)
    back = altered(plan, run.coordinator_identity, epoch=epoch)
    if epoch == 5:  # of an epoch that it served, two plans are a conflict, besides
        with pytest.raises(ConflictingMessageError):
            party.receive(back, now=NOW)
        assert party.state is PartyState.STOPPED
        return
    with pytest.raises(UnexpectedMessageError, match="epoch"):
        party.receive(back, now=NOW)
    assert party.state is PartyState.READY
    assert isinstance(party.receive(plan, now=NOW).event, Plan)
    assert wire.decode(party.contribute(vector())[-1]).message


def test_hashes_that_a_dealer_did_not_sign_stop_the_holder_though_its_own_column_fits() -> None:
    """The coordinator changes hashes of secrets: the holder's shares fit, the dealing does not."""
    cheat = Cheat([vector()] * 5)
    holder, everyone = cheat.parties[0], range(5)
    holder.receive(cheat.survivor_set(everyone), now=NOW)
    bundle = wire.expect(wire.decode(cheat.bundle(everyone, 0)), ShareBundle)
    true = cheat.dealing(1)
    forged = replace(true, secret_hashes=(bytes(32), *true.secret_hashes[1:]))
    changed = replace(bundle, dealings=(cheat.signed(forged), *bundle.dealings[1:]))
    with pytest.raises(BadSignatureError) as caught:
        holder.receive(wire.contain(changed).frame, now=NOW)
    assert caught.value.peer == "coordinator"
    assert holder.state is PartyState.STOPPED
