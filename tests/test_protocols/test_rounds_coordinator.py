"""The coordinator against parties that lie."""

from __future__ import annotations

import gc
import hashlib
import tracemalloc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from protocols import wire
from protocols.envelope import SealingKey
from protocols.errors import (
    BadSignatureError,
    ConflictingMessageError,
    FalseRefusalError,
    HistoryError,
    MalformedMessageError,
    RefusedError,
    RemoteProtocolError,
    SuiteError,
    TooFewPartiesError,
    UnexpectedMessageError,
    UnknownPeerError,
    WrongLengthError,
    WrongStateError,
)
from protocols.identity import SigningIdentity
from protocols.messages import (
    Confirmations,
    Envelope,
    EnvelopeBundle,
    HeadStatement,
    KeyStatement,
    MaskedVector,
    Ready,
    Refusal,
    Settlement,
    VectorHead,
)
from protocols.rounds import CoordinatorState, PlanClaim
from protocols.suites import SUITES
from tests.support.markers import sampled
from tests.support.rounds import EXPIRES_AT, NOW, MemoryRun, ready_run
from tests.support.walk import WORDS, Walk, altered, vector


def collecting(parties: int = 3) -> tuple[MemoryRun, bytes, bytes]:
    """A run whose plan is out: the run, the liar's fingerprint and the plan's digest."""
    run = ready_run(parties)
    plan = run.open_plan(WORDS)
    for fp in run.parties:
        run.to_party("plan", fp, plan)
    return run, run.coordinator.seats[1], wire.decode(plan).digest


def masked(run: MemoryRun, sender: bytes, plan: bytes, body: bytes) -> bytes:
    return wire.sign(MaskedVector(plan, sender, body), run.identities[sender]).frame


@pytest.mark.parametrize(
    "size",
    [1, 4 * WORDS - 1, 4 * WORDS - 4, 4 * WORDS + 1, 4 * WORDS + 4, 4 * WORDS + 3000, 10**6],
)
def test_a_y_of_the_wrong_length_is_named_and_adds_nothing(size: int) -> None:
    run, liar, plan = collecting()
    with pytest.raises(WrongLengthError) as caught:
        run.coordinator.receive(masked(run, liar, plan, bytes(size)), peer=liar)
    assert caught.value.peer == liar.hex()
    for seat in run.coordinator.seats:
        frames = list(run.parties[seat].contribute(vector()))
        if seat != liar:
            run.to_coordinator("y", seat, frames)
            continue
        with pytest.raises(ConflictingMessageError):  # as after a refusal
            run.coordinator.receive(frames[-1], peer=liar)
    assert liar not in run.coordinator.batch.survivors
    # All others are told, by a head that the liar signed, and believe it.
    settlement = run.coordinator.batch.settle(released=False, result=b"")
    [head] = wire.expect(wire.decode(settlement), Settlement).refusals
    assert wire.decode(head).message == VectorHead(
        plan, liar, size, hashlib.sha256(bytes(size)).digest()
    )
    honest = set(run.coordinator.seats) - {liar}
    claim = PlanClaim.abandoned_by([liar], seats=run.coordinator.seats)
    assert run.coordinator.batch.claim_of(run.coordinator.settled[-1]) == claim
    for seat in honest:
        assert run.parties[seat].receive(settlement, now=NOW).proven == claim


@pytest.mark.parametrize("listed", [False, True], ids=["right length", "and listed"])
def test_a_y_of_the_right_length_is_no_refusal(listed: bool) -> None:
    run, victim, plan = collecting()
    y = {seat: run.parties[seat].contribute(vector())[-1] for seat in run.coordinator.seats}
    entries = tuple(wire.decode(y[seat]).digest if listed or seat != victim else b"" for seat in y)
    told = Settlement(
        run.coordinator.run_id,
        plan,
        "void",
        WORDS,
        entries,
        (wire.head_frame(wire.decode(y[victim])),),
        b"",
        b"",
    )
    frame = wire.sign(told, run.coordinator_identity).frame
    other = next(seat for seat in run.coordinator.seats if seat != victim)
    with pytest.raises(FalseRefusalError):
        run.parties[other].receive(frame, now=NOW)


def test_a_y_signed_by_another_key_is_named() -> None:
    run, liar, plan = collecting()
    forged = wire.sign(MaskedVector(plan, liar, bytes(4 * WORDS)), SigningIdentity.generate())
    with pytest.raises(BadSignatureError) as caught:
        run.coordinator.receive(forged.frame, peer=liar)
    assert caught.value.peer == liar.hex()
    assert liar in run.coordinator.missing


def test_a_y_in_the_name_of_another_party_is_named_by_where_it_came_from() -> None:
    run, liar, plan = collecting()
    victim = run.coordinator.seats[0]
    with pytest.raises(UnknownPeerError) as caught:
        run.coordinator.receive(masked(run, victim, plan, bytes(4 * WORDS)), peer=liar)
    assert caught.value.peer == liar.hex()
    own_key = wire.sign(MaskedVector(plan, victim, bytes(4 * WORDS)), run.identities[liar])
    with pytest.raises(BadSignatureError):
        run.coordinator.receive(own_key.frame)
    assert victim in run.coordinator.missing


def test_a_y_of_nobody_enrolled_is_refused() -> None:
    run, _, plan = collecting()
    stranger = SigningIdentity.generate()
    frame = wire.sign(MaskedVector(plan, stranger.fingerprint, bytes(4 * WORDS)), stranger).frame
    with pytest.raises(UnknownPeerError):
        run.coordinator.receive(frame)


def test_the_round_counts_the_parties_that_it_heard_from() -> None:
    run, _, _ = collecting()
    for place, seat in enumerate(run.coordinator.seats):
        assert run.coordinator.exchange.heard == place
        run.to_coordinator("y", seat, list(run.parties[seat].contribute(vector())))
    assert run.coordinator.exchange.heard == len(run.parties)


def test_a_repeated_y_is_added_once() -> None:
    run, liar, _ = collecting()
    for seat in run.coordinator.seats:
        frames = list(run.parties[seat].contribute(vector()))
        for _ in range(3):
            run.to_coordinator("y", seat, frames)
    (again,) = run.parties[liar].receive(run.coordinator.open_plan.frame, now=NOW).replies
    assert run.coordinator.receive(again, peer=liar) == liar  # after the stage is over, too
    assert np.array_equal(run.coordinator.batch.open_total(), 3 * vector())


def test_a_second_y_with_other_bytes_is_a_conflict_that_names_its_sender() -> None:
    run, liar, plan = collecting()
    run.to_coordinator("y", liar, list(run.parties[liar].contribute(vector())))
    with pytest.raises(ConflictingMessageError) as caught:
        run.coordinator.receive(masked(run, liar, plan, bytes(4 * WORDS)), peer=liar)
    assert caught.value.peer == liar.hex()
    run.coordinator.batch.settle(released=False, result=b"")
    assert run.coordinator.state is CoordinatorState.READY


def test_a_y_of_an_older_plan_is_refused() -> None:
    run, liar, _ = collecting()
    old = {seat: list(run.parties[seat].contribute(vector())) for seat in run.parties}
    for seat in run.coordinator.seats:
        if seat != liar:
            run.to_coordinator("y", seat, old[seat])
    run.settle(released=False)
    run.open_plan(WORDS, batch=1)
    with pytest.raises(UnexpectedMessageError) as caught:
        run.coordinator.receive(old[liar][0], peer=liar)
    assert caught.value.peer == liar.hex()
    # A y that was taken then is known, and adds nothing now.
    other = next(seat for seat in run.parties if seat != liar)
    run.coordinator.receive(old[other][0], peer=other)
    assert len(run.coordinator.missing) == 3


def test_a_y_of_an_older_run_is_refused() -> None:
    run, liar, plan = collecting()
    older = MemoryRun(3)
    frame = masked(run, liar, wire.digest_of(Refusal(plan, liar, "x")), bytes(4 * WORDS))
    assert older.coordinator.run_id != run.coordinator.run_id
    with pytest.raises(UnexpectedMessageError):
        run.coordinator.receive(frame, peer=liar)


def test_a_refusal_is_named_with_its_reason_and_voids_the_batch() -> None:
    run, liar, _ = collecting()
    (frame,) = run.parties[liar].refuse("PF-301")
    for _ in range(2):
        with pytest.raises(RefusedError) as caught:
            run.coordinator.receive(frame, peer=liar)
        assert (caught.value.peer, caught.value.reason) == (liar.hex(), "PF-301")
    with pytest.raises(WrongStateError):
        run.coordinator.batch.open_total()
    with pytest.raises(WrongStateError):
        run.coordinator.batch.settle(released=True, result=b"labels")
    run.coordinator.batch.settle(released=False, result=b"")


def test_a_refusal_of_an_older_plan_or_run_voids_nothing() -> None:
    run, liar, _ = collecting()
    old = {seat: run.parties[seat].refuse("PF-301")[0] for seat in run.parties}[liar]
    run.settle(released=False)
    plan = run.open_plan(WORDS, batch=1)
    for subject in (bytes(32), b"\1" * 32):
        frame = wire.sign(Refusal(subject, liar, "PF-301"), run.identities[liar]).frame
        with pytest.raises(UnexpectedMessageError):
            run.coordinator.receive(frame, peer=liar)
    with pytest.raises(UnexpectedMessageError):
        run.coordinator.receive(old, peer=liar)
    for seat in run.coordinator.seats:
        run.to_party("plan", seat, plan)
        run.to_coordinator("y", seat, list(run.parties[seat].contribute(vector())))
    assert np.array_equal(run.coordinator.batch.open_total(), 3 * vector())


def test_a_party_that_sent_y_cannot_refuse_as_well() -> None:
    run, liar, plan = collecting()
    run.to_coordinator("y", liar, list(run.parties[liar].contribute(vector())))
    refusal = wire.sign(Refusal(plan, liar, "PF-301"), run.identities[liar]).frame
    with pytest.raises(UnexpectedMessageError) as caught:
        run.coordinator.receive(refusal, peer=liar)
    assert caught.value.peer == liar.hex()


def test_nothing_was_shared_only_when_every_party_signed_a_refusal_of_this_plan() -> None:
    run, _, _ = collecting()
    for seat in run.coordinator.seats:
        assert not run.coordinator.batch.nothing_was_shared
        with pytest.raises(RefusedError):
            run.coordinator.receive(run.parties[seat].refuse("PF-301")[0], peer=seat)
    assert run.coordinator.batch.nothing_was_shared
    run.settle(released=False)
    run.open_plan(WORDS, batch=1)
    assert not run.coordinator.batch.nothing_was_shared


def test_the_sum_opens_once_and_only_when_every_y_is_in() -> None:
    run, _, _ = collecting()
    for seat in run.coordinator.seats:
        with pytest.raises(WrongStateError):
            run.coordinator.batch.open_total()
        run.to_coordinator("y", seat, list(run.parties[seat].contribute(vector())))
    assert np.array_equal(run.coordinator.batch.open_total(), 3 * vector())
    with pytest.raises(WrongStateError):
        run.coordinator.batch.open_total()


@pytest.mark.parametrize(
    "frame",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"\x84\x01\x0a\x00", id="broken"),
        pytest.param(b"{}", id="json"),
        pytest.param(bytes(range(256)), id="noise"),
    ],
)
def test_malformed_bytes_are_named_by_where_they_came_from(frame: bytes) -> None:
    run, liar, _ = collecting()
    with pytest.raises(MalformedMessageError) as caught:
        run.coordinator.receive(frame, peer=liar)
    assert caught.value.peer == liar.hex()


def test_a_huge_frame_is_refused_before_it_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    run, liar, plan = collecting()
    frame = masked(run, liar, plan, bytes(EnvelopeBundle.MAX_BYTES + 1))
    monkeypatch.setattr(wire, "decode", lambda _: pytest.fail("parsed"))
    with pytest.raises(WrongLengthError):
        run.coordinator.receive(frame, peer=liar)


# Setup -----------------------------------------------------------------------------------------


def _statement(run: MemoryRun, liar: bytes, **changed: object) -> bytes:
    fields: dict[str, object] = {
        "offer_digest": wire.decode(run.coordinator.setup.offer.frame).digest,
        "identity_key": run.identities[liar].public.key,
        "sealing_key": SealingKey().public_bytes,
        "nonce": bytes(32),
        "role": "party",
        "expires_at": EXPIRES_AT,
        "journal_counter": 0,
    }
    return wire.sign(KeyStatement(**fields | changed), run.identities[liar]).frame  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "changed",
    [{"offer_digest": bytes(32)}, {"role": "coordinator"}, {"expires_at": EXPIRES_AT + 1}],
    ids=lambda changed: next(iter(changed)),
)
def test_a_key_statement_for_something_else_is_refused(changed: dict[str, object]) -> None:
    run = MemoryRun(3)
    liar = run.coordinator.seats[0]
    with pytest.raises(UnexpectedMessageError) as caught:
        run.coordinator.receive(_statement(run, liar, **changed), peer=liar)
    assert caught.value.peer == liar.hex()
    run.coordinator.receive(_statement(run, liar), peer=liar)


@pytest.mark.parametrize("suite", SUITES)
def test_a_key_of_another_suite_is_refused_and_its_party_named(suite: str) -> None:
    (other,) = {*SUITES} - {suite}
    run = MemoryRun(3, suite=suite)
    liar = run.coordinator.seats[0]
    mixed = _statement(run, liar, sealing_key=SealingKey(other).public_bytes)
    with pytest.raises(SuiteError) as caught:
        run.coordinator.receive(mixed, peer=liar)
    assert caught.value.peer == liar.hex()
    assert liar in run.coordinator.missing


def test_a_coordinator_offers_no_suite_that_does_not_exist() -> None:
    with pytest.raises(SuiteError):
        MemoryRun(3, suite="none")


def test_a_key_statement_of_an_identity_that_is_not_enrolled_is_refused() -> None:
    run, stranger = MemoryRun(3), SigningIdentity.generate()
    run.identities[stranger.fingerprint] = stranger
    with pytest.raises(UnknownPeerError):
        run.coordinator.receive(_statement(run, stranger.fingerprint))


def test_a_second_key_statement_is_a_conflict() -> None:
    run = MemoryRun(3)
    liar = run.coordinator.seats[0]
    run.coordinator.receive(_statement(run, liar), peer=liar)
    with pytest.raises(ConflictingMessageError):
        run.coordinator.receive(_statement(run, liar, nonce=b"\1" * 32), peer=liar)


def _bundle_of(walk: Walk) -> tuple[bytes, list[bytes]]:
    """Envelopes that the party under test means to send."""
    frames = walk.run.parties[walk.me].receive(_record(walk), now=NOW).replies
    message = wire.expect(wire.decode(frames[0]), EnvelopeBundle)
    return message.run_id, list(message.envelopes)


def _record(walk: Walk) -> bytes:
    signed = wire.sign(walk.run.parties[walk.me].record, walk.run.coordinator_identity)  # type: ignore[arg-type]
    return signed.frame


def _forged(walk: Walk, envelope: bytes) -> bytes:
    return wire.sign(wire.decode(envelope).message, SigningIdentity.generate()).frame


def _resigned(walk: Walk, envelope: bytes, **changed: object) -> bytes:
    return altered(envelope, walk.run.identities[walk.me], **changed)


@sampled()
@pytest.mark.parametrize(
    ("spoil", "error"),
    [
        pytest.param(lambda w, e: [_forged(w, e[0]), e[1]], BadSignatureError, id="forged"),
        pytest.param(lambda w, e: e[::-1], UnexpectedMessageError, id="swapped"),
        pytest.param(lambda w, e: [e[0], e[0]], UnexpectedMessageError, id="one twice"),
        pytest.param(lambda w, e: e[:1], UnexpectedMessageError, id="one missing"),
        pytest.param(lambda w, e: [*e, e[0]], UnexpectedMessageError, id="one too many"),
        pytest.param(lambda w, e: [b"junk", e[1]], MalformedMessageError, id="junk"),
        pytest.param(
            lambda w, e: [_resigned(w, e[0], run_id=bytes(32)), e[1]],
            UnexpectedMessageError,
            id="of another run",
        ),
        pytest.param(
            lambda w, e: [_resigned(w, e[0], sender=w.run.coordinator.seats[2]), e[1]],
            UnexpectedMessageError,
            id="in another's name",
        ),
        pytest.param(
            lambda w, e: [_resigned(w, e[0], receiver=w.me), e[1]],
            UnexpectedMessageError,
            id="to itself",
        ),
    ],
)
def test_spoiled_envelopes_name_their_sender(spoil, error: type[RemoteProtocolError]) -> None:  # type: ignore[no-untyped-def]
    walk = Walk().to_step("accepted")
    run_id, envelopes = _bundle_of(walk)
    spoiled = wire.contain(EnvelopeBundle(run_id, tuple(spoil(walk, envelopes))))
    with pytest.raises(error) as caught:
        walk.run.coordinator.receive(spoiled, peer=walk.me)
    assert caught.value.peer == walk.me.hex()
    walk.finish()


def test_a_bundle_without_a_known_sender_is_refused() -> None:
    walk = Walk().to_step("accepted")
    run_id, envelopes = _bundle_of(walk)
    with pytest.raises(UnknownPeerError):
        walk.run.coordinator.receive(
            wire.contain(EnvelopeBundle(run_id, tuple(envelopes))), peer=None
        )


@pytest.mark.parametrize("macs", [1, 3])
def test_confirmations_for_too_few_or_too_many_peers_are_refused(macs: int) -> None:
    walk = Walk().to_step("deliver")
    message = Confirmations(walk.run.coordinator.run_id, walk.me, (bytes(32),) * macs)
    with pytest.raises(UnexpectedMessageError) as caught:
        walk.run.coordinator.receive(
            wire.sign(message, walk.run.identities[walk.me]).frame, peer=walk.me
        )
    assert caught.value.peer == walk.me.hex()
    walk.finish()


def test_a_party_cannot_end_an_exchange_that_has_not_begun() -> None:
    """One packet with two messages: the second answers what was not asked yet."""
    walk = Walk().to_step("accepted in")
    coordinator, identity = walk.run.coordinator, walk.run.identities[walk.me]
    early = [
        Confirmations(coordinator.run_id, walk.me, (bytes(32),) * 2),
        Ready(coordinator.run_id, walk.me, "setup", coordinator.transcript.head, 0),
    ]
    for message in early:
        with pytest.raises(UnexpectedMessageError):
            coordinator.receive(wire.sign(message, identity).frame, peer=walk.me)
    assert coordinator.state is CoordinatorState.DELIVERED
    walk.to_step("deliver in")
    with pytest.raises(UnexpectedMessageError):
        coordinator.receive(wire.sign(early[1], identity).frame, peer=walk.me)
    assert coordinator.state is CoordinatorState.CONFIRMED
    walk.finish()


def test_a_party_is_ready_with_the_stage_and_the_history_of_now() -> None:
    walk = Walk().to_step("closing setup")
    coordinator, identity = walk.run.coordinator, walk.run.identities[walk.me]
    head = coordinator.transcript.head
    for stage, other_head, error in (
        ("closing", head, UnexpectedMessageError),
        ("setup", bytes(32), HistoryError),
    ):
        frame = wire.sign(Ready(coordinator.run_id, walk.me, stage, other_head, 0), identity).frame
        with pytest.raises(error) as caught:
            coordinator.receive(frame, peer=walk.me)
        assert caught.value.peer == walk.me.hex()
    walk.finish()


@pytest.mark.parametrize(
    "changed",
    [pytest.param({"head": bytes(32)}, id="head"), pytest.param({"epoch": 9}, id="epoch")],
)
def test_a_last_head_of_another_history_closes_no_run(changed: dict[str, Any]) -> None:
    run = ready_run(3)
    other = run.coordinator.seats[0]

    def tamper(stage: str, to: bytes | None, frame: bytes) -> bytes:
        said = wire.decode(frame).message
        if to is None and isinstance(said, HeadStatement) and said.sender == other:
            return wire.sign(replace(said, **changed), run.identities[other]).frame
        return frame

    run.tamper = tamper
    with pytest.raises(HistoryError) as caught:
        run.broadcast("closing", run.coordinator.closing.close())
    assert caught.value.peer == other.hex()
    assert run.coordinator.state is CoordinatorState.CLOSING


def test_who_answers_a_record_again_is_known_by_a_signed_answer_alone() -> None:
    run = ready_run(3)
    setup, run_id, me = run.coordinator.setup, run.coordinator.run_id, run.coordinator.seats[0]
    identity, stranger = run.identities[me], SigningIdentity.generate()
    refusal = Refusal(run_id, me, "PF-322")
    assert setup.recognize(wire.sign(refusal, identity).frame) == me
    head = HeadStatement(run_id, me, bytes(32), 0, 0)
    with pytest.raises(UnexpectedMessageError):
        setup.recognize(wire.sign(head, identity).frame)
    own = replace(refusal, sender=stranger.public.fingerprint)
    with pytest.raises(UnknownPeerError):
        setup.recognize(wire.sign(own, stranger).frame)
    with pytest.raises(RemoteProtocolError):
        setup.recognize(wire.sign(refusal, stranger).frame)


def test_a_repeated_message_changes_nothing_at_any_time() -> None:
    walk = Walk(4)
    said: list[tuple[bytes, bytes]] = []

    def listen(stage: str, to: bytes | None, frame: bytes) -> bytes:
        if to is None:
            said.append((_sender(walk, frame), frame))
        return frame

    walk.run.tamper = listen
    for step in ("offer in", "accepted in", "deliver in", "closing setup in", "y in", "closing in"):
        walk.to_step(step)
        coordinator = walk.run.coordinator
        before = (coordinator.state, coordinator.transcript, coordinator.missing)
        for sender, frame in list(said):
            if isinstance(wire.decode(frame).message, Refusal):
                continue
            assert coordinator.receive(frame, peer=sender) == sender
        assert (coordinator.state, coordinator.transcript, coordinator.missing) == before, step
    walk.finish()


def _sender(walk: Walk, frame: bytes) -> bytes:
    message = wire.decode(frame).message
    if isinstance(message, KeyStatement):
        return next(
            fp for fp, i in walk.run.identities.items() if i.public.key == message.identity_key
        )
    if isinstance(message, EnvelopeBundle):
        return wire.expect(wire.decode(message.envelopes[0]), Envelope).sender
    sender: bytes = message.sender  # type: ignore[attr-defined]
    return sender


def test_a_run_that_is_not_set_up_has_compared_no_heads() -> None:
    closing = MemoryRun(3).coordinator.closing
    assert (closing.heads_frame, closing.heads_compared) == (b"", ())


def test_fewer_than_three_parties_are_refused() -> None:
    with pytest.raises(TooFewPartiesError):
        MemoryRun(2)


def test_a_settlement_lists_what_every_party_sent() -> None:
    run, _, _ = collecting()
    digests = {}
    for seat in run.coordinator.seats:
        (frame,) = run.parties[seat].contribute(vector())
        digests[seat] = wire.decode(frame).digest
        run.to_coordinator("y", seat, [frame])
    run.coordinator.batch.open_total()
    settlement = wire.decode(run.coordinator.batch.settle(released=True, result=b"labels")).message
    assert isinstance(settlement, Settlement)
    assert settlement.contributions == tuple(digests[seat] for seat in run.coordinator.seats)
    assert (settlement.state, settlement.result) == ("released", b"labels")


@pytest.mark.slow
def test_the_coordinator_holds_one_total_and_no_y() -> None:
    """Memory does not grow with the number of parties: nothing of a y stays but its digest."""
    words, grown = 100_000, []
    for parties in (3, 9):
        run = ready_run(parties)
        plan = run.open_plan(words)
        gc.collect()
        tracemalloc.start()
        for seat in run.coordinator.seats:
            run.parties[seat].receive(plan, now=NOW)
            (frame,) = run.parties[seat].contribute(np.zeros(words, dtype=np.int64))
            run.journals[seat].erase(wire.decode(plan).digest)
            run.coordinator.receive(frame, peer=seat)
        del frame
        gc.collect()
        grown.append(tracemalloc.get_traced_memory()[0])
        tracemalloc.stop()
    assert max(grown) < 4 * words / 4, grown  # far less than one y
