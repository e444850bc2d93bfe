"""A hospital's node in one federation: its rounds, its coordinator's word, its status.

The journal, the ledger, the records and the teachers belong to the hospital and are the same in
every federation. `party.service` hands packets to one of these nodes at a time.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace

from party.decision.node import PartyNode
from party.site.joining import CoordinatorDoor
from party.site.membership import MembershipSettings, SiteMembership
from party.site.people_decisions import PeopleDecisions
from party.site.status_file import FederationStatus
from party.site.tally_standing import TallyStanding
from party.storage import SiteAuditLog
from party.storage.site_audit_log import sign_head
from pate_fed.nodes import KeptChild
from protocols.identity import PublicIdentity
from protocols.invitation import read_audit_head
from protocols.membership_messages import Membership, NamedTally

_log = logging.getLogger(__name__)


class FederationNode:
    """The objects of one federation that the service keeps while it runs.

    `heard` are the peers that the coordinator named last, by fingerprint: hearsay. `seen` are the
    decisions that `node` adopted last. `found_head` is SHA-256 of the audit head that the
    coordinator gave back, once our log holds it. `votes` are those that `node` has on each query, 0
    without a table.
    """

    def __init__(
        self,
        membership: SiteMembership,
        *,
        node: PartyNode,
        audit: SiteAuditLog,
        decisions: PeopleDecisions,
        clock: Callable[[], float],
    ) -> None:
        self.membership = membership
        self.node = node
        self.status = FederationStatus()
        self.supernode: KeptChild | None = None
        self.heard: Mapping[bytes, PublicIdentity] = {}
        self.seen: tuple[object, ...] = ()
        self.found_head = b""
        self.votes: Mapping[str, int] = {}
        self._audit = audit
        self._decisions = decisions
        self._clock = clock
        self._waiting: NamedTally | None = None
        self._standing = "", 0.0  # set by the thread that listens, hence not in the status

    @property
    def coordinator(self) -> bytes:
        """Fingerprint of its coordinator."""
        return self.membership.coordinator.fingerprint

    @property
    def has_heard(self) -> bool:
        """Whether the coordinator was heard since the start: before that, nothing is answered.

        Otherwise a node with a restored database would answer until the coordinator tells it.
        """
        return bool(self._standing[0])

    @property
    def is_revoked(self) -> bool:
        """Whether the coordinator's last word was that it revoked this hospital."""
        return self._standing[0] == "revoked"

    def signed_head(self) -> bytes:
        """Return the signed head of the audit log, for the coordinator to keep."""
        return sign_head(*self._audit.end, self.membership.identity)

    def ask(self, door: CoordinatorDoor) -> None:
        """Report our votes and audit log's head; hear the coordinator's view of all members."""
        answer = door.membership(
            audit_head=self.signed_head(), goes_on_from=self.found_head, votes=self.votes
        )
        self.hear(answer)

    def hear(self, answer: Membership) -> None:
        """Take the coordinator's list of members, and its witness against ourselves.

        A peer that we know from this answer alone counts as an ally of the coordinator, and only in
        this federation.

        If our audit log does not continue the head that the coordinator holds, the log was
        restored, cut or rewritten: the node then answers nothing in any federation. The coordinator
        keeps the head until we say that our log holds it, so a lost answer changes nothing.
        """
        if answer.audit_head:
            self._compare(answer.audit_head)
        identities = [PublicIdentity(key) for key in answer.peer_keys]
        self.heard = {identity.fingerprint: identity for identity in identities}
        self._say_tally(answer)
        if answer.state == "member":
            self._decisions.withdraw(coordinator=self.coordinator, open_runs=answer.open_runs)
        self._standing = answer.state, self._clock()

    def take_aggregators(self, newest: MembershipSettings) -> None:
        """Take the tally and the owners that our people wrote down last."""
        settings = replace(
            self.membership.settings,
            operator_body=newest.operator_body,
            tally_name=newest.tally_name,
            tally_key=newest.tally_key,
            tally_body=newest.tally_body,
        )
        self.membership = replace(self.membership, settings=settings)

    def current_status(self) -> FederationStatus:
        """Return its present state."""
        keeper = self.supernode
        self.status = replace(
            self.status,
            state="connecting" if keeper is None or keeper.pid is None else "ready",
            round_state=self.node.state.value,
            transcript_head=self.node.transcript_head.hex(),
            supernode_starts=0 if keeper is None else keeper.starts,
            membership=self._standing[0],
            heard_at=self._standing[1],
        )
        return self.status

    def _say_tally(self, answer: Membership) -> None:
        """Tell the log once of a tally that our people have to compare; `status` tells it, too."""
        waiting = TallyStanding.of(self.membership.settings, answer).waiting
        if waiting is not None and waiting != self._waiting:
            _log.warning("a tally waits to be compared by our people: pate-party tally")
        self._waiting = waiting

    def _compare(self, audit_head: bytes) -> None:
        last = read_audit_head(audit_head, self.membership.identity.public)
        if self._audit.goes_on_from(last.records, last.head):
            self.found_head = hashlib.sha256(audit_head).digest()
        elif not self._decisions.state.witness():
            _log.error("the audit log does not go on from its last signed head")
            self._decisions.state.note_witness(last.records, last.head)

    def __repr__(self) -> str:
        return f"FederationNode({self.membership.name})"
