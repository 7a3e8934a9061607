"""A stream of records with durable offsets, shared out to ranks by global batches.

Decides which records come next on every rank. Rules: a position is the source's own durable offset of the next global
batch, never a count to be skipped; every rank reads the whole global batch and keeps its share, so another world
size continues at the same record; records that fill no global batch end their epoch.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from lastgood.errors import UsageError
from lastgood.state.cursor import MAXIMUM_COUNT
from lastgood.state.ranks import RankIdentity

__all__ = ["LineFiles", "Record", "RecordCursor", "RecordSource"]


class Record(NamedTuple):
    """One record: its durable id, the offset of the record after it, and what it holds."""

    id: str | int
    next_offset: int
    value: Any


class RecordSource(Protocol):
    """Records in one lasting order."""

    @property
    def fingerprint(self) -> str:
        """Changes whenever offsets may have changed their meaning."""

    def read(self, offset: int) -> Iterator[Record]:
        """The records from an offset on, to the end; 0 is the first, and every `next_offset` is lawful."""


class LineFiles:
    """Lines of files, one after another; an offset counts bytes over all of them, and is also the record's id.

    Args:
        paths: Read in this order. Files may not change while a run uses them.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = tuple(paths)
        self._sizes = tuple(os.stat(path).st_size for path in self._paths)

    @property
    def fingerprint(self) -> str:
        return ",".join(f"{path.name}:{size}" for path, size in zip(self._paths, self._sizes, strict=True))

    def read(self, offset: int) -> Iterator[Record]:
        begin = 0
        for path, size in zip(self._paths, self._sizes, strict=True):
            if offset < begin + size:
                with path.open("rb") as file:
                    file.seek(max(0, offset - begin))
                    position = begin + file.tell()
                    for line in file:
                        yield Record(id=position, next_offset=position + len(line), value=line)
                        position += len(line)
            begin += size


class RecordCursor:
    """Yields this rank's share of each global batch of records.

    Args:
        source: The records.
        global_batch: Records of one optimizer step, over all ranks and microbatches.
        microbatches: Batches in which a rank gets its share of one step.
        identity: This rank.

    `epoch`, `offset` (of the next global batch) and `consumed` (records of this epoch, over all ranks) are the cursor.
    """

    def __init__(
        self, source: RecordSource, *, global_batch: int, identity: RankIdentity, microbatches: int = 1
    ) -> None:
        if global_batch < 1 or microbatches < 1 or global_batch % (identity.world_size * microbatches):
            raise UsageError(
                f"global batch cannot be shared: {global_batch} records over {identity.world_size} ranks "
                f"and {microbatches} microbatches"
            )
        self.global_batch = global_batch
        self.epoch = 0
        self.offset = 0
        self.consumed = 0
        self._source = source
        self._identity = identity
        self._piece = global_batch // identity.world_size // microbatches
        self._inside = False

    def follow(self) -> Iterator[list[Record]]:
        """Microbatches from the cursor to the end of the epoch; the cursor moves with the last one of each step."""
        share = self.global_batch // self._identity.world_size
        batches = _batches(self._source.read(self.offset), self.global_batch)
        batch = next(batches, None)
        if batch is None:
            raise UsageError(f"fewer records than one global batch of {self.global_batch}: nothing to train on")
        while batch is not None:
            # One batch ahead, to know that the epoch is over when its last batch is handed out.
            following = next(batches, None)
            mine = batch[self._identity.rank * share : (self._identity.rank + 1) * share]
            for start in range(0, share, self._piece):
                self._inside = start + self._piece < share
                if not self._inside:
                    self._move(batch[-1].next_offset, over=following is None)
                yield mine[start : start + self._piece]
            batch = following

    def peek(self, count: int) -> tuple[str | int, ...]:
        """The ids of this rank's next records, at most to the end of the epoch; the cursor stays."""
        share = self.global_batch // self._identity.world_size
        ids: list[str | int] = []
        for batch in _batches(self._source.read(self.offset), self.global_batch):
            ids.extend(record.id for record in batch[self._identity.rank * share : (self._identity.rank + 1) * share])
            if len(ids) >= count:
                break
        return tuple(ids[:count])

    def position(self) -> dict[str, Any]:
        """The cursor and what its meaning depends on.

        Raises:
            UsageError: Some microbatches of the current step were handed out and others not.
        """
        if self._inside:
            raise UsageError(
                "save inside a global batch of records", hint="save after the last microbatch of an optimizer step"
            )
        return {
            "epoch": self.epoch,
            "offset": self.offset,
            "consumed": self.consumed,
            "global_batch": self.global_batch,
            "fingerprint": self._source.fingerprint,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Move the cursor to a validated position."""
        self.epoch, self.offset, self.consumed = state["epoch"], state["offset"], state["consumed"]
        self._inside = False

    def problems(self, state: Any) -> Iterator[str]:
        """What is wrong with a saved position for this source."""
        expected = {"epoch", "offset", "consumed", "global_batch", "fingerprint"}
        if not isinstance(state, dict) or state.keys() != expected:
            yield f"expected the keys {sorted(expected)}, found {sorted(state) if isinstance(state, dict) else state!r}"
            return
        if state["fingerprint"] != self._source.fingerprint:
            yield f"fingerprint: the run reads {self._source.fingerprint!r}, the checkpoint {state['fingerprint']!r}"
        if state["global_batch"] != self.global_batch:
            yield f"global_batch: the run has {self.global_batch}, the checkpoint {state['global_batch']!r}"
        counts = [key for key in ("epoch", "offset", "consumed") if not _is_count(state[key])]
        for key in counts:
            yield f"{key}: expected a count, found {state[key]!r}"
        if not counts and state["consumed"] % self.global_batch:
            yield f"consumed: {state['consumed']} is no multiple of the global batch {self.global_batch}"
        elif not counts and next(_batches(self._source.read(state["offset"]), self.global_batch), None) is None:
            yield f"offset: no whole global batch lies at {state['offset']}"

    def _move(self, offset: int, *, over: bool) -> None:
        if over:
            self.epoch, self.offset, self.consumed = self.epoch + 1, 0, 0
        else:
            self.offset, self.consumed = offset, self.consumed + self.global_batch


def _batches(records: Iterator[Record], size: int) -> Iterator[list[Record]]:
    while len(batch := list(islice(records, size))) == size:
        yield batch


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value <= MAXIMUM_COUNT
