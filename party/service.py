"""A hospital's node: its database, its guard, its teachers, and a door for each federation.

A site has one process as its node. Decisions of its people at the command line (approvals, pins, a
pause) go into the same database, and hold for the next packet. A coordinator's request goes to the
node of its federation. Journal, ledger, records and teachers are the hospital's, one for all
federations. Teachers are ready before the first question: the start loads or trains them, and a new
task's are loaded in idle time. So is a table that its people register meanwhile.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Self

from party.decision.decision_log import DecisionLog
from party.decision.federation_node import FederationNode
from party.decision.guard import Consent, Guard
from party.decision.node import PartyNode
from party.errors import (
    CANNOT_STORE,
    BrokenSiteLogError,
    JournalLockedError,
    MembershipError,
    PartyError,
    StorageError,
    fault_of,
)
from party.site.erasure import require_finished
from party.site.membership import SiteMembership
from party.site.people_decisions import Decided, PeopleDecisions
from party.site.ready_tasks import ReadyTasks, VoteOf
from party.site.site import SETTINGS_FILE, Site
from party.site.status_file import FILE as STATUS_FILE
from party.site.status_file import LiveStatus, Status
from party.storage import Journal, LedgerStore, SentLog, SiteAuditLog
from pate_fed.accounting import PrivacyLedger
from pate_fed.errors import PateFedError
from pate_fed.votes import TeacherWeights
from protocols import wire
from protocols.errors import RestoredJournalError
from protocols.forms import DEPLOYED_FORMS
from protocols.identity import PublicIdentity, SigningIdentity
from protocols.sums import round_form

_LOOK_S = 1.0

_MOST_UNNOTED = 100
"""Answers that left unnoted and wait until something can be stored."""

_log = logging.getLogger(__name__)


class PartyService:
    """A hospital's node with its state in its database; the door that packets come through.

    A process is refused, with `JournalLockedError`, while another is this site's node.
    """

    def __init__(
        self,
        site: Site,
        *,
        clock: Callable[[], float] = time.time,
        vote_of: VoteOf | None = None,
    ) -> None:
        self._site = site
        self._clock = clock
        # One packet at a time: another federation's packet never comes between a check and its
        # write.
        self._lock = threading.RLock()
        self._said = LiveStatus(site.path(STATUS_FILE), clock=clock)
        self._tasks = ReadyTasks(site, clock=clock, tell=self._said.write, vote_of=vote_of)
        self._looked_at = 0.0
        self._seen_settings: object = None
        self._settings_fault = ""
        self._nodes: dict[str, FederationNode] = {}
        self._unnoted: list[tuple[FederationNode, bytes, list[bytes]]] = []
        try:
            self._open()
        except JournalLockedError:
            raise  # the node that runs says how it stands
        except (PartyError, PateFedError) as error:
            self._said.write(state="stopped", trouble=error.code)
            raise

    def _open(self) -> None:
        site = self._site
        self._database = site.open_database()
        try:
            # Its lock is the site's: a second node stops here.
            self._journal = Journal(self._database)
            require_finished(site)
            self._said.write()  # instead of the last node's: to train teachers may take long
            settings, identity = site.settings, site.identity
            budget = settings.new_ledger()
            self._ledger = LedgerStore(self._database, budget=budget, clock=self._clock)
            self._people_decisions = PeopleDecisions(self._database, clock=self._clock)
            self.audit = SiteAuditLog(self._database)
            self.sent = SentLog(self._database)
            self.audit.verify(heads=self._people_decisions.state.witness())
            self._decisions = DecisionLog(
                self.audit,
                self._people_decisions,
                clock=self._clock,
                asks_about_runs=self._asks_about_runs,
            )
            # Of the settings in use: the file may have changed since.
            self._people_decisions.state.note_settings(file=site.settings_digest)
            self._note_tables()
            self._decided = self._people_decisions.decided()
            self._tasks.load(self._decided.pools, train=True)
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
        return self._said.status

    @property
    def ledger(self) -> PrivacyLedger:
        """The hospital's charges, for life."""
        return self._ledger.load()

    def federation(self, name: str | None = None) -> FederationNode:
        """Return the node of one federation; without a name, of the only one."""
        found = self._nodes.get(self._site.membership(name).name)
        if found is None:
            raise MembershipError("a federation that was left has no node", repr(name))
        return found

    # Calls ------------------------------------------------------------------------------------

    def receive(self, packet: bytes, federation: str | None = None) -> bytes:
        """Answer one packet after another; decisions of its people until now hold for it.

        Where these cannot be read, nothing is answered.
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
            self._note_sent(one, answer)
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
            if self._said.is_due:
                self._said.try_to_store(self._database)
                self._show_trouble(self._standing_trouble())
                self._say()

    def _look(self) -> None:
        if self._said.store_fault:
            self._said.try_to_store(self._database)
        try:
            self._decided = self._people_decisions.decided()
            self._tasks.load(self._decided.pools, train=False)
            self._refresh()
            self._show_trouble(self._standing_trouble())
        except (PartyError, PateFedError) as error:
            _log.error("the decisions made here cannot be read: %s", error.code)
            self._show_trouble(error.code)

    def close(self) -> None:
        """Write the status "stopped", and let go of the database."""
        self._tasks.close()
        with self._lock:
            self._say(state="stopped")
            self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # Decisions of its people -----------------------------------------------------------------

    def _refresh(self) -> None:
        """Pass the newest decisions of the hospital's people to the nodes."""
        self._decided = decided = self._people_decisions.decided()
        self._take_settings()
        if decided.contradicted_at is not None:
            raise BrokenSiteLogError(
                "it and those before it must be the records that we signed",
                number=decided.contradicted_at,
            )
        if decided.halted_at:
            self._people_decisions.state.note_halt(decided.halted_at)
        changes = [self._adopt(one, decided) for one in self._nodes.values()]
        if any(changes):
            tasks = len(decided.pools & self._tasks.by_pool.keys())
            self._say(tasks=tasks, waiting=decided.waiting)

    def _take_settings(self) -> None:
        """Use the newest table, tallies and owners of coordinators; the rest waits for a start."""
        try:
            file = self._site.path(SETTINGS_FILE).stat()
            seen = file.st_ino, file.st_mtime_ns, file.st_size
            if seen == self._seen_settings:
                return
            opened = Site.open(self._site.folder)
        except (OSError, PartyError) as error:
            self._settings_fault = fault_of(error).code
            return
        found, here = opened.settings, self._site.settings
        if (found.data, found.data_sets) != (here.data, here.data_sets):
            settings = replace(here, data=found.data, data_sets=found.data_sets)
            self._site = replace(self._site, settings=settings)
            self._note_tables()
            self._tasks.use(self._site)
            self._tasks.load(self._decided.pools, train=False)
        for name, one in self._nodes.items():
            known = opened.settings.memberships.get(name)
            if known is not None and known.aggregators != one.membership.settings.aggregators:
                self._people_decisions.state.note_settings(file=opened.settings_digest)
                one.take_aggregators(known)
        self._seen_settings, self._settings_fault = seen, ""

    def _note_tables(self) -> None:
        for one in self._site.data_sets:
            self._people_decisions.state.note_table(one.settings.data.digest, data_set=one.data_set)

    def _adopt(self, one: FederationNode, decided: Decided) -> bool:
        heard = one.heard
        aggregators = one.membership.settings.aggregators
        seen = (decided, self._tasks.changes, frozenset(heard), aggregators)
        if seen == one.seen:
            return False
        guard = self._guard(one.membership, decided)
        one.node.adopt(guard=guard, known_peers=_known(heard, decided), tasks=self._tasks.by_pool)
        one.seen, one.votes = seen, self._site.votes
        return True

    def _guard(self, joined: SiteMembership, decided: Decided) -> Guard:
        settings, coordinator = self._site.settings, joined.coordinator.fingerprint
        approved = decided.approved_pools.get(coordinator, frozenset()) & self._tasks.by_pool.keys()
        runs = decided.approved_runs if self._asks_about_runs else None
        return Guard(
            policy=settings.policy_for(frozenset(approved)),
            weights=TeacherWeights.equal(settings.teachers or 1),  # none without a table
            weights_by_pool={
                pool: TeacherWeights.equal(task.votes)
                for pool, task in self._tasks.by_pool.items()
                if task.votes
            },
            checked_peers={pin.identity.fingerprint: pin.body for pin in decided.pins},
            consent=Consent(runs, decided.is_paused),
            aggregators=joined.settings.aggregators,
        )

    @property
    def _asks_about_runs(self) -> bool:
        return self._site.settings.approval == "each run"

    # Decisions of a node ----------------------------------------------------------------------

    def _open_node(self, membership: SiteMembership, identity: SigningIdentity) -> FederationNode:
        name = membership.name
        node = PartyNode(
            identity=identity,
            coordinator=membership.coordinator,
            known_peers=_known({}, self._decided),
            guard=self._guard(membership, self._decided),
            tasks=self._tasks.by_pool,
            forms={name: round_form(name) for name in DEPLOYED_FORMS},
            journal=self._journal,
            ledger=self._ledger,
            random_bytes=secrets.token_bytes,
            clock=self._clock,
            tell=lambda decision: self._decisions.note(self._nodes[name], decision),
            decided=self._decisions.decision_on,
        )
        return FederationNode(
            membership,
            node=node,
            audit=self.audit,
            decisions=self._people_decisions,
            clock=self._clock,
        )

    def _note_sent(self, one: FederationNode, answer: bytes) -> None:
        """Note what leaves before it leaves; where nothing can be stored, once it can be.

        A y is not among what waits: it is stored before it is sent.
        """
        frames = wire.unpack(answer, max_bytes=len(answer))
        self._unnoted = [*self._unnoted, (one, one.node.run_id, frames)][-_MOST_UNNOTED:]
        try:
            while self._unnoted:
                to, run, waiting = self._unnoted[0]
                self.sent.note_answer(waiting, to=to.coordinator, run=run, at=self._clock())
                del self._unnoted[0]
        except StorageError as error:
            _log.error("messages that leave cannot be noted: %s", error.code)

    def _count_fault(self, one: FederationNode, code: str) -> None:
        one.status = replace(one.status, last_fault=code, last_fault_at=self._clock())
        if code in CANNOT_STORE:
            self._said.store_fault = code
            self._say(trouble=self._standing_trouble())
        else:
            self._say()

    # Saying how it stands ---------------------------------------------------------------------

    def _standing_trouble(self) -> str:
        if self._decided.halted_at:
            return RestoredJournalError.code
        return self._said.store_fault or self._tasks.trouble or self._settings_fault

    def _show_trouble(self, code: str) -> None:
        if code != self.status.trouble:
            self._say(trouble=code)

    def _say(self, **changed: Any) -> None:
        """Write the status; a failure to write it stops nothing."""
        federations = {name: one.current_status() for name, one in self._nodes.items()}
        state = "paused" if self._decided.is_paused else "running"
        self._said.say(**{"state": state, "federations": federations, **changed})


def _known(
    heard: Mapping[bytes, PublicIdentity], decided: Decided
) -> Mapping[bytes, PublicIdentity]:
    pinned = {pin.identity.fingerprint: pin.identity for pin in decided.pins}
    return {**heard, **pinned}
