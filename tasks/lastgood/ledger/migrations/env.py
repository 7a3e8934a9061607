"""What Alembic runs: inside the transaction that `database` has opened, under its lock."""

from __future__ import annotations

from alembic import context

from lastgood.ledger.database import VERSION_TABLE
from lastgood.ledger.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=VERSION_TABLE,
    render_as_batch=True,  # SQLite alters a table by copying it
    transactional_ddl=True,
)
context.run_migrations()
