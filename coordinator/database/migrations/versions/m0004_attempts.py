"""One table of runs; each offer of a run is an attempt, and results belong to attempts."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_OF_RUNS = ("answers", "run_batches", "run_entries", "run_budgets", "run_steps", "runs")
_KEEP_RUNS = """
INSERT INTO runs (name, state, reason, created_at, updated_at, request, progress, wanted, fence)
SELECT
    name,
    CASE WHEN state IN ('done', 'failed', 'stopped') THEN state ELSE 'failed' END,
    CASE WHEN state IN ('done', 'failed', 'stopped') THEN reason
        ELSE 'an older version began it: ask for another run' END,
    created_at, updated_at, request, progress, '', 0
FROM run_queue ORDER BY created_at, name
"""
"""The results of a run that is open were in files, which this version does not read."""


def upgrade() -> None:
    """Make the tables anew; nothing was ever written to those that go, but for the queue."""
    for name in _OF_RUNS:
        op.drop_table(name)
    _make_runs()
    _make_results()
    op.execute(_KEEP_RUNS)
    op.drop_table("run_queue")


def downgrade() -> None:
    """Refuse: what was charged and released must stay known."""
    raise NotImplementedError("a coordinator's ledger is never dropped")


def _make_runs() -> None:
    moment = sa.DateTime(timezone=True)
    op.create_table(
        "runs",
        sa.Column("number", sa.Integer, primary_key=True),
        sa.Column("name", sa.String(64), nullable=False, unique=True),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("wanted", sa.String(16), nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("request", sa.Text, nullable=False),
        sa.Column("progress", sa.Text, nullable=False),
        sa.Column("fence", sa.Integer, nullable=False),
        sa.Column("created_at", moment, nullable=False),
        sa.Column("updated_at", moment, nullable=False),
    )
    op.create_index("ix_runs_state", "runs", ["state"])
    op.create_table(
        "attempts",
        sa.Column("number", sa.Integer, primary_key=True),
        sa.Column("run", sa.Integer, sa.ForeignKey("runs.number"), nullable=False),
        sa.Column("run_id", sa.LargeBinary, nullable=False),
        sa.Column("given_up", sa.Text),
        sa.Column("begun_at", moment, nullable=False),
    )
    op.create_index("ix_attempts_run", "attempts", ["run"])


def _make_results() -> None:
    op.create_table(
        "run_steps",
        _attempt(),
        _place("number"),
        sa.Column("body", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "run_budgets", _attempt(), _place("part"), sa.Column("record", sa.Text, nullable=False)
    )
    op.create_table(
        "run_entries",
        _attempt(),
        _place("part"),
        _place("number"),
        sa.Column("record", sa.Text, nullable=False),
    )
    op.create_table(
        "run_batches",
        _attempt(),
        _place("number"),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("record", sa.Text, nullable=False),
        sa.Column("first_phase", sa.Text),
        sa.Column("release", sa.Text),
    )
    op.create_table(
        "answers",
        _attempt(),
        _place("batch"),
        _place("place"),
        sa.Column("pool_digest", sa.LargeBinary(32), nullable=False),
        sa.Column("task_digest", sa.LargeBinary(32), nullable=False),
        sa.Column("members_digest", sa.LargeBinary(32), nullable=False),
        sa.Column("query_digest", sa.LargeBinary(32), nullable=False),
        sa.Column("label", sa.Integer),
        sa.Column("was_looked_at", sa.Boolean, nullable=False),
    )
    op.create_index("ix_answers_query", "answers", ["query_digest", "members_digest"])


def _attempt() -> sa.Column[int]:
    return sa.Column("attempt", sa.Integer, sa.ForeignKey("attempts.number"), primary_key=True)


def _place(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.Integer, primary_key=True, autoincrement=False)
