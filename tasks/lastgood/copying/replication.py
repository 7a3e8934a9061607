"""A family's generations, copied to another store.

Decides what is copied, and in which order it becomes visible. Rules: the source is only read; it is asked in the order
in which every reader asks, what permits before what refuses; a generation's artifacts stand at the destination before
its manifest, and its COMMIT comes last, after what refuses was looked at once more; generations come oldest first, so
that the copy is at every moment a former state of the source. Whatever interrupts a copy, the same command takes it up.
Source: ADR 0008.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from lastgood.copying.papers import Papers
from lastgood.copying.payload import Payload, Standing, stands
from lastgood.errors import UsageError
from lastgood.identity import GenerationId
from lastgood.location import Location
from lastgood.manifest import MAXIMUM_MANIFEST_BYTES, Manifest
from lastgood.markers import Commit
from lastgood.protocol import Survey, perform, take_survey
from lastgood.protocol.requests import MAXIMUM_PROTOCOL_DOCUMENT_BYTES
from lastgood.stores.port import Store
from lastgood.verdict import Finding, Reason
from lastgood.verify import repair_pointers
from lastgood.verify.lineage import commit_before
from lastgood.verify.reading import read_commit_marker, read_stored_manifest

__all__ = ["CopiedGeneration", "CopyResult", "Selection", "copy_family"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which generations of a family are copied.

    Args:
        newest: That many of the newest that may be offered; None for all. The newest proven one always comes along: a
            copy from which no restore ever passed is a hope.
    """

    newest: int | None = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CopiedGeneration:
    """What became of one generation.

    Args:
        generation: Which.
        standing: Whether it stands at the destination.
        copied_bytes: Of artifacts that were read at the source.
        findings: Why it is refused.
        blamed: The store of which they speak.
    """

    generation: str
    standing: Standing
    copied_bytes: int = 0
    findings: tuple[Finding, ...] = ()
    blamed: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyResult:
    """What a copy did.

    Args:
        source: The family's URI.
        destination: The family's URI there.
        generations: Oldest first.
        documents: How many documents were brought beside manifests of kept generations.
        seconds: How long it took.
    """

    source: str
    destination: str
    generations: tuple[CopiedGeneration, ...]
    documents: int
    seconds: float

    @property
    def is_whole(self) -> bool:
        return all(one.standing is not Standing.REFUSED for one in self.generations)


def copy_family(
    source: Location,
    target: Location,
    selection: Selection,
    *,
    announce: Callable[[str], None] = lambda stage: None,
) -> CopyResult:
    """Copy a generation, or some of a family, with everything by which a reader there finds it. May be repeated.

    Args:
        source: The family, or one generation of it, whichever the family thinks of it.
        target: The family of the same name in another store; its root must exist.
        selection: Which of a family's; of no account where the source names a generation.
        announce: Told what begins now, in words.

    Raises:
        CopyRefused: The destination has a history of its own.
        FormatError: A document of the source that decides is not lawful.
        StoreError: A store could not tell, or did not take what was sent.
        UsageError: Not a request that could be carried out.
    """
    began = time.monotonic()
    _refuse_overlap(source, target)
    copy = _Copy(source, target, announce)
    chosen = copy.choose(selection)
    done = copy.run(chosen)
    return CopyResult(
        source=source.family_uri,
        destination=target.family_uri,
        generations=done,
        documents=copy.papers.copied,
        seconds=time.monotonic() - began,
    )


def _refuse_overlap(source: Location, target: Location) -> None:
    if source.keys.family != target.keys.family:
        raise UsageError(
            f"family of another name: {target.family_uri}: expected {source.keys.family}, which every manifest names",
            hint="name a root, or a family of the same name",
        )
    here = source.store.local_directory(source.keys.family)
    there = target.store.local_directory(target.keys.family)
    # The family of a bucket has no directory; its URI tells as much.
    same = f"{target.family_uri}/".startswith(f"{source.family_uri}/")
    if same or (here is not None and there is not None and _lies_in(there, here)):
        raise UsageError(f"copy onto itself: {target.family_uri}: expected another place than {source.family_uri}")


def _lies_in(path: Path, directory: Path) -> bool:
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(directory))


class _Copy:
    """One call of `copy_family`."""

    def __init__(self, source: Location, target: Location, announce: Callable[[str], None]) -> None:
        self._location = source
        self._source, self._target, self._keys = source.store, target.store, source.keys
        self._announce = announce
        self.papers = Papers(self._source, self._target, self._keys)
        self._survey: Survey = perform(self._source, take_survey(self._keys))

    def choose(self, selection: Selection) -> tuple[GenerationId, ...]:
        """Oldest first.

        Raises:
            UsageError: The named generation was never committed, or its slot was given up.
        """
        survey, named = self._survey, self._location.generation
        if named is not None:
            stored = read_commit_marker(self._source, self._keys, named)
            if stored.data is None or (stored.marker is not None and stored.marker.burned):
                raise UsageError(
                    f"not a commit of {self._location.family_uri}: {named}",
                    hint=f"`lastgood inspect {self._location.family_uri}` lists them",
                )
            return (named,)
        chosen = set(islice(self._offerable(), selection.newest))
        if survey.newest_proven is not None:
            chosen.add(survey.newest_proven)
        return tuple(sorted(chosen))

    def _offerable(self) -> Iterator[GenerationId]:
        """Candidates, newest first, without those that no reader would ever be offered."""
        for generation in self._survey.candidates:
            if generation not in self._survey.barred:
                marker = read_commit_marker(self._source, self._keys, generation).marker
                if marker is None or not marker.burned:
                    yield generation

    def run(self, chosen: tuple[GenerationId, ...]) -> tuple[CopiedGeneration, ...]:
        keys = self._keys
        self._target.prepare((keys.incarnations, keys.commits))
        self._announce("claims, decisions and refusals")
        self.papers.bring_what_refuses()
        done = []
        for generation in chosen:
            self._announce(str(generation))
            done.append(self._copy(generation))
        self._announce("evidence and pointers")
        here = {GenerationId.find(name) for name in self._target.names(keys.commits).files}
        self.papers.bring_what_permits(self._survey, frozenset(one for one in here if one is not None))
        repair_pointers(self._target, keys)
        return tuple(done)

    def _copy(self, generation: GenerationId) -> CopiedGeneration:
        keys = self._keys
        commit = read_commit_marker(self._source, keys, generation)
        stored = read_stored_manifest(self._source, keys, generation, commit.marker)
        if commit.marker is None or commit.data is None or stored.trusted is None:
            return _refused(generation, (*commit.findings, *stored.findings, *stored.identity), self._source)
        there = self._target.get(keys.commit(generation), limit_bytes=MAXIMUM_PROTOCOL_DOCUMENT_BYTES)
        if there is not None and there != commit.data:
            return _refused(generation, (self._other(keys.commit(generation)),), self._target)
        if there is not None and self._has(stored.trusted, commit.marker):
            return CopiedGeneration(generation=str(generation), standing=Standing.KEPT)
        payload = Payload(self._source, self._target, keys, stored.trusted)
        if findings := payload.bring():
            return CopiedGeneration(
                generation=str(generation),
                standing=Standing.REFUSED,
                copied_bytes=payload.copied_bytes,
                findings=findings,
                blamed=payload.blamed,
            )
        if findings := self._make_visible(generation, commit.data):
            return _refused(generation, findings, self._target)
        return CopiedGeneration(generation=str(generation), standing=Standing.COPIED, copied_bytes=payload.copied_bytes)

    def _has(self, manifest: Manifest, marker: Commit) -> bool:
        """Whether the destination holds everything of a generation whose COMMIT it has."""
        stored = read_stored_manifest(self._target, self._keys, manifest.id, marker)
        return stored.trusted is not None and stands(self._target, self._keys, manifest)

    def _make_visible(self, generation: GenerationId, commit: bytes) -> tuple[Finding, ...]:
        """Write what names a generation whose artifacts stand at the destination."""
        keys, papers = self._keys, self.papers
        manifest = self._source.get(keys.manifest(generation), limit_bytes=MAXIMUM_MANIFEST_BYTES)
        before = commit_before(self._source, keys, generation)
        if before is not None and before[1].data is not None:
            # A marker names the one before it. Where that one is not copied, its marker alone is, to be followed.
            previous, marker = before[0], before[1].data
            if self._target.stat(keys.commit(previous)) is None:
                papers.create(f"{keys.omitted}/{previous}", marker)
        # Late, and together: a manifest without its COMMIT is what a sweep takes for a publish that died.
        if manifest is None or not papers.create(keys.manifest(generation), manifest):
            return (self._other(keys.manifest(generation)),)
        papers.bring_what_refuses()
        return () if papers.create(keys.commit(generation), commit) else (self._other(keys.commit(generation)),)

    def _other(self, key: str) -> Finding:
        message = f"another document at the copy: {self._target.uri}/{key}: expected the bytes of the source's"
        return Finding(reason=Reason.COMMIT_MISMATCH, message=message, offender=key)


def _refused(generation: GenerationId, findings: tuple[Finding, ...], blamed: Store) -> CopiedGeneration:
    return CopiedGeneration(generation=str(generation), standing=Standing.REFUSED, findings=findings, blamed=blamed.uri)
