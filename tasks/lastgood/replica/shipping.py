"""Traces of families whose store is not on this machine: written here, copied there at every save and at the end.

Decides where a rank's trace lies while it is written, and which segments a reader is given. On a file system both are
the family itself. In a bucket nothing can be appended to, so a rank writes a private file and sends what grew; a
machine that dies takes the lines since the last save with it, as it takes the steps. A trace that cannot be sent now is
sent at the next save: it is evidence, and training does not stop for it.
"""

from __future__ import annotations

import bisect
import contextlib
import logging
import re
from collections.abc import Iterator
from pathlib import Path

from lastgood.errors import StoreError
from lastgood.identity import FamilyKeys
from lastgood.location import Location
from lastgood.replica.events import Step
from lastgood.replica.trace import (
    MAXIMUM_LINE_BYTES,
    MAXIMUM_SEGMENT_BYTES,
    LifeName,
    life_name,
    records_of,
    trace_directory,
)
from lastgood.stores import Store
from lastgood.stores.scratch import PrivateDirectory
from lastgood.text import printable

__all__ = ["TraceHome", "traces_at_hand"]

_RANK = re.compile(r"rank-\d{5}", re.ASCII)
_log = logging.getLogger("lastgood.trace")


class TraceHome:
    """Where one rank of one life writes its trace.

    Args:
        location: The family.
        life: Of the run.
        rank: Of this process.

    Raises:
        StorePermanentError: No place for it on this machine.
    """

    def __init__(self, location: Location, life: LifeName, rank: int) -> None:
        self._store, self._keys = location.store, location.keys
        self._life, self._rank = life, rank
        family = self._store.local_directory(self._keys.family)
        self._private: PrivateDirectory | None = None
        if family is None:
            self._private = PrivateDirectory("trace")
            family = self._private.path
        self.family = family
        self._shipped: dict[str, int] = {}

    def ship(self) -> None:
        """Send what grew since the last time; nothing to do where the trace lies in the family itself."""
        if self._private is None:
            return
        try:
            segments = sorted(trace_directory(self.family, self._life, self._rank).iterdir())
            for segment in segments:
                if self._shipped.get(segment.name) != segment.stat().st_size:
                    self._send(segment)
                if segment != segments[-1]:
                    segment.unlink()  # nothing is appended to it any more, and it is there
        except (StoreError, OSError) as error:
            _log.warning("trace not sent, again at the next save: %s", printable(str(error)))

    def _send(self, segment: Path) -> None:
        data = segment.read_bytes()
        self._store.replace(_segment_key(self._keys, self._life, self._rank, segment.name), data)
        self._shipped[segment.name] = len(data)


@contextlib.contextmanager
def traces_at_hand(location: Location, life: LifeName, first: int, last: int) -> Iterator[Path]:
    """A family directory that holds one life's traces of the steps `first` to `last`, and each rank's first record.

    Raises:
        FormatError: A segment in a bucket is not a lawful one.
        StoreError: The store could not tell.
    """
    ours = location.store.local_directory(location.keys.ours)
    if ours is not None:
        yield ours.parent
        return
    private = PrivateDirectory("trace")
    try:
        prefix = f"{location.keys.traces}/{life_name(life)}"
        for name in filter(_RANK.fullmatch, location.store.names(prefix).directories):
            directory = private.path / ".lastgood" / "traces" / life_name(life) / name
            directory.mkdir(parents=True)
            segments = _Segments(location.store, f"{prefix}/{name}")
            # Readers count segments from nought, so those between the first and the wanted ones are not missed.
            for number, data in enumerate(segments.holding(first, last)):
                (directory / f"{number:08d}.jsonl").write_bytes(data)
        yield private.path
    finally:
        private.close()


class _Segments:
    """The segments of one rank in a store; steps rise, so few are read however many there are."""

    def __init__(self, store: Store, prefix: str) -> None:
        self._store = store
        self._prefix = prefix
        self._names = store.names(prefix).files
        self._read: dict[int, bytes] = {}

    def holding(self, first: int, last: int) -> Iterator[bytes]:
        """The first segment, and those that can hold these steps."""
        if not self._names:
            return
        numbers = range(len(self._names))
        begin = max(0, bisect.bisect_right(numbers, first, lo=1, key=self._first_step) - 1)
        yield self._data(0)
        for number in range(max(1, begin), len(self._names)):
            if self._first_step(number) > last:
                return
            yield self._data(number)

    def _first_step(self, number: int) -> int:
        where = f"{self._prefix}/{self._names[number]}"
        return next((record.step for record in records_of(self._data(number), where) if isinstance(record, Step)), 0)

    def _data(self, number: int) -> bytes:
        if number not in self._read:
            self._read = {number: b""}  # one at a time: a segment is megabytes
            key = f"{self._prefix}/{self._names[number]}"
            self._read[number] = self._store.get(key, limit_bytes=MAXIMUM_SEGMENT_BYTES + MAXIMUM_LINE_BYTES) or b""
        return self._read[number]


def _segment_key(keys: FamilyKeys, life: LifeName, rank: int, name: str) -> str:
    return f"{keys.traces}/{life_name(life)}/rank-{rank:05d}/{name}"
