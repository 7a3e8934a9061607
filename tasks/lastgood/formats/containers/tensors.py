"""The header of a safetensors file, and the index over several of them.

Decides which files are lawful. Leaves elements alone: no checksum covers them. Rules: the header is at most
`MAXIMUM_HEADER_BYTES` (the reference implementation takes 100 MB), strict JSON without duplicate keys; entries cover
the data exactly, without hole or overlap; names are keys, never paths; an index names files beside itself. Source: the
safetensors format description.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from lastgood.formats.containers.reading import Problem, ProblemKind, beyond, exactly, malformed, quoted
from lastgood.formats.texts import parse_json
from lastgood.identity import is_lawful_key
from lastgood.stores.port import ObjectReader

__all__ = [
    "ITEM_BITS",
    "MAXIMUM_HEADER_BYTES",
    "MAXIMUM_TENSORS",
    "ShardIndex",
    "TensorEntry",
    "TensorHeader",
    "read_shard_index",
    "read_tensor_header",
]

MAXIMUM_HEADER_BYTES = 64 * 2**20
MAXIMUM_TENSORS = 500_000
MAXIMUM_DIMENSIONS = 64
_METADATA = "__metadata__"

ITEM_BITS: dict[str, int] = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("F4",), 4),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 16),
    **dict.fromkeys(("I32", "U32", "F32"), 32),
    **dict.fromkeys(("I64", "U64", "F64", "C64"), 64),
}
"""Bits of one element, by safetensors' name of its type."""

_Size = Annotated[int, Meta(ge=0, le=2**62)]


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    dtype: str
    shape: Annotated[tuple[_Size, ...], Meta(max_length=MAXIMUM_DIMENSIONS)]
    data_offsets: tuple[_Size, _Size]


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorEntry:
    """One stored tensor.

    Args:
        dtype: safetensors' name of its element type, such as `BF16`.
        shape: Sizes, outermost first.
        start: Absolute in the file.
        bytes: Length.
    """

    dtype: str
    shape: tuple[int, ...]
    start: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorHeader:
    """Everything that a safetensors file says of itself.

    Args:
        entries: Name → tensor, in the order of the header.
        metadata: Free text that the writer added.
        data_start: First byte behind the header.
    """

    entries: dict[str, TensorEntry]
    metadata: dict[str, str]
    data_start: int


def read_tensor_header(reader: ObjectReader, where: str) -> TensorHeader:
    """Read and check the header; of the data only its length.

    Raises:
        FormatError: The file is not lawful.
        StoreError: It could not be read.
    """
    if reader.size_bytes < 8:
        raise malformed(where, "file too short for a header", f"{reader.size_bytes} bytes")
    header_bytes = int.from_bytes(exactly(reader, 0, 8, where), "little")
    if header_bytes > reader.size_bytes - 8:
        fact = f"expected at most {reader.size_bytes - 8} bytes, found {header_bytes}"
        raise malformed(where, "header length out of range", fact)
    if header_bytes > MAXIMUM_HEADER_BYTES:
        fact = f"expected at most {MAXIMUM_HEADER_BYTES} bytes, found {header_bytes}"
        raise beyond(where, "header too large", fact)
    header = _read_mapping(exactly(reader, 8, header_bytes, where), f"header of {where}")
    metadata = _convert(header.pop(_METADATA, {}), dict[str, str], where, _METADATA)
    if len(header) > MAXIMUM_TENSORS:
        raise beyond(where, "too many tensors", f"at most {MAXIMUM_TENSORS}, found {len(header)}")
    start = 8 + header_bytes
    entries = {name: _entry(name, _convert(value, _Entry, where, name), start, where) for name, value in header.items()}
    _check_cover(entries.values(), start, reader.size_bytes, where)
    return TensorHeader(entries=entries, metadata=metadata, data_start=start)


def _read_mapping(data: bytes, where: str) -> dict[str, Any]:
    value = parse_json(data, where)
    if not isinstance(value, dict):
        raise malformed(where, "not a JSON object", f"found {type(value).__name__}")
    return value


def _convert(value: Any, type_: Any, where: str, name: str) -> Any:
    try:
        return msgspec.convert(value, type_, strict=True)
    except msgspec.ValidationError as error:
        raise malformed(where, "entry malformed", f"{quoted(name)}: {error}") from error


def _entry(name: str, entry: _Entry, data_start: int, where: str) -> TensorEntry:
    if entry.dtype not in ITEM_BITS:
        raise malformed(where, "dtype unknown", f"{quoted(name)} has {quoted(entry.dtype)}")
    begin, end = entry.data_offsets
    bits = prod(entry.shape) * ITEM_BITS[entry.dtype]
    if (end - begin) * 8 != bits:
        raise malformed(
            where, "tensor length contradicts its shape", f"{quoted(name)} needs {bits // 8} bytes, found {end - begin}"
        )
    return TensorEntry(dtype=entry.dtype, shape=entry.shape, start=data_start + begin, bytes=end - begin)


def _check_cover(entries: Iterable[TensorEntry], start: int, end: int, where: str) -> None:
    position = start
    for entry in sorted(entries, key=lambda entry: (entry.start, entry.bytes)):
        if entry.start != position:
            kind = "overlap" if entry.start < position else "leave a hole"
            raise malformed(where, f"tensors {kind}", f"expected one at byte {position}, found {entry.start}")
        position += entry.bytes
    if position != end:
        raise malformed(where, "file length contradicts its header", f"expected {position} bytes, found {end}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardIndex:
    """`*.index.json` over sharded weights.

    Args:
        files: Tensor → file, for files that lie beside the index.
        total_bytes: As the writer summed it; None where it is not written.
        problems: Tensors whose file lies elsewhere; they are not in `files`.
    """

    files: dict[str, str]
    total_bytes: int | None
    problems: tuple[Problem, ...]


def read_shard_index(data: bytes, where: str) -> ShardIndex:
    """Read an index; a path out of its directory becomes a problem and is never followed.

    Raises:
        FormatError: It is no index.
    """
    index = _read_mapping(data, where)
    weights = _convert(index.get("weight_map"), dict[str, str], where, "weight_map")
    metadata = index.get("metadata")
    total = metadata.get("total_size") if isinstance(metadata, dict) else None
    problems = tuple(
        Problem(
            kind=ProblemKind.PATH_ESCAPES,
            subject=file,
            message=f"path escapes: {where}: {quoted(name)} lies in {quoted(file)}",
        )
        for name, file in weights.items()
        if not is_lawful_key(file)
    )
    return ShardIndex(
        files={name: file for name, file in weights.items() if is_lawful_key(file)},
        total_bytes=total if type(total) is int and total >= 0 else None,
        problems=problems,
    )
