"""The ledger's tables: what an index over families, saves and evidence holds.

Decides columns, units and indexes; what fills them is decided by `rows`. Rules: every row follows from what storage
holds (`families.read_at`, `.failure` and `.hint` alone speak of the reading); text that orders or identifies compares
by code points on every database, as keys do; times are UTC. Source: docs/ledger.md.
"""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    DateTime,
    Dialect,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    TypeDecorator,
    UniqueConstraint,
)

__all__ = [
    "Moment",
    "checks",
    "families",
    "findings",
    "generations",
    "key_type",
    "malformed",
    "metadata",
    "phases",
    "records",
    "unfinished",
]


class Moment(TypeDecorator[datetime]):
    """An aware moment, kept as UTC; SQLite has no offsets, so it keeps the same moment without one."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Into UTC."""
        if value is None:
            return None
        moment = value.astimezone(UTC)
        return moment.replace(tzinfo=None) if dialect.name == "sqlite" else moment

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Aware, in UTC whatever the session's zone is."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


def key_type() -> Text:
    """Text that identifies or orders: by code points, where PostgreSQL would ask its locale."""
    return Text().with_variant(Text(collation="C"), "postgresql")


metadata = MetaData(
    naming_convention={  # constraints have names, so that a migration can name them
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def _family() -> Column[int]:
    return Column("family_id", ForeignKey("families.id", ondelete="CASCADE"), primary_key=True)


def _record() -> Column[int]:
    return Column("record_id", ForeignKey("records.id", ondelete="CASCADE"), primary_key=True)


families = Table(
    "families",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("name", key_type(), nullable=False, unique=True),
    Column("uri", Text, nullable=False),
    Column("state", Text),  # null until the store has told once
    Column("latest", Text),
    Column("last_good", Text),
    Column("quarantine", Text),
    Column("read_at", Moment),
    Column("failure", Text),
    Column("hint", Text),
)

generations = Table(
    "generations",
    metadata,
    _family(),
    Column("generation", key_type(), primary_key=True),
    Column("incarnation", Integer, nullable=False),
    Column("step", BigInteger, nullable=False),
    Column("kept", Boolean, nullable=False),
    Column("barred", Boolean, nullable=False),
    Column("burned", Boolean, nullable=False),
    Column("proven", Boolean, nullable=False),
    Column("manifest", Text),
    Column("run", Text),
    Column("purpose", Text),
    Column("created_at", Moment),
    Column("bytes", BigInteger),
    Column("artifacts", Integer),
    Column("world_size", Integer),
)

unfinished = Table(
    "unfinished",
    metadata,
    _family(),
    Column("generation", key_type(), primary_key=True),
    Column("incarnation", Integer, nullable=False),
    Column("step", BigInteger, nullable=False),
    Column("outcome", Text, nullable=False),
    Column("at", Moment),
    Column("message", Text),
)

records = Table(
    "records",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("family_id", ForeignKey("families.id", ondelete="CASCADE"), nullable=False),
    Column("key", key_type(), nullable=False),
    Column("generation", key_type(), nullable=False),
    Column("incarnation", Integer, nullable=False),
    Column("step", BigInteger, nullable=False),
    Column("manifest", Text),
    Column("tier", Integer, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("rung", Text, nullable=False),
    Column("outcome", Text, nullable=False),
    Column("started_at", Moment, nullable=False),
    Column("finished_at", Moment, nullable=False),
    Column("host", Text, nullable=False),
    Column("lastgood", Text, nullable=False),
    Column("origin", Text),
    Column("seconds", Double),
    Column("read_bytes", BigInteger),
    Column("read_seconds", Double),
    Column("discovery_seconds", Double),
    Column("load_seconds", Double),
    Column("first_step_seconds", Double),
    Column("rpo_loss_steps", BigInteger),
    Column("rto_seconds", Double),
    Column("reasons", Text, nullable=False),
    Column("message", Text),
    Column("offender", Text),
    UniqueConstraint("family_id", "key"),  # what is known already, and where it lies
    Index(
        "ix_records_newest", "family_id", "tier", "incarnation", "step", "generation", "attempt"
    ),  # the newest of each
    Index("ix_records_finished", "tier", "finished_at"),  # what the last days brought
)

findings = Table(
    "findings",
    metadata,
    _record(),
    Column("position", Integer, primary_key=True),
    Column("check_name", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("message", Text, nullable=False),
    Column("offender", Text, nullable=False),
    Column("expected", Text),
    Column("found", Text),
    Index(None, "reason"),
)

phases = Table(
    "phases",
    metadata,
    _record(),
    Column("position", Integer, primary_key=True),
    Column("phase", Text, nullable=False),
    Column("seconds", Double, nullable=False),
)

checks = Table(
    "checks",
    metadata,
    _record(),
    Column("position", Integer, primary_key=True),
    Column("check_name", Text, nullable=False),
    Column("outcome", Text, nullable=False),
    Column("detail", Text, nullable=False),
)

malformed = Table(
    "malformed",
    metadata,
    _family(),
    Column("key", key_type(), primary_key=True),
    Column("message", Text, nullable=False),
)
