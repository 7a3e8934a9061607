"""Publishing one step: staged artifacts become a generation, or nothing that anybody could resume.

Decides the order of durability: artifacts, each rank's read-back and receipt, manifest, installation under the final
name, COMMIT; and what a publish that did not finish leaves behind (the former state, untouched). Leaves the fence to
`protocol.commit` and the calls to the store. Rules: exactly `world_size` receipts of one staging id; no file in the
payload that no receipt names; a step that failed is never retried under its name; a COMMIT whose outcome is unknown is
re-sent before the next step. Needs no collective and no torch: ranks meet through receipts. Source: docs/protocol.md.
"""

from __future__ import annotations

import contextlib
import operator
import re
import stat
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

from lastgood import documents
from lastgood.digest import Algorithm
from lastgood.documents import Document
from lastgood.errors import Fenced, FormatError, LastgoodError, PublishError, StoreError
from lastgood.identity import FamilyKeys, GenerationId, check_key
from lastgood.manifest import (
    FORMAT_VERSION,
    Artifact,
    Component,
    Expectations,
    JobDescription,
    Manifest,
    Receipt,
    manifest_bytes,
    manifest_digest,
)
from lastgood.markers import Commit
from lastgood.protocol import CommitOutcome, commit, perform
from lastgood.protocol.commits import commit_digest
from lastgood.stores import Store
from lastgood.text import printable
from lastgood.verdict import Finding

__all__ = ["Published", "Publisher", "StagedArtifact", "Staging"]

SHORTEST_POLL_SECONDS = 0.002
LONGEST_POLL_SECONDS = 0.1
MAXIMUM_ASKED_A_SECOND = 500
_RECEIPT_NAME = re.compile(r"rank-\d{5,}\.json", re.ASCII)
MAXIMUM_WORDS = 2000
"""Characters of a failure that the other ranks are told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedArtifact:
    """One file that this rank wrote into the payload.

    Args:
        path: Relative to the payload.
        component: The kind of state it holds.
        rank: The rank that owns it, or None for the whole job's.
    """

    path: str
    component: Component
    rank: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Staging:
    """Where one step is being put together; the same on every rank, without a word between them.

    Args:
        generation: What it will become.
        prefix: Its key under the family's staging.
        stored: The key prefix under which its artifacts are persisted.
        payload: The local directory to write artifacts into.
    """

    generation: GenerationId
    prefix: str
    stored: str
    payload: Path

    @property
    def id(self) -> str:
        return self.prefix.rpartition("/")[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """An acknowledged generation and the digest of its COMMIT."""

    generation: GenerationId
    commit: str


class Outcome(Document, frozen=True, kw_only=True):
    """`outcome.json`: how the coordinator tells the other ranks."""

    kind: Literal["committed", "fenced", "failed"]
    commit: str | None
    message: str


class Publisher:
    """One rank's hand in the publishes of one incarnation; steps rise and follow one another.

    Args:
        store: Where the family is.
        keys: The family.
        incarnation: Claimed and decided by this life of the run.
        nonce: The life's nonce.
        rank: This rank, 0 ≤ rank < world_size; rank 0 coordinates.
        world_size: How many ranks publish together.
        previous: Digest of the COMMIT that this life resumed, or None.
        patience: How long to wait for the other ranks' receipts, or for the coordinator's outcome.
        algorithms: Digests of record.
        objects: What speaks against a manifest before it is written; a save that nothing could resume is not
            acknowledged.
    """

    def __init__(
        self,
        store: Store,
        keys: FamilyKeys,
        *,
        incarnation: int,
        nonce: str,
        rank: int,
        world_size: int,
        previous: str | None,
        patience: timedelta = timedelta(minutes=30),
        algorithms: tuple[Algorithm, ...] = (Algorithm.BLAKE3,),
        objects: Callable[[Manifest], Iterable[Finding]] = lambda manifest: (),
    ) -> None:
        self._store = store
        self._keys = keys
        self._incarnation = incarnation
        self._nonce = nonce
        self._rank = rank
        self._world_size = world_size
        self._previous = previous
        self._patience = patience
        self._algorithms = algorithms
        self._object = objects
        self._newest_step: int | None = None
        self._begun: int | None = None
        self._finished: Staging | None = None
        self._unsettled: tuple[GenerationId, bytes] | None = None
        self._fenced: str | None = None

    def stage(self, step: int) -> Staging:
        """Open the staging of a step.

        Args:
            step: Completed optimizer steps; above every earlier one of this incarnation.

        Raises:
            Fenced: An earlier publish met a newer incarnation.
            PublishError: The step does not rise.
        """
        if self._fenced is not None:
            raise Fenced(self._fenced)
        step = operator.index(step)  # a NumPy integer would name the directory and then fit no manifest
        if self._newest_step is not None and step <= self._newest_step:
            raise PublishError(
                f"step does not rise: {self._keys.family}: {step} after {self._newest_step}",
                hint="a step whose publish failed is never retried under its name; publish the next one",
            )
        generation = GenerationId(self._incarnation, step)
        prefix = self._prefix(generation)
        stored = self._store.payload(f"{prefix}/payload", self._keys.artifacts(generation))
        payload = self._store.staging_path(stored)
        self._newest_step = step
        return Staging(generation=generation, prefix=prefix, stored=stored, payload=payload)

    def publish(
        self,
        staging: Staging,
        artifacts: Sequence[StagedArtifact],
        *,
        job: JobDescription,
        expectations: Expectations | None = None,
    ) -> Published:
        """Make what this rank staged durable, vouch for it, and wait until the generation is committed.

        Args:
            staging: From `stage`.
            artifacts: Everything this rank wrote there.
            job: The description of the job; rank 0's is written.
            expectations: What this rank's live objects said before they were serialised: the job's values, which
                every rank must report alike, and one entry in `ranks`, this rank's own.

        Raises:
            Fenced: A newer incarnation exists; the job must stop.
            PublishError: Not published; what was discoverable before still is.
            StoreError: The store failed; the step may or may not have been kept, and nothing else was lost.
        """
        self._begin(staging)
        try:
            return self._publish(staging, artifacts, job, expectations)
        except FormatError as error:
            # A receipt or an outcome that no reader would accept, ours or somebody's under our name.
            raise PublishError(f"not published: {staging.id}: {error.message}") from error

    def _publish(
        self,
        staging: Staging,
        artifacts: Sequence[StagedArtifact],
        job: JobDescription,
        expectations: Expectations | None,
    ) -> Published:
        try:
            self._send(staging, self._receipt(staging, artifacts, expectations))
        except BaseException as error:
            # What is raised is the cause. Where even this cannot be said, the other ranks run out of patience.
            with contextlib.suppress(LastgoodError):
                self.abandon(staging, str(error))
            raise
        if self._rank == 0:
            return self._coordinate(staging, job)
        return self._await_outcome(staging)

    def _begin(self, staging: Staging) -> None:
        if staging.prefix != self._prefix(staging.generation):
            raise PublishError(
                f"staging of another life: {staging.prefix}: expected {self._prefix(staging.generation)}",
                hint="stage and publish with the same run",
            )
        if self._begun is not None and staging.generation.step <= self._begun:
            raise PublishError(
                f"publish does not rise: {staging.id}: step {staging.generation.step} after {self._begun}",
                hint="publish each staged step once, in the order of their steps",
            )
        self._begun = staging.generation.step

    def abandon(self, staging: Staging, why: str) -> None:
        """Say that this rank cannot finish a staged step, so that the others need not wait for it."""
        words = printable(why)[:MAXIMUM_WORDS] or "abandoned"
        self._send(staging, Receipt(staging=staging.id, rank=self._rank, world_size=self._world_size, failure=words))
        if self._rank == 0:
            self._tell(staging, Outcome(kind="failed", commit=None, message=words))

    # What every rank does.

    def _prefix(self, generation: GenerationId) -> str:
        return f"{self._keys.staging}/{GenerationId(self._incarnation, generation.step)}~{self._nonce[:8]}"

    def _receipt(
        self, staging: Staging, artifacts: Sequence[StagedArtifact], expectations: Expectations | None
    ) -> Receipt:
        if expectations is not None and [entry.rank for entry in expectations.ranks] != [self._rank]:
            raise PublishError(f"expectations are not this rank's: {staging.id}: expected rank {self._rank} alone")
        paths = [artifact.path for artifact in artifacts]
        for path in paths:
            _check_written(staging, path)
        if staging.stored != f"{staging.prefix}/payload":
            # What is persisted lies under its final name at once. So nobody sees what this rank does not name; and the
            # staging says that a publish was begun, by which `reconcile` finds what one leaves that dies here.
            lying = (path.relative_to(staging.payload) for path in staging.payload.rglob("*") if not path.is_dir())
            _refuse_unnamed(staging, {str(path) for path in lying}.difference(paths))
            self._store.create(f"{staging.prefix}/begun/rank-{self._rank:05d}", b"")
        hashed = self._store.persist(staging.stored, paths, self._algorithms)
        vouched = []
        for artifact, found in zip(artifacts, hashed, strict=True):
            if found.trouble is not None or found.bytes is None:
                raise PublishError(f"read back failed: {artifact.path} of {staging.id}: {found.message}")
            vouched.append(
                Artifact(
                    path=artifact.path,
                    component=artifact.component,
                    rank=artifact.rank,
                    bytes=found.bytes,
                    digests=found.digests if found.composite is None else (*found.digests, found.composite),
                )
            )
        return Receipt(
            staging=staging.id,
            rank=self._rank,
            world_size=self._world_size,
            artifacts=tuple(vouched),
            expectations=expectations,
        )

    def _send(self, staging: Staging, receipt: Receipt) -> None:
        key = f"{staging.prefix}/receipts/rank-{self._rank:05d}.json"
        if not self._store.create(key, documents.canonical_bytes(receipt)) and receipt.failure is None:
            raise PublishError(f"receipt exists already: {key}", hint="do two processes run as the same rank?")

    def _await_outcome(self, staging: Staging) -> Published:
        key = f"{staging.prefix}/outcome.json"
        data = self._poll(lambda: self._store.get(key, limit_bytes=2**20))
        if data is None:
            raise PublishError(f"no outcome from rank 0 of {staging.id} within {self._patience}: {key}")
        outcome = documents.parse(Outcome, data, key)
        if outcome.kind == "fenced":
            self._fenced = outcome.message
            raise Fenced(outcome.message)
        if outcome.kind == "failed" or outcome.commit is None:
            raise PublishError(outcome.message)
        return Published(generation=staging.generation, commit=outcome.commit)

    def _poll(self, ask: Callable[[], bytes | None]) -> bytes | None:
        deadline = time.monotonic() + self._patience.total_seconds()
        pause = SHORTEST_POLL_SECONDS
        # A thousand ranks ask for one name together; what a bucket takes of that is hundreds a second.
        longest = max(LONGEST_POLL_SECONDS, self._world_size / MAXIMUM_ASKED_A_SECOND)
        while (data := ask()) is None and time.monotonic() < deadline:
            time.sleep(pause)
            pause = min(2 * pause, longest)
        return data

    # What the coordinator does.

    def _coordinate(self, staging: Staging, job: JobDescription) -> Published:
        try:
            self._settle()
            receipts = self._collect(staging)
            self._refuse_strays(staging, receipts)
            published = self._commit(staging, self._manifest(staging, receipts, job))
        except BaseException as error:
            kind: Literal["fenced", "failed"] = "failed"
            if isinstance(error, Fenced):
                self._fenced, kind = error.message, "fenced"
            # As above: what is raised is the cause, and a rank that hears nothing runs out of patience.
            with contextlib.suppress(StoreError):
                self._tell(staging, Outcome(kind=kind, commit=None, message=printable(str(error))[:MAXIMUM_WORDS]))
            raise
        self._tell(staging, Outcome(kind="committed", commit=published.commit, message="committed"))
        # Every rank has sent a receipt for this staging, so none is still waiting in the one before. What cannot be
        # removed (NFS keeps a file that somebody has open) is litter, and this step is committed all the same.
        if self._finished is not None:
            with contextlib.suppress(StoreError):
                self._store.discard(self._finished.prefix)
        self._finished = staging
        return published

    def _settle(self) -> None:
        """Re-send a COMMIT whose outcome nobody knows; its bytes are the same, so it cannot be written twice."""
        if self._unsettled is not None:
            self._mark(*self._unsettled)

    def _mark(self, generation: GenerationId, marker: bytes) -> CommitOutcome:
        # Whatever interrupts this, a full disk behind the marker included, leaves a COMMIT that may be there: the next
        # one must name it as its predecessor, or the chain would be broken by a healthy publisher.
        self._unsettled = (generation, marker)
        outcome = perform(self._store, commit(self._keys, generation, marker))
        self._unsettled = None
        if outcome is CommitOutcome.ACKNOWLEDGED:
            self._previous = commit_digest(marker)
        return outcome

    def _collect(self, staging: Staging) -> tuple[Receipt, ...]:
        receipts: dict[str, Receipt] = {}
        prefix = f"{staging.prefix}/receipts"

        def ask() -> bytes | None:
            for name in self._store.names(prefix).files:
                # NFS leaves names of its own (`.nfs…`) beside ours.
                if name not in receipts and _RECEIPT_NAME.fullmatch(name):
                    data = self._store.get(f"{prefix}/{name}", limit_bytes=documents.MAXIMUM_DOCUMENT_BYTES)
                    receipts[name] = documents.parse(Receipt, data or b"", f"{prefix}/{name}")
                    self._check_receipt(receipts[name], name, staging)
            return b"" if len(receipts) == self._world_size else None

        if self._poll(ask) is None:
            have = {receipt.rank for receipt in receipts.values()}
            missing = [rank for rank in range(self._world_size) if rank not in have]
            raise PublishError(
                f"receipts missing: {staging.id}: expected {self._world_size} within {self._patience}, "
                f"none from rank {', '.join(map(str, missing[:20]))}"
            )
        return tuple(sorted(receipts.values(), key=lambda receipt: receipt.rank))

    def _check_receipt(self, receipt: Receipt, name: str, staging: Staging) -> None:
        if receipt.failure is not None:
            raise PublishError(f"rank {receipt.rank} could not vouch: {staging.id}: {receipt.failure}")
        found = (receipt.staging, receipt.world_size, f"rank-{receipt.rank:05d}.json")
        expected = (staging.id, self._world_size, name)
        if found != expected or receipt.rank >= self._world_size:
            raise PublishError(f"receipt of another publish: {staging.id}: expected {expected}, found {found}")

    def _refuse_strays(self, staging: Staging, receipts: Iterable[Receipt]) -> None:
        named = {artifact.path for receipt in receipts for artifact in receipt.artifacts}
        prefix = f"{staging.stored}/"
        lying = {found.key.removeprefix(prefix) for found in self._store.walk(staging.stored)}
        _refuse_unnamed(staging, lying - named)

    def _manifest(self, staging: Staging, receipts: Sequence[Receipt], job: JobDescription) -> bytes:
        if job.topology.world_size != self._world_size:
            # Tier 1 would refuse it, and an acknowledged save must be one that can be resumed.
            raise PublishError(
                f"job of another world size: {staging.id}: expected {self._world_size} ranks, "
                f"the job describes {job.topology.world_size}"
            )
        artifacts = [artifact for receipt in receipts for artifact in receipt.artifacts]
        manifest = Manifest(
            format_version=FORMAT_VERSION,
            family=self._keys.family,
            generation=str(staging.generation),
            incarnation=staging.generation.incarnation,
            step=staging.generation.step,
            staging=staging.id,
            created_at=datetime.now(UTC),
            job=job,
            artifacts=tuple(sorted(artifacts, key=lambda artifact: artifact.path)),
            expectations=_agree(receipts, staging),
        )
        objections = tuple(self._object(manifest))
        if objections:
            first, more = objections[0], f" (and {len(objections) - 1} more)" if len(objections) > 1 else ""
            raise PublishError(f"nothing could resume it: {staging.id}: {first.message}{more}", hint=first.hint)
        try:
            return manifest_bytes(manifest)
        except FormatError as error:
            raise PublishError(f"manifest would not be lawful: {staging.id}: {error.message}") from error

    def _commit(self, staging: Staging, data: bytes) -> Published:
        generation = staging.generation
        key = self._keys.manifest(generation)
        if not self._store.create(key, data):
            raise PublishError(f"manifest exists already: {key}", hint="a name serves one publish; take the next step")
        if not self._store.install(staging.stored, self._keys.artifacts(generation)):
            raise PublishError(f"generation directory exists already: {self._keys.artifacts(generation)}")
        marker = documents.canonical_bytes(
            Commit(
                generation=str(generation), manifest=manifest_digest(data), previous=self._previous, nonce=self._nonce
            )
        )
        outcome = self._mark(generation, marker)
        if outcome is CommitOutcome.FENCED:
            raise Fenced(
                f"fenced: {self._keys.family}: a newer incarnation than {self._incarnation} exists; "
                f"step {generation.step} may or may not have been kept",
                hint="stop this job: another one has taken over the run",
            )
        if outcome is CommitOutcome.TAKEN:
            raise PublishError(f"commit slot is taken: {self._keys.commit(generation)}")
        return Published(generation=generation, commit=commit_digest(marker))

    def _tell(self, staging: Staging, outcome: Outcome) -> None:
        if self._world_size > 1:
            self._store.create(f"{staging.prefix}/outcome.json", documents.canonical_bytes(outcome))


def _refuse_unnamed(staging: Staging, unnamed: Iterable[str]) -> None:
    if named := sorted(unnamed):
        raise PublishError(
            f"file that no rank vouches for: {staging.id}: {', '.join(named[:5])}",
            hint="name every file you write in `artifacts`; a loader that globs would read this one",
        )


def _check_written(staging: Staging, path: str) -> None:
    """What is named must lie in the payload, as a file: a mistake of the caller, not a failure of the store."""
    try:
        lies = stat.S_ISREG((staging.payload / check_key(path)).lstat().st_mode)
    except FormatError as error:
        raise PublishError(f"not a path of the payload: {staging.id}: {error.message}") from error
    except (FileNotFoundError, NotADirectoryError):
        lies = False
    if not lies:
        raise PublishError(
            f"named, but no file: {path} of {staging.id}",
            hint="write it under `staging.payload`, on this rank, before publishing; links are not followed",
        )


def _agree(receipts: Sequence[Receipt], staging: Staging) -> Expectations | None:
    """One set of expectations from all ranks; what the job shares must be the same on each."""
    stated = [receipt.expectations for receipt in receipts if receipt.expectations is not None]
    if not stated:
        return None
    if len(stated) != len(receipts):
        raise PublishError(f"some ranks sent no expectations: {staging.id}: {len(stated)} of {len(receipts)}")
    first = stated[0]
    for other in stated[1:]:
        for name in ("learning_rates", "optimizer_steps", "scalars"):
            if getattr(other, name) != getattr(first, name):
                raise PublishError(
                    f"ranks disagree about {name}: {staging.id}: rank 0 has {getattr(first, name)}, "
                    f"rank {other.ranks[0].rank} has {getattr(other, name)}"
                )
    return Expectations(
        learning_rates=first.learning_rates,
        optimizer_steps=first.optimizer_steps,
        scalars=first.scalars,
        ranks=tuple(entry for expectations in stated for entry in expectations.ranks),
    )
