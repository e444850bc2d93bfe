"""Decisions of the site's own people: checked peers and approvals; `site_state` has the others.

Each decision and its record in the audit log are one transaction. No message changes any of it; all
that a message does is to leave something that waits for a person.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sqlalchemy import Connection, Row, bindparam, delete, func, insert, select, update

from party.errors import ApprovalError, PinError, StorageDamagedError, TooManyPendingError
from party.site.peers import Pin
from party.site.site_state import SiteState, is_paused, require_somebody, witness_in
from party.storage import PartyDatabase
from party.storage.site_audit_log import SiteAct
from party.storage.site_schema import ApprovalRow, JournalRow, PinRow
from pate_fed.errors import PateFedError
from pate_fed.nodes.audit_log import Fact
from pate_fed.terms import RunTerms
from protocols.errors import ProtocolError
from protocols.fields import MOST_WORDS_LETTERS
from protocols.identity import PublicIdentity
from protocols.membership_messages import MOST_OPEN_RUNS
from protocols.values import decode_value, encode_value

MOST_PENDING = 20
"""Of each subject and coordinator. So that nobody can fill the disk: while so much waits, nothing
more is noted; an entry waits until a person decided.
"""

SHORTEST_DIGEST = 8
MOST_REASON_LETTERS = MOST_WORDS_LETTERS


class Subject(StrEnum):
    """Kinds of things to approve."""

    POOL = "pool"
    RUN = "run"


class ApprovalState(StrEnum):
    """Where an approval stands."""

    PENDING = "pending"
    APPROVED = "approved"
    REJECTED = "rejected"


_APPROVED = ApprovalState.APPROVED.value
_PENDING = ApprovalState.PENDING.value

_APPROVAL_COLUMNS = ApprovalRow.__table__.columns
_PINS = select(PinRow).order_by(PinRow.name)
_APPROVALS = select(ApprovalRow).order_by(ApprovalRow.number)
_APPROVAL = select(ApprovalRow).where(
    ApprovalRow.kind == bindparam("kind"),
    ApprovalRow.digest == bindparam("digest"),
    ApprovalRow.coordinator == bindparam("coordinator"),
)
_HALTED_AT = select(JournalRow.halted_at)


@dataclass(frozen=True, slots=True)
class Approval:
    """Something that a person of the site has to approve, or decided on; times are Unix seconds.

    Attributes:
        digest: Of the pool, or of the run's `protocols.run_scope.RunScope`; 32 bytes.
        coordinator: Fingerprint of the coordinator that asked: it holds for no other.
        terms: Terms of the run that asked, as they came; canonical CBOR.
        seats: Fingerprints of all parties of that run.
        form: Secure sum of that run.
        suite: Sealing suite of that run.
        tally: Fingerprint of that run's tally; empty where it has none.
        decided_at: None if it was not decided.
        reason: Why, for themselves; empty where they gave none.
        words: What they wrote for the operator, to be sent; empty where they wrote nothing.
    """

    subject: Subject
    digest: bytes
    coordinator: bytes
    state: ApprovalState
    asked_at: float
    terms: bytes
    seats: tuple[bytes, ...]
    form: str
    suite: str
    tally: bytes
    decided_at: float | None = None
    decided_by: str = ""
    reason: str = ""
    words: str = ""


@dataclass(frozen=True, slots=True)
class Decided:
    """All decisions of people, and the evidence against us, read at one moment.

    Attributes:
        approved_pools: By a coordinator's fingerprint, the digests of the pools that they approved
            for it.
        approved_runs: Digests of the runs that they approved, as the guard's `Consent` takes them.
        waiting: How much waits for a person.
        contradicted_at: Number of records of the head that our audit log does not go on from; None
            where none is known.
        halted_at: Counter of our journal that others saw and that it never reached; 0 if none.
    """

    pins: tuple[Pin, ...]
    approved_pools: Mapping[bytes, frozenset[bytes]]
    approved_runs: frozenset[bytes]
    waiting: int
    is_paused: bool
    contradicted_at: int | None
    halted_at: int

    @property
    def pools(self) -> frozenset[bytes]:
        """Digests of all pools that they approved, for any coordinator."""
        return frozenset[bytes]().union(*self.approved_pools.values())


class PeopleDecisions:
    """The decisions of a site's people, in its database; `state` has its pause and other notes.

    Every call raises `StorageError` where nothing can be read or stored; nothing is changed then.
    """

    def __init__(
        self,
        database: PartyDatabase,
        *,
        clock: Callable[[], float],
        origin: str = "command line",
    ) -> None:
        self._database = database
        self._clock = clock
        self.state = SiteState(database, clock=clock, origin=origin)

    def decided(self) -> Decided:
        """Return the decisions in force; where they cannot be read, nothing may be answered."""
        with self._database.transaction() as connection:
            approvals = _approvals(connection)
            approved = [one for one in approvals if one.state is ApprovalState.APPROVED]
            pools: dict[bytes, frozenset[bytes]] = {}
            for one in approved:
                if one.subject is Subject.POOL:
                    pools[one.coordinator] = pools.get(one.coordinator, frozenset()) | {one.digest}
            return Decided(
                _pins(connection),
                pools,
                frozenset(one.digest for one in approved if one.subject is Subject.RUN),
                sum(one.state is ApprovalState.PENDING for one in approvals),
                is_paused(connection),
                next((count for count, _ in witness_in(connection)), None),
                connection.scalar(_HALTED_AT) or 0,
            )

    # Pins -------------------------------------------------------------------------------------

    def add_pin(
        self, name: str, identity: PublicIdentity, *, body: str = "", how: str, by: str
    ) -> Pin:
        """Pin a peer that was checked out of band; it belongs to itself if no `body` is named."""
        pin = Pin(name, body or name, identity, how, by, self._clock())
        with self._database.transaction() as connection:
            same = (PinRow.name == name) | (PinRow.fingerprint == identity.fingerprint)
            if connection.scalar(select(PinRow.name).where(same)) is not None:
                raise PinError(
                    "a peer must be pinned once: remove the old pin first, or name another peer "
                    "otherwise with --as",
                    f"{name!r} again",
                )
            connection.execute(
                insert(PinRow).values(
                    fingerprint=identity.fingerprint,
                    name=name,
                    body=pin.body,
                    identity_key=identity.key,
                    checked_how=how,
                    checked_by=by,
                    pinned_at=pin.at,
                )
            )
            facts: dict[str, Fact] = {
                "name": name,
                "body": pin.body,
                "fingerprint": identity.fingerprint,
                "how": how,
            }
            self.state.record(connection, SiteAct.PIN_ADDED, facts, at=pin.at, by=by)
        return pin

    def remove_pin(self, name: str, *, by: str) -> Pin:
        """Remove the pin of a name, and return it; `PinError` where there is none."""
        require_somebody(by)
        with self._database.transaction() as connection:
            removed = delete(PinRow).where(PinRow.name == name).returning(*PinRow.__table__.columns)
            row = connection.execute(removed).one_or_none()
            if row is None:
                raise PinError("a peer must be pinned to be removed", f"no pin of {name!r}")
            facts = {"name": name, "fingerprint": row.fingerprint}
            self.state.record(connection, SiteAct.PIN_REMOVED, facts, at=self._clock(), by=by)
            return _pin_of(row)

    def pins(self) -> tuple[Pin, ...]:
        """Return all pins, by name."""
        with self._database.transaction() as connection:
            return _pins(connection)

    # Approvals --------------------------------------------------------------------------------

    def ask(
        self,
        subject: Subject,
        digest: bytes,
        *,
        coordinator: bytes,
        terms: bytes = b"",
        seats: tuple[bytes, ...] = (),
        form: str = "",
        suite: str = "",
        tally: bytes,
    ) -> Approval:
        """Note that something waits for a person, unless it was noted before.

        A waiting entry is never pushed out: a coordinator that offers more than people decide on is
        turned away, with `TooManyPendingError`.
        """
        with self._database.transaction() as connection:
            row = _row_of(connection, subject, digest, coordinator)
            if row is None:
                _require_room(connection, subject, coordinator)
                asked = insert(ApprovalRow).values(
                    kind=subject.value,
                    digest=digest,
                    coordinator=coordinator,
                    state=_PENDING,
                    asked_at=self._clock(),
                    terms=terms,
                    seats=encode_value(list(seats)),
                    form=form,
                    suite=suite,
                    tally=tally,
                )
                row = connection.execute(asked.returning(*_APPROVAL_COLUMNS)).one()
                facts = {**_facts_of(row), **_run_words(terms)}
                self.state.record(connection, SiteAct.ASKED, facts, at=row.asked_at)
            return _approval_of(row)

    def approve(
        self, subject: Subject, digest: bytes, *, coordinator: bytes, by: str, reason: str = ""
    ) -> Approval:
        """Approve something that was asked, or rejected before; else raise `ApprovalError`."""
        key = subject, digest, coordinator
        return self._decide(*key, ApprovalState.APPROVED, by=by, reason=reason)

    def reject(
        self,
        subject: Subject,
        digest: bytes,
        *,
        coordinator: bytes,
        by: str,
        reason: str = "",
        words: str = "",
    ) -> Approval:
        """Reject something that was asked, or approved before; see `approve`.

        The coordinator learns that and when it was rejected, and `words`; never the reason.
        """
        key = subject, digest, coordinator
        return self._decide(*key, ApprovalState.REJECTED, by=by, reason=reason, words=words)

    def decision(self, subject: Subject, digest: bytes, *, coordinator: bytes) -> Approval | None:
        """Return where something stands; None if it was not asked."""
        with self._database.transaction() as connection:
            row = _row_of(connection, subject, digest, coordinator)
        return None if row is None else _approval_of(row)

    def withdraw(self, *, coordinator: bytes, open_runs: Collection[str]) -> None:
        """Forget entries whose run has ended, unless `open_runs` may be cut off."""
        if len(open_runs) >= MOST_OPEN_RUNS:  # there may be others
            return
        with self._database.transaction() as connection:
            waiting = (
                select(ApprovalRow)
                .where(ApprovalRow.coordinator == coordinator)
                .where(ApprovalRow.state == _PENDING)
            )
            for row in connection.execute(waiting).all():
                name = _run_words(row.terms).get("name", "")
                if not name or name in open_runs:
                    continue
                connection.execute(delete(ApprovalRow).where(ApprovalRow.number == row.number))
                facts, at = _facts_of(row), self._clock()
                self.state.record(connection, SiteAct.WITHDRAWN, facts, at=at)

    def use(
        self,
        digest: bytes,
        *,
        coordinator: bytes,
        kind: SiteAct,
        detail: Mapping[str, Fact],
    ) -> None:
        """Put on record that a run, which a person approved, is answered."""
        with self._database.transaction() as connection:
            row = _row_of(connection, Subject.RUN, digest, coordinator)
            # Read once more: somebody may have taken it back since the guard looked.
            if row is None or row.state != _APPROVED:
                raise ApprovalError("a run must be approved to be answered")
            self.state.record(connection, kind, detail, at=self._clock())

    def approvals(self, state: ApprovalState | None = None) -> tuple[Approval, ...]:
        """Return all approvals, or those in one state, in the order in which they were asked."""
        with self._database.transaction() as connection:
            found = _approvals(connection)
        return tuple(one for one in found if state in (None, one.state))

    def find(self, digits: str, *, coordinator: bytes | None = None) -> Approval:
        """Return the one approval that the first digits of a digest name."""
        prefix = digits.strip().lower()
        found = [
            one
            for one in self.approvals()
            if one.digest.hex().startswith(prefix) and coordinator in (None, one.coordinator)
        ]
        if len(prefix) < SHORTEST_DIGEST or len(found) != 1:
            raise ApprovalError(
                f"a digest must be one of those listed, at least its first {SHORTEST_DIGEST} "
                "digits; name the --federation if two ask about the same",
                f"{len(found)} that begin so",
            )
        return found[0]

    def _decide(
        self,
        subject: Subject,
        digest: bytes,
        coordinator: bytes,
        state: ApprovalState,
        *,
        by: str,
        reason: str,
        words: str = "",
    ) -> Approval:
        require_decision(by=by, reason=reason)
        require_decision(by=by, reason=words)
        with self._database.transaction() as connection:
            found = _row_of(connection, subject, digest, coordinator)
            if found is None:
                raise ApprovalError("a decision must be about something that was asked")
            decided = (
                update(ApprovalRow)
                .where(ApprovalRow.number == found.number)
                .values(
                    state=state.value,
                    decided_at=self._clock(),
                    decided_by=by,
                    reason=reason,
                    words=words,
                )
            )
            row = connection.execute(decided.returning(*_APPROVAL_COLUMNS)).one()
            facts = {
                **_facts_of(row),
                "reason": reason,
                **({"words": words} if words else {}),
                "before": found.state,
                "after": state.value,
                **_run_words(found.terms),
            }
            act, at = SiteAct(state.value), row.decided_at
            self.state.record(connection, act, facts, at=at, by=by)
            return _approval_of(row)


def require_decision(*, by: str, reason: str) -> None:
    """Refuse a decision that nobody answers for, or whose reason is no line."""
    require_somebody(by)
    if len(reason) > MOST_REASON_LETTERS or not reason.isprintable():
        raise ApprovalError(f"a reason must be one line of at most {MOST_REASON_LETTERS} letters")


def _row_of(
    connection: Connection, subject: Subject, digest: bytes, coordinator: bytes
) -> Row[Any] | None:
    key = {"kind": subject.value, "digest": digest, "coordinator": coordinator}
    return connection.execute(_APPROVAL, key).one_or_none()


def _facts_of(row: Row[Any]) -> dict[str, Fact]:
    return {"subject": row.kind, "digest": row.digest, "coordinator": row.coordinator}


def _run_words(terms: bytes) -> dict[str, str]:
    """Return a run's name and its purpose, for a record; nothing if its terms cannot be read."""
    try:
        read = RunTerms.from_record(decode_value(terms))
    except (PateFedError, ProtocolError):
        return {}
    return {"name": read.name, "purpose": read.purpose}


def _require_room(connection: Connection, subject: Subject, coordinator: bytes) -> None:
    pending = (
        select(func.count())
        .select_from(ApprovalRow)
        .where(ApprovalRow.kind == subject.value)
        .where(ApprovalRow.coordinator == coordinator)
        .where(ApprovalRow.state == _PENDING)
    )
    if connection.scalars(pending).one() >= MOST_PENDING:
        raise TooManyPendingError(f"at most {MOST_PENDING} may wait for a person")


def _approvals(connection: Connection) -> tuple[Approval, ...]:
    return tuple(_approval_of(row) for row in connection.execute(_APPROVALS))


def _pins(connection: Connection) -> tuple[Pin, ...]:
    return tuple(_pin_of(row) for row in connection.execute(_PINS))


def _pin_of(row: Row[Any]) -> Pin:
    identity = PublicIdentity(row.identity_key)
    return Pin(row.name, row.body, identity, row.checked_how, row.checked_by, row.pinned_at)


def _approval_of(row: Row[Any]) -> Approval:
    facts = dict(row._mapping)
    del facts["number"]
    try:
        facts["subject"], facts["state"] = Subject(facts.pop("kind")), ApprovalState(row.state)
        facts["seats"] = tuple(decode_value(row.seats))
    except (ValueError, TypeError) as error:
        raise StorageDamagedError("an approval must be as it was written") from error
    return Approval(**{**facts, "decided_by": row.decided_by or ""})
