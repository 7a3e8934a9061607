"""Opening the ledger's database: which ones there are, its version, who may write when.

Decides what a lawful URL is, that the tables are brought up to date before anything is asked, and that one process
writes at a time. Rules: a ledger of a newer version is refused by name; a write begins by taking the one lock (SQLite's
own, or an advisory lock of PostgreSQL), reads storage under it and commits once; a reader sees one moment and waits
for nobody. A ledger is made again from storage, so a power cut may cost it its last seconds.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Connection, Engine, Table, create_engine, event, inspect, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError

from lastgood.errors import LedgerError, UsageError

__all__ = ["VERSION", "VERSION_TABLE", "Database", "count_anew", "open_database"]

VERSION = "0002"
"""The newest migration; `migrations/versions` holds one module for each."""
VERSION_TABLE = "ledger_version"
MIGRATIONS = Path(__file__).parent / "migrations"
PATIENCE_SECONDS = 600.0
"""How long a writer waits for another one: a million records are read under the lock."""
_LOCK = 0x6C617374676F6F64
"""`lastgood` in ASCII: the advisory lock of every ledger writer in one PostgreSQL database."""
_WRITES = "lastgood_writes"


class Database:
    """An open ledger database, up to date."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @property
    def name(self) -> str:
        """The URL without its password."""
        return self._engine.url.render_as_string(hide_password=True)

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """One moment of the ledger.

        Raises:
            LedgerError: The database did not answer.
        """
        with _explained(self.name), self._engine.connect() as connection:
            if self._engine.dialect.name == "postgresql":
                connection = connection.execution_options(isolation_level="REPEATABLE READ")
            with connection.begin():
                yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """Everything in the block or nothing of it, while nobody else writes.

        Raises:
            LedgerError: The database did not answer, or another writer was not done in time.
        """
        with _explained(self.name), _exclusive(self._engine) as connection:
            yield connection

    def close(self) -> None:
        self._engine.dispose()


def open_database(url: str) -> Database:
    """Open a ledger, making or upgrading its tables if need be.

    Args:
        url: `sqlite:///FILE` or `postgresql+psycopg://…`.

    Raises:
        UsageError: Another kind of URL, or a driver that is not installed.
        LedgerError: The database did not answer, or is of a newer version.
    """
    parsed = _parse(url)
    engine = _sqlite(parsed) if parsed.get_backend_name() == "sqlite" else _postgresql(parsed)
    database = Database(engine)
    try:
        _upgrade(database)
    except BaseException:
        database.close()
        raise
    return database


def count_anew(connection: Connection, *tables: Table) -> None:
    """Let the database see how many rows these tables hold, after many came in this very transaction.

    PostgreSQL plans by its last count. Tables that it counted when they were empty it reads from end to end, once for
    each row of the other: minutes for 25,000 records. SQLite plans by its indexes alone.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(text(f"ANALYZE {', '.join(table.name for table in tables)}"))


def _parse(url: str) -> URL:
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        # The text may hold a password, so it is not repeated.
        raise UsageError("not a ledger's URL", hint="expected sqlite:///FILE or postgresql+psycopg://…") from None
    if parsed.drivername in ("postgresql", "postgres"):
        parsed = parsed.set(drivername="postgresql+psycopg")
    if parsed.drivername not in ("sqlite", "sqlite+pysqlite", "postgresql+psycopg"):
        raise UsageError(
            f"not a ledger's database: {parsed.drivername}", hint="expected sqlite:///FILE or postgresql+psycopg://…"
        )
    if parsed.get_backend_name() == "sqlite" and parsed.database in (None, "", ":memory:"):
        raise UsageError("a ledger in memory would be lost: expected sqlite:///FILE")
    return parsed


def _sqlite(url: URL) -> Engine:
    engine = create_engine(url, connect_args={"timeout": PATIENCE_SECONDS})

    @event.listens_for(engine, "connect")
    def prepare(connection: sqlite3.Connection, _: object) -> None:
        connection.isolation_level = None  # we say when a transaction begins, and of which kind
        cursor = connection.cursor()
        cursor.execute("PRAGMA foreign_keys = ON")
        cursor.execute("PRAGMA synchronous = NORMAL")
        cursor.close()
        _use_write_ahead_log(connection)

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        writes = connection.get_execution_options().get(_WRITES, False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def _use_write_ahead_log(connection: sqlite3.Connection) -> None:
    """Let readers go on while one writes. Whoever changes the mode needs the file alone, and SQLite does not wait."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return  # where a file system cannot share memory, it stays as it was, and a reader may have to wait
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF not in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                raise
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def _postgresql(url: URL) -> Engine:
    try:
        return create_engine(url, pool_pre_ping=True)
    except ModuleNotFoundError as error:
        raise UsageError(f"driver not installed: {error.name}", hint="pip install 'lastgood[postgresql]'") from None


@contextmanager
def _exclusive(engine: Engine) -> Iterator[Connection]:
    with engine.connect() as connection:
        if engine.dialect.name == "sqlite":
            connection = connection.execution_options(**{_WRITES: True})
            with connection.begin():
                yield connection
            return
        with connection.begin():
            wait = {"wait": f"{PATIENCE_SECONDS:.0f}s"}
            connection.execute(text("SELECT set_config('lock_timeout', :wait, true)"), wait)
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
            # Read committed: what follows sees what the writer before us left, and nobody else writes.
            yield connection


def _upgrade(database: Database) -> None:
    with database.reading() as connection:
        if _version(connection, database.name) == VERSION:
            return
    with database.writing() as connection:
        # Asked again under the lock: of several that came at once, one upgrades.
        if _version(connection, database.name) != VERSION:
            _migrate(connection)


def _version(connection: Connection, name: str) -> str | None:
    if not inspect(connection).has_table(VERSION_TABLE):
        return None
    found: str | None = connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar()
    if found is not None and found > VERSION:
        raise LedgerError(
            f"ledger of a newer version: {name}: expected at most {VERSION}, found {found}",
            hint="upgrade lastgood here, or name another ledger",
        )
    return found


def _migrate(connection: Connection) -> None:
    # Imported here: a ledger that is up to date, which is nearly always so, does not pay for it.
    from alembic import command
    from alembic.config import Config

    settings = Config()
    settings.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    settings.attributes["connection"] = connection
    command.upgrade(settings, "head")


@contextmanager
def _explained(name: str) -> Iterator[None]:
    """Turn what the database says into one line that names the ledger and no password."""
    try:
        yield
    except DBAPIError as error:
        raise LedgerError(
            f"ledger did not answer: {name}: {_first_line(error.orig)}",
            hint="storage holds all evidence: mend or remove this database, then `lastgood ledger rebuild`",
        ) from error


def _first_line(error: BaseException | None) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].strip() if lines else type(error).__name__
