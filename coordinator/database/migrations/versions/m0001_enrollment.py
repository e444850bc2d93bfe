"""Invitations and members."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the tables."""
    moment = sa.DateTime(timezone=True)
    op.create_table(
        "invitations",
        sa.Column("token_digest", sa.LargeBinary(32), primary_key=True),
        sa.Column("party", sa.String(64), nullable=False),
        sa.Column("made_at", moment, nullable=False),
        sa.Column("expires_at", moment, nullable=False),
        sa.Column("used_at", moment),
    )
    op.create_table(
        "members",
        sa.Column("fingerprint", sa.LargeBinary(32), primary_key=True),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("identity_key", sa.LargeBinary(32), nullable=False),
        sa.Column("node_key", sa.String(1024), nullable=False),
        sa.Column("node_id", sa.String(20)),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("requested_at", moment, nullable=False),
        sa.Column("approved_at", moment),
        sa.Column("revoked_at", moment),
    )
    op.create_index("ix_members_name", "members", ["name"])


def downgrade() -> None:
    """Drop the tables."""
    op.drop_table("members")
    op.drop_table("invitations")
