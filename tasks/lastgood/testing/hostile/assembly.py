"""Pickles and zips put together byte by byte, so that they may say what no writer would say.

Decides nothing about what is hostile. Law: `archive(files(...))` without further changes is a file that torch itself
opens.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass, replace
from typing import Any

__all__ = [
    "Member",
    "archive",
    "byte_text",
    "changed",
    "command",
    "empty_tensor",
    "global_",
    "integer",
    "members",
    "name_of",
    "one_tensor",
    "pickled",
    "torch_archive",
    "tuple_of",
]


def pickled(body: bytes, protocol: int = 2) -> bytes:
    """A whole pickle around what leaves one value on the stack."""
    return b"\x80" + bytes([protocol]) + body + b"."


def name_of(text: str) -> bytes:
    """Text, pushed."""
    raw = text.encode("utf-8", "surrogatepass")
    return b"X" + struct.pack("<I", len(raw)) + raw


def byte_text(data: bytes) -> bytes:
    """Bytes, pushed."""
    return b"B" + struct.pack("<I", len(data)) + data


def integer(value: int) -> bytes:
    """An integer of any size, pushed."""
    length = value.bit_length() // 8 + 1
    return b"\x8a" + bytes([length]) + value.to_bytes(length, "little", signed=True)


def tuple_of(*items: bytes) -> bytes:
    """A tuple, pushed."""
    return b"(" + b"".join(items) + b"t"


def global_(module: str, name: str) -> bytes:
    """A class or function, pushed by its name."""
    return f"c{module}\n{name}\n".encode()


def command(marker: str) -> str:
    """The shell command that creates the marker."""
    return f"touch '{marker}'"


def one_tensor(
    *, size: bytes, stride: bytes, offset: bytes = b"K\x00", elements: bytes = b"K\x04", key: str = "0"
) -> bytes:
    """A call that rebuilds a tensor of floats; every argument is a piece of pickle."""
    storage = tuple_of(name_of("storage"), global_("torch", "FloatStorage"), name_of(key), name_of("cpu"), elements)
    hooks = global_("collections", "OrderedDict") + b")R"
    return (
        global_("torch._utils", "_rebuild_tensor_v2")
        + tuple_of(storage + b"Q", offset, size, stride, b"\x89", hooks)
        + b"R"
    )


def empty_tensor() -> bytes:
    """Four floats, as torch pickles them."""
    return one_tensor(size=tuple_of(b"K\x04"), stride=tuple_of(b"K\x01"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One record of a zip; what stands in its two headers may differ from what it is.

    Args:
        name: With the archive's own name in front.
        data: As it lies in the file.
        crc32, packed_bytes, bytes, method, flags: As the directory states them; None where they are the true ones.
        local_name: In the local header; None for the same.
        local_bytes: Both lengths in the local header; None for the true one.
        start: Where the directory says that it begins; None for where it does.
        attributes: External ones, in the directory.
        extra: Extra field of the directory's entry.
    """

    name: bytes
    data: bytes
    crc32: int | None = None
    packed_bytes: int | None = None
    bytes_: int | None = None
    method: int = 0
    flags: int = 0
    local_name: bytes | None = None
    local_bytes: int | None = None
    start: int | None = None
    attributes: int = 0
    extra: bytes = b""

    def local(self) -> bytes:
        """Local header and data."""
        name = self.name if self.local_name is None else self.local_name
        length = len(self.data) if self.local_bytes is None else self.local_bytes
        crc = zlib.crc32(self.data) if self.crc32 is None else self.crc32
        packed = length if self.packed_bytes is None else self.packed_bytes
        whole = packed if self.bytes_ is None or self.bytes_ >= 0xFFFFFFFF else self.bytes_
        head = (b"PK\x03\x04", 0, self.flags, self.method, 0, 0, crc, min(packed, 0xFFFFFFFF), whole, len(name), 0)
        return struct.pack("<4s5H3L2H", *head) + name + self.data

    def central(self, start: int) -> bytes:
        """Entry of the directory."""
        crc = zlib.crc32(self.data) if self.crc32 is None else self.crc32
        packed = len(self.data) if self.packed_bytes is None else self.packed_bytes
        whole = packed if self.bytes_ is None else self.bytes_
        place = start if self.start is None else self.start
        head = (b"PK\x01\x02", 0, 0, self.flags, self.method, 0, 0, crc, packed, whole, len(self.name), len(self.extra))
        return (
            struct.pack("<4s6H3L2H", *head)
            + struct.pack("<3H2L", 0, 0, 0, self.attributes, place)
            + self.name
            + self.extra
        )


def archive(
    records: list[Member],
    *,
    count: int | None = None,
    directory_bytes: int | None = None,
    directory_start: int | None = None,
    before: bytes = b"",
    between: bytes = b"",
    disk: int = 0,
    comment: bytes = b"",
) -> bytes:
    """A zip of these records; what its end record states may differ from what it is.

    Args:
        records: In the order of the file.
        count, directory_bytes, directory_start, disk: As stated; None for the true ones.
        before: In front of everything, without being counted.
        between: After the directory, before the end record; a 64-bit one goes there.
        comment: Behind the end record.
    """
    body, central = b"", b""
    for record in records:
        central += record.central(len(body))
        body += record.local()
    stated = (
        len(records) if count is None else count,
        len(central) if directory_bytes is None else directory_bytes,
        len(body) if directory_start is None else directory_start,
    )
    end = struct.pack("<4s4H2LH", b"PK\x05\x06", disk, disk, stated[0], stated[0], stated[1], stated[2], len(comment))
    return before + body + central + between + end + comment


def members(pickle: bytes, storages: dict[str, bytes] | None = None) -> list[Member]:
    """The records of a file of `torch.save`."""
    given = {"data.pkl": pickle, "byteorder": b"little"}
    given |= {f"data/{key}": data for key, data in (storages or {}).items()} | {"version": b"3\n"}
    return [Member(name=f"archive/{name}".encode(), data=data) for name, data in given.items()]


def torch_archive(body: bytes, storages: dict[str, bytes] | None = None, protocol: int = 2) -> bytes:
    """A file of `torch.save` whose object is what this piece of pickle leaves on the stack."""
    return archive(members(pickled(body, protocol), storages))


def changed(records: list[Member], index: int, **values: object) -> list[Member]:
    """The records with one of them changed."""
    changes: dict[str, Any] = values  # of fields of any type
    return [replace(record, **changes) if place == index else record for place, record in enumerate(records)]
