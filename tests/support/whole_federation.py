"""Everything real at once on loopback: `pate-fed serve` and three times `pate-party start`.

Every one is a process of its own with its own folder, and with a SuperLink or a SuperNode as its
child. Teachers are trained on the hospitals' tables. What went through the hospitals' doors is
written down beside them, and what they were charged is read in their databases. One hospital is
behind a proxy: the name by which it knows the coordinator means nothing to anybody else.
"""

from __future__ import annotations

import os
import resource
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from coordinator.federation.home import FederationHome
from coordinator.operator import Coordinator
from coordinator.runs.queue import ENDED, Run
from party.site.joining import CoordinatorDoor
from party.site.own_table import add
from party.site.site import Site
from party.site.status_file import FILE as STATUS_FILE
from party.site.status_file import FederationStatus, Status, read_status
from party.site.training import ready_teachers
from pate_fed.data.new_task import make_task
from pate_fed.data.task import LearningTask
from pate_fed.evaluation_task import EvaluationTask
from protocols.fingerprint_words import spoken
from protocols.identity import SigningIdentity
from tests.support.asking import asked_run
from tests.support.connect_proxy import ConnectProxy, connect_proxy
from tests.support.hospital_services import (
    NAMES,
    TEACHERS,
    Hospitals,
    decide_budget,
    ledger_of,
    records_of,
)
from tests.support.hospital_site import LABEL, PATIENT, tell_votes, with_teachers, write_own_table
from tests.support.invariants import HospitalSeen, Seen, runs_seen, shown_by_status
from tests.support.loopback_home import ROOT, environment, free_ports, installed, make_home
from tests.support.mortal_hospital import exchanges_in, plans_voted_on

NORTH, SOUTH, WEST = NAMES
PROXIED = WEST
NAME_BEHIND_PROXY = "coordinator.invalid"
CLASSES = ("no", "yes")
QUERIES, BATCH = 8, 2
START_S, RUN_S = 300.0, 600.0
"""Nothing is timed: a machine that is busy may take long."""


def children_of(process: int) -> list[int]:
    """Numbers of a process's children."""
    threads = Path(f"/proc/{process}/task")
    while True:
        try:
            return [
                int(number)
                for thread in threads.iterdir()
                for number in (thread / "children").read_text("ascii").split()
            ]
        except (FileNotFoundError, ProcessLookupError):
            if not threads.exists():
                raise
            # One of its threads ended while we looked, and left its children to another: once more.


@dataclass
class Clock:
    """A clock that processes look at."""

    file: Path

    def __post_init__(self) -> None:
        self._set(0.0)

    @contextmanager
    def ahead(self, seconds: float) -> Iterator[None]:
        """Let it be so much ahead for a while."""
        self._set(seconds)
        try:
            yield
        finally:
            self._set(0.0)

    def _set(self, seconds: float) -> None:
        partial = self.file.with_suffix(".partial")
        partial.write_text(str(seconds), "ascii")
        partial.replace(self.file)

    @property
    def variables(self) -> dict[str, str]:
        """What a process whose clock it is gets in its environment."""
        return {"SHIFTED_CLOCK": str(self.file)}


@dataclass
class Node:
    """A process with one child: a coordinator's service, or a hospital's node."""

    command: tuple[str, ...]
    log: Path
    variables: Mapping[str, str]
    clock: Clock
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it. What it prints is written down by us: it has no room for it at times."""
        self.process = subprocess.Popen(
            [sys.executable, *self.command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**self.variables, **self.clock.variables},
        )
        threading.Thread(target=self._write_down, args=(self.process,), daemon=True).start()

    def _write_down(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        with process.stdout, self.log.open("ab") as log:
            while piece := os.read(process.stdout.fileno(), 65536):
                log.write(piece)
                log.flush()

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def child(self) -> int:
        """Number of its SuperLink, or SuperNode."""
        [child] = children_of(self.pid)
        return child

    def signal(self, number: int) -> None:
        """Send it alone a signal."""
        os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL, and wait for its end."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def end(self) -> int | None:
        """Tell it to end; kill it where it does not. Its child ends with it."""
        if self.process is None:
            return None
        if self.process.poll() is None:
            os.kill(self.pid, signal.SIGCONT)
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        return self.process.returncode

    @property
    def is_alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def said(self) -> str:
        """The end of what it printed."""
        return self.log.read_text("utf-8", errors="replace")[-6000:]


@contextmanager
def no_room(*processes: int) -> Iterator[None]:
    """Let nothing that these processes write find room on their disk."""
    before = {one: resource.prlimit(one, resource.RLIMIT_FSIZE) for one in processes}
    for one, (_, hard) in before.items():
        resource.prlimit(one, resource.RLIMIT_FSIZE, (1, hard))
    try:
        yield
    finally:
        for one, limits in before.items():
            if Path(f"/proc/{one}").exists():
                resource.prlimit(one, resource.RLIMIT_FSIZE, limits)


@contextmanager
def immutable(*files: Path) -> Iterator[None]:
    """Let nobody write files, whoever has them open."""
    subprocess.run(["chattr", "+i", *files], check=True)
    try:
        yield
    finally:
        subprocess.run(["chattr", "-i", *files], check=True)


def can_be_immutable() -> bool:
    """Whether this user, on this file system, can do that."""
    with tempfile.NamedTemporaryFile() as file:
        try:
            with immutable(Path(file.name)):
                try:
                    os.write(file.fileno(), b"1")
                except PermissionError:
                    return True
        except (OSError, subprocess.CalledProcessError):
            return False
    return False


@dataclass
class Hospital:
    site: Site
    witness: Path
    node: Node

    @property
    def name(self) -> str:
        return self.site.membership().settings.party

    @property
    def standing(self) -> Status:
        """How its node says that it stands."""
        status = read_status(self.site.path(STATUS_FILE))
        assert status is not None
        return status

    @property
    def in_federation(self) -> FederationStatus:
        """How its node stands in its only federation."""
        return self.standing.federations[self.site.membership().name]

    @property
    def charges(self) -> list[str]:
        """States of what it was charged, in its own database."""
        return [entry.state.value for entry in ledger_of(self.site).entries]

    def look(self) -> HospitalSeen:
        """Read what it shows."""
        return HospitalSeen(
            self.name,
            ledger_of(self.site),
            exchanges_in(self.witness),
            plans_voted_on(self.witness),
        )


@dataclass
class WholeFederation:
    """A federation and its processes."""

    folder: Path
    home: FederationHome
    service: Node
    proxy: ConnectProxy
    hospitals: dict[str, Hospital] = field(default_factory=dict)
    _tasks: set[bytes] = field(default_factory=set)

    # Its processes ----------------------------------------------------------------------------

    def serve(self) -> None:
        """Start the coordinator's service, and wait for the public port."""
        self.service.start()
        self.wait_for(self._is_served)

    def _is_served(self) -> bool:
        assert self.service.is_alive, self.service.said
        with socket.socket() as probe:
            return not probe.connect_ex(("127.0.0.1", self.home.settings.port))

    def online(self) -> set[str]:
        """Hospitals whose SuperNodes the SuperLink knows to be there."""
        with closing(Coordinator(self.home)) as coordinator:
            names = {one.node_id: one.name for one in coordinator.enrollment.parties()}
            found = coordinator.superlink().nodes()
            return {names[node.node_id] for node in found if node.status == "online"}

    def start_hospitals(self, *names: str) -> None:
        """Start nodes, and wait until they are there."""
        for name in names:
            self.hospitals[name].node.start()
        self.wait_for(lambda: self._are_up(*names))

    def _are_up(self, *names: str) -> bool:
        for name in names:
            node = self.hospitals[name].node
            assert node.is_alive, node.said
        return set(names) <= self.online()

    def end(self) -> None:
        """End all processes, hospitals first."""
        for one in self.hospitals.values():
            one.node.end()
        self.service.end()

    def wait_for(
        self, holds: Callable[[], bool], *, seconds: float = START_S, pause_s: float = 0.25
    ) -> None:
        """Wait for something, as long as it may take; most looks open databases and connections."""
        deadline = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < deadline, self.said
            time.sleep(pause_s)

    @property
    def said(self) -> str:
        """The end of what all of them printed."""
        logs = [self.service.said, *(one.node.said for one in self.hospitals.values())]
        return "\n---\n".join(logs)

    # Their people -----------------------------------------------------------------------------

    def pate_fed(self, *arguments: object) -> str:
        """Type a command at the coordinator; return what it shows."""
        home = ("--home", str(self.home.folder))
        return self._type("coordinator.cli", *arguments, *home, environment=self.service.variables)

    def pate_party(self, name: str, *arguments: object, codes: tuple[int, ...] = (0,)) -> str:
        """Type a command at a hospital; return what it shows."""
        hospital = self.hospitals[name]
        variables = {**hospital.node.variables, **hospital.node.clock.variables}
        site = ("--site", str(hospital.site.folder))
        return self._type("party.cli", *arguments, *site, environment=variables, codes=codes)

    def _type(
        self,
        module: str,
        *arguments: object,
        environment: Mapping[str, str],
        codes: tuple[int, ...] = (0,),
    ) -> str:
        ended = subprocess.run(
            [sys.executable, "-m", module, *map(str, arguments)],
            capture_output=True,
            text=True,
            env=dict(environment),
            timeout=START_S,
            check=False,
        )
        assert ended.returncode in codes, ended.stdout + ended.stderr
        return ended.stdout

    def ask(self, name: str, **changed: Any) -> LearningTask:
        """Queue a run over a pool of its own that all hospitals have approved and teachers for."""
        task = self._new_task(name)
        for one in self.hospitals.values():
            ready_teachers(one.site, task, random_bytes=secrets.token_bytes)
        self.approve(task)
        chosen = {"queries": QUERIES, "batch_size": BATCH, "patience_s": 3600.0, **changed}
        with closing(Coordinator(self.home)) as coordinator:
            asked_run(coordinator, name, task, **chosen)
        return task

    def approve(self, task: LearningTask | EvaluationTask) -> None:
        """Let all hospitals approve a pool, and wait until their nodes are ready for it."""
        sites = [one.site for one in self.hospitals.values()]
        known = Hospitals(SigningIdentity.generate(), sites, task)  # type: ignore[arg-type]
        for place in range(len(sites)):
            known.approve(place)
        self._tasks.add(task.pool.digest)
        nodes = [one for one in self.hospitals.values() if one.node.is_alive]
        self.wait_for(lambda: all(self._knows_tasks(one) for one in nodes))

    @property
    def documents(self) -> set[Path]:
        """Files of all pools and evaluations that the coordinator has published."""
        found = self.home.path("pools").iterdir()
        return {path for path in found if not path.name.startswith(".")}

    def _new_task(self, name: str) -> LearningTask:
        rng = np.random.default_rng(len(self._tasks))
        sexes = ("male", "female")
        rows = [f"{rng.uniform(20, 80):.6f},{sexes[rng.integers(2)]}" for _ in range(40)]
        path = self.folder / f"{name}.csv"
        path.write_text("\n".join(("age,sex", *rows)) + "\n", encoding="utf-8")
        return make_task(path, label=LABEL, classes=CLASSES)

    def _knows_tasks(self, hospital: Hospital) -> bool:
        return hospital.standing.tasks == len(self._tasks)

    # Its runs ---------------------------------------------------------------------------------

    def run(self, name: str) -> Run:
        """Return a run as the database has it."""
        with closing(Coordinator(self.home)) as coordinator:
            return coordinator.queue.find(name)

    @property
    def is_at_rest(self) -> bool:
        """Whether all its runs have ended."""
        with closing(Coordinator(self.home)) as coordinator:
            return all(run.state in ENDED for run in coordinator.queue.all())

    def answered(self, name: str) -> int:
        """How many queries of a run have their label."""
        return int(self.run(name).progress.answered)

    def wait_for_run(self, name: str, holds: Callable[[Run], bool]) -> Run:
        """Wait until something holds for a run."""
        self.wait_for(lambda: holds(self.run(name)), seconds=RUN_S)
        return self.run(name)

    def status(self, name: str) -> tuple[str, Mapping[str, Any]]:
        """Return what `pate-fed status` shows of a run, as text and as JSON, without delay."""
        with closing(Coordinator(self.home)) as coordinator:
            return shown_by_status(coordinator, name)

    def metrics(self) -> str:
        """Return what the service tells monitoring."""
        address = f"http://127.0.0.1:{self.home.settings.metrics_port}/metrics"
        return httpx.get(address, trust_env=False, timeout=START_S).text

    def look(self) -> Seen:
        """Read what both sides show."""
        hospitals = tuple(one.look() for one in self.hospitals.values())
        with closing(Coordinator(self.home)) as coordinator:
            return Seen("additive", hospitals, runs_seen(coordinator))


# How it is made -------------------------------------------------------------------------------


@contextmanager
def whole_federation(folder: Path) -> Iterator[WholeFederation]:
    """Make a federation whose members have checked one another; nothing of it runs yet."""
    home = make_home(folder / "federation", hosts=(NAME_BEHIND_PROXY,))
    shifted = ROOT / "tests" / "support" / "shifted_clock"
    paths = (str(shifted), str(ROOT), str(installed(folder)))
    variables = {
        **environment(folder),
        "PYTHONPATH": os.pathsep.join(paths),
        "OMP_NUM_THREADS": "1",
    }
    service = Node(
        ("-m", "coordinator.cli", "serve", "--home", str(home.folder)),
        folder / "service.log",
        variables,
        Clock(folder / "coordinator.clock"),
    )
    with ExitStack() as stack:
        proxy = stack.enter_context(connect_proxy(NAME_BEHIND_PROXY, home.settings.port))
        made = WholeFederation(folder, home, service, proxy)
        stack.callback(made.end)
        yield made


OwnRecords = Callable[[Path, str, int], tuple[Path, str, str | None]]
"""Writes a hospital's records: the folder, its name, its place; they, label, patients' column."""


def own_table(folder: Path, name: str, place: int) -> tuple[Path, str, str | None]:
    """Write the usual table."""
    return write_own_table(folder / f"{name}.csv", seed=place), LABEL, PATIENT


def enroll(made: WholeFederation, *, records_of_each: OwnRecords = own_table) -> None:
    """Let hospitals join a federation that is served, each with its records and its policy."""
    for name, port in zip(NAMES, free_ports(len(NAMES)), strict=True):
        variables = dict(made.service.variables)
        if name == NORTH:
            variables |= {"MARKED_COUNTS": "1"}
        if name == PROXIED:
            variables |= {"HTTPS_PROXY": f"http://127.0.0.1:{made.proxy.port}", "NO_PROXY": ""}
        witness = made.folder / f"{name} witness"
        site = _joined(made, name, variables)
        site = site.save(
            replace(
                site.settings.with_setting(site.membership().name, node_port=port),
                held_out=0.25,
                approval="pool",
                lifetime_epsilon=1000.0,
                policy={
                    "least_checked_peers": 2,
                    "most_epsilon": 1000.0,
                },
            )
        )
        decide_budget(site)
        own, label, patient = records_of_each(made.folder, name, len(made.hospitals))
        site = with_teachers(add(site, own, label=label, patient_id=patient)[0], TEACHERS)
        command = ("-m", "tests.support.witnessed_hospital", str(witness), "start", "--site")
        node = Node(
            (*command, str(site.folder)),
            made.folder / f"{name}.log",
            variables,
            Clock(made.folder / f"{name}.clock"),
        )
        made.hospitals[name] = Hospital(site, witness, node)
        with closing(Coordinator(made.home)) as coordinator:
            words = spoken(site.identity.fingerprint)
            coordinator.approve(name, words=words)
            tell_votes(coordinator.enrollment, site)
    for one in made.hospitals.values():
        with records_of(one.site) as records:
            for other in made.hospitals.values():
                if other is not one:
                    key = other.site.identity.public
                    records.add_pin(other.name, key, how="telephone", by="M. Curie")


def _joined(made: WholeFederation, name: str, variables: Mapping[str, str]) -> Site:
    """Join; whoever is behind the proxy types the command."""
    with closing(Coordinator(made.home)) as coordinator:
        invitation = coordinator.invite(name)
    folder = made.folder / name
    if name != PROXIED:
        site = Site.create(folder, invitation)
        with closing(CoordinatorDoor(site.membership(), clock=time.time)) as door:
            door.join(invitation.token)
        return site
    port = made.home.settings.port
    invitation = replace(invitation, address=f"{NAME_BEHIND_PROXY}:{port}")
    file = made.folder / f"{name}.invite.json"
    file.write_text(invitation.to_json(), encoding="utf-8")
    read_aloud = spoken(made.home.fingerprint)
    made._type(
        "party.cli",
        *("join", file, "--compared", read_aloud, "--site", folder),
        environment=variables,
    )
    return Site.open(folder)


def connections_of(*processes: int) -> set[tuple[int, str, int]]:
    """Return local port, remote address and remote port of processes' TCP connections.

    Only of those that are open in both directions: what listens is no connection.
    """
    sockets = set()
    for one in processes:
        for descriptor in Path(f"/proc/{one}/fd").iterdir():
            with suppress(FileNotFoundError):
                sockets.add(str(descriptor.readlink()))
    found = set()
    for family in ("tcp", "tcp6"):
        for line in Path(f"/proc/{processes[0]}/net/{family}").read_text("ascii").splitlines()[1:]:
            cells = line.split()
            local, remote, state = cells[1:4]
            if f"socket:[{cells[9]}]" in sockets and state == _ESTABLISHED:
                address, port = remote.split(":")
                found.add((int(local.split(":")[1], 16), _address_of(address), int(port, 16)))
    return found


_ESTABLISHED = "01"


def _address_of(digits: str) -> str:
    """Read an address as the kernel shows it: words of 4 bytes, each the least byte first."""
    words = [bytes.fromhex(digits[place : place + 8])[::-1] for place in range(0, len(digits), 8)]
    kind = socket.AF_INET if len(words) == 1 else socket.AF_INET6
    return socket.inet_ntop(kind, b"".join(words))
