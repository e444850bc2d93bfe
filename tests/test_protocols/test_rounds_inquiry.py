"""An inquiry before a plan: what both ends say, take and refuse."""

from __future__ import annotations

from typing import Any

import pytest

from protocols import wire
from protocols.errors import (
    BadSignatureError,
    UnexpectedMessageError,
    UnknownPeerError,
    WrongStateError,
)
from protocols.identity import SigningIdentity
from protocols.messages import Inquiry, Readiness, Refusal
from tests.support.rounds import EXPIRES_AT, NOW, MemoryRun, ready_run
from tests.support.walk import WORDS


@pytest.fixture
def run() -> MemoryRun:
    return ready_run(3)


def asked(run: MemoryRun) -> tuple[bytes, bytes]:
    """An inquiry that waits at the first party: its frame and its digest."""
    frame = run.coordinator.inquiry.ask(b"terms")
    party = run.parties[run.coordinator.seats[0]]
    assert party.receive(frame, now=NOW).event == Inquiry(run.coordinator.run_id, b"terms")
    return frame, wire.decode(frame).digest


def signed(run: MemoryRun, message: Any, *, by: SigningIdentity | None = None) -> bytes:
    return wire.sign(message, by or run.identities[run.coordinator.seats[0]]).frame


def test_an_answer_names_its_inquiry_its_party_and_the_refused_items(run: MemoryRun) -> None:
    me = run.coordinator.seats[0]
    for answer in ((), (1, 4)):
        frame, digest = asked(run)
        [reply] = run.parties[me].inquiry.accept(answer)
        said = Readiness(digest, me, answer)
        assert run.coordinator.inquiry.read(reply, inquiry=frame) == (me, said)
    frame, digest = asked(run)
    [reply] = run.parties[me].inquiry.refuse("PF-300")
    said = Refusal(digest, me, "PF-300")
    assert run.coordinator.inquiry.read(reply, inquiry=frame) == (me, said)


def test_an_inquiry_is_answered_once(run: MemoryRun) -> None:
    inquiry = run.parties[run.coordinator.seats[0]].inquiry
    for first in (lambda: inquiry.accept(()), lambda: inquiry.refuse("PF-300")):
        asked(run)
        first()
        with pytest.raises(WrongStateError):
            inquiry.accept(())


def test_an_inquiry_of_an_expired_run_is_refused(run: MemoryRun) -> None:
    frame = run.coordinator.inquiry.ask(b"terms")
    with pytest.raises(UnexpectedMessageError):
        run.parties[run.coordinator.seats[0]].receive(frame, now=EXPIRES_AT)


def test_nothing_is_asked_while_a_plan_is_open(run: MemoryRun) -> None:
    run.open_plan(WORDS)
    with pytest.raises(WrongStateError):
        run.coordinator.inquiry.ask(b"terms")


def test_only_an_answer_of_a_party_to_this_inquiry_is_read(run: MemoryRun) -> None:
    frame, digest = asked(run)
    me, stranger = run.coordinator.seats[0], SigningIdentity.generate()
    for bad, error in (
        (frame, UnexpectedMessageError),
        (signed(run, Readiness(bytes(32), me, ())), UnexpectedMessageError),
        (signed(run, Readiness(run.coordinator.run_id, me, ())), UnexpectedMessageError),
        (signed(run, Refusal(bytes(32), me, "PF-300")), UnexpectedMessageError),
        (signed(run, Readiness(digest, me, ()), by=stranger), BadSignatureError),
        (
            signed(run, Readiness(digest, stranger.fingerprint, ()), by=stranger),
            UnknownPeerError,
        ),
    ):
        with pytest.raises(error):
            run.coordinator.inquiry.read(bad, inquiry=frame)


def test_a_refusal_of_the_whole_run_is_an_answer(run: MemoryRun) -> None:
    """The frames before the inquiry may be refused: then the party reads no further."""
    frame, _ = asked(run)
    said = Refusal(run.coordinator.run_id, run.coordinator.seats[0], "PF-300")
    assert run.coordinator.inquiry.read(signed(run, said), inquiry=frame)[1] == said
