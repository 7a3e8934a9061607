"""Checksums inside files, computed again: the records of torch's archives, whole or as entries of a `.distcp` file.

Decides how payload is read: in large steps, a job at a time, and again where it does not match. Leaves archives to
`containers` and several jobs at once to `checking`. Rules: a job opens the file for itself, so that jobs share nothing;
what two readings tell differently is nobody's finding.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from lastgood.errors import FormatError, ReadLimitError, StoreError
from lastgood.formats.containers.dcpmetadata import DcpEntry
from lastgood.formats.containers.machine import PickleLimits
from lastgood.formats.containers.pickles import read_pickle
from lastgood.formats.containers.reading import BytesReader, Window
from lastgood.formats.containers.torchfile import Container, container_of
from lastgood.formats.containers.torchzip import CheckedRecord, CrcOutcome, TorchZip, open_torch_zip
from lastgood.formats.containers.zipdirectory import Directory, Record
from lastgood.formats.source import Source
from lastgood.stores.port import ObjectReader
from lastgood.verdict import Finding, Reason

__all__ = ["JOB_BYTES", "ArchiveJob", "EntryJob", "Outcome", "entry_jobs", "record_jobs", "run_job"]

JOB_BYTES = 256 * 2**20
"""Payload of one job: enough that opening the file again does not show, little enough that cores share a large one."""
CHUNK_BYTES = 8 * 2**20
"""Read of many small entries at once."""
MAXIMUM_NAMED = 3
"""Records that a finding names; a lost disk block may take hundreds with it."""

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveJob:
    """Some records of one archive that is a file of its own."""

    path: str
    directory: Directory
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryJob:
    """Some entries of one `.distcp` file, by offset."""

    path: str
    entries: tuple[DcpEntry, ...]
    bytes: int


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What a job gave, in bytes of payload, and the names that its pickles would import."""

    path: str
    matching: int = 0
    unrecorded: int = 0
    bare: int = 0
    corrupt: list[str] = field(default_factory=list)
    malformed: list[str] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)
    untold: list[str] = field(default_factory=list)
    globals: set[str] = field(default_factory=set)

    @property
    def told(self) -> int:
        """Bytes of payload of which something is known."""
        return self.matching + self.unrecorded + self.bare

    def add(self, part: Outcome) -> None:
        """Take over what a part gave."""
        self.matching += part.matching
        self.unrecorded += part.unrecorded
        self.bare += part.bare
        self.corrupt += part.corrupt
        self.malformed += part.malformed
        self.unread += part.unread
        self.untold += part.untold
        self.globals |= part.globals

    def findings(self) -> Iterator[Finding]:
        """One for each kind of fault."""
        for reason, messages in (
            (Reason.RECORD_CORRUPT, self.corrupt),
            (Reason.CONTAINER_MALFORMED, self.malformed),
        ):
            if messages:
                more = f" (and {len(messages) - MAXIMUM_NAMED} more)" if len(messages) > MAXIMUM_NAMED else ""
                message = f"{'; '.join(messages[:MAXIMUM_NAMED])}{more}"
                yield Finding(reason=reason, message=message, offender=self.path)


def record_jobs(path: str, directory: Directory) -> Iterator[ArchiveJob]:
    """The records of an archive in jobs of about `JOB_BYTES`."""
    for records in _groups(directory.records.values(), lambda record: record.data_bytes):
        part = dataclasses.replace(directory, records={record.name: record for record in records})
        yield ArchiveJob(path=path, directory=part, bytes=sum(record.data_bytes for record in records))


def entry_jobs(path: str, entries: Iterable[DcpEntry]) -> Iterator[EntryJob]:
    """The entries of a file in jobs of about `JOB_BYTES`."""
    for part in _groups(sorted(entries, key=lambda entry: entry.offset), lambda entry: entry.length):
        yield EntryJob(path=path, entries=tuple(part), bytes=sum(entry.length for entry in part))


def _groups(items: Iterable[_Result], length_of: Callable[[_Result], int]) -> Iterator[list[_Result]]:
    part: list[_Result] = []
    size = 0
    for item in items:
        part.append(item)
        size += length_of(item)
        if size >= JOB_BYTES:
            yield part
            part, size = [], 0
    if part:
        yield part


def run_job(source: Source, job: ArchiveJob | EntryJob, progress: Callable[[int], None]) -> Outcome:
    """Do a job; what the store could not read is in its outcome.

    Args:
        source: The checkpoint.
        job: Which part of it.
        progress: Told of each piece of payload, in bytes.
    """
    outcome = Outcome(path=job.path)
    try:
        with source.open(job.path) as reader:
            if isinstance(job, ArchiveJob):
                archive = TorchZip(reader, job.directory, job.path)
                _check_records(reader, archive, outcome, progress)
            else:
                _check_entries(reader, job, outcome, progress)
    except ReadLimitError as error:
        outcome.untold.append(error.message)
    except FormatError as error:
        outcome.malformed.append(error.message)
    except StoreError as error:
        # What was compared before the store failed stays compared.
        outcome.unread.append(error.message)
    return outcome


def _check_records(reader: ObjectReader, archive: TorchZip, outcome: Outcome, progress: Callable[[int], None]) -> None:
    done = 0

    def step(total: int) -> None:
        nonlocal done
        progress(total - done)
        done = total

    for checked in archive.check_crcs(step):
        size = checked.record.data_bytes
        if checked.outcome is CrcOutcome.HELD:
            outcome.matching += size
        elif checked.outcome is CrcOutcome.NOT_RECORDED:
            outcome.unrecorded += size
        elif (again := _again(reader, archive, checked.record)) == checked:
            place = outcome.corrupt if checked.outcome is CrcOutcome.MISMATCH else outcome.malformed
            place.append(checked.message)
        else:
            outcome.unread.append(
                f"{archive.where}: two readings gave different bytes: {again.message or 'then it held'}"
            )


def _again(reader: ObjectReader, archive: TorchZip, record: Record) -> CheckedRecord:
    """Wrong bytes are believed when they are read twice: what a transfer flipped is not what is stored."""
    alone = dataclasses.replace(archive.directory, records={record.name: record})
    return next(TorchZip(reader, alone, archive.where).check_crcs())


def _check_entries(reader: ObjectReader, job: EntryJob, outcome: Outcome, progress: Callable[[int], None]) -> None:
    chunk, start = b"", 0
    for entry in job.entries:
        if entry.offset + entry.length > reader.size_bytes:
            continue  # found by its length
        if entry.length > CHUNK_BYTES:
            _check_entry(Window(reader, entry.offset, entry.length, entry.fqn), entry, outcome)
        else:
            if entry.offset + entry.length > start + len(chunk) or entry.offset < start:
                start = entry.offset
                chunk = reader.read_at(start, min(CHUNK_BYTES, reader.size_bytes - start))
            inside = entry.offset - start
            held = Outcome(path=job.path)
            _check_entry(BytesReader(chunk[inside : inside + entry.length]), entry, held)
            if held.corrupt or held.malformed:
                held = _read_again(reader, entry, held)
            outcome.add(held)
        progress(entry.length)


def _read_again(reader: ObjectReader, entry: DcpEntry, first: Outcome) -> Outcome:
    again = Outcome(path=first.path)
    _check_entry(BytesReader(reader.read_at(entry.offset, entry.length)), entry, again)
    if (again.corrupt, again.malformed) != (first.corrupt, first.malformed):
        return Outcome(path=first.path, unread=[f"{first.path}: two readings of {entry.fqn} gave different bytes"])
    return again


def _check_entry(reader: ObjectReader, entry: DcpEntry, outcome: Outcome) -> None:
    """One entry, which is an archive of its own unless the writer transformed it."""
    where = f"{entry.path}: {entry.fqn}"
    if entry.transforms:
        outcome.bare += entry.length
        return
    try:
        container = container_of(reader, where)
        if container is Container.SAFETENSORS:
            outcome.bare += entry.length
            return
        archive = open_torch_zip(reader, where)
        before = len(outcome.corrupt) + len(outcome.malformed)
        _check_records(reader, archive, outcome, lambda _: None)
        if before == len(outcome.corrupt) + len(outcome.malformed):
            data = archive.read_record("data.pkl", PickleLimits().bytes)
            outcome.globals.update(read_pickle(data, where).unknown_globals)
    except ReadLimitError as error:
        outcome.untold.append(error.message)
    except FormatError as error:
        outcome.malformed.append(error.message)
