"""Families that save when a test says so, on any store, all in one life of the run."""

from __future__ import annotations

import hashlib
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from lastgood.config import FamilySettings
from lastgood.family import Family
from lastgood.identity import GenerationId
from lastgood.location import locate
from lastgood.manifest import Component
from lastgood.records import list_records
from lastgood.testing.build import BuiltLife, Recipe
from lastgood.verdict import Outcome, Tier
from lastgood_prefect.relay.reading import bucket_of
from lastgood_prefect.settings import ConfiguredFamily

SMALL = Recipe(
    world_size=1, shard_bytes=64, absent=(Component.SCALER, Component.SCHEDULER, Component.CONFIG)
)  # a thousand of them are published


class SavingFamily:
    """A family whose trainer and whose gate are the test. A context.

    Args:
        root: `s3://bucket/prefix`, or a directory.
        name: Of the family.
    """

    def __init__(self, root: str, name: str = "llm-7b") -> None:
        self.name = name
        self.root = root
        self.location = locate(f"{root}/{name}")
        self.configured = ConfiguredFamily(name=name, location=self.location, settings=FamilySettings(root=root))
        self.generations: list[GenerationId] = []
        self._judged: frozenset[GenerationId] = frozenset()
        self._held = ExitStack()
        self._life: BuiltLife | None = None

    @property
    def family(self) -> Family:
        return self.configured.family

    @property
    def newest(self) -> GenerationId:
        return self.generations[-1]

    def commit_key(self, generation: object) -> str:
        """The key in its bucket under which a commit is announced."""
        found = bucket_of(self.root)
        assert found is not None
        return f"{found[1]}/{self.location.keys.commits}/{generation}"

    def save(self) -> GenerationId:
        """Publish one more generation; the first save begins the life."""
        if self._life is None:
            nonce = hashlib.sha256(self.location.family_uri.encode()).hexdigest()[:32]
            life = BuiltLife.start(self.location.store, self.location.keys, nonce=nonce, recipe=SMALL)
            self._life = self._held.enter_context(life)
        self.generations.append(self._life.save(len(self.generations) + 1))
        return self.newest

    def due(self) -> frozenset[GenerationId]:
        """What has no conclusive verdict; one that was seen is not asked about again, as the watcher does it."""
        saved = frozenset(self.generations)  # before the question: what is saved meanwhile is not taken for judged
        due = frozenset(self.family.unjudged(besides=self._judged))
        self._judged |= saved - due
        return due

    def judge(self) -> None:
        """Carry out tier 1 of whatever is unjudged, as the flows `save-gate` and `reconcile` do."""
        family = self.family
        for generation in sorted(self.due()):
            attempt = family.due_attempt(generation, Tier.MANIFEST)
            if attempt is not None:
                judged = family.judge(generation)
                family.keep(
                    judged.verdict, generation, judged.started_at, judged.measurements, attempt=attempt, origin="run"
                )

    def verdicts(self) -> list[tuple[str, str]]:
        """Generation and outcome of each conclusive record."""
        records = list_records(self.location.store, self.location.keys)
        return sorted((one.generation, one.verdict.outcome) for one in records if one.verdict.outcome.is_conclusive)

    def perfect_verdicts(self) -> list[tuple[str, str]]:
        """What a feed that lost and doubled nothing ends in: each save judged once, and passed, for each is whole."""
        return sorted((str(one), Outcome.PASS) for one in self.generations)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._held.close()
