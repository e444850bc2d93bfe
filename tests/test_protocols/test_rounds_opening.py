"""One verdict for each plan, and nothing opens without enough equal ones."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from protocols import wire
from protocols.additive import AdditiveSum
from protocols.errors import (
    BadSignatureError,
    ConflictingMessageError,
    FalseCertificateError,
    FalseRefusalError,
    KeyReuseError,
    LateMessageError,
    ProtocolError,
    RefusedError,
    RestoredJournalError,
    TooFewSharesError,
    UnexpectedMessageError,
    UnknownPeerError,
    VerdictError,
    WrongStateError,
)
from protocols.fields import Message
from protocols.identity import SigningIdentity
from protocols.masked import MaskedSum
from protocols.messages import (
    Certificate,
    Plan,
    Refusal,
    SetProposal,
    Settlement,
    Verdict,
    VerdictMacs,
)
from protocols.rounds import ANY_SET, PartyRound, PartyState, PlanClaim, Received, SetBound
from protocols.rounds.opening.at_coordinator import ShareFault
from protocols.rounds.round_journal import MOST_UNSERVED
from protocols.rounds.verdict_collector import VerdictCollector
from protocols.rounds.verdicts import sign_verdict
from tests.support.cheating import EXPIRED, Cheat
from tests.support.markers import sampled
from tests.support.rounds import EXPIRES_AT, NOW, MemoryRun, ready_run
from tests.support.walk import altered

N, T = 5, 4
"""Parties of most tests here, and verdicts that certify."""
WORDS = 6
ALL = range(N)
ME = 0
VECTORS = [np.arange(WORDS) + seat for seat in ALL]
CLOSED: tuple[int, ...] = ()


def but(*lost: int) -> list[int]:
    return [seat for seat in ALL if seat not in lost]


def cheat_with(*colluders: int) -> Cheat:
    return Cheat(VECTORS, colluders=colluders)


def party_of(cheat: Cheat, seat: int = ME) -> PartyRound:
    return cheat.parties[seat]


def journal_of(cheat: Cheat, seat: int = ME) -> Any:
    return cheat.run.journals[cheat.fingerprint(seat)]


def verdict_on(cheat: Cheat, survivors: Collection[int]) -> Verdict:
    return Verdict(cheat.plan_digest, cheat.chosen(survivors))


def said(party: PartyRound, frame: bytes) -> list[Message]:
    return [wire.decode(reply).message for reply in party.receive(frame, now=NOW).replies]


def unchanged(party: PartyRound, journal: Any) -> tuple[object, ...]:
    return party.state, party.transcript, party.epoch, journal.counter


# One verdict for ever --------------------------------------------------------------------------

SETS = {"all": list(ALL), "without 4": but(4), "without 3": but(3), "closed": []}
OTHERS = pytest.mark.parametrize(
    ("first", "second"), [(one, other) for one in SETS for other in SETS if one != other]
)


@pytest.fixture
def cheat() -> Cheat:
    return cheat_with()


@pytest.fixture
def run() -> MemoryRun:
    return ready_run(N, form=MaskedSum)


@sampled()
@OTHERS
def test_a_party_gives_one_verdict_on_a_plan(first: str, second: str, cheat: Cheat) -> None:
    party, journal = party_of(cheat), journal_of(cheat)
    given = cheat.ask(ME, SETS[first])
    before = unchanged(party, journal)
    with pytest.raises((ConflictingMessageError, UnexpectedMessageError)):
        party.receive(cheat.proposal(SETS[second]), now=NOW)
    assert journal.verdict_on(cheat.plan_digest) == wire.digest_of(given)
    if "closed" in (first, second):
        # Nothing of it is a lie: the coordinator may ask to close what does not open.
        assert unchanged(party, journal) == before
        assert cheat.ask(ME, SETS[first]) == given
    else:
        assert party.state is PartyState.STOPPED


@sampled()
@OTHERS
def test_a_party_gives_one_verdict_on_a_plan_also_after_a_restart(first: str, second: str) -> None:
    cheat = cheat_with()
    journal = journal_of(cheat)
    given = cheat.ask(ME, SETS[first])
    party = cheat.run.restart(cheat.fingerprint(ME))
    for _ in range(2):
        if SETS[second]:
            (refusal,) = said(party, cheat.proposal(SETS[second]))
            run_id = cheat.run.coordinator.run_id
            assert refusal == Refusal(run_id, cheat.fingerprint(ME), "PF-242")
        else:
            with pytest.raises(VerdictError) as caught:
                party.receive(cheat.proposal(CLOSED), now=NOW)
            assert caught.value.code == "PF-247"
        assert said(party, cheat.proposal(SETS[first])) == [given]
        assert journal.verdict_on(cheat.plan_digest) == wire.digest_of(given)
    assert party.state is PartyState.NEW


def test_a_verdict_has_the_same_bytes_after_a_restart(cheat: Cheat) -> None:
    *_, first = party_of(cheat).receive(cheat.proposal(ALL), now=NOW).replies
    again = cheat.run.restart(cheat.fingerprint(ME)).receive(cheat.proposal(ALL), now=NOW)
    assert again == Received((first,))  # no MACs: the keys for them are gone


def test_a_party_that_was_restarted_agrees_to_no_set_and_may_close_the_plan(cheat: Cheat) -> None:
    """It cannot check the set any more."""
    journal, me = journal_of(cheat), cheat.fingerprint(ME)
    party = cheat.run.restart(me)
    counter = journal.counter
    (refusal,) = said(party, cheat.proposal(ALL))
    assert isinstance(refusal, Refusal)
    assert refusal.subject == cheat.run.coordinator.run_id  # it promises nothing about the plan
    assert (journal.counter, journal.verdict_on(cheat.plan_digest)) == (counter, b"")
    assert said(party, cheat.proposal(CLOSED)) == [verdict_on(cheat, CLOSED)]
    (refusal,) = said(party, cheat.proposal(ALL))
    assert isinstance(refusal, Refusal)
    assert said(party, cheat.proposal(CLOSED)) == [verdict_on(cheat, CLOSED)]


def test_a_party_in_another_run_keeps_to_the_verdict_of_an_earlier_one(cheat: Cheat) -> None:
    given, run = cheat.ask(ME, but(4)), cheat.run
    again, closing = cheat.proposal(but(4)), cheat.proposal(CLOSED)
    run.new_run()
    run.set_up()
    party = run.parties[cheat.fingerprint(ME)]
    state = party.state
    assert said(party, again) == [given]
    with pytest.raises(VerdictError):
        party.receive(closing, now=NOW)
    assert party.state is state
    run.sum(VECTORS)


def test_a_verdict_is_on_a_plan_of_its_run() -> None:
    """Under another run's id, whose parties never saw the plan, it would prove nothing of it."""
    run = asked()
    me = run.coordinator.seats[ME]
    journal, identity = run.journals[me], run.identities[me]
    plan = run.coordinator.open_plan.digest
    with pytest.raises(VerdictError):
        sign_verdict(Verdict(plan, ()), run_id=bytes(32), identity=identity, journal=journal)
    assert not journal.verdict_on(plan)


def test_two_processes_on_one_journal_give_one_verdict(cheat: Cheat) -> None:
    first = party_of(cheat)
    cheat.run.restart(cheat.fingerprint(ME)).receive(cheat.proposal(CLOSED), now=NOW)
    before = unchanged(first, journal_of(cheat))
    with pytest.raises(VerdictError):
        first.receive(cheat.proposal(ALL), now=NOW)
    assert unchanged(first, journal_of(cheat)) == before
    assert said(first, cheat.proposal(CLOSED)) == [verdict_on(cheat, CLOSED)]


def test_no_vector_is_sent_for_a_plan_that_was_closed_here(run: MemoryRun) -> None:
    me = run.coordinator.seats[ME]
    party, journal = run.parties[me], run.journals[me]
    plan = run.open_plan(WORDS)
    run.to_party("plan", me, plan)
    run.to_party("proposal", me, run.coordinator.batch.propose_closing()[me])
    with pytest.raises(WrongStateError):
        party.contribute(VECTORS[ME])
    with pytest.raises(WrongStateError):
        party.refuse("PF-301")
    with pytest.raises(KeyReuseError):
        journal.begin(run_id=party.run_id, epoch=9, plan_digest=run.coordinator.open_plan.digest)
    assert party.receive(plan, now=NOW) == Received()
    assert journal.steps == ["decide"]


def test_a_restored_journal_gives_no_verdict(cheat: Cheat) -> None:
    """A record that it lost may be of another one."""
    party, journal = party_of(cheat), journal_of(cheat)
    journal.halt(1_000)
    for survivors in (ALL, CLOSED):
        with pytest.raises(RestoredJournalError):
            party.receive(cheat.proposal(survivors), now=NOW)
    party = cheat.run.restart(cheat.fingerprint(ME))
    with pytest.raises(RestoredJournalError):
        party.receive(cheat.proposal(CLOSED), now=NOW)
    assert journal.verdict_on(cheat.plan_digest) == b""


# What a party agrees to ------------------------------------------------------------------------


def signs_nothing(cheat: Cheat, seat: int, survivors: Collection[int]) -> None:
    """Check that a party signs nothing, and goes on as if nobody had asked."""
    party, journal = party_of(cheat, seat), journal_of(cheat, seat)
    before = unchanged(party, journal)
    with pytest.raises(VerdictError) as caught:
        party.receive(cheat.proposal(survivors), now=NOW)
    assert caught.value.code == "PF-247"
    assert unchanged(party, journal) == before
    assert journal.verdict_on(cheat.plan_digest) == b""


@pytest.mark.parametrize("seat", ALL)
def test_a_party_agrees_to_no_set_without_itself_and_may_close_the_plan(seat: int) -> None:
    cheat = cheat_with()
    signs_nothing(cheat, seat, but(seat))
    assert cheat.ask(seat, CLOSED) == verdict_on(cheat, CLOSED)


def test_a_party_that_signed_nothing_for_one_set_may_agree_to_another(cheat: Cheat) -> None:
    signs_nothing(cheat, 3, but(3))
    cheat.open(but(4))
    assert cheat.closed(4) == {4}


def contributed_within(bound_of: Callable[[tuple[bytes, ...]], SetBound]) -> Cheat:
    """A batch to which one party contributed within what its journal allows."""
    cheat = cheat_with()
    plan = party_of(cheat).batch.open
    assert plan is not None
    plan.bound = bound_of(cheat.run.coordinator.seats)
    return cheat


@sampled()
@pytest.mark.parametrize(
    ("bound_of", "allowed", "forbidden"),
    [
        pytest.param(
            lambda seats: SetBound.exactly(seats[:4]), [but(4)], [list(ALL), but(3)], id="one set"
        ),
        pytest.param(
            lambda seats: SetBound(frozenset(seats[3:4])),
            [list(ALL), but(4)],
            [but(3)],
            id="a party that must be in it",
        ),
        pytest.param(
            lambda seats: SetBound(frozenset(), frozenset(seats[:4])),
            [but(4)],
            [list(ALL), but(2)],
            id="a party that must not",
        ),
        pytest.param(
            lambda seats: SetBound(frozenset({b"\xff" * 32})),
            [],
            [list(ALL), but(4)],
            id="a party of another run",
        ),
    ],
)
def test_a_party_agrees_to_no_set_that_its_journal_does_not_allow(
    bound_of: Callable[[tuple[bytes, ...]], SetBound],
    allowed: list[list[int]],
    forbidden: list[list[int]],
) -> None:
    for survivors in forbidden:
        cheat = contributed_within(bound_of)
        signs_nothing(cheat, ME, survivors)
        assert cheat.ask(ME, CLOSED) == verdict_on(cheat, CLOSED)
    for survivors in allowed:
        cheat = contributed_within(bound_of)
        assert cheat.ask(ME, survivors) == verdict_on(cheat, survivors)


@sampled()
@pytest.mark.parametrize(
    ("bound_of", "is_possible"),
    [
        pytest.param(lambda seats: ANY_SET, True, id="any set"),
        pytest.param(SetBound.exactly, True, id="all of them"),
        pytest.param(lambda seats: SetBound.exactly(seats[:T]), True, id="as few as open"),
        pytest.param(lambda seats: SetBound.exactly(seats[: T - 1]), False, id="too few"),
        pytest.param(
            lambda seats: SetBound.exactly((*seats, b"\xff" * 32)), False, id="a party too many"
        ),
        pytest.param(
            lambda seats: SetBound(frozenset(), frozenset(seats[: T - 1])),
            False,
            id="too few may be in it",
        ),
    ],
)
def test_a_party_sends_for_no_plan_that_cannot_open_within_its_bound(
    bound_of: Callable[[tuple[bytes, ...]], SetBound], is_possible: bool, run: MemoryRun
) -> None:
    me = run.coordinator.seats[ME]
    party, journal = run.parties[me], run.journals[me]
    run.to_party("plan", me, run.open_plan(WORDS))
    bound = bound_of(run.coordinator.seats)
    if is_possible:
        assert party.contribute(VECTORS[ME], bound=bound)
        assert party.batch.open is not None
        assert party.batch.open.bound == bound
        return
    with pytest.raises(KeyReuseError):
        party.contribute(VECTORS[ME], bound=bound)
    assert (party.state, journal.steps, party.epoch) == (PartyState.REVIEWING_PLAN, [], 0)
    (frame,) = party.refuse("PF-211")  # which it can say
    assert wire.expect(wire.decode(frame), Refusal).subject == run.coordinator.open_plan.digest


def test_a_bound_of_the_additive_form_needs_every_seat() -> None:
    for missing, is_possible in ((0, True), (1, False)):
        run = ready_run(4)
        seats = run.coordinator.seats
        run.to_party("plan", seats[ME], run.open_plan(WORDS))
        bound = SetBound(frozenset(), frozenset(seats[: len(seats) - missing]))
        if is_possible:
            assert run.parties[seats[ME]].contribute(VECTORS[ME], bound=bound)
        else:
            with pytest.raises(KeyReuseError):
                run.parties[seats[ME]].contribute(VECTORS[ME], bound=bound)


@pytest.mark.parametrize("answer", ["nothing yet", "refused", "never came"])
def test_a_party_that_sent_nothing_closes_the_plan_and_opens_no_set(answer: str) -> None:
    run = ready_run(N, form=MaskedSum)
    coordinator = run.coordinator
    me = coordinator.seats[ME]
    party, journal = run.parties[me], run.journals[me]
    plan = run.open_plan(WORDS)
    if answer != "never came":
        run.to_party("plan", me, plan)
    if answer == "refused":
        party.refuse("PF-301")
    message = SetProposal(coordinator.run_id, coordinator.open_plan.digest, coordinator.seats)
    before = unchanged(party, journal)
    error = UnexpectedMessageError if answer == "never came" else VerdictError
    with pytest.raises(error):
        party.receive(wire.sign(message, run.coordinator_identity).frame, now=NOW)
    assert unchanged(party, journal) == before
    (frame,) = run.to_party("proposal", me, coordinator.batch.propose_closing()[me])
    assert wire.decode(frame).message == Verdict(coordinator.open_plan.digest, ())
    assert party.state is PartyState.JUDGED
    # Nor does a certificate open anything for it.
    run.settle(released=False)
    assert party.state is PartyState.READY
    run.sum(VECTORS, batch=1)


# Nothing without a certificate -----------------------------------------------------------------


def refused_proof(cheat: Cheat, frame: bytes, survivors: Collection[int]) -> None:
    """Check that a party takes a proof for none, and reveals nothing then or later."""
    party = party_of(cheat)
    with pytest.raises(FalseCertificateError) as caught:
        party.receive(frame, now=NOW)
    assert caught.value.code == "PF-246"
    assert party.batch.open is not None
    if isinstance(wire.decode(frame).message, VerdictMacs):
        # A peer may be at fault: the party waits for a better proof, and shows nothing before it.
        assert party.state is PartyState.JUDGED
        assert not party.batch.open.is_certified
        with pytest.raises(UnexpectedMessageError):
            party.receive(cheat.bundle(survivors, ME), now=NOW)
        return
    assert party.state is PartyState.STOPPED
    assert party.batch.open.holder is None
    for later in (cheat.certificate(survivors), cheat.bundle(survivors, ME)):
        with pytest.raises(UnexpectedMessageError):
            party.receive(later, now=NOW)


def test_shares_are_not_shown_before_a_certificate(cheat: Cheat) -> None:
    party = party_of(cheat)
    for state in (PartyState.SENT, PartyState.JUDGED):
        assert party.state is state
        with pytest.raises(UnexpectedMessageError):
            party.receive(cheat.bundle(ALL, ME), now=NOW)
        assert party.state is state
        cheat.agree(ALL)
    cheat.tell(ME, ALL)


@pytest.mark.parametrize("by_macs", [False, True], ids=["certificate", "MACs"])
def test_a_proof_comes_after_a_verdict(by_macs: bool, cheat: Cheat) -> None:
    party = party_of(cheat)
    for seat in but(ME):
        cheat.ask(seat, ALL)
    frame = cheat.proof(ME, ALL) if by_macs else cheat.certificate(ALL)
    with pytest.raises(UnexpectedMessageError):
        party.receive(frame, now=NOW)
    assert party.state is PartyState.SENT
    cheat.ask(ME, ALL)
    cheat.tell(ME, ALL)


@sampled("agreed", cases=2)
@pytest.mark.parametrize("by_macs", [False, True], ids=["certificate", "MACs"])
@pytest.mark.parametrize("agreed", range(1, N + 1))
def test_as_many_verdicts_as_the_threshold_open_and_one_fewer_does_not(
    agreed: int, by_macs: bool, cheat: Cheat
) -> None:
    cheat.by_macs = by_macs
    for seat in range(agreed):
        cheat.ask(seat, ALL)
    if agreed >= T:
        cheat.tell(ME, ALL)
    else:
        frame = cheat.proof(ME, ALL) if by_macs else cheat.certificate(ALL)
        refused_proof(cheat, frame, ALL)


def test_a_certificate_opens_nothing_once_we_closed_the_plan(cheat: Cheat) -> None:
    cheat.ask(ME, CLOSED)
    for seat in but(ME):
        cheat.ask(seat, ALL)
    refused_proof(cheat, cheat.certificate(ALL), ALL)


def certified(run: MemoryRun, batch: int) -> dict[bytes, list[bytes]]:
    """One batch up to its proofs: what the coordinator tells each seat."""
    plan = run.open_plan(WORDS, batch=batch)
    for seat, vector in zip(run.coordinator.seats, VECTORS, strict=True):
        run.to_party("plan", seat, plan)
        run.to_coordinator("y", seat, list(run.parties[seat].contribute(vector)))
    run.agree(run.coordinator.batch.propose())
    return run.coordinator.batch.certify()


@pytest.mark.parametrize("by_macs", [False, True], ids=["certificate", "MACs"])
def test_a_proof_of_another_plan_changes_nothing(by_macs: bool, run: MemoryRun) -> None:
    """One of an earlier plan may only be late."""
    me, late = run.coordinator.seats[ME], []
    for batch in range(2):
        told = certified(run, batch)
        if batch == 0:
            late = [
                told[me][0] if by_macs else run.coordinator.open_plan.certificate_frame,
                told[me][1],
            ]
            run.show(told, mute=[me])
            run.coordinator.batch.open_total()
            run.settle()
    party = run.parties[me]
    for frame in late:
        with pytest.raises(UnexpectedMessageError):
            party.receive(frame, now=NOW)
        assert party.state is PartyState.JUDGED
    run.show(told)
    assert np.array_equal(run.coordinator.batch.open_total(), np.sum(VECTORS, axis=0))


def test_a_settlement_makes_no_party_check_again_a_proof_that_it_checked(
    monkeypatch: pytest.MonkeyPatch, run: MemoryRun
) -> None:
    """Many parties would check many signatures each."""
    run.show(certified(run, batch=0), mute=[run.coordinator.seats[ME]])
    run.coordinator.batch.open_total()
    checked: list[Certificate] = []
    monkeypatch.setattr(
        "protocols.rounds.settlement.require_certificate",
        lambda certificate, **_: checked.append(certificate),
    )
    run.settle()
    assert len(checked) == 1  # by the party that was shown no proof


def test_another_proof_of_the_same_verdict_changes_nothing(cheat: Cheat) -> None:
    cheat.agree(ALL)
    party = party_of(cheat)
    once = cheat.tell(ME, ALL)
    for frame in (cheat.proof(ME, ALL), cheat.certificate(ALL)):
        assert party.receive(frame, now=NOW).replies == ()
        assert said(party, cheat.bundle(ALL, ME)) == [once]


# Settlements and what they prove ---------------------------------------------------------------

QUERIES = (b"q" * 32, b"r" * 32)


def claimed(journal: Any, plan: bytes, claim: PlanClaim) -> None:
    """Note two queries of a plan, as a node does before it votes."""
    journal.queries.claim(QUERIES, plan_digest=plan, claim=claim)


def is_closed_for_ever(journal: Any) -> bool:
    try:
        journal.queries.bound_on(QUERIES)
    except KeyReuseError:
        return True
    return False


def asked(form: Any = MaskedSum, *, absent: tuple[int, ...] = ()) -> MemoryRun:
    """A batch whose queries each party claimed before it sent its y."""
    run = ready_run(N, form=form)
    plan = run.open_plan(WORDS)
    claim = PlanClaim.sent(run.coordinator.seats, survives_dropouts=form.survives_dropouts)
    for place, (seat, vector) in enumerate(zip(run.coordinator.seats, VECTORS, strict=True)):
        if place not in absent:
            run.to_party("plan", seat, plan)
            claimed(run.journals[seat], run.coordinator.open_plan.digest, claim)
            run.to_coordinator("y", seat, list(run.parties[seat].contribute(vector)))
    return run


def journals(run: MemoryRun, *, absent: tuple[int, ...] = ()) -> list[Any]:
    seats = run.coordinator.seats
    return [run.journals[seat] for place, seat in enumerate(seats) if place not in absent]


@sampled()
@pytest.mark.parametrize("absent", [(), (0,), (0, 4), (0, 1, 2)], ids=str)
def test_a_closed_plan_frees_its_queries_for_any_set(absent: tuple[int, ...]) -> None:
    run = asked(absent=absent)
    assert all(map(is_closed_for_ever, journals(run, absent=absent)))
    run.close_plan()
    assert all(map(is_closed_for_ever, journals(run, absent=absent)))  # until they hear of it
    run.settle(released=False)
    bounds = [journal.queries.bound_on(QUERIES) for journal in journals(run, absent=absent)]
    assert bounds == [ANY_SET] * (N - len(absent))
    kinds = [entry.kind for entry in run.coordinator.transcript.entries]
    assert kinds[-3:] == ["plan", "verdict", "settlement"]
    assert {party.transcript.head for party in run.parties.values()} == {
        run.coordinator.transcript.head
    }
    # The same queries may be asked once more, under new keys.
    again = run.open_plan(WORDS, batch=1)
    for seat, vector in zip(run.coordinator.seats, VECTORS, strict=True):
        run.to_party("plan", seat, again)
        run.to_coordinator("y", seat, list(run.parties[seat].contribute(vector)))
    run.reveal()
    assert np.array_equal(run.coordinator.batch.open_total(), np.sum(VECTORS, axis=0))


def test_a_void_plan_without_a_certificate_keeps_its_queries_closed() -> None:
    run = asked()
    run.settle(released=False)
    assert run.coordinator.settled[-1].settlement.certificate == b""
    assert all(map(is_closed_for_ever, journals(run)))


@pytest.mark.parametrize("released", [True, False])
def test_a_set_that_was_certified_keeps_its_queries_closed(released: bool) -> None:
    run = asked(absent=(3,))
    run.reveal()
    if released:
        run.coordinator.batch.open_total()
    run.settle(released=released)
    seats = run.coordinator.seats
    for journal in journals(run, absent=(3,)):
        assert is_closed_for_ever(journal)
        [claim] = journal.queries.claims_of(QUERIES)
        assert claim.openable == SetBound.exactly((*seats[:3], seats[4]))


def test_too_few_to_close_a_plan_keep_its_queries_closed() -> None:
    run = asked()
    run.agree(run.coordinator.batch.propose(), mute=run.coordinator.seats[2:])
    closing = run.coordinator.batch.propose_closing()
    assert tuple(closing) == run.coordinator.seats[2:]  # nobody is asked for a second verdict
    run.agree(closing)
    with pytest.raises(TooFewSharesError) as caught:
        run.coordinator.batch.certify()
    assert (caught.value.received, caught.value.threshold) == (3, T)
    run.settle(released=False)
    assert all(map(is_closed_for_ever, journals(run)))
    run.coordinator.closing.close()


def test_those_who_agreed_to_a_set_do_not_hinder_enough_others_to_close() -> None:
    run = asked()
    first = run.coordinator.seats[:1]
    run.agree(run.coordinator.batch.propose(), mute=run.coordinator.seats[1:])
    run.agree(run.coordinator.batch.propose_closing())
    assert run.coordinator.batch.certify() == {}
    assert run.coordinator.open_plan.is_closed
    assert not run.coordinator.open_plan.may_open
    with pytest.raises(WrongStateError):
        run.coordinator.batch.propose()
    with pytest.raises(WrongStateError):
        run.coordinator.batch.open_total()
    run.settle(released=False)
    # Whoever agreed to open learns as well that nothing did.
    assert run.journals[first[0]].queries.bound_on(QUERIES) == ANY_SET
    assert run.parties[first[0]].state is PartyState.READY


def test_a_closing_is_proposed_to_those_that_refused_or_were_silent_too(run: MemoryRun) -> None:
    plan = run.open_plan(WORDS)
    seats = run.coordinator.seats
    for seat in seats[:2]:
        run.to_party("plan", seat, plan)
    run.to_coordinator("y", seats[0], list(run.parties[seats[0]].contribute(VECTORS[0])))
    with pytest.raises(RefusedError):
        run.to_coordinator("y", seats[1], list(run.parties[seats[1]].refuse("PF-301")))
    with pytest.raises(TooFewSharesError):
        run.coordinator.batch.propose()
    closing = run.coordinator.batch.propose_closing()
    assert tuple(closing) == seats
    run.agree(closing)
    run.coordinator.batch.certify()
    run.settle(released=False)
    assert {party.state for party in run.parties.values()} == {PartyState.READY}
    assert len({party.transcript.head for party in run.parties.values()}) == 1
    run.sum(VECTORS, batch=1)
    run.settle()
    run.close()


Settle = Callable[[MemoryRun, Settlement], dict[str, Any]]


def _flipped(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


def _with(**changed: Any) -> Settle:
    def spoil(run: MemoryRun, settlement: Settlement) -> dict[str, Any]:
        true = wire.expect(wire.decode(settlement.certificate), Certificate)
        return {"certificate": wire.contain(replace(true, **changed))}

    return spoil


def _fewer(run: MemoryRun, settlement: Settlement) -> dict[str, Any]:
    true = wire.expect(wire.decode(settlement.certificate), Certificate)
    signers, signatures = true.signers[1:], true.signatures[1:]
    return _with(signers=signers, signatures=signatures)(run, settlement)


def _changed_signature(run: MemoryRun, settlement: Settlement) -> dict[str, Any]:
    true = wire.expect(wire.decode(settlement.certificate), Certificate)
    signatures = (_flipped(true.signatures[0]), *true.signatures[1:])
    return _with(signatures=signatures)(run, settlement)


FALSE_SETTLEMENTS = pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(_fewer, id="too few signers"),
        pytest.param(_changed_signature, id="a changed signature"),
        pytest.param(lambda r, s: {"certificate": s.certificate[:-1]}, id="cut short"),
        pytest.param(
            lambda r, s: {"certificate": r.coordinator.settled[-1].frame}, id="another message"
        ),
        pytest.param(_with(plan_digest=bytes(32)), id="of another plan"),
        pytest.param(
            lambda r, s: _with(survivors=r.coordinator.seats)(r, s), id="as if it had opened"
        ),
        pytest.param(lambda r, s: {"state": "released"}, id="released"),
        pytest.param(
            lambda r, s: {"state": "released", "certificate": b""}, id="released with none"
        ),
    ],
)


def closed_settlement(run: MemoryRun) -> bytes:
    run.close_plan()
    return run.coordinator.batch.settle(released=False, result=b"")


@sampled()
@FALSE_SETTLEMENTS
@pytest.mark.parametrize("restarted", [False, True], ids=["live", "restarted"])
def test_a_false_certificate_frees_nothing(spoil: Settle, restarted: bool) -> None:
    run = asked()
    frame = closed_settlement(run)
    settlement = wire.expect(wire.decode(frame), Settlement)
    bad = altered(frame, run.coordinator_identity, **spoil(run, settlement))
    me = run.coordinator.seats[ME]
    party = run.restart(me) if restarted else run.parties[me]
    with pytest.raises(ProtocolError):
        party.receive(bad, now=NOW)
    assert is_closed_for_ever(run.journals[me])
    if restarted:  # the true one is taken still
        assert party.receive(frame, now=NOW).replies == ()
        assert run.journals[me].queries.bound_on(QUERIES) == ANY_SET
    else:
        assert party.state is PartyState.STOPPED


@pytest.mark.parametrize("form", [AdditiveSum, MaskedSum])
def test_an_additive_settlement_has_no_certificate_and_a_release_has_its_own(form: Any) -> None:
    run = asked(form)
    if form is MaskedSum:
        run.reveal()
    run.coordinator.batch.open_total()
    frame = run.coordinator.batch.settle(released=True, result=b"")
    other = asked()
    certificate = b"" if form is MaskedSum else _certificate_of(closed_settlement(other))
    bad = altered(frame, run.coordinator_identity, certificate=certificate)
    for restarted in (False, True):
        me = run.coordinator.seats[restarted]
        party = run.restart(me) if restarted else run.parties[me]
        with pytest.raises(FalseCertificateError):
            party.receive(bad, now=NOW)


def _certificate_of(frame: bytes) -> bytes:
    return wire.expect(wire.decode(frame), Settlement).certificate


def test_a_release_lists_the_certified_set() -> None:
    run = asked()
    run.reveal()
    run.coordinator.batch.open_total()
    frame = run.coordinator.batch.settle(released=True, result=b"")
    listed = wire.expect(wire.decode(frame), Settlement).contributions
    bad = altered(frame, run.coordinator_identity, contributions=(*listed[:4], b""))
    me, other = run.coordinator.seats[:2]
    with pytest.raises(ProtocolError):
        run.parties[me].receive(bad, now=NOW)
    with pytest.raises(FalseCertificateError):
        run.restart(other).receive(bad, now=NOW)


@pytest.mark.parametrize("restarted", [False, True], ids=["live", "restarted"])
def test_parties_of_another_run_free_no_plan_that_they_never_saw(restarted: bool) -> None:
    """Else a plan that opened could be asked again: they close it, as one that never came."""
    run = asked()
    run.reveal()
    run.coordinator.batch.open_total()
    run.settle()
    plan, me = run.coordinator.settled[-1].plan_digest, run.coordinator.seats[ME]
    other = another_run(run, me, MaskedSum)
    verdict = Verdict(plan, ())
    signers = [seat for seat in other.coordinator.seats if seat != me]
    signed = [wire.sign(verdict, other.identities[seat]).signature for seat in signers]
    certificate = Certificate(plan, (), tuple(signers), tuple(signed))
    frame = void_of(other, plan, certificate=wire.contain(certificate))
    party = other.restart(me) if restarted else other.parties[me]
    party.receive(frame, now=NOW)
    assert is_closed_for_ever(run.journals[me])
    exactly = SetBound.exactly(run.coordinator.seats)
    [claim] = run.journals[me].queries.claims_of(QUERIES)
    assert claim.openable == exactly


@pytest.mark.parametrize("restarted", [False, True], ids=["live", "restarted"])
def test_a_party_of_another_run_abandons_no_plan_that_it_never_saw(restarted: bool) -> None:
    """Else one colluder would free the queries of an additive sum that opened."""
    run = asked(AdditiveSum)
    run.coordinator.batch.open_total()
    run.settle()
    plan, me = run.coordinator.settled[-1].plan_digest, run.coordinator.seats[ME]
    other = another_run(run, me, AdditiveSum)
    liar = next(seat for seat in other.coordinator.seats if seat != me)
    refusal = wire.sign(Refusal(plan, liar, "PF-301"), other.identities[liar]).frame
    frame = void_of(other, plan, refusals=(refusal,))
    party = other.restart(me) if restarted else other.parties[me]
    party.receive(frame, now=NOW)
    assert is_closed_for_ever(run.journals[me])


def another_run(run: MemoryRun, me: bytes, form: Any) -> MemoryRun:
    """A run of the same coordinator in which one party meets others."""
    other = MemoryRun(N, form=form)
    other.coordinator_identity = run.coordinator_identity
    del other.identities[next(iter(other.identities))]
    other.identities[me] = run.identities[me]
    other.journals = {seat: other.journals.get(seat) for seat in other.identities}
    other.journals[me] = run.journals[me]
    other.parties = dict.fromkeys(other.identities)  # type: ignore[arg-type]
    for seat in other.identities:
        other.restart(seat)
    other.coordinator = other.new_coordinator({})
    other.set_up()
    return other


def void_of(run: MemoryRun, plan: bytes, **changed: Any) -> bytes:
    fields = {"refusals": (), "certificate": b"", "result": b""}
    settlement = Settlement(
        run_id=run.coordinator.run_id,
        plan_digest=plan,
        state="void",
        words=WORDS,
        contributions=(b"",) * N,
        **{**fields, **changed},
    )
    return wire.sign(settlement, run.coordinator_identity).frame


# An earlier life -------------------------------------------------------------------------------


@pytest.mark.parametrize("was_closed", [True, False])
def test_a_restarted_party_learns_from_a_settlement(was_closed: bool) -> None:
    run = asked()
    if was_closed:
        run.close_plan()
    else:
        run.reveal()
        run.coordinator.batch.open_total()
    frame = run.coordinator.batch.settle(released=not was_closed, result=b"")
    me = run.coordinator.seats[ME]
    party, journal = run.restart(me), run.journals[me]
    for _ in range(2):
        assert party.receive(frame, now=NOW).replies == ()
        assert is_closed_for_ever(journal) != was_closed
    if not was_closed:
        exactly = SetBound.exactly(run.coordinator.seats)
        [claim] = journal.queries.claims_of(QUERIES)
        assert claim.openable == exactly
    assert journal.find(run.coordinator.settled[-1].plan_digest) is None  # nobody needs its y


def test_a_restarted_party_learns_who_refused_an_additive_plan() -> None:
    run = ready_run(N)
    plan = run.open_plan(WORDS)
    seats = run.coordinator.seats
    for seat, vector in zip(seats, VECTORS, strict=True):
        run.to_party("plan", seat, plan)
        if seat == seats[4]:
            with pytest.raises(RefusedError):
                run.to_coordinator("y", seat, list(run.parties[seat].refuse("PF-301")))
            continue
        claim = PlanClaim.sent(seats, survives_dropouts=False)
        claimed(run.journals[seat], run.coordinator.open_plan.digest, claim)
        run.to_coordinator("y", seat, list(run.parties[seat].contribute(vector)))
    frame = run.coordinator.batch.settle(released=False, result=b"")
    wanted = SetBound(frozenset(seats[:4]), frozenset(seats))
    live, restarted = run.parties[seats[0]], run.restart(seats[1])
    for seat, party in ((seats[0], live), (seats[1], restarted)):
        assert is_closed_for_ever(run.journals[seat])
        party.receive(frame, now=NOW)
        assert run.journals[seat].queries.bound_on(QUERIES) == wanted
    # A refusal that its party did not sign proves nothing.
    settlement = wire.expect(wire.decode(frame), Settlement)
    (refusal,) = settlement.refusals
    forged = altered(refusal, run.identities[seats[3]])
    bad = altered(frame, run.coordinator_identity, refusals=(forged,))
    with pytest.raises(BadSignatureError):
        run.restart(seats[2]).receive(bad, now=NOW)
    twice = altered(frame, run.coordinator_identity, refusals=(refusal, refusal))
    with pytest.raises(FalseRefusalError):
        run.parties[seats[2]].receive(twice, now=NOW)
    assert is_closed_for_ever(run.journals[seats[2]])


def test_a_plan_is_closed_though_every_party_was_restarted() -> None:
    run = asked()
    closing = run.coordinator.batch.propose_closing()
    for seat, frame in closing.items():
        run.to_coordinator("verdict", seat, list(run.restart(seat).receive(frame, now=NOW).replies))
    assert run.coordinator.batch.certify() == {}
    frame = run.coordinator.batch.settle(released=False, result=b"")
    for seat, party in run.parties.items():
        assert party.receive(frame, now=NOW).replies == ()
        assert run.journals[seat].queries.bound_on(QUERIES) == ANY_SET


def test_a_restarted_party_closes_no_additive_plan() -> None:
    """The form has no such thing: there is nothing to promise."""
    run = asked(AdditiveSum)
    me = run.coordinator.seats[ME]
    party, journal = run.restart(me), run.journals[me]
    counter = journal.counter
    for survivors in ((), run.coordinator.seats):
        message = SetProposal(run.coordinator.run_id, run.coordinator.open_plan.digest, survivors)
        with pytest.raises(UnexpectedMessageError):
            party.receive(wire.sign(message, run.coordinator_identity).frame, now=NOW)
    assert (journal.counter, journal.verdict_on(run.coordinator.open_plan.digest)) == (counter, b"")


# Plans that never came -------------------------------------------------------------------------


def close_unknown(run: MemoryRun, plan: bytes) -> bytes:
    message = SetProposal(run.coordinator.run_id, plan, ())
    return wire.sign(message, run.coordinator_identity).frame


def lost_plan(run: MemoryRun, number: int) -> bytes:
    message = Plan(run.coordinator.run_id, 9, number, bytes(32), WORDS, EXPIRES_AT, b"")
    return wire.sign(message, run.coordinator_identity).frame


def digests(count: int) -> list[bytes]:
    return [bytes([number]) * 32 for number in range(count)]


def test_a_restarted_party_promises_about_few_plans_of_a_run_that_it_never_served() -> None:
    run = ready_run(N, form=MaskedSum)
    me = run.coordinator.seats[ME]
    party, journal = run.restart(me), run.journals[me]
    half = MOST_UNSERVED // 2
    for plan in digests(half):
        (verdict,) = said(party, close_unknown(run, plan))
        assert verdict == Verdict(plan, ())
    for number in range(half):
        (refusal,) = said(party, lost_plan(run, number))
        assert isinstance(refusal, Refusal)
    counter = journal.counter
    for plan in digests(100)[half:]:
        with pytest.raises(VerdictError):
            party.receive(close_unknown(run, plan), now=NOW)
    for number in range(half, 100):  # no promise about the plan, and no silence: the run is refused
        (refusal,) = said(party, lost_plan(run, number))
        assert isinstance(refusal, Refusal)
        assert refusal.subject == run.coordinator.run_id
    assert journal.counter == counter
    # What it promised it says again; and a plan that it served is not counted.
    assert said(party, close_unknown(run, digests(1)[0])) == [Verdict(digests(1)[0], ())]
    assert said(party, lost_plan(run, 0))


def test_a_live_party_promises_about_few_plans_that_never_came(run: MemoryRun) -> None:
    me = run.coordinator.seats[ME]
    party, journal = run.parties[me], run.journals[me]
    for number, plan in enumerate(digests(MOST_UNSERVED + 1)):
        before = unchanged(party, journal)
        if number == MOST_UNSERVED:
            with pytest.raises(VerdictError):
                party.receive(close_unknown(run, plan), now=NOW)
            assert unchanged(party, journal) == before
            return
        assert said(party, close_unknown(run, plan)) == [Verdict(plan, ())]
        settlement = Settlement(
            run_id=run.coordinator.run_id,
            plan_digest=plan,
            state="void",
            words=WORDS,
            contributions=(b"",) * N,
            refusals=(),
            certificate=b"",
            result=b"",
        )
        party.receive(wire.sign(settlement, run.coordinator_identity).frame, now=NOW)
        assert party.state is PartyState.READY


def test_plans_that_were_served_are_not_counted(run: MemoryRun) -> None:
    for batch in range(MOST_UNSERVED + 2):
        run.sum(VECTORS, batch=batch)
        run.settle()
    run.open_plan(WORDS, batch=99)
    run.close_plan()
    run.settle(released=False)
    run.close()


@pytest.mark.parametrize("state", [PartyState.NEW, PartyState.READY, PartyState.SENT])
def test_plans_and_proposals_of_an_unknown_run_write_nothing(state: PartyState) -> None:
    """The same coordinator, which a party serves, speaks of a run that this party was never in."""
    run = MemoryRun(N, form=MaskedSum)
    if state is not PartyState.NEW:
        run.set_up()
    me = run.coordinator.seats[ME]
    party, journal = run.parties[me], run.journals[me]
    if state is PartyState.SENT:
        run.to_party("plan", me, run.open_plan(WORDS))
        party.contribute(VECTORS[ME])
    assert party.state is state
    before = unchanged(party, journal)
    for number in range(3):
        unknown = bytes([number]) * 32
        messages: list[Message] = [
            Plan(unknown, 1, number, bytes(32), WORDS, EXPIRES_AT, b""),
            SetProposal(unknown, bytes([number]) * 32, ()),
            SetProposal(unknown, bytes([number]) * 32, run.coordinator.seats),
        ]
        for message in messages:
            with pytest.raises(UnexpectedMessageError):
                party.receive(wire.sign(message, run.coordinator_identity).frame, now=NOW)
        settlement = Settlement(unknown, bytes(32), "void", WORDS, (b"",) * N, (), b"", b"")
        frame = wire.sign(settlement, run.coordinator_identity).frame
        assert party.receive(frame, now=NOW).replies == ()
        assert unchanged(party, journal) == before


def test_a_run_that_a_party_refused_is_unknown_to_it() -> None:
    run = MemoryRun(N, form=MaskedSum)
    run.broadcast("offer", run.coordinator.setup.offer.frame)
    record = run.coordinator.setup.make_record(terms=b"", **run.tolerance)
    me = run.coordinator.seats[ME]
    run.to_party("record", me, record)
    run.parties[me].refuse("PF-301")
    journal = run.journals[me]
    counter = journal.counter
    party = run.restart(me)
    for frame in (close_unknown(run, bytes(32)), lost_plan(run, 0)):
        with pytest.raises(UnexpectedMessageError):
            party.receive(frame, now=NOW)
    assert journal.counter == counter


# The coordinator's verdicts ---------------------------------------------------------------------


def agreeing() -> tuple[MemoryRun, dict[bytes, list[bytes]]]:
    """Every party's answer to a proposal, which the coordinator has not taken yet."""
    run = asked()
    proposals = run.coordinator.batch.propose()
    return run, {seat: run.to_party("p", seat, frame) for seat, frame in proposals.items()}


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param({"plan_digest": bytes(32)}, id="another plan"),
        pytest.param({"survivors": ()}, id="to close the plan"),
    ],
)
def test_a_verdict_that_was_not_asked_for_does_not_count(changed: dict[str, Any]) -> None:
    run, answers = agreeing()
    liar, *honest = run.coordinator.seats
    frame = altered(answers[liar][-1], run.identities[liar], **changed)
    if "plan_digest" in changed:
        with pytest.raises(UnexpectedMessageError) as caught:
            run.coordinator.receive(frame, peer=liar)
        assert caught.value.peer == liar.hex()
    else:  # a verdict it is, for something else
        run.coordinator.receive(frame, peer=liar)
        with pytest.raises(ConflictingMessageError) as conflict:
            run.coordinator.receive(answers[liar][-1], peer=liar)
        assert conflict.value.peer == liar.hex()
    for seat in honest[: T - 1]:
        run.to_coordinator("verdict", seat, answers[seat])
    with pytest.raises(TooFewSharesError):
        run.coordinator.batch.certify()
    run.to_coordinator("verdict", honest[-1], answers[honest[-1]])
    certificate = wire.expect(wire.decode(_certified(run)), Certificate)
    assert certificate.signers == tuple(honest)


def _certified(run: MemoryRun) -> bytes:
    run.coordinator.batch.certify()
    return run.coordinator.open_plan.certificate_frame


def test_a_verdict_of_another_key_or_of_nobody_is_refused() -> None:
    run, answers = agreeing()
    liar, victim = run.coordinator.seats[:2]
    verdict = wire.decode(answers[victim][-1]).message
    for forged in (answers[liar][-1], wire.sign(verdict, SigningIdentity.generate()).frame):
        with pytest.raises(BadSignatureError):
            run.coordinator.receive(forged, peer=victim)
    with pytest.raises(UnknownPeerError):
        run.coordinator.receive(answers[victim][-1])
    assert victim in run.coordinator.missing


def test_a_verdict_comes_after_its_proposal_and_before_the_certificate() -> None:
    run = asked()
    seat = run.coordinator.seats[ME]
    verdict = Verdict(run.coordinator.open_plan.digest, run.coordinator.seats)
    early = wire.sign(verdict, run.identities[seat]).frame
    with pytest.raises(UnexpectedMessageError):
        run.coordinator.receive(early, peer=seat)
    run.agree(run.coordinator.batch.propose(), mute=[seat])
    run.show(run.coordinator.batch.certify(), mute=[seat])
    with pytest.raises(LateMessageError):
        run.coordinator.receive(early, peer=seat)
    assert run.coordinator.batch.open_total() is not None


def test_a_party_that_sends_wrong_macs_does_not_hinder_the_others() -> None:
    """Whoever finds too few right MACs stops; of 7 parties 5 are needed, so one liar is too few."""
    run = ready_run(7, form=MaskedSum)
    liar = run.coordinator.seats[3]
    vectors = [np.arange(WORDS)] * 7

    def tamper(stage: str, to: bytes | None, frame: bytes) -> bytes:
        message = wire.decode(frame).message
        if stage != "verdict" or not isinstance(message, VerdictMacs) or tamper_of[0] != liar:
            return frame
        return wire.contain(replace(message, macs=(bytes(16),) * 6))

    tamper_of = [b""]
    honest = run.to_coordinator

    def to_coordinator(stage: str, party: bytes, frames: list[bytes]) -> None:
        tamper_of[0] = party
        honest(stage, party, frames)

    run.to_coordinator = to_coordinator  # type: ignore[method-assign]
    run.tamper = tamper
    assert np.array_equal(run.sum(vectors), 7 * np.arange(WORDS))
    run.settle()


def test_a_collector_certifies_with_as_few_verdicts_as_prove_it() -> None:
    identities = sorted(
        (SigningIdentity.generate() for _ in range(7)), key=lambda each: each.fingerprint
    )
    seats = tuple(each.fingerprint for each in identities)
    plan = bytes(32)
    verdicts = VerdictCollector(
        plan, identities={e.fingerprint: e.public for e in identities}, threshold=5
    )
    for place, identity in enumerate(identities):
        survivors = seats if place != 1 else ()
        verdicts.take(wire.sign(Verdict(plan, survivors), identity), identity.fingerprint)
        certificate = verdicts.certificate(seats)
        assert (certificate is None) == (place < 5)
        assert verdicts.certificate(()) is None
    assert certificate is not None
    assert certificate.signers == (seats[0], *seats[2:6])
    assert verdicts.of(()) == (seats[1],)
    with pytest.raises(ConflictingMessageError) as caught:
        verdicts.take(wire.sign(Verdict(plan, ()), identities[0]), seats[0])
    assert caught.value.peer == seats[0].hex()


# Who is named ----------------------------------------------------------------------------------


def test_a_bit_that_the_coordinator_flips_on_the_way_names_nobody_alone() -> None:
    """The holder cannot show that its share came spoiled, nor the dealer that it was good."""
    run = asked()
    run.agree(run.coordinator.batch.propose())
    told = run.coordinator.batch.certify()
    holder = run.coordinator.seats[2]
    bundle: Any = wire.decode(told[holder][1]).message
    spoiled = (_flipped(bundle.envelopes[0]), *bundle.envelopes[1:])
    told[holder][1] = wire.contain(replace(bundle, envelopes=spoiled))
    run.show(told)
    dealer = run.coordinator.seats[0]
    assert run.coordinator.batch.share_faults == (
        ShareFault(dealer, holder, named=(dealer, holder)),
    )
    assert run.parties[holder].batch.wrong_dealers == (dealer,)
    assert np.array_equal(run.coordinator.batch.open_total(), np.sum(VECTORS, axis=0))
    # The next plan has nothing of it.
    run.settle()
    run.to_party("plan", holder, run.open_plan(WORDS, batch=1))
    assert run.parties[holder].batch.wrong_dealers == ()
    run.settle(released=False)
    run.sum(VECTORS, batch=2)
    assert run.coordinator.batch.share_faults == ()


def test_an_expired_plan_is_closed_by_a_restarted_party_only(cheat: Cheat) -> None:
    """A live party closes in time; later the run is over with its plans."""
    with pytest.raises(UnexpectedMessageError):
        party_of(cheat).receive(cheat.proposal(CLOSED), now=EXPIRED)
    party = cheat.run.restart(cheat.fingerprint(ME))
    (frame,) = party.receive(cheat.proposal(CLOSED), now=EXPIRED).replies
    assert wire.decode(frame).message == verdict_on(cheat, CLOSED)
