"""A party against a coordinator and peers that lie."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from protocols import wire
from protocols.additive import AdditiveSum
from protocols.envelope import SealingKey
from protocols.errors import (
    BadSignatureError,
    ConflictingMessageError,
    HistoryError,
    InvalidVectorError,
    KeyReuseError,
    MalformedMessageError,
    ProtocolError,
    RemoteProtocolError,
    SuiteError,
    UnexpectedMessageError,
    UnknownPeerError,
    WrongStateError,
)
from protocols.fields import Message
from protocols.identity import SigningIdentity
from protocols.masked import MaskedSum
from protocols.messages import (
    EnvelopeBundle,
    HeadBundle,
    HeadStatement,
    MaskedVector,
    Plan,
    Refusal,
    RunRecord,
    SetProposal,
    Settlement,
    SetupClosing,
    Verdict,
)
from protocols.pair_keys import MAX_SKIPPED_EPOCHS
from protocols.rounds import PartyRound, PartyState, Received, RoundJournal
from protocols.secure_sum import SecureSum
from protocols.suites import SUITE_MLKEM768_X25519, SUITE_X25519
from tests.support.markers import sampled
from tests.support.rounds import EXPIRES_AT, NOW, ListJournal, MemoryRun
from tests.support.walk import WORDS, Walk, altered, vector

OPENING_STATES = (PartyState.JUDGED, PartyState.CERTIFIED, PartyState.REVEALED)
STRANGE_KEY = SealingKey().public_bytes
"""A usable key of the suite, whose private half no party of a run has."""


def at(state: PartyState) -> tuple[Walk, PartyRound]:
    walk = Walk().to(state)
    return walk, walk.run.parties[walk.me]


def next_frame(walk: Walk, stage: str) -> bytes:
    """The frame that the party under test gets next, kept from it; the rest of the run ends."""
    kept: list[bytes] = []

    class Kept(Exception):  # noqa: N818 - no error: it stops the walk
        pass

    def keep(step: str, to: bytes | None, frame: bytes) -> bytes:
        if step == stage and to == walk.me:
            kept.append(frame)
            raise Kept
        return frame

    walk.run.tamper = keep
    with pytest.raises(Kept):
        walk.finish()
    walk.run.tamper = lambda stage, to, frame: frame
    return kept[0]


def refuses(walk: Walk, frame: bytes, error: type[ProtocolError], *, stops: bool) -> ProtocolError:
    """Check that the party refuses a frame, and whether that stops it or changes nothing."""
    party, journal = walk.run.parties[walk.me], walk.run.journals[walk.me]
    before = (party.state, party.transcript, party.epoch, party.run_id, list(journal.steps))
    with pytest.raises(error) as caught:
        party.receive(frame, now=NOW)
    if stops:
        assert party.state is PartyState.STOPPED
        assert journal.steps == before[4]
    else:
        after = (party.state, party.transcript, party.epoch, party.run_id, list(journal.steps))
        assert after == before
    return caught.value


# Who speaks ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "stage"),
    [
        (PartyState.NEW, "offer"),
        (PartyState.STATED, "record"),
        (PartyState.CONFIRMED, "closing setup"),
        (PartyState.READY, "plan"),
        (PartyState.SENT, "settlement"),
        (PartyState.REFUSED, "settlement"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.value,
)
def test_what_the_coordinator_did_not_sign_changes_nothing(state: PartyState, stage: str) -> None:
    walk, party = at(state)
    frame = next_frame(walk, stage)
    peer = walk.run.identities[walk.run.coordinator.seats[1]]
    for liar in (SigningIdentity.generate(), peer):
        forged = wire.sign(wire.decode(frame).message, liar).frame
        assert refuses(walk, forged, BadSignatureError, stops=False).peer == "coordinator"  # type: ignore[attr-defined]
    party.receive(frame, now=NOW)  # the true one is taken still


def test_an_offer_that_names_another_key_is_refused() -> None:
    walk, _ = at(PartyState.NEW)
    frame = altered(
        walk.run.coordinator.setup.offer.frame,
        walk.run.coordinator_identity,
        coordinator_key=bytes(32),
    )
    refuses(walk, frame, UnknownPeerError, stops=False)


@pytest.mark.parametrize(
    "changed",
    [
        {"form": "unknown"},
        {"ring_bits": 16},
        {"ring_bits": 8},
        {"expires_at": int(NOW)},
        {"expires_at": 0},
    ],
    ids=str,
)
def test_an_offer_of_what_this_party_does_not_do_is_refused(changed: dict[str, Any]) -> None:
    walk, _ = at(PartyState.NEW)
    frame = altered(
        walk.run.coordinator.setup.offer.frame, walk.run.coordinator_identity, **changed
    )
    refuses(walk, frame, UnexpectedMessageError, stops=False)
    walk.finish()


# The run record --------------------------------------------------------------------------------


def _forged_statement(walk: Walk, record: RunRecord) -> dict[str, Any]:
    """Another sealing key in a pinned party's name: the coordinator would read its envelopes."""
    forged = altered(record.statements[1], walk.run.coordinator_identity, sealing_key=STRANGE_KEY)
    return {"statements": (record.statements[0], forged, record.statements[2])}


def _my_statement_changed(walk: Walk, record: RunRecord) -> dict[str, Any]:
    mine = altered(record.statements[0], walk.run.identities[walk.me], sealing_key=STRANGE_KEY)
    return {"statements": (mine, *record.statements[1:])}


@pytest.mark.parametrize(
    ("spoil", "error"),
    [
        pytest.param(_forged_statement, BadSignatureError, id="a forged sealing key"),
        pytest.param(_my_statement_changed, UnknownPeerError, id="our own sealing key changed"),
        pytest.param(
            lambda w, r: {"statements": (*r.statements[:2], b"junk")},
            MalformedMessageError,
            id="junk for a statement",
        ),
        pytest.param(
            lambda w, r: {"statements": (*r.statements[:2], w.run.coordinator.setup.offer.frame)},
            MalformedMessageError,
            id="an offer for a statement",
        ),
    ],
)
def test_a_bad_run_record_is_refused_and_the_true_one_is_taken_still(
    spoil: Callable[[Walk, RunRecord], dict[str, Any]], error: type[ProtocolError]
) -> None:
    walk, party = at(PartyState.STATED)
    true = next_frame(walk, "record")
    record = wire.expect(wire.decode(true), RunRecord)
    bad = altered(true, walk.run.coordinator_identity, **spoil(walk, record))
    refuses(walk, bad, error, stops=False)
    assert isinstance(party.receive(true, now=NOW).event, RunRecord)
    assert len(party.accept_run()) == 1


def test_a_run_of_pair_keys_is_set_up_without_nobody() -> None:
    """Each sum would need the absent one, too; and their pair would have no key."""
    walk = Walk(4).to(PartyState.STATED)
    true = next_frame(walk, "record")
    statements = wire.expect(wire.decode(true), RunRecord).statements
    absent = (walk.run.coordinator.seats[-1],)
    bad = altered(true, walk.run.coordinator_identity, statements=statements[:-1], absent=absent)
    refuses(walk, bad, UnexpectedMessageError, stops=False)
    with pytest.raises(WrongStateError):
        walk.run.coordinator.go_on_without_missing()


def test_a_run_record_without_this_party_is_refused() -> None:
    walk = Walk(4).to(PartyState.STATED)
    true = next_frame(walk, "record")
    others = wire.expect(wire.decode(true), RunRecord).statements[1:]
    bad = altered(true, walk.run.coordinator_identity, statements=others)
    refuses(walk, bad, UnknownPeerError, stops=False)


def test_an_expired_run_record_is_refused() -> None:
    walk, party = at(PartyState.STATED)
    true = next_frame(walk, "record")
    with pytest.raises(UnexpectedMessageError):
        party.receive(true, now=EXPIRES_AT)
    assert party.state is PartyState.STATED


def test_two_run_records_stop_the_party() -> None:
    walk, party = at(PartyState.REVIEWING_RUN)
    record = party.record
    assert record is not None
    other = dataclasses.replace(record, terms=b"other terms")
    frame = wire.sign(other, walk.run.coordinator_identity).frame
    refuses(walk, frame, ConflictingMessageError, stops=True)
    with pytest.raises(WrongStateError):
        party.accept_run()


def test_two_groups_with_two_records_cannot_open_each_others_envelopes() -> None:
    walk, party = at(PartyState.STATED)
    true = next_frame(walk, "record")
    other = altered(true, walk.run.coordinator_identity, terms=b"other terms")
    peers = walk.run.coordinator.seats[1:]
    party.receive(other, now=NOW)
    party.accept_run()
    envelopes = []
    for peer in peers:
        if walk.run.parties[peer].state is PartyState.STATED:
            walk.run.parties[peer].receive(true, now=NOW)
        (bundle,) = walk.run.parties[peer].accept_run()
        envelopes.append(wire.expect(wire.decode(bundle), EnvelopeBundle).envelopes[0])
    bundle = wire.contain(EnvelopeBundle(party.run_id, tuple(envelopes)))
    refuses(walk, bundle, UnexpectedMessageError, stops=True)


# Envelopes and confirmations -------------------------------------------------------------------


def _bundle(walk: Walk) -> tuple[bytes, list[bytes]]:
    frame = next_frame(walk, "deliver")
    bundle = wire.expect(wire.decode(frame), EnvelopeBundle)
    return bundle.run_id, list(bundle.envelopes)


def test_a_reflected_envelope_is_not_taken_for_the_peers() -> None:
    walk, party = at(PartyState.SEALED)
    run_id, envelopes = _bundle(walk)
    (own,) = party.receive(_record_again(walk), now=NOW).replies
    mine = wire.expect(wire.decode(own), EnvelopeBundle).envelopes[0]
    frame = wire.contain(EnvelopeBundle(run_id, (mine, envelopes[1])))
    refuses(walk, frame, UnexpectedMessageError, stops=True)


def _record_again(walk: Walk) -> bytes:
    record = walk.run.parties[walk.me].record
    assert record is not None
    return wire.sign(record, walk.run.coordinator_identity).frame


@pytest.mark.parametrize(
    ("offered", "accepted"),
    [
        pytest.param(SUITE_X25519, SUITE_MLKEM768_X25519, id="a weaker one"),
        pytest.param(SUITE_MLKEM768_X25519, SUITE_X25519, id="a stronger one"),
        pytest.param("none", SUITE_MLKEM768_X25519, id="an unknown one"),
    ],
)
def test_a_party_takes_part_in_suites_that_it_accepts_only(offered: str, accepted: str) -> None:
    run = MemoryRun(3, suite=accepted)
    party = run.parties[run.coordinator.seats[0]]
    offer = altered(run.coordinator.setup.offer.frame, run.coordinator_identity, suite=offered)
    with pytest.raises(SuiteError) as caught:
        party.receive(offer, now=NOW)
    assert caught.value.peer == "coordinator"
    assert party.state is PartyState.NEW
    party.receive(run.coordinator.setup.offer.frame, now=NOW)


def test_a_peers_weak_sealing_key_is_named() -> None:
    walk, party = at(PartyState.STATED)
    true = next_frame(walk, "record")
    record = wire.expect(wire.decode(true), RunRecord)
    peer = walk.run.coordinator.seats[1]
    weak = altered(record.statements[1], walk.run.identities[peer], sealing_key=bytes(1216))
    changed = (record.statements[0], weak, record.statements[2])
    party.receive(altered(true, walk.run.coordinator_identity, statements=changed), now=NOW)
    with pytest.raises(MalformedMessageError) as caught:
        party.accept_run()
    assert caught.value.peer == peer.hex()
    assert party.state is PartyState.REVIEWING_RUN
    assert wire.expect(wire.decode(party.refuse("PF-221")[0]), Refusal).reason == "PF-221"


def test_confirmations_told_differently_to_one_party_make_its_plans_foreign() -> None:
    run = MemoryRun(3)
    deceived = run.coordinator.seats[0]

    def lie(stage: str, to: bytes | None, frame: bytes) -> bytes:
        if stage != "closing setup" or to != deceived:
            return frame
        digests = wire.expect(wire.decode(frame), SetupClosing).confirmation_digests
        changed = (*digests[:2], bytes(32))
        return altered(frame, run.coordinator_identity, confirmation_digests=changed)

    run.tamper = lie
    with pytest.raises(HistoryError) as caught:
        run.set_up()  # the party's "ready" shows another head
    assert caught.value.peer == deceived.hex()


# Plans -----------------------------------------------------------------------------------------


def test_the_farthest_epoch_is_taken() -> None:
    walk, party = at(PartyState.READY)
    plan = altered(
        next_frame(walk, "plan"), walk.run.coordinator_identity, epoch=MAX_SKIPPED_EPOCHS
    )
    party.receive(plan, now=NOW)
    party.contribute(vector())
    assert party.epoch == MAX_SKIPPED_EPOCHS


@pytest.mark.parametrize("state", [PartyState.REVIEWING_PLAN, PartyState.SENT, PartyState.REFUSED])
def test_a_second_plan_for_one_epoch_stops_the_party(state: PartyState) -> None:
    walk, party = at(state)
    frame = _open_plan(walk)
    other = altered(frame, walk.run.coordinator_identity, terms=b"something else")
    caught = refuses(walk, other, ConflictingMessageError, stops=True)
    assert caught.peer == "coordinator"  # type: ignore[attr-defined]
    with pytest.raises(WrongStateError):
        party.contribute(vector())


def _open_plan(walk: Walk) -> bytes:
    """The plan that is open, or else the last one."""
    coordinator = walk.run.coordinator
    if coordinator.has_open_plan:
        return coordinator.open_plan.frame
    return wire.sign(coordinator.settled[-1].plan, walk.run.coordinator_identity).frame


def test_a_stopped_party_does_not_send_its_y_again() -> None:
    walk, party = at(PartyState.SENT)
    plan = _open_plan(walk)
    other = altered(plan, walk.run.coordinator_identity, terms=b"something else")
    refuses(walk, other, ConflictingMessageError, stops=True)
    assert party.receive(plan, now=NOW).replies == ()


@pytest.mark.parametrize("changed", [{"terms": b"next"}, {"batch": 9}], ids=str)
def test_a_plan_before_the_last_one_is_settled_is_refused(changed: dict[str, Any]) -> None:
    walk, party = at(PartyState.SENT)
    early = altered(
        _open_plan(walk),
        walk.run.coordinator_identity,
        epoch=2,
        previous_head=party.transcript.head,
        **changed,
    )
    refuses(walk, early, UnexpectedMessageError, stops=False)
    walk.finish()


OLD_MESSAGES = [
    "offer",
    "record",
    "deliver",
    "closing setup",
    "plan",
    "settlement",
    "closing",
    "heads",
]


@sampled()
@pytest.mark.parametrize("form", [AdditiveSum, MaskedSum])
def test_messages_of_an_unknown_run_change_nothing(form: type[SecureSum]) -> None:
    """Everything that the same coordinator truly signed in a run of other parties, in each state.

    The run goes on to a good end.
    """
    walk = Walk(form=form)
    old: list[tuple[str, bytes]] = []
    older = Walk(form=form)
    older.run.coordinator_identity = walk.run.coordinator_identity
    _listen(older, old)
    older.finish()
    replayed = [(stage, _signed_by(frame, walk.run.coordinator_identity)) for stage, frame in old]
    second = {"proposal", "certificate", "shares"} if form.survives_dropouts else set()
    assert {stage for stage, _ in replayed} == set(OLD_MESSAGES) | second | {"row"}
    never = {PartyState.STOPPED} | (set() if form.survives_dropouts else set(OPENING_STATES))
    for state in (each for each in PartyState if each not in never):
        walk.to(state)
        party, journal = walk.run.parties[walk.me], walk.run.journals[walk.me]
        for stage, frame in replayed:
            if (state, stage) == (PartyState.NEW, "offer"):
                continue  # to a new party any offer is an offer
            if stage == "settlement":
                # There is nothing to object to: a plan of this run may come behind it.
                before = (party.state, party.epoch, party.transcript, journal.counter)
                assert party.receive(frame, now=NOW) == Received()
                assert (party.state, party.epoch, party.transcript, journal.counter) == before
                continue
            refuses(walk, frame, UnexpectedMessageError, stops=False)
    walk.finish()


@sampled()
@pytest.mark.parametrize("form", [AdditiveSum, MaskedSum])
@pytest.mark.parametrize(
    "state", [PartyState.NEW, PartyState.STATED, PartyState.READY, PartyState.SENT, PartyState.DONE]
)
def test_messages_of_an_earlier_run_change_nothing_in_this_one(
    form: type[SecureSum], state: PartyState
) -> None:
    """Everything that a party heard in a run before: it has no keys for that run any more."""
    walk = Walk(form=form)
    old: list[tuple[str, bytes]] = []
    _listen(walk, old)
    walk.finish()
    run = walk.run
    run.tamper = lambda stage, to, frame: frame
    run.new_run()
    _go_to(run, walk.me, state)
    party = run.parties[walk.me]
    answers: dict[str, set[type[Message]]] = {}
    for stage, frame in old:
        if (state, stage) == (PartyState.NEW, "offer"):
            continue  # to a new party any offer is an offer
        before = (party.state, party.epoch, party.transcript, party.run_id)
        kind = type(wire.decode(frame).message)
        if kind in (Plan, SetProposal, Settlement):
            replies = party.receive(frame, now=NOW).replies
            kinds = {type(wire.decode(reply).message) for reply in replies}
            answers.setdefault(kind.__name__, set()).update(kinds)
        else:
            refuses(walk, frame, UnexpectedMessageError, stops=False)
        assert (party.state, party.epoch, party.transcript, party.run_id) == before
    # Of a plan that it refused it says so again; for one that it served it has no y any more. What
    # it signed about a set it may sign again: the same bytes.
    proposed = {"SetProposal": {Verdict}} if form.survives_dropouts else {}
    assert answers == {"Plan": {Refusal}, "Settlement": set(), **proposed}


def _go_to(run: MemoryRun, me: bytes, state: PartyState) -> None:
    """Bring a new run of three batches, as `Walk` has it, to a state of one party."""
    if state is PartyState.NEW:
        return
    if state is PartyState.STATED:
        run.broadcast("offer", run.coordinator.setup.offer.frame)
        return
    run.set_up()
    if state is PartyState.SENT:
        run.to_party("plan", me, run.open_plan(WORDS))
        run.parties[me].contribute(vector())
    if state is PartyState.DONE:
        run.close()


def _listen(walk: Walk, heard: list[tuple[str, bytes]]) -> None:
    def hear(stage: str, to: bytes | None, frame: bytes) -> bytes:
        if to == walk.me:
            heard.append((stage, frame))
        return frame

    walk.run.tamper = hear


def _signed_by(frame: bytes, identity: SigningIdentity) -> bytes:
    message = wire.decode(frame).message
    return wire.sign(message, identity).frame if message.PURPOSE else frame


def test_every_message_repeated_gets_the_same_answer_and_changes_nothing() -> None:
    walk = Walk()
    heard: list[tuple[str, bytes]] = []
    answers: dict[bytes, tuple[bytes, ...]] = {}
    _listen(walk, heard)
    party = walk.run.parties[walk.me]
    for step in ("offer", "record", "accepted", "deliver", "closing setup", "plan"):
        walk.to_step(step)
        _hear_again(walk, heard, answers)
    walk.to_step("y")
    journal = walk.run.journals[walk.me]
    replies = party.receive(_open_plan(walk), now=NOW).replies
    assert replies == journal.find(wire.decode(_open_plan(walk)).digest)
    for step in ("settled", "refused", "void", "closing", "heads"):
        walk.to_step(step)
        answers.clear()
        _hear_again(walk, heard, answers)
    walk.finish()


def _hear_again(
    walk: Walk, heard: list[tuple[str, bytes]], answers: dict[bytes, tuple[bytes, ...]]
) -> None:
    party, journal = walk.run.parties[walk.me], walk.run.journals[walk.me]
    before = (party.state, party.transcript, party.epoch, list(journal.steps))
    for stage, frame in list(heard):
        received = party.receive(frame, now=NOW)
        waits = party.state is PartyState.REVIEWING_PLAN and stage == "plan"
        # Nobody could decide on it: it is asked for again.
        assert received.event == (wire.decode(frame).message if waits else None)
        if stage != "record":  # its answer is there only once it is accepted
            assert answers.setdefault(frame, received.replies) == received.replies
    assert (party.state, party.transcript, party.epoch, list(journal.steps)) == before


# Contributing: a key meets one vector ----------------------------------------------------------


def test_a_plan_is_journalled_then_y_is_kept_then_sent_then_erased() -> None:
    walk, party = at(PartyState.REVIEWING_PLAN)
    journal = walk.run.journals[walk.me]
    digest = wire.decode(_open_plan(walk)).digest
    assert journal.steps == []
    walk.to_step("y")
    assert journal.steps == ["begin", "keep"]
    assert party.receive(_open_plan(walk), now=NOW).replies == journal.find(digest)
    walk.to_step("settled")
    assert journal.steps == ["begin", "keep", "erase"]
    assert journal.find(digest) is None
    assert party.receive(_open_plan(walk), now=NOW).replies == ()


class BreakingJournal(ListJournal):
    """A disk that fails at one step."""

    def __init__(self, at_step: str) -> None:
        super().__init__()
        self.at_step = at_step

    def begin(self, *, run_id: bytes, epoch: int, plan_digest: bytes) -> None:
        if self.at_step == "begin":
            raise OSError("disk full")
        super().begin(run_id=run_id, epoch=epoch, plan_digest=plan_digest)

    def keep(self, plan_digest: bytes, frames: tuple[bytes, ...], *, expires_at: int) -> None:
        if self.at_step == "keep":
            raise OSError("disk full")
        super().keep(plan_digest, frames, expires_at=expires_at)


def _with_journal(journal: RoundJournal) -> tuple[Walk, PartyRound]:
    walk = Walk()
    walk.run.parties[walk.me].journal = journal
    walk.to(PartyState.REVIEWING_PLAN)
    return walk, walk.run.parties[walk.me]


@pytest.mark.parametrize("step", ["begin", "keep"])
def test_no_y_leaves_when_the_journal_fails(step: str) -> None:
    walk, party = _with_journal(BreakingJournal(step))
    with pytest.raises(OSError, match="disk full"):
        party.contribute(vector())
    assert party.state is PartyState.REVIEWING_PLAN
    assert party.receive(_open_plan(walk), now=NOW).replies == ()


def test_a_contribution_that_failed_half_way_is_not_made_again() -> None:
    walk, party = _with_journal(journal := BreakingJournal("keep"))
    with pytest.raises(OSError, match="disk full"):
        party.contribute(vector())
    journal.at_step = ""
    with pytest.raises(KeyReuseError):
        party.contribute(vector() + 1)
    # What is left is to say so: the others need not wait.
    (refusal,) = party.refuse("PF-399")
    assert (
        wire.expect(wire.decode(refusal), Refusal).subject == wire.decode(_open_plan(walk)).digest
    )
    assert party.state is PartyState.REFUSED


def test_a_plan_that_the_journal_knows_is_not_begun_again() -> None:
    """A restarted party, or a second one on the same journal: the key met a vector already."""
    walk, party = at(PartyState.REVIEWING_PLAN)
    digest = wire.decode(_open_plan(walk)).digest
    walk.run.journals[walk.me].begin(run_id=party.run_id, epoch=1, plan_digest=digest)
    with pytest.raises(KeyReuseError):
        party.contribute(vector())
    assert party.epoch == 0
    assert party.state is PartyState.REVIEWING_PLAN


def test_a_repeated_plan_is_answered_from_the_journal_and_not_computed_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    walk, party = at(PartyState.REVIEWING_PLAN)
    (frame,) = party.contribute(vector())
    monkeypatch.setattr(
        "protocols.additive.AdditiveSum.shard", lambda *_, **__: pytest.fail("computed again")
    )
    for _ in range(3):
        assert party.receive(_open_plan(walk), now=NOW).replies == (frame,)
    with pytest.raises(WrongStateError):
        party.contribute(vector() + 1)


def test_an_expired_y_is_not_sent_again() -> None:
    walk, party = at(PartyState.SENT)
    assert len(party.receive(_open_plan(walk), now=EXPIRES_AT - 1).replies) == 1
    assert party.receive(_open_plan(walk), now=EXPIRES_AT).replies == ()


@pytest.mark.parametrize(
    "bad",
    [
        pytest.param(np.zeros(WORDS - 1, dtype=np.int64), id="too short"),
        pytest.param(np.zeros(WORDS + 1, dtype=np.int64), id="too long"),
        pytest.param(np.zeros((1, WORDS), dtype=np.int64), id="two axes"),
        pytest.param(np.zeros(WORDS), id="floats"),
        pytest.param(np.full(WORDS, 2**31), id="outside the ring"),
    ],
)
def test_a_vector_that_does_not_fit_touches_no_key(bad: np.ndarray) -> None:
    walk, party = at(PartyState.REVIEWING_PLAN)
    with pytest.raises(InvalidVectorError):
        party.contribute(bad)
    assert (walk.run.journals[walk.me].steps, party.epoch) == ([], 0)
    walk.finish()


def test_y_binds_to_its_plan_and_sender() -> None:
    walk, party = at(PartyState.REVIEWING_PLAN)
    (frame,) = party.contribute(vector())
    signed = wire.decode(frame)
    y = wire.expect(signed, MaskedVector)
    assert (y.plan_digest, y.sender) == (wire.decode(_open_plan(walk)).digest, walk.me)
    assert len(y.body) == 4 * WORDS
    signed.verify(walk.run.identities[walk.me].public)


# Refusing --------------------------------------------------------------------------------------


def test_a_party_that_refuses_the_run_is_out_of_it() -> None:
    walk, party = at(PartyState.REVIEWING_RUN)
    (frame,) = party.refuse("PF-302")
    refusal = wire.expect(wire.decode(frame), Refusal)
    assert (refusal.subject, refusal.reason) == (party.run_id, "PF-302")
    assert party.receive(_record_again(walk), now=NOW).replies == (frame,)
    assert party.state is PartyState.STOPPED


def test_a_refused_plan_stays_refused_and_its_epoch_is_gone() -> None:
    walk, party = at(PartyState.REVIEWING_PLAN)
    (frame,) = party.refuse("PF-301")
    assert party.epoch == 1
    assert party.roots.epoch == 2  # nobody can make it derive the plan's keys any more
    with pytest.raises(WrongStateError):
        party.contribute(vector())
    assert party.receive(_open_plan(walk), now=NOW).replies == (frame,)
    assert walk.run.journals[walk.me].steps == ["abandon"]


@pytest.mark.parametrize("reason", ["", "x" * 65])
def test_a_reason_is_a_short_code(reason: str) -> None:
    walk, party = at(PartyState.REVIEWING_PLAN)
    with pytest.raises(MalformedMessageError):
        party.refuse(reason)
    assert party.state is PartyState.REVIEWING_PLAN
    assert walk.run.journals[walk.me].steps == []
    walk.finish()


# Settlements -----------------------------------------------------------------------------------


@sampled()
@pytest.mark.parametrize(
    ("spoil", "error"),
    [
        pytest.param(
            lambda s: {"contributions": (bytes(32), b"", b""), "state": "void"},
            HistoryError,
            id="void, with another y in our name",
        ),
        pytest.param(
            lambda s: {"contributions": (*s.contributions, bytes(32))},
            MalformedMessageError,
            id="a seat too many",
        ),
        pytest.param(
            lambda s: {"contributions": (*s.contributions[:2], b"short")},
            MalformedMessageError,
            id="half a digest",
        ),
    ],
)
def test_a_bad_settlement_stops_the_party(
    spoil: Callable[[Settlement], dict[str, Any]], error: type[ProtocolError]
) -> None:
    walk, _ = at(PartyState.SENT)
    true = next_frame(walk, "settlement")
    settlement = wire.expect(wire.decode(true), Settlement)
    bad = altered(true, walk.run.coordinator_identity, **spoil(settlement))
    refuses(walk, bad, error, stops=True)


def test_a_party_that_refused_takes_no_release() -> None:
    walk, _ = at(PartyState.REFUSED)
    true = next_frame(walk, "settlement")
    bad = altered(true, walk.run.coordinator_identity, state="released")
    refuses(walk, bad, HistoryError, stops=True)
    walk, _ = at(PartyState.REFUSED)
    true = next_frame(walk, "settlement")
    digests = (bytes(32),) * 3
    bad = altered(true, walk.run.coordinator_identity, state="released", contributions=digests)
    refuses(walk, bad, HistoryError, stops=True)


def test_two_settlements_of_one_plan_stop_the_party() -> None:
    walk, party = at(PartyState.SENT)
    true = next_frame(walk, "settlement")
    assert isinstance(party.receive(true, now=NOW).event, Settlement)
    other = altered(true, walk.run.coordinator_identity, result=b"other labels")
    refuses(walk, other, ConflictingMessageError, stops=True)


def test_a_void_plan_whose_y_never_came_is_settled() -> None:
    walk, party = at(PartyState.SENT)
    true = next_frame(walk, "settlement")
    void = altered(
        true, walk.run.coordinator_identity, state="void", contributions=(b"",) * 3, result=b""
    )
    event = party.receive(void, now=NOW).event
    assert isinstance(event, Settlement)
    assert event.state == "void"
    assert party.state is PartyState.READY


# The end ---------------------------------------------------------------------------------------


def test_a_closing_with_another_head_stops_the_party() -> None:
    walk, _ = at(PartyState.REFUSED)
    frame = next_frame(walk.to_step("void"), "closing")
    bad = altered(frame, walk.run.coordinator_identity, head=bytes(32))
    refuses(walk, bad, HistoryError, stops=True)


def _heads(walk: Walk) -> tuple[bytes, list[bytes]]:
    bundle = wire.expect(wire.decode(next_frame(walk, "heads")), HeadBundle)
    return bundle.run_id, list(bundle.statements)


def _head(walk: Walk, frame: bytes, **changed: Any) -> bytes:
    sender = wire.expect(wire.decode(frame), HeadStatement).sender
    return altered(frame, walk.run.identities[sender], **changed)


@sampled()
@pytest.mark.parametrize(
    ("spoil", "error"),
    [
        pytest.param(
            lambda w, h: [h[0], _head(w, h[1], head=bytes(32)), h[2]],
            HistoryError,
            id="a peer remembers another run",
        ),
        pytest.param(
            lambda w, h: [h[0], altered(h[1], w.run.coordinator_identity), h[2]],
            BadSignatureError,
            id="forged by the coordinator",
        ),
        pytest.param(
            lambda w, h: [h[0], _head(w, h[1], run_id=bytes(32)), h[2]],
            UnexpectedMessageError,
            id="of another run",
        ),
        pytest.param(
            lambda w, h: [h[0], _head(w, h[1], sender=bytes(32)), h[2]],
            UnexpectedMessageError,
            id="in another's name",
        ),
        pytest.param(lambda w, h: [h[0], h[0], h[2]], BadSignatureError, id="one twice"),
        pytest.param(lambda w, h: [h[0], h[2], h[1]], BadSignatureError, id="another order"),
        pytest.param(lambda w, h: h[:2], UnexpectedMessageError, id="one missing"),
        pytest.param(lambda w, h: [h[0], h[1], b"junk"], MalformedMessageError, id="junk"),
    ],
)
def test_heads_that_do_not_agree_stop_the_party(
    spoil: Callable[[Walk, list[bytes]], list[bytes]], error: type[ProtocolError]
) -> None:
    walk, _ = at(PartyState.CLOSED)
    run_id, heads = _heads(walk)
    frame = wire.contain(HeadBundle(run_id, tuple(spoil(walk, heads))))
    refuses(walk, frame, error, stops=True)


@pytest.mark.parametrize("place", [1, 2])
def test_two_histories_name_a_peer_and_the_coordinator_neither_alone(place: int) -> None:
    """An honest peer was told another story; a lying one signed another head."""
    walk, _ = at(PartyState.CLOSED)
    run_id, heads = _heads(walk)
    heads[place] = _head(walk, heads[place], head=bytes(32))
    caught = refuses(walk, wire.contain(HeadBundle(run_id, tuple(heads))), HistoryError, stops=True)
    assert isinstance(caught, RemoteProtocolError)
    peer = walk.run.coordinator.seats[place]
    assert (caught.peer, caught.pair) == ("", (peer.hex(), "coordinator"))


def test_nothing_is_left_to_derive_keys_from_when_the_run_is_over_or_stopped() -> None:
    for state in (PartyState.CLOSED, PartyState.DONE):
        _, party = at(state)
        assert party.roots.keys_for(bytes(32)) == {}
    walk, party = at(PartyState.SENT)
    assert len(party.roots.keys_for(bytes(32))) == 2
    plan = altered(_open_plan(walk), walk.run.coordinator_identity, terms=b"something else")
    refuses(walk, plan, ConflictingMessageError, stops=True)
    assert party.roots.keys_for(bytes(32)) == {}


def test_halves_and_sealing_key_are_gone_once_the_roots_are_made() -> None:
    _, party = at(PartyState.CONFIRMED)
    assert not party._setup._halves
    assert party._setup._sealing_key is None
    _, party = at(PartyState.READY)
    assert not party._setup._unconfirmed
