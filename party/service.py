"""A hospital's node as a service: its database, its guard, its teachers, and who speaks to it.

One process per site is its node. What its people decide at the command line (approvals, pins, a
pause) they write into the same database, and it holds for the next packet; what the coordinator
asks goes to the node. Teachers are there before they are asked: loaded or trained at the start,
loaded while nobody asks.
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

from party.audit import read_head, sign_head
from party.decisions import (
    BatchAccepted,
    BatchRefused,
    Decision,
    RunAccepted,
    RunRefused,
    record_of,
)
from party.enrollment import CoordinatorDoor
from party.errors import (
    BrokenAuditLogError,
    JournalLockedError,
    PartyError,
    Reason,
    RefusalError,
    TooManyPendingError,
)
from party.flower_app import build
from party.flower_runtime import LOOPBACK, Executor, SuperNodeSettings, quiet_environment
from party.guard import Consent, Guard, RunScope
from party.node import PartyNode, PartyTask, Vote
from party.refusals import Refusals
from party.site import Site
from party.site_records import Decided, SiteRecords, Subject
from party.status_file import FILE as STATUS_FILE
from party.status_file import FRESH_S, Status, write_status
from party.storage import AuditLog, SqlJournal, SqlLedgerStore
from party.supernode_keeper import SuperNodeKeeper
from party.tasks import party_task, read_task
from party.training import load_teachers, ready_teachers
from pate_fed.accounting import PrivacyLedger
from pate_fed.data.task import LearningTask
from pate_fed.errors import PateFedError
from pate_fed.federation import RunTerms
from pate_fed.votes import TeacherWeights
from protocols import wire
from protocols.additive import AdditiveSum
from protocols.errors import RestoredJournalError
from protocols.identity import PublicIdentity
from protocols.masked import MaskedSum
from protocols.messages import Membership
from protocols.secure_sum import SecureSum

_FORMS: tuple[Callable[[], SecureSum], ...] = (AdditiveSum, MaskedSum)
_LOOK_S, _TRY_AGAIN_S = 1.0, 60.0
"""How often the decisions of the hospital's people are looked at while nobody asks, and how often
teachers that were not ready are tried again."""

_ASK_S, _ASK_AGAIN_S = 60.0, 10.0
"""How often the coordinator is asked who is a member, and how soon again if it did not say."""

_log = logging.getLogger(__name__)

VoteOf = Callable[[Site, LearningTask], Vote]
"""Gives the teachers of a task, for tests; in a service they are those of `party.training`."""


class PartyService:
    """A hospital's node with its state in its database; the door that packets come through.

    Args:
        site: The hospital's folder.
        random_bytes: Cryptographic random numbers.
        clock: Unix time, in seconds.
        vote_of: Other teachers, in tests.

    Raises:
        JournalLockedError: another process is this site's node.
        StorageError, JournalError, RecordError: what must be remembered cannot be.
        BrokenAuditLogError: somebody changed the audit log.
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
        self._tasks: dict[bytes, PartyTask] = {}
        self._seen: tuple[object, ...] = ()
        self._heard: Mapping[bytes, PublicIdentity] = {}
        self._membership = "", 0.0  # set by the thread that listens, hence not in the status
        self._found_head = b""
        self._tried: tuple[object, float] | None = None
        self._task_trouble = ""
        self._looked_at = self._said_at = 0.0
        self._status = Status("starting", clock(), os.getpid())
        self.supernode: SuperNodeKeeper | None = None
        try:
            self._open()
        except JournalLockedError:
            raise  # the node that runs says how it stands
        except (PartyError, PateFedError) as error:
            self._status = replace(self._status, state="stopped", trouble=error.code)
            self._write_status()
            raise

    def _open(self) -> None:
        site = self._site
        self._database = site.open_database()
        try:
            # Its lock is the site's: whoever comes second stops here.
            self._journal = SqlJournal(self._database)
            self._say_starting()
            settings = site.settings
            budget = PrivacyLedger.for_life(settings.lifetime_epsilon, settings.delta)
            self._ledger = SqlLedgerStore(self._database, budget=budget, clock=self._clock)
            self._records = SiteRecords(self._database, clock=self._clock)
            self._audit = AuditLog(self._database)
            self._audit.verify(heads=self._records.witness())
            self._refusals = Refusals(self._audit)
            # Of what is in use, not of what the file says by now.
            self._records.note_settings(file=site.settings_digest, table=settings.data.digest)
            self._decided = self._records.decided()
            self._load_tasks(train=True)
            self._node = self._open_node()
            self._refresh()
        except BaseException:
            self._database.close()
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

    # Calls ------------------------------------------------------------------------------------

    def receive(self, packet: bytes) -> bytes:
        """Answer one packet; what its people decided until now holds for it.

        Raises:
            StorageError, JournalError: what they decided cannot be read: nothing is answered.
        """
        self._status = replace(self._status, last_message_at=self._clock())
        try:
            self._refresh()
        except PartyError as error:
            self._count_fault(error.code)
            raise
        answer = self._node.receive(packet)
        if self._node.fault:
            self._count_fault(self._node.fault)
        else:
            self._say()
        return answer

    def idle(self) -> None:
        """Look, now and then, at what its people decided; called while nobody asks."""
        now = self._clock()
        if not 0 <= now - self._looked_at < _LOOK_S:
            self._looked_at = now
            try:
                self._decided = self._records.decided()
                self._load_tasks(train=False)
                self._refresh()
                self._show_trouble(self._standing_trouble())
            except (PartyError, PateFedError) as error:
                _log.error("what was decided here cannot be read: %s", error.code)
                self._show_trouble(error.code)
        if not 0 <= now - self._said_at < FRESH_S / 4:
            self._say()

    @property
    def has_heard(self) -> bool:
        """Whether the coordinator was heard since the start: before that, nothing is answered.

        Else a node whose database was put back would answer until it is told.
        """
        return bool(self._membership[0])

    @property
    def is_revoked(self) -> bool:
        """Whether the coordinator said last that it revoked this hospital."""
        return self._membership[0] == "revoked"

    def signed_head(self) -> bytes:
        """Say where the audit log stands, for the coordinator to keep."""
        return sign_head(*self._audit.end, self._site.identity)

    def ask_about_ourselves(self, door: CoordinatorDoor) -> None:
        """Say where our audit log stands, and hear what the coordinator holds of us, and of whom.

        Args:
            door: The coordinator's.

        Raises:
            EnrollmentError: it cannot be reached, or its answer is not for us.
            StorageError: what it holds against us could not be written down: ask again.
        """
        answer = door.membership(audit_head=self.signed_head(), goes_on_from=self._found_head)
        self.hear(answer)

    def hear(self, membership: Membership) -> None:
        """Take the coordinator's word for who else is a member, and its witness against ourselves.

        Whoever is in a run must be known, but a peer that is known by hearsay alone counts for
        nothing: the guard takes it for an ally of the coordinator. It holds a head that this site
        signed of its audit log: a log that does not go on from there was put back, cut or written
        anew, and the node answers nothing any more. It keeps that head until we say that we found
        it: an answer that is lost changes nothing.

        Args:
            membership: Its answer, which was checked.

        Raises:
            StorageError: what it holds against us could not be written down: ask again.
        """
        if membership.audit_head:
            self._compare(membership.audit_head)
        identities = [PublicIdentity(key) for key in membership.peer_keys]
        self._heard = {identity.fingerprint: identity for identity in identities}
        self._membership = membership.state, self._clock()

    def _compare(self, audit_head: bytes) -> None:
        count, head = read_head(audit_head, self._site.identity.public)
        if self._audit.goes_on_from(count, head):
            self._found_head = hashlib.sha256(audit_head).digest()
        elif not self._records.witness():
            _log.error("the audit log does not go on from what was signed before")
            self._records.note_witness(count, head)

    def close(self) -> None:
        """Say that it is over, and let go of the database."""
        self._status = replace(self._status, state="stopped")
        self._say()
        self._database.close()

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
        """Let the node know what its people decided since."""
        self._decided = decided = self._records.decided()
        if decided.contradicted_at is not None:
            raise BrokenAuditLogError(
                "it and those before it must be what we signed",
                "others",
                number=decided.contradicted_at,
            )
        if decided.halted_at:
            self._records.note_halt(decided.halted_at)
        seen = (decided, len(self._tasks), frozenset(self._heard))
        if seen == self._seen:
            return
        guard = self._guard(decided)
        self._node.adopt(guard=guard, pins=self._known(decided), tasks=self._tasks)
        self._seen = seen
        self._status = replace(
            self._status, tasks=len(guard.policy.approved_pools), waiting=decided.waiting
        )
        self._say()

    def _guard(self, decided: Decided) -> Guard:
        settings = self._site.settings
        approved = decided.approved_pools & self._tasks.keys()
        runs = decided.approved_runs if self._asks_about_runs else None
        return Guard(
            policy=settings.policy_for(frozenset(approved)),
            weights=TeacherWeights.of((1,) * settings.teachers),
            checked_peers={pin.identity.fingerprint: pin.body for pin in decided.pins},
            consent=Consent(runs, decided.is_paused),
        )

    def _known(self, decided: Decided) -> Mapping[bytes, PublicIdentity]:
        pinned = {pin.identity.fingerprint: pin.identity for pin in decided.pins}
        return {**self._heard, **pinned}

    def _load_tasks(self, *, train: bool) -> None:
        """Make the teachers of every approved pool ready; one that cannot be is left out."""
        approved, now = self._decided.approved_pools, self._clock()
        if self._tried == (approved, now // _TRY_AGAIN_S):
            return  # a table is hashed for it: not every second
        self._tried = approved, now // _TRY_AGAIN_S
        trouble = ""
        for pool in sorted(approved - self._tasks.keys()):
            try:
                self._tasks[pool] = self._party_task(read_task(self._site, pool), train=train)
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
            ensemble = ready_teachers(
                self._site,
                task,
                random_bytes=self._random_bytes,
                tell=lambda *_: self._say_starting(),
            )
        else:  # training takes long, and somebody may ask any moment
            ensemble = load_teachers(self._site, task)
        return party_task(task, ensemble)

    # What the node decides ----------------------------------------------------------------------

    def _open_node(self) -> PartyNode:
        return PartyNode(
            identity=self._site.identity,
            coordinator=self._site.coordinator,
            pins=self._known(self._decided),
            guard=self._guard(self._decided),
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
        at, (kind, detail) = self._clock(), record_of(decision)
        match decision:
            case RunAccepted(run_id):
                self._audit.append(kind, detail, at=at)
                accepted = self._status.runs_accepted + 1
                self._status = replace(self._status, run=run_id.hex(), runs_accepted=accepted)
            case RunRefused(run_id, Reason.POOL | Reason.APPROVAL, scope):
                try:
                    self._ask_people(scope, run_id)
                except TooManyPendingError as error:
                    # It waits for nobody: the coordinator is told so, and offers it again.
                    self._note(RunRefused(run_id, Reason.PENDING, scope))
                    raise RefusalError(Reason.PENDING, error.must, error.got) from error
                self._note_refusal(decision)
            case RunRefused():
                self._note_refusal(decision)
            case BatchAccepted(run_id, scope, phase=phase):
                if self._asks_about_runs:
                    self._records.use(scope.digest, run_id, kind=kind, detail=detail)
                else:
                    self._audit.append(kind, detail, at=at)
                answered = self._status.batches_answered + (phase == 0)
                self._status = replace(self._status, batches_answered=answered)
            case BatchRefused():
                refused = self._status.batches_refused + 1
                self._status = replace(self._status, batches_refused=refused)
                self._note_refusal(decision)

    def _note_refusal(self, refusal: RunRefused | BatchRefused) -> None:
        at, (kind, detail) = self._clock(), record_of(refusal)
        self._count(refusal.reason, at)
        self._refusals.note(kind, detail, at=at)

    def _ask_people(self, scope: RunScope, run_id: bytes) -> None:
        pool = RunTerms.from_record(wire.decode_value(scope.terms)).pool_digest
        asked = [(Subject.POOL, pool)]
        if self._asks_about_runs:
            asked.append((Subject.RUN, scope.digest))
        for subject, digest in asked:
            self._records.ask(
                subject,
                digest,
                terms=scope.terms,
                seats=scope.seats,
                form=scope.form,
                suite=scope.suite,
                run_id=run_id,
            )

    @property
    def _asks_about_runs(self) -> bool:
        return self._site.settings.approval == "each run"

    def _count(self, reason: Reason, at: float) -> None:
        self._status = replace(self._status, last_refusal=reason.value, last_refusal_at=at)

    def _count_fault(self, code: str) -> None:
        self._status = replace(self._status, last_fault=code, last_fault_at=self._clock())
        self._say()

    # Saying how it stands -----------------------------------------------------------------------

    def _standing_trouble(self) -> str:
        return RestoredJournalError.code if self._decided.halted_at else self._task_trouble

    def _show_trouble(self, code: str) -> None:
        """Say at once what is new."""
        if code != self._status.trouble:
            self._status = replace(self._status, trouble=code)
            self._say()

    def _say(self) -> None:
        """Write the status; that it cannot be written stops nothing."""
        self._said_at = now = self._clock()
        keeper, state = self.supernode, self._status.state
        if state != "stopped":
            state = "connecting" if keeper is None or keeper.pid is None else "ready"
            if self._decided.is_paused:
                state = "paused"
        self._status = replace(
            self._status,
            state=state,
            at=now,
            round_state=self._node.state.value,
            supernode_starts=0 if keeper is None else keeper.starts,
            membership=self._membership[0],
            heard_at=self._membership[1],
        )
        self._write_status()

    def _say_starting(self) -> None:
        """Say it in place of what the last node said: to train teachers may take long."""
        self._status = replace(self._status, at=self._clock())
        self._write_status()

    def _write_status(self) -> None:
        try:
            write_status(self._site.path(STATUS_FILE), self._status)
        except OSError as error:
            _log.error("the status cannot be written: %s", error.strerror)

    def __repr__(self) -> str:
        return f"PartyService({self._site.settings.party}, {self._status.state})"


def serve(service: PartyService, site: Site, *, stopped: threading.Event) -> None:
    """Keep a SuperNode beside the service and answer what it brings, until told to stop.

    Everything ends in order: the message that is being answered, the SuperNode, the database.

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
    # The executor reads it too: Flower's clients ask the environment for a proxy.
    os.environ.update(quiet_environment(os.environ))
    keeper = SuperNodeKeeper(
        settings.command(),
        environment={**os.environ, "FLWR_HOME": str(site.path("flower"))},
        log=site.path("log", "supernode.log"),
        is_revoked=lambda: service.is_revoked,
    )
    executor = Executor(
        build(lambda _: service),
        address=f"{LOOPBACK}:{site.settings.node_port}",
        secret=site.node_secret,
    )
    site.path("flower").mkdir(mode=0o700, exist_ok=True)
    service.supernode = keeper
    keeper.start()
    threading.Thread(target=_listen, args=(service, site, stopped), daemon=True).start()
    try:
        executor.run(stopped, on_idle=service.idle, may_answer=lambda: service.has_heard)
    finally:
        executor.close()
        keeper.close()
        service.close()


def _listen(service: PartyService, site: Site, stopped: threading.Event) -> None:
    """Ask now and then who is a member, and say where our audit log stands."""
    while not stopped.is_set():
        pause_s = _ASK_S
        try:
            with closing(CoordinatorDoor(site, clock=time.time)) as door:
                service.ask_about_ourselves(door)
        except Exception as error:
            _log.warning("the coordinator does not say who is a member: %s", type(error).__name__)
            pause_s = _ASK_AGAIN_S
        stopped.wait(pause_s)
