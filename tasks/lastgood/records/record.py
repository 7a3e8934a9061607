"""The record of one gate run: a document that is created once under its key and never changed.

Decides what a record says and where it lies: `records/<generation>/<manifest>-tier<n>-<attempt>.json`. Leaves what a
verdict changes to `keeping`. Rules: storage is the truth and any index is rebuilt from it; attempts order records,
clocks do not. Source: docs/architecture.md
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from lastgood import documents
from lastgood.description import Count, Text
from lastgood.documents import AwareTime, Document
from lastgood.errors import FormatError
from lastgood.identity import FamilyKeys, GenerationId
from lastgood.manifest import GenerationText
from lastgood.markers import DigestText
from lastgood.stores.grading import StoreGrade
from lastgood.stores.port import DocumentStore
from lastgood.verdict import Outcome, Rung, Tier, Verdict

__all__ = [
    "SCHEMA_VERSION",
    "Measurements",
    "Record",
    "RecordName",
    "list_records",
    "newest_first",
    "newest_pass",
    "newest_record",
    "newest_records",
    "next_attempt",
    "read_record",
]

SCHEMA_VERSION = 1
MAXIMUM_RECORD_BYTES = 64 * 2**20
MANIFEST_DIGITS = 16
MAXIMUM_GENERATIONS_SEARCHED = 1000

Seconds = Annotated[float, Meta(ge=0.0)]
Attempt = Annotated[int, Meta(ge=1, le=10**9 - 1)]

_NAME = re.compile(r"([0-9a-f]{16}|unread)-tier([123])-(\d{4,9})\.json", re.ASCII)


class Measurements(Document, frozen=True, kw_only=True):
    """What a gate run took; null is "not measured", never zero.

    Args:
        seconds: The whole run.
        read_bytes: Bytes of payload that were read from the store (tier 1: hashed; tiers 2 and 3: copied and hashed).
        read_seconds: From the first of these bytes asked for to the last one written and hashed, over all transfers at
            once (tiers 2 and 3; a record of before this was measured has none).
        discovery_seconds: The replica's own phase of that name: claim, listing, decision; no launch and no import
            (tiers 2 and 3, as the next two). Tier 2 takes each from the rank on which it lasted longest, tier 3 from
            the one that ended its first step last.
        load_seconds: The strict load and the observation that follows it.
        first_step_seconds: The first optimizer step with all of its microbatches.
        rpo_loss_steps: Completed steps that the recovery lost (tier 3).
        rto_seconds: From the kill to the end of the first optimizer step (tier 3).
        phases: Further named spans, in seconds, `unaccounted` among them.
    """

    seconds: Seconds | None = None
    read_bytes: Count | None = None
    read_seconds: Seconds | None = None
    discovery_seconds: Seconds | None = None
    load_seconds: Seconds | None = None
    first_step_seconds: Seconds | None = None
    rpo_loss_steps: Count | None = None
    rto_seconds: Seconds | None = None
    phases: dict[str, Seconds] = {}

    @property
    def read_bytes_per_second(self) -> float | None:
        """The bandwidth of the reading; follows from the two figures, so it is not kept beside them."""
        return self.read_bytes / self.read_seconds if self.read_bytes is not None and self.read_seconds else None


class Record(Document, frozen=True, kw_only=True):
    """One gate run.

    Args:
        schema_version: Of this document.
        family: The family.
        generation: What was judged.
        manifest: Digest of the manifest it was judged by, or null when none could be read.
        attempt: 1 and up, under (generation, manifest, tier).
        verdict: Everything that was checked.
        started_at: Aware.
        finished_at: Aware.
        host: Where the gate ran.
        lastgood: The version that ran it.
        measurements: What it took.
        origin: The orchestrator's run that judged, as a link or an id for people; null from the command line.
        store_grade: What the store may be trusted with, by its kept grade; null where none is kept.
    """

    schema_version: Annotated[int, Meta(ge=1, le=SCHEMA_VERSION)]
    family: Text
    generation: GenerationText
    manifest: DigestText | None
    attempt: Attempt
    verdict: Verdict
    started_at: AwareTime
    finished_at: AwareTime
    host: Text
    lastgood: Text
    measurements: Measurements
    origin: Text | None = None
    store_grade: StoreGrade | None = None

    @property
    def tier(self) -> Tier:
        return self.verdict.tier

    @property
    def rung(self) -> Rung:
        return self.verdict.rung

    @property
    def name(self) -> RecordName:
        return RecordName.of(GenerationId.parse(self.generation), self.manifest, self.tier, self.attempt)

    def says_the_same(self, other: Record) -> bool:
        """Whether both carry one verdict: same outcome, findings and slices, whatever they took and when."""
        mine, theirs = self.verdict, other.verdict
        return (mine.tier, mine.rung, mine.outcome, mine.slice, _named(mine)) == (
            theirs.tier,
            theirs.rung,
            theirs.outcome,
            theirs.slice,
            _named(theirs),
        )


def _named(verdict: Verdict) -> frozenset[tuple[str, str]]:
    return frozenset((finding.reason, finding.offender) for finding in verdict.findings)


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class RecordName:
    """Where a record lies.

    Args:
        generation: What was judged.
        manifest: The first 16 hexadecimal digits of the manifest's digest, or `unread`.
        tier: The gate.
        attempt: 1 and up.
    """

    generation: GenerationId
    manifest: str
    tier: Tier
    attempt: int

    @classmethod
    def of(cls, generation: GenerationId, manifest: str | None, tier: Tier, attempt: int) -> RecordName:
        digits = manifest.partition(":")[2][:MANIFEST_DIGITS] if manifest else "unread"
        return cls(generation=generation, manifest=digits, tier=tier, attempt=attempt)

    @classmethod
    def parse(cls, generation: GenerationId, text: str) -> RecordName:
        """Read an object's name under `records/<generation>/`.

        Raises:
            FormatError: The name is spelled in any other way.
        """
        match = _NAME.fullmatch(text)
        if match is None or int(match[3]) == 0:
            raise FormatError(f"not a record's name: {text!r}")
        return cls(generation=generation, manifest=match[1], tier=Tier(int(match[2])), attempt=int(match[3]))

    def prefix(self, keys: FamilyKeys) -> str:
        """The key without the attempt."""
        return f"{keys.records}/{self.generation}/{self.manifest}-tier{int(self.tier)}"

    def key(self, keys: FamilyKeys) -> str:
        return f"{self.prefix(keys)}-{self.attempt:04d}.json"


def next_attempt(
    store: DocumentStore, keys: FamilyKeys, generation: GenerationId, manifest: str | None, tier: Tier
) -> int:
    """The attempt of a new gate run: one above the newest on record of this generation, manifest and tier."""
    own = RecordName.of(generation, manifest, tier, 1)
    return 1 + max(
        (
            name.attempt
            for name in _names(store, keys, generation)
            if (name.manifest, name.tier) == (own.manifest, tier)
        ),
        default=0,
    )


def list_records(
    store: DocumentStore, keys: FamilyKeys, *, generation: GenerationId | None = None
) -> tuple[Record, ...]:
    """Every record of a family, or of one generation, by generation, manifest, tier and attempt.

    Raises:
        FormatError: A record is not lawful.
        StoreError: The store could not tell.
    """
    generations = [generation] if generation is not None else generations_on_record(store, keys)
    return tuple(_read(store, keys, name) for judged in generations for name in sorted(_names(store, keys, judged)))


def newest_record(
    store: DocumentStore, keys: FamilyKeys, generation: GenerationId, tier: Tier, *, manifest: str | None = None
) -> Record | None:
    """The record of the highest attempt of one generation and tier, or None.

    Args:
        store: Where.
        keys: The family.
        generation: What was judged.
        tier: The gate.
        manifest: Only records of the manifest with this digest.

    Raises:
        FormatError: The record is not lawful.
        StoreError: The store could not tell.
    """
    return next(newest_first(store, keys, generation, tier, manifest=manifest), None)


def newest_pass(store: DocumentStore, keys: FamilyKeys, generation: GenerationId, tier: Tier) -> Record | None:
    """The record of the highest attempt of one generation and tier that passed all that was asked, or None.

    Raises:
        FormatError: A record that was read on the way is not lawful.
        StoreError: The store could not tell.
    """
    for record in newest_first(store, keys, generation, tier):
        if record.verdict.outcome is Outcome.PASS and not record.verdict.is_weaker_pass:
            return record
    return None


def newest_first(
    store: DocumentStore, keys: FamilyKeys, generation: GenerationId, tier: Tier, *, manifest: str | None = None
) -> Iterator[Record]:
    """The records of one generation and tier, the highest attempt first, read as they are asked for.

    Args:
        store: Where.
        keys: The family.
        generation: What was judged.
        tier: The gate.
        manifest: Only records of the manifest with this digest.

    Raises:
        FormatError: The record that was asked for is not lawful.
        StoreError: The store could not tell.
    """
    wanted = RecordName.of(generation, manifest, tier, 1).manifest if manifest else None
    names = [
        name
        for name in _names(store, keys, generation)
        if name.tier is tier and (wanted is None or name.manifest == wanted)
    ]
    for name in sorted(names, key=lambda name: name.attempt, reverse=True):
        yield _read(store, keys, name)


def newest_records(
    store: DocumentStore, keys: FamilyKeys, *, among: Collection[GenerationId] | None = None
) -> Mapping[Tier, Record]:
    """Of each tier, the newest record of the newest generation that has one, among the 1,000 judged last.

    A spoiled record is none: one file that somebody damaged must not hide what the others say.

    Args:
        store: Where.
        keys: The family.
        among: Only generations of these.

    Raises:
        StoreError: The store could not tell.
    """
    found: dict[Tier, Record] = {}
    judged = [generation for generation in generations_on_record(store, keys) if among is None or generation in among]
    for generation in reversed(judged[-MAXIMUM_GENERATIONS_SEARCHED:]):
        names = sorted(_names(store, keys, generation), key=lambda name: name.attempt, reverse=True)
        for name in names:
            if name.tier not in found:
                with contextlib.suppress(FormatError):
                    found[name.tier] = _read(store, keys, name)
        if len(found) == len(Tier):
            break
    return dict(sorted(found.items()))


def read_record(data: bytes, where: str) -> Record:
    """Read one record strictly.

    Raises:
        FormatError: Not a lawful record.
    """
    return documents.parse(Record, data, where, limit_bytes=MAXIMUM_RECORD_BYTES)


def generations_on_record(store: DocumentStore, keys: FamilyKeys) -> list[GenerationId]:
    """Of which generations any record lies there, lawful or not, in order: one listing.

    Raises:
        StoreError: The store could not tell.
    """
    found = []
    for name in store.names(keys.records).directories:
        try:
            found.append(GenerationId.parse(name))
        except FormatError:
            continue  # nothing of ours writes there
    return sorted(found)


def _names(store: DocumentStore, keys: FamilyKeys, generation: GenerationId) -> Iterator[RecordName]:
    for text in store.names(f"{keys.records}/{generation}").files:
        try:
            yield RecordName.parse(generation, text)
        except FormatError:
            continue  # a log that a gate left beside its record


def _read(store: DocumentStore, keys: FamilyKeys, name: RecordName) -> Record:
    key = name.key(keys)
    data = store.get(key, limit_bytes=MAXIMUM_RECORD_BYTES)
    if data is None:
        raise FormatError(f"record vanished: {key}: records are never deleted", where=key)
    return read_record(data, key)
