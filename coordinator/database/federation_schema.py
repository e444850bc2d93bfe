"""Tables of the coordinator's database. A change of theirs is a migration."""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum
from typing import Final

from sqlalchemy import (
    BigInteger,
    DateTime,
    Dialect,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    String,
    Text,
    TypeDecorator,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from coordinator.database.check_rows import CheckStepColumns
from pate_fed.nodes.database import AuditColumns


class Moment(TypeDecorator[datetime]):
    """A time in UTC: SQLite keeps no zone, and the written time was UTC."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002 - all of them
        """See `TypeDecorator.process_result_value`."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class CoordinatorRow(DeclarativeBase):
    """CoordinatorRow of all tables."""


class InvitationRow(CoordinatorRow):
    """See `coordinator.federation.enrollment.MadeInvitation`; the token is stored hashed."""

    __tablename__ = "invitations"

    token_digest: Mapped[bytes] = mapped_column(LargeBinary(32), primary_key=True)
    party: Mapped[str] = mapped_column(String(64))
    made_at: Mapped[datetime] = mapped_column(Moment)
    expires_at: Mapped[datetime] = mapped_column(Moment)
    used_at: Mapped[datetime | None] = mapped_column(Moment)


class MemberRow(CoordinatorRow):
    """See `coordinator.federation.enrollment.EnrolledParty`.

    Attributes:
        node_key: EC key for Flower, PEM.
        node_id: Decimal.
        named_votes: Votes by further data sets, JSON.
        votes_asked_at: When the query that stated its votes was signed, in Unix seconds.
        audit_head: Frame of the head of its audit log that is kept; None if it gave none.
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
    votes: Mapped[int] = mapped_column(Integer, default=0)
    named_votes: Mapped[str] = mapped_column(Text, default="{}")
    votes_asked_at: Mapped[int] = mapped_column(BigInteger, default=0)
    audit_head: Mapped[bytes | None] = mapped_column(LargeBinary)
    seen_at: Mapped[datetime | None] = mapped_column(Moment)
    away_since: Mapped[datetime | None] = mapped_column(Moment)
    away_at: Mapped[datetime | None] = mapped_column(Moment)
    clock_skew_s: Mapped[int | None]
    version: Mapped[str | None] = mapped_column(String(32))


class FederationAuditRow(AuditColumns, CoordinatorRow):
    """An entry of the operator's audit log."""


# The console --------------------------------------------------------------------------------------


class PersonRow(CoordinatorRow):
    """A person who may use the console.

    Attributes:
        password: Argon2id, in its own text form; None until they chose one.
        code_key: Key of their one-time codes, 20 bytes; None until they chose a password.
        code_step: Step of the last code that was taken: none of it or before is taken again.
        setup_digest: Of the code with which they set up password and one-time codes; None once they
            did.
        locked_until: Nobody signs in under this name before; None if it is not locked.
        changed_at: When they were added, set up, or changed last by an administrator.
    """

    __tablename__ = "people"

    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    role: Mapped[str] = mapped_column(String(16))
    password: Mapped[str | None] = mapped_column(String(256))
    code_key: Mapped[bytes | None] = mapped_column(LargeBinary(20))
    code_step: Mapped[int] = mapped_column(BigInteger, default=0)
    setup_digest: Mapped[bytes | None] = mapped_column(LargeBinary(32))
    setup_until: Mapped[datetime | None] = mapped_column(Moment)
    failures: Mapped[int] = mapped_column(Integer, default=0)
    locked_until: Mapped[datetime | None] = mapped_column(Moment)
    made_at: Mapped[datetime] = mapped_column(Moment)
    changed_at: Mapped[datetime] = mapped_column(Moment)
    subject: Mapped[str | None] = mapped_column(String(512), unique=True)


class FederationBudgetRow(CoordinatorRow):
    """A budget of the federation that holds, held, or is proposed; the newest of a state counts."""

    __tablename__ = "budgets"

    number: Mapped[int] = mapped_column(primary_key=True)
    epsilon: Mapped[float] = mapped_column(Double)
    state: Mapped[str] = mapped_column(String(16))
    reason: Mapped[str] = mapped_column(Text)
    changed_by: Mapped[str] = mapped_column(String(64))
    changed_at: Mapped[datetime] = mapped_column(Moment)


class SessionRow(CoordinatorRow):
    """A person who is signed in at one browser; its token is stored hashed."""

    __tablename__ = "sessions"

    token_digest: Mapped[bytes] = mapped_column(LargeBinary(32), primary_key=True)
    person: Mapped[str] = mapped_column(ForeignKey("people.name", ondelete="CASCADE"), index=True)
    made_at: Mapped[datetime] = mapped_column(Moment)
    seen_at: Mapped[datetime] = mapped_column(Moment)


class ApiTokenRow(CoordinatorRow):
    """A token of the API, stored hashed; see `coordinator.people.api_tokens.ApiToken`.

    `scopes` are separated by spaces.
    """

    __tablename__ = "api_tokens"

    digest: Mapped[bytes] = mapped_column(LargeBinary(32), primary_key=True)
    name: Mapped[str] = mapped_column(String(64), unique=True)
    person: Mapped[str] = mapped_column(ForeignKey("people.name", ondelete="CASCADE"), index=True)
    scopes: Mapped[str] = mapped_column(String(255))
    ends_at: Mapped[datetime] = mapped_column(Moment)
    used: Mapped[int] = mapped_column(BigInteger)
    used_at: Mapped[datetime | None] = mapped_column(Moment)


# Runs ---------------------------------------------------------------------------------------------


class RunState(StrEnum):
    """Where a run stands."""

    QUEUED = "queued"  # nobody has begun
    RUNNING = "running"
    WAITING = "waiting"  # for hospitals: the reason names them and the missing step
    PAUSED = "paused"  # by the operator
    STOPPING = "stopping"  # the operator wants it ended: its releases are kept
    DONE = "done"
    INCOMPLETE = "incomplete"  # ended before all was asked: the reason says why
    FAILED = "failed"  # the reason has a code
    STOPPED = "stopped"  # by the operator


ENDED: Final = frozenset({RunState.DONE, RunState.INCOMPLETE, RunState.FAILED, RunState.STOPPED})


class RunRow(CoordinatorRow):
    """A labeling run, from the moment it was asked for.

    Attributes:
        reason: Why it is in that state, with codes and names of hospitals; no secret.
        request: The request, canonical JSON; see `coordinator.runs.request`.
        fence: How often it was taken up: who took it up before may not write any more.
        waiting_since: When its hospitals were asked in vain for the first time; None while it waits
            for none.
    """

    __tablename__ = "runs"

    number: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(64), unique=True)
    state: Mapped[str] = mapped_column(String(16), index=True)
    wanted: Mapped[str] = mapped_column(String(16))
    reason: Mapped[str] = mapped_column(Text)
    request: Mapped[str] = mapped_column(Text)
    progress: Mapped[str] = mapped_column(Text)
    fence: Mapped[int]
    waiting_since: Mapped[datetime | None] = mapped_column(Moment)
    turn: Mapped[int]
    created_at: Mapped[datetime] = mapped_column(Moment)
    updated_at: Mapped[datetime] = mapped_column(Moment)


class AttemptRow(CoordinatorRow):
    """A run as it was offered to hospitals once; the next offer is another attempt.

    Its journal is its own; ledger, batches and answers are the run's.

    Attributes:
        run_id: Which run it is to the parties; empty before it was set up.
        given_up: Why it came to nothing, in words for the operator; None while it may go on.
        lost_by: Fingerprint of the hospital that lost it; empty if none did.
    """

    __tablename__ = "attempts"

    number: Mapped[int] = mapped_column(primary_key=True)
    run: Mapped[int] = mapped_column(ForeignKey("runs.number"), index=True)
    run_id: Mapped[bytes] = mapped_column(LargeBinary)
    given_up: Mapped[str | None] = mapped_column(Text)
    lost_by: Mapped[bytes] = mapped_column(LargeBinary, default=b"")
    begun_at: Mapped[datetime] = mapped_column(Moment)


class RunStepRow(CoordinatorRow):
    """A step of a run's journal, from 0: a `step_to_record` as canonical CBOR."""

    __tablename__ = "run_steps"

    attempt: Mapped[int] = mapped_column(ForeignKey("attempts.number"), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    body: Mapped[bytes] = mapped_column(LargeBinary)


class SealingKeyRow(CoordinatorRow):
    """The coordinator's key for an attempt's sealed votes; None once erased with its steps."""

    __tablename__ = "sealing_keys"

    attempt: Mapped[int] = mapped_column(ForeignKey("attempts.number"), primary_key=True)
    suite: Mapped[str] = mapped_column(String(64))
    key: Mapped[bytes | None] = mapped_column(LargeBinary)


class CheckStepRow(CheckStepColumns, CoordinatorRow):
    """A step of the coordinator's end of a plan's check."""

    attempt: Mapped[int] = mapped_column(ForeignKey("attempts.number"), index=True)


class TallyPresenceRow(CoordinatorRow):
    """Whether a tally, by its fingerprint, answers: see `coordinator.runs.tally_presence`.

    Attributes:
        code: Of the last call's fault; "" while it answers.
        head: Where it stood at its last answer; empty before one.
    """

    __tablename__ = "tally_presence"

    fingerprint: Mapped[bytes] = mapped_column(LargeBinary(32), primary_key=True)
    answered_at: Mapped[datetime | None] = mapped_column(Moment)
    away_since: Mapped[datetime | None] = mapped_column(Moment)
    code: Mapped[str] = mapped_column(String(16))
    head: Mapped[bytes] = mapped_column(LargeBinary)


class RunHospitalRow(CoordinatorRow):
    """The last answer of a hospital about a run: see `coordinator.runs.run_hospitals`.

    `no_votes` is how many of its reports in the run held no votes.
    """

    __tablename__ = "run_hospitals"

    run: Mapped[int] = mapped_column(ForeignKey("runs.number"), primary_key=True)
    party: Mapped[bytes] = mapped_column(LargeBinary(32), primary_key=True)
    code: Mapped[str] = mapped_column(String(16))
    decided_at: Mapped[datetime | None] = mapped_column(Moment)
    words: Mapped[str] = mapped_column(Text)
    no_votes: Mapped[int] = mapped_column(Integer, default=0)


class RunCapsRow(CoordinatorRow):
    """The caps of a run, fixed when it was made: its `OutcomeLedger` without entries, JSON."""

    __tablename__ = "run_caps"

    run: Mapped[int] = mapped_column(ForeignKey("runs.number"), primary_key=True)
    record: Mapped[str] = mapped_column(Text)


class RunEntryRow(CoordinatorRow):
    """An entry of a run's ledger: its place, from 0, and its record, JSON."""

    __tablename__ = "run_entries"

    run: Mapped[int] = mapped_column(ForeignKey("runs.number"), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    record: Mapped[str] = mapped_column(Text)


class RunBatchRow(CoordinatorRow):
    """See `coordinator.database.run_store.StoredBatch`.

    Attributes:
        attempt: In which setup of the run it was asked.
        record: Indices, remaining caps, and the student's predictions, JSON.
        release: Its release, JSON; None without one.
    """

    __tablename__ = "run_batches"

    run: Mapped[int] = mapped_column(ForeignKey("runs.number"), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    attempt: Mapped[int] = mapped_column(ForeignKey("attempts.number"))
    state: Mapped[str] = mapped_column(String(16))
    record: Mapped[str] = mapped_column(Text)
    release: Mapped[str | None] = mapped_column(Text)


class SkippedRow(CoordinatorRow):
    """A query that a run does not ask, since the named hospitals (JSON) would refuse it."""

    __tablename__ = "skipped"

    run: Mapped[int] = mapped_column(ForeignKey("runs.number"), primary_key=True)
    place: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    parties: Mapped[str] = mapped_column(Text)


class AnswerRow(CoordinatorRow):
    """A query of a batch that was released; the label None is "no answer"."""

    __tablename__ = "answers"

    run: Mapped[int] = mapped_column(ForeignKey("runs.number"), primary_key=True)
    batch: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    place: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    pool_digest: Mapped[bytes] = mapped_column(LargeBinary(32))
    task_digest: Mapped[bytes] = mapped_column(LargeBinary(32))
    members_digest: Mapped[bytes] = mapped_column(LargeBinary(32))
    query_digest: Mapped[bytes] = mapped_column(LargeBinary(32))
    label: Mapped[int | None]

    __table_args__ = (Index("ix_answers_query", "query_digest", "members_digest"),)


class StatementRow(CoordinatorRow):
    """A party's last signed journal counter, over all runs (rule R4): the signed frame."""

    __tablename__ = "statements"

    party: Mapped[bytes] = mapped_column(LargeBinary(32), primary_key=True)
    frame: Mapped[bytes] = mapped_column(LargeBinary)
