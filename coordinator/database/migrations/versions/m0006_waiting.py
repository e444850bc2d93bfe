"""Since when a run waits for its hospitals."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; a run that waits now begins to wait with the next try."""
    op.add_column("runs", sa.Column("waiting_since", sa.DateTime(timezone=True)))


def downgrade() -> None:
    """Drop the column."""
    op.drop_column("runs", "waiting_since")
