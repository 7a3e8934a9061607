"""Healthy families, built without torch through the ordinary publish path; lives of a run on any store.

For tests, for the damage catalogue and for whoever wants to try lastgood on bytes of no value. The artifacts hold
pseudo-random bytes where tensors would lie: tier 1 and the family's checks never look inside them. The layout is the
one of registered state: a model, an optimizer and a random-state file a rank, and one scheduler, scaler, data and
configuration file.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

from lastgood.digest import Algorithm
from lastgood.identity import FamilyKeys, GenerationId
from lastgood.job import current_environment
from lastgood.manifest import (
    AbsentComponent,
    Component,
    ComponentPromise,
    Counter,
    CounterMeaning,
    Determinism,
    Expectations,
    Identity,
    JobDescription,
    Purpose,
    RankExpectations,
    SampleIds,
    Topology,
)
from lastgood.protocol import claim, decide, perform
from lastgood.publish import Publisher, StagedArtifact
from lastgood.stores import LocalStore, Store
from lastgood.stores.filesystem import FileSystem

__all__ = ["BuiltFamily", "BuiltLife", "Recipe", "build_family", "build_job", "build_life"]

PATIENCE = timedelta(seconds=60)


class _Unflushed(FileSystem):
    """Nobody needs these bytes after a power cut, and flushing 4,096 of them takes half a minute."""

    def sync_file(self, path: Path) -> None:
        """Leave it to the kernel."""

    def sync_directory(self, path: Path) -> None:
        """Leave it to the kernel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What a built generation looks like.

    Args:
        world_size: Number of ranks, 1 and up.
        shard_bytes: Length of each model shard; optimizer shards are twice as long.
        extra_artifacts: Further small artifacts of component `other`, e.g. to reach 4,096.
        extra_bytes: Length of each.
        prefix: Directory under the generation, e.g. to try Unicode names; empty for none.
        counter: Value of the `tokens` counter, up to 2**63 - 1.
        purpose: What the checkpoint is for.
        absent: Components left out on purpose, with no artifact and no promise.
        algorithms: Digests of record.
    """

    world_size: int = 2
    shard_bytes: int = 4096
    extra_artifacts: int = 0
    extra_bytes: int = 64
    prefix: str = ""
    counter: int = 1_000_000
    purpose: Purpose = Purpose.RESUMABLE
    absent: tuple[Component, ...] = ()
    algorithms: tuple[Algorithm, ...] = (Algorithm.BLAKE3,)


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltFamily:
    """A family on a local file system, and where its parts lie."""

    root: Path
    family: str
    generations: tuple[GenerationId, ...]

    @property
    def store(self) -> LocalStore:
        return LocalStore(self.root)

    @property
    def keys(self) -> FamilyKeys:
        return FamilyKeys(self.family)

    @property
    def newest(self) -> GenerationId:
        return self.generations[-1]

    def at(self, root: Path) -> BuiltFamily:
        """The same family in a copy of its root."""
        return replace(self, root=root)


def build_family(
    root: Path, family: str, *, steps: Sequence[int] = (12, 24, 36), recipe: Recipe | None = None
) -> BuiltFamily:
    """Publish a healthy family: one life of a run that saved at each step.

    Args:
        root: An existing directory.
        family: One visible path component.
        steps: Completed optimizer steps, rising.
        recipe: What each generation looks like.
    """
    return build_life(BuiltFamily(root=root, family=family, generations=()), steps=steps, recipe=recipe)


def build_life(built: BuiltFamily, *, steps: Sequence[int], recipe: Recipe | None = None) -> BuiltFamily:
    """Add one more life of the run: claim, resume what may be resumed, and publish at each step."""
    nonce = f"{random.Random(f'{built.family} {len(built.generations)}').getrandbits(128):032x}"
    with BuiltLife.start(LocalStore(built.root, _Unflushed()), built.keys, nonce=nonce, recipe=recipe) as life:
        added = tuple(life.save(step) for step in steps)
    return replace(built, generations=(*built.generations, *added))


class BuiltLife:
    """One life of a run on any store, which saves when it is told to. Made by `start`.

    Args:
        keys: Of the family.
        incarnation: What it claimed.
        publishers: One a rank.
        recipe: What each generation looks like.
        ranks: Runs one rank a thread.
    """

    def __init__(
        self,
        keys: FamilyKeys,
        incarnation: int,
        publishers: Sequence[Publisher],
        recipe: Recipe,
        ranks: ThreadPoolExecutor,
    ) -> None:
        self.incarnation = incarnation
        self._keys = keys
        self._publishers = tuple(publishers)
        self._recipe = recipe
        self._ranks = ranks

    @classmethod
    @contextmanager
    def start(cls, store: Store, keys: FamilyKeys, *, nonce: str, recipe: Recipe | None = None) -> Iterator[BuiltLife]:
        """Claim, and resume what may be resumed."""
        recipe = recipe or Recipe()
        incarnation = perform(store, claim(keys, nonce=nonce, host="builder"))
        decision = perform(store, decide(keys, incarnation, nonce=nonce, allow_fresh=True))
        publishers = [
            Publisher(
                store,
                keys,
                incarnation=incarnation,
                nonce=nonce,
                rank=rank,
                world_size=recipe.world_size,
                previous=decision.commit_digest,
                patience=PATIENCE,
                algorithms=recipe.algorithms,
            )
            for rank in range(recipe.world_size)
        ]
        with ThreadPoolExecutor(max_workers=recipe.world_size) as ranks:
            yield cls(keys, incarnation, publishers, recipe, ranks)

    def save(self, step: int) -> GenerationId:
        """Publish one generation, on every rank at once.

        Args:
            step: Completed optimizer steps; more than at the save before.
        """
        published = [
            self._ranks.submit(_save, publisher, self._keys.family, rank, step, self._recipe)
            for rank, publisher in enumerate(self._publishers)
        ]
        for future in published:
            future.result()
        return GenerationId(self.incarnation, step)


def build_job(family: str, step: int, recipe: Recipe) -> JobDescription:
    """A job description that is lawful and says something in every field."""
    present = [component for component in Component if component not in (*recipe.absent, Component.EMA)]
    return JobDescription(
        run=f"{family}-run",
        counters=(
            Counter(name="optimizer_step", value=step, names=CounterMeaning.COMPLETED),
            Counter(name="tokens", value=recipe.counter, names=CounterMeaning.NEXT),
        ),
        code="built by lastgood.testing",
        configuration="default recipe",
        environment=current_environment(),
        topology=Topology(world_size=recipe.world_size, strategy="built", layout={"data_parallel": recipe.world_size}),
        model=Identity(name="bytes", revision="1"),
        tokenizer=Identity(name="bytes", revision="1"),
        dataset=Identity(name="bytes", revision="1"),
        purpose=recipe.purpose,
        promises=tuple(ComponentPromise(component=component, determinism=Determinism.EXACT) for component in present),
        absent=tuple(
            AbsentComponent(component=component, reason="the recipe leaves it out") for component in recipe.absent
        ),
    )


def _save(publisher: Publisher, family: str, rank: int, step: int, recipe: Recipe) -> None:
    staging = publisher.stage(step)
    staged = []
    for artifact, content in _contents(family, rank, step, recipe):
        path = staging.payload / artifact.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        staged.append(artifact)
    publisher.publish(staging, staged, job=build_job(family, step, recipe), expectations=_expect(family, rank, step))


def _contents(family: str, rank: int, step: int, recipe: Recipe) -> Iterator[tuple[StagedArtifact, bytes]]:
    """What one rank writes: its own shards, and as rank 0 the whole job's files."""
    own = f"rank-{rank:05d}"
    files: list[tuple[str, Component, int | None, int]] = [
        (f"model/{own}.safetensors", Component.MODEL, rank, recipe.shard_bytes),
        (f"optimizer/{own}.safetensors", Component.OPTIMIZER, rank, 2 * recipe.shard_bytes),
        (f"rng/{own}.json", Component.RNG, rank, 512),
    ]
    if rank == 0:
        files += [
            ("scheduler.json", Component.SCHEDULER, None, 96),
            ("scaler.json", Component.SCALER, None, 64),
            ("data.json", Component.DATA, None, 128),
            ("config.json", Component.CONFIG, None, 160),
        ]
        files += [
            (f"extra/{number:05d}.bin", Component.OTHER, None, recipe.extra_bytes)
            for number in range(recipe.extra_artifacts)
        ]
    for name, component, owner, length in files:
        if component in recipe.absent:
            continue
        path = f"{recipe.prefix}/{name}" if recipe.prefix else name
        content = random.Random(f"{family} {step} {path}").randbytes(length)
        yield StagedArtifact(path=path, component=component, rank=owner), content


def _expect(family: str, rank: int, step: int) -> Expectations:
    draws = random.Random(f"{family} {step} {rank}")
    return Expectations(
        learning_rates={"default": 1e-3 / (1 + step)},
        optimizer_steps={"default": step},
        scalars={"scale": 65536.0},
        ranks=(
            RankExpectations(
                rank=rank,
                sample_ids=SampleIds(ids=tuple(range(rank, rank + 4))),
                rng_draws={"python": (draws.random(), draws.random())},
                tensor_digests={},
            ),
        ),
    )
