"""How long a batch takes over real processes and TLS on loopback, and what the coordinator needs.

A real service with its SuperLink behind the gate, and ten hospitals, each a service process with
its SuperNode: 22 processes on whatever cores there are, so that the figures are those of one
machine that plays all parts. Teachers vote at random and cost nothing; everything else is as
deployed. The two absolute bars are the federation's own: a batch of 10,000 queries x 10 classes in
under 30 s, and a coordinator (service and SuperLink together) below 1.5 GB. The ratios travel.

Run from the repository root: ``python -m benchmarks.deployment`` (some minutes; `--quick` for five
hospitals and 1,000 queries, `--format json` for other programs).
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.bars import Bar, Figure, arguments, report
from benchmarks.secure_sum import BYTES
from coordinator.federation.home import FederationHome
from coordinator.flower.server_app import GridTransport
from coordinator.operator import Coordinator
from coordinator.runs.request import source_of
from party.site.joining import CoordinatorDoor
from party.site.people_decisions import PeopleDecisions, Subject
from party.site.site import Site
from party.site.tasks import fetch_task
from pate_fed.data.new_task import make_task
from pate_fed.data.task import LearningTask
from pate_fed.planning import RunSettings
from pate_fed.rule import Caps, Rule
from protocols import wire
from protocols.fingerprint_words import spoken
from protocols.suites import DEFAULT_SUITE
from tests.support.loopback_home import environment, free_ports, make_home

PARTIES, QUERIES, CLASSES = 10, 10_000, 10
QUICK_PARTIES, QUICK_QUERIES = 5, 1_000  # masked needs five
TEACHERS = 10
FEATURES = 8
FORMS = ("additive", "masked")
LABEL = "diagnosis"
MOST_SECONDS, MOST_BYTES = 30.0, 1.5e9
MIB = 2**20
_EXCHANGES = 10
_START_S, _RUN_S = 900.0, 900.0


@dataclass(slots=True)
class Process:
    """A process of ours and how it is ended."""

    running: subprocess.Popen[bytes]

    def stop(self) -> None:
        """End it by its life line, or at last by force."""
        assert self.running.stdin is not None
        self.running.stdin.close()
        self.running.terminate()
        try:
            self.running.wait(60)
        except subprocess.TimeoutExpired:
            self.running.kill()
            self.running.wait()


@dataclass(frozen=True, slots=True)
class _Published:
    """Gives a task out, as the coordinator's door does."""

    task: LearningTask

    def fetch_pool(self, digest: bytes) -> bytes:
        """Return its bytes."""
        assert digest == self.task.pool.digest
        return self.task.to_bytes()


@dataclass(slots=True)
class Measured:
    """What a run of one form gave.

    Attributes:
        seconds: Of the batch, from its plan to its stored release.
        parts: Of its parts.
        sent: Bytes of packets to all parties, over the whole run.
        received: Bytes of packets from all parties.
        memory: Peak resident bytes of each coordinator process during the run.
    """

    seconds: float
    parts: dict[str, float]
    sent: int
    received: int
    memory: dict[str, int]


@dataclass(slots=True)
class Deployment:
    """A federation of real processes in a folder."""

    folder: Path
    home: FederationHome
    stack: ExitStack
    sites: list[Site] = field(default_factory=list)
    service: Process | None = None

    @classmethod
    def create(cls, folder: Path, stack: ExitStack) -> Deployment:
        """Make the coordinator's folder on free ports."""
        home = make_home(folder / "federation")
        return cls(folder, home, stack)

    def start(self, name: str, module: str, *arguments: object) -> Process:
        """Start a process that ends with us."""
        with (self.folder / f"{name}.log").open("ab") as log:
            process = Process(
                subprocess.Popen(  # noqa: S603 - our own programs
                    [sys.executable, "-m", module, *map(str, arguments)],
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    env={**environment(self.folder), "OMP_NUM_THREADS": "1"},
                )
            )
        self.stack.callback(process.stop)
        return process

    def serve(self) -> None:
        """Start the coordinator's service and wait for its public port."""
        stages = self.folder / "stages"
        module = "benchmarks.deployed_service"
        self.service = self.start("service", module, self.home.folder, stages)
        wait_for(self._answers, "the public port")

    def enroll(self, parties: int, tasks: list[LearningTask]) -> None:
        """Invite, join, approve and start so many hospitals."""
        coordinator = Coordinator(self.home)
        for place, port in enumerate(free_ports(parties)):
            name = f"hospital-{place}"
            invitation = coordinator.invite(name)
            site = Site.create(self.folder / name, invitation)
            policy = {
                "least_checked_peers": 2,
                "most_queries": QUERIES * len(tasks),
                "most_epsilon": 1000.0,
                "forms": list(FORMS),
            }
            settings = replace(
                site.settings.with_setting(site.membership().name, node_port=port),
                teachers=TEACHERS,
                approval="pool",
                lifetime_epsilon=1000.0,
                policy=policy,
            )
            site = site.save(settings)
            door = CoordinatorDoor(site.membership(), clock=time.time)
            door.join(invitation.token)
            door.close()
            words = spoken(site.identity.fingerprint)
            coordinator.approve(name, words=words, teachers=TEACHERS)
            self.sites.append(site)
        coordinator.close()
        for site in self.sites:
            self._approve(site, tasks)
            self.start(
                site.membership().settings.party, "benchmarks.deployed_hospital", site.folder
            )

    def _approve(self, site: Site, tasks: list[LearningTask]) -> None:
        """Do what the people of a hospital do."""
        for task in tasks:
            fetch_task(site, _Published(task), task.pool.digest)
        asking = site.membership().coordinator.fingerprint
        with site.open_database() as database:
            records = PeopleDecisions(database, clock=time.time)
            for other in self.sites:
                if other is not site:
                    name, key = other.membership().settings.party, other.identity.public
                    records.add_pin(name, key, how="telephone", by="benchmark")
            for task in tasks:
                records.ask(Subject.POOL, task.pool.digest, coordinator=asking)
                records.approve(Subject.POOL, task.pool.digest, coordinator=asking, by="benchmark")

    def exchanges(self, count: int) -> list[float]:
        """Seconds of exchanges of next to nothing, one after the other."""
        took = []
        with Coordinator(self.home).superlink().grid() as grid:
            transport = GridTransport(grid, nodes=len(self.sites), timeout_s=60, wait_s=_START_S)
            nodes, empty = transport.nodes(), wire.pack([])
            for _ in range(count):
                start = time.monotonic()
                answers = transport.exchange(dict.fromkeys(nodes, empty))
                took.append(time.monotonic() - start)
                assert list(answers.values()) == [empty] * len(self.sites), answers
        return took

    def run(self, form: str, task: LearningTask) -> Measured:
        """Ask all queries of a task in one batch."""
        pids = self.pids()
        for pid in pids.values():
            Path(f"/proc/{pid}/clear_refs").write_text("5")  # peaks start anew
        coordinator = Coordinator(self.home)
        queries = len(task.pool)
        settings = RunSettings(
            data=source_of("public.csv", LABEL),
            suite=DEFAULT_SUITE,
            rule=Rule("gnmax", sigma2=100.0),
            caps=Caps(max_asks=queries, max_answers=queries, batch_size=queries),
            epsilon=100.0,
            form=form,
        )
        request = coordinator.draft(form, task, settings, source="public.csv", select="all")
        asked = coordinator.enqueue(request, task)
        wait_for(
            lambda: coordinator.queue.find(form).state.value in ("done", "failed", "paused"),
            "the run's end",
            seconds=_RUN_S,
        )
        ended = coordinator.queue.find(asked.name)
        coordinator.close()
        assert (ended.state.value, ended.progress.answered) == ("done", queries), ended
        metrics = json.loads((self.home.results(form) / "metrics.json").read_text())
        traffic = metrics["bytes"]
        seconds, parts = self._times()
        return Measured(
            seconds,
            parts,
            sent=traffic["to_parties"],
            received=traffic["from_parties"],
            memory={name: peak_memory(pid) for name, pid in pids.items()},
        )

    def pids(self) -> dict[str, int]:
        """The coordinator's processes: the service and its child."""
        assert self.service is not None
        pid = self.service.running.pid
        [child] = [
            int(number)
            for thread in Path(f"/proc/{pid}/task").iterdir()
            for number in (thread / "children").read_text().split()
        ]
        return {"service": pid, "SuperLink": child}

    def _times(self) -> tuple[float, dict[str, float]]:
        """Seconds of the last batch and of its parts, from the stages that the service passed."""
        lines = (self.folder / "stages").read_text().splitlines()
        passed = [(float(line.split(" ", 1)[0]), line.split(" ", 1)[1]) for line in lines]
        start = max(place for place, (_, name) in enumerate(passed) if name == "reserved")
        at: dict[str, float] = {}
        for seconds, name in passed[start:]:
            at.setdefault(name, seconds)
        order = ("reserved", "planned", "answered", "revealed", "opened", "decided", "stored")
        known = [name for name in order if name in at]
        parts = {f"{one} to {next_}": at[next_] - at[one] for one, next_ in pairwise(known)}
        return at["stored"] - at["reserved"], parts

    def _answers(self) -> bool:
        assert self.service is not None
        assert self.service.running.poll() is None, (self.folder / "service.log").read_text()
        with socket.socket() as probe:
            return not probe.connect_ex(("127.0.0.1", self.home.settings.port))


def wait_for(what: Callable[[], bool], name: str, *, seconds: float = _START_S) -> None:
    """Wait until something holds."""
    deadline = time.monotonic() + seconds
    while not what():
        if time.monotonic() > deadline:
            raise TimeoutError(name)
        time.sleep(0.1)


def peak_memory(pid: int) -> int:
    """Peak resident bytes of a process."""
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    [line] = [line for line in status if line.startswith("VmHWM:")]
    return int(line.split()[1]) * 1024


def public_task(folder: Path, name: str, queries: int, seed: int) -> LearningTask:
    """Public inputs at random."""
    rng = np.random.default_rng(seed)
    header = ",".join(f"x{place}" for place in range(FEATURES))
    path = folder / f"{name}.csv"
    np.savetxt(
        path,
        rng.normal(size=(queries, FEATURES)),
        fmt="%.6f",
        delimiter=",",
        header=header,
        comments="",
    )
    classes = tuple(f"class {place}" for place in range(CLASSES))
    return make_task(path, label=LABEL, classes=classes)


@contextmanager
def deployed(parties: int, tasks: Callable[[Path], list[LearningTask]]) -> Iterator[Deployment]:
    """A federation whose processes end with the context."""
    folder = Path(tempfile.mkdtemp(prefix="deployment-"))
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        made = Deployment.create(folder, stack)
        os.environ.update(environment(folder))
        try:
            made.serve()
            made.enroll(parties, tasks(folder))
            yield made
        except BaseException:
            print((folder / "service.log").read_text()[-8000:], file=sys.stderr)
            raise


def rows(form: str, parties: int, queries: int, found: Measured) -> tuple[list[Bar], list[Figure]]:
    """The bars and figures of one form."""
    words = queries * CLASSES
    size = f"{form}; {parties} hospitals, {queries:,} x {CLASSES}"
    masked = BYTES["masked"][1](parties, words)
    most_bytes = masked if form == "masked" else 4 * words + 1000 * parties
    peak = sum(found.memory.values())
    bars = [
        Bar(f"seconds of a batch, {size}", found.seconds, MOST_SECONDS, is_most=True),
        Bar(f"GB of the coordinator, {size}", peak / 1e9, MOST_BYTES / 1e9, is_most=True),
        Bar(
            f"bytes of a whole run / of its vectors and shares, {size}",
            found.received / (parties * most_bytes),
            1.1,
            is_most=True,
        ),
    ]
    figures = [Figure(f"{part}, {size}", seconds, "s") for part, seconds in found.parts.items()]
    figures += [
        Figure(f"peak of the {name}, {size}", value / MIB, "MiB")
        for name, value in found.memory.items()
    ]
    figures += [
        Figure(f"sent to a hospital in a run, {size}", found.sent / parties / MIB, "MiB"),
        Figure(f"received of a hospital in a run, {size}", found.received / parties / MIB, "MiB"),
    ]
    return bars, figures


def main() -> None:
    options = arguments(__doc__)
    parties = QUICK_PARTIES if options.quick else PARTIES
    queries = QUICK_QUERIES if options.quick else QUERIES
    tasks: dict[str, LearningTask] = {}

    def make_tasks(folder: Path) -> list[LearningTask]:
        for seed, form in enumerate(FORMS):
            tasks[form] = public_task(folder, form, queries, seed)
        return list(tasks.values())

    bars: list[Bar] = []
    figures: list[Figure] = []
    with deployed(parties, make_tasks) as federation:
        first, *exchanges = federation.exchanges(_EXCHANGES + 1)
        figures.append(Figure(f"first exchange; {parties} hospitals", first, "s"))
        figures.append(Figure(f"exchange, median; {parties} hospitals", median(exchanges), "s"))
        figures.append(Figure(f"exchange, longest; {parties} hospitals", max(exchanges), "s"))
        print(*figures, sep="\n", file=sys.stderr, flush=True)
        for form in FORMS:
            more, seen = rows(form, parties, queries, federation.run(form, tasks[form]))
            bars += more
            figures += seen
            print(*more, *seen, sep="\n", file=sys.stderr, flush=True)
    report(bars, as_json=options.format == "json", figures=figures)


if __name__ == "__main__":
    main()
