"""The private copy: exactly one generation, byte for byte, which an ordinary start discovers and nothing else."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from lastgood import documents
from lastgood.errors import StoreTransientError
from lastgood.family import Family
from lastgood.identity import GenerationId
from lastgood.location import Location
from lastgood.manifest import manifest_bytes, manifest_digest, parse_manifest
from lastgood.markers import Commit
from lastgood.protocol import choose, claim, decide, perform
from lastgood.restore.materialize import VERIFIED, Copy, make_copy, open_scratch
from lastgood.seal import Seal
from lastgood.stores import LocalStore
from lastgood.testing.build import BuiltFamily, Recipe, build_family, build_life
from lastgood.testing.damage import CATALOGUE, Damage, Judge, Scene
from lastgood.verdict import CheckState
from lastgood.verify import inspector, verify_generation

NONCE = "0123456789abcdef" * 2
SEAL = Seal(
    framework="transformers",
    version=None,
    layout="safetensors",
    step_from="what the checkpoint holds",
    world_size_from="stated: its arguments",
    listing="blake3:0",
    sealed_at=datetime(2026, 1, 31, tzinfo=UTC),
    by="somebody@somewhere",
)


def location_of(built: BuiltFamily, generation: GenerationId) -> Location:
    return Location(store=built.store, keys=built.keys, generation=generation)


def lives(root: Path) -> BuiltFamily:
    """Three lives of one run; the generations of the second are the interesting ones."""
    built = build_family(root, "fam", steps=(10, 20))
    return build_life(build_life(built, steps=(30, 40)), steps=(50,))


def start_in(copy: Copy) -> GenerationId | None:
    """What an ordinary start in the scratch family resumes."""
    store, keys = copy.location.store, copy.location.keys
    number = perform(store, claim(keys, nonce=NONCE, host="replica"))
    decision = perform(store, decide(keys, number, nonce=NONCE), inspect=inspector(store, keys))
    return decision.generation


@pytest.mark.parametrize("index", range(5))
def test_an_ordinary_start_in_the_copy_resumes_this_very_generation(tmp_path: Path, index: int) -> None:
    """Old or new, kept or cut off by a later life: what is copied is what the replica must find."""
    built = lives(tmp_path)
    generation = built.generations[index]
    with open_scratch(location_of(built, generation), None, keep=False, purpose="restore") as scratch:
        copy = make_copy(location_of(built, generation), scratch)
        assert copy.manifest is not None
        assert start_in(copy) == generation


def test_the_copy_holds_the_same_bytes_and_nothing_else(tmp_path: Path) -> None:
    """A neighbour's file in the copy could be loaded by a glob; another manifest would be another promise."""
    built = lives(tmp_path)
    generation = built.generations[2]
    location = location_of(built, generation)
    with open_scratch(location, None, keep=False, purpose="restore") as scratch:
        copy = make_copy(location, scratch)
        assert copy.manifest is not None
        keys = built.keys
        expected = {f"{keys.artifacts(generation)}/{artifact.path}" for artifact in copy.manifest.artifacts}
        expected |= {keys.manifest(generation), keys.commit(generation)}
        found = {str(path.relative_to(scratch.root)) for path in scratch.root.rglob("*") if path.is_file()}
        assert found == expected | {keys.claim(generation.incarnation), keys.resume(generation.incarnation)}
        for name in expected:
            assert (scratch.root / name).read_bytes() == (tmp_path / name).read_bytes()
        assert scratch.directory.stat().st_mode & 0o777 == 0o700
    assert not scratch.directory.exists()


def test_a_copy_says_what_it_read_and_for_how_long(tmp_path: Path) -> None:
    """Bandwidth decides how large a checkpoint may be restored every night; what was refused cost its reading too."""
    built = build_family(tmp_path, "fam", steps=(10,))
    location = location_of(built, built.newest)
    total = sum(path.stat().st_size for path in (tmp_path / built.keys.artifacts(built.newest)).rglob("*.*"))
    with open_scratch(location, None, keep=False, purpose="restore") as scratch:
        copy = make_copy(location, scratch)
        assert copy.read_bytes == total
        assert copy.read_seconds is not None
        assert 0 < copy.read_seconds < copy.seconds
    CATALOGUE["byte_flipped"].apply(Scene(root=tmp_path, family="fam", generation=built.newest, stranger="fam"))
    with open_scratch(location, None, keep=False, purpose="restore") as scratch:
        refused = make_copy(location, scratch)
        assert refused.manifest is None
        assert refused.read_bytes == total
    (tmp_path / built.keys.manifest(built.newest)).unlink()
    with open_scratch(location, None, keep=False, purpose="restore") as scratch:
        assert make_copy(location, scratch).read_seconds is None, "nothing was asked for"


def test_a_long_scratch_leaves_the_replica_a_short_home(tmp_path: Path) -> None:
    """Loader workers bind sockets in it, and the kernel takes 108 bytes of path: no checkpoint may fail for that."""
    built = build_family(tmp_path, "fam", steps=(10,))
    parent = tmp_path / ("deep" * 20) / ("deeper" * 20)
    parent.mkdir(parents=True)
    with open_scratch(location_of(built, built.newest), parent, keep=False, purpose="restore") as scratch:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(scratch.home / "listener-0123456789"))
        home = scratch.home
    assert not home.exists()


def test_a_foreign_generation_is_copied_where_its_own_name_leads(tmp_path: Path) -> None:
    """A sealed checkpoint of a framework lies under the framework's name, and its loader looks there."""
    built = build_family(tmp_path, "fam", steps=(10,))
    keys, own = built.keys, built.newest
    foreign = GenerationId(0, 10, "checkpoint-10")
    (tmp_path / keys.artifacts(own)).rename(tmp_path / keys.artifacts(foreign))
    manifest = parse_manifest((tmp_path / keys.manifest(own)).read_bytes(), "manifest")
    data = manifest_bytes(msgspec.structs.replace(manifest, generation=str(foreign), incarnation=0, seal=SEAL))
    marker = Commit(generation=str(foreign), manifest=manifest_digest(data), previous=None, nonce=NONCE)
    (tmp_path / keys.manifest(foreign)).write_bytes(data)
    (tmp_path / keys.commit(foreign)).write_bytes(documents.canonical_bytes(marker))
    location = location_of(built, foreign)
    with open_scratch(location, None, keep=False, purpose="restore") as scratch:
        copy = make_copy(location, scratch)
        assert copy.manifest is not None
        assert (scratch.root / "fam" / "checkpoint-10" / "scheduler.json").is_file()
        assert start_in(copy) == foreign


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> BuiltFamily:
    """A family with a stranger beside it, built once; each test damages a copy."""
    root = tmp_path_factory.mktemp("healthy")
    build_family(root, "other", steps=(12, 24, 36))
    return build_family(root, "fam", steps=(12, 24, 36))


STORED = [damage for damage in CATALOGUE.values() if damage.judge is Judge.GENERATION]
IN_THE_FAMILY = {"chain", "standing"}


@pytest.mark.parametrize("damage", STORED, ids=lambda damage: damage.name)
def test_every_fault_of_the_generation_is_refused_by_the_copy_as_tier_1_names_it(
    healthy: BuiltFamily, tmp_path: Path, damage: Damage
) -> None:
    """Verifying while copying must see what verifying sees; a fault that only one of them saw would reach a loader."""
    built = healthy.at(shutil.copytree(healthy.root, tmp_path / "root"))
    scene = Scene(root=built.root, family="fam", generation=built.newest, stranger="other")
    damage.apply(scene)
    location = location_of(built, built.newest)
    verified = verify_generation(built.store, built.keys, built.newest)
    expected = {
        finding.reason for check in verified.checks if check.name not in IN_THE_FAMILY for finding in check.findings
    }
    with open_scratch(location, None, keep=False, purpose="restore") as scratch:
        copy = make_copy(location, scratch)
        assert {finding.reason for check in copy.checks for finding in check.findings} == expected
        assert (copy.manifest is None) == bool(expected)


def test_progress_is_told_and_every_check_is_reported(tmp_path: Path) -> None:
    """A terabyte is copied for hours; whoever waits wants to see it move, and the record which checks were made."""
    built = build_family(tmp_path, "fam", steps=(10,), recipe=Recipe(world_size=4))
    told: list[int] = []
    location = location_of(built, built.newest)
    with open_scratch(location, None, keep=False, purpose="restore") as scratch:
        copy = make_copy(location, scratch, progress=told.append)
        assert copy.manifest is not None
        assert told == sorted(told)
        assert told[-1] == copy.manifest.total_bytes
        assert {check.name for check in copy.checks if check.state is CheckState.RAN} == set(VERIFIED)


def test_a_store_that_cannot_be_read_leaves_the_copy_undecided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that answers with an error says nothing about what was written there."""
    built = build_family(tmp_path, "fam", steps=(10,))

    def refuse(*_: object, **__: object) -> None:
        raise StoreTransientError("cannot fetch: input/output error")

    monkeypatch.setattr(LocalStore, "fetch", refuse)
    location = location_of(built, built.newest)
    with open_scratch(location, None, keep=False, purpose="restore") as scratch:
        copy = make_copy(location, scratch)
    digests = next(check for check in copy.checks if check.name == "digests")
    assert digests.state is CheckState.INCONCLUSIVE
    assert copy.manifest is None


def test_the_copy_is_offered_alone_even_from_a_quarantined_family(tmp_path: Path) -> None:
    """Why a generation failed is found by restoring it again; bars of production must not follow it."""
    built = build_family(tmp_path, "fam", steps=(10, 20))
    Family(location_of(built, built.newest)).quarantine(reason="a bad batch of disks", generation=built.newest)
    location = location_of(built, built.newest)
    with open_scratch(location, None, keep=False, purpose="restore") as scratch:
        copy = make_copy(location, scratch)
        choice = perform(copy.location.store, choose(copy.location.keys))
        assert choice.generation == built.newest
        assert os.listdir(scratch.root) == ["fam"]


def test_the_scratch_of_a_killed_gate_is_removed_by_the_next(tmp_path: Path) -> None:
    """Each holds a copy of a checkpoint, so a few killed restores would fill the disk; what is in use stays."""
    program = (
        "import sys, time; from pathlib import Path; from lastgood.restore.materialize import open_scratch\n"
        "with open_scratch(None, Path(sys.argv[1]), keep=False, purpose='restore') as place:\n"
        "    print(place.directory, flush=True); time.sleep(1000)\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    with open_scratch(None, tmp_path, keep=True, purpose="drill") as kept:
        (tmp_path / "lastgood-restore-of-somebody").mkdir()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as gate:
        assert gate.stdout is not None
        left = Path(gate.stdout.readline().strip())
        with open_scratch(None, tmp_path, keep=False, purpose="restore") as own:
            assert left.is_dir()
            assert own.directory.is_dir()
        gate.kill()
    with open_scratch(None, tmp_path, keep=False, purpose="drill"):
        assert not left.exists()
    assert {path.name for path in tmp_path.iterdir()} == {kept.directory.name, "lastgood-restore-of-somebody"}
