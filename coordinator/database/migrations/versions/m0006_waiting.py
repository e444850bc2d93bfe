"""Since when a run waits for its hospitals, and whose turn it is."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns; a run that waits now begins to wait with the next try."""
    op.add_column("runs", sa.Column("waiting_since", sa.DateTime(timezone=True)))
    op.add_column("runs", sa.Column("turn", sa.Integer, nullable=False, server_default="0"))
    op.execute("UPDATE runs SET turn = number")


def downgrade() -> None:
    """Drop the columns."""
    op.drop_column("runs", "turn")
    op.drop_column("runs", "waiting_since")
