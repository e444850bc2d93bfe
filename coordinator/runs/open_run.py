"""One run that was taken up: its request, its state from earlier lives, and its results.

It opens or resumes the labeling run; the worker decides when.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from coordinator.database import (
    Answer,
    ReleasedAnswers,
    RunAttempt,
    RunStore,
    SqlCoordinatorJournal,
    unclosed_setups,
)
from coordinator.database.run_store import BatchState
from coordinator.federation.home import FederationHome
from coordinator.runs import results
from coordinator.runs.labeling import LabelingJob, LabelingRun, Member, in_seat_order
from coordinator.runs.left_out import LeftOut
from coordinator.runs.queue import Progress
from coordinator.runs.request import RunRequest
from coordinator.runs.surroundings import Surroundings
from coordinator.runs.transport import NoTransport, Traffic, Transport
from pate_fed.accounting import Outcomes, event_additive_delta
from pate_fed.charging import RunLedger, lifelong_charge
from pate_fed.data.task import LearningTask
from pate_fed.evaluation_task import EvaluationTask
from pate_fed.federation import RunTerms
from pate_fed.releases import ABSTAIN, Outcome
from pate_fed.report.tables import Answers, UsedRun
from protocols.errors import UnfinishedSetupError
from protocols.forms import DEPLOYED_FORMS, FORMS
from protocols.identity import SigningIdentity
from protocols.prg import fastest_keystream
from protocols.rounds import CoordinatorState, unheard
from protocols.secure_sum import SecureSum
from protocols.sums import SUMS

RUN_LIFETIME_S: Final = 7 * 24 * 3600
"""From a run's setup on, pauses included; hospitals refuse every later batch."""

_VOID: Final = (BatchState.VOID, BatchState.FREED)

_KEYSTREAM = fastest_keystream(time.thread_time)


@dataclass(slots=True)
class OpenRun:
    """One run that was taken up, with its state from earlier lives.

    Attributes:
        attempt: The one that is worked on, in the database; `before` takes an earlier one.
        world: Its resources.
        journal: That attempt's steps.
        earlier: Results of its queries in earlier runs, by position in the pool.
        store: Charges and releases of the run, over all its attempts.
        warnings: For people.
        last_void: Reason of this life's last void batch; "" if there is none.
        labeling: The run itself, once it has begun.
        traffic: Its packets in this life.
        left_out: Hospitals that may be asked nothing more in this run.
        refused: Names of the hospitals that refuse a query in this life, by position in the pool.
    """

    home: FederationHome
    identity: SigningIdentity
    request: RunRequest
    task: LearningTask | EvaluationTask
    members: list[Member]
    attempt: RunAttempt
    world: Surroundings
    warnings: list[str] = field(default_factory=list)
    last_void: str = ""
    labeling: LabelingRun | None = field(init=False, default=None)
    traffic: Traffic = field(init=False, default_factory=Traffic)
    left_out: LeftOut = field(init=False)
    refused: dict[int, tuple[str, ...]] = field(init=False, default_factory=dict)
    journal: SqlCoordinatorJournal = field(init=False)
    earlier: dict[int, Answer] = field(init=False)
    store: RunStore = field(init=False)
    _is_given_up: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        self.journal = SqlCoordinatorJournal(self.attempt)
        self.left_out = LeftOut(self.members)
        self.earlier = self._find_earlier()
        self.store = self._open_store(RunLedger.of(self._terms(in_seat_order(self.members))))

    def _find_earlier(self) -> dict[int, Answer]:
        queries, pool = self.request.queries, self.task.pool
        digests = pool.ask(queries).digests
        found = ReleasedAnswers(self.attempt.database).find(
            digests,
            task_digest=self.task.digest,
            members=[one.identity.fingerprint for one in self.members],
        )
        return {
            index: found[digest]
            for index, digest in zip(queries, digests, strict=True)
            if digest in found and found[digest].run != self.request.name
        }

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
    def outcomes(self) -> Answers:
        """The known outcomes of its queries: from earlier runs, then its own."""
        drawn = [
            (index, ABSTAIN, Outcome.REFUSED)
            if answer.label is None
            else (index, answer.label, Outcome.ANSWERED)
            for index, answer in self.earlier.items()
        ]
        return drawn + results.answers_of(self.store)

    @property
    def drawn_in(self) -> dict[int, str]:
        """Name of the earlier run that drew an answer, by position in the pool."""
        return {index: answer.run for index, answer in self.earlier.items()}

    @property
    def used_runs(self) -> list[UsedRun]:
        """The earlier runs that drew answers of its own, hospitals in the order of its seats."""
        seats = [member.identity.fingerprint for member in in_seat_order(self.members)]
        names = dict.fromkeys(self.drawn_in.values())
        requests = [RunRequest.from_json(self.attempt.request_of(name)) for name in names]
        return [UsedRun(each.terms_by(seats), FORMS[each.settings.form]) for each in requests]

    @property
    def is_unbegun(self) -> bool:
        """Whether no hospital has its offer, apart from attempts that were given up."""
        return self._is_given_up or not self.journal.steps()

    @property
    def voids(self) -> int:
        """Batches that were void, over all attempts."""
        return sum(each.state in _VOID for each in self.store.asked().values())

    @property
    def has_asked(self) -> bool:
        """Whether hospitals were asked anything, in any attempt."""
        return bool(self.store.asked())

    def before(self) -> OpenRun | None:
        """Return the run in the state of its last complete setup; None if there is none."""
        earlier = self.attempt.earlier()
        if not earlier:
            return None
        attempt, reason = earlier[-1]
        found = replace(self, attempt=attempt)
        found.warnings = [*self.warnings, f"The run ended when it was to be set up anew: {reason}"]
        return found

    @property
    def results(self) -> Path:
        """Its run directory."""
        return results_of(self.home, self.request.name)

    @property
    def has_answers(self) -> bool:
        """Whether anything was released."""
        return bool(self.drawn_in) or bool(self.store.releases())

    def give_up(self, reason: str, *, lost_by: bytes = b"") -> None:
        """Note that an attempt failed: the next one has rows of its own.

        Args:
            reason: Why, for people.
            lost_by: Fingerprint of the hospital that lost the run; empty if none did.
        """
        self.attempt.give_up(reason, lost_by=lost_by)
        self._is_given_up = True

    def begun(
        self,
        transport: Transport,
        sleep: Callable[[float], None],
    ) -> LabelingRun:
        """Open the run, before any hospital heard of it."""
        job = self._job(transport, sleep)
        self.labeling = LabelingRun(replace(job, owed=self._owed()))
        return self.labeling

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
        self.labeling = LabelingRun.resume(job, is_read_only=is_read_only)
        return self.labeling

    @property
    def silent(self) -> list[Member]:
        """The hospitals whose answers are missing."""
        missing = () if self.labeling is None else self.labeling.round.missing
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
    def form(self) -> SecureSum:
        """Its secure sum, one that hides each party's vector."""
        return SUMS[DEPLOYED_FORMS[self.request.settings.form].name](keystream=_KEYSTREAM)

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
            pool=self.task.pool,
            terms=self._terms,
            simulated=False,
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
        )

    def _terms(self, members: tuple[Member, ...]) -> RunTerms:
        names = tuple(one.name for one in self.request.parties)
        return results.in_seat_order(self.request.terms, names=names, members=members)

    def _open_store(self, ledger: RunLedger) -> RunStore:
        self.store = RunStore(
            self.attempt,
            ledger,
            pool=self.task.pool,
            task_digest=self.task.digest,
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


def results_of(home: FederationHome, name: str) -> Path:
    """Return the path of a run's directory, present or future."""
    return home.path("runs", name, "results")


def closed(run: OpenRun, sleep: Callable[[float], None]) -> LabelingRun | None:
    """Return a run that has no query left and was closed: nobody is needed for its results.

    An earlier life ended in between. None for any other run.
    """
    if run.is_unbegun or run.left:
        return None
    try:
        labeling = run.resumed(NoTransport(), sleep, is_read_only=True)
    except UnfinishedSetupError:
        return None
    return labeling if labeling.round.state is CoordinatorState.DONE else None
