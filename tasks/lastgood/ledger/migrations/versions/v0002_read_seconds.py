"""How long the reading of a record's bytes took; unmeasured in what was indexed before."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Add the column, empty: no record of before has the figure."""
    op.add_column("records", sa.Column("read_seconds", sa.Double()))
