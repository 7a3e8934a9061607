"""What several readers say, said alike: files that are missing, do not belong, are not finished or make no sense.

Decides wording and reason codes, and nothing else. Rule: the offender is the path, so that what was damaged and what
is found can be compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from lastgood.errors import FormatError
from lastgood.formats.source import Source
from lastgood.stores.port import ObjectKind
from lastgood.verdict import Finding, Note, NoteReason, Reason

__all__ = [
    "component_missing",
    "counters_disagree",
    "file_missing",
    "generations_mixed",
    "global_not_allowed",
    "irregular_files",
    "malformed",
    "not_judged",
    "save_unfinished",
    "settled",
    "shard_missing",
    "shown",
    "stray",
    "unexpected_file",
    "wrong_length",
]

_SHOWN = 5


def malformed(error: FormatError, path: str) -> Finding:
    """A file that says of itself that it is no lawful one of its kind."""
    return Finding(reason=error.reason or Reason.CONTAINER_MALFORMED, message=error.message, offender=path)


def shard_missing(path: str, why: str) -> Finding:
    """A file of one rank is not there.

    Args:
        path: Where it should lie.
        why: What says so, e.g. `mp_rank_00_model_states.pt states 2 data-parallel ranks`.
    """
    message = f"shard missing: {path}: {why}, found no such file"
    return Finding(reason=Reason.SHARD_MISSING, message=message, offender=path)


def file_missing(path: str, why: str) -> Finding:
    """A file of the whole job is not there."""
    message = f"file missing: {path}: {why}, found no such file"
    return Finding(reason=Reason.ARTIFACT_MISSING, message=message, offender=path)


def component_missing(offender: str, why: str) -> Finding:
    """A kind of state that this framework saves is not there."""
    return Finding(reason=Reason.COMPONENT_MISSING, message=f"component missing: {offender}: {why}", offender=offender)


def save_unfinished(marker: str, why: str) -> Finding:
    """The sign that the framework writes last is not there."""
    message = f"save unfinished: {marker}: {why}, found no such file"
    return Finding(reason=Reason.SAVE_UNFINISHED, message=message, offender=marker)


def unexpected_file(path: str, why: str) -> Finding:
    """A file that does not belong, and that something would load."""
    return Finding(reason=Reason.UNEXPECTED_FILE, message=f"unexpected file: {path}: {why}", offender=path)


def generations_mixed(path: str, why: str, *, expected: str | None = None, found: str | None = None) -> Finding:
    """A file of another save than the files around it."""
    message = f"file of another save: {path}: {why}"
    if expected is not None and found is not None:
        message = f"{message}: expected {expected}, found {found}"
    return Finding(reason=Reason.GENERATIONS_MIXED, message=message, offender=path, expected=expected, found=found)


def counters_disagree(path: str, why: str, *, expected: int, found: int) -> Finding:
    """Two positions of one checkpoint that cannot both be true."""
    return Finding(
        reason=Reason.COUNTERS_DISAGREE,
        message=f"counters disagree: {path}: {why}: expected {expected}, found {found}",
        offender=path,
        expected=str(expected),
        found=str(found),
    )


def wrong_length(path: str, why: str, *, expected: int, found: int) -> Finding:
    """A file of another length than what refers to it says."""
    return Finding(
        reason=Reason.SIZE_MISMATCH,
        message=f"size mismatch: {path}: {why}: expected {expected} bytes, found {found}",
        offender=path,
        expected=str(expected),
        found=str(found),
    )


def stray(path: str, why: str) -> Note:
    """A file that does not belong, and that nothing would load."""
    return Note(reason=NoteReason.STRAY_FILE, message=f"stray file: {path}: {why}", offender=path)


def not_judged(name: str, framework: str) -> Note:
    """A checkpoint that is recognised and no more."""
    message = f"not judged: {name}: laid out as by {framework}, whose checkpoints have no reader here"
    return Note(reason=NoteReason.FORMAT_NOT_JUDGED, message=message, offender=name)


def settled(source: Source, *findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """All findings of a reader: what is no regular file is that and nothing else, and nothing is said twice."""
    irregular = {finding.offender: finding for finding in irregular_files(source)}
    kept = {(one.reason, one.offender, one.found): one for part in findings for one in part}
    return (*irregular.values(), *(one for one in kept.values() if one.offender not in irregular))


def irregular_files(source: Source) -> Iterator[Finding]:
    """Links, pipes and devices where files should be: a loader would follow them, nothing here does."""
    for path, found in source.files.items():
        if found.kind is not ObjectKind.FILE:
            what = "a symbolic link" if found.kind is ObjectKind.LINK else "a directory, pipe or device"
            message = f"not a regular file: {path}: found {what}"
            yield Finding(reason=Reason.ARTIFACT_NOT_REGULAR, message=message, offender=path, found=str(found.kind))


def shown(items: Iterable[object]) -> str:
    """A few of many, for a message."""
    texts = [str(item) for item in items]
    return ", ".join(texts[:_SHOWN]) + (f", … ({len(texts)} in all)" if len(texts) > _SHOWN else "")


def global_not_allowed(path: str, name: str) -> Finding:
    """A name that unpickling would import, and that no writer of such files uses."""
    message = f"name not allowed: {path}: unpickling it would import {name!r}"
    return Finding(reason=Reason.GLOBAL_NOT_ALLOWED, message=message, offender=path, found=name)
