"""Keeping a verdict: its record, and what it changes in the family.

Decides the effects of each tier's verdict (`effects_of`, pure) and their order. Rules (docs/architecture.md): a tier
1 fail bars its generation, a tier 2 fail quarantines the family too, a tier 3 fail does so only when it blames the
checkpoint; inconclusive and not-run verdicts are recorded and change nothing; a negative control touches nothing. The
order of the writes is `protocol.conclude`'s: a crash between any two leaves the stricter answer.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import msgspec

import lastgood
from lastgood import documents
from lastgood.errors import FormatError
from lastgood.identity import FamilyKeys, GenerationId
from lastgood.markers import Commit, Passed, Refusal
from lastgood.protocol import conclude, perform, record
from lastgood.protocol.survey import RefusalName
from lastgood.records.record import SCHEMA_VERSION, Measurements, Record, next_attempt, read_record
from lastgood.redaction import redact, redact_all
from lastgood.stores.grading import StoreGrade
from lastgood.stores.port import DocumentStore
from lastgood.verdict import Outcome, Rung, Tier, Verdict

__all__ = ["Effects", "Kept", "effects_of", "keep_verdict"]

MAXIMUM_REFUSAL_FINDINGS = 100
"""A refusal is for people; its record holds every finding."""
MAXIMUM_REASON_CHARACTERS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Effects:
    """What a verdict changes.

    Args:
        refuses: A refusal is stored: the generation is barred (by tiers 2 and 3, the family is quarantined too).
        proves: The generation may become the last good one.
    """

    refuses: bool
    proves: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """Where a verdict stands now.

    Args:
        record: The record under which it stands; None for a negative control.
        key: Its key.
        effects: What it changed.
        is_new: False if the same verdict was already on record under this attempt.
    """

    record: Record | None
    key: str | None
    effects: Effects
    is_new: bool


def effects_of(verdict: Verdict) -> Effects:
    """What a verdict changes in its family.

    A tier 1 or 3 fail whose every finding is about something else (the family's decision, the orchestrator, a publish
    not yet committed) bars nothing: a generation that is fenced today may be what a rollback needs tomorrow.
    """
    failed = verdict.outcome is Outcome.FAIL
    blamed = any(finding.reason.blames_checkpoint for finding in verdict.findings)
    return Effects(
        refuses=failed and (verdict.tier is Tier.RESTORE or blamed),
        proves=verdict.outcome is Outcome.PASS and verdict.tier is Tier.RESTORE and verdict.rung is Rung.FULL,
    )


def keep_verdict(
    store: DocumentStore,
    keys: FamilyKeys,
    verdict: Verdict,
    *,
    generation: GenerationId,
    manifest: str | None = None,
    started_at: datetime | None = None,
    measurements: Measurements | None = None,
    attempt: int | None = None,
    origin: str | None = None,
    store_grade: StoreGrade | None = None,
    negative_control: bool = False,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> Kept:
    """Record a verdict and apply its effects. May be repeated, with the attempt named, after a failure.

    Args:
        store: Where.
        keys: The family.
        verdict: Of any tier.
        generation: What was judged.
        manifest: Digest text of the manifest it was judged by; None: the one that the commit marker names, if any.
        started_at: When the gate began, aware; None: now.
        measurements: What it took.
        attempt: Under which attempt; None for a new gate run: the next free one.
        origin: The orchestrator's run that judged, as a link or an id.
        store_grade: What the store may be trusted with; None where no grade is kept.
        negative_control: The verdict is about a copy that was damaged on purpose; nothing is written.
        now: The clock, aware.

    Raises:
        StoreError: The store failed; what was written so far is the stricter half.
    """
    if negative_control:
        return Kept(record=None, key=None, effects=Effects(refuses=False, proves=False), is_new=False)
    finished_at = now()
    manifest = manifest or _committed_manifest(store, keys, generation)
    draft = Record(
        schema_version=SCHEMA_VERSION,
        family=keys.family,
        generation=str(generation),
        manifest=manifest,
        attempt=attempt or next_attempt(store, keys, generation, manifest, verdict.tier),
        verdict=msgspec.convert(redact_all(msgspec.to_builtins(verdict)), Verdict),
        started_at=started_at or finished_at,
        finished_at=finished_at,
        host=socket.gethostname(),
        lastgood=lastgood.__version__,
        measurements=measurements or Measurements(),
        origin=redact(origin) if origin else origin,
        store_grade=store_grade,
    )
    return _store(store, keys, draft, effects_of(verdict))


def _store(store: DocumentStore, keys: FamilyKeys, draft: Record, effects: Effects) -> Kept:
    generation, name = GenerationId.parse(draft.generation), draft.name
    found: dict[int, Record] = {}

    def encode(attempt: int) -> bytes:
        return documents.canonical_bytes(_numbered(draft, attempt))

    def agrees(data: bytes) -> bool:
        try:
            stored = read_record(data, keys.records)
        except FormatError:
            return False  # a torn or foreign object under our key: the verdict goes under the next attempt
        if stored.says_the_same(draft):
            found[stored.attempt] = stored
        return stored.says_the_same(draft)

    prefix = name.prefix(keys)
    if effects.refuses or effects.proves:
        passed = Passed(generation=draft.generation, record=prefix, created_at=draft.finished_at)
        steps = conclude(
            keys,
            prefix,
            encode,
            agrees,
            attempt=draft.attempt,
            refusal=_refusal(draft, generation) if effects.refuses else None,
            passed=(generation, documents.canonical_bytes(passed)) if effects.proves else None,
        )
    else:
        steps = record(keys, prefix, encode, agrees, attempt=draft.attempt)
    attempt = perform(store, steps)
    return Kept(
        record=found.get(attempt) or _numbered(draft, attempt),
        key=replace(name, attempt=attempt).key(keys),
        effects=effects,
        is_new=attempt not in found,
    )


def _numbered(draft: Record, attempt: int) -> Record:
    return msgspec.structs.replace(draft, attempt=attempt)


def _committed_manifest(store: DocumentStore, keys: FamilyKeys, generation: GenerationId) -> str | None:
    key = keys.commit(generation)
    data = store.get(key, limit_bytes=documents.MAXIMUM_DOCUMENT_BYTES)
    try:
        return documents.parse(Commit, data, key).manifest if data is not None else None
    except FormatError:
        return None  # the verdict says what is wrong with the marker


def _refusal(draft: Record, generation: GenerationId) -> tuple[RefusalName, Refusal]:
    source = f"tier{int(draft.tier)}"
    findings = draft.verdict.findings
    refusal = Refusal(
        source=source,  # type: ignore[arg-type]  # one of the literals, since there are three tiers
        generation=draft.generation,
        reason=f"{source} failed: {findings[0].message}"[:MAXIMUM_REASON_CHARACTERS],
        findings=findings[:MAXIMUM_REFUSAL_FINDINGS],
        created_at=draft.finished_at,
        by=draft.host,
    )
    return RefusalName(source=source, tag=f"{draft.attempt:04d}", generation=generation), refusal
