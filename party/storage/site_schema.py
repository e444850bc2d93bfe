"""Tables of a hospital's database. A change of theirs is a migration."""

from __future__ import annotations

from sqlalchemy import Double, ForeignKey, Index, LargeBinary, String, UniqueConstraint
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from pate_fed.nodes.database import AuditColumns

Digest = LargeBinary(32)


class SiteRow(DeclarativeBase):
    """SiteRow of all tables."""


# The journal --------------------------------------------------------------------------------------


class JournalRow(SiteRow):
    """The one row of the journal as a whole: how often it was written to.

    `halted_at` is the counter that was signed and never reached; 0 if there is none.
    """

    __tablename__ = "journal"

    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    counter: Mapped[int]
    halted_at: Mapped[int]


class PartyRunRow(SiteRow):
    """A run that this party agreed to, kept for ever; `keys` are the parties', in seat order."""

    __tablename__ = "runs"

    run_id: Mapped[bytes] = mapped_column(Digest, primary_key=True)
    coordinator: Mapped[bytes] = mapped_column(Digest)
    form: Mapped[str] = mapped_column(String(64))
    keys: Mapped[bytes] = mapped_column(LargeBinary)


class PlanRow(SiteRow):
    """A plan, kept for ever.

    Attributes:
        run_id: Its run; None while it only claims queries.
        epoch: Its epoch; None if it was never begun.
        verdict: Digest of this party's verdict on it; None if it gave none.
        is_answered: Whether a y was ever kept for it.
        is_abandoned: Whether this party promised never to send for it.
        claim: The sets that it may open, canonical CBOR; None if it claims no queries.
    """

    __tablename__ = "plans"

    plan_digest: Mapped[bytes] = mapped_column(Digest, primary_key=True)
    run_id: Mapped[bytes | None] = mapped_column(LargeBinary)
    epoch: Mapped[int | None]
    verdict: Mapped[bytes | None] = mapped_column(Digest)
    is_answered: Mapped[bool] = mapped_column(default=False)
    is_abandoned: Mapped[bool] = mapped_column(default=False)
    claim: Mapped[bytes | None] = mapped_column(LargeBinary)

    __table_args__ = (Index("ix_plans_run_id_epoch", "run_id", "epoch"),)


class VectorRow(SiteRow):
    """A frame of an answer that may have to be sent again: a y, or the shares in front of it.

    `place` is that of the frame in the answer, from 0, `digest` its SHA-256. After `expires_at`,
    Unix time in seconds, nobody needs it.
    """

    __tablename__ = "vectors"

    plan_digest: Mapped[bytes] = mapped_column(Digest, primary_key=True)
    place: Mapped[int] = mapped_column(primary_key=True)
    frame: Mapped[bytes] = mapped_column(LargeBinary)
    digest: Mapped[bytes] = mapped_column(Digest)
    expires_at: Mapped[int]


class ClaimRow(SiteRow):
    """A query that a plan asked; one that was freed has a row for each plan that asked it."""

    __tablename__ = "claims"

    query: Mapped[bytes] = mapped_column(Digest, primary_key=True)
    plan_digest: Mapped[bytes] = mapped_column(
        ForeignKey("plans.plan_digest"), primary_key=True, index=True
    )


class WitnessRow(SiteRow):
    """The highest counter that a peer signed of its journal."""

    __tablename__ = "witnesses"

    peer: Mapped[bytes] = mapped_column(Digest, primary_key=True)
    counter: Mapped[int]


class PatientVotesRow(SiteRow):
    """See `party.storage.patient_votes`: `tags` of 32 bytes each, and in their order `votes`."""

    __tablename__ = "patient_votes"

    scope: Mapped[bytes] = mapped_column(Digest, primary_key=True)
    tags: Mapped[bytes] = mapped_column(LargeBinary)
    votes: Mapped[bytes] = mapped_column(LargeBinary)


# The ledger ---------------------------------------------------------------------------------------


class LedgerBudgetRow(SiteRow):
    """The one row of the ledger's budget, fixed before the first charge; without entries."""

    __tablename__ = "budget"

    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    record: Mapped[str]


class EntryRow(SiteRow):
    """An entry of the ledger, and its place from 0."""

    __tablename__ = "entries"

    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    entry_id: Mapped[str] = mapped_column(String(64), unique=True)
    record: Mapped[str]


class RunChargesRow(SiteRow):
    """See `party.storage.ledger_store.RunCharges`: terms as canonical CBOR, the ledger as JSON."""

    __tablename__ = "run_charges"

    scope: Mapped[bytes] = mapped_column(Digest, primary_key=True)
    seat: Mapped[int]
    terms: Mapped[bytes] = mapped_column(LargeBinary)
    record: Mapped[str]


class RunSetupRow(SiteRow):
    """An id under which a run was set up; it may have been charged nothing."""

    __tablename__ = "run_setups"

    run_id: Mapped[bytes] = mapped_column(Digest, primary_key=True)
    scope: Mapped[bytes] = mapped_column(ForeignKey("run_charges.scope"))


class RunPriceRow(SiteRow):
    """The stated cost of a run, by SHA-256 of version and terms; see `run_costs`."""

    __tablename__ = "run_costs"

    key: Mapped[bytes] = mapped_column(Digest, primary_key=True)
    record: Mapped[str]


# Decisions of its people -------------------------------------------------------------------------


class SiteAuditRow(AuditColumns, SiteRow):
    """An entry of the audit log."""


class PinRow(SiteRow):
    """See `party.site.peers.Pin`."""

    __tablename__ = "pins"

    fingerprint: Mapped[bytes] = mapped_column(Digest, primary_key=True)
    name: Mapped[str] = mapped_column(String(200), unique=True)
    body: Mapped[str]
    identity_key: Mapped[bytes] = mapped_column(LargeBinary(32))
    checked_how: Mapped[str]
    checked_by: Mapped[str]
    pinned_at: Mapped[float] = mapped_column(Double)


class ApprovalRow(SiteRow):
    """See `party.site.people_decisions.Approval`; `seats` is canonical CBOR."""

    __tablename__ = "approvals"

    number: Mapped[int] = mapped_column(primary_key=True)
    kind: Mapped[str] = mapped_column(String(16))
    digest: Mapped[bytes] = mapped_column(Digest)
    coordinator: Mapped[bytes] = mapped_column(Digest)
    state: Mapped[str] = mapped_column(String(16), index=True)
    asked_at: Mapped[float] = mapped_column(Double)
    terms: Mapped[bytes] = mapped_column(LargeBinary)
    seats: Mapped[bytes] = mapped_column(LargeBinary)
    form: Mapped[str]
    suite: Mapped[str]
    tally: Mapped[bytes] = mapped_column(LargeBinary)
    decided_at: Mapped[float | None] = mapped_column(Double)
    decided_by: Mapped[str | None]
    reason: Mapped[str] = mapped_column(default="", server_default="")
    words: Mapped[str] = mapped_column(default="", server_default="")

    __table_args__ = (UniqueConstraint("kind", "digest", "coordinator"),)


class SiteStateRow(SiteRow):
    """The last note of a changing value; changed by "" where it was no person."""

    __tablename__ = "standing"

    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    value: Mapped[str]
    changed_by: Mapped[str]
    changed_at: Mapped[float] = mapped_column(Double)


# What left the site ------------------------------------------------------------------------------


class SentRow(SiteRow):
    """A message that left, in the order in which they first did; times are Unix seconds.

    One that left again is the same row, and `size` is that of all times. Requests outside of runs
    have one row for each day and thing that they ask about. So have the messages of a kind beyond
    the most of a day. `name` is the digest of the message; of a request or the rest of a day, kind,
    coordinator and day. `digest` is that of a request's newest message.
    """

    __tablename__ = "sent"

    number: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(200), unique=True)
    coordinator: Mapped[bytes] = mapped_column(Digest)
    kind: Mapped[str] = mapped_column(String(32))
    run_id: Mapped[bytes] = mapped_column(LargeBinary)
    times: Mapped[int]
    size: Mapped[int]
    digest: Mapped[bytes] = mapped_column(Digest)
    first_at: Mapped[float] = mapped_column(Double)
    last_at: Mapped[float] = mapped_column(Double)

    __table_args__ = (Index("ix_sent_kind_day", "coordinator", "kind", "first_at"),)
