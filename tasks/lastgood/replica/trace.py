"""The trace of a replica: JSON lines, one file a rank and life, rolled by size.

Decides how records are written and read back. The records are in `events` (their names are re-exported here, so that
one import serves), judging them is for `restore` and `drill`.

Rules enforced here:

- A line is handed to the kernel whole, in one write, without a flush to the medium: a SIGKILL loses nothing that was
  written, a power loss may lose the tail. Only the last line of the last segment may be torn; the reader drops it.
  A whole line that is not a lawful record is a `FormatError` that names file and line.
- The writer never touches a device. What is not on the host yet is handed over as a function (`write_later`), which is
  called when the next record is written. After a kill the newest step's line may then be absent, hence
  `Started.lag_steps`: the last completed step is the last one written, or up to `lag_steps` later, so a loss counted
  from the trace is at most that much too small. On a CPU the lag is 0.

Source: docs/format.md, trace lines.
"""

from __future__ import annotations

import bisect
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self, TypeAlias, cast

from lastgood.documents import canonical_bytes, parse
from lastgood.errors import FormatError, StorePermanentError, UsageError
from lastgood.replica.events import (
    TICK_NS,
    TRACE_VERSION,
    Discovered,
    Loaded,
    Mark,
    Measured,
    NotFinite,
    Phase,
    Refused,
    Saved,
    Span,
    Started,
    Step,
    Stopped,
    StopReason,
    Timeline,
    TraceRecord,
    host_name,
    measured,
    number,
    process_started_ns,
)

__all__ = [
    "TICK_NS",
    "TRACE_VERSION",
    "Discovered",
    "LifeName",
    "Loaded",
    "Mark",
    "Measured",
    "NotFinite",
    "Phase",
    "Refused",
    "Saved",
    "Span",
    "Started",
    "Step",
    "StopReason",
    "Stopped",
    "Timeline",
    "TraceFollower",
    "TraceReader",
    "TraceRecord",
    "TraceWriter",
    "host_name",
    "life_name",
    "measured",
    "number",
    "process_started_ns",
    "trace_directory",
]

MAXIMUM_LINE_BYTES: Final = 4 * 2**20
MAXIMUM_SEGMENT_BYTES: Final = 16 * 2**20
MAXIMUM_POLL_BYTES: Final = 2 * MAXIMUM_LINE_BYTES
"""What one look at a growing trace reads at most; more than a line, so that every look gets on."""
MAXIMUM_SEGMENTS: Final = 100_000
MAXIMUM_RANKS: Final = 1_000_000


LifeName: TypeAlias = int | str
"""Of which life a trace is: the number that it claimed, or, where a job claims none, the nonce in its COMMITs."""
_NONCE = re.compile(r"[0-9a-f]{32}", re.ASCII)


def life_name(life: LifeName) -> str:
    """How a life is spelled in keys; a number has eight digits, so that no nonce reads like one."""
    return f"{life:08d}" if isinstance(life, int) else life


def trace_directory(family: Path, life: LifeName, rank: int) -> Path:
    """Where one rank of one life keeps its segments."""
    return family / ".lastgood" / "traces" / life_name(life) / f"rank-{rank:05d}"


class TraceWriter:
    """Appends one rank's records; not shared between threads.

    Args:
        family: The family's directory on a file system.
        life: Of the run: from its claim, or its nonce.
        rank: Of this process.
        segment_bytes: Before a line would grow a segment past this, a new segment begins.

    Raises:
        UsageError: This rank of this life has a trace already: two processes believe that they are the same.
        StorePermanentError: The directory or a file cannot be written. The loop decides whether training goes on.
    """

    def __init__(self, family: Path, life: LifeName, rank: int, *, segment_bytes: int = MAXIMUM_SEGMENT_BYTES) -> None:
        self.directory = trace_directory(family, life, rank)
        self._segment_bytes = segment_bytes
        self._segment = -1
        self._written_bytes = 0
        self._descriptor = -1
        self._later: Callable[[], TraceRecord] | None = None
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorePermanentError(f"trace cannot be written: {self.directory}: {error.strerror}") from error
        self._roll()

    def write(self, record: TraceRecord) -> None:
        """Append one record, after the one handed to `write_later`, if any."""
        self.flush()
        self._append(canonical_bytes(record))

    def write_later(self, make: Callable[[], TraceRecord]) -> None:
        """Append a record whose values are still on their way to the host; `make` is called at the next write."""
        self.flush()
        self._later = make

    def flush(self) -> None:
        """Make and append the record that `write_later` holds."""
        if self._later is not None:
            make, self._later = self._later, None
            self._append(canonical_bytes(make()))

    def close(self) -> None:
        if self._descriptor >= 0:
            self.flush()
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _append(self, line: bytes) -> None:
        if len(line) > MAXIMUM_LINE_BYTES:
            raise UsageError(f"trace record too large: expected at most {MAXIMUM_LINE_BYTES} bytes, found {len(line)}")
        if self._written_bytes and self._written_bytes + len(line) > self._segment_bytes:
            self._roll()
        try:
            done = os.write(self._descriptor, line)
        except OSError as error:
            raise StorePermanentError(f"trace cannot be written: {self.directory}: {error.strerror}") from error
        if done != len(line):
            raise StorePermanentError(f"trace line torn: {self.directory}: wrote {done} of {len(line)} bytes")
        self._written_bytes += done

    def _roll(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._segment += 1
        self._written_bytes = 0
        path = self.directory / _segment_name(self._segment)
        try:
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except FileExistsError:
            self._descriptor = -1
            raise UsageError(
                f"trace exists already: {path}", hint="does another process run as this rank of this life?"
            ) from None
        except OSError as error:
            self._descriptor = -1
            raise StorePermanentError(f"trace cannot be written: {path}: {error.strerror}") from error


class TraceFollower:
    """Reads one rank's records as they grow; each `poll` returns what is new and whole.

    Args:
        directory: As `trace_directory` names it; need not exist yet.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._segment = 0
        self._offset_bytes = 0
        self._line = 0

    def poll(self) -> tuple[TraceRecord, ...]:
        """What is whole and new since the last poll, at most `MAXIMUM_POLL_BYTES` of it; the next poll goes on there.

        Raises:
            FormatError: A whole line is not a lawful record, a segment that is not the last ends in a torn line, or
                there are absurdly many segments; file and line are named.
        """
        records: list[TraceRecord] = []
        left_bytes = MAXIMUM_POLL_BYTES
        while self._segment < MAXIMUM_SEGMENTS:
            path = self.directory / _segment_name(self._segment)
            # Looked up before the read: a segment is complete once its successor exists.
            follows = (self.directory / _segment_name(self._segment + 1)).exists()
            data = _read_from(path, self._offset_bytes, left_bytes)
            tail = self._parse(path, data, records)
            if not follows or len(data) == left_bytes:
                return tuple(records)
            if tail:
                raise FormatError(f"trace line torn inside the trace: {path}: line {self._line + 1}")
            self._segment, self._offset_bytes, self._line = self._segment + 1, 0, 0
            left_bytes -= len(data)
        raise FormatError(f"too many trace segments: {self.directory}: expected fewer than {MAXIMUM_SEGMENTS}")

    def _parse(self, path: Path, data: bytes, records: list[TraceRecord]) -> bytes:
        """Take in the whole lines; what comes after the last one."""
        whole, _, tail = data.rpartition(b"\n")
        if len(tail) > MAXIMUM_LINE_BYTES:
            raise FormatError(f"trace line too long: {path}: line {self._line + whole.count(10) + 2}")
        self._offset_bytes += len(data) - len(tail)
        for line in whole.split(b"\n") if len(data) > len(tail) else ():
            self._line += 1
            records.append(_parse_line(line, f"{path}: line {self._line}"))
        return tail


class TraceReader:
    """Reads the traces of one family, written by the dead and the living.

    Args:
        family: The family's directory on a file system.
    """

    def __init__(self, family: Path) -> None:
        self.family = family

    def lives(self) -> tuple[LifeName, ...]:
        """Every life that left a trace: those that claimed a number, rising, then those that claimed none."""
        names = _names(self.family / ".lastgood" / "traces")
        return (*self.incarnations(), *sorted(name for name in names if _NONCE.fullmatch(name)))

    def last_life(self) -> LifeName | None:
        """The life that began last: by its number where all claimed one, else by the first records of the ranks, for
        names that are drawn tell no order.

        Raises:
            FormatError: A first record is not a lawful one.
        """
        lives = self.lives()
        if len(lives) < 2 or all(isinstance(life, int) for life in lives):
            return lives[-1] if lives else None
        begun = [(first, life) for life in lives for rank in self.ranks(life) if (first := self.started(life, rank))]
        if not begun:
            return lives[-1]
        # A wall clock may be set back between two lives; the other one is the same for every process of a machine.
        on_one_machine = len({first.host for first, _ in begun}) == 1
        return max(begun, key=lambda one: one[0].at.monotonic_ns if on_one_machine else one[0].at.wall.timestamp())[1]

    def incarnations(self) -> tuple[int, ...]:
        """Every life that claimed a number and left a trace, rising."""
        names = _names(self.family / ".lastgood" / "traces")
        return tuple(sorted(int(name) for name in names if len(name) == 8 and name.isascii() and name.isdigit()))

    def ranks(self, life: LifeName) -> tuple[int, ...]:
        """Every rank of that life that left a trace, rising."""
        names = _names(trace_directory(self.family, life, 0).parent)
        numbers = (name.removeprefix("rank-") for name in names if name.startswith("rank-"))
        return tuple(sorted(int(text) for text in numbers if len(text) == 5 and text.isascii() and text.isdigit()))

    def records(self, life: LifeName, rank: int) -> Iterator[TraceRecord]:
        """All whole records of one rank, in order, read piece by piece; none without a trace.

        Raises:
            FormatError: A whole line is not a lawful record; file and line are named.
        """
        follower = self.follow(life, rank)
        while records := follower.poll():
            yield from records

    def steps(self, life: LifeName, rank: int) -> Mapping[int, Step]:
        """The completed steps of one rank, by number."""
        return {record.step: record for record in self.records(life, rank) if isinstance(record, Step)}

    def started(self, life: LifeName, rank: int) -> Started | None:
        """The first record of one rank, read without the rest; None without a trace.

        Raises:
            FormatError: It is not a lawful record.
        """
        records = _head(trace_directory(self.family, life, rank) / _segment_name(0))
        first = next(records, None)
        return first if isinstance(first, Started) else None

    def steps_between(self, life: LifeName, rank: int, first: int, last: int) -> Mapping[int, Step]:
        """The completed steps `first` to `last` of one rank, by number; reads only the segments that can hold them.

        A life's steps rise, so the segment to begin with is found by halving: a year's trace costs one segment.

        Raises:
            FormatError: A line that was read is not a lawful record; file and line are named.
        """
        directory = trace_directory(self.family, life, rank)
        paths = [directory / _segment_name(number) for number in range(len(_names(directory)))]
        begin = bisect.bisect_right(paths, first, lo=min(1, len(paths)), key=_first_step) - 1
        found: dict[int, Step] = {}
        for path in paths[max(0, begin) :]:
            for record in records_of(_read_from(path, 0), str(path)):
                if isinstance(record, Step) and first <= record.step <= last:
                    found[record.step] = record
                elif isinstance(record, Step) and record.step > last:
                    return found
        return found

    def follow(self, life: LifeName, rank: int) -> TraceFollower:
        return TraceFollower(trace_directory(self.family, life, rank))


def _segment_name(segment: int) -> str:
    return f"{segment:08d}.jsonl"


def _first_step(path: Path) -> int:
    """The first completed step that a segment holds; 0 if it holds none at its head."""
    return next((record.step for record in _head(path) if isinstance(record, Step)), 0)


def _head(path: Path) -> Iterator[TraceRecord]:
    """The first records of a segment, one after the other, from one bounded read."""
    yield from records_of(_read_from(path, 0, MAXIMUM_LINE_BYTES), str(path))


def records_of(data: bytes, where: str) -> Iterator[TraceRecord]:
    """The records of a segment's bytes, or of its beginning, one after the other; a torn last line is left out.

    Raises:
        FormatError: A whole line is not a lawful record; the place and the line are named.
    """
    whole = data.rpartition(b"\n")[0]
    for place, line in enumerate(whole.split(b"\n") if whole else (), start=1):
        yield _parse_line(line, f"{where}: line {place}")


def _names(directory: Path) -> list[str]:
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return []
    if len(names) > MAXIMUM_RANKS:
        raise FormatError(f"too many traces: {directory}: expected at most {MAXIMUM_RANKS}, found {len(names)}")
    return names


def _read_from(path: Path, offset_bytes: int, most_bytes: int | None = None) -> bytes:
    """The bytes of a segment from an offset on: all of them, or at most `most_bytes`."""
    # The writer rolls before a segment passes its limit, so one line more is the most that a lawful one can hold.
    limit = MAXIMUM_SEGMENT_BYTES + MAXIMUM_LINE_BYTES
    try:
        # A trace is written by the replica that it judges: follow no link out of the family, block on no pipe.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise FormatError(f"trace cannot be read: {path}: {error.strerror}") from error
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise FormatError(f"trace is not a regular file: {path}")
        file.seek(offset_bytes)
        data = file.read(limit + 1 - offset_bytes if most_bytes is None else most_bytes)
    if offset_bytes + len(data) > limit:
        raise FormatError(f"trace segment too large: {path}: expected at most {limit} bytes")
    return data


def _parse_line(line: bytes, where: str) -> TraceRecord:
    # `type[X]` cannot name a union, although msgspec converts to one by its tag.
    return parse(cast("type[TraceRecord]", TraceRecord), line, where, limit_bytes=MAXIMUM_LINE_BYTES)
