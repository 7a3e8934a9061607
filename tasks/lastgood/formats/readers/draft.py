"""What a reader has gathered of one checkpoint so far, until it becomes a description.

Decides nothing: a place to put what was found, in the order in which it was found. Rule: what is found twice in the
same file for the same reason is said once.
"""

from __future__ import annotations

from collections.abc import Iterable

from lastgood.errors import FormatError
from lastgood.formats.believing import believed
from lastgood.formats.containers.torchzip import open_torch_zip
from lastgood.formats.containers.zipdirectory import Directory
from lastgood.formats.description import (
    Description,
    Fingerprint,
    Framework,
    HeldComponent,
    Layout,
    NeedlessFile,
    NeverSaved,
)
from lastgood.formats.readers.contents import Contents
from lastgood.formats.readers.wording import irregular_files, malformed
from lastgood.formats.source import Source
from lastgood.formats.texts import CutShort, Json, parse_json
from lastgood.manifest import Component, Counter, CounterMeaning
from lastgood.verdict import Finding, Note, Reason

__all__ = ["Draft"]

_ORDER = {component: place for place, component in enumerate(Component)}


class Draft:
    """A description in the making.

    Args:
        source: The checkpoint; links and pipes in it are found at once.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self.contents = Contents(source)
        self.findings: list[Finding] = list(irregular_files(source))
        self._irregular = [finding.offender for finding in self.findings]
        self.unknowable: list[str] = []
        self._unread: list[str] = []
        self._untold: list[str] = []
        self._components: list[HeldComponent] = []
        self._never_saved: list[NeverSaved] = []
        self._notes: list[Note] = []
        self._needless: list[NeedlessFile] = []
        self._counters: list[Counter] = []
        self._fingerprints: list[Fingerprint] = []
        self._known: set[str] = set()

    def holds(self, path: str) -> bool:
        """Whether a regular file lies there; from now on it counts as one that was thought of."""
        if not self.source.holds(path):
            return False
        self._known.add(path)
        return True

    def hold(self, component: Component, paths: Iterable[str], within: str | None = None) -> None:
        """State that a component is in these files, if there are any."""
        held = tuple(sorted(paths))
        self._known.update(held)
        one = HeldComponent(component=component, paths=held, within=within)
        if held and one not in self._components:
            self._components.append(one)

    def has(self, component: Component) -> bool:
        """Whether the component was found."""
        return any(held.component is component for held in self._components)

    def lacks(self, component: Component, *names: str) -> bool:
        """Whether the component was not found, and no link or pipe lies there that may be in its place.

        Args:
            component: The kind of state.
            names: What its file would be called; without any, nothing at the top may be a link or a pipe.
        """
        if self.has(component):
            return False
        return not any(path in (names or self.source.files) for path in self._irregular)

    def never_saved(self, component: Component, reason: str) -> None:
        """State that the framework leaves it out."""
        self._never_saved.append(NeverSaved(component=component, reason=reason))

    def needless(self, path: str, reason: str) -> None:
        """State that no resume needs a file."""
        self._known.add(path)
        self._needless.append(NeedlessFile(path=path, reason=reason))

    def rest_needless(self, reason: str) -> None:
        """State that no resume needs whatever was not thought of."""
        for path in self.source.matching():
            if path not in self._known:
                self.needless(path, reason)

    def count(self, name: str, value: int | None, names: CounterMeaning = CounterMeaning.COMPLETED) -> None:
        """State a position, where it is known."""
        if value is not None:
            self._counters.append(Counter(name=name, value=value, names=names))

    def mark(self, kind: str, value: object, path: str) -> None:
        """State what tells this save from another, where it is known."""
        if value is not None:
            self._fingerprints.append(Fingerprint(kind=kind, value=str(value), path=path))

    def note(self, note: Note | None) -> None:
        """Say what refuses nothing, if there is anything to say."""
        if note is not None:
            self._notes.append(note)

    def json(self, path: str, *, is_written_last: bool = False) -> dict[str, Json]:
        """The JSON object in a file; empty, and found, where it is none; empty where no file lies there.

        Args:
            path: Of the file.
            is_written_last: It is the sign of a finished save, so one that breaks off tells of an unfinished save.
        """
        if not self.holds(path):
            return {}
        try:
            value = believed(lambda: parse_json(self.source.read(path), path), path)
        except FormatError as error:
            if is_written_last and isinstance(error, CutShort):
                message = f"save unfinished: {path}: it is written last, and breaks off: {error.message}"
                found = f"{self.source.files[path].bytes} bytes"
                self.findings.append(
                    Finding(reason=Reason.SAVE_UNFINISHED, message=message, offender=path, found=found)
                )
            else:
                self.contents.refuse(error, path)
            return {}
        if isinstance(value, dict):
            return value
        refusal = FormatError(f"not a JSON object: {path}: found {type(value).__name__}", where=path)
        self.findings.append(malformed(refusal, path))
        return {}

    def archive_of(self, path: str) -> Directory | None:
        """What the end of a torch archive says of it; None, and found, where it is none."""
        self.holds(path)
        try:
            with self.source.open(path) as reader:
                return believed(lambda: open_torch_zip(reader, path), path).directory
        except FormatError as error:
            self.contents.refuse(error, path)
            return None

    def take(self, part: Description, directory: str, component: Component | None = None) -> None:
        """Take over what another reader states of a directory of this checkpoint; what was thought of here stays.

        Args:
            part: What it states.
            directory: Relative to this checkpoint; empty for all of it.
            component: What all of its files hold, where the directory's name says so.
        """
        start, said = (f"{directory}/", f"{directory}: ") if directory else ("", "")
        needless = [NeedlessFile(path=start + one.path, reason=one.reason) for one in part.needless]
        self._needless += [one for one in needless if one.path not in self._known]
        self._known.update(one.path for one in needless)
        if component is not None:
            self.hold(component, self.source.matching(prefix=start))
        for held in part.components if component is None else ():
            self.hold(held.component, (start + path for path in held.paths), held.within)
        self._never_saved += [one for one in part.never_saved if one not in self._never_saved]
        self._notes += [
            Note(reason=one.reason, message=said + one.message, offender=start + one.offender) for one in part.notes
        ]
        self._fingerprints += [
            Fingerprint(kind=one.kind, value=one.value, path=start + one.path) for one in part.fingerprints
        ]
        self.findings += [
            Finding(
                reason=one.reason,
                message=said + one.message,
                offender=start + one.offender,
                expected=one.expected,
                found=one.found,
            )
            for one in part.findings
        ]
        self.unknowable += [one for one in part.unknowable if one not in self.unknowable]
        self._unread += [start + path for path in part.unread]
        self._untold += [said + one for one in part.untold]

    def describe(
        self,
        *,
        framework: Framework,
        layout_name: str,
        layout: Layout,
        step: int | None,
        version: str | None = None,
        marker: str | None = None,
        is_complete: bool | None = None,
    ) -> Description:
        """All of it; the arguments are `Description`'s."""
        findings = {(one.reason, one.offender): one for one in reversed((*self.findings, *self.contents.findings))}
        held = {component.component for component in self._components}
        return Description(
            framework=framework,
            version=version,
            layout_name=layout_name,
            step=step,
            counters=tuple(self._counters),
            layout=layout,
            components=tuple(sorted(self._components, key=lambda one: (_ORDER[one.component], one.paths))),
            never_saved=tuple(one for one in self._never_saved if one.component not in held),
            marker=marker,
            is_complete=is_complete,
            findings=tuple(reversed(findings.values())),
            notes=tuple(self._notes),
            needless=tuple(sorted(self._needless, key=lambda one: one.path)),
            fingerprints=tuple(self._fingerprints),
            unknowable=(*self.unknowable, *self.contents.unknowable),
            unread=tuple(dict.fromkeys((*self._unread, *self.contents.unread))),
            untold=tuple(dict.fromkeys((*self._untold, *self.contents.untold))),
        )
