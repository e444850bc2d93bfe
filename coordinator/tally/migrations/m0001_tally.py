"""All tables of `coordinator.tally.tally_schema`, written out by the first release."""

from alembic import op

from coordinator.tally.tally_schema import TallyRow

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the tables."""
    TallyRow.metadata.create_all(op.get_bind())


def downgrade() -> None:
    """Refuse: what was opened must stay known."""
    raise NotImplementedError("a tally's ledger is never dropped")
