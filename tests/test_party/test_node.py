"""A party: what it does in which order, and what of it can be seen from outside."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from coordinator.errors import PartyRefusedError, RunEndedError, VoidBatchError
from party.decision import agreed_run
from party.decision.decisions import BatchAccepted, Decision, RunRefused, record_of
from party.decision.guard import Consent, Guard
from party.decision.node import MAX_PACKET_BYTES
from party.errors import ApprovalError, Reason, RefusalError, StorageError
from party.site.party_task import PartyTask, tasks_of
from pate_fed.accounting import EntryState, GaussianMaxEvent
from pate_fed.queries import QueryBatch, QueryPool
from pate_fed.releases import NoisyRelease, Outcome
from pate_fed.terms import MOST_ASKED, BatchTerms, RunTerms
from protocols import wire
from protocols.errors import KeysGoneError
from protocols.fields import Message
from protocols.identity import SigningIdentity
from protocols.messages import Readiness, Refusal, Settlement
from protocols.rounds import PartyState
from protocols.values import decode_value, encode_value
from tests.support.federation import (
    CLASSES,
    TEACHERS,
    Federation,
    kinds,
    messages,
    ready_federation,
)
from tests.support.markers import sampled

CODE = re.compile(r"PF-\d{3}")


def ready(**changed: Any) -> Federation:
    return ready_federation(**changed)


@pytest.fixture
def federation() -> Federation:
    return ready_federation()


class TestOrder:
    def test_party_charges_and_notes_before_it_votes_and_stores_before_it_sends(self) -> None:
        federation = ready()
        federation.ask(0, 1)
        assert federation.steps[0] == ["ledger reserved", "claim", "vote", "begin", "keep"]

    def test_party_charges_the_worst_case_first_and_what_was_released_later(self) -> None:
        federation = ready()
        federation.ask(0, 1, 2)
        [held] = federation.nodes[0].ledger.entries
        worst = GaussianMaxEvent(asks=3, sigma=20.0)
        assert (held.state.value, held.charged) == ("reserved", worst)
        federation.run.close()
        [entry] = federation.nodes[0].ledger.entries
        assert entry.state.value == "committed"
        [released] = [release for _, release in federation.store.releases().values()]
        assert entry.release_digest == released.digest


class TestInquiry:
    """Before a plan the coordinator asks whether it would be served: no vote, no charge."""

    def inquiry(self, federation: Federation, *indices: int) -> bytes:
        terms = BatchTerms(federation.run.terms, indices)
        return federation.run.round.inquiry.ask(encode_value(terms.as_record()))

    def answer(self, federation: Federation, *indices: int, place: int = 0) -> Message:
        inquiry = self.inquiry(federation, *indices)
        [said] = messages(federation.nodes[place].receive(wire.pack([inquiry])))
        assert isinstance(said, Readiness | Refusal)
        assert said.subject == wire.decode(inquiry).digest  # of no plan: it promises nothing
        return said

    def refusal(self, federation: Federation, *indices: int) -> str:
        said = self.answer(federation, *indices)
        assert isinstance(said, Refusal)
        return said.reason

    def test_who_would_refuse_all_says_why_and_nothing_changes_there(self) -> None:
        federation = ready()
        node = federation.nodes[0]
        guard, head = node._guard, node.transcript_head
        steps, ledger, state = list(federation.steps[0]), node.ledger, node.state
        decided = {"known_peers": node._known_peers, "tasks": node._tasks}
        for changed, reason in (
            (replace(guard, consent=Consent(is_paused=True)), Reason.PAUSED),
            (replace(guard, consent=Consent(approved_runs=frozenset())), Reason.APPROVAL),
            (replace(guard, policy=replace(guard.policy, most_queries=1)), Reason.QUERIES),
        ):
            node.adopt(guard=changed, **decided)
            assert self.refusal(federation, 0, 1) == reason.value
        node.adopt(guard=guard, **decided)
        assert self.answer(federation, 0, 1).refused == ()  # type: ignore[attr-defined]
        assert (federation.steps[0], node.ledger, node.state) == (steps, ledger, state)
        assert node.transcript_head == head
        assert federation.ask(1).answered == 1

    def test_who_lacks_the_budget_says_so_before_the_others_pay(self) -> None:
        federation = ready(budgets={0: 0.2})
        assert self.refusal(federation, 0, 1, 2) == Reason.BUDGET.value
        assert isinstance(self.answer(federation, 0, 1, 2, place=1), Readiness)
        standing = federation.run.ask_ready((0, 1, 2))
        assert standing.unready == {federation.names[0]: Reason.BUDGET.value}
        assert [len(node.ledger.entries) for node in federation.nodes] == [0, 0, 0]

    def test_who_cannot_store_what_stands_in_front_of_it_says_so(
        self, monkeypatch: pytest.MonkeyPatch, federation: Federation
    ) -> None:
        """The settlement of the batch before: to the coordinator it would be silent otherwise."""
        federation.ask(0)

        def no_room(*_: object, **__: object) -> None:
            raise StorageError("the disk must have room", "none")

        with monkeypatch.context() as patch:
            patch.setattr(federation.nodes[0]._ledger, "save_run", no_room)
            unready = federation.run.ask_ready((1,)).unready
        assert unready == {federation.names[0]: Reason.STORAGE.value}
        assert federation.run.ask_ready((1,)).unready == {}
        assert federation.ask(1).answered == 1

    def test_queries_that_were_answered_are_named_and_the_others_served(self) -> None:
        federation = ready()
        federation.ask(1, 4)
        federation.forget_asked()
        standing = federation.run.ask_ready((0, 1, 3, 4, 5))
        assert standing.unready == {}
        assert set(standing.refused) == {1, 4}
        assert {frozenset(names) for names in standing.refused.values()} == {
            frozenset(federation.names)
        }
        assert federation.ask(0, 3, 5).answered == 3

    def test_the_same_inquiry_again_is_answered_without_another_look(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A coordinator that waits asks again every few seconds; another keeps a node busy."""
        federation, looks = ready(), 0
        look = Guard.refused_alone

        def counted(*words: Any, **named: Any) -> list[int]:
            nonlocal looks
            looks += 1
            return look(*words, **named)

        monkeypatch.setattr(Guard, "refused_alone", counted)
        said = [self.answer(federation, 0, 1) for _ in range(3)]
        assert looks == 1
        assert said == said[:1] * 3
        federation.ask(0)
        federation.forget_asked()
        assert set(federation.run.ask_ready((0, 1)).refused) == {0}
        assert looks == 1 + len(federation.nodes)

    def test_inquiries_about_too_many_queries_are_refused_until_a_plan_comes(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(agreed_run, "MOST_INQUIRED", 5)
        federation = ready()
        for indices in ((0, 1), (1, 2), (3,)):
            assert isinstance(self.answer(federation, *indices), Readiness)
        assert self.refusal(federation, 4) == Reason.QUERIES.value
        assert isinstance(self.answer(federation, 1, 2), Readiness)  # it costs nothing
        assert federation.ask(5).answered == 1
        assert federation.run.ask_ready((4,)).unready == {}

    def test_no_inquiry_names_more_queries_than_a_batch_has(self, federation: Federation) -> None:
        record = BatchTerms(federation.run.terms, (0,)).as_record()
        for asked, code in ((MOST_ASKED, Reason.QUERIES), (MOST_ASKED + 1, Reason.TERMS)):
            terms = encode_value({**record, "indices": list(range(asked))})
            frame = federation.run.round.inquiry.ask(terms)
            [said] = messages(federation.nodes[0].receive(wire.pack([frame])))
            assert isinstance(said, Refusal)
            assert said.reason == code.value  # fewer are in the run's caps, or the pool

    def test_who_was_restarted_says_that_its_keys_are_gone(self, federation: Federation) -> None:
        federation.ask(0)
        federation.restart(0)
        assert self.refusal(federation, 1) == KeysGoneError.code
        assert federation.run.ask_ready((1,)).unready == {federation.names[0]: KeysGoneError.code}

    def test_a_run_that_has_expired_is_not_ready(self) -> None:
        federation = ready(lifetime_s=10)
        federation.now += 11
        with pytest.raises(RunEndedError):
            federation.run.ask_ready((0,))
        federation.stop_clock()
        assert set(federation.run.ask_ready((0,)).unready) == set(federation.names)

    def test_one_of_other_terms_than_the_runs_is_refused(self, federation: Federation) -> None:
        federation.change_terms(sigma2=1e-3)
        assert self.refusal(federation, 0) == Reason.TERMS.value

    def test_one_by_another_coordinator_gets_no_answer_of_substance(self) -> None:
        federation = ready()
        message = wire.decode(self.inquiry(federation, 0)).message
        forged = wire.sign(message, SigningIdentity.generate()).frame
        [said] = messages(federation.nodes[0].receive(wire.pack([forged])))
        assert isinstance(said, Refusal)
        assert said.reason == "PF-222"

    def test_a_refusal_of_an_inquiry_is_no_promise_about_a_plan(self) -> None:
        """A coordinator shows it in a void settlement, to have charges freed and queries asked."""
        federation = ready()
        node = federation.nodes[0]
        node.adopt(
            guard=replace(node._guard, consent=Consent(is_paused=True)),
            known_peers=node._known_peers,
            tasks=node._tasks,
        )
        inquiry = self.inquiry(federation, 0)
        [refusal] = wire.unpack(node.receive(wire.pack([inquiry])), max_bytes=2**20)
        federation.on_vectors_of(2, lambda answer: None)
        node.adopt(
            guard=federation.nodes[1]._guard, known_peers=node._known_peers, tasks=node._tasks
        )
        with pytest.raises(VoidBatchError):
            federation.ask(0)
        settled = wire.expect(wire.decode(federation.settlement), Settlement)
        federation.settle_otherwise(replace(settled, refusals=(refusal,)))
        [answer] = messages(federation.nodes[1].receive(wire.pack([federation.settlement])))
        assert isinstance(answer, Refusal)
        assert federation.nodes[1].state is PartyState.STOPPED
        assert federation.party_states(1) == ["reserved"]


BROKEN_TEACHERS = [
    pytest.param(lambda batch: 1 / 0, id="raise"),
    pytest.param(lambda batch: np.full((TEACHERS, len(batch)), np.nan), id="no numbers"),
    pytest.param(lambda batch: np.full((TEACHERS, len(batch)), np.inf), id="endless"),
    pytest.param(lambda batch: np.full((TEACHERS, len(batch)), -1), id="negative"),
    pytest.param(lambda batch: np.full((TEACHERS, len(batch)), CLASSES), id="one class too many"),
    pytest.param(lambda batch: np.full((TEACHERS, len(batch)), 10**18), id="far out of range"),
    pytest.param(lambda batch: np.full((TEACHERS, len(batch)), 0.5), id="half a class"),
    pytest.param(lambda batch: np.zeros((TEACHERS - 1, len(batch))), id="a teacher missing"),
    pytest.param(lambda batch: np.zeros((TEACHERS, len(batch) + 1)), id="a query too many"),
    pytest.param(lambda batch: np.zeros(TEACHERS), id="one axis"),
    pytest.param(lambda batch: np.zeros((0, 0)), id="empty"),
    pytest.param(lambda batch: None, id="nothing"),
    pytest.param(lambda batch: [[1], [1, 2]], id="ragged"),
    pytest.param(lambda batch: np.full((TEACHERS, len(batch)), "setosa"), id="texts"),
    pytest.param(lambda batch: np.full((TEACHERS, len(batch)), {}, dtype=object), id="objects"),
    pytest.param(lambda batch: np.full((TEACHERS, len(batch)), 10**400, dtype=object), id="huge"),
    pytest.param(lambda batch: np.full((TEACHERS, len(batch)), 1j), id="complex"),
    pytest.param(lambda batch: np.full((TEACHERS, len(batch)), np.datetime64("2020")), id="dates"),
]


def counted(federation: Federation, batch: QueryBatch) -> NDArray[np.int64]:
    """What the first party counts for a batch."""
    node = federation.nodes[0]
    return node._ballots._count(node._agreed_run, batch, node._guard.weights).counts


def seen_of(federation: Federation) -> list[tuple[list[str], int]]:
    """Kinds and sizes of all that parties answered."""
    return [(kinds(answer), len(answer)) for _, answer in federation.transport.answers]


@pytest.fixture(scope="module")
def seen_of_healthy() -> list[tuple[list[str], int]]:
    """The answers on one batch of which every teacher votes."""
    federation = ready()
    release = federation.ask(0, 1, 3, 4)
    assert (release.asked, release.labels.tolist()) == (4, [0, 1, 0, 1])
    return seen_of(federation)


class TestBrokenTeachers:
    @sampled()
    @pytest.mark.parametrize("vote", BROKEN_TEACHERS)
    def test_nothing_but_a_vector_is_seen_of_them(
        self, vote: Any, seen_of_healthy: list[tuple[list[str], int]]
    ) -> None:
        # Every teacher of one party fails: its votes become the fixed class, rows stay whole, and
        # the answer has the kind and size that it always has.
        broken = ready(votes={1: vote})
        assert broken.ask(0, 1, 3, 4).asked == 4
        assert seen_of(broken) == seen_of_healthy
        assert broken.coordinator_states == ["committed"]
        broken.run.close()
        assert broken.party_states(1) == ["committed"]

    @sampled()
    @pytest.mark.parametrize("vote", BROKEN_TEACHERS)
    def test_their_votes_are_counted_for_one_fixed_class(self, vote: Any) -> None:
        federation = ready(votes={0: vote})
        federation.ask(1, 2)
        counts = counted(federation, QueryBatch((1, 2), np.zeros((2, 2))))
        assert counts.tolist() == [[TEACHERS, 0, 0], [TEACHERS, 0, 0]]

    def test_one_bad_vote_among_many_leaves_the_others_as_they_are(self) -> None:
        def vote(batch: QueryBatch) -> Any:
            votes = np.full((TEACHERS, len(batch)), 2.0)
            votes[0, 0] = np.nan
            return votes

        federation = ready(votes={0: vote})
        federation.ask(2)
        counts = counted(federation, QueryBatch((2,), np.zeros((1, 2))))
        assert counts.tolist() == [[1, 0, TEACHERS - 1]]

    @pytest.mark.slow
    def test_teachers_cannot_change_the_queries(self) -> None:
        def vote(batch: QueryBatch) -> Any:
            batch.inputs[0, 0] = 5.0

        federation = ready(votes={0: vote})
        assert federation.ask(0, 1).answered == 2
        assert federation.pool.inputs[0, 0] == 0.0


class TestSettlement:
    """A coordinator that lies about what it released."""

    def settle(self, federation: Federation, release: NoisyRelease | bytes) -> bytes:
        """Settle the open plan by a list of the test's choice; return one party's answer."""
        result = release if isinstance(release, bytes) else encode_value(release.as_record())
        honest = wire.decode(federation.settlement).message
        assert isinstance(honest, Settlement)
        lie = Settlement(
            honest.run_id,
            honest.plan_digest,
            "released",
            honest.words,
            honest.contributions,
            (),
            b"",
            result,
        )
        return federation.nodes[0].receive(wire.pack([wire.sign(lie, federation.identity).frame]))

    def release(self, labels: list[int], outcomes: list[int]) -> NoisyRelease:
        return NoisyRelease(np.array(labels, dtype=np.int64), np.array(outcomes, dtype=np.int8))

    A, R, N = Outcome.ANSWERED, Outcome.REFUSED, Outcome.NOT_ASKED

    @sampled()
    @pytest.mark.parametrize(
        ("labels", "outcomes"),
        [
            pytest.param([0, 1], [A, A], id="fewer queries than were asked"),
            pytest.param([0, 1, 2, 0], [A, A, A, A], id="more queries than were asked"),
            pytest.param([], [], id="no query"),
            pytest.param([0, 1, 3], [A, A, A], id="a label that is no class"),
            pytest.param([-1, -1, -1], [N, N, N], id="nothing was looked at"),
            pytest.param([0, -1, -1], [A, N, N], id="one was looked at"),
            pytest.param([0, -1, -1], [A, R, N], id="stopped one short of every cap"),
        ],
    )
    def test_list_that_no_run_can_have_refunds_nothing(
        self, labels: list[int], outcomes: list[int], federation: Federation
    ) -> None:
        federation.ask(0, 1, 2)
        [before] = federation.nodes[0].ledger.entries
        answer = self.settle(federation, self.release(labels, outcomes))
        assert [message.reason for message in messages(answer)] == ["PF-104"]  # type: ignore[attr-defined]
        [after] = federation.nodes[0].ledger.entries
        assert after.charged == before.reserved

    @sampled()
    @pytest.mark.parametrize(
        "result",
        [
            pytest.param(b"", id="nothing"),
            pytest.param(b"\xff", id="no CBOR"),
        ],
    )
    def test_list_that_cannot_be_read_refunds_nothing(self, result: bytes) -> None:
        federation = ready()
        federation.ask(0, 1, 2)
        answer = self.settle(federation, result)
        assert kinds(answer) == ["Refusal"]
        [entry] = federation.nodes[0].ledger.entries
        assert entry.charged == entry.reserved

    def test_refusals_cost_what_answers_cost(self, federation: Federation) -> None:
        federation.ask(0, 1, 2)
        self.settle(federation, self.release([-1, -1, 0], [self.R, self.R, self.A]))
        [entry] = federation.nodes[0].ledger.entries
        assert entry.charged == GaussianMaxEvent(3, 20.0)

    def test_a_cap_may_leave_the_rest_unasked_and_no_query_comes_back(self) -> None:
        federation = ready(terms={"max_answers": 1})
        federation.ask(0, 1, 2)
        self.settle(federation, self.release([0, -1, -1], [self.A, self.N, self.N]))
        [entry] = federation.nodes[0].ledger.entries
        assert entry.state.value == "committed"
        assert entry.charged == GaussianMaxEvent(3, 20.0)

    def test_what_follows_a_bad_settlement_in_one_packet_is_not_done(self) -> None:
        federation = ready()
        federation.ask(0, 1, 2)
        federation.settle_otherwise(
            Settlement(federation.run.round.run_id, bytes(32), "released", 9, (b"",), (), b"", b"")
        )
        with pytest.raises(VoidBatchError):
            federation.ask(3)
        assert federation.steps[0].count("vote") == 1


@pytest.fixture(scope="module")
def waiting() -> Federation:
    """A federation that waits for a plan."""
    return ready()


@pytest.fixture(scope="module")
def fresh() -> Federation:
    """A federation that waits for an offer."""
    return Federation()


def assert_codes_only(answer: bytes) -> None:
    """An answer may hold signed refusals, and in them a code."""
    for message in messages(answer):
        assert isinstance(message, Refusal)
        assert CODE.fullmatch(message.reason)


class TestDoor:
    """Whatever comes in, what goes out is a code (rule R10)."""

    @settings(max_examples=150, deadline=None)
    @given(packet=st.binary(max_size=300))
    def test_random_bytes_are_answered_by_a_code(self, waiting: Federation, packet: bytes) -> None:
        assert_codes_only(waiting.nodes[0].receive(packet))
        assert waiting.nodes[0].state is PartyState.READY

    @settings(max_examples=100, deadline=None)
    @given(frames=st.lists(st.binary(max_size=80), max_size=wire.MAX_PACKET_FRAMES))
    def test_random_frames_are_answered_by_a_code(
        self, waiting: Federation, frames: list[bytes]
    ) -> None:
        assert_codes_only(waiting.nodes[0].receive(wire.pack(frames)))

    @settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(place=st.integers(0, 10**6), bit=st.integers(0, 7), cut=st.integers(0, 40))
    def test_damaged_offers_are_answered_by_a_code(
        self, fresh: Federation, place: int, bit: int, cut: int
    ) -> None:
        frame = bytearray(fresh.run.round.setup.offer.frame)
        frame[place % len(frame)] ^= 1 << bit
        damaged = bytes(frame[: len(frame) - cut])
        assert_codes_only(fresh.nodes[0].receive(wire.pack([damaged])))
        assert fresh.nodes[0].state is PartyState.NEW

    @pytest.mark.parametrize(
        "packet",
        [
            pytest.param(None, id="None"),
            pytest.param(7, id="a number"),
            pytest.param("text", id="text"),
            pytest.param(b"", id="no bytes"),
            pytest.param(bytes(MAX_PACKET_BYTES + 1), id="too many bytes"),
            pytest.param(b"\x81" * 5000, id="deeply nested"),
            pytest.param(b"\x9b" + b"\xff" * 8, id="a list of 2^64"),
            pytest.param(b"\x5b" + b"\xff" * 8, id="bytes of 2^64"),
        ],
    )
    def test_what_is_no_packet_is_answered_by_a_code(self, fresh: Federation, packet: Any) -> None:
        answer = fresh.nodes[0].receive(packet)
        assert kinds(answer) == ["Refusal"]
        assert_codes_only(answer)

    def test_in_a_run_the_shares_of_all_parties_may_come_in_one_packet(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """They grow with the square of the parties: those of 300 are more than 8 MiB."""
        federation = ready(parties=6, form="masked")
        monkeypatch.setattr("party.decision.node.MAX_PACKET_BYTES", 500)
        assert federation.ask(0, 1).answered == 2

    def test_an_empty_packet_gets_an_empty_answer(self, fresh: Federation) -> None:
        assert fresh.nodes[0].receive(wire.pack([])) == wire.pack([])

    def test_text_of_an_exception_never_leaves(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        federation = ready()

        def fail(*_: object, **__: object) -> None:
            raise RuntimeError("patient 4711")

        monkeypatch.setattr(federation.nodes[0]._journal.queries, "claim", fail)
        caplog.set_level("DEBUG")
        with pytest.raises(VoidBatchError) as void:
            federation.ask(0)
        assert Reason.FAULT in str(void.value)
        assert "patient" not in str(void.value)
        assert not any(b"patient" in packet for packet in federation.transport.packets)
        assert "patient" not in caplog.text


class TestRuns:
    def test_a_finished_party_joins_another_run(self, federation: Federation) -> None:
        federation.ask(0)
        federation.run.close()
        assert federation.nodes[0].state is PartyState.DONE
        second = Federation()
        for node in federation.nodes:
            node._coordinator = second.identity.public
        answer = federation.nodes[0].receive(wire.pack([second.run.round.setup.offer.frame]))
        assert kinds(answer) == ["KeyStatement"]

    def test_repr_names_a_party_and_nothing_else(self) -> None:
        node = Federation().nodes[0]
        assert re.fullmatch(r"PartyNode\([0-9a-f]{16}, new\)", repr(node))

    @pytest.mark.parametrize("ended", ["done", "stopped"])
    def test_a_strangers_offer_does_not_wipe_an_ended_run(self, ended: str) -> None:
        federation = ready()
        federation.ask(0)
        federation.run.close()
        node = federation.nodes[0]
        if ended == "stopped":
            node._round._stop()
        state, head = node.state, node.transcript_head
        node.receive(wire.pack([Federation().run.round.setup.offer.frame]))
        assert (node.state, node.transcript_head) == (state, head)


class TestTasks:
    """What a party can be asked about, and what its people decide while it runs."""

    def test_a_run_is_answered_by_the_teachers_of_its_own_pool(self) -> None:
        federation = Federation()
        node, mine = federation.nodes[0], federation.nodes[0]._tasks
        other = PartyTask(QueryPool(np.ones((2, 2))), lambda batch: pytest.fail("not asked"))
        node.adopt(
            guard=node._guard, known_peers=node._known_peers, tasks={**tasks_of(other), **mine}
        )
        federation.run.set_up()
        assert federation.ask(0, 1).labels.tolist() == [0, 1]

    def test_a_pool_that_is_approved_but_has_no_teachers_is_refused(self) -> None:
        federation = Federation()
        node = federation.nodes[0]
        node.adopt(guard=node._guard, known_peers=node._known_peers, tasks={})
        with pytest.raises(PartyRefusedError, match=Reason.POOL):
            federation.run.set_up()

    def test_a_run_of_another_number_of_classes_than_the_task_is_refused(self) -> None:
        federation = Federation()
        node = federation.nodes[0]
        [task] = node._tasks.values()
        node.adopt(
            guard=node._guard,
            known_peers=node._known_peers,
            tasks=tasks_of(replace(task, classes=CLASSES + 1)),
        )
        with pytest.raises(PartyRefusedError, match=Reason.TERMS):
            federation.run.set_up()

    def test_people_are_asked_last_and_about_this_run_among_these_parties_only(self) -> None:
        told: list[Decision] = []
        federation = Federation()
        node = federation.nodes[0]
        node._tell = told.append
        nobody = replace(node._guard, consent=Consent(frozenset()))
        node.adopt(guard=nobody, known_peers=node._known_peers, tasks=node._tasks)
        with pytest.raises(PartyRefusedError, match=Reason.APPROVAL):
            federation.run.set_up()
        [refused] = told
        assert isinstance(refused, RunRefused)
        scope = refused.scope
        terms = RunTerms.from_record(decode_value(scope.terms))
        yes = replace(node._guard, consent=Consent(frozenset({scope.digest})))
        yes.review_consent(terms, scope=scope)
        for changed in (
            {"terms": encode_value(replace(terms, delta=1e-6).as_record())},
            {"terms": encode_value(replace(terms, name="another").as_record())},
            {"seats": (*scope.seats[:-1], bytes(32))},
            {"form": "masked"},
            {"ring_bits": scope.ring_bits - 1},
            {"suite": "another"},
            {"threshold": scope.threshold - 1},
            {"colluders": scope.colluders + 1},
            {"dropouts": scope.dropouts + 1},
        ):
            with pytest.raises(RefusalError) as error:
                yes.review_consent(terms, scope=replace(scope, **changed))
            assert error.value.reason is Reason.APPROVAL

    def test_people_are_not_asked_about_what_is_refused_anyhow(self) -> None:
        federation = Federation(policy={"most_epsilon": 0.1})
        node = federation.nodes[0]
        guard = replace(node._guard, consent=Consent(frozenset()))
        node.adopt(guard=guard, known_peers=node._known_peers, tasks=node._tasks)
        with pytest.raises(PartyRefusedError, match=Reason.BUDGET):
            federation.run.set_up()

    def test_an_approval_that_is_taken_back_after_the_charge_is_a_refusal_that_says_so(
        self,
    ) -> None:
        """Somebody rejects the run between the guard's look and the record of the answer."""
        told: list[Decision] = []

        def tell(decision: Decision) -> None:
            told.append(decision)
            if isinstance(decision, BatchAccepted):
                raise ApprovalError("a run must be approved to be answered", "not so")

        asked: list[QueryBatch] = []

        def vote(batch: QueryBatch) -> Any:
            asked.append(batch)
            return np.zeros((TEACHERS, len(batch)), dtype=np.int64)

        federation = ready_federation(votes={0: vote})
        federation.nodes[0]._tell = tell
        with pytest.raises(VoidBatchError, match=Reason.APPROVAL):
            federation.ask(0, 1)
        assert asked == []
        assert [type(one).__name__ for one in told] == ["BatchAccepted", "BatchRefused"]
        federation.run.close()  # says how the batch ended
        [charged] = federation.nodes[0].ledger.entries
        assert charged.state is EntryState.CANCELLED  # it signed that it never sends

    def test_decisions_hold_no_vote(self) -> None:
        told: list[Decision] = []
        federation = Federation()
        federation.nodes[0]._tell = told.append
        federation.run.set_up()
        federation.ask(0, 1)
        federation.run.close()
        assert [type(one).__name__ for one in told] == [
            *("RunAccepted", "BatchAccepted", "RunClosed"),
        ]
        other = Federation(votes={0: lambda batch: np.full((TEACHERS, len(batch)), 2)})
        others: list[Decision] = []
        other.nodes[0]._tell = others.append
        other.run.set_up()
        other.ask(0, 1)
        assert isinstance(told[1], BatchAccepted)
        assert isinstance(others[1], BatchAccepted)
        assert told[1].queries == others[1].queries
        assert record_of(told[1])[1].keys() == {"run", "plan", "queries"}
        assert record_of(told[2])[1].keys() == {"run", "head", "parties"}
