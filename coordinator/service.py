"""The parts of `pate-fed serve`: SuperLink, worker, admission of nodes, monitoring.

The SuperLink is a supervised process; the others are threads. The operator's orders are read from
the database alone, so a kill of either loses nothing.
"""

from __future__ import annotations

import logging
import os
import secrets
import signal
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Final

import httpx

from coordinator.certificates import days_left, end_of, is_pair
from coordinator.errors import (
    CertificateError,
    CoordinatorError,
    DatabaseError,
    ServiceError,
    SuperLinkError,
)
from coordinator.federation.enrollment import EnrolledParty
from coordinator.federation.home import LOCK_FILE, LOOPBACK, SETTINGS_FILE, FederationHome, utc_now
from coordinator.flower.server_app import GridTransport
from coordinator.flower.superlink_child import SuperLinkChild
from coordinator.flower.superlink_client import forget_delivered
from coordinator.monitoring import Monitor, Probe
from coordinator.operator import Coordinator, be_quiet, erase_ended
from coordinator.operator_news import news_of
from coordinator.runs.later_steps import said
from coordinator.runs.queue import PAUSE, Run, RunState
from coordinator.runs.stages import BatchStage, OnStage, pass_by
from coordinator.runs.transport import Transport
from coordinator.runs.worker import RunWorker
from coordinator.runs.worker_resources import WorkerResources
from pate_fed.mechanisms import RandomBytes
from pate_fed.nodes import facts, take_lock
from pate_fed.nodes.forwarding import Forwarder
from pate_fed.nodes.notices import LAST_S, Notifier
from pate_fed.nodes.ports import listen

EXCHANGE_S: Final = 300.0
"""Longest exchange."""

NODES_S: Final = 60.0
"""How long to wait for absent hospitals: as long as a killed SuperNode is refused."""

COPIES_FILE: Final = "audit-copies.json"
"""File that remembers which audit entries were copied elsewhere."""

_POLL_S: Final = 0.5
_ERASE_S: Final = 3600.0
_READY_S: Final = 180.0
_FEW_DAYS: Final = 30.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 2.0, 60.0
_MOST_FAILURES: Final = 5
"""Failures without progress after which a run is ended."""

_PASSING: Final = (DatabaseError, SuperLinkError, OSError, httpx.HTTPError)
"""Faults that pass or can be mended: a full disk, a database or Flower away."""

_log = logging.getLogger(__name__)


class Service:
    """The service of `pate-fed serve`. Tests alone set the noise's source and `on_stage`.

    Raises:
        HomeError: a secret cannot be read, or others may read it.
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
        be_quiet(home)
        self._stopped = threading.Event()
        self._run = ""  # the current one, or the last
        self._stores = True  # the last write could be stored
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
            resources=WorkerResources(
                open_transport=self._open_transport,
                random_bytes=secrets.token_bytes,
                noise_bytes=noise_bytes,
                wait=self._wait,
                on_stage=self._forgetting(on_stage),
                on_exchange=self.monitor.note_exchange,
            ),
        )
        self._threads = [
            threading.Thread(target=target, name=name, daemon=True)
            for name, target in (
                ("worker", self._work),
                ("members", self._let_in),
                ("erasing", self._erase),
            )
        ]
        self._failures: Counter[tuple[str, int]] = Counter()
        copies = Forwarder(
            settings.audit,
            coordinator.audit_log,
            places=home.path(COPIES_FILE),
            program="pate-fed",
        )
        self._copying = threading.Thread(
            target=copies.run, args=(self._stopped,), name="audit copies", daemon=True
        )
        news = Notifier(
            settings.notify,
            home.folder,
            node=settings.name,
            look=partial(news_of, coordinator, since=utc_now()),
        )
        self._telling = threading.Thread(
            target=news.run, args=(self._stopped,), name="notices", daemon=True
        )

    @property
    def home(self) -> FederationHome:
        """The federation."""
        return self._coordinator.home

    def start(self) -> None:
        """Start everything; returns at once."""
        self.superlink.start()
        self.monitor.start()
        for thread in (*self._threads, self._copying, self._telling):
            thread.start()

    def stop(self) -> None:
        """End everything. A run that is under way goes on with the next service."""
        self._stopped.set()
        for thread in self._threads:
            thread.join(_POLL_S * 4)
        self._telling.join(LAST_S)
        self.superlink.stop()
        self.monitor.stop()
        os.close(self._lock)

    # Threads ----------------------------------------------------------------------------------

    def _work(self) -> None:
        """Take one run after the other; after any break, a run goes on from disk."""
        pause = _FIRST_PAUSE_S
        queue = self._coordinator.queue
        while not self._stopped.is_set():
            run = None
            try:
                run = queue.next() if self.superlink.is_ready else self._next_without_hospitals()
                if run is None:
                    self._stopped.wait(_POLL_S)
                    continue
                self._run = run.name
                self._worker.work(run)
                pause = _FIRST_PAUSE_S
            except Exception as error:
                if self._stopped.is_set():
                    return
                _log.exception("work is interrupted: %s", _reason(error))
                if run is not None:
                    self._note_interruption(run, error)
                self._stopped.wait(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_S)

    def _next_without_hospitals(self) -> Run | None:
        """Return a run to work on while no hospital can be reached: one that ends.

        A run that is to be paused is paused, and the next one shows its reason for waiting.
        """
        queue = self._coordinator.queue
        for run in queue.all():
            if run.wanted == PAUSE:
                queue.rest(run.name)
            elif run.state is RunState.STOPPING and not run.is_begun:
                return run
        waits = queue.next()
        if waits is not None:
            self._note_waiting(waits)
        return None

    def _note_waiting(self, run: Run) -> None:
        """Report why nobody works on a run: its hospitals cannot be reached now."""
        reason = "waits for the SuperLink, which does not answer"
        if end_of(self.home.server_certificate) <= utc_now():
            reason = (
                "waits for a server certificate: this one expired; the machine's administrator "
                "issues another, by `pate-fed renew`"
            )
        if run.reason != reason:
            self._coordinator.queue.enter(run.name, RunState.WAITING, reason)

    def _note_interruption(self, run: Run, error: Exception) -> None:
        """Report that a run will go on, or end one without progress."""
        queue, reason = self._coordinator.queue, _reason(error)
        try:
            if self._is_hopeless(queue.find(run.name), error):
                self._worker.give_up(run, reason)
            else:
                queue.enter(run.name, RunState.WAITING, f"interrupted, will go on: {reason}")
        except CoordinatorError as again:
            self._stores = False
            _log.warning("the database does not answer: %s", again.code)

    def _is_hopeless(self, run: Run, error: Exception) -> bool:
        """Whether a run in its present state would fail for ever, and block all others.

        A passing fault is none of the run's. A run that is told to stop ends all the same.
        """
        is_stopping, passes = run.state is RunState.STOPPING, _passes(error)
        if passes and not is_stopping:
            return False
        place = run.name, run.progress.batches
        self._failures[place] += 1
        return (is_stopping and not passes) or self._failures[place] >= _MOST_FAILURES

    def _let_in(self) -> None:
        """Let members' nodes in and put others out, at the start and whenever one is due."""
        enrollment = self._coordinator.enrollment
        is_due = True
        known: dict[bytes, str] | None = None
        while not self._stopped.wait(_POLL_S):
            try:
                known = _tell_of_members(known, enrollment.parties())
                is_due = is_due or not enrollment.is_settled()
                if is_due and self.superlink.is_ready:
                    enrollment.settle(self._coordinator.superlink())
                    is_due = False
            except Exception as error:
                _log.warning("nodes could not be let in or put out: %s", _reason(error))
                self._stopped.wait(_FIRST_PAUSE_S)

    def _erase(self) -> None:
        """Erase keys and reports of verified votes once nobody may audit them any more."""
        while True:
            try:
                erased = erase_ended(self._coordinator)
                if erased:
                    _log.info("keys of %d ended setups are erased", erased)
            except CoordinatorError as error:
                _log.warning("ended runs could not be erased: %s", error.code)
            if self._stopped.wait(_ERASE_S):
                return

    @contextmanager
    def _open_transport(self, nodes: Collection[int]) -> Iterator[Transport]:
        self._stores = True  # a run was just taken up
        superlink = self._coordinator.superlink()
        try:
            with superlink.grid(is_over=self._stopped.is_set) as grid:
                yield GridTransport(grid, nodes=nodes, timeout_s=EXCHANGE_S, wait_s=NODES_S)
        finally:
            self._forget()

    def _forgetting(self, on_stage: OnStage) -> OnStage:
        """Make Flower's database forget a batch's messages when the batch ends; log its start."""

        def note(stage: BatchStage) -> None:
            if stage is BatchStage.PLANNED:
                extra = facts("batch asked", run=self._run)
                _log.info("run %s: a batch is asked", self._run, extra=extra)
            if stage in (BatchStage.STORED, BatchStage.VOID_STORED):
                self._forget()
            on_stage(stage)

        return note

    def _forget(self) -> None:
        forget_delivered(self._coordinator.home.path("superlink.db"))

    def _wait(self, seconds: float) -> None:
        if self._stopped.wait(seconds):
            raise _EndedError

    # Monitoring -------------------------------------------------------------------------------

    def _probe(self) -> Probe:
        home, coordinator = self._coordinator.home, self._coordinator

        def members() -> dict[str, int]:
            counts = dict.fromkeys(("requested", "member", "suspended", "revoked"), 0)
            for one in coordinator.enrollment.parties():
                counts[one.state] += 1
            return counts

        def certificate_end() -> datetime:
            return end_of(home.server_certificate)

        def is_ready() -> dict[str, bool]:
            coordinator.queue.all()
            return {
                "superlink": self.superlink.is_ready,
                "database": self._stores,
                "worker": self._is_working(),
                "certificate": certificate_end() > utc_now(),
            }

        return Probe(
            is_alive=self._is_working,
            is_ready=is_ready,
            runs=coordinator.queue.all,
            members=members,
            restarts=lambda: self.superlink.ends,
            certificate_end=certificate_end,
        )

    def _is_working(self) -> bool:
        return self.superlink.is_kept and all(thread.is_alive() for thread in self._threads)


class _EndedError(Exception):
    """The service ends; the next one goes on waiting."""


def serve(
    folder: Path,
    *,
    noise_bytes: RandomBytes = secrets.token_bytes,
    on_stage: OnStage = pass_by,
    on_ready: Callable[[Service], None] = lambda _: None,
) -> None:
    """Serve a federation until the process is told to end; call `on_ready` once the port is served.

    Call it in the main thread of a process that does nothing else: signals are its own.

    Raises:
        ServiceError: another service has the folder, a port is taken, the host is not this
            machine's, or the SuperLink does not start.
        CertificateError: the server's certificate has expired: no hospital would trust it.
    """
    home = FederationHome.open(folder.absolute())
    home.require_secrets()
    require_certificate(home, now=utc_now())
    require_host(home)
    # Flower interrupts its own process where its run is gone: only other processes may end us.
    waited = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    coordinator = Coordinator.open(folder, upgrades=True)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, waited)
    try:
        service = Service(coordinator, noise_bytes=noise_bytes, on_stage=on_stage)
        service.start()
        try:
            if not service.superlink.wait_until_ready(_READY_S):
                if service.superlink.lacks_port:
                    require_ports(home)
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


def require_host(home: FederationHome) -> None:
    """Refuse a host that is no address of this machine: no second try would mend it."""
    host = home.settings.host
    try:
        listen(host, 0, fault=ServiceError).close()
    except ServiceError as error:
        raise ServiceError(
            f"host in {SETTINGS_FILE} must be an address of this machine; 0.0.0.0 serves all",
            f"{host} ({error.got})",
        ) from error


def require_ports(home: FederationHome) -> None:
    """Name the port that the SuperLink lacks, as another process has it: a `ServiceError`."""
    settings = home.settings
    for host, port in ((settings.host, settings.port), (LOOPBACK, settings.admin_port)):
        listen(host, port, fault=ServiceError).close()


def require_certificate(home: FederationHome, *, now: datetime) -> None:
    """Refuse a certificate that has expired or fits another key; warn of one that expires soon."""
    if not is_pair(home.server_certificate, home.server_key):
        raise CertificateError(
            "the server's certificate must be that of its key: `pate-fed renew` makes both anew",
        )
    left = days_left(home.server_certificate, now=now)
    if left <= 0:
        raise CertificateError(
            "the server's certificate must be valid: `pate-fed renew` issues another",
            f"one that ended {-left:.0f} days ago",
        )
    if left < _FEW_DAYS:
        _log.warning("the server's certificate ends in %.0f days: `pate-fed renew`", left)


def _tell_of_members(
    known: Mapping[bytes, str] | None, parties: Sequence[EnrolledParty]
) -> dict[bytes, str]:
    """Log the hospitals that asked, were approved or revoked since the last look.

    Takes and returns the state of each, by fingerprint; None for the first time.
    """
    now = {one.identity.fingerprint: one.state for one in parties}
    before = now if known is None else known
    for one in parties:
        was = before.get(one.identity.fingerprint)
        if one.state != was:
            let_in = "reinstated" if was == "suspended" else "approved"
            event = let_in if one.state == "member" else one.state
            extra = facts(f"hospital {event}", hospital=one.name)
            _log.info("hospital %s: %s", one.name, event, extra=extra)
    return now


def _lock(home: FederationHome) -> int:
    try:
        return take_lock(home.path(LOCK_FILE))
    except BlockingIOError as error:
        raise ServiceError("one service must have the folder", "another one has it") from error
    except OSError as error:
        raise ServiceError("the folder's lock must be made", error.strerror) from error


def _passes(error: BaseException | None) -> bool:
    """Whether an error came of a passing fault."""
    while error is not None:
        if isinstance(error, _PASSING):
            return True
        error = error.__cause__
    return False


def _reason(error: Exception) -> str:
    if isinstance(error, httpx.HTTPError):  # from within Flower's grid
        error = SuperLinkError("the SuperLink must answer", type(error).__name__)
    return said(error)
