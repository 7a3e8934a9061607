"""Which slices of a generation's payload a save reads, where its store's settings ask for a rotation (ADR 0009).

Decides what comes next, from evidence alone: the newest rotating record says how far the reading came and for how many
saves it was done, so whoever asks gets the same answer, and what a gate that died did not do is still owed. Leaves
reading to `verify` and keeping the record to `family`. Rules: each save lets every generation owe one slice, until all
of it was read; a generation begins one slice after the save before it began, so that the newest saves together read
every slice first-hand; only a pass counts as read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lastgood.errors import FormatError
from lastgood.identity import FamilyKeys, GenerationId
from lastgood.manifest import MAXIMUM_MANIFEST_BYTES, Manifest, manifest_digest, parse_manifest
from lastgood.records import newest_first
from lastgood.stores import Store, VerifySettings
from lastgood.verdict import Outcome, Slice, Tier

__all__ = ["Turn", "find_turn", "next_slice"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What of a generation is read next.

    Args:
        slice: That.
        owed: Whether a save waits for it.
    """

    slice: Slice
    owed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Read:
    """What is on record of a generation: the slice that was read last, and whether all of it was read at once."""

    last: Slice | None = None
    at_once: bool = False


def find_turn(
    store: Store,
    keys: FamilyKeys,
    settings: VerifySettings,
    generation: GenerationId,
    *,
    candidates: Sequence[GenerationId],
) -> Turn | None:
    """What of a generation is to be read next; None where it is read whole.

    Args:
        store: Where.
        keys: The family.
        settings: How much is asked for there.
        generation: Which.
        candidates: The saves that are kept, newest first.

    Raises:
        StoreError: The store could not tell.
    """
    if settings.mode != "rotating" or (told := _manifest(store, keys, generation)) is None:
        return None
    manifest, digest = told
    rotation = min(settings.rotation, len(manifest.artifacts))
    if rotation < 2 or manifest.total_bytes < settings.read_all_below_bytes:
        return None
    read = _read(store, keys, generation, digest)
    later = candidates.index(generation) if generation in candidates else 0
    origin = 0
    if read.last is None and generation in candidates[:-1]:
        before = _read(store, keys, candidates[later + 1]).last
        origin = (before.first + before.count - before.done + 1) % rotation if before is not None else 0
    turn = next_slice(
        rotation,
        saves=later + 1,
        last=read.last,
        origin=origin,
        goes_on=later < settings.generations,
        at_once=read.at_once,
    )
    return None if turn.slice.count == rotation else turn


def next_slice(
    rotation: int, *, saves: int, last: Slice | None, origin: int = 0, goes_on: bool = False, at_once: bool = False
) -> Turn:
    """What of a generation is to be read next.

    Args:
        rotation: Into how many slices it is cut.
        saves: How many saves there are from this one on.
        last: What was read last.
        origin: With which slice the reading begins.
        goes_on: Whether it is read on when all of it was read.
        at_once: Whether it was read whole after that.
    """
    done, first = 0, origin % rotation
    if last is not None and last.rotation == rotation:
        done, first = last.done, (last.first + last.count) % rotation
    # Of one that was read whole nobody noted for how many saves: what comes after is all that may be owed.
    counted = last.saves if last is not None else saves - int(goes_on) if at_once else 0
    unread = rotation if goes_on else 0 if at_once else rotation - done
    owed = min(saves - counted, unread)
    count = max(owed, 1)
    told = Slice(
        first=first, count=count, rotation=rotation, done=done + count, saves=saves if owed > 0 else max(counted, 1)
    )
    return Turn(slice=told, owed=owed > 0)


def _manifest(store: Store, keys: FamilyKeys, generation: GenerationId) -> tuple[Manifest, str] | None:
    """A lawful manifest with its digest; what is wrong with another one, the verification of the whole says."""
    key = keys.manifest(generation)
    try:
        data = store.get(key, limit_bytes=MAXIMUM_MANIFEST_BYTES)
        return (parse_manifest(data, key), manifest_digest(data)) if data is not None else None
    except FormatError:
        return None


def _read(store: Store, keys: FamilyKeys, generation: GenerationId, manifest: str | None = None) -> _Read:
    at_once = False
    try:
        for record in newest_first(store, keys, generation, Tier.MANIFEST, manifest=manifest):
            if record.verdict.outcome is Outcome.PASS:
                if record.verdict.slice is not None:
                    return _Read(last=record.verdict.slice, at_once=at_once)
                at_once = at_once or not record.verdict.is_weaker_pass
    except FormatError:
        pass  # a spoiled record is no evidence: the reading begins anew
    return _Read(at_once=at_once)
