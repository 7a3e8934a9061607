"""How the command line shows checkpoints that another framework wrote: one screen for each, one table for many.

Decides the words and their order: what it is, whether training can resume from it and why, what is wrong and what the
framework's own loader would make of that, what to do next. Leaves every judgement to `formats`, and what is on record
to `standing`.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lastgood.cli.output import complain, table
from lastgood.cli.standing import Standing
from lastgood.formats.description import Description, Restorability
from lastgood.formats.examination import Examination
from lastgood.formats.loaders import loader_says
from lastgood.formats.root import Choice
from lastgood.reasons import Reason
from lastgood.text import counted, printable, size
from lastgood.verdict import Finding

__all__ = [
    "COULD_NOT_TELL",
    "Looked",
    "as_document",
    "exit_code_of",
    "exit_code_of_many",
    "link_lines",
    "screen",
    "summary",
    "tree_progress",
]

COULD_NOT_TELL = "could_not_tell"
"""In the place of a class: of what could not be read, named like this to a program too."""

_CLASSES = (*map(str, Restorability), "barred", "fenced", "quarantined")
EVERY_SECONDS = 10.0
"""How often a log is told how far a tree has been looked at."""
EMPTY = "  what        an empty directory: nothing lies in it"
MAXIMUM_PATHS = 3
_NEXT = {
    Restorability.RESUMABLE: "lastgood seal {said}{uri}   # then every tier works on it, and wrong bytes are seen",
    Restorability.WEIGHTS_ONLY: "resume from another one; lastgood seal --weights-only {said}{uri} keeps an export",
    Restorability.PARTIAL: "resume from another one: what is missing here begins anew without an error",
    Restorability.IN_PROGRESS: "wait until its save is done; if its job is dead, resume from an older one",
    Restorability.DAMAGED: "do not load it: lastgood latest --policy structural {parent} names the newest whole one",
    Restorability.UNKNOWN: "nothing is known of it here: its own framework has to say",
}


def exit_code_of(examined: Examination) -> int:
    """0: training can resume from it; 1: it cannot; 2: nobody knows, or the store could not read all that decides."""
    match examined.restorability:
        case Restorability.RESUMABLE:
            return 0 if examined.is_resumable else 2
        case Restorability.UNKNOWN:
            return 2
        case _:
            return 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """A checkpoint that was looked at.

    Args:
        uri: Where it lies.
        examined: What was found of it.
        standing: What is on record of it.
        instead: What to do next, where a seal would be refused.
    """

    uri: str
    examined: Examination
    standing: Standing
    instead: str | None = None

    @property
    def exit_code(self) -> int:
        """What is refused cannot be resumed, whatever its files say."""
        return 1 if self.standing.refused else exit_code_of(self.examined)

    @property
    def said_class(self) -> str:
        """Its class by its files; of one that could be resumed by them, how it is refused."""
        if not self.standing.refused or self.examined.restorability is not Restorability.RESUMABLE:
            return str(self.examined.restorability)
        return self.standing.state if self.standing.state in ("fenced", "barred") else "quarantined"


def exit_code_of_many(looked: Sequence[Looked]) -> int:
    """0: one of them can be resumed; 1: none; 2: none is known to be, and one may be, or nobody knows any of them."""
    codes = [one.exit_code for one in looked]
    if 0 in codes:
        return 0
    may_be = any(one.exit_code == 2 and one.examined.restorability is Restorability.RESUMABLE for one in looked)
    return 2 if may_be else min(codes)


# One checkpoint.


def screen(looked: Looked) -> str:
    """One checkpoint for a person."""
    refused = (f"  REFUSED     {printable(line)}" for line in looked.standing.refused)
    lines = _lines(looked.examined, looked.standing) if looked.examined.source.files else (EMPTY,)
    return "\n".join([printable(looked.uri), *refused, *lines, "", f"next: {_next(looked)}"])


def _lines(examined: Examination, standing: Standing) -> Iterator[str]:
    told, sealed = examined.description, standing.sealed
    yield f"  what        {_what(told)}"
    first, *others = examined.classification.reasons
    by_files = " by its files" if standing.refused else ""
    yield f"  class       {str(examined.restorability).upper()}{by_files}: {printable(first)}"
    yield from (f"              {printable(reason)}" for reason in others)
    yield f"  step        {_position(told)}"
    yield f"  topology    {_topology(told)}"
    marker = "the framework writes none" if told.marker is None else printable(told.marker)
    yield f"  marker      {marker}"
    yield f"  files       {len(examined.source.files)}, {size(examined.total_bytes)}"
    yield f"  integrity   {printable(examined.integrity.summary)}"
    yield from (f"  not read    {printable(where)}" for where in examined.integrity.unread)
    yield f"  sealed      {sealed or 'no: it has no manifest'}"
    if told.components:
        yield ""
        yield table(_components(examined), ("  component", "files", "bytes", "within", "which"))
    yield from (f"  not saved   {entry.component}: {printable(entry.reason)}" for entry in told.never_saved)
    yield from (f"  needless    {printable(f'{entry.path}: {entry.reason}')}" for entry in told.needless)
    yield from (f"  not known   {printable(sentence)}" for sentence in examined.unknowable)
    yield from _findings(examined)
    yield from (f"  note        {note.reason}: {printable(note.message)}" for note in examined.notes)


def _next(looked: Looked) -> str:
    examined, standing = looked.examined, looked.standing
    told, following = examined.description, _NEXT[examined.restorability]
    if standing.refused:
        following = "lastgood latest {parent}   # names what may be resumed"
    elif not examined.source.files:
        following = "lastgood inspect {parent}   # is the path spelled right, or did a save only just begin?"
    elif examined.restorability is Restorability.RESUMABLE and not examined.is_resumable:
        following = "lastgood inspect {uri}   # again, when the store answers: what was not read may be wrong"
    elif standing.sealed is not None:
        following = "lastgood verify {uri}   # reads every byte"
    elif looked.instead is not None:
        following = looked.instead
    # What the files do not tell is asked of whoever seals; the rest of the line can be pasted as it is.
    said = "--step N " if told.step is None else ""
    said += "--world-size N " if told.layout.world_size is None else ""
    uri = looked.uri
    return following.format(uri=printable(uri), parent=printable(uri.rpartition("/")[0]), said=said)


def _findings(examined: Examination) -> Iterator[str]:
    hinted = set()
    for finding in examined.findings:
        yield f"  FINDING     {finding.reason}: {printable(finding.message)}"
        if finding.reason not in hinted:
            hinted.add(finding.reason)
            yield f"              hint: {_hint(finding)}"
        says = loader_says(examined.description.framework, finding)
        if says is not None:
            yield f"              its own loader: {printable(says)}"


def _hint(finding: Finding) -> str:
    """Advice to whoever runs a framework that registers nothing with us; everybody else's hint fits."""
    if finding.reason is Reason.COMPONENT_MISSING:
        return "resume from another checkpoint, or know that this part begins anew"
    return finding.hint


def _what(told: Description) -> str:
    return printable(f"{told.framework} {told.version or ''}".strip() + f", {told.layout_name}")


def _position(told: Description) -> str:
    step = "not told" if told.step is None else f"{told.step} completed"
    return step + "".join(f"; {one.name} {one.value} ({one.names})" for one in told.counters if one.name != "step")


def _topology(told: Description) -> str:
    layout = told.layout
    ranks = "ranks not known" if layout.world_size is None else counted(layout.world_size, "rank")
    axes = ", ".join(f"{axis} {count}" for axis, count in layout.axes.items())
    return printable(f"{ranks}{f' ({axes})' if axes else ''}, {layout.certainty}: {layout.why}")


def _components(examined: Examination) -> list[tuple[str, str, str, str, str]]:
    rows = []
    for held in examined.description.components:
        lengths = [examined.source.files[path].bytes for path in held.paths if path in examined.source.files]
        shown = ", ".join(held.paths[:MAXIMUM_PATHS])
        more = f" and {len(held.paths) - MAXIMUM_PATHS} more" if len(held.paths) > MAXIMUM_PATHS else ""
        rows.append(
            (f"  {held.component}", str(len(held.paths)), size(sum(lengths)), held.within or "", f"{shown}{more}")
        )
    return rows


def as_document(looked: Looked) -> dict[str, Any]:
    """The same for a program, with everything in it."""
    examined, standing = looked.examined, looked.standing
    return {
        "uri": looked.uri,
        "class": examined.restorability,
        "reasons": examined.classification.reasons,
        "sealed": standing.sealed,
        "refused": standing.refused,
        "description": examined.description,
        "findings": [
            {
                "reason": finding.reason,
                "message": finding.message,
                "offender": finding.offender,
                "hint": _hint(finding),
                "loader": loader_says(examined.description.framework, finding),
            }
            for finding in examined.findings
        ],
        "notes": examined.notes,
        "files": len(examined.source.files),
        "bytes": examined.total_bytes,
        "integrity": examined.integrity,
    }


# Many.


def summary(uri: str, looked: Sequence[Looked], untold: Mapping[str, str], rule: Choice | None) -> str:
    """Which of the checkpoints below a directory could be resumed, one a line, and what a framework would do there.

    Args:
        uri: Of the directory.
        looked: Those that were looked at.
        untold: What could not be read → why.
        rule: The framework's own, and what that would load.
    """
    rows = [_row(uri, one) for one in looked]
    rows += [
        ("could not tell", "?", "?", "?", "?", where.removeprefix(f"{uri}/"), why) for where, why in untold.items()
    ]
    classes = Counter(one.said_class for one in looked)
    told = [f"{count} {name}" for name in _CLASSES if (count := classes[name])]
    told += [f"{len(untold)} could not be told"] if untold else []
    counts = f": {', '.join(told)}" if told else ""
    lines = [f"{printable(uri)}: {counted(len(looked), 'checkpoint')}{counts}"]
    if rows:
        lines.append(table(rows, ("class", "step", "framework", "ranks", "bytes", "checkpoint", "why not")))
    if rule is not None and not rule.is_only_named:
        does = rule.picked or rule.consequence or "nothing"
        lines.append(printable(f"its framework would resume: {does} ({rule.rule})"))
        lines += [f"  FINDING     {one.reason}: {printable(one.message)}" for one in rule.findings]
    newest = _newest(looked)
    if newest is not None:
        lines.append(f"newest that can be resumed: {printable(newest.uri)}, step {newest.examined.step}")
    return "\n".join(lines)


def link_lines(links: Mapping[str, str]) -> Iterator[str]:
    """What the links of a directory are taken for: nothing is looked at twice, nor outside of what was named."""
    for name, target in links.items():
        elsewhere = "elsewhere, so it is not followed: name it to have it looked at"
        how = elsewhere if "/" in target else "looked at under that name"
        yield printable(f"link: {name} leads to {target}: {how}")


def _row(uri: str, looked: Looked) -> tuple[str, ...]:
    examined, refused = looked.examined, looked.standing.refused
    ranks = examined.description.layout.world_size
    return (
        looked.said_class,
        "?" if examined.step is None else str(examined.step),
        str(examined.description.framework),
        "?" if ranks is None else str(ranks),
        size(examined.total_bytes),
        looked.uri.removeprefix(f"{uri}/"),
        "" if looked.exit_code == 0 else (*refused, *examined.integrity.unread, *examined.classification.reasons)[0],
    )


def _newest(looked: Iterable[Looked]) -> Looked | None:
    """Where all lie in one directory: generations of our own by incarnation, then step, all others by step.

    Steps of different runs compare with nothing.
    """
    held = [one for one in looked if one.exit_code == 0 and one.examined.step is not None]
    if len({str(Path(one.uri).parent) for one in held}) != 1:
        return None
    return max(held, key=_order)


def _order(looked: Looked) -> tuple[int, int]:
    generation = looked.standing.generation
    incarnation = generation.incarnation if generation is not None and not generation.name else 0
    return incarnation, looked.examined.step or 0


@contextmanager
def tree_progress(uri: str) -> Iterator[Any]:
    """Say on stderr how many checkpoints were looked at, now and then for a log; yields what to call for each."""
    began = told = time.monotonic()
    count = 0

    def looked(where: str) -> None:
        nonlocal count, told
        count += 1
        now = time.monotonic()
        if sys.stderr.isatty():
            sys.stderr.write(f"\r\x1b[K{count} looked at: {printable(where)[-80:]}")
            sys.stderr.flush()
        elif now - told >= EVERY_SECONDS:
            told = now
            complain(f"inspect {uri}: {counted(count, 'checkpoint')} looked at, {now - began:.0f} s", None)

    try:
        yield looked
    finally:
        if count and sys.stderr.isatty():
            sys.stderr.write("\r\x1b[K")
