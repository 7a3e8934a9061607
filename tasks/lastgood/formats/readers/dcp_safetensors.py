"""torch DCP's Hugging Face storage: safetensors that each rank wrote for itself, not yet put together.

Decides which shards there must be, by the numbers in their names. Rule: it holds weights alone. Source: torch's
`torch.distributed.checkpoint.hf_storage` and `_hf_utils`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from lastgood.errors import FormatError, ReadLimitError
from lastgood.formats.containers.tensors import read_tensor_header
from lastgood.formats.description import Certainty, Description, Framework, HeldComponent, Layout, NeedlessFile
from lastgood.formats.readers.grids import absent
from lastgood.formats.readers.wording import malformed, settled, shard_missing
from lastgood.formats.root import Choice, Root
from lastgood.formats.source import Source
from lastgood.manifest import Component
from lastgood.verdict import Finding

__all__ = ["DcpSafetensorsReader"]

_SHARD = re.compile(r"(?:sharded/)?shard-(?P<shard>\d{5,9})-model-(?P<file>\d{5,9})-of-(?P<files>\d{5,9})\.safetensors")


class DcpSafetensorsReader:
    """`shard-SSSSS-model-NNNNN-of-MMMMM.safetensors`, without an index."""

    def recognises(self, source: Source) -> bool:
        return any(_SHARD.fullmatch(path) for path in source.files) and not source.holds("model.safetensors.index.json")

    def describe(self, source: Source) -> Description:
        shards = {path: match for path in source.matching() if (match := _SHARD.fullmatch(path))}
        ranks = max((int(match["shard"]) for match in shards.values()), default=0)
        untold: list[str] = []
        torn = tuple(_torn(source, shards, untold))
        return Description(
            framework=Framework.TORCH_DCP,
            layout_name="safetensors of each rank",
            step=None,
            layout=Layout(
                world_size=ranks or None, certainty=Certainty.INFERRED, why="the largest shard in the names of files"
            ),
            components=(HeldComponent(component=Component.MODEL, paths=tuple(shards)),) if shards else (),
            findings=settled(source, torn, _missing(shards, ranks)),
            needless=tuple(
                NeedlessFile(path=path, reason="the reader of this storage opens safetensors alone")
                for path in source.matching()
                if path not in shards
            ),
            unknowable=(
                "whether the last ranks are there: nothing says how many wrote",
                "whether the save finished: this storage writes no marker",
            ),
            untold=tuple(untold),
        )

    def choose(self, root: Root) -> Choice | None:
        return None


def _torn(source: Source, shards: dict[str, re.Match[str]], untold: list[str]) -> Iterator[Finding]:
    for path in shards:
        try:
            with source.open(path) as reader:
                read_tensor_header(reader, path)
        except ReadLimitError as error:
            untold.append(error.message)
        except FormatError as error:
            yield malformed(error, path)


def _missing(shards: dict[str, re.Match[str]], ranks: int) -> Iterator[Finding]:
    held = {(int(match["shard"]) - 1,) for match in shards.values()}
    for (rank,) in absent((ranks,), held):
        name = f"shard-{rank + 1:05d}-model-00001-of-00001.safetensors"
        yield shard_missing(name, f"the largest shard that lies there is {ranks}")
