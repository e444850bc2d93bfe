"""Who may take part: invitations, requests, the operator's approval (rule R5).

An invitation opens one request. A request is signed by the identity whose fingerprint the operator
and the hospital compare by telephone. Only then is it approved, and the hospital's node let in at
the SuperLink. A wrong, a used and an expired token get the same answer.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Protocol, TypeVar

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key
from sqlalchemy import select
from sqlalchemy.orm import Session

from coordinator.database import Database, FederationAct, FederationAuditLog
from coordinator.database.federation_schema import ENDED, InvitationRow, MemberRow, RunRow
from coordinator.errors import EnrollmentError, SuperLinkError
from coordinator.federation.home import FederationHome, fingerprints_of
from protocols import wire
from protocols.fingerprint_words import WORDS, differing, heard_words, is_same, whose_words
from protocols.identity import PublicIdentity
from protocols.invitation import (
    CLOCK_SKEW_S,
    TOKEN_BYTES,
    Invitation,
    read_audit_head,
    token_digest,
)
from protocols.membership_messages import (
    MOST_OPEN_RUNS,
    AuditHead,
    JoinRequest,
    Membership,
    MembershipQuery,
    PoolQuery,
    ResultsQuery,
)
from protocols.party_names import NAME_RULE, is_alike, is_party_name, normalized

Query = TypeVar("Query", PoolQuery, ResultsQuery)

INVITATION_LIFETIME = timedelta(days=7)
INSIDE = frozenset({"member", "suspended"})
"""States of hospitals whose nodes are let in. Flower takes a node's key once: one that was put out
could never return. So a suspended node stays in, and is not asked.
"""


class NodeDoor(Protocol):
    """Lets nodes in and puts them out, as `coordinator.flower.superlink_client` does."""

    def register(self, public_key: bytes, *, name: str) -> int:
        """Let a node in, and return its number."""

    def unregister(self, node_id: int) -> None:
        """Put a node out."""

    def nodes(self) -> list[NodeAtLink]:
        """Return all nodes that were let in and not put out."""


@dataclass(frozen=True, slots=True)
class NodeAtLink:
    """A node as the SuperLink knows it.

    Attributes:
        public_key: Its EC key, PEM.
        status: "registered", "online" or "offline".
    """

    node_id: int
    public_key: bytes
    status: str


@dataclass(frozen=True, slots=True)
class EnrolledParty:
    """A hospital that asked to join.

    Attributes:
        state: "requested", "member", "suspended" or "revoked".
        votes: Votes that its node casts on each query, as it said last; 0 until it did.
        named_votes: Likewise where a task asks for a data set by name.
        seen_at: When it last asked about its membership; None if it never did.
        clock_skew_s: By how much its clock was ahead then, in seconds.
        away_since: When a run first found that its node does not answer; None since it did.
        away_at: When a run last found so.
    """

    name: str
    identity: PublicIdentity
    state: str
    node_id: int | None
    requested_at: datetime
    votes: int
    seen_at: datetime | None = None
    clock_skew_s: int | None = None
    version: str = ""
    away_since: datetime | None = None
    away_at: datetime | None = None
    named_votes: Mapping[str, int] = field(default_factory=dict)

    def votes_on(self, data_set: str) -> int:
        """Return its votes where a task asks for this data set; 0 if it has none."""
        return self.named_votes.get(data_set, 0) if data_set else self.votes


@dataclass(frozen=True, slots=True)
class MadeInvitation:
    """An invitation; only the hospital knows its token.

    Attributes:
        expires_at: End of its validity: the moment of its withdrawal, if it was withdrawn.
        used_at: Time of the request with it; None if none came.
    """

    party: str
    made_at: datetime
    expires_at: datetime
    used_at: datetime | None

    def is_open(self, *, now: datetime) -> bool:
        """Tell whether it can still be used."""
        return self.used_at is None and self.expires_at > now


class Enrollment:
    """The members of one federation. Each refusal is an `EnrollmentError`."""

    def __init__(
        self,
        home: FederationHome,
        database: Database,
        *,
        random_bytes: Callable[[int], bytes],
        clock: Callable[[], datetime],
    ) -> None:
        self._home = home
        self._database = database
        self._random_bytes = random_bytes
        self._clock = clock
        self._identity = home.identity
        self._audit_log = FederationAuditLog(database)

    # The operator -----------------------------------------------------------------------------

    def invite(self, party: str, *, lifetime: timedelta = INVITATION_LIFETIME) -> Invitation:
        """Make an invitation. An open one for the same hospital ends.

        Of two valid ones, one could be forgotten somewhere.
        """
        party = normalized(party)
        if not is_party_name(party):
            raise EnrollmentError(f"a hospital's name must be {NAME_RULE}", ascii(party))
        if not timedelta(0) < lifetime <= timedelta(days=30):
            raise EnrollmentError(
                "an invitation must last above 0 and up to 30 days", str(lifetime)
            )
        now, token = self._clock(), self._random_bytes(TOKEN_BYTES)
        with self._database.session() as session:
            if self._member_called(session, party) is not None:
                raise EnrollmentError("a hospital is invited once", f"a member called {party}")
            self._require_unlike(session, party, now=now)
            self._withdraw(session, party, now=now)
            session.add(
                InvitationRow(
                    token_digest=token_digest(token),
                    party=party,
                    made_at=now,
                    expires_at=now + lifetime,
                )
            )
        return Invitation(
            federation=self._home.settings.name,
            party=party,
            address=self._home.settings.address,
            ca_certificate=self._home.ca_certificate.decode(),
            coordinator_key=self._identity.public.key,
            token=token,
            expires_at=int((now + lifetime).timestamp()),
            **_tally_fields(self._home),
        )

    def invitations(self) -> list[MadeInvitation]:
        """Return all invitations, oldest first."""
        with self._database.session() as session:
            rows = session.scalars(select(InvitationRow).order_by(InvitationRow.made_at)).all()
            return [
                MadeInvitation(row.party, row.made_at, row.expires_at, row.used_at) for row in rows
            ]

    def parties(self) -> list[EnrolledParty]:
        """Return all hospitals that ever asked, by name."""
        with self._database.session() as session:
            rows = session.scalars(select(MemberRow).order_by(MemberRow.name)).all()
            return [_party(row) for row in rows]

    def approve(self, party: str, *, words: str) -> EnrolledParty:
        """Make a hospital a member, whose people read these words aloud.

        `settle` lets its node in.
        """
        party = normalized(party)
        with self._database.session() as session:
            rows = session.scalars(select(MemberRow).where(MemberRow.name == party)).all()
            row = next((one for one in rows if one.state == "requested"), None)
            if row is None:
                states = " and ".join(dict.fromkeys(one.state for one in rows))
                raise EnrollmentError(
                    "a hospital must have asked to join",
                    f"{party}, whose state is {states}" if rows else f"none called {party}",
                )
            if len(heard_words(words)) != WORDS:
                raise EnrollmentError(
                    f"the words must be {WORDS}, as their people read them aloud",
                    f"{len(heard_words(words))} of them",
                )
            if not is_same(row.fingerprint, words):
                places = ", ".join(map(str, differing(row.fingerprint, words)))
                taken_for = whose_words(words, fingerprints_of(self._home, self._home.tally))
                raise EnrollmentError(
                    "the words must be the hospital's own: hear these again, and if they stay "
                    "different, do not approve, as somebody may stand in between",
                    taken_for or f"others, at {places} of {WORDS}",
                )
            row.state, row.approved_at = "member", self._clock()
            return _party(row)

    def revoke(self, party: str) -> EnrolledParty | None:
        """Revoke a hospital, or reject its request; its identity never comes back.

        It is revoked from here on, with or without a SuperLink; `settle` puts its node out. Its
        open invitation ends. Returns None if it had not asked yet, and its invitation was
        withdrawn.
        """
        party = normalized(party)
        with self._database.session() as session:
            row = self._member_called(session, party)
            was_invited = self._withdraw(session, party, now=self._clock())
            if row is None and was_invited:
                return None
            if row is None:
                raise EnrollmentError(
                    "a hospital must be of this name, or an invitation that is good still",
                    f"none called {party}",
                )
            row.state, row.revoked_at = "revoked", self._clock()
            return replace(_party(row), node_id=None)

    def suspend(self, party: str) -> EnrolledParty:
        """Ask a member nothing from here on, until `reinstate`."""
        return self._move(party, "member", "suspended")

    def reinstate(self, party: str) -> EnrolledParty:
        """Let a suspended hospital take part again."""
        return self._move(party, "suspended", "member")

    def _move(self, party: str, before: str, after: str) -> EnrolledParty:
        party = normalized(party)
        with self._database.session() as session:
            row = self._member_called(session, party)
            if row is None or row.state != before:
                state = "none of this name" if row is None else f"{party}, {row.state}"
                raise EnrollmentError(f"the hospital's state must be: {before}", state)
            row.state = after
            return _party(row)

    def is_settled(self) -> bool:
        """Tell whether the nodes of all members, and of nobody else, were let in."""
        return all((one.state in INSIDE) is (one.node_id is not None) for one in self.parties())

    def settle(self, door: NodeDoor) -> None:
        """Let in the nodes of all members, and put all others out, in any earlier state.

        Several may do so at once: `pate-fed approve` and the service both do. One that finds it
        done meanwhile has nothing more to do.

        Raises:
            SuperLinkError: the door does not answer; another try does the rest.
        """
        inside = _inside(door)
        with self._database.session() as session:
            rows = session.scalars(select(MemberRow)).all()
        members = {_one_form(row.node_key.encode()): row for row in rows if row.state in INSIDE}
        for key, node_id in inside.items():
            if key not in members:
                _put_out(door, key, node_id)
        for key, row in members.items():
            node = inside.get(key)
            if node is None:
                node = _let_in(door, key, row)
            self._note_node(row.fingerprint, node)
        for row in rows:
            if row.state not in INSIDE and row.node_id is not None:
                self._note_node(row.fingerprint, None)

    def _note_node(self, fingerprint: bytes, node_id: int | None) -> None:
        with self._database.session() as session:
            row = session.get(MemberRow, fingerprint)
            if row is not None:
                row.node_id = None if node_id is None else str(node_id)

    # Hospitals --------------------------------------------------------------------------------

    def answer_join(self, frame: bytes) -> bytes:
        """Take a request, and return a signed `Membership`: to the same request the same one.

        Raises:
            ProtocolError: it is malformed.
        """
        signed = wire.decode(frame)
        request = wire.expect(signed, JoinRequest)
        identity = PublicIdentity(request.identity_key)
        signed.verify(identity)
        self._require_ours(request.coordinator, request.asked_at)
        _require_node_key(request.node_key)
        now = self._clock()
        with self._database.session() as session:
            invitation = session.get(InvitationRow, token_digest(request.token))
            if invitation is None or invitation.party != request.party_name:
                raise _refused()
            known = session.get(MemberRow, identity.fingerprint)
            if known is not None:
                again = (known.name, known.node_key) == (
                    request.party_name,
                    request.node_key.decode(),
                )
                if not again or invitation.used_at is None:
                    raise _refused()
            else:
                if invitation.used_at is not None or invitation.expires_at <= now:
                    raise _refused()
                # The key is not proven: otherwise a hospital could name another one's node.
                same_node = select(MemberRow).where(MemberRow.node_key == request.node_key.decode())
                if session.scalars(same_node).first() is not None:
                    raise _refused()
                invitation.used_at = now
                known = MemberRow(
                    fingerprint=identity.fingerprint,
                    name=request.party_name,
                    identity_key=request.identity_key,
                    node_key=request.node_key.decode(),
                    state="requested",
                    requested_at=now,
                )
                session.add(known)
            state = known.state
        return self._membership(identity.fingerprint, state)

    def answer_membership(self, frame: bytes) -> bytes:
        """Answer a hospital's question, with a signed `Membership`.

        The coordinator keeps a signed head of the hospital's audit log. It returns that head until
        the hospital reports it found in its log and sends a newer one. So a hospital whose log was
        restored, cut or rewritten learns it from its own signature, at any later length of the log
        and after any number of lost answers.

        It keeps the number of votes of the query that was signed last: one that is sent again
        changes nothing. A member's change stands in the operator's audit log.
        """
        signed = wire.decode(frame)
        query = wire.expect(signed, MembershipQuery)
        row = self._asking(signed, query)
        kept = self._keep_head(PublicIdentity(row.identity_key), query)
        return self._membership(query.sender, row.state, audit_head=kept)

    def asked(self, frame: bytes, kind: type[Query]) -> Query:
        """Return a member's question for a pool, or for the results of a run, its own or not."""
        signed = wire.decode(frame)
        query = wire.expect(signed, kind)
        if self._asking(signed, query).state != "member":
            raise _refused()
        return query

    # Helpers ----------------------------------------------------------------------------------

    def _asking(
        self, signed: wire.Signed, query: MembershipQuery | PoolQuery | ResultsQuery
    ) -> MemberRow:
        with self._database.session() as session:
            row = session.get(MemberRow, query.sender)
        if row is None:
            raise _refused()
        signed.verify(PublicIdentity(row.identity_key))
        self._require_ours(query.coordinator, query.asked_at)
        return row

    def _keep_head(self, identity: PublicIdentity, query: MembershipQuery) -> bytes:
        """Keep a hospital's head, unless it has not yet found the one kept before; note the rest.

        Returns the frame that is kept now; empty if there is none.
        """
        head = read_audit_head(query.audit_head, identity) if query.audit_head else None
        with self._database.as_one(), self._database.session() as session:
            row = session.get_one(MemberRow, identity.fingerprint, with_for_update=True)
            self._keep_votes(row, query)
            row.seen_at = now = self._clock()
            row.clock_skew_s = round(query.asked_at - now.timestamp())
            row.version = query.version or None
            kept = row.audit_head or b""
            is_found = not kept or query.goes_on_from == hashlib.sha256(kept).digest()
            is_newer = head is not None and head.records > _records_of(row)
            if is_found and is_newer:
                row.audit_head = kept = query.audit_head
            return kept

    def _keep_votes(self, row: MemberRow, query: MembershipQuery) -> None:
        """Keep the number that was stated last; tell the operator's audit log of another one."""
        named = json.dumps(query.votes_by_name(), sort_keys=True)
        has_said = query.votes or query.named_votes
        if not has_said or query.asked_at <= row.votes_asked_at:  # an older one may come again
            return
        before: dict[str, str | int | bytes] = {"votes": row.votes, **_data_sets(row.named_votes)}
        row.votes, row.named_votes, row.votes_asked_at = query.votes, named, query.asked_at
        after: dict[str, str | int | bytes] = {"votes": row.votes, **_data_sets(named)}
        if row.state in INSIDE and before != after:
            self._audit_log.append(
                FederationAct.VOTES_CHANGED,
                {
                    **{"by": row.name, "from": "its node", "subject": row.name},
                    **{"before": before, "after": after},
                },
                at=self._clock().timestamp(),
            )

    def _require_ours(self, coordinator: bytes, asked_at: int) -> None:
        is_near = abs(self._clock().timestamp() - asked_at) <= CLOCK_SKEW_S
        if coordinator != self._identity.fingerprint or not is_near:
            raise _refused()

    def _membership(self, party: bytes, state: str, *, audit_head: bytes = b"") -> bytes:
        peers = [one for one in self.parties() if one.state in INSIDE]
        if state != "member":
            peers = []
        message = Membership(
            party=party,
            federation=self._home.settings.name,
            state=state,
            answered_at=int(self._clock().timestamp()),
            peer_names=tuple(one.name for one in peers if one.identity.fingerprint != party),
            peer_keys=tuple(one.identity.key for one in peers if one.identity.fingerprint != party),
            audit_head=audit_head,
            open_runs=self._open_runs() if state == "member" else (),
            **_tally_fields(self._home),
        )
        return wire.sign(message, self._identity).frame

    def _open_runs(self) -> tuple[str, ...]:
        """Return the names of open runs, the first ones if there are too many."""
        names = select(RunRow.name).where(RunRow.state.not_in(ENDED)).order_by(RunRow.number)
        with self._database.session() as session:
            return tuple(session.scalars(names.limit(MOST_OPEN_RUNS)))

    @staticmethod
    def _withdraw(session: Session, party: str, *, now: datetime) -> bool:
        """End a hospital's open invitation; tell whether there was one."""
        out = (
            InvitationRow.party == party,
            InvitationRow.used_at.is_(None),
            InvitationRow.expires_at > now,
        )
        found = session.scalars(select(InvitationRow).where(*out)).all()
        for row in found:
            row.expires_at = now
        return bool(found)

    @staticmethod
    def _member_called(session: Session, name: str) -> MemberRow | None:
        here = MemberRow.name == normalized(name), MemberRow.state != "revoked"
        return session.scalars(select(MemberRow).where(*here)).first()

    @staticmethod
    def _require_unlike(session: Session, name: str, *, now: datetime) -> None:
        """Refuse a name that people could take for another hospital's."""
        here = select(MemberRow.name).where(MemberRow.state != "revoked")
        invited = select(InvitationRow.party).where(
            InvitationRow.used_at.is_(None), InvitationRow.expires_at > now
        )
        for known in (*session.scalars(here), *session.scalars(invited)):
            if known != name and is_alike(known, name):
                raise EnrollmentError(
                    "names must differ in more than capitals and spaces", f"another called {known}"
                )


def _tally_fields(home: FederationHome) -> dict[str, Any]:
    """Return name and key of the tally, as invitations and answers show it."""
    tally = home.tally
    name, key = ("", b"") if tally is None else (tally.name, tally.identity.key)
    return {"tally_name": name, "tally_key": key}


def _data_sets(named: str) -> dict[str, str]:
    """Return the votes of named data sets as a record has them; nothing where there are none."""
    found = json.loads(named)
    listed = ", ".join(f"{name} {votes}" for name, votes in found.items())
    return {"data_sets": listed} if listed else {}


def _party(row: MemberRow) -> EnrolledParty:
    return EnrolledParty(
        row.name,
        PublicIdentity(row.identity_key),
        row.state,
        None if row.node_id is None else int(row.node_id),
        row.requested_at,
        row.votes,
        row.seen_at,
        row.clock_skew_s,
        row.version or "",
        row.away_since,
        row.away_at,
        json.loads(row.named_votes),
    )


def _records_of(row: MemberRow) -> int:
    """Return how many records the kept head commits to; -1 if there is none."""
    if row.audit_head is None:
        return -1
    return wire.expect(wire.decode(row.audit_head), AuditHead).records


def _inside(door: NodeDoor) -> dict[bytes, int]:
    """Return the numbers of all nodes that were let in, by their keys in one form."""
    return {_one_form(node.public_key): node.node_id for node in door.nodes()}


def _let_in(door: NodeDoor, key: bytes, row: MemberRow) -> int:
    try:
        return door.register(row.node_key.encode(), name=row.name)
    except SuperLinkError:
        node = _inside(door).get(key)  # a key has one node: another process may have been faster
        if node is None:
            raise
        return node


def _put_out(door: NodeDoor, key: bytes, node_id: int) -> None:
    try:
        door.unregister(node_id)
    except SuperLinkError:
        if key in _inside(door):
            raise


def _one_form(pem: bytes) -> bytes:
    try:
        return load_pem_public_key(pem).public_bytes(
            Encoding.DER, PublicFormat.SubjectPublicKeyInfo
        )
    except (ValueError, UnsupportedAlgorithm):
        return pem


def _require_node_key(pem: bytes) -> None:
    try:
        key = load_pem_public_key(pem)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise _refused() from error
    if not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.name not in _CURVES:
        raise _refused()
    # In one spelling only, so that equal keys compare equal.
    if pem != key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo):
        raise _refused()


_CURVES = ("secp256r1", "secp384r1", "secp521r1")


def _refused() -> EnrollmentError:
    return EnrollmentError("a request must be one that the operator expects")
