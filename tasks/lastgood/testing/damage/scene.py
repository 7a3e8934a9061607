"""What a damage works on, and the few hands it needs: reading, re-signing and marking one generation's documents."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from lastgood import documents
from lastgood.identity import FamilyKeys, GenerationId
from lastgood.manifest import Artifact, Component, Manifest, manifest_digest, parse_manifest
from lastgood.markers import Commit
from lastgood.stores import LocalStore

__all__ = ["Scene"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """A family of at least three generations of one life, each written by at least two ranks, and a stranger beside it.

    Args:
        root: The root that holds both families; a copy, never anybody's real checkpoints.
        family: The family.
        generation: The generation to damage: the newest.
        stranger: Another family under the same root, with a generation of the same id.
    """

    root: Path
    family: str
    generation: GenerationId
    stranger: str

    @property
    def store(self) -> LocalStore:
        return LocalStore(self.root)

    @property
    def keys(self) -> FamilyKeys:
        return FamilyKeys(self.family)

    def path(self, key: str) -> Path:
        """Where a key lies."""
        return self.root / key

    @property
    def directory(self) -> Path:
        """The generation's artifacts."""
        return self.path(self.keys.artifacts(self.generation))

    @property
    def attic(self) -> Path:
        """A place outside every family, to move things to."""
        attic = self.root / ".attic"
        attic.mkdir(exist_ok=True)
        return attic

    @property
    def manifest_path(self) -> Path:
        return self.path(self.keys.manifest(self.generation))

    @property
    def commit_path(self) -> Path:
        return self.path(self.keys.commit(self.generation))

    @property
    def active_path(self) -> Path:
        return self.path(self.keys.active(self.generation.incarnation))

    def older(self, back: int = 1) -> GenerationId:
        """The generation committed so many commits before the damaged one."""
        names = self.store.names(self.keys.commits).files
        return sorted(GenerationId.parse(name) for name in names)[-1 - back]

    def manifest(self) -> Manifest:
        """The manifest of the generation to damage."""
        return parse_manifest(self.manifest_path.read_bytes(), str(self.generation))

    def artifact(self, component: Component, rank: int | None = None) -> Artifact:
        """The first artifact of a component and rank."""
        return next(a for a in self.manifest().artifacts if (a.component, a.rank) == (component, rank))

    def file(self, component: Component, rank: int | None = None) -> Path:
        """Where that artifact lies."""
        return self.directory / self.artifact(component, rank).path

    def same_file(self, artifact: Artifact, family: str, generation: GenerationId) -> Path:
        """Where the same path lies in another generation."""
        return self.path(FamilyKeys(family).artifacts(generation)) / artifact.path

    def sign(self, manifest: bytes) -> None:
        """Put a manifest in place and let the marker vouch for it, as a careless or hostile publisher would."""
        self.manifest_path.write_bytes(manifest)
        self.mark(manifest=manifest_digest(manifest))

    def publish_again(self, **changes: object) -> None:
        """Sign the manifest with some fields changed."""
        self.sign(documents.canonical_bytes(msgspec.structs.replace(self.manifest(), **changes)))

    def describe_again(self, **changes: object) -> None:
        """Sign the manifest with some fields of its job description changed."""
        self.publish_again(job=msgspec.structs.replace(self.manifest().job, **changes))

    def mark(self, **changes: object) -> None:
        """Write the commit marker with some fields changed."""
        marker = documents.parse(Commit, self.commit_path.read_bytes(), "commit")
        self.commit_path.write_bytes(documents.canonical_bytes(msgspec.structs.replace(marker, **changes)))

    def leave_out(self, *components: Component) -> None:
        """Sign a manifest without some components, promises and files included."""
        manifest = self.manifest()
        for artifact in manifest.artifacts:
            if artifact.component in components:
                (self.directory / artifact.path).unlink()
        promises = tuple(promise for promise in manifest.job.promises if promise.component not in components)
        self.publish_again(
            artifacts=tuple(a for a in manifest.artifacts if a.component not in components),
            job=msgspec.structs.replace(manifest.job, promises=promises),
        )
