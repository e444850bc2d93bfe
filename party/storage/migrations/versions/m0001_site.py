"""Journal, ledger, audit log, pins, approvals, other decisions of its people, sent messages."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_DIGEST = sa.LargeBinary(32)


def upgrade() -> None:
    """Make the tables."""
    _make_journal()
    _make_records()
    _make_sent()


def downgrade() -> None:
    """Refuse: answered queries must stay known."""
    raise NotImplementedError("a hospital's journal is never dropped")


def _make_journal() -> None:
    op.create_table(
        "journal",
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("counter", sa.Integer, nullable=False),
        sa.Column("halted_at", sa.Integer, nullable=False),
        sa.Column("sketch_key", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "runs",
        sa.Column("run_id", _DIGEST, primary_key=True),
        sa.Column("coordinator", _DIGEST, nullable=False),
        sa.Column("form", sa.String(64), nullable=False),
        sa.Column("keys", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "plans",
        sa.Column("plan_digest", _DIGEST, primary_key=True),
        sa.Column("run_id", sa.LargeBinary),
        sa.Column("epoch", sa.Integer),
        sa.Column("verdict", _DIGEST),
        sa.Column("is_answered", sa.Boolean, nullable=False),
        sa.Column("is_abandoned", sa.Boolean, nullable=False),
        sa.Column("claim", sa.LargeBinary),
    )
    op.create_index("ix_plans_run_id_epoch", "plans", ["run_id", "epoch"])
    op.create_table(
        "vectors",
        sa.Column("plan_digest", _DIGEST, primary_key=True),
        sa.Column("place", sa.Integer, primary_key=True),
        sa.Column("frame", sa.LargeBinary, nullable=False),
        sa.Column("digest", _DIGEST, nullable=False),
        sa.Column("expires_at", sa.Integer, nullable=False),
    )
    op.create_table(
        "claims",
        sa.Column("query", _DIGEST, primary_key=True),
        sa.Column("plan_digest", _DIGEST, sa.ForeignKey("plans.plan_digest"), primary_key=True),
    )
    op.create_index("ix_claims_plan_digest", "claims", ["plan_digest"])
    op.create_table(
        "sketches",
        sa.Column("number", sa.Integer, primary_key=True),
        sa.Column("query", _DIGEST, nullable=False, unique=True),
        sa.Column("sketch", sa.LargeBinary, nullable=False),
        sa.Column("is_near", sa.Boolean, nullable=False),
    )
    op.create_table(
        "witnesses",
        sa.Column("peer", _DIGEST, primary_key=True),
        sa.Column("counter", sa.Integer, nullable=False),
    )


def _make_records() -> None:
    op.create_table(
        "budget",
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("record", sa.String, nullable=False),
    )
    op.create_table(
        "entries",
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("entry_id", sa.String(64), nullable=False, unique=True),
        sa.Column("record", sa.String, nullable=False),
    )
    op.create_table(
        "run_charges",
        sa.Column("scope", _DIGEST, primary_key=True),
        sa.Column("seat", sa.Integer, nullable=False),
        sa.Column("terms", sa.LargeBinary, nullable=False),
        sa.Column("record", sa.String, nullable=False),
    )
    op.create_table(
        "run_setups",
        sa.Column("run_id", _DIGEST, primary_key=True),
        sa.Column("scope", _DIGEST, sa.ForeignKey("run_charges.scope"), nullable=False),
    )
    op.create_table(
        "run_costs",
        sa.Column("key", _DIGEST, primary_key=True),
        sa.Column("record", sa.String, nullable=False),
    )
    op.create_table(
        "audit",
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.Column("link", _DIGEST, nullable=False),
    )
    op.create_table(
        "pins",
        sa.Column("fingerprint", _DIGEST, primary_key=True),
        sa.Column("name", sa.String(200), nullable=False, unique=True),
        sa.Column("body", sa.String, nullable=False),
        sa.Column("identity_key", _DIGEST, nullable=False),
        sa.Column("checked_how", sa.String, nullable=False),
        sa.Column("checked_by", sa.String, nullable=False),
        sa.Column("pinned_at", sa.Double, nullable=False),
    )
    op.create_table(
        "approvals",
        sa.Column("number", sa.Integer, primary_key=True),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("digest", _DIGEST, nullable=False),
        sa.Column("coordinator", _DIGEST, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("asked_at", sa.Double, nullable=False),
        sa.Column("terms", sa.LargeBinary, nullable=False),
        sa.Column("seats", sa.LargeBinary, nullable=False),
        sa.Column("form", sa.String, nullable=False),
        sa.Column("suite", sa.String, nullable=False),
        sa.Column("decided_at", sa.Double),
        sa.Column("decided_by", sa.String),
        sa.Column("reason", sa.String, nullable=False, server_default=""),
        sa.Column("words", sa.String, nullable=False, server_default=""),
        sa.UniqueConstraint("kind", "digest", "coordinator"),
    )
    op.create_index("ix_approvals_state", "approvals", ["state"])
    op.create_table(
        "standing",
        sa.Column("name", sa.String(64), primary_key=True),
        sa.Column("value", sa.String, nullable=False),
        sa.Column("changed_by", sa.String, nullable=False),
        sa.Column("changed_at", sa.Double, nullable=False),
    )


def _make_sent() -> None:
    op.create_table(
        "sent",
        sa.Column("number", sa.Integer, primary_key=True),
        sa.Column("name", sa.String(200), nullable=False, unique=True),
        sa.Column("coordinator", _DIGEST, nullable=False),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("run_id", sa.LargeBinary, nullable=False),
        sa.Column("times", sa.Integer, nullable=False),
        sa.Column("size", sa.Integer, nullable=False),
        sa.Column("digest", _DIGEST, nullable=False),
        sa.Column("first_at", sa.Double, nullable=False),
        sa.Column("last_at", sa.Double, nullable=False),
    )
    op.create_index("ix_sent_kind_day", "sent", ["coordinator", "kind", "first_at"])
