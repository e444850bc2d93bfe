"""Tables of the coordinator's database. A change of theirs is a migration."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import DateTime, Integer, LargeBinary, String, Text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

Moment = DateTime(timezone=True)


class Base(DeclarativeBase):
    """Base of all tables."""


class InvitationRow(Base):
    """An invitation; its token is stored hashed.

    Attributes:
        token_digest: `protocols.enrollment.token_digest`.
        party: Hospital that it is for.
        used_at: When a request came with it; None while it is good.
    """

    __tablename__ = "invitations"

    token_digest: Mapped[bytes] = mapped_column(LargeBinary(32), primary_key=True)
    party: Mapped[str] = mapped_column(String(64))
    made_at: Mapped[datetime] = mapped_column(Moment)
    expires_at: Mapped[datetime] = mapped_column(Moment)
    used_at: Mapped[datetime | None] = mapped_column(Moment)


class MemberRow(Base):
    """A hospital that asked to join, and what became of it.

    Attributes:
        fingerprint: Of its identity.
        name: What people call it; one identity has it at a time.
        identity_key: Ed25519.
        node_key: EC key for Flower, PEM.
        node_id: Flower's number for its node, decimal; None until it was let in.
        state: "requested", "member" or "revoked".
        teachers: Teachers that it votes with, as it said to the operator; 0 until it is a member.
    """

    __tablename__ = "members"

    fingerprint: Mapped[bytes] = mapped_column(LargeBinary(32), primary_key=True)
    name: Mapped[str] = mapped_column(String(64), index=True)
    identity_key: Mapped[bytes] = mapped_column(LargeBinary(32))
    node_key: Mapped[str] = mapped_column(String(1024))
    node_id: Mapped[str | None] = mapped_column(String(20))
    state: Mapped[str] = mapped_column(String(16))
    requested_at: Mapped[datetime] = mapped_column(Moment)
    approved_at: Mapped[datetime | None] = mapped_column(Moment)
    revoked_at: Mapped[datetime | None] = mapped_column(Moment)
    teachers: Mapped[int] = mapped_column(Integer, default=0)


class QueuedRunRow(Base):
    """A labeling run, from the moment it was asked for.

    Attributes:
        name: What the operator calls it.
        state: See `coordinator.run_queue.RunState`.
        wanted: "" or "pause": what the operator asked of a run that is under way.
        reason: Why it is in that state, with codes and names of hospitals; no secret.
        request: What was asked, canonical JSON; see `coordinator.run_request`.
        progress: Counts and released values, JSON.
    """

    __tablename__ = "run_queue"

    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    state: Mapped[str] = mapped_column(String(16), index=True)
    wanted: Mapped[str] = mapped_column(String(16), default="")
    reason: Mapped[str] = mapped_column(Text, default="")
    request: Mapped[str] = mapped_column(Text)
    progress: Mapped[str] = mapped_column(Text, default="{}")
    created_at: Mapped[datetime] = mapped_column(Moment)
    updated_at: Mapped[datetime] = mapped_column(Moment)
