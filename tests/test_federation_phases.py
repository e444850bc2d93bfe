"""Noise at the parties, two phases: a check opens rows, and what passed opens fresh ones."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from coordinator.errors import VoidBatchError
from coordinator.runs.labeling import batches, deciding
from party.decision.guard import Consent
from party.errors import Reason
from pate_fed.accounting import DistributedConfidentMaxEvent
from pate_fed.charging import noise_of
from pate_fed.errors import InvalidParameterError, InvalidTermsError
from pate_fed.federation import PhaseTerms
from pate_fed.mechanisms import FirstPhase, RandomBytes, keyed_stream
from pate_fed.queries import QueryBatch
from pate_fed.releases import ABSTAIN, NoisyRelease, Outcome
from pate_fed.votes import NoisyHistogram, open_noisy_sum
from protocols import wire
from protocols.errors import UnexpectedMessageError
from protocols.messages import MaskedVector, Plan, Refusal
from protocols.rounds import PartyState
from tests.support.federation import (
    CLASSES,
    SIGMA,
    TEACHERS,
    Federation,
    expected_class,
    holds_vector,
    messages,
    ready_federation,
)
from tests.support.markers import in_turn, sampled

PARTIES = 5
TERMS = {
    "noise_place": "parties",
    "mechanism": "confident",
    "vote_threshold": 750.0,
    "sigma1": SIGMA,
    "sigma2": 2 * SIGMA,
    "max_refusals": 100,
}
AGREED, SPLIT = (0, 4, 6), (1, 5)
"""Queries on which all teachers agree, and on which hospitals do not: 1,000 votes against 400."""


def class_of(place: int, index: int) -> int:
    return expected_class(index + (place if index % 2 else 0))


def votes_at(place: int) -> Any:
    def vote(batch: QueryBatch) -> NDArray[np.int64]:
        row = np.array([class_of(place, index) for index in batch.indices])
        return np.tile(row, (TEACHERS, 1))

    return vote


def stream(place: int) -> RandomBytes:
    return keyed_stream(bytes([place] * 32), tag="noise of two phases")


def ready(form: str = "additive", *, terms: dict[str, Any] | None = None) -> Federation:
    return ready_federation(
        parties=PARTIES,
        form=form,
        votes={place: votes_at(place) for place in range(PARTIES)},
        noises={place: stream(place) for place in range(PARTIES)},
        terms={**TERMS, **(terms or {})},
    )


def clean(indices: Collection[int], places: Collection[int]) -> NDArray[np.int64]:
    rows = np.zeros((len(indices), CLASSES), dtype=np.int64)
    for row, index in enumerate(indices):
        for place in places:
            rows[row, class_of(place, index)] += TEACHERS
    return rows


def lose(federation: Federation, places: Collection[int], *, phase: int | None = None) -> None:
    """Let nothing reach some parties, or no plan of one phase."""

    def on_query(node: int, packet: bytes) -> bytes | None:
        phases = [message.phase for message in messages(packet) if isinstance(message, Plan)]
        gone = node in places and (phase is None or phases == [phase])
        return None if gone else packet

    federation.transport.on_query = on_query


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[NoisyHistogram]:
    found: list[NoisyHistogram] = []

    def watching(*arguments: Any, **named: Any) -> NoisyHistogram:
        found.append(open_noisy_sum(*arguments, **named))
        return found[-1]

    monkeypatch.setattr(deciding, "open_noisy_sum", watching)
    return found


# Honest runs ----------------------------------------------------------------------------------


@sampled(1)
@pytest.mark.parametrize(("form", "exchanges"), [("additive", 2), ("masked", 6)])
def test_a_check_opens_all_rows_and_a_second_phase_those_that_passed(
    form: str, exchanges: int, opened: list[NoisyHistogram]
) -> None:
    federation = ready(form)
    before = federation.transport.traffic.exchanges
    release = federation.ask(0, 1, 4, 5, 6)
    assert federation.transport.traffic.exchanges == before + exchanges
    labels = [expected_class(0), ABSTAIN, expected_class(4), ABSTAIN, expected_class(6)]
    assert release.labels.tolist() == labels
    streams = [stream(place) for place in range(PARTIES)]
    for phase, indices in enumerate([(0, 1, 4, 5, 6), AGREED]):
        noise = noise_of(federation.run.terms, phase=phase)
        assert noise.sigma == (SIGMA, 2 * SIGMA)[phase]
        shares = [
            noise.draw(len(indices), CLASSES, random_bytes=source).counts for source in streams
        ]
        assert np.array_equal(opened[phase].counts, clean(indices, range(PARTIES)) + sum(shares))
    assert len(opened) == 2
    federation.run.close()
    assert {node.state for node in federation.nodes} == {PartyState.DONE}
    assert len({node.transcript_head for node in federation.nodes}) == 1


def test_each_phase_has_an_epoch_and_keys_of_its_own() -> None:
    federation = ready()
    federation.ask(0, 1, 4)
    plans = [
        message
        for packet in federation.transport.packets
        for message in messages(packet)
        if isinstance(message, Plan)
    ]
    seen = {(plan.batch, plan.attempt, plan.phase, plan.epoch) for plan in plans}
    assert seen == {(0, 0, 0, 1), (0, 0, 1, 2)}
    vectors = [
        message
        for _, answer in federation.transport.answers
        for message in messages(answer)
        if isinstance(message, MaskedVector)
    ]
    assert len({vector.plan_digest for vector in vectors}) == 2
    # Row 0 was sent twice by each: under keys that have nothing in common.
    rows = [np.frombuffer(vector.body[: 4 * CLASSES], dtype="<u4") for vector in vectors]
    assert len({row.tobytes() for row in rows}) == 2 * PARTIES


def test_nothing_that_passes_ends_the_batch_with_the_first_phase() -> None:
    federation = ready()
    before = federation.transport.traffic.exchanges
    release = federation.ask(*SPLIT)
    assert federation.transport.traffic.exchanges == before + 1
    assert release.outcomes.tolist() == [Outcome.REFUSED] * 2
    assert federation.ask(0).answered == 1
    federation.run.close()
    assert {node.state for node in federation.nodes} == {PartyState.DONE}
    for node in federation.nodes:
        charged = [entry.charged for entry in node.ledger.entries]
        assert charged == [event(2, 0), event(1, 1)]


def event(asks: int, answers: int, *, shares: int = 4) -> DistributedConfidentMaxEvent:
    return DistributedConfidentMaxEvent(asks, answers, SIGMA, 2 * SIGMA, shares, 1)


def test_every_row_of_each_phase_is_charged_and_no_more() -> None:
    federation = ready()
    federation.ask(0, 1, 4, 5)
    for node in federation.nodes:
        assert [entry.charged for entry in node.ledger.entries] == [event(4, 4)]  # the worst case
    federation.run.close()
    for node in federation.nodes:
        assert [entry.charged for entry in node.ledger.entries] == [event(4, 2)]
    assert [entry.charged for entry in federation.charges] == [event(4, 2)]


def test_rows_that_a_cap_cut_off_were_opened_and_stay_charged() -> None:
    federation = ready(terms={"max_refusals": 1, "max_asks": 4, "max_answers": 4})
    release = federation.ask(0, 1, 4, 6)
    assert release.outcomes.tolist() == [0, 1, 2, 2]
    assert federation.run.is_over
    federation.run.close()
    for node in federation.nodes:
        assert [entry.charged for entry in node.ledger.entries] == [event(4, 1)]


@sampled(1)
@in_turn(("phase", [None, 0, 1]), ("place", [0, PARTIES - 1]))
def test_masked_goes_on_without_a_hospital_that_misses_a_phase_or_both(
    phase: int | None, place: int, opened: list[NoisyHistogram]
) -> None:
    federation = ready("masked")
    lose(federation, [place], phase=phase)
    release = federation.ask(0, 1, 4)
    assert release.labels.tolist() == [expected_class(0), ABSTAIN, expected_class(4)]
    senders = [noisy.sigma for noisy in opened]
    for at, sigma in enumerate(senders):
        # Who missed the first phase may not serve the second.
        missing = phase is None or phase == at or (phase == 0 and at == 1)
        noise = noise_of(federation.run.terms, phase=at)
        assert sigma == noise.sum_sigma(PARTIES - missing)
    lose(federation, [])
    assert federation.ask(6).answered == 1
    federation.run.close()
    assert len({node.transcript_head for node in federation.nodes}) == 1
    assert {node._agreed_run.account.ledger.left for node in federation.nodes} == {
        federation.run.left
    }
    charged = [entry.charged for entry in federation.nodes[place].ledger.entries]
    first = [] if phase in (None, 0) else [event(3, 2, shares=3)]
    assert charged == [*first, event(1, 1, shares=3)]


@sampled(1)
@pytest.mark.parametrize("batches", [2, 3])
def test_a_hospital_that_misses_several_batches_in_a_row_goes_on(batches: int) -> None:
    federation = ready("masked")
    federation.ask(0, 4)
    lose(federation, [1])
    for batch in range(batches):
        federation.ask(6 + 2 * batch, 7 + 2 * batch)
    lose(federation, [])
    assert federation.ask(18).answered == 1
    federation.run.close()
    assert {node.state for node in federation.nodes} == {PartyState.DONE}
    assert len({node.transcript_head for node in federation.nodes}) == 1
    assert {node._agreed_run.account.ledger.left for node in federation.nodes} == {
        federation.run.left
    }
    charged = [entry.charged for entry in federation.nodes[1].ledger.entries]
    assert charged == [event(2, 2, shares=3), event(1, 1, shares=3)]


# A coordinator that cheats --------------------------------------------------------------------


class Told:
    """Terms of a second phase as a cheat would have them."""

    def __init__(self, rows: tuple[int, ...], **changed: Any) -> None:
        self.rows, self.changed = rows, changed

    def __call__(self, *arguments: Any) -> Told:
        self.honest = PhaseTerms(*arguments)
        return self

    def as_record(self) -> dict[str, Any]:
        return {**self.honest.as_record(), "rows": list(self.rows), **self.changed}


@sampled(1)
@in_turn(
    ("form", ["additive", "masked"]),
    (
        "told, reason",
        [
            pytest.param(Told((0, 1, 2)), Reason.QUERIES, id="a row that was refused, too"),
            pytest.param(Told((1,)), Reason.QUERIES, id="a row that was refused"),
            pytest.param(Told((0,)), Reason.QUERIES, id="not all that passed"),
            pytest.param(Told((0, 2, 3)), Reason.QUERIES, id="a row that was never asked"),
            pytest.param(Told((0, 0)), Reason.TERMS, id="a row twice"),
            pytest.param(Told((2, 0)), Reason.TERMS, id="another order"),
            pytest.param(Told((0, 2), first_plan=bytes(32)), Reason.TERMS, id="another batch's"),
            pytest.param(Told((0, 2), first_result=bytes(32)), Reason.TERMS, id="another result"),
        ],
    ),
)
def test_only_rows_that_the_signed_first_result_says_passed_are_opened(
    form: str, told: Told, reason: Reason, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation = ready(form)
    monkeypatch.setattr(batches, "PhaseTerms", told)
    with pytest.raises(VoidBatchError, match=reason) as void:
        federation.ask(0, 1, 4)
    # All refused the second phase, but the first was opened: nothing comes back.
    assert void.value.reservation == "forfeited"
    assert all(steps.count("vote") == 1 for steps in federation.steps)
    monkeypatch.undo()
    federation.ask(6)
    for place in range(PARTIES):
        assert federation.party_states(place)[0] == "forfeited"


def second_plan(federation: Federation, terms: PhaseTerms, *, batch: int = 0) -> bytes:
    """Send one party another plan of the second phase, behind what it has to be told first."""
    run = federation.run
    plan = run.round.batch.plan(
        batch=batch,
        attempt=0,
        phase=1,
        words=len(terms.rows) * CLASSES,
        expires_at=2_000,
        terms=wire.encode_value(terms.as_record()),
    )
    settled = federation.unheard()[federation.identities[0].fingerprint]
    return federation.nodes[0].receive(wire.pack([*settled, plan]))


def refused_by_the_round(answer: bytes) -> bool:
    """Whether the state machine itself refused, before any guard was asked."""
    [message] = messages(answer)
    return isinstance(message, Refusal) and message.reason == UnexpectedMessageError.code


@pytest.mark.parametrize(
    ("consent", "reason"),
    [
        pytest.param(Consent(is_paused=True), Reason.PAUSED, id="paused"),
        pytest.param(Consent({}), Reason.APPROVAL, id="rejected"),
    ],
)
def test_a_hospital_that_says_no_between_two_phases_sends_nothing_in_the_second(
    consent: Consent, reason: Reason
) -> None:
    federation = ready()
    node = federation.nodes[0]

    def on_query(place: int, packet: bytes) -> bytes:
        if place == 0 and any(m.phase == 1 for m in messages(packet) if isinstance(m, Plan)):
            guard = replace(node._guard, consent=consent)
            node.adopt(guard=guard, known_peers=node._known_peers, tasks=node._tasks)
        return packet

    federation.transport.on_query = on_query
    with pytest.raises(VoidBatchError, match=reason):
        federation.ask(0, 1, 4)
    assert [federation.steps[place].count("vote") for place in range(PARTIES)] == [1, 2, 2, 2, 2]
    assert federation.steps[0].count("keep") == 1
    sent = [answer for place, answer in federation.transport.answers if place == 0]
    assert sum(holds_vector(answer) for answer in sent) == 1


def test_a_second_phase_is_opened_once(monkeypatch: pytest.MonkeyPatch) -> None:
    federation = ready()
    kept: list[PhaseTerms] = []

    def keeping(*arguments: Any) -> PhaseTerms:
        kept.append(PhaseTerms(*arguments))
        return kept[-1]

    monkeypatch.setattr(batches, "PhaseTerms", keeping)
    federation.ask(0, 1, 4)
    voted = federation.steps[0].count("vote")
    assert refused_by_the_round(second_plan(federation, kept[0]))
    assert federation.steps[0].count("vote") == voted == 2


def test_no_second_phase_follows_a_void_first_or_nothing_at_all() -> None:
    federation = ready()
    terms = PhaseTerms(bytes(32), (0,), bytes(32))
    assert refused_by_the_round(second_plan(federation, terms))
    federation = ready()
    federation.on_vectors_of(1, lambda answer: None)
    with pytest.raises(VoidBatchError):
        federation.ask(0, 4)
    assert refused_by_the_round(second_plan(federation, terms))
    assert federation.steps[0].count("vote") == 1


def test_a_batch_without_us_counts_though_its_second_phase_never_came() -> None:
    """All others count it: whose caps look less used would refuse a true release later."""
    federation = ready("masked")
    caps = []
    for place, paused in ((0, True), (1, False)):
        node = federation.nodes[place]
        node._guard = replace(node._guard, consent=Consent(is_paused=paused))

    def stop_before_the_second(node: int, packet: bytes) -> bytes | None:
        plans = [one for one in messages(packet) if isinstance(one, Plan)]
        return None if any(plan.phase for plan in plans) else packet

    federation.transport.on_query = stop_before_the_second
    with pytest.raises(VoidBatchError):
        federation.ask(0, 1, 4)
    for place in (0, 1):
        node = federation.nodes[place]
        run, asked = node._agreed_run, node._agreed_run.asked
        if asked is not None:  # the settlement of the second phase was not told yet
            run.account.end_void(asked.entry_id, queries=asked.queries)
        caps.append(run.account.ledger.outcomes.asks_left)
    assert caps[0] == caps[1]
    assert caps[0] < run.terms.max_asks


def test_plain_gnmax_has_no_second_phase() -> None:
    federation = ready_federation(parties=4, terms={"noise_place": "parties"})
    federation.ask(0, 1)
    answer = second_plan(federation, PhaseTerms(bytes(32), (0,), bytes(32)))
    assert isinstance(messages(answer)[0], Refusal)
    assert federation.steps[0].count("vote") == 1


def test_a_second_phase_that_fails_voids_the_batch_and_stays_charged() -> None:
    federation = ready()

    def on_answer(node: int, answer: bytes) -> bytes | None:
        late = federation.steps[node].count("keep") == 2
        return None if node == 1 and late else answer

    federation.transport.on_answer = on_answer
    with pytest.raises(VoidBatchError) as void:
        federation.ask(0, 1, 4)
    assert void.value.reservation == "forfeited"
    federation.transport.on_answer = lambda node, answer: answer
    federation.ask(6)
    for place in range(PARTIES):
        assert federation.nodes[place].ledger.entries[0].charged == event(3, 3)
        assert federation.party_states(place) == ["forfeited", "reserved"]


def test_a_release_must_be_what_the_first_phase_decided() -> None:
    federation = ready()
    settle = federation.run.round.batch.settle

    def telling(*, released: bool, result: bytes) -> bytes:
        told = wire.decode_value(result)
        if isinstance(told, dict) and "labels" in told:
            told = NoisyRelease(np.array([0, ABSTAIN, ABSTAIN]), np.array([0, 1, 1])).as_record()
        return settle(released=released, result=wire.encode_value(told))

    federation.run.round.batch.settle = telling  # type: ignore[method-assign]
    federation.ask(0, 1, 4)
    with pytest.raises(Exception):  # noqa: B017, PT011 - whatever the closing comes to
        federation.run.close()
    for node in federation.nodes:
        assert [entry.charged for entry in node.ledger.entries] == [event(3, 3)]


# Records --------------------------------------------------------------------------------------


def test_a_first_phase_survives_its_record() -> None:
    first = FirstPhase(np.array([0, 1, 0, 2]))
    again = FirstPhase.from_record(first.as_record())
    assert again.digest == first.digest
    assert first.as_release([2, 1]).labels.tolist() == [2, ABSTAIN, 1, ABSTAIN]
    with pytest.raises(InvalidParameterError):
        first.as_release([1, 2, 3])


@pytest.mark.parametrize(
    "record",
    [
        None,
        {},
        {"outcomes": 1},
        {"outcomes": [3]},
        {"outcomes": [True]},
        {"outcomes": [0.0]},
        {"outcomes": [2, 0]},
        {"outcomes": [0], "labels": [0]},
    ],
    ids=str,
)
def test_a_first_phase_that_contradicts_itself_is_refused(record: object) -> None:
    with pytest.raises(InvalidTermsError):
        FirstPhase.from_record(record)


def test_terms_of_a_phase_survive_their_record() -> None:
    terms = PhaseTerms(bytes(range(32)), (0, 3), bytes(32))
    assert PhaseTerms.from_record(terms.as_record()) == terms


@pytest.mark.parametrize(
    "changed",
    [
        {"rows": []},
        {"rows": [-1]},
        {"rows": [1, 1]},
        {"rows": [1, 0]},
        {"rows": [0.0]},
        {"first_plan": bytes(31)},
        {"first_result": "x" * 32},
        {"more": 1},
    ],
    ids=str,
)
def test_terms_of_a_phase_that_contradict_themselves_are_refused(changed: dict[str, Any]) -> None:
    good = PhaseTerms(bytes(32), (0, 3), bytes(32)).as_record()
    with pytest.raises(InvalidTermsError):
        PhaseTerms.from_record({**good, **changed})


def test_a_later_setup_does_not_settle_what_an_earlier_one_left_open() -> None:
    """A coordinator leaves a hospital out of the first sum, opens its rows in the second, and says
    in a later setup that nothing had passed: the rows of the second would cost nothing."""
    federation = ready("masked")
    victim = 0

    def lose_first(node: int, answer: bytes) -> bytes | None:
        is_first = federation.steps[victim].count("keep") == 1
        return None if node == victim and is_first and holds_vector(answer) else answer

    federation.transport.on_answer = lose_first
    federation.ask(0, 4, 6)
    first, second = federation.run.round.settled
    seat = federation.run.round.seats.index(federation.identities[victim].fingerprint)
    assert second.settlement.contributions[seat]  # its fresh rows were opened
    federation.set_up_anew()
    node = federation.nodes[victim]
    before = node.ledger
    decided = FirstPhase.from_record(wire.decode_value(first.settlement.result))
    refused = replace(decided, outcomes=np.full_like(decided.outcomes, int(Outcome.REFUSED)))
    lie = replace(
        first.settlement,
        run_id=federation.run.round.run_id,
        result=wire.encode_value(refused.as_record()),
    )
    node.receive(wire.pack([wire.sign(lie, federation.identity).frame]))
    assert federation.party_states(victim) == ["reserved"]
    assert node.ledger == before


@sampled(1)
@pytest.mark.parametrize("form", ["additive", "masked"])
def test_a_void_second_phase_that_is_told_again_uses_no_cap_twice(form: str) -> None:
    """It is a plan of its own, and the batch's entry has the name of the first one's."""
    federation = ready(form)
    lost = range(1 if form == "additive" else 2)

    def restart(node: int, packet: bytes) -> bytes:
        phases = {one.phase for one in messages(packet) if isinstance(one, Plan)}
        if node in lost and phases == {1}:
            federation.restart(node)
        return packet

    federation.transport.on_query = restart
    with pytest.raises(VoidBatchError):
        federation.ask(0, 1, 4)
    federation.transport.on_query = lambda node, packet: packet
    told = federation.unheard()
    federation.run.ask_ready((6,))  # who was not restarted hears of it
    for _ in range(2):
        federation.set_up_anew(owed=told)
        left = federation.store.ledger().left
        assert {federation.run_ledger(place).left for place in range(PARTIES)} == {left}


@sampled(1)
@pytest.mark.parametrize("phase", [0, 1])
def test_a_failure_behind_the_teachers_is_silent_however_often_the_plan_comes(
    phase: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refusal, or a second vote, would tell something of the votes (rule R12)."""
    federation = ready()
    node, plans = federation.nodes[0], []
    vector = node._ballots.vector

    def failing(*asked: Any, phase: int, **named: Any) -> Any:
        if phase == failing_phase:
            raise ValueError("it depends on the votes")
        return vector(*asked, phase=phase, **named)

    def on_query(place: int, packet: bytes) -> bytes:
        is_plan = any(isinstance(one, Plan) and one.phase == phase for one in messages(packet))
        if place == 0 and is_plan:
            plans.append(packet)
        return packet

    failing_phase = phase
    monkeypatch.setattr(node._ballots, "vector", failing)
    federation.transport.on_query = on_query
    with pytest.raises(VoidBatchError):
        federation.ask(0, 1, 4)
    answers = [answer for place, answer in federation.transport.answers if place == 0]
    assert messages(answers[-1]) == []
    [plan] = plans
    assert messages(node.receive(plan)) == []
