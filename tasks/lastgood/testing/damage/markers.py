"""Commit markers: deleted, torn, edited, of another generation, burned, out of their chain."""

from __future__ import annotations

import msgspec

from lastgood import documents
from lastgood.markers import Commit
from lastgood.reasons import Reason
from lastgood.testing.damage.catalogue import enter
from lastgood.testing.damage.scene import Scene

__all__: list[str] = []


@enter(Reason.COMMIT_MISSING)
def commit_deleted(scene: Scene) -> str:
    """The marker is gone: a publish that stopped before it looks exactly like this."""
    scene.commit_path.unlink()
    return scene.keys.commit(scene.generation)


@enter(Reason.COMMIT_MALFORMED)
def commit_emptied(scene: Scene) -> str:
    """A file system that flushed the name before the bytes left a marker of 0 bytes."""
    scene.commit_path.write_bytes(b"")
    return scene.keys.commit(scene.generation)


@enter(Reason.COMMIT_MALFORMED)
def commit_torn(scene: Scene) -> str:
    """Half of the marker reached the disk."""
    data = scene.commit_path.read_bytes()
    scene.commit_path.write_bytes(data[: len(data) // 2])
    return scene.keys.commit(scene.generation)


@enter(Reason.COMMIT_MALFORMED)
def commit_is_a_link(scene: Scene) -> str:
    """Somebody moved the marker and left a symbolic link."""
    moved = scene.attic / "commit"
    scene.commit_path.rename(moved)
    scene.commit_path.symlink_to(moved)
    return scene.keys.commit(scene.generation)


@enter(Reason.COMMIT_MALFORMED)
def commit_has_another_program_s_key(scene: Scene) -> str:
    """Another program added a key that nobody here knows."""
    data = scene.commit_path.read_bytes()
    scene.commit_path.write_bytes(data.replace(b"{", b'{"synced":true,', 1))
    return scene.keys.commit(scene.generation)


@enter(Reason.COMMIT_MISMATCH)
def commit_of_another_generation(scene: Scene) -> str:
    """The marker of the generation before was copied over this one's."""
    scene.commit_path.write_bytes(scene.path(scene.keys.commit(scene.older())).read_bytes())
    return scene.keys.commit(scene.generation)


@enter(Reason.COMMIT_MISMATCH)
def commit_names_another_manifest(scene: Scene) -> str:
    """The marker vouches for a manifest that is not the one that lies there."""
    scene.mark(manifest=f"blake3:{'0' * 64}")
    return scene.keys.manifest(scene.generation)


@enter(Reason.GENERATION_BURNED)
def slot_burned(scene: Scene) -> str:
    """The slot was abandoned on purpose before anything was committed under it."""
    scene.mark(manifest=None, previous=None, burned=True)
    return scene.keys.commit(scene.generation)


@enter(Reason.COMMIT_CHAIN_BROKEN)
def previous_commit_replaced(scene: Scene) -> str:
    """The marker of the generation before was written again, by another life."""
    path = scene.path(scene.keys.commit(scene.older()))
    marker = documents.parse(Commit, path.read_bytes(), "commit")
    path.write_bytes(documents.canonical_bytes(msgspec.structs.replace(marker, nonce="0" * 32)))
    return scene.keys.commit(scene.generation)


@enter(Reason.COMMIT_CHAIN_BROKEN)
def previous_commit_deleted(scene: Scene) -> str:
    """The marker of the generation before was deleted, so the one before that seems to precede this one."""
    scene.path(scene.keys.commit(scene.older())).unlink()
    return scene.keys.commit(scene.generation)


@enter(Reason.COMMIT_CHAIN_BROKEN)
def commit_claims_to_be_the_first(scene: Scene) -> str:
    """The marker says that nothing came before it, although its incarnation had committed."""
    scene.mark(previous=None)
    return scene.keys.commit(scene.generation)
