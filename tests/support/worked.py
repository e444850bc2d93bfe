"""A federation whose worker and hospitals are in this process: no sockets, the same code."""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from coordinator.federation.home import FederationHome, FederationSettings
from coordinator.operator import Coordinator
from coordinator.runs.queue import Run
from coordinator.runs.request import RunRequest
from coordinator.runs.stages import BatchStage
from coordinator.runs.transport import Silence, Transport
from coordinator.runs.worker import RunWorker
from coordinator.runs.worker_resources import WorkerResources
from party.site.site import Site
from pate_fed.accounting import EntryState
from pate_fed.data.new_task import make_task
from protocols import wire
from protocols.fingerprint_words import spoken
from protocols.membership_messages import JoinRequest
from tests.support.asking import asked_run
from tests.support.command import labels_in
from tests.support.deployed import (
    CLASSES,
    LABEL,
    NAMES,
    TEACHERS,
    Hospital,
    write_public_table,
)
from tests.support.door import Door
from tests.support.hospital_site import tell_votes, with_teachers

QUERIES = 12


class KilledError(BaseException):
    """The service's process ends here."""


def die_at(fatal: BatchStage, *, passes: int = 1) -> Callable[[BatchStage], None]:
    """Die where a stage is passed for the so many-th time."""
    passed = Counter[BatchStage]()

    def die(stage: BatchStage) -> None:
        passed[stage] += 1
        if stage is fatal and passed[stage] >= passes:
            raise KilledError

    return die


class LocalTransport(Transport):
    """Reaches those hospitals in this process that it was opened for."""

    def __init__(
        self,
        nodes: Collection[int],
        hospitals: Mapping[int, Hospital],
        away: set[int],
        on_exchange: Callable[[int], None],
    ) -> None:
        super().__init__()
        self._nodes, self._hospitals, self._away = nodes, hospitals, away
        self._on_exchange = on_exchange

    def nodes(self) -> list[int]:
        there = [node for node in self._hospitals if node not in self._away]
        return [node for node in there if node in self._nodes]

    def _carry(self, packets: Mapping[int, bytes]) -> dict[int, bytes | Silence]:
        self._on_exchange(self.traffic.exchanges)
        return {
            node: self._hospitals[node].receive(packet)
            for node, packet in packets.items()
            if node not in self._away
        }


class Worked:
    """A federation, its coordinator's worker, and its hospitals.

    Attributes:
        away: Hospitals that cannot be reached now.
        on_stage: Called at every stage.
        on_exchange: Called before every exchange, with its number in this life.
        on_wait: Called instead of waiting.
    """

    def __init__(
        self,
        folder: Path,
        *,
        approved: bool = True,
        names: tuple[str, ...] = NAMES,
        home: FederationHome | None = None,
    ) -> None:
        self.queries = write_public_table(folder / "public.csv")
        self.task = make_task(self.queries, label=LABEL, classes=CLASSES)
        if home is None:
            settings = FederationSettings("lung study", "127.0.0.1:8443")
            home = FederationHome.create(folder / "federation", settings, now=datetime.now(UTC))
        self.coordinator = Coordinator(home)
        self.door = Door(0)
        self.hospitals: dict[int, Hospital] = {}
        self.away: set[int] = set()
        self.on_stage: Callable[[BatchStage], None] = lambda stage: None
        self.on_exchange: Callable[[int], None] = lambda number: None
        self.on_wait: Callable[[float], None] = lambda seconds: None
        self.now = time.time()
        for name in names:
            self.enroll(name)
        self.approve_pool(approved)

    def join(self, name: str) -> Site:
        """Let another hospital ask to join."""
        invitation = self.coordinator.invite(name)
        site = Site.create(self.queries.parent / name, invitation)
        site = with_teachers(site, TEACHERS)
        request = JoinRequest(
            coordinator=site.membership().coordinator.fingerprint,
            token=invitation.token,
            party_name=name,
            identity_key=site.identity.public.key,
            node_key=site.membership().node_public_key,
            asked_at=int(time.time()),
        )
        self.coordinator.enrollment.answer_join(wire.sign(request, site.identity).frame)
        return site

    def enroll(self, name: str) -> Hospital:
        """Let another hospital join, and its node in."""
        site, enrollment = self.join(name), self.coordinator.enrollment
        enrollment.approve(name, words=spoken(site.identity.fingerprint))
        tell_votes(enrollment, site)
        enrollment.settle(self.door)
        node = len(self.hospitals)
        assert site.membership().node_public_key == self.door.keys[node]
        self.hospitals[node] = Hospital(site)
        return self.hospitals[node]

    def approve_pool(self, approved: bool) -> None:
        """Let all hospitals' owners approve the pool, or not."""
        everybody = list(self.hospitals.values())
        for one in everybody:
            others = [other for other in everybody if other is not one]
            one.open(others, self.task, approved=approved)

    def ask(self, name: str = "first", *, patience_s: float = 120, **changed: Any) -> Run:
        chosen = {"queries": QUERIES, "batch_size": 4, "patience_s": patience_s, **changed}
        return asked_run(self.coordinator, name, self.task, **chosen)

    def labels(self, name: str = "first") -> dict[int, str]:
        """What a run released."""
        return labels_in(self.coordinator.home.results(name))

    def charges(self) -> list[list[EntryState]]:
        """What became of every charge, by hospital."""
        ledgers = (one.ledger.load() for one in self.hospitals.values())
        return [[entry.state for entry in ledger.entries] for ledger in ledgers]

    def request(self, name: str = "first") -> RunRequest:
        """What was asked of a run."""
        return RunRequest.from_json(self.coordinator.queue.request(name))

    def work(self, name: str = "first", *, worker: RunWorker | None = None) -> Run:
        """Let a worker work on a run: a fresh one, as after a start, unless one is given.

        A run that is to be set up anew is taken up again, as a service does.
        """
        worker = worker or self.worker()
        while True:
            worker.work(self.coordinator.queue.find(name))
            run = self.coordinator.queue.find(name)
            if not run.reason.startswith("set up anew"):
                return run

    def worker(self) -> RunWorker:
        """A worker as it is after a start."""
        return RunWorker(
            self.coordinator.home,
            self.coordinator.queue,
            parties=self.coordinator.enrollment.parties,
            resources=WorkerResources(
                open_transport=self._open_transport,
                random_bytes=secrets.token_bytes,
                noise_bytes=secrets.token_bytes,
                clock=lambda: self.now,
                wait=self._wait,
                on_stage=lambda stage: self.on_stage(stage),  # noqa: PLW0108 - it changes
            ),
        )

    def _wait(self, seconds: float) -> None:
        self.now += seconds
        self.on_wait(seconds)

    @contextmanager
    def _open_transport(self, nodes: Collection[int]) -> Iterator[Transport]:
        yield LocalTransport(nodes, self.hospitals, self.away, self.on_exchange)
