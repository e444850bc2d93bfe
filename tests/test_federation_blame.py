"""Whole runs in which a hospital spoils a row: it is named, and no vote is told (rule R11)."""

from __future__ import annotations

import logging
import re
from typing import Any

import numpy as np
import pytest

from coordinator.errors import SpoiledBatchError, VoidBatchError
from coordinator.runs.labeling import batches
from coordinator.runs.labeling.blame import Spoilers
from party.errors import Reason
from protocols import wire
from protocols.messages import BlameRequest, Refusal, StreamSums
from protocols.rounds import PartyRound, PartyState
from tests.support.federation import CLASSES, Answer, Federation, kinds, messages, ready_federation
from tests.support.markers import sampled

CULPRIT = 1
FORMS = pytest.mark.parametrize(("form", "parties"), [("additive", 3), ("masked", 5)])


def spoiled(form: str, parties: int, **changed: Any) -> Federation:
    federation = ready_federation(form=form, parties=parties, **changed)
    federation.nodes[CULPRIT].lie = np.array([[0] * CLASSES, [1] + [0] * (CLASSES - 1)])
    return federation


def void(federation: Federation) -> SpoiledBatchError:
    with pytest.raises(SpoiledBatchError) as caught:
        federation.ask(0, 1)
    return caught.value


@FORMS
def test_the_hospital_that_spoils_a_row_is_named_and_the_run_goes_on(
    form: str, parties: int, caplog: pytest.LogCaptureFixture
) -> None:
    federation = spoiled(form, parties)
    with caplog.at_level(logging.WARNING, logger="coordinator.runs.labeling.blame"):
        error = void(federation)
    [line] = error.named
    assert line.startswith(f"hospital-{CULPRIT}: ")
    assert error.code == "PF-419"
    assert line in str(error)
    assert [record.getMessage().endswith(f"; {line}") for record in caplog.records] == [True]
    assert federation.coordinator_states == ["forfeited"]
    federation.nodes[CULPRIT].lie = None
    assert federation.ask(2, 3).answered == 2
    # A masked sum does without it from now on.
    assert federation.steps[CULPRIT].count("vote") == (1 if form == "masked" else 2)
    federation.run.close()
    assert all(node.state is PartyState.DONE for node in federation.nodes)


@sampled()
@FORMS
def test_nothing_that_is_reported_depends_on_how_much_was_added(form: str, parties: int) -> None:
    texts = set()
    for lie in (1, -1, 12_345, 2**31 - 400):
        federation = spoiled(form, parties)
        federation.nodes[CULPRIT].lie = np.array([[lie] + [0] * (CLASSES - 1), [0] * CLASSES])
        texts.add(str(void(federation)))
    assert len(texts) == 1


@FORMS
def test_a_hospital_that_does_not_say_is_named(form: str, parties: int) -> None:
    federation = spoiled(form, parties)

    def mute(node: int, answer: bytes) -> Answer:
        return None if node == CULPRIT and "StreamSums" in kinds(answer) else answer

    federation.transport.on_answer = mute
    [line] = void(federation).named
    assert re.match(rf"hospital-{CULPRIT}: .*\[", line)


@FORMS
def test_a_hospital_that_lies_about_a_stream_is_named_with_the_other_end(
    form: str, parties: int
) -> None:
    federation = spoiled(form, parties)
    culprit, other = federation.seat_of(CULPRIT), federation.seat_of(0)

    def lie(node: int, answer: bytes) -> Answer:
        if node != CULPRIT or "StreamSums" not in kinds(answer):
            return answer
        [message] = [one for one in messages(answer) if isinstance(one, StreamSums)]
        sums = list(message.sums)
        # What it added to its row shall have come from this stream.
        sums[other] = (sums[other] + (1 if culprit < other else -1)) % 2**32
        changed = StreamSums(message.plan_digest, message.sender, message.row, tuple(sums))
        return wire.pack([wire.sign(changed, federation.identities[CULPRIT]).frame])

    federation.transport.on_answer = lie
    [line] = void(federation).named
    assert "hospital-0" in line
    assert f"hospital-{CULPRIT}" in line


def test_a_hospital_that_was_restarted_is_named_as_silent() -> None:
    federation = spoiled("additive", 3)

    def restart(node: int, packet: bytes) -> bytes:
        if node == 2 and "BlameRequest" in kinds(packet):
            federation.nodes[2]._round = federation.nodes[2]._new_round()
        return packet

    federation.transport.on_query = restart
    named = void(federation).named
    assert named[0].startswith(f"hospital-{CULPRIT}: ")
    assert re.match(r"hospital-2: .*\[PF-", named[1])


# A coordinator that asks for too much ----------------------------------------------------------


def after_a_void_batch(**changed: Any) -> tuple[Federation, list[bytes]]:
    """A federation in which the coordinator did not ask yet, and what the parties did not hear."""
    federation = spoiled(changed.pop("form", "additive"), changed.pop("parties", 3), **changed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batches, "who_spoiled", lambda *_: Spoilers())
        with pytest.raises(VoidBatchError):
            federation.ask(0, 1)
    told = federation.unheard()[federation.identities[0].fingerprint]
    return federation, list(told)


def request(federation: Federation, row: int) -> bytes:
    [plan] = {each.plan_digest for each in federation.run.round.settled}
    message = BlameRequest(federation.run.round.run_id, plan, row)
    return wire.sign(message, federation.identity).frame


def answer_to(federation: Federation, frames: list[bytes]) -> Any:
    [message] = messages(federation.nodes[0].receive(wire.pack(frames)))
    return message


def test_the_width_of_a_row_is_that_of_the_terms() -> None:
    """One word of the second query is word 3: whoever asks for "row 3" gets no word."""
    federation, told = after_a_void_batch()
    refusal = answer_to(federation, [*told, request(federation, 3)])
    assert isinstance(refusal, Refusal)
    assert refusal.reason == Reason.ROW.value


def test_with_noise_at_the_parties_nobody_asks_and_nobody_tells() -> None:
    federation = ready_federation(terms={"noise_place": "parties"})
    federation.nodes[CULPRIT].lie = np.array([[10**6] * CLASSES, [0] * CLASSES])
    with pytest.raises(VoidBatchError) as caught:
        federation.ask(0, 1)
    assert not isinstance(caught.value, SpoiledBatchError)
    assert not any("BlameRequest" in event for event in federation.events)
    told = federation.unheard()[federation.identities[0].fingerprint]
    refusal = answer_to(federation, [*told, request(federation, 0)])
    assert isinstance(refusal, Refusal)
    assert refusal.reason == Reason.ROW.value


def test_the_plain_form_asks_nobody() -> None:
    federation = spoiled("plain", 3)
    with pytest.raises(VoidBatchError) as caught:
        federation.ask(0, 1)
    assert not isinstance(caught.value, SpoiledBatchError)


def test_a_node_that_cannot_tell_still_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    federation, told = after_a_void_batch()
    monkeypatch.setattr(PartyRound, "state_sums", lambda party, *, row_words: 1 / 0)
    refusal = answer_to(federation, [*told, request(federation, 1)])
    assert isinstance(refusal, Refusal)
    assert refusal.reason == Reason.FAULT.value
    assert federation.nodes[0].state is PartyState.READY
