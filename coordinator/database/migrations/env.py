"""Run by Alembic, on the connection that `pate_fed.nodes.database` holds open."""

from alembic import context

from coordinator.database.schema import Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
