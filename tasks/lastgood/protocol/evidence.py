"""Evidence and its effects: records, refusals, releases, passes, and the two caches that people read.

Decides what a verdict changes. Rules (docs/protocol.md): a refusal is stored before its fail is recorded, so that a
crash between leaves the generation barred; a pass is recorded before it permits; a verdict that differs from the record
under its key goes under the next attempt until it is stored; a refusal never stands under another's name, which a
release may have lifted; a release names each refusal that it lifts and deletes nothing; LAST_GOOD and QUARANTINE are
recomputed and swapped even when unchanged; where nothing can be swapped, they are replaced and looked at again.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import msgspec

from lastgood import documents
from lastgood.digest import Algorithm, hash_bytes
from lastgood.errors import FormatError, StoreLimitError, StoreTransientError
from lastgood.identity import FamilyKeys, GenerationId
from lastgood.markers import GenerationPointer, QuarantineNotice, Refusal, Release
from lastgood.protocol.commits import commit_digest
from lastgood.protocol.requests import Get, List, Replace, Steps, Swap, create_ours
from lastgood.protocol.survey import RefusalName, Survey, take_survey

__all__ = ["conclude", "prove", "record", "refresh_caches", "refuse", "release"]

MAXIMUM_ATTEMPTS = 1000
MAXIMUM_SWAPS = 20


def conclude(
    keys: FamilyKeys,
    prefix: str,
    encode: Callable[[int], bytes],
    agrees: Callable[[bytes], bool],
    *,
    attempt: int | None = None,
    refusal: tuple[RefusalName, Refusal] | None = None,
    passed: tuple[GenerationId, bytes] | None = None,
) -> Steps[int]:
    """Store a verdict with its effects, in the order in which a crash between any two steps does no harm.

    Args:
        keys: The family.
        prefix: See `record`, as `encode`, `agrees` and `attempt`.
        encode: Attempt → the record's bytes.
        agrees: Whether a stored record says the same as ours.
        attempt: Where to begin.
        refusal: What a fail refuses.
        passed: What a full tier 2 pass proves, and the bytes that say so.

    Returns:
        The attempt under which the verdict stands.
    """
    if refusal is not None:
        yield from refuse(keys, *refusal)
    stands = yield from record(keys, prefix, encode, agrees, attempt=attempt)
    if passed is not None:
        yield from prove(keys, *passed)
    yield from refresh_caches(keys)
    return stands


def refuse(keys: FamilyKeys, name: RefusalName, refusal: Refusal) -> Steps[RefusalName]:
    """Store a refusal; returns the name under which it stands.

    If another refusal stands under the name asked for, ours takes one made of its own digest: a release may have named
    the other one already, and ours would be born lifted.
    """
    data = documents.canonical_bytes(refusal)
    if (yield from create_ours(f"{keys.refusals}/{name}", data)):
        return name
    own = replace(name, tag=hash_bytes(data, Algorithm.BLAKE3).value[:16])
    yield from create_ours(f"{keys.refusals}/{own}", data)
    return own


def release(keys: FamilyKeys, release: Release) -> Steps[tuple[str, ...]]:
    """Lift the family's quarantine: name every refusal in force. The failed generations stay barred.

    Returns:
        The names lifted by this call; empty when the family was not quarantined.
    """
    survey = yield from take_survey(keys)
    for name in survey.quarantine:
        yield from create_ours(f"{keys.releases}/{name}", documents.canonical_bytes(release))
    return survey.quarantine


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
        spelled = re.compile(re.escape(stem) + r"-(\d{4,9})\.json", re.ASCII)
        attempt = 1 + max((int(match[1]) for name in names if (match := spelled.fullmatch(name))), default=0)
    for number in range(attempt, attempt + MAXIMUM_ATTEMPTS):
        key = f"{prefix}-{number:04d}.json"
        if (yield from create_ours(key, encode(number))):
            return number
        stored = yield Get(key)
        if stored is not None and agrees(stored):
            return number
    raise StoreTransientError(f"cannot record a verdict: {prefix}: lost {MAXIMUM_ATTEMPTS} attempts to other verdicts")


def refresh_caches(keys: FamilyKeys) -> Steps[Survey]:
    """Recompute LAST_GOOD and QUARANTINE and swap them in; returns the survey they were computed from.

    A store that cannot swap (ADR 0007) gets them replaced instead.
    """
    try:
        return (yield from _swap_caches(keys))
    except StoreLimitError:
        return (yield from _replace_caches(keys))


def _swap_caches(keys: FamilyKeys) -> Steps[Survey]:
    """The pointers are read before the records, and swapped even when their value is unchanged, because their revision
    is what makes a slower writer with older records lose (ADR 0002).
    """
    for _ in range(MAXIMUM_SWAPS):
        current = yield Get(keys.last_good)
        notice = yield Get(keys.quarantine)
        survey = yield from take_survey(keys)
        pointer, told = yield from _caches(keys, survey, current, notice)
        if (yield Swap(keys.last_good, documents.canonical_bytes(pointer), current)) and (
            yield Swap(keys.quarantine, documents.canonical_bytes(told), notice)
        ):
            return survey
    # Whoever won the second swap that we lost had read the pointer after we began, so from records as new as ours.
    return (yield from take_survey(keys))


def _replace_caches(keys: FamilyKeys) -> Steps[Survey]:
    """Replace what does not say what the records say, and look again until all of it does.

    A slower writer may overwrite a newer one here, and then finds that out, because it reads the records again after it
    wrote. Only one that dies between the two leaves an old answer, which `reconcile` mends by these same steps.
    """
    for _ in range(MAXIMUM_SWAPS):
        current = yield Get(keys.last_good)
        notice = yield Get(keys.quarantine)
        survey = yield from take_survey(keys)
        pointer, told = yield from _caches(keys, survey, current, notice)
        stale = [
            (key, ours)
            for key, stored, ours in ((keys.last_good, current, pointer), (keys.quarantine, notice, told))
            if not _says_the_same(stored, ours)
        ]
        if not stale:
            return survey
        for key, ours in stale:
            yield Replace(key, documents.canonical_bytes(ours))
    # Others keep writing; whoever comes last looks again.
    return (yield from take_survey(keys))


def _caches(
    keys: FamilyKeys, survey: Survey, current: bytes | None, notice: bytes | None
) -> Steps[tuple[GenerationPointer, QuarantineNotice]]:
    """What the two should say, each one revision above what lies there."""
    good = survey.newest_proven
    marker: bytes | None = (yield Get(keys.commit(good))) if good else None
    pointer = GenerationPointer(
        generation=str(good) if good else None,
        commit=commit_digest(marker) if marker is not None else None,
        revision=_revision(current, GenerationPointer) + 1,
    )
    told = QuarantineNotice(
        quarantined=bool(survey.quarantine),
        refusals=survey.quarantine,
        revision=_revision(notice, QuarantineNotice) + 1,
    )
    return pointer, told


def _says_the_same(stored: bytes | None, ours: GenerationPointer | QuarantineNotice) -> bool:
    """Whether a stored cache differs in nothing but its revision."""
    try:
        found = documents.parse(type(ours), stored, "cache") if stored is not None else None
    except FormatError:
        return False
    return found is not None and msgspec.structs.replace(found, revision=ours.revision) == ours


def _revision(data: bytes | None, kind: type[GenerationPointer] | type[QuarantineNotice]) -> int:
    if data is None:
        return 0
    try:
        return documents.parse(kind, data, "cache").revision
    except FormatError:
        # A cache that somebody tore or wrote by hand is simply rebuilt; no decision reads it.
        return 0
