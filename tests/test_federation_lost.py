"""Batches that survive lost parties: promises, waiting, queries that are free again (rule R3)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from coordinator.errors import PartyFailedError, VoidBatchError
from coordinator.runs.labeling.collecting import GRACE_S
from coordinator.runs.transport import Silence
from party.decision.run_account import RunAccount
from party.errors import Reason, RefusalError, StorageError
from pate_fed.terms import MOST_VOID_BATCHES
from protocols import wire
from protocols.errors import KeyReuseError, LateMessageError, RestoredJournalError, WrongStateError
from protocols.fields import Message
from protocols.identity import SigningIdentity
from protocols.messages import (
    Certificate,
    HeadBundle,
    MaskedVector,
    Plan,
    Refusal,
    RunOffer,
    SetProposal,
    Settlement,
    Verdict,
)
from protocols.rounds import ANY_SET, PartyState, PlanClaim, SetBound, bound_on
from protocols.rounds.round_journal import MOST_UNSERVED
from tests.support.federation import (
    Answer,
    Federation,
    kinds,
    labels_of,
    messages,
    ready_federation,
)
from tests.support.markers import more, sampled
from tests.support.stores import plans_in

CULPRIT = 1
PF_KEYS_GONE = "PF-242"
FORMS = pytest.mark.parametrize(("form", "parties"), [("additive", 4), ("masked", 5)])


def ready(**changed: Any) -> Federation:
    return ready_federation(**{"parties": 4, **changed})


def told(federation: Federation, kind: type[Message]) -> list[Any]:
    return [
        message
        for packet in federation.transport.packets
        for message in messages(packet)
        if isinstance(message, kind)
    ]


def void(federation: Federation, *indices: int) -> VoidBatchError:
    with pytest.raises(VoidBatchError) as caught:
        federation.ask(*indices)
    return caught.value


def restart_when_asked(federation: Federation, place: int) -> None:
    """Let a party's process die just before a plan reaches it; it comes back with its journal."""

    def on_query(node: int, packet: bytes) -> bytes:
        if node == place and "Plan" in kinds(packet):
            federation.restart(place)
        return packet

    federation.transport.on_query = on_query


def tell(federation: Federation, place: int, *frames: bytes) -> list[Message]:
    return messages(federation.nodes[place].receive(wire.pack(list(frames))))


def settled(federation: Federation) -> Settlement:
    """The settlement that the coordinator will tell with its next message."""
    return wire.expect(wire.decode(federation.settlement), Settlement)


def settle_otherwise(federation: Federation, **changed: Any) -> None:
    """Have the coordinator tell another settlement than the true one."""
    message = dataclasses.replace(settled(federation), **changed)
    federation.settle_otherwise(message)


def bound_at(federation: Federation, place: int, *indices: int) -> SetBound:
    """What a party's journal allows to be opened for queries."""
    return federation.nodes[place]._journal.queries.bound_on(federation.pool.ask(indices).digests)


def require_closed(federation: Federation, place: int, *indices: int) -> None:
    """Fail unless a party answers none of these queries again."""
    for index in indices:
        with pytest.raises(KeyReuseError):
            bound_at(federation, place, index)


def refusal_by(identity: SigningIdentity, subject: bytes, reason: str = "PF-301") -> bytes:
    return wire.sign(Refusal(subject, identity.fingerprint, reason), identity).frame


# A promise never to send -----------------------------------------------------------------------


def test_a_restarted_party_promises_never_to_send_and_the_others_are_free() -> None:
    federation = ready()
    restart_when_asked(federation, CULPRIT)
    error = void(federation, 0, 1)
    assert f"{federation.names[CULPRIT]} [{PF_KEYS_GONE}]" in str(error)
    assert error.may_ask_again
    assert error.reservation == "cancelled"
    [frame] = settled(federation).refusals
    assert wire.expect(wire.decode(frame), Refusal).subject == settled(federation).plan_digest
    assert federation.steps[CULPRIT][-1] == "abandon"  # journalled, then sent
    # The others hear of it: their queries are free, and their charge comes back.
    federation.heal()
    federation.run.close()  # of 4 parties 3 are left, who compare their heads
    for place in (0, 2, 3):
        assert federation.party_states(place) == ["returned"]
        assert (
            federation.nodes[place]._journal.queries.count() == 2
        )  # they were sent for all the same
        seats = frozenset(federation.pins)
        left = seats - {federation.identities[CULPRIT].fingerprint}
        assert bound_at(federation, place, 0, 1) == SetBound(left, seats)


def test_a_guards_refusal_frees_the_queries_for_the_same_hospitals() -> None:
    federation = ready(policies={CULPRIT: {"most_queries": 2}})
    error = void(federation, 0, 1, 2)
    assert error.may_ask_again
    assert federation.ask(0, 1).labels.tolist() == labels_of(0, 1)
    federation.run.close()
    for place in range(4):
        states = federation.party_states(place)
        assert states == (["committed"] if place == CULPRIT else ["returned", "committed"])
        ledger = federation.run_ledger(place)
        assert ledger.outcomes.asks == federation.store.ledger().outcomes.asks == 2
    # Another number, another epoch, another plan: nothing of the first is used again.
    assert {(plan.batch, plan.epoch) for plan in told(federation, Plan)} == {
        (0, 1),
        (1, 2),
    }


def test_after_two_void_batches_the_run_stops_though_queries_are_free() -> None:
    federation = ready(policies={CULPRIT: {"most_queries": 1}})
    assert void(federation, 0, 1).may_ask_again
    assert void(federation, 0, 1).may_ask_again
    assert federation.run.is_over
    federation.forget_voids()  # a coordinator that goes on
    assert Reason.VOIDS in str(void(federation, 0))


@FORMS
def test_who_refused_a_plan_refuses_it_for_ever(form: str, parties: int) -> None:
    federation = ready(form=form, parties=parties, policies={CULPRIT: {"most_queries": 1}})
    plans: list[bytes] = []

    def on_query(node: int, packet: bytes) -> bytes:
        if node == CULPRIT and "Plan" in kinds(packet):
            plans.append(wire.unpack(packet, max_bytes=2**20)[-1])
        return packet

    federation.transport.on_query = on_query
    if form == "additive":
        void(federation, 0, 1)
    else:
        federation.ask(0, 1)
    assert federation.steps[CULPRIT] == ["abandon"]
    with pytest.raises(KeyReuseError):
        federation.nodes[CULPRIT]._journal.begin(
            run_id=bytes(32), epoch=98, plan_digest=wire.decode(plans[0]).digest
        )
    for node in (federation.nodes[CULPRIT], federation.restart(CULPRIT)):
        [refusal] = messages(node.receive(wire.pack([plans[0]])))
        assert isinstance(refusal, Refusal)
        assert refusal.subject == wire.decode(plans[0]).digest
    journal = federation.nodes[CULPRIT]._journal
    with pytest.raises(KeyReuseError):
        journal.begin(run_id=bytes(32), epoch=99, plan_digest=wire.decode(plans[0]).digest)
    assert "vote" not in federation.steps[CULPRIT]


@FORMS
def test_who_sent_cannot_promise_that_it_never_will(form: str, parties: int) -> None:
    federation = ready(form=form, parties=parties)
    federation.ask(0, 1)
    [plan, *_] = {message.plan_digest for message in told(federation, MaskedVector)}
    node = federation.nodes[0]
    with pytest.raises(WrongStateError):
        node._round.refuse("PF-301")
    run_id = federation.run.round.run_id
    with pytest.raises(KeyReuseError):
        node._journal.abandon(plan, run_id=run_id)
    federation.run.close()
    with pytest.raises(KeyReuseError):  # its y is erased: that does not undo it
        node._journal.abandon(plan, run_id=run_id)


def test_a_restored_journal_promises_nothing() -> None:
    """What it does not remember may have been sent."""
    federation = ready()
    federation.nodes[CULPRIT]._journal.halt(10**6)
    restart_when_asked(federation, CULPRIT)
    error = void(federation, 0, 1)
    assert not error.may_ask_again
    assert settled(federation).refusals == ()
    with pytest.raises(RestoredJournalError):
        federation.nodes[CULPRIT]._journal.abandon(bytes(32), run_id=federation.run.round.run_id)


def test_a_journal_that_another_federations_run_halted_is_charged_for_nothing() -> None:
    federation = ready()
    node = federation.nodes[CULPRIT]
    node._journal.halt(10**6)
    error = void(federation, 0, 1)
    assert "PF-214" in str(error)
    assert node.ledger.entries == ()
    assert node._journal.queries.count() == 0
    assert federation.steps[CULPRIT].count("vote") == 0


def test_a_refusal_and_a_y_of_one_party_are_a_conflict() -> None:
    federation = ready()

    def both(answer: bytes) -> bytes:
        [frame] = wire.unpack(answer, max_bytes=2**20)
        vector = wire.expect(wire.decode(frame), MaskedVector)
        refusal = refusal_by(federation.identities[CULPRIT], vector.plan_digest)
        with pytest.raises(Exception, match="agree"):
            federation.run.round.receive(refusal)
        return wire.pack([frame])

    federation.on_vectors_of(CULPRIT, both)
    assert "PF-223" in str(void(federation, 0, 1))


# Coordinators that would have the same queries twice -------------------------------------------


def test_a_claimed_drop_out_does_not_free_the_queries() -> None:
    federation = ready()
    federation.on_vectors_of(CULPRIT, lambda answer: None)
    error = void(federation, 0, 1)
    assert not error.may_ask_again
    federation.heal()
    federation.forget_asked()  # a coordinator that asks all the same
    assert Reason.QUERIES in str(void(federation, 0, 1))
    assert all(steps.count("vote") == 1 for steps in federation.steps)


def a_forged_one(federation: Federation, plan: bytes) -> bytes:
    frame = Refusal(plan, federation.identities[CULPRIT].fingerprint, "PF-301")
    return wire.sign(frame, federation.identity).frame


def one_of_another_plan(federation: Federation, plan: bytes) -> bytes:
    return refusal_by(federation.identities[CULPRIT], bytes(32))


def one_of_the_run(federation: Federation, plan: bytes) -> bytes:
    return refusal_by(federation.identities[CULPRIT], federation.run.round.run_id)


def one_of_another_run(federation: Federation, plan: bytes) -> bytes:
    """What the same hospital truly signed, about the same queries, in a run before."""
    other = ready(policies={CULPRIT: {"most_queries": 1}})
    other.identities = federation.identities
    void(other, 0, 1)
    refused = wire.decode(settled(other).refusals[0]).message
    assert isinstance(refused, Refusal)
    return refusal_by(federation.identities[CULPRIT], refused.subject)


def a_strangers(federation: Federation, plan: bytes) -> bytes:
    return refusal_by(SigningIdentity.generate(), plan)


def the_victims_own(federation: Federation, plan: bytes) -> bytes:
    return refusal_by(federation.identities[0], plan)  # as if its key had been stolen


def no_refusal(federation: Federation, plan: bytes) -> bytes:
    return wire.sign(
        MaskedVector(plan, federation.identities[CULPRIT].fingerprint, b"y"),
        federation.identities[CULPRIT],
    ).frame


FALSE_REFUSALS = [
    pytest.param(a_forged_one, "PF-222", id="forged"),
    pytest.param(one_of_another_plan, "PF-244", id="of another plan"),
    pytest.param(one_of_the_run, "PF-244", id="of the run"),
    pytest.param(one_of_another_run, "PF-244", id="of another run"),
    pytest.param(a_strangers, "PF-244", id="a stranger's"),
    pytest.param(the_victims_own, "PF-244", id="the victim's own, who sent"),
    pytest.param(no_refusal, "PF-221", id="another message"),
]


@sampled()
@pytest.mark.parametrize(("forge", "code"), FALSE_REFUSALS)
def test_a_false_refusal_stops_a_party_and_frees_nothing(
    forge: Callable[[Federation, bytes], bytes], code: str
) -> None:
    federation = ready()
    federation.on_vectors_of(CULPRIT, lambda answer: None)
    void(federation, 0, 1)
    plan = settled(federation).plan_digest
    settle_otherwise(federation, refusals=(forge(federation, plan),))
    [answer] = tell(federation, 0, federation.settlement)
    assert isinstance(answer, Refusal)
    assert answer.reason == code
    assert federation.nodes[0].state is PartyState.STOPPED
    require_closed(federation, 0, 0, 1)


@pytest.mark.parametrize("form", ["additive", "masked"])
def test_a_refusal_of_who_is_said_to_have_sent_stops_a_party(form: str) -> None:
    federation = ready(form=form, parties=5, policies={p: {"most_queries": 1} for p in (1, 2)})
    void(federation, 0, 1)
    digests = list(settled(federation).contributions)
    digests[federation.seat_of(CULPRIT)] = bytes(32)
    settle_otherwise(federation, contributions=tuple(digests))
    [answer] = tell(federation, 0, federation.settlement)
    assert answer.reason == "PF-244"  # type: ignore[attr-defined]
    require_closed(federation, 0, 0, 1)


def test_a_released_settlement_has_no_refusals() -> None:
    federation = ready()
    federation.ask(0, 1)
    settle_otherwise(
        federation,
        refusals=(refusal_by(federation.identities[CULPRIT], settled(federation).plan_digest),),
    )
    [answer] = tell(federation, 0, federation.settlement)
    assert answer.reason == "PF-244"  # type: ignore[attr-defined]


ALL = frozenset({b"a", b"b", b"c", b"d"})


@pytest.mark.parametrize(
    ("seats", "allowed"),
    [
        pytest.param("abcd", True, id="the same hospitals"),
        pytest.param("abc", True, id="without who refused"),
        pytest.param("abd", False, id="without another"),
        pytest.param("ab", False, id="without another, too"),
        pytest.param("abce", False, id="with a new one"),
        pytest.param("abcde", False, id="with one more"),
    ],
)
def test_free_queries_are_free_for_those_who_were_left_and_nobody_new(
    seats: str, allowed: bool
) -> None:
    """Who refused may have lied: then the sum is open, and another set would give a difference."""
    bound = bound_on([PlanClaim.abandoned_by([b"d"], seats=ALL)])
    assert bound.allows([letter.encode() for letter in seats]) is allowed


def test_lying_refusers_get_no_sums_whose_differences_are_a_hospitals_votes() -> None:
    """One ally refuses and yet sends. The coordinator then asks two others with each honest one."""
    federation = ready(parties=5, policies={CULPRIT: {"most_queries": 1}})
    void(federation, 0, 1)
    node = federation.nodes[0]
    assert tell(federation, 0, federation.settlement) == []
    seats = list(federation.run.round.seats)
    ally = federation.identities[CULPRIT].fingerprint
    honest = [seat for seat in seats if seat not in (ally, node._identity.fingerprint)]
    bound = bound_at(federation, 0, 0, 1)
    assert bound.allows(seats)
    assert bound.allows([s for s in seats if s != ally])
    batch = federation.pool.ask((0, 1))
    for missing in honest:
        for without in ({missing}, {missing, ally}):
            others = [s for s in seats if s not in without]
            assert not bound.allows(others)
            with pytest.raises(RefusalError):
                node._guard.review_queries(
                    batch, queries=node._journal.queries, seats=others, threshold=len(others)
                )


# The masked form -------------------------------------------------------------------------------


def lose_plans(federation: Federation, *places: int) -> None:
    """Let no plan reach some parties; they hear all else."""
    federation.transport.on_query = lambda node, packet: (
        None if node in places and "Plan" in kinds(packet) else packet
    )


def lose_ys(federation: Federation, *places: int) -> None:
    """Let no y of some parties arrive; all else of theirs does."""
    federation.transport.on_answer = lambda node, answer: (
        None if node in places and "MaskedVector" in kinds(answer) else answer
    )


def refuse_some(federation: Federation, *places: int) -> None:
    """Have some parties refuse whatever asks more than one query."""
    for place in places:
        node = federation.nodes[place]
        policy = dataclasses.replace(node._guard.policy, most_queries=1)
        node._guard = dataclasses.replace(node._guard, policy=policy)


def masked_with_guards_of_before(federation: Federation) -> Callable[[], None]:
    """Return what puts the parties' guards and the network back as they are now."""
    guards = [node._guard for node in federation.nodes]

    def restore() -> None:
        federation.heal()
        for node, guard in zip(federation.nodes, guards, strict=True):
            node._guard = guard

    return restore


@sampled()
@pytest.mark.parametrize(
    "hinder",
    [
        pytest.param(lose_plans, id="plans that do not arrive"),
        pytest.param(lose_ys, id="y's that do not arrive"),
        pytest.param(refuse_some, id="refusals"),
    ],
)
def test_a_masked_plan_that_lacks_ys_is_closed_and_its_queries_are_asked_again(
    hinder: Callable[..., None],
) -> None:
    federation = ready(form="masked", parties=5)
    restore = masked_with_guards_of_before(federation)
    hinder(federation, 0, CULPRIT)
    error = void(federation, 0, 1)
    assert error.may_ask_again
    assert error.reservation == "cancelled"
    certificate = wire.expect(wire.decode(settled(federation).certificate), Certificate)
    assert certificate.survivors == ()
    assert certificate.plan_digest == settled(federation).plan_digest
    restore()
    assert federation.ask(0, 1).labels.tolist() == labels_of(0, 1)
    federation.run.close()
    assert federation.party_states(2) == ["cancelled", "committed"]
    left = {federation.run_ledger(place).left for place in range(5)}
    assert left == {federation.run.left}  # also of those who never heard of it
    assert len({node.transcript_head for node in federation.nodes}) == 1
    for place in range(5):
        assert federation.nodes[place]._journal.queries.count() == 2  # each once


@sampled()
@pytest.mark.parametrize("lost", ["Verdict", "Reveal"])
def test_masked_queries_stay_closed_once_a_set_was_agreed_to(lost: str) -> None:
    federation = ready(form="masked", parties=5)

    def on_answer(node: int, answer: bytes) -> Answer:
        return None if lost in kinds(answer) and node in (0, CULPRIT) else answer

    federation.transport.on_answer = on_answer
    error = void(federation, 0, 1)
    assert not error.may_ask_again
    assert bool(settled(federation).certificate) == (lost == "Reveal")
    federation.heal()
    federation.forget_asked()
    assert Reason.QUERIES in str(void(federation, 0, 1))
    for place in range(5):
        require_closed(federation, place, 0, 1)


def test_nothing_is_revealed_for_a_plan_whose_queries_are_free_again() -> None:
    federation = ready(form="masked", parties=5)
    lose_plans(federation, 0, CULPRIT)
    void(federation, 0, 1)
    plan = settled(federation).plan_digest
    assert tell(federation, 2, federation.settlement) == []
    journal = federation.nodes[2]._journal
    assert bound_at(federation, 2, 0, 1) == ANY_SET
    run_id, seats = federation.run.round.run_id, federation.run.round.seats
    with pytest.raises(KeyReuseError):
        journal.decide(plan, wire.digest_of(Verdict(plan, seats)), run_id=run_id)
    late = wire.sign(SetProposal(run_id, plan, seats), federation.identity).frame
    false = wire.contain(Certificate(plan, seats, seats[:4], (bytes(64),) * 4))
    for frame in (late, false):
        [answer] = tell(federation, 2, frame)
        assert isinstance(answer, Refusal)
    [answer] = messages(federation.restart(2).receive(wire.pack([late])))
    assert isinstance(answer, Refusal)


# Waiting ---------------------------------------------------------------------------------------


def answers_at_try(federation: Federation, place: int, tries: int) -> list[bytes]:
    """Let a party hear a plan at its n-th copy; return all copies that it was sent."""
    seen: list[bytes] = []

    def on_query(node: int, packet: bytes) -> bytes | None:
        if node != place or "Plan" not in kinds(packet):
            return packet
        seen.append(packet)
        return packet if len(seen) >= tries else None

    federation.transport.on_query = on_query
    return seen


@sampled()
@FORMS
def test_a_silent_party_gets_the_same_plan_again_and_nobody_else_does(
    form: str, parties: int
) -> None:
    federation = ready(form=form, parties=parties, patience_s=600)
    copies = answers_at_try(federation, CULPRIT, 4)
    before = federation.now
    assert federation.ask(0, 1).labels.tolist() == labels_of(0, 1)
    assert len(copies) == 4
    assert len(set(copies)) == 1
    assert federation.now == before + 1 + 2 + 4  # each pause is twice the one before
    assert federation.transport.events.count("exchange Plan") == 4
    assert all(steps.count("vote") == 1 for steps in federation.steps)
    assert len(told(federation, Plan)) == parties + 3
    federation.run.close()
    assert federation.party_states(CULPRIT) == ["committed"]


def test_an_answer_that_got_lost_is_sent_again_and_no_teacher_is_asked_twice() -> None:
    federation = ready(patience_s=600)
    lost: list[bytes] = []

    def once(answer: bytes) -> Answer:
        lost.append(answer)
        return None if len(lost) == 1 else answer

    federation.on_vectors_of(CULPRIT, once)
    assert federation.ask(0, 1).labels.tolist() == labels_of(0, 1)
    assert lost[0] == lost[1]
    assert federation.steps[CULPRIT].count("vote") == 1


@sampled()
@pytest.mark.parametrize(("patience_s", "waited"), [(0, 0), (10, 10), (10_000, 3600)])
def test_patience_ends_by_itself_or_with_the_plan(patience_s: float, waited: float) -> None:
    federation = ready(patience_s=patience_s)
    federation.lose(CULPRIT)
    before = federation.now
    void(federation, 0, 1)
    assert federation.now == before + waited


def test_masked_does_without_a_party_after_a_patience_shorter_than_its_grace() -> None:
    federation = ready(form="masked", parties=5, patience_s=10)
    federation.lose(CULPRIT)
    assert federation.ask(0, 1).labels.tolist() == labels_of(0, 1)
    assert federation.run.lost == ((federation.names[CULPRIT],),)
    assert federation.now == 1_010


def test_a_masked_batch_that_can_open_waits_a_moment_and_once_for_a_silent_party() -> None:
    federation = ready(form="masked", parties=5, patience_s=86_400)
    federation.lose(CULPRIT)
    for batch, waited in enumerate((GRACE_S, 0, 0)):
        before = federation.now
        federation.ask(batch)
        assert federation.now == before + waited
    federation.heal()
    federation.ask(3)  # it is asked all the same, and catches up
    assert federation.run.lost == (((federation.names[CULPRIT],),) * 3 + ((),))
    federation.lose(CULPRIT)
    before = federation.now
    federation.ask(4)
    assert federation.now == before + GRACE_S


@pytest.mark.slow
@pytest.mark.parametrize("batches", [2 * MOST_UNSERVED, more(60)])
def test_a_masked_run_with_a_restart_ends_like_a_quiet_one(batches: int) -> None:
    federation = ready(form="masked", parties=5, pool=batches, patience_s=86_400)
    for batch in range(batches):
        if batch == 3:
            federation.restart(CULPRIT)
        assert federation.ask(batch).labels.tolist() == labels_of(batch)
    federation.run.close()
    assert federation.now == 1_000
    assert len(federation.run.lost[2:]) == batches - 2
    assert set(federation.run.lost[3:]) == {(federation.names[CULPRIT],)}
    # One plan reached it after its restart, none after it had said that its keys are gone.
    assert len(told(federation, Plan)) == 5 * batches - (batches - 4)
    assert federation.run.not_heard == (federation.names[CULPRIT],)


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(lambda a: b"garbage", id="garbage"),
        pytest.param(lambda a: a[:-1], id="a byte missing"),
    ],
)
def test_who_breaks_the_protocol_is_not_waited_for(answer: Callable[[bytes], bytes]) -> None:
    federation = ready(patience_s=600)
    federation.on_vectors_of(CULPRIT, answer)
    void(federation, 0, 1)
    assert federation.now == 1_000


def test_nobody_is_waited_for_once_a_party_has_refused() -> None:
    federation = ready(patience_s=600, policies={CULPRIT: {"most_queries": 1}})
    federation.lose(0)
    assert void(federation, 0, 1).may_ask_again
    assert federation.now == 1_000


@sampled()
@FORMS
def test_a_y_that_comes_after_all_changes_nothing(form: str, parties: int) -> None:
    federation = ready(form=form, parties=parties)
    late: list[bytes] = []

    def keep(answer: bytes) -> None:
        late.extend(wire.unpack(answer, max_bytes=2**20))

    federation.on_vectors_of(CULPRIT, keep)
    if form == "additive":
        void(federation, 0, 1)
    else:
        federation.ask(0, 1)
    federation.heal()
    head, seat = federation.run.round.transcript.head, federation.identities[CULPRIT].fingerprint
    for frame in late:
        with pytest.raises(LateMessageError) as caught:
            federation.run.round.receive(frame, peer=seat)
        assert caught.value.code == "PF-243"
    assert federation.run.round.transcript.head == head
    # In front of an answer to the next plan it is no fault either.
    federation.on_vectors_of(
        CULPRIT,
        lambda answer: wire.pack([*late, *wire.unpack(answer, max_bytes=2**20)]),
    )
    assert federation.ask(2, 3).labels.tolist() == labels_of(2, 3)


def test_teachers_that_take_longer_than_the_plan_leave_a_party_silent_for_good() -> None:
    federation = ready(lifetime_s=100)
    node = federation.nodes[CULPRIT]
    vote, plans = node._agreed_run.task.vote, []

    def slow(batch: Any) -> Any:
        federation.now += 200
        return vote(batch)

    federation.replace_vote(CULPRIT, slow)

    def on_query(n: int, packet: bytes) -> bytes:
        if n == CULPRIT:
            plans.append(packet)
        return packet

    federation.transport.on_query = on_query
    void(federation, 0, 1)
    assert federation.steps[CULPRIT] == ["ledger reserved", "claim", "vote"]
    federation.now = 1_050  # and should its clock be set back
    assert messages(node.receive(plans[-1])) == []
    assert federation.steps[CULPRIT] == ["ledger reserved", "claim", "vote"]


def stored_ys(federation: Federation, place: int) -> int:
    journal = federation.nodes[place]._journal
    return sum(journal.find(plan) is not None for plan in plans_in(journal))


def test_ys_of_expired_plans_are_erased_when_a_party_starts() -> None:
    federation = ready()
    federation.ask(0, 1)
    federation.now += 3_599
    federation.restart(CULPRIT)
    assert stored_ys(federation, CULPRIT) == 1
    federation.now += 1
    federation.restart(CULPRIT)
    assert stored_ys(federation, CULPRIT) == 0
    assert (
        federation.nodes[CULPRIT]._journal.queries.count() == 2
    )  # what was asked is known for ever


@sampled()
@pytest.mark.parametrize("kept", [False, True], ids=["a run that is gone", "its own run"])
def test_ys_of_expired_plans_are_erased_with_each_plan(kept: bool) -> None:
    federation = ready(lifetime_s=100)
    federation.ask(0, 1)
    federation.restart(CULPRIT)
    assert stored_ys(federation, CULPRIT) == 1
    federation.now += 100
    lost = federation.run.round.run_id
    federation.run = federation.another_run()
    if kept:
        federation.run.set_up()
        federation.run.ask((2, 3))
        assert stored_ys(federation, CULPRIT) == 1  # the new one
    else:
        plan = Plan(lost, 9, 0, bytes(32), 6, 5_000, b"")
        assert len(tell(federation, CULPRIT, wire.sign(plan, federation.identity).frame)) == 1
        assert stored_ys(federation, CULPRIT) == 0


# A party that missed a part --------------------------------------------------------------------


@pytest.mark.slow
def test_who_missed_more_settlements_than_a_packet_holds_is_told_them_in_parts() -> None:
    federation = ready(form="masked", parties=5, pool=60)
    federation.lose(CULPRIT)
    for index in range(18):
        federation.ask(index)
    federation.heal()
    federation.ask(18)  # it hears of the first of them
    federation.ask(19)  # of the others, and serves
    federation.run.close()
    assert federation.party_states(CULPRIT) == ["committed"]
    assert len({node.transcript_head for node in federation.nodes}) == 1
    assert len({federation.run_ledger(place).left for place in range(5)}) == 1


def test_a_released_batch_without_ones_own_y_stops_a_party_of_the_additive_form() -> None:
    federation = ready()
    federation.lose(CULPRIT)
    void(federation, 0, 1)
    federation.heal()
    settle_otherwise(federation, state="released")
    [answer] = tell(federation, CULPRIT, federation.settlement)
    assert answer.reason == "PF-229"  # type: ignore[attr-defined]
    assert federation.nodes[CULPRIT].state is PartyState.STOPPED


# New offers ------------------------------------------------------------------------------------

STATES = [
    "stated",
    "sealed",
    "confirmed",
    "ready",
    "sent",
    "judged",
    "certified",
    "revealed",
    "refused",
    "closed",
    "done",
    "stopped",
]


def federation_in(state: str) -> tuple[Federation, list[bytes]]:
    """A federation whose first party is in a state, and every offer that it heard."""
    form = "masked" if state in ("judged", "certified", "revealed") else "additive"
    policies = {0: {"most_queries": 1}} if state == "refused" else {}
    federation = Federation(parties=5, form=form, policies=policies)
    offers: list[bytes] = []
    node = federation.nodes[0]

    class Reached(Exception):  # noqa: N818 - no error: it stops the run
        pass

    def on_answer(place: int, answer: bytes) -> bytes:
        if place == 0 and node.state.value == state:
            raise Reached
        return answer

    def on_query(place: int, packet: bytes) -> bytes:
        frames = wire.unpack(packet, max_bytes=2**24)
        offers.extend(f for f in frames if isinstance(wire.decode(f).message, RunOffer))
        if place == 0 and state == "certified" and "VerdictMacs" in kinds(packet):
            return wire.pack(frames[:1])
        return packet

    federation.transport.on_answer, federation.transport.on_query = on_answer, on_query
    try:
        federation.run.set_up()
        federation.ask(0, 1)
        if state == "stopped":
            node._round.give_up()
        else:
            federation.run.close()
    except Reached:
        pass
    assert node.state.value == state
    federation.heal()
    return federation, offers


@sampled()
@pytest.mark.parametrize("state", STATES)
def test_an_offer_seen_before_never_ends_a_run(state: str) -> None:
    federation, offers = federation_in(state)
    node, before = federation.nodes[0], federation.nodes[0]._round
    for offer in offers:
        node.receive(wire.pack([offer]))
        assert node._round is before
        assert node.state.value == state


@sampled()
@pytest.mark.parametrize("state", STATES)
def test_a_new_offer_is_taken_in_any_state_and_the_open_batch_stays_charged(state: str) -> None:
    federation, _ = federation_in(state)
    node, old = federation.nodes[0], federation.nodes[0]._round
    fresh = Federation(parties=5)
    offer = wire.expect(wire.decode(fresh.run.round.setup.offer.frame), RunOffer)
    genuine = dataclasses.replace(offer, coordinator_key=federation.identity.public.key)
    for bad in (
        wire.sign(genuine, SigningIdentity.generate()).frame,
        wire.sign(offer, federation.identity).frame,  # another coordinator's key
        wire.sign(dataclasses.replace(genuine, expires_at=10), federation.identity).frame,
    ):
        [answer] = messages(node.receive(wire.pack([bad])))
        assert isinstance(answer, Refusal)
        assert node._round is old
        assert node.state.value == state
    answer = node.receive(wire.pack([wire.sign(genuine, federation.identity).frame]))
    assert kinds(answer) == ["KeyStatement"]
    assert node.state is PartyState.STATED
    assert old.state is PartyState.STOPPED
    assert old.roots._roots == {}
    for entry in node.ledger.entries:  # it may be settled yet
        assert entry.charged == entry.reserved


def test_a_run_that_was_lost_is_followed_by_another_with_the_same_hospitals() -> None:
    federation = ready()
    federation.ask(0, 1)
    later = federation.another_run()
    later.set_up()
    assert later.ask((2, 3)).labels.tolist() == labels_of(2, 3)
    later.close()
    for place in range(4):
        assert federation.party_states(place) == ["reserved", "committed"]
        assert federation.nodes[place].state is PartyState.DONE


def test_a_later_run_without_the_lost_hospital_asks_the_same_queries() -> None:
    federation = ready()
    restart_when_asked(federation, CULPRIT)
    void(federation, 0, 1)
    federation.heal()
    federation.run.close()
    later = federation.another_run(without=CULPRIT)
    later.set_up()
    assert later.ask((0, 1)).labels.tolist() == labels_of(0, 1)
    later.close()
    for place in (0, 2, 3):
        assert federation.party_states(place) == ["returned", "committed"]


def test_a_later_run_without_another_hospital_does_not() -> None:
    federation = ready()
    restart_when_asked(federation, CULPRIT)
    void(federation, 0, 1)
    federation.heal()
    federation.run.close()
    later = federation.another_run(without=0)
    later.set_up()
    with pytest.raises(VoidBatchError, match=Reason.QUERIES):
        later.ask((0, 1))
    refused = {federation.identities[place].fingerprint for place in (2, 3)}
    [plan] = later.round.settled
    signed = [wire.expect(wire.decode(frame), Refusal) for frame in plan.settlement.refusals]
    assert {refusal.sender for refusal in signed} == refused
    assert all(federation.steps[place].count("vote") == 1 for place in (2, 3))


def test_a_settlement_that_comes_twice_changes_no_charge() -> None:
    federation = ready()
    federation.ask(0, 1)
    federation.run.close()
    store = federation.nodes[0]._ledger
    account = RunAccount.find(store, run_id=federation.run.round.run_id)
    assert account is not None
    settlement, before = told(federation, Settlement)[0], (store.load(), account.ledger)
    [entry] = store.load().entries
    me = federation.identities[0].fingerprint
    again = account.settle(
        settlement, None, entry_id=entry.entry_id, queries=2, me=me, most_returned=1.0
    )
    assert again is None
    assert (store.load(), account.ledger) == before


# Closing ---------------------------------------------------------------------------------------


def lose_at_closing(federation: Federation, *places: int) -> None:
    def on_query(node: int, packet: bytes) -> bytes | None:
        closing = {"Closing", "HeadBundle"} & set(kinds(packet))
        return None if node in places and closing else packet

    federation.transport.on_query = on_query


@sampled()
@pytest.mark.parametrize(
    "how",
    [
        pytest.param(lambda f: lose_at_closing(f, CULPRIT), id="no word"),
        pytest.param(lambda f: f.restart(CULPRIT), id="restarted"),
    ],
)
@FORMS
def test_a_hospital_that_is_lost_at_the_closing_is_named_by_all_others(
    form: str, parties: int, how: Callable[[Federation], object]
) -> None:
    federation = ready(form=form, parties=parties)
    federation.ask(0, 1)
    how(federation)
    federation.run.close()
    assert federation.run.not_heard == (federation.names[CULPRIT],)
    heard = [seat for seat in federation.run.round.seats
             if seat != federation.identities[CULPRIT].fingerprint]  # fmt: skip
    assert federation.run.round.closing.heads_compared == tuple(heard)
    for place in range(parties):
        node = federation.nodes[place]
        assert (node.state is PartyState.DONE) is (place != CULPRIT)
        assert node.heads_compared == (() if place == CULPRIT else tuple(heard))
    [bundle, *_] = told(federation, HeadBundle)
    assert bundle.statements[federation.seat_of(CULPRIT)] == b""


@pytest.mark.parametrize(("form", "lost"), [("additive", 3), ("masked", 2)])
def test_too_few_heads_fail_a_run(form: str, lost: int) -> None:
    federation = ready(form=form, parties=5)
    federation.ask(0, 1)
    lose_at_closing(federation, *range(lost))
    with pytest.raises(PartyFailedError):
        federation.run.close()
    assert told(federation, HeadBundle) == []


def test_a_party_refuses_a_bundle_of_too_few_heads() -> None:
    federation = ready(parties=5)
    federation.ask(0, 1)

    def on_query(node: int, packet: bytes) -> bytes:
        if "HeadBundle" not in kinds(packet):
            return packet
        [bundle] = messages(packet)
        assert isinstance(bundle, HeadBundle)
        few = (*bundle.statements[:2], b"", b"", b"")
        return wire.pack([wire.contain(dataclasses.replace(bundle, statements=few))])

    federation.transport.on_query = on_query
    with pytest.raises(PartyFailedError, match="PF-251"):
        federation.run.close()
    assert {node.state for node in federation.nodes} == {PartyState.STOPPED}


def test_a_wrong_head_stops_a_run_though_enough_are_right() -> None:
    federation = ready(parties=5)
    federation.ask(0, 1)
    node = federation.nodes[CULPRIT]
    node._round.transcript = node._round.transcript.append("plan", bytes(32))
    with pytest.raises(PartyFailedError, match="PF-229"):
        federation.run.close()


def test_a_node_that_is_down_is_waited_for_like_a_silent_one() -> None:
    federation = ready(patience_s=600)
    down = [True, True, False]

    def on_answer(answer: bytes) -> Answer:
        return Silence("flower error 5") if down.pop(0) else answer

    federation.on_vectors_of(CULPRIT, on_answer)
    assert federation.ask(0, 1).labels.tolist() == labels_of(0, 1)


# Settlements of another setup --------------------------------------------------------------------


def test_a_settlement_of_an_earlier_setup_settles_no_plan_of_this_one() -> None:
    """With an ally's refusal it would give a charge back, and the labels came out for nothing."""
    federation = ready()
    earlier = federation.run.round.run_id
    federation.ask(8)
    federation.set_up_anew()
    federation.ask(0, 1)
    plan = settled(federation).plan_digest
    false = dataclasses.replace(
        settled(federation),
        run_id=earlier,
        state="void",
        result=b"",
        refusals=(refusal_by(federation.identities[2], plan),),
        contributions=(b"",) * 4,
    )
    tell(federation, 0, wire.sign(false, federation.identity).frame)
    assert federation.party_states(0) == ["committed", "reserved"]
    assert tell(federation, 0, federation.settlement) == []
    assert federation.party_states(0) == ["committed", "committed"]


@sampled()
@FORMS
def test_who_was_restarted_is_told_how_its_last_batch_ended(form: str, parties: int) -> None:
    federation = ready(form=form, parties=parties)
    federation.ask(0, 1)
    federation.restart(CULPRIT)
    assert federation.party_states(CULPRIT) == ["reserved"]
    federation.set_up_anew()
    assert federation.party_states(CULPRIT) == ["committed"]
    left = federation.store.ledger().left
    assert {federation.run_ledger(place).left for place in range(parties)} == {left}
    assert federation.ask(2, 3).labels.tolist() == labels_of(2, 3)


def test_who_never_saw_a_void_batch_counts_it_as_the_others_do_after_a_new_setup() -> None:
    """It was charged nothing in that setup, and has the run's account all the same."""
    federation = ready(terms={"max_asks": 6})
    federation.transport.on_query = lambda node, packet: (
        None if node == CULPRIT and "Plan" in kinds(packet) else packet
    )
    void(federation, 0, 1, 2)
    federation.heal()
    federation.restart(CULPRIT)
    federation.set_up_anew()
    left = federation.store.ledger().left
    assert {federation.run_ledger(place).left for place in range(4)} == {left}


@sampled()
@pytest.mark.parametrize("lost", ["the packet", "the answer", "room on the disk"])
def test_a_setup_waits_until_a_hospital_has_all_settlements_of_the_one_before(
    lost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation = ready()
    federation.ask(0, 1)
    node = federation.restart(CULPRIT)

    def on_query(place: int, packet: bytes) -> bytes | None:
        is_told = place == CULPRIT and kinds(packet) == ["Settlement"]
        return None if is_told and lost == "the packet" else packet

    def on_answer(place: int, answer: bytes) -> Answer:
        is_told = place == CULPRIT and not kinds(answer)
        return None if is_told and lost == "the answer" else answer

    def fail(*_: object, **__: object) -> None:
        raise StorageError("the disk must have room", "none")

    federation.transport.on_query, federation.transport.on_answer = on_query, on_answer
    with monkeypatch.context() as patched:
        if lost == "room on the disk":
            patched.setattr(node._ledger, "save_run", fail)
        owed = federation.run.round.unheard()
        with pytest.raises(PartyFailedError) as caught:
            federation.set_up_anew()
    assert caught.value.is_silent  # it is tried again
    federation.heal()
    federation.set_up_anew(owed=owed)
    assert federation.party_states(CULPRIT) == ["committed"]
    assert federation.ask(2, 3).labels.tolist() == labels_of(2, 3)


def test_nothing_is_told_again_to_who_compared_its_head() -> None:
    federation = ready()
    federation.ask(0, 1)
    lose_at_closing(federation, CULPRIT)
    federation.run.close()
    absent = federation.identities[CULPRIT].fingerprint
    told = {seat: len(frames) for seat, frames in federation.run.round.unheard().items()}
    assert told == {seat: int(seat == absent) for seat in federation.run.round.seats}


@pytest.mark.parametrize("left_out", ["everybody", "another one"])
def test_a_late_release_that_not_all_are_in_is_none(left_out: str) -> None:
    """An additive sum opens with every vector, or not at all."""
    federation = ready()
    federation.ask(0, 1)
    federation.restart(CULPRIT)
    seat = 0 if left_out == "another one" else slice(None)
    listed = list(settled(federation).contributions)
    listed[seat] = b"" if left_out == "another one" else [b""] * 4
    false = dataclasses.replace(settled(federation), contributions=tuple(listed))
    [refusal] = tell(federation, CULPRIT, wire.sign(false, federation.identity).frame)
    assert isinstance(refusal, Refusal)
    assert federation.party_states(CULPRIT) == ["reserved"]
    assert tell(federation, CULPRIT, federation.settlement) == []
    assert federation.party_states(CULPRIT) == ["committed"]


def test_made_up_void_batches_of_an_earlier_setup_use_up_no_more_than_it_can_have() -> None:
    federation = ready(terms={"max_asks": 12})
    federation.ask(0, 1)
    last = settled(federation)
    federation.run.close()
    federation.set_up_anew()
    for number in range(5):
        false = dataclasses.replace(
            last, plan_digest=bytes([number]) * 32, state="void", result=b"",
            contributions=(b"",) * 4,
        )  # fmt: skip
        for _ in range(2):
            tell(federation, 0, wire.sign(false, federation.identity).frame)
    left = federation.run_ledger(0).left.asks
    assert left == federation.store.ledger().left.asks - 2 * MOST_VOID_BATCHES
