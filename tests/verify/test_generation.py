"""Tier 1 of one generation: healthy ones pass, trouble of the store is never a verdict, everything is named."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from lastgood.checks import GENERATION_CHECKS
from lastgood.digest import Algorithm, Digest, HashRequest, hash_bytes
from lastgood.errors import StoreError, StoreTransientError, UsageError
from lastgood.identity import GenerationId
from lastgood.manifest import Component
from lastgood.protocol import choose, perform
from lastgood.reasons import NoteReason, Reason
from lastgood.records import keep_verdict
from lastgood.stores import LocalStore
from lastgood.stores.port import Hashed, Progress, StoredObject, Trouble
from lastgood.testing.build import BuiltFamily, Recipe, build_family, build_life
from lastgood.testing.damage import CATALOGUE, Scene
from lastgood.verdict import Check, Outcome, Rung, Verdict
from lastgood.verify import Depth, inspector, render_verdict, verify_generation


def check(verdict: Verdict, name: str) -> Check:
    return next(check for check in verdict.checks if check.name == name)


class TroubledStore(LocalStore):
    """A local store whose medium fails for some keys or some operations."""

    def __init__(self, root: Path, *, unreadable: str = "", failing: frozenset[str] = frozenset()) -> None:
        super().__init__(root)
        self.unreadable = unreadable
        self.failing = failing

    def _fail(self, operation: str) -> None:
        if operation in self.failing:
            raise StoreTransientError(f"cannot {operation}: no reply")

    def get(self, key: str, *, limit_bytes: int) -> bytes | None:
        self._fail("get manifest" if "/manifests/" in key else "get commit" if "/commits/" in key else "get")
        return super().get(key, limit_bytes=limit_bytes)

    def walk(self, prefix: str) -> Iterator[StoredObject]:
        self._fail("walk")
        return super().walk(prefix)

    def hash(self, prefix: str, requests: Sequence[HashRequest], progress: Progress | None = None) -> Iterator[Hashed]:
        self._fail("hash")
        for hashed in super().hash(prefix, requests, progress):
            if hashed.path == self.unreadable:
                yield Hashed(path=hashed.path, bytes=None, trouble=Trouble.UNREADABLE, message="input/output error")
            else:
                yield hashed


class BreakingStore(LocalStore):
    """A store that goes away while the last of many artifacts is read."""

    def hash(self, prefix: str, requests: Sequence[HashRequest], progress: Progress | None = None) -> Iterator[Hashed]:
        yield from super().hash(prefix, requests[:-1] or requests, progress)
        if len(requests) > 1:
            raise StoreTransientError("cannot read: no reply")


class FlippingStore(LocalStore):
    """A store whose first reading of one artifact is wrong."""

    flipped = False

    def hash(self, prefix: str, requests: Sequence[HashRequest], progress: Progress | None = None) -> Iterator[Hashed]:
        for found in super().hash(prefix, requests, progress):
            if found.path == "data.json" and not self.flipped:
                self.flipped = True
                yield replace(found, digests=tuple(hash_bytes(b"", digest.algorithm) for digest in found.digests))
            else:
                yield found


class ShortListingStore(LocalStore):
    """A store whose listing lacks objects that are there, as an eventually consistent one may answer."""

    def walk(self, prefix: str) -> Iterator[StoredObject]:
        return (stored for stored in super().walk(prefix) if "rank-00001" not in stored.key)


@pytest.mark.parametrize(
    "recipe",
    [
        Recipe(world_size=1),
        Recipe(world_size=16),
        Recipe(counter=2**63 - 1),
        Recipe(prefix="Größe/重み/チェック"),
        Recipe(extra_artifacts=4096 - 7, world_size=1),
        Recipe(absent=(Component.SCALER,)),
        Recipe(algorithms=(Algorithm.SHA256,)),
        Recipe(algorithms=(Algorithm.BLAKE3, Algorithm.SHA256)),
        Recipe(shard_bytes=0, world_size=1),
    ],
    ids=["one rank", "16 ranks", "64-bit counter", "Unicode", "4096 files", "absent", "SHA-256", "both", "empty file"],
)
def test_a_healthy_generation_passes_every_check(tmp_path: Path, recipe: Recipe) -> None:
    """A verifier that rejects good checkpoints is an outage too, whatever their shape."""
    built = build_family(tmp_path, "llm-7b", steps=(12, 24), recipe=recipe)
    verdict = verify_generation(built.store, built.keys, built.newest)
    assert verdict.findings == ()
    assert [(c.name, c.outcome) for c in verdict.checks] == [(name, Outcome.PASS) for name in GENERATION_CHECKS]
    assert (verdict.outcome, verdict.rung) == (Outcome.PASS, Rung.FULL)
    assert {note.reason for note in verdict.notes} <= {NoteReason.COMPONENT_ABSENT_ON_PURPOSE}
    steps = choose(built.keys)
    assert perform(built.store, steps, inspect=inspector(built.store, built.keys)).generation == built.newest


def test_the_seeds_example_has_52_artifacts(tmp_path: Path) -> None:
    """16 ranks give 16 model, optimizer and random-state files, and one of each other kind; all are verified."""
    built = build_family(tmp_path, "llm-7b", steps=(48_000,), recipe=Recipe(world_size=16))
    verdict = verify_generation(built.store, built.keys, built.newest)
    assert check(verdict, "completeness").detail == "52 of 52 artifacts"
    assert check(verdict, "digests").detail.startswith("52 of 52 artifacts")


def test_every_later_life_of_a_run_is_healthy(tmp_path: Path) -> None:
    """The first save after a resume follows the marker that it resumed, across incarnations."""
    built = build_family(tmp_path, "llm-7b", steps=(12, 24))
    built = build_life(built, steps=(36, 48))
    built = build_life(built, steps=(60,))
    verdicts = [verify_generation(built.store, built.keys, generation) for generation in built.generations]
    assert [verdict.outcome for verdict in verdicts] == [Outcome.PASS] * 5


@pytest.mark.parametrize(
    "name", [".nfs000000000012", ".DS_Store", "model/._rank-00000.safetensors", "notes.txt~", "a/.cache/x", "Thumbs.db"]
)
def test_a_stray_file_that_no_loader_reads_is_a_note(healthy: BuiltFamily, name: str) -> None:
    """File servers, desktops and editors leave files behind; refusing a checkpoint for them would be a false alarm."""
    path = healthy.root / healthy.keys.artifacts(healthy.newest) / name
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_bytes(b"stray")
    verdict = verify_generation(healthy.store, healthy.keys, healthy.newest)
    assert (verdict.outcome, verdict.findings) == (Outcome.PASS, ())
    assert [(note.reason, note.offender) for note in verdict.notes] == [(NoteReason.STRAY_FILE, name)]


@pytest.mark.parametrize("name", ["model/rank-00002.safetensors", "data.bin", "model/old/shard.pt", ".metadata"])
def test_a_file_that_a_loader_could_read_is_refused(healthy: BuiltFamily, name: str) -> None:
    """Loaders glob, and torch's distributed loader opens its hidden index by name."""
    path = healthy.root / healthy.keys.artifacts(healthy.newest) / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"extra")
    verdict = verify_generation(healthy.store, healthy.keys, healthy.newest)
    assert [(f.reason, f.offender) for f in verdict.findings] == [(Reason.UNEXPECTED_FILE, name)]


def test_all_faults_are_collected_and_named(scene: Scene) -> None:
    """People mend everything at once only if the first fault does not hide the others."""
    names = (
        "shard_deleted",
        "byte_flipped",
        "scheduler_deleted",
        "distributed_index_left",
        "generation_refused_before",
    )
    offenders = {CATALOGUE[name].apply(scene) for name in names}
    verdict = verify_generation(scene.store, scene.keys, scene.generation)
    assert {finding.reason for finding in verdict.findings} == {CATALOGUE[name].reason for name in names}
    assert {finding.offender for finding in verdict.findings} == offenders


def test_metadata_depth_reads_no_payload_and_says_so(healthy: BuiltFamily, scene: Scene) -> None:
    """A verdict that says less must not look like one that says more."""
    CATALOGUE["byte_flipped"].apply(scene)
    verdict = verify_generation(scene.store, scene.keys, scene.generation, depth=Depth.METADATA)
    assert (verdict.outcome, verdict.rung) == (Outcome.PASS, Rung.METADATA_ONLY)
    assert check(verdict, "digests").outcome is Outcome.NOT_RUN


@pytest.mark.parametrize(
    ("failing", "inconclusive"),
    [
        ("get commit", {"commit", "chain"}),
        ("get manifest", {"manifest", "identity"}),
        ("walk", {"completeness", "sizes", "unexpected_files", "digests"}),
        ("hash", {"digests"}),
        ("get", {"standing"}),
    ],
)
def test_trouble_of_the_store_is_inconclusive(healthy: BuiltFamily, failing: str, inconclusive: set[str]) -> None:
    """A network that does not answer says nothing about a checkpoint, neither good nor bad."""
    store = TroubledStore(healthy.root, failing=frozenset({failing}))
    verdict = verify_generation(store, healthy.keys, healthy.newest)
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert verdict.findings == ()
    found = {c.name for c in verdict.checks if c.outcome is Outcome.INCONCLUSIVE}
    assert found <= inconclusive
    assert found


def test_one_unreadable_artifact_is_inconclusive_and_named(healthy: BuiltFamily) -> None:
    """A disk that cannot read a file does not prove that the checkpoint is damaged; a pass would be worse."""
    store = TroubledStore(healthy.root, unreadable="data.json")
    verdict = verify_generation(store, healthy.keys, healthy.newest)
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert "data.json: input/output error" in check(verdict, "digests").detail


def test_a_fail_dominates_an_unreadable_artifact(scene: Scene) -> None:
    """What was read and is wrong stays wrong, whatever could not be read beside it."""
    offender = CATALOGUE["byte_flipped"].apply(scene)
    verdict = verify_generation(TroubledStore(scene.root, unreadable="data.json"), scene.keys, scene.generation)
    assert verdict.outcome is Outcome.FAIL
    assert [finding.offender for finding in verdict.findings] == [offender]


def test_what_was_found_before_the_store_failed_stays_found(scene: Scene) -> None:
    """A connection that breaks in the middle of a terabyte must not take the damage seen so far with it."""
    offender = CATALOGUE["byte_flipped"].apply(scene)
    verdict = verify_generation(BreakingStore(scene.root), scene.keys, scene.generation)
    assert verdict.outcome is Outcome.FAIL
    assert [finding.offender for finding in verdict.findings] == [offender]
    assert "no reply" in check(verdict, "digests").detail


def test_wrong_bytes_that_are_read_once_fail_nothing(healthy: BuiltFamily) -> None:
    """What a network or a memory flipped on the way is not what is stored: asking again decides."""
    store = FlippingStore(healthy.root)
    troubles: list[StoreError] = []
    verdict = verify_generation(store, healthy.keys, healthy.newest, trouble=troubles.append)
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert verdict.findings == ()
    assert "data.json: two readings gave different bytes" in check(verdict, "digests").detail
    assert [type(trouble) for trouble in troubles] == [StoreTransientError]
    assert verify_generation(store, healthy.keys, healthy.newest).outcome is Outcome.PASS


def test_a_listing_never_proves_absence(healthy: BuiltFamily) -> None:
    """Buckets may list late; an artifact that answers to its name is there."""
    store = ShortListingStore(healthy.root)
    assert verify_generation(store, healthy.keys, healthy.newest).outcome is Outcome.PASS


def test_a_missing_root_is_not_a_damaged_checkpoint(healthy: BuiltFamily) -> None:
    """An unmounted file system must not bar every generation on it."""
    verdict = verify_generation(LocalStore(healthy.root / "absent"), healthy.keys, healthy.newest)
    assert (verdict.outcome, verdict.findings) == (Outcome.INCONCLUSIVE, ())


def test_a_name_that_was_never_published_is_a_usage_error(healthy: BuiltFamily) -> None:
    """A typing error is not evidence, and must not leave a record that looks like it."""
    with pytest.raises(UsageError, match="no such generation"):
        verify_generation(healthy.store, healthy.keys, GenerationId(7, 7))


def test_an_unfinished_publish_is_refused_but_blames_nobody(scene: Scene) -> None:
    """A verification may meet a publish between its directory and its marker; that must never bar the generation."""
    CATALOGUE["commit_deleted"].apply(scene)
    verdict = verify_generation(scene.store, scene.keys, scene.generation)
    assert check(verdict, "digests").outcome is Outcome.PASS
    assert not any(finding.reason.blames_checkpoint for finding in verdict.findings)


def test_ranks_may_share_a_random_state_if_their_draws_were_the_same(healthy: BuiltFamily, scene: Scene) -> None:
    """Tensor-parallel ranks draw alike on purpose: equal bytes are a fault only where the live streams differed."""
    CATALOGUE["every_rank_saved_rank_zero"].apply(scene)
    manifest = scene.manifest()
    assert manifest.expectations is not None
    first, second = manifest.expectations.ranks
    same = msgspec.structs.replace(second, rng_draws=first.rng_draws)
    scene.publish_again(expectations=msgspec.structs.replace(manifest.expectations, ranks=(first, same)))
    assert verify_generation(scene.store, scene.keys, scene.generation).outcome is Outcome.PASS


def test_only_composite_digests_never_pass(scene: Scene) -> None:
    """A digest over digests of parts cannot be recomputed from bytes alone, so such a file was not verified."""
    manifest = scene.manifest()
    composite = tuple(
        msgspec.structs.replace(a, digests=(Digest(algorithm=Algorithm.SHA256, value="0" * 64, part_bytes=2**20),))
        if a.path == "data.json"
        else a
        for a in manifest.artifacts
    )
    scene.publish_again(artifacts=composite)
    verdict = verify_generation(scene.store, scene.keys, scene.generation)
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert "data.json" in check(verdict, "digests").detail


def test_progress_tells_every_byte(healthy: BuiltFamily) -> None:
    """A bar that stops short of the end looks like a hang."""
    told: list[int] = []
    verify_generation(healthy.store, healthy.keys, healthy.newest, progress=told.append)
    manifest = Scene(root=healthy.root, family="llm-7b", generation=healthy.newest, stranger="llm-13b").manifest()
    assert told == sorted(told)
    assert told[-1] == manifest.total_bytes


def test_wrong_bytes_of_unknown_origin_keep_their_plain_name_when_neighbours_cannot_be_read(scene: Scene) -> None:
    """A torn manifest elsewhere may cost the origin's name, never the verdict."""
    offender = CATALOGUE["rank_file_of_an_older_generation"].apply(scene)
    for back in (1, 2):
        scene.path(scene.keys.manifest(scene.older(back))).write_bytes(b"{")
    verdict = verify_generation(scene.store, scene.keys, scene.generation)
    assert [(f.reason, f.offender) for f in verdict.findings] == [(Reason.DIGEST_MISMATCH, offender)]


def test_a_file_of_another_length_from_another_generation_is_named_as_that(tmp_path: Path) -> None:
    """Rank files of two saves differ in length more often than not, and are still a mixed checkpoint."""
    built = build_family(tmp_path, "llm-7b", steps=(12,), recipe=Recipe(shard_bytes=4096))
    built = build_life(built, steps=(24,), recipe=Recipe(shard_bytes=5000))
    older, newer = (built.root / built.keys.artifacts(generation) for generation in built.generations)
    shutil.copyfile(older / "model/rank-00001.safetensors", newer / "model/rank-00001.safetensors")
    verdict = verify_generation(built.store, built.keys, built.newest)
    assert [(f.reason, f.offender) for f in verdict.findings] == [
        (Reason.FOREIGN_GENERATION_FILE, "model/rank-00001.safetensors")
    ]
    assert str(built.generations[0]) in verdict.findings[0].message


def test_a_name_that_is_no_text_is_refused_and_can_be_recorded(healthy: BuiltFamily) -> None:
    """File systems hold names that no document can; one of them must not crash the gate or its record."""
    directory = healthy.root / healthy.keys.artifacts(healthy.newest)
    with open(os.fsencode(directory) + b"/model/\xff.bin", "wb"):
        pass
    (directory / "new\nline").mkdir()
    verdict = verify_generation(healthy.store, healthy.keys, healthy.newest)
    assert {(f.reason, f.offender) for f in verdict.findings} == {
        (Reason.UNEXPECTED_FILE, "model/\\xff.bin"),
        (Reason.UNEXPECTED_FILE, "new\nline"),
    }
    assert len(render_verdict(verdict).splitlines()) == 1 + len(GENERATION_CHECKS) + 3
    assert keep_verdict(healthy.store, healthy.keys, verdict, generation=healthy.newest).is_new


def test_a_directory_with_too_many_files_is_refused_without_reading_them_all(
    healthy: BuiltFamily, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was not looked at cannot be called harmless."""
    for module in ("reading", "checks"):
        monkeypatch.setattr(f"lastgood.verify.{module}.MAXIMUM_EXTRA_FILES", 20)
    cache = healthy.root / healthy.keys.artifacts(healthy.newest) / ".cache"
    cache.mkdir()
    for number in range(30):
        (cache / str(number)).touch()
    verdict = verify_generation(healthy.store, healthy.keys, healthy.newest)
    assert [(f.reason, f.offender) for f in verdict.findings] == [(Reason.UNEXPECTED_FILE, ".")]
    assert check(verdict, "digests").outcome is Outcome.PASS
