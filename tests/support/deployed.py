"""A whole federation as real processes on loopback: service, SuperLink, SuperNodes.

The hospitals' nodes are `PartyNode`s in this process, so that a test sees what they remember.
"""

from __future__ import annotations

import io
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coordinator.federation.home import FederationHome
from coordinator.operator import Coordinator
from coordinator.tally.tally_folder import TallyFolder
from party.decision.guard import Guard
from party.decision.node import PartyNode
from party.flower import client_app as flower_app
from party.flower.executor import Executor, supernode_command
from party.site.joining import CoordinatorDoor
from party.site.party_task import PartyTask, Vote, tasks_of
from party.site.policy import Aggregators, Policy
from party.site.site import Site
from party.storage import Journal, LedgerStore
from pate_fed.accounting import PrivacyLedger
from pate_fed.data.new_task import make_task
from pate_fed.data.task import LearningTask
from pate_fed.mechanisms import DEPLOYED_MECHANISMS
from pate_fed.queries import QueryBatch
from pate_fed.votes import TeacherWeights
from protocols import wire
from protocols.fingerprint_words import spoken
from protocols.forms import DEPLOYED_FORMS, Verified
from protocols.identity import PublicIdentity
from protocols.invitation import Invitation
from protocols.messages import Plan
from protocols.sums import round_form
from tests.support.command import exit_code_of
from tests.support.hospital_site import tell_votes, with_teachers
from tests.support.invariants import HospitalSeen, Seen, messages_in, runs_seen
from tests.support.loopback_home import environment, free_ports, is_open, launched, make_home
from tests.support.stores import journal_in_memory
from tests.support.waiting import wait_for

NAMES = ("North", "South", "West")
TEACHERS = 10
LABEL, CLASSES = "sick", ("no", "yes")
_START_S = 300.0


def write_public_table(path: Path, *, rows: int = 60, measures: int = 0) -> Path:
    """Public inputs whose first column tells the class; many rows lie apart by more measures."""
    rng = np.random.default_rng(6)
    lines = [",".join(["age", "weight", *(f"measure {one}" for one in range(measures))])]
    low, high = [20.0, 50.0] + [0.0] * measures, [80.0, 90.0] + [9.0] * measures
    lines += [",".join(f"{one:.3f}" for one in rng.uniform(low, high)) for _ in range(rows)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def true_class(inputs: NDArray[np.float64]) -> NDArray[np.int64]:
    """What all teachers say."""
    return (inputs[:, 0] > 0).astype(np.int64)


@dataclass
class Hospital:
    """A hospital: its folder, its SuperNode, its node in this process.

    Attributes:
        asked: Every query that its teachers voted on, in order.
        teachers: What they vote; by default all the same.
        exchanges: What came and what it was answered with, in order.
        voted: Plans that its teachers were asked for, in order.
        delta_for_tests: Part of its delta for tests of stability, over its life.
    """

    site: Site
    teachers: Vote = field(default=lambda batch: np.tile(true_class(batch.inputs), (TEACHERS, 1)))
    node: PartyNode | None = None
    journal: Journal = field(default_factory=journal_in_memory)
    ledger: Any = None
    asked: list[int] = field(default_factory=list)
    exchanges: list[tuple[bytes, bytes]] = field(default_factory=list)
    voted: list[bytes] = field(default_factory=list)
    delta_for_tests: float = 2e-6
    process: subprocess.Popen[bytes] | None = None
    stopped: threading.Event = field(default_factory=threading.Event)
    thread: threading.Thread | None = None
    executor: Executor | None = None
    _plan: bytes = b""

    def vote(self, batch: QueryBatch) -> NDArray[np.int64]:
        self.asked += batch.indices
        self.voted.append(self._plan)
        return self.teachers(batch)

    def start_over(self, *, delta_for_tests: float) -> None:
        """Forget its records, as if it had never started: a ledger keeps its budget for life."""
        self.journal, self.ledger = journal_in_memory(), None
        self.delta_for_tests = delta_for_tests

    def open(
        self,
        others: list[Hospital],
        task: LearningTask,
        *,
        approved: bool,
        tally: PublicIdentity | None = None,
        **policy: Any,
    ) -> None:
        """Open its node, with all others pinned; `policy` as its owner changed it."""
        pins = {one.site.identity.fingerprint: one.site.identity.public for one in others}
        pools = frozenset({task.pool.digest} if approved else ())
        allowed: dict[str, Any] = {
            "least_checked_peers": 2,
            "forms": frozenset({"additive", "masked"}),
            "mechanisms": frozenset(DEPLOYED_MECHANISMS),
            "most_epsilon": 1000.0,
        }
        rules = Policy(approved_pools=pools, **{**allowed, **policy})
        bodies = {
            one.site.identity.fingerprint: one.site.membership().settings.party for one in others
        }
        budget = PrivacyLedger.for_life(1000.0, 1e-5, additive_delta=self.delta_for_tests)
        self.ledger = self.ledger or LedgerStore(self.journal._database, budget=budget)
        self.node = PartyNode(
            identity=self.site.identity,
            coordinator=self.site.membership().coordinator,
            known_peers=pins,
            guard=Guard(
                rules,
                TeacherWeights.equal(TEACHERS),
                bodies,
                aggregators=Aggregators("study office", tally, "data trust" if tally else ""),
            ),
            tasks=tasks_of(PartyTask(task.pool, self.vote, digest=task.digest)),
            forms={name: round_form(name) for name in DEPLOYED_FORMS},
            journal=self.journal,
            ledger=self.ledger,
            random_bytes=secrets.token_bytes,
            clock=time.time,
            tally=tally,
        )

    def start(self) -> None:
        """Start its SuperNode and take what comes."""
        site = self.site
        joined = site.membership()
        command = supernode_command(joined, port=joined.settings.node_port)
        log = site.path("log", "supernode")
        self.process = launched(command, log, variables=environment(site.folder))
        app = flower_app.build(lambda _: self)
        self.executor = Executor(
            app,
            address=f"127.0.0.1:{site.membership().settings.node_port}",
            secret=site.membership().path("node.secret").read_bytes(),
        )
        self.thread = threading.Thread(target=self.executor.run, args=(self.stopped,), daemon=True)
        self.thread.start()

    def receive(self, packet: bytes) -> bytes:
        assert self.node is not None
        for message in messages_in(packet):
            if isinstance(message, Plan):
                self._plan = wire.digest_of(message)
        self.exchanges.append((packet, b""))
        answer = self.node.receive(packet)
        self.exchanges[-1] = packet, answer
        return answer

    def stop(self) -> None:
        """End its SuperNode."""
        self.stopped.set()
        if self.process is not None:
            assert self.process.stdin is not None
            self.process.stdin.close()
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        if self.thread is not None:
            self.thread.join(60)
        if self.executor is not None:
            self.executor.close()


@dataclass
class Deployed:
    """A federation and its processes."""

    folder: Path
    home: FederationHome
    task: LearningTask
    queries: Path
    hospitals: list[Hospital] = field(default_factory=list)
    service: subprocess.Popen[bytes] | None = None
    tally: TallyFolder | None = None
    tallying: subprocess.Popen[bytes] | None = None

    @property
    def coordinator(self) -> Coordinator:
        """The operator's door."""
        return Coordinator(self.home)

    def command(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        """Run `pate-fed` in this process: its programs take seconds to start."""
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            code = exit_code_of(*arguments)
        return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())

    def serve(self, *, dies_at: str = "", passes: int = 1) -> None:
        """Start the service; it kills itself at a stage if one is named."""
        self._serve("tests.support.mortal_service", dies_at, passes)

    def serve_with_noise(self, key: bytes) -> None:
        """Start the service with noise from a key of 32 bytes."""
        self._serve("tests.support.seeded_service", key.hex())

    def _serve(self, module: str, *arguments: object) -> None:
        log = (self.folder / "service.log").open("ab")
        self.service = subprocess.Popen(
            [sys.executable, "-m", module, str(self.home.folder), *map(str, arguments)],
            stdout=log,
            stderr=log,
            env=environment(self.folder),
        )
        log.close()

    def start_tally(self, moment: str = "") -> None:
        """Start its tally; it kills itself at a moment if one is named."""
        assert self.tally is not None
        module = ("-m", "tests.support.mortal_tally", self.tally.folder, moment)
        self.tallying = launched(
            [sys.executable, *module],
            self.folder / "tally.log",
            variables=environment(self.folder),
        )
        port = self.tally.settings.port
        wait_for(lambda: is_open(port), seconds=_START_S)

    def wait_until_served(self) -> None:

        def is_served() -> bool:
            assert self.service is None or self.service.poll() is None, self.log
            return is_open(self.home.settings.port)

        wait_for(is_served, seconds=_START_S)

    def wait_for_death(self, timeout_s: float = 300.0) -> int:
        """Wait until the service ended by itself."""
        assert self.service is not None
        return self.service.wait(timeout_s)

    def stop_service(self) -> None:
        if self.service is not None and self.service.poll() is None:
            self.service.send_signal(signal.SIGTERM)
            self.service.wait(180)

    @property
    def log(self) -> str:
        """What the service said."""
        return (self.folder / "service.log").read_text(errors="replace")[-4000:]

    def enroll(
        self,
        names: tuple[str, ...] = NAMES,
        *,
        approved: bool = True,
        invite: Callable[[str], Invitation] | None = None,
        approve: Callable[[str, str], None] | None = None,
    ) -> None:
        """Invite, join, approve by words, start all hospitals; `pate-fed` does, or another door."""
        coordinator = self.coordinator
        ports = free_ports(len(names))
        for name, port in zip(names, ports, strict=True):
            invitation = (invite or coordinator.invite)(name)
            site = Site.create(self.folder / name, invitation)
            site = with_teachers(
                site.save(site.settings.with_setting(site.membership().name, node_port=port)),
                TEACHERS,
            )
            door = CoordinatorDoor(site.membership(), clock=time.time)
            assert door.join(invitation.token).state == "requested"
            door.close()
            words = spoken(site.identity.fingerprint)
            if approve is None:
                coordinator.approve(name, words=words)
            else:
                approve(name, words)
            tell_votes(coordinator.enrollment, site)
            self.hospitals.append(Hospital(site))
        verified: dict[str, Any] = {}
        if self.tally is not None:
            verified = {"tally": self.tally.identity.public, "forms": frozenset({Verified.name})}
        for one in self.hospitals:
            others = [other for other in self.hospitals if other is not one]
            one.open(others, self.task, approved=approved, **verified)
            one.start()
        coordinator.close()

    def look(self, form: str = "additive") -> Seen:
        """Read what both sides show."""
        hospitals = tuple(
            HospitalSeen(
                one.site.membership().settings.party,
                one.ledger.load(),
                tuple(one.exchanges),
                tuple(one.voted),
            )
            for one in self.hospitals
        )
        coordinator = self.coordinator
        try:
            return Seen(form, hospitals, runs_seen(coordinator))
        finally:
            coordinator.close()

    def wait_for_run(self, name: str, *, states: tuple[str, ...], timeout_s: float = 600) -> Any:
        """Wait until a run is in one of these states."""
        coordinator = self.coordinator
        deadline = time.monotonic() + timeout_s
        try:
            while time.monotonic() < deadline:
                run = coordinator.queue.find(name)
                if run.state.value in states:
                    return run
                time.sleep(0.3)
        finally:
            coordinator.close()
        raise AssertionError(f"{run.state}: {run.reason}\n{self.log}")


@contextmanager
def deployed(
    folder: Path,
    *,
    rows: int = 60,
    measures: int = 0,
    classes: tuple[str, ...] = CLASSES,
    database: str = "",
) -> Iterator[Deployed]:
    """Make a federation in a folder; ends every process of its own."""
    queries = write_public_table(folder / "public.csv", rows=rows, measures=measures)
    task = make_task(queries, label=LABEL, classes=classes)
    made = Deployed(folder, make_home(folder / "federation", database=database), task, queries)
    try:
        yield made
    finally:
        for one in made.hospitals:
            one.stop()
        if made.tallying is not None:
            with made.tallying:
                made.tallying.send_signal(signal.SIGTERM)
        if made.service is not None and made.service.poll() is None:
            made.service.send_signal(signal.SIGTERM)
            try:
                made.service.wait(180)
            except subprocess.TimeoutExpired:
                made.service.kill()
                made.service.wait()
