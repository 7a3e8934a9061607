"""Artifacts: missing, truncated, overwritten, exchanged, replaced by links and pipes, left over from something else."""

from __future__ import annotations

import os
import shutil

from lastgood.manifest import Component
from lastgood.reasons import Reason
from lastgood.testing.damage.catalogue import enter
from lastgood.testing.damage.scene import Scene

__all__: list[str] = []


@enter(Reason.SHARD_MISSING)
def shard_deleted(scene: Scene) -> str:
    """One rank's optimizer shard is gone."""
    artifact = scene.artifact(Component.OPTIMIZER, 1)
    scene.file(Component.OPTIMIZER, 1).unlink()
    return artifact.path


@enter(Reason.SHARD_MISSING)
def node_lost(scene: Scene) -> str:
    """Every file of one rank is gone: each node had kept its own."""
    for artifact in scene.manifest().artifacts:
        if artifact.rank == 1:
            (scene.directory / artifact.path).unlink()
    return scene.artifact(Component.MODEL, 1).path


@enter(Reason.SHARD_MISSING)
def shard_renamed_to_a_backup(scene: Scene) -> str:
    """Somebody put a shard aside under a name that no loader reads."""
    path = scene.file(Component.MODEL, 0)
    path.rename(path.with_name(f"{path.name}~"))
    return scene.artifact(Component.MODEL, 0).path


@enter(Reason.ARTIFACT_MISSING)
def scheduler_deleted(scene: Scene) -> str:
    """A file of the whole job is gone."""
    scene.file(Component.SCHEDULER).unlink()
    return scene.artifact(Component.SCHEDULER).path


@enter(Reason.ARTIFACT_MISSING)
def directory_deleted(scene: Scene) -> str:
    """A retention job removed the artifacts and left manifest and marker."""
    shutil.rmtree(scene.directory)
    return scene.keys.artifacts(scene.generation)


@enter(Reason.SIZE_MISMATCH)
def shard_truncated(scene: Scene) -> str:
    """The disk was full, or the copy broke off."""
    artifact = scene.artifact(Component.MODEL, 1)
    os.truncate(scene.file(Component.MODEL, 1), artifact.bytes - 1)
    return artifact.path


@enter(Reason.SIZE_MISMATCH)
def shard_emptied(scene: Scene) -> str:
    """A rename on a bucket's file system left an object of 0 bytes."""
    os.truncate(scene.file(Component.MODEL, 1), 0)
    return scene.artifact(Component.MODEL, 1).path


@enter(Reason.SIZE_MISMATCH)
def shard_appended(scene: Scene) -> str:
    """Something was written behind the end; many loaders would not notice."""
    with scene.file(Component.OPTIMIZER, 0).open("ab") as file:
        file.write(b"\0")
    return scene.artifact(Component.OPTIMIZER, 0).path


@enter(Reason.DIGEST_MISMATCH)
def byte_flipped(scene: Scene) -> str:
    """One bit in the middle of a shard changed."""
    path = scene.file(Component.MODEL, 0)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    return scene.artifact(Component.MODEL, 0).path


@enter(Reason.DIGEST_MISMATCH)
def head_zeroed(scene: Scene) -> str:
    """The first bytes of a shard read as zero: a lost part of an upload."""
    with scene.file(Component.OPTIMIZER, 1).open("r+b") as file:
        file.write(bytes(512))
    return scene.artifact(Component.OPTIMIZER, 1).path


@enter(Reason.DIGEST_MISMATCH)
def configuration_edited(scene: Scene) -> str:
    """A small file was edited in place without changing its length."""
    path = scene.file(Component.CONFIG)
    path.write_bytes(bytes(reversed(path.read_bytes())))
    return scene.artifact(Component.CONFIG).path


@enter(Reason.ARTIFACT_NOT_REGULAR)
def shard_is_a_link(scene: Scene) -> str:
    """A shard was moved away and a symbolic link left; what it leads to may change after the verification."""
    path = scene.file(Component.MODEL, 0)
    moved = scene.attic / "shard"
    path.rename(moved)
    path.symlink_to(moved)
    return scene.artifact(Component.MODEL, 0).path


@enter(Reason.ARTIFACT_NOT_REGULAR)
def shard_is_a_pipe(scene: Scene) -> str:
    """A pipe lies in the place of a shard; whoever opens it waits for ever."""
    path = scene.file(Component.MODEL, 0)
    path.unlink()
    os.mkfifo(path)
    return scene.artifact(Component.MODEL, 0).path


@enter(Reason.ARTIFACT_NOT_REGULAR)
def shard_is_a_directory(scene: Scene) -> str:
    """A directory lies in the place of a shard."""
    path = scene.file(Component.MODEL, 0)
    path.unlink()
    path.mkdir()
    return scene.artifact(Component.MODEL, 0).path


@enter(Reason.ARTIFACT_NOT_REGULAR)
def component_directory_is_a_link(scene: Scene) -> str:
    """A component's directory was moved away and a symbolic link left."""
    path = scene.file(Component.MODEL, 0).parent
    moved = scene.attic / "component"
    path.rename(moved)
    path.symlink_to(moved)
    return path.name


@enter(Reason.ARTIFACT_NOT_REGULAR)
def generation_directory_is_a_link(scene: Scene) -> str:
    """The whole generation was moved away and a symbolic link left."""
    moved = scene.attic / "generation"
    scene.directory.rename(moved)
    scene.directory.symlink_to(moved)
    return scene.keys.artifacts(scene.generation)


@enter(Reason.ARTIFACT_SWAPPED)
def rank_files_swapped(scene: Scene) -> str:
    """Two ranks' optimizer shards carry each other's names."""
    first, second = scene.file(Component.OPTIMIZER, 0), scene.file(Component.OPTIMIZER, 1)
    aside = scene.attic / "aside"
    first.rename(aside)
    second.rename(first)
    aside.rename(second)
    return scene.artifact(Component.OPTIMIZER, 1).path


@enter(Reason.ARTIFACT_SWAPPED)
def rank_file_overwritten_by_a_neighbour(scene: Scene) -> str:
    """One rank wrote its random state over another's after the commit."""
    shutil.copyfile(scene.file(Component.RNG, 0), scene.file(Component.RNG, 1))
    return scene.artifact(Component.RNG, 1).path


@enter(Reason.ARTIFACT_SWAPPED)
def file_of_another_component(scene: Scene) -> str:
    """A model shard lies in the place of an optimizer shard; not even its length fits."""
    shutil.copyfile(scene.file(Component.MODEL, 0), scene.file(Component.OPTIMIZER, 0))
    return scene.artifact(Component.OPTIMIZER, 0).path


@enter(Reason.FOREIGN_GENERATION_FILE)
def rank_file_of_an_older_generation(scene: Scene) -> str:
    """One rank's save failed, and its file is that of the generation before: two steps in one checkpoint."""
    artifact = scene.artifact(Component.OPTIMIZER, 1)
    shutil.copyfile(scene.same_file(artifact, scene.family, scene.older()), scene.directory / artifact.path)
    return artifact.path


@enter(Reason.FOREIGN_RUN_FILE)
def rank_file_of_another_run(scene: Scene) -> str:
    """A synchronisation brought one rank's file from another run's checkpoint of the same step."""
    artifact = scene.artifact(Component.MODEL, 1)
    shutil.copyfile(scene.same_file(artifact, scene.stranger, scene.generation), scene.directory / artifact.path)
    return artifact.path


@enter(Reason.UNEXPECTED_FILE)
def rank_file_left_from_a_larger_save(scene: Scene) -> str:
    """A reused directory still holds a higher rank's file, which a loader that globs would mix in."""
    path = scene.file(Component.MODEL, 1)
    extra = path.with_name(path.name.replace("00001", "00063"))
    shutil.copyfile(path, extra)
    return str(extra.relative_to(scene.directory))


@enter(Reason.UNEXPECTED_FILE)
def case_twin_left(scene: Scene) -> str:
    """A file whose name differs in case only: which of the two a loader opens depends on the file system."""
    path = scene.file(Component.SCHEDULER)
    twin = path.with_name(path.name.upper())
    shutil.copyfile(path, twin)
    return twin.name


@enter(Reason.UNEXPECTED_FILE)
def distributed_index_left(scene: Scene) -> str:
    """The hidden index of a distributed checkpoint that is not this one; its loader opens it by name."""
    (scene.directory / ".metadata").write_bytes(b"\x80\x02")
    return ".metadata"
