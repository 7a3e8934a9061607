"""Bringing the ledger up to date with storage, one family at a time.

Decides which rows are new, changed or gone. Rules: records and manifests are created once, so a known one is never read
again; what is decided by newer documents (kept, barred, proven, the newest evidence) is computed anew each time; a
family is brought up to date as a whole or left as it was known, with the reason beside it. Law: whatever updates came
between, the rows are those that a rebuild would make (numbers that only join tables apart).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, and_, bindparam, delete, func, insert, select, true, update

from lastgood.errors import FormatError, LastgoodError, StoreError, StoreTransientError, UsageError
from lastgood.identity import GenerationId
from lastgood.ledger.database import Database, count_anew, open_database
from lastgood.ledger.newest import is_conclusive, is_weaker_pass, newest_first
from lastgood.ledger.reading import FamilyReader, Standing, Unlawful
from lastgood.ledger.rows import Row, check_rows, storable
from lastgood.ledger.tables import checks, families, findings, generations, malformed, phases, records, unfinished
from lastgood.location import Location, locate
from lastgood.stores import StoreSettings
from lastgood.verdict import Tier

__all__ = ["Indexed", "Ledger", "open_ledger"]

MANY_ROWS = 1000
"""New ones in one update, after which the database's idea of a table may be wrong by orders of magnitude."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Indexed:
    """What became of one family.

    Args:
        family: Its name.
        uri: Where it lies.
        new_saves: Rows that were not there before.
        new_records: Rows that were not there before.
        malformed: Documents that could not be read; all others are in the ledger.
        failure: Why the family was left as it was known, or None.
        hint: What may help.
        exit_code: 0; 1 when something is not lawful, 2 when the store could not tell, 64 when the URI is not one.
    """

    family: str
    uri: str
    new_saves: int = 0
    new_records: int = 0
    malformed: tuple[Unlawful, ...] = ()
    failure: str | None = None
    hint: str | None = None
    exit_code: int = 0


class Ledger:
    """The index of all evidence; from `open_ledger`, to be closed.

    Args:
        database: Open, and up to date.
        stores: How the stores of families are spoken to; see `locate`.
        now: The clock, aware.
    """

    def __init__(
        self,
        database: Database,
        *,
        stores: Mapping[str, StoreSettings] | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._database = database
        self._stores = stores
        self._now = now

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._database.close()

    @property
    def name(self) -> str:
        """Its URL without a password."""
        return self._database.name

    def reading(self) -> AbstractContextManager[Connection]:
        """One moment of the ledger, for `queries`.

        Raises:
            LedgerError: The database did not answer.
        """
        return self._database.reading()

    def update(self, uris: Mapping[str, str]) -> tuple[Indexed, ...]:
        """Read what is new of each family; the rows of others stay.

        Args:
            uris: Family → its URI.

        Raises:
            LedgerError: The database did not answer.
        """
        return tuple(self._index(name, uri, afresh=False) for name, uri in uris.items())

    def rebuild(self, uris: Mapping[str, str]) -> tuple[Indexed, ...]:
        """Read everything of each family again; the rows of others stay.

        Args:
            uris: Family → its URI.

        Raises:
            LedgerError: The database did not answer.
        """
        return tuple(self._index(name, uri, afresh=True) for name, uri in uris.items())

    def keep_only(self, names: Mapping[str, object]) -> tuple[str, ...]:
        """Drop every family that is not named; returns the dropped ones. Storage holds them still.

        Raises:
            LedgerError: The database did not answer.
        """
        with self._database.writing() as connection:
            known = connection.scalars(select(families.c.name).order_by(families.c.name)).all()
            dropped = tuple(name for name in known if name not in names)
            for name in dropped:
                connection.execute(delete(families).where(families.c.name == name))
        return dropped

    def _index(self, name: str, uri: str, *, afresh: bool) -> Indexed:
        try:
            location = locate(uri, self._stores)
            with self._database.writing() as connection:
                return _Update(connection, location).run(self._now(), afresh=afresh)
        except (StoreError, FormatError, UsageError) as error:
            failed = error
        self._note(name, uri, failed)
        return Indexed(family=name, uri=uri, failure=failed.message, hint=failed.hint, exit_code=failed.exit_code)

    def _note(self, name: str, uri: str, error: LastgoodError) -> None:
        with self._database.writing() as connection:
            family = _find_family(connection, name)
            if family is None:
                family = _add_family(connection, name, uri)
            told = {"failure": storable(error.message), "hint": storable(error.hint)}
            connection.execute(update(families).where(families.c.id == family).values(told))


def open_ledger(
    url: str,
    *,
    stores: Mapping[str, StoreSettings] | None = None,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> Ledger:
    """Open a ledger; its tables are made or upgraded first.

    Args:
        url: `sqlite:///FILE` or `postgresql+psycopg://…`, as `lastgood.toml` has it.
        stores: How the stores of families are spoken to; see `locate`.
        now: The clock, aware.

    Raises:
        UsageError: Another kind of URL.
        LedgerError: The database did not answer, or is of a newer version.
    """
    return Ledger(open_database(url), stores=stores, now=now)


class _Update:
    """One family within one transaction."""

    def __init__(self, connection: Connection, location: Location) -> None:
        self._connection = connection
        self._name = location.keys.family
        self._uri = location.family_uri
        self._reader = FamilyReader(location)
        self._family = 0
        self._malformed: list[Unlawful] = []

    def run(self, now: datetime, *, afresh: bool) -> Indexed:
        self._family = self._claim(afresh)
        standing = self._reader.standing()
        new_saves = self._index_saves(standing)
        new_records = self._index_records()
        if new_saves + new_records >= MANY_ROWS:
            count_anew(self._connection, generations, records)
        self._index_checks()
        self._replace(unfinished, standing.unfinished)
        self._replace(malformed, [{"key": one.key, "message": one.message} for one in self._malformed])
        told = {
            "state": standing.state,
            "latest": standing.latest,
            "last_good": str(standing.survey.newest_proven) if standing.survey.newest_proven else None,
            "quarantine": storable(",".join(standing.survey.quarantine)),
            "read_at": now,
            "failure": None,
            "hint": None,
        }
        self._connection.execute(update(families).where(families.c.id == self._family).values(told))
        return Indexed(
            family=self._name,
            uri=self._uri,
            new_saves=new_saves,
            new_records=new_records,
            malformed=tuple(self._malformed),
            exit_code=FormatError.exit_code if self._malformed else 0,
        )

    def _claim(self, afresh: bool) -> int:
        """The family's row; a family that has moved is another one, so nothing of the old place is kept."""
        known = _find_family(self._connection, self._name)
        if known is not None:
            uri = self._connection.scalar(select(families.c.uri).where(families.c.id == known))
            if uri == self._uri and not afresh:
                return known
            self._connection.execute(delete(families).where(families.c.id == known))
        return _add_family(self._connection, self._name, self._uri)

    # Saves.

    def _index_saves(self, standing: Standing) -> int:
        survey = standing.survey
        kept = frozenset(survey.candidates)

        def flags(generation: GenerationId) -> Row:
            return {
                "kept": generation in kept,
                "barred": generation in survey.barred,
                "proven": generation in survey.proven,
            }

        known = self._known_saves()
        listed = {str(generation): generation for generation in standing.commits}
        described = {str(generation) for generation in standing.manifests}
        # Forgotten, and where a COMMIT stands read again: what is gone, was not lawful, or lost its manifest since.
        stale = [
            text
            for text, stored in known.items()
            if text not in listed or stored["spoiled"] or (stored["manifest"] and text not in described)
        ]
        self._delete(generations, generations.c.generation, stale)
        for text in stale:
            del known[text]
        self._many(
            update(generations).where(
                generations.c.family_id == self._family, generations.c.generation == bindparam("of")
            ),
            [
                {"of": text, **flags(listed[text])}
                for text, stored in known.items()
                if not stored.items() >= flags(listed[text]).items()
            ],
        )
        new = 0
        for read in self._reader.saves(one for text, one in listed.items() if text not in known):
            self._insert(generations, [row | flags(listed[row["generation"]]) for row in read.lawful])
            self._malformed.extend(read.unlawful)
            new += len(read.lawful)
        return new

    def _known_saves(self) -> dict[str, Row]:
        """Of each known save: its flags, whether it has a manifest, whether a document of it was not lawful."""
        keys = self._connection.scalars(select(malformed.c.key).where(malformed.c.family_id == self._family)).all()
        spoiled = {key.removeprefix("commits/") for key in keys if key.startswith("commits/")}
        spoiled |= {key[len("manifests/") : -len(".json")] for key in keys if key.startswith("manifests/")}
        columns = (generations.c.generation, generations.c.kept, generations.c.barred, generations.c.proven)
        rows = self._connection.execute(
            select(*columns, generations.c.manifest.is_not(None)).where(generations.c.family_id == self._family)
        )
        return {
            text: {"kept": kept, "barred": barred, "proven": proven, "manifest": manifest, "spoiled": text in spoiled}
            for text, kept, barred, proven, manifest in rows
        }

    # Records.

    def _index_records(self) -> int:
        gone = set(self._connection.scalars(select(records.c.key).where(records.c.family_id == self._family)))

        def unknown() -> Iterator[tuple[str, int]]:
            for key, size_bytes in self._reader.record_keys():
                if key in gone:
                    gone.remove(key)
                else:
                    yield key, size_bytes

        number = self._connection.scalar(select(func.coalesce(func.max(records.c.id), 0))) or 0
        new = 0
        for read in self._reader.records(unknown()):
            rows: dict[Any, list[Row]] = {records: [], findings: [], phases: []}
            for one in read.lawful:
                number += 1
                rows[records].append(one.record | {"id": number})
                rows[findings].extend(row | {"record_id": number} for row in one.findings)
                rows[phases].extend(row | {"record_id": number} for row in one.phases)
            self._insert(records, rows[records])
            for table in (findings, phases):
                self._many(insert(table), rows[table])
            self._malformed.extend(read.unlawful)
            new += len(read.lawful)
        self._delete(records, records.c.key, sorted(gone))
        return new

    # Checks of the newest evidence.

    def _index_checks(self) -> None:
        wanted = {}
        for tier in Tier:
            for asked in (true(), is_conclusive()):
                # A weaker pass only where nothing else speaks for the gate.
                for among in (and_(asked, ~is_weaker_pass()), asked):
                    row = self._connection.execute(_newest(self._family, tier, among)).first()
                    if row is not None:
                        wanted[row.id] = row.key
                        break
        ours = select(records.c.id).where(records.c.family_id == self._family)
        present = set(
            self._connection.scalars(select(checks.c.record_id).where(checks.c.record_id.in_(ours)).distinct())
        )
        for number in present - wanted.keys():
            self._connection.execute(delete(checks).where(checks.c.record_id == number))
        for number in sorted(wanted.keys() - present):
            record = self._reader.record(wanted[number])
            if record is None:
                raise StoreTransientError(f"record vanished while it was indexed: {self._uri}: {wanted[number]}")
            rows = [row | {"record_id": number} for row in check_rows(record.verdict)]
            self._many(insert(checks), rows)

    # Small change.

    def _insert(self, table: Any, rows: list[Row]) -> None:
        self._many(insert(table), [row | {"family_id": self._family} for row in rows])

    def _replace(self, table: Any, rows: Any) -> None:
        self._connection.execute(delete(table).where(table.c.family_id == self._family))
        self._insert(table, list(rows))

    def _delete(self, table: Any, column: Any, values: list[str]) -> None:
        statement = delete(table).where(table.c.family_id == self._family, column == bindparam("of"))
        self._many(statement, [{"of": value} for value in values])

    def _many(self, statement: Any, rows: list[Row]) -> None:
        if rows:
            self._connection.execute(statement, rows)


def _find_family(connection: Connection, name: str) -> int | None:
    found: int | None = connection.scalar(select(families.c.id).where(families.c.name == name))
    return found


def _add_family(connection: Connection, name: str, uri: str) -> int:
    number = 1 + (connection.scalar(select(func.coalesce(func.max(families.c.id), 0))) or 0)
    connection.execute(insert(families), {"id": number, "name": name, "uri": storable(uri)})
    return number


def _newest(family: int, tier: Tier, among: ColumnElement[bool]) -> Select[Any]:
    """The newest such record of the newest kept generation that has one; what was cut proves nothing any more."""
    of_save = and_(generations.c.family_id == records.c.family_id, generations.c.generation == records.c.generation)
    return (
        select(records.c.id, records.c.key)
        .join(generations, of_save)
        .where(records.c.family_id == family, records.c.tier == int(tier), generations.c.kept, among)
        .order_by(*newest_first())
        .limit(1)
    )
