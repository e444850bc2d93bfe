"""The newest head of each hospital's audit log, as it signed it."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column."""
    op.add_column("members", sa.Column("audit_head", sa.LargeBinary))


def downgrade() -> None:
    """Refuse: what a hospital signed must stay known."""
    raise NotImplementedError("a hospital's signed head is never dropped")
