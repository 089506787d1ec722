"""Run by Alembic: migrations on the connection that it is given, within that connection's transaction."""

from alembic import context

from tokentrail.gateway.database.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    # SQLite changes a column by copying its table.
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
