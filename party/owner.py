"""A hospital, as its own people use it: waiting runs, decisions, budget, records.

The door of the command line and of the page. The node meets it in the database alone.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from party.errors import MembershipError, Reason, RefusalError, fault_line, fault_of
from party.site.joining import CoordinatorDoor
from party.site.site import DATABASE_FILE, Site
from party.site.status_file import FILE as STATUS_FILE
from party.site.status_file import known_status
from pate_fed.accounting import PrivacyLedger

if TYPE_CHECKING:
    from party.decision.proposals import Request, RunProposal
    from party.decision.run_spending import RunSpending
    from party.site.document_child import AskedTask
    from party.site.people_decisions import Approval, PeopleDecisions
    from party.site.status_file import Status
    from party.site.task_review import TaskReview
    from party.site.training import Tell
    from party.storage import PartyDatabase, SentLog, SiteAuditLog

COMMAND_LINE: Final = "command line"
PAGE: Final = "page"
"""Where its people act."""

_MOST_REVIEWED_BYTES: Final = 2**26
"""Size of all documents whose tasks and reviews stay in memory: a page shows them repeatedly."""


@dataclass(frozen=True, slots=True)
class OpenSite:
    """A hospital's folder with its database open."""

    site: Site
    database: PartyDatabase
    decisions: PeopleDecisions
    log: SiteAuditLog
    sent: SentLog
    _reviews: dict[tuple[bytes, bytes], tuple[object, AskedTask, TaskReview, int]] = field(
        default_factory=dict, repr=False
    )

    # Records ----------------------------------------------------------------------------------

    def decided_rules(self) -> set[str]:
        """Return the names of the rules that somebody here has set."""
        from party.storage.site_audit_log import SiteAct  # noqa: PLC0415 - keeps --help fast

        return {
            str(record.facts["rule"])
            for record in self.log.entries()
            if record.act is SiteAct.SETTINGS_CHANGED and "rule" in record.facts
        }

    def ledger(self) -> PrivacyLedger:
        """Return the charges of its life; an empty ledger before the first."""
        from party.storage import read_ledger  # noqa: PLC0415 - keeps --help fast

        return read_ledger(self.database, budget=self.site.settings.new_ledger())

    def spending(self) -> tuple[PrivacyLedger, tuple[RunSpending, ...]]:
        """Return the ledger and each run's charge, after a check of the audit log."""
        from party.decision.run_spending import spending_by_run  # noqa: PLC0415 - keeps --help fast
        from party.storage import RunPrices, charges_of  # noqa: PLC0415

        ledger = self.ledger()
        self.log.verify()
        return ledger, spending_by_run(
            ledger,
            self.log.entries(),
            charges=lambda run: charges_of(self.database, run),
            costs=RunPrices(self.database).of,
        )

    # Requests ---------------------------------------------------------------------------------

    def approvals(self, federation: str | None = None) -> tuple[Approval, ...]:
        """Return all that was asked, decided or not, in one federation or in all."""
        asking = self._asking(federation)
        return tuple(one for one in self.decisions.approvals() if asking in (None, one.coordinator))

    def proposal(self, approval: Approval) -> RunProposal:
        """Work out the proposal of a request; see `proposal_of`."""
        from party.decision.proposals import proposal_of  # noqa: PLC0415 - keeps --help fast
        from party.storage import RunPrices, charges_in  # noqa: PLC0415

        # A decided run may have been charged: what it takes is not taken twice.
        account = charges_in(self.database, approval.digest)
        own = [] if account is None else [one.entry_id for one in account.ledger.outcomes.entries]
        ledger = self.ledger()
        return proposal_of(
            self.site,
            approval,
            ledger=replace(
                ledger, entries=tuple(one for one in ledger.entries if one.entry_id not in own)
            ),
            pins=self.decisions.pins(),
            costs=RunPrices(self.database).of,
        )

    def to_decide(self, waiting: list[Approval]) -> list[Approval]:
        """Leave out the pools that are approved with a waiting run."""
        if self.site.settings.approval != "each run":
            return waiting
        runs = [one for one in waiting if one.subject.value == "run"]
        pools = {(one.coordinator, _pool_of_run(self.proposal(one))) for one in runs}
        return [one for one in waiting if one in runs or (one.coordinator, one.digest) not in pools]

    def request(self, approval: Approval, *, fetch: bool = True) -> Request:
        """Read everything that people need before they decide on a request.

        A document of others that is broken is a fault of this request alone.
        With `fetch`, the coordinator is asked for a task that is not kept here yet.
        """
        from party.decision.proposals import Request  # noqa: PLC0415 - keeps --help fast

        proposal = self.proposal(approval)
        pool = _pool_of_run(proposal) if approval.subject.value == "run" else approval.digest
        kept = self.site.path("pools", pool.hex())
        if not pool or not (fetch or kept.exists()):
            return Request(proposal)
        try:
            task, review = self._reviewed(approval, kept)
        except Exception as error:
            return Request(proposal, unread=fault_of(error))
        return Request(proposal, task, review)

    def _reviewed(self, approval: Approval, kept: Path) -> tuple[AskedTask, TaskReview]:
        """Return a task and its review; made anew when a file or the settings changed since."""
        from party.site.task_review import review_task  # noqa: PLC0415 - slow to load

        tables = (Path(one.data.file) for one in self.site.data_sets)
        files = kept, self.site.path("teachers"), *tables
        state = self.site.settings_digest, *map(_state_of, files)
        key = approval.coordinator, approval.digest
        known = self._reviews.get(key)
        if known is None or known[0] != state:
            task = self.task(approval)
            state = self.site.settings_digest, *map(_state_of, files)  # it may be fetched now
            size = kept.stat().st_size
            known = state, task, review_task(self.site, task), size
            self._reviews.pop(key, None)
            while self._reviews and self._reviewed_bytes + size > _MOST_REVIEWED_BYTES:
                del self._reviews[next(iter(self._reviews))]
            self._reviews[key] = known
        return known[1], known[2]

    @property
    def _reviewed_bytes(self) -> int:
        return sum(size for *_, size in self._reviews.values())

    def find(self, digits: str, federation: str | None = None) -> Approval:
        """Return the one request that the first digits of its digest name."""
        return self.decisions.find(digits, coordinator=self._asking(federation))

    def task(self, approval: Approval) -> AskedTask:
        """Return the stored task, or fetch it from its federation; see `fetch_task`."""
        from party.site.tasks import fetch_task  # noqa: PLC0415 - keeps --help fast

        asking = self.site.membership_at(approval.coordinator)
        if asking is None:
            raise MembershipError("who asked must be one of this hospital's federations")
        with closing(CoordinatorDoor(asking, clock=time.time, sent=self.sent)) as door:
            return fetch_task(self.site, door, self.proposal(approval).pool)

    # Decisions --------------------------------------------------------------------------------

    def approve(self, request: Request, *, by: str, reason: str = "", tell: Tell) -> None:
        """Train teachers, then approve, with a run's pool; a failure approves nothing."""
        from party.site.people_decisions import require_decision  # noqa: PLC0415 - keeps --help fast
        from party.site.training import ready_teachers  # noqa: PLC0415 - slow to load
        from pate_fed.data.task import LearningTask  # noqa: PLC0415 - the same

        require_decision(by=by, reason=reason)  # teachers take long
        request.require_no_fault()
        approval, task = request.approval, request.task
        assert task is not None, "a request without a task has a fault"
        if isinstance(task, LearningTask):  # an evaluation needs none
            ready_teachers(self.site, task, random_bytes=secrets.token_bytes, tell=tell)
        for one in (*self._pool_of(approval, task), approval):
            key = one.subject, one.digest
            self.decisions.approve(*key, coordinator=one.coordinator, by=by, reason=reason)

    def reject(self, approval: Approval, *, by: str, reason: str = "", words: str = "") -> Approval:
        """Reject a request, or withdraw its approval; an open run loses its next batch.

        A run's pool that waits with no other run is rejected with it. The reason stays here;
        `words` are sent to the operator.
        """
        said = {"by": by, "reason": reason, "words": words}
        rejected, *_ = [
            self.decisions.reject(one.subject, one.digest, coordinator=one.coordinator, **said)
            for one in (approval, *self._waits_with(approval))
        ]
        return rejected

    def _waits_with(self, approval: Approval) -> tuple[Approval, ...]:
        """Return the waiting pool of a run that no other waiting run of its coordinator has."""
        if approval.subject.value != "run":
            return ()
        pool = _pool_of_run(self.proposal(approval))
        waiting = [
            one
            for one in self.approvals()
            if one.state.value == "pending"
            and one.coordinator == approval.coordinator
            and one.digest != approval.digest
        ]
        others = [one for one in waiting if one.subject.value == "run"]
        if pool in {_pool_of_run(self.proposal(one)) for one in others}:
            return ()
        return tuple(one for one in waiting if one not in others and one.digest == pool)

    def _asking(self, federation: str | None) -> bytes | None:
        if federation is None:
            return None
        return self.site.membership(federation).coordinator.fingerprint

    def _pool_of(self, approval: Approval, task: AskedTask) -> tuple[Approval, ...]:
        """Return the pool to approve with a run, unless it is approved."""
        from party.site.people_decisions import Subject  # noqa: PLC0415 - keeps --help fast

        if approval.subject is Subject.POOL:
            return ()
        asked = self.decisions.ask(
            Subject.POOL,
            task.pool.digest,
            coordinator=approval.coordinator,
            terms=approval.terms,
            seats=approval.seats,
            form=approval.form,
            suite=approval.suite,
            tally=approval.tally,
        )
        return () if asked.state.value == "approved" else (asked,)


def _pool_of_run(proposal: RunProposal) -> bytes:
    """Return the digest of a run's pool; empty if its terms cannot be read."""
    return b"" if proposal.terms is None else proposal.terms.pool_digest


def _state_of(path: Path) -> object:
    """Return what changes with a file or folder; None if it is not there."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def state_of_node(site: Site, status: Status) -> str:
    """Return the node's state: as it wrote it, or "stopped" or "silent"."""
    from party.storage import has_node  # noqa: PLC0415 - keeps --help fast

    if status.is_alive(now=time.time()):
        return status.state
    if status.state == "stopped" or not has_node(site.path(DATABASE_FILE)):
        return "stopped"  # killed, it cannot say so
    return "silent"  # it runs, and is busy or cannot write how it stands


def refused_for_tally(site: Site) -> Iterator[str]:
    """Say, for each federation whose run the node refused last for its tally, what to mend.

    Where a pool or the run itself was approved before, nothing waits that would show it.
    """
    status = known_status(site.path(STATUS_FILE))
    if status is None:
        return
    for joined in site.current:
        node, settings = status.federations.get(joined.name), joined.settings
        if node is not None and node.last_refusal == Reason.TALLY.value:
            pinned = settings.tally
            try:
                settings.aggregators.require(b"" if pinned is None else pinned.identity.fingerprint)
            except RefusalError as error:
                yield f"{settings.federation}: a run waits. {fault_line(error)}"


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
    """Open the database of a folder."""
    from party.site.people_decisions import PeopleDecisions  # noqa: PLC0415 - keeps --help fast
    from party.storage import SentLog, SiteAuditLog  # noqa: PLC0415

    with site.open_database() as database:
        records = PeopleDecisions(database, clock=time.time, origin=origin)
        yield OpenSite(site, database, records, SiteAuditLog(database), SentLog(database))
