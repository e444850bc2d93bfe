"""A hospital's node: its database, its guard, its teachers, and a door for each federation.

A site has one process as its node. Decisions of its people at the command line (approvals, pins, a
pause) go into the same database, and hold for the next packet. A coordinator's request goes to the
node of its federation. Journal, ledger, records and teachers are the hospital's, one for all
federations. Teachers are ready before the first question: the start loads or trains them, and a new
task's are loaded in idle time.
"""

from __future__ import annotations

import logging
import os
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import TracebackType
from typing import Self

from party.decision.decisions import (
    BatchAccepted,
    BatchRefused,
    Decision,
    RunAccepted,
    RunClosed,
    RunRefused,
    record_of,
)
from party.decision.federation_node import FederationNode
from party.decision.guard import Consent, Guard
from party.decision.node import PartyNode
from party.decision.refusals import Refusals
from party.errors import (
    CANNOT_STORE,
    BrokenAuditLogError,
    JournalLockedError,
    MembershipError,
    PartyError,
    Reason,
    RefusalError,
    StorageError,
    TooManyPendingError,
)
from party.site.enrollment import CoordinatorDoor
from party.site.folder import Site
from party.site.membership import SiteMembership
from party.site.records import Decided, SiteRecords, Subject
from party.site.status_file import FILE as STATUS_FILE
from party.site.status_file import FRESH_S, Status, write_status
from party.site.tasks import PartyTask, Vote, party_task, read_task
from party.site.training import load_teachers, ready_teachers, teachers_digest
from party.storage import AuditLog, LedgerStore, SqlJournal
from party.storage.audit import sign_head
from pate_fed.accounting import PrivacyLedger
from pate_fed.data.task import LearningTask
from pate_fed.errors import PateFedError
from pate_fed.federation import RunTerms
from pate_fed.votes import TeacherWeights
from protocols import wire
from protocols.errors import RestoredJournalError
from protocols.forms import DEPLOYED_FORMS
from protocols.identity import PublicIdentity, SigningIdentity
from protocols.messages import Membership
from protocols.run_scope import RunScope

_LOOK_S, _TRY_AGAIN_S = 1.0, 60.0
"""How often, in idle time, the decisions of the hospital's people are read, and missing teachers
are tried again.
"""

_log = logging.getLogger(__name__)

VoteOf = Callable[[Site, LearningTask], Vote]
"""Gives the teachers of a task, for tests; in a service they are those of `party.site.training`."""


class PartyService:
    """A hospital's node with its state in its database; the door that packets come through.

    Args:
        site: The hospital's folder.
        random_bytes: Cryptographic random numbers.
        clock: Unix time, in seconds.
        vote_of: Other teachers, in tests.

    Raises:
        JournalLockedError: another process is this site's node.
        StorageError, JournalError, RecordError: the node's memory cannot be read or written.
        BrokenAuditLogError: somebody changed the audit log.
        SiteError: the hospital's identity cannot be read.
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
        # One packet at a time: another federation's packet never comes between a check and its
        # write.
        self._lock = threading.RLock()
        self._tasks: dict[bytes, PartyTask] = {}
        self._tried: tuple[object, float] | None = None
        self._task_trouble = ""
        self._store_fault = ""  # why nothing could be stored of late
        self._looked_at = self._said_at = 0.0
        self._status = Status("starting", clock(), os.getpid())
        self._nodes: dict[str, FederationNode] = {}
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
            # Its lock is the site's: a second node stops here.
            self._journal = SqlJournal(self._database)
            self._say_starting()
            settings, identity = site.settings, site.identity
            budget = settings.new_ledger()
            self._ledger = LedgerStore(self._database, budget=budget, clock=self._clock)
            self._records = SiteRecords(self._database, clock=self._clock)
            self._audit = AuditLog(self._database)
            self._audit.verify(heads=self._records.standing.witness())
            self._refusals = Refusals(self._audit)
            # Of the settings in use: the file may have changed since.
            self._records.standing.note_settings(
                file=site.settings_digest, table=settings.data.digest
            )
            self._decided = self._records.decided()
            self._load_tasks(train=True)
            for membership in site.current:
                self._nodes[membership.name] = self._open_node(membership, identity)
            self._refresh()
        except BaseException:
            self._database.close()
            raise

    # Public facts -------------------------------------------------------------------------------

    @property
    def status(self) -> Status:
        """Its state."""
        return self._status

    @property
    def ledger(self) -> PrivacyLedger:
        """The hospital's charges, for life."""
        return self._ledger.load()

    def federation(self, name: str | None = None) -> FederationNode:
        """Return the node of one federation.

        Args:
            name: The membership's; None where there is but one.

        Raises:
            MembershipError: there is none of this name; or several, and none is named.
        """
        found = self._nodes.get(self._site.membership(name).name)
        if found is None:
            raise MembershipError("a federation that was left has no node", repr(name))
        return found

    # Calls ------------------------------------------------------------------------------------

    def receive(self, packet: bytes, federation: str | None = None) -> bytes:
        """Answer one packet; decisions of its people until now hold for it.

        Packets of all federations are answered one after another.

        Args:
            packet: As it came.
            federation: Name of the membership that it came by; None where there is but one.

        Raises:
            StorageError, JournalError: the decisions cannot be read: nothing is answered.
        """
        one = self.federation(federation)
        with self._lock:
            one.status = replace(one.status, last_message_at=self._clock())
            try:
                self._refresh()
            except PartyError as error:
                self._count_fault(one, error.code)
                raise
            answer = one.node.receive(packet)
            if one.node.fault:
                self._count_fault(one, one.node.fault)
            else:
                self._say()
            return answer

    def idle(self) -> None:
        """Read the decisions of its people now and then; called while nobody asks."""
        with self._lock:
            now = self._clock()
            if not 0 <= now - self._looked_at < _LOOK_S:
                self._looked_at = now
                self._look()
            if not 0 <= now - self._said_at < FRESH_S / 4:
                self._try_to_store()
                self._show_trouble(self._standing_trouble())
                self._say()

    def _look(self) -> None:
        if self._store_fault:
            self._try_to_store()
        try:
            self._decided = self._records.decided()
            self._load_tasks(train=False)
            self._refresh()
            self._show_trouble(self._standing_trouble())
        except (PartyError, PateFedError) as error:
            _log.error("the decisions made here cannot be read: %s", error.code)
            self._show_trouble(error.code)

    def signed_head(self) -> bytes:
        """Return the signed head of the audit log, for a coordinator to keep."""
        return sign_head(*self._audit.end, self._site.identity)

    def ask_about_ourselves(self, door: CoordinatorDoor, federation: str | None = None) -> None:
        """Report our audit log's head; receive the coordinator's view of us and its members.

        Args:
            door: The coordinator's.
            federation: Name of the membership; None where there is but one.

        Raises:
            EnrollmentError: it cannot be reached, or its answer is not for us.
            StorageError: the coordinator's witness against us could not be written down: ask again.
        """
        one = self.federation(federation)
        answer = door.membership(audit_head=self.signed_head(), goes_on_from=one.found_head)
        self.hear(answer, federation)

    def hear(self, answer: Membership, federation: str | None = None) -> None:
        """Take the coordinator's list of members, and its witness against ourselves.

        Every party of a run must be known. A peer that we know from this answer alone counts as an
        ally of the coordinator, and only in this federation.

        The coordinator holds a head of our audit log that we signed. If our log does not continue
        it, the log was restored, cut or rewritten: the node then answers nothing in any federation.
        The coordinator keeps the head until we say that our log holds it, so a lost answer changes
        nothing.

        Args:
            answer: The coordinator's, which was checked.
            federation: Name of the membership; None where there is but one.

        Raises:
            StorageError: the witness against us could not be written down: ask again.
        """
        self.federation(federation).hear(answer)

    def close(self) -> None:
        """Write the status "stopped", and let go of the database."""
        with self._lock:
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

    # Decisions of its people -----------------------------------------------------------------

    def _refresh(self) -> None:
        """Pass the newest decisions of the hospital's people to the nodes."""
        self._decided = decided = self._records.decided()
        if decided.contradicted_at is not None:
            raise BrokenAuditLogError(
                "it and those before it must be the records that we signed",
                "others",
                number=decided.contradicted_at,
            )
        if decided.halted_at:
            self._records.standing.note_halt(decided.halted_at)
        changes = [self._adopt(one, decided) for one in self._nodes.values()]
        if any(changes):
            tasks = len(decided.pools & self._tasks.keys())
            self._status = replace(self._status, tasks=tasks, waiting=decided.waiting)
            self._say()

    def _adopt(self, one: FederationNode, decided: Decided) -> bool:
        heard = one.heard
        seen = (decided, len(self._tasks), frozenset(heard))
        if seen == one.seen:
            return False
        guard = self._guard(one.coordinator, decided)
        one.node.adopt(guard=guard, pins=_known(heard, decided), tasks=self._tasks)
        one.seen = seen
        return True

    def _guard(self, coordinator: bytes, decided: Decided) -> Guard:
        settings = self._site.settings
        approved = decided.approved_pools.get(coordinator, frozenset()) & self._tasks.keys()
        runs = decided.approved_runs if self._asks_about_runs else None
        return Guard(
            policy=settings.policy_for(frozenset(approved)),
            weights=TeacherWeights.of((1,) * settings.teachers),
            checked_peers={pin.identity.fingerprint: pin.body for pin in decided.pins},
            consent=Consent(runs, decided.is_paused),
        )

    def _load_tasks(self, *, train: bool) -> None:
        """Make the teachers of every approved pool ready; one that cannot be is left out."""
        approved, now = self._decided.pools, self._clock()
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
        return party_task(task, ensemble, teachers=teachers_digest(self._site, task))

    # Decisions of a node ----------------------------------------------------------------------

    def _open_node(self, membership: SiteMembership, identity: SigningIdentity) -> FederationNode:
        name = membership.name
        node = PartyNode(
            identity=identity,
            coordinator=membership.coordinator,
            pins=_known({}, self._decided),
            guard=self._guard(membership.coordinator.fingerprint, self._decided),
            tasks=self._tasks,
            forms={name: form() for name, form in DEPLOYED_FORMS.items()},
            journal=self._journal,
            ledger=self._ledger,
            random_bytes=self._random_bytes,
            clock=self._clock,
            tell=lambda decision: self._note(self._nodes[name], decision),
        )
        return FederationNode(
            membership, node=node, audit=self._audit, records=self._records, clock=self._clock
        )

    def _note(self, one: FederationNode, decision: Decision) -> None:
        """Write a decision down before any of its consequences leaves."""
        at, (kind, detail) = self._clock(), record_of(decision)
        match decision:
            case RunAccepted(run_id):
                self._audit.append(kind, detail, at=at)
                accepted = one.status.runs_accepted + 1
                one.status = replace(one.status, run=run_id.hex(), runs_accepted=accepted)
            case RunRefused(run_id, Reason.POOL | Reason.APPROVAL, scope):
                try:
                    self._ask_people(scope)
                except TooManyPendingError as error:
                    # It waits for nobody: the coordinator is told so, and offers it again.
                    self._note(one, RunRefused(run_id, Reason.PENDING, scope))
                    raise RefusalError(Reason.PENDING, error.must, error.got) from error
                self._note_refusal(one, decision)
            case RunRefused():
                self._note_refusal(one, decision)
            case BatchAccepted(scope=scope, phase=phase):
                if self._asks_about_runs:
                    self._records.use(
                        scope.digest,
                        coordinator=scope.coordinator,
                        kind=kind,
                        detail=detail,
                    )
                else:
                    self._audit.append(kind, detail, at=at)
                answered = one.status.batches_answered + (phase == 0)
                one.status = replace(one.status, batches_answered=answered)
            case RunClosed():
                self._audit.append(kind, detail, at=at)
            case BatchRefused():
                refused = one.status.batches_refused + 1
                one.status = replace(one.status, batches_refused=refused)
                self._note_refusal(one, decision)

    def _note_refusal(self, one: FederationNode, refusal: RunRefused | BatchRefused) -> None:
        at, (kind, detail) = self._clock(), record_of(refusal)
        one.status = replace(one.status, last_refusal=refusal.reason.value, last_refusal_at=at)
        self._refusals.note(kind, detail, at=at)

    def _ask_people(self, scope: RunScope) -> None:
        pool = RunTerms.from_record(wire.decode_value(scope.terms)).pool_digest
        asked = [(Subject.POOL, pool)]
        if self._asks_about_runs:
            asked.append((Subject.RUN, scope.digest))
        for subject, digest in asked:
            self._records.ask(
                subject,
                digest,
                coordinator=scope.coordinator,
                terms=scope.terms,
                seats=scope.seats,
                form=scope.form,
                suite=scope.suite,
            )

    @property
    def _asks_about_runs(self) -> bool:
        return self._site.settings.approval == "each run"

    def _try_to_store(self) -> None:
        """Try whether anything can be stored: otherwise everything is refused."""
        try:
            self._database.require_room()
        except StorageError as error:
            if not self._store_fault:
                _log.error("nothing can be stored: %s", error)
            self._store_fault = error.code
        else:
            self._store_fault = ""

    def _count_fault(self, one: FederationNode, code: str) -> None:
        if code in CANNOT_STORE:
            self._store_fault = code
            self._status = replace(self._status, trouble=self._standing_trouble())
        one.status = replace(one.status, last_fault=code, last_fault_at=self._clock())
        self._say()

    # Saying how it stands ---------------------------------------------------------------------

    def _standing_trouble(self) -> str:
        if self._decided.halted_at:
            return RestoredJournalError.code
        return self._store_fault or self._task_trouble

    def _show_trouble(self, code: str) -> None:
        """Show new trouble at once."""
        if code != self._status.trouble:
            self._status = replace(self._status, trouble=code)
            self._say()

    def _say(self) -> None:
        """Write the status; a failure to write it stops nothing."""
        self._said_at = now = self._clock()
        state = self._status.state
        if state != "stopped":
            state = "paused" if self._decided.is_paused else "running"
        federations = {name: one.current_status() for name, one in self._nodes.items()}
        self._status = replace(self._status, state=state, at=now, federations=federations)
        self._write_status()

    def _say_starting(self) -> None:
        """Replace the last node's status: to train teachers may take long."""
        self._status = replace(self._status, at=self._clock())
        self._write_status()

    def _write_status(self) -> None:
        try:
            write_status(self._site.path(STATUS_FILE), self._status)
        except OSError as error:
            _log.error("the status cannot be written: %s", error.strerror)
            self._store_fault = StorageError.code

    def __repr__(self) -> str:
        return f"PartyService({', '.join(self._nodes)}, {self._status.state})"


def _known(
    heard: Mapping[bytes, PublicIdentity], decided: Decided
) -> Mapping[bytes, PublicIdentity]:
    pinned = {pin.identity.fingerprint: pin.identity for pin in decided.pins}
    return {**heard, **pinned}
