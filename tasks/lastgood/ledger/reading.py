"""Reading a family's documents from its store, for the ledger; writes nothing.

Decides what is listed in which order and what a document that cannot be read means. Rules: publishes under way are
listed before commits, and commits before records, so that a save that comes meanwhile is never called abandoned or
unjudged; one document that is not lawful is named and stands in nobody's way; a store that cannot tell ends the
reading.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from typing import Generic, TypeVar

from lastgood import documents
from lastgood.errors import FormatError
from lastgood.family import Family, family_state
from lastgood.identity import GenerationId
from lastgood.ledger.publishes import Begun, unfinished_rows
from lastgood.ledger.rows import RecordRows, Row, manifest_values, record_rows, storable
from lastgood.location import Location
from lastgood.manifest import MAXIMUM_MANIFEST_BYTES, Manifest, manifest_digest, parse_manifest
from lastgood.protocol import Survey
from lastgood.protocol.survey import read_commit
from lastgood.records import Record
from lastgood.records.record import MAXIMUM_RECORD_BYTES, read_record
from lastgood.verify.reading import read_document

__all__ = ["FamilyReader", "Read", "Standing", "Unlawful"]

READERS = 8
"""Threads where the store lets us wait; a bucket or a network file system answers many at once."""
SLICE = 64
BATCH_DOCUMENTS = 2048
BATCH_BYTES = 64 * 2**20
MAXIMUM_COMMIT_BYTES = 64 * 1024

_RECORD = re.compile(r"[^/]+/[0-9a-z]{6,16}-tier[123]-\d{4,9}\.json", re.ASCII)
_Asked = TypeVar("_Asked")
_Told = TypeVar("_Told")


@dataclass(frozen=True, slots=True, kw_only=True)
class Unlawful:
    """A document that could not be read as what its key says, and why; the key is relative to `.lastgood/`."""

    key: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Read(Generic[_Told]):
    """A batch of documents: what they said, and which of them are not lawful."""

    lawful: tuple[_Told, ...]
    unlawful: tuple[Unlawful, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What a family may offer.

    Args:
        survey: One pass over what decides.
        state: A `FamilyState`, as `lastgood status` says it.
        latest: What may be resumed, or None.
        manifests: Saves whose manifest is there.
        unfinished: Rows of the publishes that left something behind and are not among the commits.
    """

    survey: Survey
    state: str
    latest: str | None
    manifests: frozenset[GenerationId]
    unfinished: tuple[Row, ...]

    @property
    def commits(self) -> tuple[GenerationId, ...]:
        return (*self.survey.candidates, *self.survey.fenced)


class FamilyReader:
    """One family, read for the ledger.

    Args:
        location: Where.
    """

    def __init__(self, location: Location) -> None:
        self._family = Family(location)
        self._store = location.store
        self._keys = location.keys

    def standing(self) -> Standing:
        """What the family may offer now.

        Raises:
            FormatError: A document that decides is not lawful.
            StoreError: The store could not tell.
        """
        self._family.exists()  # raises where the root is gone: an unmounted file system is no empty family
        begun = Begun.list(self._store, self._keys)
        survey, offer = self._family.survey(), self._family.latest()
        return Standing(
            survey=survey,
            state=family_state(survey, offer).value,
            latest=str(offer.generation) if offer.generation else None,
            manifests=begun.manifests,
            unfinished=unfinished_rows(self._store, self._keys, begun, survey),
        )

    def saves(self, wanted: Iterable[GenerationId]) -> Iterator[Read[Row]]:
        """The rows of saves in batches; a save whose documents are not lawful has a row that says less.

        Raises:
            StoreError: The store could not tell.
        """
        for answers in _in_batches(wanted, self._save, size=lambda _: 0):
            yield Read(
                lawful=tuple(row for row, _ in answers),
                unlawful=tuple(one for _, unlawful in answers for one in unlawful),
            )

    def _save(self, generation: GenerationId) -> tuple[Row, tuple[Unlawful, ...]]:
        row: Row = {"generation": str(generation), "incarnation": generation.incarnation, "step": generation.step}
        row |= dict.fromkeys(("manifest", "run", "purpose", "created_at", "bytes", "artifacts", "world_size"))
        unlawful = []
        key = self._keys.commit(generation)
        try:
            data = read_document(self._store, key, limit_bytes=MAXIMUM_COMMIT_BYTES)
            row["burned"] = read_commit(data, generation, key).burned
        except FormatError as error:
            unlawful.append(self._unlawful(key, error))
            row["burned"] = False
        key = self._keys.manifest(generation)
        try:
            data = read_document(self._store, key, limit_bytes=MAXIMUM_MANIFEST_BYTES)
            if data is None and row["burned"]:
                return row, ()  # given up before its manifest was written
            if data is None:
                raise FormatError(f"manifest missing: {key}")
            row |= manifest_values(_read_manifest(data, key), self._keys.family, generation, key)
            row["manifest"] = manifest_digest(data)
        except FormatError as error:
            unlawful.append(self._unlawful(key, error))
        return row, tuple(unlawful)

    def record_keys(self) -> Iterator[tuple[str, int]]:
        """Every record that lies there: its key below `records`, and its bytes.

        Raises:
            StoreError: The store could not tell.
        """
        start = len(self._keys.records) + 1
        for stored in self._store.walk(self._keys.records):
            key = stored.key[start:]
            if _RECORD.fullmatch(key):  # whatever else lies there is a log that a gate left
                yield key, stored.bytes

    def records(self, wanted: Iterable[tuple[str, int]]) -> Iterator[Read[RecordRows]]:
        """The rows of records in batches.

        Args:
            wanted: From `record_keys`.

        Raises:
            StoreError: The store could not tell.
        """
        for answers in _in_batches(wanted, lambda one: self._record(one[0]), size=lambda one: one[1]):
            yield Read(
                lawful=tuple(one for one in answers if isinstance(one, RecordRows)),
                unlawful=tuple(one for one in answers if isinstance(one, Unlawful)),
            )

    def _record(self, key: str) -> RecordRows | Unlawful | None:
        try:
            record = self.record(key)
            return record_rows(record, self._keys, key) if record is not None else None
        except FormatError as error:
            return self._unlawful(f"{self._keys.records}/{key}", error)

    def record(self, key: str) -> Record | None:
        """One record by its key below `records`; None if it is not there any more.

        Raises:
            FormatError: It is not lawful.
            StoreError: The store could not tell.
        """
        where = f"{self._keys.records}/{key}"
        data = read_document(self._store, where, limit_bytes=MAXIMUM_RECORD_BYTES)
        return read_record(data, where) if data is not None else None

    def _unlawful(self, key: str, error: FormatError) -> Unlawful:
        return Unlawful(key=key.removeprefix(f"{self._keys.ours}/"), message=storable(error.message))


def _read_manifest(data: bytes, key: str) -> Manifest:
    """A manifest as its schema has it; whether it could be resumed is tier 1's to say, at five times the cost."""
    try:
        return documents.parse(Manifest, data, key, limit_bytes=MAXIMUM_MANIFEST_BYTES)
    except FormatError:
        return parse_manifest(data, key)  # refuses it by its version, if that is what is wrong


def _in_batches(
    wanted: Iterable[_Asked], ask: Callable[[_Asked], _Told], *, size: Callable[[_Asked], int]
) -> Iterator[list[_Told]]:
    """Ask for each and give back bounded batches in order; many at a time where asking is mostly waiting."""

    def ask_all(some: Sequence[_Asked]) -> list[_Told]:
        return [ask(one) for one in some]

    with ThreadPoolExecutor(READERS, thread_name_prefix="ledger") as readers:
        for batch in _bounded(wanted, size):
            started, worked = time.perf_counter(), time.thread_time()
            first = ask_all(batch[:SLICE])
            took, worked = time.perf_counter() - started, time.thread_time() - worked
            # Where memory answers, threads would wait for one another: eight take twice as long as one (measured).
            at_once = readers.map if took > 2 * worked else map
            # Dozens at a time: handing over a single document would cost as much as reading it.
            rest = (batch[at : at + SLICE] for at in range(SLICE, len(batch), SLICE))
            yield list(chain(first, chain.from_iterable(at_once(ask_all, rest))))


def _bounded(wanted: Iterable[_Asked], size: Callable[[_Asked], int]) -> Iterator[list[_Asked]]:
    batch: list[_Asked] = []
    batch_bytes = 0
    for one in wanted:
        batch.append(one)
        batch_bytes += size(one)
        if len(batch) >= BATCH_DOCUMENTS or batch_bytes >= BATCH_BYTES:
            yield batch
            batch, batch_bytes = [], 0
    if batch:
        yield batch
