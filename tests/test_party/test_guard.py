"""The veto: every doubt is a refusal with a public code, before a teacher runs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest

from coordinator.errors import PartyRefusedError, SetupError, VoidBatchError
from party.decision.guard import Guard
from party.errors import Reason, RefusalError
from party.site.party_task import tasks_of
from party.site.policy import Aggregators, Policy
from party.storage import Journal
from pate_fed.accounting import Outcomes, PrivacyLedger
from pate_fed.accounting.costs import NoisePlace
from pate_fed.accounting.gaussian_dp import gdp_epsilon
from pate_fed.errors import OutcomeCapError
from pate_fed.mechanisms import SPECS
from pate_fed.queries import QueryPool
from pate_fed.terms import BatchTerms
from pate_fed.votes import TeacherWeights
from protocols import wire
from protocols.rounds import ANY_SET, PartyState, PlanClaim, SetBound
from protocols.suites import SUITE_MLKEM768_X25519, SUITE_X25519
from protocols.values import encode_value
from tests.support.extreme_terms import priced_in_a_child
from tests.support.federation import TEACHERS, Federation, ready_federation, refusal_of
from tests.support.markers import sampled
from tests.support.stores import journal_in_memory

OTHER_POOL = bytes(32)
EVEN = TeacherWeights.equal(TEACHERS)


def no_party_acted(federation: Federation) -> bool:
    """Whether no party charged or computed anything, or noted more than its refusals."""
    return {step for steps in federation.steps for step in steps} <= {"abandon"}


def refused_setup(federation: Federation) -> PartyRefusedError:
    """The refusal of a run, of which nothing is charged or computed."""
    with pytest.raises(PartyRefusedError) as refusal:
        federation.run.set_up()
    assert no_party_acted(federation)
    return refusal.value


@contextmanager
def refused(reason: Reason) -> Iterator[None]:
    with pytest.raises(RefusalError) as refusal:
        yield
    assert refusal.value.reason is reason


RUN_REFUSALS = [
    pytest.param({}, {"simulated": False}, Reason.SIMULATED, id="a simulation, not wanted"),
    pytest.param({}, {"least_parties": 4}, Reason.TOO_FEW_PARTIES, id="below its floor"),
    pytest.param({}, {"least_checked_peers": 3}, Reason.UNCHECKED_PEERS, id="too few checked"),
    pytest.param({}, {"forms": frozenset({"masked"})}, Reason.FORM, id="a form it does not want"),
    pytest.param({}, {"approved_pools": frozenset({OTHER_POOL})}, Reason.POOL, id="another pool"),
    pytest.param({}, {"approved_pools": frozenset()}, Reason.POOL, id="no pool approved"),
    pytest.param({"pool_digest": OTHER_POOL}, {}, Reason.POOL, id="terms name another pool"),
    pytest.param({}, {"least_sigma2": 20.5}, Reason.MECHANISM, id="too quiet a label"),
    pytest.param(
        {"sigma2": 30.0, "weights": (EVEN, EVEN, TeacherWeights.of([2]))},
        {"least_sigma2": 20.0},
        Reason.MECHANISM,
        id="noise that is enough for one vote of a unit of two",
    ),
    pytest.param({"delta": 1e-4}, {}, Reason.MECHANISM, id="too large a delta"),
    pytest.param({"budgets": (5.1, 5.1, 5.1)}, {}, Reason.BUDGET, id="too large an epsilon"),
    pytest.param(
        {"weights": (EVEN, EVEN, TeacherWeights.equal(TEACHERS + 1))},
        {},
        Reason.UNIT,
        id="a wrong quota",
    ),
    pytest.param(
        {"weights": (EVEN, EVEN, TeacherWeights.equal(TEACHERS // 2, weight=2))},
        {},
        Reason.UNIT,
        id="our quota, but not our teachers",
    ),
    pytest.param(
        {"weights": (EVEN, EVEN), "budgets": (5.0, 5.0)}, {}, Reason.UNIT, id="a quota missing"
    ),
    pytest.param(
        {}, {"units": frozenset({"party"})}, Reason.UNIT, id="a unit that its owner does not allow"
    ),
    pytest.param(
        {"mechanism": "lnmax"}, {}, Reason.MECHANISM, id="a mechanism that it does not want"
    ),
]


class TestRun:
    @pytest.mark.parametrize(
        "changed",
        [
            pytest.param({"sigma2": 8.0}, id="the run's budget"),
            pytest.param({"budgets": (5.0, 5.0, 1.0)}, id="this party's budget"),
        ],
    )
    def test_party_refuses_a_run_whose_price_is_above(self, changed: dict[str, Any]) -> None:
        federation = Federation(terms=changed)
        assert refused_setup(federation).cause == Reason.BUDGET

    @pytest.mark.parametrize(
        ("least", "reason"),
        [
            pytest.param(40.0, Reason.PRICING, id="enough: only the delta for tests is missing"),
            pytest.param(40.5, Reason.MECHANISM, id="too quiet"),
        ],
    )
    def test_noise_of_a_test_of_stability_is_counted_in_steps_and_not_in_votes(
        self, least: float, reason: Reason
    ) -> None:
        federation = Federation(
            terms={
                "mechanism": "stable-gaussian",
                "sigma1": 40.0,
                "sigma2": None,
                "test_delta": 1e-8,
            },
            policy={"mechanisms": frozenset({"stable-gaussian"}), "least_sigma1": least},
            weights=dict.fromkeys(range(3), (2,) * TEACHERS),
        )
        assert refused_setup(federation).cause == reason

    @pytest.mark.parametrize("simulated", [True, False], ids=["simulated", "deployed"])
    @pytest.mark.parametrize("mechanism", ["confident", "interactive", "counts", "immutable"])
    def test_mechanisms_for_simulations_are_refused_elsewhere(
        self, mechanism: str, simulated: bool
    ) -> None:
        """Also where an owner wrote their names into the policy by hand."""
        parameters = {"sigma2": 40.0, "sigma1": 40.0, "vote_threshold": 9.0, "confidence": 0.9}
        own = {
            name: value if name in SPECS[mechanism].parameters else None
            for name, value in parameters.items()
        }
        federation = Federation(
            terms={"mechanism": mechanism, **own},
            policy={"simulated": simulated, "mechanisms": frozenset({mechanism})},
            simulated=simulated,
        )
        if simulated:
            federation.run.set_up()
            return
        assert refused_setup(federation).cause == Reason.MECHANISM

    @pytest.mark.parametrize("simulated", [True, False], ids=["simulated", "deployed"])
    def test_only_teachers_of_a_simulation_keep_to_a_cap_on_labels(self, simulated: bool) -> None:
        several = {"classes": 2, "max_asks": 6, "max_answers": 6, "batch_size": 3}
        federation = Federation(
            terms={**several, "labels": 3, "label_cap": 1},
            policy={"simulated": simulated},
            simulated=simulated,
        )
        if simulated:
            federation.run.set_up()
            return
        assert refused_setup(federation).cause == Reason.TERMS

    @pytest.mark.parametrize("simulated", [True, False], ids=["simulated", "deployed"])
    @pytest.mark.parametrize("do_records_vote", [True, False], ids=["records", "teachers"])
    def test_records_vote_only_where_the_owner_set_them_to(
        self, simulated: bool, do_records_vote: bool
    ) -> None:
        federation = Federation(
            terms={"patient_votes": 2}, policy={"simulated": simulated}, simulated=simulated
        )
        if do_records_vote:
            federation.run.set_up()
            return
        for node in federation.nodes:
            [task] = node._tasks.values()
            node._tasks = tasks_of(replace(task, patients=None))
        assert refused_setup(federation).cause == Reason.UNIT

    def test_teachers_do_not_vote_where_records_do(self) -> None:
        federation = Federation()
        [task] = federation.nodes[0]._tasks.values()
        patients = tuple(map(str, range(TEACHERS)))
        federation.nodes[0]._tasks = tasks_of(replace(task, patients=patients))
        assert refused_setup(federation).cause == Reason.UNIT

    def test_more_patients_than_places_are_refused(self) -> None:
        """Otherwise the row would be too long, and all of it void."""
        federation = Federation(terms={"patient_votes": 2})
        [task] = federation.nodes[0]._tasks.values()
        patients = tuple(map(str, range(TEACHERS + 1)))
        federation.nodes[0]._tasks = tasks_of(replace(task, patients=patients))
        assert refused_setup(federation).cause == Reason.UNIT

    @pytest.mark.parametrize("more_noise", [True, False], ids=["enough", "too little"])
    def test_the_price_is_that_of_the_cap(self, more_noise: bool) -> None:
        """20 queries with a vote on each would cost far more than the budget."""
        budget = gdp_epsilon(math.sqrt(2 * 2) / 8.0, 1e-5) * (1 + 1e-9)
        federation = Federation(
            terms={
                **{"patient_votes": 2, "max_asks": 20, "max_answers": 20, "mechanism": "gnmax"},
                **{"sigma2": 8.0 if more_noise else 7.99, "vote_threshold": None},
            },
            policy={"least_sigma2": 1.0, "most_epsilon": 10.0},
            budget=budget,
        )
        if more_noise:
            federation.run.set_up()
            return
        assert refused_setup(federation).cause == Reason.BUDGET

    @sampled()
    @pytest.mark.parametrize(("terms", "policy", "reason"), RUN_REFUSALS)
    def test_party_refuses_a_run_outside_its_policy(
        self, terms: dict[str, Any], policy: dict[str, Any], reason: Reason
    ) -> None:
        federation = Federation(terms=terms, policy=policy)
        refusal = refused_setup(federation)
        assert refusal.cause == reason
        assert refusal.party in federation.names
        assert federation.coordinator_states == []

    @pytest.mark.parametrize("place", [0, 1, 2])
    def test_the_party_that_refuses_is_named(self, place: int) -> None:
        federation = Federation(policies={place: {"most_epsilon": 1.0}})
        refusal = refused_setup(federation)
        assert refusal.party == federation.names[place]
        assert refusal.cause == Reason.BUDGET

    def test_every_seat_refuses_when_quotas_are_missing(self) -> None:
        federation = Federation(terms={"weights": (EVEN,), "budgets": (5.0,)})
        with pytest.raises(PartyRefusedError):
            federation.run.set_up()
        refusals = [answer for _, answer in federation.transport.answers[-3:]]
        assert [refusal_of(answer) for answer in refusals] == [Reason.UNIT] * 3

    def test_review_that_fails_is_a_refusal(self, monkeypatch: pytest.MonkeyPatch) -> None:
        federation = ready_federation()
        monkeypatch.setattr("party.decision.guard.lifelong_charge", lambda *_, **__: 1 / 0)
        with pytest.raises(VoidBatchError, match=Reason.FAULT) as void:
            federation.ask(0)
        assert void.value.reservation == "cancelled"
        monkeypatch.undo()
        assert federation.ask(1).answered == 1

    def test_simulated_party_refuses_what_is_not_simulated(self) -> None:
        federation = Federation(simulated=False)
        assert refused_setup(federation).cause == Reason.SIMULATED

    @pytest.mark.parametrize("policy", [{"least_parties": 1}, {"least_parties": 0}])
    def test_no_policy_goes_below_three_parties(self, policy: dict[str, Any]) -> None:
        federation = Federation(form="plain", parties=2, policy={**policy})
        assert refused_setup(federation).cause == Reason.TOO_FEW_PARTIES

    def test_plain_sum_is_refused_unless_the_owner_allows_it(self) -> None:
        federation = Federation(form="plain", policy={"forms": Policy().forms})
        assert refused_setup(federation).cause == Reason.FORM

    def test_a_run_under_a_suite_that_the_owner_did_not_allow_is_refused(self) -> None:
        federation = ready_federation()
        guard, record = federation.nodes[0]._guard, federation.nodes[0]._round.record
        seats = federation.run.round.seats
        assert record is not None
        assert record.suite == SUITE_MLKEM768_X25519
        assert guard.review_run(record, seats=seats, me=seats[0])
        with refused(Reason.FORM):
            guard.review_run(replace(record, suite=SUITE_X25519), seats=seats, me=seats[0])

    @pytest.mark.parametrize("suites", [{SUITE_X25519}, set()])
    def test_parties_that_accept_other_suites_are_not_set_up_with(self, suites: set[str]) -> None:
        federation = Federation(policies={1: {"suites": frozenset(suites)}})
        with pytest.raises(SetupError, match=r"\[PF-235\]"):
            federation.run.set_up()
        assert federation.nodes[1].state is PartyState.NEW
        refusals = [refusal_of(a) for n, a in federation.transport.answers if n == 1]
        assert refusals == ["PF-235"]
        assert no_party_acted(federation)

    def test_refused_run_ends_at_the_party_and_makes_room_for_another(self) -> None:
        federation = Federation(policy={"most_epsilon": 1.0})
        with pytest.raises(PartyRefusedError):
            federation.run.set_up()
        assert federation.nodes[0].state is PartyState.STOPPED
        assert federation.nodes[0].receive(b"\x80") == b"\x80"


class TestPeers:
    """Who was checked by a party's own people (rule R2)."""

    def record_and_seats(self, parties: int) -> tuple[Federation, Any, tuple[bytes, ...]]:
        federation = ready_federation(parties=parties)
        record = federation.nodes[0]._round.record
        return federation, record, federation.run.round.seats

    def review(
        self,
        parties: int,
        *,
        checked: dict[int, str],
        least: int = 2,
        own: str = "ours",
        operator: str = "",
        colluders: int | None = None,
    ) -> None:
        federation, record, seats = self.record_and_seats(parties)
        if colluders is not None:
            record = replace(record, colluders=colluders)
        policy = replace(
            federation.nodes[0]._guard.policy,
            least_checked_peers=least,
            own_body=own,
        )
        bodies = {seats[place]: body for place, body in checked.items()}
        found = Aggregators(operator)
        guard = Guard(policy=policy, weights=EVEN, checked_peers=bodies, aggregators=found)
        guard.review_run(record, seats=seats, me=seats[0])

    def test_two_checked_bodies_are_enough_for_a_policy_of_two(self) -> None:
        self.review(4, checked={1: "one", 3: "two"})

    @sampled()
    @pytest.mark.parametrize(
        ("parties", "checked", "least"),
        [
            pytest.param(4, {}, 2, id="none checked"),
            pytest.param(4, {1: "one"}, 2, id="one and ourselves"),
            pytest.param(4, {1: "one", 2: "one", 3: "one"}, 2, id="three parties of one body"),
            pytest.param(4, {1: "ours", 2: "one"}, 2, id="a sister of our own body"),
            pytest.param(4, {1: " OURS ", 2: "one"}, 2, id="a sister, spelled otherwise"),
            pytest.param(4, {1: "ours", 2: "Ours", 3: "one"}, 2, id="two sisters"),
            pytest.param(4, {1: "one", 2: "One", 3: "two"}, 3, id="one, spelled otherwise"),
            pytest.param(
                4, {1: "\xf6", 2: "o\u0308", 3: "two"}, 3, id="an accent, typed otherwise"
            ),
            pytest.param(4, {1: "one"}, 0, id="a policy of none is still two"),
            pytest.param(3, {1: "one", 2: "two"}, 4, id="a small run lowers no policy"),
        ],
    )
    def test_party_refuses_too_few_independent_peers(
        self, parties: int, checked: dict[int, str], least: int
    ) -> None:
        with refused(Reason.UNCHECKED_PEERS):
            self.review(parties, checked=checked, least=least)

    CHECKED: ClassVar = {1: "one", 2: "two", 3: "runs it", 4: "runs it"}

    def test_the_operators_own_hospitals_count_as_colluders(self) -> None:
        """The operator counts one colluder, and has two hospitals beside its coordinator."""
        self.review(5, checked={**self.CHECKED, 4: "another"}, colluders=1)
        self.review(5, checked=self.CHECKED, colluders=2, operator="runs it")
        with refused(Reason.FORM):
            self.review(5, checked=self.CHECKED, colluders=1, operator="runs it")

    def test_all_seats_of_one_body_lie_together(self) -> None:
        self.review(5, checked=self.CHECKED, colluders=2)
        with refused(Reason.FORM):
            self.review(5, checked=self.CHECKED, colluders=1)

    def test_the_operators_hospitals_and_strangers_add_up(self) -> None:
        checked = {place: body for place, body in self.CHECKED.items() if place != 4}
        self.review(5, checked=checked, colluders=2, operator="runs it")
        with refused(Reason.FORM):
            self.review(5, checked=checked, colluders=1, operator="runs it")

    def test_the_operators_hospital_is_not_one_of_those_that_protect_us(self) -> None:
        checked = {1: "one", 2: "runs it"}
        self.review(4, checked=checked, colluders=2)
        with refused(Reason.UNCHECKED_PEERS):
            self.review(4, checked=checked, colluders=2, operator="runs it")

    def test_the_operators_own_hospital_does_not_count_itself(self) -> None:
        checked = {1: "one", 2: "two", 3: "three"}
        self.review(4, checked=checked, colluders=1, own="runs it", operator="runs it")

    def test_an_operator_with_a_hospital_too_many_is_refused_in_a_whole_run(self) -> None:
        federation = Federation(parties=4)
        first = federation.nodes[0]
        first._guard = replace(first._guard, aggregators=Aggregators("hospital-1"))
        federation.run.set_up()  # one colluder is what every run counts
        # With noise at the parties a run counts no more than it pays for: here one.
        federation = Federation(parties=5, terms={"noise_place": "parties"})
        places = [identity.fingerprint for identity in federation.identities]
        bodies = dict(zip(places, ["ours", "both", "both", "one", "two"], strict=True))
        guard = federation.nodes[0]._guard
        found = Aggregators("both")
        federation.nodes[0]._guard = replace(guard, checked_peers=bodies, aggregators=found)
        assert refused_setup(federation).cause == Reason.FORM

    @sampled()
    @pytest.mark.parametrize("form", ["additive", "masked"])
    @pytest.mark.parametrize("place", ["coordinator", "parties"])
    def test_a_run_that_promises_fewer_colluders_than_a_policy_asks_for_is_refused(
        self, form: str, place: NoisePlace
    ) -> None:
        """PF-312. Additive sums hide from n - 2, masked ones of 6 from 3."""
        promised = {"additive": 4, "masked": 3}[form] if place == "coordinator" else 1
        for least in (1, promised, promised + 1):
            federation = Federation(
                parties=6,
                form=form,
                terms={"noise_place": place},
                policies={2: {"least_colluders": least}},
            )
            if least <= promised:
                federation.run.set_up()
                assert federation.run.round.setup.record.colluders == promised
                continue
            refusal = refused_setup(federation)
            assert (refusal.party, refusal.cause) == ("hospital-2", Reason.FORM)
            assert Reason.FORM == "PF-312"
            assert no_party_acted(federation)

    @pytest.mark.parametrize("form", ["additive", "masked"])
    def test_noise_that_nobody_here_adds_is_refused_whatever_a_policy_says(self, form: str) -> None:
        places = frozenset({"coordinator", "parties", "aggregators"})
        federation = Federation(
            parties=6,
            form=form,
            terms={"noise_place": "aggregators"},
            policies={place: {"noise_places": places} for place in range(6)},
        )
        assert refused_setup(federation).cause == Reason.MECHANISM

    @pytest.mark.parametrize("least", [0, -1])
    def test_no_policy_lets_a_run_count_no_colluder(self, least: int) -> None:
        federation, record, seats = self.record_and_seats(4)
        guard = federation.nodes[0]._guard
        guard = replace(guard, policy=replace(guard.policy, least_colluders=least))
        guard.review_run(record, seats=seats, me=seats[0])
        with refused(Reason.FORM):
            guard.review_run(replace(record, colluders=0), seats=seats, me=seats[0])

    @pytest.mark.parametrize(
        "changed",
        [
            pytest.param({"threshold": 3}, id="opened by fewer than all"),
            pytest.param({"dropouts": 1}, id="drop-outs"),
            pytest.param({"colluders": 0}, id="nobody may collude"),
            pytest.param({"colluders": 3}, id="all but one may collude"),
        ],
    )
    def test_party_refuses_a_form_with_other_numbers(self, changed: dict[str, int]) -> None:
        federation, record, seats = self.record_and_seats(4)
        guard = federation.nodes[0]._guard
        with refused(Reason.FORM):
            guard.review_run(replace(record, **changed), seats=seats, me=seats[0])

    def test_pool_is_checked_with_the_terms_and_again_with_each_consent(self) -> None:
        federation, record, seats = self.record_and_seats(3)
        node = federation.nodes[0]
        scope, terms = node._agreed_run.scope, node._agreed_run.terms
        node._guard.review_consent(terms, scope=scope)
        guard = replace(
            node._guard, policy=replace(node._guard.policy, approved_pools=frozenset({OTHER_POOL}))
        )
        with refused(Reason.POOL):
            guard.review_run(record, seats=seats, me=seats[0])
        with refused(Reason.POOL):  # taken back since
            guard.review_consent(terms, scope=scope)

    @pytest.mark.parametrize(
        "terms",
        [
            pytest.param(b"", id="empty"),
            pytest.param(b"\xff\x00", id="no CBOR"),
            pytest.param(encode_value({}), id="no fields"),
            pytest.param(encode_value([1, 2]), id="a list"),
        ],
    )
    def test_party_refuses_terms_that_cannot_be_read(self, terms: bytes) -> None:
        federation, record, seats = self.record_and_seats(3)
        guard = federation.nodes[0]._guard
        with refused(Reason.TERMS):
            guard.review_run(replace(record, terms=terms), seats=seats, me=seats[0])

    @sampled()
    @pytest.mark.parametrize(
        "changed",
        [
            pytest.param({"classes": 1}, id="one class"),
            pytest.param({"weights": [[[1, 2**40]]] * 3}, id="teachers beyond all memory"),
            pytest.param({"weights": [[[2**29, 1]]] * 3}, id="more votes than the ring"),
            pytest.param({"bonus": 1}, id="a field too many"),
        ],
    )
    def test_party_refuses_terms_that_contradict_themselves(self, changed: dict[str, Any]) -> None:
        federation, record, seats = self.record_and_seats(3)
        guard = federation.nodes[0]._guard
        terms = encode_value({**federation.run.terms.as_record(), **changed})
        with refused(Reason.TERMS):
            guard.review_run(replace(record, terms=terms), seats=seats, me=seats[0])


class TestBatch:
    def ready(self, **changed: Any) -> Federation:
        return ready_federation(**changed)

    def propose(self, federation: Federation, terms: object, *, words: int) -> str:
        """Send one party a plan that the coordinator signed, and read its refusal."""
        frame = federation.run.round.batch.plan(
            batch=0, words=words, expires_at=2_000, terms=encode_value(terms)
        )
        code = refusal_of(federation.nodes[0].receive(wire.pack([frame])))
        assert no_party_acted(federation)
        assert federation.nodes[0].state is PartyState.REFUSED
        return code

    def test_party_refuses_a_query_that_it_answered_before(self) -> None:
        federation = self.ready()
        federation.ask(0, 1)
        federation.forget_asked()  # a coordinator that forgot, or that would know more
        with pytest.raises(VoidBatchError, match=Reason.QUERIES) as void:
            federation.ask(1, 2)
        assert void.value.reservation == "cancelled"
        assert federation.steps[0].count("vote") == 1
        assert federation.ask(3, 4).answered == 2  # its refusal left the rest open

    @pytest.mark.parametrize("place", [0, 2])
    def test_party_remembers_queries_over_runs(self, place: int) -> None:
        federation = self.ready()
        node, asked = federation.nodes[place], federation.pool.ask((5,))
        seats = federation.run.round.seats
        node._guard.review_queries(
            asked, queries=node._journal.queries, seats=seats, threshold=len(seats)
        )
        claim = PlanClaim.sent(seats, survives_dropouts=False)
        node._journal.queries.claim(asked.digests, plan_digest=bytes(32), claim=claim)
        with pytest.raises(VoidBatchError, match=federation.names[place]) as void:
            federation.ask(4, 5)
        assert void.value.reservation == "cancelled"
        assert Reason.QUERIES in str(void.value)

    def test_party_refuses_more_queries_than_its_policy_allows(self) -> None:
        federation = self.ready(policy={"most_queries": 3})
        federation.ask(0, 1)
        with pytest.raises(VoidBatchError, match=Reason.QUERIES):
            federation.ask(2, 3)
        assert federation.ask(4).answered == 1

    def test_party_refuses_a_query_outside_the_pool(self) -> None:
        federation = self.ready()
        terms = BatchTerms(federation.run.terms, (0, len(federation.pool)))
        assert self.propose(federation, terms.as_record(), words=6) == Reason.QUERIES

    def test_party_refuses_a_query_that_comes_twice_in_a_plan(self) -> None:
        federation = self.ready()
        terms = {**BatchTerms(federation.run.terms, (0, 1)).as_record(), "indices": [1, 1]}
        assert self.propose(federation, terms, words=6) == Reason.TERMS

    @pytest.mark.parametrize("words", [1, 5, 7])
    def test_party_refuses_a_vector_of_another_length_than_its_terms(self, words: int) -> None:
        federation = self.ready()
        terms = BatchTerms(federation.run.terms, (0, 1)).as_record()
        assert self.propose(federation, terms, words=words) == Reason.TERMS

    @pytest.mark.parametrize(
        "changed",
        [
            pytest.param({"sigma2": 0.5}, id="less noise"),
            pytest.param({"budgets": (4.0, 4.0, 4.0)}, id="another budget"),
            pytest.param({"vote_threshold": -1e9}, id="a threshold that answers always"),
            pytest.param({"max_asks": 150}, id="another cap"),
            pytest.param({"classes": 2}, id="other classes"),
            pytest.param({"unit": "party"}, id="another unit"),
        ],
    )
    def test_party_refuses_a_plan_whose_terms_differ_from_the_runs(
        self, changed: dict[str, Any]
    ) -> None:
        federation = self.ready()
        federation.change_terms(**changed)
        with pytest.raises(VoidBatchError, match=Reason.TERMS) as void:
            federation.ask(0, 1)
        assert void.value.reservation == "cancelled"
        assert no_party_acted(federation)

    def test_party_refuses_what_its_own_budget_cannot_bear(self) -> None:
        federation = self.ready(budgets={1: 0.2})
        with pytest.raises(VoidBatchError, match=federation.names[1]) as void:
            federation.ask(0, 1, 2)
        assert Reason.BUDGET in str(void.value)
        assert void.value.reservation == "cancelled"
        assert federation.steps[1] == ["abandon"]

    def test_party_adds_a_batch_to_what_it_was_charged_before(self) -> None:
        federation = self.ready(budgets={1: 2.16})
        assert federation.ask(0, 1, 2).answered == 3
        with pytest.raises(VoidBatchError, match=Reason.BUDGET):
            federation.ask(3, 4, 5)

    def test_party_refuses_a_batch_after_the_runs_caps(self) -> None:
        # Else votes would leave for a charge of nothing.
        federation = self.ready(terms={"max_answers": 2})
        assert federation.ask(0, 1).answered == 2
        terms = BatchTerms(federation.run.terms, (2, 3))
        with refused(Reason.QUERIES):
            self.review(federation, terms)
        with pytest.raises(OutcomeCapError):
            federation.ask(2, 3)
        assert federation.steps[0].count("vote") == 1

    def test_party_refuses_more_queries_than_the_cap_on_asks_leaves(self) -> None:
        federation = self.ready(terms={"max_asks": 3, "max_answers": 3})
        assert federation.ask(0, 1).answered == 2
        with refused(Reason.QUERIES):
            self.review(federation, BatchTerms(federation.run.terms, (2, 3)))
        assert federation.ask(2).answered == 1

    def review(self, federation: Federation, terms: BatchTerms, **changed: Any) -> Any:
        """Let the first party review a plan that no state machine has seen."""
        node = federation.nodes[0]
        run = node._agreed_run
        known: dict[str, Any] = {
            "words": terms.words,
            "seat": run.seat,
            "void_batches": 0,
            "lost_share": 0.0,
            "pool": federation.pool,
            "queries": journal_in_memory().queries,
            "ledger": node.ledger,
            "run_ledger": run.account.ledger,
        }
        encoded = encode_value(terms.as_record())
        return node._guard.review_batch(encoded, **{**known, **changed})

    def test_void_batches_that_are_charged_and_not_counted_let_no_party_exceed_the_runs_asks(
        self,
    ) -> None:
        """The run's price is that of its asks: a party's votes never go into more of them."""
        federation = self.ready(terms={"max_asks": 5, "max_answers": 5})
        ledger = federation.run_ledger(0)
        for name in ("first setup", "second setup"):
            void = ledger.reserve(name, Outcomes(2, 2))
            ledger = void.end_void(name, is_counted=False, is_charged=True)
        assert ledger.left == Outcomes(5, 5)  # as all parties count
        with refused(Reason.BUDGET):
            self.review(federation, BatchTerms(federation.run.terms, (0, 1)), run_ledger=ledger)
        _, worst = self.review(
            federation, BatchTerms(federation.run.terms, (0,)), run_ledger=ledger
        )
        assert worst == Outcomes(1, 1)

    def test_refusals_of_a_mechanism_with_noise_at_the_parties_leave_answers(self) -> None:
        """Every opened row is an ask, and only a label is an answer."""
        federation = self.ready(
            terms={
                "mechanism": "threshold",
                "noise_place": "parties",
                "sigma2": 30.0,
                "vote_threshold": 1e6,
                "max_asks": 6,
                "max_answers": 3,
            }
        )
        for index in (0, 3):
            assert federation.ask(index, index + 1, index + 2).refused == 3
        own = federation.run_ledger(0).own
        assert own is not None
        assert (own.asks, own.answers) == (6, 3)  # the second is open still

    @pytest.mark.parametrize(
        ("lost", "most", "is_served"),
        [
            pytest.param(0.0, 0.0, True, id="the first may be lost"),
            pytest.param(0.0, 0.5, True, id="nothing was lost"),
            pytest.param(0.1, 1.0, True, id="within the bound"),
            pytest.param(1e-9, 0.0, False, id="one was lost"),
            pytest.param(0.5, 0.5, False, id="at the bound"),
        ],
    )
    def test_a_run_loses_at_most_a_part_of_the_budget_for_life(
        self, lost: float, most: float, is_served: bool
    ) -> None:
        federation = self.ready(policy={"most_forfeited": most})
        terms = BatchTerms(federation.run.terms, (0, 1))
        if is_served:
            self.review(federation, terms, lost_share=lost)
            return
        with refused(Reason.VOIDS):
            self.review(federation, terms, lost_share=lost)

    def test_worst_case_is_charged_within_the_caps_that_are_left(self) -> None:
        federation = self.ready(terms={"max_answers": 3, "max_asks": 5})
        federation.ask(0, 1)
        federation.nodes[0].receive(wire.pack([federation.settlement]))
        # The release used 2 of 3 answers: 1 is left, and 3 asks.
        _, worst = self.review(federation, BatchTerms(federation.run.terms, (2, 3, 4)))
        assert worst == Outcomes(asks=3, answers=1)

    def test_a_pool_that_is_not_the_run_s_is_never_asked(self) -> None:
        federation = self.ready()
        other = QueryPool(federation.pool.inputs[::-1].copy())
        with refused(Reason.POOL):
            self.review(federation, BatchTerms(federation.run.terms, (0,)), pool=other)

    def test_guard_changes_neither_journal_nor_ledger(self) -> None:
        federation = self.ready()
        journal, ledger = journal_in_memory(), PrivacyLedger.for_life(5.0, 1e-5)
        before = federation.nodes[0]._agreed_run.account.ledger
        self.review(
            federation,
            BatchTerms(federation.run.terms, (2, 3)),
            queries=journal.queries,
            ledger=ledger,
        )
        assert ledger.entries == ()
        assert journal.queries.count() == 0
        assert federation.nodes[0]._agreed_run.account.ledger is before


@pytest.mark.slow
def test_no_terms_keep_a_review_busy_or_take_all_memory() -> None:
    """A child with limits of both: a coordinator may offer any terms, and as often as it likes."""
    cases = priced_in_a_child("review", "")
    reasons = {case["found"]["review"] for case in cases}
    assert len(cases) > 100
    assert {"", Reason.BUDGET} <= reasons <= {"", Reason.BUDGET, Reason.PRICING}


def test_codes_are_public_and_differ() -> None:
    codes = [str(reason) for reason in Reason]
    assert len(set(codes)) == len(codes)
    assert all(len(code) == 6 and code.startswith("PF-3") and code[3:].isdigit() for code in codes)


class TestVoidBatches:
    def test_party_refuses_a_third_batch_after_two_void_ones(self) -> None:
        federation = TestBatch().ready()
        for place in (0, 1):
            federation.transport.on_answer = lambda node, packet: b"no packet"
            with pytest.raises(VoidBatchError):
                federation.ask(2 * place, 2 * place + 1)
        federation.transport.on_answer = lambda node, packet: packet
        federation.forget_voids()  # a coordinator that would go on burning queries
        with pytest.raises(VoidBatchError, match=Reason.VOIDS):
            federation.ask(6, 7)
        assert federation.steps[0].count("vote") == 2


class TestEarlierPlans:
    """Which set may open for a query that was asked before (rule R3)."""

    def ready(self, **policy: Any) -> tuple[Guard, Journal, Federation]:
        federation = ready_federation(parties=6, form="masked", policy=policy)
        return federation.nodes[0]._guard, journal_in_memory(), federation

    def asked_before(
        self, journal: Journal, federation: Federation, index: int, claim: PlanClaim
    ) -> None:
        """Note a plan of another run for one query, and what is known of it since."""
        batch = federation.pool.ask((index,))
        plan = bytes([index]) * 32
        sent = PlanClaim.sent(federation.run.round.seats, survives_dropouts=claim.openable is None)
        journal.queries.claim(batch.digests, plan_digest=plan, claim=sent)
        journal.resolve(plan, claim)

    def review(
        self, guard: Guard, journal: Journal, federation: Federation, *indices: int
    ) -> SetBound:
        seats, batch = federation.run.round.seats, federation.pool.ask(indices)
        before = journal.counter
        bound = guard.review_queries(batch, queries=journal.queries, seats=seats, threshold=5)
        assert journal.counter == before
        return bound

    def test_a_query_whose_earlier_set_leaves_no_room_is_refused(self) -> None:
        guard, journal, federation = self.ready()
        seats = federation.run.round.seats
        gone = PlanClaim.abandoned_by((seats[1], seats[2]), seats=seats[:4])
        self.asked_before(journal, federation, 0, gone)  # at most 4 may open, this needs 5
        with refused(Reason.QUERIES):
            self.review(guard, journal, federation, 2, 0)
        assert self.review(guard, journal, federation, 2) == ANY_SET

    @pytest.mark.parametrize(
        "claim",
        [
            pytest.param(PlanClaim(None), id="open"),
            pytest.param(PlanClaim.certified((b"a" * 32,)), id="a set opens"),
        ],
    )
    def test_a_query_that_may_be_open_to_others_is_refused(self, claim: PlanClaim) -> None:
        guard, journal, federation = self.ready()
        self.asked_before(journal, federation, 0, claim)
        with refused(Reason.QUERIES):
            self.review(guard, journal, federation, 0)

    def test_a_closed_plan_does_not_bind_its_queries(self) -> None:
        guard, journal, federation = self.ready()
        self.asked_before(journal, federation, 0, PlanClaim.certified(()))
        assert self.review(guard, journal, federation, 0) == ANY_SET

    def test_other_teachers_answer_no_earlier_query(self) -> None:
        guard, journal, federation = self.ready()
        self.asked_before(journal, federation, 0, PlanClaim.certified(()))
        seats, batch = federation.run.round.seats, federation.pool.ask((0,))
        with refused(Reason.QUERIES):
            guard.review_queries(
                batch, queries=journal.queries, seats=seats, threshold=5, teachers=b"others"
            )
        assert self.review(guard, journal, federation, 0) == ANY_SET

    def test_asking_again_what_was_freed_spends_no_quota(self) -> None:
        """Else a batch that was void twice would be refused though nothing new is asked."""
        guard, journal, federation = self.ready(most_queries=2)
        self.asked_before(journal, federation, 0, PlanClaim.certified(()))
        self.asked_before(journal, federation, 1, PlanClaim.certified(()))
        assert self.review(guard, journal, federation, 0, 1) == ANY_SET
        assert (
            journal.queries.count(),
            journal.queries.count_new(federation.pool.ask((0, 1)).digests),
        ) == (2, 0)

    @sampled("seed")
    @pytest.mark.parametrize("seed", range(8))
    def test_what_is_refused_alone_is_what_a_review_one_by_one_refuses(
        self, seed: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        chance = np.random.default_rng(seed)
        federation = ready_federation(parties=5, pool_inputs=chance.normal(size=(24, 6)))
        journal, seats = journal_in_memory(), federation.run.round.seats
        guard = federation.nodes[0]._guard
        claims = (
            PlanClaim.certified(()),
            PlanClaim.sent(seats, survives_dropouts=True),
            PlanClaim.sent(seats, survives_dropouts=False),
            PlanClaim.certified(seats[:4]),
            PlanClaim.abandoned_by(seats[:1], seats=seats),
            PlanClaim.abandoned_by((b"a" * 32,), seats=(*seats[1:], b"a" * 32)),
            PlanClaim(ANY_SET, is_free=True, teachers=b"others"),
        )
        for index in chance.permutation(24)[:10].tolist():
            self.asked_before(journal, federation, index, claims[chance.integers(len(claims))])
        asked = tuple(chance.permutation(24).tolist())
        terms: dict[str, Any] = {"queries": journal.queries, "seats": seats, "threshold": 5}
        served: list[int] = []
        for index in asked:
            with suppress(RefusalError):
                guard.review_queries(federation.pool.ask((*served, index)), **terms)
                served.append(index)
        looks = 0
        claims_of_each = journal.queries.claims_of_each

        def look(queries: tuple[bytes, ...]) -> list[frozenset[PlanClaim]]:
            nonlocal looks
            looks += 1
            return claims_of_each(queries)

        monkeypatch.setattr(journal.queries, "claims_of_each", look)
        refused = guard.refused_alone(federation.pool.ask(asked), **terms)
        assert [asked[place] for place in refused] == [one for one in asked if one not in served]
        assert refused
        assert len(refused) < 24
        assert looks == 1  # else one large inquiry keeps a site busy for minutes
