"""A coordinator that cheats, against whole parties, in every kind of run.

Each attack is made with the coordinator's own true signature. What must hold: no label of what was
attacked comes out, no party votes on what it must not, and what a coordinator adds up is noise.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from coordinator.errors import PartyFailedError, PartyRefusedError, VoidBatchError
from coordinator.runs.labeling import LabelingRun, Member
from party.errors import Reason
from pate_fed.mechanisms import keyed_stream
from pate_fed.votes import TeacherWeights
from protocols import wire
from protocols.envelope import SealingKey
from protocols.fields import Message
from protocols.identity import PublicIdentity, SigningIdentity
from protocols.masked import MaskedSum
from protocols.messages import (
    Certificate,
    Envelope,
    EnvelopeBundle,
    KeyStatement,
    Plan,
    Reveal,
    RunOffer,
    RunRecord,
    SetProposal,
    Settlement,
    Verdict,
)
from protocols.rounds import PartyState
from protocols.values import decode_value, encode_value
from tests.support.attacked import (
    KINDS,
    MOST_BYTES,
    PARTIES,
    Kind,
    additive_kinds,
    bodies,
    codes,
    every_kind,
    last_codes,
    lied,
    looks_like_noise,
    masked_kinds,
    plan_codes,
    tell,
    votes_cast,
)
from tests.support.federation import (
    CLASSES,
    FORMS,
    Federation,
    holds_vector,
    kinds,
    labels_of,
    messages,
)
from tests.support.markers import sampled
from tests.support.rules import changed_record, with_other

VICTIM = 1


# One plan for all ---------------------------------------------------------------------------------


def _other_queries(plan: Plan) -> dict[str, Any]:
    terms: Any = decode_value(plan.terms)
    return {"terms": encode_value({**terms, "indices": [3, 4]})}


OTHER_PLANS = [
    pytest.param(lambda plan: {"batch": 7}, id="another batch"),
    pytest.param(lambda plan: {"expires_at": plan.expires_at - 1}, id="another expiry"),
    pytest.param(_other_queries, id="other queries"),
]


@sampled()
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("changed", OTHER_PLANS)
def test_different_plans_for_different_parties_open_nothing(
    kind: Kind, changed: Callable[[Plan], dict[str, Any]]
) -> None:
    federation = kind.ready()

    def lie(message: Message) -> Message:
        if isinstance(message, Plan):
            return dataclasses.replace(message, **changed(message))
        return message

    tell(federation, [0, 1], lie)
    with pytest.raises(VoidBatchError) as void:
        federation.ask(0, 1)
    assert void.value.reservation == "forfeited"
    ys = bodies(federation, words=2 * CLASSES)
    assert len(ys) == PARTIES  # a cheat has them all
    assert looks_like_noise(np.sum(ys, axis=0, dtype=np.uint32))
    assert looks_like_noise(np.sum(ys[:2], axis=0, dtype=np.uint32))
    assert looks_like_noise(np.sum(ys[2:], axis=0, dtype=np.uint32))
    assert federation.store.releases() == {}


@sampled()
@every_kind
def test_parties_that_answered_other_plans_serve_no_later_one_together(kind: Kind) -> None:
    federation = kind.ready()
    tell(
        federation,
        [0, 1],
        lambda message: (
            dataclasses.replace(message, batch=7) if isinstance(message, Plan) else message
        ),
    )
    with pytest.raises(VoidBatchError):
        federation.ask(0, 1)
    federation.heal()
    voted = votes_cast(federation)
    # The settlement is of a plan that two of them never saw.
    with pytest.raises(VoidBatchError):
        federation.ask(3, 4)
    assert votes_cast(federation)[:2] == voted[:2]
    assert {node.state for node in federation.nodes[:2]} == {PartyState.STOPPED}
    assert federation.store.releases() == {}


# Nothing twice ------------------------------------------------------------------------------------


@sampled()
@every_kind
def test_a_replayed_plan_gets_no_new_vote_and_after_its_settlement_no_y(kind: Kind) -> None:
    federation = kind.ready()
    sent: list[tuple[int, bytes]] = []

    def on_query(node: int, packet: bytes) -> bytes:
        sent.append((node, packet))
        return packet

    federation.transport.on_query = on_query
    assert federation.ask(0, 1).labels.tolist() == labels_of(0, 1)
    federation.ask(2)  # tells all how the first batch was settled
    voted = votes_cast(federation)
    charged = [node.ledger.entries for node in federation.nodes]
    for node, packet in sent:
        answer = federation.nodes[node].receive(packet)
        plans = [m for m in map(_message, _frames(packet)) if isinstance(m, Plan)]
        is_open = any(plan.batch == 1 for plan in plans)
        assert not holds_vector(answer) or is_open
    assert votes_cast(federation) == voted
    assert [node.ledger.entries for node in federation.nodes] == charged


def did_nothing(federation: Federation) -> bool:
    """Whether no party charged, noted, voted or sent: all that it may do is promise not to."""
    return all(set(steps) <= {"abandon"} for steps in federation.steps)


def _frames(packet: bytes) -> list[bytes]:
    return list(wire.unpack(packet, max_bytes=MOST_BYTES))


def _message(frame: bytes) -> Message:
    return wire.decode(frame).message


@sampled()
@every_kind
def test_a_batch_asked_again_under_a_new_plan_is_refused_by_all(kind: Kind) -> None:
    federation = kind.ready()
    federation.ask(0, 1)
    voted = votes_cast(federation)
    federation.forget_asked()
    with pytest.raises(VoidBatchError, match=Reason.QUERIES) as void:
        federation.ask(1, 2)
    assert void.value.reservation == "cancelled"  # nothing left anybody
    assert votes_cast(federation) == voted


@sampled()
@additive_kinds
def test_a_y_that_is_dropped_is_not_sent_for_the_same_queries_again(kind: Kind) -> None:
    """Drop one party's y, ask again: two sums without and with it would tell its votes."""
    federation = kind.ready()
    federation.on_vectors_of(VICTIM, lambda answer: None)
    with pytest.raises(VoidBatchError) as void:
        federation.ask(0, 1)
    assert void.value.reservation == "forfeited"
    federation.heal()
    federation.forget_asked()
    voted = votes_cast(federation)
    with pytest.raises(VoidBatchError, match=Reason.QUERIES):
        federation.ask(0, 1)
    assert votes_cast(federation) == voted == [1] * PARTIES


@sampled()
@masked_kinds
def test_a_drop_out_that_was_claimed_is_not_made_good_by_asking_again(kind: Kind) -> None:
    federation = kind.ready()
    federation.on_vectors_of(VICTIM, lambda answer: None)
    assert federation.ask(0, 1).labels.tolist() == labels_of(0, 1)
    federation.heal()
    federation.forget_asked()
    voted = votes_cast(federation)
    with pytest.raises(VoidBatchError, match=Reason.QUERIES):
        federation.ask(0, 1)
    assert votes_cast(federation) == voted
    # Its y, which a cheat kept, is under its own stream still: it fits neither sum.
    ys = bodies(federation, words=2 * CLASSES)
    assert all(looks_like_noise(y) for y in ys)


def second_run(federation: Federation, places: list[int]) -> LabelingRun:
    """Another run of the same coordinator over some of the same nodes."""
    members = [Member(federation.names[p], federation.identities[p].public) for p in places]
    return LabelingRun(
        federation.job(
            members=members,
            terms=lambda seated: _fewer(federation, seated),
            random_bytes=np.random.default_rng(5).bytes,
            noise_bytes=keyed_stream(bytes(32), tag="noise of another run"),
        )
    )


def _fewer(federation: Federation, seated: tuple[Member, ...]) -> Any:
    terms = federation.run.terms
    count = len(seated)
    fewer: dict[str, Any] = {
        "weights": tuple(federation.weights[federation.names.index(one.name)] for one in seated),
        "budgets": terms.budgets[:count],
    }
    if terms.rule.vote_threshold is not None:
        fewer["vote_threshold"] = terms.rule.vote_threshold * count / len(terms.weights)
    if terms.rule.dropouts is not None:
        fewer["dropouts"] = count - FORMS[federation.form]().threshold(count)
    return with_other(terms, **fewer)


@sampled()
@every_kind
def test_the_same_query_in_another_run_without_one_party_is_refused(kind: Kind) -> None:
    """sum(all) - sum(all without i) is exactly i's votes (rule R3)."""
    federation = kind.ready(parties=6)
    federation.ask(0, 1)
    federation.run.close()
    voted = votes_cast(federation)
    places = [place for place in range(6) if place != VICTIM]
    federation.transport.doors = [federation.nodes[place] for place in places]
    run = second_run(federation, places)
    run.set_up()
    with pytest.raises(VoidBatchError, match=Reason.QUERIES):
        run.ask((1, 2))
    assert votes_cast(federation) == voted
    # The very same parties answer what they were never asked.
    assert run.ask((3, 4)).labels.tolist() == labels_of(3, 4)


# One party set ------------------------------------------------------------------------------------


@sampled()
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "told", [pytest.param([0], id="one party"), pytest.param([0, 1, 2], id="three parties")]
)
def test_a_run_record_without_one_party_for_some_sets_nothing_up(
    kind: Kind, told: list[int]
) -> None:
    """The party set changes between two messages: some are told of five, some of six."""
    federation = kind.federation(parties=6)

    def lie(message: Message) -> Message:
        if not isinstance(message, RunRecord):
            return message
        last = federation.identities[5].fingerprint
        kept = [
            (frame, seat)
            for seat, frame in enumerate(message.statements)
            if _fingerprint(frame) != last
        ]
        seated = tuple(member for member in federation.run.members if member.name != "hospital-5")
        terms = _fewer(federation, seated)
        threshold = FORMS[federation.form]().threshold(5)
        return dataclasses.replace(
            message,
            statements=tuple(frame for frame, _ in kept),
            threshold=threshold,
            dropouts=5 - threshold,
            colluders=min(message.colluders, FORMS[federation.form]().most_colluders(5)),
            terms=encode_value(terms.as_record()),
        )

    tell(federation, told, lie)
    with pytest.raises((PartyFailedError, PartyRefusedError)) as failed:
        federation.run.set_up()
    assert failed.value.party in [federation.names[place] for place in told]
    # They agreed to a run of five: their envelopes are of that run, and open in no other.
    agreed = {federation.nodes[place]._round.run_id for place in told}
    others = {node._round.run_id for p, node in enumerate(federation.nodes) if p not in told}
    assert len(agreed) == len(others) == 1
    assert agreed != others
    for place in told:
        mine = _envelopes_of(federation, place)
        bundle = EnvelopeBundle(next(iter(others)), tuple(mine))
        answer = federation.nodes[5].receive(wire.pack([wire.contain(bundle)]))
        assert codes(answer)
        assert federation.nodes[5].state is PartyState.STOPPED
    assert votes_cast(federation) == [0] * 6


def _fingerprint(statement: bytes) -> bytes:
    message = _message(statement)
    assert isinstance(message, KeyStatement)
    return PublicIdentity(message.identity_key).fingerprint


def _envelopes_of(federation: Federation, place: int) -> list[bytes]:
    for node, answer in federation.transport.answers:
        for frame in _frames(answer):
            message = _message(frame)
            if node == place and isinstance(message, EnvelopeBundle):
                return list(message.envelopes)
    raise AssertionError(place)


@sampled()
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda w: w[:-1], id="without one party"),
        pytest.param(lambda w: (*w, w[0]), id="with one more"),
        pytest.param(lambda w: (TeacherWeights.equal(1), *w[1:]), id="with another quota"),
    ],
)
def test_a_batch_over_another_party_set_than_the_runs_is_refused(
    kind: Kind, change: Callable[[Any], Any]
) -> None:
    federation = kind.ready()

    def lie(message: Message) -> Message:
        if not isinstance(message, Plan):
            return message
        terms: Any = decode_value(message.terms)
        weights = change(federation.run.terms.weights)
        record = federation.run.terms.as_record()
        run = {**terms["run"], "weights": [[list(r) for r in w.runs] for w in weights]}
        assert set(run) == set(record)
        return dataclasses.replace(message, terms=encode_value({**terms, "run": run}))

    tell(federation, range(PARTIES), lie)
    with pytest.raises(VoidBatchError):
        federation.ask(0, 1)
    assert plan_codes(federation) == [Reason.TERMS] * PARTIES
    assert did_nothing(federation)


@sampled()
@every_kind
def test_a_settlement_of_another_set_than_the_one_that_sent_stops_the_party(kind: Kind) -> None:
    """A release that says that the victim was not in it."""
    federation = kind.ready()

    def lie(message: Message) -> Message:
        if not isinstance(message, Settlement):
            return message
        seat = federation.seat_of(VICTIM)
        listed = list(message.contributions)
        listed[seat] = b""
        return dataclasses.replace(message, contributions=tuple(listed))

    tell(federation, range(PARTIES), lie)
    federation.ask(0, 1)
    with pytest.raises((VoidBatchError, PartyFailedError)):
        federation.ask(3, 4)
    # Additive: it is not whole. Masked: it is not the set that they revealed shares for.
    assert {node.state for node in federation.nodes} == {PartyState.STOPPED}
    assert max(votes_cast(federation)) == 1


# Survivors ----------------------------------------------------------------------------------------


def _without_last(federation: Federation, message: Message, *, count: int = 1) -> Message:
    """Another story of who survived: without the parties in the last seats."""
    last = federation.run.round.seats[-count:]
    if isinstance(message, SetProposal) and message.survivors:
        chosen = tuple(fp for fp in message.survivors if fp not in last)
        return dataclasses.replace(message, survivors=chosen)
    return message


def _holds(packet: bytes, kind: type[Message]) -> bool:
    return kind.__name__ in kinds(packet)


def _opens_a_set(packet: bytes) -> bool:
    """Whether a packet asks a party to agree to a set."""
    proposals = (message for message in messages(packet) if isinstance(message, SetProposal))
    return any(message.survivors for message in proposals)


def nobody_revealed(federation: Federation) -> bool:
    """Whether no party showed a share."""
    return not any(_holds(answer, Reveal) for _, answer in federation.transport.answers)


@sampled()
@masked_kinds
def test_two_groups_told_two_survivor_sets_open_nothing(kind: Kind) -> None:
    """n = 5, t = 4: the last party is a survivor to three parties, and a drop-out to two."""
    federation = kind.ready()
    run = federation.run.round
    last = federation.identities.index(
        next(i for i in federation.identities if i.fingerprint == run.seats[-1])
    )
    doubled = [place for place in range(PARTIES) if place != last][:2]
    plans: set[bytes] = set()

    def on_query(node: int, packet: bytes) -> bytes:
        if not _opens_a_set(packet):
            return packet
        plans.add(run.open_plan.digest)
        if node not in doubled:
            return packet
        return lied(federation, packet, lambda message: _without_last(federation, message))

    federation.transport.on_query = on_query
    with pytest.raises(VoidBatchError) as void:
        federation.ask(0, 1)
    assert void.value.reservation == "forfeited"
    assert not void.value.may_ask_again  # nobody signs a second verdict, to close it or otherwise
    assert nobody_revealed(federation)
    assert federation.store.releases() == {}
    federation.heal()
    federation.forget_asked()
    with pytest.raises(VoidBatchError, match=Reason.QUERIES):
        federation.ask(0, 1)
    assert max(votes_cast(federation)) == 1
    # Nor do they show a share for all that the coordinator can make of these verdicts.
    [plan] = plans
    for node in federation.nodes:
        assert node._journal.verdict_on(plan)


@sampled()
@masked_kinds
def test_verdicts_of_two_groups_make_no_proof_for_either(kind: Kind) -> None:
    """The coordinator shows each party all verdicts that it has as if they were for its own set."""
    federation = kind.ready()
    run = federation.run.round
    verdicts: dict[bytes, tuple[bytes, bytes]] = {}
    answers: dict[int, bytes] = {}

    def on_query(node: int, packet: bytes) -> bytes | None:
        if not _opens_a_set(packet):
            return packet
        seat = federation.identities[node].fingerprint
        lie = lied(federation, packet, lambda message: _without_last(federation, message))
        story = lie if seat in run.seats[:2] else packet
        for frame in _frames(federation.nodes[node].receive(story)):
            signed = wire.decode(frame)
            if isinstance(signed.message, Verdict):
                verdicts[seat] = signed.digest, signed.signature
        return None

    def show_all(node: int, seat: bytes) -> None:
        plan, mine = run.open_plan.digest, verdicts[seat][0]
        [survivors] = {
            chosen
            for chosen in (run.seats, run.seats[:-1])
            if wire.digest_of(Verdict(plan, chosen)) == mine
        }
        signers = run.seats[:4]
        signatures = tuple(verdicts[signer][1] for signer in signers)
        proof = Certificate(plan, survivors, signers, signatures)
        answers[node] = federation.nodes[node].receive(wire.pack([wire.contain(proof)]))

    federation.transport.on_query = on_query
    close = federation.run._collector.close_plan

    def cheat() -> None:
        for node, identity in enumerate(federation.identities):
            show_all(node, identity.fingerprint)
        close()

    federation.run._collector.close_plan = cheat  # type: ignore[method-assign]
    with pytest.raises(VoidBatchError):
        federation.ask(0, 1)
    assert {digest for digest, _ in verdicts.values()} != {next(iter(verdicts.values()))[0]}
    assert len(answers) == PARTIES
    for node, answer in answers.items():
        assert codes(answer) == ["PF-246"]
        assert federation.nodes[node].state is PartyState.STOPPED
    assert nobody_revealed(federation)


@sampled()
@masked_kinds
def test_a_second_survivor_set_after_a_claimed_drop_out_reveals_nothing(kind: Kind) -> None:
    """The coordinator says that the last party dropped out, then that it did not."""
    federation = kind.ready()
    last = federation.run.round.seats[-1]
    answers: dict[int, bytes] = {}

    def on_query(node: int, packet: bytes) -> bytes | None:
        if not _opens_a_set(packet):
            return packet
        if federation.identities[node].fingerprint == last:
            return None
        claimed = lied(federation, packet, lambda m: _without_last(federation, m))
        first = federation.nodes[node].receive(claimed)
        assert kinds(first) == ["VerdictMacs", "Verdict"]
        answers[node] = federation.nodes[node].receive(packet)
        return None

    federation.transport.on_query = on_query
    with pytest.raises(VoidBatchError):
        federation.ask(0, 1)
    assert len(answers) == PARTIES - 1
    for node, answer in answers.items():
        assert kinds(answer) == ["Refusal"]
        assert codes(answer) == ["PF-223"]
        assert federation.nodes[node].state is PartyState.STOPPED
    assert nobody_revealed(federation)


@sampled()
@masked_kinds
def test_no_survivor_set_goes_below_a_partys_own_floor(kind: Kind) -> None:
    """Owners wrote 4, which is the form's threshold. The coordinator lowers it by itself."""
    federation = kind.ready(policy={"least_parties": MaskedSum.threshold(PARTIES)})
    said: list[list[str]] = []

    def on_query(node: int, packet: bytes) -> bytes:
        if not _opens_a_set(packet):
            return packet
        return lied(federation, packet, lambda m: _without_last(federation, m, count=2))

    def on_answer(node: int, answer: bytes) -> bytes:
        said.append(codes(answer))
        return answer

    federation.transport.on_query, federation.transport.on_answer = on_query, on_answer
    with pytest.raises(VoidBatchError) as void:
        federation.ask(0, 1)
    assert [code for each in said for code in each] == ["PF-241"] * PARTIES
    assert nobody_revealed(federation)
    # Who refused a set promises that the plan never opens: then all of it may be asked again.
    assert void.value.may_ask_again
    federation.heal()
    assert federation.ask(0, 1).answered == 2


# The agreed terms ---------------------------------------------------------------------------------

LOWERED = [
    pytest.param({"sigma2": 1.5}, id="less noise of a label"),
    pytest.param({"vote_threshold": 1.0}, id="a lower threshold"),
    pytest.param({"delta": 1e-3}, id="a larger delta"),
    pytest.param({"max_asks": 1_000, "max_answers": 1_000}, id="more to ask"),
    pytest.param({"budgets": [500.0] * PARTIES}, id="a larger budget"),
    pytest.param({"unit": "party"}, id="another privacy unit"),
    pytest.param({"classes": CLASSES - 1}, id="fewer classes"),
    pytest.param({"colluders": 0}, id="nobody colludes"),
    pytest.param({"noise_place": "elsewhere"}, id="noise elsewhere"),
]


@sampled()
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lowered", LOWERED)
def test_terms_lowered_between_run_and_batch_are_refused_before_anybody_votes(
    kind: Kind, lowered: dict[str, Any]
) -> None:
    federation = kind.ready()
    agreed = federation.run.terms.as_record()
    assert changed_record(agreed, **lowered) != agreed

    def lie(message: Message) -> Message:
        if not isinstance(message, Plan):
            return message
        terms: Any = decode_value(message.terms)
        changed = {**terms, "run": changed_record(terms["run"], **lowered)}
        return dataclasses.replace(message, terms=encode_value(changed))

    tell(federation, range(PARTIES), lie)
    with pytest.raises(VoidBatchError):
        federation.ask(0, 1)
    assert plan_codes(federation) == [Reason.TERMS] * PARTIES
    assert did_nothing(federation)


@sampled()
@every_kind
def test_a_run_that_a_policy_finds_too_small_or_too_quiet_is_refused(kind: Kind) -> None:
    for policy, reason in (
        ({"least_parties": PARTIES + 1}, Reason.TOO_FEW_PARTIES),
        ({"least_checked_peers": PARTIES}, Reason.UNCHECKED_PEERS),
        ({"least_sigma2": 1_000.0}, Reason.MECHANISM),
    ):
        federation = kind.federation(policies={VICTIM: policy})
        with pytest.raises(PartyRefusedError) as refused:
            federation.run.set_up()
        assert (refused.value.party, refused.value.cause) == (federation.names[VICTIM], reason)
        assert did_nothing(federation)


# Keys and envelopes -------------------------------------------------------------------------------

forms = pytest.mark.parametrize("form", ["additive", "masked"])


def _in_record(
    federation: Federation, forge: Callable[[KeyStatement], bytes]
) -> Callable[[Message], Message]:
    """Replace the victim's statement in the run record."""
    victim = federation.identities[VICTIM].fingerprint

    def lie(message: Message) -> Message:
        if not isinstance(message, RunRecord):
            return message
        statements = tuple(
            forge(_message(frame)) if _fingerprint(frame) == victim else frame  # type: ignore[arg-type]
            for frame in message.statements
        )
        return dataclasses.replace(message, statements=statements)

    return lie


@forms
@pytest.mark.parametrize("whose", ["the coordinator's", "a stranger's", "its own, invented"])
def test_a_forged_sealing_key_of_a_peer_is_refused_by_everybody(form: str, whose: str) -> None:
    """The coordinator would open the envelopes to that peer, and all its pairs' streams."""
    federation = Kind(form, "coordinator").federation()
    record = federation.run.round

    def forge(statement: KeyStatement) -> bytes:
        offer = wire.expect(wire.decode(record.setup.offer.frame), RunOffer)
        key = SealingKey(offer.suite).public_bytes
        changed = dataclasses.replace(statement, sealing_key=key)
        stranger = SigningIdentity.generate()
        if whose == "its own, invented":
            changed = dataclasses.replace(changed, identity_key=stranger.public.key)
        signer = federation.identity if whose == "the coordinator's" else stranger
        return wire.sign(changed, signer).frame

    tell(federation, range(PARTIES), _in_record(federation, forge))
    with pytest.raises((PartyRefusedError, PartyFailedError)):
        federation.run.set_up()
    expected = "PF-228" if whose == "its own, invented" else "PF-222"
    own = federation.seat_of(VICTIM)
    found = [code for seat, code in enumerate(last_codes(federation)) if seat != own]
    assert found == [expected] * (PARTIES - 1)
    assert last_codes(federation)[own] == "PF-228"  # its own statement is not there
    # Nobody sealed anything.
    assert not any(node._round._setup._halves for node in federation.nodes)
    for node, answer in federation.transport.answers[PARTIES:]:
        assert "EnvelopeBundle" not in kinds(answer), node


@forms
@pytest.mark.parametrize(
    ("is_signed_anew", "code"),
    [pytest.param(False, "PF-225", id="as sent"), pytest.param(True, "PF-222", id="signed anew")],
)
def test_envelopes_of_an_older_run_are_worth_nothing_under_a_new_id(
    form: str, is_signed_anew: bool, code: str
) -> None:
    federation = Kind(form, "coordinator").ready()
    federation.run.close()
    old = {place: _delivered(federation, place) for place in range(PARTIES)}
    run = second_run(federation, list(range(PARTIES)))
    federation.run = run

    def renamed(frame: bytes) -> bytes:
        envelope = _message(frame)
        assert isinstance(envelope, Envelope)
        changed = dataclasses.replace(envelope, run_id=run.round.run_id)
        return wire.sign(changed, federation.identity).frame

    def on_query(node: int, packet: bytes) -> bytes:
        if kinds(packet) != ["EnvelopeBundle"]:
            return packet
        shown = [renamed(frame) if is_signed_anew else frame for frame in old[node]]
        return wire.pack([wire.contain(EnvelopeBundle(run.round.run_id, tuple(shown)))])

    federation.transport.on_query = on_query
    with pytest.raises(PartyRefusedError) as refused:
        run.set_up()
    assert refused.value.cause == code
    assert {node.state for node in federation.nodes} == {PartyState.STOPPED}


def _delivered(federation: Federation, place: int) -> list[bytes]:
    """Envelopes that a party was given, from what its peers sent."""
    me = federation.identities[place].fingerprint
    return [
        frame
        for peer in range(PARTIES)
        if peer != place
        for frame in _envelopes_of(federation, peer)
        if _message(frame).receiver == me  # type: ignore[attr-defined]
    ]


@forms
def test_swapped_envelopes_stop_who_got_the_wrong_ones(form: str) -> None:
    federation = Kind(form, "coordinator").federation()

    def on_query(node: int, packet: bytes) -> bytes:
        if node != VICTIM or kinds(packet) != ["EnvelopeBundle"]:
            return packet
        bundle = EnvelopeBundle(federation.run.round.run_id, tuple(_delivered(federation, 0)))
        return wire.pack([wire.contain(bundle)])

    federation.transport.on_query = on_query
    with pytest.raises(PartyRefusedError) as refused:
        federation.run.set_up()
    assert refused.value.party == federation.names[VICTIM]
    assert refused.value.cause == "PF-225"
    assert federation.nodes[VICTIM].state is PartyState.STOPPED
