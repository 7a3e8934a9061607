"""The zip that `torch.save` writes: its records, and whether their bytes are those that were written.

Decides whether a record holds, by the CRC-32 beside it. Leaves the directory to `zipdirectory` and the pickle inside to
`torchfile`. Rules: opening reads the tail and never the payload; a local header that contradicts the directory is
refused; a recorded CRC-32 of 0 over data that is not empty is *not recorded* (`set_crc32_options(False)`), not wrong;
memory is bounded by one read.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from struct import Struct

from lastgood.errors import FormatError
from lastgood.formats.containers.reading import BytesReader, beyond, exactly, malformed, quoted
from lastgood.formats.containers.zipdirectory import (
    DESCRIBED_LATER,
    LOCAL_BYTES,
    Directory,
    Record,
    read_directory,
)
from lastgood.reasons import Reason
from lastgood.stores.port import ObjectReader, Progress

__all__ = ["READ_BYTES", "CheckedRecord", "CrcOutcome", "TorchZip", "open_torch_zip"]

READ_BYTES = 8 * 2**20
"""Of one read while records are checked."""
_WHOLE_BYTES = 256 * 2**10  # an archive up to this length is read at once: one request instead of three or more
_GUESSED_EXTRA_BYTES = 256  # torch pads the local header so that data is aligned to 64 bytes
_MAXIMUM_SMALL_RECORD_BYTES = 1_000
_SATURATED_4 = 0xFFFFFFFF

_LOCAL = Struct("<4s5H3L2H")
_DESCRIPTOR = Struct("<4s3L")
_DESCRIPTOR_64 = Struct("<4sL2Q")


class CrcOutcome(StrEnum):
    """Whether the data of a record is what was written."""

    HELD = "held"
    MISMATCH = "mismatch"
    NOT_RECORDED = "not_recorded"
    HEADER = "header"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedRecord:
    """What checking one record gave.

    Args:
        record: As the directory states it.
        outcome: `header` where the local header contradicts the directory; the data was not looked at then.
        message: A lowercase fact, unless it held.
    """

    record: Record
    outcome: CrcOutcome
    message: str = ""


class TorchZip:
    """An opened archive. Made by `open_torch_zip`; may be used from several threads."""

    def __init__(self, reader: ObjectReader, directory: Directory, where: str) -> None:
        self._reader = reader
        self.directory = directory
        self.where = where

    @property
    def records(self) -> dict[str, Record]:
        """Name without the archive's own name → record, in the order of their bytes."""
        return self.directory.records

    def read_record(self, name: str, limit_bytes: int) -> bytes:
        """The data of one record, held against its CRC-32 where one is recorded.

        Raises:
            ReadLimitError: Longer than the limit.
            FormatError: Absent, contradicted by its local header, or not what was written.
        """
        record = self.records.get(name)
        if record is None:
            raise malformed(self.where, "record missing", quoted(name))
        if record.data_bytes > limit_bytes:
            fact = f"{quoted(name)}: expected at most {limit_bytes} bytes, found {record.data_bytes}"
            raise beyond(self.where, "record too large", fact)
        guess = LOCAL_BYTES + len(record.raw_name) + _GUESSED_EXTRA_BYTES + record.data_bytes
        head = BytesReader(exactly(self._reader, record.start, min(guess, record.end - record.start), self.where))

        def get(offset: int, length: int) -> bytes:
            if offset - record.start + length <= head.size_bytes:
                return head.read_at(offset - record.start, length)
            return exactly(self._reader, offset, length, self.where)

        start = self._locate(record, get)
        data = get(start, record.data_bytes)
        self._check_descriptor(record, start, get)
        if (checked := self._judge(record, zlib.crc32(data))).outcome is CrcOutcome.MISMATCH:
            raise FormatError(checked.message, reason=Reason.RECORD_CORRUPT, where=self.where)
        return data

    def read_text(self, name: str) -> str | None:
        """A small record of ASCII, such as `byteorder`; None where it is absent or holds anything else."""
        record = self.records.get(name)
        if record is None or record.data_bytes > _MAXIMUM_SMALL_RECORD_BYTES:
            return None
        data = self.read_record(name, _MAXIMUM_SMALL_RECORD_BYTES)
        return data.decode().strip() if data.isascii() else None

    def check_crcs(self, progress: Progress | None = None) -> Iterator[CheckedRecord]:
        """Hold every record against its CRC-32, in the order of their bytes, in one pass of large reads.

        Data without a recorded CRC-32 is not read. zlib works without the interpreter's lock, so several files can be
        checked on several threads.
        """
        forward = _Forward(self._reader, next(reversed(self.records.values())).end, self.where)
        done = 0
        for record in self.records.values():
            try:
                if not record.crc_recorded:
                    self._locate(record, self._get)
                    yield self._judge(record, 0)
                    continue
                start = self._locate(record, forward.get)
                crc = 0
                for chunk in forward.chunks(start, record.data_bytes):
                    crc = zlib.crc32(chunk, crc)
                    done += len(chunk)
                    if progress is not None:
                        progress(done)
                self._check_descriptor(record, start, forward.get)
                yield self._judge(record, crc)
            except _Contradiction as error:
                yield CheckedRecord(record=record, outcome=CrcOutcome.HEADER, message=error.message)

    def _judge(self, record: Record, crc: int) -> CheckedRecord:
        if not record.crc_recorded:
            return CheckedRecord(record=record, outcome=CrcOutcome.NOT_RECORDED, message="no CRC-32 was recorded")
        if crc == record.crc32:
            return CheckedRecord(record=record, outcome=CrcOutcome.HELD)
        message = f"CRC-32 mismatch: {self.where}: {quoted(record.name)}: expected {record.crc32:08x}, found {crc:08x}"
        return CheckedRecord(record=record, outcome=CrcOutcome.MISMATCH, message=message)

    def _get(self, offset: int, length: int) -> bytes:
        return exactly(self._reader, offset, length, self.where)

    def _locate(self, record: Record, get: Callable[[int, int], bytes]) -> int:
        """Where the data of a record begins, after its local header was compared with the directory."""
        head = get(record.start, LOCAL_BYTES + len(record.raw_name))
        signature, _, flags, method, _, _, crc, packed, length, name_bytes, extra_bytes = _LOCAL.unpack_from(head)
        start: int = record.start + LOCAL_BYTES + name_bytes + extra_bytes
        if (signature, flags, method) != (b"PK\x03\x04", record.flags, 0) or name_bytes != len(record.raw_name):
            raise self._contradiction(record, "signature, flags, method or length of the name")
        if head[LOCAL_BYTES:] != record.raw_name:
            raise self._contradiction(record, "name")
        if start + record.data_bytes > record.end:
            raise self._contradiction(record, f"{record.data_bytes} bytes from byte {start} on reach into what follows")
        stated = (0, 0, 0) if flags & DESCRIBED_LATER else (record.crc32, record.data_bytes, record.data_bytes)
        for found, expected in zip((crc, packed, length), stated, strict=True):
            if found != min(expected, _SATURATED_4):
                raise self._contradiction(record, f"CRC-32 or length: expected {expected}, found {found}")
        return start

    def _check_descriptor(self, record: Record, start: int, get: Callable[[int, int], bytes]) -> None:
        """Compare what stands behind the data, where a flag says that something does."""
        if not record.flags & DESCRIBED_LATER:
            return
        place = start + record.data_bytes
        found = get(place, min(_DESCRIPTOR_64.size, record.end - place))
        wanted = [_DESCRIPTOR_64.pack(b"PK\x07\x08", record.crc32, record.data_bytes, record.data_bytes)]
        if record.data_bytes < _SATURATED_4:
            wanted.append(_DESCRIPTOR.pack(b"PK\x07\x08", record.crc32, record.data_bytes, record.data_bytes))
        if not any(found.startswith(descriptor) for descriptor in wanted):
            raise self._contradiction(record, "CRC-32 or lengths behind the data")

    def _contradiction(self, record: Record, what: str) -> _Contradiction:
        return _Contradiction(
            f"local header contradicts the directory: {self.where}: {quoted(record.name)}: {what}",
            reason=Reason.CONTAINER_MALFORMED,
            where=self.where,
        )


class _Contradiction(FormatError):
    """The bytes before or behind the data of a record tell another story than the directory."""


class _Forward:
    """A reader that goes forward in large steps and keeps the last one."""

    def __init__(self, reader: ObjectReader, end: int, where: str) -> None:
        self._reader = reader
        self._end = end
        self._where = where
        self._start = 0
        self._view = memoryview(b"")

    def get(self, offset: int, length: int) -> bytes:
        """A small range."""
        inside = offset - self._start
        if inside < 0 or inside + length > len(self._view):
            self._fill(offset, length)
            inside = 0
        return bytes(self._view[inside : inside + length])

    def chunks(self, offset: int, length: int) -> Iterator[memoryview]:
        """A range in pieces, each valid until the next one is asked for."""
        while length:
            inside = offset - self._start
            if not 0 <= inside < len(self._view):
                self._fill(offset, 1)
                inside = 0
            chunk = self._view[inside : inside + length]
            yield chunk
            offset += len(chunk)
            length -= len(chunk)

    def _fill(self, offset: int, least: int) -> None:
        length = max(least, min(READ_BYTES, self._end - offset))
        self._view = memoryview(exactly(self._reader, offset, length, self._where))
        self._start = offset


def open_torch_zip(reader: ObjectReader, where: str) -> TorchZip:
    """Open an archive; reads its tail, or all of it where it is small.

    Args:
        reader: The file, or the window of a larger one that holds it.
        where: What to call it in messages.

    Raises:
        FormatError: It is no archive that `torch.save` could have written.
        StoreError: It could not be read.
    """
    if reader.size_bytes <= _WHOLE_BYTES:
        reader = BytesReader(exactly(reader, 0, reader.size_bytes, where))
    return TorchZip(reader, read_directory(reader, where), where)
