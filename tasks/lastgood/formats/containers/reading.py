"""Where the bytes of a foreign file come from, and what is said of them.

Decides that no range beyond an object is ever asked for. Leaves opening, versions and retries to the store. Rule: text
from a file is quoted and cut before it enters a message.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from lastgood.errors import FormatError, ReadLimitError
from lastgood.reasons import Reason
from lastgood.stores.port import ObjectReader

__all__ = ["BytesReader", "Problem", "ProblemKind", "Window", "beyond", "exactly", "malformed", "quoted"]

_MAXIMUM_QUOTED = 80


class ProblemKind(StrEnum):
    """What is wrong with a file that could be described all the same; the caller makes findings of it."""

    RECORD_MISSING = "record_missing"
    STORAGE_SIZE = "storage_size"
    PATH_ESCAPES = "path_escapes"
    ENTRY_MISSING = "entry_missing"
    RANGE_INVALID = "range_invalid"
    RANGE_OVERLAPS = "range_overlaps"
    RANGE_BEYOND_FILE = "range_beyond_file"
    FILE_MISSING = "file_missing"
    UNCOVERED_BYTES = "uncovered_bytes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing that is wrong inside a file that could be read.

    Args:
        kind: What, of a closed vocabulary.
        subject: The record, tensor or path it is about, as the file spells it.
        message: A lowercase fact, where, expected against found.
    """

    kind: ProblemKind
    subject: str
    message: str


class BytesReader:
    """Bytes in memory as an object."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    @property
    def size_bytes(self) -> int:
        return len(self._data)

    def read_at(self, offset: int, length: int) -> bytes:
        return self._data[offset : offset + length]


class Window:
    """A part of a larger object as an object of its own, such as one entry of a `.distcp` file.

    Raises:
        FormatError: The part does not lie within the object.
    """

    def __init__(self, reader: ObjectReader, offset: int, length: int, where: str) -> None:
        if offset < 0 or length < 0 or offset + length > reader.size_bytes:
            raise malformed(
                where,
                "range beyond the file",
                f"expected at most {reader.size_bytes} bytes, found {length} bytes from {offset} on",
            )
        self._reader = reader
        self._offset = offset
        self._length = length

    @property
    def size_bytes(self) -> int:
        return self._length

    def read_at(self, offset: int, length: int) -> bytes:
        return self._reader.read_at(self._offset + offset, length)


def exactly(reader: ObjectReader, offset: int, length: int, where: str) -> bytes:
    """Exactly that range.

    Raises:
        FormatError: The file ends before it, so whatever named the range lies or the file was cut.
        StoreError: The store could not read it.
    """
    if offset < 0 or length < 0 or offset + length > reader.size_bytes:
        fact = f"expected {length} bytes from {offset} on, found {reader.size_bytes} in all"
        raise malformed(where, "file ends early", fact)
    return reader.read_at(offset, length)


def malformed(where: str, fact: str, detail: str = "", *, hint: str | None = None) -> FormatError:
    """The error for a file that is not what it claims to be, ready to be raised."""
    message = f"{fact}: {where}: {detail}" if detail else f"{fact}: {where}"
    return FormatError(message, reason=Reason.CONTAINER_MALFORMED, where=where, hint=hint)


def beyond(where: str, fact: str, detail: str) -> ReadLimitError:
    """The error for a file that may be lawful, and of which more would have to be read than is, ready to be raised."""
    return ReadLimitError(f"{fact}: {where}: {detail}", where=where, hint="its own framework can still tell")


def quoted(text: str) -> str:
    """Text of a file as a literal of bounded length, for a message."""
    return repr(text if len(text) <= _MAXIMUM_QUOTED else f"{text[:_MAXIMUM_QUOTED]}…")
