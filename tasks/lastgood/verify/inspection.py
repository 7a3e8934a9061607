"""The quick look at one committed generation by which `latest` and every start choose.

Decides nothing of its own: it asks `checks` about manifest, existence, sizes and purpose, by one read and one walk, and
never reads payload. Source: docs/protocol.md, `latest`.
"""

from __future__ import annotations

from lastgood.identity import FamilyKeys, GenerationId
from lastgood.manifest import Manifest
from lastgood.markers import Commit
from lastgood.stores.port import Store
from lastgood.verdict import Finding
from lastgood.verify.checks import (
    check_components,
    check_extras,
    check_presence,
    check_purpose,
    check_ranks,
    check_sizes,
    size_mismatch,
)
from lastgood.verify.reading import list_artifacts, read_stored_manifest

__all__ = ["Inspection", "inspector"]


class Inspection:
    """Answers `protocol.Inspect`, and remembers the manifests that it read.

    Args:
        store: Where.
        keys: The family.
    """

    def __init__(self, store: Store, keys: FamilyKeys) -> None:
        self._store = store
        self._keys = keys
        self.manifests: dict[GenerationId, Manifest] = {}

    def __call__(self, generation: GenerationId, commit: Commit) -> tuple[Finding, ...]:
        """Everything that a look without reading payload finds wrong.

        Raises:
            StoreError: The store could not tell; the generation must not be skipped for it.
        """
        stored = read_stored_manifest(self._store, self._keys, generation, commit)
        manifest = stored.trusted
        if manifest is None:
            return (*stored.findings, *stored.identity)
        self.manifests[generation] = manifest
        directory = manifest.prefix(self._keys)
        listing = list_artifacts(self._store, directory, manifest)
        wrong = (size_mismatch(artifact, found.bytes, manifest) for artifact, found in check_sizes(manifest, listing))
        return (
            *check_purpose(manifest),
            *check_components(manifest)[0],
            *check_ranks(manifest),
            *check_presence(manifest, listing, directory),
            *wrong,
            *check_extras(manifest, listing)[0],
        )


def inspector(store: Store, keys: FamilyKeys) -> Inspection:
    """The quick look for `protocol.perform(..., inspect=…)`."""
    return Inspection(store, keys)
