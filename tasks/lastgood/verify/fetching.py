"""A generation's artifacts on this machine, for a job whose family is in a bucket: copied and verified in one reading.

Decides what of a copy may be loaded: all of it or nothing, so that the bytes that are loaded are the bytes that were
verified. Leaves what is wrong with bytes to `generation`, and where the copy lies to whoever asks for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from lastgood.digest import HashRequest, default_jobs
from lastgood.errors import StoreTransientError
from lastgood.identity import FamilyKeys
from lastgood.manifest import Artifact, Manifest
from lastgood.stores.port import Hashed, Store, Trouble
from lastgood.verdict import Finding
from lastgood.verify.generation import algorithms_of, comparable_digests, wrong_bytes
from lastgood.verify.origins import Origins

__all__ = ["fetch_artifacts"]


def fetch_artifacts(
    store: Store, keys: FamilyKeys, prefix: str, manifest: Manifest, target: Path
) -> tuple[Finding, ...]:
    """Copy every artifact of a manifest into a directory, many at once.

    Args:
        store: Where the family is.
        keys: The family.
        prefix: Of the artifacts.
        manifest: What they must be; its digest was compared with COMMIT's.
        target: Empty; artifacts keep their paths.

    Returns:
        Why the copy must not be loaded; empty: it is whole.

    Raises:
        StoreError: The store could not tell, or the copy cannot be written.
    """
    origins = Origins(store, keys, manifest)
    findings = []
    for artifact, found in _fetched(store, prefix, manifest.artifacts, target):
        if found.trouble in (Trouble.UNREADABLE, Trouble.CHANGED):
            raise StoreTransientError(f"cannot copy {prefix}/{artifact.path}: {found.message}")
        if found.trouble is not None or found.digests != comparable_digests(artifact):
            # Wrong bytes are believed when they are read twice: what a transfer flipped is not what is stored.
            (again,) = store.hash(prefix, (_request(artifact),))
            if again != found:
                raise StoreTransientError(f"cannot copy {prefix}/{artifact.path}: two readings differ")
            findings.append(wrong_bytes(artifact, found, origins, manifest))
    return tuple(findings)


def _fetched(
    store: Store, prefix: str, artifacts: tuple[Artifact, ...], target: Path
) -> Iterable[tuple[Artifact, Hashed]]:
    for parent in {(target / artifact.path).parent for artifact in artifacts}:
        parent.mkdir(parents=True, exist_ok=True)

    def fetch(artifact: Artifact) -> Hashed:
        return store.fetch(prefix, _request(artifact), target / artifact.path)

    with ThreadPoolExecutor(max_workers=2 * default_jobs(), thread_name_prefix="lastgood-copy") as workers:
        yield from zip(artifacts, workers.map(fetch, artifacts), strict=True)


def _request(artifact: Artifact) -> HashRequest:
    return HashRequest(path=artifact.path, algorithms=algorithms_of(artifact), size_bytes=artifact.bytes)
