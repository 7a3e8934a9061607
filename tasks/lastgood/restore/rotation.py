"""Which generation a sampled restore takes next.

Decides the order of a rotation. Rules: what was never restored comes first, the newest of it first, for that is what
the next interruption will need; then what was restored longest ago. Equal evidence gives the same answer everywhere:
attempts and finish times on record decide, never a random draw. Barred generations are not sampled: their fail stands.
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

__all__ = ["choose_next", "next_generation"]

MAXIMUM_SAMPLED = 1000
"""The newest candidates among which the rotation runs; older ones are history rather than something to resume."""


def choose_next(candidates: Sequence[GenerationId], restored: Mapping[GenerationId, datetime]) -> GenerationId | None:
    """The generation to restore next, or None without candidates.

    Args:
        candidates: What may be restored.
        restored: When each was last restored with a conclusive verdict, aware; absent: never.
    """
    never = [generation for generation in candidates if generation not in restored]
    if never:
        return max(never)
    return min(candidates, key=lambda generation: (restored[generation], generation), default=None)


def next_generation(location: Location) -> GenerationId:
    """The generation of a family that its rotation comes to next, by the records in its store.

    Args:
        location: The family.

    Raises:
        UsageError: The family holds nothing that could be restored.
        FormatError: A record is not lawful.
        StoreError: The store could not tell.
    """
    survey = perform(location.store, take_survey(location.keys))
    candidates = [generation for generation in survey.candidates if generation not in survey.barred]
    restored = {}
    for generation in candidates[:MAXIMUM_SAMPLED]:
        record = newest_record(location.store, location.keys, generation, Tier.RESTORE)
        if record is not None and record.verdict.outcome.is_conclusive:
            restored[generation] = record.finished_at
    chosen = choose_next(candidates[:MAXIMUM_SAMPLED], restored)
    if chosen is None:
        raise UsageError(f"nothing to restore: {location.family_uri} holds no generation that is not barred")
    return chosen
