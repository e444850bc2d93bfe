"""A federation at its coordinator: what the operator does, and the service that works for it.

`Coordinator` is the one door of the command line. `Service` is what `pate-fed serve` runs: the
SuperLink's process, kept alive; the worker that takes queued runs; monitoring on loopback. The two
meet in the database alone, so a kill of either loses nothing that was said.
"""

from __future__ import annotations

import fcntl
import logging
import os
import secrets
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final, Self

from coordinator.certificates import days_left
from coordinator.config import RunSettings
from coordinator.database import Database
from coordinator.enrollment import (
    INVITATION_LIFETIME,
    USUAL_TEACHERS,
    EnrolledParty,
    Enrollment,
)
from coordinator.errors import (
    CertificateError,
    CoordinatorError,
    EnrollmentError,
    RunQueueError,
    RunRequestError,
    ServiceError,
    SuperLinkError,
)
from coordinator.flower_app import GridTransport
from coordinator.flower_runtime import SuperLinkClient
from coordinator.home import LOOPBACK, FederationHome, utc_now
from coordinator.monitoring import Monitor, Probe
from coordinator.open_run import results_of
from coordinator.run_queue import Run, RunQueue, RunState
from coordinator.run_request import RunRequest
from coordinator.run_worker import RunWorker, said
from coordinator.stages import OnStage, pass_by
from coordinator.superlink_child import SuperLinkChild, flower_variables
from coordinator.surroundings import Surroundings
from coordinator.transport import Transport
from pate_fed.data.task import LearningTask
from pate_fed.errors import PateFedError
from pate_fed.mechanisms import RandomBytes
from pate_fed.nodes import place_of, write_file
from protocols.enrollment import Invitation
from protocols.errors import ProtocolError
from protocols.fingerprint_words import WORDS, heard_words, is_same

EXCHANGE_S: Final = 300.0
"""How long an exchange may take."""

NODES_S: Final = 60.0
"""How long to wait for hospitals that are not there: as long as a killed SuperNode is refused."""

PATIENCE_S: Final = 24 * 3600.0
_POLL_S: Final = 0.5
_READY_S: Final = 180.0
_FEW_DAYS: Final = 30.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 2.0, 60.0
_log = logging.getLogger(__name__)


class Coordinator:
    """A federation, as its operator uses it.

    Args:
        home: Its folder.
    """

    def __init__(self, home: FederationHome) -> None:
        self.home = home
        self._database = Database(home.database_url)
        self.enrollment = Enrollment(
            home, self._database, random_bytes=secrets.token_bytes, clock=utc_now
        )
        self.queue = RunQueue(self._database, clock=utc_now)

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Open a federation's folder.

        Raises:
            HomeError: it is none.
            DatabaseError: its database cannot be opened.
        """
        return cls(FederationHome.open(folder.absolute()))

    def close(self) -> None:
        """Let go of the database."""
        self._database.close()

    # Hospitals --------------------------------------------------------------------------------

    def invite(self, party: str, *, lifetime: timedelta = INVITATION_LIFETIME) -> Invitation:
        """Make an invitation; see `Enrollment.invite`."""
        return self.enrollment.invite(party, lifetime=lifetime)

    def members(self) -> list[EnrolledParty]:
        """Return all hospitals that ever asked, in the order of their names."""
        return self.enrollment.parties()

    def approve(self, party: str, *, words: str, teachers: int = USUAL_TEACHERS) -> EnrolledParty:
        """Make a hospital a member. Where no service runs, its node is let in once one does.

        Args:
            party: Its name.
            words: What its people read aloud.
            teachers: Teachers that it votes with.

        Raises:
            EnrollmentError: no such request, or other words than its fingerprint's.
        """
        states = {one.state: one for one in self.members() if one.name == party}
        if "requested" not in states:
            known = f"{party}, whose state is {' and '.join(states)}"
            raise EnrollmentError(
                "a hospital must have asked to join and wait for approval",
                known if states else f"none called {party}",
            )
        fingerprint = states["requested"].identity.fingerprint
        if len(heard_words(words)) != WORDS:
            raise EnrollmentError(
                f"the words must be {WORDS}, as their people read them aloud",
                f"{len(heard_words(words))} of them",
            )
        if not is_same(fingerprint, words):
            raise EnrollmentError(
                "the words must be those of the request: `pate-fed members` shows them",
                "others: do not approve, somebody may stand in between",
            )
        approved = self.enrollment.approve(
            party, fingerprint=fingerprint, door=None, teachers=teachers
        )
        self._settle()
        return self._party(party) or approved

    def revoke(self, party: str) -> EnrolledParty:
        """Put a hospital out, or turn its request down; its identity never comes back.

        Raises:
            EnrollmentError: there is none of this name.
        """
        revoked = self.enrollment.revoke(party, door=None)
        self._settle()
        return revoked

    def superlink(self) -> SuperLinkClient:
        """Return a connection to the SuperLink; whether one runs, its first call tells."""
        _be_quiet(self.home)
        return SuperLinkClient(
            f"{LOOPBACK}:{self.home.settings.admin_port}",
            ca_certificate=self.home.ca_certificate,
            secret=self.home.superlink_secret,
        )

    def _settle(self) -> None:
        """Tell the SuperLink at once, if one runs; else the service does it when it starts."""
        try:
            self.enrollment.settle(self.superlink())
        except SuperLinkError:
            _log.info("no SuperLink runs: nodes are let in and put out once one does")

    def _party(self, name: str) -> EnrolledParty | None:
        found = [one for one in self.members() if one.name == name and one.state != "revoked"]
        return found[0] if found else None

    # Runs -------------------------------------------------------------------------------------

    def ask(
        self,
        name: str,
        task: LearningTask,
        settings: RunSettings,
        *,
        source: str,
        select: str = "medoids",
        patience_s: float = PATIENCE_S,
        seed: int = 0,
    ) -> Run:
        """Publish a task and queue a run of it.

        Args:
            name: What the operator calls the run.
            task: What is learned.
            settings: What the operator chose.
            source: Name of the file of the public queries.
            select: "medoids" or "all".
            patience_s: How long it waits for hospitals.
            seed: Of the clustering of public inputs.

        Raises:
            See `RunRequest.make`.
        """
        members = [one for one in self.members() if one.state == "member"]
        if select == "all" and settings.queries is None:
            settings = replace(settings, queries=len(task.pool.distinct))
        request = RunRequest.make(
            name,
            task,
            members=members,
            settings=settings,
            source=source,
            select=select,
            patience_s=patience_s,
            seed=seed,
        )
        text = request.to_json()
        if self.home.path("runs", name).exists():
            raise RunRequestError("a run must have a name of its own", f"{name} again")
        with self._published(request.pool, task):
            return self.queue.add(name, text)

    @contextmanager
    def _published(self, pool: bytes, task: LearningTask) -> Iterator[None]:
        """Let members fetch a task, unless what follows fails; of one pool there is one task."""
        folder, content = self.home.path("pools"), task.to_bytes()
        path = folder / pool.hex()
        with _alone_in(folder):
            is_new = not path.exists()
            try:
                if is_new:
                    write_file(path, content)
                is_same = path.read_bytes() == content
            except OSError as error:
                raise RunRequestError("the folder must be writable", error.strerror) from error
            if not is_same:
                raise RunRequestError(
                    "inputs that were published must keep their task: its name, label and classes",
                    "another task",
                )
            try:
                yield
            except BaseException:
                if is_new:
                    path.unlink()
                raise

    def export(self, name: str, out: Path) -> list[str]:
        """Copy what a run gave into a new folder.

        Returns:
            The names of what was copied.

        Raises:
            RunQueueError: no such run, nothing of it is there yet, or the folder exists.
        """
        self.queue.find(name)
        source = results_of(self.home, name)
        if not source.is_dir():
            raise RunQueueError("a run that is exported must have ended with labels", "none yet")
        try:
            shutil.copytree(source, out)
        except OSError as error:
            raise RunQueueError("--out must be a new folder", error.strerror) from error
        return sorted(one.name for one in out.iterdir())


class Service:
    """What `pate-fed serve` runs.

    Args:
        coordinator: The federation.
        noise_bytes: Source of the noise; for tests, the only way to set it.
        on_stage: Called where a coordinator may be stopped; for tests.

    Raises:
        ServiceError: another service has the folder, or a port is taken.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        *,
        noise_bytes: RandomBytes = secrets.token_bytes,
        on_stage: OnStage = pass_by,
    ) -> None:
        self._coordinator = coordinator
        home = coordinator.home
        self._lock = _lock(home)
        _be_quiet(home)
        self._stopped = threading.Event()
        self.superlink = SuperLinkChild(home)
        settings = home.settings
        try:
            self.monitor = Monitor(
                self._probe(),
                metrics_port=settings.metrics_port,
                health_port=settings.health_port,
            )
        except BaseException:
            os.close(self._lock)
            raise
        self._worker = RunWorker(
            home,
            coordinator.queue,
            parties=coordinator.enrollment.parties,
            surroundings=Surroundings(
                open_transport=self._open_transport,
                random_bytes=secrets.token_bytes,
                noise_bytes=noise_bytes,
                wait=self._wait,
                on_stage=on_stage,
                on_exchange=self.monitor.note_exchange,
            ),
        )
        self._threads = [
            threading.Thread(target=target, name=name, daemon=True)
            for name, target in (("worker", self._work), ("members", self._let_in))
        ]

    @property
    def home(self) -> FederationHome:
        """The federation."""
        return self._coordinator.home

    def start(self) -> None:
        """Start everything; returns at once."""
        self.superlink.start()
        self.monitor.start()
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End everything. A run that is under way goes on with the next service."""
        self._stopped.set()
        for thread in self._threads:
            thread.join(_POLL_S * 4)
        self.superlink.stop()
        self.monitor.stop()
        os.close(self._lock)

    # Threads ----------------------------------------------------------------------------------

    def _work(self) -> None:
        """Take one run after the other; whatever comes in between, a run goes on from disk."""
        pause = _FIRST_PAUSE_S
        queue = self._coordinator.queue
        while not self._stopped.is_set():
            try:
                run = queue.next()
                if run is None or not self.superlink.is_ready:
                    if run is not None:
                        self._note_waiting(run)
                    self._stopped.wait(_POLL_S)
                    continue
                self._worker.work(run)
                pause = _FIRST_PAUSE_S
            except Exception as error:
                if self._stopped.is_set():
                    return
                reason = _reason(error)
                _log.exception("a run is interrupted and will go on: %s", reason)
                self._note_interruption(reason)
                self._stopped.wait(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_S)

    def _note_waiting(self, run: Run) -> None:
        """Say why nobody works on a run: its hospitals cannot be reached by anybody now."""
        reason = "waits for the SuperLink, which does not answer"
        if days_left(self.home.server_certificate, now=utc_now()) <= 0:
            reason = "waits for a server certificate: this one expired, see `pate-fed renew`"
        if run.reason != reason:
            self._coordinator.queue.enter(run.name, RunState.WAITING, reason)

    def _note_interruption(self, reason: str) -> None:
        try:
            run = self._coordinator.queue.next()
            if run is not None and run.state is not RunState.QUEUED:
                self._coordinator.queue.enter(
                    run.name, RunState.WAITING, f"interrupted, will go on: {reason}"
                )
        except CoordinatorError as error:
            _log.warning("the database does not answer: %s", error.code)

    def _let_in(self) -> None:
        """Let members' nodes in and put others out, at the start and whenever one is due."""
        enrollment = self._coordinator.enrollment
        is_due = True
        while not self._stopped.wait(_POLL_S):
            try:
                is_due = is_due or not enrollment.is_settled()
                if is_due and self.superlink.is_ready:
                    enrollment.settle(self._coordinator.superlink())
                    is_due = False
            except CoordinatorError as error:
                _log.warning("nodes could not be let in or put out: %s", error.code)
                self._stopped.wait(_FIRST_PAUSE_S)

    @contextmanager
    def _open_transport(self, nodes: int) -> Iterator[Transport]:
        with self._coordinator.superlink().grid() as grid:
            yield GridTransport(grid, nodes=nodes, timeout_s=EXCHANGE_S, wait_s=NODES_S)

    def _wait(self, seconds: float) -> None:
        if self._stopped.wait(seconds):
            raise _EndedError

    # Monitoring -------------------------------------------------------------------------------

    def _probe(self) -> Probe:
        home, coordinator = self._coordinator.home, self._coordinator

        def members() -> dict[str, int]:
            counts = dict.fromkeys(("requested", "member", "revoked"), 0)
            for one in coordinator.members():
                counts[one.state] += 1
            return counts

        def certificate_days() -> float:
            return days_left(home.server_certificate, now=utc_now())

        def is_ready() -> dict[str, bool]:
            coordinator.queue.all()
            return {
                "superlink": self.superlink.is_ready,
                "database": True,
                "worker": self._is_working(),
                "certificate": certificate_days() > 0,
            }

        return Probe(
            is_alive=self._is_working,
            is_ready=is_ready,
            runs=coordinator.queue.all,
            members=members,
            restarts=lambda: self.superlink.restarts,
            certificate_days=certificate_days,
        )

    def _is_working(self) -> bool:
        return all(thread.is_alive() for thread in self._threads)


class _EndedError(Exception):
    """The service ends; what was waited for, the next one waits for."""


def serve(
    folder: Path,
    *,
    noise_bytes: RandomBytes = secrets.token_bytes,
    on_stage: OnStage = pass_by,
    on_ready: Callable[[Service], None] = lambda _: None,
) -> None:
    """Serve a federation until the process is told to end.

    Call it in the main thread of a process that does nothing else: signals are its own.

    Args:
        folder: The federation's.
        noise_bytes: Source of the noise; for tests.
        on_stage: For tests; see `coordinator.stages`.
        on_ready: Called once the public port is served.

    Raises:
        ServiceError: another service has the folder, a port is taken, or the SuperLink does not
            start.
        CertificateError: the server's certificate has ended: no hospital would believe it.
    """
    home = FederationHome.open(folder.absolute())
    require_certificate(home, now=utc_now())
    # Flower interrupts its own process where a run of its is gone: only others may end us.
    waited = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    coordinator = Coordinator.open(folder)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, waited)
    try:
        service = Service(coordinator, noise_bytes=noise_bytes, on_stage=on_stage)
        service.start()
        try:
            if not service.superlink.wait_until_ready(_READY_S):
                if service.superlink.lacks_port:
                    raise ServiceError(
                        "the ports of federation.toml must be free", "one that is not: see the log"
                    )
                raise ServiceError("the SuperLink must start", "no answer in time")
            on_ready(service)
            while True:
                told = signal.sigwaitinfo(waited)
                if told.si_pid != os.getpid():
                    return
                _log.warning("Flower gave up a run of its own; ours goes on")
        finally:
            service.stop()
    finally:
        coordinator.close()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def require_certificate(home: FederationHome, *, now: datetime) -> None:
    """Refuse a certificate that has ended, and warn of one that soon will.

    Raises:
        CertificateError: it has ended, or cannot be read.
    """
    left = days_left(home.server_certificate, now=now)
    if left <= 0:
        raise CertificateError(
            "the server's certificate must be valid: `pate-fed renew` issues another",
            f"one that ended {-left:.0f} days ago",
        )
    if left < _FEW_DAYS:
        _log.warning("the server's certificate ends in %.0f days: `pate-fed renew`", left)


def _lock(home: FederationHome) -> int:
    """Take the folder for us alone."""
    descriptor = os.open(home.path("service.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise ServiceError("one service must have the folder", "another one has it") from error
    return descriptor


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Wait until no other process is in a folder of ours that takes it so."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _be_quiet(home: FederationHome) -> None:
    """Let Flower's parts in this process call nobody, and write into the folder alone."""
    os.environ.update(flower_variables(home))


def _reason(error: Exception) -> str:
    """Name an error: one of ours by its code, another by kind and place, never by its text."""
    if isinstance(error, CoordinatorError | ProtocolError | PateFedError):
        return said(error)
    return f"PF-490: {place_of(error)}"


def follow(
    queue: RunQueue,
    name: str,
    *,
    tell: Callable[[Run], None],
    sleep: Callable[[float], None] = time.sleep,
) -> Run:
    """Watch a run until it ends or rests; every change is told.

    A run that waits is offered again and again, and runs for that moment: not a change.
    """
    last: Run | None = None
    while True:
        run = queue.find(name)
        if last is None or _has_changed(last, run):
            tell(run)
            last = run
        if run.state in (RunState.DONE, RunState.FAILED, RunState.STOPPED, RunState.PAUSED):
            return run
        sleep(_POLL_S)


def _has_changed(last: Run, now: Run) -> bool:
    if last.progress != now.progress:
        return True
    is_offer = (last.state, now.state) == (RunState.WAITING, RunState.RUNNING)
    return not is_offer and (last.state, last.reason) != (now.state, now.reason)
