"""Evidence and its effects: records, refusals, releases, passes, and the two caches that people read.

Decides what a verdict changes. Rules (docs/format.md): a refusal is stored before its fail is recorded, so
that a crash between leaves the generation barred; a pass is recorded before it permits; a verdict that differs from
the record under its key goes under the next attempt until it is stored; a release names each refusal that it lifts and
deletes nothing; LAST_GOOD and QUARANTINE are recomputed and swapped even when unchanged.
"""

from __future__ import annotations

from collections.abc import Callable

from lastgood import documents
from lastgood.errors import FormatError
from lastgood.identity import FamilyKeys, GenerationId
from lastgood.markers import GenerationPointer, QuarantineNotice, Refusal, Release
from lastgood.protocol.commits import commit_digest
from lastgood.protocol.requests import Get, List, Steps, Swap, create_ours
from lastgood.protocol.survey import Policy, RefusalName, Survey, take_survey

__all__ = ["prove", "record", "refresh_caches", "refuse", "release"]

MAXIMUM_ATTEMPTS = 1000
MAXIMUM_SWAPS = 20


def refuse(keys: FamilyKeys, name: RefusalName, refusal: Refusal) -> Steps[bool]:
    """Store a refusal; True if this call stored it, False if one stood under that name already."""
    return (yield from create_ours(f"{keys.refusals}/{name}", documents.canonical_bytes(refusal)))


def release(keys: FamilyKeys, release: Release) -> Steps[tuple[str, ...]]:
    """Lift the family's quarantine: name every refusal in force. The failed generations stay barred.

    Returns:
        The names lifted by this call; empty when the family was not quarantined.
    """
    survey = yield from take_survey(keys)
    lifted = []
    for name in survey.quarantine:
        yield from create_ours(f"{keys.releases}/{name}", documents.canonical_bytes(release))
        lifted.append(name)
    return tuple(lifted)


def prove(keys: FamilyKeys, generation: GenerationId, passed: bytes) -> Steps[None]:
    """Store that a full tier 2 restore passed; a fail on record still dominates."""
    yield from create_ours(f"{keys.proven}/{generation}", passed)


def record(
    keys: FamilyKeys,
    prefix: str,
    encode: Callable[[int], bytes],
    agrees: Callable[[bytes], bool],
    *,
    attempt: int | None = None,
) -> Steps[int]:
    """Store a verdict under the first attempt that is free or already says the same.

    Args:
        keys: The family.
        prefix: The record's key without its attempt.
        encode: Attempt → the record's bytes.
        agrees: Whether a stored record says the same as ours.
        attempt: Start here; None: after the newest on record.

    Returns:
        The attempt under which the verdict stands.
    """
    directory, _, stem = prefix.rpartition("/")
    if attempt is None:
        names = yield List(directory)
        attempt = 1 + sum(1 for name in names if name.startswith(f"{stem}-"))
    for number in range(attempt, attempt + MAXIMUM_ATTEMPTS):
        key = f"{prefix}-{number:04d}.json"
        if (yield from create_ours(key, encode(number))):
            return number
        stored = yield Get(key)
        if stored is not None and agrees(stored):
            return number
    raise AssertionError(f"{MAXIMUM_ATTEMPTS} attempts under {prefix} all disagree")


def refresh_caches(keys: FamilyKeys) -> Steps[Survey]:
    """Recompute LAST_GOOD and QUARANTINE and swap them in; returns the survey they were computed from.

    The pointer is read before the records, and swapped even when its value is unchanged, because its revision is what
    makes a slower writer with older records lose (ADR 0002).
    """
    survey = yield from take_survey(keys, policy=Policy.PROVEN)
    for _ in range(MAXIMUM_SWAPS):
        current = yield Get(keys.last_good)
        notice = yield Get(keys.quarantine)
        survey = yield from take_survey(keys, policy=Policy.PROVEN)
        good = survey.newest_proven
        digest = None
        if good is not None:
            marker = yield Get(keys.commit(good))
            digest = commit_digest(marker) if marker is not None else None
        pointer = GenerationPointer(
            generation=str(good) if good else None, commit=digest, revision=_revision(current, GenerationPointer) + 1
        )
        told = QuarantineNotice(
            quarantined=bool(survey.quarantine),
            refusals=survey.quarantine,
            revision=_revision(notice, QuarantineNotice) + 1,
        )
        if not (yield Swap(keys.last_good, documents.canonical_bytes(pointer), current)):
            continue
        if (yield Swap(keys.quarantine, documents.canonical_bytes(told), notice)):
            return survey
    # Others keep winning, each from newer records than ours: the caches are theirs to keep.
    return survey


def _revision(data: bytes | None, kind: type[GenerationPointer] | type[QuarantineNotice]) -> int:
    if data is None:
        return 0
    try:
        return documents.parse(kind, data, "cache").revision
    except FormatError:
        # A cache that somebody tore or wrote by hand is simply rebuilt; no decision reads it.
        return 0
