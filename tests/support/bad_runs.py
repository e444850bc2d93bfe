"""Whole federations in a bad network: labeling runs, nodes, guards and ledgers, one after another.

Histograms are odd enough to be recognized in traffic, and one-sided enough that noise never decides
a label: what is released follows from which queries are asked, and other votes for the same labels
must look the same from outside.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coordinator.database import RunStore
from coordinator.errors import CoordinatorError, RunEndedError, SetupError
from coordinator.runs.labeling import LabelingJob, LabelingRun, Member
from party.decision.guard import Guard
from party.decision.node import PartyNode
from party.site.party_task import PartyTask, tasks_of
from party.site.policy import Policy
from party.storage import Journal, LedgerStore
from pate_fed.accounting import EntryState, PrivacyLedger
from pate_fed.charges import RunLedger, charge_of, outcomes_of
from pate_fed.errors import PateFedError
from pate_fed.queries import QueryBatch, QueryPool
from pate_fed.releases import ABSTAIN, NoisyRelease
from pate_fed.terms import NO_TASK, BatchTerms, RunTerms
from pate_fed.votes import TeacherWeights
from protocols.errors import ProtocolError
from protocols.messages import Plan
from protocols.rounds import MemoryCoordinatorJournal, PartyState
from protocols.suites import DEFAULT_SUITE
from protocols.values import decode_value
from tests.support.bad_network import BadNetwork, Clock, KilledError, Schedule, Snapshot
from tests.support.bad_network_witness import WATCHED, Witness
from tests.support.bad_sums import LIFETIME_S, NOW, QUICK_SUITE, Stream, identities
from tests.support.rules import run_terms, with_other
from tests.support.stores import CopiedDatabase, CopiedPartyDatabase, run_in_memory

CLASSES = 3
TEACHERS = 200
SIGMA = 20.0
"""Six standard deviations and more below what decides any label here."""
POOL = 24
WEIGHTS = TeacherWeights.equal(TEACHERS)
CODED = (ProtocolError, CoordinatorError, PateFedError)


def is_split(index: int) -> bool:
    """Whether the teachers of every hospital disagree about a query."""
    return index % 4 == 3


def counts_of(node: int, index: int, variant: int) -> list[int]:
    """One hospital's votes on a query; variants differ, and lead to the same label."""
    if is_split(index):
        first = 60 + (node + index + 3 * variant) % 7
        second = 64 + (2 * node + index + variant) % 5
    else:
        first = 3 + (5 * node + 3 * index + 7 * variant) % 11
        second = 15 + (3 * node + 7 * index + 5 * variant) % 13
    winner = index % CLASSES
    counts = [0] * CLASSES
    counts[winner - 1], counts[winner - 2] = first, second
    counts[winner] = TEACHERS - first - second
    return counts


class Teachers:
    """One hospital's teachers."""

    def __init__(self, node: int) -> None:
        self.node = node
        self.variant = 0

    def __call__(self, batch: QueryBatch) -> NDArray[np.int64]:
        columns = [
            np.repeat(np.arange(CLASSES), counts_of(self.node, index, self.variant))
            for index in batch.indices
        ]
        return np.stack(columns, axis=1)


@dataclass(frozen=True, slots=True)
class Released:
    """A batch whose labels came out."""

    run_id: bytes
    batch: int
    indices: tuple[int, ...]
    release: NoisyRelease


class BadRuns:
    """Hospitals, their coordinator, and the network between them; runs follow one another."""

    def __init__(self, course: Runs) -> None:
        self._course = course
        self.people = identities(course.parties + 1)
        self.clock = Clock(NOW)
        self.witness = Witness([one.public for one in self.people[:-1]])
        self.pool = QueryPool(np.arange(2.0 * POOL).reshape(POOL, 2))
        self.teachers = [Teachers(node) for node in range(course.parties)]
        databases = [CopiedPartyDatabase.in_memory() for _ in self.teachers]
        self.journals = [Journal(database) for database in databases]
        self.ledgers = [
            LedgerStore(database, budget=PrivacyLedger.for_life(5.0, 1e-5))
            for database in databases
        ]
        self.randoms = [Stream(f"party {node}") for node in range(course.parties)]
        self.network = BadNetwork(
            [self._open_node(node) for node in range(course.parties)],
            clock=self.clock,
            witness=self.witness,
        )
        self.network.restart = self._restart
        self._random = Stream("coordinator")
        self.lost: set[bytes] = set()
        self.database = CopiedDatabase.in_memory()
        self.stores: list[RunStore] = []
        self.terms: list[RunTerms] = []
        self.released: list[Released] = []
        self.outcomes: list[str] = []
        self.runs: list[LabelingRun] = []
        self.open_run()

    @property
    def _run_ids(self) -> list[bytes]:
        return [run.round.run_id for run in self.runs]

    @property
    def nodes(self) -> list[PartyNode]:
        return self.network.doors  # type: ignore[return-value]

    def open_run(self) -> None:
        """Begin another run with the same hospitals."""
        self._form = WATCHED[self._course.form]()
        self._journal = MemoryCoordinatorJournal()
        self.run = LabelingRun(self._job(self._open_store))
        self.runs.append(self.run)
        self._form.opens_for(self.witness, self.run.round)
        self.terms.append(self.run.terms)

    def _job(self, store: Callable[[RunLedger], RunStore]) -> LabelingJob:
        return LabelingJob(
            transport=self.network,
            identity=self.people[-1],
            form=self._form,
            members=[
                Member(f"hospital-{node}", one.public) for node, one in enumerate(self.people[:-1])
            ],
            pool=self.pool,
            terms=self._course.run_terms,
            simulated=True,
            lifetime_s=LIFETIME_S,
            suite=self._course.suite,
            store=store,
            random_bytes=self._random,
            noise_bytes=self._random,
            clock=self.clock,
            journal=self._journal,
        )

    def _resume(self) -> None:
        """A new process of the coordinator finishes what the last one began."""
        while True:
            try:
                self.run = LabelingRun.resume(self._job(lambda _: self.stores[-1]))
                self.runs[-1] = self.run
                self._form.opens_for(self.witness, self.run.round)
                self.run.finish()
            except KilledError:
                continue
            except SetupError:
                self.lost.add(self.stores[-1].run_id())  # too few hospitals can be reached
                raise
            return

    def _ask(self, indices: tuple[int, ...]) -> NoisyRelease:
        try:
            return self.run.ask(indices)
        except KilledError:
            self._resume()
        store = self.stores[-1]
        for asked, release in store.releases().values():
            if asked == indices:
                return release
        if any(batch.indices == indices for batch in store.asked().values()):
            raise RunEndedError("a batch must not be void already", "one before a restart")
        return self._ask(indices)

    def close(self) -> None:
        try:
            self.run.close()
        except KilledError:
            self._resume()
            self.close()

    def set_up(self) -> None:
        try:
            self.run.set_up()
        except KilledError:
            self._resume()

    def _restart(self, node: int) -> None:
        self.network.doors[node] = self._open_node(node)

    def restart_unfinished(self) -> None:
        """Give those hospitals a new process that are still in a run."""
        for node, door in enumerate(self.nodes):
            if door.state not in (PartyState.DONE, PartyState.STOPPED):
                self._restart(node)

    def vote_otherwise(self) -> None:
        """Let all teachers vote otherwise, for the same labels."""
        for teachers in self.teachers:
            teachers.variant = 1

    def attempt(self, name: str, act: Callable[[], Any]) -> bool:
        """Do something that may fail, but only with a code; note what became of it."""
        try:
            result = act()
        except CODED as error:
            self.outcomes.append(f"{name}: {error.code} {error}")
            return False
        labels = f" {result.labels.tolist()}" if isinstance(result, NoisyRelease) else ""
        self.outcomes.append(f"{name}: done{labels}")
        return True

    def ask(self, batch: int, indices: tuple[int, ...]) -> bool:
        """Ask a batch; only what comes out may be stored."""
        store = self.stores[-1]
        before = set(store.releases())

        def asking() -> NoisyRelease:
            release = self._ask(indices)
            self.released.append(Released(self.run.round.run_id, batch, indices, release))
            return release

        done = self.attempt("batch", asking)
        new = set(store.releases()) - before
        assert len(new) == done, "stored is what was released"
        return done

    def check(self) -> None:
        """Hold all that happened against the rules."""
        self.witness.check()
        self._check_reservations()
        self._check_labels()
        self._check_queries()
        for node in range(len(self.people) - 1):
            self._check_charges(node)

    def _check_reservations(self) -> None:
        """The coordinator settles each batch, and takes back nothing that was ever opened."""
        for run_id, store in zip(self._run_ids, self.stores, strict=True):
            for batch, state in enumerate(store.ledger().states):
                assert state is not EntryState.RESERVED or run_id in self.lost
                assert (state is EntryState.COMMITTED) == (batch in store.releases())
                if state is EntryState.CANCELLED:
                    assert not self._was_opened(run_id, batch)

    def _was_opened(self, run_id: bytes, batch: int) -> bool:
        plans = (self.witness.plans[one.plan] for one in self.witness.opened)
        return any((plan.run_id, plan.batch) == (run_id, batch) for plan in plans)

    def _check_labels(self) -> None:
        for released in self.released:
            expected = [
                ABSTAIN if is_split(index) else index % CLASSES for index in released.indices
            ]
            assert released.release.labels.tolist() == expected

    def _check_queries(self) -> None:
        """No query is opened under two sets, nor twice under one."""
        seen: set[int] = set()
        for opened in self.witness.opened:
            plan = self.witness.plans[opened.plan]
            for index in BatchTerms.from_record(decode_value(plan.terms)).indices:
                assert index not in seen, f"query {index} was opened twice"
                seen.add(index)

    def _check_charges(self, node: int) -> None:
        """A hospital pays for what it sends, once, and never less than for what came out of it."""
        me = self.people[node].fingerprint
        entries = self.nodes[node].ledger.entries
        by_plan = {bytes.fromhex(entry.entry_id): entry for entry in entries}
        assert len(by_plan) == len(entries), "a second charge"
        assert set(by_plan) <= set(self.witness.plans), "a charge for a plan that nobody made"
        for digest in self.witness.plans:
            if self.witness.has_sent(me, digest):
                assert digest in by_plan, "nothing was charged for what was sent"
                is_free = by_plan[digest].state is EntryState.CANCELLED
                assert not (is_free and any(one.plan == digest for one in self.witness.opened))
        for released in self.released:
            [opened] = [
                opened
                for opened in self.witness.opened
                if self._is_plan_of(self.witness.plans[opened.plan], released)
            ]
            entry = by_plan.get(opened.plan)
            if me in opened.survivors:
                assert entry is not None, "nothing was charged for a release"
            if entry is None:
                continue
            terms = self.terms[0]
            cost = charge_of(terms, outcomes_of(released.release), weight=1)
            assert cost.is_covered_by(entry.charged), "less was charged than released"
            if entry.state is EntryState.COMMITTED:
                assert entry.release_digest == released.release.digest

    @staticmethod
    def _is_plan_of(plan: Plan, released: Released) -> bool:
        return (plan.run_id, plan.batch) == (released.run_id, released.batch)

    def _open_store(self, ledger: Any) -> RunStore:
        store = RunStore(
            run_in_memory(self.database),
            ledger,
            pool=self.pool,
            task_digest=NO_TASK,
            members=[one.fingerprint for one in self.people[:-1]],
        )
        self.stores.append(store)
        return store

    def _open_node(self, node: int) -> PartyNode:
        course = self._course
        pins = {one.fingerprint: one.public for one in self.people[:-1]}
        policy = Policy(
            approved_pools=frozenset({self.pool.digest}),
            least_checked_peers=2,
            forms=frozenset({course.form}),
            suites=frozenset({course.suite}),
            simulated=True,
        )
        form = WATCHED[course.form]().watched_by(self.witness, node)
        return PartyNode(
            identity=self.people[node],
            coordinator=self.people[-1].public,
            known_peers=pins,
            guard=Guard(
                policy=policy,
                weights=WEIGHTS,
                checked_peers={fingerprint: fingerprint.hex() for fingerprint in pins},
            ),
            tasks=tasks_of(PartyTask(self.pool, self.teachers[node])),
            forms={course.form: form},
            journal=self.journals[node],
            ledger=self.ledgers[node],
            random_bytes=self.randoms[node],
            clock=self.clock,
        )


@dataclass(frozen=True, slots=True)
class Runs:
    """A course of labeling runs, through which schedules are played.

    Attributes:
        parties: Number of hospitals.
        form: Secure sum.
        mechanism: From counts to labels.
        at_parties: Whether they add the noise.
        runs: One after another, with the same hospitals, journals and ledgers.
        is_set_up: Whether the first run is set up before the network is bad.
        suite: Sealing suite.
    """

    parties: int
    form: str = "additive"
    mechanism: str = "threshold"
    at_parties: bool = False
    runs: int = 1
    is_set_up: bool = True
    suite: str = QUICK_SUITE

    @property
    def exchanges(self) -> int:
        """At most so many, if all goes well."""
        each = 3 if self.form == "masked" else 1
        setup = 4 * (self.runs - self.is_set_up)
        return setup + self.runs * (2 * each + 2) + each * (self.runs - 1)

    def batches(self, number: int) -> list[tuple[int, ...]]:
        """What one run asks: two batches; a later run an old one, too."""
        start = 8 * number
        fresh = [(start, start + 1), (start + 4, start + 5)]
        if self.mechanism == "threshold":
            fresh = [(start, start + 3), (start + 4, start + 5)]
        return fresh if not number else [fresh[0], (4, 5), fresh[1]]

    def run_terms(self, members: tuple[Member, ...]) -> RunTerms:
        has_threshold, parties = self.mechanism == "threshold", len(members)
        terms = run_terms(
            name="run",
            classes=CLASSES,
            pool_digest=_pool_digest(),
            task_digest=NO_TASK,
            weights=(WEIGHTS,) * parties,
            mechanism=self.mechanism,
            vote_threshold=0.6 * TEACHERS * parties if has_threshold else None,
            sigma2=SIGMA,
            unit="record",
            max_asks=100,
            max_answers=100,
            budgets=(5.0,) * parties,
            delta=1e-5,
        )
        if not self.at_parties:
            return terms
        return with_other(
            terms,
            noise_place="parties",
            colluders=1,
            dropouts=parties - WATCHED[self.form]().threshold(parties),
        )

    def play(self, schedule: Schedule, *, other_votes: bool = False) -> BadRuns:
        """Play one schedule to its end, and hold what happened against the rules."""
        runs = _prepared(self).copy()
        if other_votes:
            runs.vote_otherwise()
        runs.network.misbehave(schedule)
        with _errors_of_nodes(runs.witness):
            for number in range(self.runs):
                if number:
                    runs.restart_unfinished()
                    runs.open_run()
                self._play_run(runs, number, is_set_up=self.is_set_up and not number)
        runs.check()
        return runs

    def _play_run(self, runs: BadRuns, number: int, *, is_set_up: bool) -> None:
        if not is_set_up and not runs.attempt("setup", runs.set_up):
            return
        for batch, indices in enumerate(self.batches(number)):
            if runs.run.is_over or runs.run.round.run_id in runs.lost:
                break
            runs.ask(batch, indices)
        runs.attempt("closing", runs.close)


HYBRID_SUITE = DEFAULT_SUITE


@cache
def _pool_digest() -> bytes:
    return QueryPool(np.arange(2.0 * POOL).reshape(POOL, 2)).digest


@cache
def _prepared(course: Runs) -> Snapshot[BadRuns]:
    runs = BadRuns(course)
    if course.is_set_up:
        runs.run.set_up()
    return Snapshot(runs)


class _Errors(logging.Handler):
    """Turns what a node logs as an error into a complaint: none of it is a network's to cause."""

    def __init__(self, witness: Witness) -> None:
        super().__init__(logging.ERROR)
        self._witness = witness

    def emit(self, record: logging.LogRecord) -> None:
        self._witness.complaints.append(record.getMessage())


@contextmanager
def _errors_of_nodes(witness: Witness) -> Iterator[None]:
    logger, handler = logging.getLogger("party.decision"), _Errors(witness)
    propagated, logger.propagate = logger.propagate, False
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagated
