"""The first tables."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Make every table."""
    op.create_table(
        "families",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("name", _key(), nullable=False),
        sa.Column("uri", sa.Text(), nullable=False),
        sa.Column("state", sa.Text()),
        sa.Column("latest", sa.Text()),
        sa.Column("last_good", sa.Text()),
        sa.Column("quarantine", sa.Text()),
        sa.Column("read_at", _moment()),
        sa.Column("failure", sa.Text()),
        sa.Column("hint", sa.Text()),
        sa.PrimaryKeyConstraint("id", name="pk_families"),
        sa.UniqueConstraint("name", name="uq_families_name"),
    )
    op.create_table(
        "generations",
        sa.Column("family_id", sa.Integer(), nullable=False),
        sa.Column("generation", _key(), nullable=False),
        sa.Column("incarnation", sa.Integer(), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("kept", sa.Boolean(), nullable=False),
        sa.Column("barred", sa.Boolean(), nullable=False),
        sa.Column("burned", sa.Boolean(), nullable=False),
        sa.Column("proven", sa.Boolean(), nullable=False),
        sa.Column("manifest", sa.Text()),
        sa.Column("run", sa.Text()),
        sa.Column("purpose", sa.Text()),
        sa.Column("created_at", _moment()),
        sa.Column("bytes", sa.BigInteger()),
        sa.Column("artifacts", sa.Integer()),
        sa.Column("world_size", sa.Integer()),
        _of_family("generations"),
        sa.PrimaryKeyConstraint("family_id", "generation", name="pk_generations"),
    )
    op.create_table(
        "unfinished",
        sa.Column("family_id", sa.Integer(), nullable=False),
        sa.Column("generation", _key(), nullable=False),
        sa.Column("incarnation", sa.Integer(), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column("at", _moment()),
        sa.Column("message", sa.Text()),
        _of_family("unfinished"),
        sa.PrimaryKeyConstraint("family_id", "generation", name="pk_unfinished"),
    )
    op.create_table(
        "malformed",
        sa.Column("family_id", sa.Integer(), nullable=False),
        sa.Column("key", _key(), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        _of_family("malformed"),
        sa.PrimaryKeyConstraint("family_id", "key", name="pk_malformed"),
    )
    op.create_table(
        "records",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("family_id", sa.Integer(), nullable=False),
        sa.Column("key", _key(), nullable=False),
        sa.Column("generation", _key(), nullable=False),
        sa.Column("incarnation", sa.Integer(), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("manifest", sa.Text()),
        sa.Column("tier", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("rung", sa.Text(), nullable=False),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column("started_at", _moment(), nullable=False),
        sa.Column("finished_at", _moment(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("lastgood", sa.Text(), nullable=False),
        sa.Column("origin", sa.Text()),
        sa.Column("seconds", sa.Double()),
        sa.Column("read_bytes", sa.BigInteger()),
        sa.Column("discovery_seconds", sa.Double()),
        sa.Column("load_seconds", sa.Double()),
        sa.Column("first_step_seconds", sa.Double()),
        sa.Column("rpo_loss_steps", sa.BigInteger()),
        sa.Column("rto_seconds", sa.Double()),
        sa.Column("reasons", sa.Text(), nullable=False),
        sa.Column("message", sa.Text()),
        sa.Column("offender", sa.Text()),
        _of_family("records"),
        sa.PrimaryKeyConstraint("id", name="pk_records"),
        sa.UniqueConstraint("family_id", "key", name="uq_records_family_id_key"),
    )
    newest = ["family_id", "tier", "incarnation", "step", "generation", "attempt"]
    op.create_index("ix_records_newest", "records", newest)
    op.create_index("ix_records_finished", "records", ["tier", "finished_at"])
    op.create_table(
        "findings",
        sa.Column("record_id", sa.Integer(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("check_name", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("offender", sa.Text(), nullable=False),
        sa.Column("expected", sa.Text()),
        sa.Column("found", sa.Text()),
        _of_record("findings"),
        sa.PrimaryKeyConstraint("record_id", "position", name="pk_findings"),
    )
    op.create_index("ix_findings_reason", "findings", ["reason"])
    op.create_table(
        "phases",
        sa.Column("record_id", sa.Integer(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("phase", sa.Text(), nullable=False),
        sa.Column("seconds", sa.Double(), nullable=False),
        _of_record("phases"),
        sa.PrimaryKeyConstraint("record_id", "position", name="pk_phases"),
    )
    op.create_table(
        "checks",
        sa.Column("record_id", sa.Integer(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("check_name", sa.Text(), nullable=False),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        _of_record("checks"),
        sa.PrimaryKeyConstraint("record_id", "position", name="pk_checks"),
    )


def _key() -> sa.Text:
    return sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def _moment() -> sa.DateTime:
    return sa.DateTime(timezone=True)


def _of_family(table: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(["family_id"], ["families.id"], name=f"fk_{table}_family_id", ondelete="CASCADE")


def _of_record(table: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(["record_id"], ["records.id"], name=f"fk_{table}_record_id", ondelete="CASCADE")
