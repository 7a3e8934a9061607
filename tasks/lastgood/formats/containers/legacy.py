"""What `torch.save` wrote before the zip, and still writes when asked: pickles in a row, then raw storages.

Decides whether the file is covered exactly. Rules: a magic number, a protocol version, a description of the system, the
object, the keys of the storages; then for each key a count of elements and that many elements. There is no checksum at
all. Source: `torch.serialization._legacy_save`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from lastgood.errors import FormatError, ReadLimitError
from lastgood.formats.containers.machine import PickleLimits
from lastgood.formats.containers.pickles import Pickled, PickleStream
from lastgood.formats.containers.reading import Problem, ProblemKind, beyond, exactly, malformed, quoted
from lastgood.formats.containers.stubs import ITEM_BYTES
from lastgood.stores.port import ObjectReader

__all__ = ["LEGACY_MAGIC", "Legacy", "read_legacy"]

LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
LEGACY_PROTOCOL = 1001
_FIRST_HEAD_BYTES = 2**20
_HEAD_GROWTH = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Legacy:
    """A file of the form before the zip.

    Args:
        pickled: The object.
        system: What the writer said of its machine, such as `little_endian`.
        payload_bytes: Of all storages.
        problems: Storages that are not as long as the object says, bytes that belong to none.
    """

    pickled: Pickled
    system: Any
    payload_bytes: int
    problems: tuple[Problem, ...]


def read_legacy(reader: ObjectReader, where: str) -> Legacy:
    """Read the pickles and the lengths of the storages.

    Raises:
        FormatError: It is no such file, or ends within its pickles.
    """
    pickled, system, keys, position = _head(reader, where)
    problems: list[Problem] = []
    payload_bytes = 0
    for key in keys:
        storage = pickled.storages.get(key)
        if storage is None:
            raise malformed(where, "storage unknown", f"{quoted(key)} is listed and no tensor names it")
        if position + 8 + storage.bytes > reader.size_bytes:
            problems.append(_problem(ProblemKind.STORAGE_SIZE, key, where, "file ends before its last byte"))
            return Legacy(pickled=pickled, system=system, payload_bytes=payload_bytes, problems=tuple(problems))
        elements = int.from_bytes(exactly(reader, position, 8, where), "little", signed=True)
        if elements * ITEM_BYTES[storage.dtype] != storage.bytes:
            fact = f"expected {storage.elements} elements, found {elements}"
            problems.append(_problem(ProblemKind.STORAGE_SIZE, key, where, fact))
            return Legacy(pickled=pickled, system=system, payload_bytes=payload_bytes, problems=tuple(problems))
        payload_bytes += storage.bytes
        position += 8 + storage.bytes
    if missing := sorted(set(pickled.storages) - set(keys)):
        problems.append(_problem(ProblemKind.RECORD_MISSING, missing[0], where, "is not among the storages"))
    if position != reader.size_bytes:
        fact = f"{reader.size_bytes - position} bytes behind the last storage"
        problems.append(_problem(ProblemKind.UNCOVERED_BYTES, where, where, fact))
    return Legacy(pickled=pickled, system=system, payload_bytes=payload_bytes, problems=tuple(problems))


def _problem(kind: ProblemKind, subject: str, where: str, fact: str) -> Problem:
    return Problem(kind=kind, subject=subject, message=f"storage {quoted(subject)}: {where}: {fact}")


def _head(reader: ObjectReader, where: str) -> tuple[Pickled, Any, list[str], int]:
    """The object, the system, the keys, and the first byte behind the pickles."""
    # Nothing says how long the pickles are, and gigabytes may follow: try a part, and more where that was too little.
    length, said = min(_FIRST_HEAD_BYTES, reader.size_bytes), ""
    while True:
        try:
            return _pickles(exactly(reader, 0, length, where), where)
        except ReadLimitError:
            raise
        except FormatError as error:
            # A fault that stays in its place when more is read is no end that came too early.
            if length == reader.size_bytes or error.message == said:
                raise
            if length == PickleLimits().bytes:
                fact = f"expected their end within {length} bytes: {error.message}"
                raise beyond(where, "pickles too large", fact) from None
            said = error.message
            length = min(length * _HEAD_GROWTH, reader.size_bytes, PickleLimits().bytes)


def _pickles(data: bytes, where: str) -> tuple[Pickled, Any, list[str], int]:
    stream = PickleStream(data, where, modules_allowed=True)
    magic = stream.next().value
    if type(magic) is not int or magic != LEGACY_MAGIC:
        raise malformed(where, "magic number unknown", "expected torch's legacy one")
    protocol = stream.next().value
    if type(protocol) is not int or protocol != LEGACY_PROTOCOL:
        raise malformed(where, "legacy protocol unknown", f"expected {LEGACY_PROTOCOL}")
    system = stream.next().value
    pickled = stream.next()
    listed = stream.next()
    keys = listed.value
    if type(keys) is not list or any(type(key) is not str for key in keys) or len(set(keys)) != len(keys):
        raise malformed(where, "storage keys malformed", "expected a list of different texts")
    # The names of all five pickles, for any of them could have run code.
    pickled = replace(pickled, globals=listed.globals, unknown_globals=listed.unknown_globals)
    return pickled, system, keys, stream.position
