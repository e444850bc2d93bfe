"""Hospitals, the audit log, people; runs, their attempts, journals, ledgers and answers."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_DIGEST = sa.LargeBinary(32)
_MOMENT = sa.DateTime(timezone=True)


def upgrade() -> None:
    """Make the tables."""
    _make_members()
    _make_people()
    _make_runs()
    _make_results()


def downgrade() -> None:
    """Refuse: charges and releases must stay known."""
    raise NotImplementedError("a coordinator's ledger is never dropped")


def _make_members() -> None:
    op.create_table(
        "invitations",
        sa.Column("token_digest", _DIGEST, primary_key=True),
        sa.Column("party", sa.String(64), nullable=False),
        sa.Column("made_at", _MOMENT, nullable=False),
        sa.Column("expires_at", _MOMENT, nullable=False),
        sa.Column("used_at", _MOMENT),
    )
    op.create_table(
        "members",
        sa.Column("fingerprint", _DIGEST, primary_key=True),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("identity_key", _DIGEST, nullable=False),
        sa.Column("node_key", sa.String(1024), nullable=False),
        sa.Column("node_id", sa.String(20)),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("requested_at", _MOMENT, nullable=False),
        sa.Column("approved_at", _MOMENT),
        sa.Column("revoked_at", _MOMENT),
        sa.Column("teachers", sa.Integer, nullable=False),
        sa.Column("audit_head", sa.LargeBinary),
        sa.Column("seen_at", _MOMENT),
        sa.Column("away_since", _MOMENT),
        sa.Column("away_at", _MOMENT),
        sa.Column("clock_skew_s", sa.Integer),
        sa.Column("version", sa.String(32)),
    )
    op.create_index("ix_members_name", "members", ["name"])
    op.create_table(
        "statements",
        sa.Column("party", _DIGEST, primary_key=True),
        sa.Column("frame", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "audit",
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.Column("link", _DIGEST, nullable=False),
    )


def _make_people() -> None:
    op.create_table(
        "people",
        sa.Column("name", sa.String(64), primary_key=True),
        sa.Column("role", sa.String(16), nullable=False),
        sa.Column("password", sa.String(256)),
        sa.Column("code_key", sa.LargeBinary(20)),
        sa.Column("code_step", sa.BigInteger, nullable=False),
        sa.Column("setup_digest", _DIGEST),
        sa.Column("setup_until", _MOMENT),
        sa.Column("failures", sa.Integer, nullable=False),
        sa.Column("locked_until", _MOMENT),
        sa.Column("made_at", _MOMENT, nullable=False),
        sa.Column("changed_at", _MOMENT, nullable=False),
        sa.Column("subject", sa.String(512), unique=True),
    )
    op.create_table(
        "budgets",
        sa.Column("number", sa.Integer, primary_key=True),
        sa.Column("epsilon", sa.Double, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("changed_by", sa.String(64), nullable=False),
        sa.Column("changed_at", _MOMENT, nullable=False),
    )
    op.create_table(
        "sessions",
        sa.Column("token_digest", _DIGEST, primary_key=True),
        sa.Column(
            "person",
            sa.String(64),
            sa.ForeignKey("people.name", ondelete="CASCADE"),
            nullable=False,
        ),
        sa.Column("made_at", _MOMENT, nullable=False),
        sa.Column("seen_at", _MOMENT, nullable=False),
    )
    op.create_index("ix_sessions_person", "sessions", ["person"])


def _make_runs() -> None:
    op.create_table(
        "runs",
        sa.Column("number", sa.Integer, primary_key=True),
        sa.Column("name", sa.String(64), unique=True, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("wanted", sa.String(16), nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("request", sa.Text, nullable=False),
        sa.Column("progress", sa.Text, nullable=False),
        sa.Column("fence", sa.Integer, nullable=False),
        sa.Column("waiting_since", _MOMENT),
        sa.Column("turn", sa.Integer, nullable=False),
        sa.Column("created_at", _MOMENT, nullable=False),
        sa.Column("updated_at", _MOMENT, nullable=False),
    )
    op.create_index("ix_runs_state", "runs", ["state"])
    op.create_table(
        "run_hospitals",
        sa.Column("run", sa.Integer, sa.ForeignKey("runs.number"), primary_key=True),
        sa.Column("party", _DIGEST, primary_key=True),
        sa.Column("code", sa.String(16), nullable=False),
        sa.Column("decided_at", _MOMENT),
        sa.Column("words", sa.Text, nullable=False),
    )
    op.create_table(
        "attempts",
        sa.Column("number", sa.Integer, primary_key=True),
        sa.Column("run", sa.Integer, sa.ForeignKey("runs.number"), nullable=False),
        sa.Column("run_id", sa.LargeBinary, nullable=False),
        sa.Column("given_up", sa.Text),
        sa.Column("lost_by", sa.LargeBinary, nullable=False),
        sa.Column("begun_at", _MOMENT, nullable=False),
    )
    op.create_index("ix_attempts_run", "attempts", ["run"])
    op.create_table(
        "run_steps",
        sa.Column("attempt", sa.Integer, sa.ForeignKey("attempts.number"), primary_key=True),
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
    )


def _make_results() -> None:
    op.create_table(
        "run_caps",
        sa.Column("run", sa.Integer, sa.ForeignKey("runs.number"), primary_key=True),
        sa.Column("record", sa.Text, nullable=False),
    )
    op.create_table(
        "run_entries",
        sa.Column("run", sa.Integer, sa.ForeignKey("runs.number"), primary_key=True),
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("record", sa.Text, nullable=False),
    )
    op.create_table(
        "run_batches",
        sa.Column("run", sa.Integer, sa.ForeignKey("runs.number"), primary_key=True),
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("attempt", sa.Integer, sa.ForeignKey("attempts.number"), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("record", sa.Text, nullable=False),
        sa.Column("release", sa.Text),
    )
    op.create_table(
        "skipped",
        sa.Column("run", sa.Integer, sa.ForeignKey("runs.number"), primary_key=True),
        sa.Column("place", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("parties", sa.Text, nullable=False),
    )
    op.create_table(
        "answers",
        sa.Column("run", sa.Integer, sa.ForeignKey("runs.number"), primary_key=True),
        sa.Column("batch", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("place", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("pool_digest", _DIGEST, nullable=False),
        sa.Column("task_digest", _DIGEST, nullable=False),
        sa.Column("members_digest", _DIGEST, nullable=False),
        sa.Column("query_digest", _DIGEST, nullable=False),
        sa.Column("label", sa.Integer),
    )
    op.create_index("ix_answers_query", "answers", ["query_digest", "members_digest"])
