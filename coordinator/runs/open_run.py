"""One run that was taken up: its request, its state from earlier lives, and its results.

It opens or resumes the labeling run; the worker decides when.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Protocol

from coordinator.database import (
    Answer,
    Database,
    ReleasedAnswers,
    RunAttempt,
    RunStore,
    SqlCoordinatorJournal,
    unclosed_setups,
)
from coordinator.database.run_store import BatchState
from coordinator.federation.home import FederationHome
from coordinator.runs.known_answers import KnownAnswers
from coordinator.runs.labeling import LabelingJob, LabelingRun, Member, in_seat_order
from coordinator.runs.later_steps import another_student
from coordinator.runs.queue import Progress
from coordinator.runs.request import RunRequest
from coordinator.runs.run_tally import aggregation_of
from coordinator.runs.transport import NoTransport, Traffic, Transport
from coordinator.runs.worker_resources import WorkerResources
from pate_fed.accounting import Outcomes, event_additive_delta
from pate_fed.accounting.costs import PerInstanceCost
from pate_fed.charges import RunLedger, lifelong_charge
from pate_fed.data.task import LearningTask
from pate_fed.evaluation_task import EvaluationTask
from pate_fed.queries import QueryPool
from pate_fed.releases import Outcome
from pate_fed.report.ended_run import UsedRun
from pate_fed.terms import RunTerms
from protocols.errors import UnfinishedSetupError
from protocols.forms import DEPLOYED_FORMS, FORMS
from protocols.identity import SigningIdentity
from protocols.prg import fastest_keystream
from protocols.rounds import CoordinatorRound, CoordinatorState, unheard
from protocols.secure_sum import RoundForm
from protocols.sums import round_form

RUN_LIFETIME_S: Final = 7 * 24 * 3600
"""From a run's setup on, pauses included; hospitals refuse every later batch."""

KEYSTREAM: Final = fastest_keystream(time.thread_time)


class Labeling(Protocol):
    """The labeling of a run, as its results need it; `LabelingRun` says what each field is."""

    @property
    def terms(self) -> RunTerms:
        """Its terms."""

    @property
    def members(self) -> tuple[Member, ...]:
        """The hospitals, in seat order."""

    @property
    def asked(self) -> frozenset[int]:
        """Positions in the pool that were asked about."""

    @property
    def is_over(self) -> bool:
        """Whether a cap is reached, or too many batches were void."""

    @property
    def per_instance_cost(self) -> PerInstanceCost | None:
        """The cost on the actual votes. Private."""

    @property
    def lost(self) -> tuple[tuple[str, ...], ...]:
        """For each batch that opened without some hospitals, their names."""

    @property
    def notes(self) -> list[str]:
        """Hospitals whose reports hold no votes."""

    @property
    def share_faults(self) -> tuple[tuple[str, ...], ...]:
        """For each wrong share, the hospitals that may be at fault."""

    @property
    def not_heard(self) -> tuple[str, ...]:
        """Hospitals that did not compare their histories."""

    @property
    def names_by_node(self) -> dict[int, str]:
        """The name of the hospital at each node."""

    @property
    def round(self) -> CoordinatorRound | None:
        """The protocol's end of it; None where no messages of rounds went around."""


@dataclass(slots=True)
class OpenRun(KnownAnswers):
    """One run that was taken up, with its state from earlier lives.

    Attributes:
        task: The published task; None in a simulation.
        attempt: The one that is worked on, in the database; `before` takes an earlier one.
        results: Its run directory, present or future.
        earlier: Results of its queries in earlier runs, by position in the pool.
        home: The federation; None in a simulation.
        kept: Labels that the students of these earlier runs kept for refused queries.
        stopped_by: The error that ended the run before all was asked.
        exchanges: How many of its exchanges in this life were of its setup, batches and closing.
        left_out: Why a hospital may be asked nothing more in this run, by its name.
        refused: Names of the hospitals that refuse a query in this life, by position in the pool.
    """

    identity: SigningIdentity
    request: RunRequest
    pool: QueryPool
    task: LearningTask | EvaluationTask | None
    members: list[Member]
    attempt: RunAttempt
    world: WorkerResources
    results: Path
    earlier: dict[int, Answer]
    home: FederationHome | None = None
    kept: Mapping[int, int] = field(default_factory=dict)
    choose: Callable[[OpenRun], tuple[int, ...]] = lambda _: ()
    warnings: list[str] = field(default_factory=list)
    stopped_by: Exception | None = field(init=False, default=None)
    last_void: str = ""
    traffic: Traffic = field(init=False, default_factory=Traffic)
    exchanges: dict[str, int] = field(
        init=False, default_factory=lambda: dict.fromkeys(("setup", "batches", "closing"), 0)
    )
    seconds: float = field(init=False, default=0.0)
    left_out: dict[str, str] = field(init=False, default_factory=dict)
    refused: dict[int, tuple[str, ...]] = field(init=False, default_factory=dict)
    journal: SqlCoordinatorJournal = field(init=False)
    store: RunStore = field(init=False)
    _labeling: Labeling | None = field(init=False, default=None)
    _is_given_up: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        self.journal = SqlCoordinatorJournal(self.attempt)
        self.store = self._open_store(RunLedger.of(self._terms(in_seat_order(self.members))))

    @property
    def simulated(self) -> bool:
        """Whether it is a simulation; its hospitals hear of that."""
        return self.home is None

    @property
    def labeling(self) -> Labeling:
        """The run itself, which has begun."""
        assert self._labeling is not None
        return self._labeling

    def be_labeled_by(self, labeling: Labeling) -> None:
        """Take a labeling that goes another way than messages, in a simulation."""
        self._labeling = labeling

    @property
    def classes(self) -> int:
        """Number of classes."""
        return len(self.request.class_names)

    @property
    def again(self) -> str:
        """How it gets another student from its labels."""
        return another_student(str(self.results) if self.simulated else self.request.name)

    def choose_more(self) -> None:
        """Let a simulation choose its next queries, if none is left to ask."""
        if not self.left:
            queries = (*self.request.queries, *self.choose(self))
            self.request = replace(self.request, queries=queries)

    @property
    def left(self) -> list[int]:
        """Queries left to ask: neither asked before, nor lost for good, nor refused."""
        asked = {
            index
            for each in self.store.asked().values()
            if each.state is not BatchState.FREED
            for index in each.indices
        }
        known = self.earlier.keys() | asked | self.store.skipped().keys()
        return [index for index in self.request.queries if index not in known]

    def save_refused(self) -> None:
        """Note the queries that hospitals refused to the end: this run does not ask them."""
        left = set(self.left)
        self.store.save_skipped({at: who for at, who in self.refused.items() if at in left})

    @property
    def skipped_words(self) -> list[str]:
        """List in a line the queries that hospitals refuse; empty if there are none."""
        skipped = self.store.skipped()
        if not skipped:
            return []
        names = ", ".join(sorted({name for each in skipped.values() for name in each}))
        return [
            f"{len(skipped)} queries were not asked: {names} answered them, or others close to "
            f"them, before (pate-fed pool show {self.request.name})"
        ]

    @property
    def unreleased(self) -> int:
        """Queries that were asked and are in no release."""
        return len(self.labeling.asked) - len(self.released)

    @property
    def used_runs(self) -> list[UsedRun]:
        """The earlier runs that drew answers of its own, hospitals in the order of its seats."""
        seats = sorted(party.fingerprint for party in self.request.parties)
        names = dict.fromkeys(self.drawn_in.values())
        requests = [RunRequest.from_json(self.attempt.request_of(name)) for name in names]
        return [UsedRun(each.terms_by(seats), FORMS[each.settings.form]) for each in requests]

    @property
    def is_unbegun(self) -> bool:
        """Whether no hospital has its offer, apart from attempts that were given up."""
        return self._is_given_up or not self.journal.steps()

    def before(self) -> OpenRun | None:
        """Return the run in the state of its last complete setup; None if there is none."""
        earlier = self.attempt.earlier()
        if not earlier:
            return None
        attempt, reason = earlier[-1]
        found = replace(self, attempt=attempt)
        found.warnings = [*self.warnings, f"The run ended when it was to be set up anew: {reason}"]
        return found

    def give_up(self, reason: str, *, lost_by: bytes = b"") -> None:
        """Note that an attempt failed: the next one has rows of its own.

        `lost_by` is the fingerprint of the hospital that lost the run, if one did.
        """
        self.attempt.give_up(reason, lost_by=lost_by)
        self._is_given_up = True

    def begun(
        self,
        transport: Transport,
        sleep: Callable[[float], None],
    ) -> LabelingRun:
        """Open the run, before any hospital heard of it."""
        job = replace(self._job(transport, sleep), owed=self._owed())
        begun = LabelingRun(job)
        self._labeling = begun
        return begun

    def resumed(
        self,
        transport: Transport,
        sleep: Callable[[float], None],
        *,
        patience_s: float | None = None,
        is_read_only: bool = False,
    ) -> LabelingRun:
        """Take the run up where an earlier life left it."""
        job = self._job(transport, sleep)
        if patience_s is not None:
            job = replace(job, patience_s=patience_s)
        resumed = LabelingRun.resume(job, is_read_only=is_read_only)
        self._labeling = resumed
        return resumed

    @property
    def silent(self) -> list[Member]:
        """The hospitals whose answers are missing."""
        missing = () if self._labeling is None else rounds_of(self).missing
        return [one for one in self.members if one.identity.fingerprint in missing]

    @property
    def progress(self) -> Progress:
        """How far it is."""
        outcomes = self.outcomes
        ledger = self.store.ledger()
        held = Outcomes(ledger.outcomes.asks, ledger.outcomes.answers)
        charged = lifelong_charge(ledger.terms, held, weight=ledger.terms.unit_votes)
        return Progress(
            queries=len(self.request.queries),
            asked=sum(what is not Outcome.NOT_ASKED for _, _, what in outcomes),
            answered=sum(what is Outcome.ANSWERED for _, _, what in outcomes),
            refused=sum(what is Outcome.REFUSED for _, _, what in outcomes),
            from_store=len(self.drawn_in),
            batches=len(ledger.states),
            void=self.voids,
            exchanges=self.traffic.exchanges,
            epsilon=self.request.epsilon,
            share=ledger.used_share(),
            tests_delta=event_additive_delta(charged) if charged else 0.0,
        )

    @property
    def form(self) -> RoundForm:
        """Its secure sum; a deployed one hides each party's vector."""
        forms = FORMS if self.simulated else DEPLOYED_FORMS
        return round_form(forms[self.request.settings.form].name, keystream=KEYSTREAM)

    def _job(
        self,
        transport: Transport,
        sleep: Callable[[float], None],
    ) -> LabelingJob:
        self.traffic = transport.traffic
        world = self.world
        return LabelingJob(
            transport=transport,
            identity=self.identity,
            form=self.form,
            members=self.members,
            pool=self.pool,
            terms=self._terms,
            simulated=self.simulated,
            store=self._open_store,
            random_bytes=world.random_bytes,
            noise_bytes=world.noise_bytes,
            clock=world.clock,
            sleep=sleep,
            journal=self.journal,
            on_stage=world.on_stage,
            lifetime_s=RUN_LIFETIME_S,
            suite=self.request.settings.suite,
            patience_s=self.request.patience_s,
            meter=world.meter,
            shares_out=self.request.settings.label_facts(self.request.kind).shared_out,
            may_leave_out=self.attempt.tries() > 1,
            aggregation=aggregation_of(
                self.home,
                self.attempt,
                form=self.form,
                suite=self.request.settings.suite,
                clock=self.world.clock,
            ),
        )

    def _terms(self, members: tuple[Member, ...]) -> RunTerms:
        return self.request.terms_by([one.identity.fingerprint for one in members])

    def _open_store(self, ledger: RunLedger) -> RunStore:
        self.store = RunStore(
            self.attempt,
            ledger,
            pool=self.pool,
            task_digest=self.request.task,
            members=[one.identity.fingerprint for one in self.members],
        )
        return self.store

    def _owed(self) -> dict[bytes, list[bytes]]:
        """Return the settlements that a party may not have heard of, from any run.

        A hospital that was lost still has to charge for that setup. The last setup of each run is
        enough: it began only after all had heard of earlier ones.
        """
        owed: dict[bytes, list[bytes]] = {one.identity.fingerprint: [] for one in self.members}
        for setup in unclosed_setups(self.attempt):
            for party, frames in unheard(setup.steps()).items():
                if party in owed:
                    owed[party] += frames
        return owed


def earlier_answers(request: RunRequest, pool: QueryPool, database: Database) -> dict[int, Answer]:
    """Return the answers of a run's queries that other runs drew, by position in the pool."""
    digests = pool.ask(request.queries).digests
    found = ReleasedAnswers(database).find(
        digests,
        task_digest=request.task,
        members=[one.fingerprint for one in request.parties],
    )
    return {
        index: found[digest]
        for index, digest in zip(request.queries, digests, strict=True)
        if digest in found and found[digest].run != request.name
    }


def rounds_of(run: OpenRun) -> CoordinatorRound:
    """Return the protocol's end of a run over messages, as every deployed one is."""
    found = run.labeling.round
    assert found is not None
    return found


def is_closed(run: OpenRun, sleep: Callable[[float], None]) -> bool:
    """Whether a run has no query left and was closed, in an earlier life: it needs nobody."""
    if run.is_unbegun or run.left:
        return False
    try:
        labeling = run.resumed(NoTransport(), sleep, is_read_only=True)
    except UnfinishedSetupError:
        return False
    return labeling.round.state is CoordinatorState.DONE
