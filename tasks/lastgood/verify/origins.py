"""Where wrong bytes came from, by comparing their digest with what other manifests list.

Decides the name of a fault that is already certain: bytes of another artifact, of another generation of the family, of
another family under the same root, or of nothing we know. Leaves finding the fault to `generation`. Rules: the search
is bounded and made only when something is wrong; a manifest that cannot be read narrows the name, never the verdict.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from lastgood.digest import Algorithm, Digest
from lastgood.errors import FormatError, StoreError
from lastgood.identity import FamilyKeys, GenerationId
from lastgood.manifest import MAXIMUM_MANIFEST_BYTES, Artifact, Manifest, parse_manifest
from lastgood.stores.port import Store
from lastgood.verdict import Reason

__all__ = ["Origin", "Origins"]

MAXIMUM_GENERATIONS = 64
"""Generations of the family, nearest first, whose manifests are compared."""
MAXIMUM_FAMILIES = 16
MAXIMUM_GENERATIONS_A_FAMILY = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Whose bytes they are: the reason code, and the place in words."""

    reason: Reason
    place: str


class Origins:
    """What the manifests within reach say of digests and lengths; read when first asked.

    Args:
        store: Where.
        keys: The family.
        manifest: Of the generation that is judged.
    """

    def __init__(self, store: Store, keys: FamilyKeys, manifest: Manifest) -> None:
        self._store = store
        self._keys = keys
        self._manifest = manifest
        self._by_digest: dict[tuple[Algorithm, str], Origin] | None = None
        self._lengths: set[int] = set()

    def is_length_known(self, length_bytes: int) -> bool:
        """Whether any other artifact within reach has this length, so that hashing could tell where it came from."""
        self._index()
        return length_bytes > 0 and length_bytes in self._lengths

    def find(self, found_bytes: int, digests: tuple[Digest, ...]) -> Origin | None:
        """Whose bytes these are, or None. Nothing is said of an empty file: it has no origin."""
        if found_bytes == 0:
            return None
        index = self._index()
        return next((index[key] for d in digests if (key := (d.algorithm, d.value)) in index), None)

    def _index(self) -> dict[tuple[Algorithm, str], Origin]:
        if self._by_digest is None:
            self._by_digest = {}
            for reason, place, artifact in self._known():
                self._lengths.add(artifact.bytes)
                origin = Origin(reason=reason, place=f"{artifact.path}{place}")
                for digest in artifact.digests:
                    if digest.part_bytes is None:
                        self._by_digest.setdefault((digest.algorithm, digest.value), origin)
        return self._by_digest

    def _known(self) -> Iterator[tuple[Reason, str, Artifact]]:
        """Every artifact within reach, the likeliest origin of a mistake first."""
        for artifact in self._manifest.artifacts:
            yield Reason.ARTIFACT_SWAPPED, "", artifact
        own = self._manifest.id
        for manifest in self._manifests(self._keys, _nearest(self._generations(self._keys), own)):
            for artifact in manifest.artifacts:
                yield Reason.FOREIGN_GENERATION_FILE, f" of generation {manifest.generation}", artifact
        for keys in self._other_families():
            newest = sorted(self._generations(keys), reverse=True)[:MAXIMUM_GENERATIONS_A_FAMILY]
            for manifest in self._manifests(keys, newest):
                for artifact in manifest.artifacts:
                    yield Reason.FOREIGN_RUN_FILE, f" of {manifest.family}/{manifest.generation}", artifact

    def _other_families(self) -> Iterator[FamilyKeys]:
        try:
            names = self._store.names("").directories
        except StoreError:
            return
        count = 0
        for name in names:
            try:
                keys = FamilyKeys(name)
            except FormatError:
                continue
            if name != self._keys.family and count < MAXIMUM_FAMILIES:
                count += 1
                yield keys

    def _generations(self, keys: FamilyKeys) -> list[GenerationId]:
        found = []
        try:
            names = self._store.names(keys.manifests).files
        except StoreError:
            return []
        for name in names:
            try:
                found.append(GenerationId.parse(name.removesuffix(".json")))
            except FormatError:
                continue
        return found

    def _manifests(self, keys: FamilyKeys, generations: list[GenerationId]) -> Iterator[Manifest]:
        for generation in generations:
            key = keys.manifest(generation)
            try:
                data = self._store.get(key, limit_bytes=MAXIMUM_MANIFEST_BYTES)
                if data is not None:
                    yield parse_manifest(data, key)
            except (FormatError, StoreError):
                # The fault stands whatever this one says; its own generation's verification reports it.
                continue


def _nearest(generations: list[GenerationId], own: GenerationId) -> list[GenerationId]:
    others = [generation for generation in generations if generation != own]
    others.sort(key=lambda other: (abs(other.incarnation - own.incarnation), abs(other.step - own.step)))
    return others[:MAXIMUM_GENERATIONS]
