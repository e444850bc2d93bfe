"""A hospital, as its own people use it: waiting runs, decisions, budget, records.

The door of the command line and of the page. The node meets it in the database alone.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from party.errors import MembershipError
from party.site.enrollment import CoordinatorDoor
from party.site.folder import DATABASE_FILE, Site
from pate_fed.accounting import PrivacyLedger

if TYPE_CHECKING:
    from party.decision.proposals import Proposal
    from party.decision.spending import RunSpending
    from party.site.document_child import AskedTask
    from party.site.records import Approval, SiteRecords
    from party.site.results import AnsweredRun
    from party.site.status_file import Status
    from party.storage import AuditLog, PartyDatabase, SentLog
    from party.storage.audit import AuditRecord
    from pate_fed.data.flat_columns import FlatColumn

COMMAND_LINE: Final = "command line"
PAGE: Final = "page"
"""Where its people act."""

Progress = Callable[[int, int], None]
"""Told how many teachers of how many are trained."""


@dataclass(frozen=True, slots=True)
class OpenSite:
    """A hospital's folder with its database open.

    Attributes:
        site: The folder.
        database: The node's memory.
        records: The decisions of its people.
        log: The audit log.
        sent: What left the hospital.
    """

    site: Site
    database: PartyDatabase
    records: SiteRecords
    log: AuditLog
    sent: SentLog

    # Records ----------------------------------------------------------------------------------

    def audit_records(self) -> Iterator[AuditRecord]:
        """Return all records of the audit log, in order."""
        return self.log.records()

    def decided_rules(self) -> set[str]:
        """Return the names of the rules that somebody here has set."""
        from party.storage.audit import AuditKind  # noqa: PLC0415 - keeps --help fast

        return {
            str(record.detail["rule"])
            for record in self.audit_records()
            if record.kind is AuditKind.SETTINGS_CHANGED and "rule" in record.detail
        }

    def ledger(self) -> PrivacyLedger:
        """Return the charges of its life; an empty ledger before the first."""
        from party.storage import read_ledger  # noqa: PLC0415 - keeps --help fast

        return read_ledger(self.database, budget=self.site.settings.new_ledger())

    def spending(self) -> tuple[PrivacyLedger, tuple[RunSpending, ...]]:
        """Return the ledger and each run's charge, after a check of the audit log.

        Raises:
            BrokenAuditLogError: somebody changed the log.
        """
        from party.decision.spending import spending_by_run  # noqa: PLC0415 - keeps --help fast

        ledger = self.ledger()
        self.log.verify()
        return ledger, spending_by_run(ledger, self.audit_records())

    def answered_runs(self) -> tuple[AnsweredRun, ...]:
        """Return the runs that this hospital answered in, oldest first."""
        from party.site.results import answered_runs  # noqa: PLC0415 - keeps --help fast

        return answered_runs(self.audit_records())

    # Requests ---------------------------------------------------------------------------------

    def approvals(self, federation: str | None = None) -> tuple[Approval, ...]:
        """Return all that was asked, decided or not, in one federation or in all."""
        asking = self._asking(federation)
        return tuple(one for one in self.records.approvals() if asking in (None, one.coordinator))

    def proposal(self, approval: Approval) -> Proposal:
        """Work out the proposal of a request."""
        from party.decision.proposals import proposal_of  # noqa: PLC0415 - keeps --help fast

        pins = self.records.pins()
        return proposal_of(self.site, approval, ledger=self.ledger(), pins=pins)

    def to_decide(self, waiting: list[Approval]) -> list[Approval]:
        """Leave out the pools that are approved with a waiting run."""
        if self.site.settings.approval != "each run":
            return waiting
        runs = [one for one in waiting if one.subject.value == "run"]
        pools = {(one.coordinator, self.proposal(one).pool) for one in runs}
        return [one for one in waiting if one in runs or (one.coordinator, one.digest) not in pools]

    def find(self, digits: str, federation: str | None = None) -> Approval:
        """Return the request that the first digits of its digest name.

        Raises:
            ApprovalError: they mean nothing here, or more than one thing.
        """
        return self.records.find(digits, coordinator=self._asking(federation))

    def task(self, approval: Approval) -> AskedTask:
        """Return the stored task, or fetch it and check that it is of the pool.

        Raises:
            MembershipError: the request is of no federation of this hospital.
            EnrollmentError, TaskError: see `fetch_task`.
        """
        from party.site.tasks import fetch_task  # noqa: PLC0415 - keeps --help fast

        asking = [
            one
            for one in self.site.memberships
            if one.coordinator.fingerprint == approval.coordinator
        ]
        if not asking:
            raise MembershipError("who asked must be one of this hospital's federations", "another")
        door = CoordinatorDoor(asking[0], clock=time.time, sent=self.sent)
        with closing(door):
            return fetch_task(self.site, door, self.proposal(approval).pool)

    def flat_columns(self, task: AskedTask) -> tuple[FlatColumn, ...]:
        """Return the columns in which nearly all rows of this hospital become one feature.

        Raises:
            DataError, DataChangedError, InvalidDataError: the table cannot be read, or does not
                fit the task.
        """
        from party.site.dataset import read_registered  # noqa: PLC0415 - keeps --help fast
        from pate_fed.data.flat_columns import flat_columns  # noqa: PLC0415
        from pate_fed.data.task import LearningTask  # noqa: PLC0415

        if not isinstance(task, LearningTask):
            return ()
        return flat_columns(task.schema, read_registered(self.site))

    # Decisions --------------------------------------------------------------------------------

    def approve(
        self, approval: Approval, task: AskedTask, *, by: str, reason: str = "", tell: Progress
    ) -> None:
        """Train teachers, then approve; a run's pool with it.

        Args:
            approval: The request.
            task: Its task.
            by: Who decides.
            reason: Why; may be empty.
            tell: Told of each trained teacher.

        Raises:
            ApprovalError: nobody is named, or the reason is no line.
            TeachersError, DataError: teachers cannot be trained: nothing is approved.
        """
        from party.site.records import require_decision  # noqa: PLC0415 - keeps --help fast
        from party.site.training import ready_teachers  # noqa: PLC0415 - slow to load
        from pate_fed.data.task import LearningTask  # noqa: PLC0415 - the same

        require_decision(by=by, reason=reason)  # teachers take long
        if isinstance(task, LearningTask):  # an evaluation needs none
            ready_teachers(self.site, task, random_bytes=secrets.token_bytes, tell=tell)
        for one in (*self._pool_of(approval, task), approval):
            key = one.subject, one.digest
            self.records.approve(*key, coordinator=one.coordinator, by=by, reason=reason)

    def reject(self, approval: Approval, *, by: str, reason: str = "") -> Approval:
        """Reject a request, or withdraw its approval; an open run loses its next batch."""
        key = approval.subject, approval.digest
        return self.records.reject(*key, coordinator=approval.coordinator, by=by, reason=reason)

    def _asking(self, federation: str | None) -> bytes | None:
        """Return the coordinator's fingerprint of the named federation, if one is named."""
        if federation is None:
            return None
        return self.site.membership(federation).coordinator.fingerprint

    def _pool_of(self, approval: Approval, task: AskedTask) -> tuple[Approval, ...]:
        """Return the pool to approve with a run, unless it is approved."""
        from party.site.records import Subject  # noqa: PLC0415 - keeps --help fast

        if approval.subject is Subject.POOL:
            return ()
        asked = self.records.ask(
            Subject.POOL,
            task.pool.digest,
            coordinator=approval.coordinator,
            terms=approval.terms,
            seats=approval.seats,
            form=approval.form,
            suite=approval.suite,
        )
        return () if asked.state.value == "approved" else (asked,)


def state_of_node(site: Site, status: Status) -> str:
    """Return the node's state: as it wrote it, or "stopped" or "silent"."""
    from party.storage import has_node  # noqa: PLC0415 - keeps --help fast

    if status.is_alive(now=time.time()):
        return status.state
    if status.state == "stopped" or not has_node(site.path(DATABASE_FILE)):
        return "stopped"  # killed, it cannot say so
    return "silent"  # it runs, and is busy or cannot write how it stands


def open_site(folder: Path) -> Site:
    """Open the hospital's folder, from any working directory."""
    return Site.open(folder.absolute())


@contextmanager
def open_records(folder: Path, *, origin: str = COMMAND_LINE) -> Iterator[OpenSite]:
    """Open the hospital's folder and its database."""
    with opened_records(open_site(folder), origin=origin) as opened:
        yield opened


@contextmanager
def opened_records(site: Site, *, origin: str = COMMAND_LINE) -> Iterator[OpenSite]:
    """Open the database of a folder.

    Args:
        site: The folder.
        origin: Where its people act.
    """
    from party.site.records import SiteRecords  # noqa: PLC0415 - keeps --help fast
    from party.storage import AuditLog, SentLog  # noqa: PLC0415

    with site.open_database() as database:
        records = SiteRecords(database, clock=time.time, origin=origin)
        yield OpenSite(site, database, records, AuditLog(database), SentLog(database))
