"""Run by Alembic, on the connection that `pate_fed.nodes.database` holds open."""

from alembic import context

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=context.config.attributes["tables"],
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
