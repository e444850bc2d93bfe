"""Every message at every moment: what the tables do not list is refused and changes nothing."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from operator import attrgetter
from typing import Any

import pytest

from protocols import wire
from protocols.additive import AdditiveSum
from protocols.errors import (
    ConflictingMessageError,
    LocalProtocolError,
    TooFewHeadsError,
    TooFewSharesError,
    UnexpectedMessageError,
)
from protocols.fields import Message
from protocols.identity import SigningIdentity
from protocols.masked import MaskedSum
from protocols.membership_messages import (
    AuditHead,
    JoinRequest,
    Membership,
    MembershipQuery,
    PoolQuery,
    ResultsQuery,
)
from protocols.messages import (
    BlameRequest,
    Certificate,
    Closing,
    Confirmations,
    Dealing,
    Envelope,
    EnvelopeBundle,
    HeadBundle,
    HeadStatement,
    Inquiry,
    KeyStatement,
    MaskedVector,
    Plan,
    Readiness,
    Ready,
    Refusal,
    Reveal,
    RunInquiry,
    RunOffer,
    RunReadiness,
    RunRecord,
    SetProposal,
    Settlement,
    SetupClosing,
    ShareBundle,
    StreamSums,
    VectorHead,
    Verdict,
    VerdictMacs,
)
from protocols.rounds import (
    COORDINATOR_TRANSITIONS,
    PARTY_TRANSITIONS,
    CoordinatorState,
    PartyRound,
    PartyState,
)
from protocols.secure_sum import SecureSum
from protocols.vote_messages import (
    Acceptance,
    ListReceipt,
    ReportHeader,
    ReportList,
    SumShare,
    VoteAnswers,
    VoteReport,
)
from protocols.wire import MESSAGE_TYPES
from tests.support.markers import more, sampled
from tests.support.rounds import EXPIRES_AT, NOW
from tests.support.walk import MASKED_STEPS, STEPS, WORDS, Walk, vector

Form = type[SecureSum]
OPENING_STATES = (PartyState.JUDGED, PartyState.CERTIFIED, PartyState.REVEALED)
STATES_OF: dict[Form, list[PartyState]] = {
    AdditiveSum: [state for state in PartyState if state not in OPENING_STATES],
    MaskedSum: list(PartyState),
}
STEPS_OF: dict[Form, tuple[str, ...]] = {AdditiveSum: STEPS, MaskedSum: MASKED_STEPS}
EACH_FORM = pytest.mark.parametrize("form", [pytest.param(form, id=form.name) for form in STEPS_OF])


def fresh() -> bytes:
    return secrets.token_bytes(32)


def message_of(kind: type[Message], *, run_id: bytes, sender: bytes, head: bytes) -> Message:
    """A message of this run that nobody sent before, as good as its type allows."""
    made: dict[type[Message], Message] = {
        RunOffer: RunOffer(fresh(), fresh(), "additive", 32, "s", EXPIRES_AT, True),
        KeyStatement: KeyStatement(fresh(), fresh(), fresh(), fresh(), "party", EXPIRES_AT, 0),
        RunRecord: RunRecord(
            fresh(),
            fresh(),
            (b"x",),
            "additive",
            32,
            "s",
            3,
            1,
            0,
            EXPIRES_AT,
            True,
            b"",
            b"",
            (),
            b"",
        ),
        Envelope: Envelope(run_id, sender, fresh(), b"sealed"),
        EnvelopeBundle: EnvelopeBundle(run_id, (b"x", b"y")),
        Confirmations: Confirmations(run_id, sender, (fresh(), fresh())),
        SetupClosing: SetupClosing(run_id, (fresh(), fresh()), (fresh(), fresh(), fresh())),
        Ready: Ready(run_id, sender, "elsewhere", head, 0),
        Plan: Plan(run_id, 50, 9, head, WORDS, EXPIRES_AT, b""),
        MaskedVector: MaskedVector(fresh(), sender, bytes(4 * WORDS)),
        Refusal: Refusal(fresh(), sender, "PF-300"),
        Settlement: Settlement(run_id, fresh(), "void", WORDS, (b"", b"", b""), (), b"", b""),
        Closing: Closing(run_id, fresh()),
        HeadStatement: HeadStatement(run_id, sender, head, 0, 0),
        HeadBundle: HeadBundle(run_id, (b"x", b"y", b"z")),
        Dealing: Dealing(fresh(), sender, fresh(), fresh() * 5, fresh() * 5),
        ShareBundle: ShareBundle(fresh(), (b"x",), (b"y",) * 4),
        SetProposal: SetProposal(run_id, fresh(), (fresh(),)),
        Verdict: Verdict(fresh(), (fresh(),)),
        VerdictMacs: VerdictMacs(fresh(), (bytes(16),) * 4),
        Certificate: Certificate(fresh(), (fresh(),), (fresh(),), (bytes(64),)),
        Reveal: Reveal(fresh(), sender, (b"x",) * 5),
        BlameRequest: BlameRequest(run_id, fresh(), 0),
        StreamSums: StreamSums(fresh(), sender, 0, (1, 2, 3)),
        JoinRequest: JoinRequest(fresh(), bytes(16), "North", fresh(), b"PEM", 1),
        MembershipQuery: MembershipQuery(fresh(), sender, 1, b"", b"", "1.0", 4, (), ()),
        Membership: Membership(fresh(), "study", "member", 1, (), (), b"", (), "", b""),
        PoolQuery: PoolQuery(fresh(), sender, fresh(), 0, 1),
        AuditHead: AuditHead(sender, 7, fresh()),
        Inquiry: Inquiry(run_id, b"terms"),
        Readiness: Readiness(fresh(), sender, (0, 2)),
        ResultsQuery: ResultsQuery(fresh(), sender, run_id, "labels.csv", 0, 1),
        RunInquiry: RunInquiry(
            fresh(), (sender,), "additive", 32, "suite", 3, 1, 0, True, b"", b"terms"
        ),
        RunReadiness: RunReadiness(fresh(), sender, "PF-300", 1, "not now"),
        VectorHead: VectorHead(fresh(), sender, 4 * WORDS, fresh()),
        ReportHeader: ReportHeader(fresh(), sender, fresh(), fresh(), fresh(), fresh()),
        VoteReport: VoteReport(some_header(), b"large", b"small"),
        ReportList: ReportList(fresh(), (b"header",), (b"small",), fresh(), fresh()),
        ListReceipt: ListReceipt(fresh(), fresh(), fresh(), fresh()),
        VoteAnswers: VoteAnswers(fresh(), sender, fresh(), (b"answer",)),
        Acceptance: Acceptance(fresh(), sender, fresh()),
        SumShare: SumShare(fresh(), sender, b"body"),
    }
    return made[kind]


def some_header() -> bytes:
    stranger = SigningIdentity.generate()
    header = ReportHeader(fresh(), stranger.fingerprint, fresh(), fresh(), fresh(), fresh())
    return wire.sign(header, stranger).frame


def framed(message: Message, identity: SigningIdentity) -> bytes:
    signed = wire.sign(message, identity) if message.PURPOSE else wire.decode(wire.contain(message))
    return signed.frame


def snapshot(party: PartyRound, journal: Any) -> tuple[object, ...]:
    return (party.state, party.transcript, party.epoch, party.run_id, tuple(journal.steps))


# The party -------------------------------------------------------------------------------------


def walked(form: Form, state: PartyState) -> Walk:
    walk = Walk(form=form)
    if state is PartyState.STOPPED:
        walk.to(PartyState.REVIEWING_RUN)
        walk.run.parties[walk.me].refuse("PF-300")
        return walk
    return walk.to(state)


def message_to(walk: Walk, kind: type[Message]) -> bytes:
    """A message of the coordinator to the party under test."""
    party = walk.run.parties[walk.me]
    message = message_of(
        kind, run_id=party.run_id or fresh(), sender=walk.me, head=party.transcript.head
    )
    return framed(message, walk.run.coordinator_identity)


def in_every_state(form: Form) -> Iterator[Walk]:
    """Walk through all states; what is refused on the way must not keep a run from a good end."""
    yield walked(form, PartyState.STOPPED)
    walk = Walk(form=form)
    for state in STATES_OF[form]:
        if state is not PartyState.STOPPED:
            yield walk.to(state)
    walk.finish()


@sampled()
@EACH_FORM
def test_a_party_refuses_what_its_state_does_not_list(form: Form) -> None:
    for walk in in_every_state(form):
        party, journal = walk.run.parties[walk.me], walk.run.journals[walk.me]
        before, state = snapshot(party, journal), walk.party_state
        # Before a run has an id, a settlement is of another run: there is nothing to object to.
        elsewhere = {Settlement} if state in (PartyState.NEW, PartyState.STATED) else set()
        for kind in set(MESSAGE_TYPES.values()) - elsewhere:
            if kind not in PARTY_TRANSITIONS[state] and not answered(kind, state):
                with pytest.raises(UnexpectedMessageError):
                    party.receive(message_to(walk, kind), now=NOW)
                assert snapshot(party, journal) == before, (state, kind)


COMES_IN = {
    EnvelopeBundle: PartyState.SEALED,
    SetupClosing: PartyState.CONFIRMED,
    Closing: PartyState.REVIEWING_ROW,
    HeadBundle: PartyState.CLOSED,
}
"""Last state before a message that comes to a party once in a run."""


def answered(kind: type[Message], state: PartyState) -> bool:
    order = list(PartyState)
    return (
        kind in COMES_IN
        and state is not PartyState.STOPPED
        and order.index(state) > order.index(COMES_IN[kind])
    )


@sampled()
@pytest.mark.parametrize(
    ("form", "kind", "state"),
    [
        (pytest.param if state in (later[0], later[-1]) else more)(
            form, kind, state, id=f"{form.name}, {kind.__name__} when {state.value}"
        )
        for form, states in STATES_OF.items()
        for kind in COMES_IN
        for later in [[state for state in states if answered(kind, state)]]
        for state in later
    ],
)
def test_a_second_body_of_what_comes_once_stops_the_party(
    form: Form, kind: type[Message], state: PartyState
) -> None:
    walk = walked(form, state)
    party = walk.run.parties[walk.me]
    with pytest.raises(ConflictingMessageError) as caught:
        party.receive(message_to(walk, kind), now=NOW)
    assert caught.value.peer == "coordinator"
    assert party.state is PartyState.STOPPED


CALLS: dict[str, tuple[tuple[Any, ...], list[PartyState]]] = {
    "accept_run": ((), [PartyState.REVIEWING_RUN]),
    "contribute": ((vector(),), [PartyState.REVIEWING_PLAN]),
    "inquiry.accept": (((),), []),
    "inquiry.refuse": (("PF-300",), []),
    "refuse": (
        ("PF-300",),
        [PartyState.REVIEWING_RUN, PartyState.REVIEWING_PLAN, PartyState.REVIEWING_ROW],
    ),
}


@EACH_FORM
def test_a_party_is_not_called_out_of_turn(form: Form) -> None:
    for walk in in_every_state(form):
        party, journal = walk.run.parties[walk.me], walk.run.journals[walk.me]
        before, state = snapshot(party, journal), walk.party_state
        for call, (arguments, allowed) in CALLS.items():
            if state not in allowed:
                with pytest.raises(LocalProtocolError):
                    attrgetter(call)(party)(*arguments)
                assert snapshot(party, journal) == before, (state, call)
        if state is not PartyState.REVIEWING_ROW:
            with pytest.raises(LocalProtocolError):
                party.state_sums(row_words=3)
            assert snapshot(party, journal) == before, state


# The coordinator -------------------------------------------------------------------------------


SAID_AT = {
    KeyStatement: "offer in",
    EnvelopeBundle: "accepted in",
    Confirmations: "deliver in",
    HeadStatement: "closing in",
}
"""Step at which a party said its only message of this type."""


def at_every_step(form: Form) -> Iterator[tuple[Walk, str]]:
    """Walk through all steps; what is refused on the way must not keep a run from a good end."""
    walk = Walk(form=form)
    for step in STEPS_OF[form]:
        yield (walk if step == "begin" else walk.to_step(step)), step
    walk.finish()


def message_from(walk: Walk, kind: type[Message]) -> bytes:
    """A message of the party under test to the coordinator."""
    coordinator, identity = walk.run.coordinator, walk.run.identities[walk.me]
    run_id = coordinator.run_id or fresh()
    message = message_of(kind, run_id=run_id, sender=walk.me, head=coordinator.transcript.head)
    if kind is KeyStatement:
        message = KeyStatement(fresh(), identity.public.key, fresh(), fresh(), "party", 1, 0)
    return framed(message, identity)


@sampled()
@EACH_FORM
def test_the_coordinator_refuses_what_it_does_not_wait_for(form: Form) -> None:
    steps = STEPS_OF[form]
    for walk, step in at_every_step(form):
        coordinator = walk.run.coordinator
        before = (coordinator.state, coordinator.transcript, coordinator.missing)
        for kind in MESSAGE_TYPES.values():
            if kind in COORDINATOR_TRANSITIONS[coordinator.state] and coordinator.missing:
                continue  # waited for
            said = kind in SAID_AT and steps.index(step) >= steps.index(SAID_AT[kind])
            error = ConflictingMessageError if said else UnexpectedMessageError
            with pytest.raises(error) as caught:
                coordinator.receive(message_from(walk, kind), peer=walk.me)
            assert caught.value.peer == walk.me.hex()
            after = (coordinator.state, coordinator.transcript, coordinator.missing)
            assert after == before, (step, kind)


PLAN = {"batch": 0, "words": 1, "expires_at": 1, "terms": b""}
COORDINATOR_CALLS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "setup.make_record": ({"terms": b"", "colluders": 1, "dropouts": 0}, ["offer in"]),
    "setup.deliver": ({}, ["accepted in"]),
    "setup.close": ({}, ["deliver in"]),
    "batch.plan": (PLAN, ["closing setup in", "settled", "void", "stated", "named"]),
    "batch.open_total": ({}, ["y in", "shares in"]),
    "batch.propose": ({}, ["y in", "proposal", "proposal in"]),
    "batch.propose_closing": ({}, ["plan", "y", "y in", "proposal", "proposal in", "refused"]),
    "batch.certify": ({}, ["proposal in"]),
    "batch.settle": ({"released": True, "result": b""}, []),
    "closing.close": ({}, ["closing setup in", "settled", "void", "stated", "named"]),
    "blame.ask": ({"row": 0}, []),
    "blame.name": ({"quotas": (1,) * 5}, ["asked", "stated"]),
    "closing.compare": ({}, ["closing in"]),
}


@EACH_FORM
def test_the_coordinator_is_not_called_out_of_turn(form: Form) -> None:
    for walk, step in at_every_step(form):
        coordinator = walk.run.coordinator
        before = (coordinator.state, coordinator.transcript, coordinator.missing)
        for call, (arguments, steps) in COORDINATOR_CALLS.items():
            if step not in steps:
                # Where too little came as yet, the error says so.
                with pytest.raises((LocalProtocolError, TooFewHeadsError, TooFewSharesError)):
                    attrgetter(call)(coordinator)(**arguments)
                after = (coordinator.state, coordinator.transcript, coordinator.missing)
                assert after == before, (step, call)


# The tables ------------------------------------------------------------------------------------


def test_every_state_has_a_row_and_no_row_leads_out_of_the_end() -> None:
    assert set(PARTY_TRANSITIONS) == set(PartyState)
    assert set(COORDINATOR_TRANSITIONS) == set(CoordinatorState)
    for state in (PartyState.DONE, PartyState.STOPPED):
        assert not PARTY_TRANSITIONS[state]
    assert not COORDINATOR_TRANSITIONS[CoordinatorState.DONE]


@pytest.mark.parametrize(
    "kind",
    [
        RunOffer,
        RunRecord,
        EnvelopeBundle,
        SetupClosing,
        Plan,
        SetProposal,
        VerdictMacs,
        Certificate,
        ShareBundle,
        Settlement,
        Closing,
        HeadBundle,
        BlameRequest,
    ],
)
def test_some_state_of_a_party_takes_every_message_of_the_coordinator(kind: type[Message]) -> None:
    assert any(kind in row for row in PARTY_TRANSITIONS.values())
