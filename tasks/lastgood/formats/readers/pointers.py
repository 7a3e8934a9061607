"""A root whose framework resumes what a small text file names.

Decides what a pointer's text may be and which finding a bad one is. Leaves the file's name, and the names of
checkpoints, to each reader. Rule: a pointer names a sibling; one that leads elsewhere is not followed.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from lastgood.errors import FormatError
from lastgood.formats.root import DIRECTORY, FILE, LINK, OTHER, Candidate, Choice, Root
from lastgood.verdict import Finding, Reason

__all__ = ["candidates_by", "choose_by_pointer", "dangling", "pointer_malformed", "uncommitted"]

_MAXIMUM_NAME = 255


def candidates_by(root: Root, pattern: re.Pattern[str]) -> tuple[Candidate, ...]:
    """The directories whose whole name matches, by the number in its first group, newest first."""
    found = [(int(match[1]), name) for name in root.names.directories if (match := pattern.fullmatch(name))]
    return tuple(Candidate(name=name, step=step) for step, name in sorted(found, reverse=True))


def dangling(pointer: str, target: str) -> Finding:
    """A pointer to what is not there."""
    message = f"pointer dangling: {pointer}: names {target!r}, found no such directory"
    return Finding(reason=Reason.POINTER_DANGLING, message=message, offender=pointer, expected=target)


def pointer_malformed(pointer: str, text: str) -> Finding:
    """A pointer that names no sibling, or nothing, or is no file."""
    shown = text if text in (DIRECTORY, LINK, OTHER) else repr(text[:_MAXIMUM_NAME] + "…" * (len(text) > _MAXIMUM_NAME))
    message = f"pointer malformed: {pointer}: expected the name of a directory beside it, found {shown}"
    return Finding(reason=Reason.POINTER_MALFORMED, message=message, offender=pointer)


def uncommitted(pointer: str, target: str, why: str) -> Finding:
    """A pointer to what no loader of the framework could load."""
    message = f"pointer to an incomplete checkpoint: {pointer}: names {target}: {why}"
    return Finding(reason=Reason.POINTER_UNCOMMITTED, message=message, offender=pointer, expected=target)


def _is_empty(root: Root, name: str) -> bool:
    names = root.store.names(f"{root.prefix}/{name}" if root.prefix else name)
    return not names.files and not names.directories


def choose_by_pointer(
    root: Root,
    *,
    pointer: str,
    pattern: re.Pattern[str],
    rule: str,
    without_pointer: str,
    target_of: Callable[[str], str | None] = str,
    on_dangling: str = "fails",
) -> Choice | None:
    """The choice of a framework that follows a pointer; None where neither it nor a checkpoint of its name is there.

    Args:
        root: The directory.
        pointer: Name of the file.
        pattern: Names of checkpoints, their step in the first group.
        rule: In words.
        without_pointer: What the framework does where the pointer is not there.
        target_of: From the pointer's text to the name of a directory; None where the text is not lawful.
        on_dangling: What the framework does where the pointer names nothing that is there.
    """
    candidates = candidates_by(root, pattern)
    lies = root.kind_of_pointer(pointer)
    if lies is None or (lies in (DIRECTORY, LINK) and not candidates):
        # A directory or a link of that name beside no checkpoint of this framework is somebody else's.
        if not candidates:
            return None
        return Choice(rule=rule, picked=None, candidates=candidates, pointer=pointer, consequence=without_pointer)
    if lies != FILE:
        # What is no file is no pointer to a framework that asks first whether it is one.
        return Choice(
            rule=rule,
            picked=None,
            candidates=candidates,
            pointer=pointer,
            findings=(pointer_malformed(pointer, lies),),
            consequence=without_pointer,
        )
    try:
        text = root.pointer(pointer) or ""
        target = target_of(text) if text else None
    except FormatError as error:
        text, target = error.message, None
    if target is None or "/" in target or target in (".", "..") or len(target) > _MAXIMUM_NAME or "\0" in target:
        findings: tuple[Finding, ...] = (pointer_malformed(pointer, text),)
        target = None
    elif target not in root.names.directories:
        findings, target = (dangling(pointer, target),), None
    elif _is_empty(root, target):
        findings = (uncommitted(pointer, target, "the directory is empty"),)
    else:
        findings = ()
    if target is not None and all(target != candidate.name for candidate in candidates):
        # A tag of the user's own: its name tells no step, so it comes first for being what is loaded.
        candidates = (Candidate(name=target, step=None), *candidates)
    consequence = on_dangling if findings and target is None else None
    return Choice(
        rule=rule, picked=target, candidates=candidates, pointer=pointer, findings=findings, consequence=consequence
    )
