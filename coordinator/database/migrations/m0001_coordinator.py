"""All tables of `coordinator.database.federation_schema`, written out by the first release."""

from alembic import op

from coordinator.database.federation_schema import CoordinatorRow

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the tables."""
    CoordinatorRow.metadata.create_all(op.get_bind())


def downgrade() -> None:
    """Refuse: charges and releases must stay known."""
    raise NotImplementedError("a coordinator's ledger is never dropped")
