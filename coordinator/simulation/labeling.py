"""The labels of a simulation, asked by the worker of a deployment over an engine."""

from __future__ import annotations

import secrets
from collections.abc import Collection
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from coordinator.database import Database
from coordinator.errors import RunEndedError, RunRequestError
from coordinator.federation.enrollment import EnrolledParty
from coordinator.federation.home import utc_now
from coordinator.runs.labeling import Member
from coordinator.runs.open_run import OpenRun
from coordinator.runs.queue import Run, RunQueue, RunState
from coordinator.runs.stages import BatchStage
from coordinator.runs.transport import NoTransport, Transport
from coordinator.runs.waits import RunWaits
from coordinator.runs.worker import RunWorker
from coordinator.runs.worker_resources import WorkerResources
from coordinator.simulation.engines import run_engine
from coordinator.simulation.outcome import Stages
from coordinator.simulation.simulated_federation import SimulatedFederation
from coordinator.simulation.simulated_hospitals import HospitalsBlueprint
from pate_fed.lab.per_instance import PerInstanceMeter
from pate_fed.planning.fine_noise import require_fine_noise
from protocols.identity import SigningIdentity


def label(federation: SimulatedFederation, name: str, out: Path, stages: Stages) -> OpenRun:
    """Set the federation up and ask all batches; return the run as the worker left it."""
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
            resources=WorkerResources(
                open_transport=open_transport,
                random_bytes=secrets.token_bytes,
                noise_bytes=federation.chance.noise(),
                wait=lambda _: None,
                on_stage=on_stage,
                meter=PerInstanceMeter.of,
            ),
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
        """Open the run in memory, with the answers of earlier runs."""
        federation = self._federation
        self.opened = OpenRun(
            self.identity,
            self.request,
            federation.pool,
            None,
            [Member(one.name, one.identity.public) for one in federation.hospitals],
            self._queue.take_up(run.name),
            self._with,
            results=self._out,
            earlier=dict(federation.before.answers),
            kept=federation.before.reinforced,
            choose=federation.next_queries,
        )
        return self.opened, None
