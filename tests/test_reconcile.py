"""What reconcile removes, what it must never touch, and which evidence it calls stale."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from lastgood import documents
from lastgood.config import Objectives
from lastgood.errors import FormatError, StorePermanentError
from lastgood.family import Family
from lastgood.identity import GenerationId
from lastgood.location import Location
from lastgood.markers import Commit
from lastgood.protocol import claim, perform
from lastgood.publish import Publisher, StagedArtifact
from lastgood.reconcile import Stale, Tidied, find_stale, sweep, tidy
from lastgood.records import Measurements
from lastgood.stores import LocalStore
from lastgood.testing.build import BuiltFamily, Recipe, build_family, build_job, build_life
from lastgood.verdict import Check, CheckState, Outcome, Rung, Tier, judge
from lastgood.verify import verify_family
from tests.crash.filesystems import Killed, KillingFileSystem

NONCE = "f" * 32
LATER = datetime.now(UTC) + timedelta(days=30)
SOON = datetime.now(UTC)


class DyingStore(LocalStore):
    """The store of a process that dies as it creates a key with this in its name."""

    dies_at = "/commits/"

    def create(self, key: str, data: bytes) -> bool:
        if self.dies_at in key:
            raise Killed
        return super().create(key, data)


@pytest.fixture
def built(tmp_path: Path) -> BuiltFamily:
    return build_family(tmp_path, "llm-7b", recipe=Recipe(world_size=1))


def die_publishing(built: BuiltFamily, step: int, *, incarnation: int = 1, dies_at: str = "/commits/") -> GenerationId:
    """A publish of that life that went as far as the key and no further."""
    store = DyingStore(built.root)
    store.dies_at = dies_at
    publisher = Publisher(store, built.keys, incarnation=incarnation, nonce=NONCE, rank=0, world_size=1, previous=None)
    staging = publisher.stage(step)
    artifacts = []
    for promise in build_job(built.family, step, Recipe(world_size=1)).promises:
        (staging.payload / promise.component.value).write_bytes(b"state")
        artifacts.append(StagedArtifact(path=promise.component.value, component=promise.component, rank=0))
    with pytest.raises(Killed):
        publisher.publish(staging, artifacts, job=build_job(built.family, step, Recipe(world_size=1)))
    return staging.generation


def location_of(built: BuiltFamily) -> Location:
    return Location(store=built.store, keys=built.keys, generation=None)


def commit_of(built: BuiltFamily, generation: GenerationId) -> Commit | None:
    data = built.store.get(built.keys.commit(generation), limit_bytes=2**16)
    return documents.parse(Commit, data, "commit") if data is not None else None


def tree(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*")}


@pytest.mark.parametrize("dies_at", ["/receipts/", "/manifests/", "/commits/"])
def test_a_dead_publish_of_a_cut_life_is_burned_and_then_removed(built: BuiltFamily, dies_at: str) -> None:
    """However far it came, nobody can finish it; the burned COMMIT stays as the evidence that it was begun."""
    dead = die_publishing(built, 48, dies_at=dies_at)
    built = build_life(built, steps=[60], recipe=Recipe(world_size=1))
    tidied = tidy(location_of(built), now=LATER)
    assert tidied.errors == ()
    assert tidied.burned == (dead,)
    marker = commit_of(built, dead)
    assert marker is not None
    assert marker.burned
    assert not (built.root / built.keys.artifacts(dead)).exists()
    assert [name for name in os.listdir(built.root / built.keys.staging) if name.startswith(str(dead))] == []
    assert Family(location_of(built)).latest().generation == built.newest
    assert verify_family(built.store, built.keys).outcome is Outcome.PASS
    assert tidy(location_of(built), now=LATER) == Tidied()


def test_the_living_life_is_never_touched(built: BuiltFamily) -> None:
    """A rank may pause for a week and come back: as long as no newer start decided, its publish may still succeed."""
    dead = die_publishing(built, 48)
    before = tree(built.root)
    swept = sweep(location_of(built), now=LATER)
    assert (swept.burned, swept.errors) == ((), ())
    assert tree(built.root) == before
    assert commit_of(built, dead) is None


def test_a_claim_that_decided_nothing_gives_up_no_publish(built: BuiltFamily) -> None:
    """Until a decision says what it keeps of the older life, a slot burned there could move it."""
    dead = die_publishing(built, 48)
    perform(built.store, claim(built.keys, nonce="e" * 32, host="started-and-died"))
    assert sweep(location_of(built), now=LATER).burned == ()
    assert commit_of(built, dead) is None


def test_what_changed_of_late_is_left_alone(built: BuiltFamily) -> None:
    """An orphan that still writes would only fail in a stranger way if its files vanished under it."""
    die_publishing(built, 48)
    built = build_life(built, steps=[60], recipe=Recipe(world_size=1))
    before = tree(built.root)
    assert sweep(location_of(built), now=SOON).burned == ()
    assert tree(built.root) == before


def test_a_committed_generation_of_a_cut_life_loses_its_staging_only(built: BuiltFamily) -> None:
    """What is fenced is audit, and perhaps what a rollback needs tomorrow."""
    built = build_life(built, steps=[60], recipe=Recipe(world_size=1))
    held = {one: tree(built.root / built.keys.artifacts(one)) for one in built.generations}
    markers = {one: commit_of(built, one) for one in built.generations}
    swept = sweep(location_of(built), now=LATER)
    assert swept.burned == ()
    assert all(key.startswith(built.keys.staging) for key in swept.removed)
    assert swept.removed != ()
    assert {one: tree(built.root / built.keys.artifacts(one)) for one in built.generations} == held
    assert {one: commit_of(built, one) for one in built.generations} == markers


def test_a_publisher_that_comes_back_finds_its_slot_taken(built: BuiltFamily) -> None:
    """Deleting first would let it commit a generation that is being deleted."""
    dead = die_publishing(built, 48)
    built = build_life(built, steps=[60], recipe=Recipe(world_size=1))
    sweep(location_of(built), now=LATER)
    late = documents.canonical_bytes(
        Commit(generation=str(dead), manifest=f"blake3:{'0' * 64}", previous=None, nonce=NONCE)
    )
    assert built.store.create(built.keys.commit(dead), late) is False
    assert Family(location_of(built)).latest().generation == built.newest


def test_a_stranger_s_directory_is_not_ours_to_remove(built: BuiltFamily) -> None:
    """A copy of a generation under way has neither manifest nor staging; nor has another framework's checkpoint."""
    built = build_life(built, steps=[60], recipe=Recipe(world_size=1))
    for name in ("00000001-0000000000000099", "checkpoint-500"):
        (built.root / built.family / name).mkdir()
        (built.root / built.family / name / "state.bin").write_bytes(b"somebody's")
    swept = sweep(location_of(built), now=LATER)
    assert swept.burned == ()
    assert (built.root / built.family / "00000001-0000000000000099" / "state.bin").exists()
    assert (built.root / built.family / "checkpoint-500" / "state.bin").exists()


def test_names_that_a_kill_left_half_made_are_swept_and_the_lock_is_not(built: BuiltFamily) -> None:
    """They are never listed, so nobody else would ever remove them."""
    ours = built.root / built.keys.ours
    left = [built.root / built.family / ".tmp-tree", ours / "commits" / ".tmp-0123", ours / ".tmp-4567"]
    left[0].mkdir()
    (left[0] / "shard").write_bytes(b"half removed")
    for path in left[1:]:
        path.write_bytes(b"half a document")
    (ours / ".tmp-lock").touch()
    payload = ours / "staging" / "00000001-0000000000000048~ffffffff" / "payload"
    payload.mkdir(parents=True)
    (payload / ".tmp-user").write_bytes(b"a file of the trainer's")
    assert sweep(location_of(built), now=SOON).removed == ()
    swept = sweep(location_of(built), now=LATER)
    assert {built.root / key for key in swept.removed} == set(left)
    assert not any(path.exists() for path in left)
    assert (ours / ".tmp-lock").exists()
    assert (payload / ".tmp-user").exists()


def test_a_sweep_killed_anywhere_is_taken_up_again(built: BuiltFamily, tmp_path: Path) -> None:
    """A kill between burning and deleting must neither offer what is half gone nor leave it for ever."""
    dead = die_publishing(built, 48)
    built = build_life(built, steps=[60], recipe=Recipe(world_size=1))
    kills = 0
    for kill_at in range(1, 200):
        copy = built.at(tmp_path / str(kill_at))
        shutil.copytree(built.root / built.family, copy.root / built.family)
        files = KillingFileSystem(kill_at)
        with contextlib.suppress(Killed):
            sweep(Location(store=LocalStore(copy.root, files), keys=built.keys, generation=None), now=LATER)
        assert Family(location_of(copy)).latest().generation == built.newest
        again = sweep(location_of(copy), now=LATER)
        assert again.errors == ()
        marker = commit_of(copy, dead)
        assert marker is not None
        assert marker.burned
        assert not (copy.root / built.keys.artifacts(dead)).exists()
        assert not [path for path in copy.root.rglob(".tmp-*") if path.name != ".tmp-lock"]
        shutil.rmtree(copy.root)
        if files.killed_in is None:
            break
        kills += 1
    assert kills > 10


def test_what_cannot_be_removed_is_said_and_keeps_nobody_from_the_rest(
    built: BuiltFamily, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Generations may lie where we may only read; everything of ours lies elsewhere and is tidied all the same."""
    first, second = die_publishing(built, 48), die_publishing(built, 50)
    built = build_life(built, steps=[60], recipe=Recipe(world_size=1))
    discard = LocalStore.discard

    def denied(self: LocalStore, prefix: str) -> None:
        if prefix == built.keys.artifacts(first):
            raise StorePermanentError(f"cannot discard {prefix}: permission denied")
        discard(self, prefix)

    monkeypatch.setattr(LocalStore, "discard", denied)
    swept = sweep(location_of(built), now=LATER)
    assert [str(error) for error in swept.errors] == [
        f"cannot discard {built.keys.artifacts(first)}: permission denied"
    ]
    assert not (built.root / built.keys.artifacts(second)).exists()


def test_a_family_whose_decision_is_unlawful_is_not_tidied(built: BuiltFamily) -> None:
    """Nothing says any more which life is cut, so nothing may go."""
    die_publishing(built, 48)
    built = build_life(built, steps=[60], recipe=Recipe(world_size=1))
    (built.root / built.keys.resume(2)).write_bytes(b"{}")
    before = tree(built.root)
    with pytest.raises(FormatError):
        tidy(location_of(built), now=LATER)
    assert tree(built.root) == before


def test_a_burned_slot_is_nothing_to_judge(built: BuiltFamily) -> None:
    """A gate that judged it would fail for ever over a publish that was given up on purpose."""
    dead = die_publishing(built, 48)
    built = build_life(built, steps=[60], recipe=Recipe(world_size=1))
    sweep(location_of(built), now=LATER)
    family = Family(location_of(built))
    assert family.is_burned(dead)
    assert dead not in family.unjudged()
    assert set(family.unjudged()) == set(built.generations)


# ---- stale evidence


def passed(family: Family, generation: GenerationId, tier: Tier, *, rung: Rung = Rung.FULL) -> None:
    check = Check(name="resumes", state=CheckState.RAN, detail="it did")
    subject = f"{family.location.keys.family}/{generation}"
    verdict = judge(tier=tier, rung=rung, subject=subject, checks=[check], required=["resumes"])
    family.keep(verdict, generation, datetime.now(UTC), Measurements())


def tiers(stale: tuple[Stale, ...]) -> list[Tier]:
    return [one.tier for one in stale]


def all_three(family: Family, generation: GenerationId) -> None:
    for tier in Tier:
        passed(family, generation, tier)


def test_a_new_save_owes_no_evidence_yet(built: BuiltFamily) -> None:
    """A family is not an alarm in the minute of its first save."""
    assert find_stale(Family(location_of(built)), Objectives()) == ()


def test_a_family_without_a_save_owes_none(tmp_path: Path) -> None:
    """Nothing was promised of what does not exist; the report says that nothing was saved."""
    family = Family(
        Location(
            store=LocalStore(tmp_path),
            keys=BuiltFamily(root=tmp_path, family="x", generations=()).keys,
            generation=None,
        )
    )
    assert find_stale(family, Objectives(), now=LATER) == ()


def test_a_gate_that_never_ran_is_an_alarm(built: BuiltFamily) -> None:
    """What was never proven is as stale as what was proven long ago."""
    stale = find_stale(Family(location_of(built)), Objectives(), now=LATER)
    assert tiers(stale) == [Tier.MANIFEST, Tier.RESTORE, Tier.DRILL]
    assert "3 without a conclusive verdict" in stale[0].message
    assert "none has passed since the first save" in stale[1].message


@pytest.mark.parametrize("tier", list(Tier))
def test_each_tier_grows_stale_by_its_own_objective(built: BuiltFamily, tier: Tier) -> None:
    """Of three gates the one that stopped is named, and no other."""
    family = Family(location_of(built))
    for generation in built.generations:
        passed(family, generation, Tier.MANIFEST)
    all_three(family, built.newest)
    long = 10 * 365 * 86_400.0 / 100
    limits = {Tier.RESTORE: long, Tier.DRILL: long} | ({tier: 60.0} if tier is not Tier.MANIFEST else {})
    objectives = Objectives(restore_age_seconds=limits[Tier.RESTORE], drill_age_seconds=limits[Tier.DRILL])
    if tier is Tier.MANIFEST:
        build_life(built, steps=[48], recipe=Recipe(world_size=1))
    assert tiers(find_stale(family, objectives, now=LATER)) == [tier]
    assert find_stale(family, objectives, now=SOON + timedelta(seconds=30)) == ()


@pytest.mark.parametrize(
    "spoil",
    [
        lambda family, newest: passed(family, newest, Tier.RESTORE, rung=Rung.LOAD_ONLY),
        lambda family, newest: None,
    ],
    ids=["a weaker rung", "nothing"],
)
def test_only_a_full_pass_is_fresh_evidence(built: BuiltFamily, spoil: Callable[[Family, GenerationId], None]) -> None:
    """A load without a step, or a gate that could not tell, must not keep the alarm quiet."""
    family = Family(location_of(built))
    for generation in built.generations:
        passed(family, generation, Tier.MANIFEST)
    passed(family, built.newest, Tier.DRILL)
    spoil(family, built.newest)
    objectives = Objectives(restore_age_seconds=60.0, drill_age_seconds=9_000_000.0)
    assert tiers(find_stale(family, objectives, now=LATER)) == [Tier.RESTORE]


def test_a_restore_of_an_older_generation_counts(built: BuiltFamily) -> None:
    """The rotation restores old ones, too; the newest generation is not the newest evidence."""
    family = Family(location_of(built))
    for generation in built.generations:
        passed(family, generation, Tier.MANIFEST)
    passed(family, built.generations[0], Tier.RESTORE)
    passed(family, built.newest, Tier.DRILL)
    objectives = Objectives(restore_age_seconds=3_600.0, drill_age_seconds=3_600.0)
    assert find_stale(family, objectives, now=SOON + timedelta(minutes=30)) == ()
