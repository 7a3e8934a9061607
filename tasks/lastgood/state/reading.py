"""Reading sharded tensors back, strictly, onto whatever ranks there are now.

Decides whether the files of one component make complete tensors that fit the live ones, and reads them in place.
Resharding is DCP's planner's; the bytes are ours. Rules: everything is checked before the first live element changes,
and every offence is reported, not only the first; DCP ignores keys that nobody asks for, so key sets are compared here;
every destination carries a sentinel before the read, and none may survive it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import ReadItem

from lastgood import documents
from lastgood.errors import FormatError, StorePermanentError
from lastgood.manifest import Component
from lastgood.state.sentinel import mark, survivors
from lastgood.state.storage import INDEX_KEY, Chunk, ShardIndex
from lastgood.state.tensorfile import DTYPES, TensorFile, dtype_code, tensor_bytes
from lastgood.verdict import Finding, Reason

__all__ = ["ShardedTensors", "StoredTensor"]

_READ_BACK_TENSORS = 8
_READ_BACK_BYTES = 2**20
_PIECE_BYTES = 16 * 2**20  # large reads are cut, so that threads finish together


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    """One tensor as all files together describe it; each chunk with the file that holds it."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    chunks: tuple[tuple[TensorFile, Chunk], ...]


class ShardedTensors:
    """Every file of one component, opened and checked.

    Args:
        directory: Holds `rank-NNNNN.safetensors` files.
        component: What they must say they are.
        name: The directory's name in messages, e.g. `optimizer`.

    After construction `findings` says what is wrong with the files themselves; `tensors` and `indices` (rank → index)
    hold whatever is lawful.
    """

    def __init__(self, directory: Path, *, component: Component, name: str) -> None:
        self.name = name
        self.findings: list[Finding] = []
        self.tensors: dict[str, StoredTensor] = {}
        self.indices: dict[int, ShardIndex] = {}
        self._component = component
        self._files: list[TensorFile] = []
        for path in sorted(directory.glob("rank-*.safetensors")) if directory.is_dir() else []:
            self._open(path)
        self._check_ranks()
        self._merge()

    @property
    def world_size(self) -> int:
        """How many ranks saved; 0 when no lawful file was found."""
        return next((index.world_size for index in self.indices.values()), 0)

    def close(self) -> None:
        for file in self._files:
            file.close()

    def __enter__(self) -> ShardedTensors:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def compare(
        self, live: Mapping[str, torch.Tensor], wanted_anywhere: frozenset[str], explained: Callable[[str], bool]
    ) -> Iterator[Finding]:
        """Say where the stored tensors do not fit the live ones.

        Args:
            live: This rank's tensors by key.
            wanted_anywhere: The keys of all ranks: under pipeline parallelism a rank holds only its own stage.
            explained: Whether a difference in this key was declared at registration.
        """
        for key in sorted(live.keys() - self.tensors.keys()):
            if not explained(key):
                yield self._finding(Reason.KEY_MISSING, key, "the live state needs it, no file holds it")
        for key in sorted(self.tensors.keys() - wanted_anywhere):
            if not explained(key):
                yield self._finding(Reason.KEY_UNEXPECTED, key, "a file holds it, no rank's live state has it")
        for key in sorted(live.keys() & self.tensors.keys()):
            stored, tensor = self.tensors[key], live[key]
            if stored.shape != tuple(tensor.shape) and not explained(key):
                yield self._finding(Reason.SHAPE_MISMATCH, key, "shape", tuple(tensor.shape), stored.shape)
            if stored.dtype != tensor.dtype and not explained(key):
                codes = dtype_code(tensor.dtype), dtype_code(stored.dtype)
                yield self._finding(Reason.DTYPE_MISMATCH, key, "element type", *codes)

    def read_into(self, live: Mapping[str, torch.Tensor]) -> list[Finding]:
        """Fill the live tensors in place; call only after `compare` found nothing.

        Keys without a stored tensor of the same shape are left alone: `compare` has reported or excused them.

        Raises:
            StorePermanentError: A file changed or could not be read; live tensors may be partly filled.
        """
        targets = {
            key: tensor
            for key, tensor in live.items()
            if key in self.tensors and self.tensors[key].shape == tuple(tensor.shape)
        }
        marks = {key: mark(_local(tensor)) for key, tensor in targets.items()}
        findings = self._fill(targets)
        for key, tensor in targets.items():
            if survivors(_local(tensor), marks[key]):
                findings.append(
                    self._finding(Reason.STATE_NOT_RESTORED, key, "elements were not overwritten by the load")
                )
        return findings

    def differing(self, live: Mapping[str, torch.Tensor]) -> Iterator[str]:
        """Read a sample of tensors a second time, apart, and yield the keys whose live bytes are others."""
        fitting = []
        for key, tensor in live.items():
            stored, length = self.tensors.get(key), _local(tensor).numel() * tensor.element_size()
            whole = stored is not None and (stored.shape, stored.dtype) == (tuple(tensor.shape), tensor.dtype)
            if whole and 0 < length <= _READ_BACK_BYTES:
                fitting.append(key)
        chosen = fitting[:: max(1, len(fitting) // _READ_BACK_TENSORS)]
        sample = {key: torch.empty_like(live[key], requires_grad=False) for key in chosen}
        self._fill(sample)
        for key, again in sample.items():
            one, other = _local(again).contiguous(), _local(live[key]).contiguous()
            if not torch.equal(one.view(-1).view(torch.uint8), other.view(-1).view(torch.uint8)):
                yield key

    def scalars(self) -> dict[str, torch.Tensor]:
        """The stored tensors without dimensions, such as step counters."""
        return {
            key: stored.chunks[0][0].tensor(stored.chunks[0][1].entry)
            for key, stored in self.tensors.items()
            if not stored.shape
        }

    def _fill(self, targets: Mapping[str, torch.Tensor]) -> list[Finding]:
        whole = {key: tensor for key, tensor in targets.items() if self._is_whole(key, tensor)}
        parts = {key: tensor for key, tensor in targets.items() if key not in whole}
        jobs: list[Callable[[], None]] = []
        for key, tensor in whole.items():
            [(file, chunk)] = self.tensors[key].chunks
            jobs.extend(_jobs(file, chunk, (0,) * len(chunk.sizes), chunk.sizes, tensor.detach()))
        with torch.no_grad():
            items = self._plan(parts, jobs) if parts else []
            _run(jobs)
        return [*self._check_cover(parts, items)]

    def _is_whole(self, key: str, tensor: torch.Tensor) -> bool:
        """Whether a plain tensor is stored in one piece, so that there is nothing to plan."""
        stored = self.tensors[key]
        return (
            not hasattr(tensor, "to_local")
            and len(stored.chunks) == 1
            and tuple(tensor.shape) == stored.shape == tuple(stored.chunks[0][1].sizes)
        )

    def _plan(self, targets: Mapping[str, torch.Tensor], jobs: list[Callable[[], None]]) -> list[ReadItem]:
        """Let DCP say which boxes of which chunks fill the targets, and add the jobs that read them."""
        planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
        planner.set_up_planner(dict(targets), self._metadata(targets))
        items = planner.create_local_plan().items
        for item in items:
            destination = planner.resolve_tensor(item)
            assert isinstance(destination, torch.Tensor), "the planner resolves tensors to tensors"
            assert item.storage_index.index is not None, "the planner numbers the chunks that it was given"
            file, chunk = self.tensors[item.dest_index.fqn].chunks[item.storage_index.index]
            starts, lengths = tuple(item.storage_offsets), tuple(item.lengths)
            jobs.extend(_jobs(file, chunk, starts, lengths, destination.detach()))
        return items

    def _open(self, path: Path) -> None:
        where = f"{self.name}/{path.name}"
        try:
            file = TensorFile(path, where)
            self._files.append(file)
            if INDEX_KEY not in file.metadata:
                raise FormatError(f"index missing: {where}: no {INDEX_KEY!r} in the file's metadata")
            index = documents.parse(ShardIndex, file.metadata[INDEX_KEY].encode(), f"index of {where}")
            _check_index(index, file, self._component, path.name)
        except (FormatError, StorePermanentError) as error:
            self.findings.append(Finding(reason=Reason.STATE_INVALID, message=error.message, offender=where))
            return
        self.indices[index.rank] = index
        for key, tensor in index.tensors.items():
            known = self.tensors.get(key)
            shape, dtype = tuple(tensor.shape), DTYPES[tensor.dtype]
            if known is not None and (known.shape, known.dtype) != (shape, dtype):
                self.findings.append(
                    self._finding(Reason.TENSOR_INCOMPLETE, key, "files disagree about it", known.shape, shape)
                )
                continue
            earlier = known.chunks if known is not None else ()
            chunks = (*earlier, *((file, chunk) for chunk in tensor.chunks))
            self.tensors[key] = StoredTensor(shape=shape, dtype=dtype, chunks=chunks)

    def _check_ranks(self) -> None:
        for attribute in ("world_size", "step"):
            values = sorted({getattr(index, attribute) for index in self.indices.values()})
            if len(values) > 1:
                reason = Reason.WORLD_SIZE_MISMATCH if attribute == "world_size" else Reason.FOREIGN_GENERATION_FILE
                message = f"files of {self.name} disagree: {attribute} is {' and '.join(map(str, values))}"
                self.findings.append(Finding(reason=reason, message=message, offender=self.name))
        unreadable = {finding.offender for finding in self.findings}
        for rank in range(self.world_size):
            path = f"{self.name}/rank-{rank:05d}.safetensors"
            if rank not in self.indices and path not in unreadable:
                message = f"shard missing: {path}: {self.world_size} ranks saved {self.name}"
                self.findings.append(Finding(reason=Reason.SHARD_MISSING, message=message, offender=path))
        if not self._files and not self.findings:
            message = f"component missing: {self.name}: no rank's file was found"
            self.findings.append(Finding(reason=Reason.COMPONENT_MISSING, message=message, offender=self.name))

    def _merge(self) -> None:
        if any(finding.reason is Reason.SHARD_MISSING for finding in self.findings):
            return  # every tensor would be named again for the one lost file
        for key, tensor in self.tensors.items():
            problem = _cover_problem(tensor)
            if problem is not None:
                self.findings.append(self._finding(Reason.TENSOR_INCOMPLETE, key, problem))

    def _metadata(self, targets: Mapping[str, torch.Tensor]) -> Metadata:
        tensors: dict[str, Any] = {}
        for key in targets:
            stored = self.tensors[key]
            chunks = [
                ChunkStorageMetadata(offsets=torch.Size(chunk.offsets), sizes=torch.Size(chunk.sizes))
                for _, chunk in stored.chunks
            ]
            properties = TensorProperties(dtype=stored.dtype)
            tensors[key] = TensorStorageMetadata(properties=properties, size=torch.Size(stored.shape), chunks=chunks)
        return Metadata(state_dict_metadata=tensors)

    def _check_cover(self, targets: Mapping[str, torch.Tensor], items: list[ReadItem]) -> Iterator[Finding]:
        planned: dict[str, int] = dict.fromkeys(targets, 0)
        for item in items:
            planned[item.dest_index.fqn] += prod(item.lengths)
        for key, tensor in targets.items():
            if planned[key] != _local(tensor).numel():
                yield self._finding(
                    Reason.TENSOR_INCOMPLETE, key, "elements planned to be read", _local(tensor).numel(), planned[key]
                )

    def _finding(self, reason: Reason, key: str, fact: str, expected: object = None, found: object = None) -> Finding:
        compared = f": expected {expected}, found {found}" if expected is not None else ""
        return Finding(
            reason=reason,
            message=f"{reason.value.replace('_', ' ')}: {self.name}.{key}: {fact}{compared}",
            offender=f"{self.name}.{key}",
            expected=None if expected is None else str(expected),
            found=None if found is None else str(found),
        )


def _check_index(index: ShardIndex, file: TensorFile, component: Component, file_name: str) -> None:
    where = file.where
    if index.component is not component:
        raise FormatError(f"file of another component: {where}: expected {component}, found {index.component}")
    if index.rank >= index.world_size or file_name != f"rank-{index.rank:05d}.safetensors":
        raise FormatError(f"file of another rank: {where}: it says rank {index.rank} of {index.world_size}")
    named = [chunk.entry for tensor in index.tensors.values() for chunk in tensor.chunks]
    if sorted(named) != sorted(file.entries):
        raise FormatError(f"index contradicts the file: {where}: {len(named)} chunks for {len(file.entries)} entries")
    for key, tensor in index.tensors.items():
        for chunk in tensor.chunks:
            entry = file.entries[chunk.entry]
            if DTYPES.get(tensor.dtype) != entry.dtype or tuple(chunk.sizes) != entry.shape:
                raise FormatError(f"index contradicts the file: {where}: {key!r} is {entry.dtype} {entry.shape} there")
            if len(chunk.offsets) != len(tensor.shape) or len(chunk.sizes) != len(tensor.shape):
                raise FormatError(f"index malformed: {where}: {key!r} has chunks of another number of dimensions")


def _cover_problem(tensor: StoredTensor) -> str | None:
    """Say how the chunks fail to cover the tensor exactly once, or None."""
    boxes = sorted((chunk for _, chunk in tensor.chunks), key=lambda chunk: chunk.offsets)
    volume = 0
    for number, box in enumerate(boxes):
        extents = zip(box.offsets, box.sizes, tensor.shape, strict=True)
        if any(offset + size > whole for offset, size, whole in extents):
            return f"a chunk at {box.offsets} reaches beyond shape {tensor.shape}"
        for other in boxes[number + 1 :]:
            if box.offsets and other.offsets[0] >= box.offsets[0] + box.sizes[0]:
                break  # sorted by offset: nothing further can overlap either
            if _overlap(box, other):
                return f"chunks overlap at {other.offsets}"
        volume += prod(box.sizes)
    if volume != prod(tensor.shape):
        return f"chunks cover {volume} of {prod(tensor.shape)} elements"
    return None


def _overlap(one: Chunk, other: Chunk) -> bool:
    return all(
        start < other_start + other_size and other_start < start + size
        for start, size, other_start, other_size in zip(one.offsets, one.sizes, other.offsets, other.sizes, strict=True)
    )


def _local(tensor: torch.Tensor) -> torch.Tensor:
    to_local = getattr(tensor, "to_local", None)
    local: torch.Tensor = tensor if to_local is None else to_local()
    return local.detach()


def _jobs(
    file: TensorFile, chunk: Chunk, starts: Sequence[int], lengths: tuple[int, ...], destination: torch.Tensor
) -> Iterator[Callable[[], None]]:
    """The work that reads a box of a chunk, `lengths` long from `starts`, into a tensor of that shape."""
    entry = file.entries[chunk.entry]
    sizes = chunk.sizes
    if 0 in lengths:
        return
    # Rows are contiguous in the file, so whatever is narrowed along the first dimension alone is one byte range.
    row_bytes = entry.dtype.itemsize * prod(sizes[1:])
    start = entry.start + (starts[0] * row_bytes if starts else 0)
    direct = lengths[1:] == sizes[1:] and destination.is_contiguous() and destination.device.type == "cpu"
    if direct and destination.dtype == entry.dtype:
        view = tensor_bytes(destination)
        for begin in range(0, len(view), _PIECE_BYTES):
            piece = view[begin : begin + _PIECE_BYTES]
            yield partial(file.read, start + begin, piece)
        return

    def indirect() -> None:
        rows = torch.empty((lengths[0], *sizes[1:]) if starts else (), dtype=entry.dtype)
        file.read(start, tensor_bytes(rows))
        for dimension in range(1, len(sizes)):
            rows = rows.narrow(dimension, starts[dimension], lengths[dimension])
        destination.copy_(rows)

    yield indirect


def _run(jobs: list[Callable[[], None]]) -> None:
    # preadv releases the GIL; more threads than cores would only queue on memory bandwidth.
    threads = max(1, min(8, len(jobs) // 16, len(os.sched_getaffinity(0))))
    with ThreadPoolExecutor(max_workers=threads) as pool:
        for worker in [pool.submit(_drain, jobs) for _ in range(threads)]:
            worker.result()


def _drain(jobs: list[Callable[[], None]]) -> None:
    while True:
        try:
            job = jobs.pop()
        except IndexError:
            return
        job()
