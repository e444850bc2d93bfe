"""All tables of `party.storage.site_schema`; the first release writes them out here."""

from alembic import op

from party.storage.site_schema import SiteRow

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the tables."""
    SiteRow.metadata.create_all(op.get_bind())


def downgrade() -> None:
    """Refuse: answered queries must stay known."""
    raise NotImplementedError("a hospital's journal is never dropped")
