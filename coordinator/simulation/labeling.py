"""The labels of a simulation, asked by the worker of a deployment over an engine."""

from __future__ import annotations

import secrets
from collections.abc import Collection
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from coordinator.database import Database, RunAttempt
from coordinator.errors import RunEndedError, RunRequestError
from coordinator.federation.enrollment import EnrolledParty
from coordinator.federation.home import utc_now
from coordinator.runs.interim_student import predictions_for
from coordinator.runs.labeling import Member
from coordinator.runs.open_run import OpenRun
from coordinator.runs.queue import Run, RunQueue, RunState
from coordinator.runs.request import RunRequest
from coordinator.runs.stages import BatchStage, OnStage, pass_by
from coordinator.runs.transport import NoTransport, Transport
from coordinator.runs.waits import RunWaits
from coordinator.runs.worker import RunWorker
from coordinator.runs.worker_resources import OpenTransport, WorkerResources
from coordinator.simulation.engines import run_engine
from coordinator.simulation.outcome import Stages
from coordinator.simulation.simulated_federation import SimulatedFederation
from coordinator.simulation.simulated_hospitals import HospitalsBlueprint, votes_of
from coordinator.simulation.verified_labeling import (
    ReportingHospital,
    SimulatedAggregator,
    VerifiedLabeling,
)
from pate_fed.lab.per_instance import PerInstanceMeter
from pate_fed.planning.fine_noise import require_fine_noise
from protocols.forms import FORMS
from protocols.identity import SigningIdentity


def label(federation: SimulatedFederation, name: str, out: Path, stages: Stages) -> OpenRun:
    """Set the federation up and ask all batches; return the run as the worker left it."""
    if FORMS[federation.settings.form].adds_noise:
        return _label_verified(federation, name, out, stages)
    worker = _Worker(federation, name, out, stages)
    terms, settings = worker.request.terms, federation.settings
    require_fine_noise(terms)
    blueprint = HospitalsBlueprint(
        tuple(federation.hospitals),
        coordinator=worker.identity.public,
        pool=federation.pool,
        terms=terms,
        form=settings.form,
        suite=settings.suite,
        noise_seeds=federation.chance.noise_seeds(one.name for one in federation.hospitals),
        cores=federation.cores,
    )
    with stages.timed("labeling"):
        run_engine(settings.engine, worker.ask, blueprint)
    return worker.opened


def _label_verified(
    federation: SimulatedFederation, name: str, out: Path, stages: Stages
) -> OpenRun:
    """Ask all batches by verified sums, and return the run as `label` does."""
    settings, chance = federation.settings, federation.chance
    batches = -(-(settings.caps.max_asks or 0) // (settings.caps.batch_size or 1))
    tick = stages.ticker("labeling", batches * len(federation.hospitals))
    request = federation.request(name)
    require_fine_noise(request.terms)
    queue = RunQueue(Database.in_memory(), clock=utc_now)
    queue.add(name, "{}")
    run = _opened(
        federation,
        request,
        queue.take_up(name),
        _resources(federation, lambda _: nullcontext(NoTransport())),
        identity=SigningIdentity.generate(),
        out=out,
    )
    labeling = VerifiedLabeling(
        run,
        [
            ReportingHospital(
                one.name,
                one.identity,
                votes_of(one.ensemble, federation.pool, federation.cores),
                one.weights,
            )
            for one in federation.hospitals
        ],
        [
            SimulatedAggregator.made(settings.suite, chance.noise(f"noise of the {end}"))
            for end in ("coordinator", "tally")
        ],
        suite=settings.suite,
        tick=tick,
    )
    run.be_labeled_by(labeling)
    with stages.timed("labeling"):
        _ask_all(run, labeling, settings.caps.batch_size or len(request.queries))
    return run


def _ask_all(run: OpenRun, labeling: VerifiedLabeling, size: int) -> None:
    while not labeling.is_over:
        run.choose_more()
        batch = tuple(run.left[:size][: labeling.left.asks])
        if not batch:
            break
        known = run.lessons if labeling.terms.spec.learns else {}
        predictions = predictions_for(batch, known=known, pool=run.pool, classes=run.classes)
        try:
            labeling.ask(batch, predictions)
        except RunEndedError as error:
            run.stopped_by = error
            break
        run.exchanges["batches"] += 1


def _opened(
    federation: SimulatedFederation,
    request: RunRequest,
    attempt: RunAttempt,
    resources: WorkerResources,
    *,
    identity: SigningIdentity,
    out: Path,
) -> OpenRun:
    """Open a run in memory, with the answers of earlier runs."""
    return OpenRun(
        identity,
        request,
        federation.pool,
        None,
        [Member(one.name, one.identity.public) for one in federation.hospitals],
        attempt,
        resources,
        results=out,
        earlier=dict(federation.before.answers),
        kept=federation.before.reinforced,
        choose=federation.next_queries,
    )


def _resources(
    federation: SimulatedFederation, open_transport: OpenTransport, on_stage: OnStage = pass_by
) -> WorkerResources:
    return WorkerResources(
        open_transport=open_transport,
        random_bytes=secrets.token_bytes,
        noise_bytes=federation.chance.noise(),
        wait=lambda _: None,
        on_stage=on_stage,
        meter=PerInstanceMeter.of,
    )


class _Worker(RunWorker):
    """The worker of a deployment, with one run whose stores are in memory."""

    opened: OpenRun

    def __init__(
        self, federation: SimulatedFederation, name: str, out: Path, stages: Stages
    ) -> None:
        caps = federation.settings.caps
        total = caps.max_asks or 0
        tick = stages.ticker("labeling", -(-total // (caps.batch_size or total)))

        def on_stage(stage: BatchStage) -> None:
            if stage in (BatchStage.STORED, BatchStage.VOID_STORED):
                tick()

        def open_transport(_: Collection[int]) -> AbstractContextManager[Transport]:
            return nullcontext(self._transport)

        enrolled = [
            EnrolledParty(one.name, one.identity.public, "member", None, utc_now(), 0)
            for one in federation.hospitals
        ]
        super().__init__(
            None,
            RunQueue(Database.in_memory(), clock=utc_now),
            parties=lambda: enrolled,
            resources=_resources(federation, open_transport, on_stage),
            write=lambda _: [],  # the results are written once the engine is gone
        )
        self.identity, self.request = SigningIdentity.generate(), federation.request(name)
        self._federation, self._out = federation, out
        self._transport: Transport = NoTransport()

    def ask(self, transport: Transport) -> None:
        """Work on the run until it has ended; its hospitals are not waited for."""
        self._transport, reason = transport, ""
        run = self._queue.add(self.request.name, "{}")
        while not run.is_ended:
            if run.state is RunState.PAUSED:
                reason = run.reason
                self._queue.stop(run.name)
            self.work(run)
            run = self._queue.find(run.name)
        stopped_by = self.opened.stopped_by
        if isinstance(stopped_by, RunWaits.HaltedError) or (
            stopped_by is None and run.state is RunState.FAILED
        ):
            must = "every hospital of a simulation must answer"
            self.opened.stopped_by = RunEndedError(must, reason or run.reason)

    def _taken_up(self, run: Run) -> tuple[OpenRun, RunRequestError | None]:
        """See `_opened`."""
        self.opened = _opened(
            self._federation,
            self.request,
            self._queue.take_up(run.name),
            self._with,
            identity=self.identity,
            out=self._out,
        )
        return self.opened, None
