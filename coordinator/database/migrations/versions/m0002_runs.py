"""Runs: their journal, ledger, batches and answers; statements of parties."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the tables."""
    moment = sa.DateTime(timezone=True)
    op.create_table(
        "runs",
        sa.Column("number", sa.Integer, primary_key=True),
        sa.Column("name", sa.String(64), nullable=False, unique=True),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("settings", sa.Text, nullable=False),
        sa.Column("fence", sa.Integer, nullable=False),
        sa.Column("run_id", sa.LargeBinary, nullable=False),
        sa.Column("created_at", moment, nullable=False),
        sa.Column("updated_at", moment, nullable=False),
    )
    op.create_index("ix_runs_state", "runs", ["state"])
    op.create_table(
        "run_steps",
        _run(),
        _place("number"),
        sa.Column("body", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "run_budgets", _run(), _place("part"), sa.Column("record", sa.Text, nullable=False)
    )
    op.create_table(
        "run_entries",
        _run(),
        _place("part"),
        _place("number"),
        sa.Column("record", sa.Text, nullable=False),
    )
    op.create_table(
        "run_batches",
        _run(),
        _place("number"),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("record", sa.Text, nullable=False),
        sa.Column("first_phase", sa.Text),
        sa.Column("release", sa.Text),
    )
    op.create_table(
        "answers",
        _run(),
        _place("batch"),
        _place("place"),
        sa.Column("pool_digest", sa.LargeBinary(32), nullable=False),
        sa.Column("members_digest", sa.LargeBinary(32), nullable=False),
        sa.Column("query_digest", sa.LargeBinary(32), nullable=False),
        sa.Column("label", sa.Integer),
    )
    op.create_index(
        "ix_answers_query", "answers", ["members_digest", "pool_digest", "query_digest"]
    )
    op.create_table(
        "statements",
        sa.Column("party", sa.LargeBinary(32), primary_key=True),
        sa.Column("frame", sa.LargeBinary, nullable=False),
    )


def downgrade() -> None:
    """Refuse: what was charged and released must stay known."""
    raise NotImplementedError("a coordinator's ledger is never dropped")


def _run() -> sa.Column[int]:
    return sa.Column("run", sa.Integer, sa.ForeignKey("runs.number"), primary_key=True)


def _place(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.Integer, primary_key=True, autoincrement=False)
