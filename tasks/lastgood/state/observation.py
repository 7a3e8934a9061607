"""What the live objects say of the next update: the same function before a save and after a load.

Decides what is observed and under which names. Rules: observing consumes no draw, moves no cursor and starts no worker;
a supervisor without torch compares two observations by plain equality. Source: docs/format.md, expectations.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from lastgood.digest import Algorithm, hash_bytes
from lastgood.manifest import Expectations, RankExpectations, SampleIds
from lastgood.state.modules import OptimizerPart, group_name
from lastgood.state.tensorfile import tensor_bytes

__all__ = ["Observation", "digest_sample", "learning_rates", "merge_sample_ids", "optimizer_steps"]

SAMPLED_TENSORS = 4
SAMPLED_BYTES = 16 * 2**20
"""At most so many tensors and bytes of each kind (model, optimizer): a kind without a sample could be stale unseen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One rank's part of a manifest's expectations.

    Args:
        rank: What belongs to this rank alone.
        learning_rates: Group → the rate that the next update will use.
        optimizer_steps: Group → completed updates.
        scalars: Other values that must come back exactly.
    """

    rank: RankExpectations
    learning_rates: Mapping[str, float]
    optimizer_steps: Mapping[str, int]
    scalars: Mapping[str, float | int]

    @property
    def expectations(self) -> Expectations:
        """As this rank's `publish` and its trace take it."""
        return Expectations(
            learning_rates=dict(self.learning_rates),
            optimizer_steps=dict(self.optimizer_steps),
            scalars=dict(self.scalars),
            ranks=(self.rank,),
        )


def learning_rates(parts: list[OptimizerPart]) -> dict[str, float]:
    """The rate of each parameter group as the optimizer will use it next."""
    return {
        _qualified(parts, part, group_name(group, number)): float(group["lr"])
        for part in parts
        for number, group in enumerate(part.optimizer.param_groups)
    }


def optimizer_steps(parts: list[OptimizerPart]) -> dict[str, int]:
    """Completed updates of each parameter group."""
    return {_qualified(parts, part, name): count for part in parts for name, count in part.steps().items()}


def merge_sample_ids(sources: Mapping[str, SampleIds]) -> SampleIds:
    """The next ids over all sources of a rank, in the order of their names; one without a peek speaks for all."""
    for name, ids in sources.items():
        if ids.from_trace is not None:
            return SampleIds(from_trace=f"{name}: {ids.from_trace}")
    if not sources:
        return SampleIds(from_trace="no data source is registered")
    return SampleIds(ids=tuple(one for ids in sources.values() for one in ids.ids))


def digest_sample(tensors: Mapping[str, torch.Tensor], step: int) -> dict[str, str]:
    """Digests of this rank's bytes of a few tensors, another few at every step.

    Args:
        tensors: Full key (`model.blocks.0.weight`) → live tensor, whole or distributed.
        step: Chooses the sample, so that many saves cover many tensors.

    A key of a part of a tensor carries the part (`model.w[0:32,0:16]`), since another topology has other parts.
    """
    digests: dict[str, str] = {}
    left: dict[str, tuple[int, int]] = {}
    for key in sorted(tensors, key=lambda key: hash_bytes(f"{step} {key}".encode(), Algorithm.BLAKE3).value):
        kind = key.partition(".")[0]
        count, budget = left.get(kind, (SAMPLED_TENSORS, SAMPLED_BYTES))
        if not count:
            continue
        local, suffix = _local(tensors[key])
        length = local.numel() * local.element_size()
        if not length or length > budget:
            continue
        left[kind] = (count - 1, budget - length)
        held = local.detach().cpu().contiguous()
        digests[key + suffix] = str(hash_bytes(tensor_bytes(held), Algorithm.BLAKE3))
    return digests


def _qualified(parts: list[OptimizerPart], part: OptimizerPart, group: str) -> str:
    return group if len(parts) == 1 else f"{part.name}.{group}"


def _local(tensor: Any) -> tuple[torch.Tensor, str]:
    if not hasattr(tensor, "to_local"):
        return tensor, ""
    chunks = tensor.__create_chunk_list__()
    local: torch.Tensor = tensor.to_local()
    if tuple(local.shape) == tuple(tensor.shape):
        return local, ""
    return local, f"[{','.join(_ranges(chunks[0].offsets, chunks[0].sizes))}]" if chunks else "[]"


def _ranges(offsets: Any, sizes: Any) -> Iterator[str]:
    for offset, size in zip(offsets, sizes, strict=True):
        yield f"{offset}:{offset + size}"
