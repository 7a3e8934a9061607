"""Opening a ledger: which URLs there are, its version, its tables, its locks; and no password in anything it says."""

from __future__ import annotations

from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import text

from lastgood.errors import LedgerError, UsageError
from lastgood.ledger import open_ledger, queries
from lastgood.ledger.database import MIGRATIONS, VERSION, VERSION_TABLE, open_database
from lastgood.ledger.index import MANY_ROWS
from lastgood.ledger.tables import metadata
from lastgood.testing.evidence import Past, fabricate
from tests.ledger.conftest import UNTIL
from tests.ledger.server import PROGRAM, new_database


def test_the_migrations_make_the_tables_that_the_code_asks(url: str) -> None:
    """A column that only the code knows fails at the first insert of whoever upgraded, never of whoever began anew."""
    database = open_database(url)
    with database.reading() as connection:
        options = {"version_table": VERSION_TABLE, "compare_type": True, "compare_server_default": True}
        assert compare_metadata(MigrationContext.configure(connection, opts=options), metadata) == []
    database.close()


def test_the_newest_migration_is_the_version_that_the_code_expects() -> None:
    """A ledger is refused by comparing versions as text, which a fork or another spelling would break."""
    versions = [revision.revision for revision in ScriptDirectory(str(MIGRATIONS)).walk_revisions()]
    assert versions == [f"{number:04d}" for number in range(len(versions), 0, -1)]
    assert versions[0] == VERSION


def test_a_ledger_of_the_first_version_is_brought_up_to_date_with_what_it_holds(url: str, root: Path) -> None:
    """Whoever upgrades keeps what was indexed; what no record of before says stays unmeasured."""
    fabricate(root, "a", Past(until=UNTIL, saves=4, restore_every=1))
    ledger = open_ledger(url)
    ledger.update({"a": str(root / "a")})
    ledger.close()
    database = open_database(url)
    with database.writing() as connection:
        before = connection.scalar(text("SELECT count(*) FROM records WHERE tier = 2 AND read_bytes IS NOT NULL"))
        connection.execute(text("ALTER TABLE records DROP COLUMN read_seconds"))
        connection.execute(text(f"UPDATE {VERSION_TABLE} SET version_num = '0001'"))
    database.close()
    ledger = open_ledger(url)
    with ledger.reading() as moment:
        told = queries.restores(moment).mappings()
    assert len([row for row in told if row["read_bytes"] is not None]) == before > 0
    assert {(row["read_seconds"], row["read_bytes_per_second"]) for row in told} == {(None, None)}
    ledger.close()


def test_a_ledger_of_a_newer_version_is_refused_by_name(url: str) -> None:
    """What an older lastgood wrote into newer tables would be wrong in a way that nobody sees."""
    database = open_database(url)
    with database.writing() as connection:
        connection.execute(text(f"UPDATE {VERSION_TABLE} SET version_num = '0999'"))
    database.close()
    with pytest.raises(LedgerError, match=r"newer version: .*expected at most \d{4}, found 0999"):
        open_ledger(url)


def test_an_open_ledger_is_opened_again_without_migrating(url: str) -> None:
    """Every run of a flow opens it, and must not wait for the lock of whoever is writing for minutes."""
    writer = open_database(url)
    with writer.writing():
        open_ledger(url).close()
    writer.close()


def test_a_reader_sees_one_moment_while_another_writes(url: str) -> None:
    """Frames of one report must agree with each other, whatever is committed between two queries."""
    database, other = open_database(url), open_database(url)
    count = text("SELECT count(*) FROM families")
    with database.reading() as moment:
        assert moment.scalar(count) == 0
        with other.writing() as connection:
            connection.execute(text("INSERT INTO families (id, name, uri) VALUES (1, 'a', '/a')"))
        assert moment.scalar(count) == 0
    with database.reading() as moment:
        assert moment.scalar(count) == 1
    database.close()
    other.close()


def test_a_file_that_is_no_ledger_is_named_and_left_alone(tmp_path: Path) -> None:
    """A mistyped path may name anything: it is refused in one line, and not a byte of it changes."""
    path = tmp_path / "notes.txt"
    path.write_bytes(b"remember the milk" * 100)
    with pytest.raises(LedgerError, match=r"ledger did not answer: sqlite:///.*notes\.txt: file is not a database"):
        open_ledger(f"sqlite:///{path}")
    assert path.read_bytes() == b"remember the milk" * 100


def test_a_directory_that_is_not_there_is_said(tmp_path: Path) -> None:
    """SQLite makes files, not directories."""
    with pytest.raises(LedgerError, match="unable to open database file"):
        open_ledger(f"sqlite:///{tmp_path}/absent/ledger.sqlite")


@pytest.mark.parametrize(
    "url", ["nonsense", "mysql://me:hunter2@127.0.0.1/x", "sqlite://", "sqlite:///:memory:", "postgresql+asyncpg://x/y"]
)
def test_only_sqlite_files_and_postgresql_are_ledgers(url: str) -> None:
    """What was never tried is refused before it half works; and the URL may hold a password, so it is not repeated."""
    with pytest.raises(UsageError) as refused:
        open_ledger(url)
    assert "hunter2" not in f"{refused.value.message} {refused.value.hint}"


def test_no_password_reaches_a_message() -> None:
    """Messages end up in logs and on pages."""
    with pytest.raises(LedgerError) as refused:
        open_ledger("postgresql://me:hunter2@127.0.0.1:1/ledger")
    assert "hunter2" not in f"{refused.value.message} {refused.value.hint}"
    assert "postgresql+psycopg://me:***@127.0.0.1:1/ledger" in refused.value.message


def test_the_newest_record_is_found_by_an_index(tmp_path: Path) -> None:
    """A million records are asked for the newest of a family and tier at every update."""
    database = open_database(f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    with database.reading() as connection:
        asked = "SELECT id FROM records WHERE family_id = 1 AND tier = 2 ORDER BY incarnation DESC, step DESC LIMIT 1"
        plan = " ".join(row[3] for row in connection.execute(text(f"EXPLAIN QUERY PLAN {asked}")))
        recent = "SELECT id FROM records WHERE tier = 2 AND finished_at > '2026-01-01'"
        plan_recent = " ".join(row[3] for row in connection.execute(text(f"EXPLAIN QUERY PLAN {recent}")))
    database.close()
    assert "ix_records_newest" in plan
    assert "TEMP B-TREE" not in plan
    assert "ix_records_finished" in plan_recent


@pytest.mark.service(PROGRAM)
def test_postgresql_knows_how_much_came(server: Path, root: Path) -> None:
    """It had last counted an empty table, joined each record with a look at every save, and took minutes."""
    past = fabricate(root, "a", Past(until=UNTIL, saves=MANY_ROWS // 2 + 1, payload="newest"))
    with open_ledger(new_database(server, "counted")) as ledger:
        with ledger.reading() as moment:
            moment.execute(text("ANALYZE"))
        ledger.rebuild({"a": str(root / "a")})
        with ledger.reading() as moment:
            counted = moment.scalar(text("SELECT reltuples FROM pg_class WHERE relname = 'generations'"))
    assert counted == len(past) > MANY_ROWS // 2
