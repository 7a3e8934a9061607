"""The central directory of a stored zip, read from its end.

Decides which archives have one meaning for every reader: the same records, at the same places, for `zipfile`, for
torch and for us. Leaves the records to `torchzip`. Rules: the end record is the last one; 64-bit fields agree with
32-bit ones that are not saturated; the directory ends where the end record begins; every record is stored
uncompressed and unencrypted; no two names are equal, not even in another case (torch looks names up without regard to
it); no two records share a byte. Source: APPNOTE 6.3; torch's reader is miniz.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from struct import Struct

from lastgood.errors import FormatError
from lastgood.formats.containers.reading import BytesReader, beyond, exactly, malformed, quoted
from lastgood.identity import is_lawful_key
from lastgood.stores.port import ObjectReader

__all__ = ["DESCRIBED_LATER", "MAXIMUM_DIRECTORY_BYTES", "MAXIMUM_RECORDS", "Directory", "Record", "read_directory"]

MAXIMUM_RECORDS = 2**18
MAXIMUM_DIRECTORY_BYTES = 48 * 2**20
LOCAL_BYTES = 30
DESCRIBED_LATER = 0x0008
_TAIL_BYTES = 22 + 0xFFFF + 20 + 56  # an end record with the longest comment, and the 64-bit ones before it
_FLAGS_UNDERSTOOD = DESCRIBED_LATER | 0x0800  # sizes behind the data; names in UTF-8
_SATURATED_4 = 0xFFFFFFFF
_SATURATED_2 = 0xFFFF
_DIRECTORY = 0x10  # attribute of DOS: torch reads such a record as empty, zipfile goes by the name
_WIDE_SIZES = 0x0001
_OTHER_NAME = 0x7075  # a name in Unicode, which zipfile believes and torch does not know

_END = Struct("<4s4H2LH")
_END_SIGNATURE = b"PK\x05\x06"
_LOCATOR = Struct("<4sLQL")
_END_64 = Struct("<4sQ2H2L4Q")
_CENTRAL = Struct("<4s6H3L5H2L")


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One record as the central directory states it.

    Args:
        name: Without the archive's own name in front.
        data_bytes: Length, stored as it is.
        crc32: As recorded; 0 for data that is not empty means that none was recorded.
        flags: General purpose bits.
        raw_name: As the local header must repeat it.
        start: Where its local header begins.
        end: Where the next record, or the directory, begins.
    """

    name: str
    data_bytes: int
    crc32: int
    flags: int
    raw_name: bytes
    start: int
    end: int

    @property
    def crc_recorded(self) -> bool:
        """Whether there is something to hold the data against."""
        return self.crc32 != 0 or self.data_bytes == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Directory:
    """What the end of an archive says of it.

    Args:
        archive: The name in front of every record.
        records: Name → record, in the order of their bytes.
        leading_bytes: Before the first record.
        trailing_bytes: Behind the end record.
    """

    archive: str
    records: dict[str, Record]
    leading_bytes: int
    trailing_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Extent:
    """Where the central directory lies, and what ends it."""

    count: int
    start: int
    bytes: int
    trailing_bytes: int


def read_directory(reader: ObjectReader, where: str) -> Directory:
    """The central directory of an archive; reads its tail and nothing else.

    Raises:
        FormatError: There is none, or two readers could understand it differently.
    """
    extent = _extent(reader, where)
    if extent.count > MAXIMUM_RECORDS or extent.bytes > MAXIMUM_DIRECTORY_BYTES:
        raise beyond(
            where,
            "directory too large",
            f"expected at most {MAXIMUM_RECORDS} records in {MAXIMUM_DIRECTORY_BYTES} bytes, "
            f"found {extent.count} in {extent.bytes}",
        )
    data = exactly(reader, extent.start, extent.bytes, where)
    entries = list(_entries(data, extent, where))
    if len(entries) != extent.count:
        raise _refusal(where, f"records miscounted: expected {extent.count}, found {len(entries)}")
    if not entries:
        raise _refusal(where, "archive without records")
    return _arrange(entries, extent, where)


def _refusal(where: str, fact: str) -> FormatError:
    return malformed(where, "zip refused", fact)


def _extent(reader: ObjectReader, where: str) -> _Extent:
    size = reader.size_bytes
    tail_start = max(0, size - _TAIL_BYTES)
    tail = exactly(reader, tail_start, size - tail_start, where)
    found = tail.rfind(_END_SIGNATURE, 0)
    if found < 0 or found + _END.size > len(tail):
        fact = f"no end record: expected one in the last {len(tail)} bytes"
        raise malformed(where, "zip refused", fact, hint="was the file cut off, or is it still being written?")
    _, disk, first_disk, here, count, length, start, comment = _END.unpack_from(tail, found)
    end = tail_start + found
    locator = BytesReader(tail).read_at(found - _LOCATOR.size, _LOCATOR.size) if found >= _LOCATOR.size else b""
    if locator.startswith(b"PK\x06\x07"):
        wide = _wide_end(reader, locator, end, where)
        narrow = (disk, first_disk, here, count, length, start)
        for name, small, large, saturated in zip(_NAMES, narrow, wide[:6], _SATURATION, strict=True):
            if small not in (large, saturated):
                raise _refusal(where, f"end records disagree: {name}: {small} in 32 bits, {large} in 64 bits")
        disk, first_disk, here, count, length, start, end = wide
    elif _SATURATED_4 in (length, start) or _SATURATED_2 in (here, count):
        raise _refusal(where, "64-bit end record missing: the 32-bit one refers to it")
    if disk or first_disk or here != count:
        raise _refusal(where, f"archive of several parts: disk {disk}, {here} of {count} records")
    if start + length != end:
        raise _refusal(where, f"directory misplaced: expected its end at byte {end}, found {start + length}")
    trailing = size - (tail_start + found + _END.size + comment)
    if trailing < 0:
        raise _refusal(where, f"comment beyond the end: {comment} bytes")
    return _Extent(count=count, start=start, bytes=length, trailing_bytes=trailing)


_NAMES = ("disk", "first disk", "records here", "records", "directory bytes", "directory start")
_SATURATION = (_SATURATED_2, _SATURATED_2, _SATURATED_2, _SATURATED_2, _SATURATED_4, _SATURATED_4)


def _wide_end(reader: ObjectReader, locator: bytes, end: int, where: str) -> tuple[int, int, int, int, int, int, int]:
    """Disk, first disk, records here, records, directory bytes and start, and where the 64-bit record begins."""
    _, disk, place, disks = _LOCATOR.unpack(locator)
    if disk or disks > 1 or place + _END_64.size != end - _LOCATOR.size:
        raise _refusal(where, f"64-bit end record misplaced: expected byte {end - _LOCATOR.size - 56}, found {place}")
    signature, length, _, _, number, first, here, count, bytes_, start = _END_64.unpack(
        exactly(reader, place, _END_64.size, where)
    )
    if signature != b"PK\x06\x06" or length != _END_64.size - 12:
        raise _refusal(where, f"64-bit end record malformed: at byte {place}")
    return number, first, here, count, bytes_, start, place


def _entries(data: bytes, extent: _Extent, where: str) -> Iterator[tuple[bytes, int, int, int, int]]:
    """Raw name, flags, CRC, length and start of each record, in the order of the directory."""
    position = 0
    for _ in range(extent.count):
        if position + _CENTRAL.size > len(data):
            raise _refusal(where, f"directory ends early: expected {extent.count} records")
        fields = _CENTRAL.unpack_from(data, position)
        signature, _, _, flags, method, _, _, crc, packed, length = fields[:10]
        name_bytes, extra_bytes, comment_bytes, disk, _, attributes, start = fields[10:]
        if signature != b"PK\x01\x02":
            raise _refusal(where, f"directory malformed: no record at byte {extent.start + position}")
        name_end = position + _CENTRAL.size + name_bytes
        position, extra_start = name_end + extra_bytes + comment_bytes, name_end
        if position > len(data):
            raise _refusal(where, "directory ends early: a name or field reaches beyond it")
        raw = data[name_end - name_bytes : name_end]
        extra = dict(_extra_fields(data[extra_start : extra_start + extra_bytes]))
        if attributes & _DIRECTORY or _OTHER_NAME in extra:
            raise _refusal(where, f"record of two kinds or names: {_shown(raw)}: readers would take different ones")
        if _SATURATED_4 in (length, packed, start):
            length, packed, start = _widened((length, packed, start), extra.get(_WIDE_SIZES, b""), raw, where)
        if method != 0 or packed != length:
            raise _refusal(
                where, f"record compressed: {_shown(raw)}: method {method}, {packed} bytes stored for {length}"
            )
        if flags & ~_FLAGS_UNDERSTOOD or disk:
            raise _refusal(where, f"record encrypted or of another part: {_shown(raw)}: flags {flags:#x}, disk {disk}")
        yield raw, flags, crc, length, start
    if position != len(data):
        raise _refusal(where, f"directory misnumbered: {len(data) - position} bytes behind the last record")


def _shown(raw: bytes) -> str:
    return quoted(raw.decode("utf-8", "replace"))


def _extra_fields(extra: bytes) -> Iterator[tuple[int, bytes]]:
    position = 0
    while position + 4 <= len(extra):
        kind = int.from_bytes(extra[position : position + 2], "little")
        length = int.from_bytes(extra[position + 2 : position + 4], "little")
        yield kind, extra[position + 4 : position + 4 + length]
        position += 4 + length


def _widened(narrow: tuple[int, int, int], field: bytes, raw: bytes, where: str) -> list[int]:
    """Sizes and start with the saturated ones taken from the 64-bit field."""
    wide = [int.from_bytes(field[place : place + 8], "little") for place in range(0, len(field) - 7, 8)]
    if len(wide) < sum(value == _SATURATED_4 for value in narrow):
        raise _refusal(where, f"64-bit sizes missing: {_shown(raw)}")
    return [wide.pop(0) if value == _SATURATED_4 else value for value in narrow]


def _arrange(entries: list[tuple[bytes, int, int, int, int]], extent: _Extent, where: str) -> Directory:
    """The records in the order of their bytes, after checks that concern several of them."""
    entries.sort(key=lambda entry: entry[4])
    archive = entries[0][0].partition(b"/")[0].decode("utf-8", "replace")
    prefix = f"{archive}/".encode()
    records: dict[str, Record] = {}
    twins: set[str] = set()
    ends = [entry[4] for entry in entries[1:]] + [extent.start]
    for (raw, flags, crc, length, start), end in zip(entries, ends, strict=True):
        name = _name(raw, prefix, where)
        if (folded := name.lower()) in twins:
            raise _refusal(where, f"record twice: {quoted(name)}: readers would take different ones")
        twins.add(folded)
        if start + LOCAL_BYTES + len(raw) + length > end:
            raise _refusal(
                where,
                f"records overlap: {quoted(name)}: {length} bytes from byte {start} on, the next begins at {end}",
            )
        records[name] = Record(name=name, data_bytes=length, crc32=crc, flags=flags, raw_name=raw, start=start, end=end)
    return Directory(
        archive=archive, records=records, leading_bytes=entries[0][4], trailing_bytes=extent.trailing_bytes
    )


def _name(raw: bytes, prefix: bytes, where: str) -> str:
    try:
        name = raw.decode("utf-8")
    except UnicodeDecodeError:
        raise _refusal(where, f"record name is not UTF-8: {_shown(raw)}") from None
    if not is_lawful_key(name):
        raise _refusal(where, f"record name escapes or is not canonical: {_shown(raw)}")
    if not raw.startswith(prefix):
        raise _refusal(where, f"record outside the archive: {_shown(raw)}: expected it below {_shown(prefix)}")
    return name[len(prefix.decode()) :]
