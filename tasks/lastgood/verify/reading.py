"""What the store holds of one generation, brought to where the checks can look at it.

Decides how a document that is absent, torn, foreign or no file at all is named; leaves judging a lawful manifest
against the artifacts to `checks`. Rules: what cannot be read because of the store raises `StoreError` and is never a
finding; a listing never proves absence, so what it does not show is asked for by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import TypeAlias

from lastgood.errors import FormatError, StorePermanentError
from lastgood.identity import FamilyKeys, GenerationId
from lastgood.manifest import MAXIMUM_MANIFEST_BYTES, Manifest, manifest_digest, parse_manifest
from lastgood.markers import Commit
from lastgood.protocol.requests import MAXIMUM_PROTOCOL_DOCUMENT_BYTES
from lastgood.protocol.survey import read_commit
from lastgood.stores.port import ObjectKind, Store, StoredObject
from lastgood.verdict import Finding, Reason

__all__ = [
    "Listing",
    "StoredCommit",
    "StoredManifest",
    "ancestors",
    "list_artifacts",
    "read_commit_marker",
    "read_document",
    "read_stored_manifest",
]

MAXIMUM_EXTRA_FILES = 10_000
"""Files beside the listed ones that are looked at; a directory with more is refused for that alone."""

Listing: TypeAlias = Mapping[str, StoredObject]
"""Path relative to the generation's directory → what lies there; directories are not listed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredCommit:
    """A commit marker as it was found: the lawful marker with its bytes, or the findings that say why there is none."""

    marker: Commit | None
    data: bytes | None
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredManifest:
    """A manifest as it was found.

    Args:
        manifest: The lawful manifest of this very generation, or None.
        digest: Digest text of the bytes found, or None when there were none.
        findings: Why it cannot be trusted; empty only with a manifest.
        identity: Findings about whose manifest it is; then it cannot be trusted either.
    """

    manifest: Manifest | None
    digest: str | None
    findings: tuple[Finding, ...]
    identity: tuple[Finding, ...] = ()

    @property
    def trusted(self) -> Manifest | None:
        """The manifest, if nothing speaks against judging artifacts by it."""
        return None if self.findings or self.identity else self.manifest


def read_commit_marker(
    store: Store, keys: FamilyKeys, generation: GenerationId, *, omitted: bool = False
) -> StoredCommit:
    """Read the COMMIT of one generation.

    Args:
        store: Where.
        keys: The family.
        generation: Which.
        omitted: Of one that a copy left out: it is only there to be followed.

    Raises:
        StoreError: The store could not tell.
    """
    key = f"{keys.omitted}/{generation}" if omitted else keys.commit(generation)
    data = None
    try:
        data = read_document(store, key)
        if data is None:
            finding = Finding(
                reason=Reason.COMMIT_MISSING, message=f"commit marker missing: {key}: object not found", offender=key
            )
            return StoredCommit(marker=None, data=None, findings=(finding,))
        marker = read_commit(data, generation, key)
    except FormatError as error:
        reason = error.reason or Reason.COMMIT_MALFORMED
        finding = Finding(reason=reason, message=error.message, offender=key)
        return StoredCommit(marker=None, data=data, findings=(finding,))
    return StoredCommit(marker=marker, data=data, findings=())


def read_stored_manifest(
    store: Store, keys: FamilyKeys, generation: GenerationId, marker: Commit | None
) -> StoredManifest:
    """Read the manifest of one generation, strictly, and compare it with its commit marker if there is one.

    A manifest of another generation or family is named as that; only one that is this generation's own and yet not
    the committed one is a mismatch, so that one fault gives one finding.

    Raises:
        StoreError: The store could not tell.
    """
    key = keys.manifest(generation)
    digest = None
    try:
        data = read_document(store, key, limit_bytes=MAXIMUM_MANIFEST_BYTES)
        if data is None:
            message = f"manifest missing: {key}: object not found"
            finding = Finding(reason=Reason.MANIFEST_MISSING, message=message, offender=key)
            return StoredManifest(manifest=None, digest=None, findings=(finding,))
        digest = manifest_digest(data)
        manifest = parse_manifest(data, key)
    except FormatError as error:
        reason = error.reason or Reason.MANIFEST_MALFORMED
        finding = Finding(reason=reason, message=error.message, offender=key)
        return StoredManifest(manifest=None, digest=digest, findings=(finding,))
    identity = _strangers(manifest, keys, generation, key)
    findings: tuple[Finding, ...] = ()
    if not identity and marker is not None and marker.manifest != digest:
        finding = Finding(
            reason=Reason.COMMIT_MISMATCH,
            message=f"not the committed manifest: {key}: the marker names {marker.manifest}, found {digest}",
            offender=key,
            expected=marker.manifest,
            found=digest,
        )
        findings = (finding,)
    return StoredManifest(manifest=manifest, digest=digest, findings=findings, identity=identity)


def _strangers(manifest: Manifest, keys: FamilyKeys, generation: GenerationId, key: str) -> tuple[Finding, ...]:
    findings = []
    for reason, what, expected, found in (
        (Reason.FAMILY_MISMATCH, "family", keys.family, manifest.family),
        (Reason.GENERATION_MISMATCH, "generation", str(generation), manifest.generation),
    ):
        if expected != found:
            findings.append(
                Finding(
                    reason=reason,
                    message=f"manifest of another {what}: {key}: expected {expected}, found {found}",
                    offender=key,
                    expected=expected,
                    found=found,
                )
            )
    return tuple(findings)


def read_document(store: Store, key: str, *, limit_bytes: int = MAXIMUM_PROTOCOL_DOCUMENT_BYTES) -> bytes | None:
    """The bytes under a key, or None.

    Raises:
        FormatError: The object itself is what cannot be read: no regular file, or too long.
        StoreError: The store could not tell.
    """
    try:
        return store.get(key, limit_bytes=limit_bytes)
    except StorePermanentError:
        found = store.stat(key)
        if found is None or (found.kind is ObjectKind.FILE and found.bytes <= limit_bytes):
            raise
        what = f"{found.bytes} bytes" if found.kind is ObjectKind.FILE else f"no regular file ({found.kind})"
        message = f"not a document: {key}: expected at most {limit_bytes} bytes, found {what}"
        raise FormatError(message, where=key) from None


def list_artifacts(store: Store, prefix: str, manifest: Manifest) -> Listing:
    """What lies under a generation's directory, by one walk.

    Args:
        store: Where.
        prefix: Key of the directory that the artifacts' paths are relative to.
        manifest: What should lie there; each artifact that the walk does not show is asked for by name.

    Returns:
        The listing; with the single path "" when the directory itself is a link or a file.

    Raises:
        StoreError: The store could not tell.
    """
    if manifest.is_single_file:
        # What else lies in the family's directory is not its own.
        path = manifest.artifacts[0].path
        only = store.stat(f"{prefix}/{path}")
        return {path: only} if only is not None else {}
    top = store.stat(prefix)
    if top is not None and top.kind is not ObjectKind.OTHER:
        return {"": top}
    start = len(prefix) + 1
    seen = islice(store.walk(prefix), len(manifest.artifacts) + MAXIMUM_EXTRA_FILES + 1)
    found = {stored.key[start:]: stored for stored in seen}
    for artifact in manifest.artifacts:
        # Below a link the store would answer for the link's target, so only what no ancestor hides is asked for.
        if artifact.path in found or any(parent in found for parent in ancestors(artifact.path)):
            continue
        stored = store.stat(f"{prefix}/{artifact.path}")
        if stored is not None:
            found[artifact.path] = stored
        elif not found:
            # Neither walk nor name shows anything: the directory is gone, and asking 4,096 times says no more.
            break
    return found


def ancestors(path: str) -> tuple[str, ...]:
    """The directories above a path, nearest first."""
    parts = path.split("/")
    return tuple("/".join(parts[:length]) for length in range(len(parts) - 1, 0, -1))
