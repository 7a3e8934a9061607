"""`.metadata` of torch DCP: which tensor lies where, as typed values.

Decides whether the pickle is a checkpoint's metadata at all. Leaves to the caller what its problems mean. Rules: a
path that leaves the checkpoint becomes a problem and no entry, so that nobody follows it; ranges are not negative and
do not overlap; every chunk and every object has an entry. Source: `torch.distributed.checkpoint.metadata`; each entry
is a file of `torch.save` of its own (`torchfile`, through a `Window`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from lastgood.errors import FormatError
from lastgood.formats.containers.machine import PickleLimits
from lastgood.formats.containers.pickles import read_pickle
from lastgood.formats.containers.reading import Problem, ProblemKind, malformed, quoted
from lastgood.formats.containers.stubs import GlobalStub, ObjectStub
from lastgood.identity import is_lawful_key

__all__ = ["METADATA_LIMITS", "DcpChunk", "DcpEntry", "DcpMetadata", "DcpTensor", "read_dcp_metadata"]

METADATA_LIMITS = PickleLimits(bytes=256 * 2**20, opcodes=160_000_000, memory_bytes=8 * 2**30)
"""Wider than for other pickles, since a job of a thousand ranks writes a million chunks. Measured: a chunk takes 140
bytes of the file, 1.6 KB of memory and 4.5 KB of the estimate."""

_MAXIMUM_OFFSET = 2**62
_CLASSES = "torch.distributed.checkpoint.metadata."


@dataclass(frozen=True, slots=True, kw_only=True)
class DcpChunk:
    """One box of a tensor: where it begins in the whole, and its sizes."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DcpTensor:
    """A tensor of the whole job.

    Args:
        dtype: torch's name, such as `bfloat16`.
        shape: Of the whole.
        chunks: The boxes that were written.
    """

    dtype: str
    shape: tuple[int, ...]
    chunks: tuple[DcpChunk, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DcpEntry:
    """Where one chunk or object is stored.

    Args:
        fqn: Its name in the state dictionary.
        chunk_offsets: Which chunk; None for objects.
        path: Relative to the checkpoint, lawful.
        offset: First byte in that file.
        length: Bytes.
        transforms: Names of what the writer applied to the bytes, such as a compression.
    """

    fqn: str
    chunk_offsets: tuple[int, ...] | None
    path: str
    offset: int
    length: int
    transforms: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DcpMetadata:
    """A whole `.metadata`.

    Args:
        tensors: Name → tensor.
        objects: Names of what is stored as pickled objects, in the order of the file.
        entries: By path and offset; without those whose path or range is a problem.
        paths: Name → keys that lead to it in the nested state dictionary; empty where the planner left none.
        save_id: Differs from save to save (torch 2.3 and later).
        version: Of the metadata, as written.
        extras: Further attributes that another library hung on it (Megatron's `mcore_data`).
        unknown_globals: Names that the pickle would have imported beside the known ones.
        problems: What is wrong inside.
    """

    tensors: dict[str, DcpTensor]
    objects: tuple[str, ...]
    entries: tuple[DcpEntry, ...]
    paths: dict[str, tuple[Any, ...]]
    save_id: str | None
    version: str | None
    extras: dict[str, Any]
    unknown_globals: tuple[str, ...]
    problems: tuple[Problem, ...]

    def file_bytes(self) -> dict[str, int]:
        """Path → how long the file must be. It is exactly that long in whatever torch wrote."""
        lengths: dict[str, int] = {}
        for entry in self.entries:
            lengths[entry.path] = max(lengths.get(entry.path, 0), entry.offset + entry.length)
        return lengths

    def file_problems(self, sizes: Mapping[str, int]) -> tuple[Problem, ...]:
        """What the lengths of the files that are there contradict.

        Args:
            sizes: Path → length in bytes, of each file found.
        """
        problems = []
        for path, expected in self.file_bytes().items():
            found = sizes.get(path)
            if found == expected:
                continue
            if found is None:
                kind, fact = ProblemKind.FILE_MISSING, "file missing"
            elif found < expected:
                kind, fact = ProblemKind.RANGE_BEYOND_FILE, "file too short"
            else:
                kind, fact = ProblemKind.UNCOVERED_BYTES, "file too long"
            message = (
                f"{fact}: {quoted(path)}: .metadata needs {expected} bytes, found {'none' if found is None else found}"
            )
            problems.append(Problem(kind=kind, subject=path, message=message))
        return tuple(problems)


def read_dcp_metadata(data: bytes, where: str, limits: PickleLimits = METADATA_LIMITS) -> DcpMetadata:
    """Read `.metadata` without torch.

    Raises:
        FormatError: It is no lawful pickle, or no metadata of DCP.
    """
    pickled = read_pickle(data, where, limits)
    fields = _fields(pickled.value, "Metadata", where)
    problems: list[Problem] = []
    tensors, objects = _contents(_mapping(fields.pop("state_dict_metadata", None), where), where)
    stored = _mapping(fields.pop("storage_data", None) or {}, where)
    entries = sorted(
        _entries(stored, where, problems), key=lambda entry: (entry.path, entry.offset, entry.length, entry.fqn)
    )
    problems.extend(_overlaps(entries, where))
    problems.extend(_missing(tensors, objects, entries, where))
    meta = fields.pop("storage_meta", None)
    save_id = meta.attributes.get("save_id") if isinstance(meta, ObjectStub) else None
    version = fields.pop("version", None)
    planner = fields.pop("planner_data", None)
    return DcpMetadata(
        tensors=tensors,
        objects=objects,
        entries=tuple(entries),
        paths=_paths(planner),
        save_id=save_id if isinstance(save_id, str) else None,
        version=version if isinstance(version, str) else None,
        extras=fields,
        unknown_globals=pickled.unknown_globals,
        problems=tuple(problems),
    )


def _refusal(where: str, fact: str) -> FormatError:
    return malformed(where, "not metadata of DCP", fact)


def _fields(value: Any, name: str, where: str) -> dict[str, Any]:
    if not isinstance(value, ObjectStub) or value.path != f"{_CLASSES}{name}":
        found = value.path if isinstance(value, ObjectStub) else type(value).__name__
        raise _refusal(where, f"expected {name}, found {quoted(found)}")
    return value.attributes


def _mapping(value: Any, where: str) -> dict[Any, Any]:
    if type(value) is not dict:
        raise _refusal(where, f"expected a dictionary, found {type(value).__name__}")
    return value


def _contents(described: dict[Any, Any], where: str) -> tuple[dict[str, DcpTensor], tuple[str, ...]]:
    tensors: dict[str, DcpTensor] = {}
    objects: list[str] = []
    for fqn, value in described.items():
        if type(fqn) is not str:
            raise _refusal(where, f"name of a tensor: expected text, found {type(fqn).__name__}")
        if isinstance(value, ObjectStub) and value.path == f"{_CLASSES}BytesStorageMetadata":
            objects.append(fqn)
        else:
            tensors[fqn] = _tensor(_fields(value, "TensorStorageMetadata", where), fqn, where)
    return tensors, tuple(objects)


def _tensor(fields: dict[str, Any], fqn: str, where: str) -> DcpTensor:
    properties, chunks = fields.get("properties"), fields.get("chunks")
    state = properties.state if isinstance(properties, ObjectStub) else None
    dtype = state[0] if isinstance(state, tuple) and state else None
    if isinstance(state, dict):  # where TensorProperties had no __getstate__
        dtype = state.get("dtype")
    if not isinstance(dtype, GlobalStub) or type(chunks) is not list:
        raise _refusal(where, f"tensor without element type or chunks: {quoted(fqn)}")
    parts = [_fields(chunk, "ChunkStorageMetadata", where) for chunk in chunks]
    return DcpTensor(
        dtype=dtype.name,
        shape=_sizes(fields.get("size"), fqn, where),
        chunks=tuple(
            DcpChunk(offsets=_sizes(part.get("offsets"), fqn, where), sizes=_sizes(part.get("sizes"), fqn, where))
            for part in parts
        ),
    )


def _sizes(value: Any, fqn: str, where: str) -> tuple[int, ...]:
    if type(value) is tuple and all(type(item) is int and 0 <= item <= _MAXIMUM_OFFSET for item in value):
        return value
    raise _refusal(where, f"sizes of {quoted(fqn)}: expected a torch.Size, found {type(value).__name__}")


def _entries(stored: dict[Any, Any], where: str, problems: list[Problem]) -> Iterator[DcpEntry]:
    seen: set[tuple[str, tuple[int, ...] | None]] = set()
    for key, value in stored.items():
        index = _fields(key, "MetadataIndex", where)
        fqn, chunk = index.get("fqn"), index.get("offset")
        if type(fqn) is not str or not isinstance(value, ObjectStub):
            raise _refusal(where, "storage entry without a name or place")
        offsets = None if chunk is None else _sizes(chunk, fqn, where)
        place = value.attributes
        path, offset, length = place.get("relative_path"), place.get("offset"), place.get("length")
        if type(path) is not str or type(offset) is not int or type(length) is not int:
            raise _refusal(where, f"storage entry of {quoted(fqn)}: expected path, offset and length")
        found = f"{quoted(fqn)} lies in {quoted(path)}"
        if not is_lawful_key(path):
            problems.append(_problem(ProblemKind.PATH_ESCAPES, fqn, f"path escapes: {where}: {found}"))
        elif not 0 <= offset <= _MAXIMUM_OFFSET or not 0 < length <= _MAXIMUM_OFFSET:
            fact = f"range impossible: {where}: {found}: {length} bytes from {offset} on"
            problems.append(_problem(ProblemKind.RANGE_INVALID, fqn, fact))
        elif (fqn, offsets) in seen:
            problems.append(_problem(ProblemKind.RANGE_INVALID, fqn, f"stored twice: {where}: {quoted(fqn)}"))
        else:
            seen.add((fqn, offsets))
            yield DcpEntry(
                fqn=fqn,
                chunk_offsets=offsets,
                path=path,
                offset=offset,
                length=length,
                transforms=_transforms(place.get("transform_descriptors")),
            )


def _transforms(value: Any) -> tuple[str, ...]:
    return tuple(item for item in value if type(item) is str) if isinstance(value, list | tuple) else ()


def _problem(kind: ProblemKind, subject: str, message: str) -> Problem:
    return Problem(kind=kind, subject=subject, message=message)


def _overlaps(entries: list[DcpEntry], where: str) -> Iterator[Problem]:
    for path, group in groupby(entries, key=lambda entry: entry.path):
        end, before = 0, ""
        for entry in group:
            if entry.offset < end:
                fact = f"ranges overlap: {where}: {quoted(entry.fqn)} and {quoted(before)} in {quoted(path)}"
                yield _problem(ProblemKind.RANGE_OVERLAPS, entry.fqn, fact)
            if entry.offset + entry.length > end:
                end, before = entry.offset + entry.length, entry.fqn


def _missing(
    tensors: dict[str, DcpTensor], objects: tuple[str, ...], entries: list[DcpEntry], where: str
) -> Iterator[Problem]:
    stored = {(entry.fqn, entry.chunk_offsets) for entry in entries}
    for fqn, tensor in tensors.items():
        for chunk in tensor.chunks:
            if (fqn, chunk.offsets) not in stored:
                fact = f"chunk without an entry: {where}: {quoted(fqn)} at {chunk.offsets}"
                yield _problem(ProblemKind.ENTRY_MISSING, fqn, fact)
    for fqn in objects:
        if (fqn, None) not in stored:
            yield _problem(ProblemKind.ENTRY_MISSING, fqn, f"object without an entry: {where}: {quoted(fqn)}")


def _paths(planner: Any) -> dict[str, tuple[Any, ...]]:
    if type(planner) is not dict:
        return {}
    return {
        fqn: path
        for fqn, path in planner.items()
        if type(fqn) is str and type(path) is tuple and all(type(part) in (str, int) for part in path)
    }
