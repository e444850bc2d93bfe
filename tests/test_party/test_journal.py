"""What a party remembers: no plan and no query twice. One contract, in memory and in a database."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from party.journal import Journal, MemoryJournal, SketchedQueries
from party.storage import PartyDatabase, SqlJournal
from pate_fed.queries import QueryPool
from pate_fed.query_sketches import Sketches, sketch
from protocols.errors import KeyReuseError, ProtocolError, RestoredJournalError
from protocols.rounds import RetrySet

ONE, TWO, THREE = b"1" * 32, b"2" * 32, b"3" * 32
RUN, PLAN, OTHER_PLAN = b"r" * 32, b"1" * 32, b"2" * 32


Opens = Callable[[], AbstractContextManager[Journal]]


class ForgetfulParty(Journal):
    """A journal whose process ends after every call: all that counts is on disk."""

    def __init__(self, opens: Opens) -> None:
        self._opens = opens

    @property
    def counter(self) -> int:
        with self._opens() as journal:
            return journal.counter

    def begin(self, *, run_id: bytes, epoch: int, plan_digest: bytes) -> None:
        with self._opens() as journal:
            journal.begin(run_id=run_id, epoch=epoch, plan_digest=plan_digest)

    def abandon(self, plan_digest: bytes) -> None:
        with self._opens() as journal:
            journal.abandon(plan_digest)

    def keep(self, plan_digest: bytes, frames: tuple[bytes, ...], *, expires_at: int) -> None:
        with self._opens() as journal:
            journal.keep(plan_digest, frames, expires_at=expires_at)

    def sweep(self, *, now: float) -> None:
        with self._opens() as journal:
            journal.sweep(now=now)

    def find(self, plan_digest: bytes) -> tuple[bytes, ...] | None:
        with self._opens() as journal:
            return journal.find(plan_digest)

    def fix_survivors(self, plan_digest: bytes, survivors_digest: bytes) -> None:
        with self._opens() as journal:
            journal.fix_survivors(plan_digest, survivors_digest)

    def erase(self, plan_digest: bytes) -> None:
        with self._opens() as journal:
            journal.erase(plan_digest)

    def witness(self, counters: Mapping[bytes, int]) -> None:
        with self._opens() as journal:
            journal.witness(counters)

    def witnessed(self, peer: bytes) -> int:
        with self._opens() as journal:
            return journal.witnessed(peer)

    def halt(self, counter: int) -> None:
        with self._opens() as journal:
            journal.halt(counter)

    def claim(
        self,
        queries: Sequence[bytes],
        *,
        plan_digest: bytes,
        seats: Collection[bytes] | None = None,
    ) -> None:
        with self._opens() as journal:
            journal.claim(queries, plan_digest=plan_digest, seats=seats)

    def release(self, plan_digest: bytes, retry: RetrySet) -> None:
        with self._opens() as journal:
            journal.release(plan_digest, retry)

    def any_answered(
        self, queries: Sequence[bytes], *, seats: Collection[bytes] | None = None
    ) -> bool:
        with self._opens() as journal:
            return journal.any_answered(queries, seats=seats)

    def count(self) -> int:
        with self._opens() as journal:
            return journal.count()

    def keep_sketches(self, batch: SketchedQueries) -> None:
        with self._opens() as journal:
            journal.keep_sketches(batch)

    def sketches(self) -> Sketches:
        with self._opens() as journal:
            return journal.sketches()

    def count_near(self) -> int:
        with self._opens() as journal:
            return journal.count_near()


@contextmanager
def in_database(path: Path) -> Iterator[SqlJournal]:
    kept = PartyDatabase.at(path) if path.exists() else PartyDatabase.create(path)
    with kept as database:
        yield SqlJournal(database)


@pytest.fixture(params=["in memory", "in a database", "in a database, reopened"])
def journal(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Journal]:
    file = tmp_path / "party.db"
    match request.param:
        case "in memory":
            yield MemoryJournal()
        case "in a database":
            with in_database(file) as stored:
                yield stored
        case _:
            yield ForgetfulParty(lambda: in_database(file))


@pytest.fixture
def begun(journal: Journal) -> Journal:
    journal.begin(run_id=RUN, epoch=4, plan_digest=PLAN)
    return journal


class TestQueries:
    def test_query_can_be_claimed_once(self, journal: Journal) -> None:
        journal.claim([ONE, TWO], plan_digest=PLAN)
        with pytest.raises(KeyReuseError):
            journal.claim([THREE, TWO], plan_digest=OTHER_PLAN)
        assert journal.count() == 2  # THREE was not noted

    def test_the_same_query_twice_in_one_claim_is_refused(self, journal: Journal) -> None:
        assert journal.any_answered([ONE, ONE])
        with pytest.raises(KeyReuseError):
            journal.claim([ONE, ONE], plan_digest=PLAN)
        assert journal.count() == 0

    def test_an_input_is_one_query_in_whatever_pool_and_place_it_stands(
        self, journal: Journal
    ) -> None:
        here = QueryPool(np.array([[0.0, 1.0], [2.0, 3.0]]))
        there = QueryPool(np.array([[9.0, 9.0], [8.0, 8.0], [2.0, 3.0]]))
        journal.claim(here.ask((0, 1)).digests, plan_digest=PLAN)
        assert journal.any_answered(there.ask((2,)).digests)
        assert not journal.any_answered(there.ask((0, 1)).digests)

    def test_minus_zero_is_zero(self) -> None:
        plus, minus = QueryPool(np.array([[0.0]])), QueryPool(np.array([[-0.0]]))
        assert plus.ask((0,)).digests == minus.ask((0,)).digests


def sketched(*queries: bytes, near: tuple[bool, ...]) -> SketchedQueries:
    inputs = np.array([[float(query[0]), 1.0] for query in queries])
    return SketchedQueries(queries, sketch(inputs), np.array(near))


class TestSketches:
    def test_sketches_count_once_their_queries_are_claimed(self, journal: Journal) -> None:
        batch = sketched(ONE, TWO, near=(False, True))
        journal.keep_sketches(batch)
        assert len(journal.sketches()) == journal.count_near() == 0
        journal.claim([ONE, TWO], plan_digest=PLAN)
        assert np.array_equal(journal.sketches(), batch.sketches)
        assert journal.count_near() == 1

    def test_what_was_noted_of_an_answered_query_stays(self, journal: Journal) -> None:
        journal.keep_sketches(sketched(ONE, near=(True,)))
        journal.claim([ONE], plan_digest=PLAN)
        journal.keep_sketches(sketched(ONE, TWO, near=(False, False)))
        journal.claim([TWO], plan_digest=bytes(32))
        assert journal.count_near() == 1

    def test_a_query_that_was_never_claimed_may_be_sketched_again(self, journal: Journal) -> None:
        journal.keep_sketches(sketched(ONE, near=(True,)))
        journal.keep_sketches(sketched(ONE, near=(False,)))
        journal.claim([ONE], plan_digest=PLAN)
        assert journal.count_near() == 0
        assert len(journal.sketches()) == 1

    def test_sketches_of_many_queries_fit_a_journal(self, tmp_path: Path) -> None:
        queries = tuple(place.to_bytes(32, "big") for place in range(25_000))
        batch = SketchedQueries(
            queries, sketch(np.arange(50_000.0).reshape(-1, 2)), np.zeros(25_000, dtype=bool)
        )
        with in_database(tmp_path / "party.db") as journal:
            journal.keep_sketches(batch)
            journal.claim(queries, plan_digest=PLAN)
        with in_database(tmp_path / "party.db") as journal:
            assert np.array_equal(journal.sketches(), batch.sketches)

    def test_sketches_print_no_input(self) -> None:
        assert repr(sketched(ONE, near=(False,))) == "SketchedQueries(queries=1)"


class TestPlans:
    @pytest.mark.parametrize(
        "again",
        [
            pytest.param(
                lambda journal: journal.begin(run_id=RUN, epoch=5, plan_digest=PLAN), id="same plan"
            ),
            pytest.param(
                lambda journal: journal.begin(run_id=RUN, epoch=4, plan_digest=OTHER_PLAN),
                id="same epoch",
            ),
            pytest.param(
                lambda journal: journal.begin(run_id=RUN, epoch=3, plan_digest=OTHER_PLAN),
                id="older epoch",
            ),
        ],
    )
    def test_a_plan_is_begun_once_and_epochs_go_forward(
        self, begun: Journal, again: Callable[[Journal], None]
    ) -> None:
        counter = begun.counter
        with pytest.raises(KeyReuseError):
            again(begun)
        assert begun.counter == counter

    def test_another_run_has_epochs_of_its_own(self, begun: Journal) -> None:
        journal = begun
        journal.begin(run_id=b"s" * 32, epoch=1, plan_digest=OTHER_PLAN)
        journal.keep(OTHER_PLAN, (b"frame",), expires_at=10_000)
        assert journal.find(OTHER_PLAN) == (b"frame",)

    def test_a_frame_is_kept_once_and_only_for_a_plan_that_was_begun(self, begun: Journal) -> None:
        journal = begun
        journal.keep(PLAN, (b"y",), expires_at=10_000)
        with pytest.raises(KeyReuseError):
            journal.keep(PLAN, (b"another y",), expires_at=10_000)
        with pytest.raises(KeyReuseError):
            journal.keep(OTHER_PLAN, (b"y",), expires_at=10_000)
        assert journal.find(PLAN) == (b"y",)

    def test_a_plan_has_one_survivor_set_noted_once(self, begun: Journal) -> None:
        journal = begun
        with pytest.raises(KeyReuseError):  # nothing was begun for it
            journal.fix_survivors(OTHER_PLAN, b"1" * 32)
        journal.fix_survivors(PLAN, b"1" * 32)
        counter = journal.counter
        journal.fix_survivors(PLAN, b"1" * 32)
        with pytest.raises(KeyReuseError):
            journal.fix_survivors(PLAN, b"2" * 32)
        assert journal.counter == counter == 2
        journal.keep(PLAN, (b"y",), expires_at=10_000)
        journal.erase(PLAN)
        with pytest.raises(KeyReuseError):  # nor after it is settled
            journal.fix_survivors(PLAN, b"2" * 32)

    def test_an_erased_plan_is_never_begun_again(self, begun: Journal) -> None:
        journal = begun
        journal.keep(PLAN, (b"y",), expires_at=10_000)
        journal.erase(PLAN)
        assert journal.find(PLAN) is None
        with pytest.raises(KeyReuseError):
            journal.begin(run_id=RUN, epoch=9, plan_digest=PLAN)

    def test_an_erased_plan_is_never_answered_again(self, begun: Journal) -> None:
        begun.keep(PLAN, (b"y",), expires_at=10_000)
        begun.erase(PLAN)
        with pytest.raises(KeyReuseError):
            begun.keep(PLAN, (b"another y",), expires_at=10_000)
        assert begun.find(PLAN) is None

    def test_journal_prints_no_frame(self) -> None:
        journal = MemoryJournal()
        journal.begin(run_id=RUN, epoch=1, plan_digest=PLAN)
        journal.keep(PLAN, (b"y",), expires_at=10_000)
        assert repr(journal) == "MemoryJournal(plans=1)"


_name = st.sampled_from([bytes([number]) * 32 for number in range(4)])
_seats = st.frozensets(_name, max_size=4)
_calls = st.one_of(
    st.tuples(st.just("begin"), _name, st.integers(1, 6), _name),
    st.tuples(st.just("keep"), _name, st.binary(max_size=40), st.integers(1, 4)),
    st.tuples(st.just("abandon"), _name),
    st.tuples(st.just("fix_survivors"), _name, _name),
    st.tuples(st.just("sweep"), st.integers(1, 4)),
    st.tuples(st.just("find"), _name),
    st.tuples(st.just("erase"), _name),
    st.tuples(st.just("claim"), st.lists(_name, max_size=3), _name, _seats),
    st.tuples(st.just("release"), _name, _seats, _seats),
    st.tuples(st.just("any_answered"), st.lists(_name, max_size=3), _seats),
    st.tuples(st.just("witness"), st.dictionaries(_name, st.integers(0, 5), max_size=3)),
    st.tuples(st.just("witnessed"), _name),
    st.tuples(st.just("halt"), st.integers(40, 60)),
    st.tuples(st.just("count")),
)


def outcome(journal: Journal, call: tuple[Any, ...]) -> object:
    """What a call gives: its value, or its error's code; and the counter then."""
    name, *arguments = call
    try:
        if name == "begin":
            run_id, epoch, plan = arguments
            value: object = journal.begin(run_id=run_id, epoch=epoch, plan_digest=plan)
        elif name == "keep":
            plan, frame, expires_at = arguments
            value = journal.keep(plan, (frame, frame), expires_at=expires_at)
        elif name == "sweep":
            value = journal.sweep(now=arguments[0])
        elif name == "claim":
            queries, plan, seats = arguments
            value = journal.claim(queries, plan_digest=plan, seats=seats)
        elif name == "release":
            plan, needed, others = arguments
            value = journal.release(plan, RetrySet(needed, needed | others))
        elif name == "any_answered":
            value = journal.any_answered(arguments[0], seats=arguments[1])
        else:
            value = getattr(journal, name)(*arguments)
    except ProtocolError as error:
        value = error.code
    return value, journal.counter


@settings(max_examples=60)
@given(calls=st.lists(_calls, max_size=20), halts=st.booleans())
def test_a_journal_in_a_database_answers_as_one_in_memory(
    tmp_path_factory: pytest.TempPathFactory, calls: list[tuple[Any, ...]], halts: bool
) -> None:
    memory = MemoryJournal()
    with in_database(tmp_path_factory.mktemp("law") / "party.db") as stored:
        for place, call in enumerate(calls):
            if call[0] == "halt" and not halts:
                continue
            assert outcome(stored, call) == outcome(memory, call), (place, call)


class TestCounter:
    """Rule R4: a journal's counter goes up with every write, and peers' counters are kept."""

    def test_every_write_counts_and_nothing_else_does(self, journal: Journal) -> None:
        seen = [journal.counter]
        for write in (
            lambda: journal.claim([ONE], plan_digest=PLAN),
            lambda: journal.keep_sketches(sketched(TWO, near=(False,))),
            lambda: journal.begin(run_id=RUN, epoch=1, plan_digest=PLAN),
            lambda: journal.keep(PLAN, (b"y",), expires_at=10_000),
            lambda: journal.witness({b"peer": 7, b"other": 1}),
            lambda: journal.erase(PLAN),
            lambda: journal.halt(50),
        ):
            write()
            seen.append(journal.counter)
        assert seen == list(range(8))
        journal.erase(PLAN)
        journal.witness({b"peer": 7})
        journal.halt(49)
        journal.find(PLAN)
        journal.any_answered([TWO])
        assert journal.counter == 7

    def test_the_highest_counter_of_a_peer_is_kept(self, journal: Journal) -> None:
        assert journal.witnessed(b"peer") == 0
        journal.witness({b"peer": 7, b"other": 3})
        journal.witness({b"peer": 6, b"other": 4})
        assert (journal.witnessed(b"peer"), journal.witnessed(b"other")) == (7, 4)

    def test_a_halted_journal_begins_nothing(self, journal: Journal) -> None:
        journal.halt(9)
        with pytest.raises(RestoredJournalError) as caught:
            journal.begin(run_id=RUN, epoch=1, plan_digest=PLAN)
        assert caught.value.shown == 9


SEATS = frozenset({b"a" * 32, b"b" * 32, b"c" * 32})
RETRY = RetrySet(SEATS - {b"c" * 32}, SEATS)
"""Of a plan that the third party refused."""


class TestAbandoning:
    """Rule R3: a promise never to send for a plan."""

    def test_an_abandoned_plan_is_never_begun(self, journal: Journal) -> None:
        journal.abandon(PLAN)
        with pytest.raises(KeyReuseError):
            journal.begin(run_id=RUN, epoch=1, plan_digest=PLAN)
        journal.begin(run_id=RUN, epoch=1, plan_digest=OTHER_PLAN)

    def test_a_plan_that_was_begun_is_never_answered_nor_revealed_for(self, begun: Journal) -> None:
        begun.abandon(PLAN)
        with pytest.raises(KeyReuseError):
            begun.keep(PLAN, (b"y",), expires_at=10_000)
        with pytest.raises(KeyReuseError):
            begun.fix_survivors(PLAN, OTHER_PLAN)
        assert begun.find(PLAN) is None

    @pytest.mark.parametrize("erased", [False, True])
    def test_a_plan_whose_y_was_kept_is_never_abandoned(self, begun: Journal, erased: bool) -> None:
        begun.keep(PLAN, (b"y",), expires_at=10_000)
        if erased:
            begun.erase(PLAN)
        counter = begun.counter
        with pytest.raises(KeyReuseError):
            begun.abandon(PLAN)
        assert begun.counter == counter

    def test_its_queries_are_free_for_anybody(self, journal: Journal) -> None:
        journal.claim([ONE, TWO], plan_digest=PLAN)
        journal.abandon(PLAN)
        assert journal.count() == 0
        assert not journal.any_answered([ONE, TWO])
        with pytest.raises(KeyReuseError):
            journal.claim([THREE], plan_digest=PLAN)

    def test_it_counts_once(self, journal: Journal) -> None:
        for _ in range(3):
            journal.abandon(PLAN)
        assert journal.counter == 1

    def test_a_halted_journal_promises_nothing(self, journal: Journal) -> None:
        journal.halt(9)
        with pytest.raises(RestoredJournalError):
            journal.abandon(PLAN)


class TestRelease:
    def claimed(self, journal: Journal) -> Journal:
        journal.claim([ONE, TWO], plan_digest=PLAN, seats=SEATS)
        journal.begin(run_id=RUN, epoch=1, plan_digest=PLAN)
        journal.keep(PLAN, (b"y",), expires_at=10_000)
        return journal

    def test_queries_are_free_for_who_was_left(self, journal: Journal) -> None:
        self.claimed(journal).release(PLAN, RETRY)
        assert journal.count() == 0
        for seats in (SEATS, RETRY.needed):
            assert not journal.any_answered([ONE, TWO], seats=seats)
        for others in (SEATS - {b"a" * 32}, SEATS | {b"d" * 32}, frozenset[bytes](), None):
            assert journal.any_answered([ONE], seats=others)
            with pytest.raises(KeyReuseError):
                journal.claim([ONE], plan_digest=OTHER_PLAN, seats=others)
        journal.claim([ONE], plan_digest=OTHER_PLAN, seats=RETRY.needed)
        assert journal.any_answered([ONE], seats=SEATS)
        assert not journal.any_answered([TWO], seats=SEATS)

    def test_every_void_plan_of_a_query_has_a_say(self, journal: Journal) -> None:
        self.claimed(journal).release(PLAN, RETRY)
        journal.claim([ONE], plan_digest=OTHER_PLAN, seats=SEATS)
        journal.release(OTHER_PLAN, RetrySet(SEATS - {b"b" * 32}, SEATS))
        assert not journal.any_answered([ONE], seats=SEATS)
        assert journal.any_answered([ONE], seats=RETRY.needed)
        assert not journal.any_answered([TWO], seats=RETRY.needed)

    def test_nothing_is_begun_kept_or_revealed_for_the_plan(self, journal: Journal) -> None:
        journal.claim([ONE], plan_digest=PLAN)
        journal.begin(run_id=RUN, epoch=1, plan_digest=PLAN)
        journal.release(PLAN, RETRY)
        for act in (
            lambda: journal.begin(run_id=b"another" * 4, epoch=5, plan_digest=PLAN),
            lambda: journal.keep(PLAN, (b"y",), expires_at=10_000),
            lambda: journal.fix_survivors(PLAN, OTHER_PLAN),
            lambda: journal.claim([THREE], plan_digest=PLAN),
        ):
            with pytest.raises(KeyReuseError):
                act()

    def test_queries_stay_closed_once_a_survivor_set_is_fixed(self, journal: Journal) -> None:
        self.claimed(journal).fix_survivors(PLAN, OTHER_PLAN)
        with pytest.raises(KeyReuseError):
            journal.release(PLAN, RETRY)
        assert journal.count() == 2

    def test_a_halted_journal_frees_nothing(self, journal: Journal) -> None:
        self.claimed(journal).halt(90)
        with pytest.raises(RestoredJournalError):
            journal.release(PLAN, RETRY)
        assert journal.count() == 2

    def test_a_plan_that_claimed_nothing_frees_nothing(self, journal: Journal) -> None:
        self.claimed(journal).release(OTHER_PLAN, RETRY)
        assert (journal.count(), journal.counter) == (2, 3)


def test_a_sweep_erases_what_has_expired_and_nothing_else(journal: Journal) -> None:
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
