"""What a family says around its generations: pointers, names, decisions, takeovers and refusals."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec

from lastgood import documents
from lastgood.identity import GenerationId
from lastgood.markers import (
    ActivePointer,
    Claim,
    GenerationPointer,
    QuarantineNotice,
    Refusal,
    ResumeRecord,
)
from lastgood.protocol.commits import commit_digest
from lastgood.reasons import Reason
from lastgood.testing.damage.catalogue import Judge, enter
from lastgood.testing.damage.scene import Scene

__all__: list[str] = []


def _point(scene: Scene, generation: GenerationId) -> str:
    """Let the active pointer name a committed generation, as its publisher would have."""
    digest = commit_digest(scene.path(scene.keys.commit(generation)).read_bytes())
    pointer = ActivePointer(generation=str(generation), commit=digest)
    scene.active_path.write_bytes(documents.canonical_bytes(pointer))
    return scene.keys.active(scene.generation.incarnation)


@enter(Reason.POINTER_STALE, Judge.FAMILY)
def active_pointer_lags(scene: Scene) -> str:
    """A crash came between the newest commit and its pointer."""
    return _point(scene, scene.older())


@enter(Reason.POINTER_STALE, Judge.FAMILY)
def active_pointer_deleted(scene: Scene) -> str:
    """The pointer is gone."""
    scene.active_path.unlink()
    return scene.keys.active(scene.generation.incarnation)


@enter(Reason.POINTER_STALE, Judge.FAMILY)
def quarantine_notice_is_outdated(scene: Scene) -> str:
    """The notice still speaks of a quarantine that no refusal supports."""
    notice = QuarantineNotice(quarantined=True, refusals=("tier2-0001",), revision=1)
    scene.path(scene.keys.quarantine).write_bytes(documents.canonical_bytes(notice))
    return scene.keys.quarantine


@enter(Reason.POINTER_STALE, Judge.FAMILY)
def last_good_names_an_unproven_generation(scene: Scene) -> str:
    """LAST_GOOD promises a generation that no full restore has passed."""
    digest = commit_digest(scene.commit_path.read_bytes())
    pointer = GenerationPointer(generation=str(scene.generation), commit=digest, revision=1)
    scene.path(scene.keys.last_good).write_bytes(documents.canonical_bytes(pointer))
    return scene.keys.last_good


@enter(Reason.POINTER_ROLLED_BACK, Judge.FAMILY)
def active_pointer_rolled_back(scene: Scene) -> str:
    """The pointer went back by two commits: a backup was restored over it, or somebody wrote it by hand."""
    return _point(scene, scene.older(2))


@enter(Reason.POINTER_DANGLING, Judge.FAMILY)
def active_pointer_names_nothing(scene: Scene) -> str:
    """The pointer names a generation of which nothing is there."""
    absent = GenerationId(scene.generation.incarnation, scene.generation.step + 1)
    pointer = ActivePointer(generation=str(absent), commit=f"blake3:{'0' * 64}")
    scene.active_path.write_bytes(documents.canonical_bytes(pointer))
    return scene.keys.active(scene.generation.incarnation)


@enter(Reason.POINTER_DANGLING, Judge.FAMILY)
def last_good_names_nothing(scene: Scene) -> str:
    """LAST_GOOD names a generation of which nothing is there."""
    absent = GenerationId(scene.generation.incarnation, scene.generation.step + 1)
    pointer = GenerationPointer(generation=str(absent), commit=f"blake3:{'0' * 64}", revision=1)
    scene.path(scene.keys.last_good).write_bytes(documents.canonical_bytes(pointer))
    return scene.keys.last_good


@enter(Reason.POINTER_UNCOMMITTED, Judge.FAMILY)
def active_pointer_names_an_uncommitted_generation(scene: Scene) -> str:
    """The marker of the generation that the pointer names was deleted; its artifacts are there."""
    scene.commit_path.unlink()
    return scene.keys.active(scene.generation.incarnation)


@enter(Reason.POINTER_MISMATCH, Judge.FAMILY)
def active_pointer_has_another_digest(scene: Scene) -> str:
    """The pointer names the newest generation with the digest of another marker."""
    pointer = ActivePointer(generation=str(scene.generation), commit=f"blake3:{'0' * 64}")
    scene.active_path.write_bytes(documents.canonical_bytes(pointer))
    return scene.keys.active(scene.generation.incarnation)


@enter(Reason.POINTER_MALFORMED, Judge.FAMILY)
def active_pointer_torn(scene: Scene) -> str:
    """Half of the pointer reached the disk."""
    data = scene.active_path.read_bytes()
    scene.active_path.write_bytes(data[: len(data) // 2])
    return scene.keys.active(scene.generation.incarnation)


@enter(Reason.POINTER_MALFORMED, Judge.FAMILY)
def active_pointer_is_a_link(scene: Scene) -> str:
    """Somebody made the pointer a symbolic link to the generation, as other tools do."""
    scene.active_path.unlink()
    scene.active_path.symlink_to(scene.directory)
    return scene.keys.active(scene.generation.incarnation)


@enter(Reason.POINTER_MALFORMED, Judge.FAMILY)
def last_good_is_a_plain_name(scene: Scene) -> str:
    """A script wrote the generation's name into LAST_GOOD."""
    scene.path(scene.keys.last_good).write_text(f"{scene.generation}\n")
    return scene.keys.last_good


@enter(Reason.POINTER_MALFORMED, Judge.FAMILY)
def quarantine_notice_emptied(scene: Scene) -> str:
    """Somebody made an empty QUARANTINE by hand, which quarantines nothing."""
    scene.path(scene.keys.quarantine).touch()
    return scene.keys.quarantine


@enter(Reason.NAME_MALFORMED, Judge.FAMILY)
def commit_under_a_short_name(scene: Scene) -> str:
    """A marker under a name without leading zeros, which another reader might order differently."""
    name = f"{scene.generation.incarnation}-{scene.generation.step + 1}"
    scene.path(f"{scene.keys.commits}/{name}").write_bytes(scene.commit_path.read_bytes())
    return f"{scene.keys.commits}/{name}"


@enter(Reason.NAME_MALFORMED, Judge.FAMILY)
def manifest_under_a_copy_s_name(scene: Scene) -> str:
    """A file manager left a copy beside a manifest."""
    copy = f"{scene.keys.manifests}/{scene.generation} (copy).json"
    scene.path(copy).write_bytes(scene.manifest_path.read_bytes())
    return copy


@enter(Reason.NAME_MALFORMED, Judge.FAMILY)
def claim_under_another_name(scene: Scene) -> str:
    """Somebody kept a claim aside in the directory of claims."""
    key = f"{scene.keys.claim(scene.generation.incarnation)}.bak"
    scene.path(key).write_bytes(scene.path(scene.keys.claim(scene.generation.incarnation)).read_bytes())
    return key


@enter(Reason.DECISION_MALFORMED, Judge.FAMILY)
def decision_torn(scene: Scene) -> str:
    """Half of the newest resume record reached the disk, so nobody knows what it keeps."""
    key = scene.keys.resume(scene.generation.incarnation)
    data = scene.path(key).read_bytes()
    scene.path(key).write_bytes(data[: len(data) // 2])
    return key


@enter(Reason.DECISION_MALFORMED, Judge.FAMILY)
def decision_keeps_itself(scene: Scene) -> str:
    """A resume record limits its own incarnation, which only a later decision may."""
    key = scene.keys.resume(scene.generation.incarnation)
    record = documents.parse(ResumeRecord, scene.path(key).read_bytes(), key)
    keeps = {str(scene.generation.incarnation): 0}
    scene.path(key).write_bytes(documents.canonical_bytes(msgspec.structs.replace(record, keeps=keeps)))
    return key


@enter(Reason.GENERATION_FENCED)
def generation_committed_by_an_orphan(scene: Scene) -> str:
    """A newer life resumed the generation before and had never seen this one, which an orphan committed later."""
    newer, kept = scene.generation.incarnation + 1, scene.older()
    record = ResumeRecord(
        nonce="0" * 32,
        from_generation=str(kept),
        from_commit=commit_digest(scene.path(scene.keys.commit(kept)).read_bytes()),
        keeps={str(kept.incarnation): kept.step},
    )
    claim = Claim(kind="start", nonce="0" * 32, host="elsewhere")
    scene.path(scene.keys.claim(newer)).write_bytes(documents.canonical_bytes(claim))
    scene.path(scene.keys.resume(newer)).write_bytes(documents.canonical_bytes(record))
    return str(scene.generation)


@enter(Reason.GENERATION_BARRED)
def generation_refused_before(scene: Scene) -> str:
    """A fail of this generation is on record."""
    refusal = Refusal(
        source="tier1",
        generation=str(scene.generation),
        reason="tier1 failed: put there by the catalogue",
        findings=(),
        created_at=datetime(2026, 1, 1, tzinfo=UTC),
        by="catalogue",
    )
    path = scene.path(f"{scene.keys.refusals}/tier1-0001_{scene.generation}")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(documents.canonical_bytes(refusal))
    return str(scene.generation)
