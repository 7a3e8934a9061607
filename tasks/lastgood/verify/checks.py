"""Judging a manifest, and what storage lists, without touching storage.

Decides what is a finding and what is a note; leaves reading to `reading` and bytes to `generation`. Rules: every
function looks at everything and names every offender; what a rank owns, every rank must own; a file that a loader
could pick up by globbing is refused, one that no loader reads is a note.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from fnmatch import fnmatchcase

from lastgood.digest import Digest
from lastgood.manifest import REQUIRED_COMPONENTS, Artifact, Component, Manifest, Purpose
from lastgood.stores.port import ObjectKind, StoredObject
from lastgood.verdict import Finding, Note, NoteReason, Reason
from lastgood.verify.reading import MAXIMUM_EXTRA_FILES, Listing, ancestors

__all__ = [
    "check_components",
    "check_extras",
    "check_presence",
    "check_purpose",
    "check_ranks",
    "check_sizes",
    "is_stray",
    "place",
    "size_mismatch",
]

READ_THOUGH_HIDDEN = ".metadata"
"""The one hidden name that a loader opens: the index of torch's distributed checkpoints."""

_STRAY_NAMES = ("*~", "#*#", "Thumbs.db", "desktop.ini")


def place(manifest: Manifest) -> str:
    """How messages name the generation."""
    return f"{manifest.family}/{manifest.generation}"


def is_stray(path: str) -> bool:
    """Whether no loader would read a file of this name: hidden (NFS, macOS, editors), or a backup copy."""
    parts = path.split("/")
    if any(part.startswith(".") and not part.startswith(READ_THOUGH_HIDDEN) for part in parts):
        return True
    return any(fnmatchcase(parts[-1], pattern) for pattern in _STRAY_NAMES)


def check_presence(manifest: Manifest, listing: Listing, directory: str) -> tuple[Finding, ...]:
    """Every artifact is there, and is a regular file."""
    if "" in listing:
        return (_not_regular(directory, listing[""].kind),)
    if not listing and not manifest.is_single_file:
        message = (
            f"generation directory missing: {directory}: manifest lists {len(manifest.artifacts)} artifacts, found none"
        )
        return (Finding(reason=Reason.ARTIFACT_MISSING, message=message, offender=directory),)
    findings: dict[str, Finding] = {}
    for artifact in manifest.artifacts:
        stored = listing.get(artifact.path)
        if stored is None:
            hidden = next((parent for parent in ancestors(artifact.path) if parent in listing), None)
            if hidden is None:
                findings[artifact.path] = _missing(artifact, manifest)
            else:
                findings[hidden] = _not_regular(hidden, listing[hidden].kind)
        elif stored.kind is not ObjectKind.FILE:
            findings[artifact.path] = _not_regular(artifact.path, stored.kind)
    return tuple(findings.values())


def _missing(artifact: Artifact, manifest: Manifest) -> Finding:
    shard = artifact.rank is not None
    owner = f", owned by rank {artifact.rank}" if shard else ""
    return Finding(
        reason=Reason.SHARD_MISSING if shard else Reason.ARTIFACT_MISSING,
        message=(
            f"{'shard' if shard else 'artifact'} missing: {artifact.path} in {place(manifest)}: "
            f"manifest lists {artifact.bytes} bytes{owner}, object not found"
        ),
        offender=artifact.path,
    )


def _not_regular(path: str, kind: ObjectKind) -> Finding:
    what = {ObjectKind.FILE: "a file", ObjectKind.LINK: "a symbolic link"}.get(kind, "a directory, pipe or device")
    return Finding(
        reason=Reason.ARTIFACT_NOT_REGULAR,
        message=f"not a regular file: {path}: found {what}",
        offender=path,
        found=str(kind),
    )


def check_sizes(manifest: Manifest, listing: Listing) -> tuple[tuple[Artifact, StoredObject], ...]:
    """The artifacts that are there under another length than the manifest lists."""
    return tuple(
        (artifact, stored)
        for artifact in manifest.artifacts
        if (stored := listing.get(artifact.path)) is not None
        and stored.kind is ObjectKind.FILE
        and stored.bytes != artifact.bytes
    )


def size_mismatch(artifact: Artifact, found_bytes: int, manifest: Manifest) -> Finding:
    """The finding for one artifact of another length."""
    return Finding(
        reason=Reason.SIZE_MISMATCH,
        message=(
            f"size mismatch: {artifact.path} in {place(manifest)}: expected {artifact.bytes} bytes, found {found_bytes}"
        ),
        offender=artifact.path,
        expected=str(artifact.bytes),
        found=str(found_bytes),
    )


def check_extras(manifest: Manifest, listing: Listing) -> tuple[tuple[Finding, ...], tuple[Note, ...]]:
    """Files that the manifest does not list: findings if a loader could read them, notes if none would."""
    if len(listing) == len(manifest.artifacts) and all(artifact.path in listing for artifact in manifest.artifacts):
        return (), ()
    expected = {artifact.path for artifact in manifest.artifacts}
    hiding = {parent for path in expected for parent in ancestors(path)}
    findings, notes = [], []
    extras = sorted(set(listing) - expected - hiding - {""})
    if len(extras) > MAXIMUM_EXTRA_FILES:
        message = f"too many files: {place(manifest)}: more than {MAXIMUM_EXTRA_FILES} that the manifest does not list"
        findings.append(Finding(reason=Reason.UNEXPECTED_FILE, message=message, offender="."))
    for path in extras:
        if is_stray(path):
            message = f"stray file: {path} in {place(manifest)}: not in the manifest"
            notes.append(Note(reason=NoteReason.STRAY_FILE, message=message, offender=path))
        else:
            message = f"unexpected file: {path} in {place(manifest)}: the manifest does not list it"
            findings.append(Finding(reason=Reason.UNEXPECTED_FILE, message=message, offender=path))
    return tuple(findings), tuple(notes)


def check_ranks(manifest: Manifest) -> tuple[Finding, ...]:
    """What one rank owns, every rank owns, and no two ranks hold one random state."""
    owned: dict[Component, dict[int, Artifact]] = defaultdict(dict)
    for artifact in manifest.artifacts:
        if artifact.rank is not None:
            owned[artifact.component][artifact.rank] = artifact
    world_size = manifest.job.topology.world_size
    findings = []
    for component, by_rank in owned.items():
        missing = [rank for rank in range(world_size) if rank not in by_rank] if len(by_rank) < world_size else []
        if missing:
            shown = ", ".join(map(str, missing[:20])) + (", …" if len(missing) > 20 else "")
            findings.append(
                Finding(
                    reason=Reason.WORLD_SIZE_MISMATCH,
                    message=(
                        f"ranks missing: {component} in {place(manifest)}: "
                        f"world size is {world_size}, no artifact of rank {shown}"
                    ),
                    offender=str(component),
                    expected=str(world_size),
                    found=str(len(by_rank)),
                )
            )
    return (*findings, *_duplicates(manifest))


def _duplicates(manifest: Manifest) -> Iterator[Finding]:
    """Ranks whose stored random state is another rank's, although their live draws were not the same.

    Two ranks may lawfully share a random state (tensor-parallel ranks do). What their streams were about to draw, told
    before anything was serialised, says whether they did.
    """
    draws = {entry.rank: entry.rng_draws for entry in manifest.expectations.ranks} if manifest.expectations else {}
    first: dict[Digest, Artifact] = {}
    for artifact in manifest.artifacts:
        if artifact.component is not Component.RNG or artifact.rank is None:
            continue
        other = first.setdefault(artifact.digests[0], artifact)
        if other is artifact or other.rank == artifact.rank or other.rank is None:
            continue
        mine, theirs = draws.get(artifact.rank), draws.get(other.rank)
        if mine and mine == theirs:
            continue
        yield Finding(
            reason=Reason.RANK_DUPLICATED,
            message=(
                f"rank duplicated: {artifact.path} in {place(manifest)}: rank {artifact.rank} holds the random state "
                f"of rank {other.rank}"
            ),
            offender=artifact.path,
            expected="a state of its own",
            found=other.path,
        )


def check_components(manifest: Manifest) -> tuple[tuple[Finding, ...], tuple[Note, ...]]:
    """A resumable checkpoint holds every required component or says why not; both are written down.

    A component of which tensors were live at the save is required too: an average of the weights that nobody wrote.
    """
    absent = {entry.component for entry in manifest.job.absent}
    notes = tuple(
        Note(
            reason=NoteReason.COMPONENT_ABSENT_ON_PURPOSE,
            message=f"absent on purpose: {entry.component}: {entry.reason}",
            offender=str(entry.component),
        )
        for entry in manifest.job.absent
    )
    if manifest.job.purpose is not Purpose.RESUMABLE:
        return (), notes
    findings = tuple(
        Finding(
            reason=Reason.COMPONENT_MISSING,
            message=f"component missing: {component} in {place(manifest)}: neither present nor declared absent",
            offender=str(component),
        )
        for component in dict.fromkeys((*REQUIRED_COMPONENTS, *_live_components(manifest)))
        if component not in manifest.present and component not in absent
    )
    return findings, notes


def _live_components(manifest: Manifest) -> tuple[Component, ...]:
    """Components of which a tensor was digested when the checkpoint was saved; keys begin with the component's name."""
    ranks = manifest.expectations.ranks if manifest.expectations else ()
    words = {key.partition(".")[0] for rank in ranks for key in rank.tensor_digests}
    return tuple(component for component in Component if component.value in words)


def check_claims(manifest: Manifest) -> tuple[Finding, ...]:
    """What a manifest alone shows to be missing from a checkpoint that training is to resume from.

    Asked before a save is acknowledged, too. An export of weights claims nothing that could be missing.
    """
    if manifest.job.purpose is not Purpose.RESUMABLE:
        return ()
    return (*check_ranks(manifest), *check_components(manifest)[0])


def check_purpose(manifest: Manifest) -> tuple[Finding, ...]:
    """The checkpoint was saved to be resumed."""
    purpose = manifest.job.purpose
    if purpose is Purpose.RESUMABLE:
        return ()
    return (
        Finding(
            reason=Reason.PURPOSE_NOT_RESUMABLE,
            message=f"not resumable: {place(manifest)}: expected purpose {Purpose.RESUMABLE}, found {purpose}",
            offender="purpose",
            expected=Purpose.RESUMABLE.value,
            found=purpose.value,
        ),
    )
