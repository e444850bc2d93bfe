"""Whole runs with the masked sum: hospitals are lost, and labels come all the same."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from coordinator.errors import PartyRefusedError, VoidBatchError
from coordinator.runs.labeling import deciding
from party.errors import Reason, RefusalError
from pate_fed.opened_sums import open_sum
from pate_fed.votes import SummedHistogram
from protocols import wire
from protocols.masked import MaskedSum
from protocols.messages import Reveal, RunRecord, VerdictMacs
from protocols.rounds import PartyState
from tests.support.federation import (
    TEACHERS,
    Federation,
    holds_vector,
    kinds,
    labels_of,
    messages,
    ready_federation,
)
from tests.support.markers import more, sampled

N = 5
CULPRIT = 1


def ready(parties: int = N, **changed: Any) -> Federation:
    return ready_federation(parties=parties, form="masked", **changed)


def lose_reveals(federation: Federation, *places: int) -> None:
    """From here on no shares come of some parties."""
    federation.transport.on_answer = lambda node, answer: (
        None if node in places and "Reveal" in kinds(answer) else answer
    )


# Labels come -----------------------------------------------------------------------------------


def test_a_batch_takes_three_exchanges_and_is_released() -> None:
    federation = ready()
    before = federation.transport.traffic.exchanges
    assert list(federation.ask(0, 1, 2).labels) == labels_of(0, 1, 2)
    assert federation.transport.traffic.exchanges == before + 3
    assert federation.run.lost == ((),)
    assert list(federation.ask(3, 4).labels) == labels_of(3, 4)
    assert federation.transport.traffic.exchanges == before + 6
    federation.run.close()
    assert {node.state for node in federation.nodes} == {PartyState.DONE}
    assert len({node.transcript_head for node in federation.nodes}) == 1


@sampled("place")
@pytest.mark.parametrize("place", [0, *map(more, range(1, N - 1)), N - 1])
def test_a_batch_is_released_without_a_hospital_that_never_heard_of_it(place: int) -> None:
    federation = ready()
    federation.lose(place)
    assert list(federation.ask(0, 1).labels) == labels_of(0, 1)
    assert federation.run.lost == ((federation.names[place],),)
    assert federation.steps[place] == []
    assert federation.party_states(place) == []
    federation.heal()
    # It goes on with the others, and counts what it missed against the caps as they do.
    assert list(federation.ask(2, 3).labels) == labels_of(2, 3)
    federation.run.close()
    assert len({node.transcript_head for node in federation.nodes}) == 1
    left = {node._agreed_run.account.ledger.left for node in federation.nodes}
    assert left == {federation.run.left}
    assert federation.party_states(place) == ["committed"]


def test_a_y_that_got_lost_is_left_out_and_stays_charged() -> None:
    federation = ready()
    federation.transport.on_answer = lambda node, answer: (
        None if node == CULPRIT and holds_vector(answer) else answer
    )
    assert list(federation.ask(0, 1).labels) == labels_of(0, 1)
    federation.heal()
    assert list(federation.ask(2, 3).labels) == labels_of(2, 3)
    federation.run.close()
    assert federation.party_states(CULPRIT) == ["committed"] * 2


def test_a_hospital_that_refuses_is_done_without_and_not_charged() -> None:
    federation = ready(policies={CULPRIT: {"most_queries": 3}})
    federation.ask(0, 1)
    assert list(federation.ask(2, 3).labels) == labels_of(2, 3)
    assert federation.run.lost == ((), (federation.names[CULPRIT],))
    assert federation.party_states(CULPRIT) == ["committed"]
    federation.run.close()
    assert len({node.transcript_head for node in federation.nodes}) == 1
    left = {node._agreed_run.account.ledger.left for node in federation.nodes}
    assert left == {federation.run.left}


def test_the_threshold_is_of_those_who_vote_and_the_sum_of_those_who_are_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """K is what the survivors cast: a row of the sum that has less or more is void."""
    federation = ready(6)
    seen: list[int] = []

    def spy(*args: Any, **kwargs: Any) -> SummedHistogram:
        summed = open_sum(*args, **kwargs)
        seen.append(summed.total_votes)
        return summed

    monkeypatch.setattr(deciding, "open_sum", spy)
    federation.lose(0)
    federation.ask(0)
    federation.heal()
    federation.ask(1)
    assert seen == [5 * TEACHERS, 6 * TEACHERS]


# Too many are lost -----------------------------------------------------------------------------


@sampled()
@pytest.mark.parametrize("reveals", [False, True], ids=["before y", "after y"])
def test_one_hospital_too_many_voids_the_batch_and_the_next_goes_on(reveals: bool) -> None:
    federation = ready()
    (lose_reveals if reveals else Federation.lose)(federation, 0, CULPRIT)
    with pytest.raises(VoidBatchError) as void:
        federation.ask(0, 1)
    assert void.value.reservation == "forfeited"
    federation.heal()
    assert list(federation.ask(2, 3).labels) == labels_of(2, 3)
    federation.run.close()
    assert len({node.transcript_head for node in federation.nodes}) == 1


def test_a_batch_that_all_refuse_gives_the_budget_back() -> None:
    federation = ready(policy={"most_queries": 1})
    with pytest.raises(VoidBatchError) as void:
        federation.ask(0, 1)
    assert void.value.reservation == "cancelled"
    assert void.value.may_ask_again  # all signed that they never send: no closing is needed
    assert federation.ask(0).answered == 1


def test_a_share_that_is_spoiled_on_the_way_does_not_spoil_the_labels(
    caplog: pytest.LogCaptureFixture,
) -> None:
    federation = ready()

    def spoil(node: int, answer: bytes) -> bytes:
        if node != CULPRIT or "Reveal" not in kinds(answer):
            return answer
        [reveal] = [message for message in messages(answer) if isinstance(message, Reveal)]
        first = bytes([reveal.disclosures[0][0] ^ 1]) + reveal.disclosures[0][1:]
        changed = dataclasses.replace(reveal, disclosures=(first, *reveal.disclosures[1:]))
        return wire.pack([wire.sign(changed, federation.identities[CULPRIT]).frame])

    federation.transport.on_answer = spoil
    assert list(federation.ask(0, 1).labels) == labels_of(0, 1)
    assert "a share differed" in caplog.text


# The guard -------------------------------------------------------------------------------------


@pytest.mark.parametrize("parties", [5, 6, 10])
def test_the_run_record_says_what_is_tolerated(parties: int) -> None:
    federation = ready(parties)
    record = federation.nodes[0]._round.record
    assert record is not None
    threshold = MaskedSum.threshold(parties)
    assert (record.threshold, record.dropouts) == (threshold, parties - threshold)
    assert record.colluders == 2 * threshold - parties - 1


@sampled()
@pytest.mark.parametrize(
    "changed",
    [
        pytest.param({"threshold": 3, "dropouts": 2}, id="a lower threshold"),
        pytest.param({"threshold": 5, "dropouts": 0}, id="a higher threshold"),
        pytest.param({"dropouts": 0}, id="no drop-outs"),
        pytest.param({"colluders": 3}, id="more colluders than it hides from"),
        pytest.param({"colluders": 0}, id="no colluders"),
        pytest.param({"form": "additive"}, id="additive, with drop-outs"),
        pytest.param({"form": "unknown"}, id="a form that nobody knows"),
    ],
)
def test_a_hospital_refuses_a_record_that_promises_what_the_form_does_not_hold(
    changed: dict[str, Any],
) -> None:
    federation = ready(policy={"forms": frozenset({"additive", "masked", "unknown"})})
    node = federation.nodes[0]
    record = node._round.record
    assert isinstance(record, RunRecord)
    seats, me = node._round.known.fingerprints, node._identity.fingerprint
    node._guard.review_run(record, seats=seats, me=me)
    with pytest.raises(RefusalError) as caught:
        node._guard.review_run(dataclasses.replace(record, **changed), seats=seats, me=me)
    assert caught.value.reason == Reason.FORM


@pytest.mark.parametrize(("unchecked", "allowed"), [(0, True), (2, True), (3, False)])
def test_a_hospital_counts_peers_that_nobody_checked_as_colluders(
    unchecked: int, allowed: bool
) -> None:
    """n = 6, c = 3: with 3 unchecked peers of 6 it agrees, of 5 (c = 2) it does not."""
    federation = ready()
    node = federation.nodes[0]
    record, seats = node._round.record, node._round.known.fingerprints
    assert record is not None
    me = node._identity.fingerprint
    peers = [seat for seat in seats if seat != me]
    known = {peer: node._guard.checked_peers[peer] for peer in peers[unchecked:]}
    policy = dataclasses.replace(node._guard.policy, least_checked_peers=1)
    guard = dataclasses.replace(node._guard, checked_peers=known, policy=policy)
    if allowed:
        guard.review_run(record, seats=seats, me=me)
    else:
        with pytest.raises(RefusalError) as caught:
            guard.review_run(record, seats=seats, me=me)
        assert caught.value.reason in (Reason.FORM, Reason.UNCHECKED_PEERS)


def test_a_run_that_may_open_fewer_than_the_policys_floor_is_refused() -> None:
    """Others may open a set that a hospital did not agree to, so the threshold is what counts."""
    with pytest.raises(PartyRefusedError) as refused:
        ready(policy={"least_parties": MaskedSum.threshold(5) + 1})
    assert refused.value.cause == Reason.TOO_FEW_PARTIES.value
    ready(policy={"least_parties": MaskedSum.threshold(5)})


def test_one_hospitals_wrong_macs_do_not_end_a_batch() -> None:
    """The coordinator cannot check them: it proves the set by signatures where they are doubted."""
    federation = ready()
    federation.lose(0)
    carried = federation.transport.on_answer

    def spoiled(frame: bytes) -> bytes:
        message = wire.decode(frame).message
        if not isinstance(message, VerdictMacs):
            return frame
        return wire.contain(dataclasses.replace(message, macs=(bytes(16),) * len(message.macs)))

    def on_answer(node: int, answer: bytes) -> Any:
        if node == CULPRIT:
            answer = wire.pack([spoiled(frame) for frame in wire.unpack(answer, max_bytes=2**24)])
        return carried(node, answer)

    federation.transport.on_answer = on_answer
    assert federation.ask(0, 1).answered == 2
    assert any("Certificate" in kinds(packet) for packet in federation.transport.packets)
    federation.heal()
    assert federation.ask(2).answered == 1


def test_a_plan_that_comes_sixteen_times_in_one_packet_breaks_nothing() -> None:
    """Each time a party answers by two frames, and a packet holds no more than sixteen."""
    federation = ready_federation(parties=5, form="masked")
    answers: list[bytes] = []

    def on_query(place: int, packet: bytes) -> bytes:
        if place == 0 and "Plan" in kinds(packet):
            [plan] = wire.unpack(packet, max_bytes=2**20)
            answers.append(federation.nodes[0].receive(wire.pack([plan] * 16)))
        return packet

    federation.transport.on_query = on_query
    federation.ask(0, 1)
    [answer] = answers
    assert kinds(answer) == ["ShareBundle", "MaskedVector"] * 8
