"""A private copy of one generation, in which the ordinary start of a replica finds this generation and nothing else.

Decides what such a copy holds: the artifacts, each hashed as it was written, the manifest and COMMIT as they were read,
and the claim and decision of the life that made them. Leaves judging the bytes to tier 1, which is run through a store
that copies whatever it hashes: the bytes that are loaded are the bytes that were verified, by one reading of
production, and production is never written. Source: docs/architecture.md, invariant 9.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from lastgood import documents
from lastgood.checks import GENERATION_CHECKS
from lastgood.digest import HashRequest
from lastgood.digest.engine import default_jobs
from lastgood.errors import StoreError, UsageError
from lastgood.identity import FamilyKeys, GenerationId
from lastgood.location import Location
from lastgood.manifest import Manifest, parse_manifest
from lastgood.markers import Claim, Commit, ResumeRecord, Rollback
from lastgood.protocol.commits import commit_digest
from lastgood.replica.processes import replica_home
from lastgood.stores import LocalStore
from lastgood.stores.port import Hashed, Progress, Store
from lastgood.stores.scratch import hold_directory, make_directory, remove_abandoned
from lastgood.verdict import Check, CheckState, Note
from lastgood.verify import Depth, verify_generation

__all__ = ["VERIFIED", "Copy", "Scratch", "make_copy", "open_scratch"]

SPACE_MARGIN_BYTES = 64 * 2**20
COPIES = 2
"""The copy that is loaded, and the generation that the replica saves after it."""

VERIFIED = tuple(name for name in GENERATION_CHECKS if name not in ("chain", "standing"))
"""The checks of tier 1 that are about this generation alone; its place in the family is tier 1's own business."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scratch:
    """A directory of our own for one restore, mode 0700.

    Args:
        directory: Holds everything below.
        root: A store's root, in which the copied family lies.
        home: The replica's HOME and TMPDIR.
        log: Where the replica's output goes.
    """

    directory: Path
    root: Path
    home: Path
    log: Path

    @property
    def free_bytes(self) -> int:
        return shutil.disk_usage(self.directory).free


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """What copying gave.

    Args:
        location: The generation in the scratch family.
        manifest: Its manifest, or None when the copy must not be loaded.
        checks: Those named in `VERIFIED`, and `scratch_space`.
        notes: What tier 1 noted.
        seconds: How long it took, documents and their judgement included.
        read_bytes: Payload that was read from the store, twice what had to be read twice; None if none was asked for.
        read_seconds: How long that took: all transfers at once, each hashed and written as it came.
    """

    location: Location
    manifest: Manifest | None
    checks: tuple[Check, ...]
    notes: tuple[Note, ...]
    seconds: float
    read_bytes: int | None = None
    read_seconds: float | None = None


@contextmanager
def open_scratch(location: Location | None, parent: Path | None, *, keep: bool, purpose: str) -> Iterator[Scratch]:
    """Make a scratch directory, and remove it afterwards unless it is to be kept; remove those of the killed, too.

    Args:
        location: What will be restored or drilled, if anything; the scratch must not lie inside that family.
        parent: Where to make it; None for the system's temporary directory.
        keep: Leave it for whoever wants to look.
        purpose: A word for its name.

    Raises:
        UsageError: The parent is not a directory that we may write to, or lies inside the family.
    """
    parent = (parent or Path(tempfile.gettempdir())).resolve()
    family = location.store.local_directory(location.keys.family) if location is not None else None
    if family is not None:
        family = family.resolve()
        if parent == family.parent or parent.is_relative_to(family):
            raise UsageError(f"scratch directory lies among what is restored: {parent}: production is only read")
    remove_abandoned(parent)
    held = None
    try:
        directory = make_directory(purpose, parent)
        held = None if keep else hold_directory(directory)
    except OSError as error:
        reason = os.strerror(error.errno or 0).lower()
        raise UsageError(f"scratch directory cannot be made: in {parent}: {reason}") from error
    try:
        root = directory / "root"
        root.mkdir()
        with replica_home(directory) as home:
            yield Scratch(directory=directory, root=root, home=home, log=directory / "replica.log")
    finally:
        if held is not None:
            shutil.rmtree(directory, ignore_errors=True)
            os.close(held)


def make_copy(location: Location, scratch: Scratch, *, progress: Progress | None = None) -> Copy:
    """Copy and verify one generation, and lay out the documents by which a start discovers it.

    Args:
        location: Names the generation.
        scratch: Where to; empty.
        progress: Told how many bytes have been copied so far.

    Raises:
        UsageError: Nothing of that name was ever published.
    """
    began = time.monotonic()
    generation, keys = location.require_generation(), location.keys
    target = LocalStore(scratch.root)
    copied = Location(store=target, keys=keys, generation=generation)
    source = _CopyingStore(location.store, target, scratch)
    # The port has fifteen operations, of which this store changes two; the rest are the source's own.
    verdict = verify_generation(cast("Store", source), keys, generation, depth=Depth.FULL, progress=progress)
    checks = [check for check in verdict.checks if check.name in VERIFIED]
    if source.too_small is not None:
        checks.append(Check(name="scratch_space", state=CheckState.INCONCLUSIVE, detail=source.too_small))
    held = {check.name for check in checks if check.state is CheckState.RAN and not check.findings}
    manifest = None
    if held.issuperset(VERIFIED) and source.too_small is None:
        try:
            manifest = _lay_out(target, keys, generation, source.documents)
        except StoreError as error:
            checks.append(Check(name="scratch_space", state=CheckState.INCONCLUSIVE, detail=error.message))
    return Copy(
        location=copied,
        manifest=manifest,
        checks=tuple(checks),
        notes=verdict.notes,
        seconds=time.monotonic() - began,
        read_bytes=source.read_bytes,
        read_seconds=source.read_seconds,
    )


def _lay_out(target: LocalStore, keys: FamilyKeys, generation: GenerationId, read: dict[str, bytes]) -> Manifest:
    """Write what makes the copy the newest candidate of its family: the documents that were judged, byte for byte."""
    commit, manifest = read[keys.commit(generation)], read[keys.manifest(generation)]
    marker = documents.parse(Commit, commit, keys.commit(generation))
    if generation.name and generation.incarnation:
        # The rollback whose number it bears, for after a start nothing could be sealed; without one (incarnation 0)
        # nothing need be said.
        back = Rollback(
            from_generation=str(generation), from_commit=commit_digest(commit), keeps={}, reason="as it was sealed"
        )
        claim = Claim(kind="rollback", nonce=marker.nonce, host="lastgood restore", rollback=back)
        target.create(keys.claim(generation.incarnation), documents.canonical_bytes(claim))
    elif generation.incarnation:
        # The life that made it, as if it had begun with it: a decision without a claim of older lives keeps nothing
        # else, and the replica's own claim takes the next number.
        claim = Claim(kind="start", nonce=marker.nonce, host="lastgood restore")
        decision = ResumeRecord(nonce=marker.nonce, from_generation=None, from_commit=None, keeps={})
        target.create(keys.claim(generation.incarnation), documents.canonical_bytes(claim))
        target.create(keys.resume(generation.incarnation), documents.canonical_bytes(decision))
    target.create(keys.manifest(generation), manifest)
    target.create(keys.commit(generation), commit)
    return parse_manifest(manifest, keys.manifest(generation))


class _CopyingStore:
    """A store to read from, whose `hash` copies and measures what it hashes and whose `get` remembers what it read.

    Args:
        source: Where production is.
        target: Where the copies go, under the same keys.
        scratch: For its free space.
    """

    def __init__(self, source: Store, target: LocalStore, scratch: Scratch) -> None:
        self._source = source
        self._target = target
        self._scratch = scratch
        self.documents: dict[str, bytes] = {}
        self.too_small: str | None = None
        self.read_bytes: int | None = None
        self.read_seconds: float | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    def get(self, key: str, *, limit_bytes: int) -> bytes | None:
        data = self._source.get(key, limit_bytes=limit_bytes)
        if data is not None:
            self.documents[key] = data
        return data

    def hash(self, prefix: str, requests: Sequence[HashRequest], progress: Progress | None = None) -> Iterator[Hashed]:
        needed = COPIES * sum(request.size_bytes or 0 for request in requests) + SPACE_MARGIN_BYTES
        free = self._scratch.free_bytes
        if free < needed:
            self.too_small = f"scratch too small: {self._scratch.directory}: expected {needed} bytes free, found {free}"
            raise StoreError(self.too_small)
        destinations = [self._target.path(f"{prefix}/{request.path}") for request in requests]
        for parent in {destination.parent for destination in destinations}:
            parent.mkdir(parents=True, exist_ok=True)
        for destination in destinations:
            destination.unlink(missing_ok=True)  # of a reading that is being confirmed
        began, before = time.monotonic(), (self.read_bytes or 0, self.read_seconds or 0.0)
        with ThreadPoolExecutor(max_workers=default_jobs(), thread_name_prefix="lastgood-copy") as workers:
            pending = [
                workers.submit(self._source.fetch, prefix, request, destination)
                for request, destination in zip(requests, destinations, strict=True)
            ]
            try:
                done_bytes = 0
                self.read_bytes, self.read_seconds = before
                for future in pending:
                    hashed = future.result()
                    done_bytes += hashed.bytes or 0
                    self.read_bytes = before[0] + done_bytes
                    self.read_seconds = before[1] + time.monotonic() - began
                    if progress is not None:
                        progress(done_bytes)
                    yield hashed
            finally:
                for future in pending:
                    future.cancel()
