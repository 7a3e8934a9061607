"""All files of a checkpoint, several at once: structure first, then, where asked, every byte that a checksum covers.

Decides what is read at which depth, and what is said once for many files. Leaves single files to `looking` and
`checksums`. Rules: at depth `metadata` a checkpoint of any size costs megabytes; several files are read at once, for
zlib computes without the interpreter's lock; what a description found already is not said again; a generation of our
own is left to its manifest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from lastgood.errors import FormatError, ReadLimitError, StoreError
from lastgood.formats.containers.dcpmetadata import DcpEntry
from lastgood.formats.containers.reading import Window
from lastgood.formats.containers.torchfile import Container, read_torch_file
from lastgood.formats.description import Description, Framework
from lastgood.formats.integrity.checksums import ArchiveJob, EntryJob, Outcome, entry_jobs, record_jobs, run_job
from lastgood.formats.integrity.entries import Entries, read_entries
from lastgood.formats.integrity.looking import Allowance, Seen, look_at
from lastgood.formats.integrity.names import is_expected, may_be_a_users_class
from lastgood.formats.integrity.report import Coverage, Integrity
from lastgood.formats.integrity.several import Several
from lastgood.formats.integrity.twins import twins
from lastgood.formats.readers.wording import global_not_allowed, malformed, shown
from lastgood.formats.source import Source
from lastgood.manifest import Component
from lastgood.stores.port import Progress
from lastgood.text import size
from lastgood.verdict import Finding, Note, NoteReason
from lastgood.verify import Depth

__all__ = ["METADATA_BUDGET_BYTES", "check_integrity"]

METADATA_BUDGET_BYTES = 20 * 2**20
"""Of pickles that are looked into at depth `metadata`; what is left out is said."""
FULL_BUDGET_BYTES = 2**40
_WITHOUT_CHECKSUM = frozenset({Container.SAFETENSORS, Container.TORCH_LEGACY, Container.PICKLE})


def check_integrity(
    source: Source,
    *,
    depth: Depth = Depth.FULL,
    description: Description | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Integrity:
    """Check what the files of a checkpoint say of their own bytes.

    Args:
        source: The checkpoint.
        depth: `metadata` compares structure, `full` reads every byte that a checksum covers.
        description: By its reader: whose checkpoint it is, and what was found already.
        threads: Files that are read at once; by default as many as there are cores, and at least four.
        progress: Told how many bytes of payload are done.
    """
    if description is not None and description.framework is Framework.LASTGOOD:
        return _left_to_its_manifest(source, depth)
    work = _Work(
        source=source,
        depth=depth,
        description=description,
        several=Several(threads, progress),
        needless=frozenset() if description is None else frozenset(one.path for one in description.needless),
    )
    work.look()
    if depth is Depth.FULL:
        work.compare_checksums()
    coverage = work.coverage()
    known = set() if description is None else {(one.reason, one.offender) for one in description.findings}
    found = {(one.reason, one.offender, one.found): one for one in work.findings}
    return Integrity(
        depth=depth,
        coverage=coverage,
        findings=tuple(one for (reason, offender, _), one in found.items() if (reason, offender) not in known),
        notes=tuple(work.notes(coverage)),
        unread=tuple(work.unread),
        unknowable=work.unknowable(),
        untold=tuple(dict.fromkeys(work.untold)),
    )


def _left_to_its_manifest(source: Source, depth: Depth) -> Integrity:
    """Of a generation of our own: any writer may publish any bytes, and tier 1 holds digests against all of them."""
    files = [found for path, found in source.files.items() if source.holds(path)]
    total = sum(found.bytes for found in files)
    coverage = Coverage(files=len(files), total=total, matching=0, pending=total, unrecorded=0, bare=0)
    return Integrity(depth=depth, coverage=coverage, findings=(), notes=())


@dataclass(slots=True, kw_only=True)
class _Work:
    """One check of one checkpoint, as it goes."""

    source: Source
    depth: Depth
    description: Description | None
    several: Several
    entries: Entries = field(default_factory=Entries)
    seen: list[Seen] = field(default_factory=list)
    outcomes: list[tuple[ArchiveJob | EntryJob, Outcome]] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)
    untold: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    needless: frozenset[str] = frozenset()
    strange: dict[str, list[str]] = field(default_factory=dict)

    def look(self) -> None:
        """Structure: entries of torch DCP, then every file that they do not lie in."""
        self.entries = read_entries(self.source)
        self.findings += self.entries.findings
        self.unread += self.entries.unread
        self.untold += self.entries.untold
        for path, names in self.entries.metadata.items():
            self._take_names(path, names)
        allowance = Allowance(METADATA_BUDGET_BYTES if self.depth is Depth.METADATA else FULL_BUDGET_BYTES)
        rest = [path for path in self.source.matching() if path not in self.entries.by_path and not _is_spare(path)]
        for one in self.several.each(rest, lambda path: look_at(self.source, path, allowance)):
            self.seen.append(one)
            self.findings += one.findings
            self._take_names(one.path, one.globals)
            self.unread += [] if one.unread is None else [one.unread]
            self.untold += [] if one.untold is None else [one.untold]
            self.left_out += [] if one.is_looked_into else [one.path]
        self.findings += twins(self.seen, may_be_alike=self._random_states(), may_be_replicas=self._may_hold_replicas())
        if self.depth is Depth.METADATA:
            self._look_into_objects(allowance)

    def _random_states(self) -> frozenset[str]:
        held = () if self.description is None else self.description.components
        states = (one.paths for one in held if one.component is Component.RNG and one.within is None)
        return frozenset(path for paths in states for path in paths)

    def _may_hold_replicas(self) -> bool:
        framework = Framework.TORCH_SAVE if self.description is None else self.description.framework
        return framework in (Framework.TORCH_SAVE, Framework.UNKNOWN)

    def _look_into_objects(self, allowance: Allowance) -> None:
        asked = [entry for entry in self.entries.objects if not entry.transforms and allowance.take(entry.length)]
        for path, names in self.several.each(asked, self._names_in):
            self._take_names(path, names)
        if len(asked) < len(self.entries.objects):
            asked_of = {id(entry) for entry in asked}
            self.left_out += sorted({one.path for one in self.entries.objects if id(one) not in asked_of})

    def _names_in(self, entry: DcpEntry) -> tuple[str, tuple[str, ...]]:
        where = f"{entry.path}: {entry.fqn}"
        if entry.offset + entry.length > self.source.files[entry.path].bytes:
            return entry.path, ()  # found by its length
        try:
            with self.source.open(entry.path) as reader:
                file = read_torch_file(Window(reader, entry.offset, entry.length, where), where)
                return entry.path, file.pickled.unknown_globals
        except ReadLimitError as error:
            self.untold.append(error.message)
        except FormatError as error:
            self.findings.append(malformed(error, entry.path))
        except StoreError as error:
            self.unread.append(f"{entry.path}: {error.message}")
        return entry.path, ()

    def _take_names(self, path: str, names: Iterable[str]) -> None:
        framework = None if self.description is None else self.description.framework
        for name in names:
            if is_expected(name, framework):
                continue
            if path in self.needless and may_be_a_users_class(name):
                self.strange.setdefault(path, []).append(name)
            else:
                self.findings.append(global_not_allowed(path, name))

    def compare_checksums(self) -> None:
        """Payload: everything that has a checksum."""
        jobs: list[ArchiveJob | EntryJob] = []
        for one in self.seen:
            if one.directory is not None and one.covered:
                jobs.extend(record_jobs(one.path, one.directory))
        for path, entries in self.entries.by_path.items():
            jobs.extend(entry_jobs(path, entries))
        by_path: dict[str, Outcome] = {}
        done = self.several.each(jobs, lambda job: run_job(self.source, job, self.several.count))
        for job, outcome in zip(jobs, done, strict=True):
            self.outcomes.append((job, outcome))
            self.unread += outcome.unread
            self.untold += outcome.untold
            self._take_names(outcome.path, sorted(outcome.globals))
            by_path.setdefault(outcome.path, Outcome(path=outcome.path)).add(outcome)
        known = {(finding.reason, finding.offender) for finding in self.findings}
        for whole in by_path.values():
            self.findings += [one for one in whole.findings() if (one.reason, one.offender) not in known]

    def coverage(self) -> Coverage:
        """What covers which bytes."""
        files = [found for path, found in self.source.files.items() if self.source.holds(path)]
        looked_at = sum(one.covered for one in self.seen) + self.entries.payload_bytes
        unrecorded = sum(one.unrecorded for one in self.seen)
        bare = sum(one.bare for one in self.seen) + self.entries.metadata_bytes
        matching = pending = 0
        if self.depth is Depth.METADATA:
            pending = looked_at
        for job, outcome in self.outcomes:
            matching += outcome.matching
            bare += outcome.bare
            unrecorded += outcome.unrecorded if isinstance(job, EntryJob) else 0
            pending += max(0, job.bytes - outcome.told) if outcome.unread else 0
        return Coverage(
            files=len(files),
            total=sum(found.bytes for found in files),
            matching=matching,
            pending=pending,
            unrecorded=unrecorded,
            bare=bare,
        )

    def notes(self, coverage: Coverage) -> Iterator[Note]:
        """What no checksum covers, said once for all files."""
        unrecorded = {one.path for one in self.seen if one.unrecorded}
        unrecorded |= {outcome.path for _, outcome in self.outcomes if outcome.unrecorded}
        if unrecorded:
            message = f"checksum not recorded: {shown(sorted(unrecorded))}: {size(coverage.unrecorded)}"
            yield Note(reason=NoteReason.CHECKSUM_NOT_RECORDED, message=message, offender=min(unrecorded))
        bare = {one.path: one.bare for one in self.seen if one.bare and one.container in _WITHOUT_CHECKSUM}
        for _, outcome in self.outcomes:
            if outcome.bare:
                bare[outcome.path] = bare.get(outcome.path, 0) + outcome.bare
        if bare:
            message = f"payload not covered: {shown(sorted(bare))}: {size(sum(bare.values()))} without a checksum"
            yield Note(reason=NoteReason.PAYLOAD_NOT_COVERED, message=message, offender=min(bare))

    def unknowable(self) -> tuple[str, ...]:
        """Names of classes that nobody here knows, and what was left out for the depth's sake."""
        told = [
            f"what {shown(names)} would do when {path} is unpickled: no resume loads it, and nobody here knows the name"
            for path, names in self.strange.items()
        ]
        if self.left_out:
            told.append(f"what {shown(self.left_out)} would import: too much to look into at this depth")
        return tuple(told)


def _is_spare(path: str) -> bool:
    """Metadata of torch DCP, and data files that none names: nobody reads those."""
    return path.endswith((".distcp", ".metadata", ".metadata.tmp"))
