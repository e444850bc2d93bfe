"""The labels of a simulation, asked by the worker of a deployment over an engine."""

from __future__ import annotations

import os
import secrets
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from coordinator.database import Database
from coordinator.errors import RunEndedError, RunRequestError
from coordinator.federation.enrollment import EnrolledParty
from coordinator.federation.home import utc_now
from coordinator.runs.interim import chances_of
from coordinator.runs.labeling import LabelingRun
from coordinator.runs.open_run import OpenRun
from coordinator.runs.queue import Run, RunQueue, RunState
from coordinator.runs.request import RunRequest
from coordinator.runs.stages import Stage
from coordinator.runs.surroundings import Surroundings
from coordinator.runs.transport import Transport
from coordinator.runs.waits import RunWaits
from coordinator.runs.worker import RunWorker
from coordinator.simulation.engines import run_engine
from coordinator.simulation.federation import SimulatedFederation
from coordinator.simulation.hospitals import HospitalsBlueprint, life_of, simulation_policy
from coordinator.simulation.near_quota import within_quota
from coordinator.simulation.outcome import Stages
from pate_fed.planning.fine_noise import require_fine_noise
from pate_fed.students import least_confident
from protocols.identity import SigningIdentity


@dataclass(slots=True, eq=False)
class Labeled:
    """The outcome of the labeling.

    Attributes:
        run: The run as the worker left it.
        left_out: How many chosen queries hospitals would not answer.
        exchanges: Exchanges of its setup, its batches and its closing.
    """

    run: OpenRun
    left_out: int
    exchanges: Mapping[str, int] = field(default_factory=dict)

    @property
    def labeling(self) -> LabelingRun:
        """The run's protocol."""
        assert self.run.labeling is not None
        return self.run.labeling

    @property
    def stopped_by(self) -> Exception | None:
        """The error that ended it before all was asked."""
        return self.run.stopped_by


def label(federation: SimulatedFederation, name: str, out: Path, stages: Stages) -> Labeled:
    """Set the federation up and ask all batches.

    Args:
        federation: It.
        name: Of the run.
        out: The future run directory.
        stages: Told of each stage.
    """
    identity, request = SigningIdentity.generate(), federation.request(name)
    terms, settings, chance = request.terms, federation.settings, federation.chance
    require_fine_noise(terms)
    blueprint = HospitalsBlueprint(
        tuple(federation.hospitals),
        coordinator=identity.public,
        pool=federation.pool,
        policy=simulation_policy(
            terms=terms,
            form=settings.form,
            suite=settings.suite,
            queries=settings.queries or 0,
        ),
        budgets=tuple(life_of(terms, seat) for seat in range(len(terms.weights))),
        noise_seeds=chance.noise_seeds(hospital.name for hospital in federation.hospitals),
        cores=federation.cores,
    )
    asked: list[Labeled] = []
    with stages.timed("labeling"):
        run_engine(
            settings.engine,
            lambda transport: asked.append(
                _Worker(
                    federation, identity, request, out=out, transport=transport, stages=stages
                ).asked()
            ),
            blueprint,
            workers=os.cpu_count() or 1,
        )
    [labeled] = asked
    return labeled


class _Worker(RunWorker):
    """The worker of a deployment, with one run whose stores are in memory."""

    def __init__(
        self,
        federation: SimulatedFederation,
        identity: SigningIdentity,
        request: RunRequest,
        *,
        out: Path,
        transport: Transport,
        stages: Stages,
    ) -> None:
        total = federation.settings.queries or 0
        self._size = federation.settings.batch_size or total
        tick = stages.ticker("labeling", -(-total // self._size))

        def on_stage(stage: Stage) -> None:
            if stage in (Stage.STORED, Stage.VOID_STORED):
                tick()

        enrolled = [
            EnrolledParty(one.name, one.identity.public, "member", place, utc_now(), 0)
            for place, one in enumerate(federation.hospitals)
        ]

        def open_transport(_: Collection[int]) -> AbstractContextManager[Transport]:
            return nullcontext(transport)

        super().__init__(
            None,
            RunQueue(Database.in_memory(), clock=utc_now),
            parties=lambda: enrolled,
            surroundings=Surroundings(
                open_transport=open_transport,
                random_bytes=secrets.token_bytes,
                noise_bytes=federation.chance.noise(),
                wait=lambda _: None,
                on_stage=on_stage,
            ),
            write=self._keep,
        )
        self._federation, self._identity, self._request = federation, identity, request
        self._out = out
        self._exchanges: Mapping[str, int] = {}
        self._left_out, self._rest = federation.left_out, total - self._size

    def asked(self) -> Labeled:
        """Work on the run until it has ended; its hospitals are not waited for."""
        name, reason = self._request.name, ""
        run = self._queue.add(name, "{}")
        while not run.is_ended:
            if run.state is RunState.PAUSED:
                reason = run.reason
                self._queue.stop(name)
            self.work(run)
            run = self._queue.find(name)
        opened = self._opened_run
        stopped_by = opened.stopped_by
        if isinstance(stopped_by, RunWaits.HaltedError) or (
            stopped_by is None and run.state is RunState.FAILED
        ):
            must = "every hospital of a simulation must answer"
            opened.stopped_by = RunEndedError(must, reason or run.reason)
        return Labeled(opened, self._left_out, self._exchanges)

    def _taken_up(self, run: Run) -> tuple[OpenRun, RunRequestError | None]:
        """Open the run in memory, with the answers of earlier rounds."""
        members, gone = self._waits.members(self._request)
        before = self._federation.before
        self._opened_run = OpenRun(
            self._identity,
            self._request,
            self._federation,
            members,
            self._queue.take_up(run.name),
            self._with,
            results=self._out,
            earlier=dict(before.answers),
            kept=before.reinforced,
            choose=self._least_sure if self._federation.settings.asks_by_student else None,
        )
        return self._opened_run, gone

    def _keep(self, *_: OpenRun | LabelingRun, **took: Any) -> list[str]:
        """Keep what the worker counted: the results are written once the engine is gone."""
        self._exchanges = took.get("exchanges", {})
        return []

    def _least_sure(self, run: OpenRun) -> tuple[int, ...]:
        """Choose the next queries: those that the student so far is least sure of."""
        federation, pool = self._federation, self._federation.pool
        count = min(self._size, self._rest)
        self._rest -= count
        if not count:
            return ()
        earlier = run.request.queries
        others = np.array(sorted(set(pool.distinct) - set(earlier)), dtype=np.int64)
        chances = chances_of(others.tolist(), run.lessons, pool, classes=federation.classes)
        if chances is None:  # fewer than two classes have a label
            asked = len(earlier) - len(run.earlier)
            chosen = federation.chance.of(f"queries after {asked}").permutation(len(others))
        else:
            chosen = least_confident(chances, count)
        wanted = others[chosen[:count]].tolist()
        found = within_quota(pool, wanted, earlier=earlier)
        self._left_out += len(wanted) - len(found)
        return found
