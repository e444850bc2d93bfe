"""Whole runs in one process, with parties that fail, refuse, lie, or send what they should not."""

from __future__ import annotations

import hashlib
import itertools
import math
import secrets
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import pytest
from numpy.typing import NDArray

import party.flower.client_app
from coordinator.errors import (
    PartyFailedError,
    PartyRefusedError,
    SetupError,
    SpoiledBatchError,
    VoidBatchError,
)
from coordinator.flower.local_grid import LocalGrid
from coordinator.flower.server_app import GridTransport
from coordinator.runs.labeling.messenger import SETUP_ANSWER_BYTES
from coordinator.runs.transport import Silence
from pate_fed.accounting import GaussianMaxEvent, LaplaceMaxEvent, Outcomes, formal_cost
from pate_fed.charges import RunLedger, charge_of
from pate_fed.errors import InvalidParameterError, OutcomeCapError
from pate_fed.mechanisms import InteractiveThresholdMax
from pate_fed.opened_sums import open_sum
from pate_fed.prices import charged_price
from pate_fed.queries import QueryBatch
from pate_fed.releases import ABSTAIN, Outcome
from pate_fed.terms import BatchTerms
from pate_fed.votes import SummedHistogram
from protocols import wire
from protocols.identity import SigningIdentity
from protocols.messages import MaskedVector, Plan, Refusal
from protocols.rounds import PartyState
from protocols.values import decode_value
from tests.support.federation import (
    CLASSES,
    ORDER,
    TEACHERS,
    Answer,
    Federation,
    LyingNode,
    expected_class,
    holds_vector,
    kinds,
    messages,
    ready_federation,
)
from tests.support.markers import sampled
from tests.support.rules import with_other

CULPRIT = 1


def ready(**changed: Any) -> Federation:
    return ready_federation(**changed)


class TestHonestRun:
    @sampled("parties")
    @pytest.mark.parametrize("parties", [3, 4, 10])
    @pytest.mark.parametrize("mechanism", ["threshold", "gnmax"])
    def test_labels_are_what_the_teachers_say(self, parties: int, mechanism: str) -> None:
        federation = ready(parties=parties, terms={"mechanism": mechanism})
        release = federation.ask(5, 0, 7)
        assert release.labels.tolist() == [expected_class(index) for index in (5, 0, 7)]
        federation.run.close()
        assert all(node.state is PartyState.DONE for node in federation.nodes)

    def test_teachers_that_disagree_get_no_answer(self) -> None:
        federation = ready(
            votes={
                place: (lambda batch, place=place: np.full((TEACHERS, len(batch)), place))
                for place in range(3)
            }
        )
        release = federation.ask(0, 1)
        assert release.outcomes.tolist() == [Outcome.REFUSED, Outcome.REFUSED]
        assert release.labels.tolist() == [ABSTAIN, ABSTAIN]

    def test_ledgers_of_the_parties_end_as_the_coordinators(self) -> None:
        federation = ready(parties=4)
        federation.ask(0, 1, 2)
        federation.ask(3, 4)
        federation.run.close()
        entries = federation.charges
        for node in federation.nodes:
            assert [entry.charged for entry in node.ledger.entries] == [
                charge_of(federation.run.terms, e.charged, weight=1) for e in entries
            ]
            assert [entry.release_digest for entry in node.ledger.entries] == [
                entry.release_digest for entry in entries
            ]
            assert [entry.state for entry in node.ledger.entries] == [e.state for e in entries]

    def test_a_run_takes_four_exchanges_one_per_batch_and_two(self) -> None:
        federation = ready()
        assert federation.transport.traffic.exchanges == 4
        federation.ask(0)
        federation.ask(1)
        assert federation.transport.traffic.exchanges == 6
        federation.run.close()
        assert federation.transport.traffic.exchanges == 8

    def test_same_noise_and_votes_give_the_same_labels(self) -> None:
        terms = {"mechanism": "gnmax", "sigma2": 1e5}
        releases = [ready(terms=terms).ask(*range(24)).labels.tolist() for _ in range(2)]
        assert releases[0] == releases[1]

    def test_noise_of_the_operating_system_differs_every_time(self) -> None:
        # Noise 500 times the votes: 24 labels agree by chance once in 3^24 runs.
        terms = {"mechanism": "gnmax", "sigma2": 3e5}
        one, other = (
            ready(terms=terms, noise=secrets.token_bytes).ask(*range(24)) for _ in range(2)
        )
        assert one.digest != other.digest


class TestOrder:
    def test_worst_case_is_charged_before_a_plan_leaves(self) -> None:
        federation = ready()
        federation.events.clear()
        federation.ask(0, 1)
        assert federation.events == ["ledger reserved", "exchange Plan", "release committed"]

    def test_release_is_stored_before_anybody_hears_of_it(self) -> None:
        federation = ready()
        federation.ask(0, 1)
        assert not any("Settlement" in event for event in federation.events)
        federation.ask(2)
        place = federation.events.index("release committed")
        assert federation.events[place + 1 :] == [
            "ledger reserved",
            "exchange Settlement Plan",
            "release committed",
        ]

    def test_what_is_reserved_is_the_worst_case_whatever_is_answered(self) -> None:
        federation = ready()
        federation.ask(0, 1, 2)
        [entry] = federation.charges
        assert entry.reserved == Outcomes(3, 3)

    def test_batch_above_the_caps_reaches_no_party(self) -> None:
        federation = ready(terms={"max_asks": 4})
        federation.events.clear()
        with pytest.raises(OutcomeCapError):
            federation.ask(*range(5))
        assert federation.events == []
        assert not any(federation.steps)
        assert federation.charges == ()
        assert federation.ask(0).answered == 1  # a smaller one fits

    def test_noise_is_drawn_only_once_every_vector_is_in(self) -> None:
        draws: list[int] = []

        def noise(count: int) -> bytes:
            draws.append(count)
            return secrets.token_bytes(count)

        federation = ready(noise=noise)
        federation.on_vectors_of(CULPRIT, lambda answer: None)
        with pytest.raises(VoidBatchError):
            federation.ask(0, 1)
        assert draws == []

    def test_query_outside_the_pool_is_refused_before_a_charge(self) -> None:
        federation = ready()
        with pytest.raises(ValueError, match="queries"):
            federation.ask(24)
        assert federation.charges == ()


# What one party may do to a batch. Each entry changes its answer; its code and name must come out.

Attack = Callable[[Federation, bytes], Answer]


def body_of_length(words: int) -> Attack:
    def attack(federation: Federation, answer: bytes) -> bytes:
        by = federation.identities[CULPRIT]
        return federation.resigned(answer, lambda body: body[: 4 * words].ljust(4 * words), by=by)

    return attack


def other_bytes_again(federation: Federation, answer: bytes) -> bytes:
    changed = federation.resigned(
        answer, lambda body: bytes(len(body)), by=federation.identities[CULPRIT]
    )
    return wire.pack(wire.unpack(answer, max_bytes=10**6) + wire.unpack(changed, max_bytes=10**6))


def by_another_key(federation: Federation, answer: bytes) -> bytes:
    return federation.resigned(answer, lambda body: body, by=SigningIdentity.generate())


BATCH_ATTACKS = [
    pytest.param(body_of_length(5), "PF-224", id="a y that is too short"),
    pytest.param(other_bytes_again, "PF-223", id="a repeated message with other bytes"),
    pytest.param(by_another_key, "PF-222", id="a message signed by another key"),
    pytest.param(lambda f, answer: b"\xde\xad\xbe\xef" * 9, "PF-221", id="garbage"),
    pytest.param(lambda f, answer: bytes(SETUP_ANSWER_BYTES + 1), "PF-221", id="too large"),
    pytest.param(lambda f, answer: wire.pack([]), "no answer", id="an empty packet"),
    pytest.param(lambda f, answer: None, "no answer in time", id="silence"),
    pytest.param(
        lambda f, answer: Silence("flower error 5"), "flower error 5", id="a node that is down"
    ),
]


class TestOnePartyFails:
    def test_queries_of_a_void_batch_are_not_served_again(self) -> None:
        federation = ready()
        federation.on_vectors_of(CULPRIT, lambda answer: None)
        with pytest.raises(VoidBatchError):
            federation.ask(0, 1)
        federation.heal()
        with pytest.raises(ValueError, match="twice"):
            federation.ask(1, 2)
        assert federation.coordinator_states == ["forfeited"]

    @sampled()
    @pytest.mark.parametrize(("attack", "code"), BATCH_ATTACKS)
    def test_it_is_named_the_batch_is_void_and_the_next_goes_on(
        self, attack: Attack, code: str
    ) -> None:
        federation = ready(parties=4)
        federation.on_vectors_of(CULPRIT, lambda answer: attack(federation, answer))
        with pytest.raises(VoidBatchError) as void:
            federation.ask(0, 1)
        error = void.value
        # A y of a wrong length proves by its signature that it opens nothing.
        is_proof, is_silent = code == "PF-224", not code.startswith("PF-")
        assert error.code == ("PF-411" if is_silent else "PF-419")
        assert f"from {federation.names[CULPRIT]} [{code}]" in str(error)
        expected = "cancelled" if is_proof else "forfeited"
        assert error.reservation == expected
        assert expected in str(error)
        if isinstance(error, SpoiledBatchError):
            assert error.parties == (federation.names[CULPRIT],)
        assert isinstance(error.__cause__, PartyFailedError)
        assert (error.__cause__.party, error.__cause__.cause) == (
            federation.names[CULPRIT],
            code,
        )
        # No label, and without a proof the whole reservation is charged.
        assert federation.store.releases() == {}
        [entry] = federation.charges
        assert (entry.state.value, entry.charged) == (
            expected,
            None if is_proof else entry.reserved,
        )
        # Void once: the run goes on, with other queries.
        assert not federation.run.is_over
        federation.heal()
        if is_proof:  # but for the node of the culprit, which signed nothing of the kind
            federation.run.close()
            others = {*range(4)} - {CULPRIT}
            assert [federation.party_states(place) for place in others] == [["returned"]] * 3
            return
        assert federation.ask(2, 3).labels.tolist() == [2, 0]
        federation.run.close()
        assert federation.coordinator_states == ["forfeited", "committed"]
        for place in range(4):
            assert federation.party_states(place) == ["forfeited", "committed"]

    def test_refusal_that_got_lost_counts_as_a_share_that_may_have_left(self) -> None:
        federation = ready(policies={0: {"most_queries": 1}})
        federation.transport.on_answer = lambda node, answer: None if node == 0 else answer
        with pytest.raises(VoidBatchError) as void:
            federation.ask(0, 1)
        assert void.value.reservation == "forfeited"

    def test_an_identical_frame_twice_changes_nothing(self) -> None:
        federation = ready()

        def twice(answer: bytes) -> bytes:
            return wire.pack(wire.unpack(answer, max_bytes=10**6) * 2)

        federation.on_vectors_of(CULPRIT, twice)
        assert federation.ask(0, 1).labels.tolist() == [0, 1]


class TestRefusals:
    def test_refusal_of_one_party_gives_all_charges_back(self) -> None:
        federation = ready(policies={2: {"most_queries": 1}})
        with pytest.raises(VoidBatchError, match=r"hospital-2 \[PF-317\]") as void:
            federation.ask(0, 1)
        assert void.value.reservation == "cancelled"
        assert isinstance(void.value.__cause__, PartyRefusedError)
        assert federation.ask(2).answered == 1
        federation.run.close()
        assert federation.coordinator_states == ["cancelled", "committed"]
        assert federation.party_states(0) == ["returned", "committed"]
        assert federation.party_states(2) == ["committed"]

    def test_refusal_of_all_parties_cancels(self) -> None:
        federation = ready(policy={"most_queries": 1})
        with pytest.raises(VoidBatchError, match="cancelled") as void:
            federation.ask(0, 1)
        assert void.value.reservation == "cancelled"
        [entry] = federation.charges
        assert (entry.state.value, entry.charged) == ("cancelled", None)
        assert federation.ask(2).answered == 1
        federation.run.close()
        assert federation.party_states(0) == ["committed"]

    def test_text_in_place_of_a_code_is_not_passed_on(self) -> None:
        federation = ready()
        me = federation.identities[CULPRIT]

        def chatty(answer: bytes) -> bytes:
            vector = wire.decode(wire.unpack(answer, max_bytes=10**6)[0]).message
            assert isinstance(vector, MaskedVector)
            text = "patient 4711 <script>"
            refusal = Refusal(vector.plan_digest, me.fingerprint, text)
            return wire.pack([wire.sign(refusal, me).frame])

        federation.on_vectors_of(CULPRIT, chatty)
        with pytest.raises(VoidBatchError, match=r"from hospital-1 \[PF-230\]") as void:
            federation.ask(0, 1)
        assert "4711" not in str(void.value)


class TestRowSums:
    def lying(self, lie: list[int], **changed: Any) -> Federation:
        federation = ready(**changed)
        federation.nodes[CULPRIT].lie = np.array(lie, dtype=np.int64)
        return federation

    @sampled()
    @pytest.mark.parametrize(
        "lie",
        [
            pytest.param([1, 0, 0, 0, 0, 0], id="one vote more"),
            pytest.param([0, 0, 0, 0, 0, -1], id="one vote fewer"),
            pytest.param([1, 0, 0, -1, 0, 0], id="one row more and the other less"),
            pytest.param([2**31, 0, 0, 0, 0, 0], id="half the ring"),
            pytest.param([0, 2**31 - 1, 0, 0, 0, 0], id="the ring's edge"),
        ],
    )
    def test_rows_that_miss_the_quota_void_the_batch_and_name_who_sent_them(
        self, lie: list[int]
    ) -> None:
        federation = self.lying(lie)
        with pytest.raises(VoidBatchError) as void:
            federation.ask(0, 1)
        assert void.value.reservation == "forfeited"
        assert [name for name in federation.names if name in str(void.value)] == [
            federation.names[CULPRIT]
        ]
        assert federation.store.releases() == {}
        federation.nodes[CULPRIT].lie = None
        assert federation.ask(2, 3).labels.tolist() == [2, 0]

    def test_no_error_of_a_void_batch_keeps_its_sum(self) -> None:
        federation = self.lying([1, 0, 0, 0, 0, 0])
        with pytest.raises(VoidBatchError) as void:
            federation.ask(0, 1)
        kept = [
            value
            for error in (void.value, void.value.__cause__)
            for frame, _ in traceback.walk_tb(error.__traceback__ if error else None)
            if "open_sum" in frame.f_code.co_name or "_collect" in frame.f_code.co_name
            for value in frame.f_locals.values()
            if isinstance(value, np.ndarray)
        ]
        assert void.value.__cause__ is not None
        assert kept == []

    def test_quota_is_of_all_parties_together(self) -> None:
        # A party with one teacher more than it said.
        federation = ready()
        lie = np.zeros(2 * CLASSES, dtype=np.int64)
        lie[0] = lie[CLASSES] = 1
        federation.nodes[0].lie = lie
        with pytest.raises(VoidBatchError, match=f"{3 * TEACHERS} votes"):
            federation.ask(0, 1)


def seen(federation: Federation, *indices: int) -> dict[str, Any]:
    """All that anybody can see of a run but its labels: outcomes, sizes, ledgers, exchanges."""
    federation.run.set_up()
    setup = len(federation.transport.packets)
    release = federation.ask(*indices)
    federation.run.close()
    packets, traffic = federation.transport.packets[setup:], federation.transport.traffic
    return {
        "outcomes": release.outcomes.tolist(),
        "sizes": [len(packet) for packet in packets],
        "kinds": [kinds(packet) for packet in packets],
        "events": federation.events,
        "steps": federation.steps,
        "coordinator": [(e.state, e.reserved, e.spent) for e in federation.charges],
        "parties": [
            [(e.state, e.reserved, e.spent) for e in node.ledger.entries]
            for node in federation.nodes
        ],
        "exchanges": traffic.exchanges,
        "sent": traffic.sent,
        "answers": sorted((one.kinds, one.node, one.size) for one in traffic.packets),
    }


LIES = [
    pytest.param([1, -1, 0], id="one vote moved"),
    pytest.param([-TEACHERS, TEACHERS, 0], id="all its votes moved"),
    pytest.param([-3 * TEACHERS, 3 * TEACHERS, 0], id="everybody's votes moved"),
    pytest.param([-3 * TEACHERS - 1, 3 * TEACHERS + 1, 0], id="below zero"),
    pytest.param([2**31 - 1, -(2**31) + 1, 0], id="the ring's edge"),
    pytest.param([2**31 - 3 * TEACHERS, -(2**31) + 3 * TEACHERS, 0], id="the wrap itself"),
    pytest.param([2**31 - 3 * TEACHERS - 1, 3 * TEACHERS + 1 - 2**31, 0], id="one before the wrap"),
    pytest.param([2**31, -(2**31), 0], id="half way round"),
    pytest.param([2**30, 2**30, -(2**31)], id="over three classes"),
    pytest.param([2**31, 2**31, 0], id="all the way round in two classes"),
]


class TestSumsAreForgotten:
    @pytest.mark.parametrize("fails", [False, True], ids=["released", "void"])
    def test_an_exact_sum_is_overwritten_once_it_is_used(
        self, monkeypatch: pytest.MonkeyPatch, fails: bool
    ) -> None:
        seen: list[NDArray[np.int64]] = []

        def spy(words: NDArray[np.int64], **named: Any) -> SummedHistogram:
            summed = open_sum(words, **named)
            assert words.any()
            assert summed.counts.any()
            seen.extend((words, summed.counts))
            return summed

        def failing(*_: Any, **__: Any) -> NoReturn:
            raise InvalidParameterError("noise must be drawn", "none")

        monkeypatch.setattr("coordinator.runs.labeling.deciding.open_sum", spy)
        if fails:
            monkeypatch.setattr("pate_fed.mechanisms.coordinator_noise.split_gaussian", failing)
        federation = ready()
        if fails:
            with pytest.raises(VoidBatchError):
                federation.ask(0, 1)
        else:
            assert federation.ask(0, 1).labels.tolist() == [0, 1]
        assert len(seen) == 2
        assert not any(array.any() for array in seen)


class TestSumPreservingLies:
    """R11 and R12: what keeps the row sum is folded, and nothing visible depends on it."""

    @sampled("lie", cases=2)
    @pytest.mark.parametrize("lie", LIES)
    def test_nothing_that_anybody_sees_depends_on_one(self, lie: list[int]) -> None:
        terms = {"mechanism": "gnmax"}
        honest, lying = Federation(terms=terms), Federation(terms=terms)
        lying.nodes[CULPRIT].lie = np.tile(np.array(lie, dtype=np.int64), 4)
        expected = seen(honest, 0, 1, 2, 3)
        assert seen(lying, 0, 1, 2, 3) == expected
        assert expected["outcomes"] == [Outcome.ANSWERED] * 4

    @sampled("lie", cases=3)
    @pytest.mark.parametrize("lie", LIES)
    def test_a_check_answers_or_refuses_and_never_breaks(self, lie: list[int]) -> None:
        federation = ready()
        federation.nodes[CULPRIT].lie = np.tile(np.array(lie, dtype=np.int64), 4)
        release = federation.ask(0, 1, 2, 3)
        assert release.asked == 4
        federation.run.close()
        assert federation.coordinator_states == ["committed"]

    def test_a_lie_at_the_wrap_cannot_turn_one_vote_into_a_label(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # The liar puts class 0 at the ring's edge, so that one more honest vote wraps it round. On
        # both sides of the wrap the folded count is the same; a plain clamp would tell all.
        opened: list[NDArray[np.int64]] = []

        def look(*given: Any, **named: Any) -> SummedHistogram:
            summed = open_sum(*given, **named)
            opened.append(summed.counts[0].copy())  # the run overwrites the sum
            return summed

        monkeypatch.setattr("coordinator.runs.labeling.deciding.open_sum", look)
        for votes in (TEACHERS, TEACHERS - 1):
            federation = ready(
                votes={
                    0: lambda batch, votes=votes: np.repeat(
                        [[0], [1]], [votes, TEACHERS - votes], axis=0
                    )
                }
            )
            shift = 2**31 - 1 - (3 * TEACHERS - 1)
            federation.nodes[CULPRIT].lie = np.array([shift, 0, -shift])
            federation.ask(0)
        assert np.abs(opened[0] - opened[1]).max() <= 1
        assert not np.array_equal(opened[0], opened[1])


class TestCapsAndBudget:
    def test_run_is_over_once_the_last_answer_is_given(self) -> None:
        federation = ready(terms={"max_answers": 3})
        assert federation.ask(0, 1).answered == 2
        assert not federation.run.is_over
        release = federation.ask(2, 3, 4)
        assert release.outcomes.tolist() == [
            Outcome.ANSWERED,
            Outcome.NOT_ASKED,
            Outcome.NOT_ASKED,
        ]
        assert federation.run.is_over
        federation.run.close()
        [_, last] = federation.nodes[0].ledger.entries
        # Queries of a batch that nobody asked are charged like those that somebody did.
        assert last.charged == GaussianMaxEvent(3, 20.0)

    def test_run_is_over_once_the_last_query_is_asked(self) -> None:
        federation = ready(terms={"max_asks": 3, "vote_threshold": 1e9})
        assert federation.ask(0, 1, 2).refused == 3
        assert federation.run.is_over
        with pytest.raises(OutcomeCapError):
            federation.ask(3)
        federation.run.close()
        assert federation.party_states(0) == ["committed"]

    @pytest.mark.parametrize("mechanism", ["threshold", "gnmax"])
    def test_a_run_within_its_budget_asks_all_its_queries(self, mechanism: str) -> None:
        # Exactly its price: nothing is left that a batch could be refused for.
        draft = Federation(terms={"mechanism": mechanism, "max_asks": 6}).run.terms
        federation = ready(
            terms={"mechanism": mechanism, "max_asks": 6}, budget=charged_price(draft, 0).epsilon
        )
        for index in range(6):
            assert federation.ask(index).answered == 1
        assert federation.run.is_over
        federation.run.close()
        agree(federation)

    def test_per_instance_cost_grows_with_every_release(self) -> None:
        federation = ready()
        costs = [
            federation.run.per_instance_cost.epsilon
            for index in range(3)
            if federation.ask(index).asked
        ]
        assert 0 < costs[0] < costs[1] < costs[2]


@dataclass(frozen=True)
class Stranger:
    """A node that is nobody's of the run."""

    answer: bytes | None

    def receive(self, packet: bytes) -> bytes | None:
        return self.answer


class TestSetup:
    """Before any plan: nothing is charged, and the error says who."""

    @sampled()
    @pytest.mark.parametrize("stage", ["EnvelopeBundle", "Confirmations", "Ready"])
    @pytest.mark.parametrize(
        ("change", "code"),
        [
            pytest.param(lambda answer: None, "no answer in time", id="silence"),
            pytest.param(lambda answer: b"\0", "PF-221", id="garbage"),
            pytest.param(lambda answer: wire.pack([]), "no answer", id="an empty packet"),
            pytest.param(lambda answer: bytes(6 * 2**20), "PF-221", id="too large"),
        ],
    )
    def test_failing_party_is_named(
        self, stage: str, change: Callable[[bytes], Answer], code: str
    ) -> None:
        federation = Federation()

        def on_answer(node: int, answer: bytes) -> Answer:
            hit = node == CULPRIT and stage in kinds(answer)
            return change(answer) if hit else answer

        federation.transport.on_answer = on_answer
        with pytest.raises(PartyFailedError) as failed:
            federation.run.set_up()
        assert (failed.value.party, failed.value.cause) == ("hospital-1", code)
        assert federation.charges == ()

    @pytest.mark.parametrize("parties", [3, 4, 10])
    def test_an_additive_run_says_that_it_hides_votes_from_all_but_two(self, parties: int) -> None:
        federation = ready_federation(parties=parties)
        record = federation.run.round.setup.record
        assert (record.colluders, record.dropouts) == (parties - 2, 0)
        assert record.threshold == parties

    @pytest.mark.parametrize("colluders", [1, 3])
    def test_with_noise_at_the_parties_a_run_says_how_many_it_pays_for(
        self, colluders: int
    ) -> None:
        at_parties = {"noise_place": "parties", "colluders": colluders}
        federation = ready_federation(parties=5, terms=at_parties)
        record = federation.run.round.setup.record
        assert (record.colluders, record.dropouts) == (colluders, 0)

    def test_party_that_does_not_answer_the_offer_is_missed(self) -> None:
        federation = Federation()
        federation.transport.on_query = lambda node, packet: None if node == 2 else packet
        with pytest.raises(SetupError, match="node 2: "):
            federation.run.set_up()

    def test_node_that_answers_nothing_is_missed_by_its_partys_name(self) -> None:
        federation = Federation()
        federation.transport.on_answer = lambda node, a: wire.pack([]) if node == 2 else a
        with pytest.raises(SetupError, match="hospital-2"):
            federation.run.set_up()

    def test_a_node_without_a_seat_stops_nothing(self) -> None:
        federation, other = Federation(), Federation()
        own_refusal = other.nodes[0].receive(wire.pack([b"\0"]))
        answers = [None, b"", b"\0", wire.pack([]), wire.pack([b"\0"]), own_refusal]
        for answer in answers:
            federation.transport.doors.append(Stranger(answer))
        federation.run.set_up()
        assert not federation.run.round.missing

    def test_a_node_with_a_seat_that_adds_garbage_stops_the_setup(self) -> None:
        federation = Federation()

        def on_answer(node: int, answer: bytes) -> bytes:
            frames = wire.unpack(answer, max_bytes=len(answer))
            return wire.pack([*frames, b"\0"]) if node == CULPRIT else answer

        federation.transport.on_answer = on_answer
        with pytest.raises(SetupError, match=rf"3 .*\(node {CULPRIT}: .*PF-221"):
            federation.run.set_up()

    def test_one_party_cannot_take_two_seats(self) -> None:
        federation = Federation()
        federation.transport.on_answer = lambda node, answer: (
            federation.transport.answers[0][1] if node == 1 else answer
        )
        with pytest.raises(SetupError, match="hospital-1"):
            federation.run.set_up()


class TestOverFlower:
    """The same runs through both Flower apps and the in-process grid."""

    def over_grid(self, *, down: set[int], **changed: Any) -> Federation:

        def network(nodes: list[LyingNode]) -> GridTransport:
            app = party.flower.client_app.build(lambda partition: nodes[partition])
            grid = LocalGrid(
                app, nodes=len(nodes), workers=2, is_down=lambda partition: partition in down
            )
            return GridTransport(grid, nodes=len(nodes), timeout_s=120.0)

        return Federation(network=network, **changed)

    def test_whole_run_ends_well(self) -> None:
        federation = self.over_grid(down=set(), parties=5)
        federation.run.set_up()
        assert federation.ask(0, 1, 2).labels.tolist() == [0, 1, 2]
        federation.run.close()
        assert {node.state for node in federation.nodes} == {PartyState.DONE}

    def test_node_that_is_down_from_the_start_is_missed(self) -> None:
        federation = self.over_grid(down={1})
        with pytest.raises(SetupError, match=r"\b5\b"):
            federation.run.set_up()

    def test_node_that_goes_down_is_named_and_voids_the_batch(self) -> None:
        down: set[int] = set()
        federation = self.over_grid(down=down)
        federation.run.set_up()
        assert federation.ask(0).answered == 1
        down.add(1)
        with pytest.raises(VoidBatchError, match=r"hospital-1 \[.*5\]") as void:
            federation.ask(1, 2)
        assert void.value.reservation == "forfeited"
        assert list(federation.store.releases()) == [0]
        with pytest.raises(PartyFailedError, match=r"hospital-1 \[.*5\]"):
            federation.run.close()

    def test_node_that_faults_is_named_by_its_code(self, monkeypatch: pytest.MonkeyPatch) -> None:
        federation = self.over_grid(down=set())
        federation.run.set_up()
        monkeypatch.setattr(federation.nodes[2], "receive", lambda packet: 1 / 0)
        with pytest.raises(VoidBatchError, match=r"hospital-2 \[PF-301\]"):
            federation.ask(0)


class TestSilenceAfterTheVote:
    """Once its teachers have voted, a party sends or is silent (rule R12)."""

    def test_party_that_was_silent_stays_charged_and_serves_the_next_batch(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        federation = ready()
        with monkeypatch.context() as broken:
            broken.setattr(federation.nodes[CULPRIT]._ballots, "vector", lambda *_, **__: 1 / 0)
            with pytest.raises(VoidBatchError, match=r"hospital-1 \["):
                federation.ask(0, 1)
        assert federation.ask(2, 3).labels.tolist() == [2, 0]
        federation.run.close()
        assert federation.party_states(CULPRIT) == ["forfeited", "committed"]
        entry = federation.nodes[CULPRIT].ledger.entries[0]
        assert entry.charged == entry.reserved
        agree(federation)


def test_every_counter_that_a_hospital_signed_is_stored_before_the_run_goes_on() -> None:
    """Rule R4: the next offer finds a restored journal by the last counter that it signed."""
    federation = Federation()

    def stored() -> list[str]:
        frames = federation.store.statements.frames().values()
        return [type(wire.decode(frame).message).__name__ for frame in frames]

    federation.transport.on_query = lambda node, packet: None if node == CULPRIT else packet
    with pytest.raises(SetupError):
        federation.run.set_up()
    assert stored() == ["KeyStatement"] * 2
    federation.heal()
    run = federation.set_up_anew(owed={})
    records = [kinds(packet) for packet in federation.transport.packets]
    assert records.count(["KeyStatement", "RunRecord"]) == 2  # each hospital is shown its own
    assert stored() == ["Ready"] * 3
    before = federation.store.statements.frames()
    run.close()
    assert set(federation.store.statements.frames().values()).isdisjoint(before.values())


def test_a_coordinator_without_one_vector_learns_nothing_but_noise() -> None:
    federation = ready(parties=4)
    federation.ask(0, 1)
    bodies: list[NDArray[np.uint32]] = []
    for _, answer in federation.transport.answers:
        if holds_vector(answer):
            message = wire.decode(wire.unpack(answer, max_bytes=10**6)[0]).message
            assert isinstance(message, MaskedVector)
            bodies.append(np.frombuffer(message.body, dtype="<u4"))
    total = np.sum(bodies, axis=0, dtype=np.uint32)
    assert total.tolist() == [4 * TEACHERS, 0, 0, 0, 4 * TEACHERS, 0]
    # 24 words below 2^20 by chance: once in 2^288 runs; one word: once in 170.
    for body in bodies:
        assert (np.subtract(total, body, dtype=np.uint32) > 2**20).sum() >= 4
        assert (body > 2**20).sum() >= 4


# Charging --------------------------------------------------------------------------------------

INTERACTIVE: dict[str, Any] = {"mechanism": "interactive-threshold", "vote_threshold": 200.0}
IMMUTABLE: dict[str, Any] = {"mechanism": "immutable"}


def all_mechanisms(*names: str) -> dict[str, Any]:
    return {"mechanisms": frozenset({"threshold", "gnmax", *names})}


def agree(federation: Federation) -> None:
    """Assert that all parties count every cap as the coordinator does."""
    ours = federation.store.ledger().outcomes
    for place in range(len(federation.nodes)):
        theirs = federation.run_ledger(place).outcomes
        assert (theirs.answers, theirs.asks) == (ours.answers, ours.asks), place


class TestPrices:
    @pytest.mark.parametrize("place", ["coordinator", "parties"])
    def test_no_answer_costs_every_hospital_what_a_label_costs(self, place: str) -> None:
        refusing, answering = (
            ready(terms={"vote_threshold": threshold, "noise_place": place})
            for threshold in (1e6, -1e6)
        )
        assert refusing.ask(0, 1, 2).refused == 3
        assert answering.ask(0, 1, 2).answered == 3
        paid = []
        for federation in (refusing, answering):
            federation.run.close()
            agree(federation)
            paid.append(
                [
                    ([entry.charged for entry in node.ledger.entries], node.ledger.used_share())
                    for node in federation.nodes
                ]
            )
            assert federation.store.ledger().used_share() == 0.03
        assert paid[0] == paid[1]

    @pytest.mark.parametrize(("mechanism", "options"), [("threshold", 3), ("gnmax", 2)])
    def test_parties_price_two_classes_and_no_answer_as_three_options(
        self, mechanism: str, options: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        seen: list[int] = []
        composed = formal_cost.labels_epsilon

        def noted(options: int, sigma: float, **of_run: Any) -> float:
            seen.append(options)
            return composed(options, sigma, **of_run)

        for cached in (formal_cost.labels_cost, formal_cost._composed):
            cached.cache_clear()
        monkeypatch.setattr(formal_cost, "labels_epsilon", noted)
        # Less than readers of the counts would cost, so that the exact price is looked at.
        federation = Federation(
            terms={"classes": 2, "mechanism": mechanism, "budgets": (2.6, 2.6, 2.6)}
        )
        assert seen == []
        federation.run.set_up()
        assert set(seen) == {options}

    def test_a_life_ledger_adds_up_at_its_own_order(self) -> None:
        federation = ready(orders={1: 6.0})
        federation.ask(0, 1, 2)
        federation.run.close()
        usual, other = (federation.nodes[place].ledger for place in (0, 1))
        assert usual.entries[0].charged == other.entries[0].charged == GaussianMaxEvent(3, 20.0)
        assert (usual.order, other.order) == (ORDER, 6.0)

    def test_other_mechanisms_are_charged_by_their_curves(self) -> None:
        federation = ready(
            terms={"mechanism": "lnmax", "max_asks": 4}, policy=all_mechanisms("lnmax")
        )
        assert federation.ask(0, 1).labels.tolist() == [0, 1]
        federation.run.close()
        gamma = math.sqrt(2) / 20.0
        for place in range(3):
            [entry] = federation.nodes[place].ledger.entries
            assert entry.charged == LaplaceMaxEvent(2, gamma)
        agree(federation)


def mixes() -> list[Any]:
    ways = ("serves", "refuses", "is lost", "refuses, and is lost")
    return [
        pytest.param(mix, id=", ".join(mix))
        for mix in itertools.combinations_with_replacement(ways, 3)
        if set(mix) != {"serves"}
    ]


CAPS = [
    pytest.param({"max_asks": 100, "max_answers": 100}, id="wide caps"),
    pytest.param({"max_asks": 6, "max_answers": 5}, id="few asks"),
    pytest.param({"max_asks": 10, "max_answers": 5}, id="few answers"),
]


class TestCapsAreCountedAlike:
    """Whoever counts otherwise refuses what the others serve, and the run is void for all."""

    @sampled()
    @pytest.mark.parametrize("mix", mixes())
    @pytest.mark.parametrize("caps", CAPS)
    def test_after_a_batch_that_some_refused_and_others_served(
        self, mix: tuple[str, ...], caps: dict[str, int]
    ) -> None:
        federation = ready(
            terms=caps,
            policies={
                place: {"most_queries": 5} for place, way in enumerate(mix) if "refuses" in way
            },
        )
        federation.ask(0, 1)
        federation.transport.on_answer = lambda node, answer: (
            None if "lost" in mix[node] else answer
        )
        with pytest.raises(VoidBatchError) as void:
            federation.ask(2, 3, 4, 5)
        # One refusal that arrives proves that the sum never opens.
        comes_back = "refuses" in mix
        expected = "cancelled" if comes_back else "forfeited"
        assert void.value.reservation == expected
        federation.heal()
        left = federation.run.left
        if federation.run.is_over:
            assert left == Outcomes(0, 0)
            federation.run.close()
        else:
            # The next batch goes through: nobody refuses what the coordinator may ask.
            asked = federation.ask(6, *([] if "refuses" in "".join(mix) else [7][: left.asks - 1]))
            assert asked.asked >= 1
            federation.run.close()
        agree(federation)
        counted = federation.store.ledger().outcomes
        assert counted.asks <= caps["max_asks"]
        # Who refused was charged for nothing; who may have sent was charged the worst.
        told = "returned" if comes_back else "forfeited"
        for place, way in enumerate(mix):
            states = federation.party_states(place)
            assert states[:1] == ["committed"]
            assert (told in states) is ("refuses" not in way)
            assert {"forfeited", "cancelled", "returned"}.intersection(states) <= {told}

    @sampled("place")
    @pytest.mark.parametrize("place", [0, 1, 2])
    def test_a_party_that_never_saw_a_void_batch_counts_it_as_the_others_do(
        self, place: int
    ) -> None:
        federation = ready(terms={"max_asks": 6})
        federation.transport.on_query = lambda node, packet: None if node == place else packet
        with pytest.raises(VoidBatchError):
            federation.ask(0, 1, 2, 3)
        federation.heal()
        assert federation.ask(4).answered == 1
        federation.run.close()
        assert [federation.run_ledger(each).outcomes.asks for each in range(3)] == [5, 5, 5]
        agree(federation)

    def test_a_coordinator_that_claims_more_left_gets_no_refund(self) -> None:
        federation = ready(terms={"max_asks": 4, "max_answers": 2})
        generous = with_other(federation.run.terms, max_answers=9, max_asks=18)
        federation.store.save_empty(RunLedger.of(generous))
        assert federation.ask(0, 1, 2).answered == 3  # one more than the run allows
        with pytest.raises(VoidBatchError):
            federation.ask(3)
        for place in range(3):
            assert federation.party_states(place) == ["reserved"]
            [entry] = federation.nodes[place].ledger.entries
            assert entry.charged == entry.reserved
            held = federation.run_ledger(place).outcomes
            assert (held.answers, held.asks) == (2, 3)
            assert federation.steps[place].count("vote") == 1


WEIGHTS = {0: (1,) * 200, 1: (2,) * 100, 2: (3,) * 64 + (4, 4)}


class TestTeacherWeights:
    def test_every_teacher_votes_as_often_as_its_weight_says(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sums: list[SummedHistogram] = []

        def spy(*args: Any, **kwargs: Any) -> SummedHistogram:
            summed = open_sum(*args, **kwargs)
            sums.append(SummedHistogram(summed.counts.copy(), summed.total_votes))
            return summed  # the run overwrites this one

        monkeypatch.setattr("coordinator.runs.labeling.deciding.open_sum", spy)

        def vote(batch: QueryBatch) -> NDArray[np.int64]:
            votes = np.zeros((66, len(batch)), dtype=np.int64)
            votes[64:] = 2  # the two heavy teachers
            return votes

        everyone = {
            0: lambda batch: np.zeros((200, len(batch)), dtype=np.int64),
            1: lambda batch: np.ones((100, len(batch)), dtype=np.int64),
            2: vote,
        }
        federation = ready(weights=WEIGHTS, votes=everyone, terms={"max_asks": 6})
        federation.ask(0, 1)
        assert sums[0].counts.tolist() == [[200 + 192, 200, 8]] * 2
        assert sums[0].total_votes == 600
        federation.run.close()
        for place, weight in ((0, 1), (1, 2), (2, 4)):
            [entry] = federation.nodes[place].ledger.entries
            assert entry.reserved == GaussianMaxEvent(2, 20.0, float(weight))


class TestInteractive:
    def ready(self, **terms: Any) -> Federation:
        return ready(terms={**INTERACTIVE, **terms}, policy=all_mechanisms("interactive-threshold"))

    def predictions(self, *classes: int, sure: float = 0.98) -> NDArray[np.float64]:
        found = np.full((len(classes), CLASSES), (1 - sure) / (CLASSES - 1))
        found[np.arange(len(classes)), list(classes)] = sure
        return found

    def plans(self, federation: Federation) -> list[BatchTerms]:
        found = {}
        for packet in federation.transport.packets:
            for message in messages(packet):
                if isinstance(message, Plan):
                    found[message.epoch] = BatchTerms.from_record(decode_value(message.terms))
        return [found[epoch] for epoch in sorted(found)]

    def test_predictions_are_named_in_the_plan_that_all_parties_sign(self) -> None:
        federation = self.ready()
        predictions = self.predictions(0, 1)
        federation.run.ask((0, 1))
        federation.run.ask((2, 3), predictions=predictions)
        federation.run.ask((4, 5), predictions=predictions[::-1])
        first, second, third = self.plans(federation)
        assert first.predictions_digest == b""
        body = b"pate-fed predictions 2,3\n" + predictions.astype("<f8").tobytes()
        assert second.predictions_digest == hashlib.sha256(body).digest()
        assert third.predictions_digest not in (b"", second.predictions_digest)

    def test_what_the_student_knows_is_not_asked_again(self) -> None:
        # It is sure of class 0 for all; teachers vote 0, 1, 2.
        federation = self.ready()
        predictions = self.predictions(0, 0, 0)
        release = federation.run.ask((0, 1, 2), predictions=predictions)
        assert release.outcomes.tolist() == [Outcome.REFUSED, Outcome.ANSWERED, Outcome.ANSWERED]
        assert release.labels.tolist() == [ABSTAIN, 1, 2]

    def test_reinforced_labels_cost_nothing(self) -> None:
        costs = []
        for sure in (0.98, 0.79):  # the second is below the confidence that a label needs
            federation = self.ready()
            predictions = self.predictions(0, 1, 2, sure=sure)
            release = federation.run.ask((0, 1, 2), predictions=predictions)
            mechanism = federation.run._decider.mechanism
            assert isinstance(mechanism, InteractiveThresholdMax)
            asking = mechanism.with_predictions(predictions, total_votes=3 * TEACHERS)
            kept = asking.reinforced_labels(release)
            assert release.refused == 3
            assert kept.tolist() == ([0, 1, 2] if sure > 0.8 else [ABSTAIN] * 3)
            federation.run.close()
            [entry] = federation.charges
            assert entry.spent == Outcomes(3, 0)
            costs.append([node.ledger.used_share() for node in federation.nodes])
            agree(federation)
        assert costs[0] == costs[1]

    def test_predictions_that_do_not_fit_are_refused_before_a_charge(self) -> None:
        federation = self.ready()
        federation.events.clear()
        with pytest.raises(InvalidParameterError):
            federation.run.ask((0, 1), predictions=self.predictions(0))
        assert federation.events == []
        assert federation.charges == ()
        assert federation.run.ask((0, 1), predictions=self.predictions(1, 0)).answered == 2

    @pytest.mark.parametrize("mechanism", ["threshold", "gnmax"])
    def test_predictions_are_refused_for_any_other_mechanism(self, mechanism: str) -> None:
        federation = ready(terms={"mechanism": mechanism})
        with pytest.raises(InvalidParameterError):
            federation.run.ask((0, 1), predictions=self.predictions(0, 1))
        assert federation.charges == ()


class TestWithoutAPrice:
    def test_a_simulation_may_compare_with_what_protects_nobody(self) -> None:
        federation = ready(
            terms={**IMMUTABLE, "max_answers": 5, "max_asks": 5}, policy=all_mechanisms("immutable")
        )
        assert federation.ask(0, 1, 2).labels.tolist() == [0, 1, 2]
        federation.on_vectors_of(CULPRIT, lambda answer: None)
        with pytest.raises(VoidBatchError):
            federation.ask(3)
        federation.heal()
        assert federation.ask(4).answered == 1
        assert federation.run.is_over
        federation.run.close()
        assert federation.coordinator_states == ["committed", "forfeited", "committed"]
        assert all(node.ledger.entries == () for node in federation.nodes)
        agree(federation)
