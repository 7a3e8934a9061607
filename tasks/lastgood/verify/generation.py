"""Tier 1: is this generation what its manifest and commit marker claim, byte for byte, and may it be resumed?

Decides which checks are made, in which order, and when one cannot be made. Leaves to the caller how much is read, what
is wrong with a manifest or a listing to `checks`, whom a marker follows to `lineage`, and where wrong bytes came from
to `origins`. Rules: every check is reported, made or not; trouble of the store makes a check inconclusive, never passed
and never failed; artifacts are judged only by a manifest that is this generation's and that the marker vouches for. The
question is always whether training may resume from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum
from typing import Protocol, TypeVar

from lastgood.digest import Algorithm, Digest, HashRequest
from lastgood.errors import FormatError, StoreError, StoreTransientError, UsageError
from lastgood.identity import FamilyKeys, GenerationId
from lastgood.manifest import Artifact, Manifest
from lastgood.markers import Commit
from lastgood.protocol import perform, take_survey
from lastgood.stores.port import Hashed, ObjectKind, Progress, Recorded, Store, StoredObject, Trouble
from lastgood.text import counted
from lastgood.verdict import Check, CheckState, Finding, Note, Reason, Rung, Slice, Tier, Verdict, judge
from lastgood.verify.checks import (
    check_components,
    check_extras,
    check_presence,
    check_purpose,
    check_ranks,
    check_sizes,
    place,
    size_mismatch,
)
from lastgood.verify.lineage import check_chain, check_standing, find_predecessor
from lastgood.verify.origins import Origins
from lastgood.verify.reading import (
    Listing,
    StoredCommit,
    list_artifacts,
    read_commit_marker,
    read_stored_manifest,
)
from lastgood.verify.shares import cut_shares

__all__ = [
    "Depth",
    "Read",
    "algorithms_of",
    "comparable_digests",
    "read_whole",
    "verify_generation",
    "wrong_bytes",
]

_Answer = TypeVar("_Answer")


class Read(Protocol):
    """Hashes artifacts of one prefix, in order, failures beside results: `Store.hash`, or what spreads it."""

    def __call__(
        self, prefix: str, requests: Sequence[HashRequest], progress: Progress | None = None, /
    ) -> Iterator[Hashed]: ...


_STORED = ("completeness", "sizes", "unexpected_files")
_CLAIMED = ("ranks", "components", "purpose")
REQUIRED = ("commit", "manifest", "identity", *_CLAIMED, *_STORED, "chain", "standing")


class Depth(StrEnum):
    """How far to look: `metadata` reads documents and lists artifacts, `full` reads every byte."""

    METADATA = "metadata"
    FULL = "full"


def verify_generation(
    store: Store,
    keys: FamilyKeys,
    generation: GenerationId,
    *,
    depth: Depth = Depth.FULL,
    part: Slice | None = None,
    progress: Progress | None = None,
    trouble: Callable[[StoreError], None] = lambda error: None,
    read: Read | None = None,
) -> Verdict:
    """Verify one generation (tier 1).

    Args:
        store: Where.
        keys: The family.
        generation: Which.
        depth: `full` hashes every artifact.
        part: Of `full`, which slices; None: all of them.
        progress: Told how many bytes have been hashed so far.
        trouble: Told of whatever made a check inconclusive; the store says whether asking again may help.
        read: Hashes artifacts in the place of the store's own `hash`, with the same promise: to spread a reading.

    Raises:
        UsageError: Nothing of that name was ever published.
    """
    return _Verification(store, keys, generation, depth, part, progress, trouble, read or store.hash).run()


def read_whole(store: Store, keys: FamilyKeys, generation: GenerationId) -> tuple[Finding, ...]:
    """What reading every byte of a generation finds, for whoever offers it and records nothing.

    Raises:
        StoreTransientError: Nobody could tell; never an answer in silence.
    """
    verdict = verify_generation(store, keys, generation)
    if not verdict.outcome.is_conclusive:
        unclear = next(check for check in verdict.checks if not check.outcome.is_conclusive)
        raise StoreTransientError(f"cannot read {generation}: {unclear.name}: {unclear.detail}")
    return verdict.findings


class _Verification:
    """One call of `verify_generation`: the checks made so far."""

    def __init__(
        self,
        store: Store,
        keys: FamilyKeys,
        generation: GenerationId,
        depth: Depth,
        part: Slice | None,
        progress: Progress | None,
        trouble: Callable[[StoreError], None],
        read: Read,
    ) -> None:
        self._store = store
        self._keys = keys
        self._generation = generation
        self._depth = depth
        self._part = part if depth is Depth.FULL else None
        self._progress = progress
        self._trouble = trouble
        self._read = read
        self._directory = keys.artifacts(generation)
        self._checks: dict[str, Check] = {}
        self._notes: list[Note] = []

    def run(self) -> Verdict:
        commit = self._check_commit()
        if commit is not None and commit.marker is not None and commit.marker.burned:
            self._skip((*REQUIRED[1:-1], "digests"), "the slot is burned")
        else:
            manifest = self._check_manifest(commit.marker if commit else None)
            if manifest is None:
                self._skip((*_CLAIMED, *_STORED, "digests"), "no manifest that could be trusted")
            else:
                self._check_claims(manifest)
                self._check_stored(manifest)
            self._check_chain(commit)
        self._check_standing()
        full = self._depth is Depth.FULL
        return judge(
            tier=Tier.MANIFEST,
            rung=Rung.ROTATING if self._part else Rung.FULL if full else Rung.METADATA_ONLY,
            subject=f"{self._keys.family}/{self._generation}",
            checks=self._checks.values(),
            notes=self._notes,
            required=(*REQUIRED, "digests") if full else REQUIRED,
            slice=self._part,
        )

    # Bookkeeping.

    def _ran(self, name: str, detail: str, findings: Iterable[Finding] = ()) -> None:
        self._checks[name] = Check(name=name, state=CheckState.RAN, detail=detail, findings=tuple(findings))

    def _skip(self, names: Iterable[str], why: str) -> None:
        for name in names:
            self._checks[name] = Check(name=name, state=CheckState.NOT_RUN, detail=why)

    def _ask(self, names: Iterable[str], question: Callable[[], _Answer]) -> _Answer | None:
        """Answer a question to the store; if it cannot tell, the named checks are inconclusive and None is returned."""
        try:
            return question()
        except StoreError as error:
            names = tuple(names)
            for name in names:
                self._checks[name] = Check(name=name, state=CheckState.INCONCLUSIVE, detail=error.message)
            if names:
                self._trouble(error)
            return None

    # Documents.

    def _check_commit(self) -> StoredCommit | None:
        commit = self._ask(("commit",), lambda: read_commit_marker(self._store, self._keys, self._generation))
        if commit is None:
            return None
        findings = commit.findings
        if commit.data is None and commit.findings[0].reason is Reason.COMMIT_MISSING:
            self._refuse_unknown()
        if commit.marker is not None and commit.marker.burned:
            message = f"slot burned: {self._keys.family}/{self._generation}: its publish was abandoned"
            offender = self._keys.commit(self._generation)
            findings = (Finding(reason=Reason.GENERATION_BURNED, message=message, offender=offender),)
        self._ran("commit", self._keys.commit(self._generation), findings)
        return commit

    def _refuse_unknown(self) -> None:
        """A name that nothing was ever published under is a mistake of the caller's, not a damaged checkpoint."""
        try:
            known = self._store.stat(self._keys.manifest(self._generation)) or self._store.stat(self._directory)
            listed = known or next(iter(self._store.walk(self._directory)), None)
        except StoreError:
            return
        if listed is None:
            raise UsageError(
                f"no such generation: {self._store.uri}/{self._keys.family}/{self._generation}",
                hint="`lastgood status` lists the generations of a family",
            )

    def _check_manifest(self, marker: Commit | None) -> Manifest | None:
        stored = self._ask(
            ("manifest", "identity"),
            lambda: read_stored_manifest(self._store, self._keys, self._generation, marker),
        )
        if stored is None:
            return None
        bound = "bound by the marker" if marker else "no marker vouches for it"
        self._ran("manifest", f"{stored.digest or 'no bytes'}, {bound}", stored.findings)
        if stored.manifest is None:
            self._skip(("identity",), "no lawful manifest")
        else:
            self._ran("identity", f"{self._keys.family}/{self._generation}", stored.identity)
        return stored.trusted

    def _check_claims(self, manifest: Manifest) -> None:
        world_size = manifest.job.topology.world_size
        self._ran("ranks", f"world size {world_size}", check_ranks(manifest))
        findings, notes = check_components(manifest)
        self._ran("components", ", ".join(manifest.present), findings)
        self._notes.extend(notes)
        self._ran("purpose", manifest.job.purpose.value, check_purpose(manifest))

    # Artifacts.

    def _check_stored(self, manifest: Manifest) -> None:
        self._directory = manifest.prefix(self._keys)
        listing = self._ask((*_STORED, "digests"), lambda: list_artifacts(self._store, self._directory, manifest))
        if listing is None:
            return
        count = len(manifest.artifacts)
        absent = check_presence(manifest, listing, self._directory)
        self._ran("completeness", f"{count - len(absent)} of {counted(count, 'artifact')}", absent)
        wrong = check_sizes(manifest, listing)
        origins = Origins(self._store, self._keys, manifest)
        if self._depth is Depth.FULL:
            sizes = self._explain_sizes(manifest, wrong, origins)
        else:
            sizes = [size_mismatch(artifact, found.bytes, manifest) for artifact, found in wrong]
        self._ran("sizes", f"{manifest.total_bytes} bytes listed", sizes)
        extras, notes = check_extras(manifest, listing)
        self._ran("unexpected_files", f"found {counted(len(listing), 'file')}", extras)
        self._notes.extend(notes)
        if self._depth is Depth.FULL:
            self._check_digests(manifest, _hashable(manifest, listing), origins)
        else:
            self._skip(("digests",), "payload was not read: depth is metadata")

    def _explain_sizes(
        self, manifest: Manifest, wrong: Sequence[tuple[Artifact, StoredObject]], origins: Origins
    ) -> list[Finding]:
        """Name files of another length; those as long as some other artifact are read to see whether they are it."""
        requests = [
            HashRequest(path=artifact.path, algorithms=algorithms_of(artifact), size_bytes=found.bytes)
            for artifact, found in wrong
            if algorithms_of(artifact) and origins.is_length_known(found.bytes)
        ]
        # An answer sharpens the finding; without one it stays a wrong size.
        hashed = self._ask((), lambda: tuple(self._store.hash(self._directory, requests))) if requests else ()
        digests = {result.path: result.digests for result in hashed or ()}
        return [
            _foreign(artifact, found.bytes, digests.get(artifact.path, ()), origins, manifest)
            or size_mismatch(artifact, found.bytes, manifest)
            for artifact, found in wrong
        ]

    def _check_digests(self, manifest: Manifest, hashable: Sequence[Artifact], origins: Origins) -> None:
        asked, findings = _chosen(manifest, self._part), list[Finding]()
        unread = [f"{a.path}: only composite digests are listed" for a in asked if not algorithms_of(a)]
        held = held_bytes = vouched = 0
        try:
            suspects, vouched = self._compare_checksums(hashable, besides=asked)
            wanted = {artifact.path for artifact in (*asked, *suspects)}
            artifacts = [artifact for artifact in hashable if artifact.path in wanted]
            requests = [HashRequest(path=a.path, algorithms=algorithms_of(a), size_bytes=a.bytes) for a in artifacts]
            hashed = self._read(self._directory, requests, self._progress)
            for artifact, found in zip(artifacts, hashed, strict=True):
                if found.trouble is None and found.digests == comparable_digests(artifact):
                    held += 1
                    held_bytes += artifact.bytes
                elif found.trouble in (Trouble.UNREADABLE, Trouble.CHANGED):
                    # A committed artifact that changes while it is read will say more when it is read again.
                    unread.append(f"{artifact.path}: {found.message}")
                    changed = found.trouble is Trouble.CHANGED
                    self._trouble((StoreTransientError if changed else StoreError)(unread[-1]))
                elif self._is_confirmed(artifact, found, unread):
                    findings.append(wrong_bytes(artifact, found, origins, manifest))
        except StoreError as error:
            # What was found before the store failed stays found.
            unread.append(error.message)
            self._trouble(error)
        detail = f"{held} of {counted(len(manifest.artifacts), 'artifact')}, {held_bytes} bytes"
        if self._part:
            detail = f"{_sliced(self._part, manifest, asked)}; held: {detail}; by the store's checksum {vouched} more"
        if unread:
            detail = f"{detail}; could not read {len(unread)}: {'; '.join(unread[:5])}"
        state = CheckState.INCONCLUSIVE if unread else CheckState.RAN
        self._checks["digests"] = Check(name="digests", state=state, detail=detail, findings=tuple(findings))

    def _compare_checksums(
        self, hashable: Iterable[Artifact], *, besides: Iterable[Artifact]
    ) -> tuple[list[Artifact], int]:
        """Of what is not read: artifacts whose kept checksum is not the recorded one, and how many have the right one.

        A checksum refuses nothing by itself, for what it speaks of may have been sent anew: it names what to read.
        """
        asked = {artifact.path for artifact in besides}
        known = [(a, composite) for a in hashable if a.path not in asked and (composite := _composite(a))]
        recorded = [Recorded(path=a.path, bytes=a.bytes, composite=composite) for a, composite in known]
        answers = list(self._store.compare_checksums(self._directory, recorded)) if recorded else []
        suspects = [artifact for (artifact, _), agrees in zip(known, answers, strict=True) if agrees is False]
        return suspects, answers.count(True)

    def _is_confirmed(self, artifact: Artifact, first: Hashed, unread: list[str]) -> bool:
        """What is wrong fails a checkpoint only when met twice, the second time by whoever judges: what a transfer
        flipped is not what is stored, and what one of many readers does not find may be there.
        """
        request = HashRequest(path=artifact.path, algorithms=algorithms_of(artifact), size_bytes=artifact.bytes)
        (again,) = self._store.hash(self._directory, (request,))
        if again != first:
            once = f"one of two readings: {first.message}" if first.message else "two readings gave different bytes"
            unread.append(f"{artifact.path}: {again.message or once}")
            self._trouble(StoreTransientError(unread[-1]))
        return again == first

    # The family around it.

    def _check_chain(self, commit: StoredCommit | None) -> None:
        if commit is None or commit.marker is None:
            self._skip(("chain",), "no commit marker that could be followed")
            return
        predecessor = self._ask(("chain",), lambda: find_predecessor(self._store, self._keys, self._generation))
        if predecessor is not None:
            findings = check_chain(commit.marker, predecessor, self._keys.commit(self._generation))
            self._ran("chain", f"follows {predecessor.name}", findings)

    def _check_standing(self) -> None:
        try:
            survey = self._ask(("standing",), lambda: perform(self._store, take_survey(self._keys)))
        except FormatError as error:
            offender = error.where or self._keys.incarnations
            finding = Finding(reason=Reason.DECISION_MALFORMED, message=error.message, offender=offender)
            self._ran("standing", "a document that decides is not lawful", (finding,))
            return
        if survey is not None:
            findings = check_standing(self._keys, self._generation, survey)
            self._ran("standing", f"decided by incarnation {survey.cut.decided_by}", findings)


def _hashable(manifest: Manifest, listing: Listing) -> list[Artifact]:
    """Artifacts that are there in the listed length and that list a digest over their bytes."""
    return [
        artifact
        for artifact in manifest.artifacts
        if (stored := listing.get(artifact.path)) is not None
        and stored.kind is ObjectKind.FILE
        and stored.bytes == artifact.bytes
        and algorithms_of(artifact)
    ]


def _chosen(manifest: Manifest, part: Slice | None) -> tuple[Artifact, ...]:
    """The artifacts that lie in the slices; all of them where no part is named."""
    if part is None:
        return manifest.artifacts
    shares = cut_shares(manifest.artifacts, part.rotation, lambda artifact: artifact.bytes)
    return tuple(artifact for number in sorted(part.numbers) for artifact in shares[number])


def _sliced(part: Slice, manifest: Manifest, asked: Sequence[Artifact]) -> str:
    """In words: which slices were asked for, and what was not."""
    numbers = ", ".join(str(number + 1) for number in part.numbers)
    read_bytes = sum(artifact.bytes for artifact in asked)
    return (
        f"slice {numbers} of {part.rotation} ({min(part.done, part.rotation)} read in succession): "
        f"{counted(len(asked), 'artifact')}, {read_bytes} bytes; "
        f"not read: {counted(len(manifest.artifacts) - len(asked), 'artifact')}, "
        f"{manifest.total_bytes - read_bytes} bytes"
    )


def _composite(artifact: Artifact) -> Digest | None:
    return next((digest for digest in artifact.digests if digest.part_bytes is not None), None)


def comparable_digests(artifact: Artifact) -> tuple[Digest, ...]:
    """The digests over the artifact's bytes; a composite is a digest over other digests."""
    if len(artifact.digests) == 1 and artifact.digests[0].part_bytes is None:
        return artifact.digests
    return tuple(digest for digest in artifact.digests if digest.part_bytes is None)


def algorithms_of(artifact: Artifact) -> tuple[Algorithm, ...]:
    """What to hash an artifact by, so that the result compares with `comparable_digests`."""
    return tuple(digest.algorithm for digest in comparable_digests(artifact))


def wrong_bytes(artifact: Artifact, found: Hashed, origins: Origins, manifest: Manifest) -> Finding:
    """What is wrong with bytes that were read and are not the artifact's."""
    if found.trouble is Trouble.SIZE:
        return size_mismatch(artifact, found.bytes or 0, manifest)
    if found.trouble is Trouble.MISSING:
        message = f"artifact vanished: {artifact.path} in {place(manifest)}: listed, then not found"
        return Finding(reason=Reason.ARTIFACT_MISSING, message=message, offender=artifact.path)
    if found.trouble is not None:
        return Finding(reason=Reason.ARTIFACT_NOT_REGULAR, message=found.message, offender=artifact.path)
    foreign = _foreign(artifact, artifact.bytes, found.digests, origins, manifest)
    expected, digest = next(
        (str(mine), str(other))
        for mine, other in zip(comparable_digests(artifact), found.digests, strict=True)
        if mine != other
    )
    return foreign or Finding(
        reason=Reason.DIGEST_MISMATCH,
        message=f"digest mismatch: {artifact.path} in {place(manifest)}: expected {expected}, found {digest}",
        offender=artifact.path,
        expected=expected,
        found=digest,
    )


def _foreign(
    artifact: Artifact, found_bytes: int, digests: tuple[Digest, ...], origins: Origins, manifest: Manifest
) -> Finding | None:
    origin = origins.find(found_bytes, digests)
    if origin is None:
        return None
    return Finding(
        reason=origin.reason,
        message=f"bytes of another file: {artifact.path} in {place(manifest)}: holds {origin.place}",
        offender=artifact.path,
        expected=str(comparable_digests(artifact)[0]),
        found=str(digests[0]),
    )
