"""Whose turn it is: which family a scheduled gate takes, and which of its generations a sampled restore takes.

Decides the order of both rotations. Rules: what was never restored comes first, the newest of it first, for that is
what the next interruption will need; then what was restored longest ago. Equal evidence gives the same answer
everywhere: finish times on record decide, never a random draw. Barred generations are not sampled: their fail stands.

Of generations only conclusive records count, and a weaker rung only where it failed: one that could not be judged, or
was judged in part, is still the next. Of families all count: one whose gate never reaches a verdict (no device of its
kind here) must not keep the turn from all others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from lastgood.errors import UsageError
from lastgood.identity import GenerationId
from lastgood.location import Location
from lastgood.protocol import perform, take_survey
from lastgood.records import newest_record
from lastgood.verdict import Tier

__all__ = ["choose_next", "last_tried", "next_generation", "take_turns"]

MAXIMUM_SAMPLED = 1000
"""The newest candidates among which the rotation runs; older ones are history rather than something to resume."""


def choose_next(candidates: Sequence[GenerationId], restored: Mapping[GenerationId, datetime]) -> GenerationId | None:
    """The generation to restore next, or None without candidates.

    Args:
        candidates: What may be restored.
        restored: When each was last restored with a conclusive verdict of the full rung, aware; absent: never.
    """
    never = [generation for generation in candidates if generation not in restored]
    if never:
        return max(never)
    return min(candidates, key=lambda generation: (restored[generation], generation), default=None)


def take_turns(tried: Mapping[str, datetime | None]) -> tuple[str, ...]:
    """Families in the order of their turns.

    Args:
        tried: Family → when the gate last ended with a record of it, whatever it said, aware; None: never.
    """
    never = sorted(name for name, moment in tried.items() if moment is None)
    since = sorted((moment, name) for name, moment in tried.items() if moment is not None)
    return (*never, *(name for _, name in since))


def last_tried(location: Location, tier: Tier) -> datetime | None:
    """When a gate last left a record of a family, among its newest candidates; None: never.

    Args:
        location: The family.
        tier: The gate.

    Raises:
        UsageError: The family holds nothing that the gate could take.
        FormatError: A record is not lawful.
        StoreError: The store could not tell.
    """
    records = (newest_record(location.store, location.keys, one, tier) for one in _sampled(location))
    return max((record.finished_at for record in records if record is not None), default=None)


def next_generation(location: Location) -> GenerationId:
    """The generation of a family that its rotation comes to next, by the records in its store.

    Args:
        location: The family.

    Raises:
        UsageError: The family holds nothing that could be restored.
        FormatError: A record is not lawful.
        StoreError: The store could not tell.
    """
    restored = {}
    candidates = _sampled(location)
    for generation in candidates:
        record = newest_record(location.store, location.keys, generation, Tier.RESTORE)
        if record is not None and record.verdict.outcome.is_conclusive and not record.verdict.is_weaker_pass:
            restored[generation] = record.finished_at
    chosen = choose_next(candidates, restored)
    assert chosen is not None, "there are candidates"
    return chosen


def _sampled(location: Location) -> Sequence[GenerationId]:
    survey = perform(location.store, take_survey(location.keys))
    candidates = [generation for generation in survey.candidates if generation not in survey.barred]
    if not candidates:
        raise UsageError(f"nothing to restore: {location.family_uri} holds no generation that is not barred")
    return candidates[:MAXIMUM_SAMPLED]
