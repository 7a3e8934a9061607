"""The artifacts of one generation, brought to another store.

Decides which of them are fetched, what a copy may be made of, and when it stands under the generation's name. Rules:
bytes are hashed while they are read from the source and never sent on when they are not what the manifest lists; every
one is read back where it was written; what lies there already is kept if it is equal and otherwise named, never
replaced. A file system gets a staging of its own, installed by one rename; a bucket gets its objects under their final
names, some at a time through a private directory of this machine.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import StrEnum
from itertools import groupby
from pathlib import Path

from lastgood.digest import HashRequest, default_jobs
from lastgood.errors import CopyRefused, StorePermanentError, StoreTransientError
from lastgood.identity import FamilyKeys
from lastgood.manifest import Artifact, Manifest
from lastgood.stores.port import Hashed, Store, Trouble
from lastgood.verdict import Finding
from lastgood.verify.checks import check_extras, check_presence, check_sizes, size_mismatch
from lastgood.verify.generation import algorithms_of, comparable_digests, wrong_bytes
from lastgood.verify.origins import Origins
from lastgood.verify.reading import Listing, list_artifacts

__all__ = ["Payload", "Standing", "stands"]

BATCH_BYTES = 256 * 2**20
"""Artifacts that lie on this machine at a time on their way to a bucket; a larger one lies there alone."""
BATCH_ARTIFACTS = 256
STAGING_ROUNDS = 2
"""A staging that a power cut tore is filled again once; what is wrong then is wrong with the disk."""


class Standing(StrEnum):
    """What became of a generation: `copied` now, `kept` from before, or `refused`, for the findings say why."""

    COPIED = "copied"
    KEPT = "kept"
    REFUSED = "refused"


def stands(store: Store, keys: FamilyKeys, manifest: Manifest) -> bool:
    """Whether every artifact lies at the copy in its length; asked of what was compared byte for byte before."""
    directory = manifest.prefix(keys)
    listing = list_artifacts(store, directory, manifest)
    return not check_presence(manifest, listing, directory) and not check_sizes(manifest, listing)


class Payload:
    """The artifacts of one generation on their way.

    Args:
        source: Where they are; only read.
        target: Where they go.
        keys: The family, of one name in both.
        manifest: What they must be; its digest was compared with COMMIT's.

    Attributes:
        copied_bytes: What was fetched so far.
        blamed: The store of which the newest findings speak.
    """

    def __init__(self, source: Store, target: Store, keys: FamilyKeys, manifest: Manifest) -> None:
        self._source = source
        self._target = target
        self._keys = keys
        self._manifest = manifest
        self._final = manifest.prefix(keys)
        self._staging = f"{keys.staging}/copy-{manifest.id}"  # a name of no publish, which a sweep would give up
        self._stored = target.payload(f"{self._staging}/payload", self._final)
        self.copied_bytes = 0
        self.blamed = source.uri

    def bring(self) -> tuple[Finding, ...]:
        """Make every artifact stand under the generation's name at the target, durably.

        Returns:
            Why it does not; empty: it does.

        Raises:
            CopyRefused: The manifest lists no digest that a copy could be compared with.
            StoreError: A store could not tell, or did not take it; may be repeated.
        """
        for artifact in self._manifest.artifacts:
            if not algorithms_of(artifact):
                raise CopyRefused(
                    f"nothing to compare a copy with: {artifact.path} in {self._manifest.generation}: "
                    "only composite digests are listed"
                )
        installed = list_artifacts(self._target, self._final, self._manifest)
        if self._stored == self._final:
            return self._judge(installed) or self._send(installed)
        findings = self._judge(installed, whole=True) if installed else self._stage() or self._install()
        if not findings:
            self._target.discard(self._staging)
        return findings

    # Under the final name at once.

    def _send(self, installed: Listing) -> tuple[Finding, ...]:
        place = self._target.staging_path(self._stored)
        for batch in _batches([one for one in self._manifest.artifacts if one.path not in installed]):
            findings = self._fetch(batch, place) or self._persist(batch)
            if findings:
                return findings
        return ()

    # In a staging, which whoever was killed left as it was.

    def _stage(self) -> tuple[Finding, ...]:
        place = self._target.staging_path(self._stored)
        artifacts = self._manifest.artifacts
        wrong: tuple[Finding, ...] = ()
        for _ in range(STAGING_ROUNDS):
            staged = list_artifacts(self._target, self._stored, self._manifest)
            unfit = {artifact.path for artifact, _ in check_sizes(self._manifest, staged)}
            unfit |= {finding.offender for finding in wrong}
            for path in unfit:
                self._target.delete(f"{self._stored}/{path}")
            for batch in _batches([one for one in artifacts if one.path in unfit or one.path not in staged]):
                if findings := self._fetch(batch, place):
                    return findings
            wrong = self._persist(artifacts)
            if not wrong:
                return ()
        return wrong

    def _install(self) -> tuple[Finding, ...]:
        only = f"/{self._manifest.artifacts[0].path}" if self._manifest.is_single_file else ""
        if self._target.install(f"{self._stored}{only}", f"{self._final}{only}"):
            return ()
        # A copy beside this one was faster.
        return self._judge(list_artifacts(self._target, self._final, self._manifest), whole=True)

    # Steps shared by both.

    def _judge(self, listing: Listing, *, whole: bool = False) -> tuple[Finding, ...]:
        """What lies under the generation's name and is not it; with `whole`, also what is missing there."""
        manifest, self.blamed = self._manifest, self._target.uri
        findings = list(check_presence(manifest, listing, self._final)) if whole else []
        wrong = check_sizes(manifest, listing)
        findings += [size_mismatch(artifact, found.bytes, manifest) for artifact, found in wrong]
        findings += check_extras(manifest, listing)[0]
        if findings:
            return tuple(findings)
        lying = [artifact for artifact in manifest.artifacts if artifact.path in listing]
        hashed = self._target.hash(self._final, [_request(artifact) for artifact in lying])
        return self._compared(self._target, lying, hashed)

    def _persist(self, artifacts: Sequence[Artifact]) -> tuple[Finding, ...]:
        findings: list[Finding] = []
        # The port makes the same digests of everything that it is given.
        for algorithms, alike in groupby(sorted(artifacts, key=algorithms_of), key=algorithms_of):
            some = list(alike)
            hashed = self._target.persist(self._stored, [artifact.path for artifact in some], algorithms)
            findings += self._compared(self._target, some, iter(hashed))
        return tuple(findings)

    def _compared(self, store: Store, artifacts: Sequence[Artifact], hashed: Iterator[Hashed]) -> tuple[Finding, ...]:
        origins, self.blamed = Origins(store, self._keys, self._manifest), store.uri
        findings = []
        for artifact, found in zip(artifacts, hashed, strict=True):
            if not _holds(artifact, found):
                findings.append(wrong_bytes(artifact, found, origins, self._manifest))
        return tuple(findings)

    def _fetch(self, artifacts: Sequence[Artifact], place: Path) -> tuple[Finding, ...]:
        """Put artifacts into a directory, whole or not at all."""
        partial = place.with_name("partial")
        for directory in {partial, *((place / artifact.path).parent for artifact in artifacts)}:
            directory.mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(max_workers=2 * default_jobs(), thread_name_prefix="lastgood-copy") as workers:
            pending = [
                workers.submit(self._fetch_one, artifact, partial, place / artifact.path) for artifact in artifacts
            ]
            try:
                findings = self._compared(self._source, artifacts, (future.result() for future in pending))
            finally:
                for future in pending:
                    future.cancel()
        self.copied_bytes += 0 if findings else sum(artifact.bytes for artifact in artifacts)
        return findings

    def _fetch_one(self, artifact: Artifact, partial: Path, target: Path) -> Hashed:
        half = partial / secrets.token_hex(8)
        prefix, request = self._final, _request(artifact)
        try:
            found = self._source.fetch(prefix, request, half)
            if _holds(artifact, found):
                # Private until now; from here on as open as whatever else this process makes.
                half.chmod(partial.stat().st_mode & 0o666)
                # Linked when it is whole: of two copies at once neither sees the other's half.
                with contextlib.suppress(FileExistsError):
                    os.link(half, target)
                return found
        except OSError as error:
            raise StorePermanentError(f"cannot copy {artifact.path} ({error.filename}): {error.strerror}") from error
        finally:
            half.unlink(missing_ok=True)
        # Wrong bytes are believed when they are read twice: what a transfer flipped is not what is stored.
        (again,) = self._source.hash(prefix, [request])
        if (again.trouble, again.digests) != (found.trouble, found.digests):
            raise StoreTransientError(f"cannot copy {prefix}/{artifact.path}: two readings gave different bytes")
        return found


def _holds(artifact: Artifact, found: Hashed) -> bool:
    if found.trouble in (Trouble.UNREADABLE, Trouble.CHANGED):
        raise StoreTransientError(f"cannot copy {artifact.path}: {found.message}")
    return found.trouble is None and found.digests == comparable_digests(artifact)


def _request(artifact: Artifact) -> HashRequest:
    return HashRequest(path=artifact.path, algorithms=algorithms_of(artifact), size_bytes=artifact.bytes)


def _batches(artifacts: Sequence[Artifact]) -> Iterator[list[Artifact]]:
    batch: list[Artifact] = []
    length = 0
    for artifact in artifacts:
        if batch and (length + artifact.bytes > BATCH_BYTES or len(batch) == BATCH_ARTIFACTS):
            yield batch
            batch, length = [], 0
        batch.append(artifact)
        length += artifact.bytes
    if batch:
        yield batch
