"""A federation of real processes on loopback that are killed with -9 and started again.

The coordinator's worker, every hospital's service and the tally, where the form has one, are
processes of their own with their own folders; what Flower would carry between them goes over plain
sockets, so that a life costs milliseconds and hundreds can be taken. Processes are forked from a
server that has everything imported, and that has no thread but one.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import struct
import sys
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np

from coordinator.federation.home import FederationHome, FederationSettings
from coordinator.operator import Coordinator
from coordinator.runs.queue import Run
from coordinator.runs.stages import BatchStage
from coordinator.runs.transport import Silence, Transport
from coordinator.runs.worker import RunWorker
from coordinator.runs.worker_resources import WorkerResources
from coordinator.tally.tally_folder import TallyFolder
from party.service import PartyService
from party.site.site import Site, SiteSettings
from pate_fed.data.task import LearningTask
from protocols import wire
from protocols.fingerprint_words import spoken
from protocols.forms import Verified
from protocols.membership_messages import JoinRequest, NamedTally
from tests.support.asking import asked_run
from tests.support.deployed import true_class
from tests.support.door import Door
from tests.support.forks import FORKS
from tests.support.hospital_services import Hospitals, make_hospitals
from tests.support.hospital_site import LABEL, tell_votes, with_teachers
from tests.support.invariants import HospitalSeen, Seen, runs_seen
from tests.support.loopback_home import add_tally, free_ports, is_open
from tests.support.mortal_hospital import Fate, MortalHospital, exchanges_in, plans_voted_on
from tests.support.mortal_tally import live_as_tally

TEACHERS = 10
QUERIES, BATCH = 6, 2
SIGMA2, DELTA, LIFETIME_EPSILON = 3.0, 1e-5, 1000.0
CLASSES = ("no", "yes")
PARTIES = {"additive": 3, "masked": 5, Verified.name: 4}
NAMES = ("North", "South", "West", "East", "Mid")

_SIZE = struct.Struct(">I")
_ANSWER_S = 120.0
_LONGEST_WAIT_S = 0.05
"""What a run waits for in tests takes no longer than a restart."""


# What both ends say ---------------------------------------------------------------------------


def _send(peer: socket.socket, packet: bytes) -> None:
    peer.sendall(_SIZE.pack(len(packet)) + packet)


def _receive(peer: socket.socket) -> bytes:
    [size] = _SIZE.unpack(_read(peer, _SIZE.size))
    return _read(peer, size)


def _read(peer: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        piece = peer.recv(size - len(found))
        if not piece:
            raise ConnectionResetError
        found += piece
    return found


# A hospital's process -------------------------------------------------------------------------


def live_as_hospital(place: _Place, fate: Fate, change: Callable[[], None] | None) -> None:
    """Answer packets until killed."""
    with _faults_in(place.log):
        if change is not None:
            change()
        service = MortalHospital(Site.open(place.folder), witness=place.witness, fate=fate)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            partial = place.door.with_suffix(".partial")
            partial.write_text(str(listener.getsockname()[1]))
            partial.replace(place.door)
            while True:
                peer, _ = listener.accept()
                with peer:
                    try:
                        answer = service.receive(_receive(peer))
                        _send(peer, answer)
                    except OSError:
                        continue  # the coordinator died
                    service.has_sent(answer)


@dataclass(frozen=True)
class _Place:
    """Where a hospital's process has its things."""

    folder: Path
    beside: Path

    @property
    def witness(self) -> Path:
        """What it writes down for the test."""
        return self.beside / "witness"

    @property
    def door(self) -> Path:
        """Holds the port on which it listens."""
        return self.beside / "door"

    @property
    def log(self) -> Path:
        """What it prints."""
        return self.beside / "log"


# The coordinator's process --------------------------------------------------------------------


class SocketTransport(Transport):
    """Reaches hospitals at the ports that they wrote down."""

    def __init__(self, doors: tuple[Path, ...], *, wait_s: float) -> None:
        super().__init__()
        self._doors, self._wait_s = doors, wait_s

    def nodes(self) -> list[int]:
        deadline = time.monotonic() + self._wait_s
        while True:
            there = [node for node in range(len(self._doors)) if self._is_there(node)]
            if len(there) == len(self._doors) or time.monotonic() > deadline:
                return there
            time.sleep(0.005)

    def _is_there(self, node: int) -> bool:
        # Told by the number of its process, so that nobody is disturbed.
        try:
            os.kill(int(self._doors[node].with_name("pid").read_text()), 0)
        except (OSError, ValueError):
            return False
        return self._doors[node].exists()

    def _carry(self, packets: Mapping[int, bytes]) -> dict[int, bytes | Silence]:
        peers: dict[int, socket.socket] = {}
        answers: dict[int, bytes | Silence] = {}
        for node, packet in packets.items():
            try:
                port = int(self._doors[node].read_text())
                peers[node] = socket.create_connection(("127.0.0.1", port), timeout=_ANSWER_S)
                _send(peers[node], packet)
            except (OSError, ValueError):
                answers[node] = Silence("no connection")
        for node, peer in peers.items():
            with closing(peer):
                try:
                    answers.setdefault(node, _receive(peer))
                except OSError:
                    answers[node] = Silence("connection lost")
        return answers


def live_as_coordinator(
    home: Path,
    doors: tuple[Path, ...],
    log: Path,
    dies: Callable[[BatchStage], bool],
    wait_s: float,
) -> None:
    """Work on all runs until none is open."""

    def on_stage(stage: BatchStage) -> None:
        if dies(stage):
            os.kill(os.getpid(), 9)

    @contextmanager
    def open_transport(nodes: Collection[int]) -> Iterator[Transport]:
        assert set(nodes) == set(range(len(doors)))
        yield SocketTransport(doors, wait_s=wait_s)

    with _faults_in(log):
        coordinator = Coordinator.open(home)
        worker = RunWorker(
            coordinator.home,
            coordinator.queue,
            parties=coordinator.enrollment.parties,
            resources=WorkerResources(
                open_transport=open_transport,
                random_bytes=secrets.token_bytes,
                noise_bytes=secrets.token_bytes,
                wait=lambda seconds: time.sleep(min(seconds, _LONGEST_WAIT_S)),
                on_stage=on_stage,
            ),
        )
        while (run := coordinator.queue.next()) is not None:
            worker.work(run)
        coordinator.close()


@dataclass
class DiesAt:
    """Dies when a stage, or any where none is named, is passed for the so many-th time."""

    stage: BatchStage | None = None
    number: int = 1

    def __call__(self, passed: BatchStage) -> bool:
        """Tell whether it is time."""
        self.number -= self.stage in (None, passed)
        return self.number == 0


def never(passed: BatchStage) -> bool:
    """Do not die."""
    return False


@contextmanager
def _faults_in(log: Path) -> Iterator[None]:
    """Write what a process prints, and why it failed, where the test finds it."""
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(file, sys.stdout.fileno())
    os.dup2(file, sys.stderr.fileno())
    try:
        yield
    except BaseException:
        os.write(file, f"FAULT {traceback.format_exc()}".encode())
        raise


def enroll(coordinator: Coordinator, site: Site) -> None:
    """Let a hospital in, as if its people had been on the telephone; nobody serves."""
    name = site.membership().settings.party
    request = JoinRequest(
        coordinator=site.membership().coordinator.fingerprint,
        token=coordinator.invite(name).token,
        party_name=name,
        identity_key=site.identity.public.key,
        node_key=site.membership().node_public_key,
        asked_at=int(time.time()),
    )
    coordinator.enrollment.answer_join(wire.sign(request, site.identity).frame)
    coordinator.enrollment.approve(name, words=spoken(site.identity.fingerprint))
    tell_votes(coordinator.enrollment, site)


# The test's side ------------------------------------------------------------------------------


@dataclass
class ProcessFederation:
    """A federation and its processes."""

    folder: Path
    form: str
    wait_s: float = 60.0
    kills: int = 0
    hospitals: Hospitals = field(init=False)
    tasks: dict[str, LearningTask] = field(default_factory=dict)
    lives: dict[int, BaseProcess] = field(default_factory=dict)
    coordinator_life: BaseProcess | None = None
    coordinator: Coordinator = field(init=False)
    tally: TallyFolder | None = None
    tally_life: BaseProcess | None = None

    def __post_init__(self) -> None:
        settings = FederationSettings("lung study", "127.0.0.1:8443")
        home = FederationHome.create(self.folder / "federation", settings, now=datetime.now(UTC))
        if self.form == Verified.name:
            self.tally = add_tally(home, self.folder / "tally", port=free_ports(1)[0])
        names = NAMES[: PARTIES[self.form]]
        self.hospitals = make_hospitals(
            self.folder,
            names=names,
            coordinator=home.identity,
            ca=home.ca_certificate.decode(),
            ports=tuple(range(9094, 9094 + len(names))),
            policy={
                "most_epsilon": 1000.0,
                "least_checked_peers": len(names) - 1,
                "forms": list(PARTIES),
            },
        )
        self.coordinator = Coordinator(home)
        door = Door(0)
        for place, site in enumerate(self.hospitals.sites):
            changed = replace(site.settings, lifetime_epsilon=LIFETIME_EPSILON, delta=DELTA)
            if self.tally is not None:
                changed = self._pinned(changed, site.membership().name)
            self.hospitals.sites[place] = with_teachers(site.save(changed), TEACHERS)
            enroll(self.coordinator, self.hospitals.sites[place])
            self.coordinator.enrollment.settle(door)  # its node is the one of its place
            self._place(place).beside.mkdir()
            self._place(place).witness.mkdir()

    def _pinned(self, settings: SiteSettings, membership: str) -> SiteSettings:
        assert self.tally is not None
        named = NamedTally(self.tally.card.name, self.tally.identity.public)
        settings = settings.with_setting(membership, operator_body="study office")
        return settings.with_tally(membership, named, body="data trust")

    def _place(self, place: int) -> _Place:
        return _Place(self.hospitals.sites[place].folder, self.folder / f"beside-{place}")

    @property
    def home(self) -> Path:
        return self.folder / "federation"

    # Runs -------------------------------------------------------------------------------------

    def make_task(self, name: str, *, seed: int, rows: int = 30) -> LearningTask:
        """Make a task of inputs that nobody saw before, approved at all hospitals."""
        rng = np.random.default_rng(seed)
        path = self.folder / f"{name}.csv"
        rows = [f"{rng.uniform(20, 80):.6f},{rng.uniform(50, 90):.6f}" for _ in range(rows)]
        path.write_text("\n".join(["age,weight", *rows]) + "\n", encoding="utf-8")
        return self.publish(name, path)

    def publish(self, name: str, path: Path) -> LearningTask:
        """Read public inputs as the operator's command does, and let all hospitals approve them."""
        task = self.coordinator.read_queries(path, label=LABEL, classes=CLASSES)
        self.hospitals.task = self.tasks[name] = task
        for place in range(len(self.hospitals.sites)):
            self.hospitals.approve(place)
        return task

    def ask(self, name: str, *, task: str = "", patience_s: float = 3600.0, **changed: Any) -> Run:
        chosen = {"queries": QUERIES, "batch_size": BATCH, "sigma2": SIGMA2, "delta": DELTA}
        if self.tally is not None:
            chosen["noise"] = "aggregators"
        given = {"form": self.form, "patience_s": patience_s, **chosen, **changed}
        return asked_run(self.coordinator, name, self.tasks[task or name], **given)

    def run(self, name: str) -> Run:
        """Return a run as `status` shows it."""
        return self.coordinator.queue.find(name)

    # Lives ------------------------------------------------------------------------------------

    def start_hospital(
        self,
        place: int,
        fate: Fate | None = None,
        *,
        change: Callable[[], None] | None = None,
    ) -> None:
        """Start a hospital's process, and wait until it listens or is dead."""
        home = self._place(place)
        home.door.unlink(missing_ok=True)
        life = FORKS.Process(target=live_as_hospital, args=(home, fate or Fate(), change))
        life.start()
        self.lives[place] = life
        (home.beside / "pid").write_text(str(life.pid))
        deadline = time.monotonic() + 120
        while not home.door.exists() and life.is_alive():
            assert time.monotonic() < deadline, home.log.read_text(errors="replace")
            time.sleep(0.02)

    def start_hospitals(self) -> None:
        for place in range(len(self.hospitals.sites)):
            self.start_hospital(place)

    def start_tally(self, moment: str = "") -> None:
        """Start the tally's process, and wait until it serves; see `mortal_tally` for moments."""
        assert self.tally is not None
        port, log = self.tally.settings.port, self.folder / "tally.log"
        self.tally_life = FORKS.Process(target=live_as_tally, args=(self.tally.folder, moment, log))
        self.tally_life.start()
        deadline = time.monotonic() + 120
        while not is_open(port) and self.tally_life.is_alive():
            assert time.monotonic() < deadline, log.read_text(errors="replace")
            time.sleep(0.02)

    def end_tally(self) -> None:
        """End it, as its people do."""
        assert self.tally_life is not None
        self.tally_life.terminate()
        self.tally_life.join(120)
        self.tally_life.close()
        self.tally_life = None

    @property
    def is_tallying(self) -> bool:
        return self.tally_life is not None and self.tally_life.is_alive()

    def bury_tally(self) -> None:
        """Count the end of one that is dead or about to be."""
        assert self.tally_life is not None
        self.tally_life.join(120)
        log = self.folder / "tally.log"
        assert self.tally_life.exitcode == -9, log.read_text(errors="replace")
        self.tally_life.close()
        self.tally_life = None
        self.kills += 1

    def start_coordinator(self, dies: Callable[[BatchStage], bool] = never) -> None:
        doors = tuple(self._place(place).door for place in range(len(self.hospitals.sites)))
        log = self.folder / "coordinator.log"
        self.coordinator_life = FORKS.Process(
            target=live_as_coordinator, args=(self.home, doors, log, dies, self.wait_s)
        )
        self.coordinator_life.start()

    def kill_hospital(self, place: int) -> None:
        """SIGKILL."""
        self.lives[place].kill()
        self.bury_hospital(place)

    def kill_coordinator(self) -> None:
        """SIGKILL."""
        assert self.coordinator_life is not None
        self.coordinator_life.kill()

    def bury_hospital(self, place: int) -> None:
        """Count the end of one that is dead or about to be."""
        life = self.lives.pop(place)
        life.join(120)
        assert life.exitcode == -9, self._place(place).log.read_text(errors="replace")
        life.close()
        self._place(place).door.unlink(missing_ok=True)
        self.kills += 1

    def bury_coordinator(self) -> bool:
        """Wait for the coordinator's end; tell whether it was killed, or had nothing to do."""
        life, self.coordinator_life = self.coordinator_life, None
        assert life is not None
        life.join(600)
        code = life.exitcode
        if code is None:
            life.kill()
            life.join()
        life.close()
        log = self.folder / "coordinator.log"
        assert code in (0, -9), log.read_text(errors="replace")[-6000:]
        self.kills += code == -9
        return code == -9

    def work(self, dies: Callable[[BatchStage], bool] = never) -> bool:
        """Let one coordinator live until it is killed or has nothing to do; tell which."""
        self.start_coordinator(dies)
        return self.bury_coordinator()

    @property
    def is_working(self) -> bool:
        return self.coordinator_life is not None and self.coordinator_life.is_alive()

    def dead_hospitals(self) -> list[int]:
        """Return hospitals that died and were not buried."""
        return [place for place, life in self.lives.items() if not life.is_alive()]

    def end_processes(self) -> None:
        lives = [*self.lives.values(), self.coordinator_life, self.tally_life]
        for life in lives:
            if life is not None:
                life.kill()
                life.join()
                life.close()
        self.lives, self.coordinator_life, self.tally_life = {}, None, None

    # Backups ----------------------------------------------------------------------------------

    def back_up(self, name: str) -> Path:
        """Copy the coordinator's whole folder, while nobody works on it."""
        assert not self.is_working
        self.coordinator.close()
        kept = self.folder / name
        shutil.copytree(self.home, kept)
        self.coordinator = Coordinator.open(self.home)
        return kept

    def restore(self, kept: Path) -> None:
        """Put a copy in the place of the coordinator's folder."""
        assert not self.is_working
        self.coordinator.close()
        shutil.rmtree(self.home)
        shutil.copytree(kept, self.home)
        self.coordinator = Coordinator.open(self.home)

    # What it comes to -------------------------------------------------------------------------

    def look(self) -> Seen:
        """Read what both sides show; ends all hospitals' processes, for their folders."""
        self.end_processes()
        runs = runs_seen(self.coordinator)
        hospitals = tuple(self._hospital_seen(place) for place in range(len(self.hospitals.sites)))
        return Seen(self.form, hospitals, runs)

    def _hospital_seen(self, place: int) -> HospitalSeen:
        site = self.hospitals.sites[place]
        with PartyService(site, vote_of=_nobody) as service:
            ledger = service.ledger
        witness = self._place(place).witness
        return HospitalSeen(
            site.membership().settings.party, ledger, exchanges_in(witness), plans_voted_on(witness)
        )

    def voted(self, place: int) -> tuple[bytes, ...]:
        """Return the plans that a hospital's teachers were asked for so far."""
        return plans_voted_on(self._place(place).witness)

    def require_true_labels(self, seen: Seen) -> None:
        """All teachers agree, so every label is what they say: no mask is left in a sum."""
        for one in seen.runs:
            task = next(t for t in self.tasks.values() if t.pool.digest == one.request.pool)
            truth = true_class(task.inputs)
            for index, label in (one.labels or {}).items():
                assert truth[index] == label, f"query {index} of {one.run.name}"


def _nobody(site: Site, task: LearningTask) -> Any:
    """Who reads a hospital's books asks no teacher."""
    return lambda batch: None


@contextmanager
def process_federation(folder: Path, form: str, **more: Any) -> Iterator[ProcessFederation]:
    """Make a federation in a folder; ends every process of its own."""
    made = ProcessFederation(folder, form, **more)
    try:
        yield made
    finally:
        made.end_processes()
        made.coordinator.close()
