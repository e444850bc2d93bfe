"""What a party remembers: plans, verdicts, queries, runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from party.storage import Journal, PartyDatabase
from pate_fed.queries import QueryPool
from protocols.errors import KeyReuseError, ProtocolError, RestoredJournalError
from protocols.forms import Additive, Masked
from protocols.identity import SigningIdentity
from protocols.rounds import ANY_SET, PlanClaim, RunNote, SetBound
from protocols.rounds.round_journal import MOST_UNSERVED
from tests.support.plain_journal import PlainJournal
from tests.support.stores import journal_in_memory

RUN, OTHER_RUN = b"r" * 32, b"s" * 32
PLAN, OTHER_PLAN, THIRD_PLAN = b"1" * 32, b"2" * 32, b"3" * 32
VERDICT, OTHER_VERDICT = b"v" * 32, b"w" * 32

ONE, TWO, THREE, FAR = b"1" * 32, b"2" * 32, b"3" * 32, b"9" * 32
A, B, C, D, E = (name.encode() * 32 for name in "abcde")
SEATS = frozenset({A, B, C, D, E})
SENT = PlanClaim.sent(SEATS, survives_dropouts=False)
SENT_MASKED = PlanClaim.sent(SEATS, survives_dropouts=True)
OPENED = PlanClaim.certified((A, B, C, D))
CLOSED = PlanClaim.certified(())


def refused_by(*refusers: bytes) -> PlanClaim:
    return PlanClaim.abandoned_by(refusers, seats=SEATS)


def ask(journal: Journal, *queries: bytes, plan: bytes = PLAN, claim: PlanClaim = SENT) -> None:
    """Claim a batch, as a node does."""
    journal.queries.claim(queries, plan_digest=plan, claim=claim)


def serve(journal: Journal, *, plan: bytes = PLAN, epoch: int = 1) -> None:
    """Begin a plan and keep its y."""
    journal.begin(run_id=RUN, epoch=epoch, plan_digest=plan)
    journal.keep(plan, (b"y",), expires_at=10_000)


class JournalContract:
    """What every journal of a party keeps."""

    # Queries ----------------------------------------------------------------------------------

    def test_a_query_is_claimed_once(self, journal: Journal) -> None:
        ask(journal, ONE, TWO)
        counter = journal.counter
        with pytest.raises(KeyReuseError):
            ask(journal, FAR, TWO, plan=OTHER_PLAN)
        assert (journal.queries.count(), journal.counter) == (2, counter)  # FAR was not noted
        assert journal.queries.count_new([FAR, TWO]) == 1

    def test_the_same_query_twice_in_one_claim_is_refused(self, journal: Journal) -> None:
        with pytest.raises(KeyReuseError):
            journal.queries.bound_on([ONE, ONE])
        with pytest.raises(KeyReuseError):
            ask(journal, ONE, ONE)
        assert journal.queries.count() == 0

    def test_a_plan_claims_once(self, journal: Journal) -> None:
        ask(journal, ONE)
        with pytest.raises(KeyReuseError):
            ask(journal, FAR)
        journal.resolve(PLAN, CLOSED)
        with pytest.raises(KeyReuseError):
            ask(journal, FAR)
        assert journal.queries.count() == 1

    def test_an_input_is_one_query_in_whatever_pool_and_place_it_stands(
        self, journal: Journal
    ) -> None:
        here = QueryPool(np.array([[0.0, 1.0], [2.0, 3.0]])).ask((0, 1))
        there = QueryPool(np.array([[9.0, 9.0], [8.0, 8.0], [2.0, 3.0]]))
        journal.queries.claim(here.digests, plan_digest=PLAN, claim=SENT)
        with pytest.raises(KeyReuseError):
            journal.queries.bound_on(there.ask((2,)).digests)
        assert journal.queries.bound_on(there.ask((0, 1)).digests) == ANY_SET

    def test_a_query_that_is_asked_again_is_counted_once(self, journal: Journal) -> None:
        ask(journal, ONE, FAR)
        journal.resolve(PLAN, CLOSED)
        assert journal.queries.count() == 2  # it was sent, whatever opens
        ask(journal, ONE, TWO, plan=OTHER_PLAN)
        assert journal.queries.count() == 3
        assert journal.queries.count_new([ONE, TWO, THREE, FAR]) == 1

    # Bounds (rule R3) -------------------------------------------------------------------------

    def test_nothing_binds_a_query_that_nobody_asked(self, journal: Journal) -> None:
        ask(journal, FAR)
        assert journal.queries.claims_of([ONE]) == []
        assert journal.queries.claims_of([]) == []
        assert journal.queries.bound_on([ONE]) == ANY_SET

    @pytest.mark.parametrize(
        ("claim", "proven"),
        [
            pytest.param(SENT, None, id="additive, not settled or released"),
            pytest.param(SENT_MASKED, None, id="masked, not settled"),
            pytest.param(SENT_MASKED, OPENED, id="masked, a set opens"),
        ],
    )
    def test_a_query_that_may_have_opened_is_never_asked_again(
        self, journal: Journal, claim: PlanClaim, proven: PlanClaim | None
    ) -> None:
        ask(journal, ONE, FAR, claim=claim)
        serve(journal)
        if proven is not None:
            journal.resolve(PLAN, proven)
        journal.erase(PLAN)
        for query in (ONE, FAR):
            with pytest.raises(KeyReuseError):
                journal.queries.bound_on([TWO, query])
            with pytest.raises(KeyReuseError):
                ask(journal, query, plan=OTHER_PLAN)

    def test_a_refused_plan_frees_its_queries_for_who_was_left(self, journal: Journal) -> None:
        ask(journal, ONE, FAR)
        serve(journal)
        journal.resolve(PLAN, refused_by(C))
        bound = journal.queries.bound_on([ONE, TWO])
        assert bound == SetBound(SEATS - {C}, SEATS)
        for chosen in (SEATS, SEATS - {C}):
            assert bound.allows(chosen)
        for others in (SEATS - {A}, SEATS | {b"f" * 32}, frozenset[bytes]()):
            assert not bound.allows(others)

    def test_a_closed_plan_frees_its_queries_for_anybody(self, journal: Journal) -> None:
        ask(journal, ONE, FAR, claim=SENT_MASKED)
        serve(journal)
        journal.resolve(PLAN, CLOSED)
        assert journal.queries.bound_on([ONE, FAR]) == ANY_SET
        ask(journal, FAR, plan=OTHER_PLAN, claim=SENT_MASKED)
        assert journal.queries.bound_on([ONE]) == ANY_SET
        with pytest.raises(KeyReuseError):
            journal.queries.bound_on([FAR])  # the second plan binds now

    def test_all_earlier_plans_of_a_query_bind_together(self, journal: Journal) -> None:
        ask(journal, ONE, FAR)
        journal.resolve(PLAN, refused_by(C))
        ask(journal, ONE, plan=OTHER_PLAN)
        journal.resolve(OTHER_PLAN, refused_by(B, D))
        assert journal.queries.bound_on([ONE]) == SetBound(SEATS, SEATS)
        assert journal.queries.bound_on([FAR]) == SetBound(SEATS - {C}, SEATS)
        ask(journal, ONE, plan=THIRD_PLAN, claim=SENT_MASKED)
        journal.resolve(THIRD_PLAN, CLOSED)  # which takes nothing back
        assert journal.queries.bound_on([ONE]) == SetBound(SEATS, SEATS)

    def test_plans_of_two_queries_of_a_batch_bind_together(self, journal: Journal) -> None:
        ask(journal, ONE)
        journal.resolve(PLAN, refused_by(C))
        ask(journal, FAR, plan=OTHER_PLAN)
        journal.resolve(OTHER_PLAN, refused_by(B))
        assert journal.queries.bound_on([ONE, FAR]) == SetBound(SEATS, SEATS)
        assert not journal.queries.bound_on([ONE, FAR]).leaves_room(SEATS - {B}, threshold=4)

    def test_plans_that_no_set_can_satisfy_leave_no_room(self, journal: Journal) -> None:
        fewer = SEATS - {E}
        ask(journal, ONE)
        journal.resolve(PLAN, refused_by(C))  # E has to be in it
        ask(journal, FAR, plan=OTHER_PLAN, claim=PlanClaim.sent(fewer, survives_dropouts=False))
        journal.resolve(OTHER_PLAN, PlanClaim.abandoned_by((A,), seats=fewer))  # E may not
        bound = journal.queries.bound_on([ONE, FAR])
        assert not bound.leaves_room(SEATS, threshold=3)
        assert not any(bound.allows(chosen) for chosen in (SEATS, fewer))

    # What a settlement proves -----------------------------------------------------------------

    def test_what_is_free_stays_free(self, journal: Journal) -> None:
        ask(journal, ONE, claim=SENT_MASKED)
        journal.resolve(PLAN, CLOSED)
        counter = journal.counter
        for claim in (CLOSED, OPENED, refused_by(A)):
            journal.resolve(PLAN, claim)
        assert journal.queries.claims_of([ONE]) == [CLOSED]
        assert journal.counter == counter

    def test_a_plan_that_claimed_nothing_frees_nothing(self, journal: Journal) -> None:
        ask(journal, ONE)
        serve(journal, plan=OTHER_PLAN)
        counter = journal.counter
        for plan in (OTHER_PLAN, THIRD_PLAN):
            journal.resolve(plan, CLOSED)
        assert (journal.queries.claims_of([ONE]), journal.counter) == ([SENT], counter)

    def test_nothing_is_begun_kept_or_claimed_for_a_freed_plan(self, journal: Journal) -> None:
        ask(journal, ONE)
        serve(journal)
        journal.resolve(PLAN, CLOSED)
        for act in (
            lambda: journal.begin(run_id=OTHER_RUN, epoch=5, plan_digest=PLAN),
            lambda: journal.keep(PLAN, (b"another y",), expires_at=10_000),
            lambda: ask(journal, FAR),
        ):
            with pytest.raises(KeyReuseError):
                act()

    def test_a_halted_journal_frees_nothing(self, journal: Journal) -> None:
        ask(journal, ONE)
        journal.halt(90)
        with pytest.raises(RestoredJournalError):
            journal.resolve(PLAN, CLOSED)
        assert journal.queries.claims_of([ONE]) == [SENT]

    def test_a_halted_journal_enters_no_run_and_claims_nothing(self, journal: Journal) -> None:
        journal.halt(90)
        for act in (
            journal.require_whole,
            lambda: ask(journal, ONE),
            lambda: journal.enter(RunNote(RUN, bytes(32), "additive", (bytes(32),) * 3)),
        ):
            with pytest.raises(RestoredJournalError):
                act()
        assert journal.queries.count() == 0
        assert journal.run(RUN) is None

    # Plans ------------------------------------------------------------------------------------

    @pytest.mark.parametrize(
        ("run_id", "epoch", "plan"),
        [
            pytest.param(RUN, 5, PLAN, id="same plan"),
            pytest.param(OTHER_RUN, 5, PLAN, id="same plan of another run"),
            pytest.param(RUN, 4, OTHER_PLAN, id="same epoch"),
            pytest.param(RUN, 3, OTHER_PLAN, id="older epoch"),
        ],
    )
    def test_a_plan_is_begun_once_and_epochs_go_forward(
        self, journal: Journal, run_id: bytes, epoch: int, plan: bytes
    ) -> None:
        journal.begin(run_id=RUN, epoch=4, plan_digest=PLAN)
        counter = journal.counter
        with pytest.raises(KeyReuseError):
            journal.begin(run_id=run_id, epoch=epoch, plan_digest=plan)
        assert journal.counter == counter

    def test_another_run_has_epochs_of_its_own(self, journal: Journal) -> None:
        journal.begin(run_id=RUN, epoch=4, plan_digest=PLAN)
        journal.begin(run_id=OTHER_RUN, epoch=1, plan_digest=OTHER_PLAN)
        journal.keep(OTHER_PLAN, (b"frame",), expires_at=10_000)
        assert journal.find(OTHER_PLAN) == (b"frame",)

    def test_a_frame_is_kept_once_and_only_for_a_plan_that_was_begun(
        self, journal: Journal
    ) -> None:
        serve(journal)
        ask(journal, ONE, plan=OTHER_PLAN)  # a claim begins nothing
        for plan in (PLAN, OTHER_PLAN, THIRD_PLAN):
            with pytest.raises(KeyReuseError):
                journal.keep(plan, (b"another y",), expires_at=10_000)
        assert journal.find(PLAN) == (b"y",)

    def test_an_erased_plan_is_never_begun_nor_answered_again(self, journal: Journal) -> None:
        serve(journal)
        journal.erase(PLAN)
        with pytest.raises(KeyReuseError):
            journal.begin(run_id=RUN, epoch=9, plan_digest=PLAN)
        with pytest.raises(KeyReuseError):
            journal.keep(PLAN, (b"another y",), expires_at=10_000)
        assert journal.find(PLAN) is None

    def test_a_sweep_erases_what_has_expired_and_nothing_else(self, journal: Journal) -> None:
        for place, plan in enumerate((PLAN, OTHER_PLAN), start=1):
            journal.begin(run_id=RUN, epoch=place, plan_digest=plan)
            journal.keep(plan, (b"y of " + plan,), expires_at=100 * place)
        journal.sweep(now=99.9)
        assert journal.find(PLAN) is not None
        for _ in range(2):
            journal.sweep(now=100.0)
            assert journal.find(PLAN) is None
            assert journal.find(OTHER_PLAN) == (b"y of " + OTHER_PLAN,)
        assert journal.counter == 5
        with pytest.raises(KeyReuseError):
            journal.keep(PLAN, (b"y",), expires_at=500)

    # Promises never to send -------------------------------------------------------------------

    def test_an_abandoned_plan_is_never_begun(self, journal: Journal) -> None:
        journal.abandon(PLAN, run_id=RUN)
        with pytest.raises(KeyReuseError):
            journal.begin(run_id=RUN, epoch=1, plan_digest=PLAN)
        journal.begin(run_id=RUN, epoch=1, plan_digest=OTHER_PLAN)

    def test_an_abandoned_plan_that_was_begun_is_never_answered(self, journal: Journal) -> None:
        journal.begin(run_id=RUN, epoch=4, plan_digest=PLAN)
        journal.abandon(PLAN, run_id=RUN)
        with pytest.raises(KeyReuseError):
            journal.keep(PLAN, (b"y",), expires_at=10_000)
        assert journal.find(PLAN) is None

    @pytest.mark.parametrize("erased", [False, True])
    def test_a_plan_whose_y_was_kept_is_never_abandoned(
        self, journal: Journal, *, erased: bool
    ) -> None:
        ask(journal, ONE)
        serve(journal)
        if erased:
            journal.erase(PLAN)
        counter = journal.counter
        with pytest.raises(KeyReuseError):
            journal.abandon(PLAN, run_id=RUN)
        assert (journal.counter, journal.queries.count()) == (counter, 1)

    def test_an_abandoned_plan_leaves_its_queries_as_if_never_asked(self, journal: Journal) -> None:
        """Only this party could have answered them, and it did not."""
        ask(journal, ONE, TWO)
        journal.abandon(PLAN, run_id=RUN)
        assert journal.queries.count() == 0
        assert journal.queries.bound_on([ONE, TWO]) == ANY_SET
        with pytest.raises(KeyReuseError):
            ask(journal, FAR)  # the plan itself is over
        ask(journal, TWO, plan=OTHER_PLAN)
        assert journal.queries.count() == 1

    def test_an_abandoned_plan_takes_no_other_plans_claim_along(self, journal: Journal) -> None:
        ask(journal, ONE)
        journal.resolve(PLAN, refused_by(C))
        ask(journal, ONE, plan=OTHER_PLAN)
        journal.abandon(OTHER_PLAN, run_id=RUN)
        assert journal.queries.bound_on([ONE]) == SetBound(SEATS - {C}, SEATS)
        assert journal.queries.count() == 1

    def test_a_plan_is_abandoned_once(self, journal: Journal) -> None:
        for _ in range(3):
            journal.abandon(PLAN, run_id=RUN)
        assert journal.counter == 1

    # Verdicts ---------------------------------------------------------------------------------

    def test_a_plan_has_one_verdict(self, journal: Journal) -> None:
        assert journal.verdict_on(PLAN) == b""
        serve(journal)
        journal.decide(PLAN, VERDICT, run_id=RUN)
        counter = journal.counter
        journal.decide(PLAN, VERDICT, run_id=RUN)
        journal.erase(PLAN)
        with pytest.raises(KeyReuseError):  # nor after it is settled
            journal.decide(PLAN, OTHER_VERDICT, run_id=RUN)
        assert journal.verdict_on(PLAN) == VERDICT
        assert journal.counter == counter + 1  # the erasure

    def test_a_plan_that_never_came_can_be_decided_and_is_never_served_then(
        self, journal: Journal
    ) -> None:
        journal.decide(PLAN, VERDICT, run_id=RUN)
        assert journal.verdict_on(PLAN) == VERDICT
        with pytest.raises(KeyReuseError):
            ask(journal, ONE)
        with pytest.raises(KeyReuseError):
            journal.begin(run_id=RUN, epoch=1, plan_digest=PLAN)
        assert journal.queries.count() == 0

    def test_a_plan_that_was_begun_is_never_answered_after_its_verdict(
        self, journal: Journal
    ) -> None:
        journal.begin(run_id=RUN, epoch=1, plan_digest=PLAN)
        journal.decide(PLAN, VERDICT, run_id=RUN)
        with pytest.raises(KeyReuseError):
            journal.keep(PLAN, (b"y",), expires_at=10_000)

    def test_a_plan_that_was_abandoned_can_be_decided(self, journal: Journal) -> None:
        journal.abandon(PLAN, run_id=RUN)
        journal.decide(PLAN, VERDICT, run_id=RUN)
        assert journal.verdict_on(PLAN) == VERDICT

    def test_a_run_has_only_so_many_plans_that_were_never_begun(self, journal: Journal) -> None:
        plans = [number.to_bytes(32, "big") for number in range(MOST_UNSERVED + 1)]
        for number, plan in enumerate(plans[:-1]):
            if number % 2:
                journal.abandon(plan, run_id=RUN)
            else:
                journal.decide(plan, VERDICT, run_id=RUN)
        counter = journal.counter
        with pytest.raises(KeyReuseError):
            journal.abandon(plans[-1], run_id=RUN)
        with pytest.raises(KeyReuseError):
            journal.decide(plans[-1], VERDICT, run_id=RUN)
        assert (journal.counter, journal.verdict_on(plans[-1])) == (counter, b"")
        journal.abandon(plans[0], run_id=RUN)  # it is one of them already
        journal.decide(plans[1], VERDICT, run_id=RUN)
        journal.begin(run_id=RUN, epoch=1, plan_digest=plans[-1])  # which was not refused
        journal.abandon(plans[-1], run_id=RUN)
        journal.abandon(b"x" * 32, run_id=OTHER_RUN)

    # Runs -------------------------------------------------------------------------------------

    def test_a_run_is_known_for_ever_once_it_was_agreed_to(self, journal: Journal) -> None:
        keys = tuple(SigningIdentity.generate().public.key for _ in range(5))
        masked, additive = (
            RunNote(RUN, ONE, "masked", keys),
            RunNote(OTHER_RUN, ONE, "additive", keys[:3]),
        )
        assert journal.run(RUN) is None
        for _ in range(2):
            journal.enter(masked)
            journal.enter(additive)
        assert journal.counter == 2
        assert (journal.run(RUN), journal.run(OTHER_RUN)) == (masked, additive)
        note = journal.run(RUN)
        assert note is not None
        assert note.sum_form is Masked
        assert tuple(identity.key for identity in note.identities.values()) == keys
        assert journal.run(PLAN) is None
        other = journal.run(OTHER_RUN)
        assert other is not None
        assert other.sum_form is Additive

    # The counter (rule R4) --------------------------------------------------------------------

    def test_every_write_counts_and_nothing_else_does(self, journal: Journal) -> None:
        run = RunNote(RUN, ONE, "masked", (SigningIdentity.generate().public.key,))
        seen = [journal.counter]
        for write in (
            lambda: journal.enter(run),
            lambda: ask(journal, ONE, claim=SENT_MASKED),
            lambda: journal.begin(run_id=RUN, epoch=1, plan_digest=PLAN),
            lambda: journal.keep(PLAN, (b"y",), expires_at=10_000),
            lambda: journal.decide(PLAN, VERDICT, run_id=RUN),
            lambda: journal.resolve(PLAN, OPENED),
            lambda: journal.abandon(OTHER_PLAN, run_id=RUN),
            lambda: journal.witness({b"peer": 7, b"other": 1}),
            lambda: journal.erase(PLAN),
            lambda: journal.enter(run),
            lambda: journal.halt(50),
        ):
            write()
            seen.append(journal.counter)
        assert seen == [*range(10), 9, 10]
        journal.erase(PLAN)
        journal.witness({b"peer": 7})
        journal.halt(49)
        journal.find(PLAN)
        journal.run(RUN)
        journal.verdict_on(PLAN)
        journal.queries.bound_on([FAR])
        assert journal.counter == 10

    def test_the_highest_counter_of_a_peer_is_kept(self, journal: Journal) -> None:
        assert journal.witnessed() == {}
        journal.witness({b"peer": 7, b"other": 3})
        journal.witness({b"peer": 6, b"other": 4})
        assert journal.witnessed() == {b"peer": 7, b"other": 4}

    def test_a_halted_journal_begins_and_promises_nothing(self, journal: Journal) -> None:
        ask(journal, ONE)
        journal.halt(9)
        for act in (
            lambda: journal.begin(run_id=RUN, epoch=1, plan_digest=PLAN),
            lambda: journal.abandon(PLAN, run_id=RUN),
            lambda: journal.decide(PLAN, VERDICT, run_id=RUN),
        ):
            with pytest.raises(RestoredJournalError) as caught:
                act()
            assert caught.value.shown == 9
        assert (journal.verdict_on(PLAN), journal.queries.count()) == (b"", 1)


class Reopened:
    """A journal whose process ends after every call: all that counts is in its database."""

    def __init__(self) -> None:
        self.database = PartyDatabase.in_memory()

    def __getattr__(self, name: str) -> Any:
        return getattr(Journal(self.database), name)


class TestJournal(JournalContract):
    @pytest.fixture
    def journal(self) -> Journal:
        return Reopened()  # type: ignore[return-value]

    @pytest.mark.slow
    def test_many_queries_fit_it(self, journal: Journal) -> None:
        queries = tuple(place.to_bytes(32, "big") for place in range(25_000))
        journal.queries.claim(queries, plan_digest=PLAN, claim=SENT_MASKED)
        assert journal.queries.claims_of(queries) == [SENT_MASKED]
        assert (journal.queries.count(), journal.queries.count_new(queries)) == (25_000, 0)

    def test_it_prints_no_frame(self) -> None:
        journal = Journal(PartyDatabase.in_memory())
        serve(journal)
        assert repr(journal) == "Journal(PartyDatabase(in memory))"


# Minus zero, and the law that the model's plain journal is this one -----------------------------


def test_minus_zero_is_zero() -> None:
    plus, minus = QueryPool(np.array([[0.0]])), QueryPool(np.array([[-0.0]]))
    assert plus.ask((0,)).digests == minus.ask((0,)).digests


_name = st.sampled_from([PLAN, OTHER_PLAN, THIRD_PLAN, FAR])
_queries = st.lists(st.sampled_from([ONE, TWO, THREE, FAR]), max_size=3)
_seats = st.frozensets(_name, max_size=4)
_claims = st.one_of(
    st.just(SENT_MASKED),
    st.builds(lambda seats: PlanClaim.sent(seats, survives_dropouts=False), _seats),
    st.builds(lambda away, seats: PlanClaim.abandoned_by(away, seats=seats), _seats, _seats),
    st.builds(PlanClaim.certified, _seats),
)
_calls = st.one_of(
    st.tuples(st.just("begin"), _name, st.integers(1, 6), _name),
    st.tuples(st.just("keep"), _name),
    st.tuples(st.just("abandon"), _name, _name),
    st.tuples(st.just("decide"), _name, _name, _name),
    st.tuples(st.just("verdict_on"), _name),
    st.tuples(st.just("run_of"), _name),
    st.tuples(st.just("erase"), _name),
    st.tuples(st.just("claim"), _queries, _name, _claims),
    st.tuples(st.just("resolve"), _name, _claims),
    st.tuples(st.just("claims_of"), _queries),
    st.tuples(st.just("bound_on"), _queries),
    st.tuples(st.just("count")),
    st.tuples(st.just("count_new"), st.lists(_name, max_size=3, unique=True)),
)


def value_of(journal: Journal | PlainJournal, name: str, arguments: Sequence[Any]) -> object:
    """What a call gives, in a form that can be compared."""
    match name, arguments:
        case "begin", (run_id, epoch, plan):
            return journal.begin(run_id=run_id, epoch=epoch, plan_digest=plan)
        case "keep", (plan,):
            return journal.keep(plan, (b"y",), expires_at=1)
        case "abandon", (plan, run_id):
            return journal.abandon(plan, run_id=run_id)
        case "decide", (plan, verdict, run_id):
            return journal.decide(plan, verdict, run_id=run_id)
        case "claim", (queries, plan, claim):
            ask(journal, *queries, plan=plan, claim=claim)
            return None
        case "claims_of", (queries,):
            return frozenset(journal.queries.claims_of(queries))
        case "bound_on", (queries,):
            return journal.queries.bound_on(queries)
        case (("count" | "count_new"), _):
            return getattr(journal.queries, name)(*arguments)
        case _:
            return getattr(journal, name)(*arguments)


def outcome(journal: Journal | PlainJournal, call: tuple[Any, ...]) -> object:
    """What a call gives: its value, or its error's code."""
    name, *arguments = call
    try:
        return value_of(journal, name, arguments)
    except ProtocolError as error:
        return error.code


@pytest.mark.slow
@settings(max_examples=100)
@given(calls=st.lists(_calls, max_size=25))
def test_the_plain_journal_of_the_model_answers_as_the_product_s(
    calls: list[tuple[Any, ...]],
) -> None:
    plain, journal = PlainJournal(), journal_in_memory()
    for place, call in enumerate(calls):
        assert outcome(plain, call) == outcome(journal, call), (place, call)
