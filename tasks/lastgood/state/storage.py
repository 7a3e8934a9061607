"""Saving tensors under torch DCP's planner: who writes which chunk is theirs, the files are ours.

Decides how a component's tensors become one safetensors file a rank. Leaves the bytes to `tensorfile` and reading back
to `reading`. Rules: every rank writes exactly one file, an empty one if it must; the index of chunks lies in each
file's own metadata; nothing is pickled; `capture` does every collective and copy, `ShardCapture.write` only file work.
Source: torch.distributed.checkpoint planner documentation; ADR 0005.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import torch
from msgspec import Meta
from torch.distributed.checkpoint import DefaultSavePlanner
from torch.distributed.checkpoint.planner import SavePlan

from lastgood.documents import Document
from lastgood.errors import UsageError
from lastgood.manifest import Component
from lastgood.state.ranks import RankIdentity, Ranks
from lastgood.state.tensorfile import dtype_code, write_tensor_file

__all__ = ["INDEX_KEY", "Chunk", "HostMemory", "ShardCapture", "ShardIndex", "TensorIndex", "capture_tensors"]

INDEX_KEY = "lastgood"
"""The key of the index in a file's safetensors `__metadata__`."""

_COPYING_THREADS = 4  # a few saturate the memory of most machines; the ranks of a node copy at the same time

_Extent = Annotated[int, Meta(ge=0, le=2**62)]


class Chunk(Document, frozen=True, kw_only=True):
    """A box of a tensor: the entry that holds it, where it starts in the whole tensor, and how far it reaches."""

    entry: str
    offsets: tuple[_Extent, ...]
    sizes: tuple[_Extent, ...]


class TensorIndex(Document, frozen=True, kw_only=True):
    """The whole tensor's shape and element type, and those of its chunks that lie in this file."""

    shape: tuple[_Extent, ...]
    dtype: str
    chunks: tuple[Chunk, ...]


class ShardIndex(Document, frozen=True, kw_only=True):
    """What one rank's file says of itself.

    Args:
        version: Of this index.
        component: The kind of state; a file under another component's name is refused.
        rank: The writer.
        world_size: How many such files make the component.
        step: Completed optimizer steps.
        tensors: Key → what this file holds of it.
        objects: The component's values that are no tensors, spelled by `codec`.
    """

    version: Literal[1]
    component: Component
    rank: Annotated[int, Meta(ge=0)]
    world_size: Annotated[int, Meta(ge=1)]
    step: Annotated[int, Meta(ge=0)]
    tensors: dict[str, TensorIndex]
    objects: Any


class HostMemory:
    """Host buffers that are kept between asynchronous saves, since first-touch page faults cost more than the copy.

    A set of buffers is lent to one capture and comes back when that capture has been written or dropped; a capture that
    finds its set lent gets new memory, so two saves in flight are correct and merely cost more.
    """

    def __init__(self) -> None:
        self._free: dict[str, torch.Tensor] = {}

    def copy(self, tensors: Sequence[tuple[str, torch.Tensor]]) -> list[tuple[str, torch.Tensor]]:
        """Private copies in host memory, pinned where they come from a device; training waits for this."""
        copies = [(key, self._buffer(key, tensor)) for key, tensor in tensors]
        pairs = [(buffer, tensor) for (_, buffer), (_, tensor) in zip(copies, tensors, strict=True)]
        on_host = [pair for pair in pairs if pair[1].device.type == "cpu"]
        for buffer, tensor in pairs:
            if tensor.device.type != "cpu":
                # On this thread's stream, after the kernels that are still changing the tensor.
                buffer.copy_(tensor, non_blocking=tensor.device.type == "cuda")
        threads = min(_COPYING_THREADS, len(os.sched_getaffinity(0)))
        with ThreadPoolExecutor(max_workers=threads) as pool:
            # torch copies without the interpreter's lock.
            list(pool.map(_copy_each, (on_host[start::threads] for start in range(threads))))
        if any(buffer.is_pinned() for _, buffer in copies):
            torch.cuda.synchronize()
        return copies

    def _buffer(self, key: str, tensor: torch.Tensor) -> torch.Tensor:
        buffer = self._free.pop(key, None)
        if buffer is None or buffer.dtype != tensor.dtype or buffer.shape != tensor.shape:
            return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.device.type == "cuda")
        return buffer

    def give_back(self, buffers: Mapping[str, torch.Tensor]) -> None:
        self._free.update(buffers)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardCapture:
    """One rank's planned part of one component; `write` may run in any thread."""

    component: Component
    directory: str
    index: ShardIndex
    entries: tuple[tuple[str, torch.Tensor], ...]
    file_name: str
    memory: HostMemory | None

    @property
    def path(self) -> str:
        """Relative to the payload: `model/rank-00000.safetensors`."""
        return f"{self.directory}/{self.file_name}"

    def write(self, payload: Path) -> None:
        """Write the file under the payload directory.

        Raises:
            FileExistsError: The file is there already; a payload directory serves one save.
            OSError: The file system refused.
        """
        target = payload / self.path
        target.parent.mkdir(parents=True, exist_ok=True)
        # A device's tensors are fetched one file at a time; what is on the host already is written where it lies.
        entries = [(name, tensor.cpu().contiguous()) for name, tensor in self.entries]
        write_tensor_file(target, entries, {"format": "pt", INDEX_KEY: msgspec.json.encode(self.index).decode()})

    def release(self) -> None:
        """Return private host buffers; the capture must not be written afterwards."""
        if self.memory is not None:
            self.memory.give_back(dict(self.entries))


def capture_tensors(
    tensors: Mapping[str, torch.Tensor],
    objects: Any,
    *,
    component: Component,
    directory: str,
    step: int,
    identity: RankIdentity,
    ranks: Ranks,
    unsynchronised: Collection[str] = (),
    memory: HostMemory | None = None,
) -> ShardCapture:
    """Plan which rank writes which chunk, and hold this rank's chunks.

    Args:
        tensors: Key → whole, replicated or distributed (DTensor) tensor, live.
        objects: Plain JSON of the values that are no tensors.
        component: The kind of state.
        directory: Where the files go, relative to the payload.
        step: Completed optimizer steps.
        identity: This rank.
        ranks: All ranks; every rank must call this together.
        unsynchronised: Keys whose copies on several ranks may differ (batch norm's statistics): the lowest rank's are
            written, as `DistributedDataParallel` would broadcast them. Other copies are equal, and the work is shared.
        memory: Copy into private host memory, so that training may go on before `write`; None: hold the live tensors.

    Raises:
        UsageError: A value is no dense tensor.
        LastgoodError: Some rank failed, or the plans contradict each other.
    """
    planner = DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False)

    def plan() -> tuple[SavePlan, frozenset[str]]:
        for key, tensor in tensors.items():
            if tensor.layout is not torch.strided or tensor.device.type == "meta":
                raise UsageError(f"tensor cannot be stored: {component}.{key}: {tensor.layout} on {tensor.device}")
        planner.set_up_planner(dict(tensors), is_coordinator=identity.rank == 0)
        return planner.create_local_plan(), frozenset(unsynchronised)

    def share(offered: list[tuple[SavePlan, frozenset[str]]]) -> list[SavePlan]:
        return planner.create_global_plan(_lowest_only(offered))[0]

    final = planner.finish_plan(ranks.distribute(plan, share))
    found: dict[str, list[Chunk]] = {}
    entries: list[tuple[str, torch.Tensor]] = []
    for item in sorted(final.items, key=lambda item: (item.index.fqn, tuple(item.index.offset or ()))):
        data = item.tensor_data
        assert data is not None, "only tensors are planned"
        chunk = _chunk(item.index.fqn, tuple(data.size), tuple(data.chunk.offsets), tuple(data.chunk.sizes))
        if 0 in chunk.sizes and 0 not in data.size:
            continue  # an uneven shard left this rank nothing of the tensor
        found.setdefault(item.index.fqn, []).append(chunk)
        tensor = planner.resolve_data(item)
        assert isinstance(tensor, torch.Tensor), "only tensors are planned"
        entries.append((chunk.entry, tensor.detach()))
    # The widest elements first, so that every entry is aligned to its own size, as safetensors' own writer does.
    entries.sort(key=lambda entry: (-entry[1].element_size(), entry[0]))
    if memory is not None:
        entries = memory.copy(entries)
    index = ShardIndex(
        version=1,
        component=component,
        rank=identity.rank,
        world_size=identity.world_size,
        step=step,
        tensors={key: _tensor_index(tensors[key], chunks) for key, chunks in found.items()},
        objects=objects,
    )
    return ShardCapture(
        component=component,
        directory=directory,
        index=index,
        entries=tuple(entries),
        file_name=f"{identity.file_stem}.safetensors",
        memory=memory,
    )


def _lowest_only(offered: list[tuple[SavePlan, frozenset[str]]]) -> list[SavePlan]:
    """Leave tensors whose copies may differ to the lowest rank that has them."""
    taken: set[str] = set()
    plans = []
    for plan, unsynchronised in offered:
        items = [item for item in plan.items if item.index.fqn not in taken]
        taken.update(unsynchronised)
        plans.append(replace(plan, items=items))
    return plans


def _copy_each(pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
    for buffer, tensor in pairs:
        buffer.copy_(tensor)


def _chunk(key: str, shape: tuple[int, ...], offsets: tuple[int, ...], sizes: tuple[int, ...]) -> Chunk:
    # A whole tensor keeps its own name, so that any safetensors tool shows what people know.
    entry = key if sizes == shape else f"{key}@{','.join(map(str, offsets))}"
    return Chunk(entry=entry, offsets=offsets, sizes=sizes)


def _tensor_index(tensor: torch.Tensor, chunks: list[Chunk]) -> TensorIndex:
    return TensorIndex(shape=tuple(tensor.shape), dtype=dtype_code(tensor.dtype), chunks=tuple(chunks))
