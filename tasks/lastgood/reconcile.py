"""Reconciling a family with what storage holds: what no event announced, what lags, what was left lying, what is stale.

Decides what may be removed and which evidence is too old. Leaves judging to `family`, pointers to `verify.pointers`,
and the burning of slots to `protocol`. Rules: whatever a living life may still publish is never touched, so only lives
older than the newest decision are swept, and only what nothing changed for a while; a slot is burned before anything of
its publish goes, and the burned COMMIT remains as the evidence that a publish was begun; what cannot be swept is said
and keeps nobody from the rest. Everything may be repeated, interrupted anywhere, and run beside itself.
Source: docs/protocol.md, "Cleaning".
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from lastgood.config import Objectives
from lastgood.errors import FormatError, LastgoodError
from lastgood.family import Family
from lastgood.identity import GenerationId
from lastgood.location import Location
from lastgood.protocol import Survey, abandon, perform, take_survey
from lastgood.records import newest_pass
from lastgood.verdict import Tier
from lastgood.verify import repair_pointers
from lastgood.verify.reading import read_commit_marker

__all__ = ["SWEEP_AFTER", "Stale", "Tidied", "find_stale", "sweep", "tidy"]

SWEEP_AFTER = timedelta(days=1)
"""What nothing changed for so long, of a life that was cut, is left over: no rank pauses for a day and comes back."""
MAXIMUM_GENERATIONS_SEARCHED = 1000
"""Candidates whose restores and drills are looked at; an objective in days never asks for older ones."""

_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tidied:
    """What was put right in a family.

    Args:
        repaired: Keys of the pointers and caches that were rewritten or removed.
        burned: Generations whose publish was given up now: each of their slots holds a burned COMMIT.
        removed: Keys of what was deleted.
        errors: What could not be done, and why; the rest was.
    """

    repaired: tuple[str, ...] = ()
    burned: tuple[GenerationId, ...] = ()
    removed: tuple[str, ...] = ()
    errors: tuple[LastgoodError, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Stale:
    """Evidence that is older than its objective.

    Args:
        tier: Of the gate.
        age: Of the evidence; where there is none, of the first save that waits for it.
        limit: The objective.
        message: A lowercase fact.
    """

    tier: Tier
    age: timedelta
    limit: timedelta
    message: str


def tidy(location: Location, *, older_than: timedelta = SWEEP_AFTER, now: datetime | None = None) -> Tidied:
    """Repair a family's pointers, give up publishes that nobody can finish, and remove what they left.

    Args:
        location: The family.
        older_than: How long nothing must have changed before anything is removed.
        now: The clock, aware; None: the store's own.

    Raises:
        FormatError: A document that decides is not lawful, so there is nothing to tidy by.
        StoreError: The store could not tell.
        UsageError: There is no such family.
    """
    repaired = repair_pointers(location.store, location.keys)
    swept = sweep(location, older_than=older_than, now=now)
    return Tidied(repaired=repaired, burned=swept.burned, removed=swept.removed, errors=swept.errors)


def sweep(location: Location, *, older_than: timedelta = SWEEP_AFTER, now: datetime | None = None) -> Tidied:
    """The part of `tidy` that removes; see there."""
    # By the store's own clock: a machine whose clock is a day ahead would take what is being written now for left over.
    before = (now or location.store.clock(location.keys.ours)) - older_than
    sweeper = _Sweeper(location, perform(location.store, take_survey(location.keys)), before)
    sweeper.run()
    return Tidied(burned=tuple(sweeper.burned), removed=tuple(sweeper.removed), errors=tuple(sweeper.errors))


@dataclass(slots=True, kw_only=True)
class _Left:
    """What one publish left lying: its stagings, and whether a manifest and a directory bear its name."""

    stagings: list[str] = field(default_factory=list)
    has_manifest: bool = False
    has_directory: bool = False


class _Sweeper:
    """One sweep: what it did so far."""

    def __init__(self, location: Location, survey: Survey, before: datetime) -> None:
        self._store = location.store
        self._keys = location.keys
        self._cut = survey.cut.decided_by
        self._committed = frozenset((*survey.candidates, *survey.fenced))
        self._before = before
        self.burned: list[GenerationId] = []
        self.removed: list[str] = []
        self.errors: list[LastgoodError] = []

    def run(self) -> None:
        for generation, left in sorted(self._unfinished(), key=lambda pair: pair[0]):
            self._try(lambda generation=generation, left=left: self._give_up(generation, left))  # type: ignore[misc]
        for prefix in self._prefixes():
            names = self._try(lambda prefix=prefix: self._store.sweep(prefix, before=self._before))  # type: ignore[misc]
            self.removed += [f"{prefix}/{name}" for name in names or ()]

    def _try(self, act: Callable[[], _Answer]) -> _Answer | None:
        try:
            return act()
        except LastgoodError as error:
            self.errors.append(error)
            return None

    def _unfinished(self) -> Iterator[tuple[GenerationId, _Left]]:
        """Publishes of lives that were cut which have no COMMIT, or a staging beside it."""
        found: dict[GenerationId, _Left] = {}

        def note(generation: GenerationId | None) -> _Left | None:
            # What carries a name is foreign: nobody publishes it through a staging, and it is not ours to sweep.
            if generation is None or generation.name or not 0 < generation.incarnation < self._cut:
                return None
            return found.setdefault(generation, _Left())

        for name in self._store.names(self._keys.staging).directories:
            if (left := note(GenerationId.of_staging(name))) is not None:
                left.stagings.append(f"{self._keys.staging}/{name}")
        for name in self._store.names(self._keys.manifests).files:
            if (left := note(GenerationId.find(name.removesuffix(".json")))) is not None:
                left.has_manifest = True
        for name in self._store.names(self._keys.family).directories:
            if (left := note(GenerationId.find(name))) is not None:
                left.has_directory = True
        return ((g, left) for g, left in found.items() if left.stagings or g not in self._committed)

    def _give_up(self, generation: GenerationId, left: _Left) -> None:
        artifacts = self._keys.artifacts(generation)
        lying = [*left.stagings, *([artifacts] if left.has_directory else [])]
        manifest = [self._keys.manifest(generation)] if left.has_manifest else []
        if not all(self._is_old(key) for key in (*lying, *manifest)):
            return
        if left.has_directory and not (left.has_manifest or left.stagings):
            # A publisher installs nothing before its manifest stands: somebody put this here, perhaps a copy under way.
            return
        if generation not in self._committed:
            if not perform(self._store, abandon(self._keys, generation, secrets.token_hex(16))):
                return
            self.burned.append(generation)
        elif not self._is_burned(generation):
            lying = left.stagings  # committed: what it holds stays, and its staging has served
        # The stagings last: as long as one lies there, a sweep that was interrupted is taken up again.
        for key in reversed(lying):
            self._store.discard(key)
            self.removed.append(key)

    def _is_old(self, key: str) -> bool:
        changed = self._store.last_changed(key)
        return changed is None or changed < self._before

    def _is_burned(self, generation: GenerationId) -> bool:
        marker = read_commit_marker(self._store, self._keys, generation).marker
        return marker is not None and marker.burned

    def _prefixes(self) -> Iterator[str]:
        """Where documents are written and trees are renamed away; never inside a generation or a staging."""
        keys = self._keys
        yield from (keys.family, keys.ours, keys.incarnations, keys.manifests, keys.commits, keys.refusals)
        yield from (keys.releases, keys.proven, keys.staging, keys.records)
        yield from (f"{keys.records}/{name}" for name in self._store.names(keys.records).directories)


def find_stale(family: Family, objectives: Objectives, *, now: datetime | None = None) -> tuple[Stale, ...]:
    """Per tier, whether the evidence of a family is older than its objectives allow; a family without a save owes none.

    Args:
        family: Whose.
        objectives: What is demanded of it.
        now: The clock, aware.

    Raises:
        FormatError: A document that decides is not lawful.
        StoreError: The store could not tell.
    """
    moment = now or datetime.now(UTC)
    location = family.location
    candidates = family.survey().candidates
    first = next((one for one in reversed(candidates) if not family.is_burned(one)), None)
    if first is None:
        return ()
    first_save = location.store.last_changed(location.keys.commit(first)) or moment
    found = [_unjudged(family, timedelta(seconds=objectives.verify_age_seconds), moment)]
    for tier, what, seconds in (
        (Tier.RESTORE, "restore", objectives.restore_age_seconds),
        (Tier.DRILL, "drill", objectives.drill_age_seconds),
    ):
        passed = _last_passed(location, candidates, tier)
        limit, age = timedelta(seconds=seconds), moment - (passed or first_save)
        if age > limit:
            since = "the newest passed" if passed else "none has passed since the first save,"
            message = f"{what} evidence stale: {location.keys.family}: {since} {_ago(age)} ago: expected {_ago(limit)}"
            found.append(Stale(tier=tier, age=age, limit=limit, message=message))
    return tuple(stale for stale in found if stale is not None)


def _unjudged(family: Family, limit: timedelta, now: datetime) -> Stale | None:
    location = family.location
    waiting = {
        generation: now - saved
        for generation in family.unjudged()
        if (saved := location.store.last_changed(location.keys.commit(generation))) is not None
    }
    late = {generation: age for generation, age in waiting.items() if age > limit}
    if not late:
        return None
    oldest = max(late, key=lambda generation: late[generation])
    message = (
        f"saves not verified: {location.keys.family}: {len(late)} without a conclusive verdict, "
        f"the oldest {oldest}, saved {_ago(late[oldest])} ago: expected {_ago(limit)}"
    )
    return Stale(tier=Tier.MANIFEST, age=late[oldest], limit=limit, message=message)


def _last_passed(location: Location, candidates: tuple[GenerationId, ...], tier: Tier) -> datetime | None:
    """When a full gate of this tier last passed; a rotation may have restored an older generation last."""
    newest: datetime | None = None
    for generation in candidates[:MAXIMUM_GENERATIONS_SEARCHED]:
        try:
            record = newest_pass(location.store, location.keys, generation, tier)
        except FormatError:
            continue  # a spoiled record is no evidence
        if record is not None and (newest is None or record.finished_at > newest):
            newest = record.finished_at
    return newest


def _ago(passed: timedelta) -> str:
    seconds = int(passed.total_seconds())
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length} {unit}"
    return f"{seconds} s"
