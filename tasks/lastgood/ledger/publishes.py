"""Publishes that began and are not committed: what creation success is counted from.

Decides what counts as begun and what became of it. A publish leaves a trace from its first file on: a staging
directory, then a manifest, then its COMMIT. What has one of the first two and no COMMIT, not even a burned one, is
unfinished. Rules: only the newest publish of the newest life can be under way, since a life publishes one step after
the other and a newer life fences every older one; it counts for nothing until it is known how it ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from lastgood import documents
from lastgood.errors import FormatError
from lastgood.identity import FamilyKeys, GenerationId
from lastgood.ledger.rows import Row, moment, storable
from lastgood.manifest import MAXIMUM_MANIFEST_BYTES, Receipt, parse_manifest
from lastgood.protocol import Survey
from lastgood.publish import Outcome
from lastgood.stores import Store
from lastgood.verify.reading import read_document

__all__ = ["Begun", "Ending", "unfinished_rows"]


class Ending(StrEnum):
    """What became of a publish without a COMMIT."""

    UNDER_WAY = "under_way"
    FAILED = "failed"
    """Its coordinator said so."""
    FENCED = "fenced"
    """A newer life had taken over, and its coordinator said so."""
    ABANDONED = "abandoned"
    """Nobody said anything, and nobody can finish it any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """Publishes that left something: generation → the names of their stagings, and those with a manifest."""

    stagings: Mapping[GenerationId, tuple[str, ...]]
    manifests: frozenset[GenerationId]

    @classmethod
    def list(cls, store: Store, keys: FamilyKeys) -> Begun:
        """What lies there; to be asked before the commits are listed."""
        stagings: dict[GenerationId, tuple[str, ...]] = {}
        for name in store.names(keys.staging).directories:
            if (generation := GenerationId.of_staging(name)) is not None:
                stagings[generation] = (*stagings.get(generation, ()), name)
        names = (GenerationId.find(name.removesuffix(".json")) for name in store.names(keys.manifests).files)
        return cls(stagings=stagings, manifests=frozenset(name for name in names if name is not None))


def unfinished_rows(store: Store, keys: FamilyKeys, begun: Begun, survey: Survey) -> tuple[Row, ...]:
    """A row for each publish without a COMMIT, in order.

    Raises:
        StoreError: The store could not tell.
    """
    commits = {*survey.candidates, *survey.fenced}
    open_ones = sorted((begun.stagings.keys() | begun.manifests) - commits)
    of_newest_life = [one for one in (*commits, *open_ones) if one.incarnation == survey.claims.newest]
    newest = max(of_newest_life, default=None)
    rows = []
    for generation in open_ones:
        stagings = begun.stagings.get(generation, ())
        ending, message = _told(store, keys, stagings)
        if ending is None:
            ending = Ending.UNDER_WAY if generation == newest else Ending.ABANDONED
        rows.append(
            {
                "generation": str(generation),
                "incarnation": generation.incarnation,
                "step": generation.step,
                "outcome": ending.value,
                "at": _seen(store, keys, generation, stagings),
                "message": storable(message),
            }
        )
    return tuple(rows)


def _told(store: Store, keys: FamilyKeys, stagings: tuple[str, ...]) -> tuple[Ending | None, str | None]:
    """How a publish ended by its coordinator's word, if it left one."""
    for staging in stagings:
        try:
            key = f"{keys.staging}/{staging}/outcome.json"
            if (data := read_document(store, key)) is not None:
                outcome = documents.parse(Outcome, data, key)
                ending = Ending.FENCED if outcome.kind == "fenced" else Ending.FAILED
                return (ending, outcome.message) if outcome.kind != "committed" else (None, None)
            key = f"{keys.staging}/{staging}/receipts/rank-00000.json"  # a lone rank leaves no outcome
            if (data := read_document(store, key)) is not None:
                receipt = documents.parse(Receipt, data, key)
                if receipt.failure is not None:
                    return Ending.FAILED, receipt.failure
        except FormatError:
            continue  # nobody's word, and no later decision reads it
    return None, None


def _seen(store: Store, keys: FamilyKeys, generation: GenerationId, stagings: tuple[str, ...]) -> datetime | None:
    """When the publish was last heard of: its manifest says so, else what changed in its staging."""
    key = keys.manifest(generation)
    try:
        data = read_document(store, key, limit_bytes=MAXIMUM_MANIFEST_BYTES)
        if data is not None:
            return moment(parse_manifest(data, key).created_at, key)
    except FormatError:
        pass  # what it left still has a time
    changes = (store.last_changed(f"{keys.staging}/{staging}") for staging in stagings)
    return max((change for change in changes if change is not None), default=None)
