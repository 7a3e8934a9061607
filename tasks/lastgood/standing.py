"""What stands on record of each generation of a family, and what is due: the questions that come before every gate.

Decides which record is evidence: a fail on any rung, a pass of what is asked for. Leaves to `rotation` which slices
come next, and judging to `family`. Rule: storage alone is asked, each time anew, so any number of gates, sweeps and
relays may ask.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from datetime import UTC, datetime, timedelta

from lastgood.errors import FormatError
from lastgood.identity import GenerationId
from lastgood.location import Location
from lastgood.manifest import MAXIMUM_MANIFEST_BYTES, manifest_digest
from lastgood.protocol import Survey, perform, take_survey
from lastgood.records import Record, generations_on_record, newest_first, next_attempt
from lastgood.rotation import Turn, find_turn
from lastgood.verdict import Outcome, Tier
from lastgood.verify.reading import read_commit_marker

__all__ = ["Standings"]


class Standings:
    """The evidence of one family.

    Args:
        location: From `location.locate`.
        now: The clock, aware UTC.
    """

    def __init__(self, location: Location, *, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self.location = location
        self._store = location.store
        self._keys = location.keys
        self._now = now

    def survey(self) -> Survey:
        """The state of the family, as one pass over its documents shows it; of one that is not there, an empty state.

        Raises:
            FormatError: A document that decides is not lawful.
            StoreError: The store could not tell.
        """
        return perform(self._store, take_survey(self._keys))

    def due_attempt(
        self, generation: GenerationId, tier: Tier, *, older_than: timedelta | None = None, full: bool = True
    ) -> int | None:
        """Under which attempt a gate would judge a generation now; None while conclusive evidence stands, and where the
        store's settings let it be read in rotation, while no later save waits for the next slice.

        Whoever judges asks first and hands the answer to `keep`: of two gates that judge one generation at once, both
        hold the same attempt, and the store takes one conclusive record. The attempt rises only when the last one
        ended without a conclusive record, or when its evidence is due again.

        Args:
            generation: What would be judged.
            tier: The gate.
            older_than: Evidence of this age is due again; None: conclusive evidence stands for ever.
            full: Only a record of all that was asked for stands; a fail stands whatever its rung.

        Raises:
            StoreError: The store could not tell.
        """
        manifest = self.digest_of(generation)
        # Before what stands: a record that another gate keeps meanwhile is then seen below, or holds this very attempt.
        # In the other order it was missed by the one question and counted by the other, and the save judged twice.
        attempt = next_attempt(self._store, self._keys, generation, manifest, tier)
        standing = self._standing(generation, tier, manifest, full=full)
        fresh = standing is not None and (older_than is None or self._now() - standing.finished_at < older_than)
        owes = full and tier is Tier.MANIFEST and standing is not None and self._owes(generation, standing)
        return None if fresh and not owes else attempt

    def owing(self) -> tuple[GenerationId, ...]:
        """The candidates that stand and owe a slice to a save after them, oldest first; none without a rotation."""
        if self.location.verify.mode != "rotating":
            return ()
        candidates = self.survey().candidates
        return tuple(
            one
            for one in reversed(candidates)
            if (standing := self.standing_record(one, Tier.MANIFEST)) is not None
            and self._owes(one, standing, candidates)
        )

    def _owes(
        self, generation: GenerationId, standing: Record, candidates: Sequence[GenerationId] | None = None
    ) -> bool:
        if self.location.verify.mode != "rotating" or standing.verdict.outcome is not Outcome.PASS:
            return False
        turn = self.turn(generation, candidates)
        return turn is not None and turn.owed

    def turn(self, generation: GenerationId, candidates: Sequence[GenerationId] | None = None) -> Turn | None:
        """Which slices of a generation come next; None where it is read whole."""
        settings = self.location.verify
        if settings.mode != "rotating":
            return None
        kept = self.survey().candidates if candidates is None else candidates
        return find_turn(self._store, self._keys, settings, generation, candidates=kept)

    def standing_record(self, generation: GenerationId, tier: Tier, *, full: bool = True) -> Record | None:
        """The conclusive record that stands for a generation as its manifest is now, or None; see `due_attempt`.

        Raises:
            StoreError: The store could not tell.
        """
        return self._standing(generation, tier, self.digest_of(generation), full=full)

    def _standing(self, generation: GenerationId, tier: Tier, manifest: str | None, *, full: bool) -> Record | None:
        try:
            # Of two gates at once the one that could not tell may come last; what the other found stands all the same.
            records = newest_first(self._store, self._keys, generation, tier, manifest=manifest)
            rotates = self.location.verify.mode == "rotating"
            return next((one for one in records if _stands(one, full=full, rotates=rotates)), None)
        except FormatError:
            return None  # a spoiled record is no evidence, and must not keep its generation, or others, from a gate

    def digest_of(self, generation: GenerationId) -> str | None:
        """The digest of a generation's manifest as it lies there now, or None without one.

        Raises:
            StoreError: The store could not tell.
        """
        data = self._store.get(self._keys.manifest(generation), limit_bytes=MAXIMUM_MANIFEST_BYTES)
        return manifest_digest(data) if data is not None else None

    def unjudged(
        self, *, besides: Collection[GenerationId] = (), newest: int | None = None
    ) -> tuple[GenerationId, ...]:
        """The candidates without a conclusive full verdict of tier 1, oldest first; a burned slot is none.

        Args:
            besides: Generations that are not asked about: three documents are read for each that is.
            newest: Ask about that many; of those before them, only about what has no record at all, which one listing
                tells. None: about each.
        """
        candidates = sorted(one for one in self.survey().candidates if one not in besides)
        if newest is not None and len(candidates) > newest:
            recorded = frozenset(generations_on_record(self._store, self._keys))
            candidates = [*(one for one in candidates[:-newest] if one not in recorded), *candidates[-newest:]]
        return tuple(
            one for one in candidates if self.standing_record(one, Tier.MANIFEST) is None and not self.is_burned(one)
        )

    def is_burned(self, generation: GenerationId) -> bool:
        """Whether the slot of a generation was abandoned, so that there is nothing to judge.

        Raises:
            StoreError: The store could not tell.
        """
        marker = read_commit_marker(self._store, self._keys, generation).marker
        return marker is not None and marker.burned


def _stands(record: Record, *, full: bool, rotates: bool) -> bool:
    """Whether a record is evidence: a fail of any rung, a pass of what is asked for or, if that will do, of any.

    Where nothing rotates any more, slices stand once they are all of it.
    """
    verdict = record.verdict
    partial = verdict.slice is not None and not (rotates or verdict.slice.covers)
    weaker = verdict.outcome is Outcome.PASS and (verdict.is_weaker_pass or partial)
    return verdict.outcome.is_conclusive and not (full and weaker)
