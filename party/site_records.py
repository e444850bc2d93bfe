"""What the site's own people decided: whom they pinned, what they approved, how the node is set.

Each decision and its record in the audit log are one transaction. No message changes any of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from sqlalchemy import select

from party.audit import AuditKind
from party.audit_log import AuditLog
from party.errors import RecordError
from party.storage import PartyDatabase
from party.storage.schema import ApprovalRow, PinRow, SettingRow
from protocols.identity import PublicIdentity


@dataclass(frozen=True, slots=True)
class Pin:
    """A peer whose identity the site's own people checked.

    Attributes:
        name: What people call it.
        identity: The identity.
        checked_how: How it was checked, in their words.
        checked_by: Who did.
        pinned_at: When, Unix time in seconds.
    """

    name: str
    identity: PublicIdentity
    checked_how: str
    checked_by: str
    pinned_at: float


class Subject(StrEnum):
    """What can be approved."""

    POOL = "pool"
    RUN = "run"


class ApprovalState(StrEnum):
    """Where an approval stands."""

    PENDING = "pending"
    APPROVED = "approved"
    REJECTED = "rejected"


@dataclass(frozen=True, slots=True)
class Approval:
    """Something that a person of the site has to approve.

    Attributes:
        subject: A pool or a run.
        digest: Of the pool, or of the run's terms; 32 bytes.
        state: Where it stands.
        asked_at: When it was first asked, Unix time in seconds.
        decided_at: When it was decided, if it was.
        decided_by: Who did; empty if nobody did.
    """

    subject: Subject
    digest: bytes
    state: ApprovalState
    asked_at: float
    decided_at: float | None = None
    decided_by: str = ""


class SiteRecords:
    """Pins, approvals and settings of a site.

    Args:
        database: The site's.
        clock: Unix time, in seconds.
    """

    def __init__(self, database: PartyDatabase, *, clock: Callable[[], float]) -> None:
        self._database = database
        self._log = AuditLog(database)
        self._clock = clock

    # Pins -------------------------------------------------------------------------------------

    def add_pin(self, name: str, identity: PublicIdentity, *, how: str, by: str) -> Pin:
        """Pin a peer that was checked out of band.

        Raises:
            RecordError: the name or the identity is pinned: that pin has to be removed first.
            StorageError: it could not be stored.
        """
        pin = Pin(name, identity, how, by, self._clock())
        with self._database.transaction() as session:
            same = (PinRow.name == name) | (PinRow.fingerprint == identity.fingerprint)
            if session.scalar(select(PinRow.name).where(same)) is not None:
                raise RecordError("a name and an identity must be pinned once", "a second pin")
            session.add(
                PinRow(
                    fingerprint=identity.fingerprint,
                    name=name,
                    identity_key=identity.key,
                    checked_how=how,
                    checked_by=by,
                    pinned_at=pin.pinned_at,
                )
            )
            self._log.append(
                AuditKind.PIN_ADDED,
                at=pin.pinned_at,
                session=session,
                name=name,
                fingerprint=identity.fingerprint,
                how=how,
                by=by,
            )
        return pin

    def remove_pin(self, name: str, *, by: str) -> None:
        """Remove the pin of a name.

        Raises:
            RecordError: there is none.
            StorageError: it could not be stored.
        """
        with self._database.transaction() as session:
            row = session.scalar(select(PinRow).where(PinRow.name == name))
            if row is None:
                raise RecordError("a pin must be there to be removed", "none")
            session.delete(row)
            self._log.append(
                AuditKind.PIN_REMOVED,
                at=self._clock(),
                session=session,
                name=name,
                fingerprint=row.fingerprint,
                by=by,
            )

    def pins(self) -> dict[bytes, Pin]:
        """Return all pins by fingerprint, in the order of their names."""
        with self._database.transaction() as session:
            rows = session.scalars(select(PinRow).order_by(PinRow.name)).all()
        return {row.fingerprint: _pin_of(row) for row in rows}

    # Approvals --------------------------------------------------------------------------------

    def ask(self, subject: Subject, digest: bytes) -> Approval:
        """Note that something waits for a person, unless it was noted before.

        Returns:
            Where it stands.

        Raises:
            StorageError: it could not be stored.
        """
        with self._database.transaction() as session:
            row = session.get(ApprovalRow, (subject.value, digest))
            if row is None:
                row = ApprovalRow(
                    kind=subject.value,
                    digest=digest,
                    state=ApprovalState.PENDING.value,
                    asked_at=self._clock(),
                )
                session.add(row)
                self._log.append(
                    AuditKind.ASKED,
                    at=row.asked_at,
                    session=session,
                    subject=subject.value,
                    digest=digest,
                )
            return _approval_of(row)

    def approve(self, subject: Subject, digest: bytes, *, by: str) -> Approval:
        """Approve something that was asked, or rejected before.

        Raises:
            RecordError: it was never asked.
            StorageError: it could not be stored.
        """
        return self._decide(subject, digest, ApprovalState.APPROVED, AuditKind.APPROVED, by=by)

    def reject(self, subject: Subject, digest: bytes, *, by: str) -> Approval:
        """Reject something that was asked, or approved before.

        Raises:
            RecordError: it was never asked.
            StorageError: it could not be stored.
        """
        return self._decide(subject, digest, ApprovalState.REJECTED, AuditKind.REJECTED, by=by)

    def approvals(self, state: ApprovalState | None = None) -> tuple[Approval, ...]:
        """Return all approvals, or those in one state, oldest first."""
        wanted = select(ApprovalRow).order_by(ApprovalRow.asked_at, ApprovalRow.digest)
        if state is not None:
            wanted = wanted.where(ApprovalRow.state == state.value)
        with self._database.transaction() as session:
            return tuple(_approval_of(row) for row in session.scalars(wanted))

    def is_approved(self, subject: Subject, digest: bytes) -> bool:
        """Tell whether a person approved it."""
        with self._database.transaction() as session:
            row = session.get(ApprovalRow, (subject.value, digest))
            return row is not None and row.state == ApprovalState.APPROVED.value

    def approved_pools(self) -> frozenset[bytes]:
        """Return the digests of all approved pools, for `Policy.approved_pools`."""
        approved = self.approvals(ApprovalState.APPROVED)
        return frozenset(each.digest for each in approved if each.subject is Subject.POOL)

    def _decide(
        self, subject: Subject, digest: bytes, state: ApprovalState, kind: AuditKind, *, by: str
    ) -> Approval:
        with self._database.transaction() as session:
            row = session.get(ApprovalRow, (subject.value, digest))
            if row is None:
                raise RecordError("a decision must be about something that was asked", "another")
            row.state, row.decided_at, row.decided_by = state.value, self._clock(), by
            self._log.append(
                kind,
                at=row.decided_at,
                session=session,
                subject=subject.value,
                digest=digest,
                by=by,
            )
            return _approval_of(row)

    # Settings ---------------------------------------------------------------------------------

    def setting(self, key: str) -> str | None:
        """Return a setting; None if it was never set."""
        with self._database.transaction() as session:
            row = session.get(SettingRow, key)
            return None if row is None else row.value

    def set(self, key: str, value: str, *, by: str) -> None:
        """Change a setting; the same value again is no change.

        Raises:
            StorageError: it could not be stored.
        """
        with self._database.transaction() as session:
            row = session.get(SettingRow, key)
            if row is not None and row.value == value:
                return
            session.merge(SettingRow(key=key, value=value))
            self._log.append(
                AuditKind.SETTING_CHANGED,
                at=self._clock(),
                session=session,
                key=key,
                value=value,
                by=by,
            )

    def settings(self) -> Mapping[str, str]:
        """Return all settings."""
        with self._database.transaction() as session:
            return {row.key: row.value for row in session.scalars(select(SettingRow))}

    def __repr__(self) -> str:
        return f"SiteRecords({self._database!r})"


def _pin_of(row: PinRow) -> Pin:
    identity = PublicIdentity(row.identity_key)
    return Pin(row.name, identity, row.checked_how, row.checked_by, row.pinned_at)


def _approval_of(row: ApprovalRow) -> Approval:
    return Approval(
        Subject(row.kind),
        row.digest,
        ApprovalState(row.state),
        row.asked_at,
        row.decided_at,
        row.decided_by or "",
    )
