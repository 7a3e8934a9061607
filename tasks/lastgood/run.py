"""One life of a training run, from its claim to its last publish: what training code holds in its hand.

    run = Run.start("/checkpoints/llm-7b", SoloGroup(), allow_fresh=True)
    if run.resumed:
        load(run.resumed.directory)
    ...
    staging = run.stage(step)
    torch.save(state, staging.payload / "state.pt")
    run.publish(staging, [StagedArtifact(path="state.pt", component=Component.MODEL, rank=0)], job=job)
    run.close()

Decides nothing about checkpoints: `protocol` and `publish` do. Rules: only rank 0 claims and decides, every rank learns
the same answer or refusal; one publish at a time; a background publish that failed fails the next call, and the
last one's failure makes the process exit non-zero even if nobody calls `close`.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import secrets
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Protocol, Self

from lastgood import documents
from lastgood.digest import Algorithm, hash_bytes
from lastgood.documents import Document
from lastgood.errors import Fenced, FormatError, LastgoodError, ResumeRefused, StoreError, UsageError
from lastgood.identity import GenerationId
from lastgood.location import Location, locate
from lastgood.manifest import (
    MAXIMUM_MANIFEST_BYTES,
    Expectations,
    JobDescription,
    Manifest,
    manifest_digest,
    parse_manifest,
)
from lastgood.markers import Commit
from lastgood.protocol import Policy, claim, decide, perform, take_survey
from lastgood.publish import Published, Publisher, StagedArtifact, Staging
from lastgood.redaction import redact
from lastgood.stores import StoreSettings
from lastgood.stores.scratch import SharedCopy
from lastgood.text import printable
from lastgood.verdict import Finding, Reason
from lastgood.verify import inspector
from lastgood.verify.checks import check_claims
from lastgood.verify.fetching import fetch_artifacts

__all__ = ["Group", "ResumedGeneration", "Run", "SoloGroup"]


class Group(Protocol):
    """The ranks of one job. `broadcast` carries rank 0's bytes to every rank; it is called on all of them alike."""

    @property
    def rank(self) -> int: ...

    @property
    def world_size(self) -> int: ...

    def broadcast(self, data: bytes | None) -> bytes: ...


class SoloGroup:
    """A job of one rank."""

    rank = 0
    world_size = 1

    def broadcast(self, data: bytes | None) -> bytes:
        """Return what was given: there is nobody else."""
        if data is None:
            raise AssertionError("rank 0 broadcasts its own bytes")
        return data


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumedGeneration:
    """What this life of the run loads.

    Args:
        generation: Which.
        manifest: What it claims to be; its digest was compared with the COMMIT's.
        directory: Where its artifacts lie on this machine (of a sealed single file that file); of a family in a bucket
            a verified copy for all ranks of this user here, which is given back when the first step is staged, or when
            the run is closed.
    """

    generation: GenerationId
    manifest: Manifest
    directory: Path


class StartOutcome(Document, frozen=True, kw_only=True):
    """What rank 0 tells the others: a decision, or why there is none."""

    incarnation: int = 0
    nonce: str = ""
    generation: str | None = None
    commit: str | None = None
    manifest: str | None = None
    refusal: str | None = None
    refused_as: str = ""
    findings: tuple[Finding, ...] = ()
    hint: str | None = None


class Run:
    """See the module docstring. Made by `start`."""

    def __init__(
        self,
        location: Location,
        publisher: Publisher,
        incarnation: int,
        resumed: ResumedGeneration | None,
        copy: SharedCopy | None = None,
    ) -> None:
        self.location = location
        self.incarnation = incarnation
        self.resumed = resumed
        self._publisher = publisher
        self._copy = copy
        self._background: threading.Thread | None = None
        self._failure: BaseException | None = None

    @classmethod
    def start(
        cls,
        family: str,
        group: Group,
        *,
        resume: str | None = None,
        allow_fresh: bool = False,
        policy: Policy = Policy.VERIFIED,
        launcher: Mapping[str, str] | None = None,
        store: StoreSettings | None = None,
        patience: timedelta = timedelta(minutes=30),
        algorithms: tuple[Algorithm, ...] = (Algorithm.BLAKE3,),
        objects: Callable[[Manifest], Iterable[Finding]] = check_claims,
    ) -> Self:
        """Claim an incarnation, decide what it loads, and record that decision; on every rank alike.

        Args:
            family: URI of the family; its root must exist.
            group: The ranks; `broadcast` must work already.
            resume: A hint, the URI of a generation; refused unless it is the newest candidate.
            allow_fresh: Start at step zero if, and only if, the family holds no commit.
            policy: Which generations may be resumed.
            launcher: Ids of the launcher, for people.
            store: How the family's bucket is spoken to, beyond what boto3's own configuration says.
            patience: How long a publish waits for other ranks, and how long the copy that another rank of this machine
                fetches may stand still.
            algorithms: Digests of record.
            objects: What speaks against a save before it is acknowledged; negative controls alone give another one.

        Raises:
            ResumeRefused: Nothing may be resumed, or not what was asked for.
            Fenced: A newer incarnation started meanwhile.
            UsageError: The URI or the hint is not lawful, or one of several ranks starts as if it were alone.
            StoreError: The store could not tell.
        """
        if isinstance(group, SoloGroup):
            _refuse_ranks_apart(os.environ)
        stores = {family: store} if store is not None else {}
        location = locate(family, stores)
        told = None
        if group.rank == 0:
            try:
                told = documents.canonical_bytes(_start(location, resume, allow_fresh, policy, launcher or {}, stores))
            except BaseException as error:
                # The other ranks already wait for an answer.
                refusal = printable(f"rank 0 could not start: {type(error).__name__}: {error}")
                group.broadcast(documents.canonical_bytes(StartOutcome(refusal=refusal, refused_as="StoreError")))
                raise
        outcome = documents.parse(StartOutcome, group.broadcast(told), "start outcome")
        _raise_refusal(outcome)
        publisher = Publisher(
            location.store,
            location.keys,
            incarnation=outcome.incarnation,
            nonce=outcome.nonce,
            rank=group.rank,
            world_size=group.world_size,
            previous=outcome.commit,
            patience=patience,
            algorithms=algorithms,
            objects=objects,
        )
        resumed, copy = _resumed(location, outcome, patience)
        run = cls(location, publisher, outcome.incarnation, resumed, copy)
        atexit.register(run._exit_loudly)
        return run

    def stage(self, step: int) -> Staging:
        """Open the staging of a step, after the publish before it has ended; see `Publisher.stage`.

        Raises:
            PublishError: The background publish before it failed, or the step does not rise.
        """
        self.wait()
        self._give_back()
        return self._publisher.stage(step)

    def publish(
        self,
        staging: Staging,
        artifacts: Sequence[StagedArtifact],
        *,
        job: JobDescription,
        expectations: Expectations | None = None,
    ) -> Published:
        """Publish and wait for the acknowledgement; see `Publisher.publish`."""
        self.wait()
        return self._publisher.publish(staging, artifacts, job=job, expectations=expectations)

    def publish_in_background(
        self,
        staging: Staging,
        write: Callable[[Path], Sequence[StagedArtifact]],
        *,
        job: JobDescription,
        expectations: Expectations | None = None,
        then: Callable[[Published], None] | None = None,
    ) -> None:
        """Write and publish on a thread; a failure is raised by the next call of this run.

        Args:
            staging: From `stage`.
            write: Writes the host copy of the state into the payload and names its files; no collectives.
            job: See `publish`.
            expectations: See `publish`.
            then: Called on the thread after the acknowledgement.
        """
        self.wait()

        def work() -> None:
            try:
                try:
                    artifacts = write(staging.payload)
                except BaseException as error:
                    # What is raised is the cause; ranks that cannot be told of it run out of patience.
                    with contextlib.suppress(LastgoodError):
                        self._publisher.abandon(staging, f"cannot write: {error}")
                    raise
                published = self._publisher.publish(staging, artifacts, job=job, expectations=expectations)
                if then is not None:
                    then(published)
            except BaseException as error:  # noqa: BLE001 - kept for the next call: a thread has nobody to raise to
                self._failure = error

        self._background = threading.Thread(target=work, name=f"publish-{staging.id}")
        self._background.start()

    def abandon(self, staging: Staging, why: str) -> None:
        """Give up a staged step before it is published, so that the other ranks need not wait for this one."""
        self._publisher.abandon(staging, why)

    def wait(self) -> None:
        """Wait for the background publish, and raise what it raised."""
        if self._background is not None:
            self._background.join()
            self._background = None
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def close(self) -> None:
        """End this life: wait for the last publish and raise its failure.

        Without it a background publish is cut short where the interpreter ends: it fails, and the exit status says so.
        """
        atexit.unregister(self._exit_loudly)
        self._give_back()
        self.wait()

    def _give_back(self) -> None:
        if self._copy is not None:
            self._copy.close()
            self._copy = None

    def _exit_loudly(self) -> None:
        # The interpreter joins the thread before this runs. An exception here would not change the exit status.
        try:
            self.wait()
        except BaseException as error:  # noqa: BLE001 - whatever it was, the exit status must say it
            sys.stderr.write(f"lastgood: the last publish failed: {redact(str(error))}\n")
            sys.stderr.write("hint: let `run.close()` be the last act of the job; it waits for the save\n")
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(OSError, ValueError):
                    stream.flush()
            os._exit(1)


def _start(
    location: Location,
    resume: str | None,
    allow_fresh: bool,
    policy: Policy,
    launcher: Mapping[str, str],
    stores: Mapping[str, StoreSettings],
) -> StartOutcome:
    keys, store = location.keys, location.store
    nonce, number = secrets.token_hex(16), 0
    try:
        hint = _hint(location, resume, stores)
        store.prepare(
            (keys.incarnations, keys.manifests, keys.commits, keys.refusals, keys.releases, keys.proven, keys.staging)
        )
        # Before the claim, which fences a healthy job: a family whose decisions cannot be read is not taken over, and a
        # claim that vanished must not be replaced by ours, for that would hide it.
        perform(store, take_survey(keys))
        number = perform(store, claim(keys, nonce=nonce, host=socket.gethostname(), launcher=launcher))
        decision = perform(
            store,
            decide(keys, number, nonce=nonce, hint=hint, allow_fresh=allow_fresh, policy=policy),
            inspect=inspector(store, keys),
        )
    except LastgoodError as error:
        findings = error.findings if isinstance(error, ResumeRefused) else ()
        return StartOutcome(
            incarnation=number,
            refusal=error.message,
            refused_as=type(error).__name__,
            findings=findings,
            hint=error.hint,
        )
    commit: Commit | None = decision.commit
    return StartOutcome(
        incarnation=number,
        nonce=nonce,
        generation=str(decision.generation) if decision.generation else None,
        commit=decision.commit_digest,
        manifest=commit.manifest if commit else None,
    )


def _refuse_ranks_apart(environ: Mapping[str, str]) -> None:
    """Each rank that claimed for itself would fence the others, and every save would hold one rank's state alone."""
    rank, world_size = environ.get("RANK", "0"), environ.get("WORLD_SIZE", "1")
    if rank.isdecimal() and int(rank) > 0:
        raise UsageError(
            f"rank {rank} of {world_size} starts as a job of its own: RANK and WORLD_SIZE say that there are others",
            hint="pass a group of all ranks, e.g. `lastgood.state.TorchGroup()`, or publish from rank 0 alone",
        )


def _hint(location: Location, resume: str | None, stores: Mapping[str, StoreSettings]) -> GenerationId | None:
    if not resume:
        return None
    hinted = locate(resume, stores)
    if hinted.family_uri != location.family_uri:
        raise UsageError(f"resume hint is of another family: expected {location.family_uri}/…, found {resume}")
    return hinted.require_generation()


def _raise_refusal(outcome: StartOutcome) -> None:
    if outcome.refusal is None:
        return
    if outcome.refused_as == "ResumeRefused":
        raise ResumeRefused(
            outcome.refusal, findings=outcome.findings, incarnation=outcome.incarnation or None, hint=outcome.hint
        )
    kinds: dict[str, type[LastgoodError]] = {"Fenced": Fenced, "UsageError": UsageError, "FormatError": FormatError}
    raise kinds.get(outcome.refused_as, StoreError)(outcome.refusal, hint=outcome.hint)


def _resumed(
    location: Location, outcome: StartOutcome, patience: timedelta
) -> tuple[ResumedGeneration | None, SharedCopy | None]:
    if outcome.generation is None:
        return None, None
    generation = GenerationId.parse(outcome.generation)
    key = location.keys.manifest(generation)
    data = location.store.get(key, limit_bytes=MAXIMUM_MANIFEST_BYTES)
    if data is None or manifest_digest(data) != outcome.manifest:
        # Rank 0 saw it whole a moment ago; this rank sees something else, so nobody may go on.
        message = f"manifest is not the committed one: {key}"
        finding = Finding(reason=Reason.COMMIT_MISMATCH, message=message, offender=key)
        raise ResumeRefused(message, findings=(finding,))
    manifest, copy = parse_manifest(data, key), None
    directory = location.store.local_directory(location.keys.artifacts(generation))
    if directory is None:
        copy = _copied(location.of(generation), manifest, outcome.manifest, patience)
        directory = copy.path / manifest.artifacts[0].path if manifest.is_single_file else copy.path
    return ResumedGeneration(generation=generation, manifest=manifest, directory=directory), copy


def _copied(generation: Location, manifest: Manifest, digest: str, patience: timedelta) -> SharedCopy:
    """The artifacts of a generation on this machine, fetched by the first rank here that wants them."""
    prefix = manifest.prefix(generation.keys)

    def fill(directory: Path) -> None:
        findings = fetch_artifacts(generation.store, generation.keys, prefix, manifest, directory)
        if findings:
            raise ResumeRefused(f"not loadable: {generation.uri}: {findings[0].message}", findings=findings)

    name = hash_bytes(f"{generation.uri} {digest}".encode()).value[:32]
    return SharedCopy(f"resume-{name}", fill, patience=patience)
