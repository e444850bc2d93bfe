"""Tables of a tally's database. A change of theirs is a migration."""

from __future__ import annotations

from sqlalchemy import BigInteger, ForeignKey, LargeBinary, Text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from coordinator.database.check_rows import CheckStepColumns

_DIGEST = LargeBinary(32)


class TallyRow(DeclarativeBase):
    """TallyRow of all tables."""


class TallyRunRow(TallyRow):
    """A run for which the tally stated a key.

    Attributes:
        offer: Digest of the offer.
        statement: Frame of the tally's `KeyStatement`.
        key: Private bytes of its sealing key; None once it is erased.
        suite: Of the key.
        expires_at: Unix seconds; of the offer.
        run_id: Digest of the first record that came for the offer; None before. No other is served.
        scope: `RunScope.digest` of that record.
        record: Frame of that record.
    """

    __tablename__ = "runs"

    offer: Mapped[bytes] = mapped_column(_DIGEST, primary_key=True)
    statement: Mapped[bytes] = mapped_column(LargeBinary)
    key: Mapped[bytes | None] = mapped_column(LargeBinary)
    suite: Mapped[str] = mapped_column(Text)
    expires_at: Mapped[int] = mapped_column(BigInteger)
    run_id: Mapped[bytes | None] = mapped_column(_DIGEST, unique=True)
    scope: Mapped[bytes | None] = mapped_column(_DIGEST, index=True)
    record: Mapped[bytes | None] = mapped_column(LargeBinary)


class TallyBatchRow(TallyRow):
    """A plan whose list of reports the tally took.

    Attributes:
        plan: Frame of the signed `Plan`.
        rejected: Fingerprints of hospitals whose reports hold no votes, hexadecimal, JSON; None
            before it is decided.
    """

    __tablename__ = "batches"

    plan_digest: Mapped[bytes] = mapped_column(_DIGEST, primary_key=True)
    offer: Mapped[bytes] = mapped_column(ForeignKey("runs.offer"), index=True)
    plan: Mapped[bytes] = mapped_column(LargeBinary)
    rejected: Mapped[str | None] = mapped_column(Text)


class TallyStepRow(CheckStepColumns, TallyRow):
    """A step of a plan's check."""


class TallyHeadRow(TallyRow):
    """A state of this database that the coordinator may know: see `coordinator.tally.heads`."""

    __tablename__ = "heads"

    number: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    link: Mapped[bytes] = mapped_column(_DIGEST)


class TallyLedgerRow(TallyRow):
    """What a run was charged, over all its setups: a `RunLedger.to_record`, JSON."""

    __tablename__ = "ledgers"

    scope: Mapped[bytes] = mapped_column(_DIGEST, primary_key=True)
    record: Mapped[str] = mapped_column(Text)


class TallyOpenedRow(TallyRow):
    """A row of a run's query pool, by its place, whose noisy sum was opened: it never opens again.

    `plan_digest` is the plan that opened it.
    """

    __tablename__ = "opened"

    scope: Mapped[bytes] = mapped_column(_DIGEST, primary_key=True)
    place: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    plan_digest: Mapped[bytes] = mapped_column(_DIGEST)
