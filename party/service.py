"""A hospital's node as a service: its state on disk, its guard, its teachers, and who speaks to it.

One process per site. What its people decide at the command line (approvals, pins, a pause) is read
from their files and noted in the audit log; what the coordinator asks goes to the node. Teachers
are there before they are asked: loaded or trained at the start, loaded while nobody asks.
"""

from __future__ import annotations

import hashlib
import logging
import os
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from types import TracebackType
from typing import Self

from party.approvals import Approvals, Pause, State, Subject
from party.audit_file import AuditFile, SignedHead
from party.decisions import (
    BatchAccepted,
    BatchRefused,
    BatchSettled,
    Decision,
    RunAccepted,
    RunRefused,
)
from party.enrollment import CoordinatorDoor
from party.errors import LedgerFileError, PartyError, Reason, ServiceError
from party.file_journal import FileJournal
from party.flower_app import build
from party.flower_runtime import QUIET, Executor, SuperNodeSettings
from party.guard import Consent, Guard, run_digest
from party.ledger_file import FileLedgerStore
from party.node import PartyNode, PartyTask, Vote
from party.peers import PINS_FILE, Pins
from party.site import SETTINGS_FILE, Site
from party.status_file import FILE as STATUS_FILE
from party.status_file import FRESH_S, Status, write_status
from party.supernode_keeper import SuperNodeKeeper
from party.task_files import load_task, party_task
from party.training import load_teachers, ready_teachers
from pate_fed.accounting import PrivacyLedger
from pate_fed.data.task import LearningTask
from pate_fed.errors import PateFedError
from pate_fed.federation import RunTerms
from pate_fed.votes import TeacherWeights
from protocols import wire
from protocols.additive import AdditiveSum
from protocols.identity import PublicIdentity
from protocols.masked import MaskedSum
from protocols.secure_sum import SecureSum

APPROVALS_FILE = "approvals.json"
PAUSE_FILE = "pause.json"
LEDGER_FILE = "ledger.json"
JOURNAL = "journal"
AUDIT = ("log", "audit")

_FORMS: tuple[Callable[[], SecureSum], ...] = (AdditiveSum, MaskedSum)
_LOOK_S, _TRY_AGAIN_S = 1.0, 60.0
"""How often the files of the hospital's people are looked at while nobody asks, and how often
teachers that were not ready are tried again."""

_ASK_S, _ASK_AGAIN_S = 60.0, 10.0
"""How often the coordinator is asked who is a member, and how soon again if it did not say."""

_log = logging.getLogger(__name__)

VoteOf = Callable[[Site, LearningTask], Vote]
"""Gives the teachers of a task, for tests; in a service they are those of `party.training`."""


class PartyService:
    """A hospital's node with its state on disk; the door that packets come through.

    Args:
        site: The hospital's folder.
        random_bytes: Cryptographic random numbers.
        clock: Unix time, in seconds.
        vote_of: Other teachers, in tests.

    Raises:
        JournalLockedError: another process is this site's node.
        JournalError, LedgerFileError, AuditLogError: what must be remembered cannot be.
        ApprovalError, PinError: a file of the hospital's people cannot be read.
    """

    def __init__(
        self,
        site: Site,
        *,
        random_bytes: Callable[[int], bytes] = secrets.token_bytes,
        clock: Callable[[], float] = time.time,
        vote_of: VoteOf | None = None,
    ) -> None:
        self._site = site
        self._random_bytes = random_bytes
        self._clock = clock
        self._vote_of = vote_of
        self._approvals = Approvals(site.path(APPROVALS_FILE))
        self._pause = Pause(site.path(PAUSE_FILE))
        self._tasks: dict[bytes, PartyTask] = {}
        self._seen: tuple[object, ...] = ()
        self._heard: Mapping[bytes, PublicIdentity] = {}
        self._tried: tuple[object, float] | None = None
        self._task_trouble = ""
        self._looked_at = self._said_at = 0.0
        self._status = Status("starting", clock(), os.getpid())
        self.supernode: SuperNodeKeeper | None = None
        # Its lock is the site's: whoever comes second stops here.
        self._journal = FileJournal(site.path(JOURNAL))
        try:
            self._ledger = _open_ledger(site, self._journal)
            self._audit = AuditFile(site.path(*AUDIT))
        except BaseException:
            self._journal.close()
            raise
        try:
            self._note_settings()
            self._load_tasks(train=True)
            self._node = self._open_node()
            self._refresh()
        except BaseException:
            self.close()
            raise

    # What others may know ---------------------------------------------------------------------

    @property
    def status(self) -> Status:
        """How it stands."""
        return self._status

    @property
    def ledger(self) -> PrivacyLedger:
        """What the hospital was charged, for life."""
        return self._ledger.load()

    @property
    def signed_head(self) -> SignedHead:
        """Where the audit log stands."""
        return SignedHead.sign(self._audit.count, self._audit.head, self._site.identity)

    # Calls ------------------------------------------------------------------------------------

    def receive(self, packet: bytes) -> bytes:
        """Answer one packet; what its people decided until now holds for it.

        Raises:
            ApprovalError, PinError, AuditLogError: their files cannot be read, or what they say
                cannot be noted: nothing is answered.
        """
        self._status = replace(self._status, last_message_at=self._clock())
        self._refresh()
        try:
            return self._node.receive(packet)
        finally:
            self._say()

    def idle(self) -> None:
        """Look, now and then, at what its people decided; called while nobody asks."""
        now = self._clock()
        if not 0 <= now - self._looked_at < _LOOK_S:
            self._looked_at = now
            try:
                self._load_tasks(train=False)
                self._refresh()
                self._status = replace(self._status, trouble=self._task_trouble)
            except (PartyError, PateFedError) as error:
                _log.error("what was decided here cannot be read: %s", error.code)
                self._status = replace(self._status, trouble=error.code)
                self._say()
        if not 0 <= now - self._said_at < FRESH_S / 4:
            self._say()

    def hear(self, peers: Mapping[bytes, PublicIdentity]) -> None:
        """Take the coordinator's word for who else is a member.

        Whoever is in a run must be known, but a peer that is known by hearsay alone counts for
        nothing: the guard takes it for an ally of the coordinator.

        Args:
            peers: Identities by fingerprint.
        """
        self._heard = dict(peers)

    def close(self) -> None:
        """Say that it is over, and let go of all files."""
        self._status = replace(self._status, state="stopped")
        self._say()
        self._audit.close()
        self._journal.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # What its people decided --------------------------------------------------------------------

    def _refresh(self) -> None:
        """Let the node know what its people decided since, and note it."""
        seen: tuple[object, ...] = (
            *(_stamp(self._site, name) for name in (APPROVALS_FILE, PAUSE_FILE, PINS_FILE)),
            len(self._tasks),
            frozenset(self._heard),
        )
        if seen == self._seen:
            return
        pins = Pins(self._site.path(PINS_FILE))
        guard = self._guard(pins)
        self._note_people(pins)
        self._node.adopt(guard=guard, pins=self._known(pins), tasks=self._tasks)
        self._seen = seen
        self._status = replace(
            self._status,
            tasks=len(guard.policy.approved_pools),
            waiting=len(self._approvals.pending()),
        )
        self._say()

    def _guard(self, pins: Pins) -> Guard:
        settings = self._site.settings
        approved = self._approvals.approved(Subject.POOL) & self._tasks.keys()
        runs = None if settings.approval == "pool" else self._approvals.approved(Subject.RUN)
        return Guard(
            policy=settings.policy_for(frozenset(approved)),
            weights=TeacherWeights.of((1,) * settings.teachers),
            checked_peers=pins.checked(),
            consent=Consent(runs, self._pause.state().is_paused),
        )

    def _known(self, pins: Pins) -> Mapping[bytes, PublicIdentity]:
        return {**self._heard, **pins.pins()}

    def _note_settings(self) -> None:
        content = self._site.path(SETTINGS_FILE).read_bytes()
        digest = hashlib.sha256(content).digest()
        self._audit.append_if_changed("settings", at=self._clock(), digest=digest)

    def _note_people(self, pins: Pins) -> None:
        for one in self._approvals.all():
            if one.state is not State.PENDING:
                self._audit.append_once(
                    one.state.value,
                    at=self._clock(),
                    subject=one.subject.value,
                    digest=one.digest,
                    by=one.by,
                    decided_at=str(one.decided_at),
                )
        pause = self._pause.state()
        if pause.by:
            word = "paused" if pause.is_paused else "resumed"
            self._audit.append_once(word, at=self._clock(), by=pause.by, decided_at=str(pause.at))
        checked = b"".join(sorted(pins.checked()))
        if checked or self._audit.count > 1:
            self._audit.append_if_changed("pins", at=self._clock(), fingerprints=checked)

    def _load_tasks(self, *, train: bool) -> None:
        """Make the teachers of every approved pool ready; one that cannot be is left out."""
        stamp, now = _stamp(self._site, APPROVALS_FILE), self._clock()
        if self._tried == (stamp, now // _TRY_AGAIN_S):
            return  # a table is hashed for it: not every second
        self._tried = stamp, now // _TRY_AGAIN_S
        trouble = ""
        for pool in sorted(self._approvals.approved(Subject.POOL) - self._tasks.keys()):
            try:
                task = load_task(self._site, pool)
                if task is None:
                    raise ServiceError("an approved pool must be kept: approve it again", "none")
                self._tasks[pool] = self._party_task(task, train=train)
            except (PartyError, PateFedError) as error:
                _log.error("the teachers of an approved pool are not ready: %s", error.code)
                trouble = error.code
        self._task_trouble = trouble

    def _party_task(self, task: LearningTask, *, train: bool) -> PartyTask:
        if self._vote_of is not None:
            return PartyTask(
                task.pool,
                self._vote_of(self._site, task),
                len(task.class_names),
                task.digest,
            )
        if train:
            ensemble = ready_teachers(self._site, task, random_bytes=self._random_bytes)
        else:  # training takes long, and somebody may ask any moment
            ensemble = load_teachers(self._site, task)
        return party_task(task, ensemble)

    # What the node decides ----------------------------------------------------------------------

    def _open_node(self) -> PartyNode:
        pins = Pins(self._site.path(PINS_FILE))
        return PartyNode(
            identity=self._site.identity,
            coordinator=self._site.coordinator,
            pins=self._known(pins),
            guard=self._guard(pins),
            tasks=self._tasks,
            forms={form.name: form for form in (make() for make in _FORMS)},
            journal=self._journal,
            ledger=self._ledger,
            random_bytes=self._random_bytes,
            clock=self._clock,
            tell=self._note,
        )

    def _note(self, decision: Decision) -> None:
        """Write a decision down before anything that follows from it leaves."""
        at = self._clock()
        match decision:
            case RunRefused(_, reason, terms, seats):
                self._audit.append_if_changed(
                    "run refused", at=at, code=reason.value, terms=hashlib.sha256(terms).digest()
                )
                if reason in (Reason.POOL, Reason.APPROVAL):
                    self._ask_people(terms, seats)
                self._count(reason, at)
            case RunAccepted(run_id, terms, seats):
                self._audit.append(
                    "run accepted", at=at, run=run_id, terms=run_digest(terms, seats)
                )
                accepted = self._status.runs_accepted + 1
                self._status = replace(self._status, run=run_id.hex(), runs_accepted=accepted)
            case BatchAccepted(plan_digest, queries, charge):
                price = "none" if charge is None else repr(charge)
                self._audit.append(
                    "batch answered", at=at, plan=plan_digest, queries=queries, reserved=price
                )
                answered = self._status.batches_answered + 1
                self._status = replace(self._status, batches_answered=answered)
            case BatchRefused(plan_digest, reason):
                self._audit.append("batch refused", at=at, plan=plan_digest, code=reason.value)
                refused = self._status.batches_refused + 1
                self._status = replace(self._status, batches_refused=refused)
                self._count(reason, at)
            case BatchSettled(plan_digest, state):
                self._audit.append("batch settled", at=at, plan=plan_digest, state=state)

    def _ask_people(self, content: bytes, seats: tuple[bytes, ...]) -> None:
        terms = RunTerms.from_record(wire.decode_value(content))
        at = self._clock()
        self._approvals.ask(Subject.POOL, terms.pool_digest, terms=content, seats=seats, at=at)
        if self._site.settings.approval == "each run":
            digest = run_digest(terms, seats)
            self._approvals.ask(Subject.RUN, digest, terms=content, seats=seats, at=at)

    def _count(self, reason: Reason, at: float) -> None:
        self._status = replace(self._status, last_refusal=reason.value, last_refusal_at=at)

    # Saying how it stands -----------------------------------------------------------------------

    def _say(self) -> None:
        """Write the status; that it cannot be written stops nothing."""
        self._said_at = now = self._clock()
        keeper, state = self.supernode, self._status.state
        if state != "stopped":
            state = "connecting" if keeper is None or keeper.pid is None else "ready"
            if self._is_paused():
                state = "paused"
        node = getattr(self, "_node", None)
        self._status = replace(
            self._status,
            state=state,
            at=now,
            round_state="" if node is None else node.state.value,
            supernode_starts=0 if keeper is None else keeper.starts,
        )
        try:
            write_status(self._site.path(STATUS_FILE), self._status)
        except OSError as error:
            _log.error("the status cannot be written: %s", error.strerror)

    def _is_paused(self) -> bool:
        try:
            return self._pause.state().is_paused
        except PartyError:
            return True

    def __repr__(self) -> str:
        return f"PartyService({self._site.settings.party}, {self._status.state})"


def serve(service: PartyService, site: Site, *, stopped: threading.Event) -> None:
    """Keep a SuperNode beside the service and answer what it brings, until told to stop.

    Everything ends in order: the message that is being answered, the SuperNode, the files.

    Args:
        service: The node; it is closed in the end.
        site: Its folder.
        stopped: Set to end it.
    """
    settings = SuperNodeSettings(
        superlink=site.settings.address,
        ca_certificate=site.path("ca.crt"),
        private_key=site.path("node.key"),
        secret=site.path("node.secret"),
        port=site.settings.node_port,
    )
    keeper = SuperNodeKeeper(
        settings.command(),
        environment={**os.environ, **QUIET, "FLWR_HOME": str(site.path("flower"))},
        log=site.path("log", "supernode.log"),
    )
    executor = Executor(
        build(lambda _: service),
        address=f"127.0.0.1:{site.settings.node_port}",
        secret=site.node_secret,
    )
    site.path("flower").mkdir(mode=0o700, exist_ok=True)
    service.supernode = keeper
    keeper.start()
    threading.Thread(target=_listen, args=(service, site, stopped), daemon=True).start()
    try:
        executor.run(stopped, on_idle=service.idle)
    finally:
        keeper.close()
        service.close()


def _listen(service: PartyService, site: Site, stopped: threading.Event) -> None:
    """Ask now and then who is a member: whoever joined since may be in the next run."""
    while not stopped.is_set():
        pause_s = _ASK_S
        try:
            with closing(CoordinatorDoor(site, clock=time.time)) as door:
                keys = [PublicIdentity(key) for key in door.membership().peer_keys]
            service.hear({identity.fingerprint: identity for identity in keys})
        except Exception as error:
            _log.warning("the coordinator does not say who is a member: %s", type(error).__name__)
            pause_s = _ASK_AGAIN_S
        stopped.wait(pause_s)


def _open_ledger(site: Site, journal: FileJournal) -> FileLedgerStore:
    path, settings = site.path(LEDGER_FILE), site.settings
    if journal.count() and not path.exists():
        # A new one would forget what those answers cost.
        raise LedgerFileError("the ledger must be there: queries were answered", "none")
    budget = PrivacyLedger.for_life(settings.lifetime_epsilon, settings.delta)
    return FileLedgerStore(path, budget=budget)


def _stamp(site: Site, name: str) -> tuple[int, int, int] | None:
    try:
        found = site.path(name).stat()
    except FileNotFoundError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
