"""Runs, and how many teachers a member votes with."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the table of runs; members of before are asked for anew."""
    moment = sa.DateTime(timezone=True)
    op.add_column(
        "members", sa.Column("teachers", sa.Integer(), nullable=False, server_default="0")
    )
    op.create_table(
        "run_queue",
        sa.Column("name", sa.String(64), primary_key=True),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("wanted", sa.String(16), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("request", sa.Text(), nullable=False),
        sa.Column("progress", sa.Text(), nullable=False),
        sa.Column("created_at", moment, nullable=False),
        sa.Column("updated_at", moment, nullable=False),
    )
    op.create_index("ix_run_queue_state", "run_queue", ["state"])


def downgrade() -> None:
    """Drop the table."""
    op.drop_table("run_queue")
    op.drop_column("members", "teachers")
