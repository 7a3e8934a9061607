"""A file that `torch.save` wrote, whichever way: one description, with its tensors held against its storages.

Decides which container a file is, by its first bytes, and whether every storage that the pickle names is there at its
full length. Leaves checksums to `TorchZip.check_crcs`. Rules: only `data.pkl` is read of the payload; a tar of torch
0.1 is named and not read, since no version supported today writes one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from lastgood.formats.containers.legacy import read_legacy
from lastgood.formats.containers.machine import PickleLimits
from lastgood.formats.containers.pickles import Pickled, PickleMemory, read_pickle
from lastgood.formats.containers.reading import Problem, ProblemKind, exactly, malformed, quoted
from lastgood.formats.containers.torchzip import TorchZip, open_torch_zip
from lastgood.stores.port import ObjectReader

__all__ = ["Container", "TorchFile", "container_of", "read_torch_file"]

_LEGACY_MAGIC_PICKLED = b"\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
_HEAD_BYTES = 512
_TORCH_MEMBERS = frozenset({b"sys_info", b"pickle", b"tensors", b"storages"})
"""Of torch 0.1's tars, in any order; one that begins otherwise is an archive of something else, data mostly."""


class Container(StrEnum):
    """The form of a file, by its first bytes; that it is lawful is another question."""

    EMPTY = "empty"
    TORCH_ZIP = "torch_zip"
    TORCH_LEGACY = "torch_legacy"
    TORCH_TAR = "torch_tar"
    TAR = "tar"
    SAFETENSORS = "safetensors"
    PICKLE = "pickle"
    UNKNOWN = "unknown"


def container_of(reader: ObjectReader, where: str) -> Container:
    """Recognise a file by at most 512 bytes at its beginning."""
    head = exactly(reader, 0, min(_HEAD_BYTES, reader.size_bytes), where)
    if not head:
        return Container.EMPTY
    if head.startswith(b"PK\x03\x04"):
        return Container.TORCH_ZIP
    if head[:1] == b"\x80" and _LEGACY_MAGIC_PICKLED in head[:32]:
        return Container.TORCH_LEGACY
    if head[257:262] == b"ustar":
        return Container.TORCH_TAR if head[:100].rstrip(b"\0") in _TORCH_MEMBERS else Container.TAR
    if head[8:9] == b"{" and int.from_bytes(head[:8], "little") <= reader.size_bytes - 8:
        return Container.SAFETENSORS
    if head[:1] == b"\x80" and head[1:2] <= b"\x05":
        return Container.PICKLE
    return Container.UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchFile:
    """What `torch.save` was given, without the elements.

    Args:
        container: Which form.
        pickled: The object.
        archive: The zip, for its records and checksums; None for a legacy file, which has neither.
        serialization_id: Differs from save to save (torch 2.1 and later); None where there is none.
        byteorder: `little` or `big`; None where it is not written.
        payload_bytes: Of all storages.
        problems: What is wrong with storages and bytes that belong to none.
    """

    container: Container
    pickled: Pickled
    archive: TorchZip | None
    serialization_id: str | None
    byteorder: str | None
    payload_bytes: int
    problems: tuple[Problem, ...]

    @property
    def value(self) -> Any:
        """The object as plain values and stubs."""
        return self.pickled.value


def read_torch_file(reader: ObjectReader, where: str, memory: PickleMemory | None = None) -> TorchFile:
    """Describe a file, or one entry of a `.distcp` through a `Window`.

    Args:
        reader: Of its bytes.
        where: What to call it in messages.
        memory: Of pickles that were described before.

    Raises:
        FormatError: It is no such file, or nothing in it can be described.
        StoreError: It could not be read.
    """
    container = container_of(reader, where)
    if container is Container.TORCH_ZIP:
        return _from_zip(open_torch_zip(reader, where), where, memory)
    if container is Container.TORCH_LEGACY:
        return _from_legacy(reader, where)
    hint = "torch 0.1 wrote tars; load it and save it again" if container is Container.TORCH_TAR else None
    raise malformed(where, "not a file of torch.save", f"found {container}", hint=hint)


def _from_zip(archive: TorchZip, where: str, memory: PickleMemory | None) -> TorchFile:
    data = archive.read_record("data.pkl", PickleLimits().bytes)
    read = read_pickle if memory is None else memory.read
    pickled = read(data, f"{where}: data.pkl")
    return TorchFile(
        container=Container.TORCH_ZIP,
        pickled=pickled,
        archive=archive,
        serialization_id=archive.read_text(".data/serialization_id"),
        byteorder=archive.read_text("byteorder"),
        payload_bytes=sum(record.data_bytes for name, record in archive.records.items() if name.startswith("data/")),
        problems=tuple(_storage_problems(archive, pickled, where)),
    )


def _storage_problems(archive: TorchZip, pickled: Pickled, where: str) -> Iterator[Problem]:
    for storage in pickled.storages.values():
        name = f"data/{storage.key}"
        record = archive.records.get(name)
        if record is None:
            yield Problem(
                kind=ProblemKind.RECORD_MISSING,
                subject=name,
                message=f"record missing: {where}: {quoted(name)}: tensors need {storage.bytes} bytes",
            )
        elif record.data_bytes != storage.bytes:
            yield Problem(
                kind=ProblemKind.STORAGE_SIZE,
                subject=name,
                message=f"record of another length: {where}: {quoted(name)}: tensors need {storage.bytes} bytes, "
                f"found {record.data_bytes}",
            )
    directory = archive.directory
    for count, place in (
        (directory.leading_bytes, "before the first record"),
        (directory.trailing_bytes, "at the end"),
    ):
        if count:
            yield Problem(
                kind=ProblemKind.UNCOVERED_BYTES,
                subject=where,
                message=f"bytes of no record: {where}: {count} {place}",
            )


def _from_legacy(reader: ObjectReader, where: str) -> TorchFile:
    legacy = read_legacy(reader, where)
    little = legacy.system.get("little_endian") if isinstance(legacy.system, dict) else None
    return TorchFile(
        container=Container.TORCH_LEGACY,
        pickled=legacy.pickled,
        archive=None,
        serialization_id=None,
        byteorder={True: "little", False: "big"}.get(little) if isinstance(little, bool) else None,
        payload_bytes=legacy.payload_bytes,
        problems=legacy.problems,
    )
